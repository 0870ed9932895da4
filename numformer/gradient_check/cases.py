"""Every layer once, small, with what makes mistakes visible: how to build it and its inputs.

Batches above 1, lengths above 1, S != T, several heads, dropout on, padding and causal masks,
and a row in which every key is masked. A new layer is one entry here; the gradient check and the
contract tests then hold it to everything.
"""

from collections.abc import Callable

import numpy as np

from numformer.layer import Layer
from numformer.layers.activation import ReLU
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.mask import causal_mask, padding_mask
from numformer.layers.positional import LearnedPositions, SinusoidalPositions
from numformer.layers.residual import Residual
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import Softmax
from numformer.models import Block, Config, InputEmbedding, Objective, Tower, Transformer

B, S, T, D, H, F, V = 3, 5, 4, 8, 2, 12, 11

SOURCE = np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [0, 0, 0, 0, 0]])  # the last row: all padding
TARGET_IN = np.array([[1, 9, 4, 5], [1, 9, 9, 0], [1, 7, 0, 0]])
TARGET_OUT = np.array([[9, 4, 5, 2], [9, 9, 2, 0], [7, 2, 0, 0]])
SOURCE_MASK = padding_mask(SOURCE != 0)
TARGET_MASK = causal_mask(T) & padding_mask(TARGET_IN != 0)

CASES: dict[str, Callable[[], tuple[Layer, list]]] = {}


def case(build: Callable) -> Callable:
    """Register `build(rng, x, memory) -> layer, inputs` under its name."""

    def factory():
        rng = np.random.default_rng(len(build.__name__))
        return build(rng, rng.standard_normal((B, T, D)), rng.standard_normal((B, S, D)))

    CASES[build.__name__] = factory
    return build


@case
def linear(rng, x, memory):
    return Linear(D, F, rng), [x]


@case
def linear_without_bias(rng, x, memory):
    return Linear(D, F, rng, bias=False), [x]


@case
def output_projection(rng, x, memory):
    return OutputProjection(Embedding(V, D, rng).weight), [x]


@case
def relu(rng, x, memory):
    return ReLU(), [x]


@case
def softmax(rng, x, memory):
    return Softmax(), [rng.standard_normal((B, H, T, S))]


@case
def masked_softmax(rng, x, memory):
    return Softmax(), [rng.standard_normal((B, H, T, S)), SOURCE_MASK]


@case
def layer_norm(rng, x, memory):
    return LayerNorm(D), [x]


@case
def layer_norm_of_nearly_equal_values(rng, x, memory):
    # A variance near epsilon shows an epsilon that stands in the wrong place.
    return LayerNorm(D, epsilon=1e-2), [3 + 0.1 * x]


@case
def dropout(rng, x, memory):
    return Dropout(0.3), [x]


@case
def embedding(rng, x, memory):
    return Embedding(V, D, rng), [TARGET_IN]


@case
def embedding_of_many_symbols(rng, x, memory):
    # A vocabulary beyond the size up to which scatter_add is one product.
    return Embedding(300, D, rng), [TARGET_IN * 20]


@case
def sinusoidal_positions(rng, x, memory):
    return SinusoidalPositions(), [x]


@case
def learned_positions(rng, x, memory):
    return LearnedPositions(T + 3, D, rng), [x, np.arange(2, T + 2)]


@case
def scaled_dot_product_attention(rng, x, memory):
    query, key, value = (rng.standard_normal((B, H, n, k)) for n, k in ((T, 3), (S, 3), (S, 5)))
    return ScaledDotProductAttention(), [query, key, value, SOURCE_MASK]


@case
def scaled_dot_product_attention_with_dropout(rng, x, memory):
    query, key, value = rng.standard_normal((3, B, H, T, 3))
    return ScaledDotProductAttention(0.3), [query, key, value, TARGET_MASK]


@case
def dot_product_score(rng, x, memory):
    return DotProductScore(), [x, memory]


@case
def dot_product_score_without_scale(rng, x, memory):
    return DotProductScore(scaled=False), [x, memory]


@case
def multiplicative_score(rng, x, memory):
    return MultiplicativeScore(D, F, rng), [x, rng.standard_normal((B, S, F))]


