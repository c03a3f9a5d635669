"""Actor-critics, action values and action distributions."""

from purejaxrl_scale.networks.actor_critic import ActionHead, ActorCritic, make_actor_critic
from purejaxrl_scale.networks.distributions import (
    Categorical,
    Distribution,
    EpsilonGreedy,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
)
from purejaxrl_scale.networks.q_network import QNetwork, make_q_network

__all__ = [
    "ActionHead",
    "ActorCritic",
    "Categorical",
    "Distribution",
    "EpsilonGreedy",
    "Gaussian",
    "MultiCategorical",
    "QNetwork",
    "TanhGaussian",
    "make_actor_critic",
    "make_q_network",
]
