"""Adaptive Batch Scaling: from how much the policy still changes to the length of the next rollout.

Source: Park 2026, Scalable On-Policy Reinforcement Learning via Adaptive Batch Scaling, arXiv 2605.21557.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.config import AdaptiveBatchConfig


class AdaptiveBatch(NamedTuple):
    """Where the length stands, and the measurements that move it."""

    length: jax.Array  # f32[]; a whole number unless rounding is float
    history: jax.Array  # f32[window], a ring of the last measurements
    measurements: jax.Array  # u32[], how many there have been


def init(config: AdaptiveBatchConfig) -> AdaptiveBatch:
    """The shortest rollout, and no measurement."""
    return AdaptiveBatch(jnp.float32(config.minimum), jnp.zeros(config.window), jnp.uint32(0))


def target_length(divergence: float | jax.Array, config: AdaptiveBatchConfig) -> jax.Array:
    """The length L* that a divergence δ asks for, f32[] steps.

    α = ln(δ / low) / ln(high / low) of δ within [low, high],  L* = maximum - α (maximum - minimum)

    Source: eqs. 4 and 5.
    """
    within = jnp.clip(jnp.asarray(divergence, jnp.float32), config.low, config.high)
    share = jnp.log(within / config.low) / math.log(config.high / config.low)
    return config.maximum - share * (config.maximum - config.minimum)


def update(state: AdaptiveBatch, divergence: float | jax.Array, config: AdaptiveBatchConfig) -> AdaptiveBatch:
    """The state after one measurement: L ← (1 - s) L + s L*(mean of the window), from `burn_in` measurements on.

    A divergence that is not finite changes nothing.

    Source: eq. 9.
    """
    divergence = jnp.asarray(divergence, jnp.float32)
    measured = jnp.isfinite(divergence)
    place = state.measurements % jnp.uint32(config.window)
    history = state.history.at[place].set(jnp.where(measured, divergence, state.history[place]))
    measurements = state.measurements + measured.astype(jnp.uint32)
    kept = jnp.minimum(measurements, jnp.uint32(config.window)).astype(jnp.float32)
    within = jnp.arange(config.window) < kept
    mean = jnp.sum(jnp.where(within, history, 0.0)) / jnp.maximum(kept, 1.0)
    ready = measured & (measurements >= config.burn_in)
    moved = move(state, jnp.where(ready, target_length(mean, config), jnp.nan), config)
    return moved._replace(history=history, measurements=measurements)


def move(state: AdaptiveBatch, target: float | jax.Array, config: AdaptiveBatchConfig) -> AdaptiveBatch:
    """The state with its length moved towards a target in steps, as `update` does; one that is NaN changes nothing."""
    target = jnp.clip(jnp.asarray(target, jnp.float32), config.minimum, config.maximum)
    if config.rounding != "float":
        target = _whole(target, config)
    length = (1.0 - config.smoothing) * state.length + config.smoothing * target
    if config.rounding != "float":
        # The half is for XLA, which divides by a constant through its reciprocal: 82 / 41 would come out below 2.
        length = jnp.floor((_whole(length, config) + 0.5) / config.multiple) * config.multiple
    length = jnp.clip(length, config.minimum, config.maximum)
    return state._replace(length=jnp.where(jnp.isnan(target), state.length, length))


def _whole(length: jax.Array, config: AdaptiveBatchConfig) -> jax.Array:
    """A length truncated, or rounded half up, to a whole number; what float32 has put just below counts as above."""
    return jnp.floor(length * (1.0 + 1e-6) + (0.5 if config.rounding == "round" else 0.0))


def rollout_length(state: AdaptiveBatch, config: AdaptiveBatchConfig) -> jax.Array:
    """The length to use, u32[] steps: the multiple of `multiple` nearest to the one kept."""
    nearest = jnp.round(state.length / config.multiple) * config.multiple
    return jnp.clip(nearest, config.minimum, config.maximum).astype(jnp.uint32)


def epochs(length: jax.Array, config: AdaptiveBatchConfig, base_epochs: int) -> jax.Array:
    """Passes over a batch of that length, u32[]: as many at each length, or in proportion to it and rounded down."""
    if config.epochs == "fixed":
        return jnp.uint32(base_epochs)
    proportional = jnp.uint32(base_epochs) * length.astype(jnp.uint32) // jnp.uint32(config.epochs_length)
    return jnp.maximum(proportional, jnp.uint32(config.minimum_epochs))
