"""A small study of the outer loop on MinAtar: centre of mass, environments, and how their samples are taken up.

After Beukman et al. 2026 (arXiv 2603.06009), figures 1, 7, 8 and 9, at a scale that two CPU cores can pay for. PPO-EWMA
on `minatar_breakout` with 256, 1,024 and 4,096 environments, scaled by `fixed_minibatch` (the paper's recipe) and by
`fixed_count`, with centres of mass 2, 8, 32 and 128, three seeds each. The twelve members of one shape train as one
population. Run it with

    uv run python experiments/outer_loop_study.py

which writes experiments/results/outer_loop_study.jsonl, one line a member, and draws the figure from it; what is there
already is not trained again, so name another folder by `--output` to repeat it. `--draw` only draws.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Literal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a hit in JAX's compile cache otherwise prints pages

RESULTS = Path(__file__).parent / "results"
CENTRES = (2.0, 8.0, 32.0, 128.0)
SEEDS = (0, 1, 2)
SHAPES = (
    (256, "fixed_minibatch"),
    (1024, "fixed_minibatch"),
    (1024, "fixed_count"),
    (4096, "fixed_minibatch"),
    (4096, "fixed_count"),
)
BINS = 40


def base_config(total_steps: int):
    """`minatar_breakout` with 256 environments and a reference policy: 16 minibatches of 512 an epoch."""
    from purejaxrl_scale import load_experiment
    from purejaxrl_scale.config_io import replace

    return replace(
        load_experiment("minatar_breakout"),
        {
            "environment.num_envs": 256,
            "algorithm.reference.center_of_mass": CENTRES[0],
            "total_steps": total_steps,
            "monitors.samples": 1024,
            "monitors.behavioural_divergence": False,
            "monitors.outer_step": False,
            "monitors.noise_scale": False,
        },
    )


def train(num_envs: int, recipe: str, total_steps: int) -> list[dict]:
    """All members of one shape -> a line each, of means over `BINS` equal parts of the run."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from purejaxrl_scale import hyperparameters, make_train
    from purejaxrl_scale.outer_loop.recipes import scale
    from purejaxrl_scale.runner.compilation import enable_cache

    enable_cache()
    config = scale(base_config(total_steps), num_envs, recipe)
    trainer = make_train(config)
    members = [(center, seed) for center in CENTRES for seed in SEEDS]
    keys = jnp.stack([jax.random.key(seed) for _, seed in members])
    numbers = hyperparameters.from_config(config)
    numbers = numbers._replace(center_of_mass=jnp.array([center for center, _ in members]))
    state = trainer.init(keys, numbers)
    names = ("episode/return_sum", "episode/count", "outer/kl_k3", "policy/entropy")
    rows: dict[str, list] = {name: [] for name in names}
    done, began = 0, time.monotonic()
    while done < config.num_outer_steps:
        asked = min(config.num_outer_steps - done, max(1, config.num_outer_steps // 50))
        state, metrics = trainer.chunk(state, asked)
        for name in names:
            rows[name].append(np.asarray(metrics[name][:, :asked], np.float64))
        done += asked
        share, seconds = done / config.num_outer_steps, time.monotonic() - began
        print(
            f"\r{num_envs:,} environments, {recipe}: {share:4.0%}, {seconds / share - seconds:.0f} s left ",
            end="",
            flush=True,
        )
    print()
    columns = {name: np.concatenate(parts, axis=1) for name, parts in rows.items()}
    edges = np.linspace(0, done, min(BINS, done) + 1).round().astype(int)
    lines = []
    for index, (center, seed) in enumerate(members):
        parts = [
            {name: column[index, first:last] for name, column in columns.items()}
            for first, last in itertools.pairwise(edges)
        ]
        lines.append(
            {
                "num_envs": num_envs,
                "recipe": recipe,
                "center_of_mass": center,
                "seed": seed,
                "steps": [int(edge) * config.batch_size for edge in edges[1:]],
                "return": [float(part["episode/return_sum"].sum() / part["episode/count"].sum()) for part in parts],
                "kl_k3": [float(part["outer/kl_k3"].mean()) for part in parts],
                "ddr_k3": [_ratio(config.batch_size, float(part["outer/kl_k3"].mean())) for part in parts],
                "entropy": [float(part["policy/entropy"].mean()) for part in parts],
            }
        )
    return lines


def _ratio(samples: int, kl: float) -> float | None:
    """DDR; None where a policy that has become deterministic no longer moves."""
    return samples / kl if kl > 0 else None


def draw(lines: list[dict], path: Path) -> None:
    """Return and KL over steps at each number of environments, and the best return of each run against its DDR."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, NullFormatter

    from purejaxrl_scale.analysis.plots import COLOURS

    colours = dict(zip(CENTRES, COLOURS, strict=False))
    styles: dict[str, Literal["-", "--"]] = {"fixed_minibatch": "-", "fixed_count": "--"}
    markers = {256: "o", 1024: "s", 4096: "^"}
    figure = Figure(figsize=(13, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    for column, num_envs in enumerate(markers):
        for recipe, style in styles.items():
            for center, colour in colours.items():
                runs = _members(lines, num_envs, recipe, center)
                if not runs:
                    continue
                steps = np.array(runs[0]["steps"])
                returns = np.array([run["return"] for run in runs], float)
                axes[0, column].plot(steps, returns.mean(0), style, color=colour, linewidth=1.8)
                if recipe == "fixed_minibatch":
                    axes[0, column].fill_between(
                        steps, returns.min(0), returns.max(0), color=colour, alpha=0.15, linewidth=0
                    )
        axes[0, column].set_title(f"{num_envs:,} environments", fontsize=11, loc="left")
        axes[0, column].set_xlabel("environment steps")
    for index, name in enumerate(("kl_k3", "entropy")):
        panel = axes[1, index]
        for num_envs, marker in markers.items():
            for center, colour in colours.items():
                runs = _members(lines, num_envs, "fixed_minibatch", center)
                if runs:
                    values = np.mean([run[name] for run in runs], axis=0)
                    panel.plot(
                        runs[0]["steps"],
                        values,
                        color=colour,
                        marker=marker,
                        markevery=0.2,
                        markersize=5,
                        linewidth=1.2,
                    )
        panel.set_xlabel("environment steps")
    for panel in axes[1, :2]:
        panel.set_title("fixed_minibatch", fontsize=10, loc="left")
    axes[1, 0].set(yscale="log", ylabel="KL(behaviour || new) of an outer step [nats]")
    axes[1, 1].set(ylabel="entropy [nats]")
    for line in lines:
        ratios = [ratio for ratio in line["ddr_k3"] if ratio is not None]
        filled = line["recipe"] == "fixed_minibatch"
        colour = colours[line["center_of_mass"]]
        axes[1, 2].plot(
            np.median(ratios),
            max(line["return"]),
            markers[line["num_envs"]],
            color=colour,
            markerfacecolor=colour if filled else "white",
        )
    axes[1, 2].set(xscale="log", xlabel="median DDR of the run [samples/nat]", ylabel="best return of the run")
    axes[1, 2].xaxis.set_minor_formatter(NullFormatter())
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="0.9", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=9)
        if panel is not axes[1, 2]:
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0, 0].set_ylabel("return, mean of 3 seeds")
    limit = max(panel.get_ylim()[1] for panel in axes[0])
    for panel in axes[0]:
        panel.set_ylim(0, limit)
    handles = [Line2D([], [], color=colour, label=f"centre of mass {center:g}") for center, colour in colours.items()]
    handles += [Line2D([], [], color="0.3", linestyle=style, label=recipe) for recipe, style in styles.items()]
    handles += [
        Line2D([], [], color="0.3", marker=marker, linestyle="none", label=f"{num_envs:,} environments")
        for num_envs, marker in markers.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def _members(lines: list[dict], num_envs: int, recipe: str, center: float) -> list[dict]:
    shape = (num_envs, recipe, center)
    return [line for line in lines if (line["num_envs"], line["recipe"], line["center_of_mass"]) == shape]


def table(lines: list[dict]) -> str:
    """Means over seeds: return of the last fifth and its range, the best, KL and DDR over the run."""
    import numpy as np

    rows = [
        "| environments | recipe | centre of mass | return, last fifth (range of seeds) | best | KL, median [nats] | "
        "DDR, median [million samples/nat] |",
        "|---|---|---|---|---|---|---|",
    ]
    for num_envs, recipe in SHAPES:
        for center in CENTRES:
            runs = _members(lines, num_envs, recipe, center)
            if not runs:
                continue
            last = [np.mean(run["return"][-max(1, len(run["return"]) // 5) :]) for run in runs]
            best = np.mean([max(run["return"]) for run in runs])
            kl = np.mean([np.median(run["kl_k3"]) for run in runs])
            ddr = np.mean([np.median([one for one in run["ddr_k3"] if one is not None]) for run in runs])
            score = f"{np.mean(last):.1f} ({min(last):.1f} to {max(last):.1f})"
            rows.append(
                f"| {num_envs:,} | `{recipe}` | {center:g} | {score} | {best:.1f} | {kl:.2g} | {ddr / 1e6:.3g} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--total-steps", type=float, default=5e6, help="environment steps of each member")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of data and figure")
    parser.add_argument("--draw", action="store_true", help="draw what is there, train nothing")
    options = parser.parse_args()
    path = options.output / "outer_loop_study.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for num_envs, recipe in () if options.draw else SHAPES:
        if not any(line["num_envs"] == num_envs and line["recipe"] == recipe for line in lines):
            new = train(num_envs, recipe, int(options.total_steps))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in new)
            lines += new
    if not lines:
        raise SystemExit(f"there is nothing to draw in {path}: run it without --draw first")
    print(table(lines))
    draw(lines, options.output / "outer_loop_study.png")
    print(options.output / "outer_loop_study.png")


if __name__ == "__main__":
    main()
