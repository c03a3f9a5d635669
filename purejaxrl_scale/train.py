"""The outer step, and the chunk of outer steps, as pure functions.

    TrainState -> ASSIGN -> levels -> COLLECT -> Trajectory -> ESTIMATE -> advantages -> IMPROVE -> new policy
               -> MONITOR -> ADAPT -> TrainState

Nothing here knows about files, the terminal or the clock on the wall.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from purejaxrl_scale import counters, devices
from purejaxrl_scale import hyperparameters as numbers
from purejaxrl_scale.algorithms import ppo, pqn
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import common_bound, each_shard, global_sum, only_where
from purejaxrl_scale.environments import registry
from purejaxrl_scale.environments.interface import Environment, PyTree
from purejaxrl_scale.environments.statistics import (
    Moments,
    discounted_returns,
    init_moments,
    normalise,
    stored,
    update_moments,
)
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.networks import make_actor_critic, make_q_network
from purejaxrl_scale.networks.distributions import Distribution, EpsilonGreedy
from purejaxrl_scale.outer_loop import adaptive_batch, curriculum
from purejaxrl_scale.outer_loop.adaptation import adapt
from purejaxrl_scale.outer_loop.monitors import monitor
from purejaxrl_scale.outer_loop.recipes import resolved
from purejaxrl_scale.rollout import Actors, Behaviour, Simulation, Trajectory, collect
from purejaxrl_scale.schedules import learning_rate
from purejaxrl_scale.state import Learner, OuterLoop, TrainState, by_shards, first_state

CHUNK_LIMIT = 512
Metrics = dict[str, jax.Array]


def outer_step(simulation: Simulation, state: TrainState) -> tuple[TrainState, Metrics]:
    """One step of the outer loop: new experience, a new policy from it, and how far that took the policy."""
    config, learner = simulation.config, state.learner
    collect_key, improve_key, monitor_key = jax.random.split(jax.random.fold_in(state.key, state.outer_step), 3)
    now = state._replace(hyperparameters=numbers.at(config, state.hyperparameters, state.steps))
    length = rollout_length(config, state.outer_loop)

    # ASSIGN
    levels_key = jax.random.fold_in(collect_key, jnp.uint32(0xFFFFFFFF))
    known, actors = curriculum.assign(
        simulation, behaviour(simulation.config, now), state.curriculum, state.actors, state.outer_step, levels_key
    )
    now = now._replace(curriculum=known, actors=actors)

    # COLLECT
    actors, trajectory, sums = roll_out(simulation, now, collect_key, length)

    # ESTIMATE
    actors, return_moments, reward = scale_rewards(config, now.hyperparameters, learner, actors, trajectory)

    # IMPROVE
    learner, averages = improve(simulation, now, trajectory, reward, improve_key)

    # MONITOR
    outer_loop, comparisons = monitor(simulation, now, learner, trajectory, averages, monitor_key)

    known, actors, levels = curriculum.observe(
        simulation, now.hyperparameters, known, actors, trajectory, state.outer_step
    )

    # ADAPT
    steps = counters.add(state.steps, config.environment.num_envs * jnp.asarray(length, jnp.uint32))
    outer_loop, adaptation = adapt(simulation, now, learner, outer_loop, trajectory, steps, monitor_key)

    observation_moments = learner.observation_moments
    if isinstance(observation_moments, Moments):
        observation_moments = update_moments(observation_moments, trajectory.observation, trajectory.valid)
    state = state._replace(
        outer_step=state.outer_step + 1,
        steps=steps,
        learner=learner._replace(observation_moments=observation_moments, return_moments=return_moments),
        outer_loop=outer_loop,
        curriculum=known,
        actors=actors,
    )
    metrics = {
        "steps_high": steps.high,
        "steps_low": steps.low,
        "outer_step": state.outer_step,
        **averages,
        **comparisons,
        **adaptation,
        **levels,
        **global_sum(sums),
    }
    return state, metrics


def roll_out(
    simulation: Simulation, state: TrainState, key: jax.Array, length: int | jax.Array
) -> tuple[Actors, Trajectory, dict[str, jax.Array]]:
    """`collect` with the learner's policy as it explores."""

    def rollout():
        actors, trajectory, sums = collect(
            simulation,
            *behaviour(simulation.config, state),
            state.pool,
            state.actors,
            key,
            length,
        )
        return actors, trajectory._replace(length=()), sums

    actors, trajectory, sums = each_shard(rollout)()
    return actors, trajectory._replace(length=length), sums


