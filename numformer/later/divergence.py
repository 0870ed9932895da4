"""How far two predictions of the same thing are apart, which R-Drop makes small."""

from typing import Any

from numformer.arithmetic import dot_last, rows
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.softmax import softmax


def divergence(p, q, log_ratio, count):
    """p, q, log_ratio (N, V) -> (KL(p || q) + KL(q || p)) / 2 summed over N, / count, (); means.

    KL(p || q) = sum_v p(v) log(p(v) / q(v)), so the two together are sum_v (p - q)(v) log_ratio(v),
    the difference of the two `means` (N, 1) of log_ratio. A constant in log_ratio does not count.
    """
    means = dot_last(p, log_ratio), dot_last(q, log_ratio)
    return (means[0] - means[1]).sum() / (2 * count), means


def divergence_backward(dloss, p, q, log_ratio, count, means):
    """dloss () -> (N, V) each: what reaches the logits of p and those of q.

    log_ratio is the logits' difference, up to a constant; p and q, their softmaxes, have the
    Jacobian of `softmax_backward`. Overwrites p and q.
    """
    share = dloss / (2 * count)
    p *= share
    q *= share
    dfirst = log_ratio - (means[0] - 1)
    dfirst *= p  # by p: p (log_ratio - <p, log_ratio>); by log_ratio: p - q
    dfirst -= q
    dsecond = (means[1] + 1) - log_ratio
    dsecond *= q
    dsecond -= p
    return dfirst, dsecond


class Divergence(Layer):
    """first, second (..., V) -> how far their softmaxes are apart, ()   (R-Drop).

    The mean over all rows of the symmetric Kullback-Leibler divergence,
    (KL(p || q) + KL(q || p)) / 2 (Liang et al. 2021). `valid` (...), True = counts, leaves the
    others out. `backward` takes dloss and returns the gradients of both logits.
    """

    def forward(self, first: Array, second: Array, valid: Any = None) -> Array:
        if first.shape != second.shape:
            raise InputError(
                "two logits that are compared have one shape",
                f"{first.shape} and {second.shape}",
                "Compute both of the same batch.",
            )
        shape, (first, second) = first.shape, map(rows, (first, second))
        count = len(first)
        if valid is not None:  # equal rows are not apart
            xp = array_module(first)
            counts = xp.asarray(valid).reshape(-1, 1)
            count = xp.maximum(counts.sum(dtype=first.dtype), 1)
            first, second = (xp.where(counts, x, x.dtype.type(0)) for x in (first, second))
        p, q, log_ratio = softmax(first), softmax(second), first - second
        apart, means = divergence(p, q, log_ratio, count)
        self.save(p=p, q=q, log_ratio=log_ratio, count=count, means=means, shape=shape)
        return apart

    def backward(self, dloss: Any = 1.0) -> Any:
        saved = self.pop_saved()
        shape = saved.pop("shape")
        return tuple(gradient.reshape(shape) for gradient in divergence_backward(dloss, **saved))
