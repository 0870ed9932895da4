"""Words for what is wrong with a reader's function where no known mistake explains it."""

import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numformer.gradient_check.gradients import GradientCheck


@dataclass(frozen=True)
class Sizes:
    """The sizes of a case, different primes, so that nothing wrong can fit by chance.

    No product or quotient of some of them or of their roots equals another.
    """

    B: int = 3
    H: int = 2
    T: int = 5
    S: int = 7
    K: int = 11
    K_v: int = 13


# Where all sizes are equal every product can be formed, so that it can be compared with others.
EQUAL = Sizes(3, 3, 3, 3, 3, 3)

SMALLER = "Take a small example, one sequence with two tokens, and compare line by line."


def a_thing(thing: object) -> str:
    """The type of a thing with its article."""
    name = type(thing).__name__
    return f"a{'n' * (name[0] in 'aeio')} {name}"


def told(problem: BaseException) -> str:
    """What an exception says, in one line."""
    try:
        return " ".join(str(problem).split())[:300]
    except Exception:  # someone's own exception may not even have words
        return ""


def advice(problem: BaseException, function: Callable) -> list[str]:
    """How to go on after an exception, where that can be said."""
    said = told(problem)
    if isinstance(problem, NameError):
        names = ", ".join(inspect.signature(function).parameters)
        return [
            "A name is misspelt, not imported, or has no value at this line yet. The function's "
            f"arguments are {names}."
        ]
    if "axes don't match" in said:
        return ["transpose(...) wants a number for each axis; swapaxes(-1, -2) exchanges two."]
    if "1- or 2-d" in said:
        return ["That function takes one row or one matrix; here the arrays have four axes."]
    if "remapped" in said and "requested shape" not in said:  # by einsum, not by a @ b
        return ["In einsum a letter has one size: set its letters beside the shapes, axis by axis."]
    if not re.search("not be broadcast|core dimension|not aligned", said):
        return []
    advice = []
    if sizes := re.search(r"core dimension 0.*size (\d+) is different from (\d+)", said):
        advice.append(
            f"In `a @ b` the last axis of a, here {sizes[2]}, has to equal the last but one of b, "
            f"here {sizes[1]}."
        )
    elif "newaxis" in said:
        advice.append("In `a @ b` the axes before the last two, batch and heads, have to be equal.")
    advice.append(
        "A gradient has the shape of what it belongs to: say for each axis on that line whether "
        "the result keeps it or adds up over it."
    )
    return advice


def of_other_shape(name: str, shape: tuple, shapes: dict) -> str:
    words = f"Its {name} has the shape {shape}, but a gradient has the shape of what it belongs to"
    words += f", and {name[1:]} is {shapes[name]}."
    if sorted(shape) == sorted(shapes[name]):
        return f"{words} Its axes stand in another order: a transpose is missing, or one too many."
    owners = [other for other, of_other in shapes.items() if of_other == shape]
    if owners:
        words += (
            f" That is the shape of {owners[0]}: are the results in the order {', '.join(shapes)}, "
            "and does its product add up over the right axis?"
        )
    return words


def symptoms(checked: GradientCheck, wrong: list[str], sizes: Sizes) -> list[str]:
    """How gradients differ, in numbers, where no known mistake explains it."""
    words, patterns = [], {}
    for name in wrong:
        explicit = checked.gradients[name[1:]]
        odd = np.argwhere(~np.isfinite(explicit))
        if len(odd):
            words.append(
                f"{name}: it holds NaN or infinity, first at {tuple(map(int, odd[0]))}. Look for a "
                "division by what can be 0, or an exponential that is too large."
            )
            continue
        _, numerical = checked.elementwise(name[1:], explicit.size)
        difference = abs(explicit - numerical)
        count = int((difference > 1e-6 * abs(numerical).max()).sum())
        if not count:
            words.append(
                f"{name}: it is right to a few digits only. Something is rounded on the way, as by "
                "float32."
            )
            continue
        worst = tuple(map(int, np.unravel_index(difference.argmax(), difference.shape)))
        words.append(
            f"{name}: {count} of {explicit.size} entries are wrong. The worst, at {worst}, is "
            f"{explicit[worst] + 0:.6g} and should be {numerical[worst] + 0:.6g}."
        )
        patterns.setdefault(_pattern(explicit, numerical, sizes), []).append(name)
    for pattern, names in patterns.items():
        words.append(f"{' and '.join(names)}: {pattern}" if len(wrong) > 1 else pattern)
    return words


def _pattern(explicit: np.ndarray, numerical: np.ndarray, sizes: Sizes) -> str:
    """What the numbers show without knowledge of the exercise, and how to go on."""

    def same(a, b):
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * abs(numerical).max())

    ratio = float((explicit * numerical).sum() / (numerical * numerical).sum())
    if same(explicit, 0).all():
        return "Every entry is 0: what was computed does not get into the result."
    if same(explicit, -numerical).all():
        return "Every entry has the wrong sign."
    if same(explicit, ratio * numerical).all():
        return (
            f"Every entry is {ratio:.6g} times what it should be{_of_size(ratio, sizes)}: a factor "
            "is missing, or one too many."
        )
    right = same(explicit, numerical)
    if same(numerical, 0)[~right].all():
        return f"Wrong are only entries that should be 0. {SMALLER}"
    for axis in range(explicit.ndim):
        sound = right.all(axis=tuple({*range(explicit.ndim)} - {axis}))
        if sound.any():
            places = ", ".join(map(str, np.flatnonzero(sound)))
            return f"All is right where the index of axis {axis} is {places}. {SMALLER}"
    return f"It is no pattern that the check knows. {SMALLER}"


def _of_size(ratio: float, sizes: Sizes) -> str:
    """A ratio as a power of a size; 2 is too often meant as 2."""
    called = {
        "B": "the number of sequences",
        "H": "the number of heads",
        "T": "the number of queries",
        "S": "the number of keys",
        "K": "d_k",
        "K_v": "d_v",
    }
    unsaid = np.isclose(abs(ratio), (2, 0.5), rtol=1e-6)
    forms = {"{}": 1, "1/{}": -1, "sqrt({})": 0.5, "1/sqrt({})": -0.5}
    for (name, words), (form, power) in itertools.product(called.items(), forms.items()):
        size = getattr(sizes, name)
        if not unsaid.any() and np.isclose(abs(ratio), size**power, rtol=1e-6):
            return f", which is {'-' * (ratio < 0)}{form.format(size)}, and {size} is {words} here"
    return ""
