"""Sweep files, in W&B's own format, as lists of overrides: so that `wandb sweep` takes the same file. No JAX.

    program: purejaxrl-scale
    command: ["${program}", train, cartpole, --total-steps, "1e6", "${args}"]
    method: grid
    metric: {name: evaluation/deterministic/mean, goal: maximize}
    parameters:
      algorithm.learning_rate: {values: [1e-4, 3e-4, 1e-3]}
      seed: {values: [0, 1, 2]}

What stands in `command` between `train` and `${args}` holds for every run. Parameters have flat dotted names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from purejaxrl_scale.config_io import ConfigError, fields, unknown_field
from purejaxrl_scale.suggest import did_you_mean

_KEYS = {"command", "description", "entity", "method", "metric", "name", "parameters", "program", "project", "run_cap"}
_MOST_RUNS = 10_000


class SweepFile(NamedTuple):
    """What a sweep file asks for."""

    name: str
    arguments: list[str]  # of `train`, the same in every run
    combinations: list[dict[str, object]]  # overrides by dotted field
    metric: str | None
    maximise: bool


def read(path: str) -> SweepFile:
    """A sweep file. Raises ConfigError with all that is wrong with it."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        near = sorted(str(file) for file in Path(path).parent.glob("*.y*ml")) or sorted(
            map(str, Path().glob("sweeps/*"))
        )
        raise ConfigError([f"{path} cannot be read ({fault.strerror}): {did_you_mean(path, near)}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise ConfigError([f"{path} is not YAML: {' '.join(str(fault).split())}"]) from None
    if not isinstance(content, dict):
        raise ConfigError([f"{path} holds no sweep: its top level must map method, command and parameters to values"])
    faults: list[str] = []
    arguments = _arguments(content, faults)
    combinations = _combinations(content, faults)
    metric, maximise = _metric(content.get("metric"), faults)
    faults += [f"there is no key {key!r}: {did_you_mean(str(key), sorted(_KEYS))}" for key in _unknown_keys(content)]
    if faults:
        raise ConfigError([f"{path}: {fault}" for fault in faults])
    return SweepFile(str(content.get("name") or Path(path).stem), arguments, combinations, metric, maximise)


def _unknown_keys(content: Mapping[Any, Any]) -> list[Any]:
    return [key for key in content if key not in _KEYS | {"early_terminate"}]


def _arguments(content: Mapping[str, Any], faults: list[str]) -> list[str]:
    if content.get("early_terminate"):
        faults.append("early_terminate needs W&B's server: take it out, or use `wandb sweep` and `wandb agent`")
    command = content.get("command")
    if not isinstance(command, list) or "train" not in command:
        faults.append('command must be a list with train in it, as in ["${program}", train, cartpole, "${args}"]')
        return []
    words = [str(word) for word in command[command.index("train") + 1 :]]
    if words.count("${args}") != 1:
        faults.append('command must hold "${args}" once, where W&B puts the values of the parameters')
    return [word for word in words if word != "${args}"]


def _metric(metric: Any, faults: list[str]) -> tuple[str | None, bool]:
    if metric is None:
        return None, True
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        faults.append("metric takes a name and a goal, as in {name: episode/return, goal: maximize}")
        return None, True
    goal = metric.get("goal", "minimize")  # W&B's default
    if goal not in ("maximize", "minimize"):
        faults.append(f"metric.goal is maximize or minimize: {goal!r} is neither")
    return metric["name"], goal == "maximize"


def _combinations(content: Mapping[str, Any], faults: list[str]) -> list[dict[str, object]]:
    method = content.get("method")
    if method == "bayes":
        faults.append("method bayes needs W&B's server: run `wandb sweep FILE`, then `wandb agent SWEEP`")
    elif method not in ("grid", "random"):
        faults.append(f"method is grid or random: {method!r} is neither")
    parameters = content.get("parameters")
    if not isinstance(parameters, Mapping) or not parameters:
        faults.append("parameters must map fields to what they take: there are none")
        return []
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or not 1 <= cap <= _MOST_RUNS):
        faults.append(f"run_cap is a number of runs from 1 to {_MOST_RUNS:,}: it is {cap!r}")
    elif method == "random" and cap is None:
        faults.append("method random needs run_cap, the number of runs to draw")
    read = {str(name): _parameter(str(name), entry, faults) for name, entry in parameters.items()}
    if faults:
        return []
    if method == "random":
        # A run's draws depend on its number alone: a larger run_cap adds runs.
        generators = [np.random.default_rng([0, number]) for number in range(int(cap or 0))]
        return [{name: one.draw(rng) for name, one in read.items()} for rng in generators]
    for name, one in read.items():
        if one.grid is None:
            faults.append(f"{name}: a grid needs values; a range of real numbers is for method random")
        elif not one.grid:
            faults.append(f"{name}: the grid is empty, its list of values has nothing in it")
    count = math.prod(len(one.grid or ()) for one in read.values())
    if not faults and count > _MOST_RUNS:
        faults.append(f"the grid has {count:,} combinations, and a sweep may have {_MOST_RUNS:,}")
    if faults:
        return []
    grid = itertools.product(*(one.grid or () for one in read.values()))
    return [dict(zip(read, values, strict=True)) for values in grid][:cap]


class _Parameter(NamedTuple):
    draw: Callable[[np.random.Generator], object]
    grid: list[object] | None  # none where there are endlessly many


_NOTHING = _Parameter(lambda _: None, [])


def _parameter(name: str, entry: Any, faults: list[str]) -> _Parameter:
    if name not in fields():
        faults.append(
            f"{name}: nested parameters reach a command line as a dict; write flat names, as in algorithm.clip"
            if isinstance(entry, Mapping) and "parameters" in entry
            else unknown_field(name)
        )
        return _NOTHING
    if not isinstance(entry, Mapping):
        faults.append(f"{name} takes values, a value, or min and max: {entry!r} is none of them")
        return _NOTHING
    try:
        return _read_parameter(dict(entry))
    except (KeyError, TypeError, ValueError) as fault:
        missing = f"it needs {fault.args[0]}" if isinstance(fault, KeyError) else str(fault)
        faults.append(f"{name}: {missing}")
        return _NOTHING


def _read_parameter(entry: dict[str, Any]) -> _Parameter:
    """Raises KeyError for what is missing, ValueError for what is wrong."""
    # PyYAML reads 1e-5 as text, since it has no point.
    numbers = {name: float(value) for name, value in entry.items() if name in _NUMBERS and isinstance(value, str)}
    entry |= numbers
    kind = entry.pop("distribution", None) or _implied(entry)
    if kind not in _DISTRIBUTIONS:
        raise ValueError(f"there is no distribution {kind!r}: {did_you_mean(str(kind), sorted(_DISTRIBUTIONS))}")
    parameter, used = _DISTRIBUTIONS[kind](entry), _TAKES[kind]
    if unknown := set(entry) - used:
        raise ValueError(f"distribution {kind} takes {', '.join(sorted(used))}, and no {', '.join(sorted(unknown))}")
    return parameter


def _implied(entry: Mapping[str, Any]) -> str:
    """The distribution that W&B takes where none is named."""
    if "value" in entry:
        return "constant"
    if "values" in entry:
        return "categorical_w_probabilities" if "probabilities" in entry else "categorical"
    if "min" in entry and "max" in entry:
        whole = all(isinstance(entry[end], int) for end in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    if "mu" in entry or "sigma" in entry:
        return "normal"
    raise ValueError("it takes values, a value, or min and max")


def _categorical(entry: Mapping[str, Any]) -> _Parameter:
    values = entry["values"]
    if not isinstance(values, list):
        raise TypeError(f"values takes a list: {values!r} is none")
    weights = entry.get("probabilities")
    if weights is not None and (len(weights) != len(values) or not math.isclose(sum(weights), 1.0, abs_tol=1e-6)):
        raise ValueError(f"probabilities takes {len(values)} numbers that add up to 1: it is {weights!r}")
    grid = values if weights is None else None
    return _Parameter(lambda rng: values[rng.choice(len(values), p=weights)], grid)


def _constant(entry: Mapping[str, Any]) -> _Parameter:
    return _Parameter(lambda _: entry["value"], [entry["value"]])


def _range(entry: Mapping[str, Any]) -> tuple[float, float]:
    low, high = entry["min"], entry["max"]
    if not low < high:
        raise ValueError(f"min must be below max: they are {low} and {high}")
    return low, high


def _int_uniform(entry: Mapping[str, Any]) -> _Parameter:
    low, high = _range(entry)
    return _Parameter(
        lambda rng: int(rng.integers(int(low), int(high), endpoint=True)), list(range(int(low), int(high) + 1))
    )


def _between(transform: Callable[[float], float], inverse: Callable[[float], float]):
    """The values whose transform is uniform between that of min and that of max."""

    def make(entry: Mapping[str, Any]) -> _Parameter:
        low, high = map(transform, _range(entry))
        return _Parameter(lambda rng: float(inverse(rng.uniform(low, high))), None)

    return make


def _logarithm(bound: float) -> float:
    if bound <= 0:
        raise ValueError(f"min and max must be above 0 for their logarithms: {bound} is not")
    return math.log(bound)


def _normal(entry: Mapping[str, Any]) -> _Parameter:
    mu, sigma = float(entry.get("mu", 0.0)), float(entry.get("sigma", 1.0))
    return _Parameter(lambda rng: float(rng.normal(mu, sigma)), None)


def _log_normal(entry: Mapping[str, Any]) -> _Parameter:
    mu, sigma = float(entry.get("mu", 0.0)), float(entry.get("sigma", 1.0))
    return _Parameter(lambda rng: float(rng.lognormal(mu, sigma)), None)


def _beta(entry: Mapping[str, Any]) -> _Parameter:
    return _Parameter(lambda rng: float(rng.beta(entry["a"], entry["b"])), None)


def _quantised(inner: Callable[[Mapping[str, Any]], _Parameter], is_range: bool = False):
    def make(entry: Mapping[str, Any]) -> _Parameter:
        step = entry.get("q", 1)
        if not step > 0:
            raise ValueError(f"q must be greater than 0: it is {step}")
        continuous = inner(entry)

        def rounded(value: float) -> float:
            return round(value / step) * step

        grid: list[object] | None = None
        if is_range:
            low, high = _range(entry)
            grid = [low + step * index for index in range(int((high - low) / step + 1e-9) + 1)]
        return _Parameter(lambda rng: rounded(float(continuous.draw(rng))), grid)  # pyright: ignore[reportArgumentType]

    return make


_uniform = _between(float, float)
_log_uniform = _between(float, math.exp)
_log_uniform_values = _between(_logarithm, math.exp)
_RANGE, _BELL = {"min", "max"}, {"mu", "sigma"}
_NUMBERS = _RANGE | _BELL | {"a", "b", "q"}
_DISTRIBUTIONS: dict[str, Callable[[Mapping[str, Any]], _Parameter]] = {
    "categorical": _categorical,
    "categorical_w_probabilities": _categorical,
    "constant": _constant,
    "int_uniform": _int_uniform,
    "uniform": _uniform,
    "q_uniform": _quantised(_uniform, is_range=True),
    "log_uniform": _log_uniform,
    "log_uniform_values": _log_uniform_values,
    "q_log_uniform": _quantised(_log_uniform),
    "q_log_uniform_values": _quantised(_log_uniform_values),
    "inv_log_uniform": _between(float, lambda value: math.exp(-value)),
    "inv_log_uniform_values": _log_uniform_values,
    "normal": _normal,
    "q_normal": _quantised(_normal),
    "log_normal": _log_normal,
    "q_log_normal": _quantised(_log_normal),
    "beta": _beta,
    "q_beta": _quantised(_beta),
}
_TAKES = {
    kind: (
        {"values", "probabilities"}
        if kind.startswith("categorical")
        else {"value"}
        if kind == "constant"
        else ({"a", "b"} if "beta" in kind else _BELL if "normal" in kind else _RANGE)
        | ({"q"} if kind.startswith("q_") else set())
    )
    for kind in _DISTRIBUTIONS
}
