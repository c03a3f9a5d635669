"""Episode returns and lengths, and running moments of observations and discounted returns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale import counters
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import global_total
from purejaxrl_scale.environments.interface import PyTree


class EpisodeStatistics(NamedTuple):
    """The episode that each environment is in."""

    episode_return: jax.Array  # f32[N], raw rewards
    length: jax.Array  # i32[N]
    logged: jax.Array  # bool[N], False in an artificially short first episode


def init_episodes(count: int, logged: bool = True) -> EpisodeStatistics:
    """Episodes that have not begun."""
    return EpisodeStatistics(jnp.zeros(count), jnp.zeros(count, jnp.int32), jnp.full(count, logged))


def update_episodes(
    statistics: EpisodeStatistics, reward: jax.Array, ended: jax.Array, broken: jax.Array, outcome: dict
) -> tuple[EpisodeStatistics, dict[str, jax.Array]]:
    """One step of all environments [N] -> the statistics, and sums over the episodes that ended in it.

    The sums are count, return, length and each outcome. Episodes that broken physics ended, and artificial first
    ones, are left out. Divide by the count only where it is not 0: where nothing ended there is no mean.
    """
    episode_return = statistics.episode_return + reward
    length = statistics.length + 1
    finished = ended & ~broken & statistics.logged

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(finished, values, 0.0))

    sums = {
        "episode/count": jnp.sum(finished, dtype=jnp.uint32),
        "episode/return_sum": total(episode_return),
        "episode/length_sum": jnp.sum(jnp.where(finished, length, 0), dtype=jnp.uint32),
        **{f"episode/{name}_sum": total(value) for name, value in outcome.items()},
    }
    return (
        EpisodeStatistics(
            jnp.where(ended, 0.0, episode_return), jnp.where(ended, 0, length), statistics.logged | ended
        ),
        sums,
    )


class Moments(NamedTuple):
    """Running mean and variance of everything seen. The variance, not its sum, is kept: it never outgrows float32."""

    samples: Counter
    mean: PyTree  # f32, one observation's shape
    variance: PyTree  # f32, one observation's shape


def init_moments(example: PyTree) -> Moments:
    """Moments of nothing yet: mean 0 and variance 1."""
    return Moments(
        counters.init(),
        jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf)), example),
        jax.tree.map(lambda leaf: jnp.ones(jnp.shape(leaf)), example),
    )


def update_moments(moments: Moments, samples: PyTree, valid: jax.Array) -> Moments:
    """The moments with a batch added, over all devices, centred on the batch's own mean.

    n = a + b,  w = b / n,  μ ← μ + w (μ_b - μ),  σ² ← (1 - w) σ² + w σ_b² + w (1 - w) (μ_b - μ)²

    `samples` has leaves [*batch, ...], `valid` is bool[*batch]. The count stays exact beyond 2³².

    Source: Chan, Golub and LeVeque 1983, Algorithms for Computing the Sample Variance, eq. 2.1.
    """
    batch_dimensions = tuple(range(valid.ndim))
    added = global_total(lambda: jnp.sum(valid, dtype=jnp.uint32))
    size = jnp.maximum(added.astype(jnp.float32), 1.0)
    count = counters.add(moments.samples, added)
    share = added.astype(jnp.float32) / jnp.maximum(counters.approximate(count), 1.0)

    def spread(leaf: jax.Array) -> jax.Array:
        return valid.reshape(valid.shape + (1,) * (leaf.ndim - valid.ndim))

    def merge(leaf: jax.Array, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep, leaf = spread(leaf), leaf.astype(jnp.float32)
        batch_mean = global_total(lambda: jnp.sum(jnp.where(keep, leaf, 0.0), batch_dimensions)) / size

        def squares():
            centred = jnp.where(keep, leaf - jnp.expand_dims(batch_mean, batch_dimensions), 0.0)
            return jnp.sum(centred**2, batch_dimensions)

        batch_variance = global_total(squares) / size
        move = batch_mean - mean
        return (
            mean + share * move,
            (1.0 - share) * variance + share * batch_variance + share * (1.0 - share) * move**2,
        )

    leaves, structure = jax.tree.flatten(samples)
    merged = [
        merge(*one)
        for one in zip(leaves, jax.tree.leaves(moments.mean), jax.tree.leaves(moments.variance), strict=True)
    ]
    means, variances = zip(*merged, strict=True)
    return Moments(count, structure.unflatten(means), structure.unflatten(variances))


def standardise(observation: PyTree, moments: Moments, bound: float = 10.0) -> PyTree:
    """Each leaf minus its mean, over its standard deviation, within ±`bound`; leaves are [*batch, ...]."""

    def one(leaf, mean, variance):
        batch_dimensions = tuple(range(leaf.ndim - mean.ndim))
        mean, variance = jnp.expand_dims(mean, batch_dimensions), jnp.expand_dims(variance, batch_dimensions)
        return jnp.clip((leaf - mean) * jax.lax.rsqrt(variance + 1e-8), -bound, bound)

    return jax.tree.map(one, observation, moments.mean, moments.variance)


def stored(observation: PyTree, storage: str) -> PyTree:
    """A raw observation as the trajectory keeps it: under bfloat16 its float32 leaves rounded, others as they are.

    The policy must see it so too, or its ratio would not start at 1.
    """
    if storage == "float32":
        return observation
    return jax.tree.map(lambda leaf: leaf.astype(storage) if leaf.dtype == jnp.float32 else leaf, observation)


def normalise(moments: Moments | tuple[()], observation: PyTree) -> PyTree:
    """What the network sees of a stored observation: statistics move between outer steps only, so ratios start at 1."""
    observation = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, observation
    )
    return standardise(observation, moments) if isinstance(moments, Moments) else observation


def discounted_returns(
    before: jax.Array, reward: jax.Array, ended: jax.Array, discount: jax.Array, length: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of past rewards in each episode: Rₜ = γ Rₜ₋₁ + rₜ, from 0 after an episode's end.

    `before` f32[N] is where the last rollout left off -> (where this one does f32[N], all of them f32[T, N]). Of the T
    rows the first `length` were filled.
    """

    def forwards(total: jax.Array, now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, reward_t, ended_t = now
        current = discount * total + reward_t
        return jnp.where(time < length, jnp.where(ended_t, 0.0, current), total), current

    return jax.lax.scan(forwards, before, (jnp.arange(reward.shape[0]), reward, ended))
