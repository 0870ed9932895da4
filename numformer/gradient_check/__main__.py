"""The gradient check as a command.

python -m numformer.gradient_check                    every layer, the loss, the whole model
python -m numformer.gradient_check module:factory     your own layer
python -m numformer.gradient_check --run FOLDER       the first layers of a trained model
python -m numformer.gradient_check --elementwise linear/weight
"""

import argparse
import difflib
import functools
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from numformer.devices import BACKENDS, find_backend
from numformer.errors import InputError, complain
from numformer.gradient_check.branches import untaken_branches
from numformer.gradient_check.cases import CASES
from numformer.gradient_check.gradients import SCALES, GradientCheck, Row, check
from numformer.gradient_check.slices import slice_of
from numformer.layer import Layer


def _one_line(problem: Exception) -> str:
    """Return the type, text and place of an exception in the user's code."""
    lines = traceback.extract_tb(problem.__traceback__)
    numpy_or_library = str(Path(np.__file__).parent), str(Path(__file__).parents[1])
    own = [line for line in lines if not line.filename.startswith(numpy_or_library)]
    line = (own or lines)[-1]
    return f"{type(problem).__name__}: {problem}, in {line.filename}, line {line.lineno}"


def _own_case(place: str) -> dict[str, Callable]:
    """Return the user's case `module:factory` in a dict, under the name of the factory."""
    module_name, colon, name = place.rpartition(":")
    if module_name.endswith(".py"):
        module_name = ".".join(Path(module_name).with_suffix("").parts)

    def refusal(received: str) -> InputError:
        return InputError(
            "a layer of your own is given as module:factory, and factory() returns (layer, inputs)",
            received,
            "For example mine.py with `def case(): return MyLayer(), [x]` is `mine:case`.",
        )

    if not colon:
        raise refusal(f"{place} without a colon")
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except Exception as problem:  # importing the user's module may raise anything
        raise refusal(f"{place} ({type(problem).__name__}: {problem})") from None

    def case():
        try:
            result = factory()
        except Exception as problem:
            raise refusal(f"{place} ({_one_line(problem)})") from None
        match result:
            case (Layer(), list() | tuple()):
                return result
            case (Layer(), inputs):
                raise refusal(f"{type(inputs).__name__} instead of a list of inputs from {place}")
            case tuple():
                raise refusal(f"({', '.join(type(x).__name__ for x in result)}) from {place}")
        raise refusal(f"{type(result).__name__} from {place}")

    return {name: case}


def _print_elementwise(cases: Mapping[str, Callable], place: str, xp, worst: int = 20) -> bool:
    """Print the worst entries of CASE/TENSOR, and return whether its gradient is right."""
    case, _, tensor = place.partition("/")
    if case not in cases:
        raise InputError(
            "--elementwise takes CASE/TENSOR as the table prints it",
            place,
            f"The cases are: {', '.join(cases)}.",
        )
    layer, inputs = cases[case]()
    check = GradientCheck(layer, inputs, xp=xp)
    if tensor not in check.tensors:
        raise InputError(
            f"{case} has the tensors {', '.join(check.tensors)}",
            tensor or "none",
            f"For example --elementwise {case}/{next(iter(check.tensors))}",
        )
    row = check.row(tensor)
    for scale, scaled in check.at_scales(SCALES if row.passed else ()):
        if not (scaled_row := scaled.row_at_scale(tensor, scale)).passed:
            check, row = scaled, scaled_row
            break
    explicit, numerical = check.elementwise(tensor)
    difference = np.nan_to_num(np.abs(explicit - numerical), nan=-1.0)
    print(f"{'index':<20} {'explicit':>18} {'numerical':>18} {'ratio':>12}")
    for flat in np.argsort(-difference, axis=None, kind="stable")[:worst]:
        index = tuple(int(i) for i in np.unravel_index(flat, explicit.shape))
        if np.isnan(numerical[index]):
            break
        ratio = explicit[index] / numerical[index] if numerical[index] else float("nan")
        print(f"{index!s:<20} {explicit[index]:18.10g} {numerical[index]:18.10g} {ratio:12.6g}")
    print(replace(row, name=place, meaning=row.meaning.replace("CASE/TENSOR", place)))
    return row.passed


