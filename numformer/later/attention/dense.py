"""Attention whose scores are stored whole, with dropout on its weights and a bias on its scores."""

import math
from typing import Any

from numformer.backend import matmul, transpose
from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout, dropout, dropout_backward
from numformer.paper.softmax import softmax, softmax_backward


def biased_attention(query, key, value, mask=None, bias=None, keep=None):
    """softmax(Q K^T / sqrt(d_k) + bias) V, the weights with dropout.

    query (..., T, K), key (..., S, K), value (..., S, K_v), mask, bias and keep, the mask of
    dropout, broadcast to (..., T, S)
    -> output (..., T, K_v), weights and dropped (..., T, S), dropped = weights * keep.
    """
    scores = matmul(query, transpose(key))
    scores *= 1 / math.sqrt(query.shape[-1])
    if bias is not None:
        scores += bias
    weights = softmax(scores, mask)
    dropped = dropout(weights, keep)
    return matmul(dropped, value), weights, dropped


def biased_attention_backward(doutput, query, key, value, weights, dropped, keep, biased):
    """doutput (..., T, K_v) -> dquery (..., T, K), dkey (..., S, K), dvalue, dbias (..., T, S).

    All sequences have one bias; dbias is None where there was none, as `biased` says.
    """
    dvalue = matmul(transpose(dropped), doutput)  # output = dropped V
    ddropped = matmul(doutput, transpose(value))  # output = dropped V
    dweights = dropout_backward(ddropped, keep)  # dropped = dropout(weights)
    dscores = softmax_backward(dweights, weights)  # weights = softmax(scores)
    dbias = dscores.sum(axis=0) if biased else None  # scores = products + bias
    dscores *= 1 / math.sqrt(query.shape[-1])  # products = Q K^T / sqrt(d_k)
    return matmul(dscores, key), matmul(transpose(dscores), query), dvalue, dbias


class BiasedAttention(Layer):
    """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v), mask, bias -> (B, H, T, K_v).

    The mask, boolean, broadcasts to (B, H, T, S); all sequences have one bias (H, T, S). Instead of
    H there may be several axes, as groups of heads have them, and 1 where heads share keys.
    `backward` returns dquery, dkey, dvalue, and dbias where there was a bias.
    """

    def __init__(self, p_drop: float = 0.0):
        self.dropout = Dropout(p_drop)

    def forward(
        self, query: Array, key: Array, value: Array, mask: Any = None, bias: Array | None = None
    ) -> Array:
        keep = self.dropout.draw((*query.shape[:-1], key.shape[-2]), like=query)
        output, weights, dropped = biased_attention(query, key, value, mask, bias, keep)
        saved = dict(query=query, key=key, value=value, weights=weights, dropped=dropped, keep=keep)
        self.save(**saved, biased=bias is not None)
        return output

    def backward(self, doutput: Array) -> Any:
        *gradients, dbias = biased_attention_backward(doutput, **self.pop_saved())
        return tuple(gradients) if dbias is None else (*gradients, dbias)
