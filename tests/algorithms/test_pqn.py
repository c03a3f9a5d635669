"""PQN's targets, loss and exploration by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import hyperparameters
from purejaxrl_scale.algorithms import pqn
from purejaxrl_scale.config import AlgorithmConfig, Config
from purejaxrl_scale.networks.distributions import EpsilonGreedy
from purejaxrl_scale.rollout import Trajectory


def test_loss_and_gradient_by_hand():
    """Q = x W; the loss is ½ (Q(s, a) - target)², of valid samples only."""
    x = jnp.array([[[1.0, 2.0], [3.0, -1.0], [5.0, 5.0]]])
    weights = {"w": jnp.array([[0.1, 0.2], [0.3, -0.4]])}

    def network(params, memory, observation, is_first):
        q = observation @ params["w"]
        return EpsilonGreedy(q, jnp.float32(0.0)), q.max(-1)

    batch = pqn.Batch(
        x,
        jnp.array([[1, 0, 1]]),
        jnp.array([[1.0, 2.0, 9.0]]),
        jnp.array([[True, True, False]]),
        jnp.zeros((1, 3), bool),
    )
    (value, parts), slope = jax.value_and_grad(lambda params: pqn.loss(network, params, (), batch), has_aux=True)(
        weights
    )
    # Q of the actions taken: 0.2 - 0.8 = -0.6 and 0.3 - 0.3 = 0.
    np.testing.assert_allclose(value, 0.5 * (1.6**2 + 2.0**2), rtol=1e-6)
    np.testing.assert_allclose(slope["w"], [[-2.0 * 3, -1.6 * 1], [-2.0 * -1, -1.6 * 2]], rtol=1e-6)
    np.testing.assert_allclose(parts["value/chosen_action"], -0.6, atol=1e-6)
    # Q is (0.7, -0.6) and (0, 1): its largest values.
    np.testing.assert_allclose(parts["value/greedy_action"], 0.7 + 1.0, rtol=1e-6)


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 1.0), (0.05, 0.525), (0.1, 0.05), (0.7, 0.05)])
def test_exploration_declines_linearly_and_stays(progress, expected):
    numbers = hyperparameters.from_config(Config(algorithm=AlgorithmConfig(name="pqn")))
    np.testing.assert_allclose(pqn.exploration(numbers, jnp.float32(progress)), expected, rtol=1e-6)


def column(*values):
    return jnp.array(values)[:, None]


def trajectory_of(**fields):
    return Trajectory(**dict.fromkeys(Trajectory._fields, ()))._replace(**fields)


def test_the_last_target_but_one_bootstraps_from_its_own_successor():
    """r = 1, 2, 3 and V = 10, 20, 30, then 40: G₂ = 3 + γ 40, G₁ = 2 + γ ((1 - λ) 30 + λ G₂)."""
    numbers = hyperparameters.from_config(Config(algorithm=AlgorithmConfig(discount=0.9, trace_decay=0.5)))
    false = jnp.zeros((3, 1), bool)
    trajectory = trajectory_of(
        value=column(10.0, 20.0, 30.0),
        final_value=jnp.zeros((3, 1)),
        last_value=jnp.array([40.0]),
        terminated=false,
        truncated=false,
        valid=~false,
        length=3,
    )
    target = pqn.estimate(numbers, trajectory, column(1.0, 2.0, 3.0)).target[:, 0]
    last = 3 + 0.9 * 40
    middle = 2 + 0.9 * (0.5 * 30 + 0.5 * last)
    np.testing.assert_allclose(target, [1 + 0.9 * (0.5 * 20 + 0.5 * middle), middle, last], rtol=1e-6)


def test_a_shorter_rollout_in_the_same_buffers_has_the_same_targets():
    """Two steps in buffers of four: the rows beyond are ends without worth, and no target reaches into them."""
    numbers = hyperparameters.from_config(Config(algorithm=AlgorithmConfig(discount=0.9, trace_decay=0.5)))
    trajectory = trajectory_of(
        value=column(10.0, 20.0, 0.0, 0.0),
        final_value=jnp.zeros((4, 1)),
        last_value=jnp.array([40.0]),
        terminated=column(False, False, True, True),
        truncated=jnp.zeros((4, 1), bool),
        valid=column(True, True, False, False),
        length=jnp.int32(2),
    )
    target = pqn.estimate(numbers, trajectory, column(1.0, 2.0, 0.0, 0.0)).target[:, 0]
    last = 2 + 0.9 * 40
    np.testing.assert_allclose(target[:2], [1 + 0.9 * (0.5 * 20 + 0.5 * last), last], rtol=1e-6)
