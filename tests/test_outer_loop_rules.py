"""Illegal options of the outer loop: lengths that adapt, recipes, changes, and what an algorithm would ignore."""

import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, problems


def with_fields(overrides: dict[str, object]) -> Config:
    return config_io.replace(Config(), overrides)


def only_problem(overrides: dict[str, object]) -> str:
    found = problems(with_fields(overrides))
    assert len(found) == 1, found
    return found[0]


ADAPTIVE = {
    "algorithm.adaptive_batch.driver": "kl",
    "environment.num_envs": 128,
    "algorithm.minibatch_size": 512,
    "algorithm.rollout_length": 64,
}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"algorithm.adaptive_batch.minimum": 80}, "minimum must not exceed algorithm.adaptive_batch.maximum: 80 is"),
        ({"algorithm.adaptive_batch.maximum": 80}, "which the buffers hold: 80 is more than 64; the nearest legal"),
        ({"algorithm.adaptive_batch.low": 0.99}, "low must be less than algorithm.adaptive_batch.high: 0.99"),
        ({"algorithm.adaptive_batch.burn_in": 30}, "burn_in must not exceed algorithm.adaptive_batch.window: 30 is"),
        (
            {"algorithm.adaptive_batch.multiple": 32},
            "minimum must be a multiple of algorithm.adaptive_batch.multiple: 16",
        ),
        ({"algorithm.shuffle": "permutation"}, "permutation needs rollouts of one length"),
        ({"algorithm.minibatch_size": 4096}, "must not exceed the shortest batch: 4,096 is more than"),
        ({"algorithm.minibatch_size": 768}, "must divide the shortest batch: 768 does not divide"),
        (
            {"algorithm.adaptive_batch.driver": "schedule", "algorithm.adaptive_batch.span": "interval"},
            "span needs algorithm.adaptive_batch.driver behavioural_divergence or kl, and would be ignored",
        ),
        (
            {"algorithm.adaptive_batch.driver": "noise_scale", "monitors.noise_scale": False},
            "driver noise_scale needs monitors.noise_scale",
        ),
        (
            {"algorithm.adaptive_batch.driver": "behavioural_divergence", "environment.name": "brax/ant"},
            "needs discrete actions: those of brax/ant are continuous",
        ),
        ({"algorithm.name": "pqn"}, "driver kl needs algorithm.name ppo; pqn goes with behavioural_divergence"),
        ({"algorithm.adaptive_batch.smoothing": 0.0}, "smoothing must be greater than 0"),
        ({"algorithm.adaptive_batch.low": 0.0}, "low must be at least 1e-18"),
        ({"algorithm.adaptive_batch.low": 1e-45}, "low must be at least 1e-18"),
        (
            {"algorithm.adaptive_batch.epochs_length": 16},
            "epochs_length needs algorithm.adaptive_batch.driver and epochs proportional, and would be ignored with "
            "epochs fixed",
        ),
        ({"algorithm.adaptive_batch.minimum_epochs": 2}, "and would be ignored with epochs fixed"),
        (
            {"algorithm.minibatch_size": 1, "devices.logical_shards": 1},
            "normalise_advantages needs at least 2 samples in a minibatch",
        ),
        (
            {"environment.num_envs": 2**26},
            "environment.num_envs 67,108,864 x algorithm.adaptive_batch.maximum 64 = 4,294,967,296; the largest legal: "
            "adaptive_batch.maximum 31 or num_envs 33,554,424",
        ),
    ],
)
def test_adaptive_lengths(more, message):
    assert problems(with_fields(ADAPTIVE)) == []
    assert message in only_problem(ADAPTIVE | more)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        # 130 environments x 16 steps are 4 minibatches of 520, and 64 steps are 4 of 2,080.
        ({"algorithm.minibatch_size": 520}, 4),
        # Which 16 steps do not fill exactly, and need not where their size is fixed: 64 steps are 10.8 of 768.
        ({"algorithm.minibatch_size": 768, "algorithm.adaptive_batch.minibatches": "fixed_size"}, 10),
    ],
)
def test_minibatches_of_adaptive_lengths(more, count):
    config = with_fields(ADAPTIVE | {"environment.num_envs": 130, "devices.logical_shards": 2} | more)
    assert problems(config) == []
    assert config.num_minibatches == count
    assert (config.shortest_rollout, config.longest_rollout, config.batch_size) == (16, 64, 8320)


def test_options_of_lengths_that_adapt_need_a_driver():
    for name, value in {
        "minimum": 8,
        "epochs": "proportional",
        "epochs_length": 8,
        "minibatches": "fixed_size",
    }.items():
        problem = only_problem({f"algorithm.adaptive_batch.{name}": value})
        assert "needs algorithm.adaptive_batch.driver" in problem
        assert "would be ignored with rollouts of one length" in problem


