"""Illegal configs are refused with the rule, the numbers, and neighbours that are legal themselves."""

import contextlib
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.named_experiments import find_experiment, names
from purejaxrl_scale.outer_loop import recipes
from purejaxrl_scale.rules import RANGES, TRANSFORMER_HEADS

ENVIRONMENTS = ["kinetix/s", "kinetix/m", "kinetix/l", "kinetix/locomotion", "brax/ant", "gymnax/CartPole-v1"]


def with_fields(overrides: dict[str, object]) -> Config:
    return config_io.replace(Config(), overrides)


def only_problem(overrides: dict[str, object]) -> str:
    found = problems(with_fields(overrides))
    assert len(found) == 1, found
    return found[0]


def batch(num_envs: int, length: int, size: int, **more: object) -> dict[str, object]:
    return {
        "environment.num_envs": num_envs,
        "algorithm.rollout_length": length,
        "algorithm.minibatch_size": size,
        **{name.replace("__", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("name", names())
def test_every_experiment_and_preset_is_legal(name):
    experiment = find_experiment(name)
    assert problems(experiment.config) == []
    for preset in experiment.presets:
        assert problems(experiment.with_preset(preset)) == []


def test_every_number_has_a_range():
    free = {"network.initial_log_std"}
    numbers = {name for name, field in config_io.fields().items() if field.type in (int, float, float | None)}
    assert numbers - free == set(RANGES)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed must be at least 0: it is -1"),
        ("total_steps", 0, "total_steps must be at least 1: it is 0; the nearest legal value is 1"),
        (
            "algorithm.discount",
            1.01,
            r"algorithm\.discount must be at most 1: it is 1\.01; the nearest legal value is 1",
        ),
        ("algorithm.learning_rate", 0.0, r"algorithm\.learning_rate must be greater than 0"),
        ("network.widths", (64, 0), r"each of network\.widths must be at least 1"),
        ("network.blocks", 1001, r"network\.blocks must be at most 1,000: it is 1,001"),
        ("scaling.num_envs", -5, r"scaling\.num_envs must be at least 0: it is -5"),
        ("monitors.samples", -1, r"monitors\.samples must be at least 0: it is -1; the nearest legal value is 0"),
        (
            "algorithm.reference.center_of_mass",
            -1,
            r"algorithm\.reference\.center_of_mass must be at least 0: it is -1\.0; the nearest legal value is 0",
        ),
        ("algorithm.advantage_center_of_mass", -0.5, r"algorithm\.advantage_center_of_mass must be at least 0"),
        ("seed", 2**32, r"seeds must stay below 2\^32: .* the largest legal seed is 4,294,967,295"),
        ("run.name", "a/b", r"run\.name is one folder's name"),
    ],
)
def test_ranges(name, value, message):
    assert re.match(message, only_problem({name: value}))


def test_a_thousand_recurrent_environments_do_not_cut_into_32_minibatches():
    # Of 1,000 sequences in 32 minibatches each would hold 31.25; 32 of 128 steps are the nearest whole.
    problem = only_problem(batch(1000, 128, 32 * 128, network__recurrent=True))
    assert "num_envs: 992 or 1,024" in problem


def test_feed_forward_minibatches_are_cut_from_all_samples():
    # Two minibatches an environment: no cap by the number of environments.
    assert problems(with_fields(batch(8, 256, 128))) == []
    problem = only_problem(batch(1000, 128, 16_384))
    assert (
        "16,384 does not divide environment.num_envs 1,000 x algorithm.rollout_length 128 = 128,000 samples" in problem
    )
    assert "num_envs: 896 or 1,024" in problem
    assert "minibatch_size: 16,000 or 25,600" in problem


def test_a_minibatch_never_exceeds_the_batch():
    assert "minibatch_size: 1,024" in only_problem(batch(8, 128, 2048))


def test_shards_divide_environments_and_minibatches():
    found = problems(with_fields(batch(12, 128, 12)))
    assert "environment.num_envs must be a multiple of devices.logical_shards: 12 is not a multiple of 8" in found[0]
    assert "num_envs: 24, logical_shards: 6 or 12" in found[0]
    assert (
        "algorithm.minibatch_size must be a multiple of devices.logical_shards: 12 is not a multiple of 8" in found[1]
    )
    assert "2 or 4" in only_problem({"devices.count": 3})


def test_segments_divide_rollouts():
    problem = only_problem(batch(64, 128, 64 * 128, network__recurrent=True, network__segment_length=48))
    assert "segment_length: 32 or 64, rollout_length: 96 or 144" in problem
    assert problems(with_fields(batch(64, 128, 512, network__recurrent=True, network__segment_length=64))) == []


def test_microbatches_hold_whole_segments():
    overrides = batch(64, 128, 1024, network__recurrent=True, network__segment_length=64)
    problem = only_problem(overrides | {"algorithm.microbatch_size": 700})
    assert "nearest legal microbatch_size: 512 or 1,024" in problem
    assert problems(with_fields(overrides | {"algorithm.microbatch_size": 512})) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"environment.num_envs": 9 * 10**17},
        {"algorithm.epochs": 9 * 10**17},
        {"seeds": 10**6},
        {"evaluation.num_envs": 10**17},
        {"evaluation.episodes": 10**17},
        {"network.widths": (64, 10**12)},
    ],
)
def test_absurd_sizes_are_refused_at_once(overrides):
    assert "at most" in only_problem(overrides)


