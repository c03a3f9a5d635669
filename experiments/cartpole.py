"""CartPole at 2,048 environments, the shape of the throughput bench; --preset small learns it in seconds."""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=20_000_000,
    environment=EnvironmentConfig(name="gymnax/CartPole-v1", num_envs=2048),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="tanh"),
    algorithm=AlgorithmConfig(
        rollout_length=128,
        minibatch_size=65_536,
        epochs=4,
        learning_rate=1e-3,
        schedule="linear",
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.01,
    ),
)

PRESETS = {
    "small": {
        "total_steps": 500_000,
        "environment.num_envs": 32,
        "algorithm.rollout_length": 64,
        "algorithm.minibatch_size": 256,
    },
}
