"""Which branches of a layer no input took, so that their gradients are unchecked."""

import linecache
import os
import sys
from collections.abc import Iterable

import numpy as np

from numformer.gradient_check.gradients import SCALES, GradientCheck
from numformer.gradient_check.trace import Trace, traced
from numformer.layer import Layer

LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _place(file: str, line: int) -> str:
    return f"`{linecache.getline(file, line).strip()}` ({os.path.basename(file)}, {line})"


def _methods(layer: Layer) -> set:
    """The code of forward and backward of every layer within that is none of the library's."""
    methods = (
        getattr(getattr(sublayer, name), "__code__", None)
        for sublayer in layer.layers_within()
        for name in ("forward", "backward")
    )
    return {code for code in methods if code and not code.co_filename.startswith(LIBRARY)}


def untaken_branches(layer: Layer, inputs: Iterable) -> list[str]:
    """What no input reached, with the inputs as given and at each of SCALES, one text for each.

    A line of forward or backward that never ran, but `raise`; and a comparison of arrays, a maximum
    or a minimum in forward that came out the same for every number. Layers of the library are left
    out. Other choices by value (np.sign, np.clip, indices) are not seen.
    """
    ran, methods = set(), _methods(layer)

    def note(frame, event, _):
        if frame.f_code not in methods:
            return None
        if event == "line":
            ran.add((frame.f_code.co_filename, frame.f_lineno))
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        checked = GradientCheck(layer, inputs)
        scaled = [checked, *filter(None, map(checked.scaled, SCALES))]
    finally:
        sys.settrace(before)
    trace = Trace()
    with np.errstate(all="ignore"):
        for given in scaled:
            with traced(given, trace):
                given.run()
    lines = {
        (code.co_filename, line)
        for code in methods
        for _, _, line in code.co_lines()
        if line and line != code.co_firstlineno
    }
    texts = [
        f"never ran: {_place(*place)}"
        for place in sorted(lines - ran)
        if not linecache.getline(*place).strip().startswith("raise")
    ]
    for (file, line, _), outcomes in trace.choices.items():
        if len(outcomes) == 1 and not file.startswith(LIBRARY):
            texts.append(f"always {str(*outcomes).lower()} for every number: {_place(file, line)}")
    return texts
