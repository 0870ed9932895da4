"""Where a NaN or an infinity came from: a step is replayed while every layer is watched."""

import contextlib
from collections.abc import Callable, Iterator

from numformer.backend import array_module, dtype_kind
from numformer.layer import Layer, Parameter


def first_broken(
    layers: dict[str, Layer], parameters: dict[str, Parameter], replay: Callable[[], object]
) -> str | None:
    """Call `replay`, a forward and a backward -> what first was not finite, or None.

    That is a parameter before the step, or what one of `layers` returned, or a gradient that it
    added, although all that it was given was finite. Inner layers return before the layers
    around them, so it is the innermost. Gradients must be zero before.
    """
    if broken := broken_parameter(parameters):
        return f"the parameter {broken}, before the step"
    breaks: list[tuple[bool, str]] = []
    with _watched(layers, parameters, breaks):
        replay()
    # Sums between layers belong to the layer around them, which was given finite numbers.
    return next((what for cause, what in breaks if cause), breaks[0][1] if breaks else None)


def broken_parameter(parameters: dict[str, Parameter]) -> str | None:
    """The name of the first parameter that is not finite, or None."""
    return next((name for name, p in parameters.items() if not _finite(p.data)), None)


def _finite(value) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_finite, value))
    if dtype_kind(value) != "f":
        return True
    return bool(array_module(value).isfinite(value).all())


@contextlib.contextmanager
def _watched(layers, parameters, breaks: list[tuple[bool, str]]) -> Iterator[None]:
    """Within the block each layer notes in `breaks` what is not finite, and whether it began it."""
    names = {id(parameter): name for name, parameter in parameters.items()}

    def watch(name: str, layer: Layer, method: str):
        call = getattr(layer, method)
        place = f"{name or 'the model'} ({type(layer).__name__}), in "
        result = "the output of its forward" if method == "forward" else "what its backward returns"

        def watched(*inputs, **others):
            given_finite = _finite(inputs)  # before the call, which may overwrite them
            returned = call(*inputs, **others)
            if not _finite(returned):
                breaks.append((given_finite, place + result))
            if method == "backward":
                for parameter in layer.named_parameters().values():
                    if not _finite(parameter.grad):
                        gradient = f"the gradient of {names[id(parameter)]}"
                        breaks.append((given_finite, place + gradient))
            return returned

        return watched

    with contextlib.ExitStack() as undo:
        for name, layer in layers.items():
            for method in ("forward", "backward"):
                own = {method: vars(layer)[method]} if method in vars(layer) else {}
                vars(layer)[method] = watch(name, layer, method)
                undo.callback(vars(layer).update, own)
                undo.callback(vars(layer).pop, method)
        yield
