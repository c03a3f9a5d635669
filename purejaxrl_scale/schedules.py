"""How the learning rate moves over a run."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

START_OF_WARMUP = 0.1


def learning_rate(
    schedule: Literal["constant", "linear", "warmup_cosine"],
    peak: jax.Array,
    remaining: jax.Array,
    *,
    warmup_fraction: jax.Array,
) -> jax.Array:
    """The learning rate of the next optimiser step, f32[].

    constant:       peak
    linear:         peak · ρ
    warmup_cosine:  from peak / 10 up to peak over the warm-up w, then peak · sin²(½ π ρ / (1 - w)), half a cosine

    ρ, `remaining` in (0, 1], is the share of the run's samples that no optimiser step has consumed yet (the one clock).
    It is passed in place of its complement because 1 - progress rounds to 0 in float32 long before the end of a long
    run: so no step, the last included, has learning rate 0.
    """
    if schedule == "linear":
        return peak * remaining
    if schedule == "warmup_cosine":
        progress = 1.0 - remaining
        rising = START_OF_WARMUP + (1.0 - START_OF_WARMUP) * progress / jnp.maximum(warmup_fraction, 1e-8)
        falling = jnp.sin(0.5 * jnp.pi * remaining / jnp.maximum(1.0 - warmup_fraction, 1e-8)) ** 2
        return peak * jnp.where(progress < warmup_fraction, rising, falling)
    return peak
