"""The rules of `numformer.layer` that the gradient check holds a layer to.

Each function raises InputError where the layer breaks its rule.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from numformer.backend import array_module, dtype_kind
from numformer.errors import InputError
from numformer.layer import Layer, Parameter

STACKED = "any number of forwards, of batches of any size, may come before the first backward"
KEPT_BY_SAVE = (
    "Keep what backward needs, dropout's mask and sizes too, with save() and pop_saved(): not in "
    "an attribute, and not drawn anew."
)


def _held(value, path: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What stands in `value`, a container of containers perhaps, by the way to it."""
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
    for way, item in items if id(value) not in above else ():
        yield from _held(item, way, (*above, id(value)))


def _attributes(layer: Layer) -> Iterator[tuple[str, Any]]:
    """What every layer within `layer` holds in attributes, by the way to it."""
    for path, sublayer in layer.named_layers().items():
        for name, value in vars(sublayer).items():
            yield from _held(value, f"{path}.{name}" if path else name)


def everything_is_found(layer: Layer) -> None:
    """No Layer or Parameter stands where Layer does not look for it."""
    known = {id(part) for part in (*layer.layers_within(), *layer.named_parameters().values())}
    for path, value in _attributes(layer):
        if isinstance(value, Layer | Parameter) and id(value) not in known:
            raise InputError(
                "layers and Parameters are attributes, or items of a list or tuple that is one",
                f"a {type(value).__name__} in {path}, which is neither trained nor checked",
                "Put all of them into one such list, or give each an attribute of its own.",
            )


@contextlib.contextmanager
def noting_who_saves() -> Iterator[list[Layer]]:
    """Within the block every layer that saves something is added to the list."""
    layers, save = [], Layer.save

    def noted(layer, **values):
        layers.append(layer)
        save(layer, **values)

    Layer.save = noted  # type: ignore[assignment,method-assign]
    try:
        yield layers
    finally:
        Layer.save = save  # type: ignore[method-assign]


def all_that_save_are_found(layer: Layer, savers: list[Layer]) -> None:
    """No layer takes part in forward that is held where Layer does not look for it."""
    known = {id(sublayer) for sublayer in layer.layers_within()}
    for saver in savers:
        if id(saver) not in known:
            raise InputError(
                "every layer that forward uses is an attribute, or an item of a list or tuple",
                f"a {type(saver).__name__} held elsewhere, which is neither trained nor checked",
                "Make it in __init__ and keep it in an attribute of its own.",
            )


def plain_arrays(layer: Layer) -> dict[str, Any]:
    """The floating-point arrays in attributes, but those whose name begins with an underscore."""
    return {
        path: value
        for path, value in _attributes(layer)
        if dtype_kind(value) == "f"
        and not isinstance(value, np.generic)
        # the name of the attribute itself, whatever holds it and whatever it holds
        and not path.partition("[")[0].rpartition(".")[2].startswith("_")
    }


def weights_are_parameters(layer: Layer, before: dict[str, Any]) -> None:
    """No array is kept in a plain attribute, where `before` are those before forward.

    What forward itself puts into an attribute is another array each time: no weight.
    """
    for path, array in plain_arrays(layer).items():
        if path in before and before[path] is array:
            name = path.partition("[")[0].rpartition(".")[2]
            raise InputError(
                "weights are kept in Parameters",
                f"a plain array {array.shape} in {path}, which is neither trained nor checked",
                f"Keep it in a Parameter; a constant's name begins with _, as self._{name}.",
            )


def arrays_are_left_alone(arrays: dict, copies: dict) -> None:
    for name, array in arrays.items():
        if not ((array == copies[name]) | (array != array)).all():
            raise InputError(
                "a layer writes into no argument and into nothing that a forward returned",
                f"other values in {name} after forward and backward",
                "Compute into a new array.",
            )


