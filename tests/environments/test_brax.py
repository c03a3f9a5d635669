"""The Brax adapter against the suite's own step and wrappers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.environments import RenderUnavailable, make
from purejaxrl_scale.environments.brax import _quiet
from purejaxrl_scale.environments.catalogue import BACKENDS, BRAX, backend_problem

NAME = "brax/inverted_pendulum"  # compiles fastest, and falls soon


@functools.cache
def pendulum(**options):
    """(environment, compiled reset, compiled step)."""
    environment = make(NAME, **options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


@functools.cache
def suites(environment, *, wrapped=False):
    """The suite's (reset, step), compiled; inside its EpisodeWrapper where asked."""
    from brax.envs.wrappers.training import EpisodeWrapper

    upstream = environment.upstream
    if wrapped:
        upstream = EpisodeWrapper(upstream, environment.episode_length, environment.action_repeat)

    def quietly(function):
        def call(*arguments):
            with _quiet():
                return function(*arguments)

        return jax.jit(call)

    return quietly(upstream.reset), quietly(upstream.step)


@pytest.fixture(scope="module")
def actions():
    return jax.random.uniform(jax.random.key(5), (12, 1), minval=-1, maxval=1)


def test_steps_are_the_suites(key, actions):
    environment, reset, step = pendulum()
    suite_reset, suite_step = suites(environment)
    observation, state = reset(key)  # a typed key
    theirs = suite_reset(jax.random.key_data(key))
    np.testing.assert_array_equal(observation, theirs.obs)
    ends = 0
    for action in actions:
        ours, theirs = step(key, state, action), suite_step(theirs, action)
        np.testing.assert_allclose(ours.observation, theirs.obs, rtol=1e-5, atol=1e-6)
        assert ours.reward == theirs.reward == 1.0
        assert ours.terminated == bool(theirs.done)
        assert not ours.truncated
        state, ends = ours.state, ends + int(ours.terminated)
    assert int(state.steps) == 12
    assert ends < 12


def test_falling_is_a_termination(key):
    # The suite marks it as a time-out in its info.
    _, reset, step = pendulum()
    _, state = reset(key)
    for _ in range(40):
        timestep = step(key, state, jnp.ones(1))
        state = timestep.state
        if timestep.terminated:
            break
    assert timestep.terminated
    assert not timestep.truncated
    assert abs(timestep.observation[1]) > 0.2


def test_repeats_and_time_limit_are_the_episode_wrappers(key, actions):
    environment, reset, step = pendulum(action_repeat=2, episode_length=7)
    suite_reset, suite_step = suites(environment, wrapped=True)
    assert environment.max_episode_steps == 4
    _, state = reset(key)
    theirs = suite_reset(jax.random.key_data(key))
    for index, action in enumerate(0.1 * actions[:4]):
        ours, theirs = step(key, state, action), suite_step(theirs, action)
        np.testing.assert_allclose(ours.observation, theirs.obs, rtol=1e-5, atol=1e-6)
        assert ours.reward == theirs.reward == 2.0
        assert ours.truncated == bool(theirs.info["truncation"]) == (index == 3)
        assert not ours.terminated
        state = ours.state


def test_repeats_stop_at_a_termination(key):
    _, reset, step = pendulum()
    _, state = reset(key)
    last = step(key, state, jnp.ones(1))
    while not last.terminated:
        state, last = last.state, step(key, last.state, jnp.ones(1))
    assert int(state.steps) > 2

    # One step before the fall, and with the time limit in reach: the first of two repeats ends the episode.
    environment, _, repeated = pendulum(action_repeat=2, episode_length=7)
    ours = repeated(key, state._replace(steps=jnp.int32(6)), jnp.ones(1))
    assert ours.terminated
    assert not ours.truncated
    assert ours.reward == 1.0
    np.testing.assert_allclose(ours.observation, last.observation, rtol=1e-5, atol=1e-6)

    # Brax's own wrapper counts a reward from beyond the end.
    suite_reset, suite_step = suites(environment, wrapped=True)
    theirs = suite_step(suite_reset(jax.random.key_data(key)).replace(pipeline_state=state.physics), jnp.ones(1))
    assert theirs.reward == 2.0


