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


def dense(width: int, scale: float, dtype: str, name: str | None = None) -> nn.Dense:
    """A dense layer with an orthogonal kernel of that scale, zero biases and float32 parameters."""
    return nn.Dense(width, kernel_init=nn.initializers.orthogonal(scale), dtype=dtype, param_dtype="float32", name=name)


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
