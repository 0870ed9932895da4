"""Alternatives to the paper's position encodings: sinusoids in another order, or no encodings."""

import numpy as np

from numformer.layer import Array, Layer
from numformer.paper.positions import sinusoidal_table


def sinusoidal_halves_table(length: int, d_model: int, xp=np):
    """Return `sinusoidal_table` (length, D) with all sines first, then all cosines.

    Hugging Face's form of Marian has these columns. Tensor2Tensor and Marian itself have the same
    order, but other wavelengths: their exponents are j / (D/2 - 1), where the paper has j / (D/2).
    """
    table = sinusoidal_table(length, d_model, xp)
    return xp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


class NoPositions(Layer):
    """x (B, T, D) -> x: adds no position encodings; attention may have its own, or none.

    Even then, a causal mask tells a position something about order: how many symbols it can see.
    """

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        return x

    def backward(self, dy: Array) -> Array:
        return dy.copy()
