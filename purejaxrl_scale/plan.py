"""Whether a run fits the memory it is given, how many environments would, and what would make it fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.runner.memory import Plan, Planner, in_words, of_device, on_accelerator, read_size

__all__ = ["alternatives", "check", "largest", "main", "read_size", "render"]

_LARGEST_BLOCK = 4096
_MOST_TRIES = 6
Measure = Callable[[Config], int]


def main(config: Config, name: str, *, memory: int | None = None, accelerator: bool = False) -> int:
    """Print the plan; 0 where the run fits, 1 where it does not."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    devices = config.devices.count or jax.device_count()
    if accelerator:
        config = on_accelerator(config)
    available = of_device(devices) if memory is None else memory
    with Console(stderr=True).status("tracing shapes ..."):
        planner = Planner(config, devices)
        plan = planner.plan(config)
    console.print(render(name, config, plan, devices))
    # Another machine is asked about where its memory is given: what JAX takes there is not known.
    measure = planner.total if memory is not None else _measure(planner)
    needed = measure(config)
    fits = needed <= available
    verdict = "fits" if fits else "does not fit"
    if needed == plan.total:
        console.print(f"{in_words(needed)} on each of {devices} device(s): it {verdict} in {in_words(available)}")
    else:
        console.print(
            f"{in_words(plan.total)} on each of {devices} device(s); resident about {in_words(needed * devices)} in "
            f"all, with JAX, its compiler, and copies of the state while a checkpoint is written: it {verdict} in "
            f"{in_words(available * devices)}"
        )
    with Console(stderr=True).status("looking for what else fits ..."):
        most = largest(measure, config, needed, available)
        helpful = list(alternatives(planner.total, config, plan.total))
    console.print(
        f"the most environments that fit, all else equal: {most:,}" if most else "no number of environments fits"
    )
    if helpful:
        console.print(f"to need less than {in_words(plan.total)}:")
    for change, total in helpful:
        console.print(f"  {change}: {in_words(total)}")
    return 0 if fits else 1


def _measure(planner: Planner) -> Measure:
    """What decides whether a run fits: on a CPU JAX itself lies in the same memory."""
    return planner.resident if jax.default_backend() == "cpu" else planner.total


def check(config: Config) -> str:
    """What the run needs of the devices of this machine, in words.

    Raises ConfigError where it cannot fit, with what would.
    """
    devices = config.devices.count or jax.device_count()
    available, planner = of_device(devices), Planner(config, devices)
    measure = _measure(planner)
    needed = measure(config)
    resident = "" if measure == planner.total else " with JAX and its compiler"
    if needed <= available:
        return f"about {in_words(needed)} on each of {devices} device(s){resident}, which have {in_words(available)}"
    most = largest(measure, config, needed, available)
    helpful = [f"{change} needs {in_words(size)}" for change, size in alternatives(measure, config, needed)]
    if most:
        helpful.insert(0, f"environment.num_envs {most:,} fits")
    raise config_io.ConfigError(
        [
            f"the run needs {in_words(needed)} on each of {devices} device(s){resident}, which have "
            f"{in_words(available)}: "
            f"{'; '.join(helpful) or 'nothing that is known would help'}"
        ]
    )


def render(name: str, config: Config, plan: Plan, devices: int) -> Table:
    """The table that `plan` prints."""
    environment, local = config.environment, config.environment.num_envs // devices
    table = Table(
        title=f"{name}: {environment.name}, {local:,} environments x {config.longest_rollout} steps on each device"
    )
    for heading in ("", "size", "an environment"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {
        "environment state": plan.environments,
        "observations": plan.observations,
        "rest of the trajectory": plan.trajectory,
        "networks and optimiser": plan.learner,
        "metrics of a chunk": plan.metrics,
    }
    for label, size in rows.items():
        table.add_row(label, in_words(size), in_words(size // local) if size >= local else "")
    table.add_section()
    for label, size in {
        "temporary: physics and policy": plan.collecting,
        "temporary: minibatch activations": plan.learning,
    }.items():
        table.add_row(label, in_words(size), "")
    return table


def largest(measure: Measure, config: Config, needed: int, available: int) -> int:
    """The most environments with which the config, which needs `needed`, is legal and fits; 0 if none.

    A secant search: memory grows linearly with environments, but for a bend or two.
    """
    algorithm, length = config.algorithm, config.shortest_rollout
    step = config.devices.logical_shards * max(1, config.environment.block_size)
    if not (config.adapts and algorithm.adaptive_batch.minibatches == "fixed_size"):
        step = math.lcm(step, algorithm.minibatch_size // math.gcd(algorithm.minibatch_size, length))
    fewest = -(-algorithm.minibatch_size // (length * step))
    most = (2**31 - 1) // config.longest_rollout // step
    count = config.environment.num_envs // step
    needs, slope = {count: needed}, needed / count
    for _ in range(_MOST_TRIES):
        following = min(most, int(count + (available - needs[count]) / slope))
        if following in needs or following < fewest:
            break
        needs[following] = measure(config_io.replace(config, {"environment.num_envs": following * step}))
        # While the compiler takes the most, environments cost nothing.
        slope = max((needs[following] - needs[count]) / (following - count), 1.0)
        count = following
    return step * max((count for count, size in needs.items() if size <= available), default=0)


def alternatives(measure: Measure, config: Config, needed: int) -> Iterator[tuple[str, int]]:
    """Legal changes that need less memory, each on its own, with what they need."""
    for changes in _changes(config):
        changed = config_io.replace(config, changes)
        if problems(changed):
            continue
        less = measure(changed)
        if less < 0.99 * needed:
            yield " ".join(f"--{name} {_text(value)}" for name, value in changes.items()), less


def _changes(config: Config) -> Iterator[dict[str, Any]]:
    environment, algorithm = config.environment, config.algorithm
    if not config.adapts and algorithm.rollout_length % 2 == 0:
        halved: dict[str, Any] = {"algorithm.rollout_length": algorithm.rollout_length // 2}
        if config.num_minibatches % 2:
            halved["algorithm.minibatch_size"] = algorithm.minibatch_size // 2
        yield halved
    unit = config.devices.logical_shards * config.segment_length
    micro = (algorithm.microbatch_size or algorithm.minibatch_size) // 8 // unit * unit
    if micro:
        yield {"algorithm.microbatch_size": micro}
    of_shard = environment.num_envs // config.devices.logical_shards
    block = max((size for size in range(1, min(_LARGEST_BLOCK, of_shard) + 1) if of_shard % size == 0), default=0)
    if not 0 < environment.block_size <= block < of_shard:
        yield {"environment.block_size": block}
    if environment.observation_storage == "float32":
        yield {"environment.observation_storage": "bfloat16"}
    if config.compares_policies:
        yield {"monitors.kl": False, "monitors.behavioural_divergence": False}
    if config.monitors.outer_step:
        yield {"monitors.outer_step": False}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
