"""Action distributions: pytrees of arrays with leading batch axes, one interface, one random key a row.

Logarithms of densities are float32 whatever the precision of the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import jax
import jax.numpy as jnp

from purejaxrl_scale.environments.interface import ActionSpace, Box


class Distribution(Protocol):
    """What a policy is made of. `batch` stands for any leading axes, such as [N] or [T, B].

    `entropy` is one call for every distribution: it reads `keys` only where `entropy_is_exact` is False.
    The action that is stored and scored is the one `sample` returns; only `to_environment` bounds it, so that the
    probability ratio before the first optimiser step is 1.
    """

    entropy_is_exact: ClassVar[bool]

    def sample(self, keys: jax.Array) -> jax.Array:
        """One action a row, from typed keys[batch]; a row's action depends on its own key and parameters alone."""
        ...

    def mode(self) -> jax.Array:
        """The deterministic action."""
        ...

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density of what `sample` returned: f32[batch]."""
        ...

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        """Entropy in nats, or its one-sample estimate: f32[batch]."""
        ...

    def kl(self, other: Self) -> jax.Array:
        """Exact KL(self || other) in nats: f32[batch]."""
        ...

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        """What the environment is given for a stored action."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """One choice of n; actions i32[batch]. A logit of -inf is a choice that is never made."""

    logits: jax.Array  # [batch, n], not normalised

    entropy_is_exact: ClassVar[bool] = True

    def sample(self, keys: jax.Array) -> jax.Array:
        return _inverse_cdf(self.logits, _per_row(lambda key: jax.random.uniform(key), keys))

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return _chosen(_log_softmax(self.logits), action)

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        log_p = _log_softmax(self.logits)
        return -_expectation(log_p, log_p)

    def kl(self, other: Self) -> jax.Array:
        log_p = _log_softmax(self.logits)
        return _expectation(log_p, log_p - _log_softmax(other.logits))

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        return action


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpsilonGreedy:
    """The action of the largest value, or with probability ε any of the n, each as likely; actions i32[batch]."""

    values: jax.Array  # f32[batch, n]
    epsilon: jax.Array | float = 0.0  # f32, any shape that broadcasts to [batch]

    entropy_is_exact: ClassVar[bool] = True

    def explore(self, epsilon: jax.Array | float) -> Self:
        """The same values, with a share ε of random actions: f32, any shape that broadcasts to [batch]."""
        return replace(self, epsilon=jnp.broadcast_to(epsilon, self.values.shape[:-1]))

    def value_of(self, action: jax.Array) -> jax.Array:
        """The value of an action: f32[batch]."""
        return _chosen(self.values, action)

    def sample(self, keys: jax.Array) -> jax.Array:
        uniform = _per_row(lambda key: jax.random.uniform(key, (2,)), keys)
        choices = self.values.shape[-1]
        # uniform * n rounds up to n once in 2^24 / n draws.
        anything = jnp.minimum((uniform[..., 1] * choices).astype(jnp.int32), choices - 1)
        return jnp.where(uniform[..., 0] < self._random_share(), anything, self.mode())

    def mode(self) -> jax.Array:
        return jnp.argmax(self.values, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.log(_chosen(self._probabilities(), action))

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        log_p = jnp.log(self._probabilities())
        return -_expectation(log_p, log_p)

    def kl(self, other: Self) -> jax.Array:
        log_p = jnp.log(self._probabilities())
        return _expectation(log_p, log_p - jnp.log(other._probabilities()))

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        return action

    def _random_share(self) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.epsilon, jnp.float32), self.values.shape[:-1])

    def _probabilities(self) -> jax.Array:
        choices = self.values.shape[-1]
        greedy = jax.nn.one_hot(self.mode(), choices)
        epsilon = self._random_share()[..., None]
        return epsilon / choices + (1.0 - epsilon) * greedy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, the i-th of sizes[i]; actions i32[batch, len(sizes)]. Log-probabilities add up."""

    logits: jax.Array  # [batch, sum(sizes)], the choices one after the other
    sizes: tuple[int, ...] = field(metadata={"static": True})

    entropy_is_exact: ClassVar[bool] = True

    def sample(self, keys: jax.Array) -> jax.Array:
        return _inverse_cdf(self._table(), _per_row(lambda key: jax.random.uniform(key, (len(self.sizes),)), keys))

    def mode(self) -> jax.Array:
        return Categorical(self._table()).mode()

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.sum(Categorical(self._table()).log_prob(action), axis=-1)

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        return jnp.sum(Categorical(self._table()).entropy(), axis=-1)

    def kl(self, other: Self) -> jax.Array:
        return jnp.sum(Categorical(self._table()).kl(Categorical(other._table())), axis=-1)

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        return action

    def _table(self) -> jax.Array:
        """Logits [batch, len(sizes), max(sizes)]; what is missing in a row of the table can never be chosen."""
        batch, widest = self.logits.shape[:-1], max(self.sizes)
        if len(set(self.sizes)) == 1:
            return self.logits.reshape(*batch, len(self.sizes), widest)
        rows, start = [], 0
        # Static slices, not an index array: the gradient of a gather is a scatter, which is slow on a CPU.
        for size in self.sizes:
            padding = [(0, 0)] * len(batch) + [(0, widest - size)]
            rows.append(jnp.pad(self.logits[..., start : start + size], padding, constant_values=-jnp.inf))
            start += size
        return jnp.stack(rows, axis=-2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Diagonal normal; actions f32[batch, d]. The sample is scored unclipped and clipped for the environment only."""

    mean: jax.Array  # [batch, d]
    log_std: jax.Array  # [batch, d]

    entropy_is_exact: ClassVar[bool] = True

    def sample(self, keys: jax.Array) -> jax.Array:
        mean, log_std = _float32(self.mean), _float32(self.log_std)
        return mean + jnp.exp(log_std) * _noise(keys, mean.shape)

    def mode(self) -> jax.Array:
        return _float32(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        mean, log_std = _float32(self.mean), _float32(self.log_std)
        standardised = (action - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * jnp.square(standardised) + log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        return jnp.sum(_float32(self.log_std) + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: Self) -> jax.Array:
        log_ratio = _float32(self.log_std) - _float32(other.log_std)
        distance = (_float32(self.mean) - _float32(other.mean)) * jnp.exp(-_float32(other.log_std))
        # expm1 keeps the small difference that exp(x) - 1 - x loses when two policies are close.
        return 0.5 * jnp.sum(jnp.expm1(2 * log_ratio) - 2 * log_ratio + jnp.square(distance), axis=-1)

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        box = _box(action_space)
        low, high = _bounds(box, action)
        return _shaped(jnp.clip(action, low, high), box)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TanhGaussian:
    """Diagonal normal squashed by tanh; what is stored and scored is the sample u BEFORE the tanh, f32[batch, d].

    log p(tanh(u)) = log N(u; mean, std) - sum log(1 - tanh(u)^2), the density on (-1, 1)^d; the change of units to
    the bounds of the space is a constant and left out. log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)) is finite
    for every u, also where tanh(u) rounds to 1 (Haarnoja et al. 2018, arXiv 1812.05905, appendix C).

    The entropy has no closed form: `entropy` is `entropy_estimate`. The KL is the normal's, since a bijection
    leaves it as it is. The deterministic action is tanh(mean), the median and not the mode of the density.
    """

    mean: jax.Array  # [batch, d]
    log_std: jax.Array  # [batch, d]

    entropy_is_exact: ClassVar[bool] = False

    def sample(self, keys: jax.Array) -> jax.Array:
        return self._normal().sample(keys)

    def mode(self) -> jax.Array:
        return self._normal().mode()

    def log_prob(self, action: jax.Array) -> jax.Array:
        return self._normal().log_prob(action) - _log_tanh_slope(action)

    def entropy(self, keys: jax.Array | None = None) -> jax.Array:
        if keys is None:
            raise ValueError("the entropy of a tanh-Gaussian is a one-sample estimate and needs keys: entropy(keys)")
        return self.entropy_estimate(keys)

    def entropy_estimate(self, keys: jax.Array) -> jax.Array:
        """Unbiased estimate from one reparameterised sample a row, so that its gradient is that of the entropy.

        The normal's part is exact and only the tanh's is sampled. `keys` are one a row, or a single key for all
        rows (then a row's noise depends on its position, hence on how a batch is sharded).
        """
        mean, log_std = _float32(self.mean), _float32(self.log_std)
        sample = mean + jnp.exp(log_std) * _noise(keys, mean.shape)
        return self._normal().entropy() + _log_tanh_slope(sample)

    def kl(self, other: Self) -> jax.Array:
        return self._normal().kl(other._normal())

    def to_environment(self, action: jax.Array, action_space: ActionSpace) -> jax.Array:
        box = _box(action_space)
        low, high = _bounds(box, action)
        return _shaped(jnp.clip(low + (jnp.tanh(action) + 1) / 2 * (high - low), low, high), box)

    def _normal(self) -> Gaussian:
        return Gaussian(self.mean, self.log_std)


def _float32(array: jax.Array) -> jax.Array:
    return array.astype(jnp.float32)


def _per_row(draw, keys: jax.Array) -> jax.Array:
    """Independent draws for keys of any batch shape."""
    drawn = jax.vmap(draw)(keys.reshape(-1))
    return drawn.reshape(*keys.shape, *drawn.shape[1:])


def _noise(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if keys.ndim == 0:
        return jax.random.normal(keys, shape)
    return _per_row(lambda key: jax.random.normal(key, shape[-1:]), keys)


def _log_softmax(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(_float32(logits), axis=-1)


def _chosen(values: jax.Array, action: jax.Array) -> jax.Array:
    """values[..., action] as a masked sum, whose gradient is no scatter."""
    hit = action[..., None] == jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    return jnp.sum(jnp.where(hit, values, 0.0), axis=-1)


def _expectation(log_p: jax.Array, values: jax.Array) -> jax.Array:
    """Sum of p * values where p > 0; the inner select keeps 0 * inf out of the gradient."""
    possible = log_p > -jnp.inf
    return jnp.sum(jnp.exp(log_p) * jnp.where(possible, values, 0.0), axis=-1)


def _inverse_cdf(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """The first choice whose cumulative weight exceeds uniform * total, for uniform [batch] in [0, 1).

    One draw a row instead of a Gumbel variate a choice. A choice without weight is never taken, be it first, last
    or between: the comparison is strict, uniform * total rounds to less than total, and the sums run in order (those
    of a parallel `cumsum` may rise by a rounding error where the weight is zero).
    """
    logits = _float32(logits)
    weight = jnp.moveaxis(jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True)), -1, 0)

    def add(total: jax.Array, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + column, total + column

    total, cumulative = jax.lax.scan(add, jnp.zeros_like(uniform), weight, unroll=16)
    return jnp.sum(cumulative <= (uniform * total)[None], axis=0, dtype=jnp.int32)


def _log_tanh_slope(u: jax.Array) -> jax.Array:
    """Sum over the last axis of log(d tanh(u) / du)."""
    return jnp.sum(2 * (math.log(2) - u - jax.nn.softplus(-2 * u)), axis=-1)


def _box(action_space: ActionSpace) -> Box:
    if not isinstance(action_space, Box):
        raise ValueError(f"a continuous policy needs a Box of actions, not {action_space}")
    return action_space


def _bounds(box: Box, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    low, high = (jnp.asarray(bound, jnp.float32).reshape(-1) for bound in (box.low, box.high))
    return jnp.broadcast_to(low, action.shape), jnp.broadcast_to(high, action.shape)


def _shaped(action: jax.Array, box: Box) -> jax.Array:
    return action.reshape(*action.shape[:-1], *box.shape)
