"""The outer step of PPO, and the chunk of outer steps, as pure functions.

    TrainState -> COLLECT -> Trajectory -> ESTIMATE -> advantages -> IMPROVE -> new policy -> MONITOR -> TrainState

Nothing here knows about files, the terminal or the clock on the wall.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from purejaxrl_scale import counters, devices
from purejaxrl_scale.advantages import gae
from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import global_sum
from purejaxrl_scale.environments import autoreset, registry
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.environments.statistics import (
    Moments,
    discounted_returns,
    init_moments,
    standardise,
    update_moments,
)
from purejaxrl_scale.networks import make_actor_critic
from purejaxrl_scale.rollout import Actors, Simulation, Trajectory, collect, init_actors
from purejaxrl_scale.schedules import learning_rate

CHUNK_LIMIT = 512


class Hyperparameters(NamedTuple):
    """Every traced number of the config, f32[] each: a population may differ in them under one compile."""

    reward_scale: jax.Array
    learning_rate: jax.Array
    warmup_fraction: jax.Array
    clip: jax.Array
    discount: jax.Array
    trace_decay: jax.Array
    entropy_coefficient: jax.Array
    value_coefficient: jax.Array
    max_gradient_norm: jax.Array


class Learner(NamedTuple):
    """What is learnt: the same on every device."""

    learnt: ppo.Learnt
    observation_moments: Moments | tuple[()]  # () where observations are not normalised
    return_moments: Moments | tuple[()]  # () where rewards are not normalised

    @property
    def params(self) -> PyTree:
        """The network's parameters."""
        return self.learnt.params


class TrainState(NamedTuple):
    """Everything needed to go on."""

    key: jax.Array  # key[], the run's; never changes
    outer_step: jax.Array  # u32[]
    steps: Counter  # environment steps taken
    hyperparameters: Hyperparameters
    learner: Learner
    pool: Start | tuple[()]  # starts sampled beforehand, [K, ...]
    actors: Actors  # sharded over devices


