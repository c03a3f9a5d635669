"""Kinetix's evaluation protocol: the share of attempts that reach the goal, on hand-made and on random levels.

Each of the 74 hand-made levels is attempted 20 times; of each size 512 random levels, the same in every run, 5 times. A
level is played in its own size where the network can take that, otherwise padded to the size trained in. Actions are
drawn from the policy, as in the evaluation of the published checkpoints.

Source: Matthews et al. 2025, arXiv 2410.23208; Beukman et al. 2026, arXiv 2603.06009, and its checkpoints' model card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from purejaxrl_scale.config import EnvironmentConfig
from purejaxrl_scale.environments import registry
from purejaxrl_scale.environments.autoreset import quarantine
from purejaxrl_scale.environments.kinetix_catalogue import EVALUATED, LEVELS, own_sizes, smallest_size
from purejaxrl_scale.runner import records, sheet

NAME = "kinetix"
ATTEMPTS = {"hand_made": 20, "random": 5}
RANDOM_LEVELS = 512
_LEVELS_SEED = 100  # the suite's own choice for its random evaluation levels
_ATTEMPTS_SEED = 0xFFFF_0003  # like an evaluation's, a key that training never meets
_ROWS = 512  # attempts that are under way at once
_STEPS_BETWEEN_LOOKS = 16
PyTree = Any


class LevelSet(NamedTuple):
    """Levels of one size, hand-made and random, in one environment."""

    environment: Any
    names: tuple[str, ...]  # s/h0_weak_thrust or s/random/17
    attempts: np.ndarray  # i32[levels]
    states: PyTree  # [levels, ...]


class Attempts(NamedTuple):
    """The attempts at a set of levels that have been made, and those under way."""

    state: PyTree  # [R, ...]
    memory: PyTree  # [R, ...]
    number: jax.Array  # i32[R], which attempt a row plays; their number where none is left
    age: jax.Array  # i32[R], its steps so far
    waiting: jax.Array  # i32[], the next attempt that nobody plays yet
    result: jax.Array  # i8[attempts], SOLVED, FAILED or UNKNOWN


UNKNOWN, FAILED, SOLVED = 0, 1, 2


def level_set(options: EnvironmentConfig, size: str, random_levels: int = RANDOM_LEVELS) -> LevelSet:
    """The protocol's levels of one size, as an agent trained in such an environment plays them."""
    from purejaxrl_scale.environments import kinetix_levels

    plain = replace(options, levels=(), num_tasks=0, level_filter=True)
    own: Any = registry.make_from_config(replace(plain, name=f"kinetix/{size}"))
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(_LEVELS_SEED)))(jnp.arange(random_levels))
    _, drawn = jax.jit(jax.vmap(own.reset))(keys)
    environment: Any = own
    states = drawn
    if not own_sizes(options) and options.name != own.name:
        environment = registry.make_from_config(plain)
        with jax.numpy_rank_promotion("allow"):
            states = kinetix_levels.padded(drawn, environment.suite)
    hand_made = tuple(level for level in LEVELS if smallest_size(level) == size)
    with jax.numpy_rank_promotion("allow"):
        built = kinetix_levels.stacked(hand_made, environment.suite)
    names = (*hand_made, *(f"{size}/random/{number}" for number in range(random_levels)))
    attempts = np.repeat([ATTEMPTS["hand_made"], ATTEMPTS["random"]], [len(hand_made), random_levels])
    joined = jax.tree.map(lambda *parts: jnp.concatenate([jnp.asarray(part) for part in parts]), built, states)
    return LevelSet(environment, names, attempts.astype(np.int32), joined)


def order(levels: LevelSet) -> np.ndarray:
    """The level of each attempt, i32[attempts]: the first attempt at every level, then the second, and so on."""
    rounds = [np.flatnonzero(levels.attempts > number) for number in range(levels.attempts.max())]
    return np.concatenate(rounds).astype(np.int32)


