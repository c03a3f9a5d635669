"""Kinetix by name, without importing it: its sizes, its hand-made levels, and which level fits where.

Bad names are refused from here before JAX is imported; the tests hold these tables against the suite itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from purejaxrl_scale.suggest import nearest

if TYPE_CHECKING:
    from purejaxrl_scale.config import EnvironmentConfig


class Slots(NamedTuple):
    """How many things a scene can hold. The polygons include the floor, two walls and the ceiling."""

    polygons: int
    circles: int
    joints: int
    thrusters: int


SIZES = {
    "s": Slots(5, 2, 1, 1),
    "m": Slots(6, 3, 2, 2),
    "l": Slots(12, 4, 6, 2),
    "locomotion": Slots(10, 2, 6, 1),
}

# A level file fills the slots of the size it was drawn in, some of them with inactive things. The suite never trims
# a file, so the folder is the smallest of s, m and l that loads the level.
LEVELS = (
    "s/h0_weak_thrust",
    "s/h1_thrust_over_ball",
    "s/h2_one_wheel_car",
    "s/h3_point_the_thruster",
    "s/h4_thrust_aim",
    "s/h5_rotate_fall",
    "s/h6_unicycle_right",
    "s/h7_unicycle_left",
    "s/h8_unicycle_balance",
    "s/h9_explode_then_thrust_over",
    "m/arm_hard",
    "m/arm_left",
    "m/arm_right",
    "m/arm_up",
    "m/h0_unicycle",
    "m/h10_thrust_right_easy",
    "m/h11_thrust_left_easy",
    "m/h12_thrustfall_left",
    "m/h13_thrustfall_right",
    "m/h14_thrustblock",
    "m/h15_thrustshoot",
    "m/h16_thrustcontrol_right",
    "m/h17_thrustcontrol_left",
    "m/h18_thrust_right_very_easy",
    "m/h19_thrust_left_very_easy",
    "m/h1_car_left",
    "m/h2_car_right",
    "m/h3_car_thrust",
    "m/h4_thrust_the_needle",
    "m/h5_angry_birds",
    "m/h6_thrust_over",
    "m/h7_car_flip",
    "m/h8_weird_vehicle",
    "m/h9_spin_the_right_way",
    "l/car_launch",
    "l/car_swing_around",
    "l/chain_lander",
    "l/chain_thrust",
    "l/gears",
    "l/grasp_easy",
    "l/grasp_hard",
    "l/h0_angrybirds",
    "l/h10_morph_direction_2",
    "l/h11_obstacle_avoidance",
    "l/h12_platformer_1",
    "l/h13_platformer_2",
    "l/h14_simple_thruster",
    "l/h15_swing_up",
    "l/h16_thruster_goal",
    "l/h17_unicycle",
    "l/h1_car_left",
    "l/h2_car_ramp",
    "l/h3_car_right",
    "l/h4_cartpole",
    "l/h5_flappy_bird",
    "l/h6_lorry",
    "l/h7_maze_1",
    "l/h8_maze_2",
    "l/h9_morph_direction",
    "l/hard_beam_balance",
    "l/hard_cartpole_thrust",
    "l/hard_cartpole_wheels",
    "l/hard_lunar_lander",
    "l/hard_pinball",
    "l/lever_puzzle",
    "l/mjc_half_cheetah",
    "l/mjc_half_cheetah_easy",
    "l/mjc_hopper",
    "l/mjc_hopper_easy",
    "l/mjc_swimmer",
    "l/mjc_walker",
    "l/mjc_walker_easy",
    "l/pr",
    "l/rail",
)


# The sizes that evaluation asks for, each with levels of its own.
EVALUATED = ("s", "m", "l")


def smallest_size(level: str) -> str:
    """The smallest of s, m and l that holds a level of the catalogue."""
    return level.partition("/")[0]


def size_problem(size: str) -> str | None:
    """Why `size` cannot be used, in one sentence; None where it can."""
    if size in SIZES:
        return None
    return f"unknown Kinetix size {size!r}: choose one of {', '.join(SIZES)}"


def level_problem(level: str, size: str) -> str | None:
    """Why `level` cannot be loaded into `size`, in one sentence; None where it can.

    An unknown level names its nearest neighbours, one too large the size it needs.
    """
    if size not in SIZES:
        return size_problem(size)
    if level not in LEVELS:
        close = nearest(level, LEVELS)
        hint = f"did you mean {' or '.join(close)}?" if close else f"levels are named like {LEVELS[0]}"
        return f"unknown Kinetix level {level!r}: {hint}"
    needed, available = SIZES[smallest_size(level)], SIZES[size]
    if all(need <= have for need, have in zip(needed, available, strict=True)):
        return None
    return (
        f"level {level!r} does not fit in size {size!r} ({_describe(available)}): "
        f"it needs kinetix/{smallest_size(level)} ({_describe(needed)})"
    )


def own_sizes(environment: EnvironmentConfig) -> bool:
    """Whether an agent can play levels of other sizes than it was trained in: its observation has the same shape there,
    or is of entities, of which the network takes any number."""
    if environment.observation == "pixels":
        return True
    return environment.observation in ("default", "entity") and not environment.observation_normalisation


def protocol_problem(environment: EnvironmentConfig) -> str | None:
    """Why an agent cannot play the levels of all sizes, in one sentence; None where it can."""
    suite, _, size = environment.name.partition("/")
    if suite != "kinetix":
        return f"--protocol kinetix plays Kinetix's levels, and this run's environment is {environment.name}"
    if own_sizes(environment):
        return None
    missing = [one for one in EVALUATED if any(map(int.__gt__, SIZES[one], SIZES[size]))]
    if not missing:
        return None
    seen = "normalised " * environment.observation_normalisation + environment.observation
    return (
        f"--protocol kinetix has levels that kinetix/{size} ({_describe(SIZES[size])}) cannot hold, those of "
        f"{' and '.join(missing)}, and an agent with {seen} observations plays no other size: train it in kinetix/l, "
        "or with environment.observation entity"
    )


def _describe(slots: Slots) -> str:
    return ", ".join(f"{count} {name if count > 1 else name[:-1]}" for name, count in slots._asdict().items())
