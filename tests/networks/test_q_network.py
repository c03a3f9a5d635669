"""Action values: their contract, the published sizes, the norm over actions, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import Box, Discrete, MultiDiscrete
from purejaxrl_scale.networks import EpsilonGreedy, make_q_network


def box(*shape: int, low: float = -1.0, high: float = 1.0, dtype: type = np.float32) -> Box:
    return Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape)


VECTOR, BOARD, PIXELS = box(3), box(10, 10, 2), box(36, 40, 1, low=0, high=255, dtype=np.uint8)
SPACES = {"mlp": VECTOR, "minatar_cnn": BOARD, "nature_cnn": PIXELS, "impala_cnn": box(12, 16, 3)}


def observations(name: str, *batch: int) -> jax.Array:
    if name == "nature_cnn":
        return jax.random.randint(jax.random.key(1), (*batch, *PIXELS.shape), 0, 256).astype(jnp.uint8)
    return jax.random.normal(jax.random.key(1), (*batch, *SPACES[name].shape))


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [
        ("mlp", {}, "float32"),
        ("mlp", {"layer_norm": True, "blocks": 2}, "bfloat16"),
        ("minatar_cnn", {"layer_norm": True}, "float32"),
        ("nature_cnn", {"layer_norm": True, "blocks": 1, "output_norm": True, "channels": (4, 4, 8)}, "float32"),
        ("impala_cnn", {"layer_norm": True, "blocks": 1, "pre_activation": True}, "float32"),
    ],
)
def test_contract(name, options, dtype):
    network = make_q_network(
        NetworkConfig(name=name, widths=(8,), compute_dtype=dtype, **options), SPACES[name], Discrete(4)
    )
    assert not network.recurrent
    assert network.initial_memory(3) == ()
    observation, first = observations(name, 2, 3), jnp.zeros((2, 3), bool)
    params = jax.jit(network.init)(jax.random.key(0), observation[0, 0])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    step = jax.jit(network.step)
    policy, value = jax.jit(network.unroll)(params, (), observation, first)
    assert policy.values.shape == (2, 3, 4)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    for t in range(2):
        memory, now, now_value = step(params, (), observation[t], first[t])
        assert memory == ()
        assert isinstance(now, EpsilonGreedy)
        assert now.values.dtype == now_value.dtype == jnp.float32
        np.testing.assert_array_equal(now.epsilon, np.zeros(3))
        np.testing.assert_array_equal(now_value, np.max(now.values, axis=-1))
        np.testing.assert_allclose(policy.values[t], now.values, atol=tolerance)
        np.testing.assert_allclose(value[t], now_value, atol=tolerance)
    # Rows differ, so that a row that stood in for another would be seen.
    assert len(np.unique(np.round(value, 4))) == 6


def test_dicts_of_observations():
    space = {"image": BOARD, "speed": box(2)}
    network = make_q_network(NetworkConfig(name="minatar_cnn", widths=(8,)), space, Discrete(4))
    observation = {"image": jnp.ones((2, 3, *BOARD.shape)), "speed": jax.random.normal(jax.random.key(1), (2, 3, 2))}
    params = jax.jit(network.init)(jax.random.key(0), jax.tree.map(lambda leaf: leaf[0, 0], observation))
    assert params["hidden"]["Dense_0"]["kernel"].shape == (8 * 8 * 16 + 2, 8)
    policy, value = network.unroll(params, (), observation, jnp.zeros((2, 3), bool))
    assert policy.values.shape == (2, 3, 4)
    assert len(np.unique(value)) == 6


def convolution_parameters(size: int, inputs: int, outputs: int, side: int) -> int:
    """Kernel and bias, then scale and bias of a norm over side x side x outputs."""
    return size * size * inputs * outputs + outputs + 2 * side * side * outputs


def dense_parameters(inputs: int, outputs: int) -> int:
    """Kernel and bias, then scale and bias of the norm."""
    return inputs * outputs + outputs + 2 * outputs


@pytest.mark.parametrize(
    ("channels", "blocks", "output_norm", "exact", "millions"),
    [
        ((32, 64, 64), 0, False, 1_736_626, 1.74),
        ((64, 128, 128), 5, True, 6_238_582, 6.24),
        ((64, 128, 128), 10, True, 8_875_382, 8.88),
    ],
    ids=["PQN", "PQN-L", "PQN-XL"],
)
def test_parameters_are_as_many_as_published(channels, blocks, output_norm, exact, millions):
    """84x84x4 bytes and 18 actions: the convolutions leave squares of 20, 9 and 7."""
    first, second, third = channels
    by_hand = (
        convolution_parameters(8, 4, first, 20)
        + convolution_parameters(4, first, second, 9)
        + convolution_parameters(3, second, third, 7)
        + dense_parameters(7 * 7 * third, 512)
        + 2 * blocks * dense_parameters(512, 512)
        + (512 * 18 + 18)
        + 2 * 18 * output_norm
    )
    config = NetworkConfig(
        name="nature_cnn", channels=channels, widths=(512,), layer_norm=True, blocks=blocks, output_norm=output_norm
    )
    space = box(84, 84, 4, low=0, high=255, dtype=np.uint8)
    network = make_q_network(config, space, Discrete(18))
    params = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((84, 84, 4), jnp.uint8))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == by_hand == exact
    assert round(exact / 1e6, 2) == millions


def test_values_are_one_dense_layer_on_the_hidden_ones():
    network = make_q_network(NetworkConfig(widths=(16,)), VECTOR, Discrete(4))
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros(3))
    kernel = params["values"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(4), atol=1e-5)
    assert not params["values"]["bias"].any()
    params["values"]["bias"] = jnp.array([0.1, -0.2, 0.3, 0.0])
    observation = observations("mlp", 5)
    _, policy, value = network.step(params, (), observation, jnp.zeros(5, bool))
    layer = params["torso"]["MLP_0"]["Dense_0"]
    expected = np.tanh(observation @ layer["kernel"]) @ kernel + params["values"]["bias"][None]
    np.testing.assert_allclose(policy.values, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(policy.mode(), np.argmax(expected, axis=-1))
    np.testing.assert_allclose(value, expected.max(-1), rtol=1e-5, atol=1e-5)


def test_output_norm_is_over_the_actions():
    plain, normed = (
        make_q_network(NetworkConfig(widths=(16,), output_norm=output_norm), VECTOR, Discrete(4))
        for output_norm in (False, True)
    )
    params = jax.jit(normed.init)(jax.random.key(0), jnp.zeros(3))
    params["output_norm"] = {"scale": jnp.array([1.0, 2.0, 0.5, -1.0]), "bias": jnp.array([0.1, 0.0, 0.2, 0.3])}
    without = {name: part for name, part in params.items() if name != "output_norm"}
    observation, first = observations("mlp", 5), jnp.zeros(5, bool)
    values = np.asarray(plain.step(without, (), observation, first)[1].values, np.float64)
    standard = (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-5)
    expected = standard * np.array([[1.0, 2.0, 0.5, -1.0]]) + np.array([[0.1, 0.0, 0.2, 0.3]])
    _, policy, value = normed.step(params, (), observation, first)
    np.testing.assert_allclose(policy.values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, expected.max(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("blank", [False, True])
def test_gradients_are_finite(blank):
    """Also of blank images, of which a norm sees nothing but equal numbers."""
    config = NetworkConfig(
        name="nature_cnn",
        channels=(4, 4, 8),
        widths=(16,),
        activation="relu",
        layer_norm=True,
        blocks=2,
        output_norm=True,
    )
    network = make_q_network(config, PIXELS, Discrete(4))
    observation = observations("nature_cnn", 16) * (not blank)
    params = jax.jit(network.init)(jax.random.key(0), observation[0])
    action = jnp.arange(16) % 4

    def loss(params):
        _, policy, _ = network.step(params, (), observation, jnp.zeros(16, bool))
        return 0.5 * jnp.sum(jnp.square(policy.value_of(action) - 1.0))

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(params)):
        assert np.isfinite(leaf).all()
        assert blank or np.abs(leaf).max() > 0


def test_equal_configurations_are_one_static_argument():
    one, two = (make_q_network(NetworkConfig(), VECTOR, Discrete(3)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != make_q_network(NetworkConfig(), VECTOR, Discrete(2))


@pytest.mark.parametrize(
    ("options", "observation_space", "action_space", "message"),
    [
        ({}, VECTOR, MultiDiscrete((3, 2)), "not of MultiDiscrete"),
        ({}, VECTOR, box(2), "a single choice"),
        ({"name": "minatar_cnn"}, VECTOR, Discrete(2), "needs one image"),
        ({"name": "nature_cnn"}, box(35, 84, 4), Discrete(2), "36x36 or more, and this one is 35x84"),
        ({"name": "minatar_cnn", "blocks": 1, "widths": ()}, BOARD, Discrete(2), "network.widths is empty"),
    ],
)
def test_refusals(options, observation_space, action_space, message):
    with pytest.raises(ValueError, match=message):
        make_q_network(NetworkConfig(**options), observation_space, action_space)
