"""Where a Kinetix episode starts: hand-made levels, random levels, and a fixed set drawn from the random ones.

Each function here returns a start: a function of a key that gives a level ready to be stepped.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax2d.engine import PhysicsEngine, calculate_collision_matrix
from jax2d.sim_state import Joint, RigidBody, Thruster
from kinetix.environment import EnvParams, EnvState, KinetixEnv, UEDParams, create_empty_env, sample_kinetix_level
from kinetix.environment.ued.locomotion_distribution import make_reset_fn_custom_distribution
from kinetix.util.saving import BASE_DIR, expand_env_state

from purejaxrl_scale.devices import common_bound
from purejaxrl_scale.environments.kinetix_catalogue import level_problem
from purejaxrl_scale.environments.structure import strong

Things = TypeVar("Things", RigidBody, Joint, Thruster)
Start = Callable[[jax.Array], EnvState]

FILTER_STEPS = 64
# The suite's generator makes several proposals for each body of a scene with more bodies than this.
_ONE_PROPOSAL = 7
# The set of tasks belongs to the environment, not to a run: every seed trains on the same levels.
_TASK_SEED = 0


def hand_made(levels: Sequence[str], size: str, suite: KinetixEnv) -> Start:
    """One of the named levels, uniformly; a single level costs no sampling.

    Raises ValueError naming every level that is unknown or too large for `size`.
    """
    problems = [problem for level in levels if (problem := level_problem(level, size))]
    if problems:
        raise ValueError("; ".join(problems))
    return OneOf(stacked(levels, suite), len(levels))


def stacked(levels: Sequence[str], suite: KinetixEnv) -> EnvState:
    """Hand-made levels side by side, [levels, ...]."""
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *(load(level, suite) for level in levels))
    find_collisions = jax.vmap(functools.partial(calculate_collision_matrix, suite.static_env_params))
    return states.replace(collision_matrix=find_collisions(states.joint))


def padded(levels: EnvState, suite: KinetixEnv) -> EnvState:
    """Levels [levels, ...] of a smaller size, with empty slots up to those of `suite`."""
    return jax.vmap(lambda level: strong(expand_env_state(level, suite.static_env_params)))(levels)


def load(level: str, suite: KinetixEnv) -> EnvState:
    """A level file as the suite reads it, of NumPy arrays, but for its collision matrix.

    The suite's own reader sets one array element at a time, which takes a second a level.
    """
    scene = json.loads(Path(BASE_DIR, f"{level}.json").read_text())["env_state"]
    blank = jax.tree.map(lambda leaf: np.zeros_like(leaf), create_empty_env(suite.static_env_params))
    fill = functools.partial(_fill, scene)
    used, room = len(scene["polygon"]), suite.static_env_params.num_polygons

    def shift(index: np.ndarray) -> np.ndarray:
        # Bodies are numbered polygons first, so circles move up when there is room for more polygons.
        return np.where(index >= used, index + np.int32(room - used), index)

    joint, thruster = fill("joint", blank.joint), fill("thruster", blank.thruster)
    return blank.replace(
        polygon=fill("polygon", blank.polygon),
        circle=fill("circle", blank.circle),
        joint=joint.replace(a_index=shift(joint.a_index), b_index=shift(joint.b_index)),
        thruster=thruster.replace(object_index=shift(thruster.object_index)),
        polygon_shape_roles=_column(scene["polygon"], "role", blank.polygon_shape_roles),
        circle_shape_roles=_column(scene["circle"], "role", blank.circle_shape_roles),
        polygon_densities=_column(scene["polygon"], "density", blank.polygon_densities),
        circle_densities=_column(scene["circle"], "density", blank.circle_densities),
        motor_bindings=_column(scene["joint"], "motor_binding", blank.motor_bindings),
        thruster_bindings=_column(scene["thruster"], "thruster_binding", blank.thruster_bindings),
        gravity=np.asarray(_rows(scene["gravity"]), blank.gravity.dtype),
        last_distance=np.full_like(blank.last_distance, -1.0),
    )


def _fill(scene: dict, kind: str, blank: Things) -> Things:
    """All things of one kind, in the first slots of arrays like those of `blank`."""
    columns = {field.name: _column(scene[kind], field.name, getattr(blank, field.name)) for field in fields(blank)}
    return replace(blank, **columns)


def _column(things: list[dict], name: str, blank: np.ndarray) -> np.ndarray:
    column = blank.copy()
    column[: len(things)] = [_rows(thing[name]) for thing in things]
    return column


def _rows(value: object) -> object:
    """Level files write arrays as {"0": ..., "1": ...}."""
    return [_rows(value[str(i)]) for i in range(len(value))] if isinstance(value, dict) else value


def random_level(suite: KinetixEnv, params: EnvParams) -> Start:
    """The suite's level generator."""
    slots, settings = suite.static_env_params, UEDParams()
    engine = _Collisions(suite.physics_engine, anyone_asks=slots.num_polygons + slots.num_circles > _ONE_PROPOSAL)

    def sample(key: jax.Array) -> EnvState:
        return strong(sample_kinetix_level(key, engine, params, slots, settings))

    return sample


class _Collisions:
    """What the generator asks of the engine: which of several proposals for the next body collides least.

    It asks six times, and tracing an answer takes seconds. In scenes of few bodies it makes a single proposal, of which
    the first is the best whatever the answer.
    """

    def __init__(self, engine: PhysicsEngine, anyone_asks: bool):
        self.calculate_collision_manifolds = jax.jit(engine.calculate_collision_manifolds) if anyone_asks else _none


