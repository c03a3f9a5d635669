"""Sampling For Learnability on random medium Kinetix levels, as in arXiv 2603.06009.

Hyperparameters are those of the paper's tables 2 and 3; `--scaling.num-envs` 8192, 65536 or 1048576 picks the columns
of table 3, and for a million what its appendix D ran: minibatches 16 times as large and 32 times as many, the learning
rate times 4. The tables say 256k and 4M candidates; powers of two are meant here.

Every environment begins a new level with each outer step. The paper's rollouts are as long as the longest episode;
those of `--preset cpu` are half as long, and never see a time limit.
"""

from purejaxrl_scale.config import AlgorithmConfig, Config, CurriculumConfig, EnvironmentConfig, NetworkConfig

CONFIG = Config(
    total_steps=1_000_000_000_000,
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
    curriculum=CurriculumConfig(
        name="sfl",
        share=0.5,
        buffer_size=1024,
        candidates=12_288,
        search_length=512,
        search_batch=4096,
        every=128,
    ),
)

SCALES = {
    8192: {
        "curriculum.buffer_size": 8192,
        "curriculum.candidates": 262_144,
        "curriculum.search_batch": 16_384,
        "curriculum.every": 256,
    },
    65_536: {
        "curriculum.buffer_size": 8192,
        "curriculum.candidates": 262_144,
        "curriculum.search_batch": 65_536,
        "curriculum.every": 32,
    },
    1_048_576: {
        "scaling.recipe": "hybrid",
        "curriculum.buffer_size": 8192,
        "curriculum.candidates": 4_194_304,
        "curriculum.search_batch": 1_048_576,
        "curriculum.every": 2,
        # The paper's 128 GPUs.
        "devices.logical_shards": 128,
    },
}

PRESETS = {
    # One GPU of 80 GB or more: the paper's column for 65,536, with rollouts of 256 steps, the longest episode, so that
    # every level is played out before the next outer step begins new ones.
    "gpu": {
        "scaling.num_envs": 65_536,
    },
    # The same small network as in kinetix_sfl_s; on these levels it has not been compared with others.
    "cpu": {
        "total_steps": 4_000_000,
        "environment.num_envs": 256,
        "algorithm.rollout_length": 128,
        "algorithm.minibatch_size": 2048,
        "algorithm.epochs": 4,
        "algorithm.learning_rate": 1e-3,
        "algorithm.entropy_coefficient": 0.003,
        "network.name": "entity_controls",
        "network.widths": (64, 64),
        "curriculum.buffer_size": 512,
        "curriculum.candidates": 2048,
        "curriculum.search_length": 256,
        "curriculum.search_batch": 512,
        "curriculum.every": 64,
    },
}
