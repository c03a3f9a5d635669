"""Between which values each number of a config is legal. No JAX."""

from __future__ import annotations

from typing import NamedTuple

FLOAT32 = 3.4028234663852886e38


class Range(NamedTuple):
    """Legal values of a number; an open end is excluded."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def fault(self, name: str, value: float) -> str | None:
        """The sentence that refuses a value, or None."""
        if isinstance(value, float) and abs(value) > FLOAT32:
            return f"{name} must be at most {FLOAT32:.2g}, the largest float32: it is {value:g}"
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            if self.low_open:
                return f"{name} must be greater than {self.low:g}: it is {value:,}"
            return f"{name} must be at least {self.low:g}: it is {value:,}; the nearest legal value is {self.low:g}"
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            if self.high_open:
                return f"{name} must be less than {self.high:g}: it is {value:,}"
            return f"{name} must be at most {self.high:,}: it is {value:,}; the nearest legal value is {self.high:,}"
        return None


# Sizes and counts are 32-bit integers once compiled; memory and disk give out long before.
_COUNT = Range(low=1, high=2**31 - 1)
_SIZE = Range(low=0, high=2**31 - 1)
WIDTH = Range(low=1, high=2**16)
_NOT_NEGATIVE = Range(low=0)
_AGE = Range(low=0, high=1e7)  # beyond, a float32 average would never move
_POSITIVE = Range(low=0, low_open=True)
_SHARE = Range(low=0, high=1)

RANGES: dict[str, Range] = {
    "seed": _NOT_NEGATIVE,
    # Each member has a record of its own.
    "seeds": Range(low=1, high=4096),
    "total_steps": Range(low=1, high=2**63 - 1),
    "environment.num_envs": _COUNT,
    "environment.dense_reward_scale": _NOT_NEGATIVE,
    "environment.num_tasks": _SIZE,
    "environment.episode_length": _COUNT,
    "environment.action_repeat": _COUNT,
    "environment.pool_size": _COUNT,
    "environment.reward_scale": _POSITIVE,
    "environment.reward_clip": _POSITIVE,
    "environment.max_nan_fraction": _SHARE,
    "environment.block_size": _SIZE,
    "network.blocks": Range(low=0, high=1000),
    "network.hidden_size": WIDTH,
    "network.segment_length": _SIZE,
    "network.transformer_layers": _COUNT,
    "network.transformer_width": WIDTH,
    "network.transformer_heads": _COUNT,
    "algorithm.rollout_length": _COUNT,
    "algorithm.minibatch_size": _COUNT,
    "algorithm.microbatch_size": _SIZE,
    "algorithm.epochs": _COUNT,
    "algorithm.learning_rate": _POSITIVE,
    "algorithm.warmup_fraction": Range(low=0, high=1, high_open=True),
    "algorithm.adam_epsilon": _POSITIVE,
    "algorithm.clip": _NOT_NEGATIVE,
    "algorithm.discount": _SHARE,
    "algorithm.trace_decay": _SHARE,
    "algorithm.entropy_coefficient": _NOT_NEGATIVE,
    "algorithm.value_coefficient": _NOT_NEGATIVE,
    "algorithm.max_gradient_norm": _POSITIVE,
    "algorithm.kl_coefficient": _NOT_NEGATIVE,
    "algorithm.advantage_center_of_mass": _AGE,
    "algorithm.exploration_start": _SHARE,
    "algorithm.exploration_end": _SHARE,
    "algorithm.exploration_fraction": Range(low=0, high=1, low_open=True),
    "algorithm.reference.center_of_mass": _AGE,
    "algorithm.adaptive_batch.minimum": _COUNT,
    "algorithm.adaptive_batch.maximum": _COUNT,
    # Their ratio must be a float32.
    "algorithm.adaptive_batch.low": Range(low=1e-18, high=1e18),
    "algorithm.adaptive_batch.high": Range(low=1e-18, high=1e18),
    "algorithm.adaptive_batch.every": _COUNT,
    "algorithm.adaptive_batch.window": Range(low=1, high=2**20),
    "algorithm.adaptive_batch.burn_in": _COUNT,
    "algorithm.adaptive_batch.smoothing": Range(low=0, high=1, low_open=True),
    "algorithm.adaptive_batch.samples": _SIZE,
    "algorithm.adaptive_batch.multiple": _COUNT,
    "algorithm.adaptive_batch.epochs_length": _COUNT,
    "algorithm.adaptive_batch.minimum_epochs": _COUNT,
    "curriculum.share": _SHARE,
    "curriculum.buffer_size": _COUNT,
    "curriculum.candidates": _COUNT,
    "curriculum.search_length": _COUNT,
    "curriculum.search_batch": _COUNT,
    "curriculum.every": _COUNT,
    "curriculum.temperature": _POSITIVE,
    "curriculum.staleness": _SHARE,
    "scaling.num_envs": _SIZE,
    "scaling.size_factor": _COUNT,
    "monitors.samples": _SIZE,
    "evaluation.every_steps": _NOT_NEGATIVE,
    "evaluation.num_envs": Range(low=1, high=2**20),
    "evaluation.episodes": Range(low=1, high=2**20),
    "evaluation.max_steps": _SIZE,
    "checkpoint.every_seconds": _POSITIVE,
    "checkpoint.keep": _COUNT,
    "checkpoint.keep_best": _NOT_NEGATIVE,
    "devices.count": _NOT_NEGATIVE,
    "devices.process": _NOT_NEGATIVE,
    "devices.processes": _COUNT,
    "devices.patience_seconds": _POSITIVE,
    "devices.logical_shards": _COUNT,
    "run.chunk_seconds": _POSITIVE,
    "run.log_every": _COUNT,
}
