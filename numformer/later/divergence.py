"""The symmetric Kullback-Leibler divergence between two predictions, the loss that R-Drop adds."""

from typing import Any

from numformer.arithmetic import dot_last, rows
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.softmax import softmax


def divergence(p, q, log_ratio, count):
    """p, q, log_ratio (N, V) -> scalar sum_N (KL(p || q) + KL(q || p)) / 2 / count, means (N, 1).

    KL(p || q) = sum_v p(v) log(p(v) / q(v)), so the sum of both KLs is sum_v (p(v) - q(v))
    log_ratio(v): the difference between the `means` (N, 1) of log_ratio under p and under q. A
    constant added to a row of log_ratio cancels.
    """
    means = dot_last(p, log_ratio), dot_last(q, log_ratio)
    return (means[0] - means[1]).sum() / (2 * count), means


def divergence_backward(dloss, p, q, log_ratio, count, means):
    """scalar dloss () -> the gradients (N, V) of the logits of p and of q. Overwrites p and q.

    log_ratio is the difference of the logits, up to a constant; p and q are their softmaxes (for
    the Jacobian see `softmax_backward`).
    """
    share = dloss / (2 * count)
    p *= share
    q *= share
    dfirst = log_ratio - (means[0] - 1)
    dfirst *= p  # p (log_ratio - <p, log_ratio>), through p, plus p - q, through log_ratio
    dfirst -= q
    dsecond = (means[1] + 1) - log_ratio
    dsecond *= q
    dsecond -= p
    return dfirst, dsecond


class Divergence(Layer):
    """first, second (..., V) -> the mean divergence of their softmaxes, scalar ()   (R-Drop).

    A row's divergence is (KL(p || q) + KL(q || p)) / 2 (Liang et al. 2021). Rows where `valid`
    (...) is False are excluded. `backward` takes dloss and returns the gradients of both logits.
    """

    def forward(self, first: Array, second: Array, valid: Any = None) -> Array:
        if first.shape != second.shape:
            raise InputError(
                "the logits to compare have the same shape",
                f"{first.shape} and {second.shape}",
                "Compute both from the same batch.",
            )
        shape, (first, second) = first.shape, map(rows, (first, second))
        count = len(first)
        if valid is not None:  # make excluded rows equal, so that their divergence is 0
            xp = array_module(first)
            counts = xp.asarray(valid).reshape(-1, 1)
            count = xp.maximum(counts.sum(dtype=first.dtype), 1)
            first, second = (xp.where(counts, x, x.dtype.type(0)) for x in (first, second))
        p, q, log_ratio = softmax(first), softmax(second), first - second
        result, means = divergence(p, q, log_ratio, count)
        self.save(p=p, q=q, log_ratio=log_ratio, count=count, means=means, shape=shape)
        return result

    def backward(self, dloss: Any = 1.0) -> Any:
        saved = self.pop_saved()
        shape = saved.pop("shape")
        return tuple(gradient.reshape(shape) for gradient in divergence_backward(dloss, **saved))
