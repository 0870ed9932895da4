"""What decoding remembers where positions see what is near alone."""

import numpy as np

from numformer.backend import array_module
from numformer.paper.memory import ArrayState, Memory


class Latest(ArrayState):
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
            kept = ring[:, :, xp.asarray(self._indices(before))] if length > 1 else None
            index = xp.asarray(self._indices(latest))
            ring[:, :, index] = further[:, :, xp.asarray(latest - first)]
            arrays.append(ring if kept is None else xp.concatenate([kept, further], axis=2))
        positions = np.concatenate([before, new])
        if length > 1:
            return *arrays, positions
        in_ring = positions[np.argsort(self._indices(positions))]
        return *(ring[:, :, : len(in_ring)] for ring in arrays), in_ring

    def _indices(self, positions: np.ndarray) -> np.ndarray:
        """Where in the ring positions (N,) stand."""
        in_ring = self.lasting + (positions - self.lasting) % self.window
        return np.where(positions < self.lasting, positions, in_ring)
