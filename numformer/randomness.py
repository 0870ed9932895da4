"""Random numbers: an independent stream for each purpose, and dropout masks."""

import math
from typing import Any

import numpy as np

from numformer.backend import array_module, cache_pieces, has_kernel

PURPOSES = ("weights", "data", "dropout", "held out", "sampling", "subwords")


def seed_sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """Return the seed of a run's random stream for a purpose and `indices`, such as a step.

    The streams are independent, so drawing more numbers from one never changes another.
    """
    return np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *indices))


def splitmix64(key: int, counters):
    """Replace counters (...), uint64, in place by their hashes, which serve as random bits.

    This is SplitMix64 (Steele et al. 2014) with `key` as its seed. It has no state and needs only
    array arithmetic, so NumPy and CuPy give the same bits.
    """
    for piece in cache_pieces(flat := counters.reshape(-1)):
        bits = flat[piece]
        bits *= np.uint64(0x9E3779B97F4A7C15)
        bits += key
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits ^= bits >> shift
            bits *= np.uint64(factor)
        bits ^= bits >> 31
    return counters


class DropoutStream:
    """The random numbers of dropout, reproducible from (seed, step, part).

    Every part of every training step reseeds the stream. So the masks of any step can be drawn
    again: in a gradient check, in a resumed run, or to repeat a step.
    """

    def __init__(self):
        self.reseed(0, 0)

    def reseed(self, seed: int, step: int, part: int = 0) -> None:
        """Start the stream for one part of one step's batch, in the run with this seed."""
        sequence = seed_sequence(seed, "dropout", step, part)
        self.state = sequence.generate_state(1, np.uint64)[0], 0  # the key, and the next counter

    def mask(self, shape: tuple[int, ...], p: float, like):
        """Return a new mask (shape): 0 with probability p, otherwise 1 / (1 - p).

        It has the dtype and device of the array `like`. p is rounded to a multiple of 2^-16,
        because 16 random bits decide each entry.
        """
        return dropout_mask(like, shape, p, *self.reserve(math.prod(shape)))

    def reserve(self, size: int) -> tuple[Any, int, int]:
        """Return the key and the range of counters, start to stop, for the next `size` entries."""
        key, start = self.state
        self.state = key, start - -size // 4
        return key, start, self.state[1]


@has_kernel
def dropout_mask(like, shape: tuple[int, ...], p: float, key, start: int, stop: int):
    """Return the mask (shape) of the counters start to stop; each hash decides four entries."""
    xp, size = array_module(like), math.prod(shape)
    hashes = splitmix64(key, xp.arange(start, stop, dtype=xp.uint64))
    return mask_from_bits(hashes.view(xp.uint16)[:size].reshape(shape), p, like)


def mask_from_bits(bits, p: float, like):
    """Random bits (...), uint16 -> the dropout mask (...)."""
    dropped = min(round(p * 65536), 65535)
    return (bits >= dropped) * like.dtype.type(65536 / (65536 - dropped))


dropout_stream = DropoutStream()
