"""PPO's losses by hand, with and without a reference policy, and its moments of advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import hyperparameters
from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.config import AlgorithmConfig, Config, ReferenceConfig
from tests.algorithms.linear import linear_policy, make_batch


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, 2.0),
        (1.1, 2.0, 2.2),
        (1.5, 2.0, 2.4),
        (0.5, 2.0, 1.0),
        (1.5, -2.0, -3.0),
        (0.5, -2.0, -1.6),
    ],
)
def test_surrogate_by_hand(ratio, advantage, expected):
    log_prob = jnp.log(jnp.array([0.3 * ratio]))
    old = jnp.log(jnp.array([0.3]))
    value = ppo.surrogate(log_prob, old, old, jnp.array([advantage]), clip=0.2)
    np.testing.assert_allclose(value, [expected], rtol=1e-6)


def test_surrogate_stops_pulling_outside_the_clip():
    slope = jax.grad(lambda log_ratio, a: ppo.surrogate(log_ratio, 0.0 * log_ratio, 0.0 * log_ratio, a, clip=0.2).sum())
    inside, outside = jnp.log(jnp.array([1.1])), jnp.log(jnp.array([1.3]))
    assert float(slope(inside, jnp.ones(1))[0]) == pytest.approx(1.1)
    assert float(slope(outside, jnp.ones(1))[0]) == 0.0
    assert float(slope(outside, -jnp.ones(1))[0]) == pytest.approx(-1.3)
    assert float(slope(jnp.zeros(1), jnp.ones(1))[0]) == pytest.approx(1.0)


def test_decoupled_surrogate_is_weight_times_clipped_ratio():
    rng = np.random.default_rng(0)
    new, behaviour, reference, advantage = rng.normal(0, 0.3, (4, 50))
    ratio = np.exp(new - reference)
    expected = np.exp(reference - behaviour) * np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    arrays = [jnp.asarray(x, jnp.float32) for x in (new, behaviour, reference, advantage)]
    np.testing.assert_allclose(ppo.surrogate(*arrays, clip=0.2), expected, rtol=2e-5, atol=1e-6)


def test_importance_ratio_is_capped_at_100():
    value = ppo.surrogate(jnp.array([0.0]), jnp.array([-9.0]), jnp.array([0.0]), jnp.ones(1), clip=0.2)
    np.testing.assert_allclose(value, [100.0], rtol=1e-5)


def test_value_loss_by_hand():
    value, old, target = jnp.array([1.0, 1.0]), jnp.array([0.0, 0.9]), jnp.array([2.0, 2.0])
    np.testing.assert_allclose(ppo.value_loss(value, old, target, clip=None), [0.5, 0.5])
    # The first value moved by 1 and counts as moved by 0.2: ½ (0.2 - 2)² = 1.62.
    np.testing.assert_allclose(ppo.value_loss(value, old, target, clip=0.2), [1.62, 0.5], rtol=1e-6)


def test_global_norm_and_not_elementwise_clipping():
    optimiser = ppo.make_optimiser(AlgorithmConfig(), 0.5)
    gradient = {"w": jnp.array([3.0, 4.0])}
    step, state = optimiser.update(gradient, optimiser.init(gradient))
    # After one step Adam's first moment is (1 - β₁) g of the gradient that it was given.
    np.testing.assert_allclose(state[1].mu["w"] / 0.1, [0.3, 0.4], rtol=1e-6)
    # Adam's first step is the sign of the gradient (up to its epsilon), whatever the norm.
    np.testing.assert_allclose(step["w"], [1.0, 1.0], rtol=1e-3)


def test_both_forms_of_the_decoupled_loss_agree():
    """The released code's max(-A exp(new - beh), -A exp(clamp(new - ref) + ref - beh)), and weight x clipped ratio."""
    rng = np.random.default_rng(1)
    new, behaviour, reference, advantage = rng.normal(0, 0.5, (4, 200))
    bounded = np.clip(new - reference, np.log(0.8), np.log(1.2))
    released = np.maximum(-advantage * np.exp(new - behaviour), -advantage * np.exp(bounded + reference - behaviour))
    arrays = [jnp.asarray(x, jnp.float32) for x in (new, behaviour, reference, advantage)]
    np.testing.assert_allclose(-ppo.surrogate(*arrays, clip=0.2), released, rtol=2e-5, atol=1e-6)


