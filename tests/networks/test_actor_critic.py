"""The actor-critic's contract over torsos, action spaces and precisions, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import Box, Discrete, MultiDiscrete
from purejaxrl_scale.networks import Categorical, Gaussian, MultiCategorical, TanhGaussian, make_actor_critic


def box(*shape: int, bound: float = 1.0) -> Box:
    return Box(np.full(shape, -bound, np.float32), np.full(shape, bound, np.float32), shape)


VECTOR, BOARD, PIXELS = box(3), box(10, 10, 2), box(12, 16, 3)
SPACES = {"mlp": VECTOR, "minatar_cnn": BOARD, "impala_cnn": PIXELS}


@pytest.mark.parametrize(
    ("name", "recurrent", "shared", "dtype"),
    [
        ("mlp", True, False, "float32"),
        ("mlp", False, True, "bfloat16"),
        ("minatar_cnn", True, True, "bfloat16"),
        ("impala_cnn", False, True, "float32"),
    ],
)
def test_contract(name, recurrent, shared, dtype):
    config = NetworkConfig(
        name=name, widths=(8,), recurrent=recurrent, hidden_size=4, shared=shared, compute_dtype=dtype
    )
    space, steps, batch = SPACES[name], 2, 3
    actor_critic = make_actor_critic(config, space, Discrete(4))
    assert actor_critic.recurrent == recurrent
    memory = actor_critic.initial_memory(batch)

    @jax.jit
    def everything(observation, first):
        params = jax.jit(actor_critic.init)(jax.random.key(0), observation[0, 0])
        stepped = actor_critic.step(params, memory, observation[0], first[0])
        return params, stepped, actor_critic.unroll(params, memory, observation, first)

    observation = jax.random.normal(jax.random.key(1), (steps, batch, *space.shape))
    params, (after, distribution, value), (sequence, sequence_value) = everything(
        observation, jnp.zeros((steps, batch), bool)
    )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, memory)
    assert sequence_value.shape == (steps, batch)
    assert value.shape == (batch,)
    assert value.dtype == distribution.logits.dtype == jnp.float32
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(sequence.logits[0], distribution.logits, atol=tolerance)
    np.testing.assert_allclose(sequence_value[0], value, atol=tolerance)


@pytest.mark.parametrize(
    ("action_space", "policy", "kind", "shape"),
    [
        (Discrete(5), "default", Categorical, ()),
        (MultiDiscrete((3, 2)), "default", MultiCategorical, (2,)),
        (box(2), "default", Gaussian, (2,)),
        (box(2), "tanh_gaussian", TanhGaussian, (2,)),
        (box(2, bound=np.inf), "gaussian", Gaussian, (2,)),
    ],
)
def test_policies_and_their_first_ratio(action_space, policy, kind, shape):
    config = NetworkConfig(widths=(8,), policy=policy, initial_log_std=-0.5)
    actor_critic = make_actor_critic(config, VECTOR, action_space)
    params = jax.jit(actor_critic.init)(jax.random.key(0), jnp.zeros(3))
    observation = jax.random.normal(jax.random.key(1), (64, 3))
    first = jnp.zeros(64, bool)
    _, behaviour, _ = jax.jit(actor_critic.step)(params, (), observation, first)
    action = behaviour.sample(jax.random.split(jax.random.key(2), 64))
    assert isinstance(behaviour, kind)
    assert action.shape == (64, *shape)
    if kind in (Gaussian, TanhGaussian):
        np.testing.assert_allclose(behaviour.log_std, -0.5)
    log_prob = behaviour.log_prob(action)

    def ratios(params, rows):
        _, distribution, _ = actor_critic.step(params, (), observation[rows], first[rows])
        return jnp.exp(distribution.log_prob(action[rows]) - log_prob[rows])

    rows = jax.random.permutation(jax.random.key(3), 64)[:32]
    assert jnp.max(jnp.abs(jax.jit(ratios)(params, rows) - 1)) <= 3e-7


def test_initialisation():
    actor_critic = make_actor_critic(NetworkConfig(widths=(16, 16)), box(16), Discrete(4))
    params = jax.jit(actor_critic.init)(jax.random.key(0), jnp.zeros(16))
    for layer in params["actor_torso"]["MLP_0"].values():
        np.testing.assert_allclose(layer["kernel"].T @ layer["kernel"], 2 * np.eye(16), atol=1e-5)
        assert not layer["bias"].any()
    np.testing.assert_allclose(params["actor"]["kernel"].T @ params["actor"]["kernel"], 1e-4 * np.eye(4), atol=1e-9)
    np.testing.assert_allclose(jnp.linalg.norm(params["critic"]["kernel"]), 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("mlp", [("actor_torso", "MLP_0"), ("critic_torso", "MLP_0")]),
        ("minatar_cnn", [("actor_hidden",), ("critic_hidden",)]),
        ("impala_cnn", [("actor_hidden",), ("critic_hidden",)]),
    ],
)
def test_norms_and_blocks_stand_where_the_hidden_layers_do(name, places):
    config = NetworkConfig(name=name, widths=(8, 6), layer_norm=True, blocks=2)
    actor_critic = make_actor_critic(config, SPACES[name], Discrete(4))
    params = jax.eval_shape(actor_critic.init, jax.random.key(0), jnp.zeros(SPACES[name].shape))
    for place in places:
        layers = params
        for part in place:
            layers = layers[part]
        # Two layers, and two more in each block.
        assert set(layers) == {f"{kind}_{i}" for kind in ("Dense", "LayerNorm") for i in range(6)}
        assert [layers[f"Dense_{i}"]["kernel"].shape[1] for i in range(6)] == [8, 6, 6, 6, 6, 6]
    torso_norms = [part for part in params["actor_torso"] if part.startswith("LayerNorm")]
    assert torso_norms == (["LayerNorm_0"] if name == "minatar_cnn" else [])


def test_smallest_image_of_the_nature_cnn():
    actor_critic = make_actor_critic(NetworkConfig(name="nature_cnn", widths=(8,)), box(36, 36, 1), Discrete(2))
    params = jax.eval_shape(actor_critic.init, jax.random.key(0), jnp.zeros((36, 36, 1), jnp.uint8))
    assert params["actor_hidden"]["Dense_0"]["kernel"].shape == (64, 8)


def test_separate_torsos_do_not_touch_each_other():
    def parameters_that_move_the_value(shared: bool) -> set[str]:
        actor_critic = make_actor_critic(NetworkConfig(widths=(8,), shared=shared), VECTOR, Discrete(4))
        params = jax.jit(actor_critic.init)(jax.random.key(0), jnp.zeros(3))
        observation, first = jnp.ones((2, 3)), jnp.zeros(2, bool)
        value_of = lambda params: jnp.sum(actor_critic.step(params, (), observation, first)[2])  # noqa: E731
        gradient = jax.jit(jax.grad(value_of))(params)
        return {name for name, part in gradient.items() if any(leaf.any() for leaf in jax.tree.leaves(part))}

    assert parameters_that_move_the_value(shared=False) == {"critic_torso", "critic"}
    assert parameters_that_move_the_value(shared=True) == {"torso", "critic"}


def test_images_and_dicts_are_flattened_for_an_mlp():
    space = {"image": box(2, 2, 1), "speed": box(3)}
    actor_critic = make_actor_critic(NetworkConfig(widths=(8,), shared=True), space, Discrete(4))
    params = jax.jit(actor_critic.init)(jax.random.key(0), {"image": jnp.zeros((2, 2, 1), bool), "speed": jnp.zeros(3)})
    assert params["torso"]["MLP_0"]["Dense_0"]["kernel"].shape == (7, 8)


def test_equal_configurations_are_one_static_argument():
    one, two = (make_actor_critic(NetworkConfig(), VECTOR, MultiDiscrete((3, 2))) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != make_actor_critic(NetworkConfig(), VECTOR, MultiDiscrete((2, 3)))


@pytest.mark.parametrize(
    ("options", "observation_space", "action_space", "message"),
    [
        ({"name": "mlp"}, {"attention_mask": box(4, 2, 2)}, Discrete(2), "use environment.observation flat"),
        ({"name": "minatar_cnn"}, VECTOR, Discrete(2), r"needs one image .* has shape \(3,\); use mlp"),
        ({"name": "impala_cnn"}, {"attention_mask": box(4, 2, 2)}, Discrete(2), "use entity_transformer"),
        ({"name": "minatar_cnn"}, box(2, 9, 1), Discrete(2), "2x9"),
        ({"name": "nature_cnn"}, box(40, 35, 1), Discrete(2), "36x36 or more, and this one is 40x35"),
        ({"name": "nature_cnn"}, VECTOR, Discrete(2), r"needs one image .* has shape \(3,\); use mlp"),
        ({"blocks": 1, "widths": ()}, VECTOR, Discrete(2), "network.widths is empty"),
        ({"name": "entity_transformer"}, VECTOR, Discrete(2), "needs Kinetix's entity observation, and circles"),
        ({"policy": "gaussian"}, VECTOR, Discrete(2), "is for continuous actions"),
        ({"policy": "tanh_gaussian"}, VECTOR, box(2, bound=np.inf), "finite bounds"),
        ({}, VECTOR, None, "no policy for the action space None"),
        ({}, Discrete(3), Discrete(2), "no network reads"),
    ],
)
def test_refusals(options, observation_space, action_space, message):
    with pytest.raises(ValueError, match=message):
        make_actor_critic(NetworkConfig(**options), observation_space, action_space)


def test_number_of_heads_names_the_nearest_legal_one():
    from tests.networks.test_entity_transformer import SPACE

    with pytest.raises(ValueError, match=r"transformer_heads is 6.*use (4|8)"):
        make_actor_critic(NetworkConfig(name="entity_transformer", transformer_heads=6), SPACE, Discrete(2))
