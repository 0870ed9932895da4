"""Test cases for all layers except attention, and LAYERS, the list of all cases of layers."""

import numpy as np

from numformer.gradient_check.cases.attention import ATTENTION
from numformer.gradient_check.cases.case import Case, D, F, H, V
from numformer.later.activations import GEGLU, GELU, Cap, GELUTanh, QuickGELU, SwiGLU, Swish, Tanh
from numformer.later.attention.rotary import Rotary
from numformer.later.divergence import Divergence
from numformer.later.embeddings import (
    BiasedOutputProjection,
    CappedOutputProjection,
    UnscaledEmbedding,
)
from numformer.later.feed_forward import Chain
from numformer.later.mixers.convolution import Convolution
from numformer.later.patches import ClassToken, Patches, TokenAndMean
from numformer.later.pick import Pick
from numformer.later.positions import (
    NoPositions,
    sinusoidal_fairseq_table,
    sinusoidal_halves_table,
)
from numformer.later.pre_norm import LayerScale
from numformer.later.rms_norm import RMSNorm
from numformer.later.similarity import Similarity
from numformer.later.sound import SoundEmbedding, Windows
from numformer.paper.cross_entropy import CrossEntropy
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.feed_forward import FeedForward, ReLU
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.linear import Linear
from numformer.paper.positions import LearnedPositions, SinusoidalPositions
from numformer.paper.softmax import Softmax
from numformer.recurrence import CELLS
from numformer.recurrence.recurrent import Recurrent

ELEMENTWISE = [
    Case("linear", lambda g: (Linear(D, F, g.rng), [g.x])),
    Case("linear_without_bias", lambda g: (Linear(D, F, g.rng, bias=False), [g.x]), "linear"),
    Case("output_projection", lambda g: (OutputProjection(Embedding(V, D, g.rng).weight), [g.x])),
    Case(
        "output_projection_with_bias",
        lambda g: (BiasedOutputProjection(Embedding(V, D, g.rng).weight), [g.x]),
        "output_projection",
    ),
    Case("relu", lambda g: (ReLU(), [g.x])),
    Case("gelu", lambda g: (GELU(), [3 * g.x])),
    Case("gelu_tanh", lambda g: (GELUTanh(), [3 * g.x])),
    Case("geglu", lambda g: (GEGLU(), [2 * g.x])),
    Case("swish", lambda g: (Swish(), [2 * g.x])),
    Case("quick_gelu", lambda g: (QuickGELU(), [2 * g.x])),
    Case("swiglu", lambda g: (SwiGLU(), [2 * g.x])),
    Case("chain", lambda g: (Chain(Swish(), Tanh()), [2 * g.x])),
    Case("tanh", lambda g: (Tanh(), [g.x])),
    Case("softmax", lambda g: (Softmax(), [g.normal(H, g.T, g.S)])),
    Case(
        "masked_softmax", lambda g: (Softmax(), [g.normal(H, g.T, g.S), g.source_mask]), "softmax"
    ),
    Case("layer_norm", lambda g: (LayerNorm(D), [g.x])),
    # With a variance near epsilon, an epsilon in the wrong place changes the result.
    Case(
        "layer_norm_of_nearly_equal_values",
        lambda g: (LayerNorm(D, epsilon=1e-2), [3 + 0.1 * g.x]),
        "layer_norm",
        dict(epsilon=1e-2),
    ),
    Case("rms_norm", lambda g: (RMSNorm(D), [g.x])),
    Case(
        "rms_norm_of_small_values",
        lambda g: (RMSNorm(D, epsilon=1e-2), [0.1 * g.x]),
        "rms_norm",
        dict(epsilon=1e-2),
    ),
    Case("cap", lambda g: (Cap(1.5), [3 * g.x]), settings=dict(limit=1.5)),
    Case(
        "capped_output_projection",
        lambda g: (CappedOutputProjection(Embedding(V, D, g.rng).weight, 2.0), [g.x]),
        settings=dict(limit=2.0),
    ),
    Case("dropout", lambda g: (Dropout(0.3), [g.x]), settings=dict(p_drop=0.3)),
    Case("feed_forward", lambda g: (FeedForward(D, F, g.rng), [g.x])),
    Case(
        "feed_forward_with_dropout",
        lambda g: (FeedForward(D, F, g.rng, activation=Chain(ReLU(), Dropout(0.3))), [g.x]),
        "feed_forward",
        dict(activation_dropout=0.3),
    ),
    Case(
        "feed_forward_swiglu",
        lambda g: (
            FeedForward(
                D,
                F,
                g.rng,
                Linear(D, 2 * F, g.rng, bias=False),
                SwiGLU(),
                Linear(F, D, g.rng, bias=False),
            ),
            [g.x],
        ),
        "feed_forward",
        dict(activation="swiglu"),
    ),
]

