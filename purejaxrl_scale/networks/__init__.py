"""Actor-critics and action distributions."""

from purejaxrl_scale.networks.actor_critic import ActionHead, ActorCritic, make_actor_critic
from purejaxrl_scale.networks.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
)

__all__ = [
    "ActionHead",
    "ActorCritic",
    "Categorical",
    "Distribution",
    "Gaussian",
    "MultiCategorical",
    "TanhGaussian",
    "make_actor_critic",
]
