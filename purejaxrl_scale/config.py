"""Every knob: frozen dataclasses, a unit and a default on each field; `problems(config)` lists all that is wrong.

A field marked *traced* is a number that lives in the training state: a population may vary it under one compile.
Every other field is *static*: it decides shapes or code. This module never imports JAX.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from purejaxrl_scale.run_config import CheckpointConfig, DevicesConfig, EvaluationConfig, RunConfig

TRACED = "traced"
TracedFloat = Annotated[float, TRACED]
OptionalTracedFloat = Annotated[float | None, TRACED]


@dataclass(frozen=True)
class EnvironmentConfig:
    """Where experience comes from."""

    name: str = "gymnax/CartPole-v1"
    """Suite and environment: kinetix/{s,m,l,locomotion}, brax/ant, gymnax/CartPole-v1, ..."""
    num_envs: int = 2048
    """Parallel environments over all devices."""
    levels: tuple[str, ...] = ()
    """Kinetix: names of hand-made levels to start from (s/h4_thrust_aim ...); empty for random levels."""
    observation: Literal["default", "entity", "flat", "pixels"] = "default"
    """Kinetix: the observation; default is entity. Other suites have one observation each."""
    action: Literal["default", "multi_discrete", "continuous", "discrete"] = "default"
    """Kinetix: the action space; default is multi_discrete. Other suites have one action space each."""
    dense_reward_scale: float = 0.2
    """Kinetix: reward for each metre that the green and the blue shape come closer; 0 for the sparse reward."""
    level_filter: bool = True
    """Kinetix: drop most of the random levels that doing nothing solves within 64 steps."""
    num_tasks: int = 0
    """Kinetix: train on this many random levels drawn once from a fixed key; 0 for an endless supply."""
    backend: Literal["generalized", "spring", "positional", "mjx"] = "spring"
    """Brax: the physics pipeline."""
    episode_length: int = 1000
    """Brax: steps after which an episode is truncated, where each repeat of an action counts as one."""
    action_repeat: int = 1
    """Brax: physics steps for each action; rewards add up."""
    autoreset: Literal["fresh", "pool", "first_state"] = "fresh"
    """What follows the end of an episode: a new sample, a draw from starts sampled beforehand, or the same start."""
    pool_size: int = 1024
    """Starts sampled beforehand where autoreset is pool."""
    staggered: bool = False
    """Spread environments over episode phases: first episodes are cut short at random and not logged."""
    reward_scale: TracedFloat = 1.0
    """Factor on each reward before learning; logged returns stay raw. Traced."""
    reward_normalisation: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_clip: float = 10.0
    """Bound on normalised rewards."""
    observation_normalisation: bool = False
    """Standardise observations by running moments, frozen within an outer step and clipped at 10."""
    max_nan_fraction: float = 0.01
    """The run stops when more than this share of its resets comes from NaN physics."""
    block_size: int = 0
    """Environments that are stepped at once on each device, so that temporary memory does not grow with their number; 0
    for all. It must divide num_envs / devices.logical_shards."""
    observation_storage: Literal["float32", "bfloat16"] = "float32"
    """Precision in which real observations are kept, and in which the policy sees them; others are kept as they are."""


@dataclass(frozen=True)
class NetworkConfig:
    """The actor-critic."""

    name: Literal["mlp", "minatar_cnn", "nature_cnn", "impala_cnn", "entity_transformer", "entity_controls"] = "mlp"
    """The torso that turns an observation into features."""
    widths: tuple[int, ...] = (64, 64)
    """Hidden layers of the MLP torso, or of each head after another torso; entity_controls: of each control's MLP."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Nonlinearity of dense layers."""
    layer_norm: bool = False
    """Normalise each hidden layer before its nonlinearity; images over height, width and channels together."""
    channels: tuple[int, ...] = (32, 64, 64)
    """Nature CNN: channels of its three convolutions; (64, 128, 128) in PQN-L and PQN-XL."""
    blocks: int = 0
    """Residual blocks with a global skip after the last hidden layer, of its width: 5 in PQN-L, 10 in PQN-XL."""
    pre_activation: bool = False
    """Blocks: the nonlinearity comes before each layer, and not after it."""
    output_norm: bool = False
    """PQN: normalise over the action values, as the code released with Park 2026 does."""
    shared: bool = False
    """Actor and critic share the torso; separate torsos otherwise."""
    recurrent: bool = False
    """Put a GRU between torso and heads."""
    hidden_size: int = 128
    """Units of the GRU."""
    segment_length: int = 0
    """Steps of backpropagation through time; 0 for the whole rollout. It must divide the rollout length."""
    policy: Literal["default", "gaussian", "tanh_gaussian"] = "default"
    """Continuous actions: a diagonal Gaussian (the default) or one squashed by tanh."""
    initial_log_std: float = 0.0
    """Continuous actions: the logarithm of the first standard deviation."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of activations; parameters stay float32."""
    transformer_layers: int = 2
    """Entity transformer: layers."""
    transformer_width: int = 128
    """Entity transformer: features of an entity."""
    transformer_heads: int = 8
    """Entity transformer: attention heads, shared out over four kinds of mask."""