def _print_rows(cases: Mapping[str, Callable], xp, scales: Iterable[float]) -> list[Row]:
    """Check the cases; print and return a row per tensor. Print each cause in full only once."""
    rows: list[Row] = []
    causes: dict[str, str] = {}
    for case, factory in cases.items():
        layer, inputs = factory()
        for row in check(layer, inputs, xp=xp, scales=scales):
            name = f"{case}/{row.name}"
            first = causes.setdefault(row.meaning, name) if row.meaning else name
            meaning = row.meaning if first == name else f"the same cause as {first}"
            rows.append(replace(row, name=name, meaning=meaning.replace("CASE/TENSOR", name)))
            print(rows[-1], flush=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return 0 if all gradients are right, 1 if one is wrong, 2 for misuse."""
    parser = argparse.ArgumentParser(
        prog="python -m numformer.gradient_check",
        description="Compare explicit gradients with numerical ones, in float64, along random "
        "directions with random upstream gradients. Exit code 1 if any differs.",
    )
    parser.add_argument(
        "layer",
        nargs="?",
        help="module:factory, where factory() returns (layer, inputs); default: the whole library",
    )
    parser.add_argument(
        "--elementwise", metavar="CASE/TENSOR", help="print the worst entries of one tensor"
    )
    parser.add_argument(
        "--run",
        metavar="FOLDER",
        type=Path,
        help="check the first layers of a run, or of a published model, with their weights",
    )
    parser.add_argument("--backend", choices=BACKENDS, default="numpy", help="where arrays live")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="check only cases with TEXT in their name"
    )
    options = parser.parse_args(arguments)
    try:
        xp = find_backend(options.backend)
        if options.layer and options.run:
            rule, fix = "either a layer or a run is checked", "Leave out one of them."
            raise InputError(rule, f"{options.layer} and --run {options.run}", fix)
        cases: Mapping[str, Callable] = CASES
        if options.layer:
            cases = _own_case(options.layer)
        if options.run:
            cases = {options.run.name: functools.partial(slice_of, options.run)}
        if options.elementwise is not None and options.only:
            raise InputError(
                "--elementwise already names its case",
                f"--only {options.only} as well",
                "Leave --only out.",
            )
        if options.elementwise is not None:
            return 0 if _print_elementwise(cases, options.elementwise, xp) else 1
        selected = {name: case for name, case in cases.items() if options.only in name}
        if not selected:
            nearest = ", ".join(difflib.get_close_matches(options.only, cases, 5, 0))
            raise InputError("--only matches a case", options.only, f"Nearest: {nearest}.")
        started = time.perf_counter()
        rows = _print_rows(
            selected, xp, () if options.run else SCALES
        )  # do not scale a run's images
        for factory in selected.values() if options.layer else ():
            layer, inputs = factory()
            for text in untaken_branches(layer, inputs):
                print(f"not checked, because no input takes this branch; {text}")
        if not rows:
            raise InputError(
                "a check needs a floating-point input or a parameter",
                f"nothing to check in {', '.join(selected)}",
                "Give floating-point arrays for inputs, and keep weights in Parameters.",
            )
    except InputError as problem:
        complain(problem)
        return 2
    except Exception as problem:
        if options.layer is None:
            raise
        complain(RuntimeError(f"{options.layer} does not run: {_one_line(problem)}"))
        return 2
    failed = sum(not row.passed for row in rows)
    print(f"{failed} of {len(rows)} failed, {time.perf_counter() - started:.1f} s")
    worst = max(rows, key=lambda row: np.inf if np.isnan(row.error) else row.error)
    print(f"worst relative error {worst.error:.1e} over {len(rows)} tensors")
    return 1 if failed else 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # end quietly if the reader stops, as in `| head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
