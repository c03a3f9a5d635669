"""Patches and products against lax.conv, strided maxima against reduce_window: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.networks.convolutional import Convolution, ImpalaCNN, MinAtarCNN, max_pool


def lax_convolution(params: dict, image: jax.Array, padding: str) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(image, params["kernel"], (1, 1), padding, dimension_numbers=layout)
    return out + params["bias"].reshape(1, 1, 1, -1)


# 40x33 is past the size up to which patches are kept for the backward pass.
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "kernel_size"), [((10, 7), 3), ((6, 6), 2), ((40, 33), 3)])
def test_convolution_equals_lax(size, kernel_size, padding):
    image = jax.random.normal(jax.random.key(0), (2, *size, 3))
    layer = Convolution(5, kernel_size, padding)
    params = layer.init(jax.random.key(1), image)["params"]
    params["bias"] = jax.random.normal(jax.random.key(2), (5,))
    target = jax.random.normal(jax.random.key(3), layer.apply({"params": params}, image).shape)

    def ours(params, image):
        return jnp.sum(target * layer.apply({"params": params}, image))

    def reference(params, image):
        return jnp.sum(target * lax_convolution(params, image, padding))

    convolved = layer.apply({"params": params}, image)
    np.testing.assert_allclose(convolved, lax_convolution(params, image, padding), rtol=1e-4, atol=1e-5)
    mine = jax.jit(jax.grad(ours, argnums=(0, 1)))(params, image)
    theirs = jax.jit(jax.grad(reference, argnums=(0, 1)))(params, image)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), mine, theirs)


@pytest.mark.parametrize("size", [(8, 8), (7, 10), (1, 3)])
def test_max_pool_equals_reduce_window(size):
    image = jax.random.normal(jax.random.key(0), (2, *size, 3))

    def reference(image):
        return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    np.testing.assert_array_equal(max_pool(image), reference(image))
    target = jax.random.normal(jax.random.key(1), reference(image).shape)
    ours, theirs = (jax.grad(lambda image, f=f: jnp.sum(target * f(image)))(image) for f in (max_pool, reference))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_minatar_features():
    board = jax.random.bernoulli(jax.random.key(0), 0.2, (4, 10, 10, 6))
    features, variables = MinAtarCNN().init_with_output(jax.random.key(1), board)
    assert features.shape == (4, 8 * 8 * 16)
    assert features.dtype == jnp.float32
    assert variables["params"]["Convolution_0"]["kernel"].shape == (3, 3, 6, 16)


def test_impala_has_fifteen_convolutions_and_vectors_reach_the_dense_layer():
    observation = {"image": jnp.zeros((2, 17, 24, 3)), "global_info": jnp.zeros((2, 5))}
    features, variables = jax.jit(ImpalaCNN().init_with_output)(jax.random.key(0), observation)
    params = variables["params"]
    assert features.shape == (2, 256)
    assert sum(name.startswith("Convolution") for name in params) == 15
    assert params["Dense_0"]["kernel"].shape == (3 * 3 * 32 + 5, 256)


def test_low_precision_keeps_float32_parameters():
    image = jnp.zeros((1, 10, 10, 4), bool)
    features, variables = jax.jit(MinAtarCNN("bfloat16").init_with_output)(jax.random.key(0), image)
    assert features.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
