"""Several processes, on one host or many, train one run: how they join, agree, and gather what one of them writes.

Process 0 leads: it alone writes the run's record and its checkpoints, and chooses what has to be the same everywhere.
The others write a record of their own, for nobody, in a temporary folder. All read checkpoints from the run's folder,
which must be on a file system that they share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from purejaxrl_scale.config import Config, DevicesConfig
from purejaxrl_scale.runner import folders
from purejaxrl_scale.runner.folders import RunError

HEARTBEAT_SECONDS = 30  # the default of 100 s is longer than a run should wait for a process that is dead
_PATIENCE_SECONDS, _JOIN_SECONDS, _COMPILE_SECONDS = 5, 300, 7200


def join(config: DevicesConfig) -> None:
    """Join the other processes of a run; nothing where there are none. Raises RunError where they are not found."""
    if not config.coordinator or jax.distributed.is_initialized():
        return
    # The preemption service would take SIGTERM for itself, and the run would not be told.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    chosen: dict[str, Any] = {}
    if config.coordinator != "auto":
        chosen = {
            "coordinator_address": config.coordinator,
            "num_processes": config.processes,
            "process_id": config.process,
        }
    faults: list[Exception] = []

    def initialise() -> None:
        try:
            # Its own limit ends the process from C++; ours comes before.
            jax.distributed.initialize(
                **chosen, initialization_timeout=2 * _JOIN_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
            )
        except Exception as fault:
            faults.append(fault)

    # In a thread, since the main thread must answer signals.
    waiting = threading.Thread(target=initialise, daemon=True)
    waiting.start()
    waiting.join(_PATIENCE_SECONDS)
    if waiting.is_alive():
        sys.stderr.write(f"waiting for the other processes of this run at {config.coordinator} ...\n")
        sys.stderr.flush()
    until = time.monotonic() + _JOIN_SECONDS
    while waiting.is_alive() and time.monotonic() < until:
        waiting.join(0.2)
    if faults or waiting.is_alive():
        why = faults[0] if faults else f"none came within {_JOIN_SECONDS} s"
        raise RunError(
            f"the processes of this run did not find each other at devices.coordinator {config.coordinator}: {why}"
        )


def leads() -> bool:
    """Whether this process writes the run's record."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Whether other processes train the same run."""
    return jax.process_count() > 1


def agree(values: Sequence[int]) -> list[int]:
    """Process 0's values, in every process."""
    return [int(value) for value in _of_all(values)[0]]


def anyone(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    return bool(_of_all([int(flag)]).any())


def _of_all(values: Sequence[int]) -> np.ndarray:
    if not are_several():
        return np.asarray([values])
    return np.asarray(multihost_utils.process_allgather(np.asarray(values, np.int32))).reshape(-1, len(values))


def wait_for_compilers() -> None:
    """Return when every process has compiled: the first collective gives up after 30 s of waiting for the others."""
    ocp.multihost.get_barrier_sync_fn()(key="compiled", timeout_ms=1000 * _COMPILE_SECONDS)


def whole(leaf: jax.Array) -> np.ndarray:
    """A copy of an array on the host, gathered from all processes that hold a part of it."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.array(leaf)


def placed(array: np.ndarray, sharding: Any) -> jax.Array:
    """An array of the host, the same in every process, laid out as `sharding` says."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def alone() -> ocp.options.MultiprocessingOptions:
    """Checkpoints are read by each process, and written by the first, without waiting for others."""
    index = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=index, active_processes={index})


@contextlib.contextmanager
def own_record(config: Config) -> Iterator[Config]:
    """The config as it is for process 0; for others one whose record goes to a temporary folder and to no display."""
    if leads():
        yield config
        return
    source = folders.source_of(config)
    with tempfile.TemporaryDirectory() as folder:
        run = dataclasses.replace(
            config.run,
            folder=folder,
            wandb="disabled",
            progress="none",
            report=False,
            start_from=str(source.resolve()) if source else "",
        )
        yield dataclasses.replace(config, run=run)
