"""The inner loop: epochs of optimiser steps on one batch, each along the gradient of one minibatch.

A minibatch is a sum of microbatches of one size, so that neither memory nor the compiled program depends on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from purejaxrl_scale.config import Config
from purejaxrl_scale.devices import common_bound, each_shard, global_total, only_where, shard_index
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.minibatches import shuffled_index
from purejaxrl_scale.networks.distributions import Distribution
from purejaxrl_scale.outer_loop import adaptive_batch, noise_scale
from purejaxrl_scale.outer_loop.reference_policy import ReferencePolicy

# Samples whose activations stay small beside a CPU's caches, so that memory does not grow with the minibatch.
CPU_MICROBATCH = {
    "mlp": 4096,
    "minatar_cnn": 1024,
    "nature_cnn": 128,
    "impala_cnn": 128,
    "entity_transformer": 128,
    "entity_controls": 2048,
}

ADAPTIVE_MICROBATCH = 64  # samples below which a smaller microbatch is hardly faster


class Learnt(NamedTuple):
    """What optimiser steps move."""

    params: PyTree
    optimiser_state: optax.OptState
    reference: ReferencePolicy | tuple[()]  # () where the behaviour policy is the reference


class Source(NamedTuple):
    """A batch laid flat, from which minibatches gather. Its fields `valid`, and `advantage` where used, are [T · N]."""

    batch: Any  # a NamedTuple of leaves [T · N, ...], row t · N + n
    memory: PyTree  # [T / L · N, ...], the recurrent state before each segment
    num_envs: int  # N, on this device


class Cut(NamedTuple):
    """How a batch is cut into minibatches: int where rollouts have one length, i32[] where it adapts."""

    length: int | jax.Array  # steps of the rollout
    minibatches: int | jax.Array  # an epoch
    epochs: int | jax.Array


class Evaluate(Protocol):
    """The policy and the value of a minibatch, under given parameters."""

    def __call__(
        self, params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array
    ) -> tuple[Distribution, jax.Array]:
        """Observations [L, B / L, ...], memory [B / L, ...] before them -> distribution and value over [L, B / L]."""
        ...


class Objective(Protocol):
    """What a minibatch step descends: the sum over valid samples, not their mean, so that microbatches add up."""

    def __call__(
        self, params: PyTree, learnt: Learnt, memory: PyTree, batch: Any, keys: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Loss of `params` on a batch [L, B / L, ...], and sums of its parts; `keys` are one a sample."""
        ...


def cut(config: Config, length: int | jax.Array) -> Cut:
    """Epochs and minibatches of a rollout of `length` steps."""
    if not config.adapts:
        return Cut(config.algorithm.rollout_length, config.num_minibatches, config.algorithm.epochs)
    adaptive = config.algorithm.adaptive_batch
    minibatches: int | jax.Array = config.num_minibatches
    if adaptive.minibatches == "fixed_size":
        minibatches = jnp.maximum(1, config.environment.num_envs * length // config.algorithm.minibatch_size)
    epochs = adaptive_batch.epochs(jnp.asarray(length), adaptive, config.algorithm.epochs).astype(jnp.int32)
    return Cut(length, minibatches, epochs)


def shards_here(config: Config, num_local: int) -> int:
    """Logical shards on this device, which holds `num_local` environments."""
    return config.devices.logical_shards * num_local // config.environment.num_envs


def rows_of_shards(
    config: Config, key: jax.Array, first: int | jax.Array, count: int, segments: int | jax.Array, num_local: int
) -> jax.Array:
    """Samples at shuffled positions [first, first + count) of each logical shard here, i32[shards, L, count].

    They are flat indices t · N + n. Samples are segments of L consecutive steps of one environment (L = 1 for
    feed-forward networks), shuffled within each logical shard of environments, so that a minibatch holds the same
    samples on any number of devices. Positions past `segments`, the number in a shard, repeat the last.
    """
    shards = shards_here(config, num_local)
    shard_envs, segment = num_local // shards, config.segment_length
    segments = jnp.asarray(segments, jnp.uint32)
    position = jnp.minimum(jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32), segments - 1)

    def of_shard(shard):
        shard_key = jax.random.fold_in(key, shard_index() * jnp.uint32(shards) + shard)
        index = shuffled_index(shard_key, position, segments)
        first_step, env = index // jnp.uint32(shard_envs) * jnp.uint32(segment), index % jnp.uint32(shard_envs)
        first_row = first_step * jnp.uint32(num_local) + shard * jnp.uint32(shard_envs) + env
        return first_row[None] + jnp.uint32(num_local) * jnp.arange(segment, dtype=jnp.uint32)[:, None]

    return jax.vmap(of_shard)(jnp.arange(shards, dtype=jnp.uint32)).astype(jnp.int32)


