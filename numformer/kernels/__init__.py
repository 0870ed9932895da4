"""A GPU's own way to compute a formula: one kernel in place of the many that its lines would start.

Each module holds the CUDA source of a formula and its backward, and functions that have the
formulas' names and arguments. The formula remains the reference: `python -m tests.gpu` holds every
kernel to it on the card. `numformer.backend.has_kernel` marks the formulas that have one.

Sums are taken in a fixed order, without atomic adds, so that a step has the same bits every time.
"""

from collections.abc import Callable
from typing import Any

from numformer.backend import array_module
from numformer.kernels import (
    adam,
    attention,
    copies,
    cross_entropy,
    dropout,
    embedding,
    feed_forward,
    layer_norm,
    products,
    softmax,
    sums,
)

MODULES = (
    adam,
    attention,
    copies,
    cross_entropy,
    dropout,
    embedding,
    feed_forward,
    layer_norm,
    products,
    softmax,
    sums,
)


def kernels_of(array: Any) -> dict[str, Callable]:
    """Every kernel by its formula's name; none where no CUDA source can be compiled for `array`."""
    of_cupy = type(array).__module__.partition(".")[0] == "cupy"
    if not of_cupy or not hasattr(array_module(array), "RawModule"):
        return {}
    return {name: getattr(module, name) for module in MODULES for name in module.FORMULAS}
