"""Patterns in explicit - numerical gradients, and the mistake that each one shows.

A symptom takes Evidence of arrays with at least one axis and gives a message or None.
They are asked from the most particular to the least, and the first that fits speaks.
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
    """Two gradients entry by entry, and what may explain their difference.

    An entry of `numerical` is NaN where it was not measured.
    """

    explicit: np.ndarray
    numerical: np.ndarray
    saved: dict[str, np.ndarray] = field(default_factory=dict)  # what forward saved, by name
    upstream: np.ndarray | None = None
    factors: dict[str, float] = field(default_factory=dict)  # cause -> the ratio that it gives
    others: dict[str, np.ndarray] = field(default_factory=dict)  # the gradients of other tensors
    sound: frozenset[str] = frozenset()  # those of the others whose own gradient is right
    ids: np.ndarray | None = None  # the rows that forward took, where the tensor is a table

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

        return replace(
            self,
            explicit=cut(self.explicit),
            numerical=cut(self.numerical),
            upstream=cut(self.upstream),
            saved={name: cut(value) for name, value in self.saved.items()},
        )

    @property
    def difference(self) -> np.ndarray:
        return self.explicit - self.numerical

    @property
    def scale(self) -> float:
        return float(np.abs(self.numerical).max(initial=0))

    def same(self, a, b) -> Any:
        """Where a and b are equal but for the error of numerical gradients."""
        return np.isclose(a, b, rtol=1e-5, atol=1e-7 * self.scale)

    @property
    def wrong(self) -> Any:
        return ~self.same(self.explicit, self.numerical)

    def alike(self, last: int | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """The saved arrays of the gradient's shape, its last axis replaced by `last`."""
        shape = (*self.explicit.shape[:-1], self.explicit.shape[-1] if last is None else last)
        return ((name, value) for name, value in self.saved.items() if value.shape == shape)


def agreement(evidence: Evidence) -> str | None:
    if not evidence.wrong.any():
        return "the entries that were measured agree: look at those behind them."
    return None


def zeros(evidence: Evidence) -> str | None:
    if evidence.scale < 1e-9:
        return "the true gradient is zero: forward does not depend on this tensor as used here."
    if (np.abs(evidence.explicit) < 1e-9 * evidence.scale).all():
        return "the gradient is zero: never accumulated (`grad +=`), or not returned."
    return None


def constant_ratio(evidence: Evidence) -> str | None:
    """A ratio that several factors explain names them all."""
    e, n = evidence.explicit.ravel(), evidence.numerical.ravel()
    ratio = float(e @ n / (n @ n))
    if not evidence.same(e, ratio * n).all():
        return None
    # dropout rounds p to a multiple of 2^-16
    causes = [cause for cause, value in evidence.factors.items() if abs(ratio / value - 1) < 1e-4]
    return f"constant ratio {ratio:.6g}: " + (
        ", or ".join(causes) + "." if causes else "a constant factor is missing, or one too many."
    )


def of_another_tensor(evidence: Evidence) -> str | None:
    for name, gradient in evidence.others.items():
        if (
            gradient.shape == evidence.explicit.shape
            and evidence.same(evidence.explicit, gradient).all()
        ):
            return f"this is the gradient of `{name}`: " + (
                "a factor that forward multiplies with is missing."
                if name in evidence.sound
                else "two results of backward are swapped."
            )
    return None


def repeated_ids(evidence: Evidence) -> str | None:
    """`grad[ids] += dx` writes each row once, whatever the number of its ids."""
    if evidence.ids is None or evidence.ids.min(initial=0) < 0 or evidence.explicit.ndim != 2:
        return None
    wrong = evidence.wrong.any(axis=-1)
    if np.bincount(evidence.ids.ravel(), minlength=len(wrong))[: len(wrong)][wrong].min() > 1:
        return (
            "wrong only in rows whose ids occur more than once: grad[ids] += dx keeps the last of "
            "them; use scatter_add."
        )
    return None


def moved(evidence: Evidence) -> str | None:
    """The same numbers at other places."""
    e, n = evidence.explicit, evidence.numerical
    for axes in itertools.permutations(range(n.ndim)) if n.ndim < 5 else ():
        turned = n.transpose(axes)
        if turned.shape == e.shape and evidence.same(e, turned).all():
            return f"the gradient is transposed: its axes stand in the order {axes}."
    if e.size > 1 and evidence.same(np.sort(e, axis=None), np.sort(n, axis=None)).all():
        return (
            "the right numbers at wrong places: heads split or merged by reshape without "
            "swapaxes(1, 2), or positions shifted."
        )
    return None


def factor_of_each_row(evidence: Evidence) -> str | None:
    """A number of each position, such as LayerNorm's rstd, is forgotten, repeated or another."""
    e, n = evidence.explicit, evidence.numerical
    if n.ndim < 2 or n.shape[-1] < 2:
        return None
    factors = _dot(e, n) / np.maximum(_dot(n, n), 1e-300)
    if not evidence.same(e, factors * n).all():
        return None
    live = _dot(n, n) > 0
    for name, value in evidence.alike(last=1):
        if np.allclose((factors * value)[live], 1, rtol=1e-5):
            return f"each row is off by a factor of its own, 1 / `{name}`: `{name}` is missing."
        if np.allclose(factors[live], value[live], rtol=1e-5):
            return f"each row is off by a factor of its own, `{name}`: it is applied twice."
    return (
        "each row is off by a factor of its own: a number of each position is computed in another "
        "way than in forward, such as rstd = 1 / sqrt(variance + epsilon) with epsilon outside the "
        "root."
    )