class Minibatch(NamedTuple):
    """Which samples a minibatch holds on this device, in each of its logical shards."""

    rows: jax.Array  # i32[shards, L, capacity], of which the first `size` of the last axis count
    size: jax.Array  # i32[]


def draw(config: Config, key: jax.Array, cut: Cut, number: jax.Array, num_local: int) -> Minibatch:
    """The `number`-th minibatch of an epoch; sizes differ by at most one segment a logical shard."""
    shard_envs = num_local // shards_here(config, num_local)
    segments = cut.length // config.segment_length * shard_envs
    base, rest = segments // cut.minibatches, segments % cut.minibatches
    first, size = number * base + jnp.minimum(number, rest), base + jnp.int32(number < rest)
    micro, blocks = microbatches(config, num_local)
    if not config.adapts:
        return Minibatch(rows_of_shards(config, key, first, micro * blocks, segments, num_local), size)

    def fill(block, rows):
        some = rows_of_shards(config, key, first + block * micro, micro, segments, num_local)
        return jax.lax.dynamic_update_slice(rows, some, (0, 0, block * micro))

    empty = jnp.zeros((shards_here(config, num_local), config.segment_length, micro * blocks), jnp.int32)
    return Minibatch(jax.lax.fori_loop(0, common_bound((size + micro - 1) // micro), fill, empty), size)


def microbatches(config: Config, num_local: int) -> tuple[int, int]:
    """Segments of each logical shard here whose gradient is computed at once, and how many such blocks the largest
    minibatch has."""
    shards = shards_here(config, num_local)
    largest = _largest_size(config, num_local // shards)
    automatic = CPU_MICROBATCH[config.network.name] if jax.default_backend() == "cpu" else largest * shards
    samples = config.algorithm.microbatch_size or automatic
    unit = config.segment_length * shards
    micro = min(largest, max(1, samples // unit))
    if config.adapts and not config.algorithm.microbatch_size:
        # A last microbatch that is nearly empty costs as much as a full one, so at most about a quarter is wasted.
        smallest = _smallest_size(config)
        least = 1 if config.algorithm.adaptive_batch.driver == "noise_scale" else ADAPTIVE_MICROBATCH // unit
        micro = min(micro, max(smallest // 4, min(smallest, least), 1))
    return micro, -(-largest // micro)


def measures_noise(config: Config, num_local: int) -> bool:
    """Whether every minibatch is a sum of several microbatches, between which the gradient noise scale can be read."""
    if not config.monitors.noise_scale:
        return False
    several_devices = shards_here(config, num_local) < config.devices.logical_shards
    return several_devices or _smallest_size(config) > microbatches(config, num_local)[0]


def _smallest_size(config: Config) -> int:
    """Segments that a logical shard gives to the smallest minibatch."""
    return max(1, config.algorithm.minibatch_size // (config.devices.logical_shards * config.segment_length))


def _largest_size(config: Config, shard_envs: int) -> int:
    """Segments that a logical shard gives to the largest minibatch."""
    most = config.longest_rollout // config.segment_length * shard_envs
    if not config.adapts or config.algorithm.adaptive_batch.minibatches == "fixed_count":
        return -(-most // config.num_minibatches)
    # With samples // minibatch_size minibatches, each is less than twice that size.
    unit = config.devices.logical_shards * config.segment_length
    return min(most, 2 * config.algorithm.minibatch_size // unit)


def standardised(advantage: jax.Array, valid: jax.Array) -> jax.Array:
    """Advantages with mean 0 and standard deviation 1 over the whole minibatch, on all devices."""
    count = jnp.maximum(global_total(lambda: jnp.sum(valid, dtype=jnp.float32)), 1.0)
    mean = global_total(lambda: jnp.sum(jnp.where(valid, advantage, 0.0))) / count
    centred = each_shard(lambda: jnp.where(valid, advantage - mean, 0.0))()
    variance = global_total(lambda: jnp.sum(centred**2)) / count
    return each_shard(lambda: centred / (jnp.sqrt(variance) + 1e-8))()


def minibatch_gradient(
    objective: Objective,
    config: Config,
    learnt: Learnt,
    source: Source,
    minibatch: Minibatch,
    key: jax.Array,
    *,
    normalise_advantages: bool,
) -> tuple[PyTree, dict[str, jax.Array]]:
    """The gradient of the mean loss over a minibatch, on all devices, and the means of the loss's parts.

    Microbatches gather their samples when they need them. The last may be partial; advantages are standardised over
    the whole minibatch.
    """
    rows, size = minibatch
    shards, length, capacity = rows.shape
    micro, blocks = microbatches(config, source.num_envs)
    valid = source.batch.valid[rows] & (jnp.arange(capacity)[None, None] < size)
    advantage = standardised(source.batch.advantage[rows], valid) if normalise_advantages else None
    noisy = measures_noise(config, source.num_envs)
    first_column = shard_index() * jnp.uint32(shards) * size.astype(jnp.uint32)

    def flat(leaf):
        """[shards, L, micro] -> [L, shards · micro]."""
        return jnp.moveaxis(leaf, 0, 1).reshape(length, shards * micro)

    def of_microbatch(number):
        def part(leaf):
            return flat(jax.lax.dynamic_slice_in_dim(leaf, number * micro, micro, axis=2))

        some, counts = part(rows), part(valid)
        batch = jax.tree.map(lambda leaf: leaf[some], source.batch)._replace(valid=counts)
        if advantage is not None:
            batch = batch._replace(advantage=part(advantage))
        memory = jax.tree.map(lambda leaf: leaf[memory_row(some[0], length, source.num_envs)], source.memory)
        place = number * micro + jnp.arange(micro, dtype=jnp.int32)
        shard = jnp.arange(shards, dtype=jnp.uint32)[:, None]
        column = first_column + shard * size.astype(jnp.uint32) + place.astype(jnp.uint32)[None]
        keys = _sample_keys(key, length, column.reshape(-1))
        gradient, parts = jax.grad(lambda params: objective(params, learnt, memory, batch, keys), has_aux=True)(
            learnt.params
        )
        samples = jnp.sum(counts, dtype=jnp.float32)
        if noisy:
            weighted = optax.tree.norm(gradient, squared=True) / jnp.maximum(samples, 1.0)
            parts = {**parts, _WEIGHTED_NORM: weighted, _MICROBATCHES: (samples > 0).astype(jnp.float32)}
        return gradient, parts, samples

    def of_all():
        if blocks == 1:
            return of_microbatch(jnp.int32(0))
        one = jax.jit(of_microbatch)
        count = common_bound((size + micro - 1) // micro) if config.adapts else blocks
        return jax.lax.fori_loop(
            0, count, lambda number, total: jax.tree.map(jnp.add, total, one(number)), zeros_like(one, jnp.int32(0))
        )

    gradient, parts, samples = global_total(of_all)
    samples = jnp.maximum(samples, 1.0)
    weighted, parts_of = parts.pop(_WEIGHTED_NORM, None), parts.pop(_MICROBATCHES, None)
    gradient, parts = jax.tree.map(lambda leaf: leaf / samples, (gradient, parts))
    norm = optax.tree.norm(gradient)
    parts["optimiser/gradient_norm"] = norm
    if noisy:
        grad_norm_sq, variance = noise_scale.from_microbatches(weighted, norm**2, parts_of, samples)
        parts |= {"outer/gradient_norm_sq": grad_norm_sq, "outer/gradient_variance": variance}
    return gradient, parts


_WEIGHTED_NORM, _MICROBATCHES = "weighted norm of microbatches", "number of microbatches"


def memory_row(row: jax.Array, length: int, num_envs: int) -> jax.Array:
    """Where the memory before a segment stands: (its first step / L) · N + environment."""
    return row // (num_envs * length) * num_envs + row % num_envs


def _sample_keys(key: jax.Array, length: int, column: jax.Array) -> jax.Array:
    """One key a sample, key[L, B], from its place in the global minibatch."""
    place = jnp.arange(length, dtype=jnp.uint32)[:, None] + jnp.uint32(length) * column[None]
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(place)


def zeros_like(function: Callable, *arguments: Any) -> PyTree:
    """Zeros of the shapes that a function returns. Jitted, it is not traced a second time when it is called."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


def run(
    objective: Objective,
    config: Config,
    cut: Cut,
    learnt: Learnt,
    batch: Any,
    memory: PyTree,
    step: Callable[[Learnt, PyTree, jax.Array], Learnt],
    learning_rate: Callable[[jax.Array], jax.Array],
    key: jax.Array,
    *,
    normalise_advantages: bool = False,
) -> tuple[Learnt, dict[str, jax.Array]]:
    """Every epoch's minibatch steps on one batch -> what was learnt, and metrics averaged over the steps.

    `batch` is [T, N, ...] and `memory` [T / L, N, ...]; `step(learnt, gradient, rate)` takes one optimiser step;
    `learning_rate` maps the share of this outer step's optimiser steps still to be taken, in (0, 1], to a rate.
    """
    num_local = batch.valid.shape[1]
    flat_batch, flat_memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (batch, memory))
    source = Source(flat_batch, flat_memory, num_local)
    steps = cut.epochs * cut.minibatches
    textbook = config.algorithm.shuffle == "permutation"

    @jax.jit
    def minibatch_step(batch, learnt, minibatch, done, key):
        rate = learning_rate((steps - done).astype(jnp.float32) / steps)
        gradient, parts = minibatch_gradient(
            objective,
            config,
            learnt,
            source._replace(batch=batch),
            minibatch,
            key,
            normalise_advantages=normalise_advantages,
        )
        return step(learnt, gradient, rate), {**parts, "optimiser/learning_rate": rate}

    def epoch(number, carry):
        shuffle_key, noise_key = jax.random.split(jax.random.fold_in(key, number.astype(jnp.uint32)))
        shuffled = _textbook_shuffle(shuffle_key, source.batch) if textbook else source.batch

        def one(index, carry):
            learnt, means = carry
            chosen = _slice(config, index, num_local) if textbook else draw(config, shuffle_key, cut, index, num_local)
            done = number * cut.minibatches + index
            noise = jax.random.fold_in(noise_key, index.astype(jnp.uint32))
            new, parts = minibatch_step(shuffled, learnt, chosen, done, noise)
            means = jax.tree.map(lambda mean, part: mean + (part - mean) / (done + 1), means, parts)
            return only_where((number < cut.epochs) & (index < cut.minibatches), (new, means), carry, config.adapts)

        return jax.lax.fori_loop(0, common_bound(cut.minibatches), one, carry)

    first = _slice(config, jnp.int32(0), num_local) if textbook else draw(config, key, cut, jnp.int32(0), num_local)
    _, means = zeros_like(minibatch_step, source.batch, learnt, first, jnp.int32(0), key)
    return jax.lax.fori_loop(0, common_bound(cut.epochs), epoch, (learnt, means))


def _textbook_shuffle(key: jax.Array, batch: Any) -> Any:
    """A shuffled copy of the whole batch, whose minibatches are slices: one sort and one copy an epoch."""
    permutation = jax.random.permutation(jax.random.fold_in(key, shard_index()), batch.valid.shape[0])
    return jax.tree.map(lambda leaf: jnp.take(leaf, permutation, axis=0), batch)


def _slice(config: Config, number: jax.Array, num_local: int) -> Minibatch:
    """The `number`-th minibatch of a shuffled copy."""
    shards, (micro, blocks) = shards_here(config, num_local), microbatches(config, num_local)
    size = config.algorithm.rollout_length * num_local // config.num_minibatches // shards
    place = jnp.minimum(jnp.arange(micro * blocks, dtype=jnp.int32), size - 1)
    rows = (number * shards + jnp.arange(shards, dtype=jnp.int32))[:, None] * size + place[None]
    return Minibatch(rows[:, None], jnp.int32(size))
