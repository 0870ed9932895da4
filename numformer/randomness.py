"""Random numbers: a stream of its own for each purpose, and the masks of dropout from counters."""

import math
from typing import Any

import numpy as np

from numformer.backend import array_module, cache_pieces, has_kernel

PURPOSES = ("weights", "data", "dropout", "held out", "sampling", "subwords")


def seed_sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed of an independent random stream: one for each purpose of a run, and each index.

    Drawing more numbers for one purpose then never changes another.
    """
    return np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *indices))


def splitmix64(key: int, counters):
    """Random bits without a state: hashes of counters (...) uint64, which become them.

    SplitMix64 (Steele et al. 2014) with `key` as its seed. It is array arithmetic alone, so NumPy
    and CuPy give the same bits, and a GPU needs no generator to be set up.
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

    A training step reseeds it first, so the masks of any step can be drawn again: for a
    gradient check, for a resumed run, for the replay of a step.
    """

    def __init__(self):
        self.reseed(0, 0)

    def reseed(self, seed: int, step: int, part: int = 0) -> None:
        """Start the stream of this step, and this part of the batch, of the run with this seed."""
        sequence = seed_sequence(seed, "dropout", step, part)
        self.drawn = sequence.generate_state(1, np.uint64)[0], 0  # the key, and how many words

    def keep(self, shape: tuple[int, ...], p: float, like):
        """What dropout multiplies with: 0 with probability p, otherwise 1 / (1 - p); (shape).

        dtype and device are those of the array `like`. p is rounded to a multiple of 2^-16,
        because 16 random bits decide each entry.
        """
        return drawn_mask(like, shape, p, *self.reserve(math.prod(shape)))

    def reserve(self, size: int) -> tuple[Any, int, int]:
        """The key and the counters, from start to stop, of the next `size` entries."""
        key, start = self.drawn
        self.drawn = key, start - -size // 4
        return key, start, self.drawn[1]


@has_kernel
def drawn_mask(like, shape: tuple[int, ...], p: float, key, start: int, stop: int):
    """What dropout multiplies with (shape), of the words with counters from start to stop."""
    xp, size = array_module(like), math.prod(shape)
    words = splitmix64(key, xp.arange(start, stop, dtype=xp.uint64))
    return keep_mask(words.view(xp.uint16)[:size].reshape(shape), p, like)


def keep_mask(bits, p: float, like):
    """Of random bits (...) uint16 what dropout multiplies with (...)."""
    dropped = min(round(p * 65536), 65535)
    return (bits >= dropped) * like.dtype.type(65536 / (65536 - dropped))


dropout_stream = DropoutStream()
