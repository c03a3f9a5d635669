"""The toy of the outer loop: closed forms by hand and by recursion, measurements within their standard errors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments import outer_loop_toy as toy
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.named_experiments import find_experiment, names

SIGMA = 3 / np.sqrt(50)
SCRIPT = Path(toy.__file__)


def tail(norm_sq):
    """Mean and standard error, each [K], of what the runs of each case average over their second half."""
    means = norm_sq[..., norm_sq.shape[-1] // 2 :].mean(axis=-1)
    return means.mean(axis=-1), means.std(axis=-1, ddof=1) / np.sqrt(norm_sq.shape[1])


def assert_within(measured, error, expected, standard_errors=5):
    assert np.all(np.abs(measured - expected) < standard_errors * error), (measured, error, expected)


@pytest.mark.parametrize(
    ("step_size", "dimension", "noise_std", "expected"),
    [
        (0.5, 50, SIGMA, 2.25),  # nothing is remembered: η² σ² d = 9 / 4
        (0.1, 50, SIGMA, 0.25),
        (0.2, 50, SIGMA / 4, 0.5625 / 16),
        (0.75, 1, 2.0, 3.0),
    ],
)
def test_plateau_by_hand(step_size, dimension, noise_std, expected):
    np.testing.assert_allclose(toy.plateau(step_size, dimension, noise_std), expected, rtol=1e-12)


@pytest.mark.parametrize("step_size", [-0.1, 0.0, 1.0, 1.5])
def test_no_plateau_where_the_descent_diverges_or_stands_still(step_size):
    with pytest.raises(ValueError, match="between 0 and 1"):
        toy.plateau(step_size, 50, SIGMA)


@pytest.mark.parametrize("samples", [4, 16, 64])
def test_more_samples_are_a_smaller_step(samples):
    """η' / (1 - η') = η / (m (1 - η)) solves for the step size of the same plateau without averaging."""
    smaller = 0.2 / (samples * 0.8 + 0.2)
    averaged = toy.plateau(0.2, 50, toy.Case(0.2, 0.2, samples).noise_std)
    np.testing.assert_allclose(toy.plateau(smaller, 50, SIGMA), averaged, rtol=1e-12)


@pytest.mark.parametrize("case", [toy.Case(0.3, 0.3), toy.Case(0.5, 0.01), toy.Case(0.05, 0.7, 4)])
def test_the_transient_is_the_recursion_of_one_step(case):
    """E||x'||² = (1 - 2 η)² E||x||² + η² σ² d / m, the second step size from step 6 of 13 on."""
    expected = [50.0]
    for step in range(13):
        size = case.before if step < 6 else case.after
        expected.append((1 - 2 * size) ** 2 * expected[-1] + size**2 * 9 / case.samples)
    np.testing.assert_allclose(toy.expected_course(case, 13), expected, rtol=1e-12)


def test_schedule_switches_in_the_middle():
    np.testing.assert_array_equal(toy.schedule(toy.Case(0.2, 0.02), 5), [0.2, 0.2, 0.02, 0.02, 0.02])


def test_descent_without_noise_is_exact():
    norm_sq = toy.descend(np.array([[0.1, 0.25], [0.9, 0.5]]), 1, noise_std=0.0, start=np.array([3.0, 4.0]))
    np.testing.assert_allclose(norm_sq, [[[25.0, 16.0, 4.0]], [[25.0, 16.0, 0.0]]], rtol=1e-12)


def test_repetitions_differ_and_a_seed_repeats():
    step_sizes = np.full((2, 3), 0.2)
    first = toy.descend(step_sizes, 2, seed=1)
    assert len(np.unique(first[..., -1])) == 4
    np.testing.assert_array_equal(first, toy.descend(step_sizes, 2, seed=1))
    assert not np.any(first[..., -1] == toy.descend(step_sizes, 2, seed=2)[..., -1])


