"""A sweep from its plan to its scores: groups are trained, failures set aside, and what is missing is said."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from purejaxrl_scale import launchers, sweep
from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.launchers import Task
from purejaxrl_scale.runner import records
from purejaxrl_scale.runner.progress import make_display
from purejaxrl_scale.runner.signals import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_STOPPED, heeded
from purejaxrl_scale.runner.status import Status, compact
from purejaxrl_scale.suggest import did_you_mean
from purejaxrl_scale.sweep import Group, Member
from purejaxrl_scale.sweep_file import SweepFile

FAILURES_FILE = "failures.jsonl"
_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_ROWS = 20
_MISSING = ("new", "begun")
_DEFAULT_METRIC = "evaluation/deterministic/mean"  # every run ends with it


def main(
    file: SweepFile,
    more: Sequence[str],
    *,
    dry_run: bool,
    memory: int | None = None,
) -> int:
    """Run a sweep, or only show its plan; the exit code is as `train`'s, 1 where a member has failed."""
    _check_metric(file.metric)
    members = sweep.members(file, more)
    fits = _Memory(memory)
    groups = sweep.groups(members, fits)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        console.print(_plan(file, groups, fits))
        console.print(_totals(groups))
        return EXIT_DONE
    folder = members[0].folder.parent
    with sweep.only_one(folder):
        for group in groups:
            sweep.create(group)
        console.print(f"sweep {file.name}: {_totals(groups)}")
        code = _Sweep(file, members, folder).run(groups)
        if code == EXIT_STOPPED:
            left = sum(sweep.state_of(member) in _MISSING for member in members)
            console.print(f"stopped; all is saved. The same command goes on with the {left} that are left")
            return code
        for line in report(file, members):
            console.print(line)
        console.print(f"record  {folder}")
    return code


class _Memory:
    """Whether a population fits the devices that a group is given."""

    def __init__(self, memory: int | None):
        self._memory, self._planners = memory, {}

    def __call__(self, config: Config) -> bool:
        return self.needs(config) <= self._available(config)

    def needs(self, config: Config) -> int:
        """Bytes on each device."""
        import jax

        from purejaxrl_scale.runner.memory import Planner, on_accelerator

        key = repr((config.environment, config.devices.count))
        if key not in self._planners:
            self._planners[key] = Planner(config, config.devices.count or jax.device_count())
        planner = self._planners[key]
        if launchers.gpus():
            return planner.total(on_accelerator(config))
        return planner.total(config) if self._memory is not None else planner.resident(config)

    def _available(self, config: Config) -> int:
        import jax

        from purejaxrl_scale.runner.memory import of_device

        if self._memory is not None:
            return self._memory
        if launchers.gpus():
            return int(0.75 * launchers.gpu_memory())  # what JAX takes of a GPU unless told otherwise
        return of_device(config.devices.count or jax.device_count())


def _check_metric(name: str | None) -> None:
    known = [
        full.replace("MODE", mode)
        for full in records.METRICS
        for mode in (records.MODES if "MODE" in full else ("",))
        if "NAME" not in full and "LEVELS" not in full
    ]
    if name is not None and name not in known and name.removesuffix("_se") not in known:
        raise ConfigError([f"no run has a metric {name}: {did_you_mean(name, known)}"])


def _totals(groups: Sequence[Group]) -> str:
    runs = sum(len(group.members) for group in groups)
    programs = len({(sweep.program_key(group.config), len(group.members)) for group in groups})
    steps = sum(group.total_steps for group in groups)
    parts = [_count(runs, "run"), "in", _count(len(groups), "group") + ",", _count(programs, "program"), "to compile,"]
    return " ".join([*parts, f"{steps:,} environment steps in all"])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _plan(file: SweepFile, groups: Sequence[Group], fits: _Memory) -> Table:
    from purejaxrl_scale.runner.memory import in_words

    table = Table(title=f"sweep {file.name}: what trains at once")
    for heading in ("group", "runs", "what varies", "state", "steps", "memory"):
        table.add_column(
            heading, justify="right" if heading in ("runs", "steps", "memory") else "left", overflow="fold"
        )
    shown = groups[:_MOST_ROWS]
    for number, group in enumerate(shown, 1):
        states = [sweep.state_of(member) for member in group.members]
        summary = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        table.add_row(
            str(number),
            str(len(group.members)),
            _varies(group),
            summary,
            f"{group.total_steps:,}",
            in_words(fits.needs(group.config)),
        )
    if len(groups) > len(shown):
        table.add_row("...", "", f"and {len(groups) - len(shown)} groups more", "", "", "")
    return table


def _varies(group: Group) -> str:
    parts = []
    for name in group.members[0].overrides:
        values = list(dict.fromkeys(str(member.overrides[name]) for member in group.members))
        shown = ", ".join(values[:6]) + (f", ... ({len(values)})" if len(values) > 6 else "")
        parts.append(f"{name} {shown}")
    return "\n".join(parts)


