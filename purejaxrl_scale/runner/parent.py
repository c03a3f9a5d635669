"""A small process above each process of a run on several: it survives what ends the one below, and explains it.

Where one process of a run dies, JAX ends the others from C++, where nothing can be caught.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from purejaxrl_scale.runner.signals import heeded

_CHILD = "PUREJAXRL_SCALE_CHILD"  # in the child: the pipe to the parent
FAILED = 1


def is_child() -> bool:
    """Whether this process has such a parent."""
    return _CHILD in os.environ


def has_said_why() -> None:
    """Tell the parent, if there is one, that this process ends by itself and has told the user why it failed."""
    if is_child():
        os.write(int(os.environ[_CHILD]), b".")


def run_below(arguments: Sequence[str]) -> int:
    """Run the same command in a child, pass signals on to it, and give its exit code; say why where it could not."""
    told, telling = os.pipe()
    # In a group of its own: a terminal would send Ctrl-C to both, and a second signal ends a run at once.
    child = subprocess.Popen(
        [sys.executable, "-m", "purejaxrl_scale", *arguments],
        env={**os.environ, _CHILD: str(telling)},
        pass_fds=(telling,),
        start_new_session=True,
    )
    os.close(telling)

    def pass_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in heeded()}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    os.set_blocking(told, False)
    try:
        has_explained = bool(os.read(told, 1))
    except BlockingIOError:  # something that the child started still holds the pipe
        has_explained = False
    os.close(told)
    if code not in (FAILED, -signal.SIGABRT, -signal.SIGKILL) or has_explained:
        return code if code >= 0 else FAILED
    sys.stderr.write(
        "failed: this process of the run was ended from outside, most likely because another one has died or its host "
        "is gone. What was saved is safe: start all processes again with `resume RUN` in place of `train EXPERIMENT`, "
        "and the same --devices flags\n"
    )
    return FAILED
