"""What `plan` says, and what `train` refuses."""

import re

import pytest

from purejaxrl_scale import cli, config_io, plan
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.named_experiments import find_experiment
from purejaxrl_scale.runner import memory
from purejaxrl_scale.runner.memory import Planner


@pytest.fixture(scope="module")
def config() -> Config:
    return config_io.replace(
        find_experiment("cartpole").config,
        {"devices.count": 1, "environment.num_envs": 2**14, "algorithm.minibatch_size": 2**16},
    )


@pytest.fixture(scope="module")
def planner(config):
    return Planner(config, 1)


def test_the_largest_number_of_environments_fits_and_the_next_does_not(config, planner):
    total = planner.total(config)
    for available in (total // 3, 10 * total):
        most = plan.largest(planner.total, config, total, available)
        step = 512  # 2^16 samples of 128 steps
        assert most % step == 0
        one_more = config_io.replace(config, {"environment.num_envs": most + step})
        assert planner.total(config_io.replace(config, {"environment.num_envs": most})) <= available
        assert planner.total(one_more) > available
    assert plan.largest(planner.total, config, total, 1000) == 0
    # Sample indices are int32.
    assert plan.largest(planner.total, config, total, 10**15) == (2**31 - 1) // 128 // step * step


def test_minibatches_of_one_size_need_not_divide_rollouts_that_adapt():
    config = config_io.replace(
        find_experiment("abs_minatar_breakout").config,
        {
            "devices.count": 1,
            "environment.num_envs": 24,
            "algorithm.adaptive_batch.minibatches": "fixed_size",
            "algorithm.minibatch_size": 104,
        },
    )
    assert problems(config) == []
    planner = Planner(config, 1)
    total = planner.total(config)
    most = plan.largest(planner.total, config, total, 2 * total)
    assert most > 24
    assert problems(config_io.replace(config, {"environment.num_envs": most})) == []
    assert plan.largest(planner.total, config, total, total) >= 24


def test_alternatives_are_legal_and_need_less(config, planner):
    total = planner.total(config)
    found = dict(plan.alternatives(planner.total, config, total))
    assert all(size < total for size in found.values())
    text = "\n".join(found)
    for name in ("rollout_length", "block_size", "observation_storage", "monitors.kl"):
        assert name in text
    for change in found:
        words = change.split()
        changes = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
        changed, faults = config_io.override(config, changes)
        assert not faults
        assert planner.total(changed) == found[change]


def test_command(capsys):
    arguments = ["plan", "cartpole", "--environment.num_envs", "16384", "--devices.count", "1"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    for part in ("environment state", "observations", "trajectory", "optimiser", "activations", "physics"):
        assert part in printed
    assert re.search(r"MB on each of 1 device\(s\); resident about 950 MB in all, .*: it fits in \d+\.\d GB", printed)
    assert re.search(r"most environments that fit, all else equal: \d+,\d+", printed)
    assert cli.main([*arguments, "--memory", "10MB", "--accelerator"]) == 1
    printed = capsys.readouterr().out
    assert "does not fit in 10.0 MB" in printed
    assert "--algorithm.microbatch_size" in printed


def test_bad_sizes_are_refused(capsys):
    assert cli.main(["plan", "cartpole", "--memory", "80 apples"]) == 2
    assert "--memory: a size of memory is written as 80GB or 24GiB" in capsys.readouterr().err


def test_train_refuses_what_cannot_fit_before_it_makes_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan, "of_device", lambda devices: 4_000_000)
    monkeypatch.setattr(memory, "_COMPILING", {})
    monkeypatch.setattr(memory, "_LOADED", {})
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "cartpole", "--devices.count", "1"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"the run needs \d+\.\d MB on each of 1 device\(s\) with JAX and its compiler, which have 4.00 MB", error
    )
    assert "--algorithm.rollout_length 64 needs" in error
    assert not list(tmp_path.iterdir())


def test_train_says_what_it_needs(config):
    said = plan.check(config)
    assert re.fullmatch(r"about 950 MB on each of 1 device\(s\) with JAX and its compiler, which have .* GB", said)


def test_what_jax_takes_beside_the_run_counts(config, planner, monkeypatch):
    """The state is there again, twice, while a checkpoint is written, and two devices share the process."""
    monkeypatch.setattr(memory, "_LOADED", {"gymnax": 10**9})
    parts = planner.plan(config)
    assert planner.resident(config) == 10**9 + parts.total + 2 * parts.kept
    two = config_io.replace(config, {"devices.count": 2})
    halves = Planner(two, 2)
    parts = halves.plan(two)
    assert 2 * halves.resident(two) == 10**9 + 2 * parts.total + 2 * (2 * parts.environments + parts.learner)
    monkeypatch.setattr(memory, "_COMPILING", {"gymnax": 10**12})
    assert planner.resident(config) == 10**12


def test_resume_refuses_what_no_longer_fits(tmp_path, capsys, monkeypatch, config):
    def refuse(config):
        raise config_io.ConfigError(["too large"])

    monkeypatch.setattr(plan, "check", refuse)
    config_io.save(config, tmp_path / "config.yaml")
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert "too large" in capsys.readouterr().err
