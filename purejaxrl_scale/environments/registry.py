"""Environments by name: make("kinetix/s"), make("brax/ant", backend="spring"), make("gymnax/CartPole-v1").

A suite is imported only when one of its environments is asked for, so a broken suite breaks only itself.
"""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import TYPE_CHECKING

from purejaxrl_scale.config import EnvironmentConfig
from purejaxrl_scale.environments.catalogue import OPTIONS, name_problem
from purejaxrl_scale.suggest import did_you_mean

if TYPE_CHECKING:
    from purejaxrl_scale.environments.interface import Environment

_PACKAGES = {"kinetix": "kinetix-env", "brax": "brax", "gymnax": "gymnax"}


def make(name: str, **options: object) -> Environment:
    """The environment of a name, as suite/environment; the options are those of its suite's `make`.

    Raises ValueError for an unknown name or option, naming the nearest, and ImportError naming the suite's package
    where that cannot be imported.
    """
    if problem := name_problem(name):
        raise ValueError(problem)
    suite, _, member = name.partition("/")
    for option in options:
        if option not in OPTIONS[suite]:
            raise ValueError(f"unknown option {option!r} of {name}: {did_you_mean(option, OPTIONS[suite])}")
    return _adapter(suite, name).make(member, **options)


def make_from_config(config: EnvironmentConfig) -> Environment:
    """The environment that a config names, with those of the config's options that its suite has.

    An option left at "default" is left to the suite.
    """
    suite = config.name.partition("/")[0]
    known = {field.name for field in fields(config)}.intersection(OPTIONS.get(suite, ()))
    options = {option: getattr(config, option) for option in known}
    return make(config.name, **{option: value for option, value in options.items() if value != "default"})


def _adapter(suite: str, name: str):
    """The module that adapts a suite."""
    try:
        return importlib.import_module(f"purejaxrl_scale.environments.{suite}")
    except Exception as error:  # a suite that does not fit its own dependencies fails in any way it likes
        raise ImportError(
            f"{name} needs the package {_PACKAGES[suite]}, which cannot be imported here: "
            f"{type(error).__name__}: {error}"
        ) from error
