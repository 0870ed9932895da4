"""Parameter, Layer and the rules that every layer follows.

A layer has `forward` and `backward`. Forward pushes what backward needs onto a stack, and backward
pops it, so several forwards may precede their backwards, which come in reverse order. No layer
writes into an argument, a Parameter's data or an array that a forward returned. An array that a
backward returns shares memory with no other array, so the caller may overwrite it.
"""

import contextlib
import contextvars
import itertools
import reprlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from numformer import blas
from numformer.backend import array_module, dtype_kind, kernels_for, on_host, to_host
from numformer.errors import InputError

Array: TypeAlias = np.ndarray[Any, Any]  # or cupy.ndarray, on a GPU


class Parameter:
    """An array to be trained and its gradient, of the same shape and dtype.

    Backward computes `parameter.grad += ...`. `pack` makes `data` and `grad` views of two vectors
    that the optimizer works on, so assigning another array to either is an error. To write new
    values, use `parameter.data[...] = ...`.
    """

    _flat: "FlatParameters | None" = None  # set by pack: vectors that contain data and grad

    def __init__(self, data: Any) -> None:
        self._data = np.array(data, dtype=np.float32)
        self._grad = np.zeros(self._data.shape, np.float32)

    @property
    def data(self) -> Array:
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        self._refuse_another(self._data, array, "data")

    @property
    def grad(self) -> Array:
        if self._flat and self._flat.needs_zeroing:
            self._flat.detect_zeroed()  # `parameter.grad += ...` reads grad first
        return self._grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self._refuse_another(self._grad, array, "grad")
        if self._flat and self._flat.needs_zeroing:
            self._flat.stale = True

    @staticmethod
    def _refuse_another(current, array, name):
        # `parameter.grad += x` ends by assigning the same array, which is allowed.
        if array is not current:
            raise InputError(
                f"a Parameter keeps its {name} array, which pack() makes part of one vector",
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

    def zero_grad(self) -> None:
        """Set the gradient to zero."""
        self._grad.fill(0)
        if self._flat:
            self._flat.needs_zeroing = self._flat.stale = False


# Each thread switches dropout and saving for itself.
_training = contextvars.ContextVar("training", default=True)
_saving = contextvars.ContextVar("saving", default=True)


def training() -> bool:
    """Return whether dropout is on."""
    return _training.get()


def saving() -> bool:
    """Return whether forward saves what backward needs."""
    return _saving.get()


@contextlib.contextmanager
def mode(*, training: bool | None = None, saving: bool | None = None) -> Iterator[None]:
    """Turn dropout (`training`) and saving for backward (`saving`) on or off within the block.

    This affects only the current thread; a thread that starts within the block has both on.
    """
    modes = (_training, training), (_saving, saving)
    tokens = [(variable, variable.set(value)) for variable, value in modes if value is not None]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Turn dropout and saving off within the block, for evaluation and decoding.

    All matrix products but large ones use a single thread (numformer/blas.py).
    """
    with mode(training=False, saving=False), blas.single_thread():
        yield


class Layer:
    """The base class of layers: named parameters and sublayers, saved values, and state.

    Parameters and Layers are found in attributes, and in lists and tuples that are attributes, in
    the order of assignment. A parameter's name is the path of attributes to it, for example
    `encoder.layers.0.self_attention.sublayer.query.weight`. A Parameter that two layers share has
    the first of its two names.
    """

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        """Class and parameters, like `Linear(weight (8, 12), bias (12,))`; sublayers indented."""
        children = [*self._children()]
        lines = [
            f"{name}: {child!r}" if isinstance(child, Layer) else f"{name} {child.shape}"
            for name, child in children
        ]
        contents = ", ".join(lines)
        if any(isinstance(child, Layer) for _, child in children):
            contents = "\n".join(["", *lines]).replace("\n", "\n  ") + "\n"
        return f"{type(self).__name__}({contents})"

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """Call `forward`."""
        return self.forward(*inputs, **settings)

    def forward(self, *inputs: Any, **settings: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, dy: Any, /) -> Any:
        """Return the gradients of forward's differentiable inputs, in the order of the inputs.

        That is one array, a tuple of several, or None if no input is differentiable (token ids).
        The gradient of each parameter is added to `parameter.grad`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    # Saved values: a stack, so a layer may be used several times before backward.

    @property
    def saved(self) -> list[dict[str, Any]]:
        """The records that forwards saved and that no backward has popped yet, oldest first."""
        return self.__dict__.setdefault("_saved", [])

    def save(self, **values: Any) -> None:
        """Save named values for backward. Does nothing while `saving` is off."""
        if _saving.get():
            self.saved.append(values)

    def pop_saved(self) -> dict[str, Any]:
        """Remove and return the latest saved values. Raises RuntimeError if there are none."""
        saved = self.saved
        if not saved:
            raise RuntimeError(
                f"{type(self).__name__}.backward needs a forward before it that calls `save`, with "
                "saving on. One forward allows one backward; zero_grad discards what it saved"
            )
        return saved.pop()

    def pending(self) -> int:
        """The number of saved records without a backward yet, in this layer and its sublayers."""
        return sum(len(layer.saved) for layer in self.layers_within())

    def clear_saved(self) -> None:
        """Discard all saved values of this layer and its sublayers."""
        for layer in self.layers_within():
            layer.saved.clear()

    # Parameters and sublayers

    def _children(self) -> Iterator[tuple[str, "Layer | Parameter"]]:
        for name, value in vars(self).items():
            if isinstance(value, (Layer, Parameter)):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, (Layer, Parameter)):
                        yield f"{name}.{index}", item

    def _walk(self, path: str, nodes: dict) -> dict[int, tuple[str, "Layer | Parameter"]]:
        """Add this layer, its sublayers and their parameters, each once, and return `nodes`."""
        nodes[id(self)] = path, self  # id(), because dataclass layers with equal fields are equal
        for name, child in self._children():
            if id(child) not in nodes:
                child_path = f"{path}.{name}" if path else name
                if isinstance(child, Layer):
                    child._walk(child_path, nodes)
                else:
                    nodes[id(child)] = child_path, child
        return nodes

    def named_layers(self) -> dict[str, "Layer"]:
        """This layer (named "") and all its sublayers by dotted name."""
        nodes = self._walk("", {}).values()
        return {name: node for name, node in nodes if isinstance(node, Layer)}

    def layers_within(self) -> list["Layer"]:
        """This layer and all its sublayers, each once."""
        return [node for _, node in self._walk("", {}).values() if isinstance(node, Layer)]

    def named_parameters(self) -> dict[str, Parameter]:
        """Every Parameter by dotted name, each once."""
        nodes = self._walk("", {}).values()
        return {name: node for name, node in nodes if isinstance(node, Parameter)}

    def zero_grad(self) -> None:
        """Set every gradient to zero and discard all saved values.

        Warns if there were saved values: some forward, perhaps in an evaluation, had no backward.
        """
        pending = 0
        for _, node in self._walk("", {}).values():
            if isinstance(node, Parameter):
                node.zero_grad()
            else:
                pending += len(node.saved)
                node.saved.clear()
        if pending:
            warnings.warn(missing_backward(f"{pending} records, now discarded"), stacklevel=2)

    # State

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy of every parameter as a NumPy array, by name."""
        return {name: to_host(p.data).copy() for name, p in self.named_parameters().items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Copy `state`, arrays by name, into the parameters.

        Raises InputError, and writes nothing, unless `state` holds exactly one floating-point array
        of the right shape for each parameter's name.
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
                raise _mismatch("consists of floating-point arrays", f"{kind} for {name}")
            if value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)} instead of {parameter.shape}"
                raise _mismatch("has the shapes of the model's parameters", f"{shapes} for {name}")
            arrays[name] = array_module(parameter.data).asarray(to_host(value))
        for name, parameter in parameters.items():
            parameter.data[...] = arrays[name]


def missing_backward(leftover: str) -> str:
    """Return the warning about forwards without a backward, which were probably evaluations."""
    return (
        "each forward that saves is followed by its backward; received forwards without one, which "
        f"left {leftover}. Evaluate in `with numformer.inference():`, where nothing is saved and "
        "dropout is off. In training, call zero_grad before forward."
    )


def _mismatch(rule: str, received: str) -> InputError:
    return InputError(
        f"a saved state {rule}", received, "Build the model with the Config that it was saved with."
    )


class FlatParameters:
    """All parameters of a model as one vector `data`, and all their gradients as one vector `grad`.

    Zeroing, clipping and Adam are then one call each. `needs_zeroing` is True between an
    optimizer's use of the gradient and its zeroing; `stale`, if a backward added to it in between.
    """

    needs_zeroing = stale = False

    def __init__(self, data, grad, parameters: Sequence[Parameter] = (), layer: Any = None):
        self.data, self.grad, self.parameters, self.layer = data, grad, parameters, layer
        accumulator = kernels_for(grad).get("accumulator", lambda view: view)
        views = zip(self.views(data), self.views(grad), strict=True)
        for parameter, (data_view, grad_view) in zip(parameters, views, strict=True):
            parameter._data, parameter._grad = data_view, accumulator(grad_view)
            parameter._flat = self

    def views(self, vector) -> list:
        """vector (N,) -> for each parameter, a view of its part of the vector, in its shape."""
        ends = itertools.accumulate(parameter.size for parameter in self.parameters)
        pairs = zip(ends, self.parameters, strict=True)
        return [vector[end - p.size : end].reshape(p.shape) for end, p in pairs]

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        self.grad.fill(0)
        self.needs_zeroing = self.stale = False

    def detect_zeroed(self) -> None:
        """Clear `needs_zeroing` if a sample of the gradient shows that other code has zeroed it.

        On a GPU, reading the sample would wait for the device, so the flag is always cleared there.
        """
        sample = self.grad[:: 1 + len(self.grad) // 1000]
        if not on_host(sample) or not sample.any():
            self.needs_zeroing = self.stale = False

    def is_current(self) -> bool:
        """Return whether the parameters are views of these vectors, not of a later pack's."""
        return all(parameter._flat is self for parameter in self.parameters)


def pack(layer: Layer, dtype: type[np.floating] = np.float32, xp: Any = np) -> FlatParameters:
    """Put all parameters of `layer` end to end into one vector, and their gradients into another.

    Each parameter's data and grad become views of these vectors, which have the dtype `dtype` and
    are arrays of the module `xp` (numpy or cupy). The gradients become zero.
    """
    parameters = [*layer.named_parameters().values()]
    values = [to_host(parameter.data).ravel() for parameter in parameters]
    data = xp.asarray(np.concatenate(values or [np.zeros(0)]).astype(dtype))
    return FlatParameters(data, xp.zeros_like(data), parameters, layer)
