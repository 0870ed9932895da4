"""Dropout for attention in tiles: each tile of the mask is drawn on demand and never stored."""

import math

import numpy as np

from numformer.backend import array_module
from numformer.randomness import dropout_stream, mask_from_bits, splitmix64


class TiledDropoutMask:
    """A dropout mask (..., T, S) that is drawn tile by tile.

    It equals the mask that `dropout_stream.mask` would draw for this shape. Each 64-bit word of
    random bits decides four entries.
    """

    def __init__(self, shape: tuple[int, ...], p_drop: float):
        self.shape, self.p_drop = shape, p_drop
        self.key, self.start, _ = dropout_stream.reserve(math.prod(shape))

    def tile(self, index: tuple, columns: np.ndarray, like):
        """Return the mask's part [*index, columns], in the dtype and on the device of `like`."""
        xp, row = array_module(like), np.zeros((), int)
        for size, part in zip(self.shape[:-1], index, strict=True):
            row = row[..., None] * size + np.arange(size)[part]
        entry, count = row[..., None] * self.shape[-1] + columns[0], len(columns)
        if count <= columns[-1] - columns[0]:  # the columns are not adjacent
            entry = entry + (columns - columns[0])
            words = splitmix64(self.key, xp.asarray(self.start + entry // 4, dtype=xp.uint64))
            words >>= xp.asarray(16 * (entry % 4), dtype=xp.uint64)
            return mask_from_bits(words.astype(xp.uint16), self.p_drop, like)
        counters = self.start + entry // 4 + np.arange(count // 4 + 2)
        words = splitmix64(self.key, xp.asarray(counters, dtype=xp.uint64)).view(xp.uint16)
        bits = words[..., :count]
        for offset in (1, 2, 3):  # for the tile's rows that begin at this entry of a word
            rows = entry % 4 == offset
            if rows.any():
                bits = xp.where(xp.asarray(rows), words[..., offset : offset + count], bits)
        return mask_from_bits(bits, self.p_drop, like)
