"""Which level each environment plays: the door to the curricula, each a module beside this file.

A curriculum is a module of four functions. Its state is the same on every device.

    init(config) -> state
    assign(config, state, outer_step, key) -> Assignment                                    before a rollout
    observe(config, hyperparameters, state, levels, trajectory, outer_step) -> state        after it
    metrics(state) -> {name: f32[]}

One that tries levels out first has two more: `due(config, outer_step) -> bool[]`, and `tried(config, state, names,
attempts, solved) -> state` for the `curriculum.candidates` levels that were played. A new one is one more module, one
more line in CURRICULA, and one more name in config.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.compaction import block_size, put_rows, take_rows
from purejaxrl_scale.config import Config
from purejaxrl_scale.devices import common_bound, each_shard, gathered, shard_count, shard_index
from purejaxrl_scale.environments import levels
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.environments.levels import Levels
from purejaxrl_scale.environments.statistics import init_episodes
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.outer_loop import domain_randomisation, learnability, level_replay
from purejaxrl_scale.rollout import Actors, Behaviour, Simulation, Trajectory, attempt

CURRICULA: dict[str, ModuleType] = {"uniform": domain_randomisation, "sfl": learnability, "plr": level_replay}


def chosen(config: Config) -> Any:
    """The module of the config's curriculum; None where environments draw their own levels."""
    return CURRICULA.get(config.curriculum.name)


def init(config: Config) -> PyTree:
    """The state of a curriculum that has seen nothing; () where there is none."""
    module = chosen(config)
    return module.init(config) if module else ()


def assign(
    simulation: Simulation, behaviour: Behaviour, state: PyTree, actors: Actors, outer_step: jax.Array, key: jax.Array
) -> tuple[PyTree, Actors]:
    """A level for each environment, where it begins at once, or after its episode (`curriculum.new_levels`).

    Levels that are tried out in the same outer step are known from the next one on.
    """
    config, module = simulation.config, chosen(simulation.config)
    if module is None:
        return state, actors
    choose_key, fresh_key, try_key = jax.random.split(key, 3)
    assignment = module.assign(config, state, outer_step, choose_key)
    num_local = actors.is_first.shape[0]
    due = module.due(config, outer_step) if hasattr(module, "due") else None

    def made() -> _Made:
        first = (shard_index() * jnp.uint32(num_local)).astype(jnp.int32)
        slot = jax.lax.dynamic_slice(assignment.slot, (first,), (num_local,))
        return _make(simulation, behaviour, assignment.names, slot, actors.first_start, fresh_key, try_key, due)

    made_here = each_shard(made)()
    if due is not None:
        # One predicate for all seeds of a population: of one for each, vmap would compute both branches every time.
        anyone = jnp.asarray(common_bound(due.astype(jnp.int32))) > 0
        known = jax.lax.cond(anyone, lambda: module.tried(config, state, *gathered(made_here.tried)), lambda: state)
        state = jax.tree.map(lambda new, old: jnp.where(due, new, old), known, state)

    def assigned() -> Actors:
        slot, start = made_here.slot, made_here.start
        new = actors._replace(first_start=start)
        if config.curriculum.new_levels == "episode":
            playing = jnp.asarray(jnp.where(assignment.kept, actors.levels.playing, -1))
            return new._replace(levels=Levels(made_here.names, slot, playing))
        return new._replace(
            # What the last episodes had come to is dropped.
            start=start,
            is_first=jnp.ones(num_local, bool),
            episodes=init_episodes(num_local),
            discounted_return=jnp.zeros(num_local),
            levels=Levels(made_here.names, slot, slot),
        )

    return state, each_shard(assigned)()


class _Made(NamedTuple):
    slot: jax.Array  # i32[N]
    names: jax.Array  # u32[N, 2]
    start: Any  # Start [N, ...]
    tried: Any  # names u32[C, 2], attempts i32[C], solved i32[C] of this device's candidates


def _make(
    simulation: Simulation,
    behaviour: Behaviour,
    buffer: jax.Array,
    slot: jax.Array,
    space: Start | tuple[()],
    fresh_key: jax.Array,
    try_key: jax.Array,
    due: jax.Array | None,
) -> _Made:
    """The levels of this device's environments, made in blocks into `space`; then, where due, those tried out.

    One loop does both, since the compiler takes long over each copy of a level generator.
    """
    options, num_local = simulation.config.curriculum, slot.shape[0]
    candidates = options.candidates // shard_count() if due is not None else 0
    # In blocks of one size on any number of devices, so that rounding cannot depend on it.
    block = options.search_batch // simulation.config.devices.logical_shards if candidates else block_size(num_local)
    jobs = -(-num_local // block)
    draw_key, play_key = jax.random.split(try_key)

    def job(number: jax.Array, made: _Made) -> _Made:
        tries = number >= jobs
        rows = jnp.where(tries, number - jobs, number) * block + jnp.arange(block, dtype=jnp.int32)
        of = jnp.where(tries, jnp.uint32(candidates), jnp.uint32(num_local))
        key = jax.random.wrap_key_data(jnp.where(tries, jax.random.key_data(draw_key), jax.random.key_data(fresh_key)))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, shard_index() * of + rows.astype(jnp.uint32))
        place = take_rows(slot, rows)
        names, start = levels.begin(
            simulation.environment, keys, take_rows(buffer, jnp.maximum(place, 0)), tries | (place < 0)
        )
        # Rows of the other kind lie past the end, and are dropped.
        own, other = jnp.where(tries, num_local, rows), jnp.where(tries, rows, candidates)
        made = made._replace(names=put_rows(made.names, own, names), start=put_rows(made.start, own, start))
        if not candidates:
            return made

        def play() -> tuple[jax.Array, jax.Array]:
            return attempt(simulation, behaviour, start, play_key, rows[0], candidates, options.search_length)

        def rest() -> tuple[jax.Array, jax.Array]:
            return jnp.zeros(block, jnp.int32), jnp.zeros(block, jnp.int32)

        outcome = jax.lax.cond(tries, play, rest)
        return made._replace(tried=put_rows(made.tried, other, (names, *outcome)))

    none = jnp.zeros(candidates, jnp.int32)
    tried = (jnp.zeros((candidates, 2), jnp.uint32), none, none) if candidates else ()
    made = _Made(slot, jnp.zeros((num_local, 2), jnp.uint32), space, tried)
    more = 0 if due is None else common_bound(jnp.where(due, candidates // block, 0))
    return jax.lax.fori_loop(0, jobs + more, job, made)


def observe(
    simulation: Simulation,
    hyperparameters: Hyperparameters,
    state: PyTree,
    actors: Actors,
    trajectory: Trajectory,
    outer_step: jax.Array,
) -> tuple[PyTree, Actors, dict[str, jax.Array]]:
    """What the rollout on the assigned levels tells of them -> (state, actors, metrics)."""
    module = chosen(simulation.config)
    if module is None:
        return state, actors, {}
    state = module.observe(simulation.config, hyperparameters, state, actors.levels, trajectory, outer_step)

    def moved_on() -> Levels:
        ended = jnp.any(trajectory.terminated | trajectory.truncated, axis=0)
        return actors.levels._replace(playing=jnp.where(ended, actors.levels.slot, actors.levels.playing))

    return state, actors._replace(levels=each_shard(moved_on)()), module.metrics(state)
