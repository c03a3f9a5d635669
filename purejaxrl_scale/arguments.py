"""What a command line asks for: an experiment with its overrides, or a run. Everything wrong is told at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.config_io import ConfigError, Field, fields, override
from purejaxrl_scale.flags import PRESET, read_flags
from purejaxrl_scale.named_experiments import QUICKSTART, Experiment, find_experiment, names
from purejaxrl_scale.outer_loop.recipes import resolved
from purejaxrl_scale.runner.folders import CONFIG_FILE
from purejaxrl_scale.suggest import did_you_mean

PROGRAM = "purejaxrl-scale"


class Choice(NamedTuple):
    """What `train` and `bench` are asked to do."""

    experiment: Experiment
    config: Config
    options: dict[str, Any]  # of the command, such as bench's
    unscaled: Config  # before config.scaling was applied


def choose(arguments: list[str], command: str, options: Mapping[Field, str] | None = None) -> Choice | None:
    """The choice that a command line makes; None once it has been shown help instead.

    Raises ConfigError with all faults of the names, the flags, or the resulting config.
    """
    options = options or {}
    is_named = bool(arguments) and not arguments[0].startswith("-")
    flags = read_flags(arguments[1:] if is_named else arguments, (PRESET, *options))
    try:
        experiment = find_experiment(arguments[0] if is_named else QUICKSTART)
        default = experiment.with_preset(flags.options.get("preset"))
    except ConfigError as fault:
        raise ConfigError(fault.problems + flags.faults) from None
    if flags.help:
        usage = f"{PROGRAM} {command} {experiment.name if is_named else '[EXPERIMENT]'}"
        _show_fields(experiment, default, usage, options)
        return None
    scaled_to = override(default, flags.overrides)[0].scaling.num_envs
    config, faults = override(experiment.at_scale(default, scaled_to), flags.overrides)
    # A field that was not read, or is what a misspelt flag may have meant, holds no value of the user's own: rules
    # that name it are not judged yet.
    unread = _named_in(faults) | (_named_in(flags.faults) - set(flags.overrides))
    faults = flags.faults + faults
    base = config
    try:
        config = resolved(config)
        broken = problems(config)
    except ConfigError as fault:
        broken = fault.problems + problems(config)
    faults += [sentence for sentence in broken if not _named_in([sentence]) & unread]
    if faults:
        raise ConfigError(faults)
    return Choice(experiment, config, flags.options, base)


def _named_in(sentences: list[str]) -> set[str]:
    """The fields that sentences name, in either spelling."""
    text = "\n".join(sentences).replace("-", "_")
    return {name for name in fields() if name in text}


def _show_fields(experiment: Experiment, default: Config, usage: str, options: Mapping[Field, str]) -> None:
    import tyro

    parts = [f"{experiment.name}: {experiment.description}"]
    if experiment.presets:
        parts.append(f"Presets (--preset NAME): {', '.join(experiment.presets)}")
    if experiment.scales:
        counts = ", ".join(f"{count:,}" for count in experiment.scales)
        parts.append(f"Settings of its own for --scaling.num-envs {counts}")
    if options:
        parts.append("; ".join(f"--{option.name}: {meaning}" for option, meaning in options.items()))
    parts.append(f"Other experiments: {', '.join(names())}, or a Python file of your own.")
    try:
        tyro.cli(Config, default=default, args=["--help"], prog=usage, description="\n\n".join(parts))
    except SystemExit:
        return


def check_devices(config: Config) -> None:
    """Refuse what this machine's devices cannot honour. The only check that imports JAX, so it comes last."""
    from purejaxrl_scale import devices

    try:
        devices.make_mesh(config.devices)
    except ValueError as fault:
        raise ConfigError([str(fault)]) from None


def one_run(arguments: list[str], command: str) -> Path:
    if len(arguments) != 1:
        given = f"{len(arguments)} were given" if arguments else "none was given"
        raise ConfigError([f"{command} needs one run, a folder, a name in runs/, or latest: {given}"])
    return find_run(arguments[0])


def no_arguments(arguments: list[str], command: str) -> None:
    if arguments:
        raise ConfigError([f"{command} takes no arguments: {' '.join(arguments)!r} was given"])


def find_run(text: str, folder: str = "runs") -> Path:
    """The run of a path, of a name inside a folder, or the latest in it. Raises ConfigError, naming near ones."""
    for candidate in (text, os.path.join(folder, text)):
        if text and os.path.isfile(os.path.join(candidate, CONFIG_FILE)):
            return Path(candidate)
    known = [path.parent for path in Path(folder).glob(f"*/{CONFIG_FILE}")]
    if text == "latest" and known:
        return max(known, key=lambda run: (run / CONFIG_FILE).stat().st_mtime)
    hint = did_you_mean(text, sorted(run.name for run in known)[-20:])
    raise ConfigError([f"there is no run {text!r}, neither as a folder nor in {folder}/: {hint}"])
