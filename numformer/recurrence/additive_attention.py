"""Additive attention (Bahdanau, Cho and Bengio 2015): one query at a time attends to a memory."""

from typing import Any

import numpy as np

from numformer.backend import array_module
from numformer.layer import Array, Layer
from numformer.paper.linear import Linear, linear, linear_backward
from numformer.paper.softmax import softmax, softmax_backward


def additive_attention(query, keys, memory, mask, query_weight, v):
    """context = softmax(tanh(query W_q + keys) v) memory   (Bahdanau et al. 2015, section 3.1).

    query (B, K), keys (B, S, A), memory (B, S, M), mask (B, S), True = may attend, or None,
    query_weight (K, A), v (A, 1)
    -> context (B, M), weights (B, S), hidden (B, S, A) = tanh(query W_q + keys).
    """
    hidden = linear(query, query_weight)[:, None, :] + keys
    array_module(hidden).tanh(hidden, out=hidden)
    weights = softmax(linear(hidden, v)[..., 0], mask)
    return (weights[:, None, :] @ memory)[:, 0], weights, hidden


def additive_attention_backward(dcontext, query, memory, query_weight, v, weights, hidden):
    """dcontext (B, M) -> the gradients of query, keys, memory, query_weight and v."""
    dmemory = weights[..., None] * dcontext[:, None, :]  # context = weights @ memory
    dweights = (memory @ dcontext[..., None])[..., 0]
    dscores = softmax_backward(dweights, weights)
    dhidden, dv, _ = linear_backward(dscores[..., None], hidden, v)  # scores = hidden @ v
    dkeys = dhidden * (1 - hidden * hidden)  # hidden = tanh(query W_q + keys)
    dprojected = dkeys.sum(axis=1)  # all keys share the query
    dquery, dquery_weight, _ = linear_backward(dprojected, query, query_weight)
    return dquery, dkeys, dmemory, dquery_weight, dv


class AdditiveAttention(Layer):
    """query (B, K), keys (B, S, A), memory (B, S, M), mask (B, S) -> context (B, M).

    The query, a decoder's state, is scored against every position (AdditiveScore); the context is
    the mean of the memory, weighted by the softmax of the scores. The keys are memory W_k, which
    the layer around this one computes once for all queries. The saved record has `weights` (B, S)
    for attention maps. `backward` returns dquery, dkeys, dmemory.
    """

    def __init__(self, d_query: int, d_hidden: int, rng: np.random.Generator):
        self.query_weight = Linear(d_query, d_hidden, rng).weight
        self.v = Linear(d_hidden, 1, rng).weight

    def forward(self, query: Array, keys: Array, memory: Array, mask: Array | None = None) -> Array:
        context, weights, hidden = additive_attention(
            query, keys, memory, mask, self.query_weight.data, self.v.data
        )
        self.save(query=query, memory=memory, weights=weights, hidden=hidden)
        return context

    def backward(self, dcontext: Array) -> Any:
        dquery, dkeys, dmemory, dquery_weight, dv = additive_attention_backward(
            dcontext, query_weight=self.query_weight.data, v=self.v.data, **self.pop_saved()
        )
        self.query_weight.grad += dquery_weight
        self.v.grad += dv
        return dquery, dkeys, dmemory

    def attention_weights(self):
        """Return the weights (B, 1, T, S) of all T saved forwards, each of which has one query."""
        weights = [record["weights"] for record in self.saved]
        return array_module(self.v.data).stack(weights, axis=1)[:, None]
