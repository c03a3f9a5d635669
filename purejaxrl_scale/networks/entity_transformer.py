"""Transformer over the bodies of a Kinetix scene, with messages along joints and thrusters.

The architecture is that of Kinetix (Matthews et al. 2024, arXiv 2410.23208): pre-normalised attention with gated
residuals (Parisotto et al. 2019, arXiv 1910.06764, section 3.2) and no positional encoding, so that the order of the
entities makes no difference.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.networks.mlp import ACTIVATIONS, HIDDEN_SCALE, Activation, Dense, dense

ENTITY_FIELDS = (
    "circles",
    "polygons",
    "joints",
    "thrusters",
    "circle_mask",
    "polygon_mask",
    "joint_mask",
    "thruster_mask",
    "attention_mask",
    "joint_indexes",
    "thruster_indexes",
)
FORBIDDEN = -1e30  # finite: a body that may attend to nothing averages over all, and nothing reads it
MASK_KINDS = 4  # all bodies, those joined through any number of joints, those joined by one, those in contact


class EntityTransformer(nn.Module):
    """Entity observation -> f32[N, width]: the mean over active bodies and one dummy body that sees them all.

    The observation holds circles [N, c, .], polygons [N, p, .], joints [N, 2j, .] (each joint once in either
    direction), thrusters [N, k, .], a bool mask of the active ones of each, attention_mask bool[N, 4, p+c, p+c],
    joint_indexes i32[N, 2j, 2] (to, from) and thruster_indexes i32[N, k]. Bodies are counted with the polygons first.
    What inactive entities contain makes no difference.

    `qkv_features` is what ALL heads have together: 16 over 8 heads are 2 features a head, the reading under which the
    whole actor-critic has the 786 thousand parameters that were published.
    """

    layers: int = 2
    width: int = 128
    heads: int = 8
    activation: Activation = "tanh"
    qkv_features: int = 16
    dtype: str = "float32"

    @nn.compact
    def __call__(self, observation: dict[str, jax.Array]) -> jax.Array:
        circles = self._encode("circles", "circle_mask", observation, self.width - 1)
        polygons = self._encode("polygons", "polygon_mask", observation, self.width - 1)
        joints = self._encode("joints", "joint_mask", observation, self.width)
        thrusters = self._encode("thrusters", "thruster_mask", observation, self.width)

        # The last feature tells circles from polygons.
        circles = jnp.concatenate([circles, jnp.zeros_like(circles[..., :1])], axis=-1)
        polygons = jnp.concatenate([polygons, jnp.ones_like(polygons[..., :1])], axis=-1)
        dummy = jnp.ones_like(polygons, shape=(polygons.shape[0], 1, self.width))
        bodies = jnp.concatenate([dummy, polygons, circles], axis=1)

        active = jnp.concatenate([observation["polygon_mask"], observation["circle_mask"]], axis=1)
        active = jnp.pad(active, ((0, 0), (1, 0)), constant_values=True)
        allowed = _with_dummy(observation["attention_mask"], active)
        # Counted past the dummy.
        ends = one_hot(observation["joint_indexes"] + 1, observation["joint_mask"], bodies)
        mounts = one_hot(observation["thruster_indexes"] + 1, observation["thruster_mask"], bodies)

        for _ in range(self.layers):
            bodies = AttentionLayer(self.heads, self.qkv_features, self.dtype)(bodies, allowed)
            bodies = Messages(self.dtype)(bodies, joints, thrusters, ends, mounts)
        weight = active.astype(jnp.float32)[..., None]
        return jnp.sum(bodies.astype(jnp.float32) * weight, axis=1) / jnp.sum(weight, axis=1)

    def _encode(self, entities: str, mask: str, observation: dict[str, jax.Array], width: int) -> jax.Array:
        # Zeroed here, what an inactive slot holds (NaN included) reaches neither a value nor a gradient.
        features = jnp.where(observation[mask][..., None], observation[entities], 0.0)
        layer = dense(width, HIDDEN_SCALE, self.dtype, name=entities)
        return ACTIVATIONS[self.activation](layer(features))


class AttentionLayer(nn.Module):
    """x <- gate(x, relu(attention(norm(x)))); x <- gate(x, relu(W norm(x) + b)).

    The heads are shared out over the kinds of mask, in order.
    """

    heads: int
    qkv_features: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, bodies: jax.Array, allowed: jax.Array) -> jax.Array:  # [N, m, width], bool[N, m, m, 4]
        width = bodies.shape[-1]
        attended = self._attend(self._norm("attention_norm", bodies), allowed)
        bodies = Gate(self.dtype)(bodies, jax.nn.relu(self._dense("output", width)(attended)))
        mixed = self._dense("mix", width)(self._norm("mix_norm", bodies))
        return Gate(self.dtype)(bodies, jax.nn.relu(mixed))

    def _attend(self, bodies: jax.Array, allowed: jax.Array) -> jax.Array:
        batch, count = bodies.shape[:2]
        size = self.qkv_features // self.heads
        projected = self._dense("query_key_value", 3 * self.qkv_features)(bodies)
        projected = projected.astype(jnp.float32).reshape(batch, count, 3, size, self.heads)
        query, key, value = projected[:, :, 0], projected[:, :, 1], projected[:, :, 2]
        # Heads last and sums instead of products of matrices: with two features a head and a dozen bodies, batched
        # products would be far too small, and these loops run along the heads.
        score = jnp.sum(query[:, :, None] * key[:, None], axis=3) / math.sqrt(size)  # [N, m, m, heads]
        allowed = jnp.repeat(allowed, self.heads // MASK_KINDS, axis=-1)
        weight = jax.nn.softmax(jnp.where(allowed, score, FORBIDDEN), axis=2)
        attended = jnp.sum(weight[:, :, :, None] * value[:, None], axis=2)
        return attended.reshape(batch, count, self.qkv_features)

    def _norm(self, name: str, bodies: jax.Array) -> jax.Array:
        return nn.LayerNorm(dtype=self.dtype, param_dtype=jnp.float32, name=name)(bodies)

    def _dense(self, name: str, width: int) -> Dense:
        return Dense(width, dtype=self.dtype, param_dtype=jnp.float32, name=name)


class Gate(nn.Module):
    """Gated residual: r, z = sigmoid(W y + U x - b), n = tanh(W_n y + U_n (r x)), out = (1 - z) x + z n; b only in z.

    The kernels that read the same input stand side by side in one product.
    """

    dtype: str = "float32"

    @nn.compact
    def __call__(self, residual: jax.Array, update: jax.Array) -> jax.Array:
        width = residual.shape[-1]

        def project(name: str, parts: int, inputs: jax.Array) -> list[jax.Array]:
            layer = Dense(parts * width, use_bias=False, dtype=self.dtype, param_dtype=jnp.float32, name=name)
            return jnp.split(layer(inputs), parts, axis=-1)

        bias = self.param("bias", nn.initializers.zeros, (width,), jnp.float32).astype(self.dtype)
        reset_y, keep_y, new_y = project("update", 3, update)
        reset_x, keep_x = project("residual", 2, residual)
        reset = jax.nn.sigmoid(reset_y + reset_x)
        open_share = jax.nn.sigmoid(keep_y + keep_x - bias.reshape(1, 1, -1))
        new = jnp.tanh(new_y + project("candidate", 1, reset * residual)[0])
        return (1 - open_share) * residual + open_share * new


class Messages(nn.Module):
    """Each joint and each thruster adds to a body what a dense layer makes of it and of the bodies it is fixed to."""

    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, bodies: jax.Array, joints: jax.Array, thrusters: jax.Array, ends: jax.Array, mounts: jax.Array
    ) -> jax.Array:
        width = bodies.shape[-1]
        to, other = ends[:, :, 0], ends[:, :, 1]
        along_joint = jnp.concatenate([pick(to, bodies), pick(other, bodies), joints], axis=-1)
        along_thruster = jnp.concatenate([pick(mounts, bodies), thrusters], axis=-1)
        joint_message = Dense(width, dtype=self.dtype, param_dtype=jnp.float32, name="joint")(along_joint)
        thruster_message = Dense(width, dtype=self.dtype, param_dtype=jnp.float32, name="thruster")(along_thruster)
        receivers = jnp.concatenate([to, mounts], axis=1)
        messages = jnp.concatenate([joint_message, thruster_message], axis=1)
        return bodies + jnp.sum(receivers[..., None] * messages[:, :, None], axis=1)


def _with_dummy(attention_mask: jax.Array, active: jax.Array) -> jax.Array:
    """bool[N, 4, n, n] -> bool[N, m, m, 4], m = n + 1: the dummy sees every active body and is seen by it."""
    mask = jnp.pad(attention_mask, ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=True)
    return jnp.moveaxis(mask, 1, -1) & active[:, :, None, None] & active[:, None, :, None]


def one_hot(indexes: jax.Array, mask: jax.Array, bodies: jax.Array) -> jax.Array:
    """Rows that pick a body, [N, ..., m]; a row of zeros where the mask is False.

    Gathers would be as fast, but their gradient, a scatter, adds in no fixed order on a GPU.
    """
    mask = mask.reshape(*mask.shape, *[1] * (indexes.ndim - mask.ndim))
    picked = jnp.where(mask, indexes, -1)
    return jax.nn.one_hot(picked, bodies.shape[1], dtype=bodies.dtype)


def pick(one_hot: jax.Array, bodies: jax.Array) -> jax.Array:
    """The bodies that rows of `one_hot` pick: [N, k, m] and [N, m, .] -> [N, k, .]."""
    # A sum, not a matrix product: exact on accelerators that round the inputs of products.
    return jnp.sum(one_hot[..., None] * bodies[:, None], axis=2)
