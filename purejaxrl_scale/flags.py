"""Command-line flags of a Config: `--environment.num-envs 8`, read exactly and refused in one go. No JAX.

tyro draws `--help` from the same dataclasses. The reading is our own since whole numbers must be exact (1e6 is one,
1.5 is none), switches must also take a sweep agent's `--flag=False`, and all faults are told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_origin

from purejaxrl_scale.config_io import Field, coerce, fields, unknown_field
from purejaxrl_scale.suggest import nearest

PRESET = Field("preset", str, traced=False)
_SWITCH_WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}


class Flags(NamedTuple):
    """What a command line asks for."""

    overrides: dict[str, object]  # dotted field -> text or bool, not yet coerced; of a repeated flag the last
    options: dict[str, Any]  # the command's own options, coerced
    help: bool
    faults: list[str]


def read_flags(tokens: Sequence[str], options: Sequence[Field] = (PRESET,)) -> Flags:
    """Sort tokens into fields of Config and options of the command. Dashes and underscores are the same."""
    known = fields() | {option.name: option for option in options}
    own = {option.name for option in options}
    values: dict[str, object] = {}
    asks_help = False
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
        name = token[2:].partition("=")[0].replace("-", "_")
        field, negated = _find(name, known)
        if field is None:
            faults.append(_unknown_flag(token, own))
            _words(rest, len(rest))  # its values: one fault is enough
            continue
        try:
            values[field.name] = _value(field, negated, token, rest)
        except ValueError as fault:
            faults.append(str(fault))
    chosen: dict[str, Any] = {}
    for option in options:
        if option.name in values:
            try:
                chosen[option.name] = coerce(option, values.pop(option.name))
            except ValueError as fault:
                faults.append(str(fault))
    return Flags(values, chosen, asks_help, faults)


def _value(field: Field, negated: bool, token: str, rest: list[str]) -> object:
    """A flag's value, from the token itself or from the front of `rest`. Raises ValueError where there is none."""
    flag, has_value, text = token.partition("=")
    if negated:
        if has_value:
            raise ValueError(f"{flag} takes no value: write --{field.name} {text}")
        return False
    if has_value:
        return text
    if field.type is bool:
        return rest.pop(0) if rest and rest[0].lower() in _SWITCH_WORDS else True
    if get_origin(field.type) is tuple:
        # A shell's `128 128` and `128,128` mean the same; an empty list is written --field= or --field "".
        words = _words(rest, len(rest))
        if not words:
            raise ValueError(f'{flag} needs values; an empty list is written {flag} ""')
        return ",".join(words)
    words = _words(rest, 1)
    if not words:
        raise ValueError(f"{flag} needs a value")
    return words[0]


def _unknown_flag(token: str, options: set[str]) -> str:
    flag = token[2:].partition("=")[0]
    close = nearest(flag, options)
    if close:
        return f"there is no option --{flag}: did you mean --{close[0]}?"
    # In the spelling that was used, so that the answer can be pasted.
    sentence = unknown_field(flag.replace("-", "_"))
    return sentence.replace("_", "-") if "-" in flag else sentence


def _words(rest: list[str], most: int) -> list[str]:
    """Take the values at the front of `rest`: up to `most` tokens that are no flags."""
    count = 0
    while count < min(most, len(rest)) and not rest[count].startswith("--") and rest[count] != "-h":
        count += 1
    taken = rest[:count]
    del rest[:count]
    return taken


def _find(name: str, known: Mapping[str, Field]) -> tuple[Field | None, bool]:
    """The field of a flag, and whether the flag is its negation: environment.no_staggered, no_environment.staggered."""
    if name in known:
        return known[name], False
    group, dot, last = name.rpartition(".")
    for positive in (group + dot + last.removeprefix("no_"), name.removeprefix("no_")):
        if positive != name and positive in known and known[positive].type is bool:
            return known[positive], True
    return None, False
