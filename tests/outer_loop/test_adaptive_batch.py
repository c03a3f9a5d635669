"""Lengths, their targets and where they stall, against the paper's rule and a plain simulation of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import AdaptiveBatchConfig
from purejaxrl_scale.outer_loop import adaptive_batch

PPO = {"driver": "kl", "minimum": 1024, "maximum": 8192, "low": 0.01, "high": 0.1}


@pytest.mark.parametrize(
    ("options", "divergence", "target"),
    [
        ({"maximum": 64}, 0.99, 16),
        ({"maximum": 64}, 0.95, 16),
        ({"maximum": 64}, 0.5, 26.5),
        ({"maximum": 64}, 0.3, 34.8),
        ({"maximum": 64}, 0.2, 41.4),
        ({"maximum": 64}, 0.1, 52.7),
        ({"maximum": 64}, 0.05, 64),
        ({"maximum": 64}, 0.0, 64),
        ({"maximum": 128}, 0.5, 40.4),
        ({"maximum": 128}, 0.3, 59.8),
        ({"maximum": 128}, 0.2, 75.3),
        ({"maximum": 128}, 0.1, 101.6),
        ({"maximum": 128}, 0.04, 128),
        (PPO, 0.01, 8192),
        (PPO, 0.02, 6034),
        (PPO, math.sqrt(0.001), 4608),
        (PPO, 0.05, 3181.8),
        (PPO, 0.1, 1024),
        (PPO, 5.0, 1024),
    ],
)
def test_targets(options, divergence, target):
    config = AdaptiveBatchConfig(**options)
    np.testing.assert_allclose(adaptive_batch.target_length(divergence, config), target, rtol=2e-3)


def settled(config, divergence, start=None, steps=400):
    state = adaptive_batch.init(config)
    if start is not None:
        state = state._replace(length=jnp.float32(start))
    step = jax.jit(lambda state: adaptive_batch.update(state, divergence, config))
    for _ in range(steps):
        state = step(state)
    return int(adaptive_batch.rollout_length(state, config))


@pytest.mark.parametrize(
    ("options", "divergence", "start", "expected"),
    [
        ({"rounding": "truncate"}, 0.0, None, 55),
        ({"rounding": "truncate", "maximum": 128}, 0.0, None, 119),
        ({**PPO, "rounding": "truncate", "multiple": 32}, 0.0, None, 7904),
        ({"rounding": "truncate"}, 1.0, 64, 16),
        ({"rounding": "round"}, 0.0, None, 60),
        ({"rounding": "round", "maximum": 128}, 0.0, None, 124),
        ({"rounding": "round"}, 1.0, 64, 21),
        ({}, 0.0, None, 64),
        ({}, 1.0, 64, 16),
        ({**PPO, "multiple": 32}, 0.0, None, 8192),
    ],
)
def test_where_lengths_come_to_rest(options, divergence, start, expected):
    assert settled(AdaptiveBatchConfig(**options, burn_in=1), divergence, start) == expected


@pytest.mark.parametrize(("target", "options"), [(25.0, {}), (1300.0, {**PPO, "multiple": 32})])
def test_truncation_that_never_leaves_the_minimum(target, options):
    config = AdaptiveBatchConfig(**options, rounding="truncate")
    state = adaptive_batch.init(config)
    for _ in range(50):
        state = adaptive_batch.move(state, target, config)
    assert float(state.length) == config.minimum
    smooth = AdaptiveBatchConfig(**options)
    state = adaptive_batch.init(smooth)
    for _ in range(100):
        state = adaptive_batch.move(state, target, smooth)
    np.testing.assert_allclose(state.length, target, rtol=1e-3)


@pytest.mark.parametrize("rounding", ["truncate", "round"])
@pytest.mark.parametrize("percent", [5, 10, 30, 70])
def test_whole_lengths_are_those_of_exact_arithmetic(rounding, percent):
    """Every start and target of 16 to 128, against integers: ((100 - p) L + p L*) // 100, or with 50 added.

    Compiled and not: where float32 falls short of a whole number depends on how products and sums are fused.
    """
    config = AdaptiveBatchConfig(maximum=128, rounding=rounding, smoothing=percent / 100)
    starts, targets = np.meshgrid(np.arange(16, 129), np.arange(16, 129))
    hundredths = (100 - percent) * starts + percent * targets
    expected = (hundredths + (50 if rounding == "round" else 0)) // 100
    state = adaptive_batch.init(config)

    def one(start, target):
        return adaptive_batch.move(state._replace(length=start), target, config).length

    both = [jnp.asarray(grid, jnp.float32).reshape(-1) for grid in (starts, targets)]
    for every in (jax.vmap(one), jax.jit(jax.vmap(one))):
        np.testing.assert_array_equal(every(*both), expected.reshape(-1))


@pytest.mark.parametrize("rounding", ["truncate", "round"])
@pytest.mark.parametrize("multiple", [32, 41, 61])
def test_multiples_are_those_of_exact_arithmetic(rounding, multiple):
    """Compiled too, where 82 / 41 falls short of 2: every start that is a multiple, and targets of any kind."""
    least, most = 32 * multiple, 256 * multiple
    config = AdaptiveBatchConfig(minimum=least, maximum=most, multiple=multiple, rounding=rounding)
    state = adaptive_batch.init(config)
    targets = [least, least + 277, 77 * multiple - 1, 130 * multiple, most]
    starts, targets = np.meshgrid(np.arange(least, most + 1, multiple), targets)
    tenths = 9 * starts + targets
    expected = (tenths + (5 if rounding == "round" else 0)) // 10 // multiple * multiple

    def one(start, target):
        return adaptive_batch.move(state._replace(length=start), target, config).length

    both = (jnp.asarray(grid, jnp.float32).reshape(-1) for grid in (starts, targets))
    found = jax.jit(jax.vmap(one))(*both)
    np.testing.assert_array_equal(found, np.clip(expected, least, most).reshape(-1))


def test_members_of_a_population_have_their_own_length():
    """Three members, each with its own state and measurements, one of which is NaN, as each alone."""
    config = AdaptiveBatchConfig(burn_in=2, window=3)
    measurements = jnp.array([[0.9, 0.5, 0.3, 0.1], [0.01, np.nan, 0.02, 0.04], [0.2, 0.2, 0.6, 0.2]])
    lengths = jnp.array([16.0, 30.0, 64.0])

    def run(length, measurements):
        state = adaptive_batch.init(config)._replace(length=length)
        for divergence in measurements:
            state = adaptive_batch.update(state, divergence, config)
        return state, adaptive_batch.rollout_length(state, config)

    together, used = jax.jit(jax.vmap(run))(lengths, measurements)
    np.testing.assert_array_equal(together.measurements, [4, 3, 4])
    for member in range(3):
        alone, length = run(lengths[member], measurements[member])
        mine = jax.tree.map(lambda leaf, member=member: leaf[member], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mine, alone)
        assert int(used[member]) == int(length)
    # Of the second member's three measurements the last two moved it: 30 to 33.4 and 36.46.
    np.testing.assert_allclose(together.length[1], 36.46, rtol=1e-6)


def test_the_first_measurements_and_bad_ones_move_nothing():
    config = AdaptiveBatchConfig(burn_in=3, window=4)
    state = adaptive_batch.init(config)
    for bad in (np.nan, np.inf, -np.inf):
        state = adaptive_batch.update(state, bad, config)
    assert int(state.measurements) == 0
    state = adaptive_batch.update(adaptive_batch.update(state, 0.01, config), 0.01, config)
    assert float(state.length) == 16
    after = adaptive_batch.update(state, 0.01, config)
    np.testing.assert_allclose(after.length, 0.9 * 16 + 0.1 * 64, rtol=1e-6)
    for bad in (np.nan, np.inf, -np.inf):
        worse = adaptive_batch.update(after, bad, config)
        jax.tree.map(np.testing.assert_array_equal, worse, after)
    jax.tree.map(np.testing.assert_array_equal, adaptive_batch.move(after, np.nan, config), after)


def test_the_window_is_the_last_measurements():
    config = AdaptiveBatchConfig(burn_in=1, window=3, smoothing=1.0)
    state = adaptive_batch.init(config)
    seen = [0.9, 0.1, 0.3, 0.2, 0.5, 0.07, 0.6]
    for number, divergence in enumerate(seen):
        state = adaptive_batch.update(state, divergence, config)
        mean = np.mean(seen[max(0, number - 2) : number + 1])
        np.testing.assert_allclose(state.length, adaptive_batch.target_length(mean, config), rtol=1e-5)


def test_lengths_used_are_multiples_within_the_limits():
    config = AdaptiveBatchConfig(minimum=16, maximum=64, multiple=8)
    lengths = jnp.arange(16, 65).astype(jnp.float32)
    state = adaptive_batch.init(config)
    used = jax.vmap(lambda length: adaptive_batch.rollout_length(state._replace(length=length), config))(lengths)
    assert used.dtype == jnp.uint32
    assert set(np.asarray(used).tolist()) == set(range(16, 65, 8))
    assert float(jnp.max(jnp.abs(used.astype(jnp.float32) - lengths))) <= 4


@pytest.mark.parametrize(
    ("base", "length", "least", "expected"),
    [
        (2, 32, 2, {16: 2, 32: 2, 48: 3, 64: 4, 96: 6, 128: 8}),
        (10, 2048, 1, {1024: 5, 2048: 10, 4096: 20, 8192: 40}),
    ],
)
def test_epochs_in_proportion(base, length, least, expected):
    config = AdaptiveBatchConfig(epochs="proportional", epochs_length=length, minimum_epochs=least)
    found = {one: int(adaptive_batch.epochs(jnp.uint32(one), config, base)) for one in expected}
    assert found == expected
    assert int(adaptive_batch.epochs(jnp.uint32(64), AdaptiveBatchConfig(), base)) == base
