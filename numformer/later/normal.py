"""The standard normal distribution: its cumulative distribution and its density, for GELU."""

import functools
import math

import numpy as np

from numformer.backend import array_module, cache_pieces


def normal(x):
    """x (...) -> P(X <= x) of a standard normal X, and the density at x, each (...).

    NumPy has neither P(X <= x) nor erf. The tail P(X > a), a = |x|, is exp(-a^2 / 2) times a smooth
    function of t = 3 / (3 + a), which a polynomial in t matches to the precision of the dtype. For
    a above 40 the exponential is 0 in every dtype.
    """
    xp = array_module(x)
    highest, *coefficients, constant = _tail_polynomial(7 if x.dtype == np.float32 else 18)
    flat, (cdf, density) = x.reshape(-1), xp.empty((2, x.size), x.dtype)
    for piece in cache_pieces(flat):
        value, tail, exponential = flat[piece], cdf[piece], density[piece]
        a = xp.minimum(xp.absolute(value), 40)
        xp.multiply(a, a, out=exponential)
        t = a + 3
        xp.divide(3, t, out=t)
        xp.multiply(t, highest, out=tail)
        for coefficient in coefficients:
            tail += coefficient
            tail *= t
        tail += constant
        exponential *= -0.5
        tail *= xp.exp(exponential, out=exponential)
        exponential *= 1 / math.sqrt(2 * math.pi)
        # P(X <= x) is the tail if x is negative, otherwise 1 - tail.
        tail -= value > 0
        xp.absolute(tail, out=tail)
    return cdf.reshape(x.shape), density.reshape(x.shape)


@functools.cache
def _tail_polynomial(degree: int) -> list[float]:
    """The coefficients, highest first, of exp(a^2 / 2) P(X > a) in powers of 3 / (3 + a).

    They are Python floats, because NumPy's would turn every sum into float64, at half the speed.
    """

    def scaled_tail(t: float) -> float:
        a = 3 / t - 3
        return math.exp(a * a / 2) * math.erfc(a / math.sqrt(2)) / 2

    values = np.vectorize(scaled_tail)
    polynomial = np.polynomial.Chebyshev.interpolate(values, degree, domain=[0.2, 1])
    return polynomial.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()
