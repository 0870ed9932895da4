"""Dropout (Srivastava et al. 2014; section 5.4): in training, values chosen at random become 0."""

from numformer.backend import has_kernel
from numformer.errors import InputError
from numformer.layer import Array, Layer, training
from numformer.randomness import dropout_stream


@has_kernel
def dropout(x, keep):
    """x (...) -> y (...): y = x * keep, where keep holds 0 or 1 / (1 - p); None keeps all."""
    return x if keep is None else x * keep


@has_kernel
def dropout_backward(dy, keep):
    """dy (...) -> dx (...): dx = dy * keep, so a dropped value gets no gradient."""
    return dy if keep is None else dy * keep


class Dropout(Layer):
    """x (...) -> (...): in training, 0 with probability p_drop and otherwise x / (1 - p_drop).

    The scaling keeps the mean the same, so outside training the layer does nothing. The masks come
    from `numformer.randomness.dropout_stream`, which every training step reseeds.
    """

    def __init__(self, p_drop: float):
        if not 0 <= p_drop < 1:
            raise InputError(
                "a dropout probability is at least 0 and below 1", p_drop, "The paper uses 0.1."
            )
        self.p_drop = p_drop

    def draw(self, shape: tuple[int, ...], like):
        """Return a new mask `keep` (shape), of the dtype and device of `like`; None keeps all."""
        active = training() and self.p_drop
        return dropout_stream.mask(shape, self.p_drop, like) if active else None

    def forward(self, x: Array) -> Array:
        keep = self.draw(x.shape, like=x)
        self.save(keep=keep)
        return dropout(x, keep)

    def backward(self, dy: Array) -> Array:
        dx = dropout_backward(dy, **self.pop_saved())
        return dx.copy() if dx is dy else dx  # backward must return a new array, not dy
