"""Proximal policy optimisation: the clipped objective, and many minibatch steps on one batch.

Source: Schulman et al. 2017, arXiv 1707.06347.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from purejaxrl_scale.config import AlgorithmConfig, Config
from purejaxrl_scale.devices import global_sum, shard_index
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.minibatches import shuffled_index
from purejaxrl_scale.networks.distributions import Distribution

# Samples whose activations stay small beside a CPU's caches, so that memory does not grow with the minibatch.
CPU_MICROBATCH = {"mlp": 4096, "minatar_cnn": 1024, "impala_cnn": 128, "entity_transformer": 256}
LOG_RATIO_CAP = 4.605170185988092  # log 100: importance ratios beyond 100 carry noise and little else


class Batch(NamedTuple):
    """What the loss needs of each sample: [T, N, ...] for the whole batch, [L, B / L, ...] for segments of length L."""

    observation: PyTree  # raw
    action: jax.Array
    log_prob: jax.Array  # f32, of the behaviour policy
    value: jax.Array  # f32, of the behaviour policy's critic
    advantage: jax.Array  # f32
    target: jax.Array  # f32, value + advantage
    valid: jax.Array  # bool
    is_first: jax.Array  # bool


class Source(NamedTuple):
    """A batch laid flat, from which minibatches gather."""

    batch: Batch  # [T · N, ...], row t · N + n
    memory: PyTree  # [T / L · N, ...], the recurrent state before each segment
    num_envs: int  # N, on this device


class Coefficients(NamedTuple):
    """The traced numbers of an optimiser step, f32[] each."""

    clip: jax.Array
    entropy_coefficient: jax.Array
    value_coefficient: jax.Array
    max_gradient_norm: jax.Array


class Learnt(NamedTuple):
    """What optimiser steps move."""

    params: PyTree
    optimiser_state: optax.OptState


class Evaluate(Protocol):
    """The policy and the value of a minibatch, under given parameters."""

    def __call__(
        self, params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array
    ) -> tuple[Distribution, jax.Array]:
        """Observations [L, B / L, ...], memory [B / L, ...] before them -> distribution and value over [L, B / L]."""
        ...


def surrogate(
    log_prob: Float[Array, "*B"],
    behaviour_log_prob: Float[Array, "*B"],
    reference_log_prob: Float[Array, "*B"],
    advantage: Float[Array, "*B"],
    *,
    clip: float | Float[Array, ""],
) -> Float[Array, "*B"]:
    """The decoupled clipped objective of each sample, to be maximised.

    (π_ref / π_beh) · min(r A, clip(r, 1 - ε, 1 + ε) A),  r = π / π_ref

    With reference = behaviour it is PPO's own objective. π / π_beh is capped at 100.

    Source: Hilton et al. 2021, arXiv 2110.00641, eq. 3; Schulman et al. 2017, eq. 7.
    """
    chex.assert_equal_shape([log_prob, behaviour_log_prob, reference_log_prob, advantage])
    behaviour_log_prob = jnp.maximum(behaviour_log_prob, jax.lax.stop_gradient(log_prob) - LOG_RATIO_CAP)
    lowest, highest = jnp.log(jnp.maximum(1.0 - clip, 1e-8)), jnp.log1p(clip)
    bounded = jnp.clip(log_prob - reference_log_prob, lowest, highest)
    free_ratio = jnp.exp(log_prob - behaviour_log_prob)
    clipped_ratio = jnp.exp(bounded + reference_log_prob - behaviour_log_prob)
    return jnp.minimum(free_ratio * advantage, clipped_ratio * advantage)


def value_loss(
    value: Float[Array, "*B"],
    old_value: Float[Array, "*B"],
    target: Float[Array, "*B"],
    *,
    clip: float | Float[Array, ""] | None,
) -> Float[Array, "*B"]:
    """Half the squared error of each sample; with `clip`, the worse of it and that of a value that moved by `clip`."""
    error = (value - target) ** 2
    if clip is not None:
        clipped = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, (clipped - target) ** 2)
    return 0.5 * error


def standardised(advantage: Float[Array, "*B"], valid: jax.Array) -> Float[Array, "*B"]:
    """Advantages with mean 0 and standard deviation 1 over the whole minibatch, on all devices."""
    count = jnp.maximum(global_sum(jnp.sum(valid, dtype=jnp.float32)), 1.0)
    mean = global_sum(jnp.sum(jnp.where(valid, advantage, 0.0))) / count
    centred = jnp.where(valid, advantage - mean, 0.0)
    variance = global_sum(jnp.sum(centred**2)) / count
    return centred / (jnp.sqrt(variance) + 1e-8)


def loss(
    actor_critic: Evaluate,
    config: AlgorithmConfig,
    params: PyTree,
    memory: PyTree,
    batch: Batch,
    numbers: Coefficients,
    keys: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The sum over this device's valid samples of policy loss + c_v · value loss - c_e · entropy, and its parts.

    A sum and not a mean, so that devices and microbatches add up exactly; divide by the global count. `keys`
    key[L, B / L] serve policies whose entropy is a one-sample estimate.
    """
    policy, value = actor_critic(params, memory, batch.observation, batch.is_first)
    log_prob = policy.log_prob(batch.action)
    objective = surrogate(log_prob, batch.log_prob, batch.log_prob, batch.advantage, clip=numbers.clip)
    error = value_loss(value, batch.value, batch.target, clip=numbers.clip if config.value_clip else None)
    entropy = policy.entropy(None if policy.entropy_is_exact else keys)
    log_ratio = log_prob - batch.log_prob
    ratio = jnp.exp(log_ratio)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch.valid, values, 0.0))

    entropy_sum = total(entropy)
    parts = {
        "loss/policy": total(-objective),
        "loss/value": total(error),
        "policy/entropy" if policy.entropy_is_exact else "policy/entropy_one_sample": entropy_sum,
        "policy/kl_k3": total(ratio - 1.0 - log_ratio),
        "policy/clip_fraction": total(jnp.abs(ratio - 1.0) > numbers.clip),
    }
    whole = (
        parts["loss/policy"]
        + numbers.value_coefficient * parts["loss/value"]
        - numbers.entropy_coefficient * entropy_sum
    )
    return whole, {"loss/total": whole, **parts}


