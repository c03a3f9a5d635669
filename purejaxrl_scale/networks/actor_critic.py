"""The actor-critic: torso, optional GRU, heads; what rollouts, losses and evaluation call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import ActionSpace, Box, Discrete, MultiDiscrete, PyTree
from purejaxrl_scale.networks.distributions import Categorical, Distribution, Gaussian, MultiCategorical, TanhGaussian
from purejaxrl_scale.networks.entity_controls import MOTOR_CHOICES, ControlHeads
from purejaxrl_scale.networks.mlp import dense, mlp
from purejaxrl_scale.networks.recurrent import GRU
from purejaxrl_scale.networks.torso import check_torso, torso

Memory = tuple[jax.Array, ...]


class ActionHead(NamedTuple):
    """Which distribution the policy's outputs parameterise."""

    kind: Literal["categorical", "multi_categorical", "gaussian", "tanh_gaussian"]
    sizes: tuple[int, ...]  # choices of each component, or (dimensions,) of a continuous action

    def distribution(self, outputs: jax.Array, log_std: jax.Array | None) -> Distribution:
        """From outputs f32[batch, sum(sizes)] and, for continuous actions, log_std f32[dimensions]."""
        if self.kind == "categorical":
            return Categorical(outputs)
        if self.kind == "multi_categorical":
            return MultiCategorical(outputs, self.sizes)
        if log_std is None:
            raise ValueError(f"a {self.kind} policy needs log_std")
        spread = jnp.broadcast_to(log_std.reshape(*[1] * (outputs.ndim - 1), -1), outputs.shape)
        return Gaussian(outputs, spread) if self.kind == "gaussian" else TanhGaussian(outputs, spread)


@dataclass(frozen=True)
class ActorCritic:
    """Policy and value of one configuration; static and hashable, the parameters stand apart.

    The memory is a tuple of f32[batch, hidden_size], one for each torso: () when feed-forward, one array when actor
    and critic share a torso, (actor's, critic's) otherwise. Parameters are float32; logits, means and values are
    float32 whatever `compute_dtype` is. Observations come normalised.
    """

    config: NetworkConfig
    head: ActionHead

    @property
    def recurrent(self) -> bool:
        """Whether there is a memory to carry."""
        return self.config.recurrent

    def init(self, key: jax.Array, observation: PyTree) -> PyTree:
        """Parameters from a typed key and ONE observation, without a batch axis."""
        sequence = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], observation)
        first = jnp.ones((1, 1), bool)
        return self._network.init(key, self.initial_memory(1), sequence, first)["params"]

    def initial_memory(self, batch: int) -> Memory:
        """Zeros."""
        if not self.recurrent:
            return ()
        zeros = jnp.zeros((batch, self.config.hidden_size), jnp.float32)
        return (zeros,) if self.config.shared else (zeros, zeros)

    def step(
        self, params: PyTree, memory: Memory, observation: PyTree, first: jax.Array
    ) -> tuple[Memory, Distribution, jax.Array]:
        """One step of N rows: observation [N, ...], first bool[N] -> (memory, distribution over [N], value f32[N]).

        `first` marks rows whose observation is the first of an episode: their memory is emptied before it is read.
        Feed-forward networks ignore memory and first.
        """
        sequence = jax.tree.map(lambda leaf: leaf[None], observation)
        memory, distribution, value = self._apply(params, memory, sequence, first[None])
        return memory, jax.tree.map(lambda leaf: leaf[0], distribution), value[0]

    def unroll(
        self, params: PyTree, memory: Memory, observation: PyTree, first: jax.Array
    ) -> tuple[Distribution, jax.Array]:
        """All steps of B segments: memory [B, hidden_size] before the first step, observation [T, B, ...],
        first bool[T, B] -> (distribution over [T, B], value f32[T, B]). The same numbers as T calls of `step`.
        """
        _, distribution, value = self._apply(params, memory, observation, first)
        return distribution, value

    def _apply(
        self, params: PyTree, memory: Memory, observation: PyTree, first: jax.Array
    ) -> tuple[Memory, Distribution, jax.Array]:
        outputs = self._network.apply({"params": params}, memory, observation, first)
        return cast("tuple[Memory, Distribution, jax.Array]", outputs)

    @property
    def _network(self) -> _Network:
        return _Network(self.config, self.head)


