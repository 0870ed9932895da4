"""What stands between the two products of the feed-forward network (section 3.3).

The paper's is ReLU. GELU and SwiGLU came later; tanh is what recurrent networks have.
"""

import math

from numformer.backend import array_module, normal_cdf
from numformer.layer import Layer


def relu(x):
    """x (...) -> y, positive, each (...): y = max(0, x), and where x > 0."""
    return array_module(x).maximum(x, 0), x > 0


def relu_backward(dy, positive):
    """dy (...) -> dx (...): the gradient passes where x > 0."""
    return dy * positive


class ReLU(Layer):
    """x (...) -> max(0, x) (...). The gradient at exactly 0 is 0."""

    def forward(self, x):
        y, positive = relu(x)
        self.save(positive=positive)
        return y

    def backward(self, dy):
        return relu_backward(dy, **self.pop_saved())


def gelu(x):
    """x (...) -> y, cdf, each (...): y = x P(X <= x) for a standard normal X.

    Hendrycks and Gimpel 2016; exactly, x (1 + erf(x / sqrt(2))) / 2, not the approximation by tanh.
    """
    cdf = normal_cdf(x)
    return x * cdf, cdf


def gelu_backward(dy, x, cdf):
    """dy (...) -> dx (...): dy (cdf + x density), the density of a normal being the cdf's slope."""
    slope = x * x
    slope *= -0.5
    array_module(x).exp(slope, out=slope)
    slope *= 1 / math.sqrt(2 * math.pi)  # the density
    slope *= x
    slope += cdf
    slope *= dy
    return slope


class GELU(Layer):
    """x (...) -> (...): x times the probability that a standard normal number is below x."""

    def forward(self, x):
        y, cdf = gelu(x)
        self.save(x=x, cdf=cdf)
        return y

    def backward(self, dy):
        return gelu_backward(dy, **self.pop_saved())


def swiglu(x):
    """x (..., 2F) -> y, sigmoid (..., F): y = Swish(gate) value, gate and value the halves of x.

    Swish(g) = g sigmoid(g), sigmoid(g) = 1 / (1 + exp(-g))   (Shazeer 2020, equation 6).
    """
    gate, value = halves(x)
    # By tanh, which no number makes overflow: sigmoid(g) = (1 + tanh(g / 2)) / 2.
    sigmoid = array_module(x).tanh(0.5 * gate)
    sigmoid += 1
    sigmoid *= 0.5
    y = gate * sigmoid
    y *= value
    return y, sigmoid


def swiglu_backward(dy, x, sigmoid):
    """dy (..., F) -> dx (..., 2F)."""
    gate, value = halves(x)
    dx = array_module(x).empty_like(x)
    dgate, dvalue = halves(dx)
    swish = gate * sigmoid
    dvalue[...] = dy * swish  # y = swish value
    # d(g s) = s + g s (1 - s) = s + swish (1 - s)
    slope = 1 - sigmoid
    slope *= swish
    slope += sigmoid
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

    def forward(self, x):
        y, sigmoid = swiglu(x)
        self.save(x=x, sigmoid=sigmoid)
        return y

    def backward(self, dy):
        return swiglu_backward(dy, **self.pop_saved())


def tanh(x):
    """x (...) -> y (...): y = tanh(x)."""
    return array_module(x).tanh(x)


def tanh_backward(dy, y):
    """dy (...) -> dx (...): tanh' = 1 - tanh^2."""
    return dy * (1 - y * y)


class Tanh(Layer):
    """x (...) -> tanh(x) (...), between -1 and 1."""

    def forward(self, x):
        y = tanh(x)
        self.save(y=y)
        return y

    def backward(self, dy):
        return tanh_backward(dy, **self.pop_saved())
