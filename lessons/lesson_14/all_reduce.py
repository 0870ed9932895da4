"""A sum over any number of ranks, for which each rank sends less than two arrays."""

from collections.abc import Callable

import numpy as np

from numformer.errors import InputError
from numformer.execution.ranks import Ranks

TAG = 5  # of the messages with chunks


def ring_all_reduce(
    ranks: Ranks, array: np.ndarray, watch: Callable[[int, int, int], None] | None = None
) -> None:
    """Replace `array`, of one shape in all R ranks, by the sum of all: the same bits in every rank.

    The array is cut into R chunks. In each of 2 (R - 1) steps a rank sends one chunk to the next
    rank and receives another from the rank before. In the first R - 1 steps it adds what it
    receives (reduce-scatter): afterwards each rank has the sum of one chunk. In the other steps it
    keeps what it receives (all-gather). So each rank sends 2 (R - 1) / R of the array (Patarasuk
    and Yuan 2009), and not R - 1 arrays, as it would if it sent its own array to all other ranks.

    After each step, `watch(step, sent_chunk, received_chunk)` is called.
    """
    if ranks.size == 1:
        return
    if not array.flags.c_contiguous:
        raise InputError(
            "an array that is summed in place is contiguous",
            f"a view with strides {array.strides}",
            "Sum a copy of it: numpy.ascontiguousarray(array).",
        )
    size = ranks.size
    before, after = (ranks.rank - 1) % size, (ranks.rank + 1) % size
    chunks = np.array_split(array.reshape(-1), size)
    for step in range(2 * (size - 1)):
        sent, received = (ranks.rank - step) % size, (ranks.rank - step - 1) % size
        adds = step < size - 1
        arriving = np.empty_like(chunks[received]) if adds else chunks[received]
        sending = ranks.send(chunks[sent], after, TAG)
        ranks.wait({before: [ranks.receive(arriving, before, TAG)]})
        ranks.wait({after: [sending]})
        if adds:
            chunks[received] += arriving
        if watch:
            watch(step, sent, received)
