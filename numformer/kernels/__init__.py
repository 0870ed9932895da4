"""CUDA kernels: on a GPU, each computes a whole formula instead of one operation of it.

Each module holds the CUDA source of a formula and its backward, and Python functions with the
formulas' names and arguments, which start the kernels. `numformer.backend.has_kernel` marks the
formulas, which stay the reference: `python -m tests.gpu` compares every kernel with its formula.

Kernels add numbers in a fixed order, without atomic adds, so a repeated step gives the same bits.
"""

import importlib
from collections.abc import Callable
from typing import Any

from numformer.backend import array_module

MODULES = """adam attention copies cross_entropy dropout embedding feed_forward layer_norm products
             rotary softmax sums update""".split()


def kernels_of(array: Any) -> dict[str, Callable]:
    """Return kernels by their formulas' names; none unless `array` is on a GPU that runs CUDA."""
    is_cupy = type(array).__module__.partition(".")[0] == "cupy"
    if not is_cupy or not hasattr(array_module(array), "RawModule"):
        return {}
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return {name: getattr(module, name) for module in modules for name in module.FORMULAS}
