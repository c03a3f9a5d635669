"""The arithmetic of batches: how environments, rollouts, minibatches, segments, shards and devices must divide.

N environments x T steps are cut into minibatches of M samples. Samples are shuffled within S logical shards, so each
shard gives M / S samples to every minibatch; recurrent networks shuffle whole segments of L steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from purejaxrl_scale.config import Config

_INDEX_LIMIT = 2**31  # sample indices are int32


def broken_batch_rules(config: Config) -> list[str]:
    """One sentence for each broken rule. Numbers out of their ranges are left to those: nothing divides by 0, and the
    search for legal neighbours of a number beyond 2³¹ would not end in time."""
    numbers = (
        config.environment.num_envs,
        config.shortest_rollout,
        config.longest_rollout,
        config.algorithm.rollout_length,
        config.algorithm.minibatch_size,
        config.devices.logical_shards,
        config.segment_length,
    )
    if min(numbers) < 1 or max(numbers) >= _INDEX_LIMIT:
        return []
    of_lengths = (_adaptive_minibatches,) if config.adapts else (_segments, _minibatches)
    rules = (_devices, _environments, _blocks, *of_lengths, _single_samples, _microbatches, _indices)
    return [fault for rule in rules for fault in rule(config)]


def _devices(config: Config) -> Iterator[str]:
    count, shards = config.devices.count, config.devices.logical_shards
    if count > 0 and shards % count:
        legal = neighbours(count, divisors(shards))
        yield (
            f"devices.count must divide devices.logical_shards: {count} does not divide {shards}; "
            f"nearest legal count: {_or(legal)}"
        )


def _blocks(config: Config) -> Iterator[str]:
    block, shards, num_envs = config.environment.block_size, config.devices.logical_shards, config.environment.num_envs
    if block > 0 and num_envs % shards == 0 and num_envs // shards % block:
        legal = neighbours(block, divisors(num_envs // shards))
        yield (
            f"environment.block_size must divide the environments of a logical shard: {block:,} does not divide "
            f"{num_envs // shards:,}; nearest legal: {_or(legal)}"
        )


def _segments(config: Config) -> Iterator[str]:
    length, segment = config.algorithm.rollout_length, config.segment_length
    if length % segment:
        legal_segments = neighbours(segment, divisors(length))
        legal_lengths = neighbours(length, multiples_around(length, segment))
        yield (
            f"network.segment_length must divide algorithm.rollout_length: {segment} does not divide {length}; "
            f"nearest legal segment_length: {_or(legal_segments)}, rollout_length: {_or(legal_lengths)}"
        )


def _microbatches(config: Config) -> Iterator[str]:
    size, unit = config.algorithm.microbatch_size, config.devices.logical_shards * _legal_segment(config)
    if size % unit:
        yield (
            f"algorithm.microbatch_size must be a multiple of devices.logical_shards x the segment length: {size:,} is "
            f"not a multiple of {unit:,}; nearest legal microbatch_size: "
            f"{_or(neighbours(size, multiples_around(size, unit)))}"
        )


def _environments(config: Config) -> Iterator[str]:
    num_envs, shards = config.environment.num_envs, config.devices.logical_shards
    if num_envs % shards:
        yield (
            f"environment.num_envs must be a multiple of devices.logical_shards: {num_envs:,} is not a multiple of "
            f"{shards}; nearest legal num_envs: {_or(_legal_num_envs(config))}, "
            f"logical_shards: {_or(neighbours(shards, divisors(num_envs)))}"
        )


def _minibatches(config: Config) -> Iterator[str]:
    num_envs, length = config.environment.num_envs, config.algorithm.rollout_length
    size, shards, segment = config.algorithm.minibatch_size, config.devices.logical_shards, _legal_segment(config)
    batch, unit = config.batch_size, shards * segment
    shape = f"environment.num_envs {num_envs:,} x algorithm.rollout_length {length:,} = {batch:,} samples"
    legal = _legal_minibatch_sizes(config)
    sizes = f"nearest legal minibatch_size: {_or(legal)}" if legal else "no minibatch_size is legal with these numbers"
    if size % unit:
        by = "devices.logical_shards" if segment == 1 else "devices.logical_shards x network.segment_length"
        numbers = f"{shards}" if segment == 1 else f"{shards} x {segment} = {unit:,}"
        yield f"algorithm.minibatch_size must be a multiple of {by}: {size:,} is not a multiple of {numbers}; {sizes}"
    if size > batch:
        yield f"algorithm.minibatch_size must not exceed the batch: {size:,} is more than {shape}; {sizes}"
    elif batch % size:
        yield (
            f"algorithm.minibatch_size must divide the batch: {size:,} does not divide {shape}; "
            f"nearest legal num_envs: {_or(_legal_num_envs(config))}, or {sizes}"
        )


def _adaptive_minibatches(config: Config) -> Iterator[str]:
    """The shortest rollout must fill a minibatch; which longer ones need not divide."""
    num_envs, length, size = config.environment.num_envs, config.shortest_rollout, config.algorithm.minibatch_size
    samples, unit = num_envs * length, config.devices.logical_shards * _legal_segment(config)
    shape = f"environment.num_envs {num_envs:,} x algorithm.adaptive_batch.minimum {length:,} = {samples:,} samples"
    legal = (unit * divisor for divisor in divisors(samples // unit)) if samples % unit == 0 else ()
    sizes = neighbours(size, (one for one in legal if one >= _fewest_samples(config)))
    advice = f"nearest legal minibatch_size: {_or(sizes)}" if sizes else "no minibatch_size is legal with these numbers"
    if size % unit:
        yield (
            f"algorithm.minibatch_size must be a multiple of devices.logical_shards x the segment length: {size:,} is "
            f"not a multiple of {unit:,}; {advice}"
        )
    if size > samples:
        yield f"algorithm.minibatch_size must not exceed the shortest batch: {size:,} is more than {shape}; {advice}"
    elif config.algorithm.adaptive_batch.minibatches == "fixed_count" and samples % size:
        yield f"algorithm.minibatch_size must divide the shortest batch: {size:,} does not divide {shape}; {advice}"


def _single_samples(config: Config) -> Iterator[str]:
    if config.algorithm.minibatch_size < _fewest_samples(config):
        yield (
            "algorithm.normalise_advantages needs at least 2 samples in a minibatch: algorithm.minibatch_size is 1; "
            "the nearest legal value is 2"
        )


def _fewest_samples(config: Config) -> int:
    return 2 if config.algorithm.name == "ppo" and config.algorithm.normalise_advantages else 1


def _indices(config: Config) -> Iterator[str]:
    num_envs, length, shards = (
        config.environment.num_envs,
        config.longest_rollout,
        config.devices.logical_shards,
    )
    if num_envs * length >= _INDEX_LIMIT:
        most = _INDEX_LIMIT - 1
        name_of_length = "adaptive_batch.maximum" if config.adapts else "rollout_length"
        largest = {name_of_length: most // num_envs, "num_envs": most // length // shards * shards}
        yield (
            f"a batch must have fewer than 2^31 samples, as indices are int32: environment.num_envs {num_envs:,} x "
            f"algorithm.{name_of_length} {length:,} = {num_envs * length:,}; the largest legal: "
            f"{_or([f'{name} {value:,}' for name, value in largest.items() if value >= 1])}"
        )


def _legal_num_envs(config: Config) -> list[str]:
    """Numbers of environments on both sides that satisfy every rule at once, the other numbers kept."""
    size, length = config.algorithm.minibatch_size, config.algorithm.rollout_length
    step = math.lcm(config.devices.logical_shards, size // math.gcd(size, length))
    return neighbours(config.environment.num_envs, multiples_around(config.environment.num_envs, step))


def _legal_minibatch_sizes(config: Config) -> list[str]:
    """Minibatch sizes on both sides that satisfy every rule at once, the other numbers kept."""
    unit = config.devices.logical_shards * _legal_segment(config)
    if config.batch_size % unit:
        return []
    sizes = (unit * divisor for divisor in divisors(config.batch_size // unit))
    return neighbours(config.algorithm.minibatch_size, (size for size in sizes if size >= _fewest_samples(config)))


def _legal_segment(config: Config) -> int:
    """The segment length; 1 for an illegal one, which is refused on its own and should not taint other advice."""
    segment = config.segment_length
    return segment if config.shortest_rollout % segment == 0 else 1


def divisors(number: int) -> Iterator[int]:
    """All divisors of a number >= 1, in no order."""
    for divisor in range(1, math.isqrt(number) + 1):
        if number % divisor == 0:
            yield divisor
            yield number // divisor


def multiples_around(value: int, step: int) -> list[int]:
    """The nearest positive multiples of a step on both sides of a value."""
    below = value // step * step
    return [multiple for multiple in (below, below + step) if multiple >= 1]


def neighbours(value: int, legal: Iterable[int]) -> list[str]:
    """The nearest legal values on both sides of a value, as text."""
    candidates = set(legal)
    below = max((candidate for candidate in candidates if candidate <= value), default=None)
    above = min((candidate for candidate in candidates if candidate >= value), default=None)
    return [f"{candidate:,}" for candidate in dict.fromkeys((below, above)) if candidate is not None]


def _or(values: list[str]) -> str:
    return " or ".join(values)
