"""Every layer once, small, with what makes mistakes visible: how to build it and its inputs."""

from functools import partial

import numpy as np

from numformer.gradient_check.cases.case import Case, D, F, H, V
from numformer.layers import CELLS, POSITIONS_IN_ATTENTION
from numformer.layers.activation import GEGLU, GELU, GELUTanh, ReLU, SwiGLU, Swish, Tanh
from numformer.layers.additive_attention import AdditiveAttention
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.blocks import BlockAttention
from numformer.layers.checkpointed import Checkpointed
from numformer.layers.convolution import Convolution
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.divergence import Divergence
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.patches import ClassToken, Patches
from numformer.layers.pick import Pick
from numformer.layers.positional import (
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    sinusoidal_halves_table,
)
from numformer.layers.recurrence import Recurrent
from numformer.layers.relative import BiasedAttention, RelativePositions
from numformer.layers.residual import Residual
from numformer.layers.rms_norm import RMSNorm
from numformer.layers.rotary import Rotary
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import Softmax
from numformer.layers.tiles import TiledAttention


def placed_attention(settings, inputs, g):
    return MultiHeadAttention(D, H, g.rng, p_drop=0.3, **settings()), inputs(g)


ELEMENTWISE = [
    Case("linear", "linear", lambda g: (Linear(D, F, g.rng), [g.x])),
    Case("linear_without_bias", "linear", lambda g: (Linear(D, F, g.rng, bias=False), [g.x])),
    Case(
        "output_projection",
        "output_projection",
        lambda g: (OutputProjection(Embedding(V, D, g.rng).weight), [g.x]),
    ),
    Case(
        "output_projection_with_bias",
        "output_projection",
        lambda g: (OutputProjection(Embedding(V, D, g.rng).weight, bias=True), [g.x]),
    ),
    Case("relu", "relu", lambda g: (ReLU(), [g.x])),
    Case("gelu", "gelu", lambda g: (GELU(), [3 * g.x])),
    Case("gelu_tanh", "gelu_tanh", lambda g: (GELUTanh(), [3 * g.x])),
    Case("geglu", "geglu", lambda g: (GEGLU(), [2 * g.x])),
    Case("swish", "swish", lambda g: (Swish(), [2 * g.x])),
    Case("swiglu", "swiglu", lambda g: (SwiGLU(), [2 * g.x])),
    Case("tanh", "tanh", lambda g: (Tanh(), [g.x])),
    Case("softmax", "softmax", lambda g: (Softmax(), [g.normal(H, g.T, g.S)])),
    Case(
        "masked_softmax", "softmax", lambda g: (Softmax(), [g.normal(H, g.T, g.S), g.source_mask])
    ),
    Case("layer_norm", "layer_norm", lambda g: (LayerNorm(D), [g.x])),
    # A variance near epsilon shows an epsilon that stands in the wrong place.
    Case(
        "layer_norm_of_nearly_equal_values",
        "layer_norm",
        lambda g: (LayerNorm(D, epsilon=1e-2), [3 + 0.1 * g.x]),
        dict(epsilon=1e-2),
    ),
    Case("rms_norm", "rms_norm", lambda g: (RMSNorm(D), [g.x])),
    Case(
        "rms_norm_of_small_values",
        "rms_norm",
        lambda g: (RMSNorm(D, epsilon=1e-2), [0.1 * g.x]),
        dict(epsilon=1e-2),
    ),
    Case("dropout", "dropout", lambda g: (Dropout(0.3), [g.x]), dict(p_drop=0.3)),
    Case("feed_forward", "feed_forward", lambda g: (FeedForward(D, F, g.rng), [g.x])),
    Case(
        "feed_forward_with_dropout",
        "feed_forward",
        lambda g: (FeedForward(D, F, g.rng, p_drop=0.3), [g.x]),
        dict(activation_dropout=0.3),
    ),
    Case(
        "feed_forward_swiglu",
        "feed_forward",
        lambda g: (FeedForward(D, F, g.rng, SwiGLU, bias=False), [g.x]),
        dict(activation="swiglu"),
    ),
]

