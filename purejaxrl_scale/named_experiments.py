"""Named experiments: Python files that build a Config, found from any working directory. No JAX.

An experiment file has a docstring, `CONFIG = Config(...)` and, if it likes, `PRESETS`: named sets of overrides by
dotted field names, such as `{"cpu": {"environment.num_envs": 64}}`; and `SCALES`: sets of overrides by the number of
environments that it is scaled to, such as `{65_536: {"curriculum.every": 32}}`. It imports nothing but
`purejaxrl_scale.config`. Scripts that draw figures stand beside them; they set no CONFIG.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import ConfigError, from_dict, replace, to_dict, unknown_field
from purejaxrl_scale.suggest import did_you_mean, nearest

QUICKSTART = "quickstart"


class Experiment(NamedTuple):
    """A Config with a name and a docstring."""

    name: str
    path: Path
    description: str
    config: Config
    presets: dict[str, dict[str, object]]  # preset -> dotted field -> value
    scales: dict[int, dict[str, object]]  # scaling.num_envs -> dotted field -> value

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.description.partition("\n")[0]

    def with_preset(self, preset: str | None) -> Config:
        """The config under a preset. Raises ConfigError where there is no such preset."""
        if preset is None:
            return self.config
        if preset not in self.presets:
            hint = did_you_mean(preset, self.presets)
            raise ConfigError([f"experiment {self.name} has no preset {preset!r}: {hint}"])
        return replace(self.config, self.presets[preset])

    def at_scale(self, config: Config, num_envs: int) -> Config:
        """The config with what the experiment says of so many environments; as it is where it says nothing."""
        return replace(config, self.scales[num_envs]) if num_envs in self.scales else config


def folder() -> Path:
    """Where the named experiments are: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).resolve().parent
    shipped = package / "experiments"
    return shipped if shipped.is_dir() else package.parent / "experiments"


def names() -> list[str]:
    """All named experiments, the quickstart first. Files that set no CONFIG, such as figure scripts, are none."""
    # The text decides: an import would load matplotlib for a figure script, and trip over one broken file.
    found = sorted(path.stem for path in _files() if re.search(rb"^CONFIG\b", path.read_bytes(), re.MULTILINE))
    return sorted(found, key=lambda name: name != QUICKSTART)


def _files() -> list[Path]:
    return [path for path in folder().glob("*.py") if path.is_file() and not path.stem.startswith("_")]


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or of a path to a user's own file.

    Raises ConfigError where it does not exist, naming its neighbours; where it is a figure script, saying how to run
    that; or where its file does not build a Config.
    """
    if name.endswith(".py") or os.sep in name:
        if not os.path.isfile(name):
            raise ConfigError([_missing_file(name)])
        return _read(Path(name).stem, Path(name))
    known = names()
    if name not in known:
        scripts = {path.stem: os.path.relpath(path) for path in _files()}
        if name in scripts:
            raise ConfigError(
                [f"{name} is a figure script, not an experiment: run it with `uv run python {scripts[name]}`"]
            )
        hint = did_you_mean(name, known)
        if os.path.isfile(f"{name}.py"):
            hint = f"did you mean the file ./{name}.py?"
        raise ConfigError([f"there is no experiment {name!r}: {hint}"])
    return _read(name, folder() / f"{name}.py")


def load_experiment(name: str, preset: str | None = None) -> Config:
    """The Config of a named experiment or of a user's own file, under one of its presets if one is named."""
    return find_experiment(name).with_preset(preset)


def _missing_file(name: str) -> str:
    beside = Path(name).parent
    files = [str(beside / path.name) for path in beside.glob("*.py")] if os.path.isdir(beside) else []
    close = nearest(name, files)
    return f"there is no file {name}" + (f": did you mean {' or '.join(close)}?" if close else "")


def _read(name: str, path: Path) -> Experiment:
    module = _execute(name, path)
    config = getattr(module, "CONFIG", None)
    if not isinstance(config, Config):
        raise ConfigError([f"{path} is no experiment: it must set CONFIG = Config(...)"])
    presets = getattr(module, "PRESETS", {})
    if not isinstance(presets, Mapping) or not all(isinstance(preset, Mapping) for preset in presets.values()):
        raise ConfigError([f"{path}: PRESETS must map names to overrides, as in {{'cpu': {{'total_steps': 1000}}}}"])
    scales = getattr(module, "SCALES", {})
    if not isinstance(scales, Mapping) or not all(
        isinstance(count, int) and isinstance(row, Mapping) for count, row in scales.items()
    ):
        raise ConfigError([f"{path}: SCALES must map numbers to overrides, as in {{65_536: {{'total_steps': 1000}}}}"])
    try:
        # A user's file may say total_steps=1e6; through the one coercion it becomes a whole number or is refused.
        config = from_dict(to_dict(config))
    except ConfigError as fault:
        raise ConfigError([f"{path}: {problem}" for problem in fault.problems]) from None
    description = (module.__doc__ or "").strip()
    return Experiment(
        name,
        path,
        description,
        config,
        {key: dict(preset) for key, preset in presets.items()},
        {count: dict(row) for count, row in scales.items()},
    )


def _execute(name: str, path: Path) -> ModuleType:
    module_name = f"purejaxrl_scale_experiment_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError([f"{path} cannot be read as a Python file"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in the file look themselves up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        raise ConfigError([_explain(path, fault)]) from fault
    finally:
        del sys.modules[module_name]
    return module


def _explain(path: Path, fault: BaseException) -> str:
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(fault))
    hint = f"; {unknown_field(unexpected[1])}" if unexpected else ""
    if isinstance(fault, SyntaxError):
        return f"{path}, line {fault.lineno}: {type(fault).__name__}: {fault.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(path.absolute())
    ]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    return f"{where}: {type(fault).__name__}: {fault}{hint}"
