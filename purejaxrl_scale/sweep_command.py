"""`sweep FILE`: what its command line asks for."""

from __future__ import annotations

import os
from itertools import takewhile

from purejaxrl_scale import launchers, sweep_file
from purejaxrl_scale.config_io import ConfigError, Field
from purejaxrl_scale.flags import read_flags

OPTIONS = (
    Field("dry_run", bool, traced=False),  # show the plan, start nothing
    Field("memory", str, traced=False),  # of each device, as 80GB; this machine's otherwise
)


def main(arguments: list[str]) -> int:
    """Run or show a sweep; the exit code. Raises ConfigError with all that is wrong."""
    named = list(takewhile(lambda word: not word.startswith("-"), arguments))
    flags = read_flags(arguments[len(named) :], OPTIONS)
    faults = list(flags.faults)
    if len(named) != 1:
        faults.insert(0, f"sweep needs one file, as sweeps/cartpole_learning_rate.yaml: {len(named)} were given")
    options, memory = flags.options, None
    if options.get("memory"):
        from purejaxrl_scale.runner.memory import read_size

        try:
            memory = read_size(options["memory"])
        except ValueError as fault:
            faults.append(f"--memory: {fault}")
    if faults:
        raise ConfigError(faults)
    file = sweep_file.read(named[0])
    if launchers.gpus():
        # Shapes are counted on a CPU: each process below takes its own GPU, and this one none.
        os.environ["JAX_PLATFORMS"] = "cpu"
    from purejaxrl_scale import sweep_runner

    return sweep_runner.main(
        file,
        [f"--{name}={value}" for name, value in flags.overrides.items()],
        dry_run=options.get("dry_run", False),
        memory=memory,
    )
