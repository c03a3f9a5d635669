"""Tables of the experiments and environments there are. No JAX."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.table import Table

from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.environments import catalogue
from purejaxrl_scale.named_experiments import find_experiment, names


def print_experiments_and_environments() -> None:
    """Print both tables to the terminal."""
    console = Console(highlight=False, markup=False)
    console.print(experiments_table())
    console.print(environments_table())


def experiments_table() -> Table:
    """One row an experiment; one whose file is broken says so in its row."""
    table = Table(title="Experiments", title_justify="left", box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("environment", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for name in names():
        try:
            experiment = find_experiment(name)
        except ConfigError as fault:
            table.add_row(name, "", "", str(fault))
            continue
        config = experiment.config
        presets = f" Presets: {', '.join(experiment.presets)}." if experiment.presets else ""
        table.add_row(name, config.environment.name, _short(config.total_steps), experiment.summary + presets)
    return table


def environments_table() -> Table:
    """One row a suite."""
    suites: dict[str, list[str]] = defaultdict(list)
    for name in catalogue.names():
        suite, _, member = name.partition("/")
        suites[suite].append(member)
    table = Table(title="Environments (SUITE/NAME)", title_justify="left", box=None, pad_edge=False)
    table.add_column("suite")
    table.add_column("names", overflow="fold")
    for suite, members in suites.items():
        table.add_row(suite, ", ".join(members))
    return table


def _short(number: int) -> str:
    """A count in three digits: 10.7B, 20M, 500k."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
