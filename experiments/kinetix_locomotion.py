"""512 two-dimensional walkers, as in the locomotion study of arXiv 2603.06009.

Hyperparameters are those of the paper's table 2. Its own 512 morphologies are not published: these are drawn once,
with a fixed key, from the generator that its first author added to Kinetix.
"""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, EvaluationConfig, NetworkConfig

CONFIG = Config(
    total_steps=1_000_000_000,
    environment=EnvironmentConfig(
        name="kinetix/locomotion",
        num_envs=2048,
        observation="flat",
        num_tasks=512,
    ),
    network=NetworkConfig(name="mlp", widths=(256, 256, 256), activation="relu"),
    algorithm=AlgorithmConfig(
        rollout_length=256,
        minibatch_size=16_384,
        epochs=8,
        learning_rate=3e-4,
        clip=0.2,
        value_clip=True,
        discount=0.995,
        trace_decay=0.9,
        entropy_coefficient=0.01,
        value_coefficient=0.5,
        max_gradient_norm=0.5,
    ),
    # One episode of each task, so that the mean is the paper's: success averaged over the 512 tasks.
    evaluation=EvaluationConfig(num_envs=512),
)

PRESETS = {
    "cpu": {
        "total_steps": 500_000,
        "environment.num_envs": 64,
        "algorithm.rollout_length": 128,
        "algorithm.minibatch_size": 1024,
    },
}
