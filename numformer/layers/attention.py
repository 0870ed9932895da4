"""Scaled dot-product attention and multi-head attention (section 3.2)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.backend import array_module, matmul
from numformer.data.vocabulary import PADDING
from numformer.errors import InputError
from numformer.layer import Layer, saving
from numformer.layers.dropout import Dropout, dropout, dropout_backward
from numformer.layers.linear import Linear
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


class Places:
    """Where the N real positions of a padded batch stand: ids (B, T), 0 at padding.

    Only attention lets positions meet. All else treats each by itself, so it may leave padding
    out and work on the rows (N, D) of the real positions alone. `real` (N,) are their indices
    among the B T places, `positions` (N,) their positions within their sequences.
    """

    def __init__(self, ids: np.ndarray, xp=np):
        self.shape, self.xp = ids.shape, xp
        self.real = np.flatnonzero(ids != PADDING)
        self.positions = self.real % ids.shape[1]
        self._of_heads: dict[int, tuple] = {}

    def spread(self, x, heads: int):
        """x (N, H K) -> (B, H, T, K). At padding stands a copy of the first row.

        It changes nothing, since a Mask lets nobody attend to padding and padding to nobody.
        """
        _, row_of_place = self._indices(heads)
        return x.reshape(len(x) * heads, -1).take(row_of_place, axis=0)

    def gather(self, x):
        """x (B, H, T, K) -> (N, H K): the real positions, each with its heads side by side."""
        place_of_row, _ = self._indices(x.shape[1])
        return x.reshape(-1, x.shape[-1]).take(place_of_row, axis=0).reshape(len(self.real), -1)

    def _indices(self, heads: int):
        """Of each row's heads their place (N, H) in (B, H, T); of each such place its row."""
        if heads not in self._of_heads:
            batch, length = self.shape
            sequence, position = np.divmod(self.real, length)
            head = np.arange(heads)
            place_of_row = (sequence[:, None] * heads + head) * length + position[:, None]
            row = np.zeros(batch * length, dtype=int)
            row[self.real] = np.arange(len(self.real))
            row_of_place = row.reshape(batch, 1, length) * heads + head[:, None]
            self._of_heads[heads] = self.xp.asarray(place_of_row), self.xp.asarray(row_of_place)
        return self._of_heads[heads]


@dataclass(frozen=True)
class Mask:
    """What attention may look at, where its arrays hold only the real positions of a batch.

    `allowed` broadcasts to (B, H, T, S), True = may attend; it is False at padding, of queries and
    of keys. `queries` and `keys` tell the places of the rows x (N, D) and memory (M, D).
    """

    allowed: Any = None
    queries: Places | None = None
    keys: Places | None = None


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


class KeyValueCache:
    """Keys and values of the positions seen so far, for decoding one position at a time.

    Preallocated key (B, H, T_max, K) and value (B, H, T_max, K_v); positions up to `length` are
    filled.
    """

    def __init__(self, key, value):
        self.key, self.value = key, value
        self.length = 0

    def append(self, key, value):
        """key (B, H, T, K), value (B, H, T, K_v) of T further positions -> those of all so far."""
        stop = self.length + key.shape[2]
        if stop > self.key.shape[2]:
            raise InputError(
                f"this cache has room for {self.key.shape[2]} positions",
                f"position {stop}",
                "Ask for a longer cache when decoding starts.",
            )
        self.key[:, :, self.length : stop] = key
        self.value[:, :, self.length : stop] = value
        self.length = stop
        return self.filled()

    def filled(self):
        """The keys and values so far: (B, H, length, K) and (B, H, length, K_v)."""
        return self.key[:, :, : self.length], self.value[:, :, : self.length]

    def choose(self, batch_rows) -> None:
        """Keep the rows `batch_rows` (N,) of the batch, in this order, repeated ones included."""
        self.key, self.value = self.key[batch_rows], self.value[batch_rows]


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
    unless `bias` is set, and d_k = d_v = D / heads unless they are given.

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
    ):
        self.heads = heads
        self.d_k = head_size(d_model, heads) if d_k is None else d_k
        self.d_v = head_size(d_model, heads) if d_v is None else d_v
        self.query = Linear(d_model, heads * self.d_k, rng, bias)
        self.key = Linear(d_model, heads * self.d_k, rng, bias)
        self.value = Linear(d_model, heads * self.d_v, rng, bias)
        self.attention = ScaledDotProductAttention(p_drop)
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
        return (key, value) if cache is None else cache.append(key, value)

    def new_cache(self, batch: int, length: int) -> KeyValueCache:
        """An empty cache for `batch` sequences of up to `length` positions."""
        xp, dtype = array_module(self.key.weight.data), self.key.weight.data.dtype
        return KeyValueCache(
            xp.zeros((batch, self.heads, length, self.d_k), dtype),
            xp.zeros((batch, self.heads, length, self.d_v), dtype),
        )


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
        if cache is not None and cache.length:
            return cache.filled()
        return super().keys_and_values(memory, places, cache)
