"""Attention and what stands around it, small: how each is built and its inputs."""

from functools import partial

import numpy as np

from numformer.gradient_check.cases.case import Case, D, F, H
from numformer.later import POSITIONS_IN_ATTENTION
from numformer.later.checkpointed import Checkpointed
from numformer.layers.blocks import BlockAttention
from numformer.layers.relative import BiasedAttention, RelativePositions
from numformer.layers.tiles import TiledAttention
from numformer.paper.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.linear import Linear
from numformer.paper.residual import Residual
from numformer.recurrence.additive_attention import AdditiveAttention
from numformer.recurrence.scores import AdditiveScore, DotProductScore, MultiplicativeScore


def placed_attention(settings, inputs, g):
    return MultiHeadAttention(D, H, g.rng, p_drop=0.3, **settings()), inputs(g)


def relative_positions(settings, g):
    return RelativePositions(H, **settings), [np.arange(g.T) * 3 + 2, np.arange(g.S) * 4]


ATTENTION = [
    Case(
        "scaled_dot_product_attention",
        "scaled_dot_product_attention",
        lambda g: (
            ScaledDotProductAttention(),
            [g.normal(H, g.T, 3), g.normal(H, g.S, 3), g.normal(H, g.S, 5), g.source_mask],
        ),
    ),
    Case(
        "scaled_dot_product_attention_with_dropout",
        "scaled_dot_product_attention",
        lambda g: (
            ScaledDotProductAttention(0.3),
            [*(g.normal(H, g.T, 3) for _ in range(3)), g.target_mask],
        ),
        dict(attention_dropout=0.3),
    ),
    Case(
        "attention_in_blocks",
        "scaled_dot_product_attention",
        lambda g: (
            BlockAttention(rows=2),
            [g.normal(H, g.T, 3), g.normal(H, g.S, 3), g.normal(H, g.S, 5), g.source_mask],
        ),
    ),
    Case(
        "attention_in_blocks_with_dropout",
        "scaled_dot_product_attention",
        lambda g: (
            BlockAttention(0.3, rows=3),
            [*(g.normal(H, g.T, 3) for _ in range(3)), g.target_mask],
        ),
        dict(attention_dropout=0.3),
    ),
    Case(
        "biased_attention",
        "biased_attention",
        lambda g: (
            BiasedAttention(0.3),
            [
                *(g.normal(H, length, width) for length, width in ((g.T, 3), (g.S, 3), (g.S, 5))),
                g.source_mask,
                g.rng.standard_normal((H, g.T, g.S)),
            ],
        ),
        dict(attention_dropout=0.3),
    ),
    *(
        Case(
            f"relative_positions_{name}",
            "relative_positions",
            partial(relative_positions, settings),
            settings,
        )
        for name, settings in (
            ("both_ways", dict(buckets=8, farthest=9, both_ways=True)),
            ("back", dict(buckets=4, farthest=12, both_ways=False)),
        )
    ),
    Case("dot_product_score", "dot_product_score", lambda g: (DotProductScore(), [g.x, g.memory])),
    Case(
        "dot_product_score_without_scale",
        "dot_product_score",
        lambda g: (DotProductScore(scaled=False), [g.x, g.memory]),
        dict(scaled=False),
    ),
    Case(
        "multiplicative_score",
        "multiplicative_score",
        lambda g: (MultiplicativeScore(D, F, g.rng), [g.x, g.normal(g.S, F)]),
    ),
    Case(
        "additive_score",
        "additive_score",
        lambda g: (AdditiveScore(D, F, 7, g.rng), [g.normal(H, g.T, D), g.normal(H, g.S, F)]),
    ),
    Case(
        "multi_head_attention",
        "multi_head_attention",
        lambda g: (MultiHeadAttention(D, H, g.rng), [g.x, g.memory, g.source_mask]),
        dict(heads=H),
    ),
    Case(
        "multi_head_attention_with_biases",
        "multi_head_attention",
        lambda g: (
            MultiHeadAttention(D, H, g.rng, d_k=3, d_v=5, bias=True, p_drop=0.3),
            [g.x, g.memory, g.cross],
        ),
        dict(heads=H, attention_dropout=0.3),
    ),
    Case(
        "self_attention",
        "self_attention",
        lambda g: (SelfAttention(D, H, g.rng), [g.x, g.decoder]),
        dict(heads=H),
    ),
    Case(
        "tiled_attention",
        "self_attention",
        lambda g: (TiledAttention(D, H, g.rng, p_drop=0.3), [g.x, g.decoder]),
        dict(heads=H, attention_dropout=0.3),
    ),
    # With fewer queries than keys, or more, both count their positions from 0.
    *(
        Case(
            f"{name}_attention_{kind}",
            "multi_head_attention",
            partial(placed_attention, settings, inputs),
            dict(heads=H, attention_dropout=0.3, positions=name),
        )
        for name, settings in POSITIONS_IN_ATTENTION.items()
        if name in ("rotary", "alibi")
        for kind, inputs in (
            ("of_more_keys", lambda g: [g.x, g.memory, g.cross]),
            ("of_fewer_keys", lambda g: [g.memory, g.x, g.target_mask[:, :, -1:]]),
        )
    ),
    Case(
        "cross_attention",
        "multi_head_attention",
        lambda g: (CrossAttention(D, H, g.rng), [g.x, g.memory, g.cross]),
        dict(heads=H),
    ),
    Case(
        "checkpointed",
        "checkpointed",
        lambda g: (Checkpointed(Residual(Linear(D, D, g.rng), D, 0.2, "post")), [g.x]),
        dict(sublayer="linear", norm="post", p_drop=0.2),
    ),
    Case(
        "residual_post_norm",
        "residual",
        lambda g: (Residual(SelfAttention(D, H, g.rng), D, 0.3, "post"), [g.x, g.decoder]),
        dict(sublayer="self_attention", heads=H, p_drop=0.3, norm="post"),
    ),
    Case(
        "residual_pre_norm",
        "residual",
        lambda g: (Residual(CrossAttention(D, H, g.rng), D, 0.3, "pre"), [g.x, g.memory, g.cross]),
        dict(sublayer="multi_head_attention", heads=H, p_drop=0.3, norm="pre"),
    ),
    Case(
        "additive_attention",
        "additive_attention",
        lambda g: (
            AdditiveAttention(7, 6, g.rng),
            [g.normal(7), g.normal(g.S, 6), g.memory, g.source != 0],
        ),
    ),
]
