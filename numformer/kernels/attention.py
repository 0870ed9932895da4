"""Scaled dot-product attention: three products, and one kernel for what stands between them."""

import math

from numformer.backend import transpose
from numformer.kernels.products import product
from numformer.kernels.softmax import softmax_backward_into, softmax_into

FORMULAS = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"


def scaled_dot_product_attention(query, key, value, mask=None):
    """As numformer.paper.attention."""
    scores = product(query, transpose(key), 1 / math.sqrt(query.shape[-1]))
    weights = softmax_into(scores, scores, mask)
    return product(weights, value), weights


def scaled_dot_product_attention_backward(doutput, query, key, value, weights):
    """As numformer.paper.attention."""
    dvalue = product(transpose(weights), doutput)
    dweights = product(doutput, transpose(value))
    dscores, scale = (
        softmax_backward_into(dweights, dweights, weights),
        1 / math.sqrt(query.shape[-1]),
    )
    return product(dscores, key, scale), product(transpose(dscores), query, scale), dvalue
