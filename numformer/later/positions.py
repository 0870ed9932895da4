"""Alternatives to the paper's position encodings: other sinusoids, or no encodings."""

import math

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


def sinusoidal_fairseq_table(length: int, d_model: int, xp=np):
    """Return the table PE (length, D) of fairseq (Ott et al. 2019), used by M2M100 and NLLB.

    PE(pos, j) = sin((pos + 2) w_j), PE(pos, h + j) = cos((pos + 2) w_j) with h = floor(D / 2) and
    w_j = 10000^(-j / (h - 1)); an odd D has a last column of zeros. Position 0 is the third of a
    table whose first two rows belong to other symbols.
    """
    half = d_model // 2
    rates = xp.exp(xp.arange(half) * (-math.log(10000) / max(half - 1, 1)))
    angle = (xp.arange(length)[:, None] + 2) * rates
    odd = xp.zeros((length, d_model - 2 * half))
    return xp.concatenate([xp.sin(angle), xp.cos(angle), odd], axis=-1)


class NoPositions(Layer):
    """x (B, T, D) -> x: adds no position encodings; attention may have its own, or none.

    Even then, a causal mask tells a position something about order: how many symbols it can see.
    """

    def forward(self, x: Array, positions: np.ndarray | None = None) -> Array:
        return x

    def backward(self, dy: Array) -> Array:
        return dy.copy()
