"""What is about to run, in exact numbers, before anything is compiled. No JAX."""

from __future__ import annotations

from purejaxrl_scale.config import Config
from purejaxrl_scale.named_experiments import Experiment


def header(experiment: Experiment, config: Config, unscaled: Config) -> list[tuple[str, str]]:
    """The lines of the header block: label and text."""
    environment, algorithm, devices = config.environment, config.algorithm, config.devices
    lines = [
        ("experiment", f"{experiment.name}: {experiment.summary}"),
        ("environment", environment.name + (f" ({', '.join(environment.levels)})" if environment.levels else "")),
        ("seed", f"{config.seed}" if config.seeds == 1 else f"{config.seed} to {config.seed + config.seeds - 1}"),
        ("steps", _steps(config)),
        *(_adaptive_loops(config) if config.adapts else _loops(config)),
    ]
    if config.environment.num_envs != unscaled.environment.num_envs:
        lines.append(("scaled", _scaled(config, unscaled)))
    if algorithm.reference.center_of_mass is not None:
        kind = "debiased" if algorithm.reference.debias else "plain"
        lines.append(("reference", f"{kind} average over {algorithm.reference.center_of_mass:g} optimiser steps"))
    lines += [("change", text) for text in config.changes]
    lines.append(("devices", f"{devices.count or 'all there are'}, {devices.logical_shards} logical shards"))
    return lines


def _steps(config: Config) -> str:
    if config.adapts:
        return f"{config.total_steps:,}, and what the last rollout has beyond them"
    steps = f"{config.actual_steps:,}"
    if config.actual_steps != config.total_steps:
        steps += f" (asked: {config.total_steps:,}; rounded up to whole outer steps)"
    return steps


def _loops(config: Config) -> list[tuple[str, str]]:
    environment, algorithm = config.environment, config.algorithm
    optimiser_steps = algorithm.epochs * config.num_minibatches
    return [
        (
            "outer steps",
            f"{config.num_outer_steps:,} of {environment.num_envs:,} environments x {algorithm.rollout_length:,} steps "
            f"= {config.batch_size:,} samples",
        ),
        (
            "inner loop",
            f"{algorithm.epochs} epochs x {config.num_minibatches:,} minibatches of {algorithm.minibatch_size:,} "
            f"= {optimiser_steps:,} optimiser steps, {optimiser_steps * config.num_outer_steps:,} in all",
        ),
    ]


def _adaptive_loops(config: Config) -> list[tuple[str, str]]:
    environment, algorithm, options = config.environment, config.algorithm, config.algorithm.adaptive_batch
    shortest, longest = (environment.num_envs * length for length in (config.shortest_rollout, config.longest_rollout))
    if options.minibatches == "fixed_count":
        size = algorithm.minibatch_size
        minibatches = f"{config.num_minibatches:,} minibatches of {size:,} to {size * longest // shortest:,}"
    else:
        fewest = max(1, shortest // algorithm.minibatch_size)
        minibatches = f"{fewest:,} to {config.num_minibatches:,} minibatches of about {algorithm.minibatch_size:,}"
    epochs = f"{algorithm.epochs} epochs"
    if options.epochs == "proportional":
        epochs = f"epochs in proportion, {algorithm.epochs} at {options.epochs_length} steps"
    return [
        (
            "outer steps",
            f"at most {config.num_outer_steps:,} of {environment.num_envs:,} environments x "
            f"{config.shortest_rollout:,} to {config.longest_rollout:,} steps = {shortest:,} to {longest:,} samples, "
            f"by {options.driver}",
        ),
        ("inner loop", f"{epochs} x {minibatches}"),
    ]


def _scaled(config: Config, unscaled: Config) -> str:
    before, after = unscaled.algorithm, config.algorithm
    parts = [
        f"{unscaled.environment.num_envs:,} -> {config.environment.num_envs:,} environments by {config.scaling.recipe}",
        f"{unscaled.num_minibatches:,} -> {config.num_minibatches:,} minibatches of {before.minibatch_size:,} -> "
        f"{after.minibatch_size:,}",
        f"learning rate {before.learning_rate:g} -> {after.learning_rate:g}",
    ]
    if before.reference.center_of_mass is not None and after.reference.center_of_mass is not None:
        parts.append(f"centre of mass {before.reference.center_of_mass:g} -> {after.reference.center_of_mass:g}")
    if before.advantage_center_of_mass is not None and after.advantage_center_of_mass is not None:
        parts.append(f"of advantages {before.advantage_center_of_mass:g} -> {after.advantage_center_of_mass:g}")
    return ", ".join(parts)
