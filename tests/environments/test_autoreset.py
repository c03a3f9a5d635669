"""Each way of starting anew, and quarantine for broken physics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.environments import autoreset
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import Timestep
from tests.probes import Clock

SIZE = 12


@pytest.fixture
def now(key):
    """Starts with each state moved away from its first."""
    start = autoreset.reset(Clock(), jax.random.split(key, SIZE))
    return start._replace(state={**start.state, "time": start.state["time"] + 3})


def row_keys(seed):
    return lambda rows: jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), rows)


@pytest.mark.parametrize("cheap", [True, False])
def test_fresh_samples_only_where_an_episode_ended(now, cheap):
    ended = jnp.arange(SIZE) % 3 == 0
    environment = Clock(cheap_reset=cheap)
    new = jax.jit(lambda now: autoreset.restart(environment, "fresh", (), (), ended, row_keys(1), now))(now)
    np.testing.assert_array_equal(new.state["time"], np.where(ended, 0, 3))
    same = np.asarray(new.state["mark"] == now.state["mark"])
    np.testing.assert_array_equal(same, ~np.asarray(ended))
    expected = jax.vmap(environment.reset)(row_keys(1)(jnp.arange(SIZE)))[1]["mark"]
    np.testing.assert_array_equal(new.state["mark"][ended], expected[ended])


@pytest.mark.parametrize("mode", ["fresh", "pool", "first_state"])
def test_nothing_changes_where_nothing_ended(now, key, mode):
    pool = autoreset.sample_pool(Clock(), mode, key, 4)
    first = autoreset.reset(Clock(), jax.random.split(key, SIZE))
    new = autoreset.restart(Clock(), mode, pool, first, jnp.zeros(SIZE, bool), row_keys(1), now)
    jax.tree.map(np.testing.assert_array_equal, new, now)


def test_pool_draws_from_all_of_the_pool(now, key):
    pool = autoreset.sample_pool(Clock(), "pool", key, 4)
    marks = []
    for seed in range(10):
        new = autoreset.restart(Clock(), "pool", pool, (), jnp.ones(SIZE, bool), row_keys(seed), now)
        marks.extend(np.asarray(new.state["mark"]).tolist())
        np.testing.assert_array_equal(new.observation[:, 1], new.state["mark"])
    assert set(marks) == set(np.asarray(pool.state["mark"]).tolist())


def test_first_state_goes_back_to_each_environments_own(now, key):
    first = autoreset.reset(Clock(), jax.random.split(key, SIZE))
    ended = jnp.arange(SIZE) < 5
    new = autoreset.restart(Clock(), "first_state", (), first, ended, row_keys(1), now)
    np.testing.assert_array_equal(new.state["mark"][:5], first.state["mark"][:5])
    np.testing.assert_array_equal(new.state["time"], np.where(ended, 0, 3))


def test_quarantine_terminates_at_reward_zero():
    nan = jnp.nan
    timestep = Timestep(
        state={"x": jnp.array([[0.0], [nan], [0.0], [0.0]]), "n": jnp.arange(4)},
        observation=jnp.array([[1.0], [1.0], [jnp.inf], [1.0]]),
        reward=jnp.array([1.0, 1.0, 1.0, nan]),
        terminated=jnp.array([False, False, False, False]),
        truncated=jnp.array([True, True, False, False]),
        outcome={"success": jnp.ones(4)},
    )
    safe, broken = autoreset.quarantine(timestep)
    np.testing.assert_array_equal(broken, [False, True, True, True])
    np.testing.assert_array_equal(safe.reward, [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(safe.terminated, [False, True, True, True])
    np.testing.assert_array_equal(safe.truncated, [True, False, False, False])
    np.testing.assert_array_equal(safe.outcome["success"], [1.0, 0.0, 0.0, 0.0])


def test_starts_are_a_function_of_their_keys(key):
    keys = jax.random.split(key, SIZE)
    assert isinstance(autoreset.reset(Clock(), keys), Start)
    blocked = autoreset.reset(Clock(cheap_reset=False), keys)
    at_once = autoreset.reset(Clock(cheap_reset=True), keys)
    jax.tree.map(np.testing.assert_array_equal, blocked, at_once)
