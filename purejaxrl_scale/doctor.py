"""The doctor's table: versions against the bounds of the package, devices, graphics, disk, and what is missing."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

DISTRIBUTION = "purejaxrl-scale"
_LEAST_FREE_GIB = 2


class Finding(NamedTuple):
    """One row of the table."""

    subject: str
    found: str
    verdict: Literal["ok", "note", "missing"]  # only `missing` makes the examination fail
    advice: str = ""


def examine() -> bool:
    """Print all findings; False where something required is missing or has the wrong version."""
    from rich.console import Console
    from rich.table import Table

    findings = [*_python(), *_dependencies(), *_devices(), *_graphics(), *_machine()]
    table = Table(box=None, pad_edge=False)
    for column in ("what", "found", "", "advice"):
        table.add_column(column, overflow="fold")
    colours = {"ok": "green", "note": "yellow", "missing": "bold red"}
    for finding in findings:
        verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(_plain(finding.subject), _plain(finding.found), verdict, _plain(finding.advice))
    Console(highlight=False).print(table)
    return all(finding.verdict != "missing" for finding in findings)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _python() -> Iterator[Finding]:
    yield Finding("python", platform.python_version(), "ok", platform.platform())


def _dependencies() -> Iterator[Finding]:
    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        yield Finding(DISTRIBUTION, "not installed", "missing", "pip install . in the checkout, or use uv run")
        return
    yield Finding(DISTRIBUTION, metadata.version(DISTRIBUTION), "ok")
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate():
            yield check_requirement(requirement)


def check_requirement(requirement: Requirement) -> Finding:
    """Whether an installed version satisfies a bound."""
    bound = f"needs {requirement.specifier}" if requirement.specifier else ""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "not installed", "missing", f'pip install "{requirement}"')
    satisfied = requirement.specifier.contains(version, prereleases=True)
    return Finding(requirement.name, version, "ok" if satisfied else "missing", bound)


def _devices() -> Iterator[Finding]:
    try:
        import jax

        devices = jax.devices()
    except Exception as fault:
        yield Finding("devices", f"{type(fault).__name__}: {fault}", "missing", "JAX cannot start; see its message")
        return
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    yield Finding("devices", f"{len(devices)} x {kinds} ({devices[0].platform})", "ok")
    has_driver = shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()
    if has_driver and devices[0].platform == "cpu":
        yield Finding("GPU plugin", "an NVIDIA driver, but JAX runs on the CPU", "note", 'pip install "jax[cuda13]"')


def _graphics() -> Iterator[Finding]:
    library = ctypes.util.find_library("EGL") or ctypes.util.find_library("OSMesa")
    if library:
        yield Finding("graphics for Brax films", library, "ok")
    else:
        yield Finding(
            "graphics for Brax films",
            "neither EGL nor OSMesa",
            "note",
            "Brax films become HTML pages; for videos install libegl1 or libosmesa6",
        )


def _machine() -> Iterator[Finding]:
    yield Finding("CPU cores", str(os.cpu_count()), "ok")
    free = shutil.disk_usage(".").free / 2**30
    yield Finding(
        "free disk here",
        f"{free:.1f} GiB",
        "ok" if free >= _LEAST_FREE_GIB else "note",
        "" if free >= _LEAST_FREE_GIB else f"checkpoints and films want {_LEAST_FREE_GIB} GiB",
    )