class _Network(nn.Module):
    config: NetworkConfig
    head: ActionHead

    @nn.compact
    def __call__(
        self, memory: Memory, observation: PyTree, first: jax.Array
    ) -> tuple[Memory, Distribution, jax.Array]:  # over [T, B]
        if self.config.shared:
            memory, features = self._features("torso", memory, observation, first)
            actor = critic = features
        else:
            actor_memory, actor = self._features("actor_torso", memory[:1], observation, first)
            critic_memory, critic = self._features("critic_torso", memory[1:], observation, first)
            memory = actor_memory + critic_memory
        if self.config.name == "entity_controls":
            motors = self.head.sizes.count(MOTOR_CHOICES)
            outputs, value = ControlHeads(self.config, motors, name="heads")(actor, critic)
        else:
            outputs = self._head("actor", actor, sum(self.head.sizes), 0.01)
            value = self._head("critic", critic, 1, 1.0)[..., 0]
        log_std = None
        if self.head.kind in ("gaussian", "tanh_gaussian"):
            first_log_std = nn.initializers.constant(self.config.initial_log_std)
            log_std = self.param("log_std", first_log_std, self.head.sizes, jnp.float32)
        return memory, self.head.distribution(outputs, log_std), value

    def _features(
        self, name: str, memory: Memory, observation: PyTree, first: jax.Array
    ) -> tuple[Memory, jax.Array]:  # features [T, B, d]
        # Torsos have one batch axis: time and batch are one to everything but the GRU.
        flat = jax.tree.map(lambda leaf: leaf.reshape(first.size, *leaf.shape[2:]), observation)
        features = torso(self.config, name)(flat)
        features = features.reshape(*first.shape, features.shape[-1])
        if not self.config.recurrent:
            return (), features
        gru = GRU(self.config.hidden_size, self.config.compute_dtype, name=f"{name}_gru")
        memory_after, features = gru(memory[0], features, first)
        return (memory_after,), features

    def _head(self, name: str, features: jax.Array, outputs: int, scale: float) -> jax.Array:
        if self.config.name != "mlp":
            features = mlp(self.config, f"{name}_hidden")(features)
        # The last layer is small, and rounding its outputs would move the probability ratio.
        return dense(outputs, scale, "float32", name=name)(features.astype(jnp.float32))


def make_actor_critic(config: NetworkConfig, observation_space: PyTree, action_space: ActionSpace) -> ActorCritic:
    """The actor-critic for an environment's spaces.

    Raises ValueError where torso and observation, or policy and action space, do not fit.
    """
    check_torso(config, observation_space)
    head = _action_head(config, action_space)
    if config.name == "entity_controls" and (head.kind != "multi_categorical" or config.recurrent):
        raise ValueError(
            "network.name entity_controls has logits for each motor and each thruster: it needs multi-discrete actions "
            "and no GRU; use entity_transformer"
        )
    return ActorCritic(config, head)


def _action_head(config: NetworkConfig, action_space: ActionSpace) -> ActionHead:
    if isinstance(action_space, Box):
        kind = "gaussian" if config.policy == "default" else config.policy
        bounded = bool(np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all())
        if kind == "tanh_gaussian" and not bounded:
            raise ValueError(
                "network.policy tanh_gaussian maps actions to finite bounds, and this action space has none; "
                "use gaussian"
            )
        return ActionHead(kind, (math.prod(action_space.shape),))
    if config.policy != "default":
        raise ValueError(
            f"network.policy {config.policy} is for continuous actions, and this environment's are discrete; "
            "use default"
        )
    if isinstance(action_space, Discrete):
        return ActionHead("categorical", (action_space.n,))
    if isinstance(action_space, MultiDiscrete):
        return ActionHead("multi_categorical", tuple(action_space.sizes))
    raise ValueError(f"no policy for the action space {action_space}; known are Box, Discrete and MultiDiscrete")
