"""On-policy reinforcement learning at massive parallelism. Names load on first use, so that importing costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purejaxrl_scale.analysis.runs import load_run, load_runs
    from purejaxrl_scale.config import Config
    from purejaxrl_scale.named_experiments import load_experiment
    from purejaxrl_scale.train import make_train

_HOMES = {
    "Config": "config",
    "load_experiment": "named_experiments",
    "make_train": "train",
    "load_run": "analysis.runs",
    "load_runs": "analysis.runs",
}

__all__ = ["Config", "load_experiment", "load_run", "load_runs", "make_train"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
