"""Scaled dot-product attention with a bias on its scores and dropout on its weights."""

import math
from typing import Any

from numformer.arithmetic import matmul, transpose
from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout, dropout, dropout_backward
from numformer.paper.softmax import softmax, softmax_backward


class BiasedAttention(Layer):
    """query (B, H, T, K), key (B, H, S, K), value (B, H, S, K_v), mask, bias -> (B, H, T, K_v).

    The output is Dropout(softmax(Q K^T / sqrt(d_k) + bias)) V. The boolean mask broadcasts to
    (B, H, T, S); the bias (H, T, S) is the same for all sequences. A `cap` (a Cap) first bounds
    Q K^T / sqrt(d_k). `backward` returns dquery, dkey, dvalue and, if there was a bias, dbias. The
    axis H may be two axes: groups of heads, and the heads within a group.
    """

    def __init__(self, p_drop: float = 0.0, cap: Layer | None = None):
        self.dropout, self.cap = Dropout(p_drop), cap

    def forward(
        self, query: Array, key: Array, value: Array, mask: Any = None, bias: Array | None = None
    ) -> Array:
        scores = matmul(query, transpose(key))
        scores *= 1 / math.sqrt(query.shape[-1])
        if self.cap:
            scores = self.cap.forward(scores).copy()  # of what it saved
        if bias is not None:
            scores += bias
        weights = softmax(scores, mask)
        keep = self.dropout.draw(weights.shape, like=weights)
        dropped = dropout(weights, keep)
        saved = dict(query=query, key=key, value=value, weights=weights, dropped=dropped, keep=keep)
        self.save(**saved, biased=bias is not None)
        return matmul(dropped, value)

    def backward(self, doutput: Array) -> Any:
        saved = self.pop_saved()
        query, key, value, dropped = (saved[name] for name in ("query", "key", "value", "dropped"))
        dvalue = matmul(transpose(dropped), doutput)  # output = dropped @ V
        ddropped = matmul(doutput, transpose(value))  # output = dropped @ V
        dweights = dropout_backward(ddropped, saved["keep"])  # dropped = dropout(weights)
        dscores = softmax_backward(dweights, saved["weights"])  # weights = softmax(scores)
        dbias = [dscores.sum(axis=0)] if saved["biased"] else []  # scores = products + bias
        if self.cap:
            dscores = self.cap.backward(dscores)
        dscores *= 1 / math.sqrt(query.shape[-1])  # products = Q K^T / sqrt(d_k)
        return matmul(dscores, key), matmul(transpose(dscores), query), dvalue, *dbias
