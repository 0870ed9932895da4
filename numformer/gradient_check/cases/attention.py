"""Test cases for attention, for its parts, and for the layers around it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numformer.gradient_check.cases.case import Case, D, F, H
from numformer.later.activations import Cap
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.heads import BiasedHeads, QueryKeyHeads
from numformer.later.attention.patterns import GlobalWindow, Strided, Window
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.rotary import Rotary
from numformer.later.attention.tiles import TiledAttention
from numformer.later.checkpointed import Checkpointed
from numformer.later.pre_norm import RESIDUALS, ParallelLayer, PreNormResidual
from numformer.later.rms_norm import RMSNorm
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.feed_forward import FeedForward
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.linear import Linear
from numformer.paper.residual import Residual
from numformer.recurrence.additive_attention import AdditiveAttention
from numformer.recurrence.scores import AdditiveScore, DotProductScore, MultiplicativeScore

DISTANCES: dict[str, Any] = dict(distance_buckets=5, farthest=4, both_ways=False)
TILES: dict[str, Any] = dict(rows=2, least=0)
"""Settings of TiledAttention with which even a short sequence is split into tiles."""


def head_inputs(g, heads: int = H) -> list:
    """Return queries of H heads, and keys and values of `heads` heads."""
    return [g.normal(H, g.T, 3), g.normal(heads, g.S, 3), g.normal(heads, g.S, 5)]


def position_inputs(g) -> list:
    """Return the positions of queries and of keys."""
    return [np.arange(g.T) * 3 + 2, np.arange(g.S) * 4]


def relative_case(name: str, **settings) -> Case:
    def build(g):
        return RelativePositions(H, **settings), position_inputs(g)

    return Case(f"relative_positions_{name}", build, "relative_positions", settings)


def attention_with_parts(parts, inputs, g):
    return MultiHeadAttention(D, H, g.rng, **parts(g)), inputs(g)


def normed_residual(norm: str, g):
    kind, count = RESIDUALS[norm]
    norms = [LayerNorm(D) for _ in range(count)]
    return kind(CrossAttention(D, H, g.rng), D, 0.3, *norms), [g.x, g.memory, g.cross]


def parallel_layer(one_norm: bool, g):
    sublayers = SelfAttention(D, H, g.rng), FeedForward(D, F, g.rng)
    attention, network = (PreNormResidual(sublayer, D, 0.3) for sublayer in sublayers)
    return ParallelLayer(attention, network, one_norm), [g.x, g.decoder]


HEADS: dict[str, Any] = dict(heads=H)
ROTARY_HEADS: dict[str, Any] = dict(heads=H, epsilon=0.1, base=50.0)


def rotary_heads(g):
    """Return a QueryKeyHeads with a norm and rotary positions, and its inputs."""
    heads = QueryKeyHeads(D, H, 4, g.rng, norm=LayerNorm(4, 0.1), rotary=Rotary(50.0))
    return heads, [g.x, g.targets]


def joint_heads(g):
    """Return a QueryKeyHeads with one norm of all heads, and its inputs."""
    norm, rotary = RMSNorm(4 * H, 0.1), Rotary(50.0)
    heads = QueryKeyHeads(D, H, 4, g.rng, norm=norm, rotary=rotary, joint=True)
    return heads, [g.x, g.targets]


def normed_case(name: str, norm, base: float = 0) -> Case:
    """Return a case of attention that norms queries and keys, then rotates them if `base` > 0."""

    def build(g):
        query, key = (
            QueryKeyHeads(D, H, 4, g.rng, norm=norm(4, 0.1), rotary=Rotary(base) if base else None)
            for _ in range(2)
        )
        return SelfAttention(D, H, g.rng, query=query, key=key), [g.x, g.decoder]

    settings = dict(heads=H, epsilon=0.1) | (dict(positions="rotary", base=base) if base else {})
    return Case(f"heads_with_{name}", build, "self_attention", settings)


relative_bias = partial(RelativePositions, **DISTANCES)


def tiles_case(name: str, pattern, groups: int, bias: Callable = relative_bias, **settings) -> Case:
    """Return a case of self-attention in tiles; keys and values have `groups` heads."""
    heads = 4

    def build(g):
        key, value = (Heads(D, groups, size, g.rng) for size in (2, 3))
        attention = TiledAttention(pattern, 0.3, bias(heads), **TILES)
        parts = dict(key=key, value=value, attention=attention)
        return SelfAttention(D, heads, g.rng, 2, 3, **parts), [g.x, g.decoder]

    settings |= dict(heads=heads, groups=groups, attention_dropout=0.3)
    return Case(f"tiles_of_a_{name}", build, "tiled_attention", settings)


ATTENTION = [
    Case(
        "scaled_dot_product_attention",
        lambda g: (ScaledDotProductAttention(), [*head_inputs(g), g.source_mask]),
    ),
    Case(
        "attention_in_tiles",
        lambda g: (TiledAttention(**TILES), [*head_inputs(g), g.source_mask]),
        "scaled_dot_product_attention",
    ),
    Case(
        "attention_in_tiles_with_dropout",
        lambda g: (
            TiledAttention(p_drop=0.3, rows=3, least=0),
            [*(g.normal(H, g.T, 3) for _ in range(3)), g.target_mask],
        ),
        "scaled_dot_product_attention",
        dict(attention_dropout=0.3),
    ),
    tiles_case("window", Window(window=2), 2, ALiBi, window=2, positions="alibi"),
    tiles_case(
        "global_window_with_relative_positions",
        GlobalWindow(window=1, global_tokens=1),
        groups=4,
        window=1,
        global_tokens=1,
        distances=DISTANCES,
    ),
    tiles_case(
        "stride_with_relative_positions", Strided(stride=2), groups=1, stride=2, distances=DISTANCES
    ),
    Case(
        "biased_attention",
        lambda g: (
            BiasedAttention(0.3),
            [*head_inputs(g), g.source_mask, g.rng.standard_normal((H, g.T, g.S))],
        ),
        settings=dict(attention_dropout=0.3),
    ),
    Case(
        "biased_attention_with_a_cap",
        lambda g: (
            BiasedAttention(0.3, Cap(0.8)),
            [*head_inputs(g), g.source_mask, g.rng.standard_normal((H, g.T, g.S))],
        ),
        "biased_attention",
        dict(attention_dropout=0.3, cap=0.8),
    ),
    relative_case("both_ways", distance_buckets=8, farthest=9, both_ways=True),
    relative_case("back", distance_buckets=4, farthest=12, both_ways=False),
    Case(
        "relative_positions_with_alibi",
        lambda g: (RelativePositions(H, **DISTANCES, constant=ALiBi(H)), position_inputs(g)),
        "relative_positions",
        DISTANCES | dict(alibi_heads=H),
    ),
    normed_case("layer_norm", LayerNorm),
    normed_case("rms_norm_and_rotary", RMSNorm, base=50.0),
    Case("dot_product_score", lambda g: (DotProductScore(), [g.x, g.memory])),
    Case(
        "dot_product_score_without_scale",
        lambda g: (DotProductScore(scaled=False), [g.x, g.memory]),
        "dot_product_score",
        dict(scaled=False),
    ),
    Case(
        "multiplicative_score",
        lambda g: (MultiplicativeScore(D, F, g.rng), [g.x, g.normal(g.S, F)]),
    ),
    Case(
        "additive_score",
        lambda g: (AdditiveScore(D, F, 7, g.rng), [g.normal(H, g.T, D), g.normal(H, g.S, F)]),
    ),
    Case("heads", lambda g: (Heads(D, H, 3, g.rng), [g.x, g.targets]), "split_heads", HEADS),
    Case(
        "biased_heads",
        lambda g: (BiasedHeads(D, H, 3, g.rng), [g.x, g.targets]),
        "split_heads",
        HEADS,
    ),
    Case("query_key_heads", rotary_heads, "split_heads", ROTARY_HEADS),
    Case("query_key_heads_with_a_joint_norm", joint_heads, "split_heads", ROTARY_HEADS),
    Case(
        "multi_head_attention",
        lambda g: (MultiHeadAttention(D, H, g.rng), [g.x, g.memory, g.source_mask]),
        settings=dict(heads=H),
    ),
    Case(
        "multi_head_attention_with_biases",
        lambda g: (
            MultiHeadAttention(
                D,
                H,
                g.rng,
                3,
                5,
                query=BiasedHeads(D, H, 3, g.rng),
                key=BiasedHeads(D, H, 3, g.rng),
                value=BiasedHeads(D, H, 5, g.rng),
                output=Linear(H * 5, D, g.rng),
                attention=TiledAttention(p_drop=0.3),
            ),
            [g.x, g.memory, g.cross],
        ),
        "multi_head_attention",
        dict(heads=H, attention_dropout=0.3),
    ),
    Case(
        "self_attention",
        lambda g: (SelfAttention(D, H, g.rng), [g.x, g.decoder]),
        settings=dict(heads=H),
    ),
    # Queries and keys differ in number, but the positions of both begin at 0.
    *(
        Case(
            f"{name}_attention_{kind}",
            partial(attention_with_parts, parts, inputs),
            "multi_head_attention",
            dict(heads=H, attention_dropout=0.3, positions=name),
        )
        for name, parts in (
            (
                "rotary",
                lambda g: dict(
                    query=QueryKeyHeads(D, H, 4, g.rng, rotary=Rotary()),
                    key=QueryKeyHeads(D, H, 4, g.rng, rotary=Rotary()),
                    attention=TiledAttention(p_drop=0.3),
                ),
            ),
            ("alibi", lambda g: dict(attention=TiledAttention(p_drop=0.3, bias=ALiBi(H)))),
        )
        for kind, inputs in (
            ("of_more_keys", lambda g: [g.x, g.memory, g.cross]),
            ("of_fewer_keys", lambda g: [g.memory, g.x, g.target_mask[:, :, -1:]]),
        )
    ),
    Case(
        "cross_attention",
        lambda g: (CrossAttention(D, H, g.rng), [g.x, g.memory, g.cross]),
        "multi_head_attention",
        dict(heads=H),
    ),
    Case(
        "checkpointed",
        lambda g: (Checkpointed(Residual(Linear(D, D, g.rng), D, 0.2)), [g.x]),
        settings=dict(sublayer="linear", norm="post", p_drop=0.2),
    ),
    Case(
        "residual_post_norm",
        lambda g: (Residual(SelfAttention(D, H, g.rng), D, 0.3), [g.x, g.decoder]),
        "residual",
        dict(sublayer="self_attention", heads=H, p_drop=0.3, norm="post"),
    ),
    Case(
        "residual_pre_norm",
        lambda g: (PreNormResidual(CrossAttention(D, H, g.rng), D, 0.3), [g.x, g.memory, g.cross]),
        "residual",
        dict(sublayer="multi_head_attention", heads=H, p_drop=0.3, norm="pre"),
    ),
    *(
        Case(
            f"residual_{norm}_norm",
            partial(normed_residual, norm),
            "residual",
            dict(sublayer="multi_head_attention", heads=H, p_drop=0.3, norm=norm),
        )
        for norm in ("output", "sandwich", "pre_scaled")
    ),
    *(
        Case(name, partial(parallel_layer, one_norm), "parallel_layer", dict(heads=H, p_drop=0.3))
        for name, one_norm in (("parallel_layer", False), ("parallel_layer_of_one_norm", True))
    ),
    Case(
        "additive_attention",
        lambda g: (
            AdditiveAttention(7, 6, g.rng),
            [g.normal(7), g.normal(g.S, 6), g.memory, g.source != 0],
        ),
    ),
]
