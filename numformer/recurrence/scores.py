"""Scores of queries and keys: the two functions of section 3.2.1, and multiplicative scores."""

import math
from typing import Any

import numpy as np

from numformer.arithmetic import matmul, transpose
from numformer.backend import array_module
from numformer.layer import Array, Layer
from numformer.paper.linear import Linear, linear, linear_backward


def dot_product_score(query, key, scale):
    """query (..., T, K), key (..., S, K) -> scores (..., T, S): scale Q K^T   (section 3.2.1)."""
    scores = matmul(query, transpose(key))
    scores *= scale
    return scores


def dot_product_score_backward(dscores, query, key, scale):
    """dscores (..., T, S) -> dquery (..., T, K), dkey (..., S, K)."""
    dproducts = dscores * scale  # scores = scale * products
    return matmul(dproducts, key), matmul(transpose(dproducts), query)  # products = Q K^T


class DotProductScore(Layer):
    """query (..., T, K), key (..., S, K) -> scores (..., T, S): Q K^T / sqrt(d_k), or Q K^T.

    The layer has no parameters. If queries and keys have entries of mean 0 and variance 1, the
    products have variance d_k; `scaled` divides by sqrt(d_k), so that the scores have variance 1.
    """

    def __init__(self, scaled: bool = True):
        self.scaled = scaled

    def forward(self, query: Array, key: Array) -> Array:
        scale = 1 / math.sqrt(query.shape[-1]) if self.scaled else 1.0
        self.save(query=query, key=key, scale=scale)
        return dot_product_score(query, key, scale)

    def backward(self, dscores: Array) -> Any:
        return dot_product_score_backward(dscores, **self.pop_saved())


def multiplicative_score(query, key, weight):
    """scores = Q W K^T   (Luong et al. 2015, "general").

    query (..., T, K_q), key (..., S, K_k), weight (K_q, K_k)
    -> scores (..., T, S), projected (..., T, K_k), projected = Q W.
    """
    projected = linear(query, weight)
    return matmul(projected, transpose(key)), projected


def multiplicative_score_backward(dscores, query, key, weight, projected):
    """dscores (..., T, S) -> dquery (..., T, K_q), dkey (..., S, K_k), dweight (K_q, K_k)."""
    dkey = matmul(transpose(dscores), projected)  # scores = projected @ K^T
    dprojected = matmul(dscores, key)  # scores = projected @ K^T
    dquery, dweight, _ = linear_backward(dprojected, query, weight)  # projected = Q W
    return dquery, dkey, dweight


class MultiplicativeScore(Layer):
    """query (..., T, K_q), key (..., S, K_k) -> scores (..., T, S): Q W K^T.

    A dot product for queries and keys of different sizes: W maps queries to the space of the keys.
    Its initial values are drawn as in Linear. If queries and keys have size d_k and variance 1, the
    initial scores have variance d_k, like unscaled dot products.
    """

    def __init__(self, d_query: int, d_key: int, rng: np.random.Generator):
        self.weight = Linear(d_query, d_key, rng).weight

    def forward(self, query: Array, key: Array) -> Array:
        scores, projected = multiplicative_score(query, key, self.weight.data)
        self.save(query=query, key=key, projected=projected)
        return scores

    def backward(self, dscores: Array) -> Any:
        dquery, dkey, dweight = multiplicative_score_backward(
            dscores, weight=self.weight.data, **self.pop_saved()
        )
        self.weight.grad += dweight
        return dquery, dkey


def additive_score(query, key, query_weight, key_weight, v):
    """scores_ts = tanh(query_t W_q + key_s W_k) v   (Bahdanau et al. 2015).

    query (..., T, K_q), key (..., S, K_k), query_weight (K_q, A), key_weight (K_k, A), v (A, 1)
    -> scores (..., T, S), hidden (..., T, S, A), the tanh for every query and key.
    """
    hidden = linear(query, query_weight)[..., :, None, :] + linear(key, key_weight)[..., None, :, :]
    array_module(hidden).tanh(hidden, out=hidden)
    return linear(hidden, v)[..., 0], hidden


def additive_score_backward(dscores, query, key, query_weight, key_weight, v, hidden):
    """dscores (..., T, S) -> the gradients of query, key, query_weight, key_weight and v."""
    dhidden, dv, _ = linear_backward(dscores[..., None], hidden, v)  # scores = hidden @ v
    dsum = dhidden * (1 - hidden * hidden)  # hidden = tanh(sum)
    dprojected_query = dsum.sum(axis=-2)  # all keys share each query
    dprojected_key = dsum.sum(axis=-3)  # all queries share each key
    dquery, dquery_weight, _ = linear_backward(dprojected_query, query, query_weight)
    dkey, dkey_weight, _ = linear_backward(dprojected_key, key, key_weight)
    return dquery, dkey, dquery_weight, dkey_weight, dv


class AdditiveScore(Layer):
    """query (..., T, K_q), key (..., S, K_k) -> scores (..., T, S): tanh(Q W_q + K W_k) v.

    A small network with one hidden layer of size A scores every pair of query and key, so it needs
    memory for T S A numbers, where dot products need T S. The initial values are drawn as in
    Linear: v is smaller for a larger A, so no scaling of the scores is needed. Their initial
    variance is about 1 if A is about the size of queries and keys.
    """

    def __init__(self, d_query: int, d_key: int, d_hidden: int, rng: np.random.Generator):
        self.query_weight = Linear(d_query, d_hidden, rng).weight
        self.key_weight = Linear(d_key, d_hidden, rng).weight
        self.v = Linear(d_hidden, 1, rng).weight

    def _weights(self) -> tuple[Array, Array, Array]:
        return self.query_weight.data, self.key_weight.data, self.v.data

    def forward(self, query: Array, key: Array) -> Array:
        scores, hidden = additive_score(query, key, *self._weights())
        self.save(query=query, key=key, hidden=hidden)
        return scores

    def backward(self, dscores: Array) -> Any:
        saved = self.pop_saved()
        dquery, dkey, dquery_weight, dkey_weight, dv = additive_score_backward(
            dscores, saved["query"], saved["key"], *self._weights(), saved["hidden"]
        )
        self.query_weight.grad += dquery_weight
        self.key_weight.grad += dkey_weight
        self.v.grad += dv
        return dquery, dkey
