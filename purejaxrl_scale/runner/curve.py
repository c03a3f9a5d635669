"""A curve over a run, drawn in braille: two dots a character across, four down."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BINS = 480  # wider than any terminal's dots that the curve is drawn on
_DOTS = (
    (0x01, 0x02, 0x04, 0x40),
    (0x08, 0x10, 0x20, 0x80),
)  # bit of the dot at column, row of a braille cell
_BLANK = 0x2800


class Curve:
    """A quantity by the share of the run at which it was seen; memory does not grow with the run."""

    def __init__(self) -> None:
        self._sums, self._counts = [0.0] * _BINS, [0] * _BINS
        self.latest: float | None = None

    def add(self, share: float, value: float) -> None:
        """Take in `value` at `share` of the run, in [0, 1]."""
        index = min(_BINS - 1, int(share * _BINS))
        self._sums[index] += value
        self._counts[index] += 1
        self.latest = value

    def columns(self, count: int) -> list[float | None]:
        """Means over `count` equal parts of the run; None where nothing was seen."""
        columns: list[float | None] = []
        for column in range(count):
            bins = range(
                column * _BINS // count,
                max(column * _BINS // count + 1, (column + 1) * _BINS // count),
            )
            seen = sum(self._counts[index] for index in bins)
            columns.append(sum(self._sums[index] for index in bins) / seen if seen else None)
        return columns

    def limits(self) -> tuple[float, float]:
        """The smallest and the largest mean of a bin; (0, 0) before anything was seen."""
        means = [total / count for total, count in zip(self._sums, self._counts, strict=True) if count]
        return (min(means), max(means)) if means else (0.0, 0.0)


def braille(columns: Sequence[float | None], low: float, high: float, rows: int) -> list[str]:
    """`rows` lines of text that draw the columns (two a character), with gaps bridged, between `low` and `high`."""
    width, height = math.ceil(len(columns) / 2), 4 * rows
    cells = [[_BLANK] * width for _ in range(rows)]
    before: tuple[int, int] | None = None
    for column, value in enumerate(columns):
        if value is None:
            continue
        share = (value - low) / (high - low) if high > low else 0.0
        level = round(min(1.0, max(0.0, share)) * (height - 1))
        for x, y in _line(before or (column, level), (column, level)):
            row = height - 1 - y
            cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
        before = (column, level)
    return ["".join(map(chr, row)) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            start[0] + round((end[0] - start[0]) * part / length),
            start[1] + round((end[1] - start[1]) * part / length),
        )
        for part in range(length + 1)
    ]
