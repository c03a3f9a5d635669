"""The same config and seed on one, two, four and eight devices."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from purejaxrl_scale.config import (
    AdaptiveBatchConfig,
    AlgorithmConfig,
    Config,
    DevicesConfig,
    EnvironmentConfig,
    MonitorsConfig,
    NetworkConfig,
    ReferenceConfig,
    problems,
)
from purejaxrl_scale.runner.checkpoints import to_host
from purejaxrl_scale.train import make_train

# Everything that is summed over environments: both normalisers, moments of advantages, gradients of microbatches.
SUMMING = Config(
    total_steps=10 * 64 * 8,
    environment=EnvironmentConfig(
        name="gymnax/Pendulum-v1", num_envs=64, observation_normalisation=True, reward_normalisation=True
    ),
    network=NetworkConfig(widths=(32, 32)),
    algorithm=AlgorithmConfig(
        rollout_length=8,
        minibatch_size=256,
        microbatch_size=64,
        epochs=2,
        advantage_center_of_mass=2.0,
        reference=ReferenceConfig(center_of_mass=8.0),
    ),
    monitors=MonitorsConfig(samples=128),
)
PQN = Config(
    total_steps=10 * 64 * 8,
    environment=EnvironmentConfig(name="gymnax/CartPole-v1", num_envs=64),
    network=NetworkConfig(widths=(32, 32), layer_norm=True),
    algorithm=AlgorithmConfig(name="pqn", rollout_length=8, minibatch_size=256, epochs=2),
    monitors=MonitorsConfig(samples=128),
)
RECURRENT = replace(
    SUMMING,
    network=NetworkConfig(widths=(32,), recurrent=True, hidden_size=16, segment_length=4),
    algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=256, epochs=2),
)

CONVOLUTION = replace(
    PQN,
    total_steps=10 * 16 * 8,
    environment=EnvironmentConfig(name="gymnax/Breakout-MinAtar", num_envs=16),
    network=NetworkConfig(name="minatar_cnn", widths=(16,)),
    algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=64, epochs=1),
)
ADAPTIVE = replace(
    SUMMING,
    algorithm=AlgorithmConfig(
        rollout_length=8,
        minibatch_size=128,
        epochs=1,
        adaptive_batch=AdaptiveBatchConfig(
            driver="kl", minimum=4, maximum=8, low=1e-6, high=1e-2, every=1, window=3, burn_in=1
        ),
    ),
)
BRAX = replace(
    SUMMING,
    environment=replace(SUMMING.environment, name="brax/inverted_pendulum", num_envs=16),
    algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=64, epochs=1),
)
OTHERS = {"pqn": PQN, "recurrent": RECURRENT, "convolution": CONVOLUTION, "adaptive": ADAPTIVE, "brax": BRAX}


def after(config: Config, count: int, outer_steps: int, exact: bool = False) -> dict[str, np.ndarray]:
    """State and metrics, leaf by leaf."""
    trainer = make_train(replace(config, devices=DevicesConfig(count=count, exact_reduction=exact)))
    state, metrics = trainer.chunk(trainer.init(jax.random.key(3)), outer_steps)
    return to_host(state) | {name: np.asarray(column[:outer_steps]) for name, column in metrics.items()}


def assert_same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        np.testing.assert_array_equal(leaf, right[name], err_msg=name)


@pytest.fixture(scope="module")
def one_step_on_one_device():
    return after(SUMMING, 1, 1)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_one_outer_step_has_the_same_experience_and_weights_within_a_millionth(count, one_step_on_one_device):
    several = after(SUMMING, count, 1)
    for name, leaf in one_step_on_one_device.items():
        if name.startswith(("actors/start", "actors/episodes")):
            # Real actions come from products of fewer rows, which round otherwise.
            np.testing.assert_allclose(leaf, several[name], rtol=1e-5, atol=1e-5, err_msg=name)
        if "/params/" in name:
            np.testing.assert_allclose(leaf, several[name], rtol=0, atol=1e-6, err_msg=name)


def test_exact_reduction_only_rounds_otherwise(one_step_on_one_device):
    exact = after(SUMMING, 1, 1, exact=True)
    for name, leaf in one_step_on_one_device.items():
        if "/params/" in name or name.startswith("actors/start"):
            np.testing.assert_allclose(leaf, exact[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def exact_on_one_device():
    return after(SUMMING, 1, 10, exact=True)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_ten_exact_outer_steps_end_in_the_same_bits_on_any_number_of_devices(count, exact_on_one_device):
    assert_same_bits(after(SUMMING, count, 10, exact=True), exact_on_one_device)


@pytest.mark.slow
@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize("count", [2, 8])
def test_so_do_other_families(count, family):
    """Of Brax the weights and states; the KL monitors, through which nothing is learnt, differ in the last digit."""
    several, one = (after(OTHERS[family], number, 10, exact=True) for number in (count, 1))
    if family == "brax":
        for name in [name for name in one if name.startswith(("outer/kl_", "outer/ddr_"))]:
            np.testing.assert_allclose(several.pop(name), one.pop(name), rtol=1e-4, atol=1e-9, err_msg=name)
    assert_same_bits(several, one)


def test_a_population_cannot_be_exact():
    (fault,) = problems(replace(SUMMING, seeds=2, devices=DevicesConfig(exact_reduction=True)))
    assert "devices.exact_reduction" in fault
