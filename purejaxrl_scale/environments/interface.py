"""What an environment is: reset, step, two spaces. Pure functions of one environment; callers vmap them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

PyTree = Any


class Box(NamedTuple):
    """Real vectors or images."""

    low: np.ndarray  # f32[*shape]
    high: np.ndarray  # f32[*shape]
    shape: tuple[int, ...]
    dtype: Any = np.float32


class Discrete(NamedTuple):
    """One choice of n."""

    n: int


class MultiDiscrete(NamedTuple):
    """Several choices at once, the i-th of sizes[i]."""

    sizes: tuple[int, ...]


ActionSpace = Box | Discrete | MultiDiscrete


class Timestep(NamedTuple):
    """What one step led to, before any reset.

    `terminated` and `truncated` are separate: only the former makes the future worthless. Where a step is both,
    it is terminated. Sparse outcomes stand in `outcome` and are read where an episode ends.
    """

    state: PyTree
    observation: PyTree  # of the state that the step led to
    reward: jax.Array  # f32[]
    terminated: jax.Array  # bool[]
    truncated: jax.Array  # bool[]
    outcome: dict[str, jax.Array]  # f32[] each, e.g. {"success": ...}; the same keys at each step


class RenderUnavailable(RuntimeError):
    """This machine cannot draw this environment; the message says what is missing, or what to use instead."""


class Environment(Protocol):
    """A single environment. Environments never reset themselves: `autoreset` does, for every suite alike."""

    name: str
    observation_space: PyTree  # a Box, or a dict of Boxes
    action_space: ActionSpace
    max_episode_steps: int  # steps after which an episode is truncated at the latest
    cheap_reset: bool  # resetting every environment costs less than finding those that need it

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """A start: (observation, state)."""
        ...

    def step(self, key: jax.Array, state: PyTree, action: jax.Array) -> Timestep:
        """One transition."""
        ...

    def render(self, states: list[PyTree]) -> list[np.ndarray]:
        """Frames uint8[height, width, 3] of consecutive states, on the host. Raises RenderUnavailable."""
        ...
