"""The study's table and figure, from made-up lines; its training is that of the package."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "outer_loop_study.py"
spec = importlib.util.spec_from_file_location("outer_loop_study", SCRIPT)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def made_up():
    """Return 10 + seed at each of ten points, KL 0.01, and one point at which the policy did not move."""
    return [
        {
            "num_envs": num_envs,
            "recipe": recipe,
            "center_of_mass": center,
            "seed": seed,
            "steps": list(range(100, 1100, 100)),
            "return": [10.0 + seed] * 10,
            "kl_k3": [0.01] * 9 + [0.0],
            "ddr_k3": [num_envs * 32 / 0.01] * 9 + [None],
            "entropy": [0.5] * 10,
        }
        for num_envs, recipe in study.SHAPES[:3]
        for center in study.CENTRES
        for seed in study.SEEDS
    ]


def test_table_by_hand():
    rows = study.table(made_up()).splitlines()
    assert len(rows) == 2 + 3 * 4
    assert rows[2] == "| 256 | `fixed_minibatch` | 2 | 11.0 (10.0 to 12.0) | 11.0 | 0.01 | 0.819 |"


def test_data_becomes_a_figure_without_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "outer_loop_study.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made_up()))
    monkeypatch.setattr("sys.argv", ["outer_loop_study.py", "--draw", "--output", str(tmp_path)])
    study.main()
    assert (tmp_path / "outer_loop_study.png").stat().st_size > 10_000
    assert "| 1,024 | `fixed_count` | 128 |" in capsys.readouterr().out


def test_nothing_to_draw_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["outer_loop_study.py", "--draw", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="nothing to draw"):
        study.main()


def test_recipes_of_the_study_are_those_of_the_paper():
    from purejaxrl_scale.outer_loop.recipes import scale

    base = study.base_config(1_000_000)
    assert base.num_minibatches == 16
    for num_envs, recipe in study.SHAPES:
        scaled = scale(base, num_envs, recipe)
        growth = num_envs // 256
        assert scaled.num_minibatches == (16 * growth if recipe == "fixed_minibatch" else 16)
        assert scaled.algorithm.minibatch_size == (512 if recipe == "fixed_minibatch" else 512 * growth)


def test_a_policy_that_does_not_move_has_no_ratio():
    assert study._ratio(100, 0.0) is None
    assert np.isclose(study._ratio(100, 0.5), 200)
