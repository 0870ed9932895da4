"""What stands between the two products of the feed-forward network (section 3.3).

The paper's is ReLU. GELU, SwiGLU and GEGLU came later; tanh is what recurrent networks have.
"""

import math

from numformer.backend import array_module, normal, positive_part
from numformer.layer import Array, Layer


def relu(x):
    """x (...) -> y, positive, each (...): y = max(0, x), and where x > 0."""
    return positive_part(x), x > 0


def relu_backward(dy, positive):
    """dy (...) -> dx (...): the gradient passes where x > 0."""
    return dy * positive


class ReLU(Layer):
    """x (...) -> max(0, x) (...). The gradient at exactly 0 is 0."""

    def forward(self, x: Array) -> Array:
        y, positive = relu(x)
        self.save(positive=positive)
        return y

    def backward(self, dy: Array) -> Array:
        return relu_backward(dy, **self.pop_saved())


def gelu(x):
    """x (...) -> y, slope, each (...): y = x P(X <= x) for a standard normal X.

    Hendrycks and Gimpel 2016; exactly, x (1 + erf(x / sqrt(2))) / 2, not the approximation by tanh.
    The slope is P(X <= x) + x density(x), as the density is the probability's own slope.
    """
    cdf, slope = normal(x)
    slope *= x
    slope += cdf
    cdf *= x
    return cdf, slope


def gelu_backward(dy, slope):
    """dy (...) -> dx (...): dy slope."""
    return dy * slope


class GELU(Layer):
    """x (...) -> (...): x times the probability that a standard normal number is below x."""

    def forward(self, x: Array) -> Array:
        y, slope = gelu(x)
        self.save(slope=slope)
        return y

    def backward(self, dy: Array) -> Array:
        return gelu_backward(dy, **self.pop_saved())


def gelu_tanh(x):
    """x (...) -> y, slope, each (...): y = x p, p = (1 + tanh(u)) / 2.

    u = sqrt(2 / pi) (x + 0.044715 x^3), so p is nearly P(X <= x) (Hendrycks and Gimpel 2016); many
    models were trained so.
    The slope is p + x 2 p (1 - p) u', u' = sqrt(2 / pi) (1 + 3 * 0.044715 x^2). Beyond 10 p is 0 or
    1 to the last digit, so there is no need to look further, where squares overflow.
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
    """x (...) -> (...): GELU, with the probability approximated by a tanh."""

    def forward(self, x: Array) -> Array:
        y, slope = gelu_tanh(x)
        self.save(slope=slope)
        return y


def sigmoid(x, out=None):
    """x (...) -> 1 / (1 + exp(-x)) (...), into `out` where that is given: how far a gate is open.

    Computed as (1 + tanh(x / 2)) / 2, in which nothing overflows. Its slope is s - s^2.
    """
    xp = array_module(x)
    s = xp.multiply(x, 0.5, out=out)
    xp.tanh(s, out=s)
    s += 1
    s *= 0.5
    return s


def swish(x):
    """x (...) -> y, opened, each (...): y = x opened, opened = sigmoid(x)   (SiLU)."""
    opened = sigmoid(x)
    return x * opened, opened


def swish_backward(dy, y, opened):
    """dy (...) -> dx (...): the slope of x opened is opened + x opened (1 - opened)."""
    slope = 1 - opened
    slope *= y
    slope += opened
    slope *= dy
    return slope


class Swish(Layer):
    """x (...) -> x sigmoid(x) (...): x opens its own gate (Elfwing et al. 2018)."""

    def forward(self, x: Array) -> Array:
        y, opened = swish(x)
        self.save(y=y, opened=opened)
        return y

    def backward(self, dy: Array) -> Array:
        return swish_backward(dy, **self.pop_saved())


def swiglu(x):
    """x (..., 2F) -> y, opened (..., F): y = Swish(gate) value, gate and value the halves of x.

    Swish(gate) = gate opened, opened = sigmoid(gate)   (Shazeer 2020).
    """
    gate, value = halves(x)
    opened = sigmoid(gate)
    y = gate * opened
    y *= value
    return y, opened


def swiglu_backward(dy, x, opened):
    """dy (..., F) -> dx (..., 2F)."""
    gate, value = halves(x)
    dx = array_module(x).empty_like(x)
    dgate, dvalue = halves(dx)
    swish = gate * opened
    dvalue[...] = dy * swish  # y = swish value
    # swish = gate opened, and opened has the slope opened (1 - opened)
    slope = 1 - opened
    slope *= swish
    slope += opened
    slope *= dy
    dgate[...] = slope * value  # y = swish value
    return dx


def halves(x):
    """x (..., 2F) -> its first and second half along the last axis, both views (..., F)."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


class SwiGLU(Layer):
    """x (..., 2F) -> (..., F): half of x, through Swish, is a gate for the other half.

    So the feed-forward network has three matrices instead of two: FFN(x) = (Swish(x W) * x V) W_2.
    """

    inputs = 2  # that it takes for each value that it gives

    def forward(self, x: Array) -> Array:
        y, opened = swiglu(x)
        self.save(x=x, opened=opened)
        return y

    def backward(self, dy: Array) -> Array:
        return swiglu_backward(dy, **self.pop_saved())


def geglu(x):
    """x (..., 2F) -> y, opened, slope (..., F): y = GELU(gate) value, the halves of x.

    opened = GELU(gate), by its approximation, and slope is that of opened   (Shazeer 2020).
    """
    gate, value = halves(x)
    opened, slope = gelu_tanh(gate)
    return opened * value, opened, slope


def geglu_backward(dy, x, opened, slope):
    """dy (..., F) -> dx (..., 2F)."""
    _, value = halves(x)
    dvalue = dy * opened  # y = opened value
    dgate = gelu_backward(dy * value, slope)  # opened = GELU(gate)
    return array_module(dy).concatenate([dgate, dvalue], axis=-1)


class GEGLU(Layer):
    """x (..., 2F) -> (..., F): half of x, through GELU, is a gate for the other half.

    Shazeer 2020; with GELU's approximation by tanh, as the models have it that were trained so.
    """

    inputs = 2

    def forward(self, x: Array) -> Array:
        y, opened, slope = geglu(x)
        self.save(x=x, opened=opened, slope=slope)
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
