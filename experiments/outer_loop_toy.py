"""The outer loop's plateau on a convex problem: what the step size and the noise do, and that history does nothing.

    uv run python experiments/outer_loop_toy.py [--output FOLDER] [--steps N] [--seeds N] [--seed N]

Noisy gradient descent on x'x stands for the outer loop: η for how far the policy moves from one rollout to the next, ε
for what a finite rollout adds to the gradient.

    x <- x - η (2 x + ε),  ε ~ N(0, σ² I),  x in R^d,  d = 50,  σ = 3 / sqrt(50)

A run with a large η soon stops improving. It has not converged: it thrashes about the optimum, at the distance where
the pull of the gradient balances the noise. After a switch to a smaller η it improves again at once, up to the
plateau of the smaller η, and after a switch back it falls again. m times the samples divide σ² by m: the plateau moves
as it does under a smaller η, but the way there is as short as before.

Source: Beukman et al. 2026, arXiv 2603.06009, the toy problem of figs. 1 and 3 and app. A. The paper gives d and σ. It
gives no step sizes, initial point or number of steps: ours are choices, so the curves agree in shape, not in numbers.
The closed forms and the averaging panel are not in the paper.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from purejaxrl_scale.analysis.plots import COLOURS

DIMENSION = 50
NOISE_STD = 3 / np.sqrt(DIMENSION)
START = np.ones(DIMENSION)
STEP_SIZES = (0.002, 0.02, 0.06, 0.2, 0.6)  # the first is too small for the default number of steps
SMALL, LARGE = 0.02, 0.2  # of the switch
SAMPLES = (1, 4, 16, 64)
LIMIT = 4.0  # standard errors between measurement and theory that are worth a word
COLOUR = dict(zip(STEP_SIZES, COLOURS, strict=False))  # one meaning of colour in all panels


class Case(NamedTuple):
    """One setting: a step size, the one it switches to in mid-run, and how many samples the gradient averages."""

    before: float
    after: float
    samples: int = 1

    @property
    def noise_std(self) -> float:
        """Of each coordinate of the averaged gradient: σ / sqrt(m)."""
        return NOISE_STD / np.sqrt(self.samples)


class Row(NamedTuple):
    """||x||² of one case over the last fifth of its steps."""

    case: Case
    measured: float
    standard_error: float
    theory: float


CONSTANT = [Case(step_size, step_size) for step_size in STEP_SIZES]
SWITCHED = [Case(LARGE, SMALL), Case(SMALL, LARGE)]
AVERAGED = [Case(step_size, step_size, samples) for samples in SAMPLES[1:] for step_size in STEP_SIZES[1:]]
CASES = CONSTANT + SWITCHED + AVERAGED


def descend(
    step_sizes: NDArray[np.float64],
    seeds: int,
    *,
    noise_std: float | NDArray[np.float64] = NOISE_STD,
    start: NDArray[np.float64] = START,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Squared norms along noisy gradient descent on x'x, f64[K, seeds, T + 1], those of the start included.

    xₜ₊₁ = xₜ - ηₜ (2 xₜ + εₜ),  εₜ ~ N(0, σ² I)

    `step_sizes` f64[K, T] holds one schedule a case, `noise_std` f64[] or f64[K] its σ, `start` f64[d] is x₀. All noise
    is drawn from `seed` and shared by no two cases or repetitions.

    Source: Beukman et al. 2026, arXiv 2603.06009, app. A.
    """
    generator = np.random.default_rng(seed)
    cases, steps = step_sizes.shape
    point = np.broadcast_to(start, (cases, seeds, start.size))
    spread = np.broadcast_to(noise_std, (cases,))[:, None, None]
    norm_sq = np.empty((cases, seeds, steps + 1))
    norm_sq[..., 0] = start @ start
    for step in range(steps):
        gradient = 2.0 * point + spread * generator.standard_normal(point.shape)
        point = point - step_sizes[:, step, None, None] * gradient
        norm_sq[..., step + 1] = np.sum(point**2, axis=-1)
    return norm_sq


def plateau(step_size: float, dimension: int, noise_std: float) -> float:
    """E||x||² in the stationary state.

    η² σ² d / (1 - (1 - 2 η)²) = η σ² d / (4 (1 - η))

    Raises ValueError outside 0 < η < 1, where there is no stationary state.
    """
    if not 0.0 < step_size < 1.0:
        raise ValueError(f"the step size must lie between 0 and 1, both excluded: it is {step_size}")
    return step_size * noise_std**2 * dimension / (4.0 * (1.0 - step_size))


