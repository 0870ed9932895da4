"""Scaled dot-product attention and multi-head attention (section 3.2)."""

import math
from typing import Any

import numpy as np

from numformer.arithmetic import matmul, transpose
from numformer.backend import array_module, has_kernel
from numformer.errors import InputError, require_width
from numformer.layer import Array, Layer
from numformer.paper.linear import Linear
from numformer.paper.masks import Places, Reach, as_mask, as_reach
from numformer.paper.memory import KeysAndValues, Memory, SourceState
from numformer.paper.softmax import softmax, softmax_backward


@has_kernel
def scaled_dot_product_attention(query, key, value, mask=None):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V   (section 3.2.1, equation 1).

    query (..., T, K), key (..., S, K), value (..., S, K_v), mask broadcast to (..., T, S), True =
    may attend -> output (..., T, K_v), weights (..., T, S).
    """
    scores = matmul(query, transpose(key))
    scores *= 1 / math.sqrt(query.shape[-1])
    weights = softmax(scores, mask)
    return matmul(weights, value), weights


@has_kernel
def scaled_dot_product_attention_backward(doutput, query, key, value, weights):
    """doutput (..., T, K_v) -> dquery (..., T, K), dkey (..., S, K), dvalue (..., S, K_v)."""
    dvalue = matmul(transpose(weights), doutput)  # output = weights V
    dweights = matmul(doutput, transpose(value))  # output = weights V
    dscores = softmax_backward(dweights, weights)  # weights = softmax(scores)
    dscores *= 1 / math.sqrt(query.shape[-1])  # scores = Q K^T / sqrt(d_k)
    dquery = matmul(dscores, key)  # scores = Q K^T
    dkey = matmul(transpose(dscores), query)  # scores = Q K^T
    return dquery, dkey, dvalue


class ScaledDotProductAttention(Layer):
    """query (..., T, K), key (..., S, K), value (..., S, K_v), mask -> (..., T, K_v).

    `mask` is None, a Reach, or a boolean array (True = may attend) broadcast to (..., T, S).
    """

    def forward(self, query: Array, key: Array, value: Array, mask: Any = None) -> Array:
        mask = as_mask(mask, array_module(query))
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        self.save(query=query, key=key, value=value, weights=weights)
        return output

    def backward(self, doutput: Array) -> Any:
        return scaled_dot_product_attention_backward(doutput, **self.pop_saved())


def split_heads(x, heads: int, places: Places | None = None):
    """x (B, T, H K) -> (B, H, T, K), a view; x is (N, H K) with places.skip_padding."""
    if places and places.skip_padding:
        return places.spread(x, heads)
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def merge_heads(x, places: Places | None = None):
    """x (B, H, T, K) -> (B, T, H K), or (N, H K) with places.skip_padding.

    The heads are put side by side, which is the Concat of section 3.2.2.
    """
    if places and places.skip_padding:
        return places.gather(x)
    batch, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * size)


def head_size(d_model: int, heads: int) -> int:
    """Return d_k = d_v = d_model / heads (3.2.2). Raises InputError if that is not an integer."""
    if heads < 1 or d_model % heads:
        raise InputError(
            "d_model is a multiple of heads",
            f"d_model {d_model}, heads {heads}",
            "Change one of them, or set d_k and d_v.",
        )
    return d_model // heads


class Heads(Linear):
    """x (B, T, D), places -> (B, H, T, K): x W_i for each head i (section 3.2.2).

    The W_i (D, K) of all heads are side by side in one weight (D, H K). As in the paper, there is
    no bias. If `places` has `skip_padding`, x is (N, D), the real positions only.
    """

    def __init__(self, d_model: int, heads: int, size: int, rng: np.random.Generator):
        super().__init__(d_model, heads * size, rng, bias=False)
        self.heads = heads

    def forward(self, x: Array, places: Places) -> Array:  # type: ignore[override]
        require_width(self, x, self.weight.shape[0])
        self.save(x=x, places=places)
        return split_heads(matmul(x, self.weight.data), self.heads, places)

    def backward(self, dheads: Array) -> Array:
        saved = self.pop_saved()
        return self._backward(merge_heads(dheads, saved["places"]), saved["x"])


class MultiHeadAttention(Layer):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O   (section 3.2.2).

    x (B, T, D), memory (B, S, D), reach -> (B, T, D), with head_i = Attention(x W_i^Q,
    memory W_i^K, memory W_i^V). `reach` is None, a Reach, or a boolean array (True = may attend)
    broadcast to (B, H, T, S). If the Reach has Places with `skip_padding`, x is (N, D), memory
    (M, D) and the result (N, D). `backward` returns dx, dmemory.

    d_k = d_v = D / heads unless given. Of the parts, which can all be replaced, `query`, `key` and
    `value` project x and memory into heads, `attention` computes each head, and `output` is W^O.
    """

    role = "attention"

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        d_k: int | None = None,
        d_v: int | None = None,
        attention: Layer | None = None,
        query: Any = None,
        key: Any = None,
        value: Any = None,
        output: Layer | None = None,
    ):
        d_k = head_size(d_model, heads) if d_k is None else d_k
        d_v = head_size(d_model, heads) if d_v is None else d_v
        self.heads = heads
        self.query = query or Heads(d_model, heads, d_k, rng)
        self.key = key or Heads(d_model, heads, d_k, rng)
        self.value = value or Heads(d_model, heads, d_v, rng)
        self.output = output or Linear(heads * d_v, d_model, rng, bias=False)
        self.attention = attention or ScaledDotProductAttention()

    def forward(self, x: Array, memory: Array, reach: Any = None) -> Array:
        reach = as_reach(reach, x, memory)
        query = self.query.forward(x, reach.queries)
        key, value = (part.forward(memory, reach.keys) for part in (self.key, self.value))
        return self.attend(query, key, value, reach)

    def attend(self, query, key, value, reach: Reach):
        """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v) -> (B, T, D)."""
        heads = self.attention.forward(query, key, value, reach)
        self.save(places=reach.queries)
        return self.output.forward(merge_heads(heads, reach.queries))

    def backward(self, dy: Array) -> Any:
        dheads = split_heads(self.output.backward(dy), self.heads, **self.pop_saved())
        dquery, dkey, dvalue = self.attention.backward(dheads)
        dmemory = self.value.backward(dvalue)
        dmemory += self.key.backward(dkey)  # key and value both come from memory
        return self.query.backward(dquery), dmemory


