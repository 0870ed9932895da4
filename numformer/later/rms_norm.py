"""Root mean square normalisation (Zhang and Sennrich 2019): LayerNorm without mean and shift."""

import numpy as np

from numformer.arithmetic import dot_last, dot_rows
from numformer.backend import array_module
from numformer.errors import require_width
from numformer.layer import Array, Layer, Parameter


def rms_norm(x, gamma, epsilon):
    """x (..., D), gamma (D) -> y, x_hat (..., D), rrms (..., 1).

    y = gamma * x_hat, x_hat = x * rrms, rrms = 1 / sqrt(mean(x^2) + epsilon), with the mean over
    each position's D values.
    """
    rrms = 1 / array_module(x).sqrt(dot_last(x, x) / x.shape[-1] + epsilon)
    x_hat = x * rrms
    return gamma * x_hat, x_hat, rrms


def rms_norm_backward(dy, x_hat, rrms, gamma):
    """dy, x_hat (..., D), rrms (..., 1), gamma (D) -> dx (..., D), dgamma (D).

    rrms depends on x, too: dx = rrms * (dx_hat - x_hat * mean(dx_hat * x_hat)). The second term
    removes the component of dx_hat along x_hat, because rescaling x hardly changes y.
    """
    dgamma = dot_rows(dy, x_hat)  # y = gamma * x_hat
    dx_hat = dy * gamma
    along_x_hat = dot_last(dx_hat, x_hat) / x_hat.shape[-1]
    dx = dx_hat
    dx -= x_hat * along_x_hat
    dx *= rrms  # x_hat = x * rrms
    return dx, dgamma


class RMSNorm(Layer):
    """x (..., D) -> (..., D): each position scaled to a mean square of 1, then by gamma.

    gamma starts at 1; epsilon has the same default as in LayerNorm.
    """

    role = "norm"

    def __init__(self, d_model: int, epsilon: float = 1e-5):
        self.gamma = Parameter(np.ones(d_model))
        self.epsilon = epsilon

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.gamma.size)
        y, x_hat, rrms = rms_norm(x, self.gamma.data, self.epsilon)
        self.save(x_hat=x_hat, rrms=rrms)
        return y

    def backward(self, dy: Array) -> Array:
        dx, dgamma = rms_norm_backward(dy, **self.pop_saved(), gamma=self.gamma.data)
        self.gamma.grad += dgamma
        return dx
