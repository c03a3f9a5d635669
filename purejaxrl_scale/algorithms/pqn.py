"""PQN: Q(λ) without replay buffer and target network, on many parallel environments.

Source: Gallici et al. 2025, Simplifying Deep Temporal Difference Learning, arXiv 2407.04811.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from purejaxrl_scale.advantages import lambda_returns
from purejaxrl_scale.algorithms import inner_loop
from purejaxrl_scale.algorithms.inner_loop import Evaluate, Learnt
from purejaxrl_scale.config import Config
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.networks.distributions import EpsilonGreedy
from purejaxrl_scale.rollout import Trajectory, next_value, stopped


class Batch(NamedTuple):
    """What the loss needs of each sample: [T, N, ...] for the whole batch, [1, B, ...] in a minibatch."""

    observation: PyTree  # raw
    action: jax.Array  # i32
    target: jax.Array  # f32, the λ-return
    valid: jax.Array  # bool
    is_first: jax.Array  # bool


def exploration(numbers: Hyperparameters, progress: jax.Array) -> jax.Array:
    """The share of random actions ε, f32[], when `progress` in [0, 1] of the run's environment steps are done.

    Linear from its start to its end over the first `exploration_fraction` of the run.
    """
    share = jnp.minimum(progress / numbers.exploration_fraction, 1.0)
    return numbers.exploration_start + share * (numbers.exploration_end - numbers.exploration_start)


def make_optimiser(max_gradient_norm: float | jax.Array) -> optax.GradientTransformation:
    """RAdam behind a clip of the gradient's global norm; the learning rate is applied apart, since it is traced."""
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.scale_by_radam())


def init(params: PyTree) -> Learnt:
    """What is learnt, before the first optimiser step."""
    return Learnt(params, make_optimiser(1.0).init(params), ())


def optimiser_step(numbers: Hyperparameters, learnt: Learnt, gradient: PyTree, learning_rate: jax.Array) -> Learnt:
    """One step of RAdam along a gradient clipped by its global norm."""
    optimiser = make_optimiser(numbers.max_gradient_norm)
    updates, optimiser_state = optimiser.update(gradient, learnt.optimiser_state, learnt.params)
    params = jax.tree.map(lambda parameter, update: parameter - learning_rate * update, learnt.params, updates)
    return Learnt(params, optimiser_state, ())


def loss(network: Evaluate, params: PyTree, memory: PyTree, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The sum over this device's valid samples of ½ (Q(s, a) - R^λ)², and its parts."""
    policy, value = network(params, memory, batch.observation, batch.is_first)
    assert isinstance(policy, EpsilonGreedy)
    chosen = policy.value_of(batch.action)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch.valid, values, 0.0))

    whole = total(0.5 * (chosen - batch.target) ** 2)
    return whole, {"loss/total": whole, "value/chosen_action": total(chosen), "value/greedy_action": total(value)}


def estimate(numbers: Hyperparameters, trajectory: Trajectory, reward: jax.Array) -> Batch:
    """λ-returns of a trajectory, from rewards f32[T, N] as learning sees them.

    The values are those of the greedy action, read while the rollout was made: Peng's Q(λ), which does not cut its
    traces at exploratory actions. A step in which physics broke has the return that its state was worth.
    """
    broken = ~trajectory.valid & trajectory.terminated
    target = lambda_returns(
        jnp.where(broken, trajectory.value, reward),
        next_value(trajectory),
        trajectory.terminated,
        stopped(trajectory),
        discount=numbers.discount,
        trace_decay=numbers.trace_decay,
    )
    return Batch(trajectory.observation, trajectory.action, target, trajectory.valid, trajectory.is_first)


def improve(
    network: Evaluate,
    config: Config,
    numbers: Hyperparameters,
    learnt: Learnt,
    batch: Batch,
    memory: PyTree,
    length: int | jax.Array,
    learning_rate: Callable[[jax.Array], jax.Array],
    key: jax.Array,
) -> tuple[Learnt, dict[str, jax.Array]]:
    """Every epoch's minibatch steps on one batch -> what was learnt, and metrics averaged over the steps.

    `batch` is [T, N, ...], of whose rows the first `length` count; `learning_rate` is as in `inner_loop.run`.
    """

    def objective(params, learnt, memory, batch, keys):
        return loss(network, params, memory, batch)

    return inner_loop.run(
        objective,
        config,
        inner_loop.cut(config, length),
        learnt,
        batch,
        memory,
        partial(optimiser_step, numbers),
        learning_rate,
        key,
    )