def expected_norm_sq(
    step: NDArray[np.int64], step_size: float, start_norm_sq: float, dimension: int, noise_std: float
) -> NDArray[np.float64]:
    """E||xₜ||² after t steps, f64[T], of a constant step size.

    (1 - 2 η)²ᵗ ||x₀||² + p (1 - (1 - 2 η)²ᵗ),  p the plateau

    `step` i64[T] holds the t. Raises ValueError outside 0 < η < 1.
    """
    remembered = np.square(1.0 - 2.0 * step_size) ** step
    return remembered * start_norm_sq + plateau(step_size, dimension, noise_std) * (1.0 - remembered)


def schedule(case: Case, steps: int) -> NDArray[np.float64]:
    """The step size of each step, f64[T]: the case's second one from the middle on."""
    return np.where(np.arange(steps) < steps // 2, case.before, case.after)


def expected_course(case: Case, steps: int) -> NDArray[np.float64]:
    """E||xₜ||² of a case for t = 0 ... T, f64[T + 1]: after the switch a new transient, from where the old one was."""
    middle = steps // 2
    first = expected_norm_sq(np.arange(middle + 1), case.before, float(START @ START), DIMENSION, case.noise_std)
    second = expected_norm_sq(np.arange(1, steps - middle + 1), case.after, float(first[-1]), DIMENSION, case.noise_std)
    return np.concatenate([first, second])


def compare(norm_sq: NDArray[np.float64]) -> list[Row]:
    """Measurement and theory of each of CASES over the last fifth of the steps, from f64[K, seeds, T + 1].

    The steps of one run are correlated, so the standard error is that of the runs' own means.
    """
    seeds, steps = norm_sq.shape[1], norm_sq.shape[2] - 1
    last = slice(-(steps // 5), None)
    means = norm_sq[..., last].mean(axis=-1)
    errors = means.std(axis=-1, ddof=1) / np.sqrt(seeds)
    return [
        Row(case, float(mean), float(error), float(expected_course(case, steps)[last].mean()))
        for case, mean, error in zip(CASES, means.mean(axis=-1), errors, strict=True)
    ]


def report(rows: Sequence[Row]) -> str:
    """A table of all cases, then the verdict on those that deviate from theory."""
    lines = [f"{'η':>12} {'m':>4} {'E||x||²':>10} {'std error':>10} {'theory':>10} {'ratio':>7} {'plateau':>10}"]
    verdicts = []
    for case, measured, error, theory in rows:
        name = f"{case.before:g}" if case.before == case.after else f"{case.before:g} -> {case.after:g}"
        final = plateau(case.after, DIMENSION, case.noise_std)
        lines.append(
            f"{name:>12} {case.samples:>4} {measured:>10.4g} {error:>10.2g} {theory:>10.4g} {measured / theory:>7.4f} "
            f"{final:>10.4g}"
        )
        deviation = abs(measured - theory) / error
        if deviation > LIMIT:
            verdicts.append(f"η {name}, m = {case.samples}: {deviation:.1f} standard errors from theory")
    lines += [
        "m samples a step. Means over the seeds and the last fifth of the steps; theory over the same steps.",
        *(verdicts or [f"All {len(rows)} are within {LIMIT:g} standard errors of theory."]),
    ]
    return "\n".join(lines)


def draw(norm_sq: NDArray[np.float64], rows: Sequence[Row]) -> Figure:
    """The courses of all step sizes, the switch, and the plateau under averaging, from f64[K, seeds, T + 1]."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1), height_ratios=(1.1, 1))
    courses = dict(zip(CASES, norm_sq, strict=True))
    _draw_step_sizes(figure.add_subplot(grid[:, 0]), courses)
    _draw_switch(figure.add_subplot(grid[0, 1]), courses)
    _draw_averaging(figure.add_subplot(grid[1, 1]), rows)
    return figure


def _draw_step_sizes(axes: Axes, courses: dict[Case, NDArray[np.float64]]) -> None:
    for case in CONSTANT:
        norm_sq, colour = courses[case], COLOUR[case.after]
        root_mean = np.sqrt(norm_sq.mean(axis=0))
        axes.plot(np.sqrt(norm_sq[0]), color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(root_mean, color=colour, linewidth=2.2)
        _dashed_plateau(axes, case.after)
        _beside(axes, norm_sq.shape[1] - 1, root_mean[-1], f"η = {case.after:g}", colour)
    seeds = len(courses[CONSTANT[0]])
    handles = [
        Line2D([], [], color="0.3", linewidth=2.2, label=f"root mean square of {seeds} seeds"),
        Line2D([], [], color="0.3", linewidth=0.8, alpha=0.5, label="one seed"),
        Line2D([], [], color="black", linewidth=1.0, linestyle="--", label="plateau, in theory"),
    ]
    slowest = STEP_SIZES[0]
    unreached = float(np.sqrt(plateau(slowest, DIMENSION, NOISE_STD)))
    place = {"xytext": (8, -5), "textcoords": "offset points"}
    axes.annotate(f"plateau of η = {slowest:g}", (0, unreached), color=COLOUR[slowest], fontsize=9, va="top", **place)
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="lower right")
    axes.set_title("Too large a step thrashes, too small a step creeps", fontsize=12, loc="left", fontweight="bold")
    _style_course(axes)


def _draw_switch(axes: Axes, courses: dict[Case, NDArray[np.float64]]) -> None:
    halfway = (plateau(SMALL, DIMENSION, NOISE_STD) * plateau(LARGE, DIMENSION, NOISE_STD)) ** 0.25
    for case, offset, side in zip(SWITCHED, (26, -6), ("left", "right"), strict=True):
        root_mean = np.sqrt(courses[case].mean(axis=0))
        steps = len(root_mean) - 1
        middle = steps // 2
        axes.plot(np.arange(middle + 1), root_mean[: middle + 1], color=COLOUR[case.before], linewidth=2.2)
        axes.plot(np.arange(middle, steps + 1), root_mean[middle:], color=COLOUR[case.after], linewidth=2.2)
        place = {"xytext": (offset, 0), "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(f"{case.before:g} → {case.after:g}", (middle, halfway), fontsize=9, color="0.3", **place)
        _dashed_plateau(axes, case.after)
        _beside(axes, steps, root_mean[-1], f"η = {case.after:g}", COLOUR[case.after])
    axes.set_title("Switched in mid-run: history does not matter", fontsize=10, loc="left")
    _style_course(axes)


def _draw_averaging(axes: Axes, rows: Sequence[Row]) -> None:
    step_sizes = np.geomspace(0.012, 0.75)
    for samples in SAMPLES:
        case = Case(LARGE, LARGE, samples)
        theory = [plateau(size, DIMENSION, case.noise_std) for size in step_sizes]
        axes.plot(step_sizes, theory, color="black", linewidth=1.0, linestyle="--")
        _beside(axes, step_sizes[-1], theory[-1], f"m = {samples}", "0.3")
    for case, measured, _, _ in rows:
        if case.before == case.after and case.after in STEP_SIZES[1:]:
            axes.plot(case.after, measured, "o", color=COLOUR[case.after], markersize=6)
    axes.set(xscale="log", yscale="log", xlabel="step size η", ylabel="E||x||², last fifth of the steps")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("m times the samples act like a smaller step", fontsize=10, loc="left")
    _style(axes)


def _dashed_plateau(axes: Axes, step_size: float) -> None:
    height = float(np.sqrt(plateau(step_size, DIMENSION, NOISE_STD)))
    axes.axhline(height, color="black", linewidth=1.0, linestyle="--", zorder=3)


def _beside(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    place = {"xytext": (6, 0), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(text, (x, y), color=colour, fontsize=9, va="center", **place)


def _style_course(axes: Axes) -> None:
    axes.set_yscale("log")
    # A logarithm of -||x|| does not exist: ||x|| is drawn upside down and its ticks are written with the sign.
    axes.invert_yaxis()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda norm, _: f"−{norm:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="step", ylabel="−||x||")
    axes.margins(x=0)
    _style(axes)


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cases, print their table, write outer_loop_toy.png."""
    parser = argparse.ArgumentParser(description="Noisy gradient descent on x'x: plateau, switch and averaging.")
    results = Path(__file__).resolve().parent / "results"
    parser.add_argument("--output", type=Path, default=results, metavar="FOLDER", help="where the figure goes")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of each run, at least 5")
    parser.add_argument("--seeds", type=int, default=256, metavar="N", help="runs of each setting, at least 8")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all noise, at least 0")
    chosen = parser.parse_args(arguments)
    # Fewer than eight runs give a standard error too rough to judge by.
    for name, least in (("steps", 5), ("seeds", 8), ("seed", 0)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name} must be at least {least}: it is {getattr(chosen, name)}")

    step_sizes = np.stack([schedule(case, chosen.steps) for case in CASES])
    noise_std = np.array([case.noise_std for case in CASES])
    norm_sq = descend(step_sizes, chosen.seeds, noise_std=noise_std, seed=chosen.seed)
    rows = compare(norm_sq)
    path = chosen.output / "outer_loop_toy.png"
    chosen.output.mkdir(parents=True, exist_ok=True)
    draw(norm_sq, rows).savefig(path, dpi=130)
    print(f"{report(rows)}\n{path}")


if __name__ == "__main__":
    main()
