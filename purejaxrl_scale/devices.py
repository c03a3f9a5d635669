"""Where arrays live: one mesh axis over which environments are sharded, and the collectives that cross it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

from purejaxrl_scale.config import DevicesConfig

DEVICE_AXIS = "devices"
SEED_AXIS = "seed"
REPLICATED = PartitionSpec()
Tree = TypeVar("Tree")


def make_mesh(config: DevicesConfig) -> Mesh:
    """The mesh of one axis over the devices asked for.

    Raises:
        ValueError: fewer devices than asked for, a number that does not divide the logical shards, or no GPU where
            one is required.
    """
    available = jax.devices()
    if config.require_gpu and available[0].platform == "cpu":
        raise ValueError(
            "devices.require_gpu is set, but JAX sees only CPUs; install the plugin for your driver: "
            'pip install "jax[cuda13]"'
        )
    count = config.count or len(available)
    if count > len(available):
        raise ValueError(f"devices.count is {count}, but JAX sees {len(available)} device(s): {available}")
    if config.logical_shards % count:
        raise ValueError(
            f"devices.logical_shards ({config.logical_shards}) must be a multiple of the number of devices ({count}); "
            f"nearest legal value: {-(-config.logical_shards // count) * count}"
        )
    return jax.make_mesh((count,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=available[:count])


def is_bound(axis: str) -> bool:
    """Whether the code runs inside a map over `axis`; functions of plain arrays also work outside of one."""
    try:
        jax.lax.axis_size(axis)
    except NameError:
        return False
    return True


def shard_index() -> jax.Array:
    """This device's place on the mesh, u32[]."""
    return jax.lax.axis_index(DEVICE_AXIS).astype(jnp.uint32) if is_bound(DEVICE_AXIS) else jnp.uint32(0)


def global_sum(tree: Tree) -> Tree:
    """The sum over devices of each leaf.

    Trap: it must not stand inside a differentiated function; differentiate local sums, then add them up.
    """
    return jax.lax.psum(tree, DEVICE_AXIS) if is_bound(DEVICE_AXIS) else tree


def common_bound(count: int | jax.Array) -> int | jax.Array:
    """The largest `count` of all seeds of a population: a trip count that is one number for all of them.

    A loop whose bound differed between seeds would select between whole carries at every iteration.
    """
    return jax.lax.pmax(count, SEED_AXIS) if isinstance(count, jax.Array) and is_bound(SEED_AXIS) else count


def only_where(running: jax.Array, new: Tree, old: Tree, differs: bool) -> Tree:
    """`new` in seeds that still take part in a loop of common bound, `old` in those that are done.

    Where no two seeds can differ, or there is only one, every seed takes part and nothing is selected.
    """
    if not differs or not is_bound(SEED_AXIS) or jax.lax.axis_size(SEED_AXIS) == 1:
        return new
    return jax.tree.map(lambda now, before: jnp.where(running, now, before), new, old)


def over_seeds(function: Callable, population: bool, *, mapped: tuple[bool, ...]) -> Callable:
    """`function` for a population: a vmap over the arguments that are `mapped`, with SEED_AXIS bound.

    A single seed binds the axis too, at size one and with nothing batched, so that there is one code path.
    """
    if population:
        return jax.vmap(function, in_axes=tuple(0 if one else None for one in mapped), axis_name=SEED_AXIS)
    return jax.vmap(function, in_axes=None, out_axes=None, axis_name=SEED_AXIS, axis_size=1)  # pyright: ignore[reportArgumentType]
