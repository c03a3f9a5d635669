"""The gradient noise scale: about how many samples a gradient should be averaged over."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class NoiseScale(NamedTuple):
    """Averages of numerator and denominator, kept apart since the ratio of two estimates is biased; f32[] each."""

    grad_norm_sq: jax.Array
    variance: jax.Array
    weight: jax.Array


def from_two_batches(
    small_norm_sq: jax.Array, big_norm_sq: jax.Array, small_size: float | jax.Array, big_size: float | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Unbiased |G|² and tr Σ from the squared norms of gradients averaged over two numbers of samples.

    |G|² = (B |g_B|² - b |g_b|²) / (B - b),  tr Σ = (|g_b|² - |g_B|²) / (1 / b - 1 / B)

    Either may come out negative.

    Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1.
    """
    grad_norm_sq = (big_size * big_norm_sq - small_size * small_norm_sq) / (big_size - small_size)
    variance = (small_norm_sq - big_norm_sq) / (1.0 / small_size - 1.0 / big_size)
    return grad_norm_sq, variance


def from_microbatches(
    weighted_norm_sq: jax.Array, norm_sq: jax.Array, microbatches: jax.Array, samples: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Unbiased |G|² and tr Σ from K microbatches of n₁ + ... + n_K = n samples; NaN where K < 2.

    tr Σ = (Σ nᵢ |gᵢ|² - n |ḡ|²) / (K - 1),  |G|² = |ḡ|² - tr Σ / n

    `weighted_norm_sq` is Σ nᵢ |gᵢ|² and `norm_sq` |ḡ|² of the mean over all samples. With equal sizes it is
    `from_two_batches` of n / K and n.
    """
    enough = microbatches > 1
    variance = (weighted_norm_sq - samples * norm_sq) / jnp.where(enough, microbatches - 1.0, jnp.nan)
    return norm_sq - variance / samples, variance


def init() -> NoiseScale:
    """No measurement yet."""
    return NoiseScale(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0))


def update(state: NoiseScale, grad_norm_sq: jax.Array, variance: jax.Array, *, decay: float = 0.95) -> NoiseScale:
    """The averages with one measurement added; one that is not finite changes nothing."""
    weight = decay * state.weight + 1.0
    share = jnp.where(jnp.isfinite(grad_norm_sq) & jnp.isfinite(variance), 1.0 / weight, 0.0)

    def moved(mean, new):
        return mean + share * jnp.where(share > 0, new - mean, 0.0)

    return NoiseScale(
        moved(state.grad_norm_sq, grad_norm_sq),
        moved(state.variance, variance),
        jnp.where(share > 0, weight, state.weight),
    )


def value(state: NoiseScale) -> jax.Array:
    """tr Σ / |G|², f32[] samples: infinite where the averaged |G|² is not positive, NaN before any measurement."""
    positive = state.grad_norm_sq > 0.0
    ratio = jnp.where(positive, state.variance / jnp.where(positive, state.grad_norm_sq, 1.0), jnp.inf)
    return jnp.where(state.weight > 0.0, ratio, jnp.nan)
