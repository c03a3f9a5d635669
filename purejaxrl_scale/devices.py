"""Where arrays live: one mesh axis over which environments are sharded, and the collectives that cross it.

Under `devices.exact_reduction` each logical shard of environments computes as if it had a device to itself, one after
the other on each real one, and sums are taken in the order of the shards: the same bits on any number of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, PartitionSpec

from purejaxrl_scale.config import DevicesConfig

DEVICE_AXIS = "devices"
SEED_AXIS = "seed"
SHARD_AXIS = "shard"
REPLICATED = PartitionSpec()
Tree = TypeVar("Tree")
_turn: ContextVar[jax.Array | None] = ContextVar("the shard whose turn it is in `each_shard`", default=None)


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
    if jax.process_count() > 1 and count != len(available):
        raise ValueError(
            f"devices.count is {count}, but several processes train on all of their devices, which are "
            f"{len(available)}: leave it at 0"
        )
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
    """This device's place on the mesh, or this logical shard's where each has its own turn, u32[]."""
    turn = _turn.get()
    if turn is not None:
        return turn
    device = jax.lax.axis_index(DEVICE_AXIS).astype(jnp.uint32) if is_bound(DEVICE_AXIS) else jnp.uint32(0)
    if not is_bound(SHARD_AXIS):
        return device
    return device * jnp.uint32(jax.lax.axis_size(SHARD_AXIS)) + jax.lax.axis_index(SHARD_AXIS).astype(jnp.uint32)


def global_sum(tree: Tree) -> Tree:
    """The sum over devices of each leaf, or over logical shards in their order.

    Trap: it must not stand inside a differentiated function; differentiate local sums, then add them up.
    """
    if is_bound(SHARD_AXIS):
        return jax.tree.map(_sum_in_order, tree)
    return jax.lax.psum(tree, DEVICE_AXIS) if is_bound(DEVICE_AXIS) else tree


def _sum_in_order(leaf: jax.Array) -> jax.Array:
    parts = jax.lax.all_gather(leaf, SHARD_AXIS)
    if is_bound(DEVICE_AXIS):
        parts = jax.lax.all_gather(parts, DEVICE_AXIS, tiled=True)
    # A loop, since the compiler is free to take a reduction over an axis in any order.
    return jax.lax.fori_loop(1, parts.shape[0], lambda shard, total: total + parts[shard], parts[0])


def each_shard(function: Callable) -> Callable:
    """`function` of what a device holds; where logical shards are apart, of what each of them holds, in its turn.

    It may close over anything. No collective over shards may stand inside.
    """
    if not is_bound(SHARD_AXIS) or _turn.get() is not None:
        return function

    def apart(*arguments):
        leaves, structure = jax.tree.flatten(arguments)

        def flat(shard, *leaves):
            token = _turn.set(shard)
            try:
                return function(*structure.unflatten(leaves))
            finally:
                _turn.reset(token)

        # What it closes over is made an argument: the batching rule below runs when outer traces are long over.
        jaxpr, shapes = jax.make_jaxpr(flat, return_shape=True)(shard_index(), *leaves)
        results = _in_turns(jaxpr.jaxpr)(*jaxpr.consts, shard_index(), *leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return apart


def _in_turns(jaxpr: Jaxpr) -> Callable[..., list[jax.Array]]:
    """Constants and arguments of a jaxpr -> results; under vmap row by row, in a loop.

    Nothing in the loop may depend on how many rows there are, or it would be fused in another way and round otherwise.
    So its length is hidden from the compiler, which would unroll a loop of one, and a single row is put beside a copy,
    since a slice of all there is would vanish.
    """

    def evaluate(values):
        constants = len(jaxpr.constvars)
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, values[:constants]))(*values[constants:])

    mapped = jax.custom_batching.custom_vmap(lambda *values: evaluate(values))

    @mapped.def_vmap
    def rows_in_turn(rows: int, is_mapped: list[bool], *values: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        copies = 2 if rows == 1 else 1
        stacked = [
            jnp.concatenate([value] * copies) if mapped else value
            for value, mapped in zip(values, is_mapped, strict=True)
        ]

        def one(row):
            own = [
                jax.lax.dynamic_index_in_dim(value, row, keepdims=False) if mapped else value
                for value, mapped in zip(stacked, is_mapped, strict=True)
            ]
            return jax.lax.optimization_barrier(evaluate(jax.lax.optimization_barrier(own)))

        def body(row, results):
            return [result.at[row].set(value) for result, value in zip(results, one(row), strict=True)]

        shapes = jax.eval_shape(one, jnp.int32(0))
        results = [jnp.zeros((rows * copies, *shape.shape), shape.dtype) for shape in shapes]
        nothing = (jax.lax.axis_index(DEVICE_AXIS).astype(jnp.uint32) >> 31).astype(jnp.int32)
        results = jax.lax.fori_loop(0, rows + nothing, body, results)
        return [result[:rows] for result in results], [True] * len(results)

    return mapped


def shard_count() -> int:
    """Into how many parts `shard_index` numbers the environments."""
    devices = jax.lax.axis_size(DEVICE_AXIS) if is_bound(DEVICE_AXIS) else 1
    return devices * (jax.lax.axis_size(SHARD_AXIS) if is_bound(SHARD_AXIS) else 1)


def gathered(tree: Tree) -> Tree:
    """What all devices hold, joined along the first axis in the order of `shard_index`."""

    def one(leaf: jax.Array) -> jax.Array:
        for axis in (SHARD_AXIS, DEVICE_AXIS):
            leaf = jax.lax.all_gather(leaf, axis, tiled=True) if is_bound(axis) else leaf
        return leaf

    return jax.tree.map(one, tree)


def global_total(local: Callable[[], Tree]) -> Tree:
    """The sum over devices of `local()`, a sum over what a device holds; or of what each logical shard holds, in order.

    `local` closes over its arrays. Trap: as that of `global_sum`.
    """
    return global_sum(each_shard(local)())


def over_shards(function: Callable, shards: int, in_axes, out_axes) -> Callable:
    """`function` with each logical shard of this device apart: a vmap along the axes given, with SHARD_AXIS bound."""
    return jax.vmap(function, in_axes=in_axes, out_axes=out_axes, axis_name=SHARD_AXIS, axis_size=shards)


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


def over_seeds(function: Callable, population: bool, *, mapped: tuple[bool, ...], exact: bool = False) -> Callable:
    """`function` for a population: a vmap over the arguments that are `mapped`, with SEED_AXIS bound.

    A single seed binds the axis too, at size one and with nothing batched, so that there is one code path; not where
    logical shards are apart, which no population can be.
    """
    if population:
        return jax.vmap(function, in_axes=tuple(0 if one else None for one in mapped), axis_name=SEED_AXIS)
    if exact:
        return function
    return jax.vmap(function, in_axes=None, out_axes=None, axis_name=SEED_AXIS, axis_size=1)  # pyright: ignore[reportArgumentType]
