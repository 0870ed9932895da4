"""Public names of the previous version, which still work and warn.

`RENAMED` maps a former name to the present one. `FORMER_NAMES` maps a name without a direct
successor to a function that builds the same layer, and to the text of what to write instead.
"""

import warnings
from typing import Any

import numpy as np

from numformer.later import TiledAttention
from numformer.layer import Layer
from numformer.models import TowerConfig
from numformer.paper import Memory, Places, Reach

RENAMED: dict[str, str] = {
    "Everything": "FullPattern",
    "Special": "SpecialIds",
    "Text": "TextPipeline",
}

SETTINGS = {"bias": "attention_bias", "p_drop": "attention_dropout"}


def _mixer(name: str):
    def build(
        d_model: int, heads: int, rng: np.random.Generator, both_ways: bool = True, **settings: Any
    ) -> Layer:
        settings = {SETTINGS.get(setting, setting): value for setting, value in settings.items()}
        config = TowerConfig(d_model=d_model, heads=heads, mixers=(name,), **settings)
        return config.self_attention(rng, causal=not both_ways)

    return build


def _stack(config: Any, rng: np.random.Generator, cross: bool = False, causal: bool = False):
    return config.decoder(rng) if cross else config.encoder(rng, causal)


def _layer(
    config: Any,
    rng: np.random.Generator,
    cross: bool = False,
    causal: bool = False,
    layer: int = 0,
):
    return config.decoder_layer(rng, layer) if cross else config.encoder_layer(rng, layer, causal)


def _tiled_attention(p_drop: float = 0.0, rows: int = 128) -> Layer:
    return TiledAttention(p_drop=p_drop, rows=rows, least=0)


FORMER_NAMES: dict[str, tuple[Any, str]] = {
    "Tower": (_stack, "config.encoder(rng) or config.decoder(rng)"),
    "Block": (_layer, "config.encoder_layer(rng) or config.decoder_layer(rng)"),
    "BlockAttention": (_tiled_attention, "TiledAttention(least=0)"),
} | {
    former: (_mixer(mixer), f'TowerConfig(mixers="{mixer}").self_attention(rng)')
    for former, mixer in {
        "GroupedQueryAttention": "attention",
        "WindowAttention": "window",
        "GlobalWindowAttention": "global_window",
        "StridedAttention": "strided",
        "RelativeAttention": "relative",
    }.items()
}

FORMER_METHODS: dict[tuple[type, str], str] = {
    (Places, "whole"): "without_padding",
    (Reach, "dense"): "mask",
    (Memory, "of"): "state",
}


class FormerMethod:
    """A method under its former name; using it warns."""

    def __init__(self, name: str, replacement: str):
        self.name, self.replacement = name, replacement

    def __get__(self, instance: Any, owner: type) -> Any:
        message = f"{owner.__name__}.{self.name} is now {owner.__name__}.{self.replacement}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(owner if instance is None else instance, self.replacement)


def add_former_methods() -> None:
    """Let classes keep their methods under the former names, too."""
    for (owner, name), replacement in FORMER_METHODS.items():
        setattr(owner, name, FormerMethod(name, replacement))
