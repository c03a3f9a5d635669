"""What the display of a run shows, and how it looks: one line of text, or a panel."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from purejaxrl_scale.runner.curve import Curve, braille

_CURVE_ROWS = 4
_SCORES = {"episode/success": "solved", "episode/return": "return"}
_DETAILS = {
    "policy/kl_k3": "KL",
    "loss/total": "loss",
    "policy/entropy": "entropy",
    "policy/entropy_one_sample": "entropy",
    "value/explained_variance": "expl. var.",
}


@dataclass
class Status:
    """What the display shows."""

    title: str
    summary: str
    record: str
    total_steps: int
    steps: int = 0
    steps_per_second: float | None = None
    seconds_left: float | None = None
    stage: str = ""  # what goes on instead of training
    stage_started: float = 0.0
    compiled: str = ""
    latest: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))

    def enter(self, stage: str) -> None:
        """Show a stage and the time since it began; "" for training itself."""
        self.stage, self.stage_started = stage, time.monotonic()

    def take_in(self, line: Mapping[str, float | str | None]) -> None:
        """Move on by a line of the record."""
        self.steps = max(self.steps, int(line.get("steps") or 0))
        for name, value in line.items():
            if isinstance(value, int | float):
                self.latest[name] = value
                if name in _SCORES:
                    self.curves.setdefault(name, Curve()).add(self.steps / self.total_steps, value)
            elif value is None and name in _DETAILS:
                self.latest[name] = math.nan

    @property
    def goal(self) -> int:
        """Steps at the end; a last rollout whose length adapts goes beyond those asked for."""
        return max(self.total_steps, self.steps)

    @property
    def share(self) -> float:
        return min(1.0, self.steps / self.total_steps)

    def score(self) -> tuple[str, str, Curve] | None:
        """Word, text and curve of the solve rate, or else of the return; None before an episode has ended."""
        for name, word in _SCORES.items():
            if name in self.curves:
                curve = self.curves[name]
                return word, _score_text(name, curve.latest or 0.0), curve
        return None


def _score_text(name: str, value: float) -> str:
    return f"{100 * value:.0f} %" if name == "episode/success" else compact(value)


def compact(value: float) -> str:
    """A number in few characters: 0.00123, 1.23, 1,234, 1.2M."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 1e6:
        for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if abs(value) >= limit:
                return f"{value / limit:.3g}{letter}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def plain_line(status: Status) -> str:
    """The status in one line without colours."""
    parts = [f"{status.share:4.0%} {status.steps:,}/{status.goal:,} steps"]
    if status.stage:
        return f"{parts[0]} | {status.stage} {time.monotonic() - status.stage_started:.0f} s"
    if status.steps_per_second:
        parts.append(f"{compact(status.steps_per_second)} steps/s")
    if score := status.score():
        parts.append(f"{score[0]} {score[1]}")
    parts += [f"{word} {compact(status.latest[name])}" for name, word in _DETAILS.items() if name in status.latest]
    if status.seconds_left is not None:
        parts.append(f"{duration(status.seconds_left)} left")
    return " | ".join(parts)


def panel(status: Status, width: int, ascii_only: bool = False) -> RenderableType:
    """The status as a panel `width` characters wide."""
    inner = width - 4
    lines: list[RenderableType] = [
        Text(status.summary, style="dim", overflow="ellipsis", no_wrap=True),
        Text(""),
    ]
    bar = Table.grid(expand=True)
    bar.add_column(ratio=1)
    bar.add_column(width=7, justify="right")
    bar.add_row(
        ProgressBar(
            total=1.0,
            completed=status.share,
            complete_style="cyan",
            finished_style="green",
        ),
        Text(f"{status.share:.0%}", style="bold"),
    )
    lines += [bar, _pace(status), Text("")]
    score = status.score()
    if score is not None:
        lines += [*_curve(score, inner, ascii_only), Text("")]
    details = [_pair(word, compact(status.latest[name])) for name, word in _DETAILS.items() if name in status.latest]
    if details:
        lines.append(_spread(details))
    if status.compiled:
        lines.append(Text(status.compiled, style="dim", overflow="ellipsis", no_wrap=True))
    # The path wraps rather than losing its end, for it is there to be copied.
    lines.append(Text(f"record  {status.record}", style="dim", overflow="fold"))
    return Panel(
        Group(*lines),
        title=Text(f" {status.title} ", style="bold"),
        title_align="left",
        border_style="cyan" if status.share < 1 else "green",
        width=width,
        padding=(0, 1),
    )


def _pace(status: Status) -> RenderableType:
    steps = Text(f"{status.steps:,} / {status.goal:,} steps")
    if status.stage:
        status.spinner.update(
            text=Text(
                f"{status.stage} {time.monotonic() - status.stage_started:.0f} s",
                style="cyan",
            )
        )
        return _spread([steps, status.spinner], first_ratio=None)
    rate = _pair("steps/s", compact(status.steps_per_second)) if status.steps_per_second else Text("")
    left = _pair("left", duration(status.seconds_left)) if status.seconds_left is not None else Text("")
    return _spread([steps, Text.assemble("    ", rate), left], first_ratio=None)


def _pair(word: str, value: str) -> Text:
    style = "bold red" if value == "not finite" else "bold"
    return Text.assemble((word, "dim"), " ", (value, style))


def _spread(cells: Iterable[RenderableType], first_ratio: int | None = 1) -> Table:
    cells = list(cells)
    grid = Table.grid(expand=True)
    for index in range(len(cells)):
        is_last = index == len(cells) - 1 and index > 0
        ratio = 1 if index else first_ratio
        grid.add_column(justify="right" if is_last else "left", ratio=ratio, no_wrap=True)
    grid.add_row(*cells)
    return grid


def _curve(score: tuple[str, str, Curve], width: int, ascii_only: bool) -> list[RenderableType]:
    word, text, curve = score
    headline = Text.assemble((word, "dim"), " ", (text, "bold green"))
    if ascii_only:
        return [headline]
    low, high = (0.0, 1.0) if word == "solved" else curve.limits()
    labels = ("100 %", "0 %") if word == "solved" else (compact(high), compact(low))
    margin = max(map(len, labels)) + 1
    drawn = braille(curve.columns(2 * (width - margin - 1)), low, high, _CURVE_ROWS)
    sides = [labels[0], *[""] * (_CURVE_ROWS - 2), labels[1]]
    rows = [
        Text.assemble(
            (side.rjust(margin - 1), "dim"),
            " ",
            ("┤" if side else "│", "dim"),
            (row, "green"),
        )
        for side, row in zip(sides, drawn, strict=True)
    ]
    return [headline, *rows]
