"""Standard streams that cannot harm a run: closed ones are opened on nothing, and a full disk behind one is borne."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any


def open_closed() -> None:
    """Put nothing in the place of streams that were closed at the start, as `>&-` does.

    Otherwise the next file to be opened, such as the record, would be what libraries print into.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, and those below are in use.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


class _Unfailing:
    """A stream that drops what cannot be written."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write or drop."""
        try:
            return self._stream.write(text)
        except OSError as fault:
            self._give_up(fault)
            return len(text)

    def flush(self) -> None:
        """Flush or drop."""
        try:
            self._stream.flush()
        except OSError as fault:
            self._give_up(fault)

    def _give_up(self, fault: OSError) -> None:
        if isinstance(fault, BrokenPipeError):
            # The reader has left, as `head` does: from now on nobody is written to, at Python's own end either.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def unfailing() -> Iterator[None]:
    """While a run goes on, nothing that is printed can stop it."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Unfailing(sys.stdout), _Unfailing(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
