"""Explicit gradients against numerical ones.

The idea: for an objective L = <upstream, forward(...)> with a random upstream gradient, the change
of L along a random direction u must be <gradient, u>. Everything runs in float64 with dropout's
masks frozen.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numformer.backend import array_module, dtype_kind, on_host, to_host
from numformer.errors import InputError
from numformer.gradient_check import diagnosis, rules, sublayers
from numformer.later.auxiliary import auxiliary_losses, auxiliary_losses_count
from numformer.later.checkpointed import Checkpointed
from numformer.layer import Layer, pack
from numformer.randomness import dropout_stream

TOLERANCE = 1e-7
OUTPUT = "what forward returned"
LARGEST_STEP, SMALLEST_STEP = 1e-3, 1e-7
SCALES = 1e-3, 4, 30  # tiny; both tails of an activation; saturated


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


def converted(inputs: Iterable, dtype, xp) -> list:
    """Copies of a forward's inputs in `xp`, numbers in `dtype`; ids stay on the host, uncopied."""
    dtypes = {"f": dtype, "b": bool}
    return [
        xp.array(x, dtype=dtypes[dtype_kind(x)]) if dtype_kind(x) in dtypes else x for x in inputs
    ]


class GradientCheck:
    """The explicit gradients of one forward and backward, and numerical ones to compare.

    `layer` is any Layer, `inputs` the arguments of its forward. Floating-point arrays among the
    inputs are differentiated; ids and masks are not. Parameters and inputs become float64 arrays of
    `xp`, and each parameter gets a random shift, because a gamma of exactly 1 or a bias of exactly
    0 hides mistakes. Another forward and backward come first, `earlier`, with other weights and a
    larger batch: what they leave behind must change nothing. Raises InputError where forward
    returns what is no array, and where the layer breaks one of the `rules`.
    """

    def __init__(self, layer: Layer, inputs: Iterable, seed: int = 0, xp=np):
        rules.everything_is_found(layer)
        self.layer, self.seed, self.xp, self.step = layer, seed, xp, LARGEST_STEP
        # default_rng(seed) may well have drawn the inputs, and a check with dy = x sees too little.
        self.rng = np.random.default_rng([seed, 1])
        self.parameters = layer.named_parameters()
        self._flat = pack(layer, np.float64, xp)
        self._plain_arrays = rules.plain_arrays(layer)
        self.inputs = converted(inputs, np.float64, xp)
        self.earlier: Any = self._earlier()
        with rules.forwards_leave_others_alone(self.earlier):
            self._differentiate()
        rules.forwards_are_stacked(self)
        rules.arrays_are_left_alone(*self._returned)  # a later forward may have written into it

    def _earlier(self) -> "GradientCheck | None":
        """The same check with the batch reversed, and one row more where the layer takes that."""
        given = self._flat.data.copy()
        for more in (1, 0):
            earlier = copy.copy(self)
            earlier.rng, earlier.seed = np.random.default_rng([self.seed, 2]), self.seed + 1
            earlier.inputs = rules.other_batch(self.inputs, more)
            try:
                earlier._differentiate()
                return earlier
            except Exception:  # what is no matter of the batch's size comes up again without one
                self.layer.clear_saved()
            finally:
                self._flat.zero_grad()
                self._flat.data[...] = given
        return None

    def _arguments(self) -> dict:
        """The inputs that are differentiated by the names that forward gives them."""
        names = list(inspect.signature(self.layer.forward).parameters)
        arguments = {}
        for index, value in enumerate(self.inputs):
            if dtype_kind(value) == "f":
                name = names[index] if index < len(names) else f"{names[-1]}[{index}]"
                arguments[f"input {name}" if name in self.parameters else name] = value
        return arguments

    def _differentiate(self, shift: float = 0.1) -> None:
        """The explicit gradients by name, from one forward and one backward that keep the rules.

        `shift` is the size of what is added to the parameters at random.
        """
        for parameter in self.parameters.values():
            moved = shift * self.rng.standard_normal(parameter.shape)
            parameter.data[...] += self.xp.asarray(moved)
        self.weights = self._flat.data.copy()
        arguments = self._arguments()
        copies = {name: array.copy() for name, array in arguments.items()}
        self.input_names = list(arguments)
        # name -> the array that is moved along a direction
        self.tensors = arguments | {name: p.data for name, p in self.parameters.items()}
        with rules.noting_who_saves() as savers:
            output = self._forward(self.inputs)
        rules.all_that_save_are_found(self.layer, savers)
        self.output, self.branches = array_module(output).array(output), self._branches()
        self._returned = {OUTPUT: output}, {OUTPUT: self.output}
        self.upstream = self.xp.asarray(self.rng.standard_normal(output.shape))
        dy = self.upstream.copy()
        returned = self.backward(dy)
        rules.weights_are_parameters(self.layer, self._plain_arrays)
        rules.arrays_are_left_alone(arguments | {"dy": dy}, copies | {"dy": self.upstream})
        rules.arrays_are_left_alone(*self._returned)
        returned = rules.one_gradient_for_each(self.input_names, returned)
        rules.nothing_is_left(self.layer)
        self.gradients = returned | {name: p.grad.copy() for name, p in self.parameters.items()}
        rules.shapes_are_those_of(self.tensors, self.gradients)
        if on_host(dy):
            packed = {
                "the gradient of a parameter": self._flat.grad,
                "a parameter": self._flat.data,
            }
            rules.no_memory_is_shared(returned, {"dy": dy} | packed | arguments | self._returned[0])

    def _forward(self, inputs: Iterable):
        """What forward returns, its auxiliary losses added to each entry.

        Dropout's masks are the same each time, others for other inputs.
        """
        dropout_stream.reseed(self.seed, 0 if inputs is self.inputs else 1)
        with auxiliary_losses() as further:
            output = self.layer.forward(*inputs)
        if not dtype_kind(output):
            raise InputError(
                "forward returns one array",
                f"a {type(output).__name__} from {type(self.layer).__name__}.forward",
                "Return the array alone; a sum as np.asarray(sum).",
            )
        return output + sum(further) if further else output

    def backward(self, dy):
        """What backward returns; each auxiliary loss was added to every entry of the output."""
        with auxiliary_losses_count(dy.sum()):
            return self.layer.backward(dy)

    def _branches(self) -> list[np.ndarray]:
        """Every branch that forward took: the boolean arrays that it saved, or will save."""
        layers = self.layer.layers_within()
        checkpoints = [layer for layer in layers if isinstance(layer, Checkpointed)]
        for layer in checkpoints:
            for record in layer.saved:
                layer.again(record)
        branches = [
            to_host(value).copy()
            for layer in layers
            for record in layer.saved
            for value in record.values()
            if dtype_kind(value) == "b"
        ]
        for layer in checkpoints:
            layer.layer.clear_saved()
        return branches

    def run(self, keep: bool = False, inputs: Iterable | None = None):
        """A copy of the output, and every branch that forward took."""
        output = self._forward(self.inputs if inputs is None else inputs)
        branches = self._branches()
        if not keep:
            self.layer.clear_saved()
        return array_module(output).array(output), branches  # forward may return its very argument

    def numerical(self, name: str, direction, finer=1) -> tuple[float, float]:
        """The derivative of the objective along `direction`, and the size of its rounding error."""
        tensor = self.tensors[name]
        original = tensor.copy()

        def forward(shift):
            tensor[...] = original + shift
            return self.run()

        try:
            return self.slope(forward, direction, self.branches, finer)
        finally:
            tensor[...] = original

    def slope(self, forward: Callable, direction, branches=None, finer=1) -> tuple[float, float]:
        """The derivative of <upstream, forward(shift)> along `direction`, and its rounding error.

        (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h, whose error falls with h^4. Where a step
        changes the sign of a ReLU's input there is a kink, so h shrinks until none does; it begins
        `finer` times as small. `branches` are those of forward(0).
        """
        if branches is None:
            _, branches = forward(0 * direction)
        step = self.step / finer
        while True:
            outputs, same = {}, True
            for multiple in (1, -1, 2, -2):
                outputs[multiple], taken = forward(multiple * step * direction)
                same &= all(map(np.array_equal, taken, branches))
            if same or step / 10 < SMALLEST_STEP * self.step / LARGEST_STEP:
                break
            step /= 10
        change = 8 * (outputs[1] - outputs[-1]) - (outputs[2] - outputs[-2])
        derivative = float((self.upstream * change).sum()) / (12 * step)
        terms = self.upstream * self.output
        rounding = np.finfo(np.float64).eps * float((terms * terms).sum()) ** 0.5 / step
        return derivative, rounding

    def row(self, name: str, directions: int = 2) -> Row:
        """Compare `name` along random directions of length 1."""
        row = self._compared(name, directions)
        return row if row.passed else replace(row, meaning=diagnosis.diagnose(self, name))

    def _compared(self, name: str, directions: int) -> Row:
        worst: Any = None
        xp = array_module(self.tensors[name])
        for _ in range(directions):
            direction = self.rng.standard_normal(self.tensors[name].shape)
            direction = xp.asarray(direction / np.linalg.norm(direction))
            explicit = float((self.gradients[name] * direction).sum())
            # How far a step may go depends on the layer: a slope may bend, exp grow, within it.
            for finer in 1, 10, 100:
                numerical, rounding = self.numerical(name, direction, finer)
                # A difference of the size of the rounding error must not count as an error.
                floor = 10 * rounding / finer / TOLERANCE
                size = max(abs(explicit), abs(numerical), floor, 1e-300)
                error = abs(explicit - numerical) / size
                row = Row(name, tuple(self.tensors[name].shape), error, explicit, numerical)
                if row.passed:
                    break
            if worst is None or not row.error <= worst.error:
                worst = row
        return worst

    def scaled(self, scale: float) -> "GradientCheck | None":
        """The same check with inputs `scale` times as large; None where forward is not for them."""
        other = copy.copy(self)
        other.rng, other.earlier = np.random.default_rng([self.seed, 3]), None
        other.inputs = [x * scale if dtype_kind(x) == "f" else x for x in self.inputs]
        try:
            with np.errstate(all="ignore"):
                output = to_host(other.run()[0])
                if not np.isfinite(output).all():  # beyond what forward is defined for
                    return None
        except Exception:
            self.layer.clear_saved()
            return None
        self._flat.zero_grad()
        with np.errstate(all="ignore"):
            other._differentiate(shift=0)
        return other

    def at_scale(self, name: str, scale: float) -> Row:
        """Like `row`, along one direction, by smaller steps: those around tiny inputs are tiny."""
        size = (
            1 if name in self.parameters else float(abs(to_host(self.tensors[name])).max(initial=0))
        )
        self.step = LARGEST_STEP / 10 * min(1, size or 1)
        with np.errstate(all="ignore"):
            row = self._compared(name, 1)
            if row.passed:
                return row
            explicit, numerical = self.elementwise(name)
            meaning = diagnosis.diagnose(self, name)
        wrong = ~np.isclose(explicit, numerical, 1e-5, 1e-12) & ~np.isnan(numerical)
        values = to_host(self.tensors[name])[wrong]
        values = values[:0] if name in self.parameters else values
        where = f", where {name} is {values.min():.3g} to {values.max():.3g}" if values.size else ""
        return replace(row, meaning=f"only with inputs times {scale:g}{where}: {meaning}")

    def was_right_earlier(self, name: str) -> bool:
        """Whether the first backward of all gave the right gradient, for its weights and inputs."""
        self._flat.data[...] = self.earlier.weights
        try:
            return self.earlier._compared(name, 2).passed
        finally:
            self._flat.data[...] = self.weights

    def elementwise(self, name: str, largest: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Explicit and numerical gradient by entry; NaN beyond the first `largest` entries."""
        explicit = to_host(self.gradients[name]).copy()
        along = functools.partial(self.numerical, name)
        return explicit, self.by_entry(along, explicit.shape, largest)

    def by_entry(self, slope_along: Callable, shape: tuple[int, ...], largest: int = 400):
        """`slope_along(direction)` for each entry alone; NaN beyond the first `largest`."""
        slopes, direction = np.full(shape, np.nan), np.zeros(shape)
        for index in itertools.islice(np.ndindex(shape), largest):
            direction[index] = 1
            slopes[index], _ = slope_along(self.xp.asarray(direction))
            direction[index] = 0
        return slopes

    @functools.cached_property
    def faulty_layers(self) -> dict[str, str]:
        """Looked for once, for all tensors that fail because of them."""
        return sublayers.faulty_layers(self)

    @functools.cached_property
    def faulty_wire(self) -> str | None:
        return sublayers.faulty_wire(self)


def check(
    layer: Layer,
    inputs: Iterable,
    seed: int = 0,
    directions: int = 2,
    xp=np,
    scales: Iterable[float] = SCALES,
) -> list[Row]:
    """One Row for each floating-point input of `layer.forward(*inputs)` and each parameter.

    What passes with the inputs as given is also compared with them times each of the `scales`:
    tiny, large and saturated.
    """
    checked = GradientCheck(layer, inputs, seed, xp)
    rows = {name: checked.row(name, directions) for name in checked.tensors}
    for scale in scales if checked.input_names else ():
        scaled = checked.scaled(scale)
        if scaled is None:
            continue
        for name in scaled.tensors:
            if rows[name].passed and not (row := scaled.at_scale(name, scale)).passed:
                rows[name] = row
    return list(rows.values())
