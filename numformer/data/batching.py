"""Batches: lists of ids of different lengths, padded to the length of the longest."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from numformer.data.vocabulary import DEFAULT_IDS, PADDING, SpecialIds
from numformer.errors import InputError
from numformer.randomness import seed_sequence

Pair = tuple[Sequence[int], Sequence[int]]


def pad(sequences: Sequence[Sequence[int]], padding: int | None = PADDING) -> np.ndarray:
    """B sequences of ids -> (B, longest length), padded on the right with the id `padding`.

    Raises InputError for an empty batch, for ids that are not integers (NumPy would convert them),
    for the id `padding` within a sequence, and for unequal lengths if `padding` is None.
    """
    if not len(sequences):
        raise InputError(
            "a batch has at least one sequence", "none", "Leave this batch out, or add data."
        )
    ids = [*chain.from_iterable(sequences)]
    other_types = [kind for kind in {*map(type, ids)} if not _is_id_type(kind)]
    if other_types:
        first = next(number for number in ids if type(number) in other_types)
        raise InputError(
            "sequences consist of ids, which are integers",
            f"{first!r:.60}, which is of type {type(first).__name__}",
            "Encode symbols by Vocabulary(symbols).encode(sequence); convert numbers to int.",
        )
    lengths = np.array([*map(len, sequences)])
    if padding is None and lengths.min() < lengths.max():
        raise InputError(
            "without a padding id all sequences have the same length",
            f"lengths from {lengths.min()} to {lengths.max()}",
            "Put sequences of other lengths into other batches.",
        )
    padded = np.full((len(sequences), lengths.max()), padding or 0)
    padded[np.arange(lengths.max()) < lengths[:, None]] = ids
    within = (padded[:, :-1] == padding) & (padded[:, 1:] != padding)
    if within.any():
        raise InputError(
            f"id {padding} is padding, which comes after a sequence and not within it",
            f"{padded[within.any(axis=-1)][0].tolist()!r:.80}",
            "Leave it out: a Vocabulary's symbols have ids from 4 on.",
        )
    return padded


def _is_id_type(kind: type) -> bool:
    """Whether ids may have this type; bool is excluded, although it is a subclass of int."""
    return issubclass(kind, int | np.integer) and kind is not bool


def pad_sources(sources: Sequence[Sequence[int]], special: SpecialIds = DEFAULT_IDS) -> np.ndarray:
    """Sources -> (B, S), padded; an end id after each source shows the encoder where it ends.

    Raises InputError as `pad` does.
    """
    return pad([[*source, *special.closing] for source in sources], special.padding)


@dataclass(frozen=True)
class Batch:
    """Arrays (B, ...) on the host: one field for each argument of `Model.predictions`, in order."""

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """The arrays, in the order of the model's arguments."""
        return tuple(value for value in vars(self).values() if isinstance(value, np.ndarray))

    def with_arrays(self, *arrays: np.ndarray) -> "Batch":
        """Return a copy of this batch with other arrays, in the same order."""
        return replace(self, **dict(zip(vars(self), arrays, strict=False)))

    @property
    def weight(self) -> int:
        """The weight of this batch's mean loss: the number of predictions that it averages."""
        return len(self.inputs[0])

    def split(self, count: int) -> list["Batch"]:
        """Distribute the rows over at most `count` batches, and drop batches of weight 0."""
        parts = [
            self.with_arrays(*(array[first::count] for array in self.inputs))
            for first in range(count)
        ]
        return [part.trim() for part in parts if part.weight] or [self]

    def trim(self) -> "Batch":
        """Return the batch without columns that are padding in every row."""
        return self


@dataclass(frozen=True)
class PairBatch(Batch):
    """source (B, S); target_in (B, T): start id, target; target_out (B, T): target, end id.

    Raises InputError unless target_in and target_out have padding at the same places.
    """

    source: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    special: SpecialIds = DEFAULT_IDS

    def __post_init__(self):
        padding = self.special.padding
        if (self.special.real(self.target_in) != (self.target_out != padding)).any():
            raise InputError(
                f"target_in and target_out have padding (id {padding}) at the same places, after "
                "the target",
                "a batch in which these places differ",
                f"Remove id {padding} from the targets.",
            )

    @classmethod
    def of(cls, pairs: Sequence[Pair], special: SpecialIds = DEFAULT_IDS) -> "PairBatch":
        """Make a batch of (source, target) pairs of ids. Raises InputError as `pad` does."""
        pairs = list(pairs)
        targets, padding = [target for _, target in pairs], special.padding
        starts = np.full((len(pairs), 1), special.start)
        return cls(
            source=pad_sources([source for source, _ in pairs], special),
            target_in=np.concatenate([starts, pad(targets, padding)], axis=-1),
            target_out=pad([[*target, *special.closing] for target in targets], padding),
            special=special,
        )

    @property
    def weight(self) -> int:
        """The number of real target positions."""
        return int(np.count_nonzero(self.target_out != self.special.padding))

    def trim(self) -> "PairBatch":
        widths = [_width(self.special.real(ids)) for ids in self.inputs]
        if widths == [ids.shape[1] for ids in self.inputs]:
            return self
        arrays = [ids[:, :width] for ids, width in zip(self.inputs, widths, strict=True)]
        return self.with_arrays(*arrays)  # type: ignore[return-value]


