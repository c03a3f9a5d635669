"""Runs from the outside: start one, or go on with one, and turn what happens into words and an exit code."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config
from purejaxrl_scale.runner import checkpoints, folders, hosts, parent, records
from purejaxrl_scale.runner.compilation import enable_cache
from purejaxrl_scale.runner.folders import RunError
from purejaxrl_scale.runner.progress import in_kernel, make_display
from purejaxrl_scale.runner.session import Session
from purejaxrl_scale.runner.signals import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, Control, supervise
from purejaxrl_scale.runner.status import Status

LOG_FILE = "run.log"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def train(config: Config, name: str) -> int:
    """Train a new run, or a population of them, and return the exit code.

    0 done, 1 failed, 75 stopped by a signal and resumable. Raises RunError where no record can be started. Its folders
    are `config.run.folder`/NAME-SEED-TIME.
    """
    source = folders.source_of(config)
    if source is not None and not checkpoints.steps(source):
        raise RunError(f"run.start_from {source} has no checkpoint that is complete")
    with hosts.own_record(config) as own:
        members = folders.create(own, name)
        return _run(own, folders.member_configs(own), name, members, members, [])


def resume(run: str | Path, changed: Mapping[str, object] | None = None) -> int:
    """Go on exactly where a run stopped, with all members of its population; the exit code is as `train`'s.

    The record is cut back to the newest checkpoint that every member has. A run that was stopped before its first
    checkpoint starts again. Raises RunError where the run cannot be read or is still going on.
    """
    members = folders.members_of(Path(run))
    configs = [config_io.replace(config, changed or {}) for config in folders.configs_of(members)]
    config = folders.together(configs)
    common = set.intersection(*(set(checkpoints.steps(member)) for member in members))
    checkpoint = max(common, default=None)
    _refuse_if_changed(members, sorted(common, reverse=True), configs)
    if checkpoint is None:
        _refuse_if_checkpoints_were_lost(members[0], config)
        words = f"{members[0]} has no checkpoint: it starts again from step 0"
    elif _is_trained(members, checkpoint, config) and _is_complete(members, checkpoint, config):
        _say_first(f"{members[0]} is finished ({config.actual_steps:,} steps): there is nothing to resume")
        return EXIT_DONE
    else:
        most = f"{'at most ' if config.adapts else ''}{config.num_outer_steps:,}"
        words = f"{members[0]} goes on after outer step {checkpoint:,} of {most}"
    with hosts.own_record(config) as own:
        records_here = members if hosts.leads() else folders.create(own, members[0].name)
        return _run(own, configs, members[0].name, records_here, members, sorted(common), words)


# What a run may change when it is resumed: neither a bit of what it learns nor the shape of its state depends on it.
_FREE_GROUPS = ("run.", "checkpoint.", "evaluation.", "devices.")
_FIXED_DEVICES = {"devices.logical_shards", "devices.exact_reduction", "devices.matmul_precision"}


def _refuse_if_changed(members: list[Path], steps: list[int], configs: list[Config]) -> None:
    """Raises RunError, naming the fields in which config.yaml is no longer what the checkpoints were saved under."""
    names = [name for name in config_io.fields() if name in _FIXED_DEVICES or not name.startswith(_FREE_GROUPS)]
    for member, config in zip(members, configs, strict=True):
        # The newest whose config can be read: they all have the same.
        saved = {step: kept for step in steps if (kept := checkpoints.config_of(member, step))}
        if not saved:
            continue
        checkpoint, saved = next(iter(saved.items()))
        if differing := config_io.differing(config_io.from_dict(saved), config, names):
            raise RunError(
                f"{member / folders.CONFIG_FILE} is not what its checkpoint {checkpoint} was saved under: "
                f"{'; '.join(differing)}. Put it back, or start a new run, with --run.start_from if need be"
            )


def _say_first(text: str) -> None:
    if hosts.leads():
        _console().print(text)


def _refuse_if_checkpoints_were_lost(member: Path, config: Config) -> None:
    lines = records.read(member / records.METRICS_FILE)
    trained = float(lines[-1].get("time/wall_seconds") or 0.0) if lines else 0.0
    if trained > config.checkpoint.every_seconds + 4 * config.run.chunk_seconds:
        raise RunError(
            f"{member} was trained for {trained:.0f} s and must have had checkpoints, but has none that is complete: "
            f"put {member / checkpoints.FOLDER} back, or start a new run"
        )


def _is_trained(members: list[Path], checkpoint: int, config: Config) -> bool:
    if not config.adapts:
        return checkpoint >= config.num_outer_steps
    # The number of outer steps is not known beforehand; the record, which may run ahead of the checkpoint, tells.
    for member in members:
        lines = records.read(member / records.METRICS_FILE)
        if not any(int(line["outer_step"] or 0) <= checkpoint and _is_last(line, config) for line in lines):
            return False
    return True


def _is_last(line: records.Line, config: Config) -> bool:
    return int(line["steps"] or 0) >= config.actual_steps


def _is_complete(members: list[Path], checkpoint: int, config: Config) -> bool:
    """Whether nothing is missing after the training: neither the last evaluation nor the report."""
    for member in members:
        if not records.is_evaluated(member, checkpoint):
            return False
        if config.run.report and not (member / "report" / "index.md").exists():
            return False
    return True


def _run(
    config: Config,
    configs: list[Config],
    title: str,
    members: list[Path],
    sources: list[Path],
    candidates: list[int],
    words: str = "",
) -> int:
    """Train; the record goes to `members`, and the newest readable of the checkpoints comes from `sources`."""
    with _sole_writer(members[0]):
        if words:
            _say_first(words)
        if enable_cache() is None:
            _say_first("the compile cache cannot be written: every start compiles anew")
        log = _log_to(members[0] / LOG_FILE)
        environment, algorithm = config.environment, config.algorithm
        levels = f" ({', '.join(environment.levels)})" if environment.levels else ""
        seeds = [one.seed for one in configs]
        who = (
            f"seed {seeds[0]}"
            if len(seeds) == 1
            else f"seeds {seeds[0]} to {seeds[-1]}"
            if seeds == list(range(seeds[0], seeds[0] + len(seeds)))
            else f"{len(seeds)} members"
        )
        status = Status(
            title=title,
            summary=f"{environment.name}{levels} · {environment.num_envs:,} environments x "
            f"{algorithm.rollout_length:,} steps · {who}",
            record=str(members[0]) + (f" and {len(members) - 1} more" if len(members) > 1 else ""),
            total_steps=config.actual_steps,
        )
        display = make_display(config.run.progress, status, members[0] / LOG_FILE)
        control = Control()
        session = Session(config, configs, members, sources, candidates, control, status, display, log)
        problem: list[str] = []

        def work() -> int:
            try:
                return session.work()
            except RunError as fault:
                problem.append(str(fault))
            except OSError as fault:
                log(traceback.format_exc())
                problem.append(_about_the_disk(fault, members[0]))
            except BaseException as fault:
                log(traceback.format_exc())
                lost = "another process of this run may have died: " if hosts.are_several() else ""
                problem.append(
                    f"{lost}{type(fault).__name__}: {str(fault)[:2000]}\nThe traceback is in {members[0] / LOG_FILE}"
                )
            return EXIT_FAILED

        def abandon(_: int) -> None:
            display.stop()
            # Not what the session has asked to be saved: that may still go on, or have failed.
            known = checkpoints.steps(members[0])
            saved = f"saved at outer step {known[-1]:,}" if known else "nothing is saved yet"
            _console().print(
                f"stopped by {control.received} at once; {saved}. Go on with: {_how_to_resume(members[0])}"
            )
            sys.stdout.flush()

        def give_up() -> None:
            display.stop()
            _console(stderr=True).print(
                f"failed: nothing was heard for {config.devices.patience_seconds:g} s "
                f"(devices.patience_seconds): another process of this run hangs. Go on with: "
                f"{_how_to_resume(sources[0])}"
            )
            parent.has_said_why()
            sys.stderr.flush()

        display.start()
        before = sys.unraisablehook
        # TensorStore's threads complain of a save that failed, once for each array; the failure itself is told below.
        sys.unraisablehook = lambda stray: log(f"{stray.err_msg or 'ignored'}: {stray.exc_value!r}")
        try:
            code = supervise(work, control, abandon, give_up, in_kernel())
        finally:
            display.stop()
            sys.unraisablehook = before
    _say(code, session, control, members[0], problem)
    return code


def _say(code: int, session: Session, control: Control, run: Path, problem: list[str]) -> None:
    if code != EXIT_FAILED and not hosts.leads():
        return
    console = _console()
    for line in session.closing_words:
        console.print(line)
    if code == EXIT_STOPPED:
        by = control.received or "a signal to another process"
        console.print(f"stopped by {by} after {session.steps:,} steps; all is saved. Go on with: {_how_to_resume(run)}")
    elif code == EXIT_FAILED:
        errors = _console(stderr=True)
        errors.print(f"failed: {problem[0] if problem else f'see {run / LOG_FILE}'}")
        if hosts.leads() and (saved := checkpoints.steps(run)):
            errors.print(f"saved at outer step {saved[-1]:,}. Go on with: {_how_to_resume(run)}")
    else:
        console.print(f"record  {run}")


def _how_to_resume(run: Path) -> str:
    return f"purejaxrl-scale resume {run}"


def _about_the_disk(fault: OSError, run: Path) -> str:
    what = f"{fault.strerror or fault}: {fault.filename or run}"
    if fault.errno in _DISK_FULL:
        return f"the disk is full ({what}). Make room, then go on"
    if fault.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the record cannot be written ({what})"
    return what


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def _log_to(path: Path):
    def log(text: str) -> None:
        # The log is there to explain failures, and must not be one: the disk may be full.
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError:
            return

    return log


class _sole_writer:
    """Keeps a second process from writing the same record. Raises RunError where there is one already."""

    def __init__(self, run: Path):
        self._run = run

    def __enter__(self) -> None:
        self._file = os.open(self._run / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            os.close(self._file)
            raise RunError(f"{self._run} is being trained by another process") from fault

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
