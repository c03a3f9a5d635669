"""An actor-critic for Kinetix that looks at a scene from each of its controls.

A control is what one component of the action drives: a motor binding or a thruster binding. Its logits come from the
joints or thrusters bound to it: the bodies these are fixed to and where green, blue and red are, seen from the place
of the joint or along the axis of the thruster. All motors share their weights, and so do all thrusters: which number
a motor has makes no difference, and neither does where in the scene, or for a thruster at which angle to the axes, a
thing happens, but for gravity and for what else stands around. A control that drives nothing has the logits of empty
features, whatever the scene. There is no attention: bodies without a control are seen in sums over a colour.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.networks.entity_transformer import one_hot, pick
from purejaxrl_scale.networks.mlp import ACTIVATIONS, HIDDEN_SCALE, dense, mlp

MOTOR_CHOICES, THRUSTER_CHOICES = 3, 2
# Kinetix's columns of any body ...
_POSITION, _VELOCITY, _MOTION, _INVERSES = slice(0, 2), slice(2, 4), slice(0, 4), slice(4, 6)
_SPIN, _COLOURS, _SIN, _COS, _COMMON = slice(7, 8), slice(8, 12), 12, 13, 16
_GREEN, _BLUE, _RED = 1, 2, 3
# ... of a joint: where on the first body it is, and, before six others, its motor's number ...
_JOINT_PLACE, _JOINT_BINDING, _JOINT_OTHERS = slice(2, 4), 12, 18
# ... and of a thruster: its place and axis on the body, and, before three others, its number.
_THRUSTER_PLACE, _THRUSTER_BINDING, _THRUSTER_OTHERS = slice(1, 3), 3, 6
_SHORT = 1e-4  # square metres below which a direction fades to zero


class EntityControls(nn.Module):
    """Entity observation -> f32[N, (1 + motors + thrusters) width]: a part for the scene, and one for each control.

    The observation is the entity transformer's. Of the two directions in which it lists each joint only the first is
    read, so that a motor's sign means the same everywhere. What inactive entities contain makes no difference.
    """

    config: NetworkConfig

    @nn.compact
    def __call__(self, observation: dict[str, jax.Array]) -> jax.Array:
        polygons, circles, joints, thrusters = (
            jnp.where(observation[f"{name}_mask"][..., None], observation[f"{name}s"], 0.0)
            for name in ("polygon", "circle", "joint", "thruster")
        )
        columns = jnp.concatenate([polygons[..., :_COMMON], circles[..., :_COMMON]], axis=1)
        embedded = [self._embedded("polygons", polygons), self._embedded("circles", circles)]
        bodies = self._bodies(columns, jnp.concatenate(embedded, axis=1))

        count = joints.shape[1] // 2
        joints, mask = joints[:, :count], observation["joint_mask"][:, :count]
        ends = one_hot(observation["joint_indexes"][:, :count], mask, columns)
        place, _ = _on_body(joints[..., _JOINT_PLACE], pick(ends[:, :, 0], columns))
        upright = jnp.broadcast_to(jnp.array([1.0, 0.0]), place.shape)
        number, joints = _split(joints, _JOINT_BINDING, _JOINT_OTHERS)
        by_motor = self._by_control("motor", bodies, number, joints, (ends[:, :, 0], ends[:, :, 1]), place, upright)

        mounts = one_hot(observation["thruster_indexes"], observation["thruster_mask"], columns)
        body = pick(mounts, columns)
        place, _ = _on_body(thrusters[..., _THRUSTER_PLACE], body)
        number, thrusters = _split(thrusters, _THRUSTER_BINDING, _THRUSTER_OTHERS)
        sin, cos = thrusters[..., 3], thrusters[..., 4]
        _, axis = _on_body(jnp.stack([cos, sin], axis=-1), body)
        by_thruster = self._by_control("thruster", bodies, number, thrusters, (mounts,), place, axis)
        parts = jnp.concatenate([bodies.scene[:, None], by_motor, by_thruster], axis=1)
        return parts.reshape(parts.shape[0], -1)

    def _embedded(self, name: str, features: jax.Array) -> jax.Array:
        before, after = features[..., : _INVERSES.start], features[..., _INVERSES.stop :]
        features = jnp.concatenate([before, _logarithms(features), after], axis=-1)
        layer = dense(self.config.widths[-1], HIDDEN_SCALE, self.config.compute_dtype, name=name)
        return ACTIVATIONS[self.config.activation](layer(features))

    def _bodies(self, columns: jax.Array, embedded: jax.Array) -> _Bodies:
        colour = columns[..., _COLOURS]
        count = jnp.sum(colour, axis=1)[..., None]
        motion = jnp.sum(colour[..., None] * columns[:, :, None, _MOTION], axis=1) / jnp.maximum(count, 1.0)
        there = jnp.minimum(count, 1.0)
        pairs = [
            _apart((motion[:, other] - motion[:, _GREEN]) * there[:, other] * there[:, _GREEN])
            for other in (_BLUE, _RED)
        ]
        sums = jnp.sum(colour[..., None] * embedded[:, :, None], axis=1)
        scene = mlp(self.config, "scene")(jnp.concatenate([*pairs, sums.reshape(sums.shape[0], -1)], axis=-1))
        return _Bodies(columns, embedded, motion, there, scene)

    def _by_control(
        self,
        name: str,
        bodies: _Bodies,
        number: jax.Array,  # [N, k, controls], one-hot
        features: jax.Array,  # [N, k, .]
        ends: tuple[jax.Array, ...],  # of one-hot [N, k, b]
        place: jax.Array,  # [N, k, 2]
        axis: jax.Array,  # [N, k, 2]
    ) -> jax.Array:  # [N, controls, width]
        def from_here(motion: jax.Array) -> jax.Array:
            velocity = jnp.broadcast_to(motion[..., _VELOCITY], place.shape)
            return _along(jnp.concatenate([motion[..., _POSITION] - place, velocity], axis=-1), axis)

        seen = [features, axis]
        for colour in (_GREEN, _BLUE, _RED):
            seen.append(from_here(bodies.motion[:, None, colour]) * bodies.there[:, None, colour])
        gap = bodies.motion[:, _BLUE] - bodies.motion[:, _GREEN]
        seen.append(_along(jnp.concatenate([_direction(gap), gap[..., _VELOCITY]], axis=-1)[:, None], axis))
        for end in ends:
            body = pick(end, bodies.columns)
            seen += [from_here(body[..., _MOTION]), _logarithms(body), body[..., _SPIN], body[..., _COLOURS]]
            seen.append(pick(end, bodies.embedded))
        seen.append(jnp.broadcast_to(bodies.scene[:, None], (*features.shape[:2], bodies.scene.shape[-1])))
        read = mlp(self.config, name)(jnp.concatenate(seen, axis=-1))
        return jnp.sum(number[..., None] * read[:, :, None], axis=1)


class ControlHeads(nn.Module):
    """Features of `EntityControls` for actor and critic, [..., d] -> logits [..., 3 motors + 2 thrusters], value [...].

    The value is read from the scene and from the sums over motors and over thrusters.
    """

    config: NetworkConfig
    motors: int

    @nn.compact
    def __call__(self, actor: jax.Array, critic: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, motors, thrusters = self._parts(actor)
        logits = [
            # The last layers are small, and rounding their outputs would move the probability ratio.
            dense(choices, 0.01, "float32", name=name)(part.astype(jnp.float32)).reshape(*actor.shape[:-1], -1)
            for name, part, choices in (("motor", motors, MOTOR_CHOICES), ("thruster", thrusters, THRUSTER_CHOICES))
        ]
        scene, motors, thrusters = self._parts(critic)
        seen = jnp.concatenate([scene, jnp.sum(motors, axis=-2), jnp.sum(thrusters, axis=-2)], axis=-1)
        hidden = mlp(self.config, "critic_hidden")(seen)
        value = dense(1, 1.0, "float32", name="critic")(hidden.astype(jnp.float32))
        return jnp.concatenate(logits, axis=-1), value[..., 0]

    def _parts(self, features: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:  # [..., width], [..., n, width]
        parts = features.reshape(*features.shape[:-1], -1, self.config.widths[-1])
        return parts[..., 0, :], parts[..., 1 : 1 + self.motors, :], parts[..., 1 + self.motors :, :]


class _Bodies(NamedTuple):
    """What the controls see of the bodies."""

    columns: jax.Array  # [N, b, 16]
    embedded: jax.Array  # [N, b, width]
    motion: jax.Array  # [N, 4, 4], the mean position and velocity of each colour
    there: jax.Array  # [N, 4, 1], 1 where there is a body of that colour
    scene: jax.Array  # [N, width]


def _logarithms(bodies: jax.Array) -> jax.Array:
    """Of inverse mass and inertia: the latter reaches 50,000, and saturates any layer; all else stays within 50."""
    return jnp.log1p(bodies[..., _INVERSES])


def _on_body(vector: jax.Array, body: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A vector that turns with the body, in the world: as a place and as a direction."""
    sin, cos = body[..., _SIN], body[..., _COS]
    x, y = vector[..., 0], vector[..., 1]
    turned = jnp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
    return body[..., _POSITION] + turned, turned


