"""Relative positions that are learned (Shaw et al. 2018), as T5 has them (Raffel et al. 2020).

How far a key is from the query says how much is added to its score: a number for each head and each
bucket of distances, trained like all else.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.backend import array_module, matmul, scatter_add, transpose
from numformer.errors import InputError
from numformer.layer import Array, Layer, Parameter
from numformer.layers.attention import SelfAttention
from numformer.layers.dropout import Dropout
from numformer.layers.reach import Reach
from numformer.layers.scores import DotProductScore
from numformer.layers.softmax import Softmax


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

    The table is (buckets, H) and starts at 0, where no distance counts more than another. Raises
    InputError for too few buckets, or distances that end before the logarithm begins.
    """

    def __init__(self, heads: int, buckets: int = 32, farthest: int = 128, both_ways: bool = True):
        require_distances(buckets, farthest)
        self.table = Parameter(np.zeros((buckets, heads)))
        self.farthest, self.both_ways = farthest, both_ways

    def forward(self, queries: np.ndarray, keys: np.ndarray) -> Array:
        distance, count = keys - queries[:, None], len(self.table.data)
        buckets = buckets_of(distance, count, self.farthest, self.both_ways)
        buckets = array_module(self.table.data).asarray(buckets)
        self.save(buckets=buckets)
        return self.table.data[buckets].transpose(2, 0, 1)

    def backward(self, dbias: Array) -> None:
        buckets = self.pop_saved()["buckets"]
        dbias_of_pairs = dbias.reshape(len(dbias), -1).T  # (T S, H)
        scatter_add(self.table.grad, buckets.ravel(), dbias_of_pairs)  # bias = table[buckets]
        return None


class BiasedAttention(Layer):
    """query (B, H, T, K), key, value (B, H, S, K), mask, bias (H, T, S) -> (B, H, T, K).

    softmax(Q K^T / sqrt(d_k) + bias) V. `backward` returns dquery, dkey, dvalue and dbias.
    """

    def __init__(self, p_drop: float = 0.0):
        self.score, self.softmax, self.dropout = DotProductScore(), Softmax(), Dropout(p_drop)

    def forward(self, query: Array, key: Array, value: Array, mask: Any, bias: Array) -> Array:
        weights = self.softmax.forward(self.score.forward(query, key) + bias, mask)
        dropped = self.dropout.forward(weights)
        self.save(value=value, weights=weights, dropped=dropped)
        return matmul(dropped, value)

    def backward(self, doutput: Array) -> Any:
        saved = self.pop_saved()
        dvalue = matmul(transpose(saved["dropped"]), doutput)  # output = dropped V
        ddropped = matmul(doutput, transpose(saved["value"]))
        dscores = self.softmax.backward(self.dropout.backward(ddropped))
        dquery, dkey = self.score.backward(dscores)
        return dquery, dkey, dvalue, dscores.sum(axis=0)  # all sequences have one bias

    def saved_weights(self) -> list:
        """The weights (B, H, T, S) of each forward that no backward has met yet."""
        return [record["weights"] for record in self.saved]


class RelativeAttention(SelfAttention):
    """x (B, T, D), reach -> (B, T, D): self-attention that knows how far apart positions are.

    All layers of a tower share one table.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """How distances are told apart."""

        distance_buckets: int = settings.size(32, "buckets of distances, each with its own score")
        farthest: int = settings.size(128, "the distance from which on all are alike")

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        distance_buckets: int = 32,
        farthest: int = 128,
        both_ways: bool = True,
        p_drop: float = 0.0,
        **others,
    ):
        super().__init__(d_model, heads, rng, **others)
        self.attention, self.in_blocks = BiasedAttention(p_drop), None  # type: ignore[assignment]
        self.distances = RelativePositions(heads, distance_buckets, farthest, both_ways)

    def attend(self, query, key, value, reach: Reach):
        mask, added = self.mask_and_bias(query, reach)
        bias = self.distances.forward(reach.queries.positions, reach.keys.positions)
        bias = bias if added is None else bias + added
        return self.attention.forward(query, key, value, mask, bias)

    def attend_backward(self, dheads, reach: Reach):
        dquery, dkey, dvalue, dbias = self.attention.backward(dheads)
        self.distances.backward(dbias)
        return dquery, dkey, dvalue

    def share(self, first: Any) -> None:
        self.distances.table = first.distances.table

    @classmethod
    def build(  # type: ignore[override]
        cls, config, rng: np.random.Generator, causal: bool
    ) -> "RelativeAttention":
        """As Mixer.build; a causal one has all its buckets for what stands before."""
        settings = config.of_attention | config.positions_in_attention | cls.own_settings(config)
        return cls(config.d_model, config.heads, rng, both_ways=not causal, **settings)

    @classmethod
    def require(cls, config) -> None:
        require_distances(config.distance_buckets, config.farthest)


def require_distances(buckets: int, farthest: int) -> None:
    """Raise InputError unless there are buckets to halve twice, and distances beyond the first."""
    if buckets < 4 or farthest <= buckets // 2:
        raise InputError(
            "distance_buckets is at least 4, and farthest above half of them, which are for one "
            "distance each",
            f"distance_buckets {buckets}, farthest {farthest}",
            "Change one of them.",
        )
