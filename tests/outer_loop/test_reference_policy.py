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


def test_no_centre_of_mass_is_the_policy_to_the_bit():
    """Also its negative zeros, and after weights that were not finite."""
    params = jnp.array([-0.0, 1e-45, 3.0, -0.1])
    state = reference_policy.init(jnp.array([1.0, 2.0, jnp.inf, jnp.nan]))
    state = jax.jit(reference_policy.update)(state, params, center_of_mass=jnp.float32(0.0))
    np.testing.assert_array_equal(np.asarray(state.params).view(np.uint32), np.asarray(params).view(np.uint32))
    assert float(state.age) == 0.0


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("center_of_mass", [2.0, 9.0])
def test_the_age_tends_to_the_centre_of_mass(debias, center_of_mass):
    def step(state, _):
        return reference_policy.update(state, state.params, center_of_mass=center_of_mass, debias=debias), None

    state, _ = jax.lax.scan(step, reference_policy.init(jnp.zeros(1)), None, length=300)
    np.testing.assert_allclose(state.age, center_of_mass, rtol=1e-5)


def test_the_first_reference_outlives_donated_parameters():
    params = {"w": jnp.array([1.0, 2.0])}
    state = reference_policy.init(params)
    jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1.0, params), donate_argnums=0)(params)
    assert params["w"].is_deleted()
    np.testing.assert_array_equal(state.params["w"], [1.0, 2.0])


def test_members_of_a_population_have_their_own_centre_of_mass():
    start, params = jnp.zeros((2, 3)), jnp.ones((2, 3))
    masses = jnp.array([1.0, 9.0])
    together = jax.vmap(
        lambda start, params, com: (
            reference_policy.update(reference_policy.init(start), params, center_of_mass=com).params
        )
    )(start, params, masses)
    np.testing.assert_allclose(together[:, 0], [1 / 1.5, 1 / 1.9], rtol=1e-6)


def test_a_population_is_each_of_its_members_alone():
    """Centres of mass 0, 1.5 and 20 under one compile, over five steps."""
    masses = jnp.array([0.0, 1.5, 20.0])
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, 6, 4)), jnp.float32)

    def averaged(center_of_mass, weights):
        state = reference_policy.init(weights[0])
        for params in weights[1:]:
            state = reference_policy.update(state, params, center_of_mass=center_of_mass)
        return state

    together = jax.jit(jax.vmap(averaged))(masses, weights)
    for member in range(3):
        alone = averaged(masses[member], weights[member])
        mine = jax.tree.map(lambda leaf, member=member: leaf[member], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), mine, alone)
