"""What the outer loop's fields must satisfy: adaptive lengths, moments, exploration, and changes during the run."""

from __future__ import annotations

from collections.abc import Iterator

from purejaxrl_scale import changes
from purejaxrl_scale.batch_rules import divisors, multiples_around, neighbours
from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import fields, get
from purejaxrl_scale.ranges import RANGES

DIVERGENCE_FIELDS = [
    f"algorithm.adaptive_batch.{name}" for name in ("low", "high", "window", "burn_in", "samples", "span")
]


def compares(config: Config) -> bool:
    """Whether the rollout length follows a divergence between policies."""
    return config.algorithm.adaptive_batch.driver in {"behavioural_divergence", "kl"}


def broken_outer_loop_rules(config: Config) -> list[str]:
    """One sentence for each broken rule."""
    rules = [*_changes(config), *_moments(config), *_exploration(config)]
    return rules + (list(_adaptive(config)) if config.adapts else [])


def _changes(config: Config) -> Iterator[str]:
    for text in config.changes:
        try:
            change = changes.parse(text)
        except ValueError as fault:
            yield str(fault)
            continue
        fault = RANGES[change.field].fault(f"changes: {change.field}", change.value)
        if fault:
            yield fault
        if get(config, change.field) is None:
            yield (
                f"changes: {change.field} is none at the start, and a number would be another program; start it at a "
                "number, or change it in a second run that starts with what this one has learnt: run.start_from"
            )
        if not 0 <= change.at < config.total_steps:
            yield (
                f"changes: {change.field} changes at {change.at:,} steps, and the run has {config.total_steps:,}; "
                f"the nearest legal are 0 or {max(0, config.total_steps - 1):,}"
            )


def _moments(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.advantage_center_of_mass is not None and not algorithm.normalise_advantages:
        yield (
            "algorithm.advantage_center_of_mass needs algorithm.normalise_advantages, and would be ignored without: it "
            f"is {algorithm.advantage_center_of_mass:g}; leave it at none"
        )


def _exploration(config: Config) -> Iterator[str]:
    start, end = config.algorithm.exploration_start, config.algorithm.exploration_end
    if end > start:
        yield f"algorithm.exploration_end must not exceed exploration_start: {end:g} is more than {start:g}"


def _adaptive(config: Config) -> Iterator[str]:
    options, length = config.algorithm.adaptive_batch, config.algorithm.rollout_length
    prefix = "algorithm.adaptive_batch"
    if options.minimum > options.maximum:
        yield (
            f"{prefix}.minimum must not exceed {prefix}.maximum: {options.minimum:,} is more than {options.maximum:,}"
        )
    if options.maximum > length:
        yield (
            f"{prefix}.maximum must not exceed algorithm.rollout_length, which the buffers hold: {options.maximum:,} "
            f"is more than {length:,}; the nearest legal value is {length:,}"
        )
    if options.driver in {"behavioural_divergence", "kl"}:
        if options.low >= options.high:
            yield f"{prefix}.low must be less than {prefix}.high: {options.low:g} is not less than {options.high:g}"
        if options.burn_in > options.window >= 1:
            yield (
                f"{prefix}.burn_in must not exceed {prefix}.window: {options.burn_in} is more than {options.window}; "
                f"the nearest legal value is {options.window}"
            )
    if options.driver == "noise_scale":
        yield from _noise_scale(config)
    if options.driver == "kl" and config.algorithm.name != "ppo":
        yield f"{prefix}.driver kl needs algorithm.name ppo; {config.algorithm.name} goes with behavioural_divergence"
    if config.algorithm.shuffle == "permutation":
        yield f"algorithm.shuffle permutation needs rollouts of one length; use feistel, or {prefix}.driver none"
    yield from _lengths(config)


def _noise_scale(config: Config) -> Iterator[str]:
    """The driver compares microbatches, so that the smallest minibatch must be two of them at least."""
    algorithm, unit = config.algorithm, config.devices.logical_shards * config.segment_length
    driver = "algorithm.adaptive_batch.driver noise_scale needs"
    if not config.monitors.noise_scale:
        yield f"{driver} monitors.noise_scale: it is off"
    if algorithm.minibatch_size < 2 * unit:
        yield (
            f"{driver} minibatches of two microbatches: algorithm.minibatch_size is {algorithm.minibatch_size:,}; the "
            f"nearest legal value is {2 * unit:,}"
        )
    elif algorithm.microbatch_size > algorithm.minibatch_size // 2:
        yield (
            f"{driver} minibatches of two microbatches: algorithm.microbatch_size is {algorithm.microbatch_size:,} and "
            f"algorithm.minibatch_size {algorithm.minibatch_size:,}; the nearest legal microbatch_size is "
            f"{algorithm.minibatch_size // 2 // unit * unit:,}"
        )


def _lengths(config: Config) -> Iterator[str]:
    options = config.algorithm.adaptive_batch
    prefix = "algorithm.adaptive_batch"
    named = {"minimum": options.minimum, "maximum": options.maximum}
    if options.multiple < 1:
        return
    for name, value in named.items():
        if value % options.multiple:
            most = config.algorithm.rollout_length
            legal = neighbours(value, [one for one in multiples_around(value, options.multiple) if one <= most])
            nearest = f"; nearest legal: {' or '.join(legal)}" if legal else ""
            yield (
                f"{prefix}.{name} must be a multiple of {prefix}.multiple: {value:,} is not one of "
                f"{options.multiple:,}{nearest}"
            )
    if not config.network.recurrent:
        return
    segment = config.network.segment_length
    if segment == 0:
        if options.minimum == options.maximum == config.algorithm.rollout_length:
            return
        yield (
            "network.segment_length must be set where the rollout length adapts, since gradients reach back a fixed "
            f"number of steps: it is 0; {prefix}.multiple is {options.multiple:,}"
        )
    elif segment > 0 and options.multiple % segment:
        legal = neighbours(segment, divisors(options.multiple))
        yield (
            f"network.segment_length must divide every length: {segment} does not divide {prefix}.multiple "
            f"{options.multiple:,}; nearest legal: {' or '.join(legal)}"
        )


def adaptive_fields() -> list[str]:
    """The fields that mean nothing at one rollout length, those apart that a divergence needs."""
    prefix = "algorithm.adaptive_batch."
    return [
        name for name in fields() if name.startswith(prefix) and name not in {f"{prefix}driver", *DIVERGENCE_FIELDS}
    ]
