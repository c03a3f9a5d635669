"""Work in a worker thread, signals in the main thread.

A Python handler runs only between two bytecodes of the main thread, so it would wait for a compilation of minutes, or
for a training chunk, if the main thread were in it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again
# A terminal that closes, or a connection that drops, sends SIGHUP; Windows has none.
# Whoever signals a whole group of processes, as job managers do, reaches this one twice where its parent passes on too.
_ECHO_SECONDS = 1.0
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def heeded() -> list[int]:
    """The signals that stop a run: not those that are ignored by inheritance, as SIGHUP is under nohup."""
    return [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


class Control:
    """What the worker and the main thread tell each other."""

    def __init__(self) -> None:
        self.stop = threading.Event()  # finish the chunk, save and return
        self.interruptible = threading.Event()  # nothing would be lost by ending at once
        self.interruptible.set()
        self.received = ""  # the signal's name
        self.received_at = -math.inf  # on the monotonic clock
        self._deadline: float | None = None

    @property
    def stopping(self) -> bool:
        return self.stop.is_set()

    def expect_progress_within(self, seconds: float | None) -> None:
        """From now on the work hangs if it is not heard of again within `seconds`; None where it may take its time."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @property
    def hangs(self) -> bool:
        deadline = self._deadline
        return deadline is not None and time.monotonic() > deadline


def supervise(
    work: Callable[[], int],
    control: Control,
    abandon: Callable[[int], None],
    give_up: Callable[[], None],
    in_kernel: bool,
) -> int:
    """Run `work` in a thread and return its exit code; answer SIGINT, SIGTERM and SIGHUP at once.

    The first signal asks the work to stop; while it is interruptible, and at a second signal, the process ends at
    once with EXIT_STOPPED, after `abandon(code)` has put the terminal in order. The same signal within a second of the
    first is its echo. In a notebook's kernel the process
    lives on: KeyboardInterrupt is raised in place of its end, and the abandoned thread returns when it next looks. Work
    that hangs ends the process with EXIT_FAILED, after `give_up()` has said so.
    """
    codes: list[int] = []
    worker = threading.Thread(target=lambda: codes.append(work()), name="training", daemon=True)

    def on_signal(number: int, _: FrameType | None) -> None:
        again, name, now = control.stopping, signal.Signals(number).name, time.monotonic()
        if again and name == control.received and now - control.received_at < _ECHO_SECONDS:
            return
        control.received, control.received_at = name, now
        control.stop.set()
        if again or control.interruptible.is_set():
            abandon(EXIT_STOPPED)
            if in_kernel:
                raise KeyboardInterrupt
            os._exit(EXIT_STOPPED)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in heeded()} if main else {}
    try:
        worker.start()
        while worker.is_alive():
            worker.join(0.2)  # a join without a limit would keep handlers waiting
            if control.hangs:
                give_up()
                os._exit(EXIT_FAILED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes[0] if codes else EXIT_FAILED
