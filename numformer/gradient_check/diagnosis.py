"""Where a gradient goes wrong, and why: the report of a failed check.

`diagnose` asks CLUES in turn. Is a layer within this one wrong by itself, or does a gradient go
wrong on its way between two of them? Is it the gradient of a changed forward: a use left out, no
dropout, gamma 1? Do the numbers show a pattern? Else one operation's derivative may be wrong.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer.backend import dtype_kind, to_host
from numformer.gradient_check.factors import drop_rates, known_factors
from numformer.gradient_check.operations import wrong_operation
from numformer.gradient_check.sublayers import inner_layers
from numformer.gradient_check.symptoms import PATTERNS, SIMPLE, UNKNOWN, Evidence, explain
from numformer.interception import intercepted
from numformer.layer import mode


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
            for layer in checked.layer.layers_within()
            for record in layer.saved
            for key, value in record.items()
            if dtype_kind(value) in ("b", "f")
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
        ids = next((x for x in checked.inputs if dtype_kind(x) == "i" and is_table), None)
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

    def slopes(self, forward: Callable, weight: Any = 1, first: int | None = None) -> np.ndarray:
        """The slope of <upstream, `forward(shift)`> along the `first` directions times `weight`."""
        directions = (self.checked.xp.asarray(u * weight) for u in self.directions[:first])
        return np.array([self.checked.slope(forward, u)[0] for u in directions])

    def equal(self, slopes) -> bool:
        """Whether the explicit gradient has these slopes along the first directions."""
        size = np.abs([*self.numerical, *self.explicit]).max()
        return bool((np.abs(self.explicit[: len(slopes)] - slopes) < 1e-5 * size).all())


def uses(subject: Subject) -> str | None:
    """A tensor that goes to several layers gets one gradient from each, and they add."""

    def forward(shift, use=None):
        def around(path, forward_of_layer, *inputs):
            for index, value in enumerate(inputs):
                if value is subject.tensor:
                    users.append(f"`{path}`")
                    # a copy, or the layers within this one would count as users too
                    mine = value + shift if len(users) - 1 == use else value.copy()
                    inputs = (*inputs[:index], mine, *inputs[index + 1 :])
            return forward_of_layer(*inputs)

        users.clear()
        with intercepted(inner_layers(subject.checked.layer), "forward", around):
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
        wrong = [
            f"that of {user} {said[count]}"
            for count, (user, _) in zip(counts, named, strict=True)
            if count != 1
        ]
        where = ", ".join(user for user, _ in named)
        return f"{subject.name} is used by {where}, and their gradients add: {', '.join(wrong)}."
    return None


def without_dropout(subject: Subject) -> str | None:
    def forward(shift):
        with mode(training=False):
            return subject.shifted(shift)

    if drop_rates(subject.checked) and subject.equal(subject.slopes(forward)):
        return (
            "exactly the gradient without dropout: backward uses the values before dropout "
            "(`weights` for `dropped`), or leaves out its mask `keep`."
        )
    return None


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
    return None


def faulty_layer(subject: Subject) -> str | None:
    """The report on the layer whose own mistake this is, else on one that the gradient passed."""
    reports = subject.checked.faulty_layers
    return reports.get(subject.name) or reports.get("")


def left_behind(subject: Subject) -> str | None:
    """What is kept from the first forward and backward of all is right there, and wrong after."""
    if subject.checked.was_right_earlier(subject.name):
        place, by_itself, _ = (faulty_layer(subject) or "").partition(" is wrong by itself")
        return (f"{place}: " if by_itself else "") + (
            "right in the first forward and backward, wrong in the next, with other weights and "
            "another batch. Keep no copy of a weight and no size of a batch in an attribute: read "
            "parameter.data each time, and save() what belongs to one forward."
        )
    return None


def broken_forward(subject: Subject) -> str | None:
    if not np.isfinite(to_host(subject.checked.output)).all():
        return "forward itself gives NaN or infinity: a row with every key masked, or an overflow."
    return None


CLUES: list[Callable[[Subject], str | None]] = [
    broken_forward,
    left_behind,
    faulty_layer,
    lambda subject: subject.checked.faulty_wire,
    lambda subject: explain(subject.evidence, SIMPLE),
    uses,
    without_dropout,
    parameters_as_ones,
    lambda subject: explain(subject.evidence, PATTERNS),
    wrong_operation,
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
        wrong = subject.evidence.measured().wrong
        count = f"{np.count_nonzero(wrong)} of {wrong.size} entries are wrong"
        return UNKNOWN.replace(".", f". {count}.", 1)
    return UNKNOWN
