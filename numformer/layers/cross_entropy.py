"""Cross-entropy with label smoothing (section 5.4), fused with its softmax."""

from numformer.backend import array_module, max_last, mean_last, sum_last
from numformer.data.vocabulary import PADDING
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.layers.embedding import check_ids


def share_of_mean(targets, dtype):
    """targets (N) -> (N): 1 / (number of real targets) at each real target, 0 at padding."""
    real = (targets != PADDING).astype(dtype)
    return real / array_module(real).maximum(real.sum(), 1)


def cross_entropy(logits, targets, smoothing):
    """logits (N, V), targets (N) -> loss (), exponentials (N, V), total (N, 1).

    loss = mean over real targets of -sum_v q(v) log p(v), p = softmax(logits),
    q(v) = (1 - smoothing) [v = target] + smoothing / V (Szegedy et al. 2016); padding is left out.
    p = exponentials / total; exponentials are of the logits less each row's highest.
    """
    xp = array_module(logits)
    shifted = logits - max_last(logits)
    at_target = shifted[xp.arange(len(targets)), targets]
    mean_shifted = mean_last(shifted)[:, 0]
    exponentials = xp.exp(shifted, out=shifted)
    total = sum_last(exponentials)
    # log p(v) = shifted(v) - log(total), and q sums to 1
    losses = xp.log(total[:, 0]) - (1 - smoothing) * at_target - smoothing * mean_shifted
    return losses @ share_of_mean(targets, losses.dtype), exponentials, total


def cross_entropy_backward(dloss, exponentials, total, targets, smoothing):
    """dloss () -> dlogits (N, V): dloss (p - q) / (number of real targets), 0 at padding.

    Overwrites `exponentials` with the result.
    """
    xp = array_module(exponentials)
    share = dloss * share_of_mean(targets, total.dtype)
    dlogits = exponentials
    dlogits *= share[:, None] / total  # share p
    dlogits -= share[:, None] * (smoothing / dlogits.shape[1])
    dlogits[xp.arange(len(targets)), targets] -= share * (1 - smoothing)
    return dlogits


class CrossEntropy(Layer):
    """logits (B, T, V), targets (B, T) -> the mean loss of the real targets, ().

    `targets` is a host array of integers, padded with 0. Logits (N, V) are those of the N real
    targets alone, row after row (`Transformer.forward` with skip_padding). `backward` takes
    dloss, 1 unless the loss is part of a larger sum. Targets that are all padding give loss 0 and
    gradients 0.
    """

    def __init__(self, smoothing: float = 0.1):
        if not 0 <= smoothing < 1:
            raise InputError(
                "label smoothing is at least 0 and below 1", smoothing, "The paper uses 0.1."
            )
        self.smoothing = smoothing

    def forward(self, logits, targets):
        if logits.ndim == 2:
            targets = targets[targets != PADDING]
        if targets.shape != logits.shape[:-1]:
            raise InputError(
                "targets have the logits' shape without its last axis",
                f"targets {targets.shape}, logits {logits.shape}",
                "Pass one target id for each position.",
            )
        check_ids(targets, logits.shape[-1])
        targets = array_module(logits).asarray(targets).ravel()
        vocabulary = logits.shape[-1]
        loss, exponentials, total = cross_entropy(
            logits.reshape(-1, vocabulary), targets, self.smoothing
        )
        self.save(exponentials=exponentials, total=total, targets=targets, shape=logits.shape)
        return loss

    def backward(self, dloss=1.0):
        saved = self.pop_saved()
        shape = saved.pop("shape")
        return cross_entropy_backward(dloss, **saved, smoothing=self.smoothing).reshape(shape)
