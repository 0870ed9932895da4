"""Dropout (Srivastava et al. 2014; section 5.4): in training, some values become 0."""

import math

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer, training
from numformer.randomness import dropout_stream, keep_mask, splitmix64


def dropout(x, keep):
    """x (...) -> y (...): y = x * keep, where keep is 0 or 1 / (1 - p); None keeps everything."""
    return x if keep is None else x * keep


def dropout_backward(dy, keep):
    """dy (...) -> dx (...): what was dropped gets no gradient, what was scaled is scaled."""
    return dy if keep is None else dy * keep


class Dropout(Layer):
    """x (...) -> (...): in training each value is 0 with probability p_drop, else x / (1 - p_drop).

    The mean stays the same, so that outside training the layer does nothing. The masks come from
    `numformer.randomness.dropout_stream`, which is reseeded at every training step.
    """

    def __init__(self, p_drop: float):
        if not 0 <= p_drop < 1:
            raise InputError(
                "a dropout probability is at least 0 and below 1", p_drop, "The paper uses 0.1."
            )
        self.p_drop = p_drop

    def draw(self, shape: tuple[int, ...], like):
        """A new mask `keep` (shape), of the dtype and device of `like`; None to keep all."""
        if not (training() and self.p_drop):
            return None
        return dropout_stream.keep(shape, self.p_drop, like)

    def forward(self, x: Array) -> Array:
        keep = self.draw(x.shape, like=x)
        self.save(keep=keep)
        return dropout(x, keep)

    def backward(self, dy: Array) -> Array:
        dx = dropout_backward(dy, **self.pop_saved())
        return dx.copy() if dx is dy else dx  # what a backward returns is never its argument


class KeepByTiles:
    """The mask `keep` (..., T, S) of a dropout, of which a tile is drawn whenever it is wanted.

    Its bits are those that `dropout_stream.keep` draws for the whole.
    """

    def __init__(self, shape: tuple[int, ...], p_drop: float):
        self.shape, self.p_drop = shape, p_drop
        self.key, self.start, _ = dropout_stream.reserve(math.prod(shape))

    def tile(self, leading: tuple, rows: slice, columns: slice, like):
        """The tile [leading, ..., rows, columns], of the dtype and device of `like`."""
        xp, count = array_module(like), columns.stop - columns.start
        row = np.arange(math.prod(self.shape[:-1])).reshape(self.shape[:-1])[*leading, ..., rows]
        entry = row[..., None] * self.shape[-1] + columns.start  # where each row of it begins
        counters = self.start + entry // 4 + np.arange(count // 4 + 2)
        words = splitmix64(self.key, xp.asarray(counters, dtype=xp.uint64))
        four_a_word = words.view(xp.uint16)
        bits = four_a_word[..., :count]
        for place in (1, 2, 3):
            here = entry % 4 == place
            if here.any():
                begun = four_a_word[..., place : place + count]
                bits = xp.where(xp.asarray(here), begun, bits)
        return keep_mask(bits, self.p_drop, like)
