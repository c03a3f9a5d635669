"""The network that looks at a scene from its controls: a plain version of it in float64, and its symmetries."""

import jax
import numpy as np
import pytest

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments import kinetix
from purejaxrl_scale.environments.interface import Box, Discrete, MultiDiscrete
from purejaxrl_scale.networks import make_actor_critic
from tests.networks.test_entity_transformer import (
    CIRCLES,
    JOINTS,
    POLYGONS,
    SIZES,
    SPACE,
    THRUSTERS,
    random_like,
    with_inactive_spoiled,
)
from tests.networks.test_entity_transformer import scene as any_scene

MOTORS, WIDTH, BATCH = 4, 8, 4
CONFIG = NetworkConfig(name="entity_controls", widths=(16, WIDTH), shared=True)
FIRST = np.zeros(BATCH, bool)


def scene(seed: int) -> dict[str, np.ndarray]:
    """Observations whose colours and bindings are one-hot, and whose joints stand twice, once in either direction."""
    rng = np.random.default_rng(seed)
    fields = any_scene(seed)
    fields["joint_mask"] = np.tile(fields["joint_mask"][:, :JOINTS], (1, 2))
    fields["joint_indexes"] = np.where(fields["joint_mask"][..., None], fields["joint_indexes"], 0)
    for name in ("polygons", "circles"):
        fields[name][..., 4:6] = np.abs(fields[name][..., 4:6]) * [5, 5000]
    for name, columns in (("polygons", slice(8, 12)), ("circles", slice(8, 12)), ("thrusters", slice(3, 5))):
        kinds = columns.stop - columns.start
        fields[name][..., columns] = np.eye(kinds)[rng.integers(kinds, size=fields[name].shape[:2])]
    fields["joints"][..., 12:16] = np.eye(MOTORS)[np.tile(rng.integers(MOTORS, size=(BATCH, JOINTS)), (1, 2))]
    return fields


@pytest.fixture(scope="module")
def network():
    """(apply, params): `apply(params, fields) -> (logits [4, 16], value [4])`, biases not near zero."""
    model = make_actor_critic(CONFIG, SPACE, MultiDiscrete(SIZES))
    one = jax.tree.map(lambda leaf: leaf[0], scene(0))
    params = random_like(jax.eval_shape(model.init, jax.random.key(0), one), 0.5)

    @jax.jit
    def apply(params, fields):
        _, policy, value = model.step(params, (), fields, FIRST)
        return policy.logits, value

    return apply, params


