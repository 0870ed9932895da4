"""Explicit gradients against numerical ones, as a library and as a command.

    python -m numformer.gradient_check                    every layer, the loss, the whole model
    python -m numformer.gradient_check module:factory     your own layer
    python -m numformer.gradient_check --elementwise linear/weight

The idea: for an objective L = <upstream, forward(...)> with a random upstream gradient, the change
of L along a random direction u must be <gradient, u>. Everything runs in float64 with dropout's
masks frozen.
"""

import argparse
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from numformer.backend import BACKENDS, array_module, dropout_stream, find_backend, to_host
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
    meaning: str = ""  # of the ratio of the two, where the check fails

    @property
    def passed(self) -> bool:
        return self.error < TOLERANCE  # a NaN fails

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        line = f"{self.name:<60} {self.shape!s:<18} {self.error:9.1e}  {verdict}"
        if self.passed:
            return line
        ratio = self.explicit / self.numerical if self.numerical else float("nan")
        return (
            f"{line}\n    explicit {self.explicit:.9g}, numerical {self.numerical:.9g}, "
            f"ratio {ratio:.6g}: {self.meaning}"
        )


def kind(value) -> str:
    """The kind of an array's dtype ("f" floating-point, "b" boolean, "i"); "" for what is none."""
    return getattr(getattr(value, "dtype", None), "kind", "")


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
    input, and where the layer breaks a rule of `numformer.layer`: it writes into an argument,
    leaves a saved record, or does not add to the gradients that are there.
    """

    def __init__(self, layer: Layer, inputs: Iterable, seed: int = 0, xp=np):
        self.layer, self.inputs, self.seed = layer, place(inputs, np.float64, xp), seed
        self.rng = np.random.default_rng(seed)
        parameters = layer.named_parameters()
        pack(layer, np.float64, xp)
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
        self.output, self.branches = self._forward(keep=True)
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
        if len(layer_inputs) != len(input_names):
            raise InputError(
                "backward returns one gradient for each floating-point input of forward",
                f"{len(layer_inputs)} gradients for the inputs {input_names or 'none'}",
                "Return an array for one, a tuple for several, None for none.",
            )
        if self.layer.pending():
            raise InputError(
                "backward pops everything that forward saved",
                f"{self.layer.pending()} saved records left",
                "Call pop_saved() once for each save().",
            )
        self.gradients = dict(zip(input_names, layer_inputs, strict=True))
        self.gradients |= {name: parameter.grad.copy() for name, parameter in parameters.items()}
        self._forward(keep=True)
        self.layer.backward(self.upstream.copy())
        for name, parameter in parameters.items():
            once = self.gradients[name]
            if abs(parameter.grad - 2 * once).max() > 1e-6 * abs(once).max():
                raise InputError(
                    "a second backward adds to the gradients of the first",
                    f"no sum of both in {name}",
                    "Write parameter.grad += ...",
                )
        for name, gradient in self.gradients.items():
            if gradient.shape != self.tensors[name].shape:
                raise InputError(
                    "a gradient has the shape of its tensor",
                    f"{gradient.shape} for {name} {self.tensors[name].shape}",
                    "Sum over the axes that forward broadcasts, and mind transposes.",
                )

    def _forward(self, keep: bool = False):
        """The output, and every branch that forward took: the boolean arrays that it saved."""
        dropout_stream.reseed(self.seed, 0)
        output = self.layer.forward(*self.inputs)
        output = array_module(output).asarray(output)
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
        """The derivative of the objective along `direction`, and the size of its rounding error.

        (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h, whose error falls with h^4. Where a step
        changes the sign of a ReLU's input there is a kink, so h shrinks until none does.
        """
        tensor = self.tensors[name]
        original = tensor.copy()
        step = LARGEST_STEP
        while True:
            outputs, same = {}, True
            for multiple in (1, -1, 2, -2):
                tensor[...] = original + multiple * step * direction
                outputs[multiple], branches = self._forward()
                same &= all(map(np.array_equal, branches, self.branches))
            tensor[...] = original
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
        measured, expected = self.elementwise(name)
        return Row(**{**vars(worst), "meaning": self.diagnose(measured, expected)})

    def elementwise(self, name: str, largest: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Explicit and numerical gradient by entry; NaN beyond the first `largest` entries."""
        explicit = to_host(self.gradients[name]).copy()
        numerical = np.full(explicit.shape, np.nan)
        direction = np.zeros(explicit.shape)
        xp = array_module(self.tensors[name])
        for index in list(np.ndindex(explicit.shape))[:largest]:
            direction[index] = 1
            numerical[index], _ = self.numerical(name, xp.asarray(direction))
            direction[index] = 0
        return explicit, numerical

    def diagnose(self, explicit: np.ndarray, numerical: np.ndarray) -> str:
        """What usually makes explicit and numerical gradients differ in the way that these do."""
        known = ~np.isnan(numerical)
        if not np.isfinite(explicit).all():
            return "NaN or infinity: a division by 0, or a fully masked row."
        e, n = explicit[known], numerical[known]
        scale = np.abs(n).max(initial=0)
        if np.allclose(e, 0, atol=1e-9 * max(scale, 1e-30)):
            return "the gradient is zero: never accumulated, or not returned."
        if scale < 1e-9:
            return "the true gradient is zero: forward does not depend on this tensor as used here."
        factor = float(e @ n / (n @ n))
        if np.allclose(e, factor * n, rtol=1e-5, atol=1e-7 * scale):
            return self._meaning_of_factor(factor)
        if explicit.ndim == 2 and known.all() and explicit.shape[0] == explicit.shape[1]:
            if np.allclose(explicit.T, numerical, rtol=1e-5, atol=1e-7 * scale):
                return "the gradient is transposed."
        difference = np.where(known, explicit - np.where(known, numerical, 0), np.nan)
        if difference.ndim > 1 and known.all() and difference.shape[-1] > 1:
            if np.allclose(difference, difference[..., :1], atol=1e-7 * scale):
                return "off by a constant along the last axis: a mean that is not subtracted."
        wrong = ~np.isclose(e, n, rtol=1e-5, atol=1e-7 * scale)
        if np.allclose(e[wrong], 0, atol=1e-9 * scale):
            return (
                "some entries are zero that should not be: `=` where `+=` is needed, repeated "
                "indices, or a mask applied too often."
            )
        if np.allclose(n[wrong], 0, atol=1e-9 * scale):
            return "some entries should be zero: a mask (padding, causal, ReLU) is not applied."
        return (
            "no constant ratio: a missing term of a sum, a stale saved value, a wrong axis, "
            "repeated indices (use scatter_add), or an argument that was overwritten."
        )

    def _meaning_of_factor(self, factor: float) -> str:
        batch = self.output.shape[0] if self.output.ndim else 1
        positions = int(np.prod(self.output.shape[:-1])) if self.output.ndim else 1
        drop = {p for part in self.layer.layers_within() if (p := getattr(part, "p_drop", 0))}
        causes = {
            -1.0: "the sign is wrong.",
            2.0: "counted twice.",
            0.5: "counted once where the tensor is used twice, or a factor 2 is missing.",
            1 / batch: f"1/B with B = {batch}: divided by the batch size.",
            float(batch): f"B = {batch}: the division by the batch size is missing.",
            1 / positions: f"1/N with N = {positions} positions: divided by their number.",
            float(positions): f"N = {positions}: the division by the positions is missing.",
        }
        for p in drop:
            causes[1 - p] = f"1 - p with p = {p}: dropout's scale is missing in backward."
            causes[1 / (1 - p)] = f"1 / (1 - p) with p = {p}: dropout's scale is applied twice."
        sizes = {tensor.shape[-1] for tensor in self.tensors.values() if tensor.ndim}
        sizes |= {getattr(part, "d_k", 1) for part in self.layer.layers_within()}
        for size in sizes:
            for power in (0.5, -0.5):
                causes.setdefault(
                    size**power,
                    f"{size}^{power}: a factor sqrt(d), d = {size} (d_k or d_model), is missing or "
                    "applied twice.",
                )
        for value, meaning in causes.items():
            if value != 1 and abs(factor - value) < 1e-3 * abs(value):
                return f"constant ratio {factor:.6g} = {meaning}"
        return f"constant ratio {factor:.6g}: a constant factor is missing, or one too many."


def check(layer: Layer, inputs: Iterable, seed: int = 0, directions: int = 2, xp=np) -> list[Row]:
    """One Row for each floating-point input of `layer.forward(*inputs)` and each parameter."""
    checked = GradientCheck(layer, inputs, seed, xp)
    return [checked.row(name, directions) for name in checked.tensors]


def _own_layer(place: str) -> dict[str, Callable]:
    module_name, _, name = place.partition(":")
    rule = "a layer of your own is given as module:factory, and factory() returns (layer, inputs)"
    fix = "For example mine.py with `def case(): return MyLayer(), [x]` is `mine:case`."
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except Exception as problem:  # whatever a module does as it is imported
        raise InputError(rule, f"{place} ({type(problem).__name__}: {problem})", fix) from None

    def case():
        try:
            made = factory()
        except Exception as problem:
            line = traceback.extract_tb(problem.__traceback__)[-1]
            at = f"{type(problem).__name__}: {problem}, in {line.filename}, line {line.lineno}"
            raise InputError(rule, f"{place} ({at})", fix) from None
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Layer)):
            raise InputError(rule, f"{type(made).__name__} from {place}", fix)
        if not isinstance(made[1], Iterable):
            raise InputError(rule, f"{type(made[1]).__name__} for inputs from {place}", fix)
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
    print(row)
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
        if options.elementwise is not None:
            return 0 if _print_elementwise(cases, options.elementwise, xp) else 1
        cases = {name: case for name, case in cases.items() if options.only in name}
        if not cases:
            raise InputError("--only names a case", options.only, f"Cases: {', '.join(CASES)}.")
        started = time.perf_counter()
        rows = []
        for case, factory in cases.items():
            for row in check(*factory(), xp=xp):
                rows.append(Row(**{**vars(row), "name": f"{case}/{row.name}"}))
                print(rows[-1], flush=True)
    except InputError as problem:
        complain(problem)
        return 2
    failed = sum(not row.passed for row in rows)
    print(f"{failed} of {len(rows)} failed, {time.perf_counter() - started:.0f} s")
    worst = max(rows, key=lambda row: np.inf if np.isnan(row.error) else row.error)
    print(f"worst relative error {worst.error:.1e} over {len(rows)} tensors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