def test_one_compile_for_first_and_later_states(key):
    _, reset, step = pendulum()
    _, state = reset(key)
    step(key, step(key, state, jnp.zeros(1)).state, jnp.zeros(1))
    assert step._cache_size() == 1


def test_starts_follow_the_key(key):
    _, reset, _ = pendulum()
    first, again, other = (reset(each)[0] for each in (key, key, jax.random.key(1)))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def check_shapes(name, backend):
    environment = make(f"brax/{name}", backend=backend)
    key = jax.eval_shape(lambda: jax.random.key(0))
    observation, state = jax.eval_shape(environment.reset, key)
    action = jax.ShapeDtypeStruct(environment.action_space.shape, jnp.float32)
    timestep = jax.eval_shape(environment.step, key, state, action)
    for first, later in zip(jax.tree.leaves(state), jax.tree.leaves(timestep.state), strict=True):
        assert (first.shape, first.dtype, first.weak_type) == (later.shape, later.dtype, later.weak_type)
    entry = BRAX[name]
    for seen in (observation, timestep.observation):
        assert (seen.shape, seen.dtype) == (entry.shape, jnp.float32)
    assert environment.observation_space.shape == entry.shape
    assert environment.action_space.shape == (entry.actions,)
    assert environment.max_episode_steps == entry.episode_steps
    np.testing.assert_array_equal(environment.action_space.high, 1.0)


EVERY_PAIR = [(name, backend) for name in BRAX for backend in BACKENDS if not backend_problem(f"brax/{name}", backend)]
ONE_EACH = [(name, "generalized" if name == "swimmer" else "spring") for name in BRAX] + [
    ("inverted_pendulum", backend) for backend in BACKENDS
]


@pytest.mark.parametrize(("name", "backend"), ONE_EACH)
def test_state_keeps_its_shape(name, backend):
    check_shapes(name, backend)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), EVERY_PAIR)
def test_state_keeps_its_shape_on_every_backend(name, backend):
    check_shapes(name, backend)


def test_names_backends_and_lengths_are_checked():
    with pytest.raises(ValueError, match="did you mean spring"):
        make("brax/ant", backend="Spring")
    with pytest.raises(ValueError, match="swimmer does not run on the mjx backend: use generalized"):
        make("brax/swimmer", backend="mjx")
    with pytest.raises(ValueError, match="action_repeat of brax/ant is at least 1, not 0"):
        make("brax/ant", action_repeat=0)


def test_equal_options_are_equal_environments():
    environment, _, _ = pendulum()
    assert make(NAME) == environment
    assert hash(make(NAME)) == hash(environment)
    assert make(NAME, episode_length=5) != environment


def test_making_one_writes_nothing(capfd, tmp_path, monkeypatch):
    # MuJoCo warns about this model, in the terminal and in a file of the working directory.
    monkeypatch.chdir(tmp_path)
    make("brax/halfcheetah")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_frames(key):
    environment, reset, step = pendulum()
    _, state = reset(key)
    tilted = step(key, step(key, state, jnp.ones(1)).state, jnp.ones(1)).state
    try:
        frames = environment.render([state, tilted])
    except RenderUnavailable as error:
        pytest.skip(str(error))
    assert [(frame.shape, frame.dtype) for frame in frames] == [((320, 480, 3), np.uint8)] * 2
    assert (frames[0] != frames[1]).any()


def test_without_opengl_there_is_a_page(key, monkeypatch):
    import brax.io.image

    def fail(*arguments):
        raise AttributeError("no EGL")

    environment, reset, _ = pendulum()
    _, state = reset(key)
    monkeypatch.setattr(brax.io.image, "render_array", fail)
    with pytest.raises(RenderUnavailable, match="no EGL; html needs no OpenGL"):
        environment.render([state])
    assert "<html" in environment.html([state]).lower()


def test_what_has_no_bodies_says_so():
    with pytest.raises(RenderUnavailable, match="brax/fast has no bodies"):
        make("brax/fast").render([])
