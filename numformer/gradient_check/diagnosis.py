"""Where a gradient goes wrong, and why: the report of a failed check.

`diagnose` asks CLUES in turn. Is a smaller part wrong by itself, or does a gradient go wrong on its
way between two parts? Is it the gradient of a changed forward: a use left out, no dropout, gamma 1?
Else `numformer.symptoms` looks for a pattern in the numbers.
"""

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from numformer.backend import kind, to_host
from numformer.errors import InputError
from numformer.gradient_check.symptoms import PATTERNS, SIMPLE, Evidence, explain
from numformer.layer import Layer, mode

UNKNOWN = (
    "No known pattern. `--elementwise CASE/TENSOR` shows the entries. Next, make each step of "
    "forward a Layer with a backward of its own, and gradient-check those parts alone."
)


@contextlib.contextmanager
def watched(layer: Layer, around: Callable, method: str = "forward"):
    """Within the block a part's `method(*inputs)` is `around(path, method, *inputs)`."""

    def wrapped(path, original):
        return lambda *inputs, **named: around(path, functools.partial(original, **named), *inputs)

    parts = {path: part for path, part in layer.named_layers().items() if path}
    for path, part in parts.items():
        setattr(part, method, wrapped(path, getattr(part, method)))
    try:
        yield
    finally:
        for part in parts.values():
            delattr(part, method)


def by_entry(slope_along: Callable, shape: tuple[int, ...], xp, largest: int = 400) -> np.ndarray:
    """`slope_along(direction)` for the first `largest` entries one by one; NaN beyond them."""
    slopes, direction = np.full(shape, np.nan), np.zeros(shape)
    for index in itertools.islice(np.ndindex(shape), largest):
        direction[index] = 1
        slopes[index], _ = slope_along(xp.asarray(direction))
        direction[index] = 0
    return slopes


class Subject:
    """One failed tensor of a GradientCheck: its evidence, and both gradients along directions."""

    def __init__(self, checked, name: str, directions: int = 3):
        self.checked, self.name = checked, name
        self.tensor = checked.tensors[name]
        random = np.random.default_rng(0).standard_normal((directions, *self.tensor.shape))
        self.directions = [u / np.linalg.norm(u) for u in random]

    @functools.cached_property
    def evidence(self) -> Evidence:
        checked, name = self.checked, self.name
        checked.run(keep=True)
        saved = {
            key: to_host(value).copy()
            for part in checked.layer.layers_within()
            for record in part.saved
            for key, value in record.items()
            if kind(value) in ("b", "f")
        }
        checked.layer.clear_saved()
        explicit, numerical = checked.elementwise(name)
        pairs = {
            other: Evidence(*checked.elementwise(other)).measured()
            for other, tensor in checked.tensors.items()
            if other != name and "." not in other and tensor.shape == explicit.shape
        }
        others = {other: pair.numerical for other, pair in pairs.items()}
        sound = frozenset(other for other, pair in pairs.items() if not pair.wrong.any())
        is_table = name in checked.layer.named_parameters()
        ids = next((x for x in checked.inputs if kind(x) == "i" and is_table), None)
        upstream = to_host(checked.upstream)
        factors = known_factors(checked)
        return Evidence(explicit, numerical, saved, upstream, factors, others, sound, ids)

    @functools.cached_property
    def explicit(self) -> np.ndarray:
        gradient = to_host(self.checked.gradients[self.name])
        return np.array([(gradient * u).sum() for u in self.directions])

    @functools.cached_property
    def numerical(self) -> np.ndarray:
        return self.slopes(self.shifted)

    def shifted(self, shift):
        original = self.tensor.copy()
        self.tensor[...] += shift
        try:
            return self.checked.run()
        finally:
            self.tensor[...] = original

    def slopes(self, forward: Callable, weight=1) -> np.ndarray:
        """The slope of the objective of `forward(shift)` along each direction times `weight`."""
        directions = (self.checked.xp.asarray(u * weight) for u in self.directions)
        return np.array([self.checked.slope(forward, u)[0] for u in directions])

    def equal(self, slopes) -> bool:
        size = np.abs([*self.numerical, *self.explicit]).max()
        return bool((np.abs(self.explicit - slopes) < 1e-5 * size).all())


