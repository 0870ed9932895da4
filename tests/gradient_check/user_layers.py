"""Layers as users write them, without any layer or name of the library."""

from collections.abc import Callable

import numpy as np

from numformer.layer import Layer, Parameter

D = 8
RNG = np.random.default_rng(11)


def random_parameter(*shape: int) -> Parameter:
    return Parameter(RNG.standard_normal(shape) / shape[0] ** 0.5)


def logistic(z):
    return 1.0 / (1.0 + np.exp(-z))


class Formula(Layer):
    """y = formula(a, b, ...), whose backward returns gradients(dy, a, b, ...)."""

    def __init__(self, formula: Callable, gradients: Callable):
        self.formula, self.gradients = formula, gradients

    def forward(self, x, *others):
        self.save(**dict(zip("abc", (x, *others), strict=False)))
        return self.formula(x, *others)

    def backward(self, dy):
        return self.gradients(dy, **self.pop_saved())


class Chain(Layer):
    """Layers one after the other."""

    def __init__(self, *parts: Layer):
        self.parts = parts

    def forward(self, x):
        for part in self.parts:
            x = part.forward(x)
        return x

    def backward(self, dy):
        for part in reversed(self.parts):
            dy = part.backward(dy)
        return dy


class WithAttributes(Formula):
    """y = sin(x), with any attributes besides."""

    def __init__(self, **attributes):
        super().__init__(np.sin, lambda dy, a: dy * np.cos(a))
        vars(self).update(attributes)


class Dense(Layer):
    """y (B, T, F) = f(x kernel + offset), where dz is the gradient at z = x kernel + offset.

    `slope(z, s)` is f's derivative, `through(dz, kernel)` is dx and `summed(dz)` the gradient of
    the offset.
    """

    def __init__(
        self,
        d_out: int = D,
        function: Callable = logistic,
        slope: Callable = lambda z, s: s * (1 - s),
        through: Callable = lambda dz, kernel: dz @ kernel.T,
        summed: Callable = lambda dz: dz.sum(axis=(0, 1)),
    ):
        self.kernel, self.offset = random_parameter(D, d_out), random_parameter(d_out)
        self.function, self.slope, self.through, self.summed = function, slope, through, summed

    def forward(self, x):
        z = x @ self.kernel.data + self.offset.data
        self.save(h=x, z=z, out=self.function(z))
        return self.saved[-1]["out"].copy()

    def backward(self, dy):
        saved = self.pop_saved()
        dz = dy * self.slope(saved["z"], saved["out"])
        self.kernel.grad += saved["h"].reshape(-1, D).T @ dz.reshape(-1, dz.shape[-1])
        self.offset.grad += self.summed(dz)
        return self.through(dz, self.kernel.data)