def behaviour(config: Config, state: TrainState) -> Behaviour:
    """The learner's policy as it explores."""
    return Behaviour(
        state.learner.params,
        partial(normalise, state.learner.observation_moments),
        partial(explore, config, state.hyperparameters, state.steps),
    )


def rollout_length(config: Config, outer_loop: OuterLoop) -> int | jax.Array:
    """Steps of the next rollout: an int, or i32[] where the length adapts."""
    if isinstance(outer_loop.adaptive_batch, tuple) and not outer_loop.adaptive_batch:
        return config.algorithm.rollout_length
    return adaptive_batch.rollout_length(outer_loop.adaptive_batch, config.algorithm.adaptive_batch).astype(jnp.int32)


def explore(config: Config, hyperparameters: Hyperparameters, steps: Counter, policy: Distribution) -> Distribution:
    """The policy that acts: the network's own, or for PQN that with a share of random actions."""
    if not isinstance(policy, EpsilonGreedy):
        return policy
    progress = jnp.minimum(counters.approximate(steps) / float(config.actual_steps), 1.0)
    return policy.explore(pqn.exploration(hyperparameters, progress))


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
    discounted_return, returns = each_shard(discounted_returns)(
        actors.discounted_return, reward, ended, hyperparameters.discount, trajectory.length
    )
    moments = update_moments(learner.return_moments, returns, trajectory.valid)
    bound = config.environment.reward_clip
    reward = each_shard(lambda: jnp.clip(reward * jax.lax.rsqrt(moments.variance + 1e-8), -bound, bound))()
    return actors._replace(discounted_return=discounted_return), moments, reward


def improve(
    simulation: Simulation, state: TrainState, trajectory: Trajectory, reward: jax.Array, key: jax.Array
) -> tuple[Learner, Metrics]:
    """Advantages or targets of a trajectory, and many minibatch steps on them."""
    config, learner, hyperparameters = simulation.config, state.learner, state.hyperparameters
    rate = partial(_learning_rate, config, hyperparameters, *_consumed(config, state.steps, trajectory.length))
    network = partial(simulation.unroll, learner.observation_moments)
    if config.algorithm.name == "pqn":
        batch = each_shard(lambda: pqn.estimate(hyperparameters, trajectory, reward))()
        learnt, averages = pqn.improve(
            network, config, hyperparameters, learner.learnt, batch, trajectory.memory, trajectory.length, rate, key
        )
        return learner._replace(learnt=learnt), averages
    batch = each_shard(lambda: ppo.estimate(config, hyperparameters, trajectory, reward))()
    learnt, moments, averages = ppo.improve(
        network,
        config,
        hyperparameters,
        learner.learnt,
        learner.advantage_moments,
        batch,
        trajectory.memory,
        trajectory.length,
        rate,
        key,
    )
    averages["value/explained_variance"] = explained_variance(batch)
    return learner._replace(learnt=learnt, advantage_moments=moments), averages


