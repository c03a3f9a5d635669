"""Every environment by name, without JAX and without the suites: bad names are refused from here in no time.

The tests hold these tables against the suites themselves. A new environment is one row here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from purejaxrl_scale.environments.kinetix_catalogue import SIZES


class Entry(NamedTuple):
    """What one environment shows and takes."""

    observation: Literal["vector", "grid", "image"]  # rank 1, 2 (no channels) or 3 (height, width, channels)
    shape: tuple[int, ...]  # of the observation
    action: Literal["discrete", "continuous"]
    actions: int  # choices of a discrete action, dimensions of a continuous one
    episode_steps: int  # agent steps after which an episode is truncated, by default


GYMNAX: dict[str, Entry] = {
    "CartPole-v1": Entry("vector", (4,), "discrete", 2, 500),
    "Pendulum-v1": Entry("vector", (3,), "continuous", 1, 200),
    "Acrobot-v1": Entry("vector", (6,), "discrete", 3, 500),
    "MountainCar-v0": Entry("vector", (2,), "discrete", 3, 200),
    "MountainCarContinuous-v0": Entry("vector", (2,), "continuous", 1, 999),
    "Asterix-MinAtar": Entry("image", (10, 10, 4), "discrete", 5, 1000),
    "Breakout-MinAtar": Entry("image", (10, 10, 4), "discrete", 3, 1000),
    "Freeway-MinAtar": Entry("image", (10, 10, 7), "discrete", 3, 2500),
    "Seaquest-MinAtar": Entry("image", (10, 10, 10), "discrete", 6, 1000),
    "SpaceInvaders-MinAtar": Entry("image", (10, 10, 6), "discrete", 4, 1000),
    "Catch-bsuite": Entry("grid", (10, 5), "discrete", 3, 1000),
    "DeepSea-bsuite": Entry("grid", (8, 8), "discrete", 2, 8),
    "MemoryChain-bsuite": Entry("vector", (3,), "discrete", 2, 1000),
    "UmbrellaChain-bsuite": Entry("vector", (3,), "discrete", 2, 100),
    "DiscountingChain-bsuite": Entry("vector", (2,), "discrete", 5, 100),
    "MNISTBandit-bsuite": Entry("grid", (28, 28), "discrete", 10, 1),
    "SimpleBandit-bsuite": Entry("grid", (1, 1), "discrete", 11, 100),
    "FourRooms-misc": Entry("vector", (4,), "discrete", 4, 500),
    "MetaMaze-misc": Entry("vector", (15,), "discrete", 4, 200),
    "PointRobot-misc": Entry("vector", (6,), "continuous", 2, 100),
    "BernoulliBandit-misc": Entry("vector", (4,), "discrete", 2, 100),
    "GaussianBandit-misc": Entry("vector", (4,), "discrete", 2, 100),
    "Reacher-misc": Entry("vector", (8,), "continuous", 2, 100),
    "Swimmer-misc": Entry("vector", (16,), "continuous", 2, 500),
    "Pong-misc": Entry("image", (30, 40, 3), "discrete", 3, 1000),
    "FrozenLake-misc": Entry("vector", (16,), "discrete", 4, 100),
}

BRAX: dict[str, Entry] = {
    "ant": Entry("vector", (27,), "continuous", 8, 1000),
    "fast": Entry("vector", (2,), "continuous", 1, 1000),
    "halfcheetah": Entry("vector", (17,), "continuous", 6, 1000),
    "hopper": Entry("vector", (11,), "continuous", 3, 1000),
    "humanoid": Entry("vector", (244,), "continuous", 17, 1000),
    "humanoidstandup": Entry("vector", (244,), "continuous", 17, 1000),
    "inverted_pendulum": Entry("vector", (4,), "continuous", 1, 1000),
    "inverted_double_pendulum": Entry("vector", (8,), "continuous", 1, 1000),
    "pusher": Entry("vector", (23,), "continuous", 7, 1000),
    "reacher": Entry("vector", (11,), "continuous", 2, 1000),
    "swimmer": Entry("vector", (8,), "continuous", 2, 1000),
    "walker2d": Entry("vector", (17,), "continuous", 6, 1000),
}

BACKENDS = ("generalized", "spring", "positional", "mjx")
_FEWER_BACKENDS = {"swimmer": ("generalized",)}

# What `registry.make` takes beside the name. Kinetix's spaces follow from its options, so it has no entries above.
OPTIONS: dict[str, tuple[str, ...]] = {
    "kinetix": (
        "levels",
        "observation",
        "action",
        "dense_reward_scale",
        "level_filter",
        "num_tasks",
        "dummy",
    ),
    "brax": ("backend", "episode_length", "action_repeat"),
    "gymnax": (),
}


def names() -> Iterator[str]:
    """Every environment as suite/name."""
    for suite, members in {"kinetix": SIZES, "brax": BRAX, "gymnax": GYMNAX}.items():
        yield from (f"{suite}/{member}" for member in members)


def entry(name: str) -> Entry | None:
    """The row of a known environment; None for Kinetix, whose spaces follow from its options."""
    suite, _, member = name.partition("/")
    return {"brax": BRAX, "gymnax": GYMNAX}.get(suite, {}).get(member)


def name_problem(name: str) -> str | None:
    """Why there is no environment of this name, with the nearest ones; None where there is."""
    known = list(names())
    if name in known:
        return None
    suite = name.partition("/")[0].lower()
    near = _nearest(name, known)
    if near:
        return f"unknown environment {name!r}: did you mean {' or '.join(near)}?"
    if suite in OPTIONS:
        members = ", ".join(other.partition("/")[2] for other in known if other.startswith(f"{suite}/"))
        return f"unknown environment {name!r}: {suite} has {members}"
    return f"unknown environment {name!r}: names are like kinetix/s, brax/ant and gymnax/CartPole-v1"


def backend_problem(name: str, backend: str) -> str | None:
    """Why a Brax environment cannot run on a backend, with a legal one; None where it can."""
    if backend not in BACKENDS:
        near = difflib.get_close_matches(backend.lower(), BACKENDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(BACKENDS)}"
        return f"unknown Brax backend {backend!r}: {hint}"
    legal = _FEWER_BACKENDS.get(name.partition("/")[2], BACKENDS)
    if backend in legal:
        return None
    return f"{name} does not run on the {backend} backend: use {' or '.join(legal)}"


def _nearest(name: str, known: list[str]) -> list[str]:
    """Up to three known names, best first. The suite may be missing or wrong, and spelling and capitals differ."""
    _, slash, tail = name.partition("/")
    query, tail = _plain(name), _plain(tail if slash else name)
    scores: dict[str, float] = {}
    for candidate in known:
        suite, _, member = candidate.partition("/")
        member = _plain(member)
        score = _alike(query, _plain(candidate)) if slash else 0.0
        if len(tail) > 1 or tail == member:
            # An environment's name weighs more than its suite's, and a missing ending is no misspelling.
            score = max(score, _alike(tail, member) + 0.05 * query.startswith(suite))
            score = max(score, 0.9 + 0.1 * len(tail) / len(member) if len(tail) > 2 and member.startswith(tail) else 0)
        scores[candidate] = score
    ranked = sorted(known, key=lambda candidate: -scores[candidate])
    best = scores[ranked[0]]
    return [candidate for candidate in ranked[:3] if scores[candidate] >= max(0.65, best - 0.15)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _alike(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()
