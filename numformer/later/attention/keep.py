"""Dropout of what is never stored whole."""

import math

import numpy as np

from numformer.backend import array_module
from numformer.randomness import dropout_stream, keep_mask, splitmix64


class KeepByTiles:
    """The mask `keep` (..., T, S) of a dropout, of which a tile is drawn whenever it is wanted.

    Its bits are those that `dropout_stream.keep` draws for the whole.
    """

    def __init__(self, shape: tuple[int, ...], p_drop: float):
        self.shape, self.p_drop = shape, p_drop
        self.key, self.start, _ = dropout_stream.reserve(math.prod(shape))

    def tile(self, index: tuple, like):
        """The tile [index], of the dtype and device of `like`; the last index may be an array."""
        xp, row = array_module(like), np.zeros((), int)
        for size, some in zip(self.shape[:-1], index[:-1], strict=True):
            row = row[..., None] * size + np.arange(size)[some]
        columns, first = np.arange(self.shape[-1])[index[-1]], row[..., None] * self.shape[-1]
        if len(columns) <= columns[-1] - columns[0]:  # not one after the other
            entry = first + columns
            words = splitmix64(self.key, xp.asarray(self.start + entry // 4, dtype=xp.uint64))
            bits = (words >> xp.asarray(16 * (entry % 4), dtype=xp.uint64)).astype(xp.uint16)
            return keep_mask(bits, self.p_drop, like)
        entry = first + columns[0]  # where each row of it begins
        counters = self.start + entry // 4 + np.arange(len(columns) // 4 + 2)
        words = splitmix64(self.key, xp.asarray(counters, dtype=xp.uint64))
        four_a_word = words.view(xp.uint16)
        bits = four_a_word[..., : len(columns)]
        for place in (1, 2, 3):
            here = entry % 4 == place
            if here.any():
                begun = four_a_word[..., place : place + len(columns)]
                bits = xp.where(xp.asarray(here), begun, bits)
        return keep_mask(bits, self.p_drop, like)
