"""Sliding-window attention (Beltagy et al. 2020; Jiang et al. 2023): positions see what is near.

Work and memory grow with the length T, not with T^2, and decoding remembers the latest positions
alone. Through N layers what a position knows of comes from up to N (window - 1) positions away.
"""

from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.backend import array_module
from numformer.layers.grouped import GroupedQueryAttention
from numformer.layers.memory import Kept, Memory
from numformer.layers.reach import Reach


class WindowAttention(GroupedQueryAttention):
    """x (B, T, D), reach -> (B, T, D): position t sees s where |t - s| < window, as far as it may.

    Long sequences are taken in blocks (blocks.py), of which each meets the keys near it alone.
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
        return super().attend(query, key, value, reach.within(self.window))

    def attend_backward(self, dheads, reach: Reach):
        return super().attend_backward(dheads, reach.within(self.window))

    def takes_blocks(self, reach: Reach) -> bool:
        return super().takes_blocks(reach.within(self.window))

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