def uses(subject: Subject) -> str | None:
    """A tensor that goes to several parts gets one gradient from each, and they add."""

    def forward(shift, use=None):
        def around(path, forward_of_part, *inputs):
            for index, value in enumerate(inputs):
                if value is subject.tensor:
                    users.append(f"`{path}`")
                    # a copy, or the parts within this one would count as users too
                    mine = value + shift if len(users) - 1 == use else value.copy()
                    inputs = (*inputs[:index], mine, *inputs[index + 1 :])
            return forward_of_part(*inputs)

        users.clear()
        with watched(subject.checked.layer, around):
            return subject.checked.run()

    said = {0: "is missing", 2: "is counted twice", -1: "has the wrong sign"}
    users: list[str] = []
    forward(0)
    if not 1 <= len(users) <= 5:
        return None
    slopes = [subject.slopes(functools.partial(forward, use=use)) for use in range(len(users))]
    slopes.append(subject.numerical - sum(slopes))
    users.append("the skip connection (all else)")
    size = np.abs(subject.numerical).max()
    named = [(u, s) for u, s in zip(users, slopes, strict=True) if (abs(s) > 1e-6 * size).any()]
    for counts in itertools.product((1, *said), repeat=len(named)):
        total = sum(count * slope for count, (_, slope) in zip(counts, named, strict=True))
        if len(named) < 2 or not subject.equal(total):
            continue
        found = [
            f"that of {user} {said[count]}"
            for count, (user, _) in zip(counts, named, strict=True)
            if count != 1
        ]
        where = ", ".join(user for user, _ in named)
        return f"{subject.name} is used by {where}, and their gradients add: {', '.join(found)}."


def without_dropout(subject: Subject) -> str | None:
    def forward(shift):
        with mode(training=False):
            return subject.shifted(shift)

    if drop_rates(subject.checked) and subject.equal(subject.slopes(forward)):
        return (
            "exactly the gradient without dropout: backward uses the values before dropout "
            "(`weights` for `dropped`), or leaves out its mask `keep`."
        )


def with_values(subject: Subject, parameter, values) -> Callable:
    """The forward along a shift of the subject, with other values in a parameter."""

    def forward(shift):
        original = parameter.data.copy()
        parameter.data[...] = values
        try:
            return subject.shifted(shift)
        finally:
            parameter.data[...] = original

    return forward


def parameters_transposed(subject: Subject) -> str | None:
    """dy W for dy W^T, where W is square."""
    for name, parameter in subject.checked.layer.named_parameters().items():
        if name == subject.name or parameter.data.ndim != 2 or len({*parameter.shape}) != 1:
            continue
        if subject.equal(subject.slopes(with_values(subject, parameter, parameter.data.T.copy()))):
            return f"exactly the gradient for `{name}` transposed: where forward has W, use W.T."


def parameters_as_ones(subject: Subject) -> str | None:
    """A gain that backward forgets, or multiplies with in the wrong order."""
    for name, parameter in subject.checked.layer.named_parameters().items():
        values = parameter.data.copy()
        if name == subject.name or subject.tensor.shape[-1:] != values.shape:
            continue
        forward = with_values(subject, parameter, 1)
        if subject.equal(subject.slopes(forward)):
            return f"exactly the gradient for {name} = 1: backward leaves out `{name}`."
        if subject.equal(subject.slopes(forward, to_host(values))):
            return (
                f"exactly `{name}` times the gradient for {name} = 1: multiply dy by `{name}` "
                "first, before sums are taken."
            )


