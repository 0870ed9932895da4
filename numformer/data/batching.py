"""From lists of ids to padded batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from numformer.backend import seed_sequence
from numformer.data.vocabulary import END, PADDING, START
from numformer.errors import InputError

Pair = tuple[Sequence[int], Sequence[int]]


def pad(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """Sequences of ids -> (B, longest), filled up with 0 on the right.

    Raises InputError for what are no integers, which NumPy would turn into some, and for no
    sequence at all.
    """
    if not len(sequences):
        raise InputError(
            "a batch holds at least one sequence", "none", "Leave this batch out, or give it data."
        )
    ids = [*chain.from_iterable(sequences)]
    wrong = [kind for kind in {*map(type, ids)} if not _is_integer(kind)]
    if wrong:
        first = next(each for each in ids if type(each) in wrong)
        raise InputError(
            "sequences are made of ids, which are integers",
            f"{first!r:.60}, which is of type {type(first).__name__}",
            "Encode symbols by Vocabulary(symbols).encode(sequence); make numbers int.",
        )
    lengths = np.array([*map(len, sequences)])
    padded = np.full((len(sequences), lengths.max()), PADDING)
    padded[np.arange(lengths.max()) < lengths[:, None]] = ids
    return padded


def _is_integer(kind: type) -> bool:
    """Whether ids may be of this type; True and False are no ids, although they are integers."""
    return issubclass(kind, int | np.integer) and kind is not bool


def pad_sources(sources: Sequence[Sequence[int]]) -> np.ndarray:
    """Sources -> (B, S): each closed by the end id, which also shows the encoder where it ends.

    Raises InputError as `pad` does.
    """
    return pad([[*source, END] for source in sources])


@dataclass(frozen=True)
class Batch:
    """The host arrays that a model's `predictions` takes, in its order; all begin with the batch.

    What a kind of batch holds are its fields. Each kind says how much it counts.
    """

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """The arrays, in the order of the model's arguments."""
        return tuple(vars(self).values())

    @property
    def weight(self) -> int:
        """How many predictions its mean loss is taken over, and so how much it counts."""
        return len(self.inputs[0])

    def split(self, count: int) -> list["Batch"]:
        """The batch dealt out in up to `count` batches, those left out that count nothing."""
        dealt = [
            type(self)(*(array[first::count] for array in self.inputs)) for first in range(count)
        ]
        return [part.trimmed() for part in dealt if part.weight] or [self]

    def trimmed(self) -> "Batch":
        """The same without what a smaller batch does not need."""
        return self


@dataclass(frozen=True)
class PairBatch(Batch):
    """source (B, S), target_in (B, T): start id and target, target_out (B, T): target, end id.

    Raises InputError where padding stands in one of target_in and target_out only.
    """

    source: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray

    def __post_init__(self):
        if ((self.target_in != PADDING) != (self.target_out != PADDING)).any():
            raise InputError(
                "target_in and target_out have padding (id 0) at the same places, after the target",
                "a batch that has not",
                "Leave id 0 out of the targets.",
            )

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "PairBatch":
        """Pad (source, target) pairs of ids. Raises InputError as `pad` does."""
        pairs = list(pairs)
        targets = [target for _, target in pairs]
        return cls(
            source=pad_sources([source for source, _ in pairs]),
            target_in=pad([[START, *target] for target in targets]),
            target_out=pad([[*target, END] for target in targets]),
        )

    @property
    def weight(self) -> int:
        """The number of real target positions."""
        return np.count_nonzero(self.target_out != PADDING)

    def trimmed(self) -> "PairBatch":
        """The same, each side as short as its longest sequence."""
        return PairBatch(*map(_trim, self.inputs))


def _trim(ids: np.ndarray) -> np.ndarray:
    """ids (B, T) without the last columns that are all padding; at least one is left."""
    filled = np.flatnonzero((ids != PADDING).any(axis=0))
    return ids[:, : filled[-1] + 1 if len(filled) else 1]


class EpochBatches:
    """Batches of `pairs`, every pair once an epoch, pairs of similar length together.

    `batches(step)` depends on nothing but the seed and the step (from 1), so a resumed run goes on
    exactly where it was. Each epoch shuffles the pairs, sorts them by length within pools of
    `pool` batches (little padding, still random company), and shuffles the batches.
    """

    def __init__(self, pairs: Sequence[Pair], batch_size: int, seed: int, pool: int = 20):
        if not pairs or batch_size < 1:
            raise InputError(
                "training needs at least one pair, and batches of at least 1",
                f"{len(pairs)} pairs, batch size {batch_size}",
                "Give it data.",
            )
        self.pairs, self.batch_size, self.seed, self.pool = pairs, batch_size, seed, pool
        self.per_epoch = -(-len(pairs) // batch_size)
        self._batches: dict[int, list[list[int]]] = {}  # of the latest epoch

    def __call__(self, step: int) -> PairBatch:
        epoch, place = divmod(step - 1, self.per_epoch)
        if epoch not in self._batches:
            self._batches = {epoch: self._shuffle(epoch)}
        return PairBatch.of([self.pairs[index] for index in self._batches[epoch][place]])

    def _shuffle(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", epoch))
        order = rng.permutation(len(self.pairs))
        size = self.pool * self.batch_size
        order = [
            index
            for start in range(0, len(order), size)
            for index in sorted(
                order[start : start + size], key=lambda i: tuple(map(len, self.pairs[i]))
            )
        ]
        batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]
        rng.shuffle(batches)
        return batches
