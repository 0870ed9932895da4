"""Parameter, Layer and the rules that every layer keeps.

A layer has `forward` and `backward`. Forward ends by saving what backward needs, backward begins
by popping it, so any number of forwards may come before the first backward, and backwards come
in reverse order. Nobody writes into an argument, a Parameter's data or what a forward returned;
what a backward returns shares memory with nothing, so its receiver may overwrite it.
"""

import contextlib
import contextvars
import itertools
import reprlib
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from numformer import blas
from numformer.backend import array_module, dtype_kind, on_host, to_host
from numformer.errors import InputError

Array: TypeAlias = np.ndarray[Any, Any]  # or the same of CuPy, on a GPU


class Parameter:
    """An array to be trained and its gradient, of one shape and dtype.

    Backward does `parameter.grad += ...`. Assigning another array to `data` or `grad` is an
    error, because `pack` makes them views of two vectors that the optimizer works on; write
    new values with `parameter.data[...] = ...`.
    """

    _flat: "FlatParameters | None" = None  # whose views data and grad are, after pack

    def __init__(self, data: Any) -> None:
        self._data = np.array(data, dtype=np.float32)
        self._grad = np.zeros(self._data.shape, np.float32)  # memory that is not touched yet

    @property
    def data(self) -> Array:
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        self._accept_only(self._data, array, "data")

    @property
    def grad(self) -> Array:
        if self._flat and self._flat.used:
            self._flat.look_whether_zero()
        return self._grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self._accept_only(self._grad, array, "grad")
        if self._flat and self._flat.used:
            self._flat.stale = True

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
        if self._flat:
            self._flat.used = self._flat.stale = False


# A thread has a context, so modes, of its own.
_training = contextvars.ContextVar("training", default=True)
_saving = contextvars.ContextVar("saving", default=True)


def training() -> bool:
    """Whether dropout drops."""
    return _training.get()


def saving() -> bool:
    """Whether forward saves what backward needs."""
    return _saving.get()


