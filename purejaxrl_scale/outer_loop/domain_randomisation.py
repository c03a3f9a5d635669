"""Domain randomisation: a fresh level for every environment.

Source: Tobin et al. 2017, arXiv 1703.06907.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from purejaxrl_scale.config import Config
from purejaxrl_scale.environments.levels import Assignment, Levels
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.rollout import Trajectory


def init(config: Config) -> tuple[()]:
    """Nothing to remember."""
    del config
    return ()


def assign(config: Config, state: tuple[()], outer_step: jax.Array, key: jax.Array) -> Assignment:
    """Fresh levels for all."""
    del state, outer_step, key
    everyone = jnp.full(config.environment.num_envs, -1, jnp.int32)
    return Assignment(everyone, jnp.zeros((1, 2), jnp.uint32), jnp.bool_(True))


def observe(
    config: Config,
    hyperparameters: Hyperparameters,
    state: tuple[()],
    levels: Levels,
    trajectory: Trajectory,
    outer_step: jax.Array,
) -> tuple[()]:
    """Nothing to learn."""
    del config, hyperparameters, levels, trajectory, outer_step
    return state


def metrics(state: tuple[()]) -> dict[str, jax.Array]:
    """None."""
    del state
    return {}
