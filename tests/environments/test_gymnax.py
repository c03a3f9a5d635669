"""The gymnax adapter against the suite's own step."""

import functools
from urllib.error import URLError

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.bsuite import mnist

from purejaxrl_scale.environments import RenderUnavailable, make
from purejaxrl_scale.environments.catalogue import GYMNAX
from purejaxrl_scale.environments.interface import Box, Discrete
from purejaxrl_scale.environments.structure import conform

STEPS = 32


@pytest.fixture(scope="module", autouse=True)
def digits():
    """Stands in for the images that MNISTBandit downloads."""
    images = (np.arange(4 * 28 * 28) % 128).astype(np.int8).reshape(4, 28, 28)
    labels = np.arange(4, dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mnist.load_mnist, "load_mnist", lambda: ((images, labels), None))
        yield


def random_action(space, key):
    if isinstance(space, Discrete):
        return jax.random.randint(key, (), 0, space.n)
    return jax.random.uniform(key, space.shape, minval=space.low, maxval=space.high)


@functools.cache
def trajectory(name):
    """(environment, our reset, our timesteps, the suite's next states and flags) of STEPS random steps.

    Both step from the same state; then the suite's next state, reset where an episode ended, is taken.
    """
    environment = make(f"gymnax/{name}")
    suite, params = gymnax.make(name)

    def step(state, key):
        action_key, key = jax.random.split(key)
        action = random_action(environment.action_space, action_key)
        with jax.numpy_rank_promotion("allow"):
            _, next_state, reward, terminated, truncated, info = suite.step(key, state, action, params)
        theirs = (info["final_observation"], next_state, reward, terminated, truncated)
        ours = environment.step(jax.random.split(key)[0], state, action)
        return conform(next_state, state, "suite"), (ours, theirs)

    def run(key):
        reset_key, key = jax.random.split(key)
        observation, state = environment.reset(reset_key)
        return (observation, state), jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    start, (ours, theirs) = jax.jit(run)(jax.random.key(3))
    return environment, start, ours, theirs


@pytest.mark.parametrize("name", GYMNAX)
def test_steps_are_the_suites(name):
    _, _, ours, (observation, state, reward, terminated, truncated) = trajectory(name)
    observation = np.asarray(observation, np.float32)
    if name == "FrozenLake-misc":
        observation = np.eye(16, dtype=np.float32)[observation.astype(int)]
    np.testing.assert_allclose(np.asarray(ours.observation, np.float32), observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.reward, np.asarray(reward, np.float32), rtol=1e-6)
    np.testing.assert_array_equal(ours.terminated, terminated)
    np.testing.assert_array_equal(ours.truncated, truncated & ~terminated)
    going_on = ~np.asarray(terminated | truncated)
    for mine, suites in zip(jax.tree.leaves(ours.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(np.asarray(mine)[going_on], np.asarray(suites)[going_on], rtol=1e-5, atol=1e-6)
    assert ours.outcome == {}


@pytest.mark.parametrize("name", GYMNAX)
def test_spaces_and_catalogue_agree_with_arrays(name):
    environment, (observation, state), ours, _ = trajectory(name)
    space, entry = environment.observation_space, GYMNAX[name]
    assert observation.shape == space.shape == space.low.shape == space.high.shape == entry.shape
    assert observation.dtype == ours.observation.dtype == space.dtype
    assert {"vector": 1, "grid": 2, "image": 3}[entry.observation] == len(space.shape)
    assert not np.isnan(space.low).any()
    for seen in (np.asarray(observation), np.asarray(ours.observation)):
        assert (seen >= space.low - 1e-6).all()
        assert (seen <= space.high + 1e-6).all()
    if entry.action == "discrete":
        assert environment.action_space == Discrete(entry.actions)
    else:
        assert isinstance(environment.action_space, Box)
        assert environment.action_space.shape == (entry.actions,)
        assert np.isfinite([environment.action_space.low, environment.action_space.high]).all()
    assert environment.max_episode_steps == entry.episode_steps
    assert (ours.reward.dtype, ours.terminated.dtype, ours.truncated.dtype) == (jnp.float32, jnp.bool_, jnp.bool_)
    for first, later in zip(jax.tree.leaves(state), jax.tree.leaves(ours.state), strict=True):
        assert (later.shape, later.dtype) == ((STEPS, *first.shape), first.dtype)


@pytest.mark.parametrize("name", [name for name, entry in GYMNAX.items() if entry.observation == "image"])
def test_images_hold_only_zeros_and_ones(name):
    # Else their conversion to bool would lose something.
    _, _, _, (observation, *_) = trajectory(name)
    assert set(np.unique(observation)) == {0.0, 1.0}


@pytest.fixture(scope="module")
def cartpole():
    return make("gymnax/CartPole-v1")


def test_time_limit_truncates_and_keeps_the_final_observation(cartpole, key):
    _, state = cartpole.reset(key)
    before = cartpole.step(key, state.replace(time=jnp.int32(498)), jnp.int32(1))
    assert not before.terminated
    assert not before.truncated
    last = cartpole.step(key, before.state, jnp.int32(1))
    assert not last.terminated
    assert last.truncated
    # Two pushes to the right: the true final observation, never one of a reset, where every entry is below 0.05.
    assert last.observation[1] > 0.3
    np.testing.assert_array_equal(last.observation[0], last.state.x)


def test_an_end_that_is_both_is_a_termination(cartpole, key):
    _, state = cartpole.reset(key)
    state = state.replace(time=jnp.int32(499), x=jnp.float32(2.39), x_dot=jnp.float32(2.0))
    last = cartpole.step(key, state, jnp.int32(1))
    assert last.terminated
    assert not last.truncated


def test_one_compile_for_first_and_later_states(cartpole, key):
    step = jax.jit(cartpole.step)
    _, state = jax.jit(cartpole.reset)(key)
    for _ in range(3):
        state = step(key, state, jnp.int32(0)).state
    assert step._cache_size() == 1


def test_equal_names_are_equal_environments(cartpole):
    assert make("gymnax/CartPole-v1") == cartpole
    assert hash(make("gymnax/CartPole-v1")) == hash(cartpole)
    assert make("gymnax/Acrobot-v1") != cartpole


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("Pendulum-v1", [2.0]),
        ("MountainCarContinuous-v0", [1.0]),
        ("PointRobot-misc", [0.1, 0.1]),
        ("Reacher-misc", [1.0, 1.0]),
        ("Swimmer-misc", [1.0, 1.0]),
    ],
)
def test_bounds_of_continuous_actions(name, bound):
    space = make(f"gymnax/{name}").action_space
    np.testing.assert_array_equal(space.high, np.float32(bound))
    np.testing.assert_array_equal(space.low, -np.float32(bound))


