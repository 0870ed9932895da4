"""softmax(x)_s = exp(x_s) / sum_u exp(x_u) over the entries that a mask allows."""

import numpy as np

from numformer.arithmetic import dot_last, max_last, sum_last
from numformer.backend import array_module, has_kernel
from numformer.layer import Array, Layer
from numformer.paper.masks import require_mask


def mask_scores(scores, mask):
    """scores (..., S), mask broadcast to it -> scores where the mask is True, elsewhere -inf.

    In NumPy, adding 0 or -inf is faster than np.where on the scores, above all for a small mask.
    """
    xp = array_module(scores)
    minus_infinity = scores.dtype.type(-np.inf)
    if xp is np:
        return scores + np.where(mask, scores.dtype.type(0), minus_infinity)
    return xp.where(mask, scores, minus_infinity)


@has_kernel
def softmax(scores, mask=None):
    """scores (..., S), mask broadcast to it, True = may attend -> weights (..., S).

    The score of a masked entry becomes minus infinity, so its weight is exactly 0; the others sum
    to 1. If every entry of a row is masked, all its weights are 0. Raises InputError if the mask is
    not boolean.
    """
    xp = array_module(scores)
    if mask is not None:
        require_mask(mask)
        scores = mask_scores(scores, mask)
    highest = max_last(scores)
    # If every entry of a row is masked, its maximum is -inf, and -inf - -inf would be NaN.
    highest = xp.maximum(highest, xp.finfo(scores.dtype).min)
    weights = scores - highest
    xp.exp(weights, out=weights)
    total = sum_last(weights)
    # The highest score contributes exp(0) = 1, so total < 1 only if every entry is masked.
    weights /= xp.maximum(total, 1)
    return weights


@has_kernel
def softmax_backward(dweights, weights):
    """dweights, weights (..., S) -> dscores (..., S): weights * (dweights - <dweights, weights>).

    The Jacobian is diag(w) - w w^T. Where a weight is 0 (masked) the gradient is 0.
    """
    dscores = dweights - dot_last(dweights, weights)
    dscores *= weights
    return dscores


class Softmax(Layer):
    """scores (..., S), mask broadcast to it -> weights (..., S), which sum to 1 (or 0)."""

    def forward(self, scores: Array, mask: Array | None = None) -> Array:
        weights = softmax(scores, mask)
        self.save(weights=weights)
        return weights

    def backward(self, dweights: Array) -> Array:
        return softmax_backward(dweights, **self.pop_saved())
