"""Folders of runs: one for each member of a population, never shared by two runs, and what stands in them."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
POPULATION_FILE = "population.json"
_PACKAGES = (
    "purejaxrl-scale",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "wandb",
)
_SUITES = ("gymnax", "brax", "kinetix-env", "jax2d")


class RunError(Exception):
    """A run that cannot be started, resumed or read; its text is meant for the user."""


def member_config(config: Config, member: int) -> Config:
    """The config that trains member `member` of a population on its own, and in one process: it may go on in others."""
    devices = dataclasses.replace(config.devices, coordinator="", process=0, processes=1)
    return dataclasses.replace(config, seed=config.seed + member, seeds=1, devices=devices)


def member_configs(config: Config) -> list[Config]:
    """The configs of all members of the population that a config trains."""
    return [member_config(config, member) for member in range(config.seeds)]


def together(configs: list[Config]) -> Config:
    """The config that trains these members at once; each brings its own seed and traced numbers."""
    return dataclasses.replace(configs[0], seeds=len(configs))


def create(config: Config, name: str) -> list[Path]:
    """New folders `folder/NAME-SEED-TIME`, one a member, with config.yaml in each. Raises RunError."""
    stamp, configs = time.strftime("%Y%m%d-%H%M%S"), member_configs(config)
    try:
        folders = [_create_one(Path(config.run.folder), f"{safe(name)}-{one.seed}-{stamp}") for one in configs]
        fill(folders, configs)
    except OSError as fault:
        raise RunError(
            f"run.folder {config.run.folder} cannot be written: {fault.strerror}. Name another with --run.folder."
        ) from fault
    return folders


def fill(folders: list[Path], configs: list[Config]) -> None:
    """Write what makes these folders the runs of one population. Raises OSError."""
    for member, (folder, config) in enumerate(zip(folders, configs, strict=True)):
        if len(folders) > 1:
            members = [other.name for other in folders]
            (folder / POPULATION_FILE).write_text(json.dumps({"members": members, "index": member}, indent=2))
        config_io.save(config, folder / CONFIG_FILE)


def safe(name: str) -> str:
    """A name as a folder can have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_.") or "run"


def _create_one(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            attempt += 1
            continue
        return folder


def source_of(config: Config) -> Path | None:
    """The run that `config.run.start_from` names, as a folder or as a name in run.folder.

    Raises RunError where there is none, or where what it has learnt would be another function under this config.
    """
    named = config.run.start_from
    if not named:
        return None
    for candidate in (Path(named), Path(config.run.folder) / named):
        if (candidate / CONFIG_FILE).is_file():
            _check_fit(config, candidate)
            return candidate
    raise RunError(f"run.start_from {named!r} is no run, neither as a folder nor in {config.run.folder}/")


# Neither parameters nor what they compute depend on these, rounding apart.
_FREE = {"network.segment_length", "network.initial_log_std", "network.compute_dtype"}


def _check_fit(config: Config, source: Path) -> None:
    before = config_io.load(source / CONFIG_FILE)
    fixed = [name for name in config_io.fields() if name.startswith("network.") and name not in _FREE]
    fixed += ["algorithm.name", "environment.observation_normalisation"]
    differing = [
        f"{name} is {config_io.get(before, name)} there and {config_io.get(config, name)} here"
        for name in fixed
        if config_io.get(before, name) != config_io.get(config, name)
    ]
    if differing:
        raise RunError(f"what run.start_from {source} has learnt does not fit this config: {'; '.join(differing)}")


def members_of(run: Path) -> list[Path]:
    """The folders of the population that `run` belongs to, in order; [run] if it trained alone. Raises RunError."""
    if not (run / CONFIG_FILE).is_file():
        raise RunError(f"{run} is no run: it has no {CONFIG_FILE}")
    if not (run / POPULATION_FILE).is_file():
        return [run]
    try:
        members = [run.parent / str(name) for name in json.loads((run / POPULATION_FILE).read_text())["members"]]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise RunError(
            f"{run / POPULATION_FILE} cannot be read ({type(fault).__name__}): it names the runs that were trained "
            "together; copy it from another of them"
        ) from fault
    for member in members:
        if not (member / CONFIG_FILE).is_file():
            raise RunError(f"{run} was trained in a population, and its member {member} is missing")
    return members


def configs_of(members: list[Path]) -> list[Config]:
    """The config of each member. Raises RunError where they cannot be trained together any more."""
    configs = [config_io.load(member / CONFIG_FILE) for member in members]
    first = config_io.compiled(configs[0])
    for member, config in zip(members, configs, strict=True):
        differing = [name for name, value in config_io.compiled(config).items() if value != first[name]]
        if differing:
            raise RunError(
                f"{member} was trained together with {members[0]}, and their {CONFIG_FILE} now differ in "
                f"{', '.join(differing)}: put them back"
            )
    return configs


def write_environment(folders: list[Path], devices: list[dict], precision: str) -> None:
    """environment.json: versions, devices, flags and the git commit, if there is one."""
    versions = {}
    for package in _PACKAGES + _SUITES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    content = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": versions,
        "devices": devices,
        "matmul_precision": precision,
        "flags": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_"))},
        "git_commit": _git_commit(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    for folder in folders:
        (folder / ENVIRONMENT_FILE).write_text(json.dumps(content, indent=2) + "\n")


def _git_commit() -> str | None:
    try:
        answer = subprocess.run(
            [
                "git",
                "-C",
                str(Path(__file__).parent),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=40",
                "--exclude=*",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=5,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
