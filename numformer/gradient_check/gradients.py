"""Compares explicit gradients with numerical ones.

For an objective L = <upstream, forward(...)> with a random upstream gradient, the derivative of L
along a random direction u must be <gradient, u>. All numbers are float64, and all forwards that are
compared have the same dropout masks.
"""

import contextlib
import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numformer.backend import array_module, dtype_kind, on_host, to_host
from numformer.errors import InputError
from numformer.gradient_check import rules
from numformer.gradient_check.diagnosis import diagnose
from numformer.gradient_check.inner_layers import faulty_connection, faulty_layers, outermost
from numformer.gradient_check.operations import WrongOperations
from numformer.later.auxiliary import collect_auxiliary_losses, set_auxiliary_gradient
from numformer.later.checkpointed import Checkpointed
from numformer.layer import Layer, pack
from numformer.randomness import dropout_stream

TOLERANCE = 1e-7
OUTPUT = "what forward returned"
LARGEST_STEP, SMALLEST_STEP = 1e-3, 1e-7
KINK = "Forward has a kink at these inputs: its slopes on both sides differ. Checked nearby."
SCALES = 1e-3, 4, 30  # factors for the inputs: tiny, in an activation's tails, saturated


@dataclass(frozen=True)
class Row:
    """The verdict on one tensor, with the numbers of its worst direction."""

    name: str
    shape: tuple[int, ...]
    error: float  # |explicit - numerical| / max(|explicit|, |numerical|, floor)
    explicit: float  # <gradient, direction>
    numerical: float  # the measured derivative along the direction
    meaning: str = ""  # the diagnosis, if the check fails
    note: str = ""  # both gradients are 0, or the inputs were moved away from a kink

    @property
    def passed(self) -> bool:
        return self.error < TOLERANCE  # a NaN fails

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        line = f"{self.error:9.1e}  {verdict:<6}  {self.shape!s:<18} {self.name}"
        line += f"\n    {self.note}" if self.note else ""
        if self.passed:
            return line
        numbers = f"explicit {self.explicit:.9g}, numerical {self.numerical:.9g}"
        if self.numerical and "constant ratio" not in self.meaning:
            numbers += f", ratio {self.explicit / self.numerical:.6g}"
        return f"{line}\n    {numbers}: {self.meaning}"


def copy_inputs(inputs: Iterable, dtype, xp) -> list:
    """Return copies of the inputs on `xp`, floats in `dtype`; ids stay uncopied on the host."""
    dtypes = {"f": dtype, "b": bool}
    return [
        xp.array(x, dtype=dtypes[dtype_kind(x)]) if dtype_kind(x) in dtypes else x for x in inputs
    ]


@functools.cache
def _first_state(seed: int, step: int) -> tuple:
    """Return the dropout stream's state after reseeding; cached because a check reseeds often."""
    dropout_stream.reseed(seed, step)
    return dropout_stream.state


@contextlib.contextmanager
def temporary_values(array, values):
    """Within the block, `array` holds `values`; afterwards, its original values."""
    original = array.copy()
    array[...] = values
    try:
        yield
    finally:
        array[...] = original


