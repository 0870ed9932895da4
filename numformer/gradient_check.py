"""Explicit gradients against numerical ones, as a library and as a command.

    python -m numformer.gradient_check                    every layer, the loss, the whole model
    python -m numformer.gradient_check module:factory     your own layer
    python -m numformer.gradient_check --elementwise linear/weight

The idea: for an objective L = <upstream, forward(...)> with a random upstream gradient, the change
of L along a random direction u must be <gradient, u>. Everything runs in float64 with dropout's
masks frozen.
"""

import argparse
import functools
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from numformer import diagnosis
from numformer.backend import (
    BACKENDS,
    array_module,
    dropout_stream,
    find_backend,
    kind,
    to_host,
)
from numformer.errors import InputError, complain
from numformer.layer import Layer, pack

TOLERANCE = 1e-7
LARGEST_STEP, SMALLEST_STEP = 1e-3, 1e-7


@dataclass(frozen=True)
class Row:
    """The verdict on one tensor: its worst direction."""

    name: str
    shape: tuple[int, ...]
    error: float  # |explicit - numerical| / max(|explicit|, |numerical|, floor)
    explicit: float  # <gradient, direction>
    numerical: float  # the measured change along the direction
    meaning: str = ""  # what usually makes the two differ like this, where the check fails

    @property
    def passed(self) -> bool:
        return self.error < TOLERANCE  # a NaN fails

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        line = f"{self.error:9.1e}  {verdict:<6}  {self.shape!s:<18} {self.name}"
        if self.passed:
            return line
        numbers = f"explicit {self.explicit:.9g}, numerical {self.numerical:.9g}"
        if self.numerical and "constant ratio" not in self.meaning:
            numbers += f", ratio {self.explicit / self.numerical:.6g}"
        return f"{line}\n    {numbers}: {self.meaning}"


def place(inputs: Iterable, dtype, xp) -> list:
    """Copies of a forward's inputs in `xp`, numbers in `dtype`; ids stay on the host, uncopied."""
    dtypes = {"f": dtype, "b": bool}
    return [xp.array(x, dtype=dtypes[kind(x)]) if kind(x) in dtypes else x for x in inputs]


