"""The recipes' arithmetic, against the paper's numbers and by hand."""

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from purejaxrl_scale import config_io
from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, ReferenceConfig, ScalingConfig, problems
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.outer_loop.recipes import resolved, scale

PAPER = Config(
    environment=EnvironmentConfig(num_envs=2048),
    algorithm=AlgorithmConfig(rollout_length=256, minibatch_size=16_384, learning_rate=5e-5, epochs=8),
)
SMALL = config_io.replace(PAPER, {"algorithm.minibatch_size": 1024})
ADAPTIVE = config_io.replace(
    PAPER,
    {
        "algorithm.adaptive_batch.driver": "schedule",
        "algorithm.adaptive_batch.minimum": 24,
        "algorithm.adaptive_batch.maximum": 48,
    },
)


@pytest.mark.parametrize(
    ("recipe", "count", "size", "rate"),
    [
        ("fixed_minibatch", 16_384, 16_384, 5e-5),
        ("fixed_count", 32, 8_388_608, 5e-5),
        ("sqrt_learning_rate", 32, 8_388_608, 5e-5 * math.sqrt(512)),
        ("hybrid", 1024, 262_144, 2e-4),
    ],
)
def test_a_million_environments(recipe, count, size, rate):
    scaled = scale(PAPER, 1_048_576, recipe)
    assert scaled.environment.num_envs == 1_048_576
    assert scaled.num_minibatches == count
    assert scaled.algorithm.minibatch_size == size
    assert scaled.algorithm.learning_rate == pytest.approx(rate)
    assert scaled.algorithm.epochs == 8
    assert problems(scaled) == []


def test_the_paper_in_between():
    assert scale(PAPER, 8192, "fixed_minibatch").num_minibatches == 128
    assert scale(PAPER, 65_536, "fixed_minibatch").num_minibatches == 1024
    assert scale(PAPER, 512, "fixed_count").algorithm.minibatch_size == 4096


def ewma(moments=None, epochs=1):
    return Config(
        environment=EnvironmentConfig(num_envs=256),
        algorithm=AlgorithmConfig(
            rollout_length=256,
            minibatch_size=8192,
            epochs=epochs,
            learning_rate=5e-4,
            advantage_center_of_mass=moments,
            reference=ReferenceConfig(center_of_mass=8.0),
        ),
    )


def test_averages_keep_their_age_in_samples():
    """A quarter of the batch: half the learning rate, four times the centre of mass, an effective size of 4 for 1."""
    scaled = scale(ewma(moments=0.0), 64, "batch_size_invariant").algorithm
    assert scaled.minibatch_size == 2048
    assert scaled.learning_rate == pytest.approx(2.5e-4)
    assert scaled.reference.center_of_mass == 32.0
    assert scaled.advantage_center_of_mass == 1.5  # 2 x 1.5 + 1 = 4
    back = scale(scale(ewma(moments=1.0), 64, "batch_size_invariant"), 256, "batch_size_invariant").algorithm
    assert back.advantage_center_of_mass == pytest.approx(1.0)
    assert back.learning_rate == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("config", "num_envs", "recipe", "message"),
    [
        (PAPER, 2048 * 8 + 8, "hybrid", "no whole number of at least 1"),
        (PAPER, 2, "hybrid", "no whole number of at least 1"),
        (PAPER, 32, "fixed_minibatch", "leaves less than one minibatch.* the fewest environments are 64"),
        (SMALL, 2056, "fixed_count", "= 1028, which is no multiple of 8 .*; the nearest legal are 2,048 or 2,064"),
        (PAPER, 1024, "batch_size_invariant", "needs algorithm.epochs 1: it is 8"),
        (PAPER, 1024, "batch_size_invariant", "needs algorithm.reference.center_of_mass: it is none"),
        (ewma(moments=0.0), 512, "batch_size_invariant", "less than one outer step; the most environments are 256"),
        # 24 steps of 683 environments fill a minibatch, of 688 over 8 shards; of 2,048 they are 3 whole ones.
        (ADAPTIVE, 32, "fixed_minibatch", "768 samples .* the fewest environments are 2,048"),
        (
            config_io.replace(ADAPTIVE, {"algorithm.adaptive_batch.minibatches": "fixed_size"}),
            32,
            "fixed_minibatch",
            "768 samples .* the fewest environments are 688",
        ),
        (PAPER, 2049, "sqrt_learning_rate", "no multiple of 8|multiple of devices.logical_shards"),
        (PAPER, 0, "sqrt_learning_rate", "scaling.num_envs must be at least 1: it is 0"),
        (PAPER, 4096, "twice", "there is no scaling.recipe"),
    ],
)
def test_what_leaves_no_whole_minibatches_is_refused(config, num_envs, recipe, message):
    with pytest.raises(ConfigError, match=message):
        scale(config, num_envs, recipe)


@pytest.mark.parametrize(
    "recipe", ["fixed_minibatch", "fixed_count", "sqrt_learning_rate", "hybrid", "batch_size_invariant"]
)
def test_as_many_environments_as_before_change_nothing(recipe):
    assert scale(PAPER, 2048, recipe, size_factor=3) is PAPER


def test_a_size_factor_below_1_is_refused():
    with pytest.raises(ConfigError, match=r"scaling\.size_factor must be at least 1: it is 0"):
        scale(PAPER, 4096, "hybrid", size_factor=0)


@st.composite
def legal_config(draw):
    shards, envs_each, length = draw(st.sampled_from([2, 8, 12])), draw(st.integers(1, 60)), draw(st.integers(1, 60))
    divisor = draw(st.sampled_from([one for one in range(1, envs_each * length + 1) if envs_each * length % one == 0]))
    return config_io.replace(
        Config(),
        {
            "devices.logical_shards": shards,
            "environment.num_envs": shards * envs_each,
            "algorithm.rollout_length": length,
            "algorithm.minibatch_size": shards * divisor,
        },
    )


@given(
    legal_config(),
    st.sampled_from(["fixed_minibatch", "fixed_count", "sqrt_learning_rate", "hybrid"]),
    st.integers(1, 5000),
    st.sampled_from([1, 2, 3, 16]),
)
def test_a_recipe_scales_or_says_the_nearest_legal_number(config, recipe, num_envs, size_factor):
    assert problems(config) == []
    before = config.environment.num_envs
    assume(num_envs != before)
    try:
        algorithm = scale(config, num_envs, recipe, size_factor=size_factor).algorithm
    except ConfigError as fault:
        _, _, legal = str(fault).rpartition(" are ")
        suggested = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", legal)]
        assert suggested
        for number in suggested:
            assert problems(scale(config, number, recipe, size_factor=size_factor)) == []
        return
    by = {"fixed_minibatch": (1, 1), "hybrid": (size_factor, 1)}.get(recipe, (num_envs, before))
    assert algorithm.minibatch_size * by[1] == config.algorithm.minibatch_size * by[0]
    rate = 1.0 if recipe.startswith("fixed") else math.sqrt(by[0] / by[1])
    assert algorithm.learning_rate == pytest.approx(config.algorithm.learning_rate * rate)
    assert algorithm.epochs == config.algorithm.epochs


def test_scaling_in_the_config_is_applied_once():
    config = config_io.replace(PAPER, {"scaling.num_envs": 65_536})
    assert resolved(PAPER) == PAPER
    once = resolved(config)
    assert once.environment.num_envs == 65_536
    assert once.scaling == ScalingConfig(num_envs=65_536)
    assert resolved(once) == once