def test_convolutions_have_three_numbers_of_channels():
    image = {"environment.name": "gymnax/Breakout-MinAtar", "network.name": "nature_cnn"}
    assert problems(with_fields(image | {"network.channels": (64, 128, 128)})) == []
    assert "of three convolutions: there are 2" in only_problem(image | {"network.channels": (64, 128)})
    assert "each of network.channels must be at most 65,536" in only_problem(
        image | {"network.channels": (64, 128, 65_537)}
    )


def test_a_flat_index_never_overflows():
    problem = only_problem(batch(2**20, 2**11, 2**14))
    assert "= 2,147,483,648" in problem
    assert "rollout_length 2,047 or num_envs 1,048,568" in problem
    assert problems(with_fields(batch(2**20, 2**10, 2**14))) == []


@given(
    num_envs=st.integers(1, 5000),
    length=st.integers(1, 300),
    size=st.integers(1, 50_000),
    shards=st.sampled_from([1, 2, 8, 12]),
    segment=st.sampled_from([None, 0, 1, 4, 32]),
)
def test_suggested_numbers_are_legal(num_envs, length, size, shards, segment):
    more = {} if segment is None else {"network__recurrent": True, "network__segment_length": segment}
    overrides = batch(num_envs, length, size, devices__logical_shards=shards, **more)
    found = problems(with_fields(overrides))
    kinds = {"num_envs": "environment.num_envs", "minibatch_size": "algorithm.minibatch_size"}
    must_divide = [problem for problem in found if "minibatch_size must divide the batch" in problem]
    for problem in must_divide if len(found) == 1 else []:
        suggestions = re.findall(r"legal (num_envs|minibatch_size): ([\d,]+)(?: or ([\d,]+))?", problem)
        assert suggestions
        for kind, *numbers in suggestions:
            for number in filter(None, numbers):
                replaced = overrides | {kinds[kind]: int(number.replace(",", "").strip())}
                assert problems(with_fields(replaced)) == [], (problem, kind, number)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"environment.name": "brax/ants"}, "did you mean brax/ant"),
        ({"environment.name": "kinetix/s", "environment.levels": "s/h4_thrust_aimm"}, "s/h4_thrust_aim"),
        ({"environment.name": "kinetix/s", "environment.levels": "l/rail"}, "kinetix/l"),
        ({"environment.name": "brax/swimmer"}, "generalized"),
    ],
)
def test_unknown_names(overrides, message):
    assert any(message in problem for problem in problems(with_fields(overrides)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("environment.levels", "s/h4_thrust_aim"),
        ("environment.observation", "flat"),
        ("environment.action", "continuous"),
        ("environment.num_tasks", 8),
        ("environment.backend", "mjx"),
        ("environment.episode_length", 10),
        ("environment.pool_size", 8),
        ("environment.reward_clip", 1.0),
        ("network.hidden_size", 8),
        ("network.segment_length", 8),
        ("network.transformer_heads", 4),
        ("network.policy", "gaussian"),
        ("network.initial_log_std", -1.0),
        ("algorithm.warmup_fraction", 0.2),
    ],
)
def test_options_that_would_be_ignored_are_refused(name, value):
    assert only_problem({name: value}).startswith(f"{name} needs ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"environment.name": "kinetix/s"}, "set environment.observation flat, or network.name entity_transformer"),
        ({"network.name": "entity_transformer"}, "gives a vector; use mlp"),
        ({"network.name": "impala_cnn"}, "needs an image: gymnax/CartPole-v1 gives a vector; use mlp"),
        (
            {"environment.name": "kinetix/s", "network.name": "minatar_cnn", "environment.observation": "flat"},
            "or environment.observation pixels",
        ),
        (
            {"environment.name": "gymnax/Breakout-MinAtar", "environment.observation_normalisation": True},
            "needs a vector: gymnax/Breakout-MinAtar gives an image",
        ),
        (
            {
                "environment.name": "kinetix/s",
                "network.name": "entity_transformer",
                "environment.levels": "s/h4_thrust_aim",
                "environment.num_tasks": 4,
            },
            "exclude each other",
        ),
        (
            {"environment.name": "kinetix/s", "network.name": "entity_transformer", "network.transformer_heads": 6},
            "it is 6; the nearest are 4 or 8",
        ),
    ],
)
def test_networks_fit_observations(overrides, message):
    assert message in only_problem(overrides)


