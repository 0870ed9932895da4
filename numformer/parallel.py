"""The former module for training on several ranks: importing its names still works, but warns.

Ranks are in `numformer.execution`; layers split over ranks are in lesson 14, which explains them.
"""

import importlib
import warnings

MODULES = {
    "numformer.execution.ranks": ["Ranks"],
    "lessons.lesson_14.all_reduce": ["ring_all_reduce"],
    "lessons.lesson_14.tensor": ["ColumnLinear", "ColumnHeads", "RowLinear", "shard"],
    "lessons.lesson_14.pipeline": [
        "Pipeline",
        "MicroBatch",
        "one_forward_one_backward",
        "all_forward_all_backward",
        "bubble",
    ],
}
PLACES = {name: (module, name) for module, names in MODULES.items() for name in names}
PLACES["together"] = "numformer.execution.ranks", "run_ranks"
PLACES["whole_state"] = "lessons.lesson_14.tensor", "full_state_dict"


def __getattr__(former: str):
    if former not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {former!r}")
    module, name = PLACES[former]
    message = f"numformer.parallel.{former} is now {module}.{name}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(module), name)
