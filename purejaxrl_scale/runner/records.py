"""The record of a run: what each metric is, and how raw metrics of the chunk become lines of `metrics.jsonl`.

The record is the truth and only grows. A line is one JSON object. A number that is not finite is written as null,
since JSON has no other word for it; a metric of which there was no sample, such as the mean return of an interval in
which no episode ended, is absent from its line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
_LONGEST_LINE = 1 << 16
MODES = ("deterministic", "stochastic")  # of the policy in an evaluation
Number = int | float
Line = dict[str, Number | str | None]


class Metric(NamedTuple):
    """What stands under one name in the record."""

    definition: str
    estimator: str
    unit: str
    over_interval: Literal["last", "mean", "sparse", "sum", "ratio"] = "mean"  # how outer steps of an interval join


METRICS: dict[str, Metric] = {
    "steps": Metric(
        "environment steps so far, over all environments",
        "exact 64-bit count",
        "steps",
        "last",
    ),
    "outer_step": Metric(
        "outer steps so far: collect, then improve",
        "exact count",
        "outer steps",
        "last",
    ),
    "time/wall_seconds": Metric("time spent in training chunks, compilation excluded", "clock", "s", "last"),
    "time/steps_per_second": Metric("environment steps a second of the chunk", "clock", "steps/s", "last"),
    "episode/return": Metric(
        "sum of raw rewards of an episode",
        "mean over the episodes that ended in the interval",
        "reward",
        "ratio",
    ),
    "episode/length": Metric("steps of an episode", "mean over the episodes that ended", "steps", "ratio"),
    "episode/success": Metric(
        "share of episodes that reached their goal",
        "mean over the episodes that ended",
        "fraction",
        "ratio",
    ),
    "episode/count": Metric("episodes that ended in the interval", "exact count", "episodes", "sum"),
    "environment/resets": Metric("environments that were reset", "exact count", "resets", "sum"),
    "environment/nan_resets": Metric("resets because physics turned NaN", "exact count", "resets", "sum"),
    "loss/policy": Metric("surrogate, clipped or penalised, negated", "mean over samples and optimiser steps", "1"),
    "loss/value": Metric(
        "half the squared value error",
        "mean over samples and optimiser steps",
        "reward²",
    ),
    "loss/total": Metric(
        "policy loss + value_coefficient x value loss - entropy_coefficient x entropy",
        "mean over optimiser steps",
        "1",
    ),
    "policy/entropy": Metric(
        "entropy of the action distribution",
        "closed form, mean over samples and optimiser steps",
        "nats",
    ),
    "policy/entropy_one_sample": Metric(
        "the same of a tanh-squashed Gaussian, in place of policy/entropy",
        "that of the Gaussian + log slope of tanh at one fresh action a sample, mean likewise",
        "nats",
    ),
    "policy/kl_exact": Metric(
        "KL(behaviour || policy being trained)",
        "closed form, mean over samples and optimiser steps",
        "nats",
    ),
    "policy/kl_k1": Metric("the same", "k1 = -log r, r = new / behaviour, mean likewise", "nats"),
    "policy/kl_k2": Metric("the same", "k2 = ½ (log r)², mean likewise", "nats"),
    "policy/kl_k3": Metric("the same", "k3 = r - 1 - log r, mean likewise", "nats"),
    "policy/clip_fraction": Metric("share of ratios to behaviour outside 1 ± clip", "mean likewise", "fraction"),
    "policy/reference_clip_fraction": Metric(
        "share of ratios to the reference outside it", "mean likewise", "fraction"
    ),
    "outer/kl_exact": Metric(
        "PPO: KL(behaviour || policy after the update)",
        "closed form, mean over monitors.samples states of the rollout",
        "nats",
    ),
    "outer/kl_k1": Metric("the same", "k1, mean over those states", "nats"),
    "outer/kl_k2": Metric("the same", "k2, mean over those states", "nats"),
    "outer/kl_k3": Metric("the same", "k3, mean over those states", "nats"),
    "outer/kl_reference_exact": Metric(
        "KL(reference || policy after the update)", "closed form, mean over those states", "nats"
    ),
    "outer/ddr_exact": Metric(
        "PPO: data-to-divergence ratio, samples of the outer step / KL(behaviour || policy after it)",
        "by outer/kl_exact",
        "samples/nat",
        "sparse",
    ),
    "outer/ddr_k3": Metric("the same", "by outer/kl_k3", "samples/nat", "sparse"),
    "outer/behavioural_divergence": Metric(
        "share of states whose preferred action the update changed, in any component; discrete actions only",
        "mean over those states",
        "fraction",
    ),
    "outer/behavioural_divergence_kl": Metric(
        "the same for continuous actions: KL(behaviour || policy after the update)",
        "closed form, mean over those states",
        "nats",
    ),
    "outer/NAME_se": Metric("standard error of outer/NAME", "deviation over those states / root of their number", ""),
    "outer/step_length": Metric("length of the outer step in parameter space", "exact", "1"),
    "outer/step_cosine": Metric("its cosine with the last outer step's", "exact", "1"),
    "outer/gradient_norm_sq": Metric(
        "|G|², squared norm of the true gradient", "unbiased, from microbatches, mean over optimiser steps", "1"
    ),
    "outer/gradient_variance": Metric("tr Σ, variance of one sample's gradient", "unbiased, likewise", "1"),
    "outer/noise_scale": Metric(
        "gradient noise scale tr Σ / |G|²",
        "averages over about 20 outer steps, divided afterwards",
        "samples",
        "sparse",
    ),
    "outer/rollout_length": Metric("steps of the rollout, where its length adapts", "exact count", "steps"),
    "outer/adaptive_divergence": Metric(
        "what the rollout length follows",
        "mean over adaptive_batch.samples states, in outer steps that measure",
        "",
        "sparse",
    ),
    "curriculum/steps": Metric(
        "environment steps that SFL has taken to judge candidates, apart from those of training",
        "exact 64-bit count",
        "steps",
        "last",
    ),
    "curriculum/learnability": Metric(
        "SFL: p (1 - p) of the buffer's levels, p the share of episodes solved", "mean over the buffer", "1", "last"
    ),
    "curriculum/success": Metric(
        "SFL: p of the buffer's levels", "mean over those where an episode ended", "fraction", "last"
    ),
    "curriculum/score": Metric(
        "PLR: positive value loss of the buffer's levels", "mean over the buffer", "reward", "last"
    ),
    "curriculum/levels": Metric("PLR: levels in the buffer", "exact count", "levels", "last"),
    "reference/age": Metric("mean age of the weights in the reference policy", "exact", "optimiser steps"),
    "reference/age_samples": Metric("the same", "exact, at the rate of this outer step", "samples"),
    "value/chosen_action": Metric(
        "PQN: Q(s, a) of the action taken", "mean over samples and optimiser steps", "reward"
    ),
    "value/greedy_action": Metric("PQN: the largest Q(s, a)", "mean likewise", "reward"),
    "value/explained_variance": Metric(
        "1 - Var(return target - value) / Var(return target)",
        "over the rollout, with the values it was made with",
        "1",
    ),
    "optimiser/gradient_norm": Metric("global norm of the gradient before clipping", "mean over optimiser steps", "1"),
    "optimiser/learning_rate": Metric("step size of Adam, or of PQN's RAdam", "mean over optimiser steps", "1"),
    "evaluation/MODE/mean": Metric(
        "raw return of evaluation episodes; MODE is deterministic or stochastic",
        "mean over a fixed quota of finished episodes",
        "reward",
        "last",
    ),
    "evaluation/MODE/std": Metric("spread of those returns", "standard deviation, divisor n", "reward", "last"),
    "evaluation/MODE/median": Metric("middle of those returns", "median", "reward", "last"),
    "evaluation/MODE/n": Metric("finished evaluation episodes", "exact count", "episodes", "last"),
    "evaluation/MODE/unfinished": Metric(
        "evaluation episodes given up at the step cap, or ended by NaN physics",
        "exact count",
        "episodes",
        "last",
    ),
    "evaluation/MODE/length": Metric("steps of those episodes", "mean over finished episodes", "steps", "last"),
    "evaluation/MODE/success": Metric("share that reached the goal", "mean over finished episodes", "fraction", "last"),
    "evaluation/kinetix/LEVELS/SIZE": Metric(
        "share of attempts that reached the goal, by `evaluate --protocol kinetix`",
        "mean over levels; standard error over levels beside it",
        "fraction",
        "last",
    ),
}


def metrics_table() -> str:
    """METRICS as the markdown table that stands in the README."""
    rows = ["| name | definition | estimator | unit |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        cells = (f"`{name}`", *(text.replace("|", "\\|") for text in metric[:3]))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


class Recorder:
    """Raw rows of outer steps in, lines of a log interval out.

    A line is due every `log_every` outer steps, counted from the start of the run, so that neither the size of chunks
    nor a resume moves it. `pending` holds the unfinished interval and belongs into a checkpoint.
    """

    def __init__(self, log_every: int, pending: Mapping[str, list[Number]] | None = None):
        self._log_every = log_every
        self.pending: dict[str, list[Number]] = {name: list(sums) for name, sums in (pending or {}).items()}

    def add(self, row: Mapping[str, Number]) -> Line | None:
        """Take in one outer step; the line, if it completes an interval."""
        for name, value in row.items():
            sums = self.pending.setdefault(name, [0, 0])
            if _joined_by(name) == "last":
                sums[0], sums[1] = value, 1
            elif _joined_by(name) == "sparse" and not math.isfinite(value):
                continue
            else:
                sums[0] += value
                sums[1] += 1
        return self.flush() if int(row["outer_step"]) % self._log_every == 0 else None

    def flush(self) -> Line | None:
        """The line of the interval so far, which then starts anew; None if it is empty."""
        if not self.pending:
            return None
        line = line_of(self.pending)
        self.pending = {}
        return line


def _joined_by(name: str) -> str:
    if name in METRICS:
        return METRICS[name].over_interval
    return "sum" if name.endswith("_sum") else "mean"


def line_of(sums: Mapping[str, list[Number]]) -> Line:
    """One line from sums and counts of each raw metric; `NAME_sum` becomes NAME, divided by its group's count."""
    line: Line = {}
    for name, (total, count) in sums.items():
        if name.endswith("_sum"):
            members = sums.get(f"{name.rsplit('/', 1)[0]}/count", [0, 0])[0]
            if members:
                line[name.removesuffix("_sum")] = _finite(total / members)
        elif _joined_by(name) == "sparse":
            if count:
                line[name] = _finite(total / count)
        elif _joined_by(name) == "mean":
            line[name] = _finite(total / count)
        else:
            line[name] = _finite(total)
    return line


