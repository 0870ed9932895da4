"""ReLU(x) = max(0, x), the activation inside the feed-forward network (section 3.3)."""

from numformer.backend import array_module
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
