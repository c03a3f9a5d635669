"""Dense layers and the multilayer perceptron."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

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


class MLP(nn.Module):
    """Hidden layers: x -> activation(W x + b), once for each width. Without widths it is the identity."""

    widths: tuple[int, ...]
    activation: Activation
    dtype: str = "float32"

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:  # [N, d] -> [N, widths[-1]]
        for width in self.widths:
            features = ACTIVATIONS[self.activation](dense(width, HIDDEN_SCALE, self.dtype)(features))
        return features


class MLPTorso(nn.Module):
    """A perceptron over all numbers of an observation; images and dicts are flattened, dicts in order of their keys."""

    widths: tuple[int, ...]
    activation: Activation
    dtype: str = "float32"

    @nn.compact
    def __call__(self, observation: Observation) -> jax.Array:
        return MLP(self.widths, self.activation, self.dtype)(flatten(observation, self.dtype))


def flatten(observation: Observation, dtype: str) -> jax.Array:
    """All numbers of each of N observations, side by side: [N, d]."""
    leaves = [leaf.reshape(leaf.shape[0], -1).astype(dtype) for leaf in jax.tree.leaves(observation)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)
