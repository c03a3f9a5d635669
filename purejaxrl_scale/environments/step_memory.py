"""Memory that one environment needs while it is stepped, beside the states before and after: what shapes cannot tell.

Bytes, as XLA plans them for a CPU: temporaries of `jax.vmap(environment.step)`, a row. The tests hold them against XLA.
"""

from __future__ import annotations

from purejaxrl_scale.config import EnvironmentConfig
from purejaxrl_scale.environments.catalogue import BACKENDS

GYMNAX = {
    "CartPole-v1": 0,
    "Pendulum-v1": 0,
    "Acrobot-v1": 100,
    "MountainCar-v0": 0,
    "MountainCarContinuous-v0": 0,
    "Asterix-MinAtar": 4_564,
    "Breakout-MinAtar": 441,
    "Freeway-MinAtar": 2_085,
    "Seaquest-MinAtar": 76_600,
    "SpaceInvaders-MinAtar": 1_782,
    "Catch-bsuite": 68,
    "DeepSea-bsuite": 56,
    "MemoryChain-bsuite": 4,
    "UmbrellaChain-bsuite": 52,
    "DiscountingChain-bsuite": 0,
    "SimpleBandit-bsuite": 0,
    "FourRooms-misc": 56,
    "MetaMaze-misc": 60,
    "PointRobot-misc": 56,
    "BernoulliBandit-misc": 32,
    "GaussianBandit-misc": 24,
    "Reacher-misc": 0,
    "Swimmer-misc": 0,
    "Pong-misc": 14_492,
    "FrozenLake-misc": 60,
}

BRAX = {  # on each of BACKENDS
    "ant": (4_474, 2_706, 4_608, 6_780),
    "fast": (0, 0, 0, 0),
    "halfcheetah": (11_805, 2_127, 4_515, 5_908),
    "hopper": (1_263, 1_237, 2_150, 1_960),
    "humanoid": (11_688, 3_360, 5_723, 11_003),
    "humanoidstandup": (31_754, 3_843, 6_583, 23_443),
    "inverted_pendulum": (430, 309, 896, 1_055),
    "inverted_double_pendulum": (534, 457, 1_330, 1_378),
    "pusher": (11_393, 3_629, 5_072, 7_938),
    "reacher": (626, 545, 1_312, 1_435),
    "swimmer": (963,),
    "walker2d": (5_979, 1_779, 3_896, 4_563),
}

KINETIX = {"s": 12_066, "m": 13_087, "l": 58_295, "locomotion": 36_579}
KINETIX_PIXELS = {"s": 795_758, "m": 803_812, "l": 804_290, "locomotion": 796_184}


def step_bytes(config: EnvironmentConfig) -> int:
    """Bytes for each environment that is stepped at once; 0 where nothing is known of it."""
    suite, _, member = config.name.partition("/")
    if suite == "brax":
        backends = BRAX.get(member, ())
        place = BACKENDS.index(config.backend)
        return backends[place] if place < len(backends) else 0
    if suite == "kinetix" and config.observation == "pixels":
        return KINETIX_PIXELS.get(member, 0)
    return {"gymnax": GYMNAX, "kinetix": KINETIX}.get(suite, {}).get(member, 0)
