"""Bind a model for one decoding: the same layers, with fewer calls for each symbol.

In a small model, a step multiplies small matrices, and the calls between these products take most
of its time. Binding therefore computes once, when the decoding starts, what every step needs:
one matrix with the weights of query, key and value side by side; the gain of a norm times its
constant factors; a row for each position; the scaled keys and the values of the sources; the mask
of the sources. A bound layer is a function of x (N, D), for N sequences with one new position each.
It returns the same numbers as the layer, apart from rounding in the last digits, and keeps its
state in the same Memory.

FORMS has a form for each class of layers that can be bound: a function that returns the bound
layer, or None if it cannot bind that layer. A layer that is not bound, such as a mixer or a user's
own layer, is called as usual between the bound layers.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer import paper
from numformer.arithmetic import matrix_product, max_last, sum_last
from numformer.blas import MOST_ROWS, PIECE, product
from numformer.generation.ensemble import Ensemble
from numformer.later.activations import GELU
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.heads import BiasedHeads
from numformer.later.attention.patterns import FullPattern, slices
from numformer.later.attention.tiles import TiledAttention
from numformer.later.checkpointed import Checkpointed
from numformer.later.embeddings import BiasedOutputProjection, UnscaledEmbedding
from numformer.later.normal import normal
from numformer.later.positions import NoPositions
from numformer.later.pre_norm import NormedDecoder, NormedEncoder, PreNormResidual
from numformer.models import LanguageModel, SpeechTransformer, Transformer
from numformer.paper import writing
from numformer.paper.attention import (
    CrossAttention,
    Heads,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.paper.decoder import Decoder, DecoderLayer
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding, InputEmbedding, OutputProjection, check_ids
from numformer.paper.encoder import Encoder, EncoderLayer
from numformer.paper.feed_forward import FeedForward, ReLU
from numformer.paper.layer_norm import LayerNorm
from numformer.paper.linear import Linear
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import KeysAndValues, Memory, SourceState
from numformer.paper.positions import LearnedPositions, SinusoidalPositions
from numformer.paper.residual import Residual
from numformer.paper.writing import Writer

SMALL = 1 << 16  # up to this many entries, weights are copied side by side for each decoding
FEW_STEPS = 8  # within this many steps, a transposed copy saves the time that it costs


def bind_model(model: Writer) -> Any:
    """Return a Writer for one decoding, with the weights that the model has when it starts.

    Returns the model itself if it cannot be bound: a model on a GPU, of another kind, of a
    subclass, or with its own `start` or `step`. Of an Ensemble, each model is bound.
    """
    if type(model) is Ensemble:
        ensemble = copy.copy(model)
        ensemble.models = [bind_model(each) for each in model.models]
        return ensemble
    known: Any = model
    if (
        type(model) not in (Transformer, paper.Transformer, LanguageModel, SpeechTransformer)
        or vars(model).keys() & {"start", "step", "forward"}
        or matrix_product.get()
        or type(getattr(getattr(known.output, "weight", None), "data", None)) is not np.ndarray
    ):
        return model
    return Binding(model)


class Binding:
    """A Writer that binds a model of one of these kinds when a decoding starts."""

    def __init__(self, model: Any):
        self.model, self.config = model, model.config

    def start(self, inputs, length: int):
        state, model = self.model.start(inputs, length), self.model
        source = None if isinstance(model, LanguageModel) else state.past.state(model)
        self._step = step = Step(state.past, source)
        if isinstance(model, LanguageModel):
            first, stack = model.input, bind(model.tower, step, "reach", "past")
        else:
            others = "reach", "memory", "memory_reach", "past"
            first, stack = model.target, bind(model.decoder, step, *others)
        self._layers = bind_input(first, step, state.ids), stack, bind(model.output, step)
        return state

    def step(self, ids, state):
        self._step.begin(len(ids))
        embed, stack, project = self._layers
        logits = project(stack(embed(ids)))
        state.past.advance(1)
        return logits


class Step:
    """The arguments that layers take besides x. `begin` begins each step, with its number of rows.

    Layers that are not bound need `latest`, the Places of the new position, and the Reaches.
    """

    def __init__(self, past: Memory, source: Any):
        self.past, self.source = past, source
        if source is not None and not source["valid"].all():
            dtype = source["memory"].dtype
            offset = np.where(source["valid"], dtype.type(0), dtype.type(-np.inf))
            source["offset"] = offset[:, None, None]

    def begin(self, rows: int) -> None:
        self.rows = rows
        self._reach: Reach | None = None

    @property
    def latest(self) -> Places:
        return Places.without_padding(self.rows, 1, self.past.length, skip_padding=True)

    @property
    def reach(self) -> Reach:
        if self._reach is None:
            self._reach = Reach(self.latest, causal=True)
        return self._reach

    @property
    def memory(self):
        return self.source["memory"]

    @property
    def memory_reach(self) -> Reach:
        sources = len(self.source["valid"])
        hypotheses = Places.without_padding(sources, self.rows // sources, skip_padding=True)
        return Reach(hypotheses, Places(self.source["valid"]))


def bind(layer: Any, step: Step, *others: str) -> Callable:
    """Return a function of x: layer.forward(x, *others), where `others` name attributes of Step."""
    if is_exactly(layer, *FORMS) and (function := FORMS[type(layer)](layer, step, *others)):
        return function
    if not others:
        return layer.forward
    return lambda x: layer.forward(x, *(getattr(step, name) for name in others))


def is_exactly(layer: Any, *kinds: Any) -> bool:
    """Whether a layer's class is exactly one of these, and it has no forward of its own."""
    return type(layer) in kinds and "forward" not in vars(layer)


