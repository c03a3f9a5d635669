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
    UEDParams,
    make_kinetix_env,
    sample_kinetix_level,
)
from kinetix.render import make_render_pixels
from kinetix.util.saving import load_evaluation_levels

from purejaxrl_scale.environments import kinetix_levels, make
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


def test_starts_are_drawn_from_all_levels():
    (observation, state), _ = trajectory()
    assert len(np.unique(observation, axis=0)) == len(SMALL)
    assert (state.last_distance == -1).all()
    assert (state.timestep == 0).all()


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


@pytest.mark.parametrize(("level", "size"), [(LEVEL, "m"), ("m/h7_car_flip", "l")])
def test_a_level_is_what_the_suite_reads(level, size):
    environment = make(f"kinetix/{size}", levels=(level,), observation="flat")
    _, state = environment.reset(jax.random.key(0))
    suites, _ = load_evaluation_levels([level], static_env_params_override=environment.suite.static_env_params)
    jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[0]), state, suites)
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda leaf: leaf.dtype, suites)


def test_catalogue_is_the_suites():
    files = sorted((Path(kinetix.__file__ or kinetix.__path__[0]).parent / "levels").glob("*/*.json"))
    assert sorted(LEVELS) == sorted(f"{file.parent.name}/{file.stem}" for file in files)
    assert len(set(LEVELS)) == 74
    for file in files:
        slots = json.loads(file.read_text())["static_env_params"]
        counts = [slots[f"num_{name}"] for name in ("polygons", "circles", "joints", "thrusters")]
        fitting = [size for size in "sml" if all(a <= b for a, b in zip(counts, SIZES[size], strict=True))]
        assert smallest_size(f"{file.parent.name}/{file.stem}") == fitting[0]


def test_every_level_loads():
    environment = make("kinetix/l", levels=LEVELS, observation="flat")
    _, states = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), 4))
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), states))
    assert not environment.cheap_reset


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


def test_filter_takes_the_second_candidate_where_idling_solves_the_first():
    environment, _ = one_level()

    def sample(key):
        """The level, trivial for half of the keys: green starts in contact with blue. Gravity marks the sample."""
        _, state = environment.reset(key)
        trivial, mark = jax.random.bernoulli(key), jax.random.uniform(key)
        return touching(state, trivial).replace(gravity=state.gravity.at[0].set(1e-4 * mark))

    keys = jax.random.split(jax.random.key(2), BATCH // 2)
    candidates = jax.jit(jax.vmap(sample))(jax.vmap(jax.random.split)(keys).reshape(-1))
    solved = idle_success(candidates).reshape(-1, 2)
    assert {(True, True), (True, False), (False, True), (False, False)} == set(map(tuple, solved.tolist()))
    marks = np.asarray(candidates.gravity[:, 0]).reshape(-1, 2)
    assert len(np.unique(marks)) == BATCH

    filtered = kinetix_levels.without_trivial(sample, environment.suite, environment.params)
    chosen = jax.jit(jax.vmap(allow(filtered)))(keys)
    np.testing.assert_array_equal(chosen.gravity[:, 0], np.where(solved[:, 0], marks[:, 1], marks[:, 0]))


def touching(state, condition):
    """The state, with the green shapes moved onto the blue ones where `condition`."""
    roles, positions = [], []
    for shape, role in ((state.polygon, state.polygon_shape_roles), (state.circle, state.circle_shape_roles)):
        roles.append(role * shape.active)
        positions.append(shape.position)
    roles, positions = jnp.concatenate(roles), jnp.concatenate(positions)
    blue = positions[jnp.argmax(roles == 2)]

    def move(shape, role):
        green = (role == 1) & shape.active & condition
        return shape.replace(position=jnp.where(green[:, None], blue[None, :], shape.position))

    return state.replace(
        polygon=move(state.polygon, state.polygon_shape_roles),
        circle=move(state.circle, state.circle_shape_roles),
    )


def idle_success(states):
    """Whether 64 idle steps reach the goal before anything else ends the episode: bool[BATCH]."""
    _, step = one_level()
    over = success = np.zeros(BATCH, bool)
    for _ in range(64):
        timestep = step(states, IDLE)
        success = success | (~over & (np.asarray(timestep.outcome["success"]) == 1))
        over = over | np.asarray(timestep.terminated)
        states = timestep.state
    return success


def test_tasks_are_the_same_in_every_run():
    environment = make("kinetix/locomotion", observation="flat", num_tasks=6)
    with jax.numpy_rank_promotion("allow"):
        again = kinetix_levels.fixed_tasks(kinetix_levels.locomotion(environment.suite, environment.params), 6)
    keys = jax.random.split(jax.random.key(5), 64)
    observations, states = jax.jit(jax.vmap(environment.reset))(keys)
    tasks = np.unique(np.asarray(observations), axis=0)
    assert len(tasks) == 6
    jax.tree.map(np.testing.assert_array_equal, states, jax.jit(jax.vmap(again))(keys))
    # Limbs vary from task to task, and nothing of the walls does.
    assert len(np.unique(np.asarray(states.polygon.vertices)[:, 4:], axis=0)) == 6
    assert not environment.cheap_reset


def test_random_levels_have_a_goal_and_can_be_stepped():
    environment = make("kinetix/s", observation="flat", level_filter=False)
    observations, states = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), 16))
    roles = np.concatenate(
        [
            np.where(states.polygon.active, states.polygon_shape_roles, 0),
            np.where(states.circle.active, states.circle_shape_roles, 0),
        ],
        axis=1,
    )
    assert ((roles == 1).any(axis=1) & (roles == 2).any(axis=1)).all()
    assert len(np.unique(np.asarray(observations), axis=0)) == 16
    _, state = jax.eval_shape(environment.reset, jax.random.key(0))
    next_state = jax.eval_shape(environment.step, jax.random.key(0), state, jax.ShapeDtypeStruct((6,), jnp.int32)).state
    assert jax.tree.map(str, state) == jax.tree.map(str, next_state)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["s", "m"])
