"""Which torso reads which observation."""

from __future__ import annotations

from flax import linen as nn

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import Box, PyTree
from purejaxrl_scale.networks.convolutional import ImpalaCNN, MinAtarCNN, NatureCNN
from purejaxrl_scale.networks.entity_controls import EntityControls
from purejaxrl_scale.networks.entity_transformer import ENTITY_FIELDS, MASK_KINDS, EntityTransformer
from purejaxrl_scale.networks.mlp import MLPTorso


def torso(config: NetworkConfig, name: str) -> nn.Module:
    """What turns N observations into features [N, d]; its parameters stand under `name`."""
    if config.name == "mlp":
        return MLPTorso(config, name=name)
    if config.name == "minatar_cnn":
        return MinAtarCNN(config.compute_dtype, config.layer_norm, name=name)
    if config.name == "nature_cnn":
        return NatureCNN(config.channels, config.compute_dtype, config.layer_norm, name=name)
    if config.name == "impala_cnn":
        return ImpalaCNN(dtype=config.compute_dtype, name=name)
    if config.name == "entity_controls":
        return EntityControls(config, name=name)
    return EntityTransformer(
        config.transformer_layers,
        config.transformer_width,
        config.transformer_heads,
        config.activation,
        dtype=config.compute_dtype,
        name=name,
    )


def check_torso(config: NetworkConfig, observation_space: PyTree) -> None:
    """Raises ValueError where a torso cannot read such observations."""
    is_box = isinstance(observation_space, Box)
    if not is_box and not isinstance(observation_space, dict):
        raise ValueError(
            f"no network reads the observation space {observation_space}; known are Box and dicts of Boxes"
        )
    ranks = [len(box.shape) for box in ([observation_space] if is_box else observation_space.values())]
    entities = not is_box and "attention_mask" in observation_space
    if config.name == "mlp" and entities:
        raise ValueError(
            "network.name mlp has no use for the order-free entity observation; "
            "use environment.observation flat, or network.name entity_transformer or entity_controls"
        )
    if config.name in ("minatar_cnn", "nature_cnn", "impala_cnn") and (entities or ranks.count(3) != 1):
        raise ValueError(
            f"network.name {config.name} needs one image [height, width, channels] in the observation, "
            f"and this environment's has {_describe(observation_space)}; "
            f"use {'entity_transformer' if entities else 'mlp'}"
        )
    if config.name in ("minatar_cnn", "nature_cnn"):
        _check_board(config.name, observation_space)
    if config.blocks and not config.widths:
        raise ValueError("network.blocks are of the width of the last hidden layer, and network.widths is empty")
    if config.name in ("entity_transformer", "entity_controls"):
        _check_entities(config, observation_space)


def _check_board(name: str, observation_space: Box | dict[str, Box]) -> None:
    boxes = [observation_space] if isinstance(observation_space, Box) else observation_space.values()
    height, width, _ = next(box.shape for box in boxes if len(box.shape) == 3)
    if name == "minatar_cnn" and min(height, width) < 3:
        raise ValueError(f"network.name minatar_cnn has a 3x3 convolution, and the image is {height}x{width}; use mlp")
    if name == "nature_cnn" and min(height, width) < 36:
        raise ValueError(
            f"network.name nature_cnn needs an image of 36x36 or more, and this one is {height}x{width}; "
            "use minatar_cnn or mlp"
        )


def _check_entities(config: NetworkConfig, observation_space: Box | dict[str, Box]) -> None:
    missing = [name for name in ENTITY_FIELDS if isinstance(observation_space, Box) or name not in observation_space]
    if missing:
        raise ValueError(
            f"network.name {config.name} needs Kinetix's entity observation, and {', '.join(missing)} "
            "are not in this one; use environment.observation entity in kinetix, or network.name mlp"
        )
    if config.name == "entity_controls":
        if not config.widths:
            raise ValueError(
                "network.name entity_controls needs at least one hidden layer, and network.widths is empty"
            )
        return
    legal = [
        heads
        for heads in range(MASK_KINDS, EntityTransformer.qkv_features + 1, MASK_KINDS)
        if EntityTransformer.qkv_features % heads == 0
    ]
    if config.transformer_heads not in legal:
        nearest = min(legal, key=lambda heads: abs(heads - config.transformer_heads))
        raise ValueError(
            f"network.transformer_heads is {config.transformer_heads}: the heads are shared out over {MASK_KINDS} "
            f"kinds of mask and share {EntityTransformer.qkv_features} features; use {nearest}"
        )


def _describe(observation_space: Box | dict[str, Box]) -> str:
    if isinstance(observation_space, Box):
        return f"shape {observation_space.shape}"
    return ", ".join(f"{name} {box.shape}" for name, box in observation_space.items())
