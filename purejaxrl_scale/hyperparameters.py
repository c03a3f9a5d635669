"""The numbers of a config that are traced, and how they move during a run."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale import changes, config_io, counters
from purejaxrl_scale.config import Config
from purejaxrl_scale.counters import Counter


class Hyperparameters(NamedTuple):
    """Every traced number of the config, f32[] each: a population may differ in them under one compile.

    A centre of mass that is none stands as 0 and is not read.
    """

    reward_scale: jax.Array
    learning_rate: jax.Array
    warmup_fraction: jax.Array
    clip: jax.Array
    discount: jax.Array
    trace_decay: jax.Array
    entropy_coefficient: jax.Array
    value_coefficient: jax.Array
    max_gradient_norm: jax.Array
    kl_coefficient: jax.Array
    advantage_center_of_mass: jax.Array
    exploration_start: jax.Array
    exploration_end: jax.Array
    exploration_fraction: jax.Array
    center_of_mass: jax.Array


def from_config(config: Config) -> Hyperparameters:
    """The traced numbers of a config."""
    traced = [name for name, field in config_io.fields().items() if field.traced]
    return Hyperparameters(**{_leaf(name): jnp.float32(config_io.get(config, name) or 0.0) for name in traced})


def at(config: Config, hyperparameters: Hyperparameters, steps: Counter) -> Hyperparameters:
    """The numbers that hold after `steps` environment steps: each of `config.changes` has come about by then or not."""
    for change in changes.parsed(config):
        name = _leaf(change.field)
        now = jnp.where(counters.reached(steps, change.at), jnp.float32(change.value), getattr(hyperparameters, name))
        hyperparameters = hyperparameters._replace(**{name: now})
    return hyperparameters


def _leaf(field: str) -> str:
    return field.rpartition(".")[2]
