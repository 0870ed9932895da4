"""Keep only the keys and values of the latest positions, for decoding with window attention."""

import numpy as np

from numformer.backend import array_module
from numformer.paper.memory import ArrayState, Memory


class RollingKeysAndValues(ArrayState):
    """Keys and values of the latest `window` positions, (B, H, window, K) each, in a ring buffer.

    The first `permanent` positions are stored before the ring and never overwritten. A later
    position t is stored in the ring at index (t - permanent) modulo window.
    """

    def __init__(self, memory: Memory, window: int, permanent: int = 0):
        self.memory, self.window, self.permanent = memory, window, permanent

    def append(self, key, value):
        """Like KeysAndValues.append, but omit earlier positions that no new position can see."""
        xp, first, length = array_module(key), self.memory.length, key.shape[2]
        near = max(0, first - self.window + 1)
        before = np.r_[: min(self.permanent, near), near:first]
        new = np.arange(first, first + length)
        latest = new[(new < self.permanent) | (new > new[-1] - self.window)]
        arrays = []
        for name, further in (("key", key), ("value", value)):
            if name not in self:
                shape = (*key.shape[:2], self.permanent + self.window, further.shape[3])
                self[name] = xp.empty(shape, key.dtype)
            ring = self[name]
            old = ring[:, :, xp.asarray(self._indices(before))] if length > 1 else None
            index = xp.asarray(self._indices(latest))
            ring[:, :, index] = further[:, :, xp.asarray(latest - first)]
            arrays.append(ring if old is None else xp.concatenate([old, further], axis=2))
        positions = np.concatenate([before, new])
        if length > 1:
            return *arrays, positions
        in_ring = positions[np.argsort(self._indices(positions))]
        return *(ring[:, :, : len(in_ring)] for ring in arrays), in_ring

    def _indices(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices of positions (N,) in the stored arrays."""
        in_ring = self.permanent + (positions - self.permanent) % self.window
        return np.where(positions < self.permanent, positions, in_ring)
