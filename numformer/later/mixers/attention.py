"""Attention as a mixer: self-attention with a pattern, or with a bias on its scores."""

from dataclasses import make_dataclass
from functools import partial
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.later.activations import Cap
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
from numformer.later.attention.patterns import FullPattern
from numformer.later.attention.tiles import TiledAttention
from numformer.later.mixers.mixer import settings_from
from numformer.layer import Layer
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.linear import Linear


class AttentionMixer:
    """An entry of MIXERS: self-attention with a `pattern` and, optionally, a trained `bias`.

    Both are classes, which `build` instantiates with their Settings. The bias also gets the number
    of heads, `both_ways`, and a `constant`, another bias without a gradient. All layers of a stack
    share the parameters of the bias.
    """

    looks_ahead = True

    def __init__(self, pattern: type[FullPattern] = FullPattern, bias: Any = None):
        self.pattern, self.bias, self.is_local = pattern, bias, pattern.is_local
        kinds: Any = dict.fromkeys([*([bias.Settings] if bias else []), pattern.Settings])
        self.Settings: Any = make_dataclass("Settings", [], bases=tuple(kinds), frozen=True)

    def require(self, config) -> None:
        """Raise InputError if this attention cannot be built from the config."""
        heads, groups = config.heads, config.key_value_heads or config.heads
        if heads % groups:
            raise InputError(
                "heads is a multiple of key_value_heads: query heads share key heads evenly",
                f"heads {heads}, key_value_heads {groups}",
                "Change one of them.",
            )
        self.new_pattern(config).require(heads)
        self.new_bias(config, causal=True)

    def new_pattern(self, config) -> FullPattern:
        """Build the pattern with its settings in a config."""
        return self.pattern(**settings_from(config, self.pattern.Settings))

    def new_bias(self, config, causal: bool, constant: Any = None) -> Any:
        """Build the bias, which adds `constant`; if this mixer has no bias, return `constant`."""
        if not self.bias:
            return constant
        own = settings_from(config, self.bias.Settings)
        return self.bias(config.heads, both_ways=not causal, constant=constant, **own)

    def build(self, config, rng: np.random.Generator, causal: bool) -> SelfAttention:
        """Build the self-attention of a config; a `causal` one never sees later positions."""
        groups, positions = config.key_value_heads or config.heads, config.attention_positions()
        bias = self.new_bias(config, causal, positions.get("bias"))
        pattern = self.new_pattern(config)
        parts = projections(config, rng, groups, config.new_qk_norm, positions.get("rotary"))
        attention = attention_function(config, groups, pattern, bias)
        sizes = config.d_model, config.heads, rng, *config.sizes
        return SelfAttention(
            *sizes, **parts, attention=attention, key_value_state=pattern.key_value_state
        )

    def share(self, layer: Layer, first: Layer) -> None:
        """Give a layer the parameters that it shares with the first layer of its stack."""
        if not self.bias:  # nothing to share, and the layers may have different parts
            return
        for part, first_part in zip(layer.layers_within(), first.layers_within(), strict=True):
            if hasattr(part, "share"):
                part.share(first_part)  # pyright: ignore

    def entries(self, config) -> int:
        """Return the number of entries in the matrices of this attention."""
        return matrix_entries(config, config.key_value_heads or config.heads)


def build_cross_attention(config, rng: np.random.Generator) -> CrossAttention:
    """Build the cross-attention of a config: full, with a key head for each query head.

    Keys and queries come from different sequences, so there is no distance between them. Hence
    cross-attention has no rotary positions, no bias and no pattern.
    """
    parts: dict[str, Any] = projections(config, rng, config.heads)
    parts["attention"] = attention_function(config, config.heads, FullPattern())
    return CrossAttention(config.d_model, config.heads, rng, *config.sizes, **parts)


def projections(
    config, rng: np.random.Generator, groups: int, new_norm: Any = None, rotary: Any = None
) -> dict[str, Any]:
    """Build the four parts with a matrix, in the order in which their initial values are drawn."""
    (d_k, d_v), d_model, bias = config.sizes, config.d_model, config.attention_bias
    joint, output_bias = config.qk_norm_width == "heads", config.attention_output_bias

    def plain(heads: int, size: int, bias: bool) -> Heads:
        return (BiasedHeads if bias else Heads)(d_model, heads, size, rng)

    def query_or_key(heads: int, bias: bool) -> Heads:
        norm = new_norm(d_k * heads if joint else d_k) if new_norm else None
        if norm or rotary:
            sizes = d_model, heads, d_k, rng, bias
            return QueryKeyHeads(*sizes, norm=norm, rotary=rotary, joint=joint)
        return plain(heads, d_k, bias)

    query = query_or_key(config.heads, bias)
    key = query_or_key(groups, bias and config.attention_key_bias)
    value = plain(groups, d_v, bias)
    output = Linear(config.heads * d_v, d_model, rng, bias if output_bias is None else output_bias)
    return dict(query=query, key=key, value=value, output=output)


def attention_function(config, groups: int, pattern: FullPattern, bias: Any = None) -> Layer:
    """Build the layer that computes heads: TiledAttention, unless the paper's formula suffices."""
    function, p_drop = config.attention_class, config.attention_dropout
    if config.attention_cap:
        function = partial(BiasedAttention, cap=Cap(config.attention_cap))
    if function not in (ScaledDotProductAttention, TiledAttention):
        return TiledAttention(pattern, bias=bias, dense=function(p_drop))
    later_work = bias or p_drop or groups < config.heads or type(pattern) is not FullPattern
    if later_work or function is TiledAttention:
        return TiledAttention(pattern, p_drop, bias)
    return ScaledDotProductAttention()


def matrix_entries(config, groups: int) -> int:
    """Return the number of entries in the matrices of an attention with `groups` key heads."""
    return config.d_model * (config.heads + groups) * sum(config.sizes)
