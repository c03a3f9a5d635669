"""How the other hyperparameters follow the number of environments. No JAX.

More environments mean more samples an outer step, and something must take them up. The paper's recipe keeps the inner
loop as it is, minibatch size, learning rate and epochs, and takes more minibatch steps: not more epochs, which make
plateaus worse.

Source: Beukman et al. 2026, arXiv 2603.06009, section 5.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from purejaxrl_scale.batch_rules import multiples_around, neighbours
from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import ConfigError


def scale(config: Config, num_envs: int, recipe: str, *, size_factor: int = 16) -> Config:
    """The config for `num_envs` environments, g times as many as it has.

    fixed_minibatch:       the minibatch stays, and so does the learning rate; g times as many minibatches
    fixed_count:           minibatches grow by g, their number stays
    sqrt_learning_rate:    as fixed_count, and the learning rate grows by √g
    hybrid:                minibatches grow by f = `size_factor`, the learning rate by √f, their number by g / f
    batch_size_invariant:  minibatches grow by g, the learning rate by √g; averages keep their age in samples

    A recipe is one of these names. At g = 1 nothing changes. Raises ConfigError where sizes come out as no whole
    minibatches, and for batch_size_invariant without a reference policy or at more than one epoch.

    Source: Beukman et al. 2026, arXiv 2603.06009, section 5 and appendix D (size_factor 16 in its main run); Hilton et
    al. 2021, arXiv 2110.00641, section 3 (batch_size_invariant).
    """
    if num_envs == config.environment.num_envs:
        return config
    counts = {"scaling.num_envs": num_envs, "scaling.size_factor": size_factor}
    faults = [f"{name} must be at least 1: it is {count:,}" for name, count in counts.items() if count < 1]
    if faults:
        raise ConfigError(faults)
    growth = Fraction(num_envs, config.environment.num_envs)
    algorithm = config.algorithm
    if recipe == "fixed_minibatch":
        changed = algorithm
    elif recipe == "fixed_count":
        changed = _with_size(config, growth, num_envs)
    elif recipe == "sqrt_learning_rate":
        changed = _with_rate(_with_size(config, growth, num_envs), growth)
    elif recipe == "hybrid":
        _check_count(config, num_envs, size_factor)
        larger = dataclasses.replace(algorithm, minibatch_size=algorithm.minibatch_size * size_factor)
        changed = _with_rate(larger, Fraction(size_factor))
    elif recipe == "batch_size_invariant":
        changed = _invariant(config, growth, num_envs)
    else:
        raise ConfigError([f"there is no scaling.recipe {recipe!r}"])
    environment = dataclasses.replace(config.environment, num_envs=num_envs)
    scaled = dataclasses.replace(config, environment=environment, algorithm=changed)
    if scaled.environment.num_envs * scaled.shortest_rollout < changed.minibatch_size:
        raise ConfigError(
            [
                f"scaling.num_envs {num_envs:,} leaves less than one minibatch by {recipe}: "
                f"{num_envs * scaled.shortest_rollout:,} samples of algorithm.minibatch_size "
                f"{changed.minibatch_size:,}; the fewest environments are {_fewest(scaled):,}"
            ]
        )
    return scaled


def resolved(config: Config) -> Config:
    """The config as `config.scaling` scales it; doing it twice changes nothing.

    Numbers out of their ranges are left as they are, for the rules to refuse. Raises ConfigError.
    """
    scaling = config.scaling
    numbers = (
        scaling.num_envs,
        scaling.size_factor,
        config.environment.num_envs,
        config.algorithm.minibatch_size,
        config.shortest_rollout,
        config.longest_rollout,
        config.devices.logical_shards,
        config.segment_length,
    )
    if min(numbers) < 1:
        return config
    return scale(config, scaling.num_envs, scaling.recipe, size_factor=scaling.size_factor)


def _with_size(config: Config, factor: Fraction, num_envs: int) -> Any:
    """The algorithm with minibatches `factor` times as large, which the logical shards can share."""
    size, unit = config.algorithm.minibatch_size * factor, config.devices.logical_shards * config.segment_length
    shards = config.devices.logical_shards
    if size.denominator != 1 or size.numerator % unit:
        reason = (
            f"scaling.num_envs {num_envs:,} makes algorithm.minibatch_size {config.algorithm.minibatch_size:,} x "
            f"{float(factor):g} = {float(size):g}, which is no multiple of {unit:,} (devices.logical_shards x segment "
            "length)"
        )
    elif num_envs % shards:
        reason = f"scaling.num_envs must be a multiple of devices.logical_shards: {num_envs:,} is none of {shards:,}"
    else:
        return dataclasses.replace(config.algorithm, minibatch_size=int(size))
    nearest = neighbours(num_envs, multiples_around(num_envs, _step(config, unit)))
    raise ConfigError([f"{reason}; the nearest legal are {' or '.join(nearest)}"])


def _step(config: Config, unit: int) -> int:
    """Numbers of environments which the shards share, and whose growth gives whole units, are multiples of this."""
    size, num_envs = config.algorithm.minibatch_size, config.environment.num_envs
    return math.lcm(config.devices.logical_shards, num_envs * unit // math.gcd(size, num_envs * unit))


def _fewest(config: Config) -> int:
    """Fewest environments, which the shards share, whose shortest batch holds a minibatch, and whole ones only."""
    size, length, step = config.algorithm.minibatch_size, config.shortest_rollout, config.devices.logical_shards
    if not (config.adapts and config.algorithm.adaptive_batch.minibatches == "fixed_size"):
        step = math.lcm(step, size // math.gcd(size, length))
    return -(-size // (length * step)) * step


def _with_rate(algorithm: Any, factor: Fraction) -> Any:
    return dataclasses.replace(algorithm, learning_rate=algorithm.learning_rate * math.sqrt(factor))


def _check_count(config: Config, num_envs: int, size_factor: int) -> None:
    growth = Fraction(num_envs, config.environment.num_envs)
    count = config.num_minibatches * growth / size_factor
    if count.denominator == 1 and count >= 1:
        return
    smallest = Fraction(config.environment.num_envs * size_factor, config.num_minibatches)
    step = math.lcm(config.devices.logical_shards, smallest.numerator)
    nearest = neighbours(num_envs, multiples_around(num_envs, step))
    raise ConfigError(
        [
            f"scaling.recipe hybrid at {num_envs:,} environments makes {config.num_minibatches:,} minibatches x "
            f"{float(growth):g} / scaling.size_factor {size_factor} = {float(count):g}, which is no whole number of at "
            f"least 1; the nearest legal scaling.num_envs are {' or '.join(nearest)}"
        ]
    )


def _invariant(config: Config, growth: Fraction, num_envs: int) -> Any:
    algorithm = config.algorithm
    faults = []
    if algorithm.epochs != 1:
        faults.append(f"scaling.recipe batch_size_invariant needs algorithm.epochs 1: it is {algorithm.epochs}")
    if algorithm.reference.center_of_mass is None:
        faults.append("scaling.recipe batch_size_invariant needs algorithm.reference.center_of_mass: it is none")
    moments = algorithm.advantage_center_of_mass
    if moments is None and algorithm.normalise_advantages:
        faults.append(
            "scaling.recipe batch_size_invariant needs algorithm.advantage_center_of_mass, 0 for the moments of each "
            "batch: it is none, and minibatches would standardise by their own"
        )
    if moments is not None:
        # The effective size of an average with centre of mass c is 2 c + 1 outer steps, and is kept in samples.
        moments = (float((2 * Fraction(moments) + 1) / growth) - 1.0) / 2.0
        if moments < 0.0:
            most = int(config.environment.num_envs * (2 * Fraction(algorithm.advantage_center_of_mass or 0) + 1))
            faults.append(
                f"scaling.num_envs {num_envs:,} leaves algorithm.advantage_center_of_mass less than one outer step; "
                f"the most environments are {most:,}"
            )
    if faults:
        raise ConfigError(faults)
    reference = dataclasses.replace(
        algorithm.reference, center_of_mass=float(Fraction(algorithm.reference.center_of_mass or 0.0) / growth)
    )
    scaled = _with_rate(_with_size(config, growth, num_envs), growth)
    return dataclasses.replace(scaled, reference=reference, advantage_center_of_mass=moments)