def test_the_textbook_shuffle_does_not_tear_segments_apart():
    numbers = batch(64, 16, 256, algorithm__shuffle="permutation", network__recurrent=True)
    assert "tears the segments of network.recurrent apart" in only_problem(numbers | {"network.segment_length": 8})
    assert "tears the segments of network.recurrent apart" in only_problem(numbers)


@pytest.mark.parametrize(
    "more", [{"environment.levels": "s/h4_thrust_aim"}, {"environment.name": "kinetix/locomotion"}]
)
def test_a_level_filter_that_nothing_reads_is_refused(more):
    base = {"environment.name": "kinetix/s", "network.name": "entity_transformer", "environment.level_filter": False}
    assert problems(with_fields(base)) == []
    assert "environment.level_filter concerns random levels" in only_problem(base | more)


def test_minatar_takes_a_convolution_or_a_plain_network():
    for network in ("mlp", "minatar_cnn", "impala_cnn"):
        assert problems(with_fields({"environment.name": "gymnax/Breakout-MinAtar", "network.name": network})) == []


def test_every_problem_is_told_at_once():
    found = problems(with_fields(batch(1000, 128, 16_380) | {"devices.count": 3, "algorithm.clip": -1, "seeds": 0}))
    assert len(found) == 5


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


def test_heads_are_those_that_the_network_takes():
    from purejaxrl_scale.networks.entity_transformer import MASK_KINDS, EntityTransformer

    features = EntityTransformer.qkv_features
    assert (
        tuple(heads for heads in range(1, features + 1) if heads % MASK_KINDS == 0 and features % heads == 0)
        == TRANSFORMER_HEADS
    )


any_value = st.one_of(st.integers(-5, 3000), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, width=16))


any_choice = st.fixed_dictionaries(
    {
        "environment.name": st.sampled_from(ENVIRONMENTS),
        "network.recurrent": st.booleans(),
        **{
            name: st.sampled_from(get_args(config_io.fields()[name].type))
            for name in (
                "algorithm.name",
                "algorithm.adaptive_batch.driver",
                "algorithm.adaptive_batch.minibatches",
                "scaling.recipe",
            )
        },
    }
)


@given(st.dictionaries(st.sampled_from(sorted(RANGES)), any_value), any_choice)
def test_any_numbers_are_judged_without_an_exception(numbers, choice):
    config, _ = config_io.override(Config(), {"scaling.num_envs": 4096} | numbers | choice)
    assert all(problem for problem in problems(config))
    with contextlib.suppress(config_io.ConfigError):
        recipes.resolved(config)


def test_blocks_divide_a_logical_shard():
    sizes = batch(96, 8, 96)
    assert problems(with_fields(sizes | {"environment.block_size": 6})) == []
    found = only_problem(sizes | {"environment.block_size": 8})
    assert "8 does not divide 12; nearest legal: 6 or 12" in found