def _along(motion: jax.Array, axis: jax.Array) -> jax.Array:
    """Two vectors side by side, [..., 4], each by its components along an axis and across it."""
    cos, sin = axis[..., 0], axis[..., 1]
    x, y = motion[..., 0::2], motion[..., 1::2]
    cos, sin = cos[..., None], sin[..., None]
    parts = jnp.stack([cos * x + sin * y, cos * y - sin * x], axis=-1)
    return parts.reshape(*parts.shape[:-2], 4)


def _direction(gap: jax.Array) -> jax.Array:
    position = gap[..., _POSITION]
    return position / jnp.sqrt(jnp.sum(position**2, axis=-1, keepdims=True) + _SHORT)


def _apart(gap: jax.Array) -> jax.Array:
    """A relative position and velocity, with the distance, its direction and the speed at which it grows."""
    direction = _direction(gap)
    distance, speed = (jnp.sum(direction * gap[..., part], axis=-1, keepdims=True) for part in (_POSITION, _VELOCITY))
    return jnp.concatenate([gap, distance, direction, speed], axis=-1)


def _split(features: jax.Array, first: int, others: int) -> tuple[jax.Array, jax.Array]:
    """The columns of the number, and the others."""
    end = first + features.shape[-1] - others
    return features[..., first:end], jnp.concatenate([features[..., :first], features[..., end:]], axis=-1)