def plain(params, fields, row: int) -> tuple[np.ndarray, float]:
    """The same by loops over what there is in one scene, in float64, with complex numbers for the plane."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    torso, heads = params["torso"], params["heads"]
    fields = {
        name: leaf[row].astype(np.float64 if leaf.dtype == np.float32 else leaf.dtype) for name, leaf in fields.items()
    }

    def layer(weights, x):
        return x @ weights["kernel"] + weights["bias"]

    def hidden(weights, x):
        for number in range(2):
            x = np.tanh(layer(weights[f"Dense_{number}"], x))
        return x

    def unit(z):
        return z / np.sqrt(abs(z) ** 2 + 1e-4)

    def numbers(*plane):
        return np.array([part for z in plane for part in (z.real, z.imag)])

    bodies = []
    for kind in ("polygon", "circle"):
        for features, active in zip(fields[f"{kind}s"], fields[f"{kind}_mask"], strict=True):
            tamed = features.copy()
            tamed[4:6] = np.log(1 + features[4:6])
            bodies.append(
                {
                    "active": active,
                    "place": complex(*features[:2]),
                    "velocity": complex(*features[2:4]),
                    "turn": complex(features[13], features[12]),
                    "colour": features[8:12],
                    "rest": np.concatenate([tamed[4:6], features[7:8], features[8:12]]),
                    "embedded": np.tanh(layer(torso[f"{kind}s"], tamed)),
                }
            )
    of_colour, sums = {}, np.zeros((4, WIDTH))
    for colour in range(4):
        there = [body for body in bodies if body["active"] and body["colour"][colour] == 1]
        sums[colour] = sum((body["embedded"] for body in there), np.zeros(WIDTH))
        if there:
            of_colour[colour] = tuple(np.mean([body[name] for body in there]) for name in ("place", "velocity"))
    green, blue = (of_colour.get(colour, (0j, 0j)) for colour in (1, 2))
    pairs = []
    for other in (2, 3):
        if 1 in of_colour and other in of_colour:
            gap, growth = (a - b for a, b in zip(of_colour[other], green, strict=True))
            along = [(unit(gap).conjugate() * z).real for z in (gap, growth)]
            pairs.append(np.concatenate([numbers(gap, growth), along[:1], numbers(unit(gap)), along[1:]]))
        else:
            pairs.append(np.zeros(8))
    scene = hidden(torso["scene"], np.concatenate([*pairs, sums.ravel()]))

    def control(name, features, place, axis, ends):
        def from_here(place_there, velocity):
            return numbers((place_there - place) * axis.conjugate(), velocity * axis.conjugate())

        seen = [features, numbers(axis)]
        seen += [from_here(*of_colour[c]) if c in of_colour else np.zeros(4) for c in (1, 2, 3)]
        gap, growth = blue[0] - green[0], blue[1] - green[1]
        seen.append(numbers(unit(gap) * axis.conjugate(), growth * axis.conjugate()))
        for body in ends:
            seen += [from_here(body["place"], body["velocity"]), body["rest"], body["embedded"]]
        return hidden(torso[name], np.concatenate([*seen, scene]))

    motors, thrusters = np.zeros((MOTORS, WIDTH)), np.zeros((2, WIDTH))
    for joint in range(JOINTS):
        if fields["joint_mask"][joint]:
            ends = [bodies[index] for index in fields["joint_indexes"][joint]]
            features = fields["joints"][joint]
            place = ends[0]["place"] + ends[0]["turn"] * complex(*features[2:4])
            rest = np.concatenate([features[:12], features[16:]])
            motors[features[12:16].argmax()] += control("motor", rest, place, 1 + 0j, ends)
    for thruster in range(THRUSTERS):
        if fields["thruster_mask"][thruster]:
            body = bodies[fields["thruster_indexes"][thruster]]
            features = fields["thrusters"][thruster]
            place = body["place"] + body["turn"] * complex(*features[1:3])
            axis = body["turn"] * complex(features[6], features[5])
            rest = np.concatenate([features[:3], features[5:]])
            thrusters[features[3:5].argmax()] += control("thruster", rest, place, axis, [body])
    logits = [layer(heads["motor"], motor) for motor in motors] + [layer(heads["thruster"], one) for one in thrusters]
    read = np.concatenate([scene, motors.sum(0), thrusters.sum(0)])
    return np.concatenate(logits), float(layer(heads["critic"], hidden(heads["critic_hidden"], read))[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_is_the_plain_network(network, seed):
    apply, params = network
    fields = scene(seed)
    logits, values = apply(params, fields)
    for row in range(BATCH):
        expected, value = plain(params, fields, row)
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values[row], value, rtol=1e-4, atol=1e-4)


def reordered(fields: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The same scene with polygons, circles, joints and thrusters each in another order."""
    rng = np.random.default_rng(seed)
    polygons, circles, joints, thrusters = (rng.permutation(n) for n in (POLYGONS, CIRCLES, JOINTS, THRUSTERS))
    new_place = np.argsort(np.concatenate([polygons, POLYGONS + circles])).astype(np.int32)
    order = {"polygon": polygons, "circle": circles, "joint": np.r_[joints, JOINTS + joints], "thruster": thrusters}
    out = dict(fields)
    for name, index in order.items():
        out[f"{name}s"], out[f"{name}_mask"] = fields[f"{name}s"][:, index], fields[f"{name}_mask"][:, index]
    out["joint_indexes"] = new_place[fields["joint_indexes"][:, order["joint"]]]
    out["thruster_indexes"] = new_place[fields["thruster_indexes"][:, thrusters]]
    return out


