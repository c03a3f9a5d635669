"""Sweep files: W&B's format, read into combinations or refused with everything that is wrong."""

from collections import Counter

import numpy as np
import pytest

from purejaxrl_scale import sweep_file
from purejaxrl_scale.config_io import ConfigError

HEAD = 'program: purejaxrl-scale\ncommand: ["${program}", train, cartpole, --preset, small, "${args}"]\n'


def read(tmp_path, text, head=HEAD):
    path = tmp_path / "one.yaml"
    path.write_text(head + text)
    return sweep_file.read(str(path))


def faults(tmp_path, text, head=HEAD):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, head)
    return caught.value.problems


def test_a_grid_is_every_combination_in_order(tmp_path):
    found = read(
        tmp_path,
        "method: grid\nmetric: {name: episode/return, goal: maximize}\n"
        "parameters: {algorithm.clip: {values: [0.1, 0.2]}, seed: {min: 3, max: 5}, total_steps: {value: 1e9}}",
    )
    assert found.name == "one"
    assert found.arguments == ["cartpole", "--preset", "small"]
    assert (found.metric, found.maximise) == ("episode/return", True)
    assert [(one["algorithm.clip"], one["seed"]) for one in found.combinations] == [
        (clip, seed) for clip in (0.1, 0.2) for seed in (3, 4, 5)
    ]


def test_a_grid_may_step_through_a_range(tmp_path):
    found = read(
        tmp_path, "method: grid\nparameters: {algorithm.clip: {distribution: q_uniform, min: 1, max: 2, q: 0.5}}"
    )
    assert [one["algorithm.clip"] for one in found.combinations] == [1, 1.5, 2]


def test_more_random_runs_keep_those_there_were(tmp_path):
    parameters = "parameters: {algorithm.learning_rate: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}}"
    few = read(tmp_path, f"method: random\nrun_cap: 3\n{parameters}").combinations
    more = read(tmp_path, f"method: random\nrun_cap: 8\n{parameters}").combinations
    assert more[:3] == few
    assert len({one["algorithm.learning_rate"] for one in more}) == 8


@pytest.mark.parametrize(
    ("entry", "quantiles"),  # of the distribution, at 0.1, 0.5 and 0.9
    [
        ("min: 1.0, max: 3.0", [1.2, 2.0, 2.8]),
        ("distribution: log_uniform_values, min: 1, max: 10000", [10**0.4, 100, 10**3.6]),
        ("distribution: log_uniform, min: 0, max: 2", [np.exp(0.2), np.exp(1.0), np.exp(1.8)]),
        ("distribution: inv_log_uniform, min: 0, max: 2", [np.exp(-1.8), np.exp(-1.0), np.exp(-0.2)]),
        ("distribution: inv_log_uniform_values, min: 1, max: 10000", [10**0.4, 100, 10**3.6]),
        ("distribution: normal, mu: 5, sigma: 2", [5 - 2 * 1.2816, 5, 5 + 2 * 1.2816]),
        ("distribution: log_normal, mu: 1, sigma: 0.5", np.exp([1 - 0.6408, 1, 1.6408])),
        ("distribution: beta, a: 1, b: 1", [0.1, 0.5, 0.9]),
    ],
)
def test_distributions_have_their_quantiles(tmp_path, entry, quantiles):
    found = read(tmp_path, f"method: random\nrun_cap: 4000\nparameters: {{algorithm.clip: {{{entry}}}}}")
    values = [one["algorithm.clip"] for one in found.combinations]
    shares = [np.mean(np.array(values) <= bound) for bound in quantiles]
    np.testing.assert_allclose(shares, [0.1, 0.5, 0.9], atol=0.03)  # 4 standard errors


def test_quantised_draws_are_multiples(tmp_path):
    entry = "{distribution: q_uniform, min: 0, max: 1, q: 0.25}"
    found = read(tmp_path, f"method: random\nrun_cap: 400\nparameters: {{algorithm.clip: {entry}}}")
    counts = Counter(one["algorithm.clip"] for one in found.combinations)
    assert set(counts) == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_choices_follow_their_probabilities(tmp_path):
    entry = "{values: [0.1, 0.2], probabilities: [0.9, 0.1]}"
    found = read(tmp_path, f"method: random\nrun_cap: 2000\nparameters: {{algorithm.clip: {entry}}}")
    share = np.mean([one["algorithm.clip"] == 0.2 for one in found.combinations])
    assert share == pytest.approx(0.1, abs=0.03)


GRID = "method: grid\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: bayes\nparameters: {seed: {values: [0]}}", ["wandb agent"]),
        ("method: gird\nparameters: {seed: {values: [0]}}", ["grid or random", "gird"]),
        (GRID + "parameters: {algorithm.learning_rat: {values: [1]}}", ["algorithm.learning_rate"]),
        (GRID + "parameters: {seed: {values: []}}", ["seed", "empty"]),
        (GRID + "parameters: {}", ["there are none"]),
        (GRID + "parameters: {algorithm: {parameters: {clip: {value: 1}}}}", ["nested", "flat"]),
        (GRID + "parameters: {algorithm.clip: {min: 0.1, max: 0.2}}", ["grid needs values"]),
        (GRID + "parameters: {algorithm.clip: {distribution: uniformly, min: 0, max: 1}}", ["uniform"]),
        (GRID + "parameters: {algorithm.clip: {distribution: uniform, min: 1, max: 0}}", ["min must be below max"]),
        (GRID + "parameters: {algorithm.clip: {distribution: uniform, min: 1}}", ["algorithm.clip", "max"]),
        (GRID + "parameters: {algorithm.clip: {distribution: log_uniform_values, min: 0, max: 1}}", ["above 0"]),
        (GRID + "parameters: {algorithm.clip: {values: [1], mu: 3}}", ["no mu"]),
        (GRID + "parameters: {algorithm.clip: 0.2}", ["takes values, a value"]),
        (GRID + "early_terminate: {type: hyperband}\nparameters: {seed: {values: [0]}}", ["early_terminate"]),
        (GRID + "metric: {name: episode/return, goal: up}\nparameters: {seed: {values: [0]}}", ["maximize"]),
        (GRID + "paramters: {seed: {values: [0]}}", ["paramters", "parameters"]),
        ("method: random\nparameters: {seed: {values: [0]}}", ["run_cap"]),
        ("method: random\nrun_cap: 0\nparameters: {seed: {values: [0]}}", ["run_cap"]),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, words):
    said = "\n".join(faults(tmp_path, text))
    assert all(word in said for word in words), said


def test_everything_is_told_at_once(tmp_path):
    text = "method: bayes\nparameters: {algorithm.clp: {value: 1}, seed: {values: 3}}"
    assert len(faults(tmp_path, text)) == 3


def test_the_command_must_train(tmp_path):
    for command in ("", 'command: [python, main.py, "${args}"]\n', "command: [purejaxrl-scale, train, cartpole]\n"):
        said = "\n".join(faults(tmp_path, "method: grid\nparameters: {seed: {values: [0]}}", head=command))
        assert "command" in said


def test_a_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "learning_rate.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"learning_rate\.yaml"):
        sweep_file.read(str(tmp_path / "learning_rat.yaml"))
