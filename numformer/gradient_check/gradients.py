"""Explicit gradients against numerical ones.

The idea: for an objective L = <upstream, forward(...)> with a random upstream gradient, the change
of L along a random direction u must be <gradient, u>. Everything runs in float64 with dropout's
masks frozen.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from numformer.backend import (
    array_module,
    dropout_stream,
    kind,
    to_host,
)
from numformer.errors import InputError
from numformer.gradient_check import diagnosis
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
