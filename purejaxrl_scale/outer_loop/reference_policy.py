"""The reference policy of PPO-EWMA: an exponentially weighted moving average of the weights."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.environments.interface import PyTree


class ReferencePolicy(NamedTuple):
    """An average of the parameters that optimiser steps led to."""

    params: PyTree
    weight: jax.Array  # f32[], the sum of the weights of all averaged parameters, the newest having 1
    age: jax.Array  # f32[], mean age of the averaged parameters in optimiser steps


def decay(center_of_mass: float | jax.Array) -> float | jax.Array:
    """The decay β = c / (c + 1) of an average whose weights have the mean age c, in optimiser steps."""
    return center_of_mass / (center_of_mass + 1.0)


def init(params: PyTree) -> ReferencePolicy:
    """The reference before the first optimiser step: the parameters themselves."""
    return ReferencePolicy(jax.tree.map(jnp.array, params), jnp.float32(1.0), jnp.float32(0.0))


def update(
    state: ReferencePolicy, params: PyTree, *, center_of_mass: float | jax.Array, debias: bool = True
) -> ReferencePolicy:
    """The reference after one optimiser step that led to `params`.

    debiased:  w' = β w + 1,  θ_ref ← θ_ref + (θ - θ_ref) / w'
    plain:     θ_ref ← θ_ref + (1 - β) (θ - θ_ref)

    It must be called after each optimiser step, not after each batch. A centre of mass of 0 makes the reference the
    policy itself, to the bit.

    Source: Hilton et al. 2021, arXiv 2110.00641, section 3.1 and the released code (debiased); Beukman et al. 2026,
    arXiv 2603.06009, section 2.2 (plain).
    """
    beta = jnp.float32(decay(center_of_mass))
    weight = beta * state.weight + 1.0
    kept = beta * state.weight / weight if debias else beta

    def average(old, new):
        # 0 * old is NaN where the old value is infinite, and adding it to -0 gives +0.
        return jnp.where(kept > 0.0, kept * old + (1.0 - kept) * new, new)

    averaged = jax.tree.map(average, state.params, params)
    return ReferencePolicy(averaged, weight, kept * (state.age + 1.0))
