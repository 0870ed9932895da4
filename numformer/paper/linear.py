"""y = x W + b, the linear map from which most parts are built."""

import math

import numpy as np

from numformer.arithmetic import matmul, rows, sum_rows
from numformer.backend import has_kernel
from numformer.errors import require_width
from numformer.layer import Array, Layer, Parameter


@has_kernel
def linear(x, weight, bias=None):
    """x (..., D_in), weight (D_in, D_out), bias (D_out) -> y (..., D_out): y = x W + b."""
    y = matmul(x, weight)
    if bias is not None:
        y += bias
    return y


@has_kernel
def linear_backward(dy, x, weight, bias=None):
    """dy (..., D_out) -> dx (..., D_in), dweight (D_in, D_out), dbias (D_out) or None."""
    dx = matmul(dy, weight.T)  # y = x W, so dx = dy W^T
    dweight = matmul(rows(x).T, rows(dy))  # the sum over positions of the outer product x dy
    dbias = None if bias is None else sum_rows(dy)  # b is added at every position
    return dx, dweight, dbias


class Linear(Layer):
    """x (..., D_in) -> (..., D_out): y = x W + b.

    W is (D_in, D_out) because the paper writes xW. Its initial values are uniform between plus and
    minus sqrt(6 / (D_in + D_out)) (Glorot and Bengio 2010), which keeps activations and gradients
    at about the same size from layer to layer; b starts at 0.
    """

    def __init__(self, d_in: int, d_out: int, rng: np.random.Generator, bias: bool = True):
        bound = math.sqrt(6 / (d_in + d_out))
        self.weight = Parameter(rng.uniform(-bound, bound, (d_in, d_out)))
        self.bias = Parameter(np.zeros(d_out)) if bias else None

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.weight.shape[0])
        self.save(x=x)
        return linear(x, self.weight.data, self.bias and self.bias.data)

    def backward(self, dy: Array) -> Array:
        return self._backward(dy, **self.pop_saved())

    def _backward(self, dy, x):
        weight, bias = self.weight.data, self.bias and self.bias.data
        dx, dweight, dbias = linear_backward(dy, x, weight, bias)
        self.weight.grad += dweight
        if self.bias:
            self.bias.grad += dbias
        return dx
