"""The summary of one run or several: a page, with the figure and, if there is one, the film."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from purejaxrl_scale.analysis.plots import save_figure, training_figure
from purejaxrl_scale.analysis.runs import Run, load_run
from purejaxrl_scale.environments.interface import RenderUnavailable
from purejaxrl_scale.runner import video

PyTree = Any
FOLDER = "report"
_FILMS = ("agent.gif", "agent.mp4", "agent.html")


def write_report(runs: Sequence[Run], folder: Path | None = None, film_caption: str = "") -> list[Path]:
    """Write figure.png, figure.svg and index.md; their paths, the page first.

    `folder` is the run's own report folder if there is one run, and must be named for several.
    """
    folder = folder or runs[0].path / FOLDER
    figures = save_figure(training_figure(runs), folder, "figure")
    page = folder / "index.md"
    page.write_text(_page(runs, folder, film_caption), encoding="utf-8")
    return [page, *figures]


def _page(runs: Sequence[Run], folder: Path, film_caption: str) -> str:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    parts = [f"# {title}", "![training](figure.png)"]
    for film in _FILMS if len(runs) == 1 else ():
        if (folder / film).exists():
            show = f"![agent]({film})" if film.endswith(".gif") else f"[The agent]({film})"
            parts.append(show + (f"\n\n*{film_caption}*" if film_caption else ""))
    parts += [_overview(runs), _scores(runs), _protocol(runs, folder)]
    if len(runs) == 1:
        parts.append(_circumstances(runs[0]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _overview(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        metrics, environment = run.metrics, run.config.environment
        last = metrics.iloc[-1] if len(metrics) else {}
        seconds, steps = float(last.get("time/wall_seconds", 0.0)), int(last.get("steps", 0))
        rows.append(
            [
                run.name,
                environment.name + (f" ({', '.join(environment.levels)})" if environment.levels else ""),
                str(run.config.seed),
                f"{steps:,}",
                f"{seconds:,.0f} s",
                f"{steps / seconds:,.0f}" if seconds else "-",
            ]
        )
    return "## Training\n\n" + _table(["run", "environment", "seed", "steps", "training time", "steps/s"], rows)


def _scores(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        if not len(run.evaluations):
            continue
        for _, line in run.evaluations[run.evaluations["steps"] == run.evaluations["steps"].max()].iterrows():
            cells = [f"{line[name]:.4g}" if name in line and line[name] == line[name] else "-" for name in _SCORES]
            rows.append([run.name, f"{int(line['steps']):,}", str(line["mode"]), *cells])
    return "## Evaluation\n\n" + _table(["run", "steps", "mode", *_SCORES], rows) if rows else ""


def _protocol(runs: Sequence[Run], folder: Path) -> str:
    rows = [
        [
            run.name,
            f"{line['steps']:,}",
            line["levels"].replace("_", "-"),
            line["size"],
            f"{line['solve_rate']:.3f} ± {line['se']:.3f}",
            f"{line['n']} x {line['attempts']}",
        ]
        for run in runs
        for line in run.protocol
    ]
    if not rows:
        return ""
    head = ["run", "steps", "levels", "size", "solve rate ± standard error", "levels x attempts"]
    parts = ["## Kinetix's protocol", _table(head, rows)]
    if len(runs) == 1:
        parts += [f"![{name}]({name})" for name in _PROTOCOL_PICTURES if (folder / name).exists()]
    return "\n\n".join(parts)


_PROTOCOL_PICTURES = ("kinetix_protocol.png", "kinetix_sheet.gif")
_SCORES = ("mean", "std", "median", "success", "length", "n", "unfinished")


def _circumstances(run: Run) -> str:
    environment = run.environment
    versions = {name: version for name, version in environment.get("versions", {}).items() if version}
    devices = ", ".join(f"{one['count']} x {one['kind']}" for one in environment.get("devices", []))
    rows = [["devices", devices or "-"], ["commit", environment.get("git_commit") or "-"]]
    rows += [[name, version] for name, version in versions.items()]
    return "## Circumstances\n\nThe config is in `config.yaml`.\n\n" + _table(["what", "value"], rows)


def write_reports(members: Sequence[Path], trainer: Any, learner: PyTree) -> list[str]:
    """The reports of a run that has just ended, and of the first member a film; sentences that say where they are."""
    run = load_run(members[0])
    words, caption = [], ""
    try:
        made = video.film(trainer, learner, run.config.seed, run.path / FOLDER, deterministic=_better_mode(run))
        caption = made.caption
        words.append(f"film    {made.path} ({caption})")
    except RenderUnavailable as fault:
        words.append(f"no film: {fault}")
    for member in members:
        page, figure, *_ = write_report([load_run(member)], film_caption=caption if member == members[0] else "")
        words[:0] = [f"figure  {figure}", f"report  {page}"]
    return words


def _better_mode(run: Run) -> bool:
    """Whether the deterministic policy scored at least as well in the last evaluation."""
    if "mean" not in run.evaluations:
        return True
    last = run.evaluations.query("steps == steps.max()")
    means = dict(zip(last["mode"], last["mean"], strict=True))
    return not means.get("stochastic", -math.inf) > means.get("deterministic", -math.inf)


def main(runs: Sequence[str | Path]) -> int:
    """Write the report of runs and print where it is. Several are overlaid, in a folder beside them. Exit code."""
    loaded = [load_run(run) for run in runs]
    folder = None if len(loaded) == 1 else loaded[0].path.parent / f"report-{len(loaded)}-from-{loaded[0].name}"
    console = Console(highlight=False)
    for path in write_report(loaded, folder):
        console.print(str(path), markup=False, soft_wrap=True)
    return 0