def in_turn(*functions: Callable) -> Callable:
    def chain(x):
        for function in functions:
            x = function(x)
        return x

    return chain


def linear(weight, bias=None) -> Callable:
    """Return the function x (N, D_in) -> x W + b (N, D_out)."""
    most = PIECE // weight.size  # up to this many rows, `product` would do the same
    row = None if bias is None else bias[None]  # adding it to one row needs no broadcasting

    def affine(x):
        y = x.dot(weight) if len(x) <= most else product(x, weight)
        if row is not None:
            y += row
        return y

    return affine


def bind_linear(layer: Linear, step: Step) -> Callable:
    return linear(layer.weight.data, layer.bias and layer.bias.data)


def bind_output(layer: Any, step: Step) -> Callable:
    """x E^T + b. OpenBLAS multiplies many rows faster with a copy of E^T that is in C order."""
    transposed = layer.weight.data.T
    bias = layer.bias.data if isinstance(layer, BiasedOutputProjection) else None
    few, many = linear(transposed, bias), None

    def project(x):
        nonlocal many
        if len(x) <= MOST_ROWS or step.past.room <= FEW_STEPS:
            return few(x)
        if many is None:
            copied = np.empty(transposed.shape, transposed.dtype)
            for block in slices(0, transposed.shape[1], 64):  # both blocks fit in the cache
                copied[:, block] = transposed[:, block]
            many = linear(copied, bias)
        return many(x)

    return project


def bind_input(layer: Any, step: Step, ids: np.ndarray) -> Callable:
    """Return a function that embeds ids (N,): each id's row, plus the row of the new position.

    Only the first `ids` are checked, because the model itself writes the later ids.
    """

    def plain(ids):
        return layer.forward(ids[:, None], step.latest)

    scaled = is_exactly(layer.embedding, Embedding)
    if not (
        is_exactly(layer, InputEmbedding)
        and (scaled or is_exactly(layer.embedding, UnscaledEmbedding))
        and is_exactly(layer.positions, SinusoidalPositions, LearnedPositions, NoPositions)
        and is_exactly(layer.dropout, Dropout)
    ):
        return plain
    room, limit = step.past.room, getattr(layer.positions, "weight", None)
    weight = layer.embedding.weight.data
    check_ids(ids, len(weight))
    positions = np.arange(room if limit is None else min(room, len(limit.data)))
    table = layer.positions.forward(
        np.zeros((len(positions), weight.shape[1]), weight.dtype), positions
    )
    factor = math.sqrt(weight.shape[1])

    def embed(ids):
        if step.past.length >= len(table):  # let the layer raise the error
            return plain(ids)
        x = weight[ids]
        if scaled:
            x *= factor
        x += table[step.past.length]
        return x

    return embed


