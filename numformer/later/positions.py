"""Position encodings other than the paper's: sinusoids in another order, and none at all."""

import numpy as np

from numformer.layer import Array, Layer
from numformer.paper.positions import sinusoidal_table


def sinusoidal_halves_table(length: int, d_model: int, xp=np):
    """Return `sinusoidal_table` (length, D) with all sines first, then all cosines.

    Many programs use this order, such as Tensor2Tensor and Marian.
    """
    table = sinusoidal_table(length, d_model, xp)
    return xp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


class NoPositions(Layer):
    """x (B, T, D) -> x: adds no positions; attention may have positions of its own, or none.

    A causal mask also gives some information about the order: the number of visible symbols.
    """

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        return x

    def backward(self, dy: Array) -> Array:
        return dy.copy()
