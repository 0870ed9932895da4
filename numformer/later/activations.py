"""Activations other than the paper's ReLU: GELU, Swish, gated linear units, and tanh."""

import math

from numformer.backend import array_module
from numformer.later.normal import normal
from numformer.layer import Array, Layer


def gelu(x):
    """x (...) -> y, slope, each (...): y = x P(X <= x) for a standard normal X.

    This is the exact x (1 + erf(x / sqrt(2))) / 2, not an approximation (Hendrycks and Gimpel
    2016). The slope is P(X <= x) + x density(x).
    """
    cdf, slope = normal(x)
    slope *= x
    slope += cdf
    cdf *= x
    return cdf, slope


def gelu_backward(dy, slope):
    """dy (...) -> dx (...): dy * slope."""
    return dy * slope


class GELU(Layer):
    """x (...) -> x P(X <= x) (...) for a standard normal X."""

    def forward(self, x: Array) -> Array:
        y, slope = gelu(x)
        self.save(slope=slope)
        return y

    def backward(self, dy: Array) -> Array:
        return gelu_backward(dy, **self.pop_saved())


def gelu_tanh(x):
    """x (...) -> y, slope, each (...): y = x p, p = (1 + tanh(u)) / 2.

    u = sqrt(2 / pi) (x + 0.044715 x^3), so that p approximates P(X <= x) (Hendrycks and Gimpel
    2016). Many models were trained with this approximation. The slope is p + x 2 p (1 - p) u',
    u' = sqrt(2 / pi) (1 + 3 * 0.044715 x^2). For |x| above 10, p rounds to 0 or 1, so p and the
    slope are computed with x clipped to +-10, whose square cannot overflow.
    """
    xp = array_module(x)
    near = xp.minimum(xp.maximum(x, -10), 10)
    root, square = math.sqrt(2 / math.pi), near * near
    p = sigmoid(2 * root * near * (1 + 0.044715 * square))  # (1 + tanh(u)) / 2
    slope = root * (1 + 3 * 0.044715 * square)
    slope *= 2 * p * (1 - p) * near
    slope += p
    return x * p, slope


class GELUTanh(GELU):
    """x (...) -> (...): GELU with P(X <= x) approximated by a tanh."""

    def forward(self, x: Array) -> Array:
        y, slope = gelu_tanh(x)
        self.save(slope=slope)
        return y


def sigmoid(x, out=None):
    """x (...) -> s = 1 / (1 + exp(-x)) (...), written to the array `out` if given.

    Computed as (1 + tanh(x / 2)) / 2, which cannot overflow. Its slope is s - s^2.
    """
    xp = array_module(x)
    s = xp.multiply(x, 0.5, out=out)
    xp.tanh(s, out=s)
    s += 1
    s *= 0.5
    return s


def swish(x):
    """x (...) -> y, sigmoid_x, each (...): y = x * sigmoid_x, sigmoid_x = sigmoid(x)   (SiLU)."""
    sigmoid_x = sigmoid(x)
    return x * sigmoid_x, sigmoid_x


def swish_backward(dy, y, sigmoid_x):
    """dy (...) -> dx (...); the slope of y = x * sigmoid_x is sigmoid_x + y * (1 - sigmoid_x)."""
    slope = 1 - sigmoid_x
    slope *= y
    slope += sigmoid_x
    slope *= dy
    return slope


class Swish(Layer):
    """x (...) -> x sigmoid(x) (...): x is gated by its own sigmoid (Elfwing et al. 2018)."""

    def forward(self, x: Array) -> Array:
        y, sigmoid_x = swish(x)
        self.save(y=y, sigmoid_x=sigmoid_x)
        return y

    def backward(self, dy: Array) -> Array:
        return swish_backward(dy, **self.pop_saved())


class QuickGELU(Swish):
    """x (...) -> x sigmoid(1.702 x) (...), near GELU (Hendrycks and Gimpel 2016, section 2)."""

    def forward(self, x: Array) -> Array:
        return super().forward(1.702 * x) / 1.702  # so its slope is that of Swish at 1.702 x


