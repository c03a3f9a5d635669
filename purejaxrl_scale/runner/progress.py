"""The display of a run: live in a terminal, one updating line in Jupyter, plain lines elsewhere.

While the live display is on it alone writes to the terminal: file descriptors 1 and 2 lead to `run.log`, so that not
even a C++ library can tear it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import termios
import time
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from purejaxrl_scale.runner.status import Status, panel, plain_line

_SECONDS_BETWEEN_LINES = 10.0


class Display(Protocol):
    """Where a status is shown. Every method may be called from any thread."""

    def start(self) -> None: ...

    def refresh(self) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays."""
        ...

    def stop(self) -> None:
        """Leave the terminal as it was found. A second call does nothing."""
        ...


class SilentDisplay:
    """Shows nothing but notes."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def start(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def note(self, text: str) -> None:
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError:
            # Whoever read the output has left, or its disk is full: no reason to end a run of days.
            self._stream = Path(os.devnull).open("w")  # noqa: SIM115

    def stop(self) -> None:
        pass


class PlainDisplay(SilentDisplay):
    """A line every 10 seconds or 5 % of the run, whichever comes first, and one when a stage begins."""

    def __init__(self, status: Status, stream: TextIO):
        super().__init__(stream)
        self._status = status
        self._twentieth, self._stage, self._compiled = -1, "", ""  # as last shown
        self._at, self._steps = -math.inf, 0

    def refresh(self) -> None:
        status = self._status
        if status.compiled != self._compiled:
            self._compiled = status.compiled
            self.note(status.compiled)
        # The epsilon keeps 0.15 * 20 from being 2.9999999999999996.
        twentieth = int(status.share * 20 + 1e-9)
        due = twentieth != self._twentieth or time.monotonic() - self._at >= _SECONDS_BETWEEN_LINES
        if due or (status.stage and status.stage != self._stage):
            self._twentieth, self._at, self._steps = twentieth, time.monotonic(), status.steps
            self.note(plain_line(status))
        self._stage = status.stage

    def stop(self) -> None:
        if self._status.steps > self._steps:
            self._steps = self._status.steps
            self.note(plain_line(self._status))


class LineDisplay(SilentDisplay):
    """One line that is written over, for Jupyter."""

    def __init__(self, status: Status, stream: TextIO):
        super().__init__(stream)
        self._status, self._width = status, 0

    def refresh(self) -> None:
        line = plain_line(self._status)
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def note(self, text: str) -> None:
        self._stream.write(("\n" if self._width else "") + text + "\n")
        self._stream.flush()
        self._width = 0

    def stop(self) -> None:
        if self._width:
            self._stream.write("\n")
            self._width = 0


class LiveDisplay:
    """A panel that is redrawn four times a second, and through which nothing else writes."""

    def __init__(self, status: Status, log: Path):
        self._status, self._log = status, log
        self._saved: list[int] = []
        self._live: Live | None = None
        self._modes: list | None = None

    def start(self) -> None:
        self._modes = _hide_control_characters()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._saved = [os.dup(1), os.dup(2)]
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        self._terminal = os.fdopen(os.dup(self._saved[0]), "w", encoding="utf-8", errors="replace")
        self._console = Console(file=self._terminal, force_terminal=True)
        self._live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def _draw(self) -> RenderableType:
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._terminal.fileno())
            if size.columns:
                self._console.size = size  # pyright: ignore[reportAttributeAccessIssue]
        return panel(self._status, min(self._console.width, 120), self._console.options.ascii_only)

    def refresh(self) -> None:
        pass  # the panel redraws itself, so that a stage's clock ticks while the worker compiles

    def note(self, text: str) -> None:
        if self._live is not None:
            self._console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        live.stop()
        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSANOW, self._modes)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        self._terminal.close()


def _hide_control_characters() -> list | None:
    """Keep the terminal from writing ^C into the panel; its modes before, or None if there is no terminal."""
    try:
        before = termios.tcgetattr(0)
        modes = termios.tcgetattr(0)
        modes[3] &= ~termios.ECHOCTL
        termios.tcsetattr(0, termios.TCSANOW, modes)
    except (termios.error, OSError):
        return None
    return before


def in_kernel() -> bool:
    """Whether this is a notebook's kernel, which must not be ended."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None  # pyright: ignore[reportAttributeAccessIssue]
    return type(instance).__name__ == "ZMQInteractiveShell"


def make_display(mode: str, status: Status, log: Path) -> Display:
    """The display of `run.progress`: auto, live, plain or none."""
    if mode == "none":
        return SilentDisplay(sys.stdout)
    if in_kernel() and mode != "plain":
        return LineDisplay(status, sys.stdout)
    capable = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if mode == "plain" or not capable:
        return PlainDisplay(status, sys.stdout)
    return LiveDisplay(status, log)
