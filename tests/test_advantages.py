"""Generalised advantages against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.advantages import gae, lambda_returns


def column(values, dtype=jnp.float32):
    return jnp.asarray(values, dtype)[:, None]


def estimate(reward, value, next_value, terminated=(), truncated=(), discount=0.99, trace_decay=0.95):
    steps = range(len(reward))
    return gae(
        column(reward),
        column(value),
        column(next_value),
        column([t in terminated for t in steps], bool),
        column([t in truncated for t in steps], bool),
        discount=discount,
        trace_decay=trace_decay,
    )[:, 0]


REWARD, VALUE = [1.0, 2.0, 3.0], [0.5, 1.0, 1.5]


def test_no_end():
    # δ = 1.49, 2.485, 3.48; A₁ = 2.485 + .9405 · 3.48; A₀ = 1.49 + .9405 · A₁
    np.testing.assert_allclose(estimate(REWARD, VALUE, [1.0, 1.5, 2.0]), [6.9053426, 5.75794, 3.48], rtol=1e-6)


def test_truncation_bootstraps_from_the_final_observation_and_ends_the_trace():
    advantage = estimate(REWARD, VALUE, [1.0, 4.0, 2.0], truncated=[1])
    np.testing.assert_allclose(advantage, [6.15488, 4.96, 3.48], rtol=1e-6)


def test_truncation_does_not_bootstrap_from_the_state_before_it():
    advantage = estimate(REWARD, VALUE, [1.0, 4.0, 2.0], truncated=[1])
    assert not np.allclose(advantage[:2], [3.3616, 1.99], atol=1e-3)


def test_termination_has_no_future():
    advantage = estimate(REWARD, VALUE, [1.0, 4.0, 2.0], terminated=[1])
    np.testing.assert_allclose(advantage, [2.4305, 1.0, 3.48], rtol=1e-6)


def test_both_flags_count_as_termination():
    both = estimate(REWARD, VALUE, [1.0, 4.0, 2.0], terminated=[1], truncated=[1])
    np.testing.assert_allclose(both, [2.4305, 1.0, 3.48], rtol=1e-6)


def test_monte_carlo():
    advantage = estimate([1.0] * 3, [0.0] * 3, [0.0] * 3, terminated=[2], discount=0.9, trace_decay=1.0)
    np.testing.assert_allclose(advantage, [2.71, 1.9, 1.0], rtol=1e-6)


def test_textbook_and_not_the_variant_with_lambda_inside_the_target():
    advantage = estimate([1.0, 1.0], [0.0, 0.0], [0.0, 1.0], discount=1.0, trace_decay=0.5)
    np.testing.assert_allclose(advantage, [2.0, 2.0], rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_against_a_direct_sum_in_float64(seed):
    rng = np.random.default_rng(seed)
    steps, envs, discount, trace_decay = 12, 5, 0.97, 0.8
    reward, value, next_value = rng.normal(size=(3, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    expected = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                future = 0.0 if terminated[k, n] else next_value[k, n]
                expected[t, n] += weight * (reward[k, n] + discount * future - value[k, n])
                weight *= discount * trace_decay
                if terminated[k, n] or truncated[k, n]:
                    break
    arrays = [jnp.asarray(x, jnp.float32) for x in (reward, value, next_value)]
    actual = jax.jit(gae)(
        *arrays, jnp.asarray(terminated), jnp.asarray(truncated), discount=discount, trace_decay=trace_decay
    )
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def lambda_returns_by_sum(reward, next_value, terminated, truncated, discount, trace_decay):
    """The weighted sum of all n-step returns, (1 - λ) λⁿ⁻¹ each and what is left for the longest, in float64."""
    steps, envs = reward.shape
    returns = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            total, weight, rewards, power = 0.0, 1.0, 0.0, 1.0
            for t in range(start, steps):
                rewards += power * reward[t, env]
                power *= discount
                worth = 0.0 if terminated[t, env] else power * next_value[t, env]
                last = terminated[t, env] or truncated[t, env] or t == steps - 1
                share = weight if last else weight * (1 - trace_decay)
                total += share * (rewards + worth)
                weight *= trace_decay
                if last:
                    break
            returns[start, env] = total
    return returns


@pytest.mark.parametrize("trace_decay", [0.0, 0.65, 1.0])
def test_lambda_returns_are_the_sum_of_n_step_returns(trace_decay):
    rng = np.random.default_rng(0)
    reward, next_value = rng.normal(size=(2, 12, 5))
    terminated = rng.random((12, 5)) < 0.15
    truncated = (rng.random((12, 5)) < 0.15) & ~terminated
    found = lambda_returns(
        *(jnp.asarray(x, jnp.float32) for x in (reward, next_value)),
        jnp.asarray(terminated),
        jnp.asarray(truncated),
        discount=0.97,
        trace_decay=trace_decay,
    )
    expected = lambda_returns_by_sum(reward, next_value, terminated, truncated, 0.97, trace_decay)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
