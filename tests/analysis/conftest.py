"""Runs that were never trained: what analysis reads is files."""

import dataclasses
import json

import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, EnvironmentConfig
from purejaxrl_scale.runner import records


@pytest.fixture
def make_run(tmp_path):
    def make(name="cartpole-0-NOW", seed=0, success=False, lines=60, **algorithm):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        config = Config(seed=seed, environment=EnvironmentConfig(name="gymnax/CartPole-v1"))
        config = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, **algorithm))
        config_io.save(config, run / "config.yaml")
        (run / "environment.json").write_text(json.dumps({"versions": {"jax": "0.9.0"}, "devices": []}))
        rows = []
        for step in range(1, lines + 1):
            row = {"steps": 2**31 * step, "outer_step": step, "policy/entropy": 0.7 - step / 200}
            row |= {"policy/kl_k3": None if step == 3 else 0.01 / step, "loss/value": 30.0 / step}
            row |= {"value/explained_variance": step / lines, "time/wall_seconds": step * 2.0}
            row |= {"time/steps_per_second": 1e6}
            if step % 2:
                row |= {"episode/return": 8.0 * step + seed}
                row |= {"episode/success": step / lines} if success else {}
            rows.append(row)
        records.append(run / "metrics.jsonl", rows)
        scores = [
            {"steps": 2**31 * step, "outer_step": step, "mode": mode, "mean": 7.0 * step, "std": 1.0, "median": 6.0}
            | ({"success": 0.9} if success else {})
            | {"n": 128, "unfinished": 0}
            for step in (lines // 2, lines)
            for mode in ("deterministic", "stochastic")
        ]
        records.append(run / "evaluations.jsonl", scores)
        return run

    return make
