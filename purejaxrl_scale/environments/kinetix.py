"""Kinetix (Matthews et al. 2025, arXiv 2410.23208): rigid-body scenes where green should touch blue and never red."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging

# Importing the suite makes grain warn about a profiler that nothing here uses; the terminal belongs to the run.
absl_logging.get_absl_logger().addFilter(lambda record: not record.getMessage().startswith("Grain multiprocess"))

from kinetix.environment import (  # noqa: E402
    ActionType,
    EnvParams,
    EnvState,
    KinetixEnv,
    ObservationType,
    StaticEnvParams,
    create_empty_env,
    make_kinetix_env,
)
from kinetix.render import make_render_pixels  # noqa: E402

from purejaxrl_scale.environments import kinetix_levels  # noqa: E402
from purejaxrl_scale.environments.interface import (  # noqa: E402
    ActionSpace,
    Box,
    Discrete,
    MultiDiscrete,
    PyTree,
    Timestep,
)
from purejaxrl_scale.environments.kinetix_catalogue import SIZES, size_problem  # noqa: E402

_FRAME_SKIP = 2
_OBSERVATIONS = {
    "entity": ObservationType.SYMBOLIC_ENTITY,
    "flat": ObservationType.SYMBOLIC_FLAT,
    "pixels": ObservationType.PIXELS,
}
_ACTIONS = {
    "multi_discrete": ActionType.MULTI_DISCRETE,
    "continuous": ActionType.CONTINUOUS,
    "discrete": ActionType.DISCRETE,
}
# The suite's mark for "no distance yet": the first step of an episode earns no dense reward.
_NO_DISTANCE = -1.0


def make(
    size: str,
    *,
    levels: Sequence[str] = (),
    observation: Literal["entity", "flat", "pixels"] = "entity",
    action: Literal["multi_discrete", "continuous", "discrete"] = "multi_discrete",
    dense_reward_scale: float = 0.2,
    level_filter: bool = True,
    num_tasks: int = 0,
    dummy: bool = False,
) -> Kinetix:
    """A Kinetix environment of one size: s, m, l or locomotion.

    Episodes start from one of the hand-made `levels`; without any, from a random level of the size's generator, or
    from one of `num_tasks` random levels that are the same in every run. `dummy` never moves, and compiles at once:
    for tests of shapes.

    Raises ValueError for an unknown size, level, observation or action, and for a level too large for the size.
    """
    if problem := size_problem(size):
        raise ValueError(problem)
    for value, allowed in ((observation, _OBSERVATIONS), (action, _ACTIONS)):
        if value not in allowed:
            raise ValueError(f"unknown Kinetix option {value!r}: choose one of {', '.join(allowed)}")
    if levels and num_tasks:
        raise ValueError(
            f"levels and num_tasks={num_tasks} exclude each other: hand-made levels are a fixed set already"
        )
    # One object for equal arguments, so that functions compiled for it as a static argument are found again.
    return _make(size, tuple(levels), observation, action, float(dense_reward_scale), level_filter, num_tasks, dummy)


@functools.lru_cache(maxsize=32)
def _make(
    size: str,
    levels: tuple[str, ...],
    observation: str,
    action: str,
    dense_reward_scale: float,
    level_filter: bool,
    num_tasks: int,
    dummy: bool,
) -> Kinetix:
    slots = SIZES[size]
    static_params = StaticEnvParams(
        num_polygons=slots.polygons,
        num_circles=slots.circles,
        num_joints=slots.joints,
        num_thrusters=slots.thrusters,
        frame_skip=_FRAME_SKIP,
    )
    # The suite adds its dense reward after it has decided whether the episode is over, and then no longer tells the
    # two apart: it steps without one, and `Kinetix.step` adds it.
    params = EnvParams(dense_reward_scale=0.0)
    with jax.numpy_rank_promotion("allow"), jax.ensure_compile_time_eval():
        suite = make_kinetix_env(
            _ACTIONS[action],
            _OBSERVATIONS[observation],
            reset_fn=None,
            env_params=params,
            static_env_params=static_params,
            auto_reset=False,
            create_dummy_env=dummy,
        )
        sample = None
        if dummy:
            start = kinetix_levels.empty(suite)
        elif levels:
            start = kinetix_levels.hand_made(levels, size, suite)
        elif size == "locomotion":
            start = kinetix_levels.locomotion(suite, params)
        else:
            start = sample = kinetix_levels.random_level(suite, params)
            if level_filter:
                start = kinetix_levels.without_trivial(sample, suite, params)
        if num_tasks and not dummy:
            start = sample = kinetix_levels.fixed_tasks(start, num_tasks)
    observe = _READERS[observation]
    with jax.numpy_rank_promotion("allow"):
        example = jax.eval_shape(lambda: observe(suite.get_obs(create_empty_env(static_params))))
    return Kinetix(
        name=f"kinetix/{size}",
        observation_space=_observation_space(example, observation, slots.polygons + slots.circles),
        action_space=_action_space(action, static_params),
        max_episode_steps=params.max_timesteps,
        cheap_reset=len(levels) == 1 or dummy,
        dense_reward_scale=dense_reward_scale,
        suite=suite,
        params=params,
        start=start,
        unfiltered=None if sample is start else sample,
        read_observation=observe,
    )


@dataclass(frozen=True, eq=False)
class Kinetix:
    """Scenes of one size: +1 where green meets blue, -1 where green meets red, and either ends the episode.

    The reward also has a dense term, dense_reward_scale x (dₜ₋₁ - dₜ) with d the distance in metres between the
    centres of green and blue, absent on the first step. `outcome["success"]` is 1 where the goal was reached.
    A step whose physics turned NaN ends nothing here: the NaN stays in the state, for the caller to find.
    """

    name: str
    observation_space: PyTree
    action_space: ActionSpace
    max_episode_steps: int
    cheap_reset: bool
    dense_reward_scale: float
    suite: KinetixEnv
    params: EnvParams
    start: kinetix_levels.Start
    unfiltered: kinetix_levels.Start | None  # of which `start` leaves trivial levels out, if it does
    read_observation: Callable[[PyTree], PyTree]

    def reset(self, key: jax.Array) -> tuple[PyTree, EnvState]:
        """A start: (observation, state)."""
        with jax.numpy_rank_promotion("allow"):
            state = self.start(key)
        return self.observe(state), state

    def observe(self, state: EnvState) -> PyTree:
        """What a state shows."""
        with jax.numpy_rank_promotion("allow"):
            return self.read_observation(self.suite.get_obs(state))

    @property
    def num_tasks(self) -> int:
        """How many levels episodes start from, where these are a fixed set; else 0."""
        return self.start.count if isinstance(self.start, kinetix_levels.OneOf) else 0

    def task(self, index: jax.Array) -> tuple[PyTree, EnvState]:
        """The start of one of the `num_tasks` levels."""
        if not isinstance(self.start, kinetix_levels.OneOf):
            raise ValueError(f"{self.name} has no fixed set of levels here")
        state = self.start.at(index)
        return self.observe(state), state

    def draw(self, keys: jax.Array, names: jax.Array, fresh: jax.Array) -> tuple[jax.Array, tuple[PyTree, EnvState]]:
        """A block of levels by name, u32[B, 2]: fresh ones, past the filter, of key[B], where bool[B] is set.

        Only for those does it idle.
        """
        with jax.numpy_rank_promotion("allow"):
            if self.unfiltered is None:
                names = jnp.where(fresh[:, None], jax.random.key_data(keys), names)
                states = jax.vmap(self.start)(jax.random.wrap_key_data(names))
            else:
                names, states = kinetix_levels.named(self.unfiltered, self.suite, self.params, keys, names, fresh)
        return names, (jax.vmap(self.observe)(states), states)

    def blank(self, key: jax.Array) -> tuple[PyTree, EnvState]:
        """A start of the shapes of any, traced in no time: the walls alone."""
        with jax.numpy_rank_promotion("allow"):
            state = kinetix_levels.empty(self.suite)(key)
        return self.observe(state), state

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Timestep:
        """One transition: two frames of physics under the same action. It is deterministic; the key is not used."""
        with jax.numpy_rank_promotion("allow"):
            observation, next_state, sparse, _, info = kinetix_levels.physics(self.suite, self.params)(state, action)
        nearer = jnp.nan_to_num(state.last_distance - info["distance"], nan=0.0, posinf=0.0, neginf=0.0)
        dense = jnp.where(state.last_distance == _NO_DISTANCE, 0.0, nearer * self.dense_reward_scale)
        terminated = jnp.asarray(sparse != 0.0)
        return Timestep(
            state=next_state,
            observation=self.read_observation(observation),
            reward=(sparse + dense).astype(jnp.float32),
            terminated=terminated,
            truncated=(next_state.timestep >= self.max_episode_steps) & ~terminated,
            outcome={"success": jnp.asarray(info["GoalR"], jnp.float32)},
        )

    def render(self, states: list[EnvState]) -> list[np.ndarray]:
        """Frames uint8[500, 500, 3] of consecutive states, right way up."""
        return [np.asarray(self._frame(state)) for state in states]

    @functools.cached_property
    def _frame(self) -> Callable[[EnvState], jax.Array]:
        static_params = replace(self.suite.static_env_params, downscale=1)
        with jax.numpy_rank_promotion("allow"), jax.ensure_compile_time_eval():
            draw = make_render_pixels(self.params, static_params)

        @jax.jit
        def frame(state: EnvState) -> jax.Array:
            with jax.numpy_rank_promotion("allow"):
                return jnp.round(_upright(draw(state))).astype(jnp.uint8)

        return frame


def _upright(image: jax.Array) -> jax.Array:
    """The suite draws in world coordinates, [x, y from the floor up]; an image is [row from the top, column]."""
    return jnp.flip(jnp.swapaxes(image, 0, 1), axis=0)


def _read_entities(observation: PyTree) -> dict[str, jax.Array]:
    return {field.name: getattr(observation, field.name) for field in fields(observation)}


# The suite's pixels come with gravity beside them; no level of this adapter changes it.
_READERS: dict[str, Callable[[PyTree], PyTree]] = {
    "entity": _read_entities,
    "flat": lambda observation: observation,
    "pixels": lambda observation: _upright(observation.image),
}
_BOUNDS = {"entity": (-np.inf, np.inf), "flat": (-10.0, 10.0), "pixels": (0.0, 1.0)}


def _observation_space(example: PyTree, observation: str, num_shapes: int) -> PyTree:
    def box(leaf: jax.ShapeDtypeStruct) -> Box:
        if leaf.dtype == bool:
            low, high = 0, 1
        elif jnp.issubdtype(leaf.dtype, jnp.integer):
            low, high = 0, num_shapes - 1
        else:
            low, high = _BOUNDS[observation]
        dtype = np.dtype(leaf.dtype)
        return Box(np.full(leaf.shape, low, dtype), np.full(leaf.shape, high, dtype), leaf.shape, dtype)

    return jax.tree.map(box, example)


def _action_space(action: str, static_params: StaticEnvParams) -> ActionSpace:
    motors, thrusters = static_params.num_motor_bindings, static_params.num_thruster_bindings
    if action == "multi_discrete":
        return MultiDiscrete((3,) * motors + (2,) * thrusters)
    if action == "discrete":
        return Discrete(2 * motors + 1 + thrusters)
    low, high = -np.ones(motors + thrusters, np.float32), np.ones(motors + thrusters, np.float32)
    return Box(low, high, low.shape)
