"""Brax (Freeman et al. 2021, arXiv 2106.13281): locomotion and manipulation on four physics pipelines.

The suite's wrappers are left out: they reset by themselves, and need raw keys. What they do besides (time limit,
repeated actions) is done here. Two traps: actions are in [-1, 1] whatever the actuators' own ranges are, because the
environments rescale; and `inverted_pendulum` marks its falls as time-outs for Brax's own PPO, where they are
terminations like any other.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import io
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# MuJoCo, which Brax imports, chooses how to draw when it is imported: without a window wherever that is possible.
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl" if ctypes.util.find_library("EGL") else "disable")
with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    # MJX prints that its optional warp backend is absent; jaxopt, which Brax uses, says that it is deprecated.
    warnings.simplefilter("ignore")
    import brax.envs
    import brax.io.html
    import brax.io.image
    import mujoco

from purejaxrl_scale.environments.catalogue import backend_problem, name_problem
from purejaxrl_scale.environments.interface import Box, PyTree, RenderUnavailable, Timestep
from purejaxrl_scale.environments.structure import conform, strong

_HEIGHT, _WIDTH = 320, 480


def make(name: str, *, backend: str = "spring", episode_length: int = 1000, action_repeat: int = 1) -> Brax:
    """A Brax environment on a physics backend: generalized, spring, positional or mjx.

    `episode_length` counts steps with each repeat of an action as one, as Brax does: with `action_repeat` 4 an episode
    of 1000 is truncated after 250 actions.

    Raises ValueError for an unknown name or backend, a backend that the environment does not run on, and lengths
    below 1.
    """
    full_name = f"brax/{name}"
    if problem := name_problem(full_name) or backend_problem(full_name, backend):
        raise ValueError(problem)
    for option, value in {"episode_length": episode_length, "action_repeat": action_repeat}.items():
        if value < 1:
            raise ValueError(f"{option} of {full_name} is at least 1, not {value}")
    with _quiet():
        upstream = brax.envs.get_environment(name, backend=backend)
        start = jax.eval_shape(upstream.reset, jax.random.key_data(jax.random.key(0)))
    unbounded = np.full(start.obs.shape, np.inf, np.float32)
    one = np.ones(upstream.action_size, np.float32)
    return Brax(
        name=full_name,
        backend=backend,
        episode_length=episode_length,
        action_repeat=action_repeat,
        observation_space=Box(-unbounded, unbounded, start.obs.shape),
        action_space=Box(-one, one, one.shape),
        upstream=upstream,
    )


class BraxState(NamedTuple):
    """What a step needs. The suite's metrics, info, reward and observation are results only, and are left out."""

    physics: PyTree  # the pipeline's state
    steps: jax.Array  # i32[], steps of this episode, each repeat of an action counted


@dataclass(frozen=True)
class Brax:
    """One Brax environment. Two made with the same options are equal."""

    name: str
    backend: str
    episode_length: int
    action_repeat: int
    observation_space: Box = field(compare=False, repr=False)
    action_space: Box = field(compare=False, repr=False)
    upstream: brax.envs.Env = field(compare=False, repr=False)
    cheap_reset: bool = field(default=False, compare=False)

    @property
    def max_episode_steps(self) -> int:
        """Actions after which an episode is truncated at the latest."""
        return -(-self.episode_length // self.action_repeat)

    def reset(self, key: jax.Array) -> tuple[jax.Array, BraxState]:
        """A start: (observation, state)."""
        with _quiet():
            # The suite takes the length of a key's last axis for granted, which a typed key does not have.
            start = self.upstream.reset(jax.random.key_data(key))
        return jnp.asarray(start.obs, jnp.float32), BraxState(strong(start.pipeline_state), jnp.int32(0))

    def step(self, key: jax.Array, state: BraxState, action: jax.Array) -> Timestep:
        """One transition; the physics draws nothing from `key`.

        With repeats, rewards add up to the first termination and nothing moves after it. Brax's EpisodeWrapper goes
        on there: it adds rewards from beyond the end, and forgets a termination before the last repeat.
        """
        del key
        physics, observation, reward, terminated = self._step_once(state.physics, action)
        if self.action_repeat > 1:

            def repeat(before, _):
                physics, _, total, terminated = before
                after_physics, after_observation, reward, after_terminated = self._step_once(physics, action)
                after = (after_physics, after_observation, total + reward, after_terminated)
                return jax.tree.map(lambda new, old: jnp.where(terminated, old, new), after, before), None

            (physics, observation, reward, terminated), _ = jax.lax.scan(
                repeat, (physics, observation, reward, terminated), length=self.action_repeat - 1
            )
        steps = state.steps + self.action_repeat
        return Timestep(
            state=BraxState(physics, steps),
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=(steps >= self.episode_length) & ~terminated,
            outcome={},
        )

    def render(self, states: list[BraxState]) -> list[np.ndarray]:
        """Frames uint8[320, 480, 3] of consecutive states, by MuJoCo.

        Raises RenderUnavailable where there is no OpenGL without a window; `html` works there.
        """
        system = self._system()
        # The first camera of a model follows its body. By name: Brax takes camera number 0 for no camera.
        camera = system.mj_model.camera(0).name if system.mj_model.ncam else None
        try:
            with _quiet():
                return list(brax.io.image.render_array(system, self._physics(states), _HEIGHT, _WIDTH, camera))
        except Exception as error:  # each of MuJoCo's drawing libraries fails in its own way
            raise RenderUnavailable(
                f"MuJoCo cannot draw here (MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}): "
                f"{type(error).__name__}: {error}; html needs no OpenGL"
            ) from error

    def html(self, states: list[BraxState]) -> str:
        """A web page that plays consecutive states; its viewer loads from the internet."""
        system = self._system()
        with _quiet():
            return brax.io.html.render(system, self._physics(states), colab=False)

    def _step_once(self, physics: PyTree, action: jax.Array):
        """One step without repeats -> (physics, observation, reward, terminated)."""
        # An environment that read its last observation, metrics or info would fail here instead of going wrong.
        nothing = jnp.zeros(())
        before = brax.envs.State(physics, obs={}, reward=nothing, done=nothing, metrics={}, info={})
        with _quiet():
            after = self.upstream.step(before, action)
        return (
            conform(after.pipeline_state, physics, self.name),
            jnp.asarray(after.obs, jnp.float32),
            jnp.asarray(after.reward, jnp.float32),
            jnp.asarray(after.done, bool),
        )

    def _system(self):
        system = getattr(self.upstream, "sys", None)
        if system is None:
            raise RenderUnavailable(f"{self.name} has no bodies to draw")
        return system

    def _physics(self, states: list[BraxState]) -> list[PyTree]:
        return [state.physics for state in jax.device_get(states)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Calls into Brax: it breaks rank promotion, warns that it is unmaintained, and MuJoCo writes files of warnings."""
    handler = mujoco.get_mju_user_warning()  # pyright: ignore[reportAttributeAccessIssue]
    mujoco.set_mju_user_warning(lambda message: None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(handler)  # pyright: ignore[reportAttributeAccessIssue]
