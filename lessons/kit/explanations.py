"""Words for what is wrong with a reader's function where no known mistake explains it."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes in a check: different primes, so that nothing wrong fits by chance.

    No two different products or quotients of them, or of their roots, are equal.
    """

    B: int = 3
    H: int = 2
    T: int = 5
    S: int = 7
    K: int = 11
    K_v: int = 13
    D: int = 17


CALLED = {
    "B": "the number of sequences",
    "H": "the number of heads",
    "T": "the number of queries",
    "S": "the number of keys",
    "K": "d_k",
    "K_v": "d_v",
    "D": "d_model",
}
# With equal sizes every product can be formed, so that its numbers can be compared.
EQUAL = Sizes(3, 3, 3, 3, 3, 3, 3)

SMALLER = "Take an example small enough to do by hand, and compare line by line."


def listed(words: Iterable[str], last: str = "and") -> str:
    *some, end = words
    return f"{', '.join(some)} {last} {end}" if some else end


def symptoms(given: dict, right: dict, wrong: list[str], called: Mapping[int, str]) -> list[str]:
    """How wrong results differ from right ones, in numbers, if no known mistake explains it."""
    words, patterns = [], {}
    for name in wrong:
        array, true = given[name], right[name]
        odd = np.argwhere(~np.isfinite(array))
        if len(odd):
            words.append(
                f"{name}: it holds NaN or infinity, first at {tuple(map(int, odd[0]))}. Look for a "
                "division by a number that can be 0, or an exponential that is too large."
            )
            continue
        difference = abs(array - true)
        count = int((difference > 1e-6 * abs(true).max()).sum())
        if not count:
            words.append(
                f"{name}: only its first digits are right. Something is rounded on the way, for "
                "example to float32."
            )
            continue
        worst = tuple(map(int, np.unravel_index(difference.argmax(), difference.shape)))
        pair = f"{array[worst] + 0:.6g} and should be {true[worst] + 0:.6g}."
        if worst:  # not where the result is one number
            pair = f"{count} of {array.size} entries are wrong. The worst, at {worst}, is {pair}"
        words.append(f"{name}: {pair}")
        patterns.setdefault(_pattern(array, true, called), []).append(name)
    for pattern, names in patterns.items():
        words.append(f"{listed(names)}: {pattern}" if len(wrong) > 1 else pattern)
    return words


def _pattern(array: np.ndarray, true: np.ndarray, called: Mapping[int, str]) -> str:
    """What the numbers show even without knowing the exercise, and how to go on."""

    def same(a, b):
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * abs(true).max())

    ratio = float((array * true).sum() / (true * true).sum())
    if not array.any():
        return "Every entry is 0: what you computed does not reach the result."
    if same(array, 0).all():
        return "Apart from rounding, every entry is 0: a sum cancels. Is its axis the right one?"
    if same(array, -true).all():
        return "Every entry has the wrong sign."
    power = _of_size(ratio, called)
    telling = array.size > 1 or power or np.isclose(abs(ratio), (2, 0.5)).any()
    if same(array, ratio * true).all() and telling:
        words = f"Every entry is {ratio:.6g} times what it should be{power}"
        return f"{words}: a factor is missing, or there is one too many."
    right = same(array, true)
    if same(true, 0)[~right].all():
        return f"Only entries that should be 0 are wrong. {SMALLER}"
    for axis in range(array.ndim):
        others = tuple({*range(array.ndim)} - {axis})
        sound = right.all(axis=others) & ~same(true, 0).all(axis=others)
        if sound.any():
            places = ", ".join(map(str, np.flatnonzero(sound)))
            return f"All entries are right where the index of axis {axis} is {places}. {SMALLER}"
    return f"The checker does not recognise this pattern. {SMALLER}"


def _of_size(ratio: float, called: Mapping[int, str]) -> str:
    """A ratio in words, as a power of a size; "" for 2 and 1/2, which rarely are sizes."""
    unsaid = np.isclose(abs(ratio), (2, 0.5), rtol=1e-6)
    forms = {"{}": 1, "1/{}": -1, "sqrt({})": 0.5, "1/sqrt({})": -0.5}
    for size, (form, power) in itertools.product(called, forms.items()):
        if not unsaid.any() and np.isclose(abs(ratio), size**power, rtol=1e-6):
            sign, is_ = "-" * (ratio < 0), f"and {size} is {called[size]} here"
            return f", which is {sign}{form.format(size)}, {is_}"
    return ""


# Properties of right results


@dataclass(frozen=True)
class Case:
    """A call of a reader's function: its arguments by name, and its results."""

    call: Callable[[list], dict[str, np.ndarray]]
    arguments: dict[str, np.ndarray]
    given: dict[str, np.ndarray]

    def changed(self, **arguments: np.ndarray) -> dict[str, np.ndarray]:
        """The results with some arguments replaced."""
        return self.call([*(self.arguments | arguments).values()])


@dataclass(frozen=True)
class Property:
    """Something true of right results: a test whether a result lacks it, and words for that."""

    lacks: Callable[[Case, str], bool]
    words: str


def _not_linear(case: Case, name: str) -> bool:
    upstream, x = next(iter(case.arguments.items()))
    return not np.allclose(case.changed(**{upstream: 3 * x})[name], 3 * case.given[name])


LINEAR = Property(
    _not_linear,
    "Three times the upstream gradient has to give three times the result, but it does not. "
    "Backward multiplies this gradient by slopes that depend on forward alone.",
)


def sums_to_0(result: str, why: str) -> Property:
    """The rows of a result sum to 0."""

    def lacks(case, name):
        x = case.given[name]
        return name == result and not np.allclose(x.sum(axis=-1), 0, atol=1e-9 * abs(x).max())

    return Property(lacks, f"Its rows do not sum to 0. {why}")


def zero_where(result: str, argument: str, why: str) -> Property:
    """A result is 0 where an argument is 0."""

    def lacks(case, name):
        return name == result and case.given[name][case.arguments[argument] == 0].any()

    return Property(lacks, f"It is not 0 everywhere where {argument} is 0. {why}")


def apart(axis: int, thing: str) -> Property:
    """Along an axis, results at one index do not depend on arguments at another."""
    first, others, last = ((*[slice(None)] * axis, at) for at in (0, slice(1, None), -1))

    def lacks(case, name):
        arguments = {parameter: x.copy() for parameter, x in case.arguments.items()}
        for x in arguments.values():
            if x.shape[axis : axis + 1] == case.given[name].shape[axis : axis + 1]:  # not weights
                x[first] = x[last]
        return not np.allclose(case.given[name][others], case.changed(**arguments)[name][others])

    return Property(lacks, f"It mixes: if one {thing} changes, the results of others change.")
