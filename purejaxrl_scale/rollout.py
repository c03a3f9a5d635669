"""N environments x T steps -> Trajectory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxrl_scale.compaction import (
    block_at,
    block_size,
    for_marked,
    put_block,
    put_rows,
    put_rows_from,
    rows_from,
    take_rows,
)
from purejaxrl_scale.config import Config
from purejaxrl_scale.devices import common_bound, only_where, shard_index
from purejaxrl_scale.environments import autoreset
from purejaxrl_scale.environments.autoreset import Start
from purejaxrl_scale.environments.interface import ActionSpace, Box, Discrete, Environment, PyTree
from purejaxrl_scale.environments.levels import unknown
from purejaxrl_scale.environments.statistics import (
    EpisodeStatistics,
    Moments,
    init_episodes,
    normalise,
    stored,
    update_episodes,
)
from purejaxrl_scale.networks.actor_critic import ActorCritic
from purejaxrl_scale.networks.distributions import Distribution
from purejaxrl_scale.networks.q_network import QNetwork


class Actors(NamedTuple):
    """The environments of one device, and everything else that goes with each of them."""

    start: Start  # the current observation and state, [N, ...]
    first_start: Start | tuple[()]  # where each environment's episodes begin, [N, ...], if always at the same start
    is_first: jax.Array  # bool[N], whether the current observation begins an episode
    memory: PyTree  # the recurrent state before the current observation, [N, ...]; () for feed-forward networks
    countdown: jax.Array  # i32[N], steps until an artificial end of the first episode; negative once it is over
    episodes: EpisodeStatistics  # [N]
    discounted_return: jax.Array  # f32[N], for reward normalisation
    levels: Any  # Levels [N], those of first_start, where a curriculum assigns them; else ()


class Trajectory(NamedTuple):
    """What happened in one rollout, time-major. Of its T rows the first `length` were filled."""

    observation: PyTree  # [T, N, ...], raw, in the precision of environment.observation_storage
    action: jax.Array  # [T, N, ...], as the policy drew it, in a byte where its choices are few
    log_prob: jax.Array  # f32[T, N], of the behaviour policy
    value: jax.Array  # f32[T, N]
    final_value: jax.Array  # f32[T, N], the value of the true final observation at truncations, 0 elsewhere
    reward: jax.Array  # f32[T, N], raw
    terminated: jax.Array  # bool[T, N]
    truncated: jax.Array  # bool[T, N]
    valid: jax.Array  # bool[T, N], False where physics broke: kept out of gradients and normalisers
    is_first: jax.Array  # bool[T, N], whether the observation begins an episode
    success: PyTree  # bool[T, N], whether the step reached the goal; () where no curriculum asks
    policy: Distribution | tuple[()]  # [T, N, ...], the behaviour policy; () where nothing compares it with the new one
    memory: PyTree  # [T / segment, N, ...], the recurrent state before each segment
    last_value: jax.Array  # f32[N], of the observation at which it stopped
    length: int | jax.Array  # steps: int where all rollouts have one length, i32[] where it adapts


class Behaviour(NamedTuple):
    """The policy that acts."""

    params: PyTree
    normalise: Callable[[PyTree], PyTree]  # raw observations to what the network sees
    behave: Callable[[Distribution], Distribution]  # the network's policy to the one that explores


class Simulation(NamedTuple):
    """The static parts of collecting: the environment, the network, and how episodes follow one another."""

    environment: Environment
    network: ActorCritic | QNetwork
    config: Config

    @property
    def action_space(self) -> ActionSpace:
        """What the environment takes."""
        return self.environment.action_space

    @property
    def restarts(self) -> autoreset.Mode:
        """What follows the end of an episode: under a curriculum the level that it has assigned."""
        return "first_state" if self.config.curriculum.name != "none" else self.config.environment.autoreset

    @property
    def replaces_starts(self) -> bool:
        """Whether the first outer step begins all environments anew, before anything has read where they stood."""
        curriculum = self.config.curriculum
        return curriculum.name != "none" and curriculum.new_levels == "outer_step"

    def unroll(
        self, moments: Moments | tuple[()], params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array
    ) -> tuple[Distribution, jax.Array]:
        """The policy and the value of parameters on raw observations [L, B, ...], as `Evaluate` of the inner loop."""
        return self.network.unroll(params, memory, normalise(moments, observation), is_first)


def environment_keys(step_key: jax.Array, rows: jax.Array, num_local: int) -> jax.Array:
    """One key an environment, key[B], from its *global* index: the same on any number of devices.

    `rows` i32[B] are indices on this device, each of which holds `num_local` environments.
    """
    index = shard_index() * jnp.uint32(num_local) + rows.astype(jnp.uint32)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(step_key, index)


def narrowed(action: jax.Array, action_space: ActionSpace) -> jax.Array:
    """Choices as bytes where no component has more than 256; other actions as they are."""
    if isinstance(action_space, Box):
        return action
    sizes = (action_space.n,) if isinstance(action_space, Discrete) else action_space.sizes
    return action.astype(jnp.uint8) if max(sizes) <= 256 else action


def init_actors(simulation: Simulation, pool: Start | tuple[()], key: jax.Array, num_local: int) -> Actors:
    """Environments at the beginning of their first episodes."""
    environment, options = simulation.environment, simulation.config.environment
    start_key, stagger_key = jax.random.split(key)
    rows = jnp.arange(num_local, dtype=jnp.int32)
    keys = environment_keys(start_key, rows, num_local)
    if isinstance(pool, Start):
        start = autoreset.draw(pool, keys)
    elif simulation.replaces_starts and (blank := getattr(environment, "blank", None)):
        start = Start(*jax.vmap(blank)(keys))
    else:
        start = autoreset.reset(environment, keys)
    countdown = jnp.full(num_local, -1, jnp.int32)
    if options.staggered:
        phases = environment_keys(stagger_key, rows, num_local)
        countdown = jax.vmap(lambda key: jax.random.randint(key, (), 1, environment.max_episode_steps))(phases)
    return Actors(
        start=start,
        first_start=start if simulation.restarts == "first_state" else (),
        is_first=jnp.ones(num_local, bool),
        memory=simulation.network.initial_memory(num_local),
        countdown=countdown,
        episodes=init_episodes(num_local, logged=not options.staggered),
        discounted_return=jnp.zeros(num_local),
        levels=unknown(num_local) if simulation.config.curriculum.name != "none" else (),
    )


def collect(
    simulation: Simulation,
    params: PyTree,
    normalise: Callable[[PyTree], PyTree],
    behave: Callable[[Distribution], Distribution],
    pool: Start | tuple[()],
    actors: Actors,
    key: jax.Array,
    length: int | jax.Array,
) -> tuple[Actors, Trajectory, dict[str, jax.Array]]:
    """One rollout of every environment, of `length` steps: an int, or i32[] of at most the buffers' length.

    `normalise` maps raw observations to what the network sees, with statistics frozen for the whole outer step;
    `behave` maps the network's policy to the one that acts. Returns the actors afterwards, the trajectory, and sums
    over the episodes that ended.
    """
    config, network = simulation.config, simulation.network
    segment, num_local = config.segment_length, actors.is_first.shape[0]
    block = config.environment.block_size or num_local
    fixed = {
        "first_start": actors.first_start,
        "discounted_return": actors.discounted_return,
        "levels": actors.levels,
    }

    @jax.jit
    def step(actors, first_row, time):
        step_key = jax.random.fold_in(key, time.astype(jnp.uint32))
        first_start = rows_from(fixed["first_start"], first_row, block)
        actors, (row, sums) = _step(
            simulation,
            Behaviour(params, normalise, behave),
            pool,
            actors,
            first_start,
            step_key,
            first_row,
            num_local,
        )
        return actors, row, jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=leaf.dtype), sums)

    def of_block(time, first_row, carry):
        actors, rows, memory, sums = carry
        before = rows_from(actors, first_row, block)
        after, row, added = step(before, first_row, time)
        number = time // segment
        kept = jax.tree.map(
            lambda now, old: jnp.where(time % segment == 0, now, old),
            before.memory,
            block_at(memory, number, first_row, block),
        )
        memory = put_block(memory, kept, number, first_row)
        after, sums = only_where(
            time < length, (after, jax.tree.map(jnp.add, sums, added)), (before, sums), config.adapts
        )
        return put_rows_from(actors, after, first_row), put_block(rows, row, time, first_row), memory, sums

    def one(time, carry):
        if block == num_local:
            return of_block(time, jnp.int32(0), carry)
        return jax.lax.fori_loop(
            0, num_local // block, lambda number, carry: of_block(time, number * block, carry), carry
        )

    moving = actors._replace(first_start=(), discounted_return=(), levels=())
    _, row, sums = jax.eval_shape(step, rows_from(moving, jnp.int32(0), block), jnp.int32(0), jnp.int32(0))
    rows = _buffers(row, config.longest_rollout, num_local)
    memory = _buffers(actors.memory, config.longest_rollout // segment, num_local)
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
    moving, rows, memory, sums = jax.lax.fori_loop(0, common_bound(length), one, (moving, rows, memory, sums))

    def value_of_block(first_row):
        actors = rows_from(moving, first_row, block)
        observation = normalise(stored(actors.start.observation, config.environment.observation_storage))
        return network.step(params, actors.memory, observation, actors.is_first)[2]

    if block == num_local:
        last_value = value_of_block(jnp.int32(0))
    else:
        last_value = jax.lax.map(value_of_block, jnp.arange(0, num_local, block, dtype=jnp.int32)).reshape(num_local)
    trajectory = Trajectory(**rows, memory=memory, last_value=last_value, length=length)
    return moving._replace(**fixed), _without_the_rest(trajectory) if config.adapts else trajectory, sums


def attempt(
    simulation: Simulation,
    behaviour: Behaviour,
    start: Start,
    key: jax.Array,
    first_row: jax.Array,
    num_local: int,
    length: int,
) -> tuple[jax.Array, jax.Array]:
    """Starts [B, ...] played for `length` steps, again and again -> episodes that ended, and those solved, i32[B].

    Start i is played with the keys of environment `first_row` + i of this device's `num_local`. Episodes that broken
    physics ended do not count.
    """
    count = jax.tree.leaves(start)[0].shape[0]
    none = jnp.zeros(count, jnp.int32)
    actors = Actors(
        start=start,
        first_start=(),
        is_first=jnp.ones(count, bool),
        memory=simulation.network.initial_memory(count),
        countdown=jnp.full(count, -1, jnp.int32),
        episodes=init_episodes(count),
        discounted_return=jnp.zeros(count),
        levels=(),
    )

    def step(time, carry):
        actors, ended, solved = carry
        step_key = jax.random.fold_in(key, time.astype(jnp.uint32))
        actors, (row, _) = _step(simulation, behaviour, (), actors, start, step_key, first_row, num_local)
        over = (row["terminated"] | row["truncated"]) & row["valid"]
        return actors, ended + over, solved + (over & row["success"])

    return jax.lax.fori_loop(0, length, step, (actors, none, none))[1:]


def _buffers(row: PyTree, length: int, num_local: int) -> PyTree:
    """Zeros [length, N, ...] for rows [B, ...]."""
    return jax.tree.map(lambda leaf: jnp.zeros((length, num_local, *leaf.shape[1:]), leaf.dtype), row)


def _without_the_rest(trajectory: Trajectory) -> Trajectory:
    """Rows past the length as ends of worthless episodes, which no estimate reaches through and nothing counts."""
    rest = (jnp.arange(trajectory.reward.shape[0]) >= trajectory.length)[:, None]
    return trajectory._replace(
        value=jnp.where(rest, 0.0, trajectory.value),
        final_value=jnp.where(rest, 0.0, trajectory.final_value),
        reward=jnp.where(rest, 0.0, trajectory.reward),
        terminated=trajectory.terminated | rest,
        truncated=trajectory.truncated & ~rest,
        valid=trajectory.valid & ~rest,
    )


def next_value(trajectory: Trajectory) -> jax.Array:
    """The value of the observation that each step led to, before any reset, f32[T, N]."""
    following = jnp.concatenate([trajectory.value[1:], trajectory.last_value[None]])
    following = following.at[trajectory.length - 1].set(trajectory.last_value)
    return jnp.where(trajectory.truncated, trajectory.final_value, following)


def stopped(trajectory: Trajectory) -> jax.Array:
    """Where a trace ends although the future has worth: at truncations, and where the rollout stopped, bool[T, N]."""
    last = jnp.arange(trajectory.value.shape[0]) == trajectory.length - 1
    return trajectory.truncated | last[:, None]


def _step(
    simulation: Simulation,
    behaviour: Behaviour,
    pool: Start | tuple[()],
    actors: Actors,
    first_start: Start | tuple[()],
    key: jax.Array,
    first_row: jax.Array,
    num_local: int,
):
    """One step of a block of this device's environments, which begins at `first_row`.

    -> (actors, (the trajectory's row, sums over ended episodes)), all [block, ...].
    """
    environment, network, options = simulation.environment, simulation.network, simulation.config.environment
    params, normalise, behave = behaviour
    count = actors.is_first.shape[0]
    rows = first_row + jnp.arange(count, dtype=jnp.int32)
    action_key, dynamics_key, reset_key = jax.random.split(key, 3)

    observation = stored(actors.start.observation, options.observation_storage)
    memory, policy, value = network.step(params, actors.memory, normalise(observation), actors.is_first)
    policy = behave(policy)
    action = policy.sample(environment_keys(action_key, rows, num_local))
    log_prob = policy.log_prob(action)

    timestep = jax.vmap(environment.step)(
        environment_keys(dynamics_key, rows, num_local),
        actors.start.state,
        policy.to_environment(action, simulation.action_space),
    )
    timestep, broken = autoreset.quarantine(timestep)
    truncated = timestep.truncated | ((actors.countdown == 0) & ~timestep.terminated)
    ended = timestep.terminated | truncated

    def value_final(rows, values):
        """V of the true final observation: only here, before the reset, does it still exist."""
        _, _, value = network.step(
            params,
            take_rows(memory, rows),
            normalise(stored(take_rows(timestep.observation, rows), options.observation_storage)),
            jnp.zeros(rows.shape, bool),
        )
        return put_rows(values, rows, value)

    final_value = for_marked(truncated, value_final, jnp.zeros(count), block=block_size(count))
    episodes, sums = update_episodes(actors.episodes, timestep.reward, ended, broken, timestep.outcome)
    sums["environment/resets"] = jnp.sum(ended, dtype=jnp.uint32)
    sums["environment/nan_resets"] = jnp.sum(broken, dtype=jnp.uint32)
    start = autoreset.restart(
        environment,
        simulation.restarts,
        pool,
        first_start,
        ended,
        lambda marked: environment_keys(reset_key, first_row + marked, num_local),
        Start(timestep.observation, timestep.state),
    )
    row = {
        "observation": observation,
        "action": narrowed(action, simulation.action_space),
        "log_prob": log_prob,
        "value": value,
        "final_value": final_value,
        "reward": timestep.reward,
        "terminated": timestep.terminated,
        "truncated": truncated,
        "valid": ~broken,
        "is_first": actors.is_first,
        "success": timestep.outcome["success"] > 0.0 if simulation.config.curriculum.name == "sfl" else (),
        "policy": policy if simulation.config.compares_policies else (),
    }
    actors = actors._replace(
        start=start,
        is_first=ended,
        memory=memory,
        countdown=jnp.where(ended, -1, jnp.maximum(actors.countdown - 1, -1)),
        episodes=episodes,
    )
    return actors, (row, sums)