def make_optimiser(config: AlgorithmConfig, max_gradient_norm: float | jax.Array) -> optax.GradientTransformation:
    """Adam behind a clip of the gradient's global norm; the learning rate is applied apart, since it is traced."""
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.scale_by_adam(eps=config.adam_epsilon))


def minibatch_gradient(
    actor_critic: Evaluate,
    config: Config,
    params: PyTree,
    source: Source,
    rows: jax.Array,
    numbers: Coefficients,
    key: jax.Array,
) -> tuple[PyTree, dict[str, jax.Array]]:
    """The gradient of the mean loss over a minibatch, on all devices, and the means of the loss's parts.

    `rows` i32[L, B / L] are this device's. A large minibatch is a sum over microbatches, which gather their samples
    when they need them, so that memory does not grow with the minibatch. The last microbatch may be partial; advantages
    are standardised over the whole.
    """
    length, local = rows.shape
    advantage, valid = source.batch.advantage[rows], source.batch.valid[rows]
    if config.algorithm.normalise_advantages:
        advantage = standardised(advantage, valid)
    size = microbatch_size(config, local * length) // length
    count = -(-local // size)
    column = jnp.arange(count * size, dtype=jnp.int32)

    def of_microbatch(number):
        place = jax.lax.dynamic_slice(column, (number * size,), (size,))
        there = jnp.minimum(place, local - 1)
        some = rows[:, there]
        batch = jax.tree.map(lambda leaf: leaf[some], source.batch)
        batch = batch._replace(advantage=advantage[:, there], valid=batch.valid & (place < local)[None])
        memory = jax.tree.map(lambda leaf: leaf[_memory_row(some[0], length, source.num_envs)], source.memory)
        keys = _sample_keys(key, length, shard_index() * jnp.uint32(local) + place.astype(jnp.uint32))

        def objective(params):
            return loss(actor_critic, config.algorithm, params, memory, batch, numbers, keys)

        return jax.grad(objective, has_aux=True)(params)

    if count == 1:
        total = of_microbatch(0)
    else:
        shapes = jax.eval_shape(of_microbatch, 0)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total = jax.lax.fori_loop(
            0, count, lambda number, total: jax.tree.map(jnp.add, total, of_microbatch(number)), zero
        )
    total, samples = global_sum((total, jnp.sum(valid, dtype=jnp.float32)))
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(samples, 1.0), total)


def microbatch_size(config: Config, samples: int) -> int:
    """Samples whose gradient is computed at once on a device that holds `samples` of a minibatch: whole segments."""
    automatic = CPU_MICROBATCH[config.network.name] if jax.default_backend() == "cpu" else samples
    size = config.algorithm.microbatch_size or max(automatic, config.segment_length)
    return min(size, samples)


def _memory_row(row: jax.Array, length: int, num_envs: int) -> jax.Array:
    """Where the memory before a segment stands: (its first step / L) · N + environment."""
    return row // (num_envs * length) * num_envs + row % num_envs


def _sample_keys(key: jax.Array, length: int, column: jax.Array) -> jax.Array:
    """One key a sample, key[L, B], from its place in the global minibatch."""
    place = jnp.arange(length, dtype=jnp.uint32)[:, None] + jnp.uint32(length) * column[None]
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(place)


