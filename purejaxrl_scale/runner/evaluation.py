"""Scores apart from training: a fixed quota of episodes an environment, each policy mode by itself.

A quota, and not the first n episodes that end: among parallel environments short episodes end first, and would be
counted more often. Every evaluation of a run starts from the same keys, so two of them differ by the policy alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from purejaxrl_scale.config import Config
from purejaxrl_scale.environments.autoreset import Start, quarantine, reset, restart
from purejaxrl_scale.environments.interface import Timestep
from purejaxrl_scale.runner import records
from purejaxrl_scale.runner.records import MODES

# Training folds outer steps into the run's key, from 0 upwards; this stands where none of them gets to.
_EVALUATION = 0xFFFF_0001
PyTree = Any


class Episodes(NamedTuple):
    """The outcome of each episode of the quota, for MODES in order."""

    returns: jax.Array  # f32[2, num_envs, episodes], raw rewards
    length: jax.Array  # i32[2, num_envs, episodes]
    finished: jax.Array  # bool[2, num_envs, episodes], not given up at the step cap nor ended by NaN physics
    outcome: dict[str, jax.Array]  # f32[2, num_envs, episodes] each


class _Loop(NamedTuple):
    state: PyTree  # [2M, ...]
    observation: PyTree  # [2M, ...]
    first: jax.Array  # bool[2M]
    memory: tuple[PyTree, PyTree]  # [M, ...] for each mode
    episode: jax.Array  # i32[2M], the quota's size when it is met
    returns: jax.Array  # f32[2M], of the episode so far
    length: jax.Array  # i32[2M]
    done: Episodes  # [2M, episodes]


def evaluation_key(seed: int) -> jax.Array:
    """The key of a run's evaluations, which training never meets."""
    return jax.random.fold_in(jax.random.key(seed), _EVALUATION)


def on_one_device(tree: PyTree) -> PyTree:
    """A replicated tree as it lies on the first device, so that evaluating does not repeat the work on all of them."""
    return jax.tree.map(
        lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) and leaf.is_fully_replicated else leaf,
        tree,
    )


def take_member(tree: PyTree, member: int | None) -> PyTree:
    """One member's part of a population's tree; the tree itself if there is no population."""
    return tree if member is None else jax.tree.map(lambda leaf: leaf[member], tree)


def step_cap(config: Config, environment: Any) -> int:
    """Steps after which an episode is given up."""
    return config.evaluation.max_steps or 2 * environment.max_episode_steps


def make_evaluate(trainer: Any) -> Callable[[PyTree, jax.Array], Episodes]:
    """`evaluate(learner, key) -> Episodes`, jitted; both modes run in one loop, so the environment compiles once."""
    config = trainer.config.evaluation
    cap = step_cap(trainer.config, trainer.environment)
    # A new function each time: jit would otherwise mix up trainers that compare equal.
    return jax.jit(lambda learner, key: run_quota(trainer, learner, key, config.num_envs, config.episodes, cap))


def run_quota(
    trainer: Any,
    learner: PyTree,
    key: jax.Array,
    num_envs: int,
    episodes: int,
    cap: int,
) -> Episodes:
    """Run `episodes` episodes in each of `num_envs` environments under each mode, until all have ended or given up.

    Both modes see the same starts. Episode e of environment i has the key fold_in(fold_in(key, i), e). Where episodes
    start from a fixed set of tasks, all of environment i are on task i, so that each task counts the same.
    """
    environment, tasks = trainer.environment, getattr(trainer.environment, "num_tasks", 0)
    rows = jnp.arange(2 * num_envs)
    env_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows % num_envs)

    def start_keys(episode):
        # Steps of an episode fold in 0 to cap - 1.
        return _fold_in(_fold_in(env_keys, episode), jnp.full(2 * num_envs, cap))

    def advance(loop: _Loop) -> tuple[Timestep, tuple[PyTree, PyTree]]:
        keys = _fold_in(_fold_in(env_keys, loop.episode), loop.length)
        act_keys = _fold_in(keys, jnp.zeros_like(rows))
        actions, memories = [], []
        for index, memory in enumerate(loop.memory):
            inputs = _rows((loop.observation, loop.first, act_keys), index * num_envs, num_envs)
            _, action, memory_after = trainer.act(
                learner, memory, *inputs, deterministic=MODES[index] == "deterministic"
            )
            actions.append(action)
            memories.append(memory_after)
        action = jax.tree.map(lambda *halves: jnp.concatenate(halves), *actions)
        step_keys = _fold_in(keys, jnp.ones_like(rows))
        return jax.vmap(environment.step)(step_keys, loop.state, action), (
            memories[0],
            memories[1],
        )

    def step(loop: _Loop) -> _Loop:
        timestep, memory = advance(loop)
        timestep, broken = quarantine(timestep)
        returns, length = loop.returns + timestep.reward, loop.length + 1
        complete = (timestep.terminated | timestep.truncated) & ~broken
        over = complete | broken | (length >= cap)
        # Where the quota is met the index lies outside, and nothing is written.
        done = jax.tree.map(
            lambda kept, new: kept.at[rows, loop.episode].set(new, mode="drop"),
            loop.done,
            Episodes(jnp.where(over, returns, 0.0), length, complete & over, timestep.outcome),
        )
        episode = jnp.minimum(loop.episode + over, episodes)
        now = Start(timestep.observation, timestep.state)
        if episodes > 1:
            keys = start_keys(episode)
            now = restart(
                environment,
                "first_state" if tasks else "fresh",
                (),
                start if tasks else (),
                over & (episode < episodes),
                lambda rows: keys[rows],
                now,
            )
        returns, length = jnp.where(over, 0.0, returns), jnp.where(over, 0, length)
        return _Loop(now.state, now.observation, over, memory, episode, returns, length, done)

    none = jnp.zeros(2 * num_envs, jnp.int32)
    start = (
        Start(*jax.vmap(environment.task)(rows % num_envs % tasks)) if tasks else reset(environment, start_keys(none))
    )
    empty = jnp.zeros((2 * num_envs, episodes))
    done = Episodes(empty, empty.astype(jnp.int32), empty.astype(bool), {})
    memory = (trainer.initial_memory(num_envs), trainer.initial_memory(num_envs))
    loop = _Loop(
        start.state,
        start.observation,
        jnp.ones(2 * num_envs, bool),
        memory,
        none,
        empty[:, 0],
        none,
        done,
    )
    outcome = jax.eval_shape(advance, loop)[0].outcome
    loop = loop._replace(done=done._replace(outcome=dict.fromkeys(outcome, empty)))
    loop = jax.lax.while_loop(lambda loop: jnp.any(loop.episode < episodes), step, loop)
    return jax.tree.map(lambda leaf: leaf.reshape(2, num_envs, episodes), loop.done)


