"""Steps a second, three ways: the environment with random actions, with the policy, and with learning.

Where the rollout length adapts, learning is also measured at both ends of it, by the one program for all lengths and by
a program of each length's own.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from purejaxrl_scale import counters
from purejaxrl_scale.config import AdaptiveBatchConfig, Config, MonitorsConfig, problems
from purejaxrl_scale.environments import autoreset
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import ActionSpace, Discrete, MultiDiscrete, PyTree
from purejaxrl_scale.outer_loop import adaptive_batch
from purejaxrl_scale.outer_loop.adaptive_batch import AdaptiveBatch
from purejaxrl_scale.rollout import Actors, Simulation, collect, environment_keys
from purejaxrl_scale.state import TrainState
from purejaxrl_scale.train import Trainer, make_train

LEARNING, TEXTBOOK, UNMONITORED = "+ learning", "+ learning, textbook shuffle", "+ learning, monitors off"


@dataclass(frozen=True)
class Measurement:
    """One way of running, measured."""

    name: str
    steps_per_second: float  # environment steps, the median over calls
    calls: int
    trace_seconds: float  # tracing and lowering
    compile_seconds: float  # XLA's own, or reading its cache
    memory_bytes: int  # XLA's plan: arguments + outputs + temporaries - aliased


@dataclass
class _Case:
    """A compiled function of its own output, to be called again and again."""

    name: str
    call: Callable
    state: object
    steps: int  # environment steps a call
    trace_seconds: float
    compile_seconds: float
    memory_bytes: int

    def run(self) -> float:
        """One call -> steps a second."""
        begin = time.perf_counter()
        self.state = jax.block_until_ready(self.call(self.state))
        return self.steps / (time.perf_counter() - begin)


def random_action(space: ActionSpace, key: jax.Array) -> jax.Array:
    """A uniform action."""
    if isinstance(space, Discrete):
        return jax.random.randint(key, (), 0, space.n)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, (len(space.sizes),), 0, jnp.asarray(space.sizes))
    return jax.random.uniform(key, space.shape, minval=jnp.asarray(space.low), maxval=jnp.asarray(space.high))


def random_rollout(simulation: Simulation, pool, actors: Actors, key: jax.Array) -> Actors:
    """As many steps as a rollout, with random actions and resets, and nothing else."""
    environment, options = simulation.environment, simulation.config.environment
    num_local = actors.is_first.shape[0]
    rows = jnp.arange(num_local, dtype=jnp.int32)

    def step(start, time_key):
        action_key, dynamics_key, reset_key = jax.random.split(time_key, 3)
        actions = jax.vmap(lambda key: random_action(environment.action_space, key))(
            environment_keys(action_key, rows, num_local)
        )
        timestep = jax.vmap(environment.step)(environment_keys(dynamics_key, rows, num_local), start.state, actions)
        start = autoreset.restart(
            environment,
            options.autoreset,
            pool,
            actors.first_start,
            timestep.terminated | timestep.truncated,
            lambda rows: environment_keys(reset_key, rows, num_local),
            Start(timestep.observation, timestep.state),
        )
        return start, None

    keys = jax.random.split(key, simulation.config.longest_rollout)
    start, _ = jax.lax.scan(step, actors.start, keys)
    return actors._replace(start=start)


def measure(
    config: Config, *, textbook: bool = False, unmonitored: bool = False, seconds: float = 5.0
) -> list[Measurement]:
    """Each way for about `seconds`, in turns so that a slow spell of the machine hits all alike.

    With `textbook`, training is also measured with the shuffle that sorts and copies the batch; with `unmonitored`,
    with every monitor off.
    """
    config = replace(config, devices=replace(config.devices, count=1))
    trainer = make_train(config)
    cases = [
        _case("environment", config, trainer, _environment_only(trainer)),
        _case("+ policy", config, trainer, _with_policy(trainer)),
        *(_adaptive_cases(trainer) if config.adapts else [_training_case(LEARNING, trainer)]),
    ]
    if textbook:
        shuffled = replace(config, algorithm=replace(config.algorithm, shuffle="permutation"))
        cases.append(_training_case(TEXTBOOK, make_train(shuffled)))
    if unmonitored:
        silent = MonitorsConfig(kl=False, behavioural_divergence=False, outer_step=False, noise_scale=False)
        cases.append(_training_case(UNMONITORED, make_train(replace(config, monitors=silent))))
    rates: dict[str, list[float]] = {case.name: [] for case in cases}
    for case in cases:
        case.run()
    deadline = time.perf_counter() + seconds * len(cases)
    while time.perf_counter() < deadline or len(rates[cases[-1].name]) < 3:
        for case in cases:
            rates[case.name].append(case.run())
    return [
        Measurement(
            case.name,
            statistics.median(rates[case.name]),
            len(rates[case.name]),
            case.trace_seconds,
            case.compile_seconds,
            case.memory_bytes,
        )
        for case in cases
    ]


def _environment_only(trainer: Trainer):
    def run(state: TrainState) -> TrainState:
        key = jax.random.fold_in(state.key, state.outer_step)
        actors = random_rollout(trainer.simulation, state.pool, state.actors, key)
        return state._replace(actors=actors, outer_step=state.outer_step + 1)

    return run


def _with_policy(trainer: Trainer):
    def run(state: TrainState) -> tuple[TrainState, PyTree]:
        key = jax.random.fold_in(state.key, state.outer_step)
        # The trajectory is an output, so that nothing of it can be left out; the caller drops it.
        actors, trajectory, _ = collect(
            trainer.simulation,
            state.learner.params,
            lambda observation: observation,
            lambda policy: policy,
            state.pool,
            state.actors,
            key,
            trainer.config.longest_rollout,
        )
        return state._replace(actors=actors, outer_step=state.outer_step + 1), trajectory

    return run


def _case(name: str, config: Config, trainer: Trainer, function: Callable) -> _Case:
    state = jax.block_until_ready(trainer.init(jax.random.key(config.seed)))
    begin = time.perf_counter()
    lowered = jax.jit(function).lower(state)
    return _compiled_case(name, lowered, state, config.batch_size, begin, wants_length=False)


def _training_case(name: str, trainer: Trainer) -> _Case:
    state = jax.block_until_ready(trainer.init(jax.random.key(trainer.config.seed)))
    begin = time.perf_counter()
    lowered = trainer.lower_chunk(state)
    return _compiled_case(name, lowered, state, trainer.config.batch_size, begin, wants_length=True)


def _adaptive_cases(trainer: Trainer) -> list[_Case]:
    """Learning at lengths that move from end to end and at each end, under one compile; and fixed at each end."""
    shortest, longest = trainer.config.shortest_rollout, trainer.config.longest_rollout
    moving = [shortest + (longest - shortest) * part // 12 for part in range(13)]
    whole = _training_case(LEARNING, trainer)
    cases = []
    for name, lengths in (
        (f"{LEARNING}, {shortest} to {longest} steps", moving),
        (f"{LEARNING}, {shortest} steps", [shortest]),
        (f"{LEARNING}, {longest} steps", [longest]),
    ):
        steps = trainer.config.environment.num_envs * sum(lengths)
        # The state is donated, so each case needs one of its own.
        state = trainer.init(jax.random.key(trainer.config.seed))
        cases.append(replace(whole, name=name, call=_at_lengths(whole.call, lengths), state=state, steps=steps))
    for length in (shortest, longest):
        config = _at_one_length(trainer.config, length)
        # A fixed length must divide into whole minibatches, which one that adapts need not.
        if not problems(config):
            cases.append(_training_case(f"fixed length {length}", make_train(config)))
    return cases


def _at_lengths(call: Callable, lengths: list[int]) -> Callable:
    def run(state: TrainState) -> TrainState:
        for length in lengths:
            adaptive = state.outer_loop.adaptive_batch
            assert isinstance(adaptive, AdaptiveBatch)
            adaptive = adaptive._replace(length=jnp.float32(length))
            state = call(state._replace(outer_loop=state.outer_loop._replace(adaptive_batch=adaptive)))
        return state

    return run


def _at_one_length(config: Config, length: int) -> Config:
    """The same epochs and minibatches as at that length, in a program that knows no other."""
    algorithm = config.algorithm
    adaptive = algorithm.adaptive_batch
    size = algorithm.minibatch_size
    if adaptive.minibatches == "fixed_count":
        size = size * length // config.shortest_rollout
    epochs = int(adaptive_batch.epochs(jnp.uint32(length), adaptive, algorithm.epochs))
    fixed = replace(
        algorithm,
        rollout_length=length,
        minibatch_size=size,
        epochs=epochs,
        adaptive_batch=AdaptiveBatchConfig(),
    )
    return replace(config, algorithm=fixed)


def _compiled_case(name, lowered, state, steps: int, begin: float, *, wants_length: bool) -> _Case:
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    plan = compiled.memory_analysis()
    memory = (
        plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
    )

    def call(state):
        # A run that has come to its end would take no more steps.
        state = state._replace(steps=counters.init())
        result = compiled(state, jnp.uint32(1)) if wants_length else compiled(state)
        jax.block_until_ready(result)
        return result if isinstance(result, TrainState) else result[0]

    return _Case(name, call, state, steps, traced - begin, done - traced, memory)


def render(name: str, config: Config, measurements: list[Measurement]) -> Table:
    """The table that `bench` prints."""
    table = Table(
        title=f"{name}: {config.environment.name}, {config.environment.num_envs:,} environments x "
        f"{config.longest_rollout} steps"
    )
    for heading in ("", "steps/s", "of environment", "trace s", "compile s", "XLA memory MB"):
        table.add_column(heading, justify="left" if not heading else "right")
    whole = measurements[0].steps_per_second
    for one in measurements:
        table.add_row(
            one.name,
            f"{one.steps_per_second:,.0f}",
            f"{one.steps_per_second / whole:.0%}",
            f"{one.trace_seconds:.1f}",
            f"{one.compile_seconds:.1f}",
            f"{one.memory_bytes / 1e6:,.1f}",
        )
    return table


def main(
    config: Config,
    name: str,
    *,
    textbook: bool = False,
    unmonitored: bool = False,
    seconds: float = 5.0,
    output: Path | None = None,
) -> int:
    """Measure, print the table, and write it as JSON lines to `output` where one is given."""
    console = Console()
    with console.status(f"measuring {name} on {jax.devices()[0].platform} ..."):
        measurements = measure(config, textbook=textbook, unmonitored=unmonitored, seconds=seconds)
    console.print(render(name, config, measurements))
    rates = {one.name: one.steps_per_second for one in measurements}
    if textbook:
        console.print(f"training throughput over the textbook shuffle's: {rates[LEARNING] / rates[TEXTBOOK]:.2f}x")
    if unmonitored:
        console.print(f"cost of all monitors together: {1 - rates[LEARNING] / rates[UNMONITORED]:.1%}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    console.print(f"peak resident memory of this process, compilers included: {peak / 1e6:,.0f} MB")
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, {jax.devices()[0].device_kind}, jax {jax.__version__}"
    )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a") as file:
            for one in measurements:
                file.write(json.dumps({"experiment": name, **one.__dict__}) + "\n")
        console.print(f"table appended to {output}")
    return 0