class _NoContact(NamedTuple):
    active: jax.Array  # bool[pairs] or bool[pairs, points]


def _none(_: EnvState) -> tuple[_NoContact, _NoContact, _NoContact]:
    pair, single = _NoContact(jnp.zeros((1, 1), bool)), _NoContact(jnp.zeros(1, bool))
    return pair, single, single


def without_trivial(sample: Start, suite: KinetixEnv, params: EnvParams) -> Start:
    """Starts of `sample`, of which a share q is solved by doing nothing, with that share brought down to q².

    Two candidates are drawn. The first is kept unless idling reaches its goal, and then the second is taken as it
    comes: if that one is trivial too there is nothing better to take, so idling through it would decide nothing. A
    level that idling *fails* is kept. Sampling is cheap beside the idle steps, of which each start costs 64.
    """

    def start(key: jax.Array) -> EnvState:
        candidates = jax.vmap(sample)(jax.random.split(key, 2))
        trivial = idling_solves(suite, params, jax.tree.map(lambda leaf: leaf[0], candidates))
        return jax.tree.map(lambda leaf: jnp.where(trivial, leaf[1], leaf[0]), candidates)

    return start


def named(
    sample: Start, suite: KinetixEnv, params: EnvParams, keys: jax.Array, names: jax.Array, fresh: jax.Array
) -> tuple[jax.Array, EnvState]:
    """Names u32[B, 2] and levels: where `fresh` (bool[B]) those of `without_trivial`, elsewhere `sample` of the name.

    One copy of the sampler and one of the physics for both: each takes long to compile.
    """
    two = jax.random.key_data(jax.vmap(lambda key: jax.random.split(key, 2))(keys))  # u32[B, 2, 2]
    candidates = jnp.where(fresh[:, None, None], two, names[:, None])
    # Under one vmap, not two: each traces the whole sampler once more.
    flat = jax.vmap(sample)(jax.random.wrap_key_data(candidates.reshape(-1, 2)))
    drawn = jax.tree.map(lambda leaf: leaf.reshape(-1, 2, *leaf.shape[1:]), flat)
    first = jax.tree.map(lambda leaf: leaf[:, 0], drawn)
    anyone = common_bound(jnp.any(fresh).astype(jnp.int32))
    idle = jax.vmap(functools.partial(idling_solves, suite, params))
    trivial = fresh & jax.lax.cond(jnp.asarray(anyone) > 0, idle, lambda _: jnp.zeros(fresh.shape, bool), first)

    def pick(pair: jax.Array) -> jax.Array:
        return jnp.where(trivial.reshape(-1, *[1] * (pair.ndim - 2)), pair[:, 1], pair[:, 0])

    return pick(candidates), jax.tree.map(pick, drawn)


def locomotion(suite: KinetixEnv, params: EnvParams) -> Start:
    """The suite's generator of legged bodies, whose limbs, goal and floor vary (in 1 of 4 the floor is deadly)."""
    sample = make_reset_fn_custom_distribution("locomotion", params, suite.static_env_params)
    return lambda key: strong(sample(key))


def fixed_tasks(start: Start, count: int) -> Start:
    """One of `count` levels drawn once from `start` with a fixed key: the same set in every run of any seed."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(_TASK_SEED), jnp.arange(count))
    return OneOf(jax.jit(jax.vmap(start))(keys), count)


def empty(suite: KinetixEnv) -> Start:
    """The walls alone."""
    return lambda key: strong(create_empty_env(suite.static_env_params))


@functools.lru_cache(maxsize=32)
def physics(suite: KinetixEnv, params: EnvParams) -> Callable[[EnvState, jax.Array], tuple]:
    """The suite's step of (state, action), which needs no key. Jitted, so that it is traced once for all who step."""
    return jax.jit(lambda state, action: suite.step_env(None, state, action, params))


def idling_solves(suite: KinetixEnv, params: EnvParams, level: EnvState) -> jax.Array:
    """Whether a level's first ending within 64 steps without any control is its goal: bool[]."""
    idle = suite.action_type.noop_action()

    def wait(_: jax.Array, carry: tuple[EnvState, jax.Array, jax.Array]) -> tuple[EnvState, jax.Array, jax.Array]:
        state, over, solved = carry
        _, state, reward, _, info = physics(suite, params)(state, idle)
        return state, over | (reward != 0), solved | (info["GoalR"] & ~over)

    false = jnp.zeros((), bool)
    return jax.lax.fori_loop(0, FILTER_STEPS, wait, (level, false, false))[2]


class OneOf:
    """A uniform draw from stacked levels [count, ...].

    Most of a level's bytes are contact caches that are zero in all of them: what the levels share is kept once, so
    that neither the compiled program nor the gather carries it `count` times.
    """

    def __init__(self, levels: EnvState, count: int):
        leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, levels))
        self._varies = [bool((leaf != leaf[:1]).any()) for leaf in leaves]
        self._kept = [leaf if vary else leaf[0] for leaf, vary in zip(leaves, self._varies, strict=True)]
        self.count = count

    def __call__(self, key: jax.Array) -> EnvState:
        return self.at(jax.random.randint(key, (), 0, self.count) if any(self._varies) else 0)

    def at(self, index: jax.Array | int) -> EnvState:
        """The level of that number."""
        kept = zip(self._kept, self._varies, strict=True)
        return jax.tree.unflatten(
            self._structure, [jnp.asarray(leaf)[index] if vary else jnp.asarray(leaf) for leaf, vary in kept]
        )
