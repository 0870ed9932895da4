"""Layer normalisation (Ba et al. 2016; section 3.1)."""

import numpy as np

from numformer.arithmetic import dot_last, dot_rows, mean_last, sum_rows
from numformer.backend import array_module, has_kernel
from numformer.errors import require_width
from numformer.layer import Array, Layer, Parameter


@has_kernel
def layer_norm(x, gamma, beta, epsilon):
    """x (..., D), gamma, beta (D) -> y, x_hat (..., D), rstd (..., 1).

    y = gamma * x_hat + beta, x_hat = (x - mean) / sqrt(variance + epsilon), with the mean and
    (biased) variance of each position's D values; rstd = 1 / sqrt(variance + epsilon).
    """
    centred = x - mean_last(x)
    variance = dot_last(centred, centred) / x.shape[-1]
    rstd = 1 / array_module(x).sqrt(variance + epsilon)
    centred *= rstd
    x_hat = centred
    y = gamma * x_hat
    y += beta
    return y, x_hat, rstd


@has_kernel
def layer_norm_backward(dy, x_hat, rstd, gamma):
    """dy, x_hat (..., D), rstd (..., 1), gamma (D) -> dx (..., D), dgamma, dbeta (D).

    dx = rstd * (dx_hat - mean(dx_hat) - x_hat * mean(dx_hat * x_hat)). The two means remove from
    dx_hat what would shift or scale all values of a position, since the norm cancels such changes.
    """
    dgamma = dot_rows(dy, x_hat)  # y = gamma * x_hat + beta
    dbeta = sum_rows(dy)
    dx_hat = dy * gamma
    along_x_hat = dot_last(dx_hat, x_hat) / x_hat.shape[-1]
    dx = dx_hat
    dx -= mean_last(dx_hat)
    dx -= x_hat * along_x_hat
    dx *= rstd  # x_hat = (x - mean) * rstd
    return dx, dgamma, dbeta


class LayerNorm(Layer):
    """x (..., D) -> (..., D): each position normalised, then scaled by gamma and shifted by beta.

    gamma starts at 1 and beta at 0. The paper gives no epsilon; 1e-5 is the common choice.
    """

    role = "norm"

    def __init__(self, d_model: int, epsilon: float = 1e-5):
        self.gamma = Parameter(np.ones(d_model))
        self.beta = Parameter(np.zeros(d_model))
        self.epsilon = epsilon

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.gamma.size)
        y, x_hat, rstd = layer_norm(x, self.gamma.data, self.beta.data, self.epsilon)
        self.save(x_hat=x_hat, rstd=rstd)
        return y

    def backward(self, dy: Array) -> Array:
        dx, dgamma, dbeta = layer_norm_backward(dy, **self.pop_saved(), gamma=self.gamma.data)
        self.gamma.grad += dgamma
        self.beta.grad += dbeta
        return dx
