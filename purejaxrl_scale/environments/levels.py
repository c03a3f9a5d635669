"""Levels: where episodes begin, each named by the key its start is made from.

A name takes 8 bytes however large the state is, so a buffer of levels costs nothing to keep, to send to other devices
and to save; and a start is made from it again whenever it is assigned.

An environment that filters its levels has one more method, for a block of them: `draw(keys, names, fresh) -> (names,
start)`, of which the start of a fresh level is what `reset(key)` gives, and that of another is what its name has always
given. Elsewhere a key names the level that `reset` makes of it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import Environment


class Levels(NamedTuple):
    """The levels assigned to environments. `slot` is a level's place in the curriculum's buffer, -1 outside of it."""

    name: jax.Array  # u32[N, 2]
    slot: jax.Array  # i32[N]
    playing: jax.Array  # i32[N], the slot of the level that the current episode is on


class Assignment(NamedTuple):
    """A curriculum's answer for all environments of all devices: a place in its buffer each, or a fresh level."""

    slot: jax.Array  # i32[num_envs], -1 for a fresh level
    names: jax.Array  # u32[K, 2], the buffer
    kept: jax.Array  # bool[], whether slots mean the same levels as at the last assignment


def unknown(count: int) -> Levels:
    """Levels of which nothing is known."""
    none = jnp.full(count, -1, jnp.int32)
    return Levels(jnp.zeros((count, 2), jnp.uint32), none, none)


def begin(environment: Environment, keys: jax.Array, names: jax.Array, fresh: jax.Array) -> tuple[jax.Array, Start]:
    """Names u32[B, 2] and starts of a block of levels: drawn with key[B] where `fresh` (bool[B]), else as named."""
    draw = getattr(environment, "draw", None)
    if draw is not None:
        names, start = draw(keys, names, fresh)
        return names, Start(*start)
    names = jnp.where(fresh[:, None], jax.random.key_data(keys), names)
    return names, Start(*jax.vmap(environment.reset)(jax.random.wrap_key_data(names)))


def interleaved(share: float, count: int) -> jax.Array:
    """bool[count] of which a share ρ is set, spread evenly: i where ⌊(i + 1) ρ⌋ > ⌊i ρ⌋."""
    edges = np.floor(np.arange(count + 1) * np.float64(share) + 1e-9)
    return jnp.asarray(np.diff(edges) > 0)


def choose(weight: jax.Array, key: jax.Array, count: int) -> jax.Array:
    """Places i32[count] drawn in proportion to a weight f32[K], or uniformly where none is positive."""
    weight = jnp.where(jnp.any(weight > 0), weight, 1.0)
    upto = jnp.cumsum(weight)
    found = jnp.searchsorted(upto, jax.random.uniform(key, (count,)) * upto[-1], side="right")
    # A product rounded up to the whole sum would lie past the end, and past every weight that is 0 there.
    last = weight.shape[0] - 1 - jnp.argmax(weight[::-1] > 0)
    return jnp.minimum(found, last).astype(jnp.int32)
