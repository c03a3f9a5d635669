"""Tiny environments whose values are known, and some that misbehave on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxrl_scale.environments.interface import Box, Discrete, Timestep


class ProbeState(NamedTuple):
    """Where an episode stands."""

    time: jax.Array  # i32[]
    cue: jax.Array  # f32[], -1 or 1


@dataclass(frozen=True)
class Probe:
    """One of the five classic probes of a learner.

    constant: one step, observation 0, reward 1: the value is 1.
    observation: one step, reward equals the observation of ±1: the value is the observation.
    discounting: two steps, observations 0 and 1, reward 1 at the end: values are the discount and 1.
    decision: one step, two actions, reward ±1 by the action: the policy takes action 1.
    both: one step, reward 1 where the action matches the cue, else -1.
    """

    kind: str = "constant"
    cheap_reset: bool = True
    name: str = "probe"
    max_episode_steps: int = 2

    @property
    def observation_space(self):
        return Box(np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32), (1,))

    @property
    def action_space(self):
        return Discrete(2)

    def _observe(self, state):
        if self.kind in ("observation", "both"):
            return state.cue[None]
        if self.kind == "discounting":
            return state.time.astype(jnp.float32)[None]
        return jnp.zeros(1)

    def reset(self, key):
        cue = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        state = ProbeState(jnp.int32(0), cue)
        return self._observe(state), state

    def step(self, key, state, action):
        new = ProbeState(state.time + 1, state.cue)
        last = new.time >= (2 if self.kind == "discounting" else 1)
        sign = jnp.where(action == 1, 1.0, -1.0)
        reward = {
            "constant": jnp.float32(1.0),
            "observation": state.cue,
            "discounting": jnp.where(last, 1.0, 0.0),
            "decision": sign,
            "both": sign * state.cue,
        }[self.kind]
        return Timestep(new, self._observe(new), reward, last, jnp.bool_(False), {})


@dataclass(frozen=True)
class Clock:
    """Counts its steps: observation = the time within the episode, reward = 1, ends after `length` steps.

    The end is a truncation, or a termination where `terminates`. With `breaks_at` >= 0 the physics turns NaN at that
    time in environments whose key says so (about half).
    """

    length: int = 5
    terminates: bool = False
    breaks_at: int = -1
    cheap_reset: bool = False
    name: str = "clock"

    @property
    def max_episode_steps(self):
        return self.length

    @property
    def observation_space(self):
        return Box(np.zeros(2, np.float32), np.full(2, np.inf, np.float32), (2,))

    @property
    def action_space(self):
        return Discrete(3)

    def reset(self, key):
        mark = jax.random.uniform(key)
        state = {"time": jnp.int32(0), "mark": mark, "position": jnp.float32(0.0)}
        return jnp.stack([jnp.float32(0.0), mark]), state

    def step(self, key, state, action):
        time = state["time"] + 1
        breaks = (time == self.breaks_at) & (state["mark"] > 0.5)
        position = jnp.where(breaks, jnp.nan, state["position"] + 1.0)
        over = time >= self.length
        return Timestep(
            {"time": time, "mark": state["mark"], "position": position},
            jnp.stack([position, state["mark"]]),
            jnp.where(breaks, jnp.nan, 1.0),
            over & self.terminates,
            over & (not self.terminates),
            {"success": jnp.where(over, 1.0, 0.0)},
        )
