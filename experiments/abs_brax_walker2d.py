"""Adaptive Batch Scaling of PPO on Brax's walker: batches of 1,024 to 8,192 by KL (Park 2026, arXiv 2605.21557).

The hyperparameters are the paper's for MuJoCo, with 64 environments in place of one, so that rollouts have 16 to 128
steps; epochs are 10 for 2,048 samples. Observations and rewards are normalised.
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
    total_steps=5_000_000,
    environment=EnvironmentConfig(
        name="brax/walker2d",
        num_envs=64,
        backend="spring",
        observation_normalisation=True,
        reward_normalisation=True,
    ),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="tanh"),
    algorithm=AlgorithmConfig(
        rollout_length=128,
        minibatch_size=32,
        epochs=10,
        learning_rate=3e-4,
        schedule="linear",
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.0,
        adaptive_batch=AdaptiveBatchConfig(
            driver="kl",
            minimum=16,
            maximum=128,
            low=0.01,
            high=0.1,
            every=10,
            epochs="proportional",
            epochs_length=32,
        ),
    ),
    monitors=MonitorsConfig(samples=256, noise_scale=False),
)