def test_order_of_entities_makes_no_difference(network):
    apply, params = network
    fields = scene(1)
    for left, right in zip(apply(params, reordered(fields, 2)), apply(params, fields), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


def test_a_motor_that_is_renumbered_keeps_its_logits(network):
    apply, params = network
    fields = scene(1)
    other = fields | {"joints": fields["joints"].copy()}
    other["joints"][..., 12:16] = fields["joints"][..., 12:16][..., ::-1]
    (logits, value), (renumbered, same) = apply(params, fields), apply(params, other)
    motors = np.asarray(logits)[:, :12].reshape(BATCH, MOTORS, 3)
    np.testing.assert_allclose(np.asarray(renumbered)[:, :12].reshape(motors.shape), motors[:, ::-1], rtol=1e-6)
    np.testing.assert_allclose(same, value, rtol=1e-5)


def test_a_control_that_drives_nothing_sees_nothing(network):
    apply, params = network
    logits = []
    for seed in (1, 2):
        fields = scene(seed)
        fields["joint_mask"][:] = fields["thruster_mask"][:] = False
        logits.append(apply(params, fields)[0])
    np.testing.assert_array_equal(logits[0], logits[1])


def test_inactive_entities_and_the_second_direction_make_no_difference(network):
    apply, params = network
    fields = scene(1)
    spoiled = with_inactive_spoiled(fields)
    spoiled["joints"][:, JOINTS:] = np.nan
    for left, right in zip(apply(params, spoiled), apply(params, fields), strict=True):
        np.testing.assert_array_equal(left, right)
    gradient = jax.grad(lambda params: sum(leaf.sum() for leaf in apply(params, spoiled)))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_columns_are_those_of_kinetix():
    """A car with a thruster, as the suite shows it: what is read is one-hot, on the circle, or the same joint twice."""
    environment = kinetix.make("m", levels=("m/h3_car_thrust",))
    fields, state = jax.jit(environment.reset)(jax.random.key(0))
    fields = jax.tree.map(np.asarray, fields)
    polygons, circles, joints, thrusters = (
        fields[f"{name}s"][fields[f"{name}_mask"]] for name in ("polygon", "circle", "joint", "thruster")
    )
    bodies = np.concatenate([fields["polygons"][:, :16], fields["circles"][:, :16]])
    for one_hot in (polygons[:, 8:12], circles[:, 8:12], joints[:, 12:16], thrusters[:, 3:5]):
        np.testing.assert_array_equal(np.sort(one_hot, axis=1)[:, -1], 1.0)
        np.testing.assert_array_equal(one_hot.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.hypot(bodies[:, 12], bodies[:, 13]), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.hypot(thrusters[:, 5], thrusters[:, 6]), 1.0, rtol=1e-5)
    np.testing.assert_allclose(bodies[: len(fields["polygons"]), 5], state.polygon.inverse_inertia)

    def on_body(index, place):
        body = bodies[index]
        return complex(*body[:2]) + complex(body[13], body[12]) * complex(*place)

    count = len(fields["joints"]) // 2
    for joint in np.flatnonzero(fields["joint_mask"][:count]):
        to, other = fields["joint_indexes"][joint]
        features = fields["joints"][joint]
        assert abs(on_body(to, features[2:4]) - on_body(other, features[4:6])) < 1e-3
    assert fields["joint_mask"][:count].sum() >= 2


@pytest.mark.parametrize(
    ("config", "space", "actions", "message"),
    [
        ({"widths": ()}, SPACE, MultiDiscrete(SIZES), "network.widths is empty"),
        ({"recurrent": True}, SPACE, MultiDiscrete(SIZES), "no GRU"),
        ({}, SPACE, Discrete(4), "needs multi-discrete actions"),
        ({}, Box(np.zeros(3), np.ones(3), (3,)), MultiDiscrete(SIZES), "entity_controls needs Kinetix's entity"),
    ],
)
def test_refusals(config, space, actions, message):
    with pytest.raises(ValueError, match=message):
        make_actor_critic(NetworkConfig(name="entity_controls", **config), space, actions)
