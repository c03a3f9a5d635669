"""Prioritised Level Replay: train again on levels where the critic was most often too low.

Each environment plays a fresh level, or with probability ρ one of the buffer's, drawn by the rank of its score and by
how long it has not been played. After the rollout every level played has a new score, and the best K of the old and
the fresh make up the buffer.

Source: Jiang et al. 2021, arXiv 2010.03934, with the score of Jiang et al. 2021, arXiv 2110.02439, section 5.1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.advantages import gae
from purejaxrl_scale.config import Config
from purejaxrl_scale.devices import each_shard, gathered, global_total
from purejaxrl_scale.environments import levels as level
from purejaxrl_scale.environments.levels import Assignment, Levels
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.rollout import Trajectory, next_value, stopped


class Replay(NamedTuple):
    """The K levels of the largest scores, those of empty places negative, in falling order."""

    name: jax.Array  # u32[K, 2]
    score: jax.Array  # f32[K], -1 where the place is empty
    seen: jax.Array  # u32[K], the outer step in which the level was last played


def init(config: Config) -> Replay:
    """An empty buffer."""
    size = config.curriculum.buffer_size
    return Replay(jnp.zeros((size, 2), jnp.uint32), jnp.full(size, -1.0), jnp.zeros(size, jnp.uint32))


def assign(config: Config, state: Replay, outer_step: jax.Array, key: jax.Array) -> Assignment:
    """Levels of the buffer, once it is half full, for a share of the environments."""
    options, num_envs = config.curriculum, config.environment.num_envs
    filled = jnp.sum(state.score >= 0.0)
    replays = level.interleaved(options.share, num_envs) & (filled >= (options.buffer_size + 1) // 2)
    weight = replay_probability(
        state.score, outer_step - state.seen, temperature=options.temperature, staleness=options.staleness
    )
    slot = jnp.where(replays, level.choose(weight, key, num_envs), -1)
    return Assignment(slot, state.name, jnp.bool_(True))


def replay_probability(score: jax.Array, age: jax.Array, *, temperature: float, staleness: float) -> jax.Array:
    """P = (1 - s) P_S + s P_C of each place f32[K], 0 where the score is negative.

    P_S ∝ rank^(-1/β) with the largest score at rank 1, P_C ∝ outer steps since the level was last played.

    Source: Jiang et al. 2021, arXiv 2010.03934, equations 2 to 4.
    """
    there = score >= 0.0
    order = jnp.argsort(-score)
    rank = jnp.zeros(score.shape).at[order].set(jnp.arange(1, score.shape[0] + 1, dtype=jnp.float32))

    def share(weight: jax.Array) -> jax.Array:
        weight = jnp.where(there, weight, 0.0)
        return weight / jnp.maximum(jnp.sum(weight), 1e-30)

    by_score, by_age = share(rank ** (-1.0 / temperature)), share(age.astype(jnp.float32))
    return jnp.where(jnp.any(by_age > 0), (1.0 - staleness) * by_score + staleness * by_age, by_score)


def observe(
    config: Config,
    hyperparameters: Hyperparameters,
    state: Replay,
    levels: Levels,
    trajectory: Trajectory,
    outer_step: jax.Array,
) -> Replay:
    """Scores of the levels played, and the best of them and the fresh ones kept."""
    del config
    scores = each_shard(lambda: value_loss(hyperparameters, trajectory))()
    size = state.score.shape[0]

    def sums() -> tuple[jax.Array, jax.Array]:
        place = jnp.where(levels.slot < 0, size, levels.slot)
        none = jnp.zeros(size)
        return none.at[place].add(scores, mode="drop"), none.at[place].add(1.0, mode="drop")

    total, players = global_total(sums)
    played = players > 0
    known = jnp.where(played, total / jnp.maximum(players, 1.0), state.score)
    seen = jnp.where(played, outer_step, state.seen)
    fresh = each_shard(lambda: (levels.name, jnp.where(levels.slot < 0, scores, -1.0)))()
    names, fresh_scores = gathered(fresh)
    everything = Replay(
        jnp.concatenate([state.name, names]),
        jnp.concatenate([known, fresh_scores]),
        jnp.concatenate([seen, jnp.broadcast_to(outer_step, fresh_scores.shape)]),
    )
    best = jax.lax.top_k(everything.score, size)[1]
    return jax.tree.map(lambda leaf: leaf[best], everything)


def value_loss(hyperparameters: Hyperparameters, trajectory: Trajectory) -> jax.Array:
    """The positive value loss of each environment's part of a rollout, f32[N]: the mean of max(Âₜ, 0).

    Source: Jiang et al. 2021, arXiv 2110.02439, section 5.1.
    """
    advantage = gae(
        trajectory.reward * hyperparameters.reward_scale,
        trajectory.value,
        next_value(trajectory),
        trajectory.terminated,
        stopped(trajectory),
        discount=hyperparameters.discount,
        trace_decay=hyperparameters.trace_decay,
    )
    counts = jnp.maximum(jnp.sum(trajectory.valid, axis=0), 1)
    return jnp.sum(jnp.where(trajectory.valid, jnp.maximum(advantage, 0.0), 0.0), axis=0) / counts


def metrics(state: Replay) -> dict[str, jax.Array]:
    """What the buffer holds."""
    there = state.score >= 0.0
    return {
        "curriculum/score": jnp.sum(jnp.where(there, state.score, 0.0)) / jnp.maximum(jnp.sum(there), 1),
        "curriculum/levels": jnp.sum(there, dtype=jnp.uint32),
    }
