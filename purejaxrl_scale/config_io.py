"""Configs as text: dotted field names, exact values from strings, dictionaries and YAML files. No JAX."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from purejaxrl_scale.config import TRACED, Config
from purejaxrl_scale.suggest import did_you_mean, nearest

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_MOST_DIGITS = 18  # any count of ours fits; 1e999999999 must not be written out before it is refused


class ConfigError(ValueError):
    """A config that cannot be honoured; `problems` holds one sentence for each fault."""

    def __init__(self, problems: list[str]):
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class Field(NamedTuple):
    """One leaf of Config."""

    name: str  # dotted: environment.num_envs
    type: Any  # int, float, float | None, bool, str, tuple[int, ...], tuple[str, ...] or a Literal
    traced: bool  # a population may vary it under one compile


@cache
def fields() -> dict[str, Field]:
    """All leaves of Config by their dotted names, in order."""
    return {leaf.name: leaf for leaf in _leaves(Config, "")}


def _leaves(group: Any, prefix: str) -> list[Field]:
    leaves = []
    for name, hint in get_type_hints(group, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            leaves += _leaves(hint, f"{prefix}{name}.")
            continue
        traced = get_origin(hint) is Annotated and TRACED in hint.__metadata__
        leaves.append(Field(prefix + name, get_args(hint)[0] if traced else hint, traced))
    return leaves


def unknown_field(name: str) -> str:
    """The sentence that refuses a field name and says which ones are near."""
    group, _, last = name.rpartition(".")
    # Which group a field belongs to is what people forget, so its last part alone may match too.
    by_last: dict[str, list[str]] = {}
    for full in fields():
        by_last.setdefault(full.rpartition(".")[2], []).append(full)
    alike = by_last.get(last) or [full for near in nearest(last, by_last) for full in by_last[near]]
    close = (nearest(name, alike) if group else []) or alike or nearest(name, fields())
    if close:
        return f"there is no field {name}: did you mean {' or '.join(close)}?"
    return f"there is no field {name}: --help lists them all"


def coerce(field: Field, value: object) -> Any:
    """A field's value from a string, a number or a list, exactly or not at all: 1e6 is a whole number, 1.5 is none.

    Raises ValueError with a sentence that names the field, the value and what it takes.
    """
    if get_origin(field.type) is tuple:
        item = Field(field.name, get_args(field.type)[0], field.traced)
        return tuple(coerce(item, part) for part in _parts(field, value))
    if get_origin(field.type) is Literal:
        return _choice(field, value)
    if field.type is bool:
        return _boolean(field, value)
    if field.type is int:
        return _integer(field, value)
    if field.type is float:
        return _real(field, value)
    if field.type == float | None:
        return _optional_real(field, value)
    if not isinstance(value, str):
        raise ValueError(f"{field.name} takes text: {value!r} is none")
    return value


def _parts(field: Field, value: object) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        # The forms of a shell (128,128) and of a sweep agent ([128, 128]) mean the same.
        inner = value.strip().removeprefix("[").removesuffix("]").removeprefix("(").removesuffix(")")
        return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]
    raise ValueError(f"{field.name} takes a list: {value!r} is none")


def _choice(field: Field, value: object) -> str:
    choices = get_args(field.type)
    if value in choices:
        return str(value)
    hint = f"; {did_you_mean(str(value), choices)}" if nearest(str(value), choices) else ""
    raise ValueError(f"{field.name} is one of {', '.join(choices)}: {value!r} is not{hint}")


def _boolean(field: Field, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ValueError(f"{field.name} is true or false: {value!r} is neither")


def _integer(field: Field, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _decimal(value)
    if number is None or not number.is_finite():
        raise ValueError(f"{field.name} takes a whole number: {value!r} is none")
    if number.adjusted() >= _MOST_DIGITS:
        raise ValueError(f"{field.name} takes a whole number below 1e{_MOST_DIGITS}: {value!r} is not")
    if number.adjusted() < -_MOST_DIGITS and number:
        raise ValueError(f"{field.name} takes a whole number: {value!r} is none; the nearest is 0")
    if number != number.to_integral_value():
        below = math.floor(number)
        legal = f"{below} and {below + 1}"
        raise ValueError(f"{field.name} takes a whole number: {value!r} is none; the nearest are {legal}")
    return int(number)


def _real(field: Field, value: object) -> float:
    number = _decimal(value)
    real = math.nan if number is None else float(number)
    if not math.isfinite(real):
        raise ValueError(f"{field.name} takes a finite number: {value!r} is none")
    return real


def _optional_real(field: Field, value: object) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in {"none", ""}):
        return None
    number = _decimal(value)
    if number is None or not math.isfinite(float(number)):
        raise ValueError(f"{field.name} takes a number or none: {value!r} is neither")
    return float(number)


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        # By way of repr, so that the float 0.1 is the decimal 0.1 and comes back as the same float.
        number = Decimal(value if isinstance(value, str) else repr(value))
    except InvalidOperation:
        return None
    return None if number.is_nan() else number


def get(config: Config, name: str) -> Any:
    """A leaf's value by its dotted name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def compiled(config: Config) -> dict[str, object]:
    """What decides the compiled program, and so is one for a population: all but names, seeds and traced numbers.

    Of a traced number that may be none it holds whether it is; evaluations act by PQN's last share of random actions.
    """
    out = {}
    for name, field in fields().items():
        value = get(config, name)
        if field.traced and name != "algorithm.exploration_end":
            value = value if value is None else "a number"
        if name not in ("seed", "seeds", "run.name"):
            out[name] = value
    return out


