"""How far apart two policies are, and how many samples that is bought with."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def kl_k1(behaviour_log_prob: Float[Array, "*B"], new_log_prob: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """k1 of KL(behaviour || new) in nats, from actions of the behaviour policy: -log r, r = π_new / π_beh.

    Unbiased, of large variance; a sample may be negative.

    Source: Schulman 2020, Approximating KL Divergence.
    """
    return behaviour_log_prob - new_log_prob


def kl_k2(behaviour_log_prob: Float[Array, "*B"], new_log_prob: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """k2 of KL(behaviour || new) in nats, from actions of the behaviour policy: ½ (log r)². Biased far from r = 1.

    Source: Schulman 2020, Approximating KL Divergence.
    """
    return 0.5 * jnp.square(new_log_prob - behaviour_log_prob)


def kl_k3(behaviour_log_prob: Float[Array, "*B"], new_log_prob: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """k3 of KL(behaviour || new) in nats, from actions of the behaviour policy: r - 1 - log r. Unbiased and >= 0.

    Source: Schulman 2020, Approximating KL Divergence.
    """
    log_ratio = new_log_prob - behaviour_log_prob
    # Near r = 1 the difference of expm1 and its argument loses all digits, and the series does not.
    series = 0.5 * log_ratio**2 * (1.0 + log_ratio / 3.0 * (1.0 + log_ratio / 4.0))
    return jnp.where(jnp.abs(log_ratio) < 0.02, series, jnp.expm1(log_ratio) - log_ratio)


def changed(old_action: Int[Array, "B ..."], new_action: Int[Array, "B ..."]) -> Bool[Array, " B"]:
    """Whether any component of each state's action differs."""
    chex.assert_equal_shape([old_action, new_action])
    differs = old_action != new_action
    return jnp.any(differs.reshape(differs.shape[0], -1), axis=1)


def behavioural_divergence(old_action: Int[Array, "B ..."], new_action: Int[Array, "B ..."]) -> Float[Array, ""]:
    """The share of states whose preferred action changed, in any component.

    Source: Park 2026, arXiv 2605.21557, eq. 3.
    """
    return jnp.mean(changed(old_action, new_action).astype(jnp.float32))


def data_to_divergence_ratio(samples: float | jax.Array, kl: float | jax.Array) -> jax.Array:
    """DDR: the samples of an outer step over the KL(behaviour || new) it moved the policy by, in samples a nat.

    Both are of all devices. It is infinite where the divergence is not positive, as an estimate may come out.

    Source: Beukman et al. 2026, arXiv 2603.06009, section 4.4.
    """
    kl = jnp.asarray(kl, jnp.float32)
    return jnp.where(kl <= 0.0, jnp.inf, jnp.asarray(samples, jnp.float32) / jnp.where(kl <= 0.0, 1.0, kl))
