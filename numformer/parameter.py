"""Parameter, and the two vectors in which all of a model's stand."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from numformer.backend import on_host
from numformer.errors import InputError

Array: TypeAlias = np.ndarray[Any, Any]  # or the same of CuPy, on a GPU


class Parameter:
    """An array to be trained and its gradient, of one shape and dtype.

    Backward does `parameter.grad += ...`. Assigning another array to `data` or `grad` is an
    error, because `pack` makes them views of two vectors that the optimizer works on; write
    new values with `parameter.data[...] = ...`.
    """

    _flat: "FlatParameters | None" = None  # whose views data and grad are, after pack
    _unwritten = False  # whether the gradient counts as zero, whatever its array holds

    def __init__(self, data: Any) -> None:
        self._data = np.array(data, dtype=np.float32)
        self._grad = np.zeros_like(self._data)

    @property
    def data(self) -> Array:
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        self._accept_only(self._data, array, "data")

    @property
    def grad(self) -> Array:
        if self._unwritten:
            self.zero_grad()
        elif self._flat and self._flat.used:
            self._flat.look_whether_zero()
        return self._grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self._accept_only(self._grad, array, "grad")
        if self._flat and self._flat.used:
            self._flat.stale = True

    @property
    def unwritten(self) -> Array | None:
        """Where a backward may write the gradient instead of adding to it; None once there is one.

        What is `add`ed first in a step of training need not be added to zeros.
        """
        return self._grad if self._unwritten else None

    def add(self, gradient: Array) -> None:
        """grad += gradient; where that is the array `unwritten`, the gradient stands in it."""
        if gradient is self._grad:
            self._unwritten = False
        else:
            self.grad += gradient

    @staticmethod
    def _accept_only(current, array, name):
        # `parameter.grad += x` ends by assigning the array that is there already.
        if array is not current:
            raise InputError(
                f"a Parameter keeps its {name} array, which pack() made part of one vector",
                f"another array for {name}",
                "Add to it: parameter.grad += values."
                if name == "grad"
                else "Write into it: parameter.data[...] = values.",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def size(self) -> int:
        return self._data.size

    def _rebind(self, data, grad, flat):
        self._data, self._grad = data, grad
        self._flat = flat

    def zero_grad(self) -> None:
        """Set the gradient to zero."""
        self._grad.fill(0)
        self._unwritten = False
        if self._flat:
            self._flat.used = self._flat.stale = False


class FlatParameters:
    """All parameters of a model as one vector `data` and all their gradients as one `grad`.

    Zeroing, clipping and Adam are then one call each. `used` says that an optimizer has used the
    gradient, and that it is not known to be zero since; `stale` that more was added to such a one.
    """

    used = stale = False

    def __init__(self, data, grad, parameters: Sequence[Parameter] = ()):
        self.data = data
        self.grad = grad
        self._parameters = parameters
        views = zip(self.views(data), self.views(grad), strict=True)
        for parameter, (data_view, grad_view) in zip(parameters, views, strict=True):
            parameter._rebind(data_view, grad_view, self)

    def views(self, vector) -> list:
        """The stretches of a vector (N,) that belong to the parameters, each in its shape."""
        ends = itertools.accumulate(parameter.size for parameter in self._parameters)
        return [
            vector[end - parameter.size : end].reshape(parameter.shape)
            for end, parameter in zip(ends, self._parameters, strict=True)
        ]

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        self.grad.fill(0)
        self.used = self.stale = False
        for parameter in self._parameters:
            parameter._unwritten = False

    def leave_unwritten(self) -> None:
        """Let every gradient count as zero, and write zeros only where `write_zeros` finds none.

        Between the two, look at the gradients of parameters, not at the vector.
        """
        self.used = self.stale = False
        for parameter in self._parameters:
            parameter._unwritten = True

    def write_zeros(self) -> None:
        """Set the gradients to zero that no backward has written since `leave_unwritten`."""
        for parameter in self._parameters:
            if parameter._unwritten:
                parameter.zero_grad()

    def look_whether_zero(self) -> None:
        """Before something is added to a gradient that was used: was it set to zero by hand?

        Some of its numbers tell. On a GPU looking would wait, and it is taken for zero.
        """
        sample = self.grad[:: 1 + len(self.grad) // 1000]
        if not on_host(sample) or not sample.any():
            self.used = self.stale = False

    def is_current(self) -> bool:
        """Whether the parameters are still views of these vectors: no later pack moved them."""
        return all(parameter._flat is self for parameter in self._parameters)
