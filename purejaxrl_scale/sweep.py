"""A sweep: combinations that differ only in traced numbers and seeds train as one population, the rest apart.

Every member is a run of its own in the sweep's folder, written down before anything starts: to train a group is to
resume it, and a sweep that is started again goes on with what is missing.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from purejaxrl_scale import config_io
from purejaxrl_scale.arguments import choose
from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.runner import folders, records
from purejaxrl_scale.runner.folders import CONFIG_FILE, POPULATION_FILE, RunError
from purejaxrl_scale.sweep_file import SweepFile

LOG_FILE = "sweep.log"
_LONGEST_NAME = 120
_MOST_FAULTS = 10
Fits = Callable[[Config], bool]


class Member(NamedTuple):
    """One run of a sweep."""

    folder: Path
    config: Config
    overrides: dict[str, object]  # what sets it apart


class Group(NamedTuple):
    """Members that are trained at once."""

    members: list[Member]

    @property
    def folder(self) -> Path:
        """The run to resume."""
        return self.members[0].folder

    @property
    def config(self) -> Config:
        return folders.together([member.config for member in self.members])

    @property
    def total_steps(self) -> int:
        return sum(member.config.actual_steps for member in self.members)


def members(sweep: SweepFile, more: Sequence[str] = ()) -> list[Member]:
    """The runs of a sweep, in order. `more` are flags of the command line, which hold for all.

    Raises ConfigError where combinations are illegal, each fault once.
    """
    found: dict[Path, Member] = {}
    faults: dict[str, str] = {}
    for overrides in sweep.combinations:
        flags = [f"--{name}={_text(value)}" for name, value in overrides.items()]
        try:
            choice = choose([*sweep.arguments, *more, *flags], "sweep")
        except ConfigError as fault:
            for problem in fault.problems:
                faults.setdefault(problem, _label(overrides))
            continue
        if choice is None:
            raise ConfigError(["a sweep's command must train: it asks for help"])
        for one in _seeds(choice.config, overrides):
            member = _place(one, sweep)
            found.setdefault(member.folder, member)
    if faults:
        shown = [f"{problem} (in {label})" for problem, label in list(faults.items())[:_MOST_FAULTS]]
        hidden = len(faults) - len(shown)
        raise ConfigError(shown + ([f"and {hidden} more"] if hidden else []))
    if any(member.config.devices.coordinator for member in found.values()):
        raise ConfigError(["a sweep takes no devices.coordinator: its runs are trained one a process"])
    return list(found.values())


def _seeds(config: Config, overrides: dict[str, object]) -> Iterator[tuple[Config, dict[str, object]]]:
    """A member for each seed of a config."""
    for own in folders.member_configs(config):
        yield own, {name: value for name, value in overrides.items() if name != "seeds"} | {"seed": own.seed}


def _place(one: tuple[Config, dict[str, object]], sweep: SweepFile) -> Member:
    config, overrides = one
    folder, label = Path(config.run.folder) / folders.safe(sweep.name), _label(overrides)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, folder=str(folder), name=label))
    return Member(folder / label, config, overrides)


def _label(overrides: dict[str, object]) -> str:
    """What sets a member apart, as the name of a folder: learning_rate-0.001_seed-3."""
    last = [name.rpartition(".")[2] for name in overrides]
    names = [short if last.count(short) == 1 else full for short, full in zip(last, overrides, strict=True)]
    whole = "_".join(f"{name}-{_text(value)}" for name, value in zip(names, overrides.values(), strict=True))
    label = folders.safe(whole)
    if label != whole or len(label) > _LONGEST_NAME:
        # Two values that look alike as a folder's name must not share one.
        label = f"{label[:_LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return label


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def groups(members: Sequence[Member], fits: Fits) -> list[Group]:
    """Members by what trains them at once: those of a population that was begun, and new ones by what they share.

    A population that does not fit the memory is split into the fewest equal parts that do. Raises ConfigError where a
    run that is there was started under another config, or a single member does not fit.
    """
    begun: dict[tuple[Path, ...], list[Member]] = {}
    fresh: dict[str, list[Member]] = {}
    faults = []
    for member in members:
        if population := _population(member):
            faults += _changed(member)
            begun.setdefault(population, []).append(member)
        else:
            key = program_key(member.config)
            if member.config.devices.exact_reduction:
                key += str(member.folder)  # logical shards are taken in turns, which no population can be
            fresh.setdefault(key, []).append(member)
    if faults:
        raise ConfigError(faults)
    return [Group(some) for some in begun.values()] + [
        group for together in fresh.values() for group in _split(together, fits)
    ]


def _population(member: Member) -> tuple[Path, ...]:
    """The folders that the member trains with; none where it was not begun, nor its folders made to their end."""
    if not (member.folder / CONFIG_FILE).is_file():
        return ()
    try:
        return tuple(folders.members_of(member.folder))
    except RunError:
        if (member.folder / records.METRICS_FILE).exists():
            raise
        return ()


def program_key(config: Config) -> str:
    """What two configs have in common if one population can train both."""
    return json.dumps(config_io.compiled(config))


def _changed(member: Member) -> list[str]:
    before = config_io.load(member.folder / CONFIG_FILE)
    names = [name for name in config_io.fields() if not name.startswith(("run.", "devices.count", "checkpoint."))]
    return [
        f"{member.folder} was started under another config: {clause}; give the sweep another name, or take that away"
        for clause in config_io.differing(before, member.config, names)
    ]


def _split(members: list[Member], fits: Fits) -> Iterator[Group]:
    for parts in range(1, len(members) + 1):
        size = math.ceil(len(members) / parts)
        if fits(Group(members[:size]).config):
            for start in range(0, len(members), size):
                yield Group(members[start : start + size])
            return
    raise ConfigError([f"{members[0].folder.name} does not fit the memory of this machine even alone: see `plan`"])


def create(group: Group) -> None:
    """The folders of a group's runs, unless they are there. Raises RunError where they cannot be written."""
    paths = [member.folder for member in group.members]
    if all(_population(member) for member in group.members):
        return
    try:
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
            (path / POPULATION_FILE).unlink(missing_ok=True)
        folders.fill(paths, [member.config for member in group.members])
    except OSError as fault:
        raise RunError(f"{paths[0]} cannot be written: {fault.strerror}") from fault


def dissolve(group: Group) -> list[Group]:
    """The members of a group that failed, each to go on alone from what was saved of it."""
    for member in group.members:
        (member.folder / POPULATION_FILE).unlink(missing_ok=True)
    return [Group([member]) for member in group.members]


def state_of(member: Member) -> str:
    """done, diverged, begun or new, by the record."""
    lines = records.read(member.folder / records.METRICS_FILE)
    if not lines:
        return "new"
    if int(lines[-1]["steps"] or 0) < member.config.actual_steps:
        return "begun"
    if lines[-1].get("loss/total", 0.0) is None:
        return "diverged"
    return "done" if records.is_evaluated(member.folder, int(lines[-1]["outer_step"] or 0)) else "begun"


def steps_of(member: Member) -> int:
    """Environment steps in the record, from its last whole line."""
    line = records.last_line(member.folder / records.METRICS_FILE)
    return int(line.get("steps") or 0)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps a second process from running the same sweep. Raises RunError where one does."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        raise RunError(f"{folder} is being trained by another process") from fault
    else:
        yield
    finally:
        os.close(lock)
