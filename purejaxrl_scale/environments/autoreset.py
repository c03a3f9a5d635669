"""What follows the end of an episode, for every suite alike.

Three ways: `fresh` samples a new start, `pool` draws from starts sampled beforehand, `first_state` goes back to each
environment's own first one. Only environments whose episode ended are reset: they are compacted into blocks, so that
sampling a level costs nothing while nobody needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.compaction import block_size, for_marked, put_rows, take_rows
from purejaxrl_scale.environments.interface import Environment, PyTree, Timestep

Mode = Literal["fresh", "pool", "first_state"]


class Start(NamedTuple):
    """Where an episode begins."""

    observation: PyTree
    state: PyTree


def reset(environment: Environment, keys: jax.Array) -> Start:
    """One start a key, sampled in blocks so that temporaries do not grow with their number."""
    count = keys.shape[0]
    if environment.cheap_reset:
        return Start(*jax.vmap(environment.reset)(keys))
    return Start(*jax.lax.map(environment.reset, keys, batch_size=block_size(count)))


def sample_pool(environment: Environment, mode: Mode, key: jax.Array, size: int) -> Start | tuple[()]:
    """The starts [size, ...] that `pool` draws from; nothing in other modes."""
    return reset(environment, jax.random.split(key, size)) if mode == "pool" else ()


def draw(pool: Start, keys: jax.Array) -> Start:
    """One uniform draw from the pool a key."""
    size = jax.tree.leaves(pool)[0].shape[0]
    return take_rows(pool, jax.vmap(lambda key: jax.random.randint(key, (), 0, size))(keys))


def restart(
    environment: Environment,
    mode: Mode,
    pool: Start | tuple[()],
    first: Start | tuple[()],
    ended: jax.Array,
    keys: Callable[[jax.Array], jax.Array],
    now: Start,
) -> Start:
    """`now` with a new start wherever `ended` (bool[N]) is set; elsewhere it is unchanged.

    `keys` is a function of the rows, i32[B] -> key[B], so that no key is made for an environment that goes on.
    `pool` is [K, ...], `first` is [N, ...]; each is () in the modes that do not use it.
    """
    if mode == "first_state":
        return _where(ended, first, now)
    if mode == "fresh" and environment.cheap_reset:
        everyone = keys(jnp.arange(ended.shape[0], dtype=jnp.int32))
        return _where(ended, reset(environment, everyone), now)

    def renew(rows, now):
        if isinstance(pool, Start):
            new = draw(pool, keys(rows))
        else:
            new = Start(*jax.vmap(environment.reset)(keys(rows)))
        return put_rows(now, rows, new)

    return for_marked(ended, renew, now, block=block_size(ended.shape[0]))


def is_broken(timestep: Timestep) -> jax.Array:
    """Whether physics failed, bool[N]: NaN anywhere in the state, or an observation or reward that is not finite."""

    def any_of(test, tree):
        rows = jnp.zeros(timestep.reward.shape, bool)
        for leaf in jax.tree.leaves(tree):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                rows |= jnp.any(test(leaf).reshape(leaf.shape[0], -1), axis=1)
        return rows

    return any_of(jnp.isnan, timestep.state) | any_of(
        lambda leaf: ~jnp.isfinite(leaf), (timestep.observation, timestep.reward)
    )


def quarantine(timestep: Timestep) -> tuple[Timestep, jax.Array]:
    """The step with broken environments terminated at reward 0, and which they are, bool[N].

    Their transitions must be kept out of gradients and normalisers.
    """
    broken = is_broken(timestep)
    return (
        timestep._replace(
            reward=jnp.where(broken, 0.0, timestep.reward),
            terminated=timestep.terminated | broken,
            truncated=timestep.truncated & ~broken,
            outcome=jax.tree.map(lambda leaf: jnp.where(broken, 0.0, leaf), timestep.outcome),
        ),
        broken,
    )


def _where(mask, new, old):
    def select(new, old):
        return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(select, new, old)