def test_recurrent_networks_adapt_in_whole_segments():
    recurrent = ADAPTIVE | {"network.recurrent": True}
    assert "network.segment_length must be set where the rollout length adapts" in only_problem(recurrent)
    assert "8 does not divide algorithm.adaptive_batch.multiple 1" in only_problem(
        recurrent | {"network.segment_length": 8}
    )
    legal = recurrent | {"network.segment_length": 8, "algorithm.adaptive_batch.multiple": 16}
    assert problems(with_fields(legal)) == []
    # One length, that of the buffers, is a segment by itself.
    whole = {"algorithm.adaptive_batch.minimum": 64, "algorithm.adaptive_batch.maximum": 64}
    assert problems(with_fields(recurrent | whole)) == []
    # A segment that is refused leaves no traces in advice on other numbers.
    assert len(problems(with_fields(recurrent | {"algorithm.minibatch_size": 8}))) == 1


PQN = {"algorithm.name": "pqn", "environment.num_envs": 128, "algorithm.minibatch_size": 512}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (PQN | {"network.recurrent": True, "network.segment_length": 8}, "network.recurrent needs algorithm.name ppo"),
        (PQN | {"algorithm.clip": 0.1}, "algorithm.clip needs algorithm.name ppo, and would be ignored with"),
        (PQN | {"network.shared": True}, "network.shared needs algorithm.name ppo"),
        (PQN | {"network.policy": "gaussian"}, "network.policy needs continuous actions, and would be ignored"),
        (PQN | {"algorithm.objective": "kl_penalty"}, "algorithm.objective needs algorithm.name ppo"),
        (PQN | {"algorithm.value_clip": False}, "algorithm.value_clip needs algorithm.name ppo"),
        (PQN | {"algorithm.entropy_coefficient": 0.5}, "algorithm.entropy_coefficient needs algorithm.name ppo"),
        (PQN | {"algorithm.value_coefficient": 1.0}, "algorithm.value_coefficient needs algorithm.name ppo"),
        (PQN | {"algorithm.normalise_advantages": False}, "algorithm.normalise_advantages needs algorithm.name ppo"),
        (PQN | {"algorithm.advantage_center_of_mass": 2}, "advantage_center_of_mass needs algorithm.name ppo"),
        (PQN | {"algorithm.reference.center_of_mass": 2}, "reference.center_of_mass needs algorithm.name ppo"),
        ({"network.output_norm": True}, "network.output_norm needs algorithm.name pqn"),
        ({"network.pre_activation": True}, "network.pre_activation needs network.blocks, and would be ignored with"),
        ({"scaling.num_envs": 4096, "scaling.size_factor": 2}, "scaling.size_factor needs scaling.recipe hybrid"),
        (PQN | {"environment.name": "brax/ant"}, "the actions of brax/ant are continuous; use algorithm.name ppo"),
        (
            PQN | {"environment.name": "kinetix/s", "network.name": "entity_transformer"},
            "the actions of kinetix/s are multi-discrete; set environment.action discrete",
        ),
        ({"algorithm.exploration_end": 0.2}, "exploration_end needs algorithm.name pqn"),
        (PQN | {"algorithm.exploration_start": 0.01}, "exploration_end must not exceed exploration_start: 0.05"),
        ({"algorithm.reference.center_of_mass": -1}, "must be at least 0: it is -1.0; the nearest legal value is 0"),
        (
            {"algorithm.reference.debias": False},
            "debias needs algorithm.reference.center_of_mass, and would be ignored",
        ),
        ({"algorithm.kl_coefficient": 2.0}, "kl_coefficient needs algorithm.objective kl_penalty"),
        ({"algorithm.adaptive_batch.window": 5}, "window needs algorithm.adaptive_batch.driver"),
        ({"scaling.recipe": "hybrid"}, "scaling.recipe needs scaling.num_envs"),
        ({"network.channels": (1, 2, 3)}, "network.channels needs network.name nature_cnn"),
        ({"network.blocks": 2, "network.widths": ()}, "network.widths is empty"),
        (
            {"algorithm.advantage_center_of_mass": 4.0, "algorithm.normalise_advantages": False},
            "advantage_center_of_mass needs algorithm.normalise_advantages",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(overrides, message):
    assert any(message in problem for problem in problems(with_fields(overrides)))


def test_pqn_with_its_own_options_is_legal():
    assert problems(with_fields(PQN | {"algorithm.exploration_end": 0.2, "network.layer_norm": True})) == []
    assert problems(with_fields(PQN | {"algorithm.shuffle": "permutation"})) == []
    # It has no advantages to standardise.
    assert problems(with_fields(PQN | {"algorithm.minibatch_size": 1, "devices.logical_shards": 1})) == []
