"""The former room of many ranks: its names can still be imported, with a warning.

Ranks are in `numformer.execution`; layers cut over ranks are beside lesson 14, which explains them.
"""

import importlib
import warnings

MODULES = {
    "numformer.execution.ranks": "Ranks together",
    "lessons.lesson_14.all_reduce": "ring_all_reduce",
    "lessons.lesson_14.tensor": "ColumnLinear ColumnHeads RowLinear shard whole_state",
    "lessons.lesson_14.pipeline": "Pipeline MicroBatch one_forward_one_backward "
    "all_forward_all_backward bubble",
}


def __getattr__(name: str):
    for module, names in MODULES.items():
        if name in names.split():
            message = f"numformer.parallel.{name} is now {module}.{name}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
