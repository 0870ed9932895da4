"""Patterns in the difference of two gradients, and the mistake that each pattern indicates.

A symptom is a function of Evidence whose arrays have at least one axis. It returns a message if the
pattern fits, else None. `explain` reports the first that fits, so specific symptoms come first.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

UNKNOWN = (
    "No known pattern. `--elementwise CASE/TENSOR` shows the entries. Next, make each step of "
    "forward a Layer with a backward of its own, and gradient-check those layers alone."
)


@dataclass(frozen=True)
class Evidence:
    """Two gradients entry by entry, and arrays and factors that may explain their difference.

    `numerical` is NaN where it was not measured.
    """

    explicit: np.ndarray
    numerical: np.ndarray
    saved: dict[str, np.ndarray] = field(default_factory=dict)  # what forward saved
    upstream: np.ndarray | None = None
    factors: dict[str, float] = field(default_factory=dict)  # ratios by cause
    others: dict[str, np.ndarray] = field(default_factory=dict)  # the gradients of other tensors
    sound: frozenset[str] = frozenset()  # other tensors whose gradients are right
    ids: np.ndarray | None = None  # the rows that forward looked up, if the tensor is a table

    def measured_part(self) -> "Evidence":
        """Return the Evidence of fully measured rows or, if there are none, of measured entries."""
        measured = ~np.isnan(self.numerical)
        if measured.all() and self.numerical.ndim:
            return self
        shape, size = self.numerical.shape, self.numerical.shape[-1] if self.numerical.ndim else 1
        count = int(measured.ravel().argmin()) // size if not measured.all() and size else 0

        def select(array):
            if array is None or array.shape != shape:
                return array
            return array.reshape(-1, size)[:count] if count else array[measured]

        return replace(
            self,
            explicit=select(self.explicit),
            numerical=select(self.numerical),
            upstream=select(self.upstream),
            saved={name: select(value) for name, value in self.saved.items()},
        )

    @property
    def difference(self) -> np.ndarray:
        return self.explicit - self.numerical

    @property
    def scale(self) -> float:
        return float(np.abs(self.numerical).max(initial=0))

    def close(self, a, b) -> Any:
        """Return where a and b are equal up to the error of numerical gradients."""
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * self.scale)

    @property
    def wrong(self) -> Any:
        return ~self.close(self.explicit, self.numerical)

    def saved_like(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and values of the saved arrays that have the gradient's shape."""
        return ((n, value) for n, value in self.saved.items() if value.shape == self.explicit.shape)


def measured_entries_agree(evidence: Evidence) -> str | None:
    if not evidence.wrong.any():
        return "the entries that were measured agree: look at the entries after them."
    return None


def zeros(evidence: Evidence) -> str | None:
    if evidence.scale < 1e-9:
        return "the true gradient is zero: forward does not depend on this tensor for these inputs."
    if (np.abs(evidence.explicit) < 1e-9 * evidence.scale).all():
        return "the gradient is zero: never accumulated (`grad +=`), or not returned."
    return None


def constant_ratio(evidence: Evidence) -> str | None:
    """Test for a constant ratio; the message names every factor that explains it."""
    e, n = evidence.explicit.ravel(), evidence.numerical.ravel()
    ratio = float(e @ n / (n @ n))
    if not evidence.close(e, ratio * n).all():
        return None
    # Dropout rounds p to a multiple of 2^-16.
    causes = [cause for cause, value in evidence.factors.items() if abs(ratio / value - 1) < 1e-4]
    return f"constant ratio {ratio:.6g}: " + (
        ", or ".join(causes) + "." if causes else "a constant factor is missing or extra."
    )


def another_tensor(evidence: Evidence) -> str | None:
    for name, gradient in evidence.others.items():
        if gradient.shape != evidence.explicit.shape:
            continue
        if evidence.close(evidence.explicit, gradient).all():
            return f"this is the gradient of `{name}`: " + (
                "a factor by which forward multiplies is missing."
                if name in evidence.sound
                else "two results of backward are swapped."
            )
    return None


def repeated_ids(evidence: Evidence) -> str | None:
    """Test for `grad[ids] += dx`, which adds once to each row, however often its id occurs."""
    if evidence.ids is None or evidence.ids.min(initial=0) < 0 or evidence.explicit.ndim != 2:
        return None
    wrong = evidence.wrong.any(axis=-1)
    if np.bincount(evidence.ids.ravel(), minlength=len(wrong))[: len(wrong)][wrong].min() > 1:
        return (
            "wrong only in rows whose ids occur more than once: grad[ids] += dx keeps the last of "
            "them; use scatter_add."
        )
    return None


