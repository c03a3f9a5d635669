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

LOG_RATIO_CAP = 4.605170185988092  # log 100: importance ratios beyond 100 carry noise and little else


class Batch(NamedTuple):
    """What the loss needs of each sample, [T, N, ...] for the whole batch and [L, B / L, ...] for a minibatch."""

    observation: PyTree  # raw
    action: jax.Array
    log_prob: jax.Array  # f32, of the behaviour policy
    value: jax.Array  # f32, of the behaviour policy's critic
    advantage: jax.Array  # f32
    target: jax.Array  # f32, value + advantage
    valid: jax.Array  # bool
    is_first: jax.Array  # bool


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
    """Half the squared error of each sample; with `clip`, the worse of it and that of a value moved by at most `clip`."""
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
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The sum over this device's valid samples of policy loss + c_v · value loss - c_e · entropy, and its parts.

    A sum and not a mean, so that devices and microbatches add up exactly; divide by the global count. `key` serves
    policies whose entropy is a one-sample estimate.
    """
    policy, value = actor_critic(params, memory, batch.observation, batch.is_first)
    log_prob = policy.log_prob(batch.action)
    objective = surrogate(log_prob, batch.log_prob, batch.log_prob, batch.advantage, clip=numbers.clip)
    error = value_loss(value, batch.value, batch.target, clip=numbers.clip if config.value_clip else None)
    entropy = policy.entropy(None if policy.entropy_is_exact else _sample_keys(key, log_prob.shape))
    log_ratio = log_prob - batch.log_prob
    ratio = jnp.exp(log_ratio)

    def total(values):
        return jnp.sum(jnp.where(batch.valid, values, 0.0))

    parts = {
        "loss/policy": total(-objective),
        "loss/value": total(error),
        "policy/entropy": total(entropy),
        "policy/kl_k3": total(ratio - 1.0 - log_ratio),
        "policy/clip_fraction": total(jnp.abs(ratio - 1.0) > numbers.clip),
    }
    whole = (
        parts["loss/policy"]
        + numbers.value_coefficient * parts["loss/value"]
        - numbers.entropy_coefficient * parts["policy/entropy"]
    )
    return whole, {"loss/total": whole, **parts}


def _sample_keys(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One key a sample of the minibatch, from its place in the global one."""
    length, local = shape
    column = shard_index() * jnp.uint32(local) + jnp.arange(local, dtype=jnp.uint32)
    place = jnp.arange(length, dtype=jnp.uint32)[:, None] + jnp.uint32(length) * column[None]
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(place)


def make_optimiser(config: AlgorithmConfig, max_gradient_norm: float | jax.Array) -> optax.GradientTransformation:
    """Adam behind a clip of the gradient's global norm; the learning rate is applied apart, since it is traced."""
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.scale_by_adam(eps=config.adam_epsilon))


def optimiser_step(
    actor_critic: Evaluate,
    config: AlgorithmConfig,
    learnt: Learnt,
    memory: PyTree,
    batch: Batch,
    numbers: Coefficients,
    learning_rate: jax.Array,
    key: jax.Array,
) -> tuple[Learnt, dict[str, jax.Array]]:
    """One minibatch: local gradient sums, one sum over devices, one step of Adam."""
    if config.normalise_advantages:
        batch = batch._replace(advantage=standardised(batch.advantage, batch.valid))

    def objective(params):
        return loss(actor_critic, config, params, memory, batch, numbers, key)

    gradient, parts = jax.grad(objective, has_aux=True)(learnt.params)
    count = jnp.sum(batch.valid, dtype=jnp.float32)
    gradient, parts, count = global_sum((gradient, parts, count))
    gradient, parts = jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1.0), (gradient, parts))
    optimiser = make_optimiser(config, numbers.max_gradient_norm)
    updates, optimiser_state = optimiser.update(gradient, learnt.optimiser_state, learnt.params)
    params = jax.tree.map(lambda parameter, update: parameter - learning_rate * update, learnt.params, updates)
    parts["optimiser/gradient_norm"] = optax.tree.norm(gradient)
    parts["optimiser/learning_rate"] = learning_rate
    return Learnt(params, optimiser_state), parts


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
    steps already taken, in [0, 1), to a rate.
    """
    num_local = batch.log_prob.shape[1]
    minibatches = config.num_minibatches
    steps = config.algorithm.epochs * minibatches
    flat, flat_memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (batch, memory))

    def epoch(learnt, number):
        epoch_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
        draw = _textbook_draw if config.algorithm.shuffle == "permutation" else _draw
        minibatch = draw(config, epoch_key, flat, flat_memory, num_local)

        def step(learnt, index):
            sample, memory = minibatch(index)
            share = (number * minibatches + index).astype(jnp.float32) / steps
            return optimiser_step(
                actor_critic,
                config.algorithm,
                learnt,
                memory,
                sample,
                numbers,
                learning_rate(share),
                jax.random.fold_in(noise_key, index),
            )

        return jax.lax.scan(step, learnt, jnp.arange(minibatches, dtype=jnp.uint32))

    learnt, parts = jax.lax.scan(epoch, learnt, jnp.arange(config.algorithm.epochs, dtype=jnp.uint32))
    return learnt, jax.tree.map(jnp.mean, parts)


def _draw(config: Config, key, flat: Batch, flat_memory, num_local: int):
    """Minibatches that gather their rows when they need them."""
    segment = config.segment_length

    def minibatch(index):
        rows = minibatch_rows(config, key, index, num_local)
        # The memory before a segment stands in row (its first step / L) · N + environment.
        first = rows[0] // (num_local * segment) * num_local + rows[0] % num_local
        return jax.tree.map(lambda leaf: leaf[rows], flat), jax.tree.map(lambda leaf: leaf[first], flat_memory)

    return minibatch


def _textbook_draw(config: Config, key, flat: Batch, flat_memory, num_local: int):
    """Minibatches cut from a shuffled copy of the whole batch, for comparison: one sort and one copy an epoch."""
    permutation = jax.random.permutation(jax.random.fold_in(key, shard_index()), flat.log_prob.shape[0])
    shuffled = jax.tree.map(
        lambda leaf: jnp.take(leaf, permutation, axis=0).reshape(config.num_minibatches, 1, -1, *leaf.shape[1:]), flat
    )
    return lambda index: (jax.tree.map(lambda leaf: leaf[index], shuffled), flat_memory)
