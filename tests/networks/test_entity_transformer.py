"""The entity transformer: symmetries, and Kinetix's own network with the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import Box, MultiDiscrete
from purejaxrl_scale.networks import make_actor_critic
from purejaxrl_scale.networks.entity_transformer import EntityTransformer

CIRCLES, POLYGONS, JOINTS, THRUSTERS, BATCH = 3, 5, 2, 2, 4
BODIES = POLYGONS + CIRCLES
SIZES = (3, 3, 3, 3, 2, 2)
SHAPES = {
    "circles": (CIRCLES, 19),
    "polygons": (POLYGONS, 27),
    "joints": (2 * JOINTS, 22),
    "thrusters": (THRUSTERS, 8),
    "circle_mask": (CIRCLES,),
    "polygon_mask": (POLYGONS,),
    "joint_mask": (2 * JOINTS,),
    "thruster_mask": (THRUSTERS,),
    "attention_mask": (4, BODIES, BODIES),
    "joint_indexes": (2 * JOINTS, 2),
    "thruster_indexes": (THRUSTERS,),
}
SPACE = {name: Box(np.full(s, -np.inf, np.float32), np.full(s, np.inf, np.float32), s) for name, s in SHAPES.items()}
PAPER = NetworkConfig(name="entity_transformer", widths=(128,) * 5, shared=True)


def scene(seed: int) -> dict[str, np.ndarray]:
    """Observations as Kinetix builds them: joints and thrusters are active only on active bodies."""
    rng = np.random.default_rng(seed)
    fields = {name: rng.normal(size=(BATCH, *SHAPES[name])).astype(np.float32) for name in list(SHAPES)[:4]}
    for name in ("circle_mask", "polygon_mask", "joint_mask", "thruster_mask"):
        fields[name] = rng.random((BATCH, *SHAPES[name])) < 0.7
    fields["polygon_mask"][:, :2] = True
    active = np.concatenate([fields["polygon_mask"], fields["circle_mask"]], axis=1)
    fields["attention_mask"] = rng.random((BATCH, 4, BODIES, BODIES)) < 0.5
    fields["attention_mask"] &= active[:, None, :, None] & active[:, None, None, :]
    fields["joint_indexes"] = np.stack([rng.choice(np.flatnonzero(row), (2 * JOINTS, 2)) for row in active])
    fields["thruster_indexes"] = np.stack([rng.choice(np.flatnonzero(row), THRUSTERS) for row in active])
    for name, mask in (("joint_indexes", "joint_mask"), ("thruster_indexes", "thruster_mask")):
        keep = fields[mask].reshape(*fields[mask].shape, *[1] * (fields[name].ndim - 2))
        fields[name] = np.where(keep, fields[name], 0).astype(np.int32)
    return fields


@pytest.fixture(scope="session")
def small():
    """A small transformer with parameters, biases included, that are not near zero."""
    network = EntityTransformer(layers=2, width=16, heads=4, qkv_features=8)
    shapes = jax.eval_shape(network.init, jax.random.key(0), scene(0))
    return jax.jit(network.apply), random_like(shapes, 0.5)


def random_like(shapes, scale: float):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), shapes)


def permuted(fields: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The same scene with polygons, circles, joints and thrusters each in another order."""
    rng = np.random.default_rng(seed)
    polygons, circles = rng.permutation(POLYGONS), rng.permutation(CIRCLES)
    bodies = np.concatenate([polygons, POLYGONS + circles])
    new_place = np.argsort(bodies).astype(np.int32)
    joints, thrusters = rng.permutation(2 * JOINTS), rng.permutation(THRUSTERS)
    order = {"polygon": polygons, "circle": circles, "joint": joints, "thruster": thrusters}
    out = {}
    for name, index in order.items():
        out[f"{name}s"], out[f"{name}_mask"] = fields[f"{name}s"][:, index], fields[f"{name}_mask"][:, index]
    out["attention_mask"] = fields["attention_mask"][:, :, bodies][:, :, :, bodies]
    out["joint_indexes"] = new_place[fields["joint_indexes"][:, joints]]
    out["thruster_indexes"] = new_place[fields["thruster_indexes"][:, thrusters]]
    return out