class GradientCheck:
    """The explicit gradients of one forward and backward, and numerical ones to compare.

    `layer` is any Layer, `inputs` the arguments of its forward. Floating-point arrays among the
    inputs are differentiated; ids and masks are not. Parameters and inputs become float64 arrays of
    `xp`, and each parameter gets a random shift, because a gamma of exactly 1 or a bias of exactly
    0 hides mistakes. Raises InputError where backward does not return one gradient for each such
    input, where forward or backward returns what is no array, and where the layer breaks a rule of
    `numformer.layer`: it writes into an argument, leaves a saved record, does not add to the
    gradients that are there, forgets in a second forward what it saved in the first, or returns a
    gradient that shares memory.
    """

    def __init__(self, layer: Layer, inputs: Iterable, seed: int = 0, xp=np):
        self.layer, self.inputs, self.seed = layer, place(inputs, np.float64, xp), seed
        self.xp = xp
        # default_rng(seed) may well have drawn the inputs, and a check with dy = x sees too little.
        self.rng = np.random.default_rng([seed, 1])
        parameters = layer.named_parameters()
        flat = pack(layer, np.float64, xp)
        for parameter in parameters.values():
            parameter.data[...] += xp.asarray(0.1 * self.rng.standard_normal(parameter.shape))

        names = list(inspect.signature(layer.forward).parameters)
        self.tensors = {}  # name -> the array that is moved along a direction
        for index, value in enumerate(self.inputs):
            if kind(value) == "f":
                name = names[index] if index < len(names) else f"{names[-1]}[{index}]"
                self.tensors[f"input {name}" if name in parameters else name] = value
        input_names = list(self.tensors)
        self.tensors |= {name: parameter.data for name, parameter in parameters.items()}

        arguments = {name: self.tensors[name] for name in input_names}
        copies = {name: array.copy() for name, array in arguments.items()}
        self.output, self.branches = self.run(keep=True)
        self.upstream = xp.asarray(self.rng.standard_normal(self.output.shape))
        dy = self.upstream.copy()
        layer_inputs = self.layer.backward(dy)
        for name, array in (arguments | {"dy": dy}).items():
            if not (array == copies.get(name, self.upstream)).all():
                raise InputError(
                    "a layer writes into none of its arguments",
                    f"other values in {name} after forward and backward",
                    "Compute into a new array.",
                )
        if not isinstance(layer_inputs, tuple):
            layer_inputs = () if layer_inputs is None else (layer_inputs,)
        odd = [type(dx).__name__ for dx in layer_inputs if not kind(dx)]
        if odd or len(layer_inputs) != len(input_names):
            raise InputError(
                "backward returns one gradient for each floating-point input of forward: an array "
                "for one, a tuple for several, None for none",
                f"{'a ' + odd[0] if odd else f'{len(layer_inputs)} array(s)'}, where the "
                f"floating-point inputs are {input_names or 'none'}",
                "Return those gradients in forward's order.",
            )
        if self.layer.pending():
            raise InputError(
                "backward pops everything that forward saved",
                f"{self.layer.pending()} saved records left",
                "Call pop_saved() once for each save().",
            )
        self.gradients = dict(zip(input_names, layer_inputs, strict=True))
        self.gradients |= {name: parameter.grad.copy() for name, parameter in parameters.items()}
        self._check_records(input_names, parameters)
        for name, gradient in self.gradients.items():
            if gradient.shape != self.tensors[name].shape:
                raise InputError(
                    "a gradient has the shape of its tensor",
                    f"{gradient.shape} for {name} {self.tensors[name].shape}",
                    "Sum over the axes that forward broadcasts, and mind transposes.",
                )
        others = {"dy": dy, "the gradient of a parameter": flat.grad, "a parameter": flat.data}
        others |= arguments
        for name, dx in zip(input_names, layer_inputs, strict=True):
            for other, array in others.items() if xp is np else ():
                if np.shares_memory(dx, array):
                    raise InputError(
                        "what backward returns shares memory with nothing, so its receiver may "
                        "overwrite it",
                        f"memory of {other} in the gradient of {name}",
                        "Return a new array: .copy() makes one.",
                    )
            others[f"the gradient of {name}"] = dx

    def _check_records(self, input_names: list[str], parameters: dict) -> None:
        """Two forwards, the second with other inputs, and two backwards: the first is served last.

        Raises InputError unless the last one returns the same gradients as before, and adds them.
        """
        self.run(keep=True)
        self.run(True, [x[::-1].copy() if kind(x) and x.ndim else x for x in self.inputs])
        self.layer.backward(self.upstream.copy())
        before = {name: parameter.grad.copy() for name, parameter in parameters.items()}
        returned = self.layer.backward(self.upstream.copy())
        returned = returned if isinstance(returned, tuple) else (returned,) * len(input_names)
        again = dict(zip(input_names, returned, strict=True))
        again |= {name: parameter.grad - before[name] for name, parameter in parameters.items()}
        sizes = [float(abs(once).max()) for once in self.gradients.values() if once.size]
        rounding = 1e-6 * max(sizes, default=0)
        for name, once in self.gradients.items():
            if not (abs(again[name] - once) > rounding).any():
                continue
            if name in parameters and (abs(parameters[name].grad - once) <= rounding).all():
                raise InputError(
                    "a second backward adds to the gradients of the first",
                    f"no sum of both in {name}",
                    "Write parameter.grad += ...",
                )
            raise InputError(
                "any number of forwards may come before the first backward",
                f"another gradient of {name} where a second forward comes between",
                "Keep what backward needs, dropout's mask too, with save() and pop_saved(): "
                "not in an attribute, and not drawn anew.",
            )

    def run(self, keep: bool = False, inputs: Iterable | None = None):
        """A copy of the output, and every branch that forward took: the boolean arrays it saved.

        Dropout's masks are the same each time, but others for other `inputs`.
        """
        dropout_stream.reseed(self.seed, 0 if inputs is None else 1)
        output = self.layer.forward(*(self.inputs if inputs is None else inputs))
        if not kind(output):
            raise InputError(
                "forward returns one array",
                f"a {type(output).__name__} from {type(self.layer).__name__}.forward",
                "Return the array alone; a sum as np.asarray(sum).",
            )
        output = array_module(output).array(output)  # forward may return its very argument
        branches = [
            to_host(value).copy()
            for part in self.layer.layers_within()
            for record in part.saved
            for value in record.values()
            if kind(value) == "b"
        ]
        if not keep:
            self.layer.clear_saved()
        return output, branches

    def numerical(self, name: str, direction) -> tuple[float, float]:
        """The derivative of the objective along `direction`, and the size of its rounding error."""
        tensor = self.tensors[name]
        original = tensor.copy()

        def forward(shift):
            tensor[...] = original + shift
            return self.run()

        try:
            return self.slope(forward, direction, self.branches)
        finally:
            tensor[...] = original

    def slope(self, forward: Callable, direction, branches=None) -> tuple[float, float]:
        """The derivative of <upstream, forward(shift)> along `direction`, and its rounding error.

        (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h, whose error falls with h^4. Where a step
        changes the sign of a ReLU's input there is a kink, so h shrinks until none does.
        `branches` are those of forward(0).
        """
        if branches is None:
            _, branches = forward(0 * direction)
        step = LARGEST_STEP
        while True:
            outputs, same = {}, True
            for multiple in (1, -1, 2, -2):
                outputs[multiple], taken = forward(multiple * step * direction)
                same &= all(map(np.array_equal, taken, branches))
            if same or step / 10 < SMALLEST_STEP:
                break
            step /= 10
        change = 8 * (outputs[1] - outputs[-1]) - (outputs[2] - outputs[-2])
        derivative = float((self.upstream * change).sum()) / (12 * step)
        terms = self.upstream * self.output
        rounding = np.finfo(np.float64).eps * float((terms * terms).sum()) ** 0.5 / step
        return derivative, rounding

    def row(self, name: str, directions: int = 2) -> Row:
        """Compare `name` along random directions of length 1."""
        worst = None
        xp = array_module(self.tensors[name])
        for _ in range(directions):
            direction = self.rng.standard_normal(self.tensors[name].shape)
            direction = xp.asarray(direction / np.linalg.norm(direction))
            numerical, rounding = self.numerical(name, direction)
            explicit = float((self.gradients[name] * direction).sum())
            # A difference of the size of the rounding error must not count as an error.
            floor = 10 * rounding / TOLERANCE
            error = abs(explicit - numerical) / max(abs(explicit), abs(numerical), floor, 1e-300)
            row = Row(name, tuple(self.tensors[name].shape), error, explicit, numerical)
            if worst is None or not row.error <= worst.error:
                worst = row
        if worst.passed:
            return worst
        return replace(worst, meaning=diagnosis.diagnose(self, name))

    def elementwise(self, name: str, largest: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Explicit and numerical gradient by entry; NaN beyond the first `largest` entries."""
        explicit = to_host(self.gradients[name]).copy()
        along = functools.partial(self.numerical, name)
        return explicit, diagnosis.by_entry(along, explicit.shape, self.xp, largest)

    @functools.cached_property
    def faulty_parts(self) -> dict[str, str]:
        """Looked for once, for all tensors that fail because of them."""
        return diagnosis.faulty_parts(self)

    @functools.cached_property
    def faulty_wire(self) -> str | None:
        return diagnosis.faulty_wire(self)


def check(layer: Layer, inputs: Iterable, seed: int = 0, directions: int = 2, xp=np) -> list[Row]:
    """One Row for each floating-point input of `layer.forward(*inputs)` and each parameter."""
    checked = GradientCheck(layer, inputs, seed, xp)
    return [checked.row(name, directions) for name in checked.tensors]


def _told(problem: Exception) -> str:
    """An exception of someone's own code in one line: its type, text and place."""
    line = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__}: {problem}, in {line.filename}, line {line.lineno}"


