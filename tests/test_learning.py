"""Does it learn? Five probes with known values, and CartPole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import devices
from purejaxrl_scale.config import AlgorithmConfig, Config, DevicesConfig, EnvironmentConfig, NetworkConfig
from purejaxrl_scale.config_io import replace
from purejaxrl_scale.named_experiments import load_experiment
from purejaxrl_scale.networks import make_actor_critic
from purejaxrl_scale.rollout import Simulation
from purejaxrl_scale.runner import evaluation
from purejaxrl_scale.train import Trainer, make_train
from tests.probes import Probe


def train_probe(kind):
    environment = Probe(kind)
    config = Config(
        total_steps=40_000,
        environment=EnvironmentConfig(num_envs=32),
        network=NetworkConfig(widths=(32,)),
        algorithm=AlgorithmConfig(
            rollout_length=8, minibatch_size=128, epochs=4, learning_rate=5e-3, discount=0.9, value_clip=False
        ),
        devices=DevicesConfig(count=1),
    )
    network = make_actor_critic(config.network, environment.observation_space, environment.action_space)
    trainer = Trainer(config, Simulation(environment, network, config), devices.make_mesh(config.devices))
    state, _ = trainer(jax.random.key(0))

    def look(observations):
        observations = jnp.asarray(observations, jnp.float32)[:, None]
        first = jnp.ones(len(observations), bool)
        _, policy, value = network.step(state.learner.params, (), observations, first)
        return np.asarray(value), np.asarray(jax.nn.softmax(policy.logits))

    return look


def test_value_of_a_constant():
    value, _ = train_probe("constant")([0.0])
    np.testing.assert_allclose(value, [1.0], atol=0.05)


def test_value_of_an_observation():
    value, _ = train_probe("observation")([-1.0, 1.0])
    np.testing.assert_allclose(value, [-1.0, 1.0], atol=0.1)


def test_discounting():
    value, _ = train_probe("discounting")([0.0, 1.0])
    np.testing.assert_allclose(value, [0.9, 1.0], atol=0.07)


def test_one_decision():
    value, probability = train_probe("decision")([0.0])
    assert probability[0, 1] > 0.95
    np.testing.assert_allclose(value, [1.0], atol=0.1)


def test_a_decision_that_depends_on_the_observation():
    value, probability = train_probe("both")([-1.0, 1.0])
    assert probability[0, 0] > 0.95
    assert probability[1, 1] > 0.95
    np.testing.assert_allclose(value, [1.0, 1.0], atol=0.15)


@pytest.mark.slow
def test_cartpole_on_three_seeds():
    """The mean return of the last tenth of training is at least 475 on each seed."""
    config = replace(load_experiment("cartpole", "small"), {"devices.count": 1})
    _, metrics = make_train(config)(jnp.stack([jax.random.key(seed) for seed in range(3)]))
    last = config.num_outer_steps // 10
    returns = metrics["episode/return_sum"][:, -last:].sum(1) / metrics["episode/count"][:, -last:].sum(1)
    assert np.all(returns >= 475), returns


@pytest.mark.slow
def test_pqn_solves_cartpole_on_three_seeds():
    """The greedy policy of the end balances for at least 475 of 500 steps on average, on each seed."""
    config = replace(load_experiment("pqn_cartpole"), {"devices.count": 1})
    trainer = make_train(config)
    states, _ = trainer(jnp.stack([jax.random.key(seed) for seed in range(3)]))
    evaluate = evaluation.make_evaluate(trainer)
    for seed in range(3):
        learner = evaluation.take_member(evaluation.on_one_device(states.learner), seed)
        greedy = evaluation.summarise(evaluate(learner, evaluation.evaluation_key(seed)), 0, 0)[0]
        assert greedy["mode"] == "deterministic"
        assert greedy["mean"] >= 475, (seed, greedy)
