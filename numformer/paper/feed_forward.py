"""FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, applied to each position separately (section 3.3)."""

import numpy as np

from numformer.backend import array_module, has_kernel
from numformer.layer import Array, Layer
from numformer.paper.linear import Linear


@has_kernel
def relu(x):
    """x (...) -> y, positive, both (...): y = max(0, x), positive = (x > 0)."""
    return array_module(x).maximum(x, 0), x > 0


@has_kernel
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


class FeedForward(Layer):
    """x (B, T, D) -> (B, T, D): FFN(x) = max(0, x W_1 + b_1) W_2 + b_2   (equation 2).

    Its parts `inner` (x W_1 + b_1), `activation` and `outer` (h W_2 + b_2) can be replaced.
    """

    role = "feed_forward"

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        rng: np.random.Generator,
        inner: Layer | None = None,
        activation: Layer | None = None,
        outer: Layer | None = None,
    ):
        self.inner = inner or Linear(d_model, d_ff, rng)
        self.activation = activation or ReLU()
        self.outer = outer or Linear(d_ff, d_model, rng)

    def forward(self, x: Array) -> Array:
        return self.outer.forward(self.activation.forward(self.inner.forward(x)))

    def backward(self, dy: Array) -> Array:
        return self.inner.backward(self.activation.backward(self.outer.backward(dy)))