def _rows(tree: PyTree, first: int, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[first : first + count], tree)


def _fold_in(keys: jax.Array, values: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in)(keys, values)


def summarise(episodes: Episodes, steps: int, outer_step: int) -> list[records.Line]:
    """One line a mode for `evaluations.jsonl`: moments over finished episodes, absent where none finished."""
    episodes = jax.device_get(episodes)
    lines = []
    for index, mode in enumerate(MODES):
        finished = episodes.finished[index]
        n = int(finished.sum())
        line: records.Line = {"steps": steps, "outer_step": outer_step, "mode": mode}
        if n:
            returns = episodes.returns[index][finished].astype(np.float64)
            line |= {
                "mean": float(returns.mean()),
                "std": float(returns.std()),
                "median": float(np.median(returns)),
            }
            line["length"] = float(episodes.length[index][finished].mean())
            line |= {name: float(value[index][finished].mean()) for name, value in episodes.outcome.items()}
        lines.append({**line, "n": n, "unfinished": finished.size - n})
    return lines


def main(run: str | Path, which: Literal["newest", "best"] = "newest") -> int:
    """Evaluate a run's newest or best checkpoint, add the scores to its record, print them. Exit code."""
    from purejaxrl_scale.analysis.runs import load_run
    from purejaxrl_scale.runner.compilation import enable_cache

    enable_cache()
    loaded = load_run(run)
    checkpoint = loaded.checkpoint(which)
    episodes = make_evaluate(loaded.trainer)(checkpoint.learner, evaluation_key(loaded.config.seed))
    lines = summarise(episodes, checkpoint.steps, checkpoint.outer_step)
    file = loaded.path / records.EVALUATIONS_FILE
    known = records.read(file)
    records.append(file, [line for line in lines if line not in known])
    Console().print(table(lines, f"{loaded.path.name} after {checkpoint.steps:,} steps"))
    return 0


def table(lines: list[records.Line], title: str) -> Table:
    """Scores as a table for the terminal."""
    columns = [name for name in lines[0] | lines[-1] if name not in ("steps", "outer_step")]
    result = Table(*columns, title=title)
    for line in lines:
        cells = [line.get(name, "-") for name in columns]
        result.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return result


def in_words(lines: tuple[records.Line, ...]) -> str:
    """One mode's evaluation, of one run or of all members of a population."""
    line = records.mean_line(lines)
    mode, episodes = lines[0]["mode"], sum(int(one["n"] or 0) for one in lines)
    unfinished = sum(int(one["unfinished"] or 0) for one in lines)
    if not episodes:
        return f"evaluation, {mode}: no episode finished, {unfinished} given up"
    solved = f"{line['success']:.1%} solved, " if "success" in line else ""
    given_up = f", {unfinished} given up" if unfinished else ""
    score = f"evaluation, {mode}: {solved}mean return {line['mean']:.4g} over {episodes} episodes{given_up}"
    if len(lines) == 1:
        return score
    means = [mean for one in lines if isinstance(mean := one.get("mean"), float)]
    return f"{score}, of {len(lines)} seeds from {min(means):.4g} to {max(means):.4g}"
