"""Random medium Kinetix levels, as in arXiv 2603.06009.

Hyperparameters are those of the paper's table 2. The entity transformer is that of Kinetix (Matthews et al. 2025):
2 layers of 128, then five dense layers of 128 for each of actor and critic. With more environments keep minibatch_size
and learning_rate: only the number of minibatches grows, which is the paper's recipe.
"""

from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=10_737_418_240,
    environment=EnvironmentConfig(name="kinetix/m", num_envs=2048, observation="entity", action="multi_discrete"),
    network=NetworkConfig(name="entity_transformer", widths=(128,) * 5, activation="tanh", shared=True),
    algorithm=AlgorithmConfig(
        rollout_length=256,
        minibatch_size=16_384,
        epochs=8,
        learning_rate=5e-5,
        clip=0.2,
        value_clip=True,
        discount=0.995,
        trace_decay=0.9,
        entropy_coefficient=0.01,
        value_coefficient=0.5,
        max_gradient_norm=0.5,
    ),
)

PRESETS = {
    "cpu": {
        "total_steps": 500_000,
        "environment.num_envs": 64,
        "environment.autoreset": "pool",
        "algorithm.rollout_length": 128,
        "algorithm.minibatch_size": 1024,
    },
}
