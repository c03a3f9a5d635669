"""A car learns to jump: one hand-made Kinetix level, a small network, a minute or two on two CPU cores.

The level is `m/h3_car_thrust`: a car with a thruster must get its green wheel to the blue ball without touching the red
block between them. Random actions solve about a fifth of the attempts.
"""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=400_000,
    environment=EnvironmentConfig(
        name="kinetix/m",
        num_envs=64,
        levels=("m/h3_car_thrust",),
        observation="flat",
        autoreset="first_state",
    ),
    network=NetworkConfig(name="mlp", widths=(64, 64), activation="tanh"),
    algorithm=AlgorithmConfig(
        rollout_length=64,
        minibatch_size=1024,
        epochs=4,
        learning_rate=1e-3,
        schedule="linear",
        discount=0.99,
        trace_decay=0.95,
        entropy_coefficient=0.003,
    ),
)
