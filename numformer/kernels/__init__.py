"""CUDA kernels, each of which computes a whole formula instead of one of its operations.

Each module holds the CUDA source of a formula and of its backward, and the Python functions that
start the kernels, with the formulas' names and arguments. `numformer.backend.has_kernel` marks the
formulas. They stay the reference: `python -m tests.gpu` compares every kernel with its formula.

Kernels add numbers in a fixed order, without atomic adds, so a repeated step gives the same bits.
"""

import importlib
from collections.abc import Callable
from typing import Any

from numformer.backend import array_module

MODULES = """accumulator adam attention copies cross_entropy dropout embedding feed_forward
             layer_norm products rotary softmax sums update""".split()


def kernels_of(array: Any) -> dict[str, Callable]:
    """Return the kernels by the names of their formulas; none if `array` is not on a CUDA GPU."""
    is_cupy = type(array).__module__.partition(".")[0] == "cupy"
    if not is_cupy or not hasattr(array_module(array), "RawModule"):
        return {}
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return {name: getattr(module, name) for module in modules for name in module.FORMULAS}
