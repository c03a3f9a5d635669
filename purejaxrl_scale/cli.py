"""The commands. Nothing here imports JAX before a command needs it: help and refusals answer at once.

Exit codes: 0 done, 1 failed, 2 refused before starting, 75 stopped by a signal and resumable.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from purejaxrl_scale import config_io, streams
from purejaxrl_scale.arguments import PROGRAM, Choice, check_devices, choose, find_run, no_arguments, one_run
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.config_io import ConfigError, Field, override
from purejaxrl_scale.environments.kinetix_catalogue import protocol_problem
from purejaxrl_scale.flags import read_flags
from purejaxrl_scale.header import header
from purejaxrl_scale.runner import parent
from purejaxrl_scale.runner.folders import CONFIG_FILE, RunError
from purejaxrl_scale.suggest import did_you_mean

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 75


def program() -> int:
    """The command of this process: once it has ended its exit code stands, whatever signal comes in Python's shutdown.

    JAX takes a good part of a second to go, and a run that is complete would otherwise seem to have been killed.
    """
    code = main()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    streams.open_closed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a compile-cache hit otherwise prints pages of red
    if "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        # With fewer threads than CPU devices a data-parallel loop can deadlock; with one device more threads than cores
        # only slow it down, to two thirds of its speed on two cores.
        os.environ.setdefault("NPROC", "16")
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    try:
        return _dispatch(command, rest)
    except ConfigError as fault:
        return _refuse(fault.problems)
    except RunError as fault:
        return _refuse([str(fault)])
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as fault:
        where = f": {fault.filename}" if fault.filename else " (the output, or a file that was to be read or written)"
        print(f"{PROGRAM}: failed: {fault.strerror or fault}{where}", file=sys.stderr)
        return FAILED


def _dispatch(command: str, rest: list[str]) -> int:
    if command in {"", "-h", "--help", "help"}:
        print(_overview())
        return DONE if command else REFUSED
    if command == "--version":
        from importlib.metadata import version

        print(f"{PROGRAM} {version('purejaxrl-scale')}")
        return DONE
    if command not in COMMANDS:
        raise ConfigError([f"there is no command {command!r}: {did_you_mean(command, COMMANDS)}"])
    usage, summary, action = COMMANDS[command]
    if action not in (_train, _bench, _plan) and {"-h", "--help"} & set(rest):
        print(f"usage: {PROGRAM} {command} {usage}".rstrip() + f"\n\n{summary}")
        return DONE
    return action(rest)


def _train(arguments: list[str]) -> int:
    chosen = choose(arguments, "train")
    if chosen is None:
        return DONE
    experiment, config = chosen.experiment, chosen.config
    if config.devices.coordinator and not parent.is_child():
        return parent.run_below(["train", *arguments])
    with _ending_at_a_signal(), streams.unfailing():
        if not config.devices.coordinator:
            _print_header(chosen)
        leads = _joined(config)
        if leads and config.devices.coordinator:
            _print_header(chosen)
        check_devices(config)
        needs = _check_memory(config)
        if leads:
            print(f"{'memory':13}{needs}")
        from purejaxrl_scale.runner import runner

        return _left(config, runner.train(config, config.run.name or experiment.name))


def _joined(config: Config) -> bool:
    """Join the other processes of the run, if there are any; whether this one leads them."""
    if not config.devices.coordinator:
        return True
    from purejaxrl_scale.runner import hosts

    hosts.join(config.devices)
    return hosts.leads()


def _left(config: Config, code: int) -> int:
    """The exit code; where a run on several processes has failed, the end of this one, without waiting for others."""
    if config.devices.coordinator and code == FAILED:
        parent.has_said_why()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@contextlib.contextmanager
def _ending_at_a_signal() -> Iterator[None]:
    """While the runner does not answer signals, end at once: JAX's import can swallow a KeyboardInterrupt."""

    def end(number: int, frame: FrameType | None) -> None:
        # A progress bar may have hidden the cursor.
        os.write(2, b"\x1b[?25h" * os.isatty(2) + b"stopped by a signal\n")
        os._exit(STOPPED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bench(arguments: list[str]) -> int:
    chosen = choose(arguments, "bench", BENCH_OPTIONS)
    if chosen is None:
        return DONE
    options = chosen.options
    seconds = options.get("seconds", 5.0)
    if seconds <= 0:
        raise ConfigError([f"--seconds must be greater than 0: it is {seconds:g}"])
    for comparison in ("textbook", "unmonitored"):
        if options.get(comparison) and chosen.config.adapts:
            raise ConfigError(
                [f"--{comparison} needs rollouts of one length: set algorithm.adaptive_batch.driver none"]
            )
    output = Path(options["output"]) if options.get("output") else None
    if options.get("devices"):
        counts = _device_counts(options["devices"])
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(max(counts)))
        os.environ.setdefault("NPROC", str(max(16, 2 * max(counts))))
        from purejaxrl_scale import bench_devices

        largest = bench_devices.scaled(chosen.config, max(counts))
        if faults := problems(largest):
            raise ConfigError(faults)
        check_devices(largest)
        return bench_devices.main(chosen.config, chosen.experiment.name, counts, seconds=seconds, output=output)
    check_devices(chosen.config)
    from purejaxrl_scale import bench

    return bench.main(
        chosen.config,
        chosen.experiment.name,
        textbook=options.get("textbook", False),
        unmonitored=options.get("unmonitored", False),
        seconds=seconds,
        output=output,
    )