def _finite(value: Number) -> Number | None:
    return value if math.isfinite(value) else None


def raw_rows(metrics: Mapping[str, np.ndarray], member: int | None = None) -> Iterator[dict]:
    """Rows of Python numbers from a chunk's metrics [K] or, for a member of a population, [seeds, K].

    A uint32 pair NAME_high, NAME_low becomes the exact NAME. Rows that are not `valid` are left out.
    """
    arrays = {name: np.asarray(values) if member is None else values[member] for name, values in metrics.items()}
    valid = arrays.pop("valid")
    columns = {name: values[valid].tolist() for name, values in arrays.items()}
    exact = {}
    for name in sorted((name for name in columns if name.endswith("_high")), key=lambda name: name != "steps_high"):
        pairs = zip(columns.pop(name), columns.pop(name.replace("_high", "_low")), strict=True)
        exact[name.removesuffix("_high")] = [(int(high) << 32) + int(low) for high, low in pairs]
    columns = exact | columns
    for row in range(len(columns["steps"])):
        yield {name: column[row] for name, column in columns.items()}


def append(path: Path, lines: Iterable[Mapping]) -> None:
    """Add lines to a record and hand them to the operating system. Raises OSError where that fails."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if text:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def read(path: Path) -> list[Line]:
    """All complete lines of a record; a torn last one, left by a killed process, is skipped. [] without a file."""
    return [line for line, _ in _lines_with_ends(path)]


def last_line(path: Path) -> Line:
    """The last complete line of a record, without reading the rest; {} where there is none."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_LINE))
        lines = file.read().split(b"\n")[:-1]  # what follows the last newline is torn
    # The first may have lost its head.
    for raw in reversed(lines[-2:]):
        with contextlib.suppress(ValueError):
            return json.loads(raw)
    return {}


