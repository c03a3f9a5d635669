"""Intervals and figure of the Kinetix health check, from made-up lines; its training is that of the package."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "kinetix_health.py"
spec = importlib.util.spec_from_file_location("kinetix_health", SCRIPT)
health = importlib.util.module_from_spec(spec)
spec.loader.exec_module(health)


def made_up() -> list[dict]:
    """Three seeds on 400 levels that a uniform policy solves 3 times in 10, and the agent 4, 5 and 6 times in 10."""
    rng = np.random.default_rng(0)
    uniform = rng.binomial(5, 0.3, 400) / 5
    points = [{"steps": 1000, "seconds": 60, "solve_rate": 0.4}, {"steps": 2000, "seconds": 120, "solve_rate": 0.5}]
    return [
        {
            "seed": seed,
            "points": points,
            "solve_rates": (rng.binomial(5, rate, 400) / 5).tolist(),
            "uniform": list(uniform),
        }
        for seed, rate in enumerate((0.4, 0.5, 0.6))
    ]


def test_intervals_hold_the_truth_and_take_in_seeds_and_levels():
    found = health.interval(made_up())
    for name, truth in (("agent", 0.5), ("uniform", 0.3), ("difference", 0.2)):
        mean, low, high = found[name]
        assert low < truth < high
        assert abs(mean - truth) < 0.03
    # Of independent levels: sqrt(p (1 - p) / (5 x 400)) twice to either side, and no seeds to differ.
    _, low, high = found["uniform"]
    np.testing.assert_allclose(high - low, 2 * 1.96 * np.sqrt(0.3 * 0.7 / 2000), rtol=0.15)
    # Seeds 0.1 apart: their standard deviation over the root of 3 adds to the levels'.
    _, low, high = found["agent"]
    expected = 2 * 1.96 * np.sqrt(np.var([0.4, 0.5, 0.6]) / 3 + 0.5 * 0.5 / 2000 / 3)
    np.testing.assert_allclose(high - low, expected, rtol=0.25)


def test_data_becomes_a_figure_without_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "kinetix_health.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made_up()))
    monkeypatch.setattr("sys.argv", ["kinetix_health.py", "--draw", "--output", str(tmp_path)])
    health.main()
    assert (tmp_path / "kinetix_health.png").stat().st_size > 10_000
    assert "agent" in capsys.readouterr().out


def test_nothing_to_draw_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["kinetix_health.py", "--draw", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="nothing to draw"):
        health.main()


def test_the_uniform_policy_is_uniform():
    import jax

    from purejaxrl_scale import make_train
    from purejaxrl_scale.config import Config

    trainer = make_train(Config(total_steps=4096))
    learner = health.uniform_policy(trainer.init(jax.random.key(0)).learner)
    observation = 10 * jax.random.normal(jax.random.key(1), (4000, 4))
    keys = jax.random.split(jax.random.key(2), 4000)
    action, *_ = trainer.act(learner, (), observation, np.zeros(4000, bool), keys, deterministic=False)
    assert abs(np.mean(np.asarray(action)) - 0.5) < 4 * 0.5 / np.sqrt(4000)
