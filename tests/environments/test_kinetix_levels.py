"""Where Kinetix episodes start: levels of files and of the generator, against the suite's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kinetix.environment import UEDParams, sample_kinetix_level
from kinetix.util.saving import load_evaluation_levels

from purejaxrl_scale.environments import kinetix_levels, make
from purejaxrl_scale.environments.kinetix_catalogue import LEVELS, smallest_size
from tests.environments.test_kinetix import BATCH, IDLE, LEVEL, SMALL, allow, one_level, trajectory


def test_starts_are_drawn_from_all_levels():
    (observation, state), _ = trajectory()
    assert len(np.unique(observation, axis=0)) == len(SMALL)
    assert (state.last_distance == -1).all()
    assert (state.timestep == 0).all()


@pytest.mark.parametrize(("level", "size"), [(LEVEL, "m"), ("m/h7_car_flip", "l")])
def test_a_level_is_what_the_suite_reads(level, size):
    environment = make(f"kinetix/{size}", levels=(level,), observation="flat")
    _, state = environment.reset(jax.random.key(0))
    suites, _ = load_evaluation_levels([level], static_env_params_override=environment.suite.static_env_params)
    jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[0]), state, suites)
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda leaf: leaf.dtype, suites)


def test_every_level_loads():
    environment = make("kinetix/l", levels=LEVELS, observation="flat")
    _, states = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), 4))
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), states))
    assert not environment.cheap_reset


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


def test_a_padded_level_is_the_one_loaded_into_the_larger_size():
    small = tuple(level for level in LEVELS if smallest_size(level) == "s")[:3]
    with jax.numpy_rank_promotion("allow"):
        suites = {size: make(f"kinetix/{size}", levels=small[:1], observation="flat").suite for size in "sm"}
        padded = kinetix_levels.padded(kinetix_levels.stacked(small, suites["s"]), suites["m"])
        loaded = kinetix_levels.stacked(small, suites["m"])
    padded, loaded = dict(vars(padded)), dict(vars(loaded))
    # Of things that are not there, the suite's padding and its files hold different numbers.
    for kind in ("polygon", "circle", "joint", "thruster"):
        mine, theirs = padded.pop(kind), loaded.pop(kind)
        np.testing.assert_array_equal(mine.active, theirs.active)
        for name in vars(mine):
            one, other = np.asarray(getattr(mine, name)), np.asarray(getattr(theirs, name))
            there = np.asarray(mine.active).reshape(mine.active.shape + (1,) * (one.ndim - 2))
            np.testing.assert_array_equal(np.where(there, one, 0), np.where(there, other, 0), err_msg=name)
    np.testing.assert_array_equal(padded["collision_matrix"], loaded["collision_matrix"])
