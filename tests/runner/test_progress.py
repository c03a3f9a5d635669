import io
import math
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from purejaxrl_scale.runner import progress
from purejaxrl_scale.runner.curve import Curve, braille
from purejaxrl_scale.runner.status import Status, compact, duration, panel, plain_line

ROOT = Path(__file__).parents[2]


def make_status(score="episode/success", parts=10):
    status = Status("quickstart", "kinetix/s · 2,048 environments x 64 steps · seed 0", "runs/quickstart-0-NOW", 1000)
    for part in range(1, parts + 1):
        status.take_in({"steps": 100 * part, score: part / 10, "policy/kl_k3": 0.0041, "loss/total": None})
    status.steps_per_second, status.seconds_left = 52_123.4, 83.0
    return status


def draw(status, width, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(panel(status, width, ascii_only=options.get("legacy_windows", False)))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_fits_and_says_what_matters(width):
    text = draw(make_status(parts=6), width)
    assert {len(line) for line in text.splitlines()} == {width}
    for part in ("quickstart", "60%", "600 / 1,000 steps", "52,123", "1:23", "solved 60 %", "100 %", "KL 0.0041"):
        assert part in text, part
    assert "loss not finite" in text
    assert "runs/quickstart-0-NOW" in text


def test_the_curve_rises_from_left_to_right():
    cells = [[cell for cell in row if "⠀" <= cell <= "⣿"] for row in draw(make_status(), 80).splitlines()]
    drawn = [[cell != "⠀" for cell in row] for row in cells if row]
    firsts = [row.index(True) for row in drawn]
    assert len(drawn) == 4
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[0] > firsts[-1]


def test_stages_and_a_run_without_episodes():
    status = Status("x", "y", "z", 1000)
    status.enter("compiling")
    assert "compiling 0 s" in draw(status, 80)
    assert plain_line(status) == "  0% 0/1,000 steps | compiling 0 s"
    assert "return" not in draw(status, 80)


def test_a_return_has_its_own_scale():
    text = draw(make_status("episode/return"), 80)
    assert "return 1" in text
    assert "0.1 ┤" in text


def test_braille():
    assert braille([0.0, 1.0], 0.0, 1.0, rows=1) == ["⡜"]
    assert braille([None, None, 0.5, None], 0.0, 0.0, rows=2) == ["⠀⠀", "⠀⡀"]
    assert braille([0.0, None, None, 1.0], 0.0, 1.0, rows=1) == ["⡠⠊"]


def test_a_curve_does_not_grow():
    curve = Curve()
    for step in range(10_000):
        curve.add(step / 9_999, step)
    assert curve.columns(4) == pytest.approx([1250, 3750, 6250, 8750], abs=30)
    assert curve.latest == 9_999


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00041, "4.1e-04"),
        (1.2345, "1.23"),
        (1234.5, "1,234"),
        (2.5e6, "2.5M"),
        (3e12, "3T"),
        (-0.5, "-0.5"),
        (math.nan, "not finite"),
        (-2e9, "-2G"),
    ],
)
def test_compact(value, text):
    assert compact(value) == text


def test_duration():
    assert [duration(seconds) for seconds in (7, 754, 3723)] == ["0:07", "12:34", "1:02:03"]


def test_plain_lines_come_every_twentieth_or_ten_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    status, stream = Status("x", "y", "z", 1000), io.StringIO()
    display = progress.PlainDisplay(status, stream)
    for step in range(0, 1001, 10):
        status.take_in({"steps": step, "episode/return": 1.5})
        display.refresh()
    assert len(stream.getvalue().splitlines()) == 21
    now[0] = 11.0
    display.refresh()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 22
    assert lines[10] == " 50% 500/1,000 steps | return 1.5"
    assert "\r" not in stream.getvalue()


def test_jupyter_has_one_line_that_is_written_over(monkeypatch, tmp_path):
    class ZMQInteractiveShell:
        pass

    shell = ZMQInteractiveShell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    status = make_status()
    display = progress.make_display("auto", status, tmp_path / "run.log")
    assert isinstance(display, progress.LineDisplay)
    for _ in range(3):
        display.refresh()
    display.note("evaluated")
    display.stop()
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 2


@pytest.mark.parametrize(
    ("mode", "kind"), [("auto", "PlainDisplay"), ("plain", "PlainDisplay"), ("none", "SilentDisplay")]
)
def test_without_a_terminal_lines_are_plain(monkeypatch, tmp_path, mode, kind):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(progress.make_display(mode, make_status(), tmp_path / "log")).__name__ == kind


def test_nothing_else_writes_through_the_live_display(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, sys
        from pathlib import Path
        from purejaxrl_scale.runner.progress import LiveDisplay, make_display
        from tests.runner.test_progress import make_status

        display = make_display("auto", make_status(), Path({str(tmp_path / "run.log")!r}))
        assert isinstance(display, LiveDisplay)
        display.start()
        print("from python")
        os.write(2, b"from C++\\n")
        display.note("a note")
        display.stop()
        display.stop()
        print("afterwards")
        """
    )
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    text = shown.decode(errors="replace")
    assert child.wait(30) == 0, text
    assert "from python" not in text
    assert "from C++" not in text
    assert "quickstart" in text
    assert "a note" in text
    assert text.rstrip().endswith("afterwards")
    assert "\x1b[?25h" in text  # the cursor is back
    assert sorted((tmp_path / "run.log").read_text().splitlines()) == ["from C++", "from python"]


def test_a_last_rollout_that_overshoots_is_not_more_than_all():
    status = Status("x", "y", "z", 1)
    status.steps = 512
    assert "100% 512/512 steps" in plain_line(status)