def one_gradient_for_each(names: list[str], returned) -> dict:
    """What backward returned by the name of its input; a None among it is that of a mask or ids."""
    returned = returned if isinstance(returned, tuple) else (returned,)
    returned = tuple(dx for dx in returned if dx is not None)
    odd = [type(dx).__name__ for dx in returned if not dtype_kind(dx)]
    if odd or len(returned) != len(names):
        raise InputError(
            "backward returns one gradient for each floating-point input of forward: an array "
            "for one, a tuple for several, None for none",
            f"{'a ' + odd[0] if odd else f'{len(returned)} array(s)'}, where the "
            f"floating-point inputs are {names or 'none'}",
            "Return those gradients in forward's order.",
        )
    return dict(zip(names, returned, strict=True))


def nothing_is_left(layer: Layer) -> None:
    if layer.pending():
        raise InputError(
            "backward pops everything that forward saved",
            f"{layer.pending()} saved records left",
            "Call pop_saved() once for each save().",
        )


def shapes_are_those_of(tensors: dict, gradients: dict) -> None:
    for name, gradient in gradients.items():
        if gradient.shape != tensors[name].shape:
            raise InputError(
                "a gradient has the shape of its tensor",
                f"{gradient.shape} for {name} {tensors[name].shape}",
                "Sum over the axes that forward broadcasts, and mind transposes.",
            )


def no_memory_is_shared(returned: dict, others: dict) -> None:
    """Neither among what backward returned nor with `others`; all arrays are NumPy's."""
    others = dict(others)
    for name, dx in returned.items():
        for other, array in others.items():
            if np.shares_memory(dx, array):
                raise InputError(
                    "what backward returns shares memory with nothing, so its receiver may "
                    "overwrite it",
                    f"memory of {other} in the gradient of {name}",
                    "Return a new array: .copy() makes one.",
                )
        others[f"the gradient of {name}"] = dx


def other_batch(inputs: Iterable, more: int) -> list:
    """A forward's inputs with the batch reversed, and `more` of its sequences twice."""
    size = next((len(x) for x in inputs if dtype_kind(x) and x.ndim), 0)

    def changed(x):
        if not dtype_kind(x) or not x.ndim:
            return x
        again = x[: more if len(x) == size else 0]
        return array_module(x).concatenate([x[::-1], again])

    return [changed(x) for x in inputs]


@contextlib.contextmanager
def forwards_leave_others_alone(earlier) -> Iterator[None]:
    """Nothing fails within the block where an `earlier` forward and backward did not."""
    try:
        yield
    except Exception as problem:
        if isinstance(problem, InputError) or not earlier:
            raise
        failed = f"{type(problem).__name__} after a forward of another batch: {problem}"
        raise InputError(STACKED, failed, KEPT_BY_SAVE) from problem


def forwards_are_stacked(checked) -> None:
    """A forward, two with other inputs, and three backwards: the first is served last.

    The last backward returns the same gradients as that of the GradientCheck, and adds them.
    """
    parameters = checked.parameters
    with forwards_leave_others_alone(checked.earlier):
        checked.run(keep=True)
        checked.run(keep=True, inputs=other_batch(checked.inputs, 0))
        if checked.earlier:
            checked.earlier.run(keep=True)
            checked.backward(checked.earlier.upstream.copy())
        checked.backward(checked.upstream.copy())
        before = {name: parameter.grad.copy() for name, parameter in parameters.items()}
        returned = checked.backward(checked.upstream.copy())
    again = one_gradient_for_each(checked.input_names, returned)
    again |= {name: parameter.grad - before[name] for name, parameter in parameters.items()}
    sizes = [float(abs(alone).max()) for alone in checked.gradients.values() if alone.size]
    rounding = 1e-6 * max(sizes, default=0)
    for name, alone in checked.gradients.items():
        if again[name].shape == alone.shape and not (abs(again[name] - alone) > rounding).any():
            continue
        if name in parameters and (abs(parameters[name].grad - alone) <= rounding).all():
            raise InputError(
                "a second backward adds to the gradients of the first",
                f"no sum of both in {name}",
                "Write parameter.grad += ...",
            )
        received = f"another gradient of {name} where other forwards come between"
        raise InputError(STACKED, received, KEPT_BY_SAVE)
