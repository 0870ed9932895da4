"""The former room of all layers, by whose names they can still be imported, with a warning.

They stand in `numformer.paper`, `numformer.later` and `numformer.recurrence`.
"""

import importlib
import sys
import warnings

from numformer import later, paper, recurrence

ROOMS = paper, later, recurrence
MODULES = {
    "numformer.paper": "linear softmax attention feed_forward embedding layer_norm dropout "
    "residual memory cross_entropy",
    "numformer.later": "rms_norm checkpointed divergence patches pick",
    "numformer.later.attention": "rotary alibi",
    "numformer.later.mixers": "mixer linear_attention running_sums convolution state_space",
    "numformer.recurrence": "cells recurrence scores additive_attention",
}
RENAMED = {
    "positional": "numformer.paper.positions",
    "places": "numformer.paper.masks",
    "reach": "numformer.paper.masks",
    "activation": "numformer.later.activations",
}
__path__: list[str] = []  # so that `import numformer.layers.linear` finds what is listed here

_places = {name: f"{room}.{name}" for room, names in MODULES.items() for name in names.split()}
for _name, _module in (_places | RENAMED).items():
    sys.modules[f"{__name__}.{_name}"] = importlib.import_module(_module)
warnings.warn(
    "numformer.layers is now numformer.paper (the paper), numformer.later (what came after it) and "
    "numformer.recurrence; import from these.",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str):
    if name in _places | RENAMED:
        return sys.modules[f"{__name__}.{name}"]
    for room in ROOMS:
        if hasattr(room, name):
            return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
