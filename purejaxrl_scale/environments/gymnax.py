"""gymnax (Lange 2022): classic control, bsuite, MinAtar and small control tasks.

Steps go through the suite's `step_env`, which never resets: the observation is the true final one where an episode
ends. Traps upstream, kept as they are: MemoryChain observes the state before the step; MetaMaze puts the agent at a
random place when it finds the goal, and ends the episode only if that place is the goal again; Pong rewards each step
that the ball stays in play, for either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment as Upstream
from gymnax.environments.environment import EnvParams, EnvState

from purejaxrl_scale.environments import drawing
from purejaxrl_scale.environments.catalogue import GYMNAX
from purejaxrl_scale.environments.interface import ActionSpace, Box, Discrete, RenderUnavailable, Timestep
from purejaxrl_scale.environments.structure import conform, strong

# Their declared bounds do not hold: rewards and times that the observation contains leave them.
_WRONG_BOUNDS = frozenset({"MemoryChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc"})


def make(name: str) -> Gymnax:
    """A registered gymnax environment with its default parameters.

    Raises ValueError for a name that gymnax does not have, and OSError where MNISTBandit's images, which the suite
    downloads when the environment is made, are not to be had.
    """
    try:
        upstream, params = gymnax.make(name)
    except OSError as error:
        raise OSError(
            f"gymnax/{name} downloads its data set when it is made, which failed ({error}); put the four gzipped "
            "MNIST files into /tmp/mnist, where gymnax looks for them first"
        ) from error
    return Gymnax(
        name=f"gymnax/{name}",
        observation_space=_observation_space(name, upstream.observation_space(params)),
        action_space=_action_space(upstream.action_space(params)),
        max_episode_steps=int(params.max_steps_in_episode),
        upstream=upstream,
        params=params,
    )


@dataclass(frozen=True)
class Gymnax:
    """One gymnax environment. Its state is the suite's own. Two of the same name are equal."""

    name: str
    observation_space: Box = field(compare=False, repr=False)
    action_space: ActionSpace = field(compare=False)
    max_episode_steps: int = field(compare=False)
    upstream: Upstream = field(compare=False, repr=False)
    params: EnvParams = field(compare=False, repr=False)
    cheap_reset: bool = field(default=True, compare=False)

    def reset(self, key: jax.Array) -> tuple[jax.Array, EnvState]:
        """A start: (observation, state)."""
        with jax.numpy_rank_promotion("allow"):
            observation, state = self.upstream.reset_env(key, self.params)
        return self._observed(observation), strong(state)

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Timestep:
        """One transition. A continuous action must be inside the action space: some rewards charge for more."""
        if isinstance(self.action_space, Discrete):
            action = jnp.asarray(action, jnp.int32)  # the suite selects between actions and its own int32
        with jax.numpy_rank_promotion("allow"):
            observation, stepped, reward, terminated, _ = self.upstream.step_env(key, state, action, self.params)
            late = self.upstream.is_truncated(stepped, self.params)
        return Timestep(
            state=conform(stepped, state, self.name),
            observation=self._observed(observation),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            truncated=late & ~terminated,
            outcome={},
        )

    def render(self, states: list[EnvState]) -> list[np.ndarray]:
        """Frames uint8[height, width, 3] of consecutive states, on the host."""
        try:
            return drawing.film(self.name.partition("/")[2], jax.device_get(states), self._observe_again)
        except NotImplementedError as error:  # MNISTBandit
            raise RenderUnavailable(f"the state of {self.name} holds nothing that could be drawn") from error

    def _observed(self, observation: jax.Array) -> jax.Array:
        if jnp.ndim(observation) == 0:  # FrozenLake: the number of a place
            return jax.nn.one_hot(observation, self.observation_space.shape[0], dtype=self.observation_space.dtype)
        # To bool this is exact, as the images hold nothing but zeros and ones: a quarter of the memory of float32.
        return jnp.asarray(observation, self.observation_space.dtype)

    def _observe_again(self, states: Sequence[EnvState]) -> np.ndarray:
        """Observations [T, ...] of states: the suite keeps none in them."""
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

        def observe(state):
            with jax.numpy_rank_promotion("allow"):
                return self._observed(self.upstream.observe(jax.random.key(0), state, None, self.params))

        return np.asarray(jax.jit(jax.vmap(observe))(stacked))


def _observation_space(name: str, space: spaces.Discrete | spaces.Box) -> Box:
    if isinstance(space, spaces.Discrete):
        return Box(np.zeros(space.n, np.float32), np.ones(space.n, np.float32), (space.n,))
    shape = tuple(space.shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
    if name in _WRONG_BOUNDS:
        low, high = np.full(shape, -np.inf, np.float32), np.full(shape, np.inf, np.float32)
    return Box(low, high, shape, np.bool_ if GYMNAX[name].observation == "image" else np.float32)


def _action_space(space: spaces.Discrete | spaces.Box) -> ActionSpace:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    shape = tuple(space.shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
    return Box(low, high, shape)
