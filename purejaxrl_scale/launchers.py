"""Where the groups of a sweep are trained: processes of this machine.

A launcher is made with all its tasks. `poll()` starts what can start and gives an exit code for each, none while it
waits or runs; `stop()` asks what runs to save and end. No JAX.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """A group of runs to train."""

    runs: list[Path]  # all of the group; resuming the first resumes them all
    log: Path  # where what it prints goes


def command(task: Task) -> list[str]:
    """What trains a task."""
    return [sys.executable, "-m", "purejaxrl_scale", "resume", str(task.runs[0]), "--run.progress", "none"]


def gpus() -> list[str]:
    """The GPUs of this machine that may be used, by the names that CUDA_VISIBLE_DEVICES takes; none on a CPU."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [
            name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")
        ]
    return [str(index) for index in range(len(_ask_driver("name")))]


def gpu_memory() -> int:
    """Bytes of memory of the smallest GPU."""
    return min((int(megabytes) << 20 for megabytes in _ask_driver("memory.total")), default=0)


def _ask_driver(what: str) -> list[str]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.split("\n")[:-1]


class Local:
    """One process after the other; where there are several GPUs, one on each of them at the same time."""

    def __init__(self, tasks: Sequence[Task]):
        self._waiting = list(enumerate(tasks))
        self._free: list[str | None] = list(gpus()) or [None]
        self._running: dict[int, tuple[subprocess.Popen, str | None]] = {}
        self._codes: list[int | None] = [None] * len(tasks)

    def poll(self) -> list[int | None]:
        """Exit codes; starts the next where a GPU, or the CPU, is free."""
        for index, (process, device) in list(self._running.items()):
            if (code := process.poll()) is not None:
                self._codes[index] = code
                self._free.append(device)
                del self._running[index]
        while self._waiting and self._free:
            (index, task), device = self._waiting.pop(0), self._free.pop(0)
            environment = dict(os.environ) if device is None else {**os.environ, "CUDA_VISIBLE_DEVICES": device}
            with task.log.open("ab") as log:
                # In a session of its own: a terminal would send Ctrl-C to it too, and a second signal ends a run.
                process = subprocess.Popen(
                    command(task),
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
            self._running[index] = process, device
        return list(self._codes)

    def stop(self) -> None:
        """Start nothing more, and ask what runs to save and end."""
        self._waiting.clear()
        for process, _ in self._running.values():
            process.send_signal(signal.SIGTERM)

    @property
    def running(self) -> bool:
        """Whether any task runs."""
        return bool(self._running)