def make_play(
    trainer: Any, levels: LevelSet, rows: int = _ROWS
) -> tuple[Attempts, Callable[[PyTree, Attempts, int], Attempts]]:
    """The first attempts, and `play(learner, attempts, steps) -> attempts`, which takes up to so many steps of each.

    A row that ends its attempt takes the next that waits. What becomes of an attempt depends on its number alone.
    """
    environment, level_of = levels.environment, jnp.asarray(order(levels))
    total = level_of.shape[0]
    rows = min(rows, total)
    key = jax.random.key(_ATTEMPTS_SEED)

    def fold_in(keys: jax.Array, values: jax.Array) -> jax.Array:
        return jax.vmap(jax.random.fold_in)(keys, values)

    def begun(states: PyTree, number: jax.Array) -> PyTree:
        level = level_of[jnp.minimum(number, total - 1)]
        return jax.tree.map(lambda leaf: leaf[level], states)

    def step(learner: PyTree, states: PyTree, now: Attempts) -> Attempts:
        playing = now.number < total
        keys = fold_in(jax.vmap(partial(jax.random.fold_in, key))(now.number), now.age)
        observation = jax.vmap(environment.observe)(now.state)
        _, action, memory = trainer.act(learner, now.memory, observation, now.age == 0, keys, deterministic=False)
        timestep, broken = quarantine(jax.vmap(environment.step)(keys, now.state, action))
        ended = playing & (timestep.terminated | timestep.truncated)
        solved = ~broken & (timestep.outcome["success"] > 0)
        outcome = jnp.where(solved, SOLVED, FAILED).astype(jnp.int8)
        result = now.result.at[jnp.where(ended, now.number, total)].set(outcome, mode="drop")
        following = now.waiting + jnp.cumsum(ended, dtype=jnp.int32) - 1
        number = jnp.where(ended, jnp.minimum(following, total), now.number)

        def renewed() -> PyTree:
            return jax.tree.map(
                lambda new, old: jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old),
                begun(states, number),
                timestep.state,
            )

        state = jax.lax.cond(jnp.any(ended), renewed, lambda: timestep.state)
        waiting = now.waiting + jnp.sum(ended, dtype=jnp.int32)
        return Attempts(state, memory, number, jnp.where(ended, 0, now.age + 1), waiting, result)

    @partial(jax.jit, donate_argnums=2)
    def play(learner: PyTree, states: PyTree, now: Attempts, steps: jax.Array) -> Attempts:
        def more(carry: tuple[jax.Array, Attempts]) -> jax.Array:
            taken, now = carry
            return (taken < steps) & jnp.any(now.number < total)

        def one(carry: tuple[jax.Array, Attempts]) -> tuple[jax.Array, Attempts]:
            taken, now = carry
            return taken + 1, step(learner, states, now)

        return jax.lax.while_loop(more, one, (jnp.int32(0), now))[1]

    first = jnp.arange(rows, dtype=jnp.int32)
    attempts = Attempts(
        jax.jit(begun)(levels.states, first),
        trainer.initial_memory(rows),
        first,
        jnp.zeros(rows, jnp.int32),
        jnp.int32(rows),
        jnp.zeros(total, jnp.int8),
    )
    return attempts, lambda learner, now, steps: play(learner, levels.states, now, jnp.int32(steps))


def play_all(
    trainer: Any, learner: PyTree, levels: LevelSet, watched: Sequence[int] = ()
) -> Iterator[tuple[np.ndarray, list[PyTree]]]:
    """Play all attempts, and tell now and then of the results so far, i8[attempts], and of the watched levels' states.

    The states are those of the first attempts that are still under way, one for each watched level, else None.
    """
    attempts, play = make_play(trainer, levels)
    rows = np.asarray(watched, np.int32)
    while True:
        shown: list[PyTree] = []
        if len(rows):
            number = np.asarray(attempts.number)[rows]
            states = jax.device_get(jax.tree.map(lambda leaf: leaf[rows], attempts.state))
            shown = [
                jax.tree.map(lambda leaf, place=place: leaf[place], states) if number[place] == row else None
                for place, row in enumerate(rows)
            ]
        result = np.asarray(attempts.result)
        yield result, shown
        if (result != UNKNOWN).all():
            return
        looking = any(state is not None for state in shown)
        attempts = play(learner, attempts, sheet.STEPS_A_FRAME if looking else _STEPS_BETWEEN_LOOKS)


def solve_rates(levels: LevelSet, result: np.ndarray) -> dict[str, float]:
    """The share of each level's attempts that were solved."""
    solved = np.bincount(order(levels), weights=result == SOLVED, minlength=len(levels.names))
    return dict(zip(levels.names, (solved / levels.attempts).tolist(), strict=True))


