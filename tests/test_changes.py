"""Changes during a run: read exactly, or refused with what is wrong."""

import pytest

from purejaxrl_scale import changes, config_io
from purejaxrl_scale.changes import Change
from purejaxrl_scale.config import Config, problems


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (
            "algorithm.reference.center_of_mass=64@2e8",
            Change("algorithm.reference.center_of_mass", 64.0, 200_000_000),
        ),
        (
            "algorithm.learning-rate = 1e-4 @ 12345678901234567",
            Change("algorithm.learning_rate", 1e-4, 12345678901234567),
        ),
        ("environment.reward_scale=2@0", Change("environment.reward_scale", 2.0, 0)),
    ],
)
def test_a_change_is_read_exactly(text, change):
    assert changes.parse(text) == change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm.clip=0.1", "takes FIELD=VALUE@STEPS"),
        ("algorithm.clip@5", "takes FIELD=VALUE@STEPS"),
        ("algorithm.clp=0.1@5", "did you mean algorithm.clip"),
        ("algorithm.epochs=2@5", "decides shapes or code and cannot change during a run"),
        ("algorithm.clip=much@5", "takes a finite number"),
        ("algorithm.clip=0.1@1.5", "takes a whole number"),
    ],
)
def test_what_is_no_change_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        changes.parse(text)


def of(*texts, **more):
    return config_io.replace(Config(), {"changes": texts, "total_steps": 1000, **more})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm.clip=0.1@1000", "changes at 1,000 steps, and the run has 1,000; the nearest legal are 0 or 999"),
        ("algorithm.clip=-1@5", "changes: algorithm.clip must be at least 0: it is -1.0"),
        ("algorithm.reference.center_of_mass=64@5", "is none at the start, and a number would be another program"),
        ("algorithm.clip", "takes FIELD=VALUE@STEPS"),
    ],
)
def test_illegal_changes_are_problems(text, message):
    (problem,) = problems(of(text))
    assert message in problem


def test_a_change_of_what_is_not_read_is_refused():
    pqn = {"algorithm.name": "pqn", "environment.num_envs": 128, "algorithm.minibatch_size": 512}
    (problem,) = problems(of("algorithm.clip=0.1@5", **pqn))
    assert "changes: algorithm.clip needs algorithm.name ppo, and would be ignored with algorithm.name pqn" in problem


def test_changes_come_about_in_order_of_their_steps():
    config = of("algorithm.clip=0.1@500", "algorithm.clip=0.3@20", "algorithm.discount=0.9@500")
    assert problems(config) == []
    assert [(change.value, change.at) for change in changes.parsed(config)] == [(0.3, 20), (0.1, 500), (0.9, 500)]
