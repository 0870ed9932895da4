"""Padding, batches, and the order of pairs in training."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer import data
from numformer.data import END, PADDING, START, EpochBatches, PairBatch, TokenBatches, pad
from numformer.randomness import seed_sequence


def pairs_of(lengths) -> list:
    """A pair for each length; all ids of pair n are n + 4."""
    return [([n + 4] * length, [n + 4] * (length + 1)) for n, length in enumerate(lengths)]


def numbers_in(batch: PairBatch) -> list[int]:
    """The numbers of the pairs of `pairs_of` in a batch, in order."""
    return (batch.source[:, 0] - 4).tolist()


def mixed(count: int) -> list:
    return pairs_of(np.random.default_rng(0).integers(1, 12, count))


def test_sequences_of_ids_are_padded_on_the_right_with_0(complaint):
    padded = pad([np.array([5, 6, 7], np.int32), [], (8,), [9, 0]])
    assert_array_equal(padded, [[5, 6, 7], [0, 0, 0], [8, 0, 0], [9, 0, 0]])
    assert np.issubdtype(padded.dtype, np.integer) and pad([[], []]).shape == (2, 0)
    closed = data.pad_sources([[5, 6], [], (7,)])
    assert_array_equal(closed, [[5, 6, END], [END, 0, 0], [7, END, 0]])
    assert "at least one sequence; received none" in complaint(pad, [])
    assert "received True, which is of type bool" in complaint(pad, [[5], [True, 6]])
    assert "received 5.0, which" in complaint(pad, [[5.0]])
    assert "received [5, 0, 6]" in complaint(pad, [[7, 8, 9], [5, 0, 6]])
    assert_array_equal(pad([[5, 0], [6]], 9), [[5, 0], [6, 9]])
    assert "id 9 is padding" in complaint(pad, [[9, 0]], 9)
    without = pad([[5, 0], [6, 9]], None)
    assert_array_equal(without, [[5, 0], [6, 9]])
    assert without.dtype == padded.dtype
    assert "have the same length; received lengths from 1 to 2" in complaint(
        pad, [[5], [6, 7]], None
    )


def test_a_batch_shifts_the_target_by_one(complaint):
    pairs = [([5, 6], [7, 8, 9]), ([5], [])]
    for given in (pairs, zip(*zip(*pairs, strict=True), strict=True)):
        batch = PairBatch.of(given)
        assert_array_equal(batch.source, [[5, 6, END], [5, END, PADDING]])
        assert_array_equal(batch.target_in, [[START, 7, 8, 9], [START, 0, 0, 0]])
        assert_array_equal(batch.target_out, [[7, 8, 9, END], [END, 0, 0, 0]])
    assert pairs == [([5, 6], [7, 8, 9]), ([5], [])]
    ids = np.array([[4, 5, 6]])
    assert "Remove id 0 from" in complaint(PairBatch, ids, ids, np.array([[4, 0, 6]]))


def test_the_start_may_have_the_id_of_padding():
    """As in Marian: the start is a position of the target, and padding is not."""
    special = data.SpecialIds(padding=9, start=9, end=0, unwritten=(9,))
    batch = PairBatch.of([([5, 6], [7, 8]), ([5], []), ([5], [4])], special)
    assert_array_equal(batch.target_in, [[9, 7, 8], [9, 9, 9], [9, 4, 9]])
    assert_array_equal(batch.target_out, [[7, 8, 0], [0, 9, 9], [4, 0, 9]])
    parts = batch.split(3)
    assert batch.weight == 6 and [part.weight for part in parts] == [3, 1, 2]
    inputs = [[[5, 0]], [[9]], [[0]]], [[[5, 0]], [[9, 4]], [[4, 0]]]
    assert tuple([array.tolist() for array in part.inputs] for part in parts[1:]) == inputs
    with_padding = np.array([[9, 7, 9, 8]]), np.array([[7, 9, 8, 0]])
    with pytest.raises(ValueError, match="padding"):
        PairBatch(batch.source[:1], *with_padding, special)


@pytest.mark.parametrize(("size", "pool"), [(8, 20), (4, 2), (4, 1)])
def test_an_epoch_s_order_is_random_and_by_length_within_pools(size, pool):
    """By the length of the source, then of the target; it depends only on seed and step."""
    rng = np.random.default_rng(0)
    pairs = [([n + 4] * i, [n + 4] * j) for n, (i, j) in enumerate(rng.integers(1, 6, (90, 2)))]
    batches = {seed: EpochBatches(pairs, size, seed, *[pool] * (pool != 20)) for seed in (1, 2)}
    for seed, number in ((1, 1), (1, 0), (2, 0), (1, 0)):
        rng, expected = np.random.default_rng(seed_sequence(seed, "data", number)), []
        order = rng.permutation(90).tolist()
        for start in range(0, 90, pool * size):
            some = order[start : start + pool * size]
            expected += sorted(some, key=lambda n: (len(pairs[n][0]), len(pairs[n][1])))
        expected = [expected[start : start + size] for start in range(0, 90, size)]
        rng.shuffle(expected)
        first = number * batches[seed].count() + 1
        steps = range(first, first + batches[seed].count())
        assert [numbers_in(batches[seed](step)) for step in steps] == expected
        assert len(batches[seed]._batches) == 1  # of the latest epoch alone


@dataclasses.dataclass(frozen=True)
class Rows(data.Batch):
    ids: np.ndarray


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_split_batch_holds_every_row_once_without_needless_padding(count):
    pairs = [([4] * n, [5] * (7 - n)) for n in (1, 2, 6, 3, 5)]
    rows = Rows(np.arange(10).reshape(5, 2))
    parts = PairBatch.of(pairs).split(count)
    assert len(parts) == min(count, 5)
    for first, (part, of_rows) in enumerate(zip(parts, rows.split(count), strict=True)):
        expected = PairBatch.of(pairs[first::count])
        assert [*map(np.ndarray.tolist, part.inputs)] == [*map(np.ndarray.tolist, expected.inputs)]
        assert_array_equal(*of_rows.inputs, rows.ids[first::count])
        assert of_rows.weight == len(of_rows.ids)


def test_a_part_without_targets_is_dropped_and_one_without_a_source_keeps_one_column():
    source = np.array([[4, 5, 2], [0, 0, 0], [6, 2, 0]])
    target = np.array([[1, 4, 5], [1, 7, 0], [0, 0, 0]])
    first, second = PairBatch(source, target, target).split(3)
    assert (first.source.shape, first.weight) == ((1, 3), 3)
    assert (second.source.tolist(), second.weight) == ([[0]], 2)
    (whole,) = PairBatch(source, target * 0, target * 0).split(3)
    assert whole.source is source and whole.weight == 0


def test_batches_by_tokens_hold_every_pair_once_an_epoch():
    """Padding counts; batches of long pairs are small; any step can come first."""
    pairs = mixed(200)
    batches, again = (TokenBatches(pairs, 60, seed=3) for _ in range(2))
    real = sum(len(source) + 1 + len(target) + 1 for source, target in pairs)
    orders, rows, step = [], {}, 0
    for number in range(3):
        order, positions = [], 0
        for place in range(batches.count(number)):
            step += 1
            batch = batches(step)
            assert batches.place(step) == (number, place)
            assert max(batch.target_in.size, batch.source.size) <= 60
            rows.setdefault(batch.target_in.shape[1], []).append(len(batch.source))
            positions += batch.source.size + batch.target_in.size
            order += numbers_in(batch)
        assert sorted(order) == list(range(200)) and order not in orders
        orders.append(order)
        assert batches.padding_share(number) == pytest.approx(1 - real / positions)
        assert 0 < batches.padding_share(number) < 0.3
    assert max(rows[13]) == 4 < 10 < max(rows[min(rows)])
    assert_array_equal(again(step).source, batch.source)


def test_a_batch_by_tokens_is_full_if_one_more_pair_would_not_fit():
    """A pair of n ids has n + 2 on its longer side, with the end id."""
    pairs = pairs_of([3, 3, 3, 2, 2, 2, 2, 4, 2])
    assert TokenBatches(pairs, 15, 3).pool == EpochBatches(pairs, 4, 3).pool == 20
    batches = TokenBatches(pairs, 15, seed=3, pool=2)
    assert batches._divide(range(9), pairs) == [[0, 1, 2], [3, 4, 5], [6, 7], [8]]
    longer = pairs_of([5, 5, 1, 1, 1, 1, 1, 1])
    assert batches._divide(range(8), longer) == [[0, 1], [2, 3, 4, 5, 6], [7]]
    assert batches._pool_size() == round(2 * 15 / np.mean([5, 5, 5, 4, 4, 4, 4, 6, 4])) == 7


def test_each_epoch_may_have_other_pairs():
    """They are requested once an epoch, and keep their places."""
    pairs, asked = mixed(30), []

    def sample_pairs(epoch):
        asked.append(epoch)
        return [([n + 4] * (epoch + 1), target) for n, (_, target) in enumerate(pairs)]

    batches, usual = (TokenBatches(pairs, 40, 1, sample_pairs=how) for how in (sample_pairs, None))
    for step in range(1, 2 * batches.count() + 1):
        batch, epoch = batches(step), batches.place(step)[0]
        assert numbers_in(batch) == numbers_in(usual(step))
        assert batch.source.shape[1] == epoch + 2
    assert asked == [0, 1]


def test_no_data_empty_batches_and_a_pair_longer_than_a_batch_are_refused(complaint):
    for count, size in ((0, 8), (5, 0)):
        message = complaint(EpochBatches, mixed(count), size, seed=1)
        assert f"and a batch size of at least 1; received {count} pairs" in message
    assert "a pair of 13" in complaint(TokenBatches, pairs_of([3, 11]), 12, 1)
    batches = TokenBatches(pairs_of([3, 11]), 13, 1)
    assert batches.count() == 2
    assert batches._divide([0, 1], pairs_of([19, 3])) == [[0], [1]]  # another cut may be longer
