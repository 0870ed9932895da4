"""A short causal convolution along the sequence, with a filter for each feature."""

import math
from typing import Any

import numpy as np

from numformer.arithmetic import dot_rows, sum_rows
from numformer.backend import array_module
from numformer.errors import require_width
from numformer.layer import Array, Layer, Parameter


def convolution(x, weight, bias, before):
    """x (B, T, D), weight (W, D), bias (D), before (B, W - 1, D) -> y (B, T, D), x_with_past.

    y_t = bias + sum over j < W of weight_j x_{t-j}. `before` holds the W - 1 positions before x, so
    x_with_past (B, W - 1 + T, D) contains every x_{t-j}.
    """
    length, reach = x.shape[1], len(weight) - 1
    x_with_past = array_module(x).concatenate([before, x], axis=1)
    y = x * weight[0]
    for j in range(1, len(weight)):
        y += x_with_past[:, reach - j : reach - j + length] * weight[j]
    y += bias
    return y, x_with_past


def convolution_backward(dy, weight, x_with_past):
    """dy (B, T, D) -> dx (B, T, D), dweight (W, D), dbias (D)."""
    xp, length, reach = array_module(dy), dy.shape[1], len(weight) - 1
    dx, dweight = dy * weight[0], xp.empty_like(weight)
    for j in range(len(weight)):
        dweight[j] = dot_rows(dy, x_with_past[:, reach - j : reach - j + length])
        if j:  # y_{t+j} contains weight_j x_t
            dx[:, : max(0, length - j)] += dy[:, j:] * weight[j]
    return dx, dweight, sum_rows(dy)


class Convolution(Layer):
    """x (B, T, D) -> (B, T, D): a weighted sum of each feature's latest `width` values.

    `before` (B, width - 1, D) holds the positions before x; the default is 0. The initial weights
    are uniform within +-1 / sqrt(width), so that y is roughly as large as x; the bias starts at 0.
    """

    def __init__(self, d_model: int, rng: np.random.Generator, width: int = 4):
        bound = 1 / math.sqrt(width)
        self.weight = Parameter(rng.uniform(-bound, bound, (width, d_model)))
        self.bias = Parameter(np.zeros(d_model))

    def forward(self, x: Array, before: Any = None) -> Array:
        require_width(self, x, self.bias.size)
        before = self._zeros(x) if before is None else before
        y, x_with_past = convolution(x, self.weight.data, self.bias.data, before)
        self.save(x_with_past=x_with_past)
        return y

    def latest(self, x: Array, before: Any = None) -> Array:
        """Return the latest positions (B, width - 1, D), the `before` of the next x."""
        before = self._zeros(x) if before is None else before
        return array_module(x).concatenate([before, x], axis=1)[:, x.shape[1] :]

    def _zeros(self, x):
        """Return the `before` of a sequence's start: zeros."""
        shape = (len(x), len(self.weight.data) - 1, x.shape[-1])
        return array_module(x).zeros(shape, x.dtype)

    def backward(self, dy: Array) -> Array:
        dx, dweight, dbias = convolution_backward(dy, self.weight.data, **self.pop_saved())
        self.weight.grad += dweight
        self.bias.grad += dbias
        return dx
