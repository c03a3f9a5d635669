"""Weak scaling: steps a second on more and more devices, each with the same work, and what collectives take of it."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from purejaxrl_scale import counters
from purejaxrl_scale.config import Config
from purejaxrl_scale.outer_loop import recipes
from purejaxrl_scale.train import make_train

_KERNELS = ("nccldevkernel", "ncclkernel")  # a GPU's own; there the operation around them would be counted twice
_OPERATIONS = ("all-reduce", "all-gather")


@dataclass(frozen=True)
class Scaling:
    """One number of devices, measured."""

    devices: int
    num_envs: int
    minibatch_size: int
    steps_per_second: float  # environment steps over all devices, the median over calls
    efficiency: float  # share of `devices` times the rate of one device
    collectives: float  # share of the devices' time spent in collectives, waiting for each other included


def scaled(config: Config, count: int) -> Config:
    """The config on `count` devices, each with as many environments and samples a minibatch as it has on one."""
    config = recipes.scale(config, count * config.environment.num_envs, "fixed_count")
    return replace(config, devices=replace(config.devices, count=count))


def measure(config: Config, counts: list[int], *, seconds: float = 5.0) -> list[Scaling]:
    """Train on each number of devices for about `seconds`; the first is what efficiency is relative to."""
    found: list[Scaling] = []
    for count in counts:
        larger = scaled(config, count)
        trainer = make_train(larger)
        state = trainer.init(jax.random.key(config.seed))
        compiled = trainer.lower_chunk(state).compile()

        def call(state, steps=1, compiled=compiled):
            # A run that has come to its end would take no more steps.
            state, _ = jax.block_until_ready(compiled(state._replace(steps=counters.init()), jnp.uint32(steps)))
            return state

        state = call(state)
        times: list[float] = []
        while sum(times) < seconds or len(times) < 3:
            began = time.perf_counter()
            state = call(state)
            times.append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with jax.profiler.trace(folder):
                call(state)
                took = time.perf_counter() - began
            collectives = seconds_in_collectives(Path(folder)) / (count * took)
        rate = larger.batch_size / statistics.median(times)
        alone = found[0].steps_per_second / found[0].devices if found else rate / count
        found.append(
            Scaling(
                count,
                larger.environment.num_envs,
                larger.algorithm.minibatch_size,
                rate,
                rate / (count * alone),
                collectives,
            )
        )
    return found


def seconds_in_collectives(folder: Path) -> float:
    """Seconds that a profile's devices spent in collectives, all devices together."""
    kernels = operations = 0.0
    for file in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    name = event.name.lower()
                    if name.startswith(_KERNELS):
                        kernels += event.duration_ns / 1e9
                    elif name.startswith(_OPERATIONS):
                        operations += event.duration_ns / 1e9
    return kernels or operations


def render(name: str, config: Config, measurements: list[Scaling]) -> Table:
    """The table that `bench --devices` prints."""
    table = Table(
        title=f"{name}: {config.environment.name}, {config.environment.num_envs:,} environments a device x "
        f"{config.longest_rollout} steps"
    )
    for heading in ("devices", "environments", "minibatch", "steps/s", "efficiency", "in collectives"):
        table.add_column(heading, justify="right")
    for one in measurements:
        table.add_row(
            f"{one.devices}",
            f"{one.num_envs:,}",
            f"{one.minibatch_size:,}",
            f"{one.steps_per_second:,.0f}",
            f"{one.efficiency:.0%}",
            f"{one.collectives:.1%}",
        )
    return table


def main(config: Config, name: str, counts: list[int], *, seconds: float = 5.0, output: Path | None = None) -> int:
    """Measure, print the table, and write it as JSON lines to `output` where one is given."""
    console = Console()
    with console.status(f"measuring {name} on {', '.join(map(str, counts))} devices ..."):
        measurements = measure(config, counts, seconds=seconds)
    console.print(render(name, config, measurements))
    if jax.default_backend() == "cpu":
        console.print(
            "CPU devices share the cores of this machine: efficiency is at most cores / devices, and what several "
            "devices cost beside is overhead"
        )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a") as file:
            for one in measurements:
                file.write(json.dumps({"experiment": name, "name": "weak scaling", **one.__dict__}) + "\n")
        console.print(f"table appended to {output}")
    return 0
