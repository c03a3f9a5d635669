"""Illegal configs are refused with the rule, the numbers, and neighbours that are legal themselves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.named_experiments import find_experiment, names
from purejaxrl_scale.rules import RANGES, TRANSFORMER_HEADS

KINETIX_CONTROLS = {"environment.name": "kinetix/s", "network.name": "entity_controls"}
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
        ({"network.name": "entity_controls"}, "entity_controls needs the entity observation of a kinetix environment"),
        (KINETIX_CONTROLS | {"network.recurrent": True}, "network.recurrent would mix them"),
        (KINETIX_CONTROLS | {"network.widths": ()}, "network.widths is empty"),
        (KINETIX_CONTROLS | {"environment.action": "continuous"}, "use multi_discrete, or network.name"),
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


def test_heads_are_those_that_the_network_takes():
    from purejaxrl_scale.networks.entity_transformer import MASK_KINDS, EntityTransformer

    features = EntityTransformer.qkv_features
    assert (
        tuple(heads for heads in range(1, features + 1) if heads % MASK_KINDS == 0 and features % heads == 0)
        == TRANSFORMER_HEADS
    )


def test_blocks_divide_a_logical_shard():
    sizes = batch(96, 8, 96)
    assert problems(with_fields(sizes | {"environment.block_size": 6})) == []
    found = only_problem(sizes | {"environment.block_size": 8})
    assert "8 does not divide 12; nearest legal: 6 or 12" in found