def outer_step(simulation: Simulation, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One step of the outer loop: new experience, and a new policy from it."""
    config, learner = simulation.config, state.learner
    collect_key, improve_key = jax.random.split(jax.random.fold_in(state.key, state.outer_step))

    # COLLECT
    actors, trajectory, last_value, sums = collect(
        simulation,
        learner.params,
        partial(normalise, learner.observation_moments),
        state.pool,
        state.actors,
        collect_key,
    )

    # ESTIMATE
    actors, return_moments, reward = scale_rewards(config, state.hyperparameters, learner, actors, trajectory)
    batch = estimate(state.hyperparameters, trajectory, reward, last_value)

    # IMPROVE
    learnt, averages = improve(simulation, state, batch, trajectory.memory, improve_key)

    # MONITOR
    steps = counters.add(state.steps, config.batch_size)
    metrics = {
        "steps_high": steps.high,
        "steps_low": steps.low,
        "outer_step": state.outer_step + 1,
        "value/explained_variance": explained_variance(batch),
        **averages,
        **global_sum(sums),
    }

    observation_moments = learner.observation_moments
    if isinstance(observation_moments, Moments):
        observation_moments = update_moments(observation_moments, trajectory.observation, trajectory.valid)
    state = state._replace(
        outer_step=state.outer_step + 1,
        steps=steps,
        learner=Learner(learnt, observation_moments, return_moments),
        actors=actors,
    )
    return state, metrics


def normalise(moments: Moments | tuple[()], observation: PyTree) -> PyTree:
    """What the network sees of a raw observation: statistics move between outer steps only, so ratios start at 1."""
    return standardise(observation, moments) if isinstance(moments, Moments) else observation


def scale_rewards(
    config: Config, hyperparameters: Hyperparameters, learner: Learner, actors: Actors, trajectory: Trajectory
) -> tuple[Actors, Moments | tuple[()], jax.Array]:
    """Rewards f32[T, N] as learning sees them: scaled, and if asked divided by the deviation of the discounted return.

    The moments include the rollout whose rewards they scale: unlike an observation's, a reward's scale has no part in
    the ratio.
    """
    reward = trajectory.reward * hyperparameters.reward_scale
    if not isinstance(learner.return_moments, Moments):
        return actors, (), reward
    ended = trajectory.terminated | trajectory.truncated
    discounted_return, returns = discounted_returns(actors.discounted_return, reward, ended, hyperparameters.discount)
    moments = update_moments(learner.return_moments, returns, trajectory.valid)
    bound = config.environment.reward_clip
    reward = jnp.clip(reward * jax.lax.rsqrt(moments.variance + 1e-8), -bound, bound)
    return actors._replace(discounted_return=discounted_return), moments, reward


def estimate(
    hyperparameters: Hyperparameters, trajectory: Trajectory, reward: jax.Array, last_value: jax.Array
) -> ppo.Batch:
    """Advantages and value targets of a trajectory; `last_value` f32[N] is that of the observation it stopped at.

    A step in which physics broke says nothing: its temporal difference is 0, so that the steps before it are judged
    by the value of the state they led to, and not by an end that the environment does not have.
    """
    reward = jnp.where(trajectory.valid, reward, trajectory.value)
    next_value = jnp.concatenate([trajectory.value[1:], last_value[None]])
    advantage = gae(
        reward,
        trajectory.value,
        jnp.where(trajectory.truncated, trajectory.final_value, next_value),
        trajectory.terminated,
        trajectory.truncated,
        discount=hyperparameters.discount,
        trace_decay=hyperparameters.trace_decay,
    )
    return ppo.Batch(
        observation=trajectory.observation,
        action=trajectory.action,
        log_prob=trajectory.log_prob,
        value=trajectory.value,
        advantage=advantage,
        target=trajectory.value + advantage,
        valid=trajectory.valid,
        is_first=trajectory.is_first,
    )


def improve(
    simulation: Simulation, state: TrainState, batch: ppo.Batch, memory: PyTree, key: jax.Array
) -> tuple[ppo.Learnt, dict[str, jax.Array]]:
    """Many minibatch steps, at learning rates read off the one clock: samples consumed over samples in all."""
    config, hyperparameters, network = simulation.config, state.hyperparameters, simulation.network

    # Exact before it is rounded: in the last outer step nothing remains after this batch.
    later = counters.subtract(counters.init(config.actual_steps), counters.add(state.steps, config.batch_size))

    def rate(share_left):
        remaining = (counters.approximate(later) + share_left * float(config.batch_size)) / float(config.actual_steps)
        return learning_rate(
            config.algorithm.schedule,
            hyperparameters.learning_rate,
            remaining,
            warmup_fraction=hyperparameters.warmup_fraction,
        )

    def actor_critic(params, memory, observation, is_first):
        observation = normalise(state.learner.observation_moments, observation)
        return network.unroll(params, memory, observation, is_first)

    return ppo.improve(
        actor_critic,
        config,
        state.learner.learnt,
        batch,
        memory,
        ppo.Coefficients(
            clip=hyperparameters.clip,
            entropy_coefficient=hyperparameters.entropy_coefficient,
            value_coefficient=hyperparameters.value_coefficient,
            max_gradient_norm=hyperparameters.max_gradient_norm,
        ),
        rate,
        key,
    )


def explained_variance(batch: ppo.Batch) -> jax.Array:
    """1 - Var[target - value] / Var[target] over the whole batch; NaN where targets do not vary."""
    errors = update_moments(init_moments(0.0), batch.advantage, batch.valid).variance
    targets = update_moments(init_moments(0.0), batch.target, batch.valid).variance
    return jnp.asarray(jnp.where(targets > 0, 1.0 - errors / targets, jnp.nan))


def train_chunk(
    simulation: Simulation, state: TrainState, outer_steps: jax.Array, *, rows: int = CHUNK_LIMIT
) -> tuple[TrainState, dict[str, jax.Array]]:
    """`outer_steps` (u32[], at most `rows`) outer steps -> state, and metrics [rows], of which the first are filled.

    The number is traced: where a run is cut into chunks changes neither a bit nor the compiled program.
    """
    _, shapes = jax.eval_shape(partial(outer_step, simulation), state)
    metrics = jax.tree.map(lambda leaf: jnp.zeros((rows,), leaf.dtype), shapes)

    def body(row, carry):
        state, metrics = carry
        state, new = outer_step(simulation, state)
        return state, jax.tree.map(lambda column, value: column.at[row].set(value), metrics, new)

    return jax.lax.fori_loop(0, outer_steps.astype(jnp.int32), body, (state, metrics))


def init_state(simulation: Simulation, key: jax.Array, hyperparameters: Hyperparameters, num_local: int) -> TrainState:
    """The state before the first outer step; on each device its own share of the environments."""
    config, environment = simulation.config, simulation.environment
    network_key, pool_key, actors_key = jax.random.split(jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF)), 3)
    pool = autoreset.sample_pool(environment, config.environment.autoreset, pool_key, config.environment.pool_size)
    actors = init_actors(simulation, pool, actors_key, num_local)
    example = jax.tree.map(lambda leaf: leaf[0], actors.start.observation)
    params = simulation.network.init(network_key, example)
    optimiser_state = ppo.make_optimiser(config.algorithm, 1.0).init(params)
    state = TrainState(
        key=key,
        outer_step=jnp.uint32(0),
        steps=counters.init(),
        hyperparameters=hyperparameters,
        learner=Learner(
            ppo.Learnt(params, optimiser_state),
            init_moments(example) if config.environment.observation_normalisation else (),
            init_moments(0.0) if config.environment.reward_normalisation else (),
        ),
        pool=pool,
        actors=actors,
    )
    # A weakly typed leaf would change type in the first outer step, and the chunk would compile twice.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def hyperparameters_of(config: Config) -> Hyperparameters:
    """The traced numbers of a config."""
    groups = (config.environment, config.algorithm)
    values = {
        name: getattr(group, name) for group in groups for name in Hyperparameters._fields if hasattr(group, name)
    }
    return Hyperparameters(**{name: jnp.float32(value) for name, value in values.items()})


@dataclass(frozen=True)
class Trainer:
    """A config made ready to run: `trainer(keys)` trains, `init` and `chunk` are its pieces.

    A scalar key trains one seed; a vector of keys trains a population, whose member i sees what the seed alone would
    see, up to the rounding of sums that vmap orders differently.
    """

    config: Config
    simulation: Simulation
    mesh: Mesh
    chunk_limit: int = CHUNK_LIMIT

    def __call__(
        self, keys: jax.Array, hyperparameters: Hyperparameters | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """The whole run in one jitted call -> state, and metrics [outer steps] (or [seeds, outer steps])."""
        state = self.init(keys, hyperparameters)
        outer_steps = self.config.num_outer_steps
        return self._chunk(keys.ndim > 0, outer_steps)(state, jnp.uint32(outer_steps))

    def init(self, keys: jax.Array, hyperparameters: Hyperparameters | None = None) -> TrainState:
        """The state before the first outer step; hyperparameters (f32[] or f32[seeds]) default to the config's."""
        population = keys.ndim > 0
        if hyperparameters is None:
            hyperparameters = hyperparameters_of(self.config)
        if population:
            hyperparameters = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, keys.shape), hyperparameters)
        return self._init(population)(keys, hyperparameters)

    def chunk(self, state: TrainState, outer_steps: int | jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """At most `chunk_limit` outer steps; the state passed in is donated and must not be used again."""
        return self._chunk(state.key.ndim > 0, self.chunk_limit)(state, jnp.uint32(outer_steps))

    def lower_chunk(self, state: TrainState) -> jax.stages.Lowered:
        """The chunk traced and lowered, to be compiled."""
        return self._chunk(state.key.ndim > 0, self.chunk_limit).lower(state, jnp.uint32(1))

    def act(
        self,
        learner: Learner,
        memory: PyTree,
        observation: PyTree,
        is_first: jax.Array,
        keys: jax.Array,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array, PyTree]:
        """The policy on raw observations [N, ...] -> (action, the action as the environment takes it, memory)."""
        observation = normalise(learner.observation_moments, observation)
        memory, policy, _ = self.simulation.network.step(learner.params, memory, observation, is_first)
        action = policy.mode() if deterministic else policy.sample(keys)
        return action, policy.to_environment(action, self.simulation.action_space), memory

    def initial_memory(self, count: int) -> PyTree:
        """The policy's memory before the first observation, [count, ...]."""
        return self.simulation.network.initial_memory(count)

    @property
    def environment(self):
        """The environment trained on."""
        return self.simulation.environment

    @property
    def network(self):
        """The actor-critic."""
        return self.simulation.network

    @cached_property
    def _compiled(self) -> dict:
        return {}

    def _init(self, population: bool):
        num_local = self.config.environment.num_envs // self.mesh.size
        function = devices.over_seeds(
            partial(init_state, self.simulation, num_local=num_local), population, mapped=(True, True)
        )
        return self._jitted(("init", population), function, (devices.REPLICATED,) * 2, _state_specs(population))

    def _chunk(self, population: bool, rows: int):
        function = devices.over_seeds(
            partial(train_chunk, self.simulation, rows=rows), population, mapped=(True, False)
        )
        specs = _state_specs(population)
        return self._jitted(
            ("chunk", population, rows),
            function,
            (specs, devices.REPLICATED),
            (specs, devices.REPLICATED),
            donate_argnums=0,
        )

    def _jitted(self, name, function, in_specs, out_specs, **options):
        if name not in self._compiled:
            sharded = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
            self._compiled[name] = jax.jit(sharded, **options)
        return self._compiled[name]


def _state_specs(population: bool) -> PyTree:
    """Environments are sharded; everything else is the same on each device."""

    def spec(name: str) -> PyTree:
        if name != "actors":
            return devices.REPLICATED
        return PartitionSpec(None, devices.DEVICE_AXIS) if population else PartitionSpec(devices.DEVICE_AXIS)

    return TrainState(*map(spec, TrainState._fields))


def make_train(config: Config) -> Trainer:
    """The training function of a config.

    Raises:
        ValueError: the config cannot be honoured; all problems at once.
    """
    if faults := problems(config):
        raise ValueError("\n".join(faults))
    environment = registry.make_from_config(config.environment)
    network = make_actor_critic(config.network, environment.observation_space, environment.action_space)
    return Trainer(config, Simulation(environment, network, config), devices.make_mesh(config.devices))
