"""Estimates of how much better an action was than the policy: pure functions of time-major arrays."""

from __future__ import annotations

from collections.abc import Callable

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

    def backwards(later, delta_t, terminated_t, truncated_t):
        return delta_t + discount * trace_decay * (1.0 - terminated_t) * (1.0 - truncated_t) * later

    return _backwards_in_place(backwards, jnp.zeros_like(value[0]), delta, (terminated, truncated))


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

    def backwards(later, reward_t, value_t, terminated_t, truncated_t):
        decay_t = trace_decay * (1.0 - truncated_t)
        return reward_t + discount * (1.0 - terminated_t) * ((1.0 - decay_t) * value_t + decay_t * later)

    return _backwards_in_place(backwards, next_value[-1], reward, (next_value, terminated, truncated))


def _backwards_in_place(function: Callable[..., jax.Array], last: jax.Array, rows: jax.Array, others) -> jax.Array:
    """xₜ ← function(xₜ₊₁, xₜ, others at t) from the last row of f32[T, N] to the first, from `last` f32[N] on.

    A scan would have its results in an array beside `rows`, whose zeros are laid out before the rollout begins.
    """
    length = rows.shape[0]

    def one(step, carry):
        rows, later = carry
        time = length - 1 - step
        later = function(later, rows[time], *(other[time] for other in others))
        return rows.at[time].set(later), later

    return jax.lax.fori_loop(0, length, one, (rows, last))[0]
