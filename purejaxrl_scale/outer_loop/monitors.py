"""How far one outer step took the policy: estimates on a uniform sample of the rollout, over all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from purejaxrl_scale.algorithms import inner_loop
from purejaxrl_scale.config import Config
from purejaxrl_scale.devices import global_total
from purejaxrl_scale.environments.interface import Box, PyTree
from purejaxrl_scale.networks.distributions import Distribution
from purejaxrl_scale.outer_loop import divergence, noise_scale
from purejaxrl_scale.rollout import Simulation, Trajectory
from purejaxrl_scale.state import Learner, OuterLoop, TrainState


class States(NamedTuple):
    """Some states of a rollout, as segments [L, B, ...]."""

    observation: PyTree  # raw
    memory: PyTree  # [B, ...], before each segment
    is_first: jax.Array  # bool
    action: jax.Array
    log_prob: jax.Array  # f32, of the behaviour policy
    policy: Distribution  # the behaviour policy


Measure = Callable[[States], dict[str, jax.Array]]  # [L, B] -> f32[L, B] each
Policy = Callable[[PyTree, PyTree, PyTree, jax.Array], Distribution]  # params, memory, observation, is_first


def mean_over_sample(
    config: Config, trajectory: Trajectory, key: jax.Array, samples: int, measure: Measure
) -> dict[str, jax.Array]:
    """Means of `measure` over a uniform sample of the rollout's states, and NAME_se, their standard errors.

    `samples` states are drawn without replacement over all devices, as many from each logical shard; 0 for all. They
    come in blocks, one after the other, so that memory holds only one. States in which physics broke are left out.
    Errors are those of independent segments, of one state each in feed-forward networks.
    """
    num_local = trajectory.valid.shape[1]
    shards, segment = inner_loop.shards_here(config, num_local), config.segment_length
    shard_envs = num_local // shards
    most = config.longest_rollout // segment * shard_envs
    wanted = min(most, -(-samples // (config.devices.logical_shards * segment))) if samples else most
    micro = min(wanted, inner_loop.microbatches(config, num_local)[0])
    blocks = -(-wanted // micro)
    segments = trajectory.length // segment * shard_envs
    rows = inner_loop.rows_of_shards(config, key, 0, blocks * micro, segments, num_local)
    rows = jnp.moveaxis(rows.reshape(shards, segment, blocks, micro), 2, 0)
    drawn = jnp.minimum(wanted, segments) > jnp.arange(blocks * micro).reshape(blocks, micro)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), trajectory._replace(last_value=(), length=()))

    def sums(block):
        rows, drawn = block
        rows = jnp.moveaxis(rows, 0, 1).reshape(segment, shards * micro)
        valid = flat.valid[rows] & jnp.tile(drawn, shards)[None]
        memory_rows = inner_loop.memory_row(rows[0], segment, num_local)
        states = States(
            observation=jax.tree.map(lambda leaf: leaf[rows], flat.observation),
            memory=jax.tree.map(lambda leaf: leaf[memory_rows], flat.memory),
            is_first=flat.is_first[rows],
            action=flat.action[rows],
            log_prob=flat.log_prob[rows],
            policy=jax.tree.map(lambda leaf: leaf[rows], flat.policy),
        )
        values = {name: jnp.where(valid, value, 0.0) for name, value in measure(states).items()}
        # Steps of one segment are no independent draws, so that errors are those of the segments' means.
        steps = jnp.sum(valid, axis=0)
        means = jax.tree.map(lambda value: jnp.sum(value, axis=0) / jnp.maximum(steps, 1), values)
        spread = jax.tree.map(lambda value: (jnp.sum(value), jnp.sum(value**2)), means)
        return jax.tree.map(jnp.sum, values), spread, jnp.sum(valid), jnp.sum(steps > 0)

    def local():
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.lax.map(sums, (rows, drawn)))

    totals, spreads, count, segments = global_total(local)
    count, segments = (jnp.maximum(number.astype(jnp.float32), 1.0) for number in (count, segments))
    found = {}
    for name, total in totals.items():
        mean, mean_square = (part / segments for part in spreads[name])
        variance = jnp.maximum(mean_square - mean**2, 0.0)
        found |= {name: total / count, f"{name}_se": jnp.sqrt(variance / segments)}
    return found


def kl_to_behaviour(policy: Policy, params: PyTree, reference: PyTree | None) -> Measure:
    """KL(behaviour || new), exact and by its three estimators, and KL(reference || new) where there is a reference."""

    def measure(block: States) -> dict[str, jax.Array]:
        new = policy(params, block.memory, block.observation, block.is_first)
        log_prob = new.log_prob(block.action)
        values = {
            "outer/kl_exact": block.policy.kl(new),
            "outer/kl_k1": divergence.kl_k1(block.log_prob, log_prob),
            "outer/kl_k2": divergence.kl_k2(block.log_prob, log_prob),
            "outer/kl_k3": divergence.kl_k3(block.log_prob, log_prob),
        }
        if reference is not None:
            anchor = policy(reference, block.memory, block.observation, block.is_first)
            values["outer/kl_reference_exact"] = anchor.kl(new)
        return values

    return measure


def kl_of_policies(policy: Policy, params: PyTree) -> Measure:
    """Behavioural divergence of continuous actions, of which none is preferred: KL(behaviour || new)."""

    def measure(block: States) -> dict[str, jax.Array]:
        new = policy(params, block.memory, block.observation, block.is_first)
        return {"outer/behavioural_divergence_kl": block.policy.kl(new)}

    return measure


def changed_actions(policy: Policy, params: PyTree, before: PyTree | None = None) -> Measure:
    """Share of states whose preferred action is another one under `params` than under `before`.

    `before` is None for the behaviour policy itself, whose outputs are at hand.
    """

    def measure(block: States) -> dict[str, jax.Array]:
        old = block.policy if before is None else policy(before, block.memory, block.observation, block.is_first)
        new = policy(params, block.memory, block.observation, block.is_first)
        batch = block.log_prob.shape
        changed = divergence.changed(*(_rows(mode, batch) for mode in (old.mode(), new.mode()))).reshape(batch)
        # The mode of NaNs is an action as good as any.
        known = _is_finite(old, batch) & _is_finite(new, batch)
        return {"outer/behavioural_divergence": jnp.where(known, changed.astype(jnp.float32), jnp.nan)}

    return measure


def kl_of_change(policy: Policy, params: PyTree, before: PyTree | None = None) -> Measure:
    """KL(new || old), the direction that Adaptive Batch Scaling measures; `before` as in `changed_actions`."""

    def measure(block: States) -> dict[str, jax.Array]:
        old = block.policy if before is None else policy(before, block.memory, block.observation, block.is_first)
        new = policy(params, block.memory, block.observation, block.is_first)
        return {"outer/kl_new_old_exact": new.kl(old)}

    return measure


def _is_finite(policy: Distribution, batch: tuple[int, ...]) -> jax.Array:
    """Whether the policy of each state is a policy at all, bool[L, B]."""
    finite = jnp.ones(batch, bool)
    for leaf in jax.tree.leaves(policy):
        if leaf.shape[: len(batch)] == batch:
            finite &= jnp.all(~jnp.isnan(leaf).reshape(*batch, -1), axis=-1)
    return finite


def _rows(action: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    return action.reshape(-1, *action.shape[len(batch) :])


def outer_step(before: PyTree, after: PyTree, last: PyTree | tuple[()]) -> tuple[PyTree, dict[str, jax.Array]]:
    """The outer step in parameter space, its length, and its cosine with the last one: 0 for the first."""
    step = jax.tree.map(jnp.subtract, after, before)
    length = optax.tree.norm(step)
    cosine = jnp.asarray(optax.tree.vdot(step, last) / jnp.maximum(length * optax.tree.norm(last), 1e-30))
    return step, {"outer/step_length": length, "outer/step_cosine": cosine}


def combined(*measures: Measure) -> Measure:
    """All measures at once."""

    def measure(block: States) -> dict[str, jax.Array]:
        return {name: value for one in measures for name, value in one(block).items()}

    return measure


def policy_of(simulation: Simulation, learner: Learner) -> Policy:
    """Policies of other parameters, on observations normalised as the rollout's were."""
    return lambda *arguments: simulation.unroll(learner.observation_moments, *arguments)[0]


