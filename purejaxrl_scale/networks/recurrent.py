"""A gated recurrent unit whose memory is emptied before the first observation of an episode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.networks.mlp import Dense


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, arXiv 1406.1078, in the form of cuDNN).

    h <- (1 - first) h;  r, z = sigmoid(W x + U h + b);  n = tanh(W_n x + b_n + r (U_n h + c_n));  h' = (1 - z) n + z h

    `first[t]` marks x[t] as the first observation of an episode: the reset comes BEFORE that observation is read.
    Resetting after the last one of an episode looks alike and is off by one, as `first` arrives with the next episode.
    The memory is float32 whatever the precision of the activations.
    """

    hidden_size: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, memory: jax.Array, features: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Over time: memory f32[B, hidden], features [T, B, d], first bool[T, B] -> (memory, f32[T, B, hidden])."""
        size = self.hidden_size
        orthogonal = nn.initializers.orthogonal()

        def three_orthogonal(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
            blocks = [orthogonal(block_key, (size, size), dtype) for block_key in jax.random.split(key, 3)]
            return jnp.concatenate(blocks, axis=1)

        # All time steps at once: only the product with the memory has to wait for its turn.
        inputs = Dense(3 * size, dtype=self.dtype, param_dtype=jnp.float32, name="input")(features)
        kernel = self.param("recurrent_kernel", three_orthogonal, (size, 3 * size), jnp.float32)
        candidate_bias = self.param("candidate_bias", nn.initializers.zeros, (size,), jnp.float32)

        def step(hidden: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            projected, is_first = now
            hidden = jnp.where(is_first[:, None], 0.0, hidden)
            recurrent = (hidden.astype(self.dtype) @ kernel.astype(self.dtype)).astype(jnp.float32)
            projected = projected.astype(jnp.float32)
            gates = jax.nn.sigmoid(projected[:, : 2 * size] + recurrent[:, : 2 * size])
            reset, update = gates[:, :size], gates[:, size:]
            remembered = recurrent[:, 2 * size :] + candidate_bias[None]
            candidate = jnp.tanh(projected[:, 2 * size :] + reset * remembered)
            hidden = (1 - update) * candidate + update * hidden
            return hidden, hidden

        return jax.lax.scan(step, memory, (inputs, first))