def faulty_parts(checked) -> dict[str, str]:
    """The reports on the smallest parts that are wrong by themselves, with their real inputs.

    By the tensor that each report explains. A wrong gradient of a parameter explains itself alone;
    a wrong gradient of an input goes on to whatever lies behind it, and stands under "".
    """
    inputs_of, found = {}, {}
    names = {parameter: name for name, parameter in checked.layer.named_parameters().items()}

    def around(path, forward, *inputs):
        output = forward(*inputs)
        if kind(output):  # a part that returns several arrays cannot be checked alone
            inputs_of[path] = inputs
        return output

    with watched(checked.layer, around):
        checked.run()
    for path, part in reversed(checked.layer.named_layers().items()):
        if not path or path not in inputs_of:
            continue
        place = f"`{path}` ({type(part).__name__})"
        tensors = {name: names[p] for name, p in part.named_parameters().items()}
        try:
            alone = type(checked)(copy.deepcopy(part), inputs_of[path], checked.seed, checked.xp)
            for name in alone.tensors:
                tensor = tensors.get(name, "")
                if tensor not in found and not (row := alone.row(name)).passed:
                    found[tensor] = f"{place} is wrong by itself, in {name}: {row.meaning}"
        except InputError as problem:
            found[""] = f"{place} is wrong by itself: {problem}"
        except Exception:  # it does not run alone, so it is not known to be wrong
            continue
        if "" in found:
            break
    return found


def faulty_wire(checked) -> str | None:
    """The report on the first gradient that reaches a part wrong, in the order of backward.

    Parts that are right by themselves hand on a wrong gradient only where they get one.
    """
    layer, outputs, received = checked.layer, {}, {}
    parts = layer.named_layers().keys() - {""}
    outermost = {p for p in parts if not any(p.startswith(f"{other}.") for other in parts)}

    def forward_of(shift=0, wire=None):
        def around(path, forward, *inputs):
            output = forward(*inputs)
            if path in outermost:
                made[path] = made.get(path, 0) + 1
                key = path, made[path]
                outputs.setdefault(key, output)
                return output + shift if key == wire else output
            return output

        made: dict[str, int] = {}
        with watched(layer, around):
            return checked.run()

    def backward(path, backward_of_part, dy):
        received.setdefault(path, []).insert(0, to_host(dy).copy())
        return backward_of_part(dy)

    forward_of()
    checked.run(keep=True)
    with watched(layer, backward, "backward"):
        layer.backward(checked.upstream.copy())
    rng = np.random.default_rng(0)
    for wire, output in reversed(outputs.items()):
        path, number = wire
        gradients = received.get(path, [])
        if len(gradients) < number or gradients[number - 1].shape != output.shape:
            continue
        explicit, forward = gradients[number - 1], functools.partial(forward_of, wire=wire)
        direction = rng.standard_normal(output.shape)
        slope, rounding = checked.slope(forward, checked.xp.asarray(direction))
        along = float((explicit * direction).sum())
        if abs(slope - along) <= 1e-6 * max(abs(slope), abs(along)) + 1e3 * rounding:
            continue
        numerical = {
            other: by_entry(
                functools.partial(checked.slope, functools.partial(forward_of, wire=other)),
                output.shape,
                checked.xp,
            )
            for other, its_output in outputs.items()
            if its_output.shape == output.shape
        }
        case = Evidence(
            explicit,
            numerical.pop(wire),
            factors=known_factors(checked),
            others={path: gradient for (path, _), gradient in numerical.items()},
        )
        message = explain(case) or UNKNOWN
        return f"the gradient that reaches `{path}` is wrong already: {message}"


def own_part(subject: Subject) -> str | None:
    """The report on the part whose own mistake this is, else on one that the gradient passed."""
    found = subject.checked.faulty_parts
    return found.get(subject.name) or found.get("")


def drop_rates(checked) -> set[float]:
    return {p for part in checked.layer.layers_within() if (p := getattr(part, "p_drop", 0))}