@contextlib.contextmanager
def mode(*, training: bool | None = None, saving: bool | None = None) -> Iterator[None]:
    """Within the block dropout drops (training) and forward saves for backward (saving), or not.

    In this thread alone: one that is started within the block begins with both on.
    """
    asked = (_training, training), (_saving, saving)
    before = [(variable, variable.set(value)) for variable, value in asked if value is not None]
    try:
        yield
    finally:
        for variable, token in before:
            variable.reset(token)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Within the block no dropout, and nothing is saved: for evaluation and decoding.

    Products that are not large take one thread of the processor (numformer/blas.py).
    """
    with mode(training=False, saving=False), blas.sparing():
        yield


class Layer:
    """What every layer shares: its parameters and sublayers by name, saved values, state.

    Attributes that are Parameters, Layers, or lists or tuples of them (no other containers) are
    found in the order in which they were assigned; the path of attributes is a parameter's name
    (`encoder.layers.0.self_attention.sublayer.query.weight`). A Parameter held by two layers
    is one parameter under the name met first.
    """

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        """Its class and parameters, `Linear(weight (8, 12), bias (12,))`, sublayers indented."""
        children = [*self._children()]
        lines = [
            f"{name}: {child!r}" if isinstance(child, Layer) else f"{name} {child.shape}"
            for name, child in children
        ]
        inside = ", ".join(lines)
        if any(isinstance(child, Layer) for _, child in children):
            inside = "\n" + textwrap.indent("\n".join(lines), "  ") + "\n"
        return f"{type(self).__name__}({inside})"

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """What `forward` gives."""
        return self.forward(*inputs, **settings)

    def forward(self, *inputs: Any, **settings: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, dy: Any, /) -> Any:
        """One gradient for each differentiable input of forward, in forward's order.

        None where there is none (token ids), the array where there is one, a tuple where there
        are several. Gradients of parameters are added to `parameter.grad`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    # Saved values: a stack, so a layer may be used several times before backward.

    @property
    def saved(self) -> list[dict[str, Any]]:
        """What the forwards saved that no backward has popped yet, oldest first."""
        return self.__dict__.setdefault("_saved", [])

    def save(self, **values: Any) -> None:
        """Keep what backward needs, by name; does nothing while `saving` is off."""
        if _saving.get():
            self.saved.append(values)

    def pop_saved(self) -> dict[str, Any]:
        """What the latest forward saved. Raises RuntimeError when there is none."""
        saved = self.saved
        if not saved:
            raise RuntimeError(
                f"{type(self).__name__}.backward needs a forward before it, while saving is on: "
                "each forward serves one backward. Call forward again."
            )
        return saved.pop()

    def pending(self) -> int:
        """How many saved records wait for a backward, in this layer and all within it."""
        return sum(len(layer.saved) for layer in self.layers_within())

    def clear_saved(self) -> None:
        """Forget what forwards saved, in this layer and all within it."""
        for layer in self.layers_within():
            layer.saved.clear()

    # Parameters and sublayers

    def _children(self) -> Iterator[tuple[str, "Layer | Parameter"]]:
        for name, value in vars(self).items():
            if isinstance(value, Layer | Parameter):
                yield name, value
            elif isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    if isinstance(item, Layer | Parameter):
                        yield f"{name}.{index}", item

    def _walk(self, prefix: str, met: set) -> Iterator[tuple[str, "Layer | Parameter"]]:
        if id(self) in met:  # by identity: a dataclass makes layers with equal fields equal
            return
        met.add(id(self))
        yield prefix, self
        for name, child in self._children():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, Layer):
                yield from child._walk(path, met)
            elif id(child) not in met:
                met.add(id(child))
                yield path, child

    def named_layers(self) -> dict[str, "Layer"]:
        """This layer (named "") and every layer within it by dotted name."""
        return {name: node for name, node in self._walk("", set()) if isinstance(node, Layer)}

    def layers_within(self) -> list["Layer"]:
        """This layer and every layer within it, each once."""
        return list(self.named_layers().values())

    def named_parameters(self) -> dict[str, Parameter]:
        """Every Parameter by dotted name, each once."""
        return {name: node for name, node in self._walk("", set()) if isinstance(node, Parameter)}

    def zero_grad(self) -> None:
        """Set every gradient to zero and forget what an interrupted step saved.

        Warns where forwards saved what no backward popped: those of an evaluation, for instance.
        """
        waiting = 0
        for _, node in self._walk("", set()):
            if isinstance(node, Parameter):
                node.zero_grad()
            else:
                waiting += len(node.saved)
                node.saved.clear()
        if waiting:
            warnings.warn(never_met_a_backward(f"{waiting} records, forgotten now"), stacklevel=2)

    # State

    def state_dict(self) -> dict[str, np.ndarray]:
        """Every parameter by name, as NumPy arrays of their own."""
        return {name: to_host(p.data).copy() for name, p in self.named_parameters().items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Write `state` into the parameters.

        Raises InputError, and writes nothing, unless `state` holds one floating-point array for
        each parameter, by its name and of its shape.
        """
        parameters = self.named_parameters()
        if missing := sorted(set(parameters) - set(state)):
            raise _mismatch("holds every parameter of the model", f"none for {missing[0]}")
        if extra := sorted(map(str, set(state) - set(parameters))):
            raise _mismatch("holds only parameters of the model", f"an unknown {extra[0]}")
        arrays = {}
        for name, parameter in parameters.items():
            value = state[name]
            if dtype_kind(value) != "f":
                kind = getattr(value, "dtype", type(value).__name__)
                raise _mismatch("is made of floating-point arrays", f"{kind} for {name}")
            if value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)} instead of {parameter.shape}"
                raise _mismatch("has the shapes of the model's parameters", f"{shapes} for {name}")
            arrays[name] = array_module(parameter.data).asarray(to_host(value))
        for name, parameter in parameters.items():
            parameter.data[...] = arrays[name]


def never_met_a_backward(received: str) -> str:
    """What to say of forwards that were meant for an evaluation."""
    return (
        "each forward that saves is followed by its backward; received forwards without one, which "
        f"left {received}. Evaluate in `with numformer.inference():`, where nothing is saved and "
        "dropout is off."
    )


def _mismatch(rule: str, received: str) -> InputError:
    return InputError(
        f"a saved state {rule}", received, "Build the model with the Config that it was saved with."
    )


class FlatParameters:
    """All parameters of a model as one vector `data` and all their gradients as one `grad`.

    Zeroing, clipping and Adam are then one call each. `used` says that an optimizer has used the
    gradient, and that it is not known to be zero since; `stale` that more was added to such a one.
    """

    used = stale = False

    def __init__(
        self, data, grad, parameters: Sequence[Parameter] = (), layer: Layer | None = None
    ):
        self.data, self.grad, self.parameters, self.layer = data, grad, parameters, layer
        views = zip(self.views(data), self.views(grad), strict=True)
        for parameter, (data_view, grad_view) in zip(parameters, views, strict=True):
            parameter._rebind(data_view, grad_view, self)

    def views(self, vector) -> list:
        """The stretches of a vector (N,) that belong to the parameters, each in its shape."""
        ends = itertools.accumulate(parameter.size for parameter in self.parameters)
        return [
            vector[end - parameter.size : end].reshape(parameter.shape)
            for end, parameter in zip(ends, self.parameters, strict=True)
        ]

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        self.grad.fill(0)
        self.used = self.stale = False

    def look_whether_zero(self) -> None:
        """Before something is added to a gradient that was used: was it set to zero by hand?

        Some of its numbers tell. On a GPU looking would wait, and it is taken for zero.
        """
        sample = self.grad[:: 1 + len(self.grad) // 1000]
        if not on_host(sample) or not sample.any():
            self.used = self.stale = False

    def is_current(self) -> bool:
        """Whether the parameters are still views of these vectors: no later pack moved them."""
        return all(parameter._flat is self for parameter in self.parameters)


def pack(layer: Layer, dtype: type[np.floating] = np.float32, xp: Any = np) -> FlatParameters:
    """Lay all parameters of `layer` end to end in one vector, and their gradients in another.

    The one place that casts parameters (to `dtype`) and moves them (to the arrays of `xp`). Each
    parameter's data and grad become views of the vectors; the gradients are zero.
    """
    parameters = [*layer.named_parameters().values()]
    values = [to_host(parameter.data).ravel() for parameter in parameters]
    data = xp.asarray(np.concatenate(values or [np.zeros(0)]).astype(dtype))
    return FlatParameters(data, xp.zeros_like(data), parameters, layer)
