"""Convolutional torsos for boards and pixels, with convolutions written as patches and one matrix product.

On a CPU the gradient of a 3x3 `lax.conv` with respect to its kernel, inside a scan, takes 10 to 30 times as long as
that of the product, and the gradient of a windowed maximum 5 to 20 times as long as that of strided slices.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.networks.mlp import HIDDEN_SCALE, Observation, dense, flatten, layer_norm

NATURE_KERNELS = ((8, 4), (4, 2), (3, 1))  # size and stride
LARGEST_BOARD = 32 * 32  # cells of the largest image whose patches are kept for the gradient


class Convolution(nn.Module):
    """Convolution of stride s: y[i, j] = sum over (a, b) of x[s i + a, s j + b] K[a, b] + bias.

    The patches of one image are kernel_size^2 times the image. For pixels they are built again in the backward pass
    instead of being kept, which leaves one layer's patches in memory at a time.
    """

    features: int
    kernel_size: int = 3
    padding: Literal["SAME", "VALID"] = "SAME"
    stride: int = 1
    dtype: str = "float32"

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:  # [N, H, W, C] -> [N, H', W', features]
        size = self.kernel_size
        shape = (size, size, image.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.orthogonal(HIDDEN_SCALE), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        image = image.astype(self.dtype)
        if self.padding == "SAME":
            before, after = (size - 1) // 2, size // 2
            image = jnp.pad(image, ((0, 0), (before, after), (before, after), (0, 0)))
        product = _patch_product if image.shape[1] * image.shape[2] <= LARGEST_BOARD else _remade
        convolved = product(image, kernel.astype(self.dtype), self.stride)
        return convolved + bias.astype(self.dtype).reshape(1, 1, 1, -1)


def _patch_product(image: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    rows, columns, channels, features = kernel.shape
    batch = image.shape[0]
    height, width = (image.shape[1] - rows) // stride + 1, (image.shape[2] - columns) // stride + 1
    down, across = stride * (height - 1) + 1, stride * (width - 1) + 1
    shifted = [image[:, i : i + down : stride, j : j + across : stride] for i in range(rows) for j in range(columns)]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, rows * columns * channels)
    return (patches @ kernel.reshape(-1, features)).reshape(batch, height, width, features)


def _remade(image: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return jax.checkpoint(partial(_patch_product, stride=stride))(image, kernel)


def max_pool(image: jax.Array) -> jax.Array:
    """Maximum over 3x3 windows at every second row and column, padded like SAME: [N, H, W, C] -> [N, H/2, W/2, C].

    One axis after the other. Where several cells share the maximum they share its gradient.
    """
    for axis in (1, 2):
        length = -(-image.shape[axis] // 2)
        missing = max(2 * (length - 1) + 3 - image.shape[axis], 0)
        padding = [(0, 0)] * 4
        padding[axis] = (missing // 2, missing - missing // 2)
        padded = jnp.pad(image, padding, constant_values=-jnp.inf)
        first, second, third = (
            jax.lax.slice_in_dim(padded, start, start + 2 * (length - 1) + 1, 2, axis) for start in range(3)
        )
        image = jnp.maximum(jnp.maximum(first, second), third)
    return image


class MinAtarCNN(nn.Module):
    """One 3x3 convolution of 16 channels (Young and Tian 2019, arXiv 1903.03176); the dense layers are the heads'."""

    dtype: str = "float32"
    normalised: bool = False

    @nn.compact
    def __call__(self, observation: Observation) -> jax.Array:
        image, vectors = _image_and_vectors(observation)
        features = Convolution(16, padding="VALID", dtype=self.dtype)(image)
        if self.normalised:
            features = layer_norm(3, self.dtype)(features)
        return _join(jax.nn.relu(features), vectors, self.dtype)


class NatureCNN(nn.Module):
    """Convolutions of 8x8 at stride 4, 4x4 at stride 2 and 3x3 (Mnih et al. 2015); the dense layers are the heads'.

    With `normalised`, each is followed by a norm over height, width and channels together. Bytes are divided by 255.
    """

    channels: tuple[int, ...] = (32, 64, 64)
    dtype: str = "float32"
    normalised: bool = False

    @nn.compact
    def __call__(self, observation: Observation) -> jax.Array:
        features, vectors = _image_and_vectors(observation)
        if features.dtype == jnp.uint8:
            features = features.astype(self.dtype) / 255
        for channels, (size, stride) in zip(self.channels, NATURE_KERNELS, strict=True):
            features = Convolution(channels, size, "VALID", stride, dtype=self.dtype)(features)
            if self.normalised:
                features = layer_norm(3, self.dtype)(features)
            features = jax.nn.relu(features)
        return _join(features, vectors, self.dtype)


class ImpalaCNN(nn.Module):
    """Residual network for pixels (Espeholt et al. 2018, arXiv 1802.01561, figure 3 right).

    Three stages of 16, 32 and 32 channels: a convolution, a 3x3 maximum with stride 2, and two residual blocks of two
    convolutions. Then a dense layer of 256.
    """

    channels: tuple[int, ...] = (16, 32, 32)
    width: int = 256
    dtype: str = "float32"

    @nn.compact
    def __call__(self, observation: Observation) -> jax.Array:
        features, vectors = _image_and_vectors(observation)
        for channels in self.channels:
            features = max_pool(Convolution(channels, dtype=self.dtype)(features))
            for _ in range(2):
                residual = Convolution(channels, dtype=self.dtype)(jax.nn.relu(features))
                features = features + Convolution(channels, dtype=self.dtype)(jax.nn.relu(residual))
        features = _join(jax.nn.relu(features), vectors, self.dtype)
        return jax.nn.relu(dense(self.width, HIDDEN_SCALE, self.dtype)(features))


def _image_and_vectors(observation: Observation) -> tuple[jax.Array, dict[str, jax.Array]]:
    if not isinstance(observation, dict):
        return observation, {}
    image = next(leaf for leaf in observation.values() if leaf.ndim == 4)
    return image, {name: leaf for name, leaf in observation.items() if leaf.ndim != 4}


def _join(features: jax.Array, vectors: dict[str, jax.Array], dtype: str) -> jax.Array:
    return flatten({"image": features} | {f"vector/{name}": leaf for name, leaf in vectors.items()}, dtype)
