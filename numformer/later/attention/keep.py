"""The mask of a dropout whose values are never stored whole."""

import math

import numpy as np

from numformer.backend import array_module
from numformer.randomness import dropout_stream, mask_from_bits, splitmix64


class KeepByTiles:
    """The mask `keep` (..., T, S) of a dropout, of which a tile is drawn whenever it is wanted.

    Its bits are those that `dropout_stream.mask` draws for the whole, four entries of a word.
    """

    def __init__(self, shape: tuple[int, ...], p_drop: float):
        self.shape, self.p_drop = shape, p_drop
        self.key, self.start, _ = dropout_stream.reserve(math.prod(shape))

    def tile(self, index: tuple, columns: np.ndarray, like):
        """The tile [*index, columns], of the dtype and device of `like`."""
        xp, row = array_module(like), np.zeros((), int)
        for size, some in zip(self.shape[:-1], index, strict=True):
            row = row[..., None] * size + np.arange(size)[some]
        entry, count = row[..., None] * self.shape[-1] + columns[0], len(columns)
        if count <= columns[-1] - columns[0]:  # not side by side
            entry = entry + (columns - columns[0])
            words = splitmix64(self.key, xp.asarray(self.start + entry // 4, dtype=xp.uint64))
            words >>= xp.asarray(16 * (entry % 4), dtype=xp.uint64)
            return mask_from_bits(words.astype(xp.uint16), self.p_drop, like)
        counters = self.start + entry // 4 + np.arange(count // 4 + 2)
        words = splitmix64(self.key, xp.asarray(counters, dtype=xp.uint64)).view(xp.uint16)
        bits = words[..., :count]
        for place in (1, 2, 3):
            here = entry % 4 == place  # where in its first word each row of the tile begins
            if here.any():
                bits = xp.where(xp.asarray(here), words[..., place : place + count], bits)
        return mask_from_bits(bits, self.p_drop, like)
