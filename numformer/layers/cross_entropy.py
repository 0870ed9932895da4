"""Cross-entropy with label smoothing (section 5.4), fused with its softmax."""

import math

import numpy as np

from numformer.backend import array_module, max_last, mean_last, sum_last, to_host
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.layers.embedding import check_ids


def cross_entropy(logits, targets, smoothing):
    """logits (N, V), targets (N) -> loss (), exponentials (N, V), total (N, 1).

    loss = mean of -sum_v q(v) log p(v), p = softmax(logits),
    q(v) = (1 - smoothing) [v = target] + smoothing / V (Szegedy et al. 2016).
    p = exponentials / total; exponentials are of the logits less each row's highest.
    """
    xp = array_module(logits)
    with np.errstate(over="ignore"):  # a difference beyond the dtype's numbers is -inf, and p 0
        shifted = logits - max_last(logits)
        # Without smoothing a logit of -inf costs nothing, but 0 * -inf is not a number.
        mean_shifted = mean_last(shifted)[:, 0] if smoothing else 0
    at_target = shifted[xp.arange(len(targets)), targets]
    exponentials = xp.exp(shifted, out=shifted)
    total = sum_last(exponentials)
    # log p(v) = shifted(v) - log(total), and q sums to 1
    losses = xp.log(total[:, 0]) - (1 - smoothing) * at_target - smoothing * mean_shifted
    return losses @ xp.full(len(losses), _share(losses), losses.dtype), exponentials, total


def cross_entropy_backward(dloss, exponentials, total, targets, smoothing):
    """dloss () -> dlogits (N, V): dloss (p - q) / N.

    Overwrites `exponentials` with the result.
    """
    xp = array_module(exponentials)
    share = dloss * _share(total)
    dlogits = exponentials
    dlogits *= share / total  # share p
    if smoothing:
        dlogits -= share * (smoothing / dlogits.shape[1])
    dlogits[xp.arange(len(targets)), targets] -= share * (1 - smoothing)
    return dlogits


def _share(losses):
    """What each of the N losses contributes to their mean, 1 / N, in their dtype."""
    return losses.dtype.type(1 / max(len(losses), 1))


class CrossEntropy(Layer):
    """logits (..., V), targets (...) -> the mean loss of the targets that count, ().

    `targets` is a host array of integers; `valid` (...), True = counts, leaves the others out,
    whatever they are (padding, symbols that are not to be predicted). They cost no arithmetic, and
    their logits get the gradient 0. Without `valid` all count. If none does, the loss is 0.
    `backward` takes dloss, 1 unless the loss is part of a larger sum.
    """

    def __init__(self, smoothing: float = 0.1):
        if not 0 <= smoothing < 1:
            raise InputError(
                "label smoothing is at least 0 and below 1", smoothing, "The paper uses 0.1."
            )
        self.smoothing = smoothing

    def forward(self, logits, targets, valid=None):
        if targets.shape != logits.shape[:-1]:
            raise InputError(
                "targets have the logits' shape without its last axis",
                f"targets {targets.shape}, logits {logits.shape}",
                "Pass one target id for each position.",
            )
        if valid is not None and (valid.shape, valid.dtype) != (targets.shape, bool):
            raise InputError(
                "`valid` says True or False of each target",
                f"targets {targets.shape}, valid {valid.shape} of {valid.dtype}",
                "Pass a boolean array, for example targets != PADDING.",
            )
        xp, shape = array_module(logits), logits.shape
        logits, targets, counted = logits.reshape(-1, shape[-1]), targets.ravel(), None
        if valid is not None:
            counted = np.flatnonzero(to_host(valid))
            targets, counted = targets[counted], xp.asarray(counted)
            logits = logits[counted]
        check_ids(targets, shape[-1])
        targets = xp.asarray(targets)
        loss, exponentials, total = cross_entropy(logits, targets, self.smoothing)
        self.save(
            exponentials=exponentials, total=total, targets=targets, counted=counted, shape=shape
        )
        return loss

    def backward(self, dloss=1.0):
        saved = self.pop_saved()
        counted, shape = saved.pop("counted"), saved.pop("shape")
        dlogits = cross_entropy_backward(dloss, **saved, smoothing=self.smoothing)
        if counted is not None:
            dcounted, xp = dlogits, array_module(dlogits)
            dlogits = xp.zeros((math.prod(shape[:-1]), shape[-1]), dcounted.dtype)
            dlogits[counted] = dcounted  # logits = all logits[counted]
        return dlogits.reshape(shape)