def with_inactive_spoiled(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same scene with NaN in all that is inactive, and indexes there that point at the last body."""
    spoiled = dict(fields)
    for name in ("polygon", "circle", "joint", "thruster"):
        spoiled[f"{name}s"] = np.where(fields[f"{name}_mask"][..., None], fields[f"{name}s"], np.nan)
    for name, mask in (("joint_indexes", "joint_mask"), ("thruster_indexes", "thruster_mask")):
        keep = fields[mask].reshape(*fields[mask].shape, *[1] * (fields[name].ndim - 2))
        spoiled[name] = np.where(keep, fields[name], BODIES - 1)
    return spoiled


def test_order_of_entities_makes_no_difference(small):
    apply, params = small
    fields = scene(1)
    np.testing.assert_allclose(apply(params, permuted(fields, 2)), apply(params, fields), rtol=1e-5, atol=1e-5)


def test_indexes_and_masks_make_a_difference(small):
    apply, params = small
    fields = scene(1)
    features = apply(params, fields)
    for name in SHAPES:
        changed = dict(fields)
        if fields[name].dtype == bool:
            changed[name] = ~fields[name]
        elif name.endswith("indexes"):
            changed[name] = (fields[name] + 1) % BODIES
        else:
            changed[name] = fields[name] + 1
        assert np.abs(apply(params, changed) - features).max() > 1e-3, name


def test_contents_of_inactive_entities_make_no_difference(small):
    apply, params = small
    fields = scene(1)
    spoiled = with_inactive_spoiled(fields)
    np.testing.assert_array_equal(apply(params, spoiled), apply(params, fields))
    gradient = jax.grad(lambda params: jnp.sum(apply(params, spoiled)))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_empty_scene_is_finite(small):
    apply, params = small
    empty = {name: np.zeros_like(leaf) for name, leaf in scene(1).items()}
    assert np.isfinite(apply(params, empty)).all()
    gradient = jax.grad(lambda params: jnp.sum(apply(params, empty)))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_low_precision_is_close(small):
    apply, params = small
    network = EntityTransformer(layers=2, width=16, heads=4, qkv_features=8, dtype="bfloat16")
    coarse = jax.jit(network.apply)(params, scene(1))
    assert coarse.dtype == jnp.float32
    np.testing.assert_allclose(coarse, apply(params, scene(1)), atol=0.1)


def test_parameters_are_as_many_as_published():
    actor_critic = make_actor_critic(PAPER, SPACE, MultiDiscrete(SIZES))
    one = jax.tree.map(lambda leaf: leaf[0], scene(0))
    params = jax.eval_shape(actor_critic.init, jax.random.key(0), one)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 786_369


def test_equals_kinetix_with_the_same_parameters():
    with jax.numpy_rank_promotion("allow"):
        from kinetix.environment.spaces import ActionType
        from kinetix.models.transformer_model import ActorCriticTransformer
        from kinetix.render.renderer_symbolic_entity import EntityObservation

        theirs = ActorCriticTransformer(
            action_dim=16, actor_width=128, critic_width=128, actor_depth=5, critic_depth=5,
            action_mode=ActionType.MULTI_DISCRETE, multi_discrete_number_of_dims_per_distribution=list(SIZES),
            hybrid_action_continuous_dim=16, transformer_size=16, transformer_encoder_size=128, transformer_depth=2,
            num_heads=8, activation="tanh", aggregate_mode="dummy_and_mean", full_attention_mask=False,
            transformer_ffn=False, multilayer_joint_thruster_mixing=False, joint_thruster_block_num_layers=1,
            joint_thruster_block_hidden_dim_multiplication=1, recurrent=False,
        )  # fmt: skip
        fields = scene(3)
        inputs = (EntityObservation(**{name: leaf[None] for name, leaf in fields.items()}), np.zeros((1, BATCH), bool))
        shapes = jax.eval_shape(theirs.init, jax.random.key(0), (), inputs)["params"]
        their_params = random_like(shapes, 0.1)
        _, their_policy, their_value = jax.jit(theirs.apply)({"params": their_params}, (), inputs)
    ours = make_actor_critic(PAPER, SPACE, MultiDiscrete(SIZES))
    _, policy, value = jax.jit(ours.step)(from_kinetix(their_params), (), fields, np.zeros(BATCH, bool))
    parts = jnp.split(policy.logits, np.cumsum(SIZES)[:-1], axis=-1)
    # Theirs come normalised, component by component.
    for part, their_part in zip(parts, their_policy.distributions, strict=True):
        np.testing.assert_allclose(jax.nn.log_softmax(part), their_part.logits[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, their_value[0], rtol=1e-4, atol=1e-5)
    assert np.std(value) > 1e-3


def from_kinetix(theirs: dict) -> dict:
    """Their parameters in our names: products that share an input stand side by side, heads come last."""

    def gate(params: dict) -> dict:
        reset_y, reset_x, keep_y, keep_x, new_y, new_x = (params[f"Dense_{i}"]["kernel"] for i in range(6))
        return {
            "bias": params["gating_bias"],
            "update": {"kernel": jnp.concatenate([reset_y, keep_y, new_y], axis=1)},
            "residual": {"kernel": jnp.concatenate([reset_x, keep_x], axis=1)},
            "candidate": {"kernel": new_x},
        }

    def layer(params: dict) -> dict:
        parts = [params["attention1"][name] for name in ("query", "key", "value")]
        kernel = jnp.stack([part["kernel"] for part in parts], axis=1)  # [width, 3, heads, size]
        bias = jnp.stack([part["bias"] for part in parts])  # [3, heads, size]
        output = params["attention1"]["out"]
        return {
            "query_key_value": {
                "kernel": kernel.swapaxes(2, 3).reshape(kernel.shape[0], -1),
                "bias": bias.swapaxes(1, 2).reshape(-1),
            },
            "output": {
                "kernel": output["kernel"].swapaxes(0, 1).reshape(-1, output["kernel"].shape[-1]),
                "bias": output["bias"],
            },
            "attention_norm": params["ln1"],
            "mix_norm": params["ln2"],
            "mix": params["dense1"],
            "Gate_0": gate(params["gate1"]),
            "Gate_1": gate(params["gate2"]),
        }

    transformer, heads = theirs["Transformer_0"], theirs["GeneralActorCriticRNN_0"]
    torso = {name: theirs[f"Dense_{i}"] for i, name in enumerate(("circles", "polygons", "joints", "thrusters"))}
    for i in range(2):
        torso[f"AttentionLayer_{i}"] = layer(transformer[f"tf_layers_{i}"])
        torso[f"Messages_{i}"] = {
            "joint": transformer[f"joint_layers_{i}"],
            "thruster": transformer[f"thruster_layers_{i}"],
        }

    def hidden(start: int) -> dict:
        return {f"Dense_{i}": heads[f"DenseAndActivation_{start + i}"]["Dense_0"] for i in range(5)}

    return {
        "torso": torso,
        "actor_hidden": hidden(0),
        "critic_hidden": hidden(5),
        "actor": heads["Dense_0"],
        "critic": heads["Dense_1"],
    }
