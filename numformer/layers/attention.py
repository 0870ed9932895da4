"""Scaled dot-product attention and multi-head attention (section 3.2)."""

import math
from collections.abc import Callable

import numpy as np

from numformer.backend import matmul
from numformer.errors import InputError
from numformer.layer import Layer, saving
from numformer.layers.cache import KeyValueCache
from numformer.layers.dropout import Dropout, dropout, dropout_backward
from numformer.layers.linear import Linear
from numformer.layers.mask import Mask
from numformer.layers.places import Places
from numformer.layers.softmax import softmax, softmax_backward


def transpose(x):
    """x (..., M, N) -> (..., N, M)."""
    return x.swapaxes(-1, -2)


def scaled_dot_product_attention(query, key, value, mask=None, keep=None):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V   (section 3.2.1, equation 1).

    query (..., T, K), key (..., S, K), value (..., S, K_v), mask broadcast to (..., T, S), True =
    may attend, keep a dropout mask (..., T, S) on the weights
    -> output (..., T, K_v), weights and dropped (..., T, S), dropped = weights * keep.
    """
    scores = matmul(query, transpose(key))
    scores *= 1 / math.sqrt(query.shape[-1])
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

    Its saved record holds `weights` (..., T, S): what attention maps draw. `p_drop` is dropout on
    the weights, which the paper does not mention and many recipes have.
    """

    def __init__(self, p_drop: float = 0.0):
        self.dropout = Dropout(p_drop)

    def forward(self, query, key, value, mask=None):
        keep = self.dropout.draw((*query.shape[:-1], key.shape[-2]), like=query)
        output, weights, dropped = scaled_dot_product_attention(query, key, value, mask, keep)
        self.save(query=query, key=key, value=value, weights=weights, dropped=dropped, keep=keep)
        return output

    def backward(self, doutput):
        return scaled_dot_product_attention_backward(doutput, **self.pop_saved())


def split_heads(x, heads: int, places: Places | None = None):
    """x (B, T, H K) -> (B, H, T, K), a view; or x (N, H K) at `places` -> (B, H, T, K)."""
    if places:
        return places.spread(x, heads)
    batch, length, _ = x.shape
    return x.reshape(batch, length, heads, -1).swapaxes(1, 2)


def merge_heads(x, places: Places | None = None):
    """x (B, H, T, K) -> (B, T, H K), or (N, H K) at `places`.

    The heads stand side by side, as Concat in section 3.2.2.
    """
    if places:
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

    x (B, T, D), memory (B, S, D), mask broadcast to (B, H, T, S), True = may attend -> (B, T, D);
    with a `Mask` also x (N, D), memory (M, D) -> (N, D), the rows of real positions alone.
    head_i = Attention(x W_i^Q, memory W_i^K, memory W_i^V); the W_i of all heads are the columns
    of one weight. `backward` returns dx, dmemory. As in the paper the projections have no bias
    unless `bias` is set, and d_k = d_v = D / heads unless they are given. `attention` makes, of
    p_drop, the layer that each head computes.

    A `cache` holds the keys and values of earlier positions; it is refused while saving is on,
    because nothing could flow back to those positions.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = False,
        p_drop: float = 0.0,
        attention: Callable[[float], Layer] = ScaledDotProductAttention,
    ):
        self.heads = heads
        self.d_k = head_size(d_model, heads) if d_k is None else d_k
        self.d_v = head_size(d_model, heads) if d_v is None else d_v
        self.query = Linear(d_model, heads * self.d_k, rng, bias)
        self.key = Linear(d_model, heads * self.d_k, rng, bias)
        self.value = Linear(d_model, heads * self.d_v, rng, bias)
        self.attention = attention(p_drop)
        self.output = Linear(heads * self.d_v, d_model, rng, bias)

    def forward(self, x, memory, mask=None, cache: KeyValueCache | None = None):
        if cache is not None and saving():
            raise InputError(
                "a key-value cache serves decoding only",
                "a cache while saving is on",
                "Decode inside `with inference():`.",
            )
        mask = mask if isinstance(mask, Mask) else Mask(mask)
        self.save(queries=mask.queries, keys=mask.keys)
        query = split_heads(self.query.forward(x), self.heads, mask.queries)
        key, value = self.keys_and_values(memory, mask.keys, cache)
        heads = self.attention.forward(query, key, value, mask.allowed)
        return self.output.forward(merge_heads(heads, mask.queries))

    def backward(self, dy):
        queries, keys = self.pop_saved().values()
        dheads = split_heads(self.output.backward(dy), self.heads, queries)
        dquery, dkey, dvalue = self.attention.backward(dheads)
        dmemory = self.value.backward(merge_heads(dvalue, keys))
        dmemory += self.key.backward(merge_heads(dkey, keys))  # memory gives both keys and values
        return self.query.backward(merge_heads(dquery, queries)), dmemory

    def keys_and_values(self, memory, places: Places | None, cache: KeyValueCache | None):
        """memory (B, S, D) -> key (B, H, S, K), value (B, H, S, K_v), after those in the cache."""
        key = split_heads(self.key.forward(memory), self.heads, places)
        value = split_heads(self.value.forward(memory), self.heads, places)
        return (key, value) if cache is None else cache.append(self, key, value)


class SelfAttention(MultiHeadAttention):
    """x (B, T, D), mask -> (B, T, D): query, key and value all come from x (section 3.2.3)."""

    def forward(self, x, mask=None, cache: KeyValueCache | None = None):
        return super().forward(x, x, mask, cache)

    def backward(self, dy):
        dx, dmemory = super().backward(dy)
        dx += dmemory  # x gives the queries, and as memory the keys and values
        return dx


class CrossAttention(MultiHeadAttention):
    """x (B, T, D), memory (B, S, D), mask -> (B, T, D): the decoder looks at the encoder's output.

    With a cache the memory's keys and values are computed once, at the first position.
    """

    def keys_and_values(self, memory, places: Places | None, cache: KeyValueCache | None):
        def compute():
            return MultiHeadAttention.keys_and_values(self, memory, places, None)

        return compute() if cache is None else cache.memory(self, compute)
