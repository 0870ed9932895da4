"""Every layer once, small, with what makes mistakes visible: how to build it and its inputs.

Batches above 1, lengths above 1, S != T, several heads, dropout on, padding and causal masks,
and a row in which every key is masked. A new layer is one entry of TABLE; the gradient check, the
contract tests and the comparison with PyTorch then hold it to everything.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from numformer.layer import Layer
from numformer.layers import CELLS
from numformer.layers.activation import GELU, ReLU, SwiGLU, Tanh
from numformer.layers.additive_attention import AdditiveAttention
from numformer.layers.alibi import ALiBiAttention
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.divergence import Divergence
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.mask import causal_mask, padding_mask
from numformer.layers.patches import ClassToken, Patches
from numformer.layers.picked import Pick
from numformer.layers.positional import LearnedPositions, NoPositions, SinusoidalPositions
from numformer.layers.recurrent import Recurrent
from numformer.layers.residual import Residual
from numformer.layers.rms_norm import RMSNorm
from numformer.layers.rotary import RotaryAttention
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import Softmax
from numformer.models import Block, Config, InputEmbedding, Objective, Tower, Transformer
from numformer.models.language_model import LanguageModel
from numformer.models.masked import MaskedLanguageModel
from numformer.models.recurrent import AttentionDecoder, RecurrentEncoderDecoder
from numformer.models.vision import VisionTransformer

B, S, T, D, H, F, V = 3, 5, 4, 8, 2, 12, 11

SOURCE = np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [0, 0, 0, 0, 0]])  # the last row: all padding
TARGET_IN = np.array([[1, 9, 4, 5], [1, 9, 9, 0], [1, 7, 0, 0]])
TARGET_OUT = np.array([[9, 4, 5, 2], [9, 9, 2, 0], [7, 2, 0, 0]])
SOURCE_MASK = padding_mask(SOURCE != 0)
# Of B sequences of length T, one of them all padding: a second sorting would not undo the first.
LENGTHS = np.array([0, 4, 2])
SOME_PLACES = np.array([9, 0, 4, 11, 5])  # among the B T of a batch
TARGET_MASK = causal_mask(T) & padding_mask(TARGET_IN != 0)


@dataclass(frozen=True)
class Case:
    """One layer to hold to everything; calling it gives a fresh (layer, inputs).

    `build(rng, x, memory)` -> layer, inputs, of which x (B, T, D) and memory (B, S, D) may be some.
    `reference` is the function of tests/gradient_check/torch_reference.py that computes the same
    from `settings`.
    """

    name: str
    reference: str
    build: Callable[..., tuple[Layer, list]]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> tuple[Layer, list]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))  # no other case changes it
        return self.build(rng, rng.standard_normal((B, T, D)), rng.standard_normal((B, S, D)))


SIZES = dict(d_model=D, d_ff=F, heads=H, layers=2, p_drop=0.2)
SMALL = dict(source_vocabulary=V, target_vocabulary=V, **SIZES)


def of_config(name: str, reference: str, build: Callable, **changes) -> Case:
    """What the small Config with `changes` composes: build(config, rng, x, memory)."""
    config = Config(**(SMALL | changes))
    return Case(name, reference, partial(build, config), dict(config=config))


def attention_of_positions(layer, rng, x, memory):
    widths = ((T, 4), (S, 4), (S, 5))
    query, key, value = (rng.standard_normal((B, H, *shape)) for shape in widths)
    return layer(ScaledDotProductAttention(0.3)), [query, key, value, SOURCE_MASK]


LAYERS = [
    Case("linear", "linear", lambda rng, x, memory: (Linear(D, F, rng), [x])),
    Case("linear_without_bias", "linear",
         lambda rng, x, memory: (Linear(D, F, rng, bias=False), [x])),
    Case("output_projection", "output_projection",
         lambda rng, x, memory: (OutputProjection(Embedding(V, D, rng).weight), [x])),
    Case("relu", "relu", lambda rng, x, memory: (ReLU(), [x])),
    Case("gelu", "gelu", lambda rng, x, memory: (GELU(), [3 * x])),
    Case("swiglu", "swiglu", lambda rng, x, memory: (SwiGLU(), [2 * x])),
    Case("softmax", "softmax",
         lambda rng, x, memory: (Softmax(), [rng.standard_normal((B, H, T, S))])),
    Case("masked_softmax", "softmax",
         lambda rng, x, memory: (Softmax(), [rng.standard_normal((B, H, T, S)), SOURCE_MASK])),
    Case("layer_norm", "layer_norm", lambda rng, x, memory: (LayerNorm(D), [x])),
    # A variance near epsilon shows an epsilon that stands in the wrong place.
    Case("layer_norm_of_nearly_equal_values", "layer_norm",
         lambda rng, x, memory: (LayerNorm(D, epsilon=1e-2), [3 + 0.1 * x]), dict(epsilon=1e-2)),
    Case("rms_norm", "rms_norm", lambda rng, x, memory: (RMSNorm(D), [x])),
    Case("rms_norm_of_small_values", "rms_norm",
         lambda rng, x, memory: (RMSNorm(D, epsilon=1e-2), [0.1 * x]), dict(epsilon=1e-2)),
    Case("dropout", "dropout", lambda rng, x, memory: (Dropout(0.3), [x]), dict(p_drop=0.3)),
    Case("embedding", "embedding", lambda rng, x, memory: (Embedding(V, D, rng), [TARGET_IN])),
    # A vocabulary beyond the size up to which scatter_add is one product.
    Case("embedding_of_many_symbols", "embedding",
         lambda rng, x, memory: (Embedding(300, D, rng), [TARGET_IN * 20])),
    Case("sinusoidal_positions", "sinusoidal_positions",
         lambda rng, x, memory: (SinusoidalPositions(), [x])),
    Case("learned_positions", "learned_positions",
         lambda rng, x, memory: (LearnedPositions(T + 3, D, rng), [x, np.arange(2, T + 2)])),
    Case("no_positions", "none_positions", lambda rng, x, memory: (NoPositions(), [x])),
    Case("scaled_dot_product_attention", "scaled_dot_product_attention",
         lambda rng, x, memory: (ScaledDotProductAttention(), [
             rng.standard_normal((B, H, T, 3)), rng.standard_normal((B, H, S, 3)),
             rng.standard_normal((B, H, S, 5)), SOURCE_MASK])),
    Case("scaled_dot_product_attention_with_dropout", "scaled_dot_product_attention",
         lambda rng, x, memory: (ScaledDotProductAttention(0.3),
                                 [*rng.standard_normal((3, B, H, T, 3)), TARGET_MASK]),
         dict(attention_dropout=0.3)),
    # Fewer queries than keys: they stand after keys of a cache.
    *(Case(f"{name}_attention", f"{name}_attention", partial(attention_of_positions, layer),
           dict(attention_dropout=0.3))
      for name, layer in (("rotary", RotaryAttention), ("alibi", ALiBiAttention))),
    Case("dot_product_score", "dot_product_score",
         lambda rng, x, memory: (DotProductScore(), [x, memory])),
    Case("dot_product_score_without_scale", "dot_product_score",
         lambda rng, x, memory: (DotProductScore(scaled=False), [x, memory]), dict(scaled=False)),
    Case("multiplicative_score", "multiplicative_score", lambda rng, x, memory: (
        MultiplicativeScore(D, F, rng), [x, rng.standard_normal((B, S, F))])),
    Case("additive_score", "additive_score", lambda rng, x, memory: (
        AdditiveScore(D, F, 7, rng),
        [rng.standard_normal((B, H, T, D)), rng.standard_normal((B, H, S, F))])),
    Case("multi_head_attention", "multi_head_attention", lambda rng, x, memory: (
        MultiHeadAttention(D, H, rng), [x, memory, SOURCE_MASK]), dict(heads=H)),
    Case("multi_head_attention_with_biases", "multi_head_attention", lambda rng, x, memory: (
        MultiHeadAttention(D, H, rng, d_k=3, d_v=5, bias=True, p_drop=0.3),
        [x, memory, SOURCE_MASK]), dict(heads=H, attention_dropout=0.3)),
    Case("self_attention", "self_attention", lambda rng, x, memory: (
        SelfAttention(D, H, rng), [x, TARGET_MASK]), dict(heads=H)),
    Case("cross_attention", "multi_head_attention", lambda rng, x, memory: (
        CrossAttention(D, H, rng), [x, memory, SOURCE_MASK]), dict(heads=H)),
    Case("tanh", "tanh", lambda rng, x, memory: (Tanh(), [x])),
    *(Case(f"{name}_cell", f"{name}_cell", lambda rng, x, memory, cell=cell: (
        cell(D, rng), [rng.standard_normal((B, cell.gates * D)),
                       rng.standard_normal((B, cell.states * D))]))
      for name, cell in CELLS.items()),
    Case("recurrent", "recurrent", lambda rng, x, memory: (
        Recurrent(CELLS["rnn"](7, rng), D, rng), [x]), dict(cell="rnn")),
    Case("recurrent_with_padding", "recurrent", lambda rng, x, memory: (
        Recurrent(CELLS["lstm"](7, rng), D, rng),
        [x, LENGTHS, rng.standard_normal((B, 7))]), dict(cell="lstm")),
    Case("recurrent_backwards", "recurrent", lambda rng, x, memory: (
        Recurrent(CELLS["gru"](7, rng), D, rng, backwards=True, d_context=6),
        [x, LENGTHS, rng.standard_normal((B, 7)), rng.standard_normal((B, 6))]),
        dict(cell="gru", backwards=True)),
    Case("additive_attention", "additive_attention", lambda rng, x, memory: (
        AdditiveAttention(7, 6, rng),
        [rng.standard_normal((B, 7)), rng.standard_normal((B, S, 6)), memory, SOURCE != 0])),
    Case("feed_forward", "feed_forward", lambda rng, x, memory: (FeedForward(D, F, rng), [x])),
    Case("feed_forward_with_dropout", "feed_forward", lambda rng, x, memory: (
        FeedForward(D, F, rng, p_drop=0.3), [x]), dict(activation_dropout=0.3)),
    Case("feed_forward_swiglu", "feed_forward", lambda rng, x, memory: (
        FeedForward(D, F, rng, SwiGLU, bias=False), [x]), dict(activation="swiglu")),
    Case("residual_post_norm", "residual", lambda rng, x, memory: (
        Residual(SelfAttention(D, H, rng), D, 0.3, "post"), [x, TARGET_MASK]),
        dict(sublayer="self_attention", heads=H, p_drop=0.3, norm="post")),
    Case("residual_pre_norm", "residual", lambda rng, x, memory: (
        Residual(CrossAttention(D, H, rng), D, 0.3, "pre"), [x, memory, SOURCE_MASK]),
        dict(sublayer="multi_head_attention", heads=H, p_drop=0.3, norm="pre")),
    Case("patches", "patches",
         lambda rng, x, memory: (Patches(2), [rng.standard_normal((B, 4, 6))]), dict(size=2)),
    Case("patches_of_colours", "patches",
         lambda rng, x, memory: (Patches(3), [rng.standard_normal((B, 6, 9, 4))]), dict(size=3)),
    Case("class_token", "class_token", lambda rng, x, memory: (ClassToken(D, rng), [x])),
    Case("pick", "pick", lambda rng, x, memory: (Pick(), [x, SOME_PLACES])),
    Case("cross_entropy", "cross_entropy", lambda rng, x, memory: (
        CrossEntropy(0.0), [rng.standard_normal((B, T, V)), TARGET_OUT]), dict(smoothing=0.0)),
    Case("label_smoothed_cross_entropy", "cross_entropy", lambda rng, x, memory: (
        CrossEntropy(0.1), [3 * rng.standard_normal((B, T, V)), TARGET_OUT, TARGET_OUT != 0]),
        dict(smoothing=0.1)),
    Case("divergence", "divergence", lambda rng, x, memory: (
        Divergence(), [*rng.standard_normal((2, B, T, V))])),
    Case("divergence_where_it_counts", "divergence", lambda rng, x, memory: (
        Divergence(), [*rng.standard_normal((2, B, T, V)), TARGET_OUT != 0])),
]  # fmt: skip
PARTS = [
    ("input_embedding", "input_embedding", lambda config, rng, x, memory: (
        InputEmbedding(config, Embedding(V, D, rng), rng), [SOURCE])),
    ("block", "block", lambda config, rng, x, memory: (
        Block(config, rng), [memory, SOURCE_MASK])),
    ("block_with_cross_attention", "block", lambda config, rng, x, memory: (
        Block(config, rng, cross=True), [x, TARGET_MASK, memory, SOURCE_MASK])),
    ("tower", "tower", lambda config, rng, x, memory: (
        Tower(config, rng), [memory, SOURCE_MASK])),
    ("tower_with_cross_attention", "tower", lambda config, rng, x, memory: (
        Tower(config, rng, cross=True), [x, TARGET_MASK, memory, SOURCE_MASK])),
]  # fmt: skip
VARIATIONS = {
    "post_norm": {},
    "pre_norm": dict(norm="pre"),
    "rms_norm": dict(norm="pre", normalization="rms"),
    "pre_norm_untied": dict(norm="pre", tying="none", source_vocabulary=V + 2),
    "target_tied": dict(tying="target", source_vocabulary=V + 2),
    "learned_positions": dict(positions="learned", max_length=6),
    "rotary_positions": dict(positions="rotary"),
    "sinusoids_and_rotary_positions": dict(positions="sinusoidal_rotary"),
    "alibi_positions": dict(positions="alibi"),
    "no_positions": dict(positions="none"),
    "gelu": dict(activation="gelu"),
    "swiglu": dict(activation="swiglu", feed_forward_bias=False),
    "attention_bias": dict(attention_bias=True),
    "d_k_and_d_v": dict(d_k=3, d_v=5),
    "odd_sizes": dict(d_model=11, heads=3, d_k=3, d_v=3),
    "all_dropouts": dict(attention_dropout=0.2, activation_dropout=0.2),
}


def transformer(config, rng, x, memory):
    return Transformer(config, int(rng.integers(100))), [SOURCE, TARGET_IN]


def objective(config, rng, x, memory, smoothing):
    model = Transformer(config, int(rng.integers(100)))
    return Objective(model, smoothing), [SOURCE, TARGET_IN, TARGET_OUT]


def of_objective(name: str, smoothing: float, **changes) -> Case:
    """Without dropout, for padding is left out there, and its masks have other shapes."""
    config = Config(**(SMALL | changes | dict(p_drop=0.0)))
    build = partial(objective, config, smoothing=smoothing)
    return Case(name, "objective", build, dict(config=config, smoothing=smoothing))


def r_drop(config, rng, x, memory):
    """With dropout, so without padding: its masks have other shapes where that is left out."""
    model = Transformer(config, int(rng.integers(100)))
    ids = (rng.integers(4, V, (B, length)) for length in (S, T, T))
    return Objective(model, 0.1, r_drop=3.0), [*ids]


LANGUAGE = LanguageModel.Config(
    vocabulary=V, d_model=D, d_ff=F, heads=H, layers=2, positions="learned", max_length=6
)
MASKED = MaskedLanguageModel.Config(vocabulary=V, **SIZES)
OF_IMAGES = dict(height=4, width=6, classes=7, **SIZES)
GREY, COLOURED = (
    VisionTransformer.Config(**OF_IMAGES, **more)
    for more in (dict(channels=1), dict(channels=3, norm="pre", positions="sinusoidal"))
)


def language_model(rng, x, memory):
    return LanguageModel(LANGUAGE, 3), [TARGET_IN]


def attention_decoder(rng, x, memory, cell):
    """States (B, 7) that look at a memory (B, S, D)."""
    decoder = AttentionDecoder(CELLS[cell](7, rng), D, D, rng)
    return decoder, [x, LENGTHS, rng.standard_normal((B, 7)), memory, SOURCE != 0]


def recurrent(cell: str, context: str, p_drop: float, smoothing: float | None = None) -> Case:
    """A recurrent encoder-decoder; with `smoothing` its objective, where padding is left out."""
    config = RecurrentEncoderDecoder.Config(
        source_vocabulary=V, target_vocabulary=V + 2, d_model=D, cell=cell, context=context,
        p_drop=p_drop,
    )  # fmt: skip

    def build(rng, x, memory):
        model = RecurrentEncoderDecoder(config, 3)
        if smoothing is None:
            return model, [SOURCE, TARGET_IN]
        return Objective(model, smoothing), [SOURCE, TARGET_IN, TARGET_OUT]

    name, settings = f"recurrent_{cell}_{context}", dict(config=config)
    if smoothing is None:
        return Case(name, "recurrent_encoder_decoder", build, settings)
    settings |= dict(smoothing=smoothing, model="recurrent_encoder_decoder")
    return Case(f"{name}_objective", "objective", build, settings)


def masked(rng, x, memory):
    return MaskedLanguageModel(MASKED, 3), [SOURCE]


def masked_at_some_places(rng, x, memory):
    return MaskedLanguageModel(MASKED, 3), [SOURCE, SOME_PLACES]


def vision(config, rng, x, memory):
    shape = (B, 4, 6) if config.channels == 1 else (B, 4, 6, config.channels)
    return VisionTransformer(config, 3), [rng.standard_normal(shape)]


TABLE = [
    *LAYERS,
    *(
        of_config(f"{name}_{norm}_norm", reference, build, norm=norm)
        for name, reference, build in PARTS
        for norm in ("post", "pre")
    ),
    *(
        of_config(f"transformer_{name}", "transformer", transformer, **changes)
        for name, changes in VARIATIONS.items()
    ),
    Case("language_model", "language_model", language_model, dict(config=LANGUAGE)),
    *(Case(f"attention_decoder_{cell}", "attention_decoder",
           partial(attention_decoder, cell=cell), dict(cell=cell)) for cell in ("lstm", "gru")),
    recurrent("rnn", "fixed", 0.2),
    recurrent("gru", "fixed", 0.0),
    recurrent("rnn", "attention", 0.0),
    recurrent("lstm", "attention", 0.2),
    recurrent("lstm", "fixed", 0.0, smoothing=0.1),
    recurrent("gru", "attention", 0.0, smoothing=0.1),
    Case("masked", "masked", masked, dict(config=MASKED)),
    Case("masked_at_some_places", "masked", masked_at_some_places, dict(config=MASKED)),
    Case("vision", "vision", partial(vision, GREY), dict(config=GREY)),
    Case("vision_of_colours", "vision", partial(vision, COLOURED), dict(config=COLOURED)),
    of_objective("objective", 0.1),
    of_objective("objective_without_smoothing", 0.0, norm="pre", positions="learned", max_length=6),
    Case("objective_r_drop", "objective_r_drop", partial(r_drop, Config(**SMALL)),
         dict(config=Config(**SMALL), smoothing=0.1, r_drop=3.0)),
]  # fmt: skip
CASES = {case.name: case for case in TABLE}
