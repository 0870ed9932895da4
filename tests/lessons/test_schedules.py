"""The orders of a pipeline, and the sum around a ring."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lessons.lesson_14.all_reduce import ring_all_reduce
from lessons.lesson_14.pipeline import all_forward_all_backward, bubble, one_forward_one_backward
from numformer.errors import InputError
from numformer.execution.ranks import run_ranks

SCHEDULES = [one_forward_one_backward, all_forward_all_backward]
SIZES = [(1, 1), (1, 5), (2, 1), (2, 4), (3, 2), (4, 4), (4, 9)]


def length(orders: list) -> int:
    """How many units of time all stages need, where every forward and every backward takes one."""
    ends: dict[tuple, int] = {}
    free, places = [0] * len(orders), [0] * len(orders)
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        before = len(ends)
        for stage, order in enumerate(orders):
            if places[stage] == len(order):
                continue
            kind, m = order[places[stage]]
            last = stage == len(orders) - 1
            needed = (kind, m, stage - 1 if kind == "forward" else stage + 1)
            if kind == "forward" and stage == 0:
                needed = None
            if kind == "backward" and last:
                needed = ("forward", m, stage)
            if needed is None or needed in ends:
                free[stage] = max(free[stage], ends.get(needed, 0)) + 1
                ends[kind, m, stage] = free[stage]
                places[stage] += 1
        assert len(ends) > before, "every stage waits for another"
    return max(free)


def most_kept(order: list) -> int:
    kept = np.cumsum([1 if kind == "forward" else -1 for kind, _ in order])
    assert kept[-1] == 0
    return kept.max()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_a_schedule_does_everything_once_and_waits_as_long_as_the_formula_says(
    schedule, stages, micro_batches
):
    orders = schedule(stages, micro_batches)
    assert len(orders) == stages
    numbers = range(micro_batches)
    everything = {(kind, m) for kind in ("forward", "backward") for m in numbers}
    for order in orders:
        assert len(order) == len(everything) and {*order} == everything
        assert [m for kind, m in order if kind == "forward"] == [*numbers]
    time = length(orders)
    assert_allclose(1 - 2 * micro_batches / time, bubble(stages, micro_batches), rtol=1e-12)


def test_one_forward_one_backward_keeps_few_and_the_other_all():
    for stage, order in enumerate(one_forward_one_backward(4, 9)):
        assert most_kept(order) == 4 - stage
    assert [most_kept(order) for order in one_forward_one_backward(4, 2)] == [2, 2, 2, 1]
    assert [most_kept(order) for order in all_forward_all_backward(4, 9)] == [9] * 4


def test_the_orders_of_two_stages_as_in_the_papers():
    f, b = "forward", "backward"
    first, last = one_forward_one_backward(2, 3)
    assert first == [(f, 0), (f, 1), (b, 0), (f, 2), (b, 1), (b, 2)]
    assert last == [(f, 0), (b, 0), (f, 1), (b, 1), (f, 2), (b, 2)]
    assert all_forward_all_backward(2, 2) == [[(f, 0), (f, 1), (b, 1), (b, 0)]] * 2
    assert bubble(4, 8) == 3 / 11 and bubble(1, 1) == 0


@pytest.mark.parametrize("function", [*SCHEDULES, bubble])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_a_pipeline_without_stages_or_batches_is_refused(function, sizes):
    with pytest.raises(InputError, match="stages and micro-batches; received"):
        function(*sizes)


@pytest.mark.parametrize("shape", [(5, 7), (2,), (0, 3), ()])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_ring_sums_with_the_same_bits_in_every_rank(count, shape):
    arrays = np.random.default_rng(0).standard_normal((count, *shape))

    def work(ranks):
        array, steps = np.array(arrays[ranks.rank]), []
        ring_all_reduce(ranks, array, lambda *step: steps.append(step))
        return array, steps

    results = run_ranks(count, work)
    for rank, (array, steps) in enumerate(results):
        assert_allclose(array, arrays.sum(0), rtol=1e-12, atol=1e-14)
        assert_array_equal(array, results[0][0])
        assert [step for step, _, _ in steps] == [*range(2 * (count - 1))]
        for step, sent, received in steps:
            assert received == (sent - 1) % count
            assert results[(rank + 1) % count][1][step][2] == sent  # the next one receives it
    if count == 3:
        assert [sent for _, sent, _ in results[1][1]] == [1, 0, 2, 1]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_ring_sends_twice_the_array_less_two_chunks(count):
    def work(ranks):
        sizes, send = [], ranks.send
        ranks.send = lambda array, *to: sizes.append(array.size) or send(array, *to)
        ring_all_reduce(ranks, np.ones(12 * count))
        return sizes

    assert run_ranks(count, work) == [[12] * (2 * (count - 1))] * count


def test_a_ring_refuses_what_it_could_not_write_into():
    with pytest.raises(InputError, match="in place is contiguous; received a view with strides"):
        run_ranks(2, lambda ranks: ring_all_reduce(ranks, np.ones((3, 4)).T))
