"""Learned relative positions (Shaw et al. 2018) in the form of T5 (Raffel et al. 2020).

Each head adds a trained number to each score. Distances between query and key are divided into
buckets; all distances in a bucket have the same number.
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


def position_buckets(
    distance: np.ndarray, buckets: int, farthest: int, both_ways: bool
) -> np.ndarray:
    """distance s - t (T, S) of keys from queries -> bucket numbers (T, S).

    Half of the buckets hold one distance each; the others grow logarithmically up to `farthest`,
    and the last one also holds everything beyond (Raffel et al. 2020, section 2.1). With
    `both_ways`, half of the buckets are for keys after the query; otherwise such keys share the
    bucket of distance 0. Where a distance lies on the boundary of two buckets, rounding to float32
    decides, as in T5's own code.
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
    """Positions of queries (T,) and keys (S,), host arrays -> a bias (H, T, S) to add to scores.

    The table (buckets, H) starts at 0, so at first distances have no effect; the layers of a stack
    share a table, unless they have `own_distances` (Chung et al. 2023, UMT5). `constant` is another
    bias to add, without a gradient. Raises InputError for fewer than 4 buckets, and if `farthest`
    is at most half the number of buckets.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How distances are divided into buckets."""

        distance_buckets: int = settings.size(32, "buckets of distances, each with its own score")
        farthest: int = settings.size(128, "distance beyond which all distances share a bucket")
        own_distances: bool = settings.switch(False, "each layer has its own scores of distances")

    def __init__(
        self,
        heads: int,
        distance_buckets: int = 32,
        farthest: int = 128,
        both_ways: bool = True,
        constant: Any = None,
        own_distances: bool = False,
    ):
        if distance_buckets < 4 or farthest <= distance_buckets // 2:
            raise InputError(
                "distance_buckets is at least 4, and farthest is above half of distance_buckets",
                f"distance_buckets {distance_buckets}, farthest {farthest}",
                "Change one of them.",
            )
        self.table = Parameter(np.zeros((distance_buckets, heads)))
        self.farthest, self.both_ways, self.constant = farthest, both_ways, constant
        self.own_distances = own_distances

    def forward(self, queries: Array, keys: Array, like: Array | None = None) -> Array:
        distance, count = keys - queries[:, None], len(self.table.data)
        buckets = position_buckets(distance, count, self.farthest, self.both_ways)
        buckets = array_module(self.table.data).asarray(buckets)
        self.save(buckets=buckets)
        bias = self.table.data[buckets].transpose(2, 0, 1)
        return bias + self.constant.forward(queries, keys, bias) if self.constant else bias

    def backward(self, dbias: Array) -> None:
        buckets = self.pop_saved()["buckets"]
        dpairs = dbias.reshape(len(dbias), -1).T  # (T S, H)
        scatter_add(self.table.grad, buckets.ravel(), dpairs)  # bias = table[buckets]
        return None

    def share(self, first: "RelativePositions") -> None:
        """Use the table of `first`, the first such layer of a stack, unless each has its own."""
        if not self.own_distances:
            self.table = first.table
