"""Estimators of the KL divergence, behavioural divergence and DDR by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.outer_loop.divergence import (
    behavioural_divergence,
    changed,
    data_to_divergence_ratio,
    kl_k1,
    kl_k2,
    kl_k3,
)


@pytest.mark.parametrize(("estimator", "expected"), [(kl_k1, 0.0204110), (kl_k2, 0.0207585), (kl_k3, 0.0204110)])
def test_expectation_under_the_behaviour_policy(estimator, expected):
    """Two actions, behaviour [0.5, 0.5] and new [0.6, 0.4]; the other direction would be 0.0201355."""
    behaviour, new = jnp.array([0.5, 0.5]), jnp.array([0.6, 0.4])
    found = jnp.sum(behaviour * estimator(jnp.log(behaviour), jnp.log(new)))
    np.testing.assert_allclose(found, expected, atol=5e-8)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (kl_k1, [-0.5, 0.0, 2.0]),
        (kl_k2, [0.125, 0.0, 2.0]),
        (kl_k3, [np.exp(0.5) - 1.5, 0.0, np.exp(-2) + 1]),
    ],
)
def test_one_estimate_a_sample(estimator, expected):
    found = jax.jit(estimator)(jnp.array([-1.0, -3.0, 0.0]), jnp.array([-0.5, -3.0, -2.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_k3_keeps_its_digits_and_its_sign():
    """Against float64 on log ratios from 1e-5 to 3, where r - 1 - log r in float32 would be noise."""
    log_ratio = np.concatenate([np.logspace(-5, 0.5, 200), -np.logspace(-5, 0.5, 200)])
    found = kl_k3(jnp.zeros(400), jnp.asarray(log_ratio, jnp.float32))
    exact = np.asarray(log_ratio, np.float32).astype(np.float64)
    np.testing.assert_allclose(found, np.expm1(exact) - exact, rtol=2e-5)
    assert float(jnp.min(found)) > 0


def test_an_action_has_changed_if_any_component_has():
    old, new = jnp.array([[0, 1], [2, 0], [1, 1], [0, 0]]), jnp.array([[0, 1], [2, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(changed(old, new), [False, True, True, False])
    assert float(behavioural_divergence(old, new)) == 0.5
    assert float(behavioural_divergence(old[:, 0], new[:, 0])) == 0.25


@pytest.mark.parametrize(
    ("samples", "kl", "ratio"),
    [
        (2048 * 128, 0.005, 52_428_800),
        (100, 0.0, np.inf),
        (100, -1e-3, np.inf),
        (100, np.nan, np.nan),
    ],
)
def test_data_to_divergence_ratio(samples, kl, ratio):
    np.testing.assert_allclose(data_to_divergence_ratio(samples, kl), ratio, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(data_to_divergence_ratio)(samples, kl), ratio, rtol=1e-6)
