"""The figure of Kinetix's protocol: solve rates of an agent by level, by size and in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from purejaxrl_scale.analysis.plots import COLOURS, save_figure

# Solve rates over all sizes of the checkpoints published at huggingface.co/mbeukman/Kinetix-Checkpoints.
PUBLISHED = {
    "sfl-1m-envs: 1,048,576 environments, 376B steps": {"hand_made": 0.33, "random": 0.38},
    "sfl-paper: 2,048 environments, 18B steps": {"hand_made": 0.22, "random": 0.24},
}
_SOURCE = "published: model card of mbeukman/Kinetix-Checkpoints,\nmeans over all levels of the same protocol"
_SIZES: dict[str, str] = {"s": COLOURS[0], "m": COLOURS[1], "l": COLOURS[2], "all": "#555555"}
_KINDS: dict[str, str] = {"hand_made": "hand-made", "random": "random"}


def protocol_figure(name: str, lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Solve rates from the lines of one evaluation: a bar a hand-made level, a bar a size, the random levels sorted.

    Raises ValueError where the evaluation is not complete.
    """
    of: dict[tuple[str, str], Mapping[str, Any]] = {(line["levels"], line["size"]): line for line in lines}
    if missing := [key for kind in _KINDS for size in _SIZES if (key := (kind, size)) not in of]:
        raise ValueError(f"the evaluation has no {' '.join(missing[0])} levels")
    figure = Figure(figsize=(13, 13), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1), height_ratios=(1.2, 1))
    figure.suptitle(f"{name} after {lines[0]['steps']:,} steps", fontsize=12, fontweight="bold", x=0.02, ha="left")
    _levels(figure.add_subplot(grid[:, 0]), of)
    _sizes(figure.add_subplot(grid[0, 1]), of)
    _random(figure.add_subplot(grid[1, 1]), of)
    return figure


def save(name: str, lines: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw and write it as kinetix_protocol.png and .svg; their paths."""
    return save_figure(protocol_figure(name, lines), folder, "kinetix_protocol")


def _levels(axes: Axes, of: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    rates = {size: of["hand_made", size]["solve_rates"] for size in _SIZES if size != "all"}
    names = [name for levels in rates.values() for name in levels]
    values = [rate for levels in rates.values() for rate in levels.values()]
    colours = [_SIZES[size] for size, levels in rates.items() for _ in levels]
    place = np.arange(len(names))[::-1]
    axes.barh(place, values, color=colours, height=0.75)
    # A level that was never solved still shows that it was tried.
    axes.plot(np.zeros(len(names)), place, "|", color="0.6", markersize=6)
    axes.set_yticks(place, names, fontsize=7)
    axes.set_ylim(-0.8, len(names) - 0.2)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title("hand-made levels, attempts solved", fontsize=10, loc="left")
    _style(axes, "x")


def _sizes(axes: Axes, of: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    ticks: list[float] = []
    for group, kind in enumerate(_KINDS):
        for number, (size, colour) in enumerate(_SIZES.items()):
            line, place = of[kind, size], group * 5 + number
            axes.bar(
                place, line["solve_rate"], yerr=1.96 * line["se"], color=colour, width=0.8, ecolor="0.3", capsize=3
            )
            ticks.append(place)
        for style, (checkpoint, scores) in zip(("-", "--"), PUBLISHED.items(), strict=True):
            label = checkpoint if group == 0 else ""
            axes.hlines(scores[kind], group * 5 - 0.5, group * 5 + 3.5, colors="k", linestyles=style, label=label)
    axes.set_xticks(ticks, [*_SIZES] * 2)
    for group, name in enumerate(_KINDS.values()):
        axes.text(group * 5 + 1.5, -0.085, name, transform=axes.get_xaxis_transform(), ha="center", fontsize=10)
    highest = max(line["solve_rate"] + 2 * line["se"] for line in of.values())
    axes.set_ylim(0, min(1.0, max(0.55, 1.35 * highest)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title("mean over levels, with 95 % interval over levels", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="upper left", title=_SOURCE, title_fontsize=8, alignment="left")
    _style(axes, "y")


def _random(axes: Axes, of: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    for size, colour in _SIZES.items():
        if size != "all":
            rates = np.sort(list(of["random", size]["solve_rates"].values()))[::-1]
            axes.step((np.arange(len(rates)) + 1) / len(rates), rates, where="pre", color=colour, label=size)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title("random levels, attempts solved, the easiest first", fontsize=10, loc="left")
    axes.set_xlabel("share of the levels")
    axes.legend(frameon=False, loc="upper right")
    _style(axes, "y")


def _style(axes: Axes, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if grid == "x" else "y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8 if grid == "y" else 7)
