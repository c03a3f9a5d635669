"""The gradient noise scale on gradients whose mean and covariance are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.outer_loop import noise_scale

MEAN = np.array([0.3, -0.4, 1.2])
DEVIATION = np.array([0.5, 1.0, 2.0])


def gradients(samples, seed=0):
    return MEAN + DEVIATION * np.random.default_rng(seed).normal(size=(samples, 3))


def test_two_batches_by_hand():
    """Squared norms 9 at 10 samples and 5 at 40: |G|² = (200 - 90) / 30 and tr Σ = 4 / (1/10 - 1/40)."""
    grad_norm_sq, variance = noise_scale.from_two_batches(jnp.float32(9.0), jnp.float32(5.0), 10, 40)
    np.testing.assert_allclose([grad_norm_sq, variance], [110 / 30, 4 / 0.075], rtol=1e-6)


def test_microbatches_by_hand():
    """Gradients 1 of one sample and 4 of three: ḡ = 13/4, tr Σ = 49 - 42.25, |G|² = 10.5625 - 6.75 / 4."""
    found = noise_scale.from_microbatches(jnp.float32(49.0), jnp.float32(10.5625), jnp.float32(2), jnp.float32(4))
    np.testing.assert_allclose(found, [8.875, 6.75], rtol=1e-6)


def test_microbatches_of_one_size_are_two_batches():
    parts = gradients(40).reshape(4, 10, 3).mean(axis=1)
    small, big = np.mean(np.sum(parts**2, axis=1)), np.sum(parts.mean(axis=0) ** 2)
    expected = noise_scale.from_two_batches(jnp.float32(small), jnp.float32(big), 10, 40)
    found = noise_scale.from_microbatches(jnp.float32(40 * small), jnp.float32(big), jnp.float32(4), jnp.float32(40))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_microbatches_of_any_size_are_unbiased():
    """Sizes 5, 10 and 25 of 40, over 4,000 draws: as in float64, and within 4 standard errors of |G|² and tr Σ."""
    sizes = np.array([5, 10, 25])
    drawn = gradients(4000 * 40).reshape(4000, 40, 3)
    means = np.stack([part.mean(axis=1) for part in np.split(drawn, np.cumsum(sizes)[:-1], axis=1)], axis=1)
    weighted, whole = np.sum(sizes * np.sum(means**2, axis=2), axis=1), np.sum(drawn.mean(axis=1) ** 2, axis=1)
    variance = (weighted - 40 * whole) / 2
    estimate = jax.jit(jax.vmap(noise_scale.from_microbatches, in_axes=(0, 0, None, None)))
    found = estimate(
        jnp.asarray(weighted, jnp.float32), jnp.asarray(whole, jnp.float32), jnp.float32(3), jnp.float32(40)
    )
    np.testing.assert_allclose(found, [whole - variance / 40, variance], rtol=1e-4, atol=1e-4)
    mean, error = np.mean(found, axis=1), np.std(found, axis=1) / np.sqrt(4000)
    assert np.all(np.abs(mean - [np.sum(MEAN**2), np.sum(DEVIATION**2)]) < 4 * error)


def test_one_microbatch_says_nothing():
    grad_norm_sq, variance = noise_scale.from_microbatches(
        jnp.float32(4.0), jnp.float32(1.0), jnp.float32(1), jnp.float32(4)
    )
    assert np.isnan(grad_norm_sq)
    assert np.isnan(variance)


def test_numerator_and_denominator_are_averaged_apart():
    state = noise_scale.init()
    assert np.isnan(noise_scale.value(state))
    state = noise_scale.update(state, jnp.float32(1.0), jnp.float32(10.0), decay=0.5)
    state = noise_scale.update(state, jnp.float32(-0.25), jnp.float32(40.0), decay=0.5)
    # Weights 0.5 and 1 over 1.5.
    np.testing.assert_allclose([state.grad_norm_sq, state.variance], [0.25 / 1.5, 45 / 1.5], rtol=1e-6)
    np.testing.assert_allclose(noise_scale.value(state), 180.0, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_measurement_that_is_not_finite_changes_nothing(bad):
    state = noise_scale.update(noise_scale.init(), jnp.float32(1.0), jnp.float32(3.0))
    assert noise_scale.update(state, jnp.float32(bad), jnp.float32(5.0)) == state
    assert noise_scale.update(state, jnp.float32(5.0), jnp.float32(bad)) == state


def test_a_gradient_that_is_all_noise_has_an_infinite_scale():
    state = noise_scale.update(noise_scale.init(), jnp.float32(-1.0), jnp.float32(3.0))
    assert np.isinf(noise_scale.value(state))
