"""PQN on gymnax CartPole with the hyperparameters of Gallici et al. 2025 (arXiv 2407.04811): 500,000 steps."""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, MonitorsConfig, NetworkConfig

CONFIG = Config(
    total_steps=500_000,
    environment=EnvironmentConfig(name="gymnax/CartPole-v1", num_envs=32, reward_scale=0.1),
    network=NetworkConfig(name="mlp", widths=(256, 256), activation="relu", layer_norm=True),
    algorithm=AlgorithmConfig(
        name="pqn",
        rollout_length=64,
        minibatch_size=128,
        epochs=4,
        learning_rate=1e-4,
        schedule="linear",
        discount=0.99,
        trace_decay=0.95,
        max_gradient_norm=10.0,
        exploration_start=1.0,
        exploration_end=0.2,
        exploration_fraction=0.2,
    ),
    monitors=MonitorsConfig(samples=256),
)
