"""Does `kinetix_sfl_s --preset cpu` learn in twenty minutes? Solve rates on the protocol's random small levels.

Three seeds are trained, each for twenty minutes. Every few minutes, and in the end, the agent plays the 512 random
levels of size s of Kinetix's protocol, once each on the way and 5 times at the end, as does a policy that draws its
actions uniformly. The interval is a 95 % bootstrap over seeds and levels. Run it with

    uv run python experiments/kinetix_health.py

which writes experiments/results/kinetix_health.jsonl, one line a seed, and draws the figure from it; what is there
already is not trained again, so name another folder by `--output` to repeat it. `--draw` only draws.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a hit in JAX's compile cache otherwise prints pages

RESULTS = Path(__file__).parent / "results"
FILE = "kinetix_health"
SEEDS = (0, 1, 2)
POINTS = 6


def uniform_policy(learner):
    """The learner with all parameters 0: every action is as likely as any other."""
    import jax
    import jax.numpy as jnp

    return learner._replace(learnt=learner.learnt._replace(params=jax.tree.map(jnp.zeros_like, learner.params)))


def play(trainer, learner, levels, label: str) -> list[float]:
    """The share of its attempts that the learner solves on each level."""
    import numpy as np

    from purejaxrl_scale.runner import protocol

    result = np.zeros(0)
    for result, _ in protocol.play_all(trainer, learner, levels):
        print(f"\r{label}: {(result != 0).mean():4.0%} of {len(result):,} attempts ", end="", flush=True)
    print("\r" + " " * 70, end="\r")
    return [round(rate, 3) for rate in protocol.solve_rates(levels, result).values()]


def train(seed: int, minutes: float) -> dict:
    """One seed for so many minutes of training, and what it and the uniform policy solve."""
    import jax
    import numpy as np

    from purejaxrl_scale import load_experiment, make_train
    from purejaxrl_scale.config_io import replace
    from purejaxrl_scale.runner import protocol
    from purejaxrl_scale.runner.compilation import enable_cache

    enable_cache()
    config = replace(load_experiment("kinetix_sfl_s", "cpu"), {"seed": seed})
    trainer = make_train(config)
    levels = protocol.level_set(config.environment, "s")
    random = np.char.find(levels.names, "/random/") >= 0
    levels = levels._replace(
        names=tuple(np.array(levels.names)[random].tolist()),
        attempts=levels.attempts[random],
        states=jax.tree.map(lambda leaf: leaf[random], levels.states),
    )
    once = levels._replace(attempts=np.ones_like(levels.attempts))
    state = trainer.init(jax.random.key(seed))
    uniform = play(trainer, uniform_policy(state.learner), levels, "uniform policy")
    print(f"uniform policy: {np.mean(uniform):.1%} solved\nseed {seed}: compiling", flush=True)
    began, spent, points, trained = time.monotonic(), 0.0, [], 0
    while True:
        state, _ = trainer.chunk(state, 4)
        jax.block_until_ready(state)
        spent = time.monotonic() - began - sum(point["playing"] for point in points)
        trained += 4
        print(f"\rseed {seed}: {spent / 60:.1f} of {minutes:g} minutes ", end="", flush=True)
        ends = spent / 60 >= minutes or trained >= config.num_outer_steps
        if ends or spent / 60 >= minutes * (len(points) + 1) / POINTS:
            since = time.monotonic()
            rates = play(trainer, state.learner, levels if ends else once, f"seed {seed}, after {spent / 60:.1f} min")
            steps = trained * config.batch_size
            point = {"steps": steps, "seconds": round(spent), "solve_rate": float(np.mean(rates))}
            points.append(point | {"playing": time.monotonic() - since})
            print(f"seed {seed}: {steps:,} steps in {spent / 60:.1f} minutes: {np.mean(rates):.1%} solved", flush=True)
            if ends:
                break
    points = [{name: point[name] for name in ("steps", "seconds", "solve_rate")} for point in points]
    return {"seed": seed, "points": points, "solve_rates": rates, "uniform": uniform}


def interval(lines: list[dict], draws: int = 10_000) -> dict[str, tuple[float, float, float]]:
    """Mean and 95 % bootstrap bounds over seeds and levels: of agent, uniform policy, and their difference by level."""
    import numpy as np

    agent = np.array([line["solve_rates"] for line in lines])
    uniform = np.broadcast_to(np.array([line["uniform"] for line in lines]), agent.shape)
    rng = np.random.default_rng(0)
    out = {}
    for name, values in (("agent", agent), ("uniform", uniform), ("difference", agent - uniform)):
        seeds, levels = values.shape
        means = [
            values[rng.integers(seeds, size=seeds)][:, rng.integers(levels, size=levels)].mean() for _ in range(draws)
        ]
        low, high = np.quantile(means, [0.025, 0.975])
        out[name] = (float(values.mean()), float(low), float(high))
    return out


def draw(lines: list[dict], path: Path) -> None:
    """Solve rate over minutes of training, a curve a seed, and the interval at the end beside the uniform policy."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MultipleLocator, PercentFormatter

    from purejaxrl_scale.analysis.plots import COLOURS

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    uniform = float(np.mean(lines[0]["uniform"]))
    for line, colour in zip(lines, COLOURS, strict=False):
        minutes = [0, *(point["seconds"] / 60 for point in line["points"])]
        rates = [uniform, *(point["solve_rate"] for point in line["points"])]
        axes.plot(minutes, rates, "o-", color=colour, markersize=4, label=f"seed {line['seed']}")
    mean, low, high = interval(lines)["agent"]
    end = max(line["points"][-1]["seconds"] for line in lines) / 60
    axes.errorbar([1.03 * end], [mean], [[mean - low], [high - mean]], fmt="s", color="0.2", capsize=4)
    axes.annotate(f"{mean:.1%}", (1.03 * end, mean), textcoords="offset points", xytext=(8, -3), fontsize=9)
    axes.axhline(uniform, color="0.4", linestyle="--", label=f"uniform policy, {uniform:.1%}")
    axes.set_title("kinetix_sfl_s --preset cpu on the protocol's 512 random small levels", fontsize=11, loc="left")
    axes.set(xlabel="minutes, compiling included", ylabel="levels solved", xlim=(0, 1.12 * end))
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20, help="of training each seed, compiling included")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of data and figure")
    parser.add_argument("--draw", action="store_true", help="draw what is there, train nothing")
    options = parser.parse_args()
    path = options.output / f"{FILE}.jsonl"

    def known() -> list[dict]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    for seed in () if options.draw else options.seeds:
        if seed not in [line["seed"] for line in known()]:
            line = train(seed, options.minutes)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
    lines = sorted(known(), key=lambda line: line["seed"])
    if not lines:
        raise SystemExit(f"there is nothing to draw in {path}: run it without --draw first")
    for name, (mean, low, high) in interval(lines).items():
        print(f"{name:11}{mean:6.1%}  [{low:.1%}, {high:.1%}]")
    draw(lines, options.output / f"{FILE}.png")
    print(options.output / f"{FILE}.png")


if __name__ == "__main__":
    main()