def bind_norm(layer: LayerNorm, step: Step) -> Callable:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta, numerator and root times sqrt(D)."""
    beta, width = layer.beta.data[None], layer.gamma.size
    gain = layer.gamma.data[None] * math.sqrt(width)
    mean = np.full((width, 1), 1 / width, beta.dtype)
    shift = width * layer.epsilon

    def norm(x):
        y = x - x.dot(mean)
        length = np.vecdot(y, y)[:, None]
        length += shift
        y /= np.sqrt(length)
        y *= gain
        y += beta
        return y

    return norm


def bind_residual(layer: Residual, step: Step, *others: str) -> Callable | None:
    if not is_exactly(layer.dropout, Dropout):
        return None
    sublayer, norm = bind(layer.sublayer, step, *others), bind(layer.norm, step)
    if isinstance(layer, PreNormResidual):
        return lambda x: x + sublayer(norm(x))
    return lambda x: norm(x + sublayer(x))


def bind_stack(stack: Any, step: Step, *others: str) -> Callable:
    layers = [bind(layer, step, *others) for layer in stack.layers]
    norm = [bind(stack.norm, step)] if hasattr(stack, "norm") else []
    return in_turn(*layers, *norm)


def bind_encoder_layer(layer: EncoderLayer, step: Step, *others: str) -> Callable:
    return in_turn(
        bind(layer.self_attention, step, "reach", "past"), bind(layer.feed_forward, step)
    )


def bind_decoder_layer(layer: DecoderLayer, step: Step, *others: str) -> Callable:
    cross = bind(layer.cross_attention, step, "memory", "memory_reach", "past")
    return in_turn(
        bind(layer.self_attention, step, "reach", "past"), cross, bind(layer.feed_forward, step)
    )


def bind_feed_forward(layer: FeedForward, step: Step) -> Callable:
    return in_turn(*(bind(part, step) for part in (layer.inner, layer.activation, layer.outer)))


def attend(query, key, value, offset=None):
    """query (..., T, K), key, value (..., S, K) -> (..., T, K): softmax(Q K^T + offset) V."""
    weights = query @ key.mT
    if offset is not None:
        weights += offset
    highest = max_last(weights)
    if offset is not None:  # if a source is only padding, all weights are -inf, and y is 0
        highest = np.maximum(highest, np.finfo(weights.dtype).min)
    weights -= highest
    np.exp(weights, out=weights)
    total = sum_last(weights)
    if offset is not None:
        total = np.maximum(total, 1)
    y = weights @ value
    y /= total
    return y


def is_plain(layer: Any) -> bool:
    """Whether attention is the paper's formula, and queries, keys and values are linear in x."""
    attention, projections = layer.attention, (layer.query, layer.key, layer.value)
    full = is_exactly(attention, ScaledDotProductAttention) or (
        is_exactly(attention, TiledAttention)
        and type(attention.pattern) is FullPattern
        and attention.bias is None
        and is_exactly(attention.dense, BiasedAttention)
        and attention.dense.cap is None
    )
    return full and all(is_exactly(part, Heads, BiasedHeads) for part in projections)