def known_factors(checked) -> dict[str, float]:
    """The factors that are often forgotten or repeated: what is said of each, and its value."""
    factors = {
        "the sign is wrong": -1.0,
        "counted twice": 2.0,
        "counted once where it is used twice, or a factor 2 is missing": 0.5,
    }
    shapes = [x.shape for x in (checked.output, *checked.tensors.values()) if x.ndim]
    batch, positions = (shapes[0][0], math.prod(shapes[0][:-1])) if shapes else (1, 1)
    factors |= {
        f"divided by the batch size ({batch})": 1 / batch,
        f"the division by the batch size ({batch}) is missing": batch,
        f"divided by the number of positions ({positions})": 1 / positions,
        f"the division by the number of positions ({positions}) is missing": positions,
    }
    for ids in (x for x in checked.inputs if kind(x) == "i" and x.size):
        real, total = np.count_nonzero(ids), ids.size
        factors |= {
            f"the division by the number of real ids ({real}) is missing": real,
            f"divided by all ids, padding included ({real} of {total} are real)": real / total,
        }
    for p in drop_rates(checked):
        factors[f"dropout's scale is missing in backward (p = {p})"] = 1 - p
        factors[f"dropout's scale is applied twice (p = {p})"] = 1 / (1 - p)
    sizes = {tensor.shape[-1] for tensor in checked.tensors.values() if tensor.ndim}
    sizes |= {getattr(part, "d_k", 1) for part in checked.layer.layers_within()}
    for d in sorted(sizes):
        missing, twice = f"is missing (d = {d})", f"is applied twice (d = {d})"
        scores, embedding = "1 / sqrt(d_k) of the scores", "sqrt(d_model) of the embedding"
        factors[f"{scores} {missing}, or {embedding} {twice}"] = d**0.5
        factors[f"{embedding} {missing}, or {scores} {twice}"] = d**-0.5 if d else 0
    parameters = checked.layer.named_parameters()
    for name, tensor in checked.tensors.items():
        if name in parameters and tensor.size == 1 and (value := float(tensor.ravel()[0])):
            factors[f"the factor 1 / `{name}` is missing, or `{name}` is one too many"] = value
            factors[f"the factor `{name}` is missing, or 1 / `{name}` is one too many"] = 1 / value
        for axis, size in enumerate(() if name in parameters else tensor.shape):
            if axis and size:
                which = f"{size}, the size of axis {axis} of {name}"
                factors[f"{which}: a mean's 1/{size} is missing"] = size
                factors[f"1/{which}: a sum is divided like a mean"] = 1 / size
    return {cause: float(value) for cause, value in factors.items() if value not in (0, 1)}


def broken_forward(subject: Subject) -> str | None:
    if not np.isfinite(to_host(subject.checked.output)).all():
        return "forward itself gives NaN or infinity: a row with every key masked, or an overflow."


CLUES: list[Callable[[Subject], str | None]] = [
    broken_forward,
    own_part,
    lambda subject: subject.checked.faulty_wire,
    lambda subject: explain(subject.evidence, SIMPLE),
    uses,
    without_dropout,
    parameters_as_ones,
    parameters_transposed,
    lambda subject: explain(subject.evidence, PATTERNS),
]


def diagnose(checked, name: str) -> str:
    """What usually makes the gradient of `name` differ from the numerical one as it does.

    Clues run the layer in ways that it may refuse; then they know nothing. A diagnosis never hides
    the failure that it is to explain.
    """
    subject = Subject(checked, name)
    for clue in CLUES:
        with contextlib.suppress(Exception):
            if message := clue(subject):
                return message
    with contextlib.suppress(Exception):
        case = subject.evidence.measured()
        count = f"{np.count_nonzero(case.wrong)} of {case.wrong.size} entries are wrong"
        return UNKNOWN.replace(".", f". {count}.", 1)
    return UNKNOWN
