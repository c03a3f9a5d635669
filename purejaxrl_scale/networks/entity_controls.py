"""An actor-critic for Kinetix that looks at a scene from each of its controls.

A control is what one component of the action drives: a motor binding or a thruster binding. Its logits come from the
joints or thrusters bound to it, from the bodies these are fixed to, and from where green, blue and red are, by weights
that all motors, and all thrusters, share: which number a motor has makes no difference. A control that drives nothing
has the logits of empty features, whatever the scene. It has no attention: a body that is neither held by a control nor
the only one of its colour is seen in a sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.networks.entity_transformer import one_hot, pick
from purejaxrl_scale.networks.mlp import HIDDEN_SCALE, dense, mlp

MOTOR_CHOICES, THRUSTER_CHOICES = 3, 2
# Kinetix's columns: a body's colour, a joint's motor binding and a thruster's binding, each one-hot.
COLOURS = slice(8, 12)
_JOINT_BINDING, _JOINT_OTHERS = 12, 18
_THRUSTER_BINDING, _THRUSTER_OTHERS = 3, 6


class EntityControls(nn.Module):
    """Entity observation -> f32[N, (4 + motors + thrusters) width]: a part a colour, a motor and a thruster.

    The observation is the entity transformer's. Of the two directions in which it lists each joint only the first is
    read, so that a motor's sign means the same everywhere. What inactive entities contain makes no difference.
    """

    config: NetworkConfig

    @nn.compact
    def __call__(self, observation: dict[str, jax.Array]) -> jax.Array:
        features = {
            name: jnp.where(observation[mask][..., None], observation[name], 0.0)
            for name, mask in (
                ("polygons", "polygon_mask"),
                ("circles", "circle_mask"),
                ("joints", "joint_mask"),
                ("thrusters", "thruster_mask"),
            )
        }
        # Linear, so that the layers after them may take the difference of two positions.
        bodies = jnp.concatenate([self._embed(name, features[name]) for name in ("polygons", "circles")], axis=1)
        colour = jnp.concatenate([features[name][..., COLOURS] for name in ("polygons", "circles")], axis=1)
        scene = jnp.sum(colour[..., None] * bodies[:, :, None], axis=1)  # [N, 4, width]

        count = observation["joints"].shape[1] // 2
        joints, mask = features["joints"][:, :count], observation["joint_mask"][:, :count]
        ends = one_hot(observation["joint_indexes"][:, :count], mask, bodies)
        held = (pick(ends[:, :, 0], bodies), pick(ends[:, :, 1], bodies))
        by_motor = self._by_control("motor", joints, held, scene, _JOINT_BINDING, _JOINT_OTHERS)

        thrusters = features["thrusters"]
        mounts = one_hot(observation["thruster_indexes"], observation["thruster_mask"], bodies)
        held = (pick(mounts, bodies),)
        by_thruster = self._by_control("thruster", thrusters, held, scene, _THRUSTER_BINDING, _THRUSTER_OTHERS)
        parts = jnp.concatenate([scene, by_motor, by_thruster], axis=1)
        return parts.reshape(parts.shape[0], -1)

    def _embed(self, name: str, features: jax.Array) -> jax.Array:
        return dense(self.config.widths[-1], HIDDEN_SCALE, self.config.compute_dtype, name=name)(features)

    def _by_control(
        self,
        name: str,
        drives: jax.Array,  # [N, k, .]
        held: tuple[jax.Array, ...],  # of [N, k, width]
        scene: jax.Array,
        binding: int,
        others: int,
    ) -> jax.Array:  # [N, controls, width]
        bound, unbound = _split(drives, slice(binding, binding + drives.shape[-1] - others))
        around = scene.reshape(scene.shape[0], 1, -1)
        around = jnp.broadcast_to(around, (*drives.shape[:2], around.shape[-1]))
        read = mlp(self.config, name)(jnp.concatenate([*held, unbound, around], axis=-1))
        return jnp.sum(bound[..., None] * read[:, :, None], axis=1)


def _split(features: jax.Array, columns: slice) -> tuple[jax.Array, jax.Array]:
    """Those columns, and the others."""
    rest = [features[..., : columns.start], features[..., columns.stop :]]
    return features[..., columns], jnp.concatenate(rest, axis=-1)


class ControlHeads(nn.Module):
    """Features of `EntityControls` for actor and critic, [..., d] -> logits [..., 3 motors + 2 thrusters], value [...].

    The value is read from the colours and from the sums over motors and over thrusters.
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
        seen = [jnp.sum(motors, axis=-2), jnp.sum(thrusters, axis=-2)]
        seen = jnp.concatenate([scene.reshape(*critic.shape[:-1], -1), *seen], axis=-1)
        hidden = mlp(self.config, "critic_hidden")(seen)
        value = dense(1, 1.0, "float32", name="critic")(hidden.astype(jnp.float32))
        return jnp.concatenate(logits, axis=-1), value[..., 0]

    def _parts(self, features: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:  # each [..., number, width]
        parts = features.reshape(*features.shape[:-1], -1, self.config.widths[-1])
        colours = COLOURS.stop - COLOURS.start
        return (
            parts[..., :colours, :],
            parts[..., colours : colours + self.motors, :],
            parts[..., colours + self.motors :, :],
        )
