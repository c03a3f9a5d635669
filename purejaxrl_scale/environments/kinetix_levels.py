"""Where a Kinetix episode starts: hand-made levels, random levels, and a fixed set drawn from the random ones.

Each function here returns a start: a function of a key that gives a level ready to be stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from kinetix.environment import EnvParams, EnvState, KinetixEnv, UEDParams, create_empty_env, sample_kinetix_level
from kinetix.environment.ued.locomotion_distribution import make_reset_fn_custom_distribution
from kinetix.util.saving import load_evaluation_levels

from purejaxrl_scale.environments.kinetix_catalogue import level_problem
from purejaxrl_scale.environments.structure import strong

Start = Callable[[jax.Array], EnvState]

FILTER_STEPS = 64
# The set of tasks belongs to the environment, not to a run: every seed trains on the same levels.
_TASK_SEED = 0


def hand_made(levels: Sequence[str], size: str, suite: KinetixEnv) -> Start:
    """One of the named levels, uniformly; a single level costs no sampling.

    Raises ValueError naming every level that is unknown or too large for `size`.
    """
    problems = [problem for level in levels if (problem := level_problem(level, size))]
    if problems:
        raise ValueError("; ".join(problems))
    stacked, _ = load_evaluation_levels(list(levels), static_env_params_override=suite.static_env_params)
    return _one_of(stacked, len(levels))


def random_level(suite: KinetixEnv, params: EnvParams, *, level_filter: bool) -> Start:
    """The suite's level generator, by default without most of the levels that doing nothing solves."""
    settings = UEDParams()

    def sample(key: jax.Array) -> EnvState:
        return strong(sample_kinetix_level(key, suite.physics_engine, params, suite.static_env_params, settings))

    return without_trivial(sample, suite, params) if level_filter else sample


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


def locomotion(suite: KinetixEnv, params: EnvParams) -> Start:
    """The suite's generator of legged bodies, whose limbs, goal and floor vary (in 1 of 4 the floor is deadly)."""
    sample = make_reset_fn_custom_distribution("locomotion", params, suite.static_env_params)
    return lambda key: strong(sample(key))


def fixed_tasks(start: Start, count: int) -> Start:
    """One of `count` levels drawn once from `start` with a fixed key: the same set in every run of any seed."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(_TASK_SEED), jnp.arange(count))
    return _one_of(jax.jit(jax.vmap(start))(keys), count)


def empty(suite: KinetixEnv) -> Start:
    """The walls alone."""
    return lambda key: strong(create_empty_env(suite.static_env_params))


def idling_solves(suite: KinetixEnv, params: EnvParams, level: EnvState) -> jax.Array:
    """Whether a level's first ending within 64 steps without any control is its goal: bool[]."""
    idle = suite.action_type.noop_action()

    def wait(_: jax.Array, carry: tuple[EnvState, jax.Array, jax.Array]) -> tuple[EnvState, jax.Array, jax.Array]:
        state, over, solved = carry
        _, state, reward, _, info = suite.step_env(None, state, idle, params)
        return state, over | (reward != 0), solved | (info["GoalR"] & ~over)

    false = jnp.zeros((), bool)
    return jax.lax.fori_loop(0, FILTER_STEPS, wait, (level, false, false))[2]


def _one_of(levels: EnvState, count: int) -> Start:
    """A uniform draw from stacked levels.

    Most of a level's bytes are contact caches that are zero in all of them: what the levels share is kept once, so
    that neither the compiled program nor the gather carries it `count` times.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, levels))
    varies = [bool((leaf != leaf[:1]).any()) for leaf in leaves]
    kept = [leaf if vary else leaf[0] for leaf, vary in zip(leaves, varies, strict=True)]

    def start(key: jax.Array) -> EnvState:
        index = jax.random.randint(key, (), 0, count) if any(varies) else 0
        chosen = [
            jnp.asarray(leaf)[index] if vary else jnp.asarray(leaf) for leaf, vary in zip(kept, varies, strict=True)
        ]
        return jax.tree.unflatten(structure, chosen)

    return start
