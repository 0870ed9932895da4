"""Sounds as sequences: two convolutions before the stack of layers (Radford et al. 2023)."""

import numpy as np

from numformer.backend import array_module
from numformer.later.activations import GELU
from numformer.later.feed_forward import Chain
from numformer.layer import Array, Layer
from numformer.paper.dropout import Dropout
from numformer.paper.linear import Linear


def windows(x, width: int, stride: int):
    """x (B, T, C) -> (B, ceil(T / stride), width C): what is around every `stride`-th position.

    Window t holds x_{stride t - p} ... x_{stride t + p}, where p = width // 2 and `width` is odd; x
    is 0 before its first and after its last position.
    """
    p = width // 2
    padded = array_module(x).pad(x, ((0, 0), (p, p), (0, 0)))
    parts = [padded[:, j : j + x.shape[1] : stride] for j in range(width)]
    return array_module(x).concatenate(parts, axis=-1)


def windows_backward(dy, shape, width: int, stride: int):
    """dy (B, ceil(T / stride), width C), the shape of x -> dx (B, T, C)."""
    xp, (batch, length, size) = array_module(dy), shape
    dpadded = xp.zeros((batch, length + width, size), dy.dtype)
    for j in range(width):  # a position is in several windows
        dpadded[:, j : j + length : stride] += dy[..., j * size : (j + 1) * size]
    return dpadded[:, width // 2 :][:, :length]


class Windows(Layer):
    """x (B, T, C) -> (B, ceil(T / stride), width C): what is around every `stride`-th position.

    A Linear after it makes a convolution with filters of an odd `width`, zeros at both ends.
    """

    def __init__(self, width: int, stride: int = 1):
        self.width, self.stride = width, stride

    def forward(self, x: Array) -> Array:
        self.save(shape=x.shape)
        return windows(x, self.width, self.stride)

    def backward(self, dy: Array) -> Array:
        return windows_backward(dy, **self.pop_saved(), width=self.width, stride=self.stride)


class SoundEmbedding(Chain):
    """features (B, F, M) -> x (B, ceil(F / 2), D): M numbers for each of F frames become vectors.

    Two convolutions with filters of width 3, each with a GELU, see 5 frames around every second
    one; `positions`, a layer, are added (Radford et al. 2023, section 2.2).
    """

    def __init__(
        self,
        bands: int,
        d_model: int,
        positions: Layer,
        rng: np.random.Generator,
        p_drop: float = 0.0,
    ):
        first, second = Linear(3 * bands, d_model, rng), Linear(3 * d_model, d_model, rng)
        convolutions = Windows(3), first, GELU(), Windows(3, stride=2), second, GELU()
        super().__init__(*convolutions, positions, Dropout(p_drop))
