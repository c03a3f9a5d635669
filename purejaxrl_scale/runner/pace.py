"""How many outer steps go into one chunk."""

from __future__ import annotations

_FASTEST_GROWTH = 8  # from one chunk to the next: a first measurement may be far off


class Pace:
    """Aims at chunks of `seconds`. The first is a single outer step; none is longer than `limit`."""

    def __init__(self, seconds: float, limit: int):
        self._seconds, self._limit = seconds, limit
        self._last = 0
        self._seconds_per_step = 0.0

    def choose(self, most: int) -> int:
        """Outer steps of the next chunk, at least 1 and at most `most`."""
        if not self._last:
            return 1
        wanted = int(self._seconds / max(self._seconds_per_step, 1e-9))
        return max(1, min(wanted, self._last * _FASTEST_GROWTH, self._limit, most))

    def measure(self, outer_steps: int, seconds: float) -> None:
        """Learn how long a chunk took."""
        self._last, self._seconds_per_step = outer_steps, seconds / outer_steps
