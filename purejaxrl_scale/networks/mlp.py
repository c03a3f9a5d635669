"""Dense layers, the multilayer perceptron, and its residual blocks."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig

Activation = Literal["tanh", "relu"]
Observation = jax.Array | dict[str, jax.Array]

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
HIDDEN_SCALE = math.sqrt(2)


class Dense(nn.Dense):
    """flax's dense layer with every leading axis folded into one.

    With two or more of them the kernel's gradient is a product that contracts several axes at once, which takes a
    CPU four times as long.
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:  # [..., d] -> [..., features]
        rows = inputs.reshape(math.prod(inputs.shape[:-1]), inputs.shape[-1])
        return super().__call__(rows).reshape(*inputs.shape[:-1], self.features)


def dense(width: int, scale: float, dtype: str, name: str | None = None) -> Dense:
    """A dense layer with an orthogonal kernel of that scale, zero biases and float32 parameters."""
    return Dense(width, kernel_init=nn.initializers.orthogonal(scale), dtype=dtype, param_dtype="float32", name=name)


def layer_norm(axes: int, dtype: str, name: str | None = None) -> nn.LayerNorm:
    """Mean 0 and variance 1 over the last `axes` axes together, with a scale and a bias for each of their elements."""
    last = tuple(range(-axes, 0))
    return nn.LayerNorm(
        epsilon=1e-5, reduction_axes=last, feature_axes=last, dtype=dtype, param_dtype=jnp.float32, name=name
    )


class MLP(nn.Module):
    """Hidden layers, x -> activation(norm(W x + b)) for each width, and residual blocks after them.

    With blocks, the last layer's norm(W x + b) is the global skip g that is added after each of them, h₀ = g:

    post-activation:  h ← φ(h + norm(W₂ φ(norm(W₁ h)))) + g
    pre-activation:   h ← h + norm(W₂ φ(norm(W₁ φ(h)))) + g

    Without widths it is the identity. Source: Castanyer et al. 2025, arXiv 2506.15544 (multi-skip, pre-activation);
    Park 2026, arXiv 2605.21557 (PQN-L and PQN-XL, post-activation).
    """

    widths: tuple[int, ...]
    activation: Activation
    dtype: str = "float32"
    normalised: bool = False
    blocks: int = 0
    pre_activation: bool = False

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:  # [N, d] -> [N, widths[-1]]
        activation = ACTIVATIONS[self.activation]
        for number, width in enumerate(self.widths):
            features = self._layer(width, features)
            if not self.blocks or number < len(self.widths) - 1:
                features = activation(features)
        skip = features
        for _ in range(self.blocks):
            inner = activation(features) if self.pre_activation else features
            inner = self._layer(self.widths[-1], activation(self._layer(self.widths[-1], inner)))
            features = (features + inner if self.pre_activation else activation(features + inner)) + skip
        return features

    def _layer(self, width: int, features: jax.Array) -> jax.Array:
        features = dense(width, HIDDEN_SCALE, self.dtype)(features)
        return layer_norm(1, self.dtype)(features) if self.normalised else features


def mlp(config: NetworkConfig, name: str | None = None) -> MLP:
    """The hidden layers of a config."""
    return MLP(
        config.widths,
        config.activation,
        config.compute_dtype,
        config.layer_norm,
        config.blocks,
        config.pre_activation,
        name=name,
    )


class MLPTorso(nn.Module):
    """A perceptron over all numbers of an observation; images and dicts are flattened, dicts in order of their keys."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, observation: Observation) -> jax.Array:
        return mlp(self.config, "MLP_0")(flatten(observation, self.config.compute_dtype))


def flatten(observation: Observation, dtype: str) -> jax.Array:
    """All numbers of each of N observations, side by side: [N, d]."""
    leaves = [leaf.reshape(leaf.shape[0], -1).astype(dtype) for leaf in jax.tree.leaves(observation)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)
