"""Small drawings of environments that have no renderer of their own: states in, frames out, on the host.

Everything is drawn at three times its size and scaled down, which smooths the lines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]

_WIDTH, _HEIGHT = 480, 320  # multiples of 16, as video codecs like them
_CELLS = 320  # the longer side of a picture made of cells
_OVERSAMPLING = 3

_PAPER: Colour = (250, 249, 246)
_INK: Colour = (52, 58, 70)
_FAINT: Colour = (205, 208, 214)
_BLUE: Colour = (46, 110, 178)
_ORANGE: Colour = (226, 125, 52)
_GREEN: Colour = (72, 152, 104)
_NIGHT: Colour = (24, 27, 38)
_HUES: tuple[Colour, ...] = (
    (94, 177, 255),
    (255, 150, 79),
    (116, 214, 148),
    (238, 108, 124),
    (190, 146, 255),
    (255, 214, 102),
    (96, 222, 218),
    (240, 160, 214),
    (180, 190, 205),
    (160, 200, 90),
)


def film(name: str, states: Sequence, observe: Callable[[Sequence], np.ndarray]) -> list[np.ndarray]:
    """Frames uint8[height, width, 3] of consecutive gymnax states.

    `observe` gives the observations [T, ...] of states: it serves environments that are drawn from what the agent
    sees, as cells where that is an image or a grid, and as bars where it is a vector.
    """
    if not states:
        return []
    if name in _SCENES:
        return [_SCENES[name](state) for state in states]
    observations = np.asarray(observe(states), np.float32)
    if observations.ndim == 3:
        observations = observations[..., None]
    if observations.ndim == 4:
        return [cells(observation) for observation in observations]
    bound = float(np.abs(observations).max()) or 1.0
    return [bars(observation, bound) for observation in observations]


def cells(image: np.ndarray) -> np.ndarray:
    """An image [height, width, channels] of values in [0, 1], one colour a channel; later channels lie on top."""
    height, width, channels = image.shape
    size = max(1, _CELLS // max(height, width))
    picture = np.full((height, width, 3), _NIGHT, np.float32)
    for channel in range(channels):
        share = np.clip(image[..., channel : channel + 1], 0, 1)
        picture = (1 - share) * picture + share * np.asarray(_HUES[channel % len(_HUES)], np.float32)
    frame = picture.round().astype(np.uint8).repeat(size, axis=0).repeat(size, axis=1)
    if size >= 8:  # a dark line between cells, so that neighbours can be counted
        frame[::size] = frame[::size] * 3 // 4
        frame[:, ::size] = frame[:, ::size] * 3 // 4
    return frame


def bars(values: np.ndarray, bound: float) -> np.ndarray:
    """A vector as bars up and down from a middle line; `bound` is the value at the edge."""
    canvas = _Canvas()
    left, right, middle, reach = 30.0, _WIDTH - 30.0, _HEIGHT / 2, _HEIGHT / 2 - 30
    pitch = (right - left) / len(values)
    for index, value in enumerate(np.nan_to_num(values)):
        height = float(np.clip(value / bound, -1, 1)) * reach
        centre, half = left + (index + 0.5) * pitch, min(0.35 * pitch, 22.0)
        corners = ((centre - half, middle - max(height, 0)), (centre + half, middle - min(height, 0)))
        canvas.box(*corners, _BLUE if value >= 0 else _ORANGE)
    canvas.line((left, middle), (right, middle), _INK, 2)
    return canvas.frame()


class _Canvas:
    """A sheet in pixels of the finished frame, y downwards."""

    def __init__(self):
        self._image = Image.new("RGB", (_WIDTH * _OVERSAMPLING, _HEIGHT * _OVERSAMPLING), _PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, start: Point, end: Point, colour: Colour, width: float) -> None:
        """A line with round ends."""
        self._draw.line(self._scaled(start, end), colour, round(width * _OVERSAMPLING))
        self.disc(start, width / 2, colour)
        self.disc(end, width / 2, colour)

    def curve(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """A smooth line through points."""
        self._draw.line(self._scaled(*points), colour, round(width * _OVERSAMPLING), joint="curve")

    def box(self, corner: Point, opposite: Point, colour: Colour, radius: float = 0) -> None:
        """A filled rectangle from its upper left to its lower right corner."""
        self._draw.rounded_rectangle(self._scaled(corner, opposite), radius * _OVERSAMPLING, colour)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """A filled circle."""
        (x, y) = centre
        self._draw.ellipse(self._scaled((x - radius, y - radius), (x + radius, y + radius)), colour)

    def frame(self) -> np.ndarray:
        """The finished picture, uint8[height, width, 3]."""
        return np.asarray(self._image.resize((_WIDTH, _HEIGHT), Image.Resampling.LANCZOS))

    def _scaled(self, *points: Point) -> list[Point]:
        return [(x * _OVERSAMPLING, y * _OVERSAMPLING) for x, y in points]


def _along(start: Point, angle: float, length: float) -> Point:
    """The end of a rod; the angle is measured from straight up, clockwise."""
    return start[0] + length * math.sin(angle), start[1] - length * math.cos(angle)


def _cart_pole(state) -> np.ndarray:
    canvas = _Canvas()
    ground, metre = 230.0, _WIDTH / 5.6
    canvas.line((0, ground), (_WIDTH, ground), _FAINT, 3)
    for limit in (-2.4, 2.4):
        canvas.line((_WIDTH / 2 + limit * metre, ground - 8), (_WIDTH / 2 + limit * metre, ground + 8), _FAINT, 3)
    x = _WIDTH / 2 + float(state.x) * metre
    canvas.box((x - 34, ground - 34), (x + 34, ground - 8), _INK, radius=5)
    for wheel in (-20, 20):
        canvas.disc((x + wheel, ground - 7), 7, _INK)
    hinge = (x, ground - 34)
    canvas.line(hinge, _along(hinge, float(state.theta), metre), _ORANGE, 8)  # one metre of pole
    canvas.disc(hinge, 6, _BLUE)
    return canvas.frame()


def _pendulum(state) -> np.ndarray:
    canvas = _Canvas()
    hinge, length = (_WIDTH / 2, _HEIGHT / 2), 120.0
    canvas.disc(_along(hinge, 0, length), 4, _FAINT)
    # Upstream measures angle and torque anticlockwise from straight up.
    tip = _along(hinge, -float(state.theta), length)
    canvas.line(hinge, tip, _ORANGE, 12)
    canvas.disc(tip, 14, _INK)
    torque = float(state.last_u)
    canvas.curve([_along(hinge, -0.6 * torque * share, 36) for share in np.linspace(0, 1, 24)], _GREEN, 5)
    canvas.disc(hinge, 8, _BLUE)
    return canvas.frame()


def _mountain_car(state, goal: float) -> np.ndarray:
    canvas = _Canvas()

    def place(position: float) -> Point:
        height = math.sin(3 * position) * 0.45 + 0.55
        return (position + 1.2) / 1.8 * (_WIDTH - 40) + 20, _HEIGHT - 50 - height * 210

    canvas.curve([place(position) for position in np.linspace(-1.2, 0.6, 120)], _INK, 4)
    goal_x, goal_y = place(goal)
    canvas.line((goal_x, goal_y), (goal_x, goal_y - 44), _INK, 3)
    canvas.box((goal_x, goal_y - 44), (goal_x + 22, goal_y - 30), _GREEN)
    x, y = place(float(state.position))
    canvas.disc((x, y - 13), 13, _ORANGE)
    return canvas.frame()


def _acrobot(state) -> np.ndarray:
    canvas = _Canvas()
    hinge, length = (_WIDTH / 2, _HEIGHT / 2), 70.0
    goal = hinge[1] - length
    canvas.line((60, goal), (_WIDTH - 60, goal), _GREEN, 2)
    # Both angles are zero where the arms hang straight down; the second is relative to the first.
    first, second = float(state.joint_angle1), float(state.joint_angle2)
    elbow = _along(hinge, math.pi - first, length)
    tip = _along(elbow, math.pi - first - second, length)
    canvas.line(hinge, elbow, _BLUE, 11)
    canvas.line(elbow, tip, _ORANGE, 11)
    for joint, colour in ((hinge, _INK), (elbow, _INK), (tip, _GREEN)):
        canvas.disc(joint, 7, colour)
    return canvas.frame()


_SCENES: dict[str, Callable[..., np.ndarray]] = {
    "CartPole-v1": _cart_pole,
    "Pendulum-v1": _pendulum,
    "MountainCar-v0": functools.partial(_mountain_car, goal=0.5),
    "MountainCarContinuous-v0": functools.partial(_mountain_car, goal=0.45),
    "Acrobot-v1": _acrobot,
}
