"""Other positions that are added to the embeddings, and none."""

import numpy as np

from numformer.layer import Array, Layer
from numformer.paper.positions import sinusoidal_table


def sinusoidal_halves_table(length: int, d_model: int, xp=np):
    """The same columns (length, D) in another order: first all sines, then all cosines.

    Many programs have it so, Tensor2Tensor and Marian among them.
    """
    table = sinusoidal_table(length, d_model, xp)
    return xp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


class NoPositions(Layer):
    """x (B, T, D) -> x: positions come in elsewhere, within attention, or not at all.

    A causal mask alone tells something of the order, too: how many symbols there are to look at.
    """

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        return x

    def backward(self, dy: Array) -> Array:
        return dy.copy()
