"""What a config must satisfy, checked without JAX: every broken rule at once, with its numbers and legal neighbours.

`purejaxrl_scale.config.problems` is the public door. The arithmetic of batches stands in `batch_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from purejaxrl_scale.batch_rules import broken_batch_rules, neighbours
from purejaxrl_scale.config import Config
from purejaxrl_scale.config_io import get
from purejaxrl_scale.curriculum_rules import broken_curriculum_rules
from purejaxrl_scale.environments import catalogue, kinetix_catalogue
from purejaxrl_scale.outer_loop_rules import DIVERGENCE_FIELDS, adaptive_fields, broken_outer_loop_rules, compares
from purejaxrl_scale.ranges import RANGES, WIDTH

_SEEDS = 2**32  # without 64-bit mode JAX cuts a seed to 32 bits, so larger ones would repeat smaller ones


TRANSFORMER_HEADS = (4, 8, 16)


def broken_rules(config: Config) -> list[str]:
    """One sentence for each rule that a config breaks; empty for a legal config."""
    return [
        *_out_of_range(config),
        *_unknown_names(config),
        *_unused_options(config),
        *_unused_changes(config),
        *_misfits(config),
        *broken_batch_rules(config),
        *broken_outer_loop_rules(config),
        *broken_curriculum_rules(config),
    ]


def _out_of_range(config: Config) -> Iterator[str]:
    for name, legal in RANGES.items():
        value = get(config, name)
        fault = None if value is None else legal.fault(name, value)
        if fault:
            yield fault
    for name, widths in (("widths", config.network.widths), ("channels", config.network.channels)):
        yield from filter(None, (WIDTH.fault(f"each of network.{name}", width) for width in widths))
    if len(config.network.channels) != 3:
        yield f"network.channels are of three convolutions: there are {len(config.network.channels)}"
    if config.network.blocks and not config.network.widths:
        yield "network.blocks are of the width of the last hidden layer, and network.widths is empty: give it one"
    last_seed = config.seed + config.seeds - 1
    if last_seed >= _SEEDS:
        yield (
            f"seeds must stay below 2^32: seed {config.seed:,} and {config.seeds:,} seeds reach {last_seed:,}; "
            f"the largest legal seed is {max(0, _SEEDS - config.seeds):,}"
        )
    yield from _processes(config)
    if config.devices.exact_reduction and config.seeds > 1:
        yield (
            f"devices.exact_reduction is for one seed at a time, since vmap orders the sums of a population otherwise: "
            f"seeds is {config.seeds:,}; nearest legal value: 1"
        )
    if not config.run.folder:
        yield "run.folder must name a folder: it is empty; the default is runs"
    if "/" in config.run.name or config.run.name in {".", ".."}:
        yield f"run.name is one folder's name inside run.folder: {config.run.name!r} is a path"


def _processes(config: Config) -> Iterator[str]:
    options = config.devices
    if not options.coordinator:
        if options.processes > 1 or options.process:
            yield (
                f"devices.processes and devices.process need devices.coordinator, where process 0 is found: they are "
                f"{options.processes:,} and {options.process:,}"
            )
        return
    if options.coordinator == "auto":
        if options.processes > 1 or options.process:
            yield "devices.coordinator auto finds devices.processes and devices.process itself: leave both out"
        return
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        yield f"devices.coordinator must be host:port, as in node1:1234, or auto: it is {options.coordinator!r}"
    if options.process >= options.processes:
        yield (
            f"devices.process must be below devices.processes ({options.processes:,}): it is {options.process:,}; the "
            f"last is {options.processes - 1:,}"
        )


def _unknown_names(config: Config) -> Iterator[str]:
    environment = config.environment
    fault = catalogue.name_problem(environment.name)
    if fault:
        yield fault
    elif _suite(config) == "kinetix":
        size = environment.name.partition("/")[2]
        for level in environment.levels:
            fault = kinetix_catalogue.level_problem(level, size)
            if fault:
                yield fault
    elif _suite(config) == "brax":
        fault = catalogue.backend_problem(environment.name, environment.backend)
        if fault:
            yield fault


def _suite(config: Config) -> str:
    return config.environment.name.partition("/")[0]


def _in_suite(suite: str) -> Callable[[Config], bool]:
    return lambda config: _suite(config) == suite


def _is_continuous(config: Config) -> bool:
    entry = catalogue.entry(config.environment.name)
    return config.environment.action == "continuous" if entry is None else entry.action == "continuous"


def _observation_kind(config: Config) -> Literal["entity", "flat", "pixels"]:
    entry = catalogue.entry(config.environment.name)
    if entry is not None:
        return "pixels" if entry.observation == "image" else "flat"
    chosen = config.environment.observation
    return "entity" if chosen == "default" else chosen


# Options that only mean something beside another choice. Set to something else than the default they would be
# ignored without a word, so they are refused where that choice was not made.
_NEEDS: dict[str, tuple[Callable[[Config], bool], str]] = {
    **dict.fromkeys(
        [
            "environment.levels",
            "environment.observation",
            "environment.action",
            "environment.dense_reward_scale",
            "environment.level_filter",
            "environment.num_tasks",
        ],
        (_in_suite("kinetix"), "a kinetix environment"),
    ),
    **dict.fromkeys(
        ["environment.backend", "environment.episode_length", "environment.action_repeat"],
        (_in_suite("brax"), "a brax environment"),
    ),
    "environment.pool_size": (lambda config: config.environment.autoreset == "pool", "environment.autoreset pool"),
    "environment.reward_clip": (
        lambda config: config.environment.reward_normalisation,
        "environment.reward_normalisation",
    ),
    "network.hidden_size": (lambda config: config.network.recurrent, "network.recurrent"),
    "network.segment_length": (lambda config: config.network.recurrent, "network.recurrent"),
    **dict.fromkeys(
        ["network.transformer_layers", "network.transformer_width", "network.transformer_heads"],
        (lambda config: config.network.name == "entity_transformer", "network.name entity_transformer"),
    ),
    **dict.fromkeys(["network.policy", "network.initial_log_std"], (_is_continuous, "continuous actions")),
    "algorithm.warmup_fraction": (
        lambda config: config.algorithm.schedule == "warmup_cosine",
        "algorithm.schedule warmup_cosine",
    ),
    "network.channels": (lambda config: config.network.name == "nature_cnn", "network.name nature_cnn"),
    "network.pre_activation": (lambda config: config.network.blocks > 0, "network.blocks"),
    **dict.fromkeys(
        [
            "network.output_norm",
            "algorithm.exploration_start",
            "algorithm.exploration_end",
            "algorithm.exploration_fraction",
        ],
        (lambda config: config.algorithm.name == "pqn", "algorithm.name pqn"),
    ),
    **dict.fromkeys(
        [
            "network.shared",
            "network.recurrent",
            "algorithm.clip",
            "algorithm.value_clip",
            "algorithm.entropy_coefficient",
            "algorithm.value_coefficient",
            "algorithm.normalise_advantages",
            "algorithm.adam_epsilon",
            "algorithm.objective",
            "algorithm.advantage_center_of_mass",
            "algorithm.reference.center_of_mass",
        ],
        (lambda config: config.algorithm.name == "ppo", "algorithm.name ppo"),
    ),
    "algorithm.kl_coefficient": (
        lambda config: config.algorithm.objective == "kl_penalty",
        "algorithm.objective kl_penalty",
    ),
    "algorithm.reference.debias": (
        lambda config: config.algorithm.reference.center_of_mass is not None,
        "algorithm.reference.center_of_mass",
    ),
    **dict.fromkeys(adaptive_fields(), (lambda config: config.adapts, "algorithm.adaptive_batch.driver")),
    **dict.fromkeys(DIVERGENCE_FIELDS, (compares, "algorithm.adaptive_batch.driver behavioural_divergence or kl")),
    "monitors.samples": (
        lambda config: config.monitors.kl or config.monitors.behavioural_divergence,
        "monitors.kl or monitors.behavioural_divergence",
    ),
    **dict.fromkeys(
        ["algorithm.adaptive_batch.epochs_length", "algorithm.adaptive_batch.minimum_epochs"],
        (
            lambda config: config.adapts and config.algorithm.adaptive_batch.epochs == "proportional",
            "algorithm.adaptive_batch.driver and epochs proportional",
        ),
    ),
    "curriculum.new_levels": (lambda config: config.curriculum.name != "none", "curriculum.name"),
    **dict.fromkeys(
        ["curriculum.share", "curriculum.buffer_size"],
        (lambda config: config.curriculum.name in {"sfl", "plr"}, "curriculum.name sfl or plr"),
    ),
    **dict.fromkeys(
        [f"curriculum.{name}" for name in ("candidates", "search_length", "search_batch", "every", "online")],
        (lambda config: config.curriculum.name == "sfl", "curriculum.name sfl"),
    ),
    **dict.fromkeys(
        ["curriculum.temperature", "curriculum.staleness"],
        (lambda config: config.curriculum.name == "plr", "curriculum.name plr"),
    ),
    "scaling.recipe": (lambda config: config.scaling.num_envs != 0, "scaling.num_envs"),
    "scaling.size_factor": (lambda config: config.scaling.recipe == "hybrid", "scaling.recipe hybrid"),
}


def _unused_options(config: Config) -> Iterator[str]:
    known_environment = catalogue.name_problem(config.environment.name) is None
    default = Config()
    for name, (is_met, need) in _NEEDS.items():
        asks_environment = name.startswith("environment.") or is_met is _is_continuous
        if (known_environment or not asks_environment) and get(config, name) != get(default, name):
            if not is_met(config):
                yield (
                    f"{name} needs {need}, and would be ignored with {_circumstance(config, name)}: it is "
                    f"{get(config, name)!r}; leave it at its default {get(default, name)!r}"
                )


def _unused_changes(config: Config) -> Iterator[str]:
    for name in dict.fromkeys(text.partition("=")[0].strip().replace("-", "_") for text in config.changes):
        is_met, need = _NEEDS.get(name, (lambda _: True, ""))
        if not is_met(config):
            yield f"changes: {name} needs {need}, and would be ignored with {_circumstance(config, name)}"


def _circumstance(config: Config, name: str) -> str:
    algorithm = config.algorithm
    group, _, last = name.rpartition(".")
    if name == "algorithm.warmup_fraction":
        return f"algorithm.schedule {algorithm.schedule}"
    if name.startswith("network.transformer") or name == "network.channels":
        return f"network.name {config.network.name}"
    if name in {"network.hidden_size", "network.segment_length"}:
        return "a feed-forward network"
    if group == "environment":
        return {
            "pool_size": f"environment.autoreset {config.environment.autoreset}",
            "reward_clip": "rewards that are not normalised",
        }.get(last, config.environment.name)
    if name == "network.initial_log_std" or (name == "network.policy" and algorithm.name == "ppo"):
        return config.environment.name
    if name == "network.pre_activation":
        return "network.blocks 0"
    if name == "algorithm.kl_coefficient":
        return f"algorithm.objective {algorithm.objective}"
    if group == "algorithm.adaptive_batch":
        if name in DIVERGENCE_FIELDS and config.adapts:
            return f"driver {algorithm.adaptive_batch.driver}"
        return "epochs fixed" if config.adapts else "rollouts of one length"
    if group == "monitors":
        return "both of them off"
    if name == "algorithm.reference.debias":
        return "the behaviour policy as its own reference"
    if group == "curriculum":
        return f"curriculum.name {config.curriculum.name}"
    if group == "scaling":
        return f"scaling.recipe {config.scaling.recipe}" if last == "size_factor" else "scaling.num_envs 0"
    return f"algorithm.name {algorithm.name}"


def _misfits(config: Config) -> Iterator[str]:
    environment, network = config.environment, config.network
    if network.name == "entity_transformer" and network.transformer_heads not in TRANSFORMER_HEADS:
        nearest = neighbours(network.transformer_heads, TRANSFORMER_HEADS)
        yield (
            f"network.transformer_heads must be one of {TRANSFORMER_HEADS}, four kinds of mask on 16 features: "
            f"it is {network.transformer_heads}; the nearest are {' or '.join(nearest)}"
        )
    if environment.levels and environment.num_tasks:
        yield (
            f"environment.levels and environment.num_tasks exclude each other: there are {len(environment.levels)} "
            f"named levels and {environment.num_tasks} random tasks; set num_tasks to 0 or leave levels empty"
        )
    yield from _pqn(config)
    if config.network.recurrent and config.algorithm.shuffle == "permutation":
        yield (
            "algorithm.shuffle permutation tears the segments of network.recurrent apart: the textbook shuffle is of "
            "single steps; use feistel"
        )
    if catalogue.name_problem(environment.name) is not None:
        return
    filtered = _suite(config) == "kinetix" and environment.name != "kinetix/locomotion" and not environment.levels
    if not environment.level_filter and _suite(config) == "kinetix" and not filtered:
        source = "environment.levels" if environment.levels else "the morphologies of kinetix/locomotion"
        yield (
            "environment.level_filter concerns random levels of kinetix/s, /m and /l, and would be ignored with "
            f"{source}: it is False; leave it at its default True"
        )
    if config.algorithm.adaptive_batch.driver == "behavioural_divergence" and _is_continuous(config):
        yield (
            "algorithm.adaptive_batch.driver behavioural_divergence needs discrete actions: those of "
            f"{environment.name} are continuous, and nearly every update moves all of them; use kl"
        )
    kind = _observation_kind(config)
    if network.name in {"entity_transformer", "entity_controls"} and kind != "entity":
        yield (
            f"network.name {network.name} needs the entity observation of a kinetix environment: "
            f"{environment.name} gives {_described(kind)}; use {_fitting_network(kind)}"
        )
    if network.name == "entity_controls":
        yield from _controls(config, kind)
    if network.name == "mlp" and kind == "entity":
        yield (
            f"network.name mlp needs a vector: {environment.name} gives entities; "
            "set environment.observation flat, or network.name entity_transformer or entity_controls"
        )
    if network.name in {"minatar_cnn", "nature_cnn", "impala_cnn"} and kind != "pixels":
        other = ", or environment.observation pixels" if _suite(config) == "kinetix" else ""
        yield (
            f"network.name {network.name} needs an image: {environment.name} gives {_described(kind)}; "
            f"use {_fitting_network(kind)}{other}"
        )
    if environment.observation_normalisation and kind != "flat":
        yield (
            f"environment.observation_normalisation needs a vector: {environment.name} gives {_described(kind)}; "
            "leave it off"
        )


def _controls(config: Config, kind: str) -> Iterator[str]:
    if config.network.recurrent:
        yield (
            "network.name entity_controls gives each control its own logits, and network.recurrent would mix them: "
            "use entity_transformer"
        )
    if not config.network.widths:
        yield "network.name entity_controls has features of the width of its last hidden layer: network.widths is empty"
    if kind == "entity" and config.environment.action not in ("default", "multi_discrete"):
        yield (
            "network.name entity_controls chooses for each motor and each thruster: environment.action is "
            f"{config.environment.action}; use multi_discrete, or network.name entity_transformer"
        )


def _pqn(config: Config) -> Iterator[str]:
    if config.algorithm.name != "pqn" or catalogue.name_problem(config.environment.name) is not None:
        return
    entry = catalogue.entry(config.environment.name)
    chosen = config.environment.action
    action = entry.action if entry is not None else "multi_discrete" if chosen == "default" else chosen
    if action != "discrete":
        remedy = "set environment.action discrete" if _suite(config) == "kinetix" else "use algorithm.name ppo"
        yield (
            f"algorithm.name pqn has one value for each action of a single choice, and the actions of "
            f"{config.environment.name} are {action.replace('_', '-')}; {remedy}"
        )


def _described(kind: str) -> str:
    return {"entity": "entities", "flat": "a vector", "pixels": "an image"}[kind]


def _fitting_network(kind: str) -> str:
    return {
        "entity": "entity_transformer or entity_controls",
        "flat": "mlp",
        "pixels": "minatar_cnn, nature_cnn, impala_cnn or mlp",
    }[kind]
