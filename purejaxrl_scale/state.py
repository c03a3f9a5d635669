"""The training state: everything needed to go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale import counters
from purejaxrl_scale.algorithms import ppo, pqn
from purejaxrl_scale.algorithms.inner_loop import Learnt
from purejaxrl_scale.algorithms.ppo import AdvantageMoments
from purejaxrl_scale.config import Config
from purejaxrl_scale.counters import Counter
from purejaxrl_scale.devices import DEVICE_AXIS, each_shard, over_shards
from purejaxrl_scale.environments import autoreset
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import PyTree
from purejaxrl_scale.environments.statistics import Moments, init_moments
from purejaxrl_scale.hyperparameters import Hyperparameters
from purejaxrl_scale.outer_loop import adaptive_batch, curriculum, noise_scale
from purejaxrl_scale.outer_loop.adaptive_batch import AdaptiveBatch
from purejaxrl_scale.outer_loop.noise_scale import NoiseScale
from purejaxrl_scale.rollout import Actors, Simulation, init_actors


class Learner(NamedTuple):
    """What is learnt: the same on every device."""

    learnt: Learnt
    observation_moments: Moments | tuple[()]  # () where observations are not normalised
    return_moments: Moments | tuple[()]  # () where rewards are not normalised
    advantage_moments: AdvantageMoments | tuple[()]  # () where each minibatch has its own

    @property
    def params(self) -> PyTree:
        """The network's parameters."""
        return self.learnt.params


class OuterLoop(NamedTuple):
    """What the outer loop remembers from one step to the next; () for what is off."""

    adaptive_batch: AdaptiveBatch | tuple[()]
    snapshot: PyTree  # the parameters at the last measurement, where the divergence spans the time since
    noise_scale: NoiseScale | tuple[()]
    last_params: (
        PyTree  # those the next outer step starts from; the learner's own would be kept alive beside its new ones
    )
    last_step: PyTree  # the last outer step in parameter space


class TrainState(NamedTuple):
    """Everything needed to go on."""

    key: jax.Array  # key[], the run's; never changes
    outer_step: jax.Array  # u32[]
    steps: Counter  # environment steps taken
    hyperparameters: Hyperparameters
    learner: Learner
    outer_loop: OuterLoop
    pool: Start | tuple[()]  # starts sampled beforehand, [K, ...]
    curriculum: PyTree  # what it knows of levels; () where there is none
    actors: Actors  # sharded over devices


def init_state(simulation: Simulation, key: jax.Array, hyperparameters: Hyperparameters, num_local: int) -> TrainState:
    """The state before the first outer step; on each device its own share of the environments."""
    config, environment = simulation.config, simulation.environment
    network_key, pool_key, actors_key = jax.random.split(jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF)), 3)
    pool = autoreset.sample_pool(environment, config.environment.autoreset, pool_key, config.environment.pool_size)
    actors = each_shard(lambda: init_actors(simulation, pool, actors_key, num_local))()
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), actors.start.observation)
    params = simulation.network.init(network_key, example)
    learner = Learner(
        pqn.init(params) if config.algorithm.name == "pqn" else ppo.init(config.algorithm, params),
        init_moments(example) if config.environment.observation_normalisation else (),
        init_moments(0.0) if config.environment.reward_normalisation else (),
        ppo.init_advantage_moments() if config.algorithm.advantage_center_of_mass is not None else (),
    )
    state = TrainState(
        key=key,
        outer_step=jnp.uint32(0),
        steps=counters.init(),
        hyperparameters=hyperparameters,
        learner=learner,
        outer_loop=init_outer_loop(config, params),
        pool=pool,
        curriculum=curriculum.init(config),
        actors=actors,
    )
    # A weakly typed leaf would change type in the first outer step, and the chunk would compile twice.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def starting_at(outer_loop: OuterLoop, params: PyTree) -> OuterLoop:
    """The same outer loop where other parameters are put in before the first outer step."""

    def copied(kept: PyTree) -> PyTree:
        # The state is donated, and one buffer cannot be donated twice.
        return jax.tree.map(jnp.copy, params) if kept else kept

    return outer_loop._replace(snapshot=copied(outer_loop.snapshot), last_params=copied(outer_loop.last_params))


def init_outer_loop(config: Config, params: PyTree) -> OuterLoop:
    """An outer loop that has seen nothing yet."""
    adaptive, monitors = config.algorithm.adaptive_batch, config.monitors
    return OuterLoop(
        adaptive_batch=adaptive_batch.init(adaptive) if config.adapts else (),
        snapshot=params if config.adapts and adaptive.span == "interval" else (),
        noise_scale=noise_scale.init() if monitors.noise_scale else (),
        last_params=params if monitors.outer_step else (),
        last_step=jax.tree.map(jnp.zeros_like, params) if monitors.outer_step else (),
    )


_SHARDED = TrainState._make(0 if name == "actors" else None for name in TrainState._fields)


def by_shards(config: Config, step: Callable) -> Callable:
    """An outer step, under `devices.exact_reduction` one of this device's logical shards apart."""
    if not config.devices.exact_reduction:
        return step
    shards = config.devices.logical_shards // jax.lax.axis_size(DEVICE_AXIS)
    apart = over_shards(step, shards, in_axes=(_SHARDED,), out_axes=(_SHARDED, None))

    def of_device(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        actors = jax.tree.map(lambda leaf: leaf.reshape(shards, -1, *leaf.shape[1:]), state.actors)
        state, metrics = apart(state._replace(actors=actors))
        return _joined(state), metrics

    return of_device


def _joined(state: TrainState) -> TrainState:
    """[shards, N / shards, ...] -> [N, ...]."""
    return state._replace(actors=jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), state.actors))


def first_state(simulation: Simulation, num_local: int, key: jax.Array, numbers: Hyperparameters) -> TrainState:
    """`init_state`, under `devices.exact_reduction` of this device's logical shards apart."""
    options = simulation.config.devices
    if not options.exact_reduction:
        return init_state(simulation, key, numbers, num_local)
    shards = options.logical_shards // jax.lax.axis_size(DEVICE_AXIS)
    init = partial(init_state, simulation, num_local=num_local // shards)
    return _joined(over_shards(init, shards, in_axes=(None, None), out_axes=_SHARDED)(key, numbers))
