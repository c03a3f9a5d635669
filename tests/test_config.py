"""Values from text are exact or refused, and a config survives its YAML file."""

import dataclasses
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.config_io import ConfigError, Field

STEPS = Field("total_steps", int, traced=False)
RATE = Field("algorithm.learning_rate", float, traced=True)
CENTRE = Field("algorithm.reference.center_of_mass", float | None, traced=True)


def values_of(field: Field) -> st.SearchStrategy:
    if get_origin(field.type) is Literal:
        return st.sampled_from(get_args(field.type))
    if get_origin(field.type) is tuple:
        return st.lists(values_of(field._replace(type=get_args(field.type)[0])), max_size=4).map(tuple)
    return {
        bool: st.booleans(),
        int: st.integers(-(10**17), 10**17),
        float: st.floats(allow_nan=False, allow_infinity=False),
        float | None: st.none() | st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    }[field.type]


any_config = st.fixed_dictionaries({name: values_of(field) for name, field in config_io.fields().items()}).map(
    lambda overrides: config_io.replace(Config(), overrides)
)


@given(any_config)
def test_every_config_comes_back_from_its_file(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    config_io.save(config, path)
    assert config_io.load(path) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1_000_000),
        ("1_000_000", 1_000_000),
        ("1E+9", 10**9),
        ("1.0", 1),
        ("2.5e1", 25),
        ("-3", -3),
        (1e6, 1_000_000),
        # A float would lose the last digit.
        ("123456789012345679", 123456789012345679),
        ("1.23456789012345679e17", 123456789012345679),
    ],
)
def test_whole_numbers_are_exact(text, value):
    result = config_io.coerce(STEPS, text)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize(
    "text",
    ["1.5", "1e-3", "", "abc", "nan", "inf", "1e999999999", "1e-999999999", 1.5, True, None, [1], "0x10", "1,000"],
)
def test_other_numbers_are_no_whole_numbers(text):
    with pytest.raises(ValueError, match="total_steps takes a whole number"):
        config_io.coerce(STEPS, text)


def test_a_refused_fraction_names_its_neighbours():
    with pytest.raises(ValueError, match=r"'-1\.5' is none; the nearest are -2 and -1"):
        config_io.coerce(STEPS, "-1.5")


@pytest.mark.parametrize("text", ["nan", "snan", "inf", "-inf", "", "fast", "1e400", True, None])
def test_real_numbers_are_finite(text):
    with pytest.raises(ValueError, match=r"algorithm\.learning_rate takes a finite number"):
        config_io.coerce(RATE, text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_real_numbers_come_back_bit_for_bit(number):
    assert config_io.coerce(RATE, number) == number
    assert config_io.coerce(RATE, repr(number)) == number


@pytest.mark.parametrize(("text", "value"), [("none", None), ("None", None), ("", None), (None, None), ("64", 64.0)])
def test_an_optional_number_is_one_or_none(text, value):
    assert config_io.coerce(CENTRE, text) == value
    assert config_io.replace(Config(), {CENTRE.name: text}).algorithm.reference.center_of_mass == value


@pytest.mark.parametrize("text", ["nan", "snan", "inf", "1e400", "off", True, [1]])
def test_an_optional_number_is_nothing_else(text):
    with pytest.raises(ValueError, match=r"algorithm\.reference\.center_of_mass takes a number or none"):
        config_io.coerce(CENTRE, text)


def test_lists_are_read_in_all_forms():
    widths = config_io.fields()["network.widths"]
    for text in ("128,64", "[128, 64]", "(128, 64)", ["128", 64], (128, 64)):
        assert config_io.coerce(widths, text) == (128, 64)
    assert config_io.coerce(widths, "") == ()
    levels = config_io.fields()["environment.levels"]
    assert config_io.coerce(levels, "['s/a', \"s/b\"]") == ("s/a", "s/b")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("environment.num_env", "environment.num_envs"),
        ("num_env", "environment.num_envs"),
        ("learning_rate", "algorithm.learning_rate"),
        ("algorithm.learningrate", "algorithm.learning_rate"),
        ("run.wandb_projekt", "run.wandb_project"),
        ("totalsteps", "total_steps"),
    ],
)
def test_an_unknown_field_names_the_nearest(wrong, right):
    with pytest.raises(ConfigError, match=f"there is no field {wrong}: did you mean {right}"):
        config_io.replace(Config(), {wrong: 1})


def test_all_faults_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        config_io.from_dict({"seed": "x", "environment": {"num_env": 8, "autoreset": "frsh"}, "algorithm": 3})
    assert len(caught.value.problems) == 4
    assert any("did you mean fresh?" in problem for problem in caught.value.problems)


def test_absent_fields_take_their_defaults():
    assert config_io.from_dict({"environment": {"num_envs": 8}}).environment.num_envs == 8
    assert config_io.from_dict({}) == Config()


@pytest.mark.parametrize("text", ["a: [1", "3", "", "- 1"])
def test_a_malformed_file_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        config_io.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        config_io.load(tmp_path / "none.yaml")


def test_numbers_marked_traced():
    traced = {name for name, field in config_io.fields().items() if field.traced}
    assert {"algorithm.learning_rate", "algorithm.clip", "algorithm.discount", "environment.reward_scale"} <= traced
    assert all(config_io.fields()[name].type in (float, float | None) for name in traced)


def test_every_field_says_what_it_is():
    import ast
    import inspect

    from purejaxrl_scale import config as module

    for group in ast.parse(inspect.getsource(module)).body:
        if not isinstance(group, ast.ClassDef):
            continue
        for field, after in zip(group.body, group.body[1:], strict=False):
            # The groups of Config are described by their own classes.
            if isinstance(field, ast.AnnAssign) and "default_factory" not in ast.unparse(field):
                assert isinstance(after, ast.Expr), f"{group.name}.{ast.unparse(field.target)} has no docstring"


def test_steps_are_rounded_up():
    config = config_io.replace(
        Config(),
        {
            "total_steps": "1e6",
            "environment.num_envs": 2048,
            "algorithm.rollout_length": 10,
            "algorithm.minibatch_size": 2048,
        },
    )
    assert config.num_outer_steps == 49
    assert config.actual_steps == 1_003_520
    assert config.num_minibatches == 10


def test_steps_of_adaptive_lengths():
    config = config_io.replace(
        Config(),
        {
            "total_steps": 1_000_000,
            "environment.num_envs": 1000,
            "algorithm.rollout_length": 128,
            "algorithm.adaptive_batch.driver": "kl",
        },
    )
    assert config.adapts
    assert not Config().adapts
    # 62.5 rollouts of the shortest length, 16, are the most there can be; buffers hold 64 steps.
    assert config.num_outer_steps == 63
    assert config.batch_size == 64_000
    assert config.actual_steps == 1_000_000


@given(st.integers(1, 10**15), st.integers(1, 2**20), st.integers(1, 2**11))
def test_actual_steps_are_never_fewer_than_asked(total, num_envs, length):
    config = config_io.replace(
        Config(), {"total_steps": total, "environment.num_envs": num_envs, "algorithm.rollout_length": length}
    )
    assert total <= config.actual_steps < total + config.batch_size


def test_the_default_config_is_legal_and_frozen():
    assert problems(Config()) == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1  # pyright: ignore[reportAttributeAccessIssue]
