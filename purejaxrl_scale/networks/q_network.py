"""The action values of PQN: torso, hidden layers, and one value an action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import ActionSpace, Discrete, PyTree
from purejaxrl_scale.networks.distributions import EpsilonGreedy
from purejaxrl_scale.networks.mlp import HIDDEN_SCALE, dense, layer_norm, mlp
from purejaxrl_scale.networks.torso import check_torso, torso


@dataclass(frozen=True)
class QNetwork:
    """Action values of one configuration, called as an `ActorCritic` is: the greedy policy, and the largest value."""

    config: NetworkConfig
    num_actions: int

    @property
    def recurrent(self) -> bool:
        """Never."""
        return False

    def init(self, key: jax.Array, observation: PyTree) -> PyTree:
        """Parameters from a typed key and ONE observation, without a batch axis."""
        return self._network.init(key, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], observation))["params"]

    def initial_memory(self, batch: int) -> tuple[()]:
        """None."""
        return ()

    def step(
        self, params: PyTree, memory: PyTree, observation: PyTree, first: jax.Array
    ) -> tuple[tuple[()], EpsilonGreedy, jax.Array]:
        """N rows: observation [N, ...] -> (memory, greedy policy over [N], largest value f32[N])."""
        values = cast("jax.Array", self._network.apply({"params": params}, observation))
        return (), EpsilonGreedy(values, jnp.zeros(values.shape[:-1])), jnp.max(values, axis=-1)

    def unroll(
        self, params: PyTree, memory: PyTree, observation: PyTree, first: jax.Array
    ) -> tuple[EpsilonGreedy, jax.Array]:
        """Observations [T, B, ...] -> (greedy policy over [T, B], largest value f32[T, B])."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(first.size, *leaf.shape[2:]), observation)
        _, policy, value = self.step(params, memory, flat, first.reshape(-1))
        return jax.tree.map(lambda leaf: leaf.reshape(*first.shape, *leaf.shape[1:]), (policy, value))

    @property
    def _network(self) -> _Network:
        return _Network(self.config, self.num_actions)


class _Network(nn.Module):
    config: NetworkConfig
    num_actions: int

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:  # [N, ...] -> f32[N, num_actions]
        features = torso(self.config, "torso")(observation)
        if self.config.name != "mlp":
            features = mlp(self.config, "hidden")(features)
        values = dense(self.num_actions, HIDDEN_SCALE, "float32", name="values")(features.astype(jnp.float32))
        return layer_norm(1, "float32", name="output_norm")(values) if self.config.output_norm else values


def make_q_network(config: NetworkConfig, observation_space: PyTree, action_space: ActionSpace) -> QNetwork:
    """The action values for an environment's spaces.

    Raises ValueError where torso and observation do not fit, or where there is more than one choice.
    """
    check_torso(config, observation_space)
    if not isinstance(action_space, Discrete):
        raise ValueError(f"algorithm.name pqn has one value for each action of a single choice, not of {action_space}")
    return QNetwork(config, action_space.n)
