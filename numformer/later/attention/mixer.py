"""Attention as the mixers of a config: each is a pattern, with a bias on its scores or without."""

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any

import numpy as np

from numformer import later, settings
from numformer.errors import InputError
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.heads import QueryKeyHeads
from numformer.later.attention.patterns import Everything
from numformer.later.attention.rotary import Rotary, require_pairs
from numformer.later.attention.tiles import TiledAttention
from numformer.layer import Layer
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.linear import Linear

# What each head computes; of a class of one's own it is attention(p_drop).
ATTENTIONS: dict[str, Callable[..., Layer]] = {
    "scaled_dot_product": ScaledDotProductAttention,
    "tiled": TiledAttention,
}
# What makes the parts of self-attention by which positions come in there, of a config.
# Cross-attention looks at another sequence: with rotary positions alone it does not know where in it
# something is.
POSITIONS_IN_ATTENTION: dict[str, Callable[[Any], dict]] = {
    "rotary": lambda config: {"rotary": Rotary(config.rotary_base)},
    "sinusoidal_rotary": lambda config: {"rotary": Rotary(config.rotary_base)},
    "alibi": lambda config: {"bias": ALiBi(config.heads)},
}


class AttentionMixer:
    """Self-attention of a `pattern` as an entry of MIXERS, with a `bias` of its own or without.

    Both are classes with Settings: what they are made of, besides the number of heads and, for the
    bias, whether it looks both ways.
    """

    looks_ahead = True

    def __init__(self, pattern: type[Everything] = Everything, bias: Any = None):
        self.pattern, self.bias, self.sees_near = pattern, bias, pattern.sees_near
        self.Settings = pattern.Settings
        if bias:
            kinds = tuple(dict.fromkeys((bias.Settings, pattern.Settings)))
            self.Settings = make_dataclass("Settings", [], bases=kinds, frozen=True, kw_only=True)

    def own_settings(self, config) -> dict:
        """Its own settings in a config, by name; the defaults where it has none."""
        return settings_in(config, self.Settings)

    def require(self, config) -> None:
        """Raise InputError for a config with which there is no such attention."""
        require_groups(config.heads, config.key_value_heads)
        self._pattern(config).require(config.heads)
        if "rotary" in config.positions:
            require_pairs(config.sizes[0])
        if self.bias:
            self._bias(config, causal=True)

    def build(self, config, rng: np.random.Generator, causal: bool) -> Layer:
        """The self-attention of a config; a `causal` one is to see nothing later."""
        positions = POSITIONS_IN_ATTENTION.get(config.positions, lambda config: {})(config)
        biases = [self._bias(config, causal)] if self.bias else []
        if "bias" in positions:
            biases.append(positions["bias"])
        bias = Biases(*biases) if len(biases) > 1 else next(iter(biases), None)
        groups, pattern = config.key_value_heads or config.heads, self._pattern(config)
        return SelfAttention(
            config.d_model,
            config.heads,
            rng,
            *config.sizes,
            **projections(config, rng, groups, positions.get("rotary")),
            attention=attention_of(config, pattern, bias),
            remembers=pattern.remembers,
        )

    def entries(self, config) -> int:
        """The entries of the matrices of such an attention."""
        return entries(config, config.key_value_heads or config.heads)

    def share(self, layer: Any, first: Any) -> None:
        """Give a layer those parameters of the stack's first such layer that all share."""
        parts = zip(layer.layers_within(), first.layers_within(), strict=True)
        for part, of_first in parts:
            if hasattr(part, "share"):
                part.share(of_first)

    def _pattern(self, config) -> Everything:
        return self.pattern(**settings_in(config, self.pattern.Settings))

    def _bias(self, config, causal: bool) -> Layer:
        own = settings_in(config, self.bias.Settings)
        return self.bias(config.heads, both_ways=not causal, **own)


class Biases(Layer):
    """Positions of queries (T,) and keys (S,) -> (H, T, S): the sum of several biases."""

    def __init__(self, *parts: Layer):
        self.parts = parts

    def forward(self, *positions: Any) -> Any:
        first, *others = (part.forward(*positions) for part in self.parts)
        return sum(others, first)

    def backward(self, dbias: Any) -> None:
        for part in reversed(self.parts):
            part.backward(dbias)


def build_cross(config, rng: np.random.Generator) -> CrossAttention:
    """The cross-attention of a config: it has no pattern, and as many heads of keys as of queries.

    A memory is another sequence: how far its positions are from those of x says nothing.
    """
    attention = attention_of(config, Everything(), None, grouped=False)
    parts = projections(config, rng, config.heads, None)
    return CrossAttention(
        config.d_model, config.heads, rng, *config.sizes, attention=attention, **parts
    )


def projections(config, rng: np.random.Generator, groups: int, rotary: Layer | None) -> dict:
    """The four matrices of an attention with so many heads of keys and values."""
    (d_k, d_v), bias = config.sizes, config.attention_bias

    def heads(count: int) -> Heads:
        sizes = config.d_model, count, d_k, rng, bias
        if config.qk_norm == "none" and not rotary:
            return Heads(*sizes)
        norm = None
        if config.qk_norm != "none":
            norm = later.NORMALIZATIONS[config.qk_norm](d_k, config.epsilon)
        return QueryKeyHeads(*sizes, norm=norm, rotary=rotary)

    return dict(
        query=heads(config.heads),
        key=heads(groups),
        value=Heads(config.d_model, groups, d_v, rng, bias),
        output=Linear(config.heads * d_v, config.d_model, rng, bias),
    )


def attention_of(config, pattern: Everything, bias: Layer | None, grouped: bool = True) -> Layer:
    """What each head computes. What the paper's attention lacks is TiledAttention's."""
    function, p_drop = ATTENTIONS[config.attention_function], config.attention_dropout
    grouped = grouped and config.key_value_heads not in (None, config.heads)
    if function not in (ScaledDotProductAttention, TiledAttention):
        return TiledAttention(pattern, bias=bias, whole=function(p_drop))
    if function is TiledAttention or bias or p_drop or grouped or pattern != Everything():
        return TiledAttention(pattern, p_drop, bias)
    return ScaledDotProductAttention()


def entries(config, groups: int) -> int:
    """The entries of the four matrices of an attention with so many heads of keys and values."""
    return config.d_model * (config.heads + groups) * sum(config.sizes)


def settings_in(config, kind: type[settings.Settings]) -> dict:
    """The settings of a kind in a config, by name; the defaults where it has none."""
    return {field.name: getattr(config, field.name, field.default) for field in fields(kind)}


def require_groups(heads: int, key_value_heads: int | None) -> None:
    """Raise InputError unless the heads of queries form groups of one size."""
    if key_value_heads and heads % key_value_heads:
        raise InputError(
            "heads is a multiple of key_value_heads, each of which serves as many heads of queries",
            f"heads {heads}, key_value_heads {key_value_heads}",
            "Change one of them.",
        )