class _Sweep:
    """Groups on their way through a launcher, watched by their records."""

    def __init__(self, file: SweepFile, members: list[Member], folder: Path):
        self._members, self._folder = members, folder
        self._status = Status(
            title=f"sweep {file.name}",
            summary=f"{len(members):,} runs of {members[0].config.environment.name}",
            record=str(folder),
            total_steps=sum(member.config.actual_steps for member in members),
        )
        self._display = make_display(members[0].config.run.progress, self._status, folder / sweep.LOG_FILE)
        self._stopped = False
        self._failures: dict[str, str] = {}
        self._began, self._steps_before = time.monotonic(), 0

    def run(self, groups: list[Group]) -> int:
        """Train what is missing. A group that fails is taken apart, and each of its members goes on alone."""
        missing = [group for group in groups if any(sweep.state_of(one) in _MISSING for one in group.members)]
        self._steps_before = self._look()

        def stop(number: int, _: FrameType | None) -> None:
            self._stopped = True

        before = {number: signal.signal(number, stop) for number in heeded()}
        self._display.start()
        try:
            apart = self._train(missing)
            if not self._stopped:
                self._train([single for group in apart for single in sweep.dissolve(group)])
        finally:
            self._display.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._stopped:
            return EXIT_STOPPED
        diverged = [member for member in self._members if sweep.state_of(member) == "diverged"]
        self._failures |= {member.folder.name: "diverged: the loss is not finite" for member in diverged}
        (self._folder / FAILURES_FILE).unlink(missing_ok=True)
        failures = ({"run": name, "why": why} for name, why in self._failures.items())
        records.append(self._folder / FAILURES_FILE, failures)
        return EXIT_FAILED if self._failures else EXIT_DONE

    def _train(self, groups: list[Group]) -> list[Group]:
        """Those of the groups that failed and can be taken apart."""
        launcher = launchers.Local([Task([one.folder for one in group.members], _log(group)) for group in groups])
        asked, told = False, set[int]()
        while True:
            codes = launcher.poll()
            if self._stopped and not asked:
                asked = True
                launcher.stop()
                self._status.enter("saving")
            for index in {index for index, code in enumerate(codes) if code is not None} - told:
                told.add(index)
                self._tell(groups[index], codes[index])
            self._refresh()
            if all(code is not None for code in codes) or (asked and not launcher.running):
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        apart = []
        for group, code in zip(groups, codes, strict=True):
            # A population that was refused, as while another process trains it, must stay whole.
            if len(group.members) > 1 and code not in (None, EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED):
                apart.append(group)
            elif code not in (None, EXIT_DONE, EXIT_STOPPED):
                self._failures |= {member.folder.name: _why(group) for member in group.members}
        return apart

    def _tell(self, group: Group, code: int | None) -> None:
        said = {EXIT_DONE: "done", EXIT_STOPPED: "stopped"}.get(code or 0, f"failed: {_why(group)}")
        self._display.note(f"{_name(group)}: {said}")

    def _refresh(self) -> None:
        status = self._status
        status.steps = self._look()
        seconds = time.monotonic() - self._began
        rate = (status.steps - self._steps_before) / max(seconds, 1e-9)
        if rate > 0:
            status.steps_per_second, status.seconds_left = rate, (status.total_steps - status.steps) / rate
        self._display.refresh()

    def _look(self) -> int:
        return sum(sweep.steps_of(member) for member in self._members)


def _name(group: Group) -> str:
    others = len(group.members) - 1
    return group.folder.name + (f" and {others} more" if others else "")


def _log(group: Group) -> Path:
    return group.folder / "launcher.log"


def _why(group: Group) -> str:
    """The last thing that a failed group said."""
    log = _log(group)
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    said = [line for line in lines if line.startswith("failed")] or [line for line in lines if line]
    return said[-1].removeprefix("failed: ")[:500] if said else "it said nothing"


def report(file: SweepFile, members: Sequence[Member]) -> list[Any]:
    """The best combinations by the sweep's metric, means over their seeds; and what is amiss, in sentences."""
    lines: list[Any] = []
    states = [sweep.state_of(member) for member in members]
    words = {"diverged": "diverged: the loss is not finite", "begun": "not finished", "new": "never started"}
    for state, word in words.items():
        if some := [member.folder.name for member, its in zip(members, states, strict=True) if its == state]:
            lines.append(f"{len(some)} {word}: {', '.join(some[:5])}{' ...' if len(some) > 5 else ''}")
    name = file.metric or _DEFAULT_METRIC
    scores = _scores(members, name)
    if not scores:
        return [*lines, f"no run has a metric {name} yet"]
    best = sorted(scores, key=lambda label: np.mean(scores[label]), reverse=file.maximise)
    table = Table(title=f"{name}, the best first")
    table.add_column("combination", overflow="fold")
    for heading in ("mean", "seeds", "lowest", "highest"):
        table.add_column(heading, justify="right")
    for label in best[:_MOST_ROWS]:
        values = scores[label]
        table.add_row(
            label, compact(float(np.mean(values))), str(len(values)), compact(min(values)), compact(max(values))
        )
    return [*lines, table]


def _scores(members: Sequence[Member], name: str) -> dict[str, list[float]]:
    """Last values of a metric by what sets runs apart, their seed aside."""
    scores: dict[str, list[float]] = {}
    for member in members:
        value = last_value(member.folder, name)
        if value is not None:
            apart = [f"{field} {value_}" for field, value_ in member.overrides.items() if field != "seed"]
            scores.setdefault("\n".join(apart) or "all", []).append(value)
    return scores


def last_value(run: Path, name: str) -> float | None:
    """The last value of a metric in a run's record; none where it has none."""
    if name.startswith("evaluation/"):
        _, mode, column = name.split("/", 2)
        lines = [line for line in records.evaluations(run) if line["mode"] == mode]
        name = column
    else:
        lines = records.read(run / records.METRICS_FILE)
    values = [float(value) for line in lines if isinstance(value := line.get(name), int | float)]
    return values[-1] if values else None
