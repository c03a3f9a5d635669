"""PQN on MinAtar Breakout with the hyperparameters of Gallici et al. 2025 (arXiv 2407.04811): 10 million steps."""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, MonitorsConfig, NetworkConfig

CONFIG = Config(
    total_steps=10_000_000,
    environment=EnvironmentConfig(name="gymnax/Breakout-MinAtar", num_envs=128),
    network=NetworkConfig(name="minatar_cnn", widths=(128,), activation="relu", layer_norm=True),
    algorithm=AlgorithmConfig(
        name="pqn",
        rollout_length=32,
        minibatch_size=128,
        epochs=2,
        learning_rate=5e-4,
        schedule="linear",
        discount=0.99,
        trace_decay=0.65,
        max_gradient_norm=10.0,
        exploration_start=1.0,
        exploration_end=0.05,
        exploration_fraction=0.1,
    ),
    monitors=MonitorsConfig(samples=256, noise_scale=False),
)
