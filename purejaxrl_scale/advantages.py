"""Estimates of how much better an action was than the policy: pure functions of time-major arrays."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    reward: Float[Array, "T N"],
    value: Float[Array, "T N"],
    next_value: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    *,
    discount: float | Float[Array, ""],
    trace_decay: float | Float[Array, ""],
) -> Float[Array, "T N"]:
    """Generalised advantage estimate.

    δₜ = rₜ + γ (1 - terminatedₜ) V(s'ₜ) - V(sₜ)
    Aₜ = δₜ + γ λ (1 - terminatedₜ) (1 - truncatedₜ) Aₜ₊₁

    `next_value[t]` is the value of the observation that step t led to, before any reset: at a truncation the true
    final observation's, never the next episode's first. Termination makes the future worthless; truncation only
    ends the trace.

    Source: Schulman et al. 2016, arXiv 1506.02438, eq. 16; the time limit as in Pardo et al. 2018, arXiv 1712.00378.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    alive = 1.0 - terminated
    delta = reward + discount * alive * next_value - value
    trace = discount * trace_decay * alive * (1.0 - truncated)

    def backwards(later, now):
        delta_t, trace_t = now
        advantage = delta_t + trace_t * later
        return advantage, advantage

    _, advantage = jax.lax.scan(backwards, jnp.zeros_like(value[0]), (delta, trace), reverse=True)
    return advantage


def lambda_returns(
    reward: Float[Array, "T N"],
    next_value: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    *,
    discount: float | Float[Array, ""],
    trace_decay: float | Float[Array, ""],
) -> Float[Array, "T N"]:
    """Returns that mix all n-step returns by a decay λ.

    Gₜ = rₜ + γ (1 - terminatedₜ) [(1 - λₜ) V(s'ₜ) + λₜ Gₜ₊₁],  λₜ = λ (1 - truncatedₜ),  G_T = V(s'_T₋₁)

    `next_value[t]` is the value of the observation that step t led to, before any reset, for PQN that of the greedy
    action. So the target before the last bootstraps from its own successor, and the last from the observation at which
    the rollout stopped.

    Source: Sutton and Barto 2018, eq. 12.18; Gallici et al. 2025, arXiv 2407.04811, section 3.
    """
    chex.assert_equal_shape([reward, next_value, terminated, truncated])
    alive = discount * (1.0 - terminated)
    decay = trace_decay * (1.0 - truncated)

    def backwards(later, now):
        reward_t, value_t, alive_t, decay_t = now
        value = reward_t + alive_t * ((1.0 - decay_t) * value_t + decay_t * later)
        return value, value

    _, returns = jax.lax.scan(backwards, next_value[-1], (reward, next_value, alive, decay), reverse=True)
    return returns
