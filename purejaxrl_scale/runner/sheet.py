"""A sheet of films: one agent on many levels at once, as a single GIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from purejaxrl_scale.runner.video import save_gif

STEPS_A_FRAME = 4
_SHOWN = {"s": 6, "m": 8, "l": 10}
_COLUMNS, _SIDE, _MARGIN, _TITLE = 6, 150, 5, 13
_PAPER, _INK, _UNDECIDED, _SOLVED, _FAILED = "#ffffff", "#333333", "#bbbbbb", "#009E73", "#D55E00"
_COLOURS = 96
_PAUSE = 80  # milliseconds


class Cell(NamedTuple):
    """One level's film."""

    name: str
    frames: Sequence[np.ndarray]  # uint8[height, width, 3] each
    solved: bool


def chosen(names: Sequence[str], size: str) -> list[int]:
    """Which levels of a size are shown: spread evenly over the catalogue."""
    return np.linspace(0, len(names) - 1, _SHOWN[size]).round().astype(int).tolist()


def write(cells: Sequence[Cell], path: Path) -> Path:
    """All films side by side. One that has ended stands still, framed in green where it was solved, else in red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = [[_fit(frame) for frame in cell.frames] for cell in cells]
    length = max(map(len, small))
    save_gif([_page(cells, small, time) for time in range(length)], path, _COLOURS, _PAUSE)
    return path


def _fit(frame: np.ndarray) -> Image.Image:
    return Image.fromarray(frame).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)


def _page(cells: Sequence[Cell], films: Sequence[Sequence[Image.Image]], time: int) -> Image.Image:
    width, height = _SIDE + 2 * _MARGIN, _SIDE + 2 * _MARGIN + _TITLE
    page = Image.new("RGB", (_COLUMNS * width, math.ceil(len(cells) / _COLUMNS) * height), _PAPER)
    draw = ImageDraw.Draw(page)
    for place, (cell, film) in enumerate(zip(cells, films, strict=True)):
        left, top = place % _COLUMNS * width + _MARGIN, place // _COLUMNS * height + _TITLE + _MARGIN
        over = time >= len(film) - 1
        colour = (_SOLVED if cell.solved else _FAILED) if over else _UNDECIDED
        draw.rectangle((left - 3, top - 3, left + _SIDE + 2, top + _SIDE + 2), fill=colour)
        page.paste(film[min(time, len(film) - 1)], (left, top))
        draw.text((left, top - _TITLE - 3), cell.name, fill=_INK)
    return page
