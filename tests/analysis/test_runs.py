import numpy as np
import pytest

from purejaxrl_scale.analysis.runs import load_run, load_runs
from purejaxrl_scale.runner.folders import RunError


def test_a_run_comes_back_as_it_was_recorded(make_run):
    run = load_run(make_run(seed=5))
    assert run.config.seed == 5
    assert run.metrics["steps"].tolist() == [2**31 * step for step in range(1, 61)]
    assert run.metrics["steps"].dtype == np.int64
    assert np.isnan(run.metrics["policy/kl_k3"][2])  # null
    assert run.metrics["episode/return"].isna().tolist() == [step % 2 == 0 for step in range(1, 61)]  # absent
    assert run.evaluations["mode"].tolist() == ["deterministic", "stochastic"] * 2
    assert run.environment["versions"] == {"jax": "0.9.0"}


def test_a_record_that_is_being_written_can_be_read(make_run):
    path = make_run()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"outer_step": 61, "ste')
    assert len(load_run(path).metrics) == 60


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is no run"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="no run matches"):
        load_runs(tmp_path / "*")


def test_a_run_without_a_checkpoint_has_no_policy(make_run):
    with pytest.raises(RunError, match="no checkpoint"):
        load_run(make_run()).policy(np.zeros(4), deterministic=True)


def test_several_runs_are_one_tidy_frame(make_run):
    first = make_run("a-0-NOW", seed=0, learning_rate=1e-3)
    make_run("a-1-NOW", seed=1, learning_rate=2e-3, lines=10)
    frame = load_runs(first.parent / "a-*")
    assert len(frame) == 70
    assert list(frame.columns[:4]) == ["run", "seed", "environment", "algorithm.learning_rate"]
    assert frame.groupby("seed")["algorithm.learning_rate"].unique().tolist() == [[1e-3], [2e-3]]
    assert frame["run"].unique().tolist() == ["a-0-NOW", "a-1-NOW"]
