"""From lists of ids to padded batches."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from numformer.data.vocabulary import OURS, PADDING, Special
from numformer.errors import InputError
from numformer.randomness import seed_sequence

Pair = tuple[Sequence[int], Sequence[int]]


def pad(sequences: Sequence[Sequence[int]], padding: int | None = PADDING) -> np.ndarray:
    """Sequences of ids -> (B, longest), filled up with the padding id, 0, on the right.

    Raises InputError for what are no integers, which NumPy would turn into some, for a padding id
    that others follow, for other lengths where there is none, and for no sequence at all.
    """
    if not len(sequences):
        raise InputError(
            "a batch holds at least one sequence", "none", "Leave this batch out, or give it data."
        )
    ids = [*chain.from_iterable(sequences)]
    wrong = [kind for kind in {*map(type, ids)} if not _is_integer(kind)]
    if wrong:
        first = next(number for number in ids if type(number) in wrong)
        raise InputError(
            "sequences are made of ids, which are integers",
            f"{first!r:.60}, which is of type {type(first).__name__}",
            "Encode symbols by Vocabulary(symbols).encode(sequence); make numbers int.",
        )
    lengths = np.array([*map(len, sequences)])
    if padding is None and lengths.min() < lengths.max():
        raise InputError(
            "without a padding id sequences are of one length",
            f"lengths from {lengths.min()} to {lengths.max()}",
            "Make a batch of each.",
        )
    padded = np.full((len(sequences), lengths.max()), padding or 0)
    padded[np.arange(lengths.max()) < lengths[:, None]] = ids
    within = (padded[:, :-1] == padding) & (padded[:, 1:] != padding)
    if within.any():
        raise InputError(
            f"id {padding} is padding, which stands after a sequence and not within it",
            f"{padded[within.any(axis=-1)][0].tolist()!r:.80}",
            "Leave it out: a Vocabulary's symbols have ids from 4 on.",
        )
    return padded


def _is_integer(kind: type) -> bool:
    """Whether ids may be of this type; True and False are no ids, although they are integers."""
    return issubclass(kind, int | np.integer) and kind is not bool


def pad_sources(sources: Sequence[Sequence[int]], special: Special = OURS) -> np.ndarray:
    """Sources -> (B, S): each closed by the end id, which also shows the encoder where it ends.

    Raises InputError as `pad` does.
    """
    return pad([[*source, *special.closing] for source in sources], special.padding)


@dataclass(frozen=True)
class Batch:
    """The host arrays that a model's `predictions` takes, in its order; all begin with the batch.

    What a kind of batch holds are its fields. Each kind says how much it counts.
    """

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """The arrays, in the order of the model's arguments."""
        return tuple(value for value in vars(self).values() if isinstance(value, np.ndarray))

    def of_arrays(self, *arrays: np.ndarray) -> "Batch":
        """The same with other arrays."""
        return replace(self, **dict(zip(vars(self), arrays, strict=False)))

    @property
    def weight(self) -> int:
        """How many predictions its mean loss is taken over, and so how much it counts."""
        return len(self.inputs[0])

    def split(self, count: int) -> list["Batch"]:
        """The batch dealt out in up to `count` batches, those left out that count nothing."""
        dealt = [
            self.of_arrays(*(array[first::count] for array in self.inputs))
            for first in range(count)
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
    special: Special = OURS

    def __post_init__(self):
        padding = self.special.padding
        if (self.special.real(self.target_in) != (self.target_out != padding)).any():
            raise InputError(
                f"target_in and target_out have padding (id {padding}) at the same places, after "
                "the target",
                "a batch that has not",
                f"Leave id {padding} out of the targets.",
            )

    @classmethod
    def of(cls, pairs: Sequence[Pair], special: Special = OURS) -> "PairBatch":
        """Pad (source, target) pairs of ids. Raises InputError as `pad` does."""
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

    def trimmed(self) -> "PairBatch":
        """The same, each side as short as its longest sequence."""
        filled = [_filled(self.special.real(ids)) for ids in self.inputs]
        if filled == [ids.shape[1] for ids in self.inputs]:
            return self
        trimmed = [ids[:, :stop] for ids, stop in zip(self.inputs, filled, strict=True)]
        return self.of_arrays(*trimmed)  # type: ignore[return-value]


def _filled(real: np.ndarray) -> int:
    """real (B, T) -> how many columns are left without the last ones of padding; at least one."""
    if real[:, -1:].any():
        return real.shape[1]
    filled = np.flatnonzero(real.any(axis=0))
    return filled[-1] + 1 if len(filled) else 1


class EpochBatches:
    """Batches of `pairs`, every pair once an epoch, pairs of similar length together.

    `batches(step)` depends on nothing but the seed and the step (from 1), so a resumed run goes on
    exactly where it was. Each epoch shuffles the pairs, sorts them by length within pools of
    `pool` batches (little padding, still random company), and shuffles the batches.
    """

    special: Special = OURS
    """The ids that mean something else than a symbol to the model."""

    def __init__(self, pairs: Sequence[Pair], batch_size: int, seed: int, pool: int = 20):
        if not pairs or batch_size < 1:
            raise InputError(
                "training needs at least one pair, and batches of at least 1",
                f"{len(pairs)} pairs, batch size {batch_size}",
                "Give it data.",
            )
        self.pairs, self.batch_size, self.seed, self.pool = pairs, batch_size, seed, pool
        self.ends = [0]  # how many batches the epochs have up to each of them, as far as is known
        self._batches: dict[int, list[list[int]]] = {}  # of the latest epoch

    def __call__(self, step: int) -> PairBatch:
        epoch, place = self.place(step)
        pairs = self.of_epoch(epoch)
        return PairBatch.of([pairs[n] for n in self._epoch(epoch)[place]], self.special)

    def place(self, step: int) -> tuple[int, int]:
        """In which epoch a step (from 1) lies, and which of its batches it has (both from 0)."""
        while self.ends[-1] < step:
            self.ends.append(self.ends[-1] + self.count(len(self.ends) - 1))
        epoch = bisect.bisect_left(self.ends, step) - 1
        return epoch, step - 1 - self.ends[epoch]

    def count(self, epoch: int = 0) -> int:
        """How many batches an epoch has."""
        return len(self._epoch(epoch))

    def of_epoch(self, epoch: int) -> Sequence[Pair]:
        """The pairs as this epoch has them."""
        return self.pairs

    def _epoch(self, epoch: int) -> list[list[int]]:
        if epoch not in self._batches:
            self._batches = {epoch: self._shuffle(epoch)}
        return self._batches[epoch]

    def _shuffle(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", epoch))
        pairs = self.of_epoch(epoch)
        shuffled = rng.permutation(len(pairs))
        size = self._in_pool()
        order = [
            index
            for start in range(0, len(pairs), size)
            for index in sorted(
                shuffled[start : start + size], key=lambda i: tuple(map(len, pairs[i]))
            )
        ]
        batches = self._cut(order, pairs)
        rng.shuffle(batches)
        return batches

    def _in_pool(self) -> int:
        """How many pairs are sorted together."""
        return self.pool * self.batch_size

    def _cut(self, order: list[int], pairs: Sequence[Pair]) -> list[list[int]]:
        """An order of the pairs, cut into batches."""
        size = self.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]


class TokenBatches(EpochBatches):
    """As EpochBatches, each batch of up to `max_tokens` tokens a side, padding included (5.1).

    Long sentences are in company of few, short ones of many, so each batch takes about as long and
    as much memory. `sampled(epoch)` gives the pairs of an epoch anew, such as other cuts into
    subwords; a run that is resumed asks for all epochs up to its own, to know where they end, but
    for those whose `ends` it is given.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        max_tokens: int,
        seed: int,
        pool: int = 20,
        sampled: Callable[[int], Sequence[Pair]] | None = None,
    ):
        super().__init__(pairs, 1, seed, pool)
        self.max_tokens, self.sampled = max_tokens, sampled
        lengths = [*map(_tokens, pairs)]
        self.mean_length = sum(lengths) / len(lengths)
        if max(lengths) > max_tokens:
            raise InputError(
                f"a batch of {max_tokens} tokens holds each pair",
                f"a pair of {max(lengths)}",
                "Ask for more tokens (--max-tokens), or leave long sentences out.",
            )
        self._sampled: dict[int, Sequence[Pair]] = {}  # of the latest epoch

    def of_epoch(self, epoch: int) -> Sequence[Pair]:
        if self.sampled is None:
            return self.pairs
        if epoch not in self._sampled:
            self._sampled = {epoch: self.sampled(epoch)}
        return self._sampled[epoch]

    def padding_share(self, epoch: int) -> float:
        """Which share of the positions of an epoch's batches, both sides, is padding."""
        pairs = self.of_epoch(epoch)
        lengths = [
            [len(pairs[index][side]) + 1 for index in batch]
            for side in (0, 1)
            for batch in self._epoch(epoch)
        ]
        return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)

    def _in_pool(self) -> int:
        return round(self.pool * self.max_tokens / self.mean_length)

    def _cut(self, order, pairs):
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
    """Positions of the longer side, with the id of the start or of the end."""
    return max(map(len, pair)) + 1