INPUTS = [
    Case("embedding", "embedding", lambda g: (Embedding(V, D, g.rng), [g.target_in])),
    # A vocabulary beyond the size up to which scatter_add is one product.
    Case(
        "embedding_of_many_symbols",
        "embedding",
        lambda g: (Embedding(300, D, g.rng), [g.target_in * 20]),
    ),
    Case(
        "embedding_without_scale",
        "embedding",
        lambda g: (Embedding(V, D, g.rng, scaled=False), [g.target_in]),
        dict(scaled=False),
    ),
    Case("sinusoidal_positions", "sinusoidal_positions", lambda g: (SinusoidalPositions(), [g.x])),
    Case(
        "sinusoidal_halves_positions",
        "sinusoidal_halves_positions",
        lambda g: (SinusoidalPositions(sinusoidal_halves_table), [g.normal(g.T, 7)]),
    ),
    Case(
        "learned_positions",
        "learned_positions",
        lambda g: (LearnedPositions(g.T + 3, D, g.rng), [g.x, np.arange(2, g.T + 2)]),
    ),
    Case("no_positions", "none_positions", lambda g: (NoPositions(), [g.x])),
    Case("rotary", "rotary", lambda g: (Rotary(), [g.normal(H, g.T, 4), np.arange(g.T)[::-1] + 2])),
    Case("rotary_from_0", "rotary", lambda g: (Rotary(), [g.normal(g.T, 6)])),
    Case(
        "rotary_of_another_base",
        "rotary",
        lambda g: (Rotary(50), [g.normal(H, g.T, 6), np.arange(g.T) + 3]),
        dict(base=50),
    ),
    Case("patches", "patches", lambda g: (Patches(2), [g.normal(4, 6)]), dict(size=2)),
    Case(
        "patches_of_colours", "patches", lambda g: (Patches(3), [g.normal(6, 9, 4)]), dict(size=3)
    ),
    Case("class_token", "class_token", lambda g: (ClassToken(D, g.rng), [g.x])),
    Case("pick", "pick", lambda g: (Pick(), [g.x, g.some_places])),
]


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
            lambda g, settings=settings: (
                RelativePositions(H, **settings),
                [np.arange(g.T) * 3 + 2, np.arange(g.S) * 4],
            ),
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


def cell(kind: str) -> Case:
    def build(g):
        layer = CELLS[kind](D, g.rng)
        return layer, [g.normal(layer.gates * D), g.normal(layer.states * D)]

    return Case(f"{kind}_cell", f"{kind}_cell", build)


RECURRENCE = [
    Case("convolution", "convolution", lambda g: (Convolution(D, g.rng), [g.memory])),
    Case(
        "convolution_wider_than_its_input",
        "convolution",
        lambda g: (Convolution(D, g.rng, width=7), [g.x]),
    ),
    *map(cell, CELLS),
    Case(
        "recurrent",
        "recurrent",
        lambda g: (Recurrent(CELLS["rnn"](7, g.rng), D, g.rng), [g.x]),
        dict(cell="rnn"),
    ),
    Case(
        "recurrent_with_padding",
        "recurrent",
        lambda g: (Recurrent(CELLS["lstm"](7, g.rng), D, g.rng), [g.x, g.lengths, g.normal(7)]),
        dict(cell="lstm"),
    ),
    Case(
        "recurrent_backwards",
        "recurrent",
        lambda g: (
            Recurrent(CELLS["gru"](7, g.rng), D, g.rng, backwards=True, d_context=6),
            [g.x, g.lengths, g.normal(7), g.normal(6)],
        ),
        dict(cell="gru", backwards=True),
    ),
]

LOSSES = [
    Case(
        "cross_entropy",
        "cross_entropy",
        lambda g: (CrossEntropy(0.0), [g.normal(g.T, V), g.target_out]),
        dict(smoothing=0.0),
    ),
    Case(
        "label_smoothed_cross_entropy",
        "cross_entropy",
        lambda g: (CrossEntropy(0.1), [3 * g.normal(g.T, V), g.target_out, g.target_out != 0]),
        dict(smoothing=0.1),
    ),
    Case(
        "divergence",
        "divergence",
        lambda g: (Divergence(), [g.normal(g.T, V), g.normal(g.T, V)]),
    ),
    Case(
        "divergence_where_it_counts",
        "divergence",
        lambda g: (Divergence(), [g.normal(g.T, V), g.normal(g.T, V), g.target_out != 0]),
    ),
]

LAYERS = [*ELEMENTWISE, *INPUTS, *ATTENTION, *RECURRENCE, *LOSSES]
