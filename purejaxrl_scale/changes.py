"""Traced numbers that change during a run: `algorithm.reference.center_of_mass=64@2e8`. No JAX."""

from __future__ import annotations

from typing import NamedTuple

from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import Field, coerce, fields, unknown_field


class Change(NamedTuple):
    """A traced field that has another value from some point of the run on."""

    field: str  # dotted
    value: float
    at: int  # environment steps


def parse(text: str) -> Change:
    """The change that a text describes. Raises ValueError with a sentence that says what is wrong."""
    name, equals, rest = text.partition("=")
    value, sign, steps = rest.partition("@")
    if not (equals and sign):
        raise ValueError(f"changes takes FIELD=VALUE@STEPS, as in algorithm.clip=0.1@2e8: {text!r} is not of that form")
    name = name.strip().replace("-", "_")
    field = fields().get(name)
    if field is None:
        raise ValueError(f"changes: {unknown_field(name)}")
    if not field.traced:
        raise ValueError(
            f"changes: {name} decides shapes or code and cannot change during a run; these can: "
            + ", ".join(known for known, one in fields().items() if one.traced)
        )
    number = coerce(Field(f"changes: {name}", float, traced=True), value.strip())
    return Change(name, number, coerce(Field(f"changes: the steps of {name}", int, traced=False), steps.strip()))


def parsed(config: Config) -> list[Change]:
    """The changes of a legal config in the order in which they come about; of two at once the later one holds."""
    return sorted(map(parse, config.changes), key=lambda change: change.at)
