"""Scaled dot-product attention and multi-head attention (section 3.2)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numformer.backend import array_module, matmul, transpose
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.layers.blocks import BlockAttention, worth_blocks
from numformer.layers.dropout import Dropout, dropout, dropout_backward
from numformer.layers.linear import Linear
from numformer.layers.memory import KeysAndValues, Memory, Shared
from numformer.layers.mixer import Mixer
from numformer.layers.places import Places
from numformer.layers.reach import Reach, reach_of
from numformer.layers.softmax import softmax, softmax_backward


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, position_bias=None):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V   (section 3.2.1, equation 1).

    query (..., T, K), key (..., S, K), value (..., S, K_v), mask broadcast to (..., T, S), True =
    may attend, keep a dropout mask (..., T, S) on the weights, position_bias broadcast to
    (..., T, S), which is added to the scores (not in the paper; alibi.py)
    -> output (..., T, K_v), weights and dropped (..., T, S), dropped = weights * keep.
    """
    scores = matmul(query, transpose(key))
    scores *= 1 / math.sqrt(query.shape[-1])
    if position_bias is not None:
        scores += position_bias
    weights = softmax(scores, mask)
    dropped = dropout(weights, keep)
    return matmul(dropped, value), weights, dropped


def scaled_dot_product_attention_backward(doutput, query, key, value, weights, dropped, keep):
    """doutput (..., T, K_v) -> dquery (..., T, K), dkey (..., S, K), dvalue (..., S, K_v)."""
    dvalue = matmul(transpose(dropped), doutput)  # output = dropped V
    ddropped = matmul(doutput, transpose(value))  # output = dropped V
    dweights = dropout_backward(ddropped, keep)  # dropped = dropout(weights)
    dscores = softmax_backward(dweights, weights)  # weights = softmax(scores)
    dscores *= 1 / math.sqrt(query.shape[-1])  # scores = Q K^T / sqrt(d_k)
    dquery = matmul(dscores, key)  # scores = Q K^T
    dkey = matmul(transpose(dscores), query)  # scores = Q K^T
    return dquery, dkey, dvalue


class ScaledDotProductAttention(Layer):
    """query (..., T, K), key (..., S, K), value (..., S, K_v), mask -> (..., T, K_v).

    `p_drop` is dropout on the weights, which the paper does not mention and many recipes have. What
    is added to the scores, `position_bias`, is no parameter and has no gradient.
    """

    def __init__(self, p_drop: float = 0.0):
        self.dropout = Dropout(p_drop)

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        position_bias: Array | None = None,
    ) -> Array:
        keep = self.dropout.draw((*query.shape[:-1], key.shape[-2]), like=query)
        output, weights, dropped = scaled_dot_product_attention(
            query, key, value, mask, keep, position_bias
        )
        self.save(query=query, key=key, value=value, weights=weights, dropped=dropped, keep=keep)
        return output

    def backward(self, doutput: Array) -> Any:
        return scaled_dot_product_attention_backward(doutput, **self.pop_saved())

    def saved_weights(self) -> list:
        """The weights (..., T, S) of each forward that no backward has met yet."""
        return [record["weights"] for record in self.saved]


def split_heads(x, heads: int, places: Places | None = None):
    """x (B, T, H K) -> (B, H, T, K), a view; or x (N, H K) at `places` -> (B, H, T, K)."""
    if places and places.skip_padding:
        return places.spread(x, heads)
    batch, length, _ = x.shape
    return x.reshape(batch, length, heads, -1).swapaxes(1, 2)


def merge_heads(x, places: Places | None = None):
    """x (B, H, T, K) -> (B, T, H K), or (N, H K) at `places`.

    The heads stand side by side, as Concat in section 3.2.2.
    """
    if places and places.skip_padding:
        return places.gather(x)
    batch, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * size)


