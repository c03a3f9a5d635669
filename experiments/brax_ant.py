"""Brax's ant on the spring backend, with observations and rewards normalised."""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=10_000_000,
    environment=EnvironmentConfig(
        name="brax/ant",
        num_envs=256,
        backend="spring",
        observation_normalisation=True,
        reward_normalisation=True,
    ),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="tanh"),
    algorithm=AlgorithmConfig(
        rollout_length=16,
        minibatch_size=1024,
        epochs=4,
        learning_rate=3e-4,
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.001,
    ),
)
