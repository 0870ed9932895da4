"""Attention as the mixers of a config: each is a pattern, with a bias on its scores or without."""

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any

import numpy as np

from numformer import later, settings
from numformer.errors import InputError
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
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

# What each head computes; an attention of one's own is made of p_drop.
ATTENTIONS: dict[str, Callable[..., Layer]] = {
    "scaled_dot_product": ScaledDotProductAttention,
    "tiled": TiledAttention,
}
# The parts of self-attention by which positions come in there, of a config. Cross-attention looks
# at another sequence: with rotary positions alone it does not know where in it something is.
POSITIONS_IN_ATTENTION: dict[str, Callable[[Any], dict]] = {
    "rotary": lambda config: {"rotary": Rotary(config.rotary_base)},
    "sinusoidal_rotary": lambda config: {"rotary": Rotary(config.rotary_base)},
    "alibi": lambda config: {"bias": ALiBi(config.heads)},
}


class AttentionMixer:
    """Self-attention of a `pattern` as an entry of MIXERS, with a `bias` of its own or without.

    Both are classes that are made of their Settings; the bias, too, of the number of heads, of
    `both_ways` and a `constant`, another bias. All layers of a stack share its parameters.
    """

    looks_ahead = True

    def __init__(self, pattern: type[Everything] = Everything, bias: Any = None):
        self.pattern, self.bias, self.sees_near = pattern, bias, pattern.sees_near
        kinds: Any = dict.fromkeys([*([bias.Settings] if bias else []), pattern.Settings])
        self.Settings: Any = make_dataclass(
            "Settings", [], bases=tuple(kinds), frozen=True, kw_only=True
        )

    def own_settings(self, config) -> dict:
        """Its own settings in a config, by name; the defaults where it has none."""
        return settings_in(config, self.Settings)

    def require(self, config) -> None:
        """Raise InputError for a config with which there is no such attention."""
        require_groups(config.heads, groups_of(config))
        self.pattern_of(config).require(config.heads)
        if "rotary" in config.positions:
            require_pairs(config.sizes[0])
        self.bias_of(config, causal=True)

    def pattern_of(self, config) -> Everything:
        """The pattern with its settings in a config."""
        return self.pattern(**settings_in(config, self.pattern.Settings))

    def bias_of(self, config, causal: bool, constant: Any = None) -> Any:
        """A new bias of the mixer's own, with a constant on top; or that alone."""
        if not self.bias:
            return constant
        own = settings_in(config, self.bias.Settings)
        return self.bias(config.heads, both_ways=not causal, constant=constant, **own)

    def build(self, config, rng: np.random.Generator, causal: bool) -> SelfAttention:
        """The self-attention of a config; a `causal` one is to see nothing later."""
        made = POSITIONS_IN_ATTENTION.get(config.positions, lambda config: {})(config)
        bias = self.bias_of(config, causal, made.get("bias"))
        pattern = self.pattern_of(config)
        parts = projections(config, rng, groups_of(config), config.qk_norm, made.get("rotary"))
        parts["attention"] = attention_of(config, groups_of(config), pattern, bias)
        sizes = config.d_model, config.heads, rng, *config.sizes
        return SelfAttention(*sizes, **parts, key_value_state=pattern.key_value_state)

    def share(self, layer: Layer, first: Layer) -> None:
        """Give a layer those parameters of the stack's first such layer that all of them share."""
        if not self.bias:  # of other numbers of heads, layers have other parts
            return
        for part, of_first in zip(layer.layers_within(), first.layers_within(), strict=True):
            if hasattr(part, "share"):
                part.share(of_first)  # pyright: ignore

    def entries(self, config) -> int:
        """The entries of the matrices of such an attention."""
        return entries(config, groups_of(config))


def build_cross(config, rng: np.random.Generator) -> CrossAttention:
    """The cross-attention of a config: of no pattern, with as many heads of keys as of queries.

    A memory is another sequence: how far its positions are from those of x says nothing.
    """
    parts = projections(config, rng, config.heads, norm="none")
    parts["attention"] = attention_of(config, config.heads, Everything())
    return CrossAttention(config.d_model, config.heads, rng, *config.sizes, **parts)


def projections(
    config, rng: np.random.Generator, groups: int, norm: str, rotary: Layer | None = None
) -> dict:
    """The four parts with the matrices, in order of their draws."""
    (d_k, d_v), d_model, bias = config.sizes, config.d_model, config.attention_bias
    plain = BiasedHeads if bias else Heads

    def heads(count: int) -> Heads:
        sizes = d_model, count, d_k, rng
        if norm == "none" and not rotary:
            return plain(*sizes)
        new = None if norm == "none" else later.NORMALIZATIONS[norm](d_k, config.epsilon)
        return QueryKeyHeads(*sizes, bias, norm=new, rotary=rotary)

    query, key = heads(config.heads), heads(groups)
    value = plain(d_model, groups, d_v, rng)
    output = Linear(config.heads * d_v, d_model, rng, bias)
    return dict(query=query, key=key, value=value, output=output)


def attention_of(config, groups: int, pattern: Everything, bias: Any = None) -> Layer:
    """What each head computes: what the paper's attention has no place for, TiledAttention does."""
    function, p_drop = ATTENTIONS[config.attention_function], config.attention_dropout
    if function not in (ScaledDotProductAttention, TiledAttention):
        return TiledAttention(pattern, bias=bias, whole=function(p_drop))
    later_work = bias or p_drop or groups < config.heads or type(pattern) is not Everything
    if later_work or function is TiledAttention:
        return TiledAttention(pattern, p_drop, bias)
    return ScaledDotProductAttention()


def entries(config, groups: int) -> int:
    """The entries of the matrices of an attention with so many heads of keys and values."""
    return config.d_model * (config.heads + groups) * sum(config.sizes)


def groups_of(config) -> int:
    """How many heads of keys and values the self-attention of a config has."""
    return config.key_value_heads or config.heads


def settings_in(config, kind: type[settings.Settings]) -> dict:
    """The settings of a kind in a config, by name; the defaults where it has none."""
    return {field.name: getattr(config, field.name, field.default) for field in fields(kind)}


def require_groups(heads: int, groups: int) -> None:
    """Raise InputError unless the heads of queries form groups of one size."""
    if heads % groups:
        raise InputError(
            "heads is a multiple of key_value_heads, each of which serves as many heads of queries",
            f"heads {heads}, key_value_heads {groups}",
            "Change one of them.",
        )
