"""Nearest valid names, for messages that refuse a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LEAST_LIKENESS = 0.6
_TIE = 0.1  # candidates this much less alike than the best are left out


def nearest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """The candidates most like a word, best first; capitals do not matter. Empty where nothing is close."""
    lower = word.lower()
    likeness = {name: difflib.SequenceMatcher(None, lower, name.lower()).ratio() for name in candidates}
    least = max(_LEAST_LIKENESS, max(likeness.values(), default=0) - _TIE)
    close = [name for name in likeness if likeness[name] >= least]
    return sorted(close, key=lambda name: -likeness[name])[:count]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A clause that names the nearest candidates, or all of them where none is close."""
    known = list(candidates)
    close = nearest(word, known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are: {', '.join(known)}" if known else "there are none"