def lines_of(rates: dict[str, float], size: str, steps: int, outer_step: int) -> list[dict[str, Any]]:
    """A line of the record for the hand-made and one for the random levels of a size, or of all."""
    lines = []
    for kind, attempts in ATTEMPTS.items():
        chosen = {name: rate for name, rate in rates.items() if ("/random/" in name) == (kind == "random")}
        values = np.array(list(chosen.values()))
        line = {"steps": steps, "outer_step": outer_step, "protocol": NAME, "levels": kind, "size": size}
        line |= {"solve_rate": float(values.mean()), "se": float(values.std(ddof=1) / np.sqrt(len(values)))}
        line |= {"n": len(values), "attempts": attempts}
        lines.append(line if size == "all" else line | {"solve_rates": chosen})
    return lines


def main(run: str | Path, which: Literal["newest", "best"] = "newest") -> int:
    """Play the protocol with a run's newest or best checkpoint; record, draw and print the solve rates. Exit code."""
    from purejaxrl_scale.analysis import protocol_figure, report
    from purejaxrl_scale.analysis.runs import load_run
    from purejaxrl_scale.runner.compilation import enable_cache

    enable_cache()
    loaded = load_run(run)
    checkpoint = loaded.checkpoint(which)
    place = {"steps": checkpoint.steps, "outer_step": checkpoint.outer_step}
    file, console = loaded.path / records.EVALUATIONS_FILE, Console(highlight=False)
    rates: dict[str, float] = {}
    found: list[dict[str, Any]] = []
    cells: list[sheet.Cell] = []

    def record(lines: list[dict[str, Any]]) -> None:
        records.append(file, lines)
        found.extend(lines)

    with _progress(console) as progress:
        for size in EVALUATED:
            task = progress.add_task(f"kinetix/{size}: making levels", total=None)
            levels = level_set(loaded.config.environment, size)
            total = int(levels.attempts.sum())
            progress.update(task, description=f"kinetix/{size}: compiling", total=total)
            watched = sheet.chosen([name for name in levels.names if "/random/" not in name], size)
            films: list[list[PyTree]] = [[] for _ in watched]
            result = np.zeros(total, np.int8)
            for result, shown in play_all(loaded.trainer, checkpoint.learner, levels, watched):
                done = int((result != UNKNOWN).sum())
                progress.update(task, completed=done, description=f"kinetix/{size}: attempts" if done else None)
                for film, state in zip(films, shown, strict=True):
                    if state is not None:
                        film.append(state)
            of_size = solve_rates(levels, result)
            lines = lines_of(of_size, size, **place)
            record(lines)
            rates |= of_size
            solved = ", ".join(f"{line['levels'].replace('_', '-')} {line['solve_rate']:.1%}" for line in lines)
            console.print(f"kinetix/{size} solved: {solved}")
            progress.update(task, description=f"kinetix/{size}: filming")
            for level, film in zip(watched, films, strict=True):
                frames = levels.environment.render(film)
                cells.append(sheet.Cell(levels.names[level], frames, bool(result[level] == SOLVED)))
            progress.update(task, description=f"kinetix/{size}: done")
    record(lines_of(rates, "all", **place))
    console.print(_table(found, f"{loaded.path.name} after {checkpoint.steps:,} steps"))
    folder = loaded.path / report.FOLDER
    figures = protocol_figure.save(loaded.name, found, folder)
    film = sheet.write(cells, folder / "kinetix_sheet.gif")
    page, *_ = report.write_report([loaded])
    for label, path in (("figure", figures[0]), ("sheet", film), ("report", page)):
        console.print(f"{label:8}{path}", markup=False, soft_wrap=True)
    return 0


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _table(lines: list[dict[str, Any]], title: str) -> Table:
    table = Table("levels", "size", "solve rate", "± standard error", "levels x attempts", title=title)
    for kind in ATTEMPTS:
        for line in lines:
            if line["levels"] == kind:
                rate, spread = f"{line['solve_rate']:.3f}", f"{line['se']:.3f}"
                table.add_row(kind.replace("_", "-"), line["size"], rate, spread, f"{line['n']} x {line['attempts']}")
    return table
