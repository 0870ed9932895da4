"""Relative positions that are learned (Shaw et al. 2018), as T5 has them (Raffel et al. 2020).

How far a key is from the query says how much is added to its score: a number for each head and each
bucket of distances, trained like all else.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.arithmetic import scatter_add
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer, Parameter


def buckets_of(distance: np.ndarray, buckets: int, farthest: int, both_ways: bool) -> np.ndarray:
    """distance s - t (T, S) of keys from queries -> the bucket of each (T, S), below `buckets`.

    Half of them are for one distance each, the others grow like its logarithm up to `farthest`; the
    last takes all beyond (Raffel et al. 2020, section 2.1). Where a query looks both ways, half are
    for keys after it; otherwise such keys count as if they stood at the query. Numbers are rounded
    to float32 as in T5's own code, which decides where the logarithm is a whole number.
    """
    if both_ways:
        buckets //= 2
        after, near = (distance > 0) * buckets, np.abs(distance)
    else:
        after, near = np.zeros_like(distance), np.maximum(-distance, 0)
    single = buckets // 2
    ratio = (np.maximum(near, single) / single).astype(np.float32)
    growth = np.log(ratio.astype(float)).astype(np.float32) / math.log(farthest / single)
    far = single + (growth * (buckets - single)).astype(int)
    return after + np.where(near < single, near, np.minimum(far, buckets - 1))


class RelativePositions(Layer):
    """Positions of queries (T,) and keys (S,), host arrays -> what is added to scores (H, T, S).

    The table is (buckets, H) and starts at 0, where no distance counts more than another; all
    layers of a stack may share one. A `constant` is a bias without a gradient that comes on top.
    Raises InputError for too few buckets, or distances that end before the logarithm begins.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How distances are told apart."""

        distance_buckets: int = settings.size(32, "buckets of distances, each with its own score")
        farthest: int = settings.size(128, "the distance from which on all are alike")

    def __init__(
        self,
        heads: int,
        distance_buckets: int = 32,
        farthest: int = 128,
        both_ways: bool = True,
        constant: Any = None,
    ):
        require_distances(distance_buckets, farthest)
        self.table = Parameter(np.zeros((distance_buckets, heads)))
        self.farthest, self.both_ways, self.constant = farthest, both_ways, constant

    def forward(self, queries: Array, keys: Array, like: Array | None = None) -> Array:
        distance, count = keys - queries[:, None], len(self.table.data)
        buckets = buckets_of(distance, count, self.farthest, self.both_ways)
        buckets = array_module(self.table.data).asarray(buckets)
        self.save(buckets=buckets)
        bias = self.table.data[buckets].transpose(2, 0, 1)
        return bias + self.constant.forward(queries, keys, bias) if self.constant else bias

    def backward(self, dbias: Array) -> None:
        buckets = self.pop_saved()["buckets"]
        dbias_of_pairs = dbias.reshape(len(dbias), -1).T  # (T S, H)
        scatter_add(self.table.grad, buckets.ravel(), dbias_of_pairs)  # bias = table[buckets]
        return None

    def share(self, first: "RelativePositions") -> None:
        """Take the table of a stack's first such layer."""
        self.table = first.table


def require_distances(buckets: int, farthest: int) -> None:
    """Raise InputError unless there are buckets to halve twice, and distances beyond the first."""
    if buckets < 4 or farthest <= buckets // 2:
        raise InputError(
            "distance_buckets is at least 4, and farthest above half of them, which are for one "
            "distance each",
            f"distance_buckets {buckets}, farthest {farthest}",
            "Change one of them.",
        )
