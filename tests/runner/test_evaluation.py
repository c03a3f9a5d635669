import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import EvaluationConfig
from purejaxrl_scale.runner import evaluation
from tests.runner.conftest import ToyEnvironment, ToyTrainer, toy_config


def trainer(environment=None, **options):
    config = dataclasses.replace(toy_config("."), evaluation=EvaluationConfig(**{"num_envs": 16, **options}))
    return ToyTrainer(config, environment or ToyEnvironment())


def lengths(key, environment, num_envs, episodes, cap):
    """What the starts of all episodes say about their lengths, computed one by one."""
    expected = np.zeros((num_envs, episodes), np.int32)
    for i in range(num_envs):
        for e in range(episodes):
            episode_key = jax.random.fold_in(jax.random.fold_in(key, i), e)
            expected[i, e] = environment.reset(jax.random.fold_in(episode_key, cap))[1].length
    return expected


@pytest.mark.parametrize("episodes", [1, 3])
def test_each_environment_plays_its_quota(episodes):
    made = trainer(episodes=episodes)
    key = evaluation.evaluation_key(0)
    result = jax.device_get(evaluation.make_evaluate(made)(None, key))
    expected = lengths(key, made.environment, 16, episodes, cap=10)
    assert 1 < expected.mean() < 5
    np.testing.assert_array_equal(result.length[0], expected)
    np.testing.assert_array_equal(result.returns[0], expected)  # action 0 pays 1 a step
    np.testing.assert_array_equal(result.outcome["success"][0], expected % 2)
    # Both modes play the same starts, and the stochastic one is paid 100 for about half of its steps.
    np.testing.assert_array_equal(result.length[1], expected)
    bonus = (result.returns[1] - expected) / 100
    np.testing.assert_array_equal(bonus, np.round(bonus))
    assert 0.3 < bonus.sum() / expected.sum() < 0.7
    assert result.finished.all()


def test_the_summary_is_of_finished_episodes():
    made = trainer(episodes=2)
    key = evaluation.evaluation_key(1)
    line, stochastic = evaluation.summarise(evaluation.make_evaluate(made)(None, key), 640, 20)
    expected = lengths(key, made.environment, 16, 2, cap=10)
    assert line == {
        "steps": 640,
        "outer_step": 20,
        "mode": "deterministic",
        "mean": pytest.approx(expected.mean()),
        "std": pytest.approx(expected.std()),
        "median": np.median(expected),
        "length": pytest.approx(expected.mean()),
        "success": pytest.approx((expected % 2).mean()),
        "n": 32,
        "unfinished": 0,
    }
    assert stochastic["mode"] == "stochastic"


def test_episodes_that_never_end_are_given_up_and_counted():
    made = trainer(ToyEnvironment(endless=True), max_steps=7, episodes=2)
    result = jax.device_get(evaluation.make_evaluate(made)(None, jax.random.key(0)))
    assert (result.length == 7).all()
    line, _ = evaluation.summarise(result, 0, 0)
    assert (line["n"], line["unfinished"]) == (0, 32)
    assert "mean" not in line


def test_the_cap_is_twice_the_time_limit_unless_set():
    made = trainer(ToyEnvironment(longest=5))
    assert evaluation.step_cap(made.config, made.environment) == 10


def test_broken_physics_ends_an_episode_as_unfinished():
    result = evaluation.make_evaluate(trainer(ToyEnvironment(broken=True)))(None, jax.random.key(0))
    line, _ = evaluation.summarise(result, 0, 0)
    assert (line["n"], line["unfinished"]) == (0, 16)


def test_evaluation_compiles_once_and_repeats_itself():
    evaluate = evaluation.make_evaluate(trainer())
    first = evaluate(jnp.zeros(3), evaluation.evaluation_key(0))
    second = evaluate(jnp.ones(3), evaluation.evaluation_key(0))
    np.testing.assert_array_equal(first.returns, second.returns)
    assert evaluate._cache_size() == 1


def test_its_keys_are_not_training_s():
    run_key = jax.random.key(3)
    training = {tuple(jax.random.key_data(jax.random.fold_in(run_key, step)).tolist()) for step in range(1000)}
    assert tuple(jax.random.key_data(evaluation.evaluation_key(3)).tolist()) not in training