def masks(evidence: Evidence) -> str | None:
    """Only some entries are wrong, and where they are, one of the two gradients is 0."""
    e, n, wrong = evidence.explicit, evidence.numerical, evidence.wrong
    e_zero, n_zero = (np.abs(gradient) < 1e-8 * evidence.scale for gradient in (e, n))
    fitting = (name for name, v in evidence.alike() if ((v == 0) == n_zero).all() and n_zero.any())
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
    if evidence.upstream is not None and evidence.upstream.shape == e.shape:
        if (e_zero == (evidence.upstream <= 0)).all():
            return f"gated on the upstream gradient: let it pass by forward's {mask} instead."
    return f"some entries are zero instead of others: not the {mask} that forward applied."


def factor_of_each_entry(evidence: Evidence) -> str | None:
    """A saved value that forward multiplies with, as a gate does, is forgotten or repeated."""
    for name, value in evidence.alike():
        if evidence.same(evidence.explicit * value, evidence.numerical).all():
            return f"each entry is off by 1 / `{name}`: the factor `{name}` is missing."
        if evidence.same(evidence.numerical * value, evidence.explicit).all():
            return f"each entry is off by `{name}`: the factor `{name}` is one too many."
    return None


def along_saved(evidence: Evidence) -> str | None:
    """The derivatives of softmax and of LayerNorm subtract from each row a multiple of a vector.

    The difference shows which one is missing.
    """
    difference = evidence.difference
    if difference.ndim < 2 or difference.shape[-1] < 3 or difference.size == difference.shape[-1]:
        return None

    def multiple(rows, of):
        return evidence.same(rows, of * _dot(rows, of) / np.maximum(_dot(of, of), 1e-300)).all()

    ones = np.ones_like(difference)
    if multiple(difference, ones):
        return (
            "off by a constant in each row: a mean over each row is missing, or has another sign "
            "or factor, as mean(dx_hat)."
        )
    for name, value in evidence.alike():
        if name == "weights" and multiple(difference, value):
            return (
                "off by a multiple of `weights` in each row: softmax's sum is missing, has another "
                "sign or factor, or is no sum over each row, dscores = weights * (dweights - "
                "sum(dweights * weights))."
            )
        if multiple(difference, value):
            return (
                f"off by a multiple of `{name}` in each row: a term along it is missing, or has "
                "another sign or factor, as LayerNorm's x_hat * mean(dx_hat * x_hat)."
            )
    for name, value in evidence.alike():
        centred = (array - array.mean(axis=-1, keepdims=True) for array in (difference, value))
        if multiple(*centred):
            return (
                f"off by a constant and a multiple of `{name}` in each row: mean and variance are "
                "treated as constants, but they depend on x too; or their terms have another sign "
                "or factor."
            )
    return None


def sum_over_another_axis(evidence: Evidence) -> str | None:
    """What a softmax's backward subtracted from the upstream gradient shows over what it summed."""
    e, n, dy = evidence.explicit, evidence.numerical, evidence.upstream
    if dy is None or dy.shape != e.shape:
        return None
    for name, weights in evidence.alike():
        live = weights != 0
        sums, true = (dy - gradient / np.where(live, weights, 1) for gradient in (e, n))
        if not _constant(true, live, -1):
            continue
        for axis in range(e.ndim - 1):
            if e.shape[axis] > 1 and _constant(sums, live, axis):
                return f"the sum of dy * `{name}` runs over axis {axis} instead of the last."
    return None


def upstream_itself(evidence: Evidence) -> str | None:
    dy = evidence.upstream
    if dy is None or dy.shape != evidence.explicit.shape:
        return None
    if evidence.same(evidence.difference, -dy).all():
        return "exactly the upstream gradient is missing: the skip connection of x + f(x)."
    if evidence.same(evidence.difference, dy).all():
        return "exactly the upstream gradient is too much: x is added once, so dy is too."
    return None


def _dot(a, b):
    return (a * b).sum(axis=-1, keepdims=True)


def _constant(values, live, axis) -> bool:
    """Whether the live ones among `values` are equal along `axis`."""
    highest = np.where(live, values, -np.inf).max(axis=axis)
    lowest = np.where(live, values, np.inf).min(axis=axis)
    return bool((highest - lowest <= 1e-5 * np.abs(values[live]).max(initial=0)).all())


# What makes a whole gradient wrong, and what only some tensors or layers can have.
SIMPLE = [agreement, zeros, constant_ratio]
PATTERNS = [
    of_another_tensor,
    repeated_ids,
    moved,
    upstream_itself,
    factor_of_each_row,
    along_saved,
    sum_over_another_axis,
    masks,
    factor_of_each_entry,
]


def explain(evidence: Evidence, symptoms: Sequence[Callable] = (*SIMPLE, *PATTERNS)) -> str | None:
    """The message of the first symptom that fits, or None."""
    if not np.isfinite(evidence.explicit).all():
        return "NaN or infinity in backward: a division by 0, as in a row with every key masked."
    evidence = evidence.measured()
    with np.errstate(all="ignore"):
        return next((message for symptom in symptoms if (message := symptom(evidence))), None)