def _own_layer(place: str) -> dict[str, Callable]:
    module_name, colon, name = place.partition(":")
    rule = "a layer of your own is given as module:factory, and factory() returns (layer, inputs)"
    fix = "For example mine.py with `def case(): return MyLayer(), [x]` is `mine:case`."
    if not colon:
        raise InputError(rule, f"{place} without a colon", fix)
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except Exception as problem:  # whatever a module does as it is imported
        raise InputError(rule, f"{place} ({type(problem).__name__}: {problem})", fix) from None

    def case():
        try:
            made = factory()
        except Exception as problem:
            raise InputError(rule, f"{place} ({_told(problem)})", fix) from None
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Layer)):
            kinds = [type(part).__name__ for part in made] if isinstance(made, tuple) else []
            received = f"({', '.join(kinds)})" if kinds else type(made).__name__
            raise InputError(rule, f"{received} from {place}", fix)
        if not isinstance(made[1], list | tuple):
            what = f"{type(made[1]).__name__} instead of a list of inputs from {place}"
            raise InputError(rule, what, fix)
        return made

    return {name: case}


def _print_elementwise(cases: dict[str, Callable], place: str, xp, worst: int = 20) -> bool:
    case, _, tensor = place.partition("/")
    if case not in cases:
        raise InputError(
            "--elementwise takes CASE/TENSOR as the table prints it",
            place,
            f"The cases are: {', '.join(cases)}.",
        )
    checked = GradientCheck(*cases[case](), xp=xp)
    if tensor not in checked.tensors:
        raise InputError(
            f"{case} has the tensors {', '.join(checked.tensors)}",
            tensor or "none",
            f"For example --elementwise {case}/{next(iter(checked.tensors))}",
        )
    explicit, numerical = checked.elementwise(tensor)
    row = checked.row(tensor)
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


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 where a gradient is wrong."""
    from numformer.gradient_cases import CASES

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
    parser.add_argument("--backend", choices=BACKENDS, default="numpy", help="where arrays live")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases with TEXT in name")
    options = parser.parse_args(arguments)
    try:
        xp = find_backend(options.backend)
        cases = CASES if options.layer is None else _own_layer(options.layer)
        if options.elementwise is not None and options.only:
            raise InputError(
                "--elementwise names its case itself",
                f"--only {options.only} beside it",
                "Leave --only out.",
            )
        if options.elementwise is not None:
            return 0 if _print_elementwise(cases, options.elementwise, xp) else 1
        chosen = {name: case for name, case in cases.items() if options.only in name}
        if not chosen:
            raise InputError("--only names a case", options.only, f"Cases: {', '.join(cases)}.")
        started = time.perf_counter()
        rows, causes = [], {}
        for case, factory in chosen.items():
            for row in check(*factory(), xp=xp):
                name = f"{case}/{row.name}"
                first = causes.setdefault(row.meaning, name) if row.meaning else name
                meaning = row.meaning if first == name else f"the same cause as {first}"
                meaning = meaning.replace("CASE/TENSOR", name)
                rows.append(replace(row, name=name, meaning=meaning))
                print(rows[-1], flush=True)
        if not rows:
            raise InputError(
                "a check needs a floating-point input or a parameter",
                f"nothing to check in {', '.join(chosen)}",
                "Give floating-point arrays for inputs, and keep weights in Parameters.",
            )
    except InputError as problem:
        complain(problem)
        return 2
    except Exception as problem:
        if options.layer is None:
            raise
        complain(RuntimeError(f"{options.layer} does not run: {_told(problem)}"))
        return 2
    failed = sum(not row.passed for row in rows)
    print(f"{failed} of {len(rows)} failed, {time.perf_counter() - started:.1f} s")
    worst = max(rows, key=lambda row: np.inf if np.isnan(row.error) else row.error)
    print(f"worst relative error {worst.error:.1e} over {len(rows)} tensors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
