"""The knobs of the run around the training: evaluation, checkpoints, devices, records. No JAX.

`purejaxrl_scale.config` is their public door.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EvaluationConfig:
    """Scores on episodes apart from training; it changes no training bit."""

    every_steps: int = 0
    """Environment steps between evaluations; 0 for one at the end only."""
    num_envs: int = 128
    """Parallel evaluation environments."""
    episodes: int = 1
    """Episodes of each evaluation environment, a fixed quota so that short ones are not favoured."""
    max_steps: int = 0
    """Steps after which an unfinished episode is given up and counted as such; 0 for twice the time limit."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving the training state."""

    every_seconds: float = 60.0
    """Seconds between checkpoints."""
    keep: int = 2
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept beside them, by the mean return of the episodes that ended since the one before; 0 for
    none."""


@dataclass(frozen=True)
class DevicesConfig:
    """Where the computation runs."""

    count: int = 0
    """Devices to shard environments over; 0 for all there are."""
    logical_shards: int = 8
    """Groups of environments in which samples are shuffled; the number of devices must divide it."""
    coordinator: str = ""
    """Several processes: host:port at which process 0 is found, or auto for what SLURM, Open MPI or a TPU pod tell;
    empty for one process."""
    process: int = 0
    """Several processes: which one this is, from 0."""
    processes: int = 1
    """Several processes: how many there are."""
    patience_seconds: float = 600.0
    """Several processes: seconds that a chunk, or what is between two, may take before the run ends, since another
    process may hang."""
    require_gpu: bool = False
    """Refuse to run on a CPU."""
    exact_reduction: bool = False
    """Compute each logical shard apart and add up in a fixed order: the same bits on any number of devices; slower."""
    matmul_precision: Literal["default", "high", "highest"] = "default"
    """Precision of float32 matrix products on accelerators."""


@dataclass(frozen=True)
class RunConfig:
    """The run around the training."""

    folder: str = "runs"
    """Where run records are written."""
    name: str = ""
    """The run's name; empty for the experiment's."""
    wandb: Literal["offline", "online", "disabled"] = "offline"
    """Mirror the record to Weights & Biases; offline needs neither network nor login."""
    wandb_project: str = "purejaxrl_scale"
    """Project in Weights & Biases."""
    progress: Literal["auto", "live", "plain", "none"] = "auto"
    """The display: live in a terminal, plain lines elsewhere, one updating line in Jupyter."""
    chunk_seconds: float = 5.0
    """Seconds of training in one jitted call; between calls the run is logged and signals are answered."""
    log_every: int = 1
    """Outer steps to one line of the record."""
    profile: bool = False
    """Write a jax.profiler trace of one chunk."""
    report: bool = True
    """Draw the figure and film the agent at the end."""
    start_from: str = ""
    """Start with what another run has learnt: its folder. Environments, steps and schedules begin anew."""