@dataclass(frozen=True)
class ReferenceConfig:
    """PPO: the policy that the clipped ratio is measured against (Hilton et al. 2021, arXiv 2110.00641)."""

    center_of_mass: OptionalTracedFloat = None
    """Optimiser steps over which the reference averages the weights, its mean age; none for the behaviour policy, as in
    ordinary PPO. Traced."""
    debias: bool = True
    """Correct the average's bias towards the first weights, as Hilton et al. do; Beukman et al. do not."""


@dataclass(frozen=True)
class AdaptiveBatchConfig:
    """Adaptive Batch Scaling: rollouts grow as the policy changes less (Park 2026, arXiv 2605.21557)."""

    driver: Literal["none", "behavioural_divergence", "kl", "noise_scale", "schedule"] = "none"
    """What the length follows: nothing, the share of states whose preferred action an update changed, KL(new || old),
    the gradient noise scale, or the share of the run that is done."""
    minimum: int = 16
    """Shortest rollout, and the first."""
    maximum: int = 64
    """Longest rollout; at most algorithm.rollout_length, which the buffers hold."""
    low: float = 0.05
    """Divergence at and below which rollouts are longest; the paper has 0.01 nats for driver kl."""
    high: float = 0.95
    """Divergence at and above which rollouts are shortest; the paper has 0.1 nats for driver kl."""
    every: int = 50
    """Outer steps from one measurement to the next."""
    window: int = 20
    """Measurements whose mean counts."""
    burn_in: int = 10
    """Measurements before the length first moves."""
    smoothing: float = 0.1
    """Share of the way to its target that the length moves at each measurement."""
    span: Literal["update", "interval"] = "update"
    """Divergence over one outer step, or over all since the last measurement."""
    samples: int = 2048
    """States on which the divergence is measured; 0 for all."""
    rounding: Literal["float", "truncate", "round"] = "float"
    """Keep the length as a float and round it for use; the others round what is kept, and stall before the ends."""
    multiple: int = 1
    """Lengths are multiples of this."""
    epochs: Literal["fixed", "proportional"] = "fixed"
    """algorithm.epochs at every length, or in proportion to the length and rounded down."""
    epochs_length: int = 32
    """Length at which proportional epochs equal algorithm.epochs."""
    minimum_epochs: int = 1
    """Fewest proportional epochs."""
    minibatches: Literal["fixed_count", "fixed_size"] = "fixed_count"
    """As many minibatches at every length, of algorithm.minibatch_size at the shortest; or more of them."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """PPO (Schulman et al. 2017, arXiv 1707.06347) or PQN (Gallici et al. 2025, arXiv 2407.04811)."""

    name: Literal["ppo", "pqn"] = "ppo"
    """The algorithm; pqn is for discrete actions."""
    rollout_length: int = 128
    """Environment steps each environment takes in one outer step; under adaptive_batch the most that buffers hold."""
    minibatch_size: int = 16_384
    """Samples in one optimiser step, over all devices. The number of minibatches follows from it."""
    microbatch_size: int = 0
    """Samples whose gradient is computed at once on each device; 0 for what fits the caches on a CPU, and a whole
    minibatch on an accelerator. Gradients add up, so it changes speed and memory, not what is learnt."""
    epochs: int = 4
    """Passes over each batch."""
    learning_rate: TracedFloat = 3e-4
    """Step size of Adam. Traced."""
    schedule: Literal["constant", "linear", "warmup_cosine"] = "constant"
    """How the learning rate moves over the run: not at all, to zero, or up and then down a cosine."""
    warmup_fraction: TracedFloat = 0.1
    """Share of the run in which warmup_cosine rises. Traced."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    clip: TracedFloat = 0.2
    """Bound on how far the probability ratio may leave 1. Traced."""
    value_clip: bool = True
    """Clip the value's move as the ratio's, by the same bound; plain squared error otherwise."""
    discount: TracedFloat = 0.99
    """Discount of one environment step. Traced."""
    trace_decay: TracedFloat = 0.95
    """Lambda of the generalised advantage estimate. Traced."""
    entropy_coefficient: TracedFloat = 0.01
    """Weight of the entropy bonus. Traced."""
    value_coefficient: TracedFloat = 0.5
    """Weight of the value loss. Traced."""
    max_gradient_norm: TracedFloat = 0.5
    """Global norm at which gradients are clipped. Traced."""
    normalise_advantages: bool = True
    """Standardise advantages over the whole minibatch."""
    shuffle: Literal["feistel", "permutation"] = "feistel"
    """How minibatches are drawn; permutation is the textbook way, there for comparison."""
    objective: Literal["clip", "kl_penalty"] = "clip"
    """PPO: bound the ratio to the reference policy, or subtract KL(reference || policy)."""
    kl_coefficient: TracedFloat = 1.0
    """Weight of the KL penalty. Traced."""
    advantage_center_of_mass: OptionalTracedFloat = None
    """Standardise advantages by moments averaged over this many outer steps; none for each minibatch's own. Traced."""
    exploration_start: TracedFloat = 1.0
    """PQN: share of random actions at the beginning. Traced."""
    exploration_end: TracedFloat = 0.05
    """PQN: share of random actions once exploration_fraction of the run is done. Traced."""
    exploration_fraction: TracedFloat = 0.1
    """PQN: share of the run over which random actions decline, linearly in environment steps. Traced."""
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    adaptive_batch: AdaptiveBatchConfig = field(default_factory=AdaptiveBatchConfig)


