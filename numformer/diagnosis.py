"""What usually makes a gradient wrong in the way that this one is: the report of a failed check.

`diagnose` first asks where: is a smaller part wrong by itself, or does the gradient go wrong on its
way between two parts? Then it asks what: SHARES are gradients of a changed forward that the wrong
one may equal (a use left out, no dropout, gamma 1), SYMPTOMS are patterns in explicit - numerical.
Both go from the most particular to the least, and the first that fits speaks.
"""

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from numformer.backend import kind, to_host
from numformer.errors import InputError
from numformer.layer import Layer, mode

UNKNOWN = (
    "no constant ratio and no pattern known here: a missing term of a sum, a stale saved value, a "
    "wrong axis, or an argument that was overwritten. Split the layer into smaller ones, each with "
    "a backward of its own, and check those."
)


@dataclass(frozen=True)
class Evidence:
    """Two gradients entry by entry, and what may explain their difference.

    An entry of `numerical` is NaN where it was not measured.
    """

    explicit: np.ndarray
    numerical: np.ndarray
    saved: dict[str, np.ndarray] = field(default_factory=dict)  # what forward saved, by name
    upstream: np.ndarray | None = None
    factors: dict[str, float] = field(default_factory=dict)  # cause -> the ratio that it gives
    others: dict[str, np.ndarray] = field(default_factory=dict)  # the gradients of other tensors
    ids: np.ndarray | None = None

    def measured(self) -> "Evidence":
        """Only what was measured: the rows up to the first NaN, or the entries where no row is."""
        known = ~np.isnan(self.numerical)
        if known.all() and self.numerical.ndim:
            return self
        shape, size = self.numerical.shape, self.numerical.shape[-1] if self.numerical.ndim else 1
        count = int(known.ravel().argmin()) // size if not known.all() and size else 0

        def cut(array):
            if array is None or array.shape != shape:
                return array
            return array.reshape(-1, size)[:count] if count else array[known]

        parts = {name: cut(value) for name, value in self.saved.items()}
        explicit, numerical, upstream = map(cut, (self.explicit, self.numerical, self.upstream))
        return Evidence(explicit, numerical, parts, upstream, self.factors)

    @property
    def difference(self) -> np.ndarray:
        return self.explicit - self.numerical

    @property
    def scale(self) -> float:
        return float(np.abs(self.numerical).max(initial=0))

    def same(self, a, b):
        """Where a and b are equal but for the error of numerical gradients."""
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * self.scale)

    def alike(self, last: int | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """The saved arrays of the gradient's shape, its last axis replaced by `last`."""
        shape = (*self.explicit.shape[:-1], self.explicit.shape[-1] if last is None else last)
        return ((name, value) for name, value in self.saved.items() if value.shape == shape)


# Symptoms. Each takes Evidence of an array with at least one axis and entry, and gives a message
# or None.


def no_number(case: Evidence) -> str | None:
    if not np.isfinite(case.explicit).all():
        return "NaN or infinity in backward: a division by 0, as in a row with every key masked."


def agreement(case: Evidence) -> str | None:
    if case.same(case.explicit, case.numerical).all():
        return "the entries that were measured agree: look at those behind them."


def zeros(case: Evidence) -> str | None:
    if case.scale < 1e-9:
        return "the true gradient is zero: forward does not depend on this tensor as used here."
    if (np.abs(case.explicit) < 1e-9 * case.scale).all():
        return "the gradient is zero: never accumulated (`grad +=`), or not returned."


def constant_ratio(case: Evidence) -> str | None:
    """A ratio that several factors explain names them all."""
    e, n = case.explicit.ravel(), case.numerical.ravel()
    ratio = float(e @ n / (n @ n))
    if not case.same(e, ratio * n).all():
        return None
    # dropout rounds p to a multiple of 2^-16
    causes = [cause for cause, value in case.factors.items() if abs(ratio / value - 1) < 1e-4]
    return f"constant ratio {ratio:.6g}: " + (
        ", or ".join(causes) + "." if causes else "a constant factor is missing, or one too many."
    )


def of_another_tensor(case: Evidence) -> str | None:
    for name, gradient in case.others.items():
        if gradient.shape == case.explicit.shape and case.same(case.explicit, gradient).all():
            return f"this is the gradient of `{name}`: two results of backward are swapped."


def repeated_ids(case: Evidence) -> str | None:
    """`grad[ids] += dx` writes each row once, whatever the number of its ids."""
    e, n = case.explicit, case.numerical
    if case.ids is None or not case.ids.size or e.ndim != 2:
        return None
    if not 0 <= case.ids.min() <= case.ids.max() < len(e):
        return None
    wrong = ~case.same(e, n).all(axis=-1)
    if np.bincount(case.ids.ravel(), minlength=len(e))[wrong].min() > 1:
        return (
            "wrong only in rows whose ids occur more than once: grad[ids] += dx keeps the last of "
            "them; use scatter_add."
        )


def moved(case: Evidence) -> str | None:
    """The same numbers at other places."""
    e, n = case.explicit, case.numerical
    for axes in itertools.permutations(range(n.ndim)) if n.ndim < 5 else ():
        turned = n.transpose(axes)
        if turned.shape == e.shape and case.same(e, turned).all():
            return f"the gradient is transposed: its axes stand in the order {axes}."
    if e.size > 1 and case.same(np.sort(e, axis=None), np.sort(n, axis=None)).all():
        return (
            "the right numbers at wrong places: heads split or merged by reshape without "
            "swapaxes(1, 2), or positions shifted."
        )


def factor_of_each_row(case: Evidence) -> str | None:
    """A number of each position, such as LayerNorm's rstd, is forgotten, repeated or another."""
    e, n = case.explicit, case.numerical
    if n.ndim < 2 or n.shape[-1] < 2:
        return None
    factors = _dot(e, n) / np.maximum(_dot(n, n), 1e-300)
    if not case.same(e, factors * n).all():
        return None
    live = _dot(n, n) > 0
    for name, value in case.alike(last=1):
        if np.allclose((factors * value)[live], 1, rtol=1e-5):
            return f"each row is off by a factor of its own, 1 / `{name}`: `{name}` is missing."
        if np.allclose(factors[live], value[live], rtol=1e-5):
            return f"each row is off by a factor of its own, `{name}`: it is applied twice."
    return (
        "each row is off by a factor of its own: a number of each position is computed in another "
        "way than in forward, such as rstd = 1 / sqrt(variance + epsilon) with epsilon outside the "
        "root."
    )


def masks(case: Evidence) -> str | None:
    """Only some entries are wrong, and where they are, one of the two gradients is 0."""
    e, n = case.explicit, case.numerical
    wrong = ~case.same(e, n)
    e_zero, n_zero = (np.abs(gradient) < 1e-8 * case.scale for gradient in (e, n))
    fitting = (name for name, v in case.alike() if ((v == 0) == n_zero).all() and n_zero.any())
    mask = next((f"`{name}`" for name in fitting), "mask")
    if not (e_zero | n_zero)[wrong].all():
        if (wrong & n_zero).any():
            return (
                "gradients where there should be none, and the others are off too: masked "
                "positions take part in backward. Use forward's weights, which are 0 there."
            )
        return None
    if n_zero[wrong].all():
        return f"wrong only where it should be 0: forward's {mask} is not applied in backward."
    if e_zero[wrong].all():
        return (
            "some entries are zero that should not be: written with `=` or in part of the rows "
            "only, or masked once too often."
        )
    if case.upstream is not None and case.upstream.shape == e.shape:
        if (e_zero == (case.upstream <= 0)).all():
            return f"gated on the upstream gradient: let it pass by forward's {mask} instead."
    return f"some entries are zero instead of others: not the {mask} that forward applied."


def along_saved(case: Evidence) -> str | None:
    """The derivatives of softmax and of LayerNorm subtract from each row a multiple of a vector.

    The difference shows which one is missing.
    """
    difference = case.difference
    if difference.ndim < 2 or difference.shape[-1] < 3 or difference.size == difference.shape[-1]:
        return None

    def multiple(rows, of):
        return case.same(rows, of * _dot(rows, of) / np.maximum(_dot(of, of), 1e-300)).all()

    ones = np.ones_like(difference)
    if multiple(difference, ones):
        return "off by a constant in each row: a mean that is not subtracted, as mean(dx_hat)."
    for name, value in case.alike():
        if name == "weights" and multiple(difference, value):
            return (
                "off by a multiple of `weights` in each row: softmax's sum is missing or no sum "
                "over each row, dscores = weights * (dweights - sum(dweights * weights))."
            )
        if multiple(difference, value):
            return (
                f"off by a multiple of `{name}` in each row: a term along it is missing, as "
                "LayerNorm's x_hat * mean(dx_hat * x_hat)."
            )
    for name, value in case.alike():
        centred = (array - array.mean(axis=-1, keepdims=True) for array in (difference, value))
        if multiple(*centred):
            return (
                f"off by a constant and a multiple of `{name}` in each row: mean and variance are "
                "treated as constants, but they depend on x too."
            )


def sum_over_another_axis(case: Evidence) -> str | None:
    """What a softmax's backward subtracted from the upstream gradient shows over what it summed."""
    e, n, dy = case.explicit, case.numerical, case.upstream
    if dy is None or dy.shape != e.shape:
        return None
    for name, weights in case.alike():
        live = weights != 0
        sums, true = (dy - gradient / np.where(live, weights, 1) for gradient in (e, n))
        if not _constant(true, live, -1):
            continue
        for axis in range(e.ndim - 1):
            if e.shape[axis] > 1 and _constant(sums, live, axis):
                return f"the sum of dy * `{name}` runs over axis {axis} instead of the last."


def upstream_itself(case: Evidence) -> str | None:
    dy = case.upstream
    if dy is None or dy.shape != case.explicit.shape:
        return None
    if case.same(case.difference, -dy).all():
        return "exactly the upstream gradient is missing: the skip connection of x + f(x)."
    if case.same(case.difference, dy).all():
        return "exactly the upstream gradient is too much: x is added once, so dy is too."


SYMPTOMS: list[Callable[[Evidence], str | None]] = [
    no_number,
    agreement,
    zeros,
    constant_ratio,
    of_another_tensor,
    repeated_ids,
    moved,
    upstream_itself,
    factor_of_each_row,
    along_saved,
    sum_over_another_axis,
    masks,
]


def explain(case: Evidence, symptoms=SYMPTOMS) -> str | None:
    """The message of the first symptom that fits, or None."""
    if not np.isfinite(case.explicit).all():
        return no_number(case)
    case = case.measured()
    if not case.explicit.size:
        return None
    with np.errstate(all="ignore"):
        return next((message for symptom in symptoms if (message := symptom(case))), None)


def _dot(a, b):
    return (a * b).sum(axis=-1, keepdims=True)


def _constant(values, live, axis) -> bool:
    """Whether the live ones among `values` are equal along `axis`."""
    highest = np.where(live, values, -np.inf).max(axis=axis)
    lowest = np.where(live, values, np.inf).min(axis=axis)
    return bool((highest - lowest <= 1e-5 * np.abs(values[live]).max(initial=0)).all())


# Gradients of a changed forward.


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


def first(clues: list[Callable], subject) -> str | None:
    """The message of the first clue that has one.

    Clues run a layer in ways that it may refuse; then they know nothing. A diagnosis never hides
    the failure that it is to explain.
    """
    for clue in clues:
        with contextlib.suppress(Exception):
            if message := clue(subject):
                return message


def by_entry(slope_along: Callable, shape: tuple[int, ...], xp, largest: int = 400) -> np.ndarray:
    """`slope_along(direction)` for the first `largest` entries one by one; NaN beyond them."""
    slopes, direction = np.full(shape, np.nan), np.zeros(shape)
    for index in itertools.islice(np.ndindex(shape), largest):
        direction[index] = 1
        slopes[index], _ = slope_along(xp.asarray(direction))
        direction[index] = 0
    return slopes


class Shares:
    """Along some directions: the explicit gradient of one tensor, and those of changed forwards."""

    def __init__(self, checked, name: str, directions: int = 3):
        self.checked, self.name = checked, name
        self.tensor, self.xp = checked.tensors[name], checked.xp
        random = np.random.default_rng(0).standard_normal((directions, *self.tensor.shape))
        self.directions = [u / np.linalg.norm(u) for u in random]
        gradient = to_host(checked.gradients[name])
        self.explicit = np.array([(gradient * u).sum() for u in self.directions])
        self.numerical = self.slopes(self.shifted)

    def shifted(self, shift):
        original = self.tensor.copy()
        self.tensor[...] += shift
        try:
            return self.checked.run()
        finally:
            self.tensor[...] = original

    def slopes(self, forward: Callable, weight=1) -> np.ndarray:
        """The slope of the objective of `forward(shift)` along each direction times `weight`."""
        directions = (self.xp.asarray(u * weight) for u in self.directions)
        return np.array([self.checked.slope(forward, u)[0] for u in directions])

    def equal(self, slopes) -> bool:
        size = np.abs([*self.numerical, *self.explicit]).max()
        return bool((np.abs(self.explicit - slopes) < 1e-5 * size).all())


def uses(shares: Shares) -> str | None:
    """A tensor that goes to several parts gets one gradient from each, and they add."""

    def forward(shift, use=None):
        def around(path, forward_of_part, *inputs):
            for index, value in enumerate(inputs):
                if value is shares.tensor:
                    users.append(f"`{path}`")
                    # a copy, or the parts within this one would count as users too
                    mine = value + shift if len(users) - 1 == use else value.copy()
                    inputs = (*inputs[:index], mine, *inputs[index + 1 :])
            return forward_of_part(*inputs)

        users.clear()
        with watched(shares.checked.layer, around):
            return shares.checked.run()

    users: list[str] = []
    forward(0)
    if not 1 <= len(users) <= 5:
        return None
    slopes = [shares.slopes(functools.partial(forward, use=use)) for use in range(len(users))]
    slopes.append(shares.numerical - sum(slopes))
    users.append("the skip connection (all else)")
    size = np.abs(shares.numerical).max()
    named = [(u, s) for u, s in zip(users, slopes, strict=True) if (abs(s) > 1e-6 * size).any()]
    for counts in itertools.product((1, 0, 2), repeat=len(named)):
        total = sum(count * slope for count, (_, slope) in zip(counts, named, strict=True))
        if len(named) < 2 or not shares.equal(total):
            continue
        found = [
            f"that of {user} {'is counted twice' if count else 'is missing'}"
            for count, (user, _) in zip(counts, named, strict=True)
            if count != 1
        ]
        where = ", ".join(user for user, _ in named)
        return f"{shares.name} is used by {where}, and their gradients add: {', '.join(found)}."


def dropout(shares: Shares) -> str | None:
    def forward(shift):
        with mode(training=False):
            return shares.shifted(shift)

    if drop_rates(shares.checked) and shares.equal(shares.slopes(forward)):
        return (
            "exactly the gradient without dropout: backward uses the values before dropout "
            "(`weights` for `dropped`), or leaves out its mask `keep`."
        )


def parameters_as_ones(shares: Shares) -> str | None:
    """A gain that backward forgets, or multiplies with in the wrong order."""
    for name, parameter in shares.checked.layer.named_parameters().items():
        values = parameter.data.copy()
        if name == shares.name or shares.tensor.shape[-1:] != values.shape:
            continue

        def forward(shift, parameter=parameter, values=values):
            parameter.data[...] = 1
            try:
                return shares.shifted(shift)
            finally:
                parameter.data[...] = values

        if shares.equal(shares.slopes(forward)):
            return f"exactly the gradient for {name} = 1: backward leaves out `{name}`."
        if shares.equal(shares.slopes(forward, to_host(values))):
            return (
                f"exactly `{name}` times the gradient for {name} = 1: multiply dy by `{name}` "
                "first, before sums are taken."
            )


SHARES: list[Callable[[Shares], str | None]] = [uses, dropout, parameters_as_ones]


# Where.


def faulty_part(checked) -> str | None:
    """The report on the smallest part that is wrong by itself, with the inputs it really gets."""
    inputs_of = {}

    def around(path, forward, *inputs):
        inputs_of[path] = inputs
        return forward(*inputs)

    with watched(checked.layer, around):
        checked.run()
    for path, part in reversed(checked.layer.named_layers().items()):
        if not path or path not in inputs_of:
            continue
        place = f"`{path}` ({type(part).__name__})"
        try:
            alone = type(checked)(copy.deepcopy(part), inputs_of[path], checked.seed, checked.xp)
            rows = [alone.row(name) for name in alone.tensors]
        except InputError as problem:
            return f"{place} is wrong by itself: {problem}"
        except Exception:  # it does not run alone, so it is not known to be wrong
            continue
        for row in rows:
            if not row.passed:
                return f"{place} is wrong by itself, in {row.name}: {row.meaning}"


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
        along = functools.partial(checked.slope, forward)
        numerical = by_entry(along, output.shape, checked.xp)
        message = explain(Evidence(explicit, numerical, factors=known_factors(checked))) or UNKNOWN
        return f"the gradient that reaches `{path}` is wrong already: {message}"


def elsewhere(checked) -> str | None:
    """What is wrong in a part, or on the way to one: it makes all wrong that comes after it."""
    return first([faulty_part, faulty_wire], checked)


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
        real = np.count_nonzero(ids)
        factors |= {
            f"the division by the number of real ids ({real}) is missing": real,
            f"divided by all ids, padding included ({real} of {ids.size} are real)": real
            / ids.size,
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
    return {cause: float(value) for cause, value in factors.items() if value not in (0, 1)}


def evidence(checked, name: str) -> Evidence:
    """Both gradients of `name` by entry, with what may explain their difference."""
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
    others = {
        other: checked.elementwise(other)[1]
        for other, tensor in checked.tensors.items()
        if other != name and "." not in other and tensor.shape == explicit.shape
    }
    ids = next((x for x in checked.inputs if kind(x) == "i"), None)
    return Evidence(
        explicit, numerical, saved, to_host(checked.upstream), known_factors(checked), others, ids
    )


def diagnose(checked, name: str) -> str:
    """What usually makes the gradient of `name` differ from the numerical one as it does."""
    if not np.isfinite(to_host(checked.output)).all():
        return "forward itself gives NaN or infinity: a row with every key masked, or an overflow."
    if elsewhere := checked.fault_elsewhere:
        return elsewhere
    case = evidence(checked, name)
    if message := explain(case, SYMPTOMS[:4]):
        return message
    return first(SHARES, Shares(checked, name)) or explain(case, SYMPTOMS[4:]) or UNKNOWN
