"""A mirror of the record in Weights & Biases: one writer, in a thread of its own, that reads the record's files.

It reads from the first line, so after a resume the mirror again holds everything, in order. Nothing it does can
disturb the training: it is never waited for longer than a few seconds, it prints nothing, and if it fails the reason
stands in the run's log and `metrics.jsonl` is as complete as ever.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from purejaxrl_scale.runner.records import EVALUATIONS_FILE, METRICS_FILE

_SECONDS_BETWEEN_READS = 2.0
_PLACE = ("steps", "outer_step", "mode")


class WandbMirror:
    """Mirrors one run's folder until it is closed."""

    def __init__(
        self,
        run: Path,
        mode: str,
        project: str,
        config: dict[str, Any],
        log: Callable[[str], None],
        group: str = "",
    ):
        self._run, self._mode, self._project, self._config = run, mode, project, config
        self._log, self._group = log, group
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if mode != "disabled":
            # A daemon: a hanging upload must not keep the process alive.
            self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
            self._thread.start()

    def close(self, patience: float = 15.0) -> None:
        """Mirror what is left. After `patience` seconds the mirror is given up; the record is not."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._log(f"W&B did not finish within {patience:.0f} s and was left behind")

    def _work(self) -> None:
        try:
            self._mirror()
        except BaseException as fault:  # wandb raises SystemExit and kinds of its own too
            self._log(f"W&B stopped ({type(fault).__name__}: {fault}); the record in {self._run} is complete")

    def _mirror(self) -> None:
        # Not only the run's own setting: W&B also prints while it looks for a login.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        mode = self._mode
        if mode == "online" and not _has_login(wandb, self._log):
            self._log("W&B has no login here and mirrors offline")
            mode = "offline"
        try:
            run = self._start(wandb, mode)
        except Exception as fault:
            if mode == "offline":
                raise
            self._log(f"W&B cannot be reached ({type(fault).__name__}) and mirrors offline")
            mode = "offline"
            run = self._start(wandb, mode)
        run.define_metric("steps")
        run.define_metric("*", step_metric="steps")
        run.define_metric("evaluation/*", step_metric="evaluation/steps")
        # Lines up to here are on the server already, and equal: a resumed run repeats itself exactly.
        step = run.step if mode == "online" else 0
        metrics, evaluations = (
            _Tail(self._run / METRICS_FILE),
            _Tail(self._run / EVALUATIONS_FILE),
        )
        while True:
            closing = self._closing.is_set()
            # W&B drops what is logged at a step behind its last one; evaluations have an axis of their own.
            for line in metrics.lines():
                if line["outer_step"] >= step:
                    step = line["outer_step"]
                    run.log(line, step=step)
            for line in evaluations.lines():
                run.log(_named_evaluation(line), step=step)
            if closing:
                break
            self._closing.wait(_SECONDS_BETWEEN_READS)
        run.finish()

    def _start(self, wandb: Any, mode: str) -> Any:
        return wandb.init(
            mode=mode,
            dir=str(self._run),
            project=self._project,
            name=self._run.name,
            id=self._run.name[-120:],
            group=self._group or None,
            resume="allow" if mode == "online" else None,
            config=self._config,
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                init_timeout=30,
            ),
        )


def _has_login(wandb: Any, log: Callable[[str], None]) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # an older W&B, which has no such argument
        return bool(wandb.api.api_key)
    except Exception as fault:
        log(f"W&B's login fails ({type(fault).__name__}: {fault})")
        return False


class _Tail:
    """New complete lines of a file that grows."""

    def __init__(self, path: Path):
        self._path, self._offset = path, 0

    def lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = (json.loads(line) for line in complete.splitlines())
        return [{name: value for name, value in line.items() if value is not None} for line in lines]


def _named_evaluation(line: dict[str, Any]) -> dict[str, Any]:
    if "protocol" in line:
        named = {f"evaluation/{line['protocol']}/{line['levels']}/{line['size']}": line["solve_rate"]}
    else:
        named = {f"evaluation/{line['mode']}/{name}": value for name, value in line.items() if name not in _PLACE}
    return {"evaluation/steps": line["steps"], **named}