def test_a_long_simulation_stays_on_the_plateau_of_theory():
    sizes, deviations = [0.05, 0.2, 0.5, 0.9, 0.2], np.array([1, 1, 1, 1, 0.25]) * SIGMA
    norm_sq = toy.descend(np.repeat(np.array(sizes)[:, None], 1000, axis=1), 32, noise_std=deviations)
    measured, error = tail(norm_sq)
    expected = np.array([toy.plateau(size, 50, std) for size, std in zip(sizes, deviations)])
    assert np.all(error < 0.02 * expected)
    assert_within(measured, error, expected)


def test_the_transient_of_a_simulation():
    norm_sq = toy.descend(np.full((1, 40), 0.02), 512)[0]
    expected = toy.expected_norm_sq(np.arange(41), 0.02, 50.0, 50, SIGMA)
    np.testing.assert_allclose(norm_sq[:, 0], 50.0, rtol=1e-12)
    error = norm_sq.std(axis=0, ddof=1) / np.sqrt(512)
    assert_within(norm_sq.mean(axis=0)[1:], error[1:], expected[1:])


def test_after_a_switch_only_the_new_step_size_counts():
    cases = [toy.Case(0.4, 0.05), toy.Case(0.05, 0.4)]
    norm_sq = toy.descend(np.stack([toy.schedule(case, 400) for case in cases]), 128)
    small, large = toy.plateau(0.05, 50, SIGMA), toy.plateau(0.4, 50, SIGMA)
    assert_within(*tail(norm_sq[..., :201]), np.array([large, small]))
    assert_within(*tail(norm_sq[..., 201:]), np.array([small, large]))


def test_the_report_names_what_deviates():
    case = toy.Case(0.2, 0.02)
    agrees = toy.Row(case, measured=1.3, standard_error=0.1, theory=1.0)
    assert toy.report([agrees]).endswith("All 1 are within 4 standard errors of theory.")
    deviates = toy.Row(case, measured=0.5, standard_error=0.1, theory=1.0)
    text = toy.report([agrees, deviates])
    assert text.endswith("η 0.2 -> 0.02, m = 1: 5.0 standard errors from theory")
    assert "within 4" not in text


def test_the_standard_error_is_that_of_independent_runs():
    """Two runs of five steps whose last fifth, one step, is 1 and 3: mean 2, standard deviation √2, error 1."""
    norm_sq = np.zeros((len(toy.CASES), 2, 6))
    norm_sq[:, :, -1] = [1.0, 3.0]
    row = toy.compare(norm_sq)[0]
    np.testing.assert_allclose([row.measured, row.standard_error], [2.0, 1.0], rtol=1e-12)
    np.testing.assert_allclose(row.theory, toy.expected_course(row.case, 5)[-1], rtol=1e-12)


def test_the_script_from_end_to_end(tmp_path):
    sizes = ["--output", "figures", "--steps", "60", "--seeds", "8", "--seed", "3"]
    done = subprocess.run([sys.executable, SCRIPT, *sizes], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len([line for line in lines[1:] if len(line.split()) in (7, 9) and line.split()[-1][0].isdigit()]) == 19
    picture = tmp_path / lines[-1]
    assert picture == tmp_path / "figures" / "outer_loop_toy.png"
    with Image.open(picture) as image:
        assert image.size == (1430, 910)
    assert done.stderr == ""


@pytest.mark.parametrize(("flag", "value"), [("--steps", "4"), ("--seeds", "7"), ("--seed", "-1")])
def test_sizes_that_measure_nothing_are_refused(flag, value, capsys):
    with pytest.raises(SystemExit):
        toy.main([flag, value])
    assert f"{flag} must be at least {int(value) + 1}: it is {value}" in capsys.readouterr().err


def test_a_figure_script_is_no_experiment():
    assert "outer_loop_toy" not in names()
    assert {"quickstart", "cartpole", "kinetix_s"} <= set(names())
    with pytest.raises(ConfigError, match=r"is a figure script.*`uv run python \S*outer_loop_toy\.py`"):
        find_experiment("outer_loop_toy")