def optimiser_step(
    config: AlgorithmConfig, learnt: Learnt, gradient: PyTree, numbers: Coefficients, learning_rate: jax.Array
) -> Learnt:
    """One step of Adam along a gradient clipped by its global norm."""
    optimiser = make_optimiser(config, numbers.max_gradient_norm)
    updates, optimiser_state = optimiser.update(gradient, learnt.optimiser_state, learnt.params)
    params = jax.tree.map(lambda parameter, update: parameter - learning_rate * update, learnt.params, updates)
    return Learnt(params, optimiser_state)


def minibatch_rows(config: Config, key: jax.Array, number: jax.Array, num_local: int) -> jax.Array:
    """Which samples the `number`-th minibatch of an epoch holds on this device: flat indices t · N + n, i32[L, B / L].

    Samples are segments of L consecutive steps of one environment (L = 1 for feed-forward networks), shuffled within
    each logical shard of environments, so that a minibatch holds the same samples on any number of devices.
    """
    shards = config.devices.logical_shards * num_local // config.environment.num_envs
    shard_envs = num_local // shards
    segment = config.segment_length
    segments = config.algorithm.rollout_length // segment * shard_envs
    size = segments // config.num_minibatches
    position = number.astype(jnp.uint32) * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
    local_shards = jnp.arange(shards, dtype=jnp.uint32)

    def of_shard(shard):
        shard_key = jax.random.fold_in(key, shard_index() * jnp.uint32(shards) + shard)
        index = shuffled_index(shard_key, position, segments)
        first_step, env = index // shard_envs * segment, index % shard_envs
        first_row = first_step * jnp.uint32(num_local) + shard * jnp.uint32(shard_envs) + env
        return first_row[None] + jnp.uint32(num_local) * jnp.arange(segment, dtype=jnp.uint32)[:, None]

    rows = jax.vmap(of_shard)(local_shards)  # [shards, L, size]
    return jnp.moveaxis(rows, 0, 1).reshape(segment, shards * size).astype(jnp.int32)


def improve(
    actor_critic: Evaluate,
    config: Config,
    learnt: Learnt,
    batch: Batch,
    memory: PyTree,
    numbers: Coefficients,
    learning_rate: Callable[[jax.Array], jax.Array],
    key: jax.Array,
) -> tuple[Learnt, dict[str, jax.Array]]:
    """Every epoch's minibatch steps on one batch -> what was learnt, and metrics averaged over the steps.

    `batch` is [T, N, ...] and `memory` [T / L, N, ...]; `learning_rate` maps the share of this outer step's optimiser
    steps still to be taken, in (0, 1], to a rate.
    """
    num_local = batch.log_prob.shape[1]
    minibatches = config.num_minibatches
    steps = config.algorithm.epochs * minibatches
    flat_batch, flat_memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (batch, memory))
    source = Source(flat_batch, flat_memory, num_local)

    def epoch(learnt, number):
        shuffle_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
        if config.algorithm.shuffle == "permutation":
            shuffled, rows_of = _textbook_shuffle(config, shuffle_key, source)
        else:
            shuffled, rows_of = source, lambda index: minibatch_rows(config, shuffle_key, index, num_local)

        def step(learnt, index):
            rate = learning_rate((steps - (number * minibatches + index)).astype(jnp.float32) / steps)
            gradient, parts = minibatch_gradient(
                actor_critic,
                config,
                learnt.params,
                shuffled,
                rows_of(index),
                numbers,
                jax.random.fold_in(noise_key, index),
            )
            parts["optimiser/gradient_norm"] = optax.tree.norm(gradient)
            parts["optimiser/learning_rate"] = rate
            return optimiser_step(config.algorithm, learnt, gradient, numbers, rate), parts

        return jax.lax.scan(step, learnt, jnp.arange(minibatches, dtype=jnp.uint32))

    learnt, parts = jax.lax.scan(epoch, learnt, jnp.arange(config.algorithm.epochs, dtype=jnp.uint32))
    return learnt, jax.tree.map(jnp.mean, parts)


def _textbook_shuffle(config: Config, key: jax.Array, source: Source):
    """A shuffled copy of the whole batch, whose minibatches are slices: one sort and one copy an epoch."""
    samples = source.batch.log_prob.shape[0]
    permutation = jax.random.permutation(jax.random.fold_in(key, shard_index()), samples)
    shuffled = jax.tree.map(lambda leaf: jnp.take(leaf, permutation, axis=0), source.batch)
    slices = jnp.arange(samples, dtype=jnp.int32).reshape(config.num_minibatches, 1, -1)
    return source._replace(batch=shuffled), lambda index: slices[index]