def evaluations(run: Path) -> list[Line]:
    """The lines of a run's own evaluations, one a mode each, without those of protocols."""
    return [line for line in read(run / EVALUATIONS_FILE) if "protocol" not in line]


def is_evaluated(run: Path, outer_step: int) -> bool:
    """Whether the record has both lines of an evaluation."""
    return {line["mode"] for line in evaluations(run) if line["outer_step"] == outer_step} >= set(MODES)


def cut_back(path: Path, outer_step: int) -> int:
    """Remove what was recorded after `outer_step`, and a torn last line; the number of bytes removed."""
    if not path.exists():
        return 0
    keep = 0
    for line, end in _lines_with_ends(path):
        if int(line["outer_step"] or 0) > outer_step:
            break
        keep = end
    removed = path.stat().st_size - keep
    if removed:
        os.truncate(path, keep)
    return removed


def _lines_with_ends(path: Path) -> Iterator[tuple[Line, int]]:
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for raw in file:
            end += len(raw)
            try:
                line = json.loads(raw)
            except ValueError:
                return
            if not raw.endswith(b"\n"):
                return
            yield line, end


def mean_line(lines: tuple[Line, ...]) -> Line:
    """What the display shows of a population: means over the members that have a value."""
    if len(lines) == 1:
        return lines[0]
    mean: Line = {}
    for name in dict.fromkeys(name for line in lines for name in line):
        values = [value for line in lines if isinstance(value := line.get(name), int | float)]
        mean[name] = sum(values) / len(values) if values else None
    return mean


class Returns:
    """The mean return of the episodes that ended since it was last asked for."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one outer step's raw row."""
        count = int(row.get("episode/count", 0))
        if count:
            self._total, self._count = self._total + float(row["episode/return_sum"]), self._count + count

    def take(self) -> float | None:
        """The mean; None where no episode ended, or where it is not finite."""
        mean = self._total / self._count if self._count else math.nan
        self._total, self._count = 0.0, 0
        return mean if math.isfinite(mean) else None