def monitor(
    simulation: Simulation,
    before: TrainState,
    after: Learner,
    trajectory: Trajectory,
    averages: dict[str, jax.Array],
    key: jax.Array,
) -> tuple[OuterLoop, dict[str, jax.Array]]:
    """How far the outer step took the policy, over how many samples, and how noisy its gradients were."""
    config, outer_loop = simulation.config, before.outer_loop
    metrics: dict[str, jax.Array] = {}
    policy = policy_of(simulation, before.learner)
    measures = []
    if config.monitors.kl and config.algorithm.name == "ppo":
        reference = after.learnt.reference.params if after.learnt.reference else None
        measures.append(kl_to_behaviour(policy, after.params, reference))
    if config.monitors.behavioural_divergence:
        is_continuous = isinstance(simulation.action_space, Box)
        measures.append(
            kl_of_policies(policy, after.params) if is_continuous else changed_actions(policy, after.params)
        )
    if measures:
        metrics |= mean_over_sample(config, trajectory, key, config.monitors.samples, combined(*measures))
    samples = config.environment.num_envs * jnp.asarray(trajectory.length, jnp.float32)
    for estimator in ("exact", "k3"):
        if (kl := metrics.get(f"outer/kl_{estimator}")) is not None:
            metrics[f"outer/ddr_{estimator}"] = divergence.data_to_divergence_ratio(samples, kl)
    if after.learnt.reference:
        cut = inner_loop.cut(config, trajectory.length)
        age = after.learnt.reference.age
        metrics |= {"reference/age": age, "reference/age_samples": age * samples / (cut.epochs * cut.minibatches)}
    if outer_loop.noise_scale and "outer/gradient_variance" in averages:
        noise = noise_scale.update(
            outer_loop.noise_scale, averages["outer/gradient_norm_sq"], averages["outer/gradient_variance"]
        )
        outer_loop = outer_loop._replace(noise_scale=noise)
        metrics["outer/noise_scale"] = noise_scale.value(noise)
    if outer_loop.last_step:
        step, lengths = outer_step(outer_loop.last_params, after.params, outer_loop.last_step)
        outer_loop, metrics = outer_loop._replace(last_params=after.params, last_step=step), metrics | lengths
    return outer_loop, metrics