def swiglu(x):
    """x (..., 2F) -> y, sigmoid_gate (..., F): y = Swish(gate) * value, x = [gate | value].

    Swish(gate) = gate * sigmoid_gate, sigmoid_gate = sigmoid(gate)   (Shazeer 2020).
    """
    gate, value = halves(x)
    sigmoid_gate = sigmoid(gate)
    y = gate * sigmoid_gate
    y *= value
    return y, sigmoid_gate


def swiglu_backward(dy, x, sigmoid_gate):
    """dy (..., F) -> dx (..., 2F)."""
    gate, value = halves(x)
    dx = array_module(x).empty_like(x)
    dgate, dvalue = halves(dx)
    swish = gate * sigmoid_gate
    dvalue[...] = dy * swish  # y = swish * value
    # swish = gate * sigmoid_gate; sigmoid_gate has the slope sigmoid_gate * (1 - sigmoid_gate)
    slope = 1 - sigmoid_gate
    slope *= swish
    slope += sigmoid_gate
    slope *= dy
    dgate[...] = slope * value  # y = swish * value
    return dx


def halves(x):
    """x (..., 2F) -> the first and the second half of the last axis, views (..., F)."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


class SwiGLU(Layer):
    """x (..., 2F) -> (..., F): Swish of one half of x gates the other half.

    A feed-forward network then has three matrices instead of two: FFN(x) = (Swish(x W) * x V) W_2.
    """

    inputs = 2  # the number of input features for each output feature

    def forward(self, x: Array) -> Array:
        y, sigmoid_gate = swiglu(x)
        self.save(x=x, sigmoid_gate=sigmoid_gate)
        return y

    def backward(self, dy: Array) -> Array:
        return swiglu_backward(dy, **self.pop_saved())


def geglu(x):
    """x (..., 2F) -> y, gelu_gate, slope (..., F): y = GELU(gate) * value, x = [gate | value].

    gelu_gate = GELU(gate), approximated by tanh; slope is the slope of gelu_gate   (Shazeer 2020).
    """
    gate, value = halves(x)
    gelu_gate, slope = gelu_tanh(gate)
    return gelu_gate * value, gelu_gate, slope


def geglu_backward(dy, x, gelu_gate, slope):
    """dy (..., F) -> dx (..., 2F)."""
    _, value = halves(x)
    dvalue = dy * gelu_gate  # y = gelu_gate * value
    dgate = gelu_backward(dy * value, slope)  # gelu_gate = GELU(gate)
    return array_module(dy).concatenate([dgate, dvalue], axis=-1)


class GEGLU(Layer):
    """x (..., 2F) -> (..., F): GELU of one half of x gates the other half (Shazeer 2020).

    GELU is approximated by tanh, as in the models that were trained with GEGLU.
    """

    inputs = 2

    def forward(self, x: Array) -> Array:
        y, gelu_gate, slope = geglu(x)
        self.save(x=x, gelu_gate=gelu_gate, slope=slope)
        return y

    def backward(self, dy: Array) -> Array:
        return geglu_backward(dy, **self.pop_saved())


def tanh(x):
    """x (...) -> y (...): y = tanh(x)."""
    return array_module(x).tanh(x)


def tanh_backward(dy, y):
    """dy (...) -> dx (...): tanh' = 1 - tanh^2."""
    return dy * (1 - y * y)


class Tanh(Layer):
    """x (...) -> tanh(x) (...), between -1 and 1."""

    def forward(self, x: Array) -> Array:
        y = tanh(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> Array:
        return tanh_backward(dy, **self.pop_saved())


def cap(x, limit: float):
    """x (...) -> y (...): y = c tanh(x / c), with c = `limit` (Bello et al. 2017)."""
    return limit * array_module(x).tanh(x / limit)


def cap_backward(dy, y, limit: float):
    """dy (...) -> dx (...): dx = dy (1 - (y / c)^2), because tanh' = 1 - tanh^2."""
    return dy * (1 - (y / limit) ** 2)


class Cap(Layer):
    """x (...) -> (...): numbers far below `limit` nearly unchanged, and none beyond +-`limit`."""

    def __init__(self, limit: float):
        self.limit = limit

    def forward(self, x: Array) -> Array:
        y = cap(x, self.limit)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> Array:
        return cap_backward(dy, **self.pop_saved(), limit=self.limit)
