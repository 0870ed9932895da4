"""Finds branches of a layer that no input takes, so that their gradients are not checked."""

import linecache
import os
import sys
from collections.abc import Iterable

import numpy as np

from numformer.gradient_check.gradients import SCALES, GradientCheck
from numformer.gradient_check.trace import Trace, trace_operations
from numformer.layer import Layer

LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _place(file: str, line: int) -> str:
    return f"`{linecache.getline(file, line).strip()}` ({os.path.basename(file)}, {line})"


def _own_methods(layer: Layer) -> set:
    """Return the code objects of forward and backward of the layers that the user wrote."""
    methods = (
        getattr(getattr(inner, name), "__code__", None)
        for inner in layer.layers_within()
        for name in ("forward", "backward")
    )
    return {code for code in methods if code and not code.co_filename.startswith(LIBRARY)}


def untaken_branches(layer: Layer, inputs: Iterable) -> list[str]:
    """Return, in words, the branches that neither the inputs nor the inputs times SCALES take.

    A branch is a line of forward or backward, except `raise`; or one outcome of a comparison, a
    maximum or a minimum of arrays in forward. Layers of the library are left out. Other choices
    that depend on values (np.sign, np.clip, indices) are not detected.
    """
    visited, methods = set(), _own_methods(layer)

    def trace_lines(frame, event, _):
        if frame.f_code not in methods:
            return None
        if event == "line":
            visited.add((frame.f_code.co_filename, frame.f_lineno))
        return trace_lines

    before = sys.gettrace()
    sys.settrace(trace_lines)
    try:
        check = GradientCheck(layer, inputs)
        checks = [check, *(scaled for _, scaled in check.at_scales(SCALES))]
    finally:
        sys.settrace(before)
    trace = Trace()
    with np.errstate(all="ignore"):
        for each in checks:
            with trace_operations(each, trace, whole_layers=False):
                each.run()
    lines = {
        (code.co_filename, line)
        for code in methods
        for _, _, line in code.co_lines()
        if line and line != code.co_firstlineno
    }
    texts = [
        f"never ran: {_place(*place)}"
        for place in sorted(lines - visited)
        if not linecache.getline(*place).strip().startswith("raise")
    ]
    for (code, line, _), outcomes in trace.choices.items():
        file = code.co_filename
        if len(outcomes) == 1 and not file.startswith(LIBRARY):
            texts.append(f"always {str(*outcomes).lower()} for every number: {_place(file, line)}")
    return texts