INPUTS = [
    Case("embedding", lambda g: (Embedding(V, D, g.rng), [g.target_in])),
    # With a vocabulary this large, scatter_add sorts the ids instead of multiplying matrices.
    Case(
        "embedding_of_many_symbols",
        lambda g: (Embedding(300, D, g.rng), [g.target_in * 20]),
        "embedding",
    ),
    Case(
        "embedding_without_scale",
        lambda g: (UnscaledEmbedding(V, D, g.rng), [g.target_in]),
        "embedding",
        dict(scaled=False),
    ),
    Case("sinusoidal_positions", lambda g: (SinusoidalPositions(), [g.x])),
    Case(
        "sinusoidal_halves_positions",
        lambda g: (SinusoidalPositions(sinusoidal_halves_table), [g.normal(g.T, 7)]),
    ),
    Case(
        "sinusoidal_fairseq_positions",
        lambda g: (SinusoidalPositions(sinusoidal_fairseq_table), [g.normal(g.T, 7)]),
    ),
    Case(
        "learned_positions",
        lambda g: (LearnedPositions(g.T + 3, D, g.rng), [g.x, np.arange(2, g.T + 2)]),
    ),
    Case("no_positions", lambda g: (NoPositions(), [g.x]), "none_positions"),
    Case("rotary", lambda g: (Rotary(), [g.normal(H, g.T, 4), np.arange(g.T)[::-1] + 2])),
    Case("rotary_from_0", lambda g: (Rotary(), [g.normal(g.T, 6)]), "rotary"),
    Case(
        "rotary_of_another_base",
        lambda g: (Rotary(50), [g.normal(H, g.T, 6), np.arange(g.T) + 3]),
        "rotary",
        dict(base=50),
    ),
    Case(
        "rotary_of_some_pairs",
        lambda g: (Rotary(frequencies=(0.9, 0.2)), [g.normal(H, g.T, 6), np.arange(g.T) + 3]),
        "rotary",
        dict(frequencies=(0.9, 0.2)),
    ),
    Case("patches", lambda g: (Patches(2), [g.normal(4, 6)]), settings=dict(size=2)),
    Case(
        "patches_of_colours", lambda g: (Patches(3), [g.normal(6, 9, 4)]), "patches", dict(size=3)
    ),
    Case("class_token", lambda g: (ClassToken(D, g.rng), [g.x])),
    Case("token_and_mean", lambda g: (TokenAndMean(), [g.x])),
    Case("layer_scale", lambda g: (LayerScale(D), [g.x])),
    Case("similarity", lambda g: (Similarity(), [g.normal(D), g.normal(D)])),
    Case("pick", lambda g: (Pick(), [g.x, g.some_places])),
    Case("windows", lambda g: (Windows(3), [g.x]), settings=dict(width=3, stride=1)),
    Case(
        "windows_with_gaps",
        lambda g: (Windows(5, stride=3), [g.memory]),
        "windows",
        dict(width=5, stride=3),
    ),
    Case(
        "sound_embedding",
        lambda g: (
            SoundEmbedding(D, F, LearnedPositions(g.S, F, g.rng), g.rng, p_drop=0.3),
            [g.normal(2 * g.S - 1, D)],
        ),
        settings=dict(p_drop=0.3),
    ),
]


def cell(kind: str, other: str = "", **settings) -> Case:
    def build(g):
        layer = CELLS[kind](D, g.rng, **settings)
        return layer, [g.normal(layer.gates * D), g.normal(layer.states * D)]

    return Case(f"{kind}_cell{other}", build, f"{kind}_cell")


RECURRENCE = [
    Case("convolution", lambda g: (Convolution(D, g.rng), [g.memory])),
    Case(
        "convolution_wider_than_its_input",
        lambda g: (Convolution(D, g.rng, width=7), [g.x]),
        "convolution",
    ),
    *map(cell, CELLS),
    cell("gru", "_with_inner_bias", inner_bias=True),
    Case(
        "recurrent",
        lambda g: (Recurrent(CELLS["rnn"](7, g.rng), D, g.rng), [g.x]),
        settings=dict(cell="rnn"),
    ),
    Case(
        "recurrent_with_padding",
        lambda g: (Recurrent(CELLS["lstm"](7, g.rng), D, g.rng), [g.x, g.lengths, g.normal(7)]),
        "recurrent",
        dict(cell="lstm"),
    ),
    Case(
        "recurrent_backwards",
        lambda g: (
            Recurrent(CELLS["gru"](7, g.rng), D, g.rng, backwards=True, d_context=6),
            [g.x, g.lengths, g.normal(7), g.normal(6)],
        ),
        "recurrent",
        dict(cell="gru", backwards=True),
    ),
]

LOSSES = [
    Case(
        "cross_entropy",
        lambda g: (CrossEntropy(0.0), [g.normal(g.T, V), g.target_out]),
        settings=dict(smoothing=0.0),
    ),
    Case(
        "label_smoothed_cross_entropy",
        lambda g: (CrossEntropy(0.1), [3 * g.normal(g.T, V), g.target_out, g.target_out != 0]),
        "cross_entropy",
        dict(smoothing=0.1),
    ),
    Case("divergence", lambda g: (Divergence(), [g.normal(g.T, V), g.normal(g.T, V)])),
    Case(
        "divergence_where_it_counts",
        lambda g: (Divergence(), [g.normal(g.T, V), g.normal(g.T, V), g.target_out != 0]),
        "divergence",
    ),
]

LAYERS = [*ELEMENTWISE, *INPUTS, *ATTENTION, *RECURRENCE, *LOSSES]
