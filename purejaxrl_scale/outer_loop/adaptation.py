"""ADAPT: what drives the rollout length, measured and handed to `adaptive_batch`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from purejaxrl_scale import counters
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import common_bound
from purejaxrl_scale.outer_loop import adaptive_batch, monitors, noise_scale
from purejaxrl_scale.rollout import Simulation, Trajectory
from purejaxrl_scale.state import Learner, OuterLoop, TrainState

_NAMES = {"behavioural_divergence": "outer/behavioural_divergence", "kl": "outer/kl_new_old_exact"}


def adapt(
    simulation: Simulation,
    before: TrainState,
    after: Learner,
    outer_loop: OuterLoop,
    trajectory: Trajectory,
    steps: Counter,
    key: jax.Array,
) -> tuple[OuterLoop, dict[str, jax.Array]]:
    """The length of the next rollout, from how much the policy still changes (Park 2026, arXiv 2605.21557)."""
    config, options, state = simulation.config, simulation.config.algorithm.adaptive_batch, outer_loop.adaptive_batch
    if not state:
        return outer_loop, {}
    due = (before.outer_step + 1) % options.every == 0
    metrics: dict[str, jax.Array] = {"outer/rollout_length": jnp.asarray(trajectory.length)}
    if options.driver in ("behavioural_divergence", "kl"):
        policy = monitors.policy_of(simulation, before.learner)
        measure = monitors.changed_actions if options.driver == "behavioural_divergence" else monitors.kl_of_change
        start = outer_loop.snapshot if options.span == "interval" else None

        def measured() -> jax.Array:
            found = monitors.mean_over_sample(
                config, trajectory, key, options.samples, measure(policy, after.params, start)
            )
            return found[_NAMES[options.driver]]

        # One predicate for all seeds of a population: of one for each, vmap would compute both branches every time.
        anyone = jnp.asarray(common_bound(due.astype(jnp.int32))) > 0
        found = jax.lax.cond(anyone, measured, lambda: jnp.float32(jnp.nan))
        divergence = jnp.asarray(jnp.where(due, found, jnp.nan))
        state = adaptive_batch.update(state, divergence, options)
        metrics["outer/adaptive_divergence"] = divergence
    else:
        progress = jnp.minimum(counters.approximate(steps) / float(config.actual_steps), 1.0)
        target = options.minimum + progress * (options.maximum - options.minimum)
        if options.driver == "noise_scale" and outer_loop.noise_scale:
            target = noise_scale.value(outer_loop.noise_scale) / config.environment.num_envs
        state = adaptive_batch.move(state, jnp.where(due, target, jnp.nan), options)
    snapshot = outer_loop.snapshot
    if options.span == "interval":
        snapshot = jax.tree.map(lambda new, old: jnp.where(due, new, old), after.params, snapshot)
    return outer_loop._replace(adaptive_batch=state, snapshot=snapshot), metrics