def test_random_levels_are_the_suites(size):
    """What the generator asks of the engine is answered by less work, to the same levels."""
    environment = make(f"kinetix/{size}", observation="flat", level_filter=False)
    suite, params = environment.suite, environment.params

    def sample(key):
        return sample_kinetix_level(key, suite.physics_engine, params, suite.static_env_params, UEDParams())

    keys = jax.random.split(jax.random.key(6), 32)
    theirs, ours = jax.jit(jax.vmap(allow(sample)))(keys), jax.jit(jax.vmap(environment.reset))(keys)[1]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), ours, theirs)


@pytest.mark.slow
def test_the_filter_drops_most_trivial_random_levels():
    environment = make("kinetix/s", observation="flat")
    unfiltered = kinetix_levels.random_level(environment.suite, environment.params)

    def trivial_share(start):
        starts = jax.jit(jax.vmap(allow(start)))(jax.random.split(jax.random.key(3), 8 * BATCH))
        batches = [jax.tree.map(lambda leaf, i=i: leaf[i * BATCH : (i + 1) * BATCH], starts) for i in range(8)]
        return np.mean([idle_success(batch).mean() for batch in batches])

    # Over 1,024 levels 19 % were trivial, and 3 % after the filter: 0.19² is 0.036.
    assert 0.12 < trivial_share(unfiltered) < 0.27
    assert trivial_share(environment.start) < 0.08


@pytest.mark.slow
def test_a_level_is_found_again_by_its_name():
    """Fresh ones are those of reset; the names they get bring them back without the filter."""
    environment = make("kinetix/s", observation="flat")
    keys = jax.random.split(jax.random.key(4), 16)
    draw = jax.jit(environment.draw)
    nothing = jnp.zeros((16, 2), jnp.uint32)
    names, fresh = draw(keys, nothing, jnp.ones(16, bool))
    expected = jax.jit(jax.vmap(environment.reset))(keys)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), fresh, expected)
    half = jnp.arange(16) % 2 == 0
    again_names, again = draw(jax.random.split(jax.random.key(5), 16), names, half)
    np.testing.assert_array_equal(again_names[1::2], names[1::2])
    assert np.all(np.any(np.asarray(again_names[::2]) != np.asarray(names[::2]), axis=1))
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one[1::2], other[1::2]), again, fresh)


def test_dummy_stands_still():
    environment = make("kinetix/s", observation="flat", dummy=True)
    _, state = environment.reset(jax.random.key(0))
    timestep = jax.jit(environment.step)(jax.random.key(0), state, jnp.ones(6, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, timestep.state, state)
    assert not (timestep.terminated | timestep.truncated)
