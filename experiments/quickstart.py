"""A small network learns one hand-made Kinetix level within minutes on two CPU cores.

The level is `s/h0_weak_thrust`, which random actions hardly ever solve.
"""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=1_000_000,
    environment=EnvironmentConfig(
        name="kinetix/s",
        num_envs=64,
        levels=("s/h0_weak_thrust",),
        observation="flat",
        autoreset="first_state",
    ),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="tanh"),
    algorithm=AlgorithmConfig(
        rollout_length=64,
        minibatch_size=1024,
        epochs=4,
        learning_rate=1e-3,
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.01,
    ),
)
