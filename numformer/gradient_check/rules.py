"""The rules of `numformer.layer` that the gradient check enforces.

Each `require_` function raises InputError if the layer breaks its rule.
"""

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from numformer.backend import array_module, dtype_kind
from numformer.errors import InputError
from numformer.layer import Layer, Parameter, pack

STACKED = "any number of forwards, of batches of any size, may come before the first backward"
KEPT_BY_SAVE = (
    "Save what backward needs, including dropout masks and sizes, with save() and pop_saved(): do "
    "not keep it in an attribute or draw it anew."
)


def _items(value, path: str, outer: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, and of containers inside it, with their paths."""
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, set | frozenset):
        items = [(path, item) for item in value]
    elif dtype_kind(value) == "O":
        items = [(f"{path}{list(index)}", item) for index, item in np.ndenumerate(value)]
    else:
        yield path, value
        return
    for item_path, item in items if id(value) not in outer else ():
        yield from _items(item, item_path, (*outer, id(value)))


def _attributes(layer: Layer) -> Iterator[tuple[str, Any]]:
    """Yield the values in attributes of `layer` and of all layers inside it, with their paths."""
    for path, inner in layer.named_layers().items():
        for name, value in vars(inner).items():
            yield from _items(value, f"{path}.{name}" if path else name)


def require_layer_and_inputs(layer: Any, inputs: Any) -> None:
    if not isinstance(layer, Layer):
        raise InputError(
            "a layer to check is an instance of a subclass of numformer.Layer",
            f"a {type(layer).__name__}",
            "Write a subclass with forward and backward, and pass an instance: check(Mine(), [x]).",
        )
    if dtype_kind(inputs) or not isinstance(inputs, Iterable):
        raise InputError(
            "inputs is a list of the arguments of forward",
            f"a {type(inputs).__name__} {getattr(inputs, 'shape', '')}".strip(),
            "Put it into a list: check(layer, [x]).",
        )


def require_same_outputs(check) -> None:
    """Raise InputError unless two forwards with equal inputs and dropout masks give equal outputs.

    Run a copy of the layer, because a layer may remember its first forward.
    """
    trial = copy.copy(check)
    trial.layer = copy.deepcopy(check.fresh)
    pack(trial.layer, np.float64, check.xp)

    def output():
        inputs = [x.copy() if dtype_kind(x) else x for x in check.inputs]
        return check.xp.array(trial._forward(inputs))

    first, second = output(), output()
    if not ((first == second) | (first != first)).all():
        raise InputError(
            "forward gives the same output for the same inputs, weights and dropout masks",
            "different outputs from two forwards with the same inputs",
            "Draw random masks from numformer.randomness.dropout_stream: "
            "dropout_stream.mask(x.shape, p, x). Draw no other random numbers in forward.",
        )


def require_layers_found(layer: Layer) -> None:
    """Raise InputError if a Layer or Parameter is kept where `named_layers` does not look."""
    reachable = {id(part) for part in (*layer.layers_within(), *layer.named_parameters().values())}
    for path, value in _attributes(layer):
        if isinstance(value, Layer | Parameter) and id(value) not in reachable:
            raise InputError(
                "layers and Parameters are attributes, or items of a list or tuple in an attribute",
                f"a {type(value).__name__} in {path}, which is neither trained nor checked",
                "Put all of them into one such list, or give each an attribute of its own.",
            )


@contextlib.contextmanager
def require_savers_found(layer: Layer) -> Iterator[None]:
    """Within the block, raise InputError if a layer outside `named_layers` calls save()."""
    reachable, save = {id(inner) for inner in layer.layers_within()}, Layer.save

    def checked_save(saver, **values):
        if id(saver) not in reachable:
            raise InputError(
                "every layer that forward uses is in an attribute, or in a list or tuple in one",
                f"a {type(saver).__name__} held elsewhere, which is neither trained nor checked",
                "Make it in __init__ and keep it in an attribute of its own.",
            )
        save(saver, **values)

    Layer.save = checked_save  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Layer.save = save  # type: ignore[method-assign]


def _attribute_name(path: str) -> str:
    return path.partition("[")[0].rpartition(".")[2]


def plain_arrays(layer: Layer) -> dict[str, Any]:
    """Return floating-point arrays in attributes whose names do not begin with an underscore."""
    return {
        path: value
        for path, value in _attributes(layer)
        if dtype_kind(value) == "f"
        and not isinstance(value, np.generic)
        and not _attribute_name(path).startswith("_")
    }


def require_weights_in_parameters(layer: Layer, before: dict[str, Any]) -> None:
    """Raise InputError if an attribute holds the same array as `before` forward.

    Such an array is taken for a weight; an array that forward assigns would be a new one.
    """
    for path, array in plain_arrays(layer).items():
        if path in before and before[path] is array:
            raise InputError(
                "weights are kept in Parameters",
                f"a plain array {array.shape} in {path}, which is neither trained nor checked",
                "Keep it in a Parameter; if it is a constant, begin its name with _: "
                f"self._{_attribute_name(path)}.",
            )


def require_unchanged(arrays: dict, copies: dict) -> None:
    """Raise InputError unless `arrays` equal their earlier `copies`; ignore NaN entries."""
    for name, array in arrays.items():
        if not ((array == copies[name]) | (array != array)).all():
            raise InputError(
                "a layer never writes into an argument or into an array that a forward returned",
                f"changed values in {name} after forward and backward",
                "Compute into a new array.",
            )


def gradients_by_input(names: list[str], returned) -> dict:
    """Return backward's gradients by input name, without the None for masks and ids."""
    returned = returned if isinstance(returned, tuple) else (returned,)
    returned = tuple(dx for dx in returned if dx is not None)
    other_types = [type(dx).__name__ for dx in returned if not dtype_kind(dx)]
    if other_types or len(returned) != len(names):
        raise InputError(
            "backward returns one gradient for each floating-point input of forward: an array "
            "for one, a tuple for several, None for none",
            f"{'a ' + other_types[0] if other_types else f'{len(returned)} array(s)'}, where the "
            f"floating-point inputs are {names or 'none'}",
            "Return those gradients in forward's order.",
        )
    return dict(zip(names, returned, strict=True))


def require_nothing_saved(layer: Layer) -> None:
    places = {path or "the layer itself": len(p.saved) for path, p in layer.named_layers().items()}
    left = ", ".join(f"{count} in {path}" for path, count in places.items() if count)
    if left:
        raise InputError(
            "backward pops everything that forward saved",
            f"{layer.pending()} saved records left: {left}",
            "Call pop_saved() once for each save(), and each inner layer's backward once for each "
            "of its forwards.",
        )


def require_shapes(tensors: dict, gradients: dict) -> None:
    for name, gradient in gradients.items():
        if gradient.shape != tensors[name].shape:
            raise InputError(
                "a gradient has the shape of its tensor",
                f"{gradient.shape} for {name} {tensors[name].shape}",
                "Sum over the axes that forward broadcasts, and mind transposes.",
            )


def require_own_memory(returned: dict, others: dict) -> None:
    """Raise InputError if results of backward share memory with each other or with `others`."""
    others = dict(others)
    for name, dx in returned.items():
        for other, array in others.items():
            if np.shares_memory(dx, array):
                raise InputError(
                    "an array that backward returns shares memory with no other, so the caller may "
                    "overwrite it",
                    f"memory of {other} in the gradient of {name}",
                    "Return a new array: .copy() makes one.",
                )
        others[f"the gradient of {name}"] = dx


def reversed_batch(inputs: Iterable, extra: int) -> list:
    """Return `inputs` with the batch reversed, and its first `extra` sequences appended."""
    size = next((len(x) for x in inputs if dtype_kind(x) and x.ndim), 0)

    def reverse(x):
        if not dtype_kind(x) or not x.ndim:
            return x
        return array_module(x).concatenate([x[::-1], x[: extra if len(x) == size else 0]])

    return [reverse(x) for x in inputs]


@contextlib.contextmanager
def after_another_forward(earlier) -> Iterator[None]:
    """Within the block, report errors as caused by the `earlier` forward, if there was one."""
    try:
        yield
    except Exception as problem:
        if isinstance(problem, InputError) or not earlier:
            raise
        received = f"{type(problem).__name__} after a forward on another batch: {problem}"
        raise InputError(STACKED, received, KEPT_BY_SAVE) from problem


def require_stacked_forwards(check) -> None:
    """Run three forwards, two of them with other inputs, then three backwards in reverse order.

    Raise InputError unless the last backward gives the same gradients as the GradientCheck.
    """
    parameters = check.parameters
    with after_another_forward(check.earlier):
        check.run(keep=True)
        check.run(keep=True, inputs=reversed_batch(check.inputs, 0))
        if check.earlier:
            check.earlier.run(keep=True)
            check.backward(check.earlier.upstream.copy())
        check.backward(check.upstream.copy())
        before = {name: parameter.grad.copy() for name, parameter in parameters.items()}
        returned = check.backward(check.upstream.copy())
    second = gradients_by_input(check.input_names, returned)
    second |= {name: parameter.grad - before[name] for name, parameter in parameters.items()}
    sizes = [float(abs(gradient).max()) for gradient in check.gradients.values() if gradient.size]
    rounding = 1e-6 * max(sizes, default=0)
    for name, first in check.gradients.items():
        if second[name].shape == first.shape and not (abs(second[name] - first) > rounding).any():
            continue
        if name in parameters and (abs(parameters[name].grad - first) <= rounding).all():
            raise InputError(
                "a second backward adds to the gradients of the first",
                f"only one backward's gradient in {name}",
                "Write parameter.grad += ...",
            )
        received = f"a different gradient of {name} if other forwards run before its backward"
        raise InputError(STACKED, received, KEPT_BY_SAVE)
