"""Figures of runs. Each is a matplotlib Figure of its own: nothing here touches pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from purejaxrl_scale.analysis.runs import Run

# Okabe and Ito's palette, told apart also by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PANELS = {
    "policy/kl_k3": "KL(behaviour || policy) [nats]",
    "policy/entropy": "entropy [nats]",
    "loss/value": "value loss",
    "value/explained_variance": "explained variance",
    "time/steps_per_second": "environment steps a second",
}
_STAND_INS = {"policy/entropy": "policy/entropy_one_sample"}  # drawn where a run has no closed form
# Drawn in this order: the smaller marker stays visible where both modes score the same.
_MARKERS = {"stochastic": ("D", 9, "white"), "deterministic": ("o", 5, None)}


def training_figure(runs: Sequence[Run]) -> Figure:
    """Return, or solve rate where the environment has goals, over environment steps, and the run's vital signs.

    Faint lines are the record, strong ones its rolling mean; markers are evaluations.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 3, height_ratios=(1.5, 1.5, 1.1))
    main = figure.add_subplot(grid[:2, :2])
    success = any("episode/success" in run.metrics for run in runs)
    main_metric = "episode/success" if success else "episode/return"
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        label = run.name if len(runs) > 1 else "training"
        _curve(main, run.metrics, main_metric, colour, label, width=2.2)
        _evaluations(main, run.evaluations, "success" if success else "mean", colour, labelled=len(runs) == 1)
    main.set_ylabel("episodes solved" if success else "episode return")
    if success:
        main.set_ylim(-0.03, 1.03)
        main.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if main.get_legend_handles_labels()[0]:
        main.legend(frameon=False, fontsize=9, loc="best")
    places = [grid[0, 2], grid[1, 2], grid[2, 0], grid[2, 1], grid[2, 2]]
    for place, (name, title) in zip(places, _PANELS.items(), strict=True):
        axes = figure.add_subplot(place)
        for index, run in enumerate(runs):
            metric = name if name in run.metrics else _STAND_INS.get(name, name)
            _curve(axes, run.metrics, metric, COLOURS[index % len(COLOURS)], None, width=1.5)
        axes.set_title(title, fontsize=10, loc="left")
        _style(axes)
        if name == "time/steps_per_second":
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_ylim(bottom=0)
        if name == "value/explained_variance":
            axes.set_ylim(max(-1.0, min(-0.05, axes.get_ylim()[0])), 1.05)
    main.set_title(_headline(runs), fontsize=12, loc="left", fontweight="bold")
    main.set_xlabel("environment steps")
    _style(main)
    return figure


def _headline(runs: Sequence[Run]) -> str:
    names = sorted({run.config.environment.name for run in runs})
    if len(runs) == 1:
        levels = ", ".join(runs[0].config.environment.levels)
        return f"{names[0]}{f' ({levels})' if levels else ''}, seed {runs[0].config.seed}"
    return f"{', '.join(names)}, {len(runs)} runs"


def _curve(axes: Axes, metrics: pd.DataFrame, name: str, colour: str, label: str | None, width: float) -> None:
    if name not in metrics:
        return
    seen = metrics.dropna(subset=[name])
    values = pd.Series(seen[name])
    window = max(1, len(seen) // 40)
    smooth = values.rolling(window, center=True, min_periods=1).mean()
    if window > 1:
        axes.plot(seen["steps"], values, color=colour, alpha=0.25, linewidth=0.8)
    marker = "o" if len(seen) < 3 else None
    axes.plot(seen["steps"], smooth, color=colour, linewidth=width, label=label, marker=marker)


def _evaluations(axes: Axes, evaluations: pd.DataFrame, name: str, colour: str, labelled: bool) -> None:
    if name not in evaluations:
        return
    for mode, (marker, size, fill) in _MARKERS.items():
        scores = evaluations.query("mode == @mode").dropna(subset=[name])
        axes.plot(
            scores["steps"],
            scores[name],
            marker,
            color=colour,
            markersize=size,
            markerfacecolor=fill or colour,
            markeredgecolor=colour,
            linestyle="none",
            clip_on=False,
            zorder=5,
            label=f"evaluation, {mode}" if labelled and len(scores) else None,
        )


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(labelsize=9)


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as NAME.png and NAME.svg; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=130)
    return paths
