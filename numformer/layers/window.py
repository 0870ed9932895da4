"""Sliding-window attention (Beltagy et al. 2020; Jiang et al. 2023): positions see what is near.

Work and memory grow with the length T, not with T^2, and decoding remembers the latest positions
alone. Through N layers what a position knows of comes from up to N (window - 1) positions away.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.backend import array_module
from numformer.layers.grouped import GroupedQueryAttention
from numformer.layers.memory import Kept, Memory
from numformer.layers.reach import Reach


class WindowAttention(GroupedQueryAttention):
    """x (B, T, D), reach -> (B, T, D): position t sees s where |t - s| < window, as far as it may.

    The queries are taken in blocks as long as the window. Each looks at the keys that one of its
    queries can see: the block itself, the one before, and where positions see ahead the one after.
    """

    sees_near = True

    @dataclass(frozen=True, kw_only=True)
    class Settings(GroupedQueryAttention.Settings):
        """How far a position sees."""

        window: int = settings.size(128, "positions that a position sees back, itself included")

    def __init__(self, d_model: int, heads: int, rng, window: int, **others):
        super().__init__(d_model, heads, rng, **others)
        self.window = window

    def attend(self, query, key, value, reach: Reach):
        xp, reach = array_module(query), reach.within(self.window)
        heads = xp.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
        for rows, near in self.blocks(reach):
            of_block = query[:, :, rows], key[:, :, near], value[:, :, near]
            heads[:, :, rows] = super().attend(*of_block, reach.tile(rows, near))
        return heads

    def attend_backward(self, dheads, reach: Reach):
        xp, (batch, length) = array_module(dheads), reach.keys.valid.shape
        sizes = self.d_k, self.d_v
        dkey, dvalue = (
            xp.zeros((batch, self.heads_of_keys, length, size), dheads.dtype) for size in sizes
        )
        dquery = xp.empty((*dheads.shape[:-1], self.d_k), dheads.dtype)
        for rows, near in reversed([*self.blocks(reach)]):
            dquery[:, :, rows], *of_near = super().attend_backward(dheads[:, :, rows], reach)
            dkey[:, :, near] += of_near[0]  # several blocks look at the same keys
            dvalue[:, :, near] += of_near[1]
        return dquery, dkey, dvalue

    def blocks(self, reach: Reach) -> Iterator[tuple[slice, slice]]:
        """Stretches of queries, and of the keys that they can see."""
        t, s = reach.queries.positions, reach.keys.positions
        if len(t) == 1:  # whose keys may come from a ring, in any order
            yield slice(None), slice(None)
            return
        ahead = 0 if reach.causal else self.window - 1
        for first in range(0, len(t), self.window):
            rows = slice(first, first + self.window)
            seen = t[rows][0] - self.window + 1, t[rows][-1] + ahead + 1
            yield rows, slice(*np.searchsorted(s, seen))

    def looks(self):
        reach = self.saved[-1]["reach"]
        (batch, length), longer = reach.queries.valid.shape, len(reach.keys.positions)
        blocks, saved = [*self.blocks(reach)], self.attention.saved_weights()
        weights = array_module(saved[-1]).zeros((batch, self.heads, length, longer))
        for (rows, near), of_block in zip(blocks, saved[-len(blocks) :], strict=True):
            weights[:, :, rows, near] = self._of_heads(of_block)
        return weights

    def remembered(self, past: Memory) -> "Latest":
        """The keys and values that later positions can see."""
        return Latest(past, self.window)


class Latest(Kept):
    """Keys and values of the latest `window` positions, (B, H, window, K) each, as a ring.

    That of position t stands at index t modulo window. The first positions may be `lasting`: they
    stay, in front of the ring.
    """

    def __init__(self, memory: Memory, window: int, lasting: int = 0):
        self.memory, self.window, self.lasting = memory, window, lasting

    def append(self, key, value):
        """As KeysAndValues.append, but of what the first of the further positions can still see."""
        xp, first, length = array_module(key), self.memory.length, key.shape[2]
        near = max(0, first - self.window + 1)
        before = np.r_[: min(self.lasting, near), near:first]
        new = np.arange(first, first + length)
        latest = new[(new < self.lasting) | (new > new[-1] - self.window)]
        arrays = []
        for name, further in (("key", key), ("value", value)):
            if name not in self:
                shape = (*key.shape[:2], self.lasting + self.window, further.shape[3])
                self[name] = xp.empty(shape, key.dtype)
            ring = self[name]
            kept = ring[:, :, xp.asarray(self._places(before))] if length > 1 else None
            ring[:, :, xp.asarray(self._places(latest))] = further[:, :, xp.asarray(latest - first)]
            arrays.append(ring if kept is None else xp.concatenate([kept, further], axis=2))
        positions = np.concatenate([before, new])
        if length > 1:
            return *arrays, positions
        in_ring = positions[np.argsort(self._places(positions))]
        return *(ring[:, :, : len(in_ring)] for ring in arrays), in_ring

    def _places(self, positions: np.ndarray) -> np.ndarray:
        """Where in the ring positions (N,) stand."""
        in_ring = self.lasting + (positions - self.lasting) % self.window
        return np.where(positions < self.lasting, positions, in_ring)