class SelfAttention(MultiHeadAttention):
    """x (B, T, D), reach -> (B, T, D): query, key and value all come from x (section 3.2.3).

    In decoding, x attends to all positions so far, whose keys and values the Memory `past` keeps in
    a state made by `key_value_state(past)`.
    """

    def __init__(self, *sizes: Any, key_value_state: Any = KeysAndValues, **parts: Any):
        super().__init__(*sizes, **parts)
        self.key_value_state = key_value_state

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:  # type: ignore[override]
        reach = as_reach(reach, x, x, past.length if past else 0)
        query = self.query.forward(x, reach.queries)
        key, value = self.key.forward(x, reach.keys), self.value.forward(x, reach.keys)
        if past:
            key, value, positions = past.state(self, self.key_value_state).append(key, value)
            reach = reach.with_keys(positions)
        return self.attend(query, key, value, reach)

    def backward(self, dy: Array) -> Any:
        dx, dmemory = super().backward(dy)
        dx += dmemory  # x gives the queries and, as memory, the keys and values
        return dx


class CrossAttention(MultiHeadAttention):
    """x (B, T, D), memory (B, S, D), reach -> (B, T, D): attention to the encoder's output.

    With a `past`, in decoding, a source's keys and values are computed once for all hypotheses.
    """

    def forward(
        self, x: Array, memory: Array, reach: Any = None, past: Memory | None = None
    ) -> Array:
        if past is None:
            return super().forward(x, memory, reach)

        def keys_and_values(past):
            key, value = (part.forward(memory, reach.keys) for part in (self.key, self.value))
            return SourceState(key=key, value=value)

        reach = as_reach(reach, x, memory)
        query, state = self.query.forward(x, reach.queries), past.state(self, keys_and_values)
        return self.attend(query, state["key"], state["value"], reach)
