"""Hidden layers, norms and residual blocks against plain NumPy."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from purejaxrl_scale.networks.mlp import MLP, layer_norm

NUMPY = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def random_like(params):
    """Parameters of which none is 0 or 1."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), params)


def apply(module: nn.Module, params, features: jax.Array) -> jax.Array:
    """What a module without state returns: flax's own `apply` may return its state too."""
    return cast("jax.Array", module.apply(params, features))


def by_hand(params: dict, features: jax.Array, network: MLP) -> np.ndarray:
    """The equations in float64, layer by layer in the order of their numbers."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    numbers = iter(range(100))
    phi = NUMPY[network.activation]

    def layer(x):
        number = next(numbers)
        dense = params[f"Dense_{number}"]
        x = x @ dense["kernel"] + dense["bias"]
        if network.normalised:
            norm = params[f"LayerNorm_{number}"]
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x * norm["scale"] + norm["bias"]
        return x

    x = np.asarray(features, np.float64)
    for _ in network.widths[:-1]:
        x = phi(layer(x))
    if not network.blocks:
        return phi(layer(x))
    h = g = layer(x)
    for _ in range(network.blocks):
        if network.pre_activation:
            h = layer(phi(layer(phi(h)))) + h + g
        else:
            h = phi(h + layer(phi(layer(h)))) + g
    return h


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("blocks", "pre_activation"), [(0, False), (2, False), (2, True)])
def test_equals_numpy(activation, normalised, blocks, pre_activation):
    network = MLP((6, 4), activation, "float32", normalised, blocks, pre_activation)
    features = jax.random.normal(jax.random.key(0), (5, 3))
    params = random_like(jax.eval_shape(network.init, jax.random.key(1), features)["params"])
    assert len(params) == (2 + 2 * blocks) * (2 if normalised else 1)
    outputs = jax.jit(network.apply)({"params": params}, features)
    np.testing.assert_allclose(outputs, by_hand(params, features, network), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pre_activation", [False, True])
def test_ten_blocks_have_finite_gradients_in_every_layer(pre_activation):
    network = MLP((16,), "relu", "float32", True, 10, pre_activation)
    features = jax.random.normal(jax.random.key(0), (32, 3))
    params = jax.jit(network.init)(jax.random.key(1), features)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(jnp.square(apply(network, params, features)))))(params)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


def test_norm_of_equal_numbers_is_finite():
    norm = layer_norm(1, "float32")
    params = norm.init(jax.random.key(0), jnp.zeros((1, 4)))
    gradient = jax.grad(lambda x: jnp.sum(apply(norm, params, x) ** 3))(jnp.full((2, 4), 3.0))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(apply(norm, params, jnp.full((2, 4), 3.0)), np.zeros((2, 4)))


def test_statistics_are_float32_whatever_the_precision():
    """Numbers around 100 are 0.5 apart in bfloat16: a mean that is rounded so is off by up to a quarter."""
    values = (100 + jax.random.normal(jax.random.key(0), (8, 256))).astype(jnp.bfloat16)
    norm = layer_norm(1, "bfloat16")
    params = norm.init(jax.random.key(1), values)
    outputs = apply(norm, params, values)
    exact = np.asarray(values, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    assert outputs.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    # Eight bits of a result below 4, and the three digits that a variance of 1 keeps beside 100².
    np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=0.015)