def _width(real: np.ndarray) -> int:
    """real (B, T), False at padding -> the longest row's length without padding, at least 1."""
    if real[:, -1:].any():
        return real.shape[1]
    columns = np.flatnonzero(real.any(axis=0))
    return columns[-1] + 1 if len(columns) else 1


class EpochBatches:
    """Batches of (source, target) pairs of similar length; each epoch has every pair once.

    `batches(step)`, for steps from 1, depends only on the seed and the step, so a resumed run gets
    the same batches. Each epoch shuffles the pairs, sorts them by length within pools of `pool`
    batches, so that batches need little padding but stay random, and shuffles the batches.
    """

    special: SpecialIds = DEFAULT_IDS
    """The special ids of the model."""

    def __init__(self, pairs: Sequence[Pair], batch_size: int, seed: int, pool: int = 20):
        if not pairs or batch_size < 1:
            raise InputError(
                "training needs at least one pair, and a batch size of at least 1",
                f"{len(pairs)} pairs, batch size {batch_size}",
                "Add data.",
            )
        self.pairs, self.batch_size, self.seed, self.pool = pairs, batch_size, seed, pool
        self.ends = [0]  # for each epoch counted so far, the number of batches up to its end
        self._batches: dict[int, list[list[int]]] = {}  # of the latest epoch, as indices of pairs

    def __call__(self, step: int) -> PairBatch:
        epoch, place = self.place(step)
        pairs = self.epoch_pairs(epoch)
        return PairBatch.of([pairs[n] for n in self._epoch(epoch)[place]], self.special)

    def place(self, step: int) -> tuple[int, int]:
        """Return the epoch (from 0) of a step (from 1), and the index of its batch in the epoch."""
        while self.ends[-1] < step:
            self.ends.append(self.ends[-1] + self.count(len(self.ends) - 1))
        epoch = bisect.bisect_left(self.ends, step) - 1
        return epoch, step - 1 - self.ends[epoch]

    def count(self, epoch: int = 0) -> int:
        """Return the number of batches of an epoch."""
        return len(self._epoch(epoch))

    def epoch_pairs(self, epoch: int) -> Sequence[Pair]:
        """Return the pairs of an epoch."""
        return self.pairs

    def _epoch(self, epoch: int) -> list[list[int]]:
        if epoch not in self._batches:
            self._batches = {epoch: self._shuffle(epoch)}
        return self._batches[epoch]

    def _shuffle(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", epoch))
        pairs = self.epoch_pairs(epoch)
        shuffled = rng.permutation(len(pairs))
        size = self._pool_size()
        order = [
            index
            for start in range(0, len(pairs), size)
            for index in sorted(
                shuffled[start : start + size], key=lambda i: tuple(map(len, pairs[i]))
            )
        ]
        batches = self._divide(order, pairs)
        rng.shuffle(batches)
        return batches

    def _pool_size(self) -> int:
        """Return the number of pairs that are sorted together."""
        return self.pool * self.batch_size

    def _divide(self, order: list[int], pairs: Sequence[Pair]) -> list[list[int]]:
        """Divide the pairs' indices, in this order, into batches."""
        size = self.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]


class TokenBatches(EpochBatches):
    """EpochBatches of up to `max_tokens` tokens per side, padding included (section 5.1).

    A batch has few long sentences or many short ones, so all batches take about the same time and
    memory. `sample_pairs(epoch)` returns an epoch's pairs, for example with words split into other
    subwords. A resumed run calls `sample_pairs` for each earlier epoch whose end is not yet in
    `ends`, to count that epoch's batches.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        max_tokens: int,
        seed: int,
        pool: int = 20,
        sample_pairs: Callable[[int], Sequence[Pair]] | None = None,
    ):
        super().__init__(pairs, 1, seed, pool)
        self.max_tokens, self.sample_pairs = max_tokens, sample_pairs
        lengths = [*map(_tokens, pairs)]
        self.mean_length = sum(lengths) / len(lengths)
        if max(lengths) > max_tokens:
            raise InputError(
                f"a batch of {max_tokens} tokens has room for every pair",
                f"a pair of {max(lengths)}",
                "Allow more tokens (--max-tokens), or leave long sentences out.",
            )
        self._sampled_pairs: dict[int, Sequence[Pair]] = {}  # the latest epoch's pairs

    def epoch_pairs(self, epoch: int) -> Sequence[Pair]:
        if self.sample_pairs is None:
            return self.pairs
        if epoch not in self._sampled_pairs:
            self._sampled_pairs = {epoch: self.sample_pairs(epoch)}
        return self._sampled_pairs[epoch]

    def padding_share(self, epoch: int) -> float:
        """Return the share of padding among all positions of an epoch's batches, on both sides."""
        pairs = self.epoch_pairs(epoch)
        lengths = [
            [len(pairs[index][side]) + 1 for index in batch]
            for side in (0, 1)
            for batch in self._epoch(epoch)
        ]
        return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)

    def _pool_size(self) -> int:
        return round(self.pool * self.max_tokens / self.mean_length)

    def _divide(self, order, pairs):
        batches: list[list[int]] = [[]]
        longest = 0
        for index in order:
            tokens = _tokens(pairs[index])
            if batches[-1] and max(longest, tokens) * (len(batches[-1]) + 1) > self.max_tokens:
                batches.append([])
                longest = 0
            batches[-1].append(index)
            longest = max(longest, tokens)
        return batches


def _tokens(pair: Pair) -> int:
    """Return the number of positions of the longer side, including the start or end id."""
    return max(map(len, pair)) + 1