@case
def additive_score(rng, x, memory):
    query, key = rng.standard_normal((B, H, T, D)), rng.standard_normal((B, H, S, F))
    return AdditiveScore(D, F, 7, rng), [query, key]


@case
def multi_head_attention(rng, x, memory):
    return MultiHeadAttention(D, H, rng), [x, memory, SOURCE_MASK]


@case
def multi_head_attention_with_biases(rng, x, memory):
    layer = MultiHeadAttention(D, H, rng, d_k=3, d_v=5, bias=True, p_drop=0.3)
    return layer, [x, memory, SOURCE_MASK]


@case
def self_attention(rng, x, memory):
    return SelfAttention(D, H, rng), [x, TARGET_MASK]


@case
def cross_attention(rng, x, memory):
    return CrossAttention(D, H, rng), [x, memory, SOURCE_MASK]


@case
def feed_forward(rng, x, memory):
    return FeedForward(D, F, rng), [x]


@case
def feed_forward_with_dropout(rng, x, memory):
    return FeedForward(D, F, rng, p_drop=0.3), [x]


@case
def residual_post_norm(rng, x, memory):
    return Residual(SelfAttention(D, H, rng), D, 0.3, "post"), [x, TARGET_MASK]


@case
def residual_pre_norm(rng, x, memory):
    return Residual(CrossAttention(D, H, rng), D, 0.3, "pre"), [x, memory, SOURCE_MASK]


@case
def cross_entropy(rng, x, memory):
    return CrossEntropy(0.0), [rng.standard_normal((B, T, V)), TARGET_OUT, TARGET_OUT != 0]


@case
def label_smoothed_cross_entropy(rng, x, memory):
    return CrossEntropy(0.1), [3 * rng.standard_normal((B, T, V)), TARGET_OUT]


SMALL = dict(
    source_vocabulary=V, target_vocabulary=V, d_model=D, d_ff=F, heads=H, layers=2, p_drop=0.2
)
VARIATIONS = {
    "post_norm": {},
    "pre_norm": dict(norm="pre"),
    "pre_norm_untied": dict(norm="pre", tying="none", source_vocabulary=V + 2),
    "target_tied": dict(tying="target", source_vocabulary=V + 2),
    "learned_positions": dict(positions="learned", max_length=6),
    "attention_bias": dict(attention_bias=True),
    "d_k_and_d_v": dict(d_k=3, d_v=5),
    "all_dropouts": dict(attention_dropout=0.2, activation_dropout=0.2),
    "no_dropout": dict(p_drop=0.0),
    "no_smoothing": dict(label_smoothing=0.0),
    "skipped_padding": dict(p_drop=0.0, positions="learned", max_length=6),
}


def _of_config(name: str, changes: dict) -> None:
    smoothing = changes.get("label_smoothing", 0.1)
    config = Config(**(SMALL | {n: v for n, v in changes.items() if n != "label_smoothing"}))

    def block(rng, x, memory):
        return Block(config, rng), [memory, SOURCE_MASK]

    def block_with_cross_attention(rng, x, memory):
        return Block(config, rng, cross=True), [x, TARGET_MASK, memory, SOURCE_MASK]

    def tower(rng, x, memory):
        return Tower(config, rng), [memory, SOURCE_MASK]

    def tower_with_cross_attention(rng, x, memory):
        return Tower(config, rng, cross=True), [x, TARGET_MASK, memory, SOURCE_MASK]

    def input_embedding(rng, x, memory):
        return InputEmbedding(config, Embedding(V, D, rng), rng), [SOURCE]

    def transformer(rng, x, memory):
        return Transformer(config, int(rng.integers(100))), [SOURCE, TARGET_IN]

    def objective(rng, x, memory):
        model = Transformer(config, int(rng.integers(100)))
        return Objective(model, smoothing), [SOURCE, TARGET_IN, TARGET_OUT]

    whole = (block, block_with_cross_attention, tower, tower_with_cross_attention, input_embedding,
             transformer, objective)  # fmt: skip
    for build in whole if name in ("post_norm", "pre_norm") else (objective,):
        build.__name__ += f"_{name}"
        case(build)


for _name, _changes in VARIATIONS.items():
    _of_config(_name, _changes)
