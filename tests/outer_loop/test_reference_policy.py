"""Averages of weights, and their ages, against a list of all past weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.outer_loop import reference_policy


def test_debiased_average_by_hand():
    """Decay 0.9 from 0, parameters 1, 2, 3."""
    state = reference_policy.init({"w": jnp.zeros(1)})
    found, weights = [], []
    for value in (1.0, 2.0, 3.0):
        state = reference_policy.update(state, {"w": jnp.full(1, value)}, center_of_mass=9.0)
        found.append(float(state.params["w"][0]))
        weights.append(float(state.weight))
    np.testing.assert_allclose(found, [0.5263158, 1.0701107, 1.6312882], rtol=1e-6)
    np.testing.assert_allclose(weights, [1.9, 2.71, 3.439], rtol=1e-6)


def test_plain_average_by_hand():
    state = reference_policy.init(jnp.zeros(1))
    for value in (1.0, 2.0):
        state = reference_policy.update(state, jnp.full(1, value), center_of_mass=9.0, debias=False)
    np.testing.assert_allclose(state.params, [0.9 * 0.1 + 0.1 * 2.0], rtol=1e-6)


@pytest.mark.parametrize(("center_of_mass", "decay"), [(1, 0.5), (4, 0.8), (9, 0.9), (99, 0.99), (0, 0.0)])
def test_decay_of_a_centre_of_mass(center_of_mass, decay):
    assert reference_policy.decay(center_of_mass) == pytest.approx(decay)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("center_of_mass", [0.0, 2.0, 8.0])
def test_average_and_age_from_all_past_weights(debias, center_of_mass):
    """Weights w of parameters k steps old: βᵏ, and for the plain average (1 - β) βᵏ but βⁿ of the first."""
    beta = center_of_mass / (center_of_mass + 1)
    values = np.random.default_rng(0).normal(size=(31, 3))
    state = reference_policy.init(jnp.asarray(values[0], jnp.float32))
    step = jax.jit(lambda state, params, com: reference_policy.update(state, params, center_of_mass=com, debias=debias))
    for value in values[1:]:
        state = step(state, jnp.asarray(value, jnp.float32), jnp.float32(center_of_mass))
    ages = np.arange(30, -1, -1.0)
    weights = beta**ages
    if not debias:
        weights[1:] *= 1 - beta
    weights /= weights.sum()
    np.testing.assert_allclose(state.params, weights @ values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.age, weights @ ages, rtol=1e-4, atol=1e-5)
    if center_of_mass == 0.0:
        np.testing.assert_array_equal(state.params, jnp.asarray(values[-1], jnp.float32))


def test_members_of_a_population_have_their_own_centre_of_mass():
    start, params = jnp.zeros((2, 3)), jnp.ones((2, 3))
    masses = jnp.array([1.0, 9.0])
    together = jax.vmap(
        lambda start, params, com: (
            reference_policy.update(reference_policy.init(start), params, center_of_mass=com).params
        )
    )(start, params, masses)
    np.testing.assert_allclose(together[:, 0], [1 / 1.5, 1 / 1.9], rtol=1e-6)
