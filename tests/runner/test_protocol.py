"""Kinetix's protocol: every attempt is made once, alone, and counted; on toys, and on the suite's own levels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import EnvironmentConfig
from purejaxrl_scale.environments.kinetix_catalogue import protocol_problem
from purejaxrl_scale.runner import protocol, sheet
from tests.runner.conftest import ToyEnvironment, ToyState, ToyTrainer, toy_config

LENGTHS = np.array([1, 4, 2, 5, 3], np.int32)
ATTEMPTS = np.array([3, 1, 3, 2, 1], np.int32)


class Gamble(ToyEnvironment):
    """Solved where the last action was 1, which the stochastic policy takes half of the time."""

    def observe(self, state):
        return jnp.zeros(1) * state.time

    def step(self, key, state, action):
        timestep = super().step(key, state, action)
        return timestep._replace(outcome={"success": action.astype(jnp.float32)})


def played(environment, rows):
    """What became of each attempt, and of the levels with one row of states watched."""
    trainer = ToyTrainer(toy_config("."), environment)
    states = ToyState(jnp.zeros(5, jnp.int32), jnp.asarray(LENGTHS))
    levels = protocol.LevelSet(environment, tuple("abcde"), ATTEMPTS, states)
    attempts, play = protocol.make_play(trainer, levels, rows)
    taken = 0
    while (np.asarray(attempts.result) == protocol.UNKNOWN).any():
        attempts = play(None, attempts, 2)
        taken += 1
    assert taken < 30
    return np.asarray(attempts.result), levels


def test_attempts_are_ordered_by_rounds():
    levels = protocol.LevelSet(None, tuple("abcde"), ATTEMPTS, None)
    np.testing.assert_array_equal(protocol.order(levels), [0, 1, 2, 3, 4, 0, 2, 3, 0, 2])


@pytest.mark.parametrize("rows", [1, 3, 10, 64])
def test_an_attempt_does_not_depend_on_the_others(rows):
    """Each is as long as its level is, and its last action is what its own key draws."""
    result, levels = played(Gamble(), rows)
    key, expected = jax.random.key(protocol._ATTEMPTS_SEED), []
    for number, level in enumerate(protocol.order(levels)):
        last = jax.random.fold_in(jax.random.fold_in(key, number), LENGTHS[level] - 1)
        expected.append(protocol.SOLVED if jax.random.bernoulli(last) else protocol.FAILED)
    np.testing.assert_array_equal(result, expected)
    assert {protocol.SOLVED, protocol.FAILED} == set(expected)


def test_rates_are_shares_of_each_levels_attempts():
    _, levels = played(Gamble(), 4)
    result = np.array([2, 1, 2, 2, 1, 2, 1, 1, 1, 1], np.int8)
    rates = protocol.solve_rates(levels, result)
    assert rates == {"a": 2 / 3, "b": 0.0, "c": 1 / 3, "d": 0.5, "e": 0.0}


def test_broken_physics_solves_nothing():
    class Broken(Gamble):
        def step(self, key, state, action):
            timestep = super().step(key, state, action)
            return timestep._replace(reward=jnp.nan * timestep.reward, outcome={"success": jnp.float32(1)})

    result, _ = played(Broken(), 4)
    assert (result == protocol.FAILED).all()


def test_lines_average_over_levels():
    rates = {"s/h0": 0.5, "s/h1": 1.0, "s/random/0": 0.2, "s/random/1": 0.0, "s/random/2": 0.4}
    hand_made, random = protocol.lines_of(rates, "s", 640, 20)
    assert hand_made == {
        "steps": 640,
        "outer_step": 20,
        "protocol": "kinetix",
        "levels": "hand_made",
        "size": "s",
        "solve_rate": 0.75,
        "se": pytest.approx(0.25),  # deviation 0.3536 of two levels, divided by √2
        "n": 2,
        "attempts": 20,
        "solve_rates": {"s/h0": 0.5, "s/h1": 1.0},
    }
    assert random["solve_rate"] == pytest.approx(0.2)
    assert (random["n"], random["attempts"]) == (3, 5)
    assert "solve_rates" not in protocol.lines_of(rates, "all", 640, 20)[0]


def test_watching_shows_first_attempts_until_they_end():
    environment = Gamble()
    states = ToyState(jnp.zeros(5, jnp.int32), jnp.asarray(LENGTHS * 4))
    levels = protocol.LevelSet(environment, tuple("abcde"), ATTEMPTS, states)
    environment.max_episode_steps = 20
    shown = [show for _, show in protocol.play_all(ToyTrainer(toy_config("."), environment), None, levels, [1, 4])]
    seen = [[int(state.time) for state in of_level if state is not None] for of_level in zip(*shown, strict=True)]
    assert seen == [[0, 4, 8, 12], [0, 4, 8]]


@pytest.mark.slow
def test_the_levels_of_a_size():
    """All hand-made ones and the random ones, as the network sees them in their own size."""
    levels = protocol.level_set(EnvironmentConfig(name="kinetix/m", observation="entity"), "s", random_levels=4)
    assert levels.names[:2] == ("s/h0_weak_thrust", "s/h1_thrust_over_ball")
    assert levels.names[10:] == tuple(f"s/random/{number}" for number in range(4))
    assert levels.attempts.tolist() == [20] * 10 + [5] * 4
    assert levels.environment.name == "kinetix/s"
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(100), number))(jnp.arange(4))
    _, states = jax.jit(jax.vmap(levels.environment.reset))(keys)
    jax.tree.map(lambda mine, theirs: np.testing.assert_array_equal(mine[10:], theirs), levels.states, states)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"name": "kinetix/s"}, ""),
        ({"name": "kinetix/s", "observation": "pixels"}, ""),
        ({"name": "kinetix/l", "observation": "flat"}, ""),
        ({"name": "kinetix/s", "observation": "flat"}, "cannot hold, those of m and l, and an agent with flat obs"),
        ({"name": "kinetix/locomotion", "observation": "flat"}, "cannot hold, those of m and l"),
        ({"name": "kinetix/m", "observation_normalisation": True}, "those of l, and an agent with normalised default"),
        ({"name": "brax/ant"}, "this run's environment is brax/ant"),
    ],
)
def test_an_agent_that_cannot_play_all_sizes_is_refused(options, fault):
    problem = protocol_problem(EnvironmentConfig(**options))
    assert (problem is None) if not fault else fault in problem


def test_a_sheet_shows_every_level_until_the_last_has_ended(tmp_path):
    from PIL import Image

    def frame(shade):
        return np.full((50, 50, 3), shade, np.uint8)

    cells = [sheet.Cell("s/a", [frame(0), frame(60), frame(120)], True), sheet.Cell("s/b", [frame(255)], False)]
    with Image.open(sheet.write(cells, tmp_path / "sheet.gif")) as film:
        assert film.n_frames == 3
        first = np.asarray(film.convert("RGB"))
        film.seek(2)
        last = np.asarray(film.convert("RGB"))
    left, top = sheet._MARGIN, sheet._MARGIN + sheet._TITLE
    edge = (top + 50, left - 2)
    other = (edge[0], edge[1] + sheet._SIDE + 2 * sheet._MARGIN)
    green = last[edge]
    assert green[1] > max(green[0], green[2])
    assert np.ptp(first[edge].astype(int)) < 12, "grey while the first level is under way"
    red = first[other]
    assert red[0] > red[1] > red[2]


def test_each_environment_of_an_evaluation_has_its_own_task():
    from purejaxrl_scale.config import EvaluationConfig
    from purejaxrl_scale.runner import evaluation

    class Tasks(ToyEnvironment):
        num_tasks = 3

        def task(self, index):
            return jnp.zeros(1), ToyState(jnp.int32(0), index.astype(jnp.int32) + 1)

    config = dataclasses.replace(toy_config("."), evaluation=EvaluationConfig(num_envs=6, episodes=2))
    episodes = evaluation.make_evaluate(ToyTrainer(config, Tasks()))(None, evaluation.evaluation_key(0))
    np.testing.assert_array_equal(episodes.length[0], np.repeat([[1], [2], [3], [1], [2], [3]], 2, axis=1))