def _consumed(config: Config, steps: Counter, length: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Samples of the run that are left after this outer step, and those it takes: f32[] of exact differences."""
    left = counters.subtract(counters.init(config.actual_steps), steps)
    batch = counters.add(counters.init(), config.environment.num_envs * jnp.asarray(length, jnp.uint32))
    later = counters.subtract(left, batch)
    return counters.approximate(later), counters.approximate(counters.subtract(left, later))


def _learning_rate(
    config: Config, hyperparameters: Hyperparameters, later: jax.Array, batch: jax.Array, share_left: jax.Array
) -> jax.Array:
    """The one clock: the share of the run's samples that no optimiser step has consumed."""
    return learning_rate(
        config.algorithm.schedule,
        hyperparameters.learning_rate,
        (later + share_left * batch) / float(config.actual_steps),
        warmup_fraction=hyperparameters.warmup_fraction,
    )


def explained_variance(batch: ppo.Batch) -> jax.Array:
    """1 - Var[target - value] / Var[target] over the whole batch; NaN where targets do not vary."""
    errors = update_moments(init_moments(0.0), batch.advantage, batch.valid).variance
    targets = update_moments(init_moments(0.0), batch.target, batch.valid).variance
    return jnp.asarray(jnp.where(targets > 0, 1.0 - errors / targets, jnp.nan))


def train_chunk(
    simulation: Simulation, state: TrainState, outer_steps: jax.Array, *, rows: int = CHUNK_LIMIT
) -> tuple[TrainState, Metrics]:
    """`outer_steps` (u32[], at most `rows`) outer steps -> state, and metrics [rows], of which the `valid` are filled.

    The number is traced: where a run is cut into chunks changes neither a bit nor the compiled program. Where lengths
    adapt, a seed that has taken all its environment steps stands still, and the chunk ends when all have.
    """
    config = simulation.config
    step = jax.jit(by_shards(config, partial(outer_step, simulation)))
    _, shapes = jax.eval_shape(step, state)
    metrics = jax.tree.map(lambda leaf: jnp.zeros((rows,), leaf.dtype), shapes) | {"valid": jnp.zeros((rows,), bool)}

    def unfinished(state: TrainState) -> jax.Array:
        return ~counters.reached(state.steps, config.actual_steps)

    def more(carry) -> jax.Array:
        row, anyone, _, _ = carry
        return (row < outer_steps) & (anyone > 0)

    def body(carry):
        row, _, state, metrics = carry
        running = unfinished(state)
        new, values = step(state)
        state = only_where(running, new, state, config.adapts)
        values["valid"] = running
        metrics = {name: column.at[row].set(values[name]) for name, column in metrics.items()}
        return row + 1, common_bound(unfinished(state).astype(jnp.int32)), state, metrics

    anyone = common_bound(unfinished(state).astype(jnp.int32))
    _, _, state, metrics = jax.lax.while_loop(more, body, (jnp.uint32(0), anyone, state, metrics))
    return state, metrics


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
            hyperparameters = numbers.from_config(self.config)
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
        observation = stored(observation, self.config.environment.observation_storage)
        observation = normalise(learner.observation_moments, observation)
        memory, policy, _ = self.simulation.network.step(learner.params, memory, observation, is_first)
        if isinstance(policy, EpsilonGreedy):
            policy = policy.explore(jnp.float32(self.config.algorithm.exploration_end))
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
            partial(first_state, self.simulation, num_local),
            population,
            mapped=(True, True),
            exact=self.config.devices.exact_reduction,
        )
        return self._jitted(("init", population), function, (devices.REPLICATED,) * 2, _state_specs(population))

    def _chunk(self, population: bool, rows: int):
        function = devices.over_seeds(
            partial(train_chunk, self.simulation, rows=rows),
            population,
            mapped=(True, False),
            exact=self.config.devices.exact_reduction,
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
    config = resolved(config)
    if faults := problems(config):
        raise ValueError("\n".join(faults))
    environment = registry.make_from_config(config.environment)
    return Trainer(config, simulate(config, environment), devices.make_mesh(config.devices))


def simulate(config: Config, environment: Environment) -> Simulation:
    """The simulation of a config in an environment. Raises ValueError where the network does not fit it."""
    make_network = make_q_network if config.algorithm.name == "pqn" else make_actor_critic
    network = make_network(config.network, environment.observation_space, environment.action_space)
    return Simulation(environment, network, config)