@dataclass(frozen=True)
class ScalingConfig:
    """More environments than the experiment was made for (Beukman et al. 2026, arXiv 2603.06009)."""

    num_envs: int = 0
    """Environments to scale to; 0 for environment.num_envs as it is."""
    recipe: Literal["fixed_minibatch", "fixed_count", "sqrt_learning_rate", "hybrid", "batch_size_invariant"] = (
        "fixed_minibatch"
    )
    """What follows: more minibatches of the same size (the paper's), larger ones, larger ones with the learning rate x
    the root of their growth, some of both, or Hilton et al.'s rules for PPO-EWMA."""
    size_factor: int = 16
    """Hybrid: growth of the minibatch; the count takes the rest."""


@dataclass(frozen=True)
class CurriculumConfig:
    """Which levels are played."""

    name: Literal["none", "uniform", "sfl", "plr"] = "none"
    """Who chooses: each environment as environment.autoreset says; or a curriculum, under which an episode that ends
    begins again on its level: fresh levels for all (domain randomisation), Sampling For Learnability (Rutherford et al.
    2024, arXiv 2408.15099) or Prioritised Level Replay (Jiang et al. 2021, arXiv 2010.03934)."""
    new_levels: Literal["outer_step", "episode"] = "outer_step"
    """When an assigned level begins: at once, as in the papers, or after the episode that is under way."""
    share: float = 0.5
    """SFL, PLR: share of the environments that play levels of the buffer, the rest fresh ones."""
    buffer_size: int = 1024
    """SFL, PLR: levels kept."""
    candidates: int = 12_288
    """SFL: fresh levels of which the buffer_size most learnable are kept."""
    search_length: int = 512
    """SFL: steps that each candidate is played for."""
    search_batch: int = 4096
    """SFL: candidates played at once over all devices; it changes speed and memory alone."""
    every: int = 128
    """SFL: outer steps from one search to the next."""
    online: bool = False
    """SFL: count training episodes on the buffer's levels as attempts too, and draw levels in proportion to their
    learnability; otherwise uniformly."""
    temperature: float = 0.3
    """PLR: levels are drawn in proportion to rank^(-1 / temperature)."""
    staleness: float = 0.3
    """PLR: weight of the time since a level was last played."""


