"""The former package `numformer.layers`: imports from it still work, with a warning.

Its modules are now in `numformer.paper`, `numformer.later` and `numformer.recurrence`.
"""

import importlib
import sys
import warnings

from numformer import later, paper, recurrence

PACKAGES = paper, later, recurrence
MODULES = {
    "numformer.paper": "linear softmax attention feed_forward embedding layer_norm dropout "
    "residual memory cross_entropy",
    "numformer.later": "rms_norm checkpointed divergence patches pick",
    "numformer.later.attention": "rotary alibi",
    "numformer.later.mixers": "mixer linear_attention running_sums convolution state_space",
    "numformer.recurrence": "cells scores additive_attention",
}
RENAMED = {
    "positional": "numformer.paper.positions",
    "places": "numformer.paper.masks",
    "reach": "numformer.paper.masks",
    "activation": "numformer.later.activations",
    "recurrence": "numformer.recurrence.recurrent",
}
__path__: list[str] = []  # so that `import numformer.layers.linear` works

_moved = {name: f"{new}.{name}" for new, names in MODULES.items() for name in names.split()}
for _name, _module in (_moved | RENAMED).items():
    sys.modules[f"{__name__}.{_name}"] = importlib.import_module(_module)
warnings.warn(
    "numformer.layers is now numformer.paper (the paper), numformer.later (later ideas) and "
    "numformer.recurrence; import from these.",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str):
    if name in _moved | RENAMED:
        return sys.modules[f"{__name__}.{name}"]
    for package in PACKAGES:
        if hasattr(package, name):
            return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