def differing(before: Config, now: Config, names: Iterable[str]) -> list[str]:
    """What differs between two configs among some fields, a clause each."""
    return [
        f"{name} was {get(before, name)} and is {get(now, name)}"
        for name in names
        if get(before, name) != get(now, name)
    ]


def override(config: Config, overrides: Mapping[str, object]) -> tuple[Config, list[str]]:
    """The config under all overrides that can be had, by dotted names, and a sentence for each that cannot."""
    faults: list[str] = []
    for name, value in overrides.items():
        field = fields().get(name)
        if field is None:
            faults.append(unknown_field(name))
            continue
        try:
            config = _set(config, name.split("."), coerce(field, value))
        except ValueError as fault:
            faults.append(str(fault))
    return config, faults


def replace(config: Config, overrides: Mapping[str, object]) -> Config:
    """The config with leaves replaced by dotted names, each value coerced. Raises ConfigError with all faults."""
    config, faults = override(config, overrides)
    if faults:
        raise ConfigError(faults)
    return config


def _set(group: Any, path: list[str], value: object) -> Any:
    head, *rest = path
    return dataclasses.replace(group, **{head: _set(getattr(group, head), rest, value) if rest else value})


def to_dict(config: Config) -> dict[str, Any]:
    """Nested dictionaries of plain values, complete and fit for JSON and YAML; tuples become lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))


def from_dict(values: Mapping[str, Any]) -> Config:
    """The config of nested dictionaries; absent fields take their defaults. Raises ConfigError with all faults."""
    return replace(Config(), _flatten(values, ""))


def _flatten(values: Mapping[str, Any], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def save(config: Config, path: str | os.PathLike[str]) -> None:
    """Write every field to a YAML file; `load` gives the same config back."""
    import yaml

    Path(path).write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")


def load(path: str | os.PathLike[str]) -> Config:
    """Read a config from a YAML file. Raises ConfigError where it is missing, malformed or names unknown fields."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError([f"{path} cannot be read: {fault.strerror}"]) from fault
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise ConfigError([f"{path} is not YAML: {' '.join(str(fault).split())}"]) from fault
    if not isinstance(values, dict):
        raise ConfigError([f"{path} holds no config: its top level must map field names to values"])
    return from_dict(values)
