"""Proximal policy optimisation: the clipped objective, and many minibatch steps on one batch.

Source: Schulman et al. 2017, arXiv 1707.06347; with a reference policy apart from the behaviour policy (PPO-EWMA)
Hilton et al. 2021, arXiv 2110.00641.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from purejaxrl_scale.advantages import gae
from purejaxrl_scale.algorithms import inner_loop
from purejaxrl_scale.algorithms.inner_loop import Evaluate, Learnt
from purejaxrl_scale.config import AlgorithmConfig, Config
from purejaxrl_scale.devices import each_shard, global_total
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.networks.distributions import Distribution
from purejaxrl_scale.outer_loop import divergence, reference_policy
from purejaxrl_scale.rollout import Trajectory, next_value

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
    policy: Distribution | tuple[()] = ()  # the behaviour policy, where the KL to it is monitored


class AdvantageMoments(NamedTuple):
    """Moments of advantages averaged over outer steps, f32[] each."""

    weight: jax.Array
    mean: jax.Array
    mean_square: jax.Array


def init_advantage_moments() -> AdvantageMoments:
    """Moments of nothing yet."""
    return AdvantageMoments(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0))


def update_advantage_moments(
    moments: AdvantageMoments, advantage: jax.Array, valid: jax.Array, *, center_of_mass: float | jax.Array
) -> AdvantageMoments:
    """The moments with a batch added, over all devices: an average with weights nᵢ βᵏ of batches k outer steps ago.

    β = c / (c + 1) of the centre of mass c in outer steps; with c = 0 only the newest batch counts.

    Source: Hilton et al. 2021, arXiv 2110.00641, section 3.2.
    """

    def sums():
        kept = jnp.where(valid, advantage, 0.0)
        return jnp.sum(valid, dtype=jnp.float32), jnp.sum(kept), jnp.sum(kept**2)

    added, total, total_square = global_total(sums)
    size = jnp.maximum(added, 1.0)
    mean, mean_square = total / size, total_square / size
    kept = reference_policy.decay(center_of_mass) * moments.weight
    weight = kept + added
    share = added / jnp.maximum(weight, 1.0)
    return AdvantageMoments(
        weight,
        moments.mean + share * (mean - moments.mean),
        moments.mean_square + share * (mean_square - moments.mean_square),
    )


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
    behaviour_log_prob = _capped(log_prob, behaviour_log_prob)
    lowest, highest = jnp.log(jnp.maximum(1.0 - clip, 1e-8)), jnp.log1p(clip)
    bounded = jnp.clip(log_prob - reference_log_prob, lowest, highest)
    free_ratio = jnp.exp(log_prob - behaviour_log_prob)
    clipped_ratio = jnp.exp(bounded + reference_log_prob - behaviour_log_prob)
    return jnp.minimum(free_ratio * advantage, clipped_ratio * advantage)


def penalised(
    log_prob: Float[Array, "*B"],
    behaviour_log_prob: Float[Array, "*B"],
    kl: Float[Array, "*B"],
    advantage: Float[Array, "*B"],
    *,
    coefficient: float | Float[Array, ""],
) -> Float[Array, "*B"]:
    """The decoupled KL-penalised objective of each sample, to be maximised: (π / π_beh) A - β KL(π_ref || π).

    π / π_beh is capped at 100.

    Source: Hilton et al. 2021, arXiv 2110.00641, eq. 4; Schulman et al. 2017, eq. 8.
    """
    chex.assert_equal_shape([log_prob, behaviour_log_prob, kl, advantage])
    return jnp.exp(log_prob - _capped(log_prob, behaviour_log_prob)) * advantage - coefficient * kl


def _capped(log_prob: jax.Array, behaviour_log_prob: jax.Array) -> jax.Array:
    return jnp.maximum(behaviour_log_prob, jax.lax.stop_gradient(log_prob) - LOG_RATIO_CAP)


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


def loss(
    actor_critic: Evaluate,
    config: AlgorithmConfig,
    numbers: Hyperparameters,
    params: PyTree,
    reference: PyTree | None,
    memory: PyTree,
    batch: Batch,
    keys: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The sum over this device's valid samples of policy loss + c_v · value loss - c_e · entropy, and its parts.

    A sum and not a mean, so that devices and microbatches add up exactly; divide by the global count. `reference` are
    the parameters of the reference policy, None where it is the behaviour policy and its log-probabilities suffice.
    `keys` key[L, B / L] serve policies whose entropy is a one-sample estimate.
    """
    policy, value = actor_critic(params, memory, batch.observation, batch.is_first)
    log_prob = policy.log_prob(batch.action)
    anchor = None if reference is None else actor_critic(reference, memory, batch.observation, batch.is_first)[0]
    if config.objective == "kl_penalty":
        assert anchor is not None
        objective = penalised(
            log_prob, batch.log_prob, anchor.kl(policy), batch.advantage, coefficient=numbers.kl_coefficient
        )
    else:
        anchored = batch.log_prob if anchor is None else anchor.log_prob(batch.action)
        objective = surrogate(log_prob, batch.log_prob, anchored, batch.advantage, clip=numbers.clip)
    error = value_loss(value, batch.value, batch.target, clip=numbers.clip if config.value_clip else None)
    entropy = policy.entropy(None if policy.entropy_is_exact else keys)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch.valid, values, 0.0))

    entropy_sum = total(entropy)
    parts = {
        "loss/policy": total(-objective),
        "loss/value": total(error),
        "policy/entropy" if policy.entropy_is_exact else "policy/entropy_one_sample": entropy_sum,
        "policy/kl_k1": total(divergence.kl_k1(batch.log_prob, log_prob)),
        "policy/kl_k2": total(divergence.kl_k2(batch.log_prob, log_prob)),
        "policy/kl_k3": total(divergence.kl_k3(batch.log_prob, log_prob)),
        "policy/clip_fraction": total(jnp.abs(jnp.exp(log_prob - batch.log_prob) - 1.0) > numbers.clip),
    }
    if not isinstance(batch.policy, tuple):
        parts["policy/kl_exact"] = total(batch.policy.kl(policy))
    if anchor is not None:
        ratio = jnp.exp(log_prob - anchor.log_prob(batch.action))
        parts["policy/reference_clip_fraction"] = total(jnp.abs(ratio - 1.0) > numbers.clip)
    whole = (
        parts["loss/policy"]
        + numbers.value_coefficient * parts["loss/value"]
        - numbers.entropy_coefficient * entropy_sum
    )
    return whole, {"loss/total": whole, **parts}