def head_size(d_model: int, heads: int) -> int:
    """d_k = d_v = d_model / heads (section 3.2.2). Raises InputError where that is no integer."""
    if heads < 1 or d_model % heads:
        raise InputError(
            "d_model is a multiple of heads",
            f"d_model {d_model}, heads {heads}",
            "Change one of them, or give d_k and d_v yourself.",
        )
    return d_model // heads


class MultiHeadAttention(Layer):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O   (section 3.2.2).

    x (B, T, D), memory (B, S, D), reach -> (B, T, D); with a Reach of rows also x (N, D), memory
    (M, D) -> (N, D), the real positions alone. head_i = Attention(x W_i^Q, memory W_i^K,
    memory W_i^V); the W_i of all heads are the columns of one weight. `reach` is a Reach, a boolean
    array that broadcasts to (B, H, T, S), True = may attend, or None. `backward` returns dx,
    dmemory.

    As in the paper the projections have no bias unless `bias` is set, and d_k = d_v = D / heads
    unless they are given. `attention` makes, of p_drop, the layer that each head computes; long
    sequences are computed in blocks instead (blocks.py), with the same result. Where
    positions come in here, which is not the paper's way, `rotary` turns queries and keys, and
    `position_bias(heads, queries, keys)` is added to the scores of positions (T,) and (S,).
    """

    role = "attention"

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = False,
        p_drop: float = 0.0,
        attention: Callable[[float], ScaledDotProductAttention] = ScaledDotProductAttention,
        rotary: Layer | None = None,
        position_bias: Callable | None = None,
    ):
        self.heads = heads
        self.d_k = head_size(d_model, heads) if d_k is None else d_k
        self.d_v = head_size(d_model, heads) if d_v is None else d_v
        self.query = Linear(d_model, heads * self.d_k, rng, bias)
        self.key = Linear(d_model, self.heads_of_keys * self.d_k, rng, bias)
        self.value = Linear(d_model, self.heads_of_keys * self.d_v, rng, bias)
        self.attention = attention(p_drop)
        # An attention of one's own meets its scores whole.
        exact = attention is ScaledDotProductAttention
        self.in_blocks: Any = BlockAttention(p_drop) if exact else None
        self.rotary, self.position_bias = rotary, position_bias
        self.output = Linear(heads * self.d_v, d_model, rng, bias)

    @property
    def heads_of_keys(self) -> int:
        """How many heads keys and values have."""
        return self.heads

    def forward(
        self, x: Array, memory: Array, reach: Any = None, past: Memory | None = None
    ) -> Array:
        reach = reach_of(reach, x, memory, past.length if past else 0)
        query = split_heads(self.query.forward(x), self.heads, reach.queries)
        if self.rotary:
            query = self.rotary.forward(query, reach.queries.positions)
        key, value, reach_of_keys = self.keys_and_values(memory, reach, past)
        heads = self.attend(query, key, value, reach_of_keys)
        self.save(reach=reach)
        return self.output.forward(merge_heads(heads, reach.queries))

    def backward(self, dy: Array) -> Any:
        reach = self.pop_saved()["reach"]
        dheads = split_heads(self.output.backward(dy), self.heads, reach.queries)
        dquery, dkey, dvalue = self.attend_backward(dheads, reach)
        if self.rotary:
            dkey, dquery = self.rotary.backward(dkey), self.rotary.backward(dquery)
        dmemory = self.value.backward(merge_heads(dvalue, reach.keys))
        dmemory += self.key.backward(merge_heads(dkey, reach.keys))  # memory gives both
        return self.query.backward(merge_heads(dquery, reach.queries)), dmemory

    def keys_and_values(self, memory, reach: Reach, past: Memory | None):
        """memory (B, S, D) -> key (B, H, S, K), value (B, H, S, K_v), the queries' reach of them.

        With a `past` these are those of all positions so far.
        """
        key = split_heads(self.key.forward(memory), self.heads_of_keys, reach.keys)
        value = split_heads(self.value.forward(memory), self.heads_of_keys, reach.keys)
        if self.rotary:
            key = self.rotary.forward(key, reach.keys.positions)
        if past is None:
            return key, value, reach
        key, value, positions = past.of(self, self.remembered).append(key, value)
        return key, value, reach.over(positions)

    def remembered(self, past: Memory) -> Any:
        """What keeps the keys and values for later positions."""
        return KeysAndValues(past)

    def attend(self, query, key, value, reach: Reach):
        """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v) -> (B, H, T, K_v).

        Long sequences are taken in blocks.
        """
        if not self.takes_blocks(reach):
            return self.attention.forward(query, key, value, *self.mask_and_bias(query, reach))
        bias = self.position_bias and partial(self.position_bias, self.heads)
        return self.in_blocks.forward(query, key, value, reach, bias)

    def attend_backward(self, dheads, reach: Reach):
        """dheads (B, H, T, K_v) -> dquery (B, H, T, K), dkey (B, H, S, K), dvalue."""
        layer = self.in_blocks if self.takes_blocks(reach) else self.attention
        return layer.backward(dheads)

    def takes_blocks(self, reach: Reach) -> bool:
        """Whether the heads are computed in blocks, not by the plain formula."""
        return self.in_blocks is not None and worth_blocks(reach)

    def mask_and_bias(self, query, reach: Reach) -> tuple:
        """What the scores of a query (B, H, T, K) meet, each None where there is none."""
        xp, bias = array_module(query), None
        if self.position_bias:
            positions = (xp.asarray(places.positions) for places in (reach.queries, reach.keys))
            bias = self.position_bias(self.heads, *positions).astype(query.dtype)
        return reach.dense(xp), bias

    def looks(self):
        """Where the queries of the latest forward looked: weights (B, H, T, S)."""
        reach = self.saved[-1]["reach"]
        layer = self.in_blocks if self.takes_blocks(reach) else self.attention
        return layer.saved_weights()[-1]

    @classmethod
    def build(cls, config, rng: np.random.Generator) -> "MultiHeadAttention":
        """The attention of a config, a TowerConfig."""
        return cls(config.d_model, config.heads, rng, **config.of_attention)

    @classmethod
    def entries(cls, config) -> int:
        """The entries of the matrices of such an attention."""
        sizes = (
            size or head_size(config.d_model, config.heads) for size in (config.d_k, config.d_v)
        )
        return 2 * config.d_model * config.heads * sum(sizes)


class SelfAttention(MultiHeadAttention, Mixer):
    """x (B, T, D), reach -> (B, T, D): query, key and value all come from x (section 3.2.3)."""

    looks_ahead = True

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:  # type: ignore[override]
        return super().forward(x, x, reach, past)

    def backward(self, dy: Array) -> Any:
        dx, dmemory = super().backward(dy)
        dx += dmemory  # x gives the queries, and as memory the keys and values
        return dx

    @classmethod
    def build(  # type: ignore[override]
        cls, config, rng: np.random.Generator, causal: bool
    ) -> "SelfAttention":
        """As Mixer.build. Positions come in here where the config says so."""
        settings = config.of_attention | config.positions_in_attention | cls.own_settings(config)
        return cls(config.d_model, config.heads, rng, **settings)


class CrossAttention(MultiHeadAttention):
    """x (B, T, D), memory (B, S, D), reach -> (B, T, D): the decoder looks at the encoder's output.

    A memory is another sequence: how far its positions are from those of x says nothing. With a
    `past` its keys and values are computed once, at the first position. The hypotheses of a
    sequence that are written at once are so many queries of its memory.
    """

    def keys_and_values(self, memory, reach: Reach, past: Memory | None):
        def computed(past=None):
            key, value, _ = MultiHeadAttention.keys_and_values(self, memory, reach, None)
            return Shared(key=key, value=value)

        kept = computed() if past is None else past.of(self, computed)
        return kept["key"], kept["value"], reach