def test_missing_data_is_explained(monkeypatch):
    def offline():
        raise URLError("no network")

    monkeypatch.setattr(mnist.load_mnist, "load_mnist", offline)
    with pytest.raises(OSError, match="/tmp/mnist"):
        make("gymnax/MNISTBandit-bsuite")


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "Breakout-MinAtar"])
def test_frames_follow_the_state(name):
    environment, start, ours, _ = trajectory(name)
    states = [start[1], jax.tree.map(lambda leaf: leaf[3], ours.state)]
    frames = environment.render([*states, states[1]])
    assert len(frames) == 3
    assert all(frame.dtype == np.uint8 and frame.shape[2] == 3 and min(frame.shape[:2]) >= 160 for frame in frames)
    assert (frames[0] != frames[1]).any()
    np.testing.assert_array_equal(frames[1], frames[2])


def test_the_cart_is_drawn_where_it_is(cartpole, key):
    _, state = cartpole.reset(key)
    level = {"theta": jnp.float32(0), "x": jnp.float32(0)}
    centre, right = cartpole.render([state.replace(**level), state.replace(**{**level, "x": jnp.float32(1)})])
    dark = [np.flatnonzero((frame[206] < 120).all(axis=1)).mean() for frame in (centre, right)]
    assert dark[0] == pytest.approx(240, abs=2)
    assert dark[1] - dark[0] == pytest.approx(480 / 5.6, abs=2)  # pixels in a metre


def test_any_vector_is_drawn_as_bars():
    environment, start, ours, _ = trajectory("GaussianBandit-misc")
    states = [start[1], jax.tree.map(lambda leaf: leaf[5], ours.state)]
    first, later = environment.render(states)
    assert first.shape == later.shape == (320, 480, 3)
    assert (first != later).any()
    assert environment.render([]) == []


def test_what_cannot_be_drawn_says_so():
    environment, start, _, _ = trajectory("MNISTBandit-bsuite")
    with pytest.raises(RenderUnavailable, match="MNISTBandit"):
        environment.render([start[1]])
