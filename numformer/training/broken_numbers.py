"""Finds where a NaN or infinity came from: replays a step and examines every layer's calls."""

from collections.abc import Callable, Iterable

from numformer.backend import array_module, dtype_kind, has_kernel
from numformer.interception import intercept
from numformer.layer import Layer, Parameter


@has_kernel
def all_finite(loss, norm, before):
    """Whether loss and norm, scalars (), are finite and `before`, the previous result, is true."""
    xp = array_module(norm)
    return xp.isfinite(loss) & xp.isfinite(norm) & before


@has_kernel
def restore(vector, values, moves) -> None:
    """Copy the old `values` back into a vector (N,), unless the scalar () `moves` is true."""
    array_module(vector).copyto(vector, values, where=~moves)


def first_broken(
    layers: dict[str, Layer], parameters: dict[str, Parameter], replay: Callable[[], object]
) -> str | None:
    """Return the origin of the first number in `replay`, forward or backward, that is not finite.

    The origin is a parameter before the step, or one of `layers` that had finite inputs, but
    returned a result or added a gradient that is not finite. Inner layers return before the layers
    around them, so the innermost layer is named. Returns None if every number is finite. Gradients
    must be zero before the call.
    """
    if broken := broken_parameter(parameters):
        return f"the parameter {broken}, before the step"
    names = {id(parameter): name for name, parameter in parameters.items()}
    breaks: list[tuple[bool, str]] = []  # whether the inputs were finite, and what was not

    def examine(result_name: str, added_to: Iterable[Parameter], name, call, inputs):
        inputs_finite = _finite(inputs)  # before the call, which may overwrite them
        result = call(*inputs)
        broken = [] if _finite(result) else [result_name]
        gradients = (p for p in added_to if not _finite(p.grad))
        broken += [f"the gradient of {names[id(parameter)]}" for parameter in gradients]
        place = f"{name or 'the model'} ({type(layers[name]).__name__})"
        breaks.extend((inputs_finite, f"{place}, in {what}") for what in broken)
        return result

    def check_output(name, call, *inputs):
        return examine("the output of its forward", (), name, call, inputs)

    def check_gradients(name, call, *inputs):
        parameters = layers[name].named_parameters().values()
        return examine("what its backward returns", parameters, name, call, inputs)

    with intercept(layers, "forward", check_output), intercept(layers, "backward", check_gradients):
        replay()
    # If the sum of two layers' results overflows, the origin is the layer that adds them.
    origins = [what for inputs_finite, what in breaks if inputs_finite]
    return next(iter(origins), breaks[0][1] if breaks else None)


def broken_parameter(parameters: dict[str, Parameter]) -> str | None:
    """Return the name of the first parameter with a NaN or an infinity, or None."""
    return next((name for name, p in parameters.items() if not _finite(p.data)), None)


def _finite(value) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_finite, value))
    if dtype_kind(value) != "f":
        return True
    return array_module(value).isfinite(value).all()
