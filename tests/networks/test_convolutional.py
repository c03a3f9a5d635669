"""Patches and products against lax.conv, strided maxima against reduce_window, norms against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.networks.convolutional import Convolution, ImpalaCNN, MinAtarCNN, NatureCNN, max_pool


def lax_convolution(params: dict, image: jax.Array, padding: str, stride: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(image, params["kernel"], (stride, stride), padding, dimension_numbers=layout)
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


# Sizes that the stride divides and others, where the last rows and columns are not read.
@pytest.mark.parametrize(("size", "kernel_size", "stride"), [((11, 8), 4, 2), ((39, 34), 8, 4)])
def test_strided_convolution_equals_lax(size, kernel_size, stride):
    image = jax.random.normal(jax.random.key(0), (2, *size, 3))
    layer = Convolution(5, kernel_size, "VALID", stride)
    params = jax.jit(layer.init)(jax.random.key(1), image)["params"]
    params["bias"] = jax.random.normal(jax.random.key(2), (5,))
    theirs = jax.jit(lambda params, image: lax_convolution(params, image, "VALID", stride))
    ours = jax.jit(lambda params, image: layer.apply({"params": params}, image))
    expected, pull_theirs = jax.vjp(theirs, params, image)
    convolved, pull_ours = jax.vjp(ours, params, image)
    np.testing.assert_allclose(convolved, expected, rtol=1e-4, atol=1e-5)
    target = jax.random.normal(jax.random.key(3), expected.shape)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), pull_ours(target), pull_theirs(target)
    )


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


def random_like(params, scale: float = 0.3):
    """Parameters of which none is 0 or 1."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * scale, jnp.float32), params)


def norm_by_hand(params: dict, values, axes: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(values, np.float64)
    mean, variance = values.mean(axes, keepdims=True), values.var(axes, keepdims=True)
    return (values - mean) / np.sqrt(variance + 1e-5) * np.asarray(params["scale"]) + np.asarray(params["bias"])


def test_norm_is_over_height_width_and_channels_together():
    board = jax.random.bernoulli(jax.random.key(0), 0.2, (4, 10, 9, 6)).astype(jnp.float32)
    network = MinAtarCNN(normalised=True)
    params = random_like(jax.eval_shape(network.init, jax.random.key(1), board)["params"])
    # A variance near epsilon shows what epsilon is.
    params["Convolution_0"] = jax.tree.map(lambda leaf: 0.01 * leaf, params["Convolution_0"])
    assert params["LayerNorm_0"]["scale"].shape == params["LayerNorm_0"]["bias"].shape == (8, 7, 16)
    convolved = lax_convolution(params["Convolution_0"], board, "VALID")
    features = network.apply({"params": params}, board)
    together = np.maximum(norm_by_hand(params["LayerNorm_0"], convolved, (1, 2, 3)), 0).reshape(4, -1)
    np.testing.assert_allclose(features, together, rtol=1e-3, atol=1e-4)
    of_channels_only = np.maximum(norm_by_hand(params["LayerNorm_0"], convolved, (3,)), 0).reshape(4, -1)
    assert np.abs(features - of_channels_only).max() > 0.1


@pytest.mark.parametrize("normalised", [False, True])
def test_nature_layer_by_layer(normalised):
    image = jax.random.randint(jax.random.key(0), (2, 44, 36, 3), 0, 256).astype(jnp.uint8)
    network = NatureCNN((4, 5, 6), normalised=normalised)
    params = random_like(jax.eval_shape(network.init, jax.random.key(1), image)["params"])
    assert sum(name.startswith("LayerNorm") for name in params) == 3 * normalised
    expected = image.astype(jnp.float32) / 255
    # (44, 36) -> (10, 8) -> (4, 3) -> (2, 1)
    for number, stride in enumerate((4, 2, 1)):
        expected = lax_convolution(params[f"Convolution_{number}"], expected, "VALID", stride)
        if normalised:
            norm = norm_by_hand(params[f"LayerNorm_{number}"], expected, (1, 2, 3))
            expected = jnp.asarray(norm, jnp.float32)
        expected = jax.nn.relu(expected)
    assert expected.shape == (2, 2, 1, 6)
    features = jax.jit(network.apply)({"params": params}, image)
    np.testing.assert_allclose(features, expected.reshape(2, -1), rtol=1e-4, atol=1e-4)
    assert features.any()
    # Only bytes are scaled: what comes as floats, such as a standardised observation, is read as it is.
    as_floats = jax.jit(network.apply)({"params": params}, image.astype(jnp.float32) / 255)
    np.testing.assert_allclose(as_floats, features, rtol=1e-5, atol=1e-5)


def test_nature_vectors_follow_the_image():
    observation = {"image": jnp.zeros((2, 36, 36, 1), jnp.uint8), "a_speed": jnp.array([[7.0], [8.0]])}
    features, _ = jax.jit(NatureCNN((2, 2, 3)).init_with_output)(jax.random.key(0), observation)
    np.testing.assert_array_equal(features, [[0, 0, 0, 7], [0, 0, 0, 8]])


def test_low_precision_keeps_float32_parameters():
    image = jnp.zeros((1, 10, 10, 4), bool)
    features, variables = jax.jit(MinAtarCNN("bfloat16").init_with_output)(jax.random.key(0), image)
    assert features.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