def _device_counts(text: str) -> list[int]:
    counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(counts) or sorted(set(counts)) != counts:
        raise ConfigError([f"--devices takes numbers of devices in rising order, as in 1,2,4,8: it is {text!r}"])
    return counts


def _resume(arguments: list[str]) -> int:
    named = list(takewhile(lambda word: not word.startswith("-"), arguments))
    flags = read_flags(arguments[len(named) :], ())
    fixed = sorted(set(flags.overrides) - set(RESUME_FIELDS))
    faults = [f"{name} cannot change when a run is resumed: {', '.join(RESUME_FIELDS)} can" for name in fixed]
    if flags.faults + faults:
        raise ConfigError(flags.faults + faults)
    run = one_run(named, "resume")
    config, faults = override(config_io.load(run / CONFIG_FILE), flags.overrides)
    if faults := faults or problems(config):
        raise ConfigError(faults)
    if config.devices.coordinator and not parent.is_child():
        return parent.run_below(["resume", *arguments])
    with _ending_at_a_signal(), streams.unfailing():
        _joined(config)
        check_devices(config)
        _check_memory(config)
        from purejaxrl_scale.runner import runner

        return _left(config, runner.resume(run, flags.overrides))


def _plan(arguments: list[str]) -> int:
    chosen = choose(arguments, "plan", PLAN_OPTIONS)
    if chosen is None:
        return DONE
    from purejaxrl_scale import plan

    options = chosen.options
    try:
        memory = plan.read_size(options["memory"]) if options.get("memory") else None
    except ValueError as fault:
        raise ConfigError([f"--memory: {fault}"]) from None
    return plan.main(
        chosen.config, chosen.experiment.name, memory=memory, accelerator=options.get("accelerator", False)
    )


def _check_memory(config: Config) -> str:
    """How much of the devices of this machine a run needs; ConfigError where they cannot hold it."""
    from purejaxrl_scale import plan

    return plan.check(config)


def _evaluate(arguments: list[str]) -> int:
    run, options = _run_and_options(arguments, "evaluate", (CHECKPOINT, PROTOCOL))
    which = options.get("checkpoint", "newest")
    if "protocol" not in options:
        from purejaxrl_scale.runner import evaluation

        return evaluation.main(run, which)
    if options["protocol"] != "kinetix":
        raise ConfigError([f"--protocol takes kinetix, the only one there is: it is {options['protocol']!r}"])
    if fault := protocol_problem(config_io.load(run / CONFIG_FILE).environment):
        raise ConfigError([fault])
    with _ending_at_a_signal():
        from purejaxrl_scale.runner import protocol

        return protocol.main(run, which)


def _render(arguments: list[str]) -> int:
    run, options = _run_and_options(arguments, "render", (CHECKPOINT,))
    from purejaxrl_scale.runner import video

    return video.main(run, options.get("checkpoint", "newest"))


def _run_and_options(arguments: list[str], command: str, known: tuple[Field, ...]) -> tuple[Path, dict[str, Any]]:
    named = list(takewhile(lambda word: not word.startswith("-"), arguments))
    flags = read_flags(arguments[len(named) :], known)
    faults = flags.faults + [f"{command} takes no --{name}" for name in flags.overrides]
    which = flags.options.get("checkpoint", "newest")
    if which not in ("newest", "best"):
        faults.append(f"--checkpoint takes newest or best: it is {which!r}")
    if faults:
        raise ConfigError(faults)
    return one_run(named, command), flags.options


