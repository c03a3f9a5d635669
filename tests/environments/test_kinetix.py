"""The Kinetix adapter against the suite's own step, and its catalogue against the suite's own levels."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import kinetix
import numpy as np
import pytest
from kinetix.environment import (
    ActionType,
    EnvParams,
    ObservationType,
    make_kinetix_env,
)
from kinetix.render import make_render_pixels

from purejaxrl_scale.environments import make
from purejaxrl_scale.environments.interface import Box, Discrete, MultiDiscrete
from purejaxrl_scale.environments.kinetix_catalogue import LEVELS, SIZES, level_problem, smallest_size

SMALL = tuple(level for level in LEVELS if smallest_size(level) == "s")
LEVEL = "s/h4_thrust_aim"
ENVS, STEPS = 40, 257
SCALE = 0.2


def allow(function):
    """`function`, free to promote ranks as the suite does."""

    @functools.wraps(function)
    def allowed(*arguments):
        with jax.numpy_rank_promotion("allow"):
            return function(*arguments)

    return allowed


@functools.cache
def trajectory():
    """(starts, our timesteps, the suite's rewards, dones, states) of random steps over all small levels.

    Both step from the same state, ours; the suite has its dense reward on. Nothing is reset, so that the time limit
    is reached in every environment.
    """
    environment = make("kinetix/s", levels=SMALL, observation="flat", dense_reward_scale=SCALE)
    params = EnvParams(dense_reward_scale=SCALE)
    suite = make_kinetix_env(
        ActionType.MULTI_DISCRETE,
        ObservationType.SYMBOLIC_FLAT,
        None,
        params,
        environment.suite.static_env_params,
        auto_reset=False,
    )
    sizes = jnp.asarray(environment.action_space.sizes)

    def one_step(state, key):
        action = jax.random.randint(key, sizes.shape, 0, sizes)
        ours = environment.step(key, state, action)
        observation, theirs, reward, done, info = allow(suite.step)(key, state, action, params)
        return ours.state, (ours, (observation, theirs, reward, done, info["GoalR"]))

    @jax.jit
    @jax.vmap
    def run(key):
        observation, state = environment.reset(key)
        return (observation, state), jax.lax.scan(one_step, state, jax.random.split(key, STEPS))[1]

    return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(1), ENVS)))


@functools.cache
def one_level():
    """An environment of one level, and its step over a batch of states, compiled once for all tests here."""
    environment = make("kinetix/s", levels=(LEVEL,), observation="flat")
    step = jax.jit(jax.vmap(environment.step, in_axes=(None, 0, None)))
    return environment, functools.partial(step, jax.random.key(0))


BATCH = 64  # of the states that `one_level` steps
IDLE = jnp.zeros(6, jnp.int32)


def before_the_end(ours):
    """Which steps belong to the first episode of their environment: bool[envs, steps]."""
    over = np.cumsum(ours.terminated | ours.truncated, axis=1)
    return np.pad(over, ((0, 0), (1, 0)))[:, :-1] == 0


def test_a_step_is_the_suites_step():
    _, (ours, (observation, state, reward, done, success)) = trajectory()
    jax.tree.map(np.testing.assert_array_equal, ours.state, state)
    np.testing.assert_array_equal(ours.observation, observation)
    np.testing.assert_array_equal(ours.terminated | ours.truncated, done)
    np.testing.assert_array_equal(ours.outcome["success"] == 1, success)
    np.testing.assert_allclose(ours.reward, reward, rtol=0, atol=1e-6)


def test_dense_reward_from_the_second_step_to_the_last():
    _, (ours, (*_, reward, done, _)) = trajectory()
    np.testing.assert_array_equal(ours.reward[:, 0], 0.0)
    first = before_the_end(ours)
    last = first & done
    dense = ours.reward - np.where(ours.terminated, np.sign(ours.reward), 0)
    # The step that ends an episode earns its dense reward too.
    assert (np.abs(dense[last]) > 1e-4).mean() > 0.5
    np.testing.assert_allclose(ours.reward[last], reward[last], atol=1e-6)
    # Within an episode the dense terms telescope to the distance won since the first step.
    distance = ours.state.last_distance
    for env in range(ENVS):
        steps = int(first[env].sum())
        if steps > 2:
            won = SCALE * (distance[env, 0] - distance[env, steps - 2])
            np.testing.assert_allclose(ours.reward[env, : steps - 1].sum(), won, atol=1e-4)


def test_endings_are_told_apart():
    _, (ours, _) = trajectory()
    first = before_the_end(ours)
    goal = first & ours.terminated & (ours.outcome["success"] == 1)
    death = first & ours.terminated & (ours.outcome["success"] == 0)
    timeout = first & ours.truncated
    assert goal.any()
    assert death.any()
    assert timeout.any()
    assert not (ours.terminated & ours.truncated).any()
    # The dense term of one step is small beside the sparse reward of 1.
    np.testing.assert_allclose(ours.reward[goal], 1.0, atol=0.1)
    np.testing.assert_allclose(ours.reward[death], -1.0, atol=0.1)
    assert (ours.outcome["success"][~goal & first] == 0).all()
    # A time limit comes at step 256 exactly, dense reward or not.
    assert (np.nonzero(timeout)[1] == 255).all()
    assert (ours.reward[timeout] != 0).any()


def test_physics_that_turned_nan_is_neither_hidden_nor_an_ending():
    environment, step = one_level()
    _, state = environment.reset(jax.random.key(0))
    velocity = state.circle.velocity.at[0, 0].set(jnp.nan)
    state = state.replace(circle=state.circle.replace(velocity=velocity), last_distance=jnp.float32(2.0))
    timestep = step(jax.tree.map(lambda leaf: jnp.stack([leaf] * BATCH), state), IDLE)
    assert np.isnan(timestep.state.circle.position).any()
    assert not timestep.terminated.any()
    assert not timestep.truncated.any()
    assert np.isfinite(timestep.reward).all()


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        ("entity", "multi_discrete"),
        ("flat", "multi_discrete"),
        ("pixels", "multi_discrete"),
        ("flat", "continuous"),
        ("flat", "discrete"),
    ],
)
def test_spaces_describe_what_is_there(observation, action):
    environment = make("kinetix/s", levels=(LEVEL,), observation=observation, action=action)
    space = environment.action_space
    expected = {
        "multi_discrete": lambda: space == MultiDiscrete((3, 3, 3, 3, 2, 2)),
        "discrete": lambda: space == Discrete(11),
        "continuous": lambda: isinstance(space, Box) and space.shape == (6,) and (space.low == -1).all(),
    }
    assert expected[action]()
    example = jax.random.uniform(jax.random.key(0), (6,)) if action == "continuous" else jnp.zeros(6, jnp.int32)
    if action == "discrete":
        example = jnp.int32(0)

    key = jax.random.key(0)
    first, state = environment.reset(key)
    timestep = jax.eval_shape(environment.step, key, state, example)
    # Shape, dtype and weak type: otherwise the second call of a jitted loop compiles again.
    same = jax.tree.map(
        lambda a, b: jax.typeof(a) == jax.core.ShapedArray(b.shape, b.dtype, b.weak_type), state, timestep.state
    )
    assert jax.tree.all(same)
    for seen in (first, timestep.observation):
        shapes = jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), seen)
        boxes = jax.tree.map(
            lambda box: (box.shape, np.dtype(box.dtype)),
            environment.observation_space,
            is_leaf=lambda node: isinstance(node, Box),
        )
        assert shapes == boxes
    inside = jax.tree.map(
        lambda box, leaf: bool(((leaf >= box.low) & (leaf <= box.high)).all()),
        environment.observation_space,
        first,
        is_leaf=lambda node: isinstance(node, Box),
    )
    assert jax.tree.all(inside)
    assert (timestep.reward.dtype, timestep.reward.shape) == (jnp.float32, ())
    assert environment.max_episode_steps == 256
    assert environment.cheap_reset


def test_pixels_and_frames_stand_upright():
    environment = make("kinetix/s", levels=(LEVEL,), observation="pixels")
    image, state = environment.reset(jax.random.key(0))
    assert image.shape == (125, 125, 3)
    (frame,) = environment.render([state])
    assert frame.shape == (500, 500, 3)
    assert frame.dtype == np.uint8
    # The floor is dark and fills the lowest 0.4 m of a scene 5 m high; the first row is sky.
    assert (frame[-1] < 100).all()
    assert (frame[0, 100:-100] == 255).all()
    assert (np.asarray(image)[-1] < 0.4).all()
    with jax.numpy_rank_promotion("allow"):
        suites = make_render_pixels(environment.params, environment.suite.static_env_params.replace(downscale=1))(state)
    np.testing.assert_allclose(frame, np.asarray(suites).transpose(1, 0, 2)[::-1], atol=0.5)


def test_catalogue_is_the_suites():
    files = sorted((Path(kinetix.__file__ or kinetix.__path__[0]).parent / "levels").glob("*/*.json"))
    assert sorted(LEVELS) == sorted(f"{file.parent.name}/{file.stem}" for file in files)
    assert len(set(LEVELS)) == 74
    for file in files:
        slots = json.loads(file.read_text())["static_env_params"]
        counts = [slots[f"num_{name}"] for name in ("polygons", "circles", "joints", "thrusters")]
        fitting = [size for size in "sml" if all(a <= b for a, b in zip(counts, SIZES[size], strict=True))]
        assert smallest_size(f"{file.parent.name}/{file.stem}") == fitting[0]


def test_level_problems():
    assert all(level_problem(level, smallest_size(level)) is None for level in LEVELS)
    assert all(level_problem(level, "l") is None for level in LEVELS)
    assert "kinetix/m" in level_problem("m/arm_left", "s")
    assert "kinetix/l" in level_problem("l/pr", "m")
    assert "2 thrusters" in level_problem("m/h4_thrust_the_needle", "locomotion")
    assert level_problem(LEVEL, "locomotion") is None
    assert LEVEL in level_problem("s/h4_thrust_aimm", "s")
    assert LEVEL in level_problem("h4_thrust_aim", "s")
    assert "choose one of s, m, l, locomotion" in level_problem(LEVEL, "xl")


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"h4_thrust_aimm.*m/arm_left"):
        make("kinetix/s", levels=("s/h4_thrust_aimm", "m/arm_left"))
    with pytest.raises(ValueError, match="entity, flat, pixels"):
        make("kinetix/s", observation="symbolic")
    with pytest.raises(ValueError, match="exclude each other"):
        make("kinetix/s", levels=(LEVEL,), num_tasks=2)


def test_catalogue_needs_no_jax():
    code = "import sys; from purejaxrl_scale.environments import kinetix_catalogue; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dummy_stands_still():
    environment = make("kinetix/s", observation="flat", dummy=True)
    _, state = environment.reset(jax.random.key(0))
    timestep = jax.jit(environment.step)(jax.random.key(0), state, jnp.ones(6, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, timestep.state, state)
    assert not (timestep.terminated | timestep.truncated)