def moved_entries(evidence: Evidence) -> str | None:
    e, n = evidence.explicit, evidence.numerical
    for axes in itertools.permutations(range(n.ndim)) if n.ndim < 5 else ():
        permuted = n.transpose(axes)
        if permuted.shape == e.shape and evidence.close(e, permuted).all():
            return f"the gradient is transposed: its axes are in the order {axes}."
    if e.size > 1 and evidence.close(np.sort(e, axis=None), np.sort(n, axis=None)).all():
        return (
            "the right numbers in the wrong places: heads split or merged by reshape without "
            "swapaxes(1, 2), or positions shifted."
        )
    return None


def factor_per_row(evidence: Evidence) -> str | None:
    e, n = evidence.explicit, evidence.numerical
    if n.ndim < 2 or n.shape[-1] < 2:
        return None
    if evidence.close(e, n * _row_dot(e, n) / np.maximum(_row_dot(n, n), 1e-300)).all():
        return (
            "each row is off by a factor of its own: backward computes one number per position "
            "differently from forward, such as rstd = 1 / sqrt(variance + epsilon) with epsilon "
            "outside the root."
        )
    return None


def wrong_mask(evidence: Evidence) -> str | None:
    """Test for a wrong mask: wherever an entry is wrong, one of the two gradients is 0."""
    e, n, wrong = evidence.explicit, evidence.numerical, evidence.wrong
    e_zero, n_zero = (np.abs(gradient) < 1e-8 * evidence.scale for gradient in (e, n))
    masks = (f"`{name}`" for name, v in evidence.saved_like() if ((v == 0) == n_zero).all())
    mask = next(masks, "mask") if n_zero.any() else "mask"
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
            "some entries are zero that should not be: written with `=`, not written in all rows, "
            "or masked once too often."
        )
    dy = evidence.upstream
    if dy is not None and dy.shape == e.shape and (e_zero == (dy <= 0)).all():
        return f"gated on the upstream gradient: gate it with forward's {mask} instead."
    return f"the wrong entries are zero: backward does not apply the {mask} that forward applied."


def missing_projection(evidence: Evidence) -> str | None:
    """Test for a missing term that is a multiple of a known vector in each row, as in LayerNorm.

    LayerNorm's backward subtracts a multiple of ones and a multiple of x_hat. If backward leaves
    out one of these terms, the explicit and the numerical gradient differ by exactly that term.
    """
    difference = evidence.difference
    if difference.ndim < 2 or difference.shape[-1] < 3 or difference.size == difference.shape[-1]:
        return None

    def multiple(rows, vectors):
        """Whether each of `rows` is a multiple of the same row of `vectors`."""
        factors = _row_dot(rows, vectors) / np.maximum(_row_dot(vectors, vectors), 1e-300)
        return evidence.close(rows, vectors * factors).all()

    ones = np.ones_like(difference)
    if multiple(difference, ones):
        return (
            "off by a constant in each row: a mean over the row, such as mean(dx_hat), is missing, "
            "or has a wrong sign or factor."
        )
    for name, value in evidence.saved_like():
        if multiple(difference, value):
            return (
                f"off by a multiple of `{name}` in each row: a term along it, such as LayerNorm's "
                "x_hat * mean(dx_hat * x_hat), is missing, or has a wrong sign or factor."
            )
    for name, value in evidence.saved_like():
        centred = (array - array.mean(axis=-1, keepdims=True) for array in (difference, value))
        if multiple(*centred):
            return (
                f"off by a constant and a multiple of `{name}` in each row: mean and variance are "
                "treated as constants, but they depend on x too; or their terms have a wrong sign "
                "or factor."
            )
    return None


def _row_dot(a, b):
    return (a * b).sum(axis=-1, keepdims=True)


# SIMPLE symptoms can occur in any tensor, PATTERNS in some tensors or layers only.
SIMPLE = [measured_entries_agree, zeros]
PATTERNS = [
    constant_ratio,
    another_tensor,
    repeated_ids,
    moved_entries,
    missing_projection,
    wrong_mask,
    factor_per_row,
]


def explain(evidence: Evidence, symptoms: Sequence[Callable] = (*SIMPLE, *PATTERNS)) -> str | None:
    """Return the message of the first symptom that fits, or None."""
    if not np.isfinite(evidence.explicit).all():
        return "NaN or infinity in backward: a division by 0, as in a row with every key masked."
    evidence = evidence.measured_part()
    with np.errstate(all="ignore"):
        return next((message for symptom in symptoms if (message := symptom(evidence))), None)
