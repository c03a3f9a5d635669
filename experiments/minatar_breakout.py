"""MinAtar Breakout (Young & Tian 2019) with a small shared network; --preset cnn for a convolution."""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, MonitorsConfig, NetworkConfig

CONFIG = Config(
    total_steps=20_000_000,
    environment=EnvironmentConfig(name="gymnax/Breakout-MinAtar", num_envs=128),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="relu", shared=True),
    algorithm=AlgorithmConfig(
        rollout_length=32,
        minibatch_size=512,
        epochs=4,
        learning_rate=1e-3,
        clip=0.2,
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.01,
    ),
    monitors=MonitorsConfig(samples=256),
)

PRESETS = {"cnn": {"network.name": "minatar_cnn", "network.widths": (128,)}}
