"""The state that a step returns must look like the state it was given: a scan or a select fails otherwise."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def strong(tree: Tree) -> Tree:
    """The tree with every leaf a strongly typed array.

    A Python number that a suite put into its first state is weakly typed, and would make a second compile of a loop
    whose later states are not.
    """
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), tree)


def conform(tree: Tree, like: Tree, owner: str) -> Tree:
    """The tree with the dtypes of `like`, strongly typed.

    Raises TypeError that names `owner` and the leaf, where a leaf is missing or new, has another shape, or has a dtype
    that the other cannot hold.
    """
    new, structure = jax.tree_util.tree_flatten_with_path(tree)
    old, expected = jax.tree_util.tree_flatten_with_path(like)
    if structure != expected:
        names = {jax.tree_util.keystr(path) for path, _ in new} ^ {jax.tree_util.keystr(path) for path, _ in old}
        culprit = ", ".join(sorted(names)) or f"{structure} where there was {expected}"
        raise TypeError(f"{owner}: reset and step disagree on what the state holds: {culprit}")
    leaves = []
    for (path, leaf), (_, model) in zip(new, old, strict=True):
        dtype = jnp.result_type(leaf)
        if jnp.shape(leaf) != jnp.shape(model) or not jnp.can_cast(dtype, model.dtype, "same_kind"):
            raise TypeError(
                f"{owner}: reset and step disagree on state{jax.tree_util.keystr(path)}: "
                f"{model.dtype}{list(jnp.shape(model))} became {dtype}{list(jnp.shape(leaf))}"
            )
        leaves.append(jax.lax.convert_element_type(leaf, model.dtype))
    return jax.tree.unflatten(expected, leaves)