class GradientCheck:
    """The explicit gradients of one forward and backward, compared with numerical gradients.

    `layer` is any Layer; `inputs` are the arguments of its forward. Floating-point inputs have
    gradients; ids and masks have none. Parameters and inputs become float64 arrays of `xp`. Each
    parameter gets a random shift, because a gamma of exactly 1 or a bias of exactly 0 hides
    mistakes. First the layer runs forward and backward with other weights and a larger batch
    (`earlier`), which must not change later results. Raises InputError if the layer breaks one of
    the `rules`, or if forward returns anything but one array.
    """

    def __init__(self, layer: Layer, inputs: Iterable, seed: int = 0, xp=np):
        rules.require_layer_and_inputs(layer, inputs)
        rules.require_layers_found(layer)
        self.fresh: Any = None  # a copy of the layer before its first forward
        with contextlib.suppress(Exception):
            self.fresh = copy.deepcopy(layer)
        self.layer, self.seed, self.xp, self.step = layer, seed, xp, LARGEST_STEP
        # With default_rng(seed), dy could equal an x that the caller drew, and hide mistakes.
        self.rng = np.random.default_rng([seed, 1])
        self.parameters = layer.named_parameters()
        self._flat = pack(layer, np.float64, xp)
        self._plain_arrays = rules.plain_arrays(layer)
        self.inputs = copy_inputs(inputs, np.float64, xp)
        if self.fresh is not None:
            rules.require_same_outputs(self)
        self.earlier: Any = self._earlier_check()
        with rules.after_another_forward(self.earlier):
            self._differentiate()
        rules.require_stacked_forwards(self)
        rules.require_unchanged(*self._outputs)  # a later forward may have changed it

    def _earlier_check(self) -> "GradientCheck | None":
        """Return this check with the batch reversed, and one row longer if the layer allows that.

        Return None if neither works: an error that does not depend on the batch is raised later.
        """
        for extra in (1, 0):
            earlier = copy.copy(self)
            earlier.rng, earlier.seed = np.random.default_rng([self.seed, 2]), self.seed + 1
            earlier.inputs = rules.reversed_batch(self.inputs, extra)
            with temporary_values(self._flat.data, self._flat.data):
                try:
                    earlier._differentiate()
                    return earlier
                except Exception:
                    self.layer.clear_saved()
                finally:
                    self._flat.zero_grad()
        return None

    def _differentiable_inputs(self) -> dict:
        """Return the floating-point inputs by the names of forward's arguments."""
        names = list(inspect.signature(self.layer.forward).parameters)
        arguments = {}
        for index, value in enumerate(self.inputs):
            if dtype_kind(value) == "f":
                name = names[index] if index < len(names) else f"{names[-1]}[{index}]"
                arguments[f"input {name}" if name in self.parameters else name] = value
        return arguments

    def _differentiate(self, shift: float = 0.1) -> None:
        """Compute the explicit gradients by one forward and one backward, and enforce the rules.

        First, normal random numbers of standard deviation `shift` are added to the parameters.
        """
        for parameter in self.parameters.values():
            move = shift * self.rng.standard_normal(parameter.shape)
            parameter.data[...] += self.xp.asarray(move)
        self.weights = self._flat.data.copy()
        arguments = self._differentiable_inputs()
        copies = {name: array.copy() for name, array in arguments.items()}
        self.input_names = list(arguments)
        # The arrays whose gradients are checked, by name.
        self.tensors = arguments | {name: p.data for name, p in self.parameters.items()}
        with rules.require_savers_found(self.layer):
            output = self._forward(self.inputs)
        self.layers = self.layer.layers_within()
        self.output, self.branches = array_module(output).array(output), self._branches()
        self._outputs = {OUTPUT: output}, {OUTPUT: self.output}
        self.upstream = self.xp.asarray(self.rng.standard_normal(output.shape))
        dy = self.upstream.copy()
        returned = self.backward(dy)
        rules.require_weights_in_parameters(self.layer, self._plain_arrays)
        rules.require_unchanged(arguments | {"dy": dy}, copies | {"dy": self.upstream})
        rules.require_unchanged(*self._outputs)
        returned = rules.gradients_by_input(self.input_names, returned)
        rules.require_nothing_saved(self.layer)
        self.gradients = returned | {name: p.grad.copy() for name, p in self.parameters.items()}
        rules.require_shapes(self.tensors, self.gradients)
        if on_host(dy):
            others = {"dy": dy, "the gradient of a parameter": self._flat.grad}
            others |= {"a parameter": self._flat.data} | arguments | self._outputs[0]
            rules.require_own_memory(returned, others)

    def _forward(self, inputs: Iterable):
        """Return forward's output, with its auxiliary losses added to each entry.

        Each forward on `self.inputs` has the same dropout masks; other inputs have other masks.
        """
        dropout_stream.state = _first_state(self.seed, 0 if inputs is self.inputs else 1)
        with collect_auxiliary_losses() as losses:
            output = self.layer.forward(*inputs)
        if not dtype_kind(output):
            raise InputError(
                "forward returns one array",
                f"a {type(output).__name__} from {type(self.layer).__name__}.forward",
                "Return the array alone; convert a Python number with np.asarray(number).",
            )
        return output + sum(losses) if losses else output

    def backward(self, dy):
        """Run backward. The gradient of an auxiliary loss, added to each entry, is dy.sum()."""
        with set_auxiliary_gradient(dy.sum()):
            return self.layer.backward(dy)

    def _branches(self, keep: bool = True) -> list[np.ndarray]:
        """Return the boolean arrays that forward saved, also in checkpoints; it may `keep` all."""
        checkpoints = [layer for layer in self.layers if isinstance(layer, Checkpointed)]
        for checkpoint in checkpoints:
            for record in checkpoint.saved:
                checkpoint.recompute(record)
        branches = [
            to_host(value).copy()
            for layer in self.layers
            for record in layer.saved
            for value in record.values()
            if dtype_kind(value) == "b"
        ]
        for checkpoint in checkpoints:
            checkpoint.layer.clear_saved()
        for layer in () if keep else self.layers:
            layer.saved.clear()
        return branches

    def run(self, keep: bool = False, inputs: Iterable | None = None):
        """Run forward, and return a copy of its output and the branches that it took."""
        output = self._forward(self.inputs if inputs is None else inputs)
        branches = self._branches(keep)
        return array_module(output).array(output), branches  # forward may return an input itself

    def run_shifted(self, name: str, shift):
        """Run forward as `run` does, with `shift` added to the tensor `name`."""
        with temporary_values(self.tensors[name], self.tensors[name] + shift):
            return self.run()

    def numerical(self, name: str, direction, finer=1) -> tuple[float, float]:
        """Return the objective's derivative along `direction`, and its typical rounding error."""
        forward = functools.partial(self.run_shifted, name)
        return self.slope(forward, direction, self.branches, finer)

    def slope(self, forward: Callable, direction, branches=None, finer=1) -> tuple[float, float]:
        """Return the slope of <upstream, forward(shift)> along `direction`, and its rounding error.

        The slope is (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h, with an error of order h^4.
        A step that changes the sign of a ReLU's input crosses a kink, so h shrinks until
        forward takes the same `branches` as forward(0). The first h is divided by `finer`.
        """
        if branches is None:
            _, branches = forward(0 * direction)
        step = self.step / finer
        while True:
            outputs, same_branches = {}, True
            for multiple in (1, -1, 2, -2):
                outputs[multiple], new_branches = forward(multiple * step * direction)
                same_branches &= all(map(np.array_equal, new_branches, branches))
            if same_branches or step / 10 < SMALLEST_STEP * self.step / LARGEST_STEP:
                break
            step /= 10
        change = 8 * (outputs[1] - outputs[-1]) - (outputs[2] - outputs[-2])
        derivative = float((self.upstream * change).sum()) / (12 * step)
        terms = self.upstream * self.output
        rounding = np.finfo(np.float64).eps * float((terms * terms).sum()) ** 0.5 / step
        return derivative, rounding

    def row(self, name: str, directions: int = 2) -> Row:
        """Check the gradient of `name` along random directions of length 1; diagnose a failure."""
        check, row = self._compare_beside_kinks(name, directions)
        if not row.passed:
            return replace(row, meaning=diagnose(check, name))
        if not (row.note or row.numerical or self.gradients[name].any()):
            return replace(row, note="Both gradients are 0, which shows nothing: try other inputs.")
        return row

    def _compare_beside_kinks(self, name: str, directions: int) -> tuple["GradientCheck", Row]:
        """Compare both gradients of `name` at the inputs or, if they lie on a kink, nearby."""
        row = self._compare(name, directions)
        if row.passed or not self.input_names or not self._has_kink(name):
            return self, row
        return self._beside, replace(self._beside._compare(name, directions), note=KINK)

    def _has_kink(self, name: str) -> bool:
        """Whether the slopes on both sides differ, and by the same amount for two step sizes."""
        direction = self.xp.asarray(self.rng.standard_normal(self.tensors[name].shape))
        here, _ = self.run_shifted(name, 0 * direction)
        differences, largest = [], 0.0
        for step in (1e-6, 1e-5):
            ahead, back = (self.run_shifted(name, s * direction)[0] for s in (step, -step))
            slope_ahead, slope_back = (
                float((self.upstream * change).sum()) / step
                for change in (ahead - here, here - back)
            )
            differences.append(slope_ahead - slope_back)
            largest = max(largest, abs(slope_ahead), abs(slope_back))
        first, second = differences
        return min(abs(first), abs(second)) > 1e-3 * largest and abs(first / second - 1) < 0.1

    @functools.cached_property
    def _beside(self) -> "GradientCheck":
        """This check at nearby inputs: each entry moves by 1 to 2 percent of the largest entry."""
        rng = np.random.default_rng([self.seed, 4])

        def move(x):
            if dtype_kind(x) != "f":
                return x
            moves = rng.uniform(0.01, 0.02, x.shape) * rng.choice([-1, 1], x.shape)
            return x + self.xp.asarray(moves) * (abs(x).max() or 1)

        other = self._with_inputs([move(x) for x in self.inputs])
        self._flat.zero_grad()
        other._differentiate(shift=0)
        return other

    def _with_inputs(self, inputs: list) -> "GradientCheck":
        """Return a copy of this check with other inputs, on which no forward has run yet."""
        other = copy.copy(self)
        for name, attribute in vars(GradientCheck).items():
            if isinstance(attribute, functools.cached_property):
                vars(other).pop(name, None)
        other.rng, other.earlier = np.random.default_rng([self.seed, 3]), None
        other.inputs = inputs
        return other

    def _compare(self, name: str, directions: int) -> Row:
        worst: Any = None
        xp = array_module(self.tensors[name])
        for _ in range(directions):
            direction = self.rng.standard_normal(self.tensors[name].shape)
            direction = xp.asarray(direction / np.linalg.norm(direction))
            explicit = float((self.gradients[name] * direction).sum())
            # A step may be too long: the slope may change within it, or an exponential may grow.
            for finer in 1, 10, 100:
                numerical, rounding = self.numerical(name, direction, finer)
                # A difference within the rounding error must pass.
                floor = 10 * rounding / finer / TOLERANCE
                size = max(abs(explicit), abs(numerical), floor, 1e-300)
                error = abs(explicit - numerical) / size
                row = Row(name, tuple(self.tensors[name].shape), error, explicit, numerical)
                if row.passed:
                    break
            if worst is None or not row.error <= worst.error:
                worst = row
        return worst

    def at_scales(self, scales: Iterable[float]) -> Iterator[tuple[float, "GradientCheck"]]:
        """Yield (scale, this check with inputs times scale) for each scale with a finite output."""
        for scale in scales if self.input_names else ():
            other = self._with_inputs(
                [x * scale if dtype_kind(x) == "f" else x for x in self.inputs]
            )
            with np.errstate(all="ignore"):
                try:
                    finite = np.isfinite(to_host(other.run()[0])).all()
                except Exception:
                    self.layer.clear_saved()
                    continue
                if finite:
                    self._flat.zero_grad()
                    other._differentiate(shift=0)
            if finite:
                yield scale, other

    def row_at_scale(self, name: str, scale: float) -> Row:
        """Check inputs times `scale` as `row` does, but along one direction, with smaller steps."""
        tensor, is_input = to_host(self.tensors[name]), name not in self.parameters
        size = float(abs(tensor).max(initial=0)) if is_input else 1
        self.step = LARGEST_STEP / 10 * min(1, size or 1)
        with np.errstate(all="ignore"):
            check, row = self._compare_beside_kinks(name, 1)
            if row.passed:
                return row
            explicit, numerical = check.elementwise(name)
            meaning = diagnose(check, name)
        wrong = ~np.isclose(explicit, numerical, 1e-5, 1e-12) & ~np.isnan(numerical)
        values, where = tensor[wrong], ""
        if is_input and values.size:
            where = f", where {name} is {values.min():.3g} to {values.max():.3g}"
        return replace(row, meaning=f"only with inputs times {scale:g}{where}: {meaning}")

    def was_right_earlier(self, name: str) -> bool:
        """Whether the earlier backward returned the right gradient for its weights and inputs."""
        with temporary_values(self._flat.data, self.earlier.weights):
            return self.earlier._compare(name, 2).passed

    def is_right_first(self, name: str) -> bool:
        """Whether the gradient is right if no other forward ran before."""
        alone = copy.copy(self)
        alone.layer, alone.earlier = copy.deepcopy(self.fresh), None
        alone.rng = np.random.default_rng([self.seed, 1])
        alone.parameters = alone.layer.named_parameters()
        alone._flat = pack(alone.layer, np.float64, self.xp)
        alone._plain_arrays = rules.plain_arrays(alone.layer)
        alone._differentiate()
        return alone._compare(name, 2).passed

    def elementwise(self, name: str, largest: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Return both gradients; the numerical one is NaN after its first `largest` entries."""
        explicit = to_host(self.gradients[name]).copy()
        along = functools.partial(self.numerical, name)
        return explicit, self.by_entry(along, explicit.shape, largest)

    def by_entry(self, slope_along: Callable, shape: tuple[int, ...], largest: int = 400):
        """Return the slope along each single entry; NaN after the first `largest` entries."""
        slopes, direction = np.full(shape, np.nan), np.zeros(shape)
        for index in itertools.islice(np.ndindex(shape), largest):
            direction[index] = 1
            slopes[index], _ = slope_along(self.xp.asarray(direction))
            direction[index] = 0
        return slopes

    # Cached, because one search serves all tensors that fail for the same reason.

    @functools.cached_property
    def faulty_layers(self) -> dict[str, str]:
        return faulty_layers(self)

    @functools.cached_property
    def outermost(self) -> dict[str, Layer]:
        return outermost(self.layer)

    @functools.cached_property
    def on_host(self) -> "GradientCheck":
        """The same check with NumPy."""
        inputs = [to_host(x) if dtype_kind(x) else x for x in self.inputs]
        return GradientCheck(copy.deepcopy(self.fresh), inputs, self.seed)

    @functools.cached_property
    def wrong_operations(self) -> WrongOperations:
        return WrongOperations(self)

    @functools.cached_property
    def faulty_connection(self) -> str | None:
        return faulty_connection(self)


def check(
    layer: Layer,
    inputs: Iterable,
    seed: int = 0,
    directions: int = 2,
    xp=np,
    scales: Iterable[float] = SCALES,
) -> list[Row]:
    """Return one Row for each floating-point input of `layer.forward(*inputs)` and each parameter.

    A gradient that is right for `inputs` is also checked for the inputs times each of `scales`.
    """
    original = GradientCheck(layer, inputs, seed, xp)
    rows = {name: original.row(name, directions) for name in original.tensors}
    for scale, scaled in original.at_scales(scales):
        for name in scaled.tensors:
            if rows[name].passed and not (row := scaled.row_at_scale(name, scale)).passed:
                rows[name] = row
    return list(rows.values())
