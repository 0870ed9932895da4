"""The last axis of what a layer is given has the width that the layer was built for."""

from numformer.errors import InputError
from numformer.layer import Layer


def require_width(layer: Layer, x, width: int) -> None:
    """Raise InputError unless x is an array (..., width)."""
    shape = getattr(x, "shape", ())
    if shape[-1:] != (width,):
        name = type(layer).__name__
        raise InputError(
            f"this {name} takes an array (..., {width})",
            f"shape {shape}" if shape else type(x).__name__,
            f"Build the {name} for the width that it is given, or give it an array of its own.",
        )
