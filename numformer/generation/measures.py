"""Measures of a test set, and how far chance may have moved them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from numformer.errors import InputError


def edit_distance(a: Sequence, b: Sequence) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein 1966)."""
    distances = list(range(len(b) + 1))
    for i, symbol in enumerate(a, start=1):
        diagonal, distances[0] = distances[0], i
        for j, other in enumerate(b, start=1):
            substituted = diagonal + (symbol != other)
            diagonal = distances[j]
            distances[j] = min(substituted, distances[j] + 1, distances[j - 1] + 1)
    return distances[-1]


def nearest(answer: Sequence, targets: Iterable[Sequence]) -> Sequence:
    """The first of the targets with the smallest edit distance from an answer."""
    return min(targets, key=partial(edit_distance, answer))


@dataclass(frozen=True)
class Measure:
    """A measure of a test set: the `figure` of counts that are added up over its examples.

    counts (N, K) has the counts of N examples, such as (edits, symbols); `figure` turns their sum
    (K,) into a number.
    """

    counts: np.ndarray
    figure: Callable[[np.ndarray], float]

    @classmethod
    def ratio(cls, parts: ArrayLike, wholes: ArrayLike, scale: float = 1) -> "Measure":
        """scale * sum(parts) / sum(wholes), such as errors per 100 words."""
        return cls(np.array([parts, wholes], float).T, partial(_quotient, scale))

    def __repr__(self) -> str:
        return "{:.4f} ({:.4f} to {:.4f})".format(self.value, *self.interval())

    @property
    def value(self) -> float:
        """The measure of all examples."""
        return float(self.figure(self.counts.sum(axis=0)))

    def interval(
        self, confidence: float = 0.95, samples: int = 1000, seed: int = 1
    ) -> tuple[float, float]:
        """The lower and the upper end of a bootstrap interval (Efron 1979; Koehn 2004 for BLEU).

        Each of the `samples` is a test set of N examples, drawn from these N with replacement. In a
        share `confidence` of them the measure lies between the two ends.
        """
        if not 0 < confidence < 1 or samples < 1:
            received = f"confidence {confidence}, samples {samples}"
            rule = "confidence is between 0 and 1, and samples at least 1"
            raise InputError(rule, received, "The defaults are 0.95 and 1000.")
        count, rng = len(self.counts), np.random.default_rng(seed)
        draws = (rng.multinomial(count, np.full(count, 1 / count)) for _ in range(samples))
        values = [self.figure(drawn @ self.counts) for drawn in draws]
        low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
        return float(low), float(high)


def _quotient(scale: float, sums: np.ndarray) -> float:
    """Sums of (part, whole) -> their quotient, scaled; a whole of 0 counts as 1."""
    part, whole = sums
    return scale * part / (whole or 1)
