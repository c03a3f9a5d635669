"""Work on the few rows of a batch that need it, at a cost that follows their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from purejaxrl_scale.devices import common_bound

Carry = TypeVar("Carry")


def block_size(rows: int) -> int:
    """Rows handled at a time: small enough to waste little, large enough to keep the loop short."""
    return min(rows, max(8, rows // 64))


def for_marked(mask: jax.Array, body: Callable[[jax.Array, Carry], Carry], carry: Carry, *, block: int) -> Carry:
    """`body(rows, carry)` for blocks of the rows at which `mask` (bool[N]) is set, in order.

    `rows` is i32[block]; the last block is filled up with the row N, one past the end: gather with `take_rows` and
    scatter with `put_rows`, which clip and drop it. The number of blocks is traced, so nothing is computed where no
    row is marked.
    """
    size = mask.shape[0]
    blocks = common_bound((jnp.sum(mask, dtype=jnp.int32) + block - 1) // block)

    def marked_rows():
        return jnp.nonzero(mask, size=size + block, fill_value=size)[0].astype(jnp.int32)

    # Finding the rows costs a prefix sum over N; most steps of most environments have nothing to find.
    rows = jax.lax.cond(blocks > 0, marked_rows, lambda: jnp.full((size + block,), size, jnp.int32))
    return jax.lax.fori_loop(
        0, blocks, lambda i, carry: body(jax.lax.dynamic_slice(rows, (i * block,), (block,)), carry), carry
    )


def take_rows(tree, rows: jax.Array):
    """The given rows of each leaf."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def put_rows(tree, rows: jax.Array, values):
    """Each leaf with the given rows replaced; rows past the end are dropped."""
    return jax.tree.map(lambda leaf, value: leaf.at[rows].set(value, mode="drop"), tree, values)


def rows_from(tree, first: jax.Array, count: int):
    """`count` rows of each leaf [N, ...], from row `first` on; the leaves themselves where that is all of them."""
    return jax.tree.map(lambda leaf: _slice(leaf, first, count), tree)


def put_rows_from(tree, values, first: jax.Array):
    """Each leaf [N, ...] with rows replaced by [B, ...], from row `first` on."""
    return jax.tree.map(lambda leaf, value: _replaced(leaf, value, (first,)), tree, values)


def block_at(tree, time: jax.Array, first: jax.Array, count: int):
    """`count` rows of each leaf [T, N, ...] at one time, from row `first` on."""
    return jax.tree.map(
        lambda leaf: _slice(jax.lax.dynamic_index_in_dim(leaf, time, keepdims=False), first, count), tree
    )


def put_block(tree, values, time: jax.Array, first: jax.Array):
    """Each leaf [T, N, ...] with rows of one time replaced by [B, ...], from row `first` on."""
    return jax.tree.map(lambda leaf, value: _replaced(leaf, value[None], (time, first)), tree, values)


def _slice(leaf: jax.Array, first: jax.Array, count: int) -> jax.Array:
    return leaf if leaf.shape[0] == count else jax.lax.dynamic_slice_in_dim(leaf, first, count)


def _replaced(leaf: jax.Array, value: jax.Array, start: tuple[jax.Array, ...]) -> jax.Array:
    if leaf.shape == value.shape:
        return value
    return jax.lax.dynamic_update_slice(leaf, value, (*start, *(0,) * (leaf.ndim - len(start))))
