"""The memory plan: what a run needs on each device, from shapes alone, before anything is compiled.

What is kept from one outer step to the next is counted leaf by leaf; what is needed on the way is read off the jaxpr of
the outer step, traced with an environment that has the real one's shapes and the memory of its physics, and nothing
inside.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from purejaxrl_scale import hyperparameters as numbers
from purejaxrl_scale.config import Config
from purejaxrl_scale.environments import registry
from purejaxrl_scale.environments.interface import Environment, PyTree, Timestep
from purejaxrl_scale.environments.step_memory import step_bytes
from purejaxrl_scale.rollout import Simulation
from purejaxrl_scale.runner.liveness import bytes_of, temporaries
from purejaxrl_scale.state import TrainState, init_state
from purejaxrl_scale.train import CHUNK_LIMIT, outer_step, roll_out, simulate

# Resident bytes of a CPU process, measured: once JAX and the suite are there, and at most while the compiler runs.
_LOADED = {"gymnax": 700_000_000, "brax": 600_000_000, "kinetix": 1_200_000_000}
_COMPILING = {"gymnax": 950_000_000, "brax": 1_350_000_000, "kinetix": 3_400_000_000}
_COPIES = 2  # of the state while a checkpoint is written in the background


class Hollow:
    """An environment of another's shapes, which takes `scratch` bytes to step, and does nothing."""

    def __init__(self, environment: Environment, scratch: int):
        self._scratch = scratch
        self.name, self.max_episode_steps = environment.name, environment.max_episode_steps
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.cheap_reset, self.render = environment.cheap_reset, environment.render
        # Kinetix takes a quarter of a minute to trace a start.
        self._start = jax.eval_shape(getattr(environment, "blank", environment.reset), _KEY)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Zeros."""
        del key
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._start)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array) -> Timestep:
        """What a step leaves."""
        results = jax.eval_shape(self._results)
        given = (jax.random.key_data(key), state, action)
        return jax.pure_callback(_never, results, *given, vmap_method="broadcast_all")[0]

    def _results(self) -> tuple[Timestep, jax.Array]:
        observation, state = self.reset(jax.random.key(0))
        no = jnp.bool_(False)
        outcome = {"success": jnp.float32(0.0)} if self.name.startswith("kinetix/") else {}
        timestep = Timestep(state, observation, jnp.float32(0.0), no, no, outcome)
        return timestep, jnp.zeros(self._scratch, jnp.uint8)


def _never(*_: Any) -> Any:
    raise RuntimeError("a hollow environment is there to be traced, not to be run")


_KEY = jax.eval_shape(lambda: jax.random.key(0))


@dataclass(frozen=True)
class Plan:
    """Bytes that a run needs on each device."""

    environments: int  # their states, and all else that goes with each of them
    learner: int  # parameters, optimiser, reference policy, normalisers, and what the outer loop remembers
    observations: int  # of one rollout
    trajectory: int  # the rest of it
    collecting: int  # temporaries of physics and policy
    learning: int  # temporaries of estimates, minibatches and monitors
    metrics: int  # of one chunk
    total: int  # the peak

    @property
    def kept(self) -> int:
        """What stays from one outer step to the next; a checkpoint holds it."""
        return self.environments + self.learner


class Planner:
    """Plans of one config and of others with the same environment, which is made once."""

    def __init__(self, config: Config, devices: int):
        self._devices = devices
        self._environment = Hollow(registry.make_from_config(config.environment), step_bytes(config.environment))

    def total(self, config: Config) -> int:
        """Bytes at the peak on each device.

        They are XLA's arguments + outputs + temporaries - aliased within about 10 %, or 25 % of recurrent networks.
        """
        return self._total_and_state(config)[0]

    def resident(self, config: Config) -> int:
        """Bytes of a CPU process that trains, shared out over its devices: about what was measured."""
        total, (environments, learner) = self._total_and_state(config)
        suite = config.environment.name.partition("/")[0]
        copies = _COPIES * (self._devices * environments + learner)
        running = _LOADED.get(suite, 0) + self._devices * total + copies
        return max(_COMPILING.get(suite, 0), running) // self._devices

    def _total_and_state(self, config: Config) -> tuple[int, tuple[int, int]]:
        simulation, state = self._state(config)
        taken, (_, metrics) = temporaries(partial(outer_step, simulation), state, overwrites=True)
        environments = bytes_of((state.actors, state.pool))
        parts = (config.seeds * environments, config.seeds * (bytes_of(state) - environments))
        return sum(parts) + config.seeds * (taken + bytes_of(metrics) * CHUNK_LIMIT), parts

    def plan(self, config: Config) -> Plan:
        """The same, part by part."""
        simulation, state = self._state(config)

        def collect(state: TrainState, key: jax.Array):
            actors, trajectory, sums = roll_out(simulation, state, key, config.longest_rollout)
            return actors, trajectory._replace(length=()), sums

        collecting, (actors, trajectory, _) = temporaries(collect, state, _KEY)
        step, (_, metrics) = temporaries(partial(outer_step, simulation), state, overwrites=True)
        rollout, observations = bytes_of(trajectory), bytes_of(trajectory.observation)
        environments = bytes_of((state.actors, state.pool))
        parts = {
            "environments": environments,
            "learner": bytes_of(state) - environments,
            "observations": observations,
            "trajectory": rollout - observations,
            "collecting": max(0, collecting - bytes_of(actors) - rollout),
            "learning": max(0, step - rollout),
            "metrics": bytes_of(metrics) * CHUNK_LIMIT,
            "total": bytes_of(state) + step + bytes_of(metrics) * CHUNK_LIMIT,
        }
        return Plan(**{name: config.seeds * size for name, size in parts.items()})

    def _state(self, config: Config) -> tuple[Simulation, TrainState]:
        simulation = simulate(config, self._environment)
        # What it costs to form sums shard by shard is left out: that mode is for comparing bits.
        simulation = simulation._replace(config=replace(config, devices=replace(config.devices, exact_reduction=False)))
        hyperparameters = jax.eval_shape(lambda: numbers.from_config(config))
        num_local = config.environment.num_envs // self._devices
        return simulation, jax.eval_shape(partial(init_state, simulation, num_local=num_local), _KEY, hyperparameters)


def on_accelerator(config: Config) -> Config:
    """The config as a GPU or TPU runs it, planned on a machine that has none: whole minibatches at once."""
    algorithm = config.algorithm
    if algorithm.microbatch_size:
        return config
    largest = algorithm.minibatch_size
    if config.adapts and algorithm.adaptive_batch.minibatches == "fixed_count":
        largest = largest * config.longest_rollout // config.shortest_rollout
    return replace(config, algorithm=replace(algorithm, microbatch_size=largest))


def of_device(devices: int) -> int:
    """Bytes of memory that each device has; CPU devices share the machine's."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 1 << 62))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # A container may have less than its machine.
        text = Path(limit).read_text().strip() if Path(limit).is_file() else ""
        whole = min(whole, int(text)) if text.isdecimal() else whole
    return whole // max(1, devices // jax.process_count())


def read_size(text: str) -> int:
    """Bytes of a size as 80GB, 80 GiB, 512M or 1e9; no device has less than a megabyte. Raises ValueError."""
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*(?:e[0-9]{1,2})?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    size = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ") if found else 0.0
    if not 1e6 <= size < 2.0**63:
        raise ValueError(f"a size of memory is written as 80GB or 24GiB, and is at least 1MB: it is {text!r}")
    return int(size)


def in_words(size: int) -> str:
    """A size to three figures."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.{2 if size < 10 * unit else 1 if size < 100 * unit else 0}f} {name}"
    return f"{size / 1000:.1f} kB"