def queries_keys_values(layer: SelfAttention, step: Step) -> Callable:
    """Return the function x (N, D) -> query / sqrt(K), key and value, each (N, H K)."""
    parts = layer.query, layer.key, layer.value
    scale = 1 / math.sqrt(layer.query.weight.shape[1] // layer.query.heads)
    if sum(part.weight.size for part in parts) > SMALL:
        functions = [bind_linear(part, step) for part in parts]

        def one_by_one(x):
            query, key, value = (function(x) for function in functions)
            query *= scale
            return query, key, value

        return one_by_one

    def side_by_side(first, *others):
        return np.concatenate([first * scale, *others], axis=-1)

    def bias_of(part):  # keys may have none
        return part.bias.data if part.bias else np.zeros_like(part.weight.data[0])

    weight, bias = side_by_side(*(part.weight.data for part in parts)), None
    if layer.query.bias:
        bias = side_by_side(*map(bias_of, parts))
    joint = linear(weight, bias)
    first, second = itertools.accumulate(part.weight.shape[1] for part in parts[:2])

    def split(x):
        y = joint(x)
        return y[:, :first], y[:, first:second], y[:, second:]

    return split


def bind_self_attention(layer: SelfAttention, step: Step, *others: str) -> Callable | None:
    if not is_plain(layer) or layer.key_value_state is not KeysAndValues:
        return None
    project, output = queries_keys_values(layer, step), bind(layer.output, step)
    past, groups = step.past, layer.key.heads
    width = layer.key.weight.shape[1] // groups

    def self_attention(x):
        rows, (query, key, value) = len(x), project(x)
        key, value = key.reshape(rows, groups, 1, width), value.reshape(rows, groups, 1, -1)
        keys, values, _ = past.state(layer, KeysAndValues).append(key, value)
        y = attend(query.reshape(rows, groups, -1, width), keys, values)
        return output(y.reshape(rows, -1))

    return self_attention


def bind_cross_attention(layer: CrossAttention, step: Step, *others: str) -> Callable | None:
    if not is_plain(layer):
        return None
    source, heads = step.source, layer.heads
    places = Places(source["valid"])
    key, value = (part.forward(source["memory"], places) for part in (layer.key, layer.value))
    key = key * (1 / math.sqrt(key.shape[-1]))
    state = step.past.state(layer, lambda past: SourceState(key=key, value=value))
    query, output = bind_linear(layer.query, step), bind(layer.output, step)

    def cross_attention(x):
        key, value, rows = state["key"], state["value"], len(x)
        split = query(x).reshape(len(key), -1, heads, key.shape[-1]).swapaxes(1, 2)
        y = attend(split, key, value, source.get("offset"))
        return output(y.swapaxes(1, 2).reshape(rows, -1))

    return cross_attention


FORMS: dict[type, Callable] = {
    Linear: bind_linear,
    OutputProjection: bind_output,
    BiasedOutputProjection: bind_output,
    LayerNorm: bind_norm,
    ReLU: lambda layer, step: lambda x: np.maximum(x, 0),
    GELU: lambda layer, step: lambda x: x * normal(x)[0],
    FeedForward: bind_feed_forward,
    SelfAttention: bind_self_attention,
    CrossAttention: bind_cross_attention,
    **dict.fromkeys([Residual, PreNormResidual], bind_residual),
    EncoderLayer: bind_encoder_layer,
    DecoderLayer: bind_decoder_layer,
    Checkpointed: lambda layer, step, *others: bind(layer.layer, step, *others),
    **dict.fromkeys([Encoder, Decoder, NormedEncoder, NormedDecoder], bind_stack),
}


def greedy(model: Writer, inputs: np.ndarray, max_length: int) -> list[list[int]]:
    """inputs (B, S), as model.start takes them -> for each row the ids that the model generates.

    Each id is the most probable one at its position. A row stops before its first end id, or after
    `max_length` ids. The start id is left out. numformer/paper/writing.py has the algorithm.
    """
    return writing.greedy(bind_model(model), inputs, max_length)