def _report(arguments: list[str]) -> int:
    if not arguments:
        raise ConfigError(["report needs at least one run: a folder, a name in runs/, or latest"])
    runs = [find_run(argument) for argument in arguments]
    from purejaxrl_scale.analysis import report

    return report.main(runs)


def _sweep(arguments: list[str]) -> int:
    with _ending_at_a_signal(), streams.unfailing():
        from purejaxrl_scale import sweep_command

        return sweep_command.main(arguments)


def _list(arguments: list[str]) -> int:
    no_arguments(arguments, "list")
    from purejaxrl_scale import listing

    listing.print_experiments_and_environments()
    return DONE


def _doctor(arguments: list[str]) -> int:
    no_arguments(arguments, "doctor")
    from purejaxrl_scale import doctor

    return DONE if doctor.examine() else FAILED


RESUME_FIELDS = (
    "devices.coordinator",
    "devices.count",
    "devices.patience_seconds",
    "devices.process",
    "devices.processes",
    "run.progress",
)
CHECKPOINT = Field("checkpoint", str, traced=False)
PROTOCOL = Field("protocol", str, traced=False)
BENCH_OPTIONS = {
    Field("textbook", bool, traced=False): "also measure the textbook shuffle: a permutation array and a copy",
    Field("unmonitored", bool, traced=False): "also measure training with every monitor off",
    Field(
        "devices", str, traced=False
    ): "weak scaling instead: training on each of these numbers of devices, as 1,2,4,8",
    Field("seconds", float, traced=False): "time to measure each way for (default: 5)",
    Field("output", str, traced=False): "append the table to this file, as JSON lines",
}

PLAN_OPTIONS = {
    Field("memory", str, traced=False): "memory of each device, as 80GB (default: this machine's)",
    Field("accelerator", bool, traced=False): "plan as on a GPU, which takes a minibatch at once, and not as on a CPU",
}

Action = Callable[[list[str]], int]
COMMANDS: dict[str, tuple[str, str, Action]] = {
    "train": ("[EXPERIMENT] [--field value ...]", "Train an agent; without a name, the quickstart.", _train),
    "resume": ("RUN [--devices.* value ...]", "Go on exactly where a run stopped.", _resume),
    "evaluate": (
        "RUN [--checkpoint best] [--protocol kinetix]",
        "Score a run's agent on a fixed quota of episodes, or on Kinetix's hand-made and random levels.",
        _evaluate,
    ),
    "render": ("RUN [--checkpoint best]", "Film a run's agent.", _render),
    "report": ("RUN...", "Draw figures and a summary page of runs.", _report),
    "sweep": (
        "FILE [--dry-run] [--memory SIZE] [--field value ...]",
        "Train the combinations of a sweep file; started again, it goes on with what is missing.",
        _sweep,
    ),
    "bench": ("[EXPERIMENT] [--field value ...]", "Measure steps a second: environment, + policy, + learning.", _bench),
    "plan": ("[EXPERIMENT] [--field value ...]", "Show what memory a run needs, without compiling it.", _plan),
    "list": ("", "List experiments and environments.", _list),
    "doctor": ("", "Show versions, devices, and what is missing.", _doctor),
}


def _overview() -> str:
    heads = {command: f"{command} {usage}" for command, (usage, _, _) in COMMANDS.items()}
    width = max(map(len, heads.values()))
    rows = [f"  {heads[command]:{width}}  {summary}" for command, (_, summary, _) in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND ...",
            "",
            *rows,
            "",
            "EXPERIMENT is a name from `list` or a Python file of your own;",
            "RUN is a folder, a name in runs/, or latest.",
            f"`{PROGRAM} train EXPERIMENT --help` shows every field with its default in that experiment.",
        ]
    )


def _print_header(chosen: Choice) -> None:
    """What is about to run, in exact numbers, before anything is compiled."""
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in header(chosen.experiment, chosen.config, chosen.unscaled):
        table.add_row(label, text)
    Console(highlight=False, markup=False).print(table)


def _refuse(faults: list[str]) -> int:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    count = "1 problem" if len(faults) == 1 else f"{len(faults)} problems"
    console.print(Text(f"{PROGRAM}: refused, nothing was started ({count})", style="bold red"))
    for fault in faults:
        console.print(Text(f"  - {fault}"))
    return REFUSED
