"""Cross-entropy with label smoothing (section 5.4), fused with its softmax."""

from typing import Any

import numpy as np

from numformer.arithmetic import max_last, mean_last, sum_last
from numformer.backend import array_module, cache_pieces, has_kernel, on_host, to_module
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.embedding import check_ids


@has_kernel
def cross_entropy(logits, targets, share, smoothing, out=None):
    """logits (N, V), targets, share (N) -> scalar loss (), exponentials (N, V), total (N, 1).

    loss = sum_n share_n loss_n, loss_n = -sum_v q(v) log p(v), p = softmax(logits_n),
    q(v) = (1 - smoothing) [v = target_n] + smoothing / V (Szegedy et al. 2016).
    p = exponentials / total; exponentials = exp(logits - the row's maximum), written into `out`.
    """
    xp = array_module(logits)
    with np.errstate(over="ignore"):  # a large difference overflows to -inf, and its p is 0
        shifted = xp.subtract(logits, max_last(logits), out=out)
        # Without smoothing a logit of -inf must add nothing, but 0 * -inf would be NaN.
        spread = smoothing * mean_last(shifted)[:, 0] if smoothing else 0
    at_target = shifted[xp.arange(len(targets)), targets]
    exponentials = xp.exp(shifted, out=shifted)
    total = sum_last(exponentials)
    # log p(v) = shifted(v) - log(total), and q sums to 1
    losses = xp.log(total[:, 0]) - (1 - smoothing) * at_target - spread
    return losses @ share, exponentials, total


@has_kernel
def cross_entropy_backward(dlosses, exponentials, total, targets, smoothing):
    """dlosses (N) -> dlogits (N, V): dlosses * (p - q), written over `exponentials`."""
    xp = array_module(exponentials)
    dlogits = exponentials
    dlogits *= dlosses[:, None] / total  # dlosses p
    if smoothing:
        dlogits -= dlosses[:, None] * (smoothing / dlogits.shape[1])
    dlogits[xp.arange(len(targets)), targets] -= dlosses * (1 - smoothing)
    return dlogits


class CrossEntropy(Layer):
    """logits (..., V), targets (...) -> the mean loss, scalar (), of the targets that count.

    `targets` is a host array of integers. `valid` (...), if given, is False at targets that do not
    count, such as padding. If none counts, loss and gradients are 0. `backward` takes dloss, which
    is 1 unless the loss is part of a larger sum.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        if not 0 <= smoothing < 1:
            raise InputError(
                "label smoothing is at least 0 and below 1", smoothing, "The paper uses 0.1."
            )
        self.smoothing = smoothing

    def forward(self, logits: Array, targets: Array, valid: Array | None = None) -> Array:
        check_ids(targets, logits.shape[-1])
        if targets.shape != logits.shape[:-1]:
            raise InputError(
                "targets have the logits' shape without its last axis",
                f"targets {targets.shape}, logits {logits.shape}",
                "Pass one target id for each position.",
            )
        if valid is not None and (valid.shape, valid.dtype) != (targets.shape, bool):
            raise InputError(
                "`valid` is True or False for each target",
                f"targets {targets.shape}, valid {valid.shape} of {valid.dtype}",
                "Pass a boolean array, for example targets != PADDING.",
            )
        xp, shape = array_module(logits), logits.shape
        counts = np.ones(targets.size) if valid is None else valid.ravel()
        real: Any = None if on_host(counts) and counts.all() else to_module(counts, xp)
        counts = counts.astype(logits.dtype)
        share = to_module(counts / array_module(counts).maximum(counts.sum(), 1), xp)
        targets, logits = to_module(targets.ravel(), xp), logits.reshape(-1, shape[-1])
        loss, exponentials = logits.dtype.type(0), xp.empty(logits.shape, logits.dtype)
        total = xp.empty_like(logits[:, :1])
        for rows in cache_pieces(logits):
            piece = logits[rows]
            if real is not None:
                # Targets that do not count must add exactly 0, even if their logits are infinite.
                piece = xp.where(real[rows, None], piece, logits.dtype.type(0))
            piece_loss, _, total[rows] = cross_entropy(
                piece, targets[rows], share[rows], self.smoothing, exponentials[rows]
            )
            loss = loss + piece_loss
        self.save(exponentials=exponentials, total=total, targets=targets, share=share, shape=shape)
        return loss

    def backward(self, dloss: Any = 1.0) -> Array:
        saved = self.pop_saved()
        shape, dlogits = saved.pop("shape"), saved["exponentials"]
        dlosses = dloss * saved.pop("share")  # loss = losses @ share
        for rows in cache_pieces(dlogits):
            piece = {name: array[rows] for name, array in saved.items()}
            cross_entropy_backward(dlosses[rows], **piece, smoothing=self.smoothing)
        return dlogits.reshape(shape)