def test_penalised_objective_by_hand():
    log_prob, behaviour = jnp.log(jnp.array([0.6, 0.2])), jnp.log(jnp.array([0.4, 0.4]))
    value = ppo.penalised(log_prob, behaviour, jnp.array([0.1, 0.2]), jnp.array([2.0, -1.0]), coefficient=3.0)
    np.testing.assert_allclose(value, [1.5 * 2 - 0.3, -0.5 - 0.6], rtol=1e-6)
    capped = ppo.penalised(jnp.array([0.0]), jnp.array([-9.0]), jnp.zeros(1), jnp.ones(1), coefficient=1.0)
    np.testing.assert_allclose(capped, [100.0], rtol=1e-5)


@pytest.mark.parametrize("objective", ["clip", "kl_penalty"])
def test_a_reference_equal_to_the_behaviour_policy_is_ordinary_ppo(objective, key):
    """Loss and gradient of the decoupled objective, at other parameters than either, to 1e-6."""
    behaviour, batch, _ = make_batch(64)
    params = jax.tree.map(lambda leaf: leaf + 0.1, behaviour)
    config = AlgorithmConfig(objective=objective)
    numbers = hyperparameters.from_config(Config(algorithm=config))
    keys = jax.random.split(key, (1, 64))

    def total(params, reference):
        return ppo.loss(linear_policy, config, numbers, params, reference, (), batch, keys)[0]

    if objective == "clip":
        ordinary, decoupled = total(params, None), total(params, behaviour)
        slopes = [jax.grad(total)(params, reference) for reference in (None, behaviour)]
    else:
        # The penalty by hand: the exact KL of two choices with logits (0, w . x).
        def by_hand(params):
            unpenalised = ppo.loss(
                linear_policy, config, numbers._replace(kl_coefficient=0.0), params, behaviour, (), batch, keys
            )[0]
            p, q = (jax.nn.sigmoid(batch.observation @ w) for w in (behaviour["w"], params["w"]))
            kl = p * jnp.log(p / q) + (1 - p) * jnp.log((1 - p) / (1 - q))
            return unpenalised + jnp.sum(jnp.where(batch.valid, kl, 0.0))

        ordinary, decoupled = by_hand(params), total(params, behaviour)
        slopes = [jax.grad(by_hand)(params), jax.grad(total)(params, behaviour)]
    np.testing.assert_allclose(decoupled, ordinary, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), *slopes)


def test_the_reference_moves_after_every_optimiser_step():
    """Two steps by hand: the reference averages the parameters that they led to."""
    params, _, _ = make_batch(8)
    config = AlgorithmConfig(reference=ReferenceConfig(center_of_mass=9.0))
    numbers = hyperparameters.from_config(Config(algorithm=config))
    learnt = ppo.init(config, params)
    seen = [params]
    for _ in range(2):
        learnt = ppo.optimiser_step(config, numbers, learnt, jax.tree.map(jnp.ones_like, params), jnp.float32(0.1))
        seen.append(learnt.params)
    np.testing.assert_allclose(learnt.reference.weight, 1 + 0.9 + 0.81, rtol=1e-6)
    expected = (0.81 * seen[0]["w"] + 0.9 * seen[1]["w"] + seen[2]["w"]) / 2.71
    np.testing.assert_allclose(learnt.reference.params["w"], expected, rtol=1e-5)


def test_moments_of_advantages_by_hand():
    """Batches of 4 and 2 valid samples at decay 0.5: weights 4 x 0.5 and 2."""
    moments = ppo.init_advantage_moments()
    first, second = jnp.array([[1.0, 3.0, 5.0, 7.0]]), jnp.array([[10.0, 20.0, 1e9]])
    valid = jnp.array([[True, True, False]])
    moments = ppo.update_advantage_moments(moments, first, jnp.ones((1, 4), bool), center_of_mass=1.0)
    np.testing.assert_allclose(moments, [4.0, 4.0, 21.0])
    moments = ppo.update_advantage_moments(moments, second, valid, center_of_mass=1.0)
    np.testing.assert_allclose(moments, [4.0, (2 * 4 + 2 * 15) / 4, (2 * 21 + 2 * 250) / 4], rtol=1e-6)
    alone = ppo.update_advantage_moments(moments, first, jnp.ones((1, 4), bool), center_of_mass=0.0)
    np.testing.assert_allclose(alone, [4.0, 4.0, 21.0], rtol=1e-6)
