"""What a curriculum must satisfy. No JAX."""

from __future__ import annotations

from collections.abc import Iterator

from purejaxrl_scale.batch_rules import divisors, multiples_around, neighbours
from purejaxrl_scale.config import Config


def broken_curriculum_rules(config: Config) -> list[str]:
    """One sentence for each broken rule."""
    name = config.curriculum.name
    if name == "none":
        return []
    rules = [*_environment(config)]
    if name == "plr" and config.curriculum.new_levels == "episode":
        rules.append(
            "curriculum.new_levels episode goes with curriculum.name uniform and sfl: under plr a rollout is the score "
            "of one level; use outer_step"
        )
    return rules + (list(_search(config)) if name == "sfl" else [])


def _environment(config: Config) -> Iterator[str]:
    environment = config.environment
    if environment.autoreset != "fresh":
        yield (
            f"environment.autoreset is for curriculum.name none: under {config.curriculum.name} an episode that ends "
            f"begins again on its level; it is {environment.autoreset}; leave it at its default fresh"
        )
    if environment.staggered and config.curriculum.new_levels == "outer_step":
        yield (
            "environment.staggered needs episodes that go on from one outer step to the next, and "
            "curriculum.new_levels is outer_step; set it to episode, or staggered to false"
        )
    if config.curriculum.name == "sfl" and not environment.name.startswith("kinetix/"):
        yield (
            "curriculum.name sfl needs an environment that says whether an episode reached its goal, as those of "
            f"kinetix do: {environment.name} does not; use plr or uniform"
        )


def _search(config: Config) -> Iterator[str]:
    options, shards = config.curriculum, config.devices.logical_shards
    if min(options.candidates, options.search_batch, options.buffer_size, shards) < 1:
        return
    if options.buffer_size > options.candidates:
        yield (
            f"curriculum.buffer_size must not exceed curriculum.candidates, of which it keeps the best: "
            f"{options.buffer_size:,} is more than {options.candidates:,}; the nearest legal value is "
            f"{options.candidates:,}"
        )
    if options.candidates % shards:
        legal = neighbours(options.candidates, multiples_around(options.candidates, shards))
        yield (
            f"curriculum.candidates must be a multiple of devices.logical_shards ({shards:,}): it is "
            f"{options.candidates:,}; the nearest legal are {' or '.join(legal)}"
        )
        return
    # Each logical shard plays its part of a batch.
    of_shard = options.candidates // shards
    if options.search_batch % shards or of_shard % max(1, options.search_batch // shards):
        legal = neighbours(options.search_batch, [shards * size for size in divisors(of_shard)])
        yield (
            f"curriculum.search_batch must divide curriculum.candidates ({options.candidates:,}) and be a multiple of "
            f"devices.logical_shards ({shards:,}): it is {options.search_batch:,}; the nearest legal are "
            f"{' or '.join(legal)}"
        )
