"""Where experience comes from. Names load on first use, so that the catalogue can be read without JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purejaxrl_scale.environments.interface import (
        Box,
        Discrete,
        Environment,
        MultiDiscrete,
        RenderUnavailable,
        Timestep,
    )
    from purejaxrl_scale.environments.registry import make, make_from_config

_HOMES = {
    "make": "registry",
    "make_from_config": "registry",
    "Box": "interface",
    "Discrete": "interface",
    "Environment": "interface",
    "MultiDiscrete": "interface",
    "RenderUnavailable": "interface",
    "Timestep": "interface",
}

__all__ = [
    "Box",
    "Discrete",
    "Environment",
    "MultiDiscrete",
    "RenderUnavailable",
    "Timestep",
    "make",
    "make_from_config",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