@dataclass(frozen=True)
class MonitorsConfig:
    """What is measured of the outer loop. Learning does not depend on it, rounding apart."""

    samples: int = 16_384
    """States of the rollout on which policies are compared, drawn uniformly; 0 for all."""
    kl: bool = True
    """KL between behaviour, new and reference policies, and the data-to-divergence ratio."""
    behavioural_divergence: bool = True
    """Share of states whose preferred action changed."""
    outer_step: bool = True
    """Length of the outer step in parameter space, and its cosine with the last one."""
    noise_scale: bool = True
    """Gradient noise scale, between the microbatches of a minibatch; not where each is a single microbatch."""


@dataclass(frozen=True)
class Config:
    """One run."""

    seed: int = 0
    """Seed of the run; member i of a population has seed + i."""
    seeds: int = 1
    """Size of the population trained at once under vmap."""
    total_steps: int = 1_000_000
    """Environment steps over all environments; rounded up to whole outer steps."""
    changes: tuple[str, ...] = ()
    """Traced fields that change during the run: algorithm.reference.center_of_mass=64@2e8 from 2e8 steps on."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    monitors: MonitorsConfig = field(default_factory=MonitorsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def adapts(self) -> bool:
        """Whether the rollout length follows the policy."""
        return self.algorithm.adaptive_batch.driver != "none"

    @property
    def shortest_rollout(self) -> int:
        """Fewest steps of a rollout."""
        return self.algorithm.adaptive_batch.minimum if self.adapts else self.algorithm.rollout_length

    @property
    def longest_rollout(self) -> int:
        """Most steps of a rollout, for which there are buffers."""
        return self.algorithm.adaptive_batch.maximum if self.adapts else self.algorithm.rollout_length

    @property
    def batch_size(self) -> int:
        """Samples of one outer step: environments x rollout length, the most where it adapts."""
        return self.environment.num_envs * self.longest_rollout

    @property
    def num_minibatches(self) -> int:
        """Optimiser steps of one epoch; where their number adapts, the most."""
        fixed_count = self.adapts and self.algorithm.adaptive_batch.minibatches == "fixed_count"
        length = self.shortest_rollout if fixed_count else self.longest_rollout
        return max(1, self.environment.num_envs * length // self.algorithm.minibatch_size)

    @property
    def num_outer_steps(self) -> int:
        """Outer steps of the run: the fewest that reach total_steps; where the length adapts, the most there can be."""
        return math.ceil(self.total_steps / (self.environment.num_envs * self.shortest_rollout))

    @property
    def actual_steps(self) -> int:
        """Environment steps the run takes: total_steps rounded up to whole outer steps.

        Where the length adapts it takes total_steps, and what the last rollout has beyond them.
        """
        return self.total_steps if self.adapts else self.num_outer_steps * self.batch_size

    @property
    def segment_length(self) -> int:
        """Consecutive steps that stay together in a minibatch: 1 for feed-forward networks."""
        if not self.network.recurrent:
            return 1
        return self.network.segment_length or self.algorithm.rollout_length

    @property
    def compares_policies(self) -> bool:
        """Whether rollouts keep the behaviour policy's outputs, to compare the new policy with."""
        driver = self.algorithm.adaptive_batch.driver
        monitors_kl = self.monitors.kl and self.algorithm.name == "ppo"
        return monitors_kl or self.monitors.behavioural_divergence or driver in {"behavioural_divergence", "kl"}


def problems(config: Config) -> list[str]:
    """All that cannot be honoured in a config, each with the rule, the numbers and the nearest legal value."""
    from purejaxrl_scale.rules import broken_rules

    return broken_rules(config)
