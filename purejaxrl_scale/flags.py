"""Command-line flags of a Config: `--environment.num-envs 8`, read exactly and refused in one go. No JAX.

tyro draws `--help` from the same dataclasses. The reading is our own since whole numbers must be exact (1e6 is one,
1.5 is none), switches must also take a sweep agent's `--flag=False`, and all faults are told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_origin

from purejaxrl_scale.config_io import Field, fields, unknown_field

_SWITCH_WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}


class Flags(NamedTuple):
    """What a command line asks for, not yet coerced."""

    overrides: dict[str, object]  # dotted field -> text, list of texts, or bool; of a repeated flag the last
    preset: str | None
    help: bool
    faults: list[str]


def read_flags(tokens: Sequence[str]) -> Flags:
    """Sort tokens into fields and values. Dashes and underscores are the same."""
    overrides: dict[str, object] = {}
    preset, asks_help = None, False
    faults: list[str] = []
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if token in {"-h", "--help"}:
            asks_help = True
            continue
        if not token.startswith("--"):
            faults.append(f"unexpected {token!r}: the experiment comes first, then --field value")
            continue
        flag, has_value, text = token.partition("=")
        name = flag[2:].replace("-", "_")
        if name == "preset":
            values = [text] if has_value else _words(rest, 1)
            if values:
                preset = values[0]
            else:
                faults.append(f"{flag} needs a value")
            continue
        field, negated = _find(name)
        if field is None:
            faults.append(unknown_field(flag[2:]).replace("_", "-") if "-" in flag[2:] else unknown_field(name))
            _words(rest, len(rest))  # its values: one fault is enough
            continue
        if negated:
            overrides[field.name] = False
            if has_value:
                faults.append(f"{flag} takes no value: write --{field.name} {text}")
        elif has_value:
            overrides[field.name] = text
        elif field.type is bool:
            is_word = bool(rest) and rest[0].lower() in _SWITCH_WORDS
            overrides[field.name] = rest.pop(0) if is_word else True
        elif get_origin(field.type) is tuple:
            # A shell's `128 128` and `128,128` mean the same.
            overrides[field.name] = ",".join(_words(rest, len(rest)))
        else:
            values = _words(rest, 1)
            if values:
                overrides[field.name] = values[0]
            else:
                faults.append(f"{flag} needs a value")
    return Flags(overrides, preset, asks_help, faults)


def _words(rest: list[str], most: int) -> list[str]:
    """Take the values at the front of `rest`: up to `most` tokens that are no flags."""
    count = 0
    while count < min(most, len(rest)) and not rest[count].startswith("--") and rest[count] != "-h":
        count += 1
    taken = rest[:count]
    del rest[:count]
    return taken


def _find(name: str) -> tuple[Field | None, bool]:
    """The field of a flag, and whether the flag is its negation: environment.no_staggered, no_environment.staggered."""
    known = fields()
    if name in known:
        return known[name], False
    group, dot, last = name.rpartition(".")
    for positive in (group + dot + last.removeprefix("no_"), name.removeprefix("no_")):
        if positive != name and positive in known and known[positive].type is bool:
            return known[positive], True
    return None, False
