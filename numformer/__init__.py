"""The Transformer of "Attention Is All You Need", with forward and backward written by hand.

The paper's model is in `numformer.paper`. `numformer.later` has layers of later work, which can
replace the paper's; `numformer.recurrence` has the layers that the Transformer replaced.
`numformer.gradient_check` checks gradients, and `numformer.plots` plots runs. `__all__` below lists
the public names.

The letters in shapes: B batch size, S source length, T target length, D d_model, H heads, K d_k
(and d_v where it equals d_k), F d_ff, V vocabulary size. The gradient of x is named `dx`.
"""

import importlib
import sys
import warnings

from numformer.version import __version__ as __version__

from numformer.errors import InputError
from numformer.layer import Array, FlatParameters, Layer, Parameter, inference, mode, pack
from numformer import (
    data,
    formulas,
    generation,
    later,
    models,
    optimization,
    paper,
    recurrence,
    runs,
    training,
)
from numformer.former_modules import FormerModules, forward_moved_names
from numformer.paper import *
from numformer.later import *
from numformer.recurrence import *
from numformer.data import *
from numformer.models import *
from numformer.optimization import *
from numformer.formulas import *
from numformer.runs import *
from numformer.training import *
from numformer.generation import *
from numformer.trained import Attention, Trained, load
from numformer.former_names import FORMER_NAMES, RENAMED, accept_former_names

__all__ = [
    "InputError",
    "Array",
    "FlatParameters",
    "Layer",
    "Parameter",
    "inference",
    "mode",
    "pack",
    *paper.__all__,
    *later.__all__,
    *recurrence.__all__,
    *data.__all__,
    *models.__all__,
    *optimization.__all__,
    *formulas.__all__,
    *runs.__all__,
    *training.__all__,
    *generation.__all__,
    "Attention",
    "Trained",
    "load",
]

sys.meta_path.append(FormerModules())
accept_former_names()
forward_moved_names()


def __getattr__(name: str):
    if name == "layers":  # importing this deprecated package warns
        return importlib.import_module("numformer.layers")
    if name in RENAMED:
        value, replacement = globals()[RENAMED[name]], RENAMED[name]
    elif name in FORMER_NAMES:
        value, replacement = FORMER_NAMES[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"numformer.{name} is now {replacement}", DeprecationWarning, stacklevel=2)
    return value