def make_optimiser(config: AlgorithmConfig, max_gradient_norm: float | jax.Array) -> optax.GradientTransformation:
    """Adam behind a clip of the gradient's global norm; the learning rate is applied apart, since it is traced."""
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.scale_by_adam(eps=config.adam_epsilon))


def init(config: AlgorithmConfig, params: PyTree) -> Learnt:
    """What is learnt, before the first optimiser step."""
    reference = reference_policy.init(params) if config.reference.center_of_mass is not None else ()
    return Learnt(params, make_optimiser(config, 1.0).init(params), reference)


def optimiser_step(
    config: AlgorithmConfig, numbers: Hyperparameters, learnt: Learnt, gradient: PyTree, learning_rate: jax.Array
) -> Learnt:
    """One step of Adam along a gradient clipped by its global norm, and one of the reference policy after it."""
    optimiser = make_optimiser(config, numbers.max_gradient_norm)
    updates, optimiser_state = optimiser.update(gradient, learnt.optimiser_state, learnt.params)
    params = jax.tree.map(lambda parameter, update: parameter - learning_rate * update, learnt.params, updates)
    reference = learnt.reference
    if isinstance(reference, reference_policy.ReferencePolicy):
        reference = reference_policy.update(
            reference, params, center_of_mass=numbers.center_of_mass, debias=config.reference.debias
        )
    return Learnt(params, optimiser_state, reference)


def estimate(config: Config, numbers: Hyperparameters, trajectory: Trajectory, reward: jax.Array) -> Batch:
    """Advantages and value targets of a trajectory, from rewards f32[T, N] as learning sees them.

    A step in which physics broke says nothing: its temporal difference is 0, so that the steps before it are judged
    by the value of the state they led to, and not by an end that the environment does not have.
    """
    broken = ~trajectory.valid & trajectory.terminated
    advantage = gae(
        jnp.where(broken, trajectory.value, reward),
        trajectory.value,
        next_value(trajectory),
        trajectory.terminated,
        trajectory.truncated,
        discount=numbers.discount,
        trace_decay=numbers.trace_decay,
    )
    return Batch(
        observation=trajectory.observation,
        action=trajectory.action,
        log_prob=trajectory.log_prob,
        value=trajectory.value,
        advantage=advantage,
        target=trajectory.value + advantage,
        valid=trajectory.valid,
        is_first=trajectory.is_first,
        policy=trajectory.policy if config.monitors.kl else (),
    )


def improve(
    actor_critic: Evaluate,
    config: Config,
    numbers: Hyperparameters,
    learnt: Learnt,
    moments: AdvantageMoments | tuple[()],
    batch: Batch,
    memory: PyTree,
    length: int | jax.Array,
    learning_rate: Callable[[jax.Array], jax.Array],
    key: jax.Array,
) -> tuple[Learnt, AdvantageMoments | tuple[()], dict[str, jax.Array]]:
    """Every epoch's minibatch steps on one batch -> what was learnt, and metrics averaged over the steps.

    `batch` is [T, N, ...] and `memory` [T / L, N, ...], of whose rows the first `length` steps count. `learning_rate`
    is as in `inner_loop.run`. `moments` are () unless advantages are standardised by averages over outer steps.
    """
    if isinstance(moments, AdvantageMoments):
        moments = update_advantage_moments(
            moments, batch.advantage, batch.valid, center_of_mass=numbers.advantage_center_of_mass
        )
        deviation = jnp.sqrt(jnp.maximum(moments.mean_square - moments.mean**2, 0.0))
        advantage = each_shard(lambda: (batch.advantage - moments.mean) / (deviation + 1e-8))()
        batch = batch._replace(advantage=advantage)
    behaviour = learnt.params if config.algorithm.objective == "kl_penalty" else None

    def objective(params, learnt, memory, batch, keys):
        anchor = learnt.reference.params if learnt.reference else behaviour
        return loss(actor_critic, config.algorithm, numbers, params, anchor, memory, batch, keys)

    learnt, averages = inner_loop.run(
        objective,
        config,
        inner_loop.cut(config, length),
        learnt,
        batch,
        memory,
        partial(optimiser_step, config.algorithm, numbers),
        learning_rate,
        key,
        normalise_advantages=config.algorithm.normalise_advantages and not moments,
    )
    return learnt, moments, averages
