"""Adaptive Batch Scaling of PQN on MinAtar Space Invaders: rollouts of 16 to 64 steps (Park 2026, arXiv 2605.21557).

The rule, its thresholds, the epochs and the four minibatches are the paper's for Atari; network, learning rate and
exploration are PQN's for MinAtar. Measurements come every 10 outer steps instead of 50, since runs are shorter.
"""

from purejaxrl_scale.config import (
    AdaptiveBatchConfig,
    AlgorithmConfig,
    Config,
    EnvironmentConfig,
    MonitorsConfig,
    NetworkConfig,
)

CONFIG = Config(
    total_steps=10_000_000,
    environment=EnvironmentConfig(name="gymnax/SpaceInvaders-MinAtar", num_envs=128),
    network=NetworkConfig(name="minatar_cnn", widths=(128,), activation="relu", layer_norm=True),
    algorithm=AlgorithmConfig(
        name="pqn",
        rollout_length=64,
        minibatch_size=512,
        epochs=2,
        learning_rate=5e-4,
        discount=0.99,
        trace_decay=0.65,
        max_gradient_norm=10.0,
        exploration_start=1.0,
        exploration_end=0.05,
        exploration_fraction=0.1,
        adaptive_batch=AdaptiveBatchConfig(
            driver="behavioural_divergence",
            minimum=16,
            maximum=64,
            low=0.05,
            high=0.95,
            every=10,
            epochs="proportional",
            epochs_length=32,
            minimum_epochs=2,
        ),
    ),
    monitors=MonitorsConfig(samples=256, noise_scale=False),
)

LARGE = {
    "network.widths": (512,),
    "network.output_norm": True,
    "algorithm.rollout_length": 128,
    "algorithm.adaptive_batch.maximum": 128,
}
PRESETS = {
    "large": {**LARGE, "network.blocks": 5},  # the multi-skip head of PQN-L
    "xl": {**LARGE, "network.blocks": 10},
    "fixed": {"algorithm.adaptive_batch.driver": "schedule", "algorithm.adaptive_batch.maximum": 16},
    "schedule": {"algorithm.adaptive_batch.driver": "schedule"},
    "noise_scale": {"algorithm.adaptive_batch.driver": "noise_scale", "monitors.noise_scale": True},
}
