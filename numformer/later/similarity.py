"""How alike the vectors of two towers are: scaled cosines (Radford et al. 2021, figure 3)."""

import math
from typing import Any

import numpy as np

from numformer.arithmetic import matmul
from numformer.backend import array_module
from numformer.layer import Array, Layer, Parameter


def unit(x):
    """x (N, D) -> y (N, D) = x / |x|, lengths (N, 1) = |x|."""
    lengths = array_module(x).sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / lengths, lengths


def unit_backward(dy, y, lengths):
    """dy (N, D) -> dx (N, D): the part of dy along y does not change y."""
    return (dy - y * (dy * y).sum(axis=-1, keepdims=True)) / lengths


class Similarity(Layer):
    """x (N, D), y (M, D) -> (N, M): e^s cos(x_n, y_m), with a trained s.

    s starts at ln(1 / 0.07) (Radford et al. 2021, section 2.5).
    """

    def __init__(self):
        self.scale = Parameter(np.full(1, -math.log(0.07)))

    def forward(self, x: Array, y: Array) -> Array:
        (x, x_lengths), (y, y_lengths) = unit(x), unit(y)
        similarity = array_module(x).exp(self.scale.data) * matmul(x, y.T)
        self.save(x=x, x_lengths=x_lengths, y=y, y_lengths=y_lengths, similarity=similarity)
        return similarity

    def backward(self, dsimilarity: Array) -> Any:
        saved = self.pop_saved()
        self.scale.grad += (dsimilarity * saved["similarity"]).sum()  # d e^s / d s = e^s
        dcosines = array_module(dsimilarity).exp(self.scale.data) * dsimilarity
        dx, dy = matmul(dcosines, saved["y"]), matmul(dcosines.T, saved["x"])
        dx = unit_backward(dx, saved["x"], saved["x_lengths"])
        return dx, unit_backward(dy, saved["y"], saved["y_lengths"])
