"""A trainer of a few lines with the real one's interface, so that the run around it is tested in milliseconds."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import (
    AlgorithmConfig,
    CheckpointConfig,
    Config,
    EnvironmentConfig,
    EvaluationConfig,
    RunConfig,
)
from purejaxrl_scale.environments.interface import Box, Discrete, Timestep


class ToyState(NamedTuple):
    time: jax.Array  # i32[]
    length: jax.Array  # i32[], steps until the episode ends


class ToyEnvironment:
    """Episodes of 1 to `longest` steps; each step pays 1, and 100 more for action 1."""

    name = "toy"
    observation_space = Box(np.zeros(1, np.float32), np.ones(1, np.float32), (1,))
    action_space = Discrete(2)
    cheap_reset = True

    def __init__(self, longest=5, endless=False, broken=False):
        self.max_episode_steps = longest
        self._endless, self._broken = endless, broken

    def reset(self, key):
        length = jax.random.randint(key, (), 1, self.max_episode_steps + 1)
        return jnp.zeros(1), ToyState(jnp.int32(0), length)

    def step(self, key, state, action):
        del key
        state = state._replace(time=state.time + 1)
        over = (state.time >= state.length) & (not self._endless)
        reward = 1.0 + 100.0 * action.astype(jnp.float32)
        return Timestep(
            state=state,
            observation=jnp.full(1, jnp.nan if self._broken else 0.0),
            reward=reward,
            terminated=over & (state.length < self.max_episode_steps),
            truncated=over & (state.length >= self.max_episode_steps),
            outcome={"success": (state.length % 2).astype(jnp.float32)},
        )

    def render(self, states):
        return [np.full((20, 30, 3), 40 * int(state.time), np.uint8) for state in states]


class ToyLearner(NamedTuple):
    weights: jax.Array  # f32[3]
    moments: tuple  # like an optimiser's empty state


class ToyTrainState(NamedTuple):
    learner: ToyLearner
    actors: jax.Array  # f32[num_envs]
    empty: jax.Array  # f32[0]
    outer_step: jax.Array  # u32[]
    steps_low: jax.Array  # u32[]
    steps_high: jax.Array  # u32[]
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class ToyTrainer:
    """Random walks in place of learning; every bit of the state depends on every bit before."""

    config: Config
    environment: ToyEnvironment = dataclasses.field(default_factory=ToyEnvironment)
    chunk_limit: int = 8
    nan_resets: int = 0
    diverges_at: int = 1 << 30  # the outer step from which on the loss is NaN
    start_steps: int = 0

    @cached_property
    def counts(self):
        return {"lowered": 0}

    def init(self, keys, hyperparameters=None):
        del hyperparameters

        def one(key):
            return ToyTrainState(
                learner=ToyLearner(jax.random.normal(key, 3), ()),
                actors=jnp.zeros(self.config.environment.num_envs),
                empty=jnp.zeros(0),
                outer_step=jnp.uint32(0),
                steps_low=jnp.uint32(self.start_steps & 0xFFFFFFFF),
                steps_high=jnp.uint32(self.start_steps >> 32),
                key=key,
            )

        return jax.jit(jax.vmap(one) if keys.ndim else one)(keys)

    def _outer_step(self, state):
        key = jax.random.fold_in(state.key, state.outer_step)
        noise = jax.random.normal(key, state.actors.shape)
        weights = state.learner.weights * 0.9 + jnp.mean(noise)
        low = state.steps_low + jnp.uint32(self.config.batch_size)
        state = state._replace(
            learner=ToyLearner(weights, ()),
            actors=state.actors + noise,
            outer_step=state.outer_step + 1,
            steps_low=low,
            steps_high=state.steps_high + (low < state.steps_low).astype(jnp.uint32),
        )
        odd = state.outer_step % 2 == 1  # only in odd outer steps does an episode end
        return state, {
            "valid": jnp.array(True),
            "steps_low": state.steps_low,
            "steps_high": state.steps_high,
            "outer_step": state.outer_step,
            "episode/count": jnp.where(odd, jnp.uint32(2), jnp.uint32(0)),
            "episode/return_sum": jnp.where(odd, weights[0], 0.0),
            "episode/length_sum": jnp.where(odd, jnp.uint32(7), jnp.uint32(0)),
            "episode/success_sum": jnp.where(odd, 1.0, 0.0),
            "environment/resets": jnp.uint32(100),
            "environment/nan_resets": jnp.uint32(self.nan_resets),
            "loss/total": jnp.where(state.outer_step >= self.diverges_at, jnp.nan, jnp.mean(state.actors)),
            "policy/kl_k3": jnp.abs(weights[1]),
            "value/explained_variance": jnp.nan * weights[2],
        }

    def _chunk(self, state, outer_steps):
        def step(carry):
            state, metrics, row = carry
            state, values = self._outer_step(state)
            return state, {name: metrics[name].at[row].set(value) for name, value in values.items()}, row + 1

        shapes = jax.eval_shape(self._outer_step, state)[1]
        metrics = {name: jnp.zeros(self.chunk_limit, shape.dtype) for name, shape in shapes.items()}
        carry = (state, metrics, jnp.int32(0))
        state, metrics, _ = jax.lax.while_loop(lambda carry: carry[2] < outer_steps.astype(jnp.int32), step, carry)
        return state, metrics

    def lower_chunk(self, state):
        self.counts["lowered"] += 1
        chunk = jax.vmap(self._chunk, (0, None)) if state.key.ndim else self._chunk
        return jax.jit(chunk, donate_argnums=0).lower(state, jnp.uint32(1))

    def act(self, learner, memory, observation, is_first, keys, deterministic):
        del learner, is_first
        count = observation.shape[0]
        action = jnp.zeros(count, jnp.int32)
        if not deterministic:
            action = jax.vmap(lambda key: jax.random.bernoulli(key).astype(jnp.int32))(keys)
        return action, action, memory

    def initial_memory(self, count):
        return jnp.zeros((count, 0))


def toy_config(folder, **run) -> Config:
    """20 outer steps of 4 environments x 8 steps."""
    return Config(
        total_steps=20 * 32,
        environment=EnvironmentConfig(num_envs=4),
        algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=32),
        evaluation=EvaluationConfig(num_envs=4),
        checkpoint=CheckpointConfig(every_seconds=1000.0),
        run=RunConfig(**{"folder": str(folder), "wandb": "disabled", "progress": "none", "report": False, **run}),
    )


@pytest.fixture
def config(tmp_path):
    return toy_config(tmp_path / "runs")


@pytest.fixture
def trainers(monkeypatch):
    """Makes runs use ToyTrainer; holds those made, and the options of the next one."""

    class Made(list):
        options: dict = {}  # noqa: RUF012

        def make(self, config):
            self.append(ToyTrainer(config, **self.options))
            return self[-1]

    made = Made()
    made.options = {}
    monkeypatch.setattr("purejaxrl_scale.train.make_train", made.make)
    return made


@pytest.fixture
def compile_cache(tmp_path):
    """A persistent compile cache with nothing in it."""
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    # JAX opens its cache once; only a reset makes it look at the folder again.
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield tmp_path / "cache"
