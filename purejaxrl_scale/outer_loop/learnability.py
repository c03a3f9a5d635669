"""Sampling For Learnability: train on levels that the policy solves sometimes, neither never nor always.

Every T outer steps a great number of candidate levels is played for L steps with the policy as it is; the K of the
largest learnability p (1 - p), where p is the share of a level's episodes that were solved, make up the buffer. A share
ρ of the environments is sent there, the rest to fresh levels.

Source: Rutherford et al. 2024, arXiv 2408.15099, algorithm 1; Beukman et al. 2026, arXiv 2603.06009, table 3.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale import counters
from purejaxrl_scale.config import Config
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import global_total
from purejaxrl_scale.environments import levels as level
from purejaxrl_scale.environments.levels import Assignment, Levels
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.rollout import Trajectory


class Buffer(NamedTuple):
    """The K levels that are worth playing, the most learnable first when it was filled."""

    name: jax.Array  # u32[K, 2]
    attempts: jax.Array  # i32[K], episodes that ended on the level
    solved: jax.Array  # i32[K], those of them that reached the goal
    steps: Counter  # environment steps that the searches have taken


def learnability(solved: jax.Array, attempts: jax.Array) -> jax.Array:
    """p (1 - p) with p = solved / attempts, f32 in [0, 1/4]; 0 of a level on which no episode has ended.

    Source: Rutherford et al. 2024, arXiv 2408.15099, section 4.
    """
    # Of whole numbers, so that p and 1 - p come out equal, which decides who is taken first.
    missed = (attempts - solved).astype(jnp.float32)
    return solved.astype(jnp.float32) * missed / jnp.maximum(attempts, 1).astype(jnp.float32) ** 2


def init(config: Config) -> Buffer:
    """An empty buffer, which the first outer step fills for the second."""
    size = config.curriculum.buffer_size
    none = jnp.zeros(size, jnp.int32)
    return Buffer(jnp.zeros((size, 2), jnp.uint32), none, none, counters.init())


def assign(config: Config, state: Buffer, outer_step: jax.Array, key: jax.Array) -> Assignment:
    """Levels of the buffer, once it has been filled, for a share of the environments."""
    options, num_envs = config.curriculum, config.environment.num_envs
    weight = learnability(state.solved, state.attempts) if options.online else jnp.ones(options.buffer_size)
    chosen = level.interleaved(options.share, num_envs) & (outer_step > 0)
    slot = jnp.where(chosen, level.choose(weight, key, num_envs), -1)
    # The search of the outer step before has filled it anew.
    return Assignment(slot, state.name, (outer_step + options.every - 1) % options.every != 0)


def due(config: Config, outer_step: jax.Array) -> jax.Array:
    """Whether candidates are tried out, bool[]."""
    return outer_step % config.curriculum.every == 0


def tried(config: Config, state: Buffer, names: jax.Array, attempts: jax.Array, solved: jax.Array) -> Buffer:
    """The most learnable of the candidates; of those equally learnable the first drawn."""
    options = config.curriculum
    best = jax.lax.top_k(learnability(solved, attempts), options.buffer_size)[1]
    steps = counters.add(state.steps, options.candidates * options.search_length)
    return Buffer(names[best], attempts[best], solved[best], steps)


def observe(
    config: Config,
    hyperparameters: Hyperparameters,
    state: Buffer,
    levels: Levels,
    trajectory: Trajectory,
    outer_step: jax.Array,
) -> Buffer:
    """With `curriculum.online`, the training episodes on the buffer's levels count as attempts too.

    Not those of an outer step in which the buffer was filled anew: they were on levels of the last one.
    """
    del hyperparameters
    if not config.curriculum.online:
        return state

    def sums() -> tuple[jax.Array, jax.Array]:
        ended = (trajectory.terminated | trajectory.truncated) & ~due(config, outer_step)
        # The first end of a rollout is that of the episode which was under way when it began.
        first = ended & (jnp.cumsum(ended, axis=0) == 1)

        def count(what: jax.Array) -> jax.Array:
            return _by_slot(state, levels.playing, first & what) + _by_slot(state, levels.slot, ended & ~first & what)

        return count(trajectory.valid), count(trajectory.valid & trajectory.success)

    attempts, solved = global_total(sums)
    return state._replace(attempts=state.attempts + attempts, solved=state.solved + solved)


def _by_slot(state: Buffer, slot: jax.Array, happened: jax.Array) -> jax.Array:
    """How often something happened, bool[T, N], at each place of the buffer, i32[K]."""
    place = jnp.where(slot < 0, state.attempts.shape[0], slot)
    return jnp.zeros_like(state.attempts).at[place].add(jnp.sum(happened, axis=0, dtype=jnp.int32), mode="drop")


def metrics(state: Buffer) -> dict[str, jax.Array]:
    """Steps of all searches, and what the buffer holds."""
    played = state.attempts > 0
    rate = state.solved / jnp.maximum(state.attempts, 1)
    return {
        "curriculum/steps_high": state.steps.high,
        "curriculum/steps_low": state.steps.low,
        "curriculum/learnability": jnp.mean(learnability(state.solved, state.attempts)),
        "curriculum/success": jnp.sum(jnp.where(played, rate, 0.0)) / jnp.maximum(jnp.sum(played), 1),
    }
