"""How the learning rate moves over a run."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

START_OF_WARMUP = 0.1


def learning_rate(
    schedule: Literal["constant", "linear", "warmup_cosine"],
    peak: jax.Array,
    progress: jax.Array,
    *,
    warmup_fraction: jax.Array,
) -> jax.Array:
    """The learning rate of the next optimiser step, f32[].

    constant:       peak
    linear:         peak · (1 - progress)
    warmup_cosine:  from peak / 10 up to peak over the warm-up, then peak · ½ (1 + cos π u), u the share of the rest

    `progress` in [0, 1) is the share of the run's samples that earlier optimiser steps have consumed (the one clock),
    so that no step, the last included, has learning rate 0.
    """
    progress = jnp.clip(progress, 0.0, 1.0)
    if schedule == "linear":
        return peak * (1.0 - progress)
    if schedule == "warmup_cosine":
        rising = START_OF_WARMUP + (1.0 - START_OF_WARMUP) * progress / jnp.maximum(warmup_fraction, 1e-8)
        rest = (progress - warmup_fraction) / jnp.maximum(1.0 - warmup_fraction, 1e-8)
        falling = 0.5 * (1.0 + jnp.cos(jnp.pi * rest))
        return peak * jnp.where(progress < warmup_fraction, rising, falling)
    return peak
