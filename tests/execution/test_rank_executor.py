"""Parts that ranks compute: the steps of one process, to the last bit, however they are dealt.

The ranks are threads here; as processes of MPI they are in test_mpi.py.
"""

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from numformer.data.batching import PairBatch
from numformer.execution import rank_executor
from numformer.execution.in_turn import InTurn
from numformer.execution.rank_executor import RankExecutor
from numformer.execution.ranks import Ranks, Threads, run_ranks
from numformer.layer import pack
from numformer.models import Config, Objective, Transformer
from numformer.optimization import clipping
from numformer.optimization.optimizers import OPTIMIZERS
from numformer.optimization.recipe import Recipe

CONFIG = Config.base(11, d_model=8, d_ff=12, heads=2, layers=1, p_drop=0.0)
WORDS = [([4, 5, 6, 7], [7]), ([8], [9, 9, 4]), ([5, 5], []), ([6, 4, 9], [5, 4, 10, 4, 8])]
WORDS += [([7, 7], [8, 10])]
WORDS *= 2
SCALE = np.array(2.0**8, np.float32)  # with which nothing overflows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 100 entries, so that a small model has several for each rank."""

    def blocks_of(size: int) -> list[slice]:
        return [slice(first, min(first + 100, size)) for first in range(0, size, 100)]

    for module in (clipping, rank_executor):
        monkeypatch.setattr(module, "blocks_of", blocks_of)


def executor_of(count: int, ranks: Ranks | None = None, optimizer: str = "adam") -> InTurn:
    model = Transformer(CONFIG, seed=3)
    flat = pack(model, np.float32)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    settings = Objective(model, 0.3), Recipe(optimizer=optimizer).make_optimizer(flat), 7, count
    return RankExecutor(*settings, ranks) if ranks else InTurn(*settings)


def steps(executor: InTurn, clip: float | None, scale: np.ndarray | None = None) -> list:
    """Loss, norm and weights at each of three steps, and in the end Adam's vectors."""
    flat, arrays = executor.optimizer.parameters, []
    batches = PairBatch.of(WORDS), [PairBatch.of(WORDS[:2]), PairBatch.of(WORDS)]
    for step, batch in enumerate((*batches, PairBatch.of(WORDS[:1])), start=1):
        arrays += [executor.gradient(step, batch, scale), executor.clip(clip)]
        executor.update(rate=0.01 * step)
        arrays.append(flat.data.copy())
    assert executor.optimizer.steps == 3
    return [*arrays, *executor.optimizer_state().values()]


def run_rank(
    ranks: Ranks,
    count: int,
    clip: float | None,
    overlap: bool = True,
    scale: np.ndarray | None = None,
    optimizer: str = "adam",
) -> tuple:
    """What rank 0 saw, or else what is left of the others, and the bytes that were sent."""
    executor = executor_of(count, ranks, optimizer)
    assert isinstance(executor, RankExecutor)
    assert executor.overlap  # it is the default
    executor.overlap = overlap
    if ranks.rank:
        assert executor.serve([1] if ranks.rank == 1 else []) == {"step": 3}
        return executor.optimizer.parameters.data, executor.bytes_sent
    began = time.perf_counter()
    arrays = steps(executor, clip, scale)
    assert 0 < executor.seconds_waiting < time.perf_counter() - began
    assert executor.interrupted == (ranks.size > 1)
    executor.optimizer.parameters.data *= 2  # as if other weights were the best
    executor.end_run({"step": 3})
    return arrays, executor.bytes_sent


@pytest.mark.parametrize(
    ("size", "count", "clip", "overlap", "scale"),
    [
        (2, 2, None, True, None),
        (2, 4, 0.5, True, None),
        (3, 4, 0.5, False, None),
        (4, 4, 0.5, True, SCALE),
        (3, 2, 0.5, True, None),  # one rank has no part
        (2, 3, 0.5, True, None),  # one rank has two branches of the sum
        (2, 7, 0.5, False, None),
    ],
)
def test_ranks_take_the_steps_of_one_process(size, count, clip, overlap, scale):
    expected = steps(executor_of(count), clip, scale)
    results = run_ranks(
        size, lambda ranks: run_rank(ranks, count, clip, overlap, scale), timeout=20
    )
    (arrays, _), *others = results
    for array, other in zip(arrays, expected, strict=True):
        assert np.array_equal(array, other)
        assert np.asarray(array).dtype == np.float32
    for weights, _ in others:
        assert np.array_equal(weights, 2 * arrays[8])  # the best
    assert all(sent for _, sent in results)


def test_a_vector_is_overwritten_only_after_it_was_sent(monkeypatch):
    """The ranks have two and three branches; a message is delayed before it copies the vector."""

    def send(ranks, array, to, tag=0):
        def leave():
            time.sleep(0.001)
            ranks._queue(ranks.rank, to, tag).put(array.copy())

        return sending.submit(leave).done

    sending = ThreadPoolExecutor(1)
    monkeypatch.setattr(Threads, "send", send)
    (arrays, _), _ = run_ranks(2, lambda ranks: run_rank(ranks, 10, 0.5), timeout=20)
    for array, other in zip(arrays, steps(executor_of(10), 0.5), strict=True):
        assert np.array_equal(array, other)


def test_every_message_has_left_in_the_end_and_is_asked_during_backward(answers, monkeypatch):
    """MPI sends only while it is called."""
    asked, wait = [], RankExecutor._wait

    def noted(self, pending):
        messages = [done for messages in pending.values() for done in messages]
        asked.extend(len(done.answers) for done in messages if hasattr(done, "answers"))
        wait(self, pending)

    monkeypatch.setattr(RankExecutor, "_wait", noted)
    run_ranks(2, lambda ranks: run_rank(ranks, 4, 0.5))
    assert all(answer[-1] for answer in answers) and max(asked) == 2


def shortened(data, grad, length, *, step, rate):
    """A rule that is not elementwise, with a state: a parameter's step is shorter than `rate`."""
    length += np.sqrt((grad * grad).sum())
    data -= rate * grad / (1 + length)


@pytest.mark.parametrize(
    ("size", "count", "optimizer"),
    [
        *((3, 4, optimizer) for optimizer in ("shortened", *OPTIMIZERS)),
        *((15, 2, optimizer) for optimizer in ("shortened", "adam")),  # more ranks than blocks
    ],
)
def test_ranks_update_whole_parameters_where_the_optimizer_needs_them(
    size, count, optimizer, monkeypatch
):
    """However many ranks there are: blocks that are summed elsewhere move to the parameter's."""
    monkeypatch.setitem(OPTIMIZERS, "shortened", shortened)
    settings = dict(clip=0.5, scale=SCALE if count == 4 else None)
    expected = steps(executor_of(count, optimizer=optimizer), **settings)
    settings |= dict(count=count, optimizer=optimizer)
    (arrays, _), *_ = run_ranks(size, lambda ranks: run_rank(ranks, **settings), timeout=60)
    for array, other in zip(arrays, expected, strict=True):
        assert np.array_equal(array, other)


def test_each_rank_sends_what_others_update_and_gets_the_rest():
    """Of a vector (N,) all but its stretch as gradients, its stretch to all others as weights."""

    def work(ranks: Ranks) -> tuple[int, int, int]:
        executor = executor_of(3, ranks)
        assert isinstance(executor, RankExecutor)
        if ranks.rank:
            executor.serve([])
        else:
            executor.gradient(1, PairBatch.of(WORDS))
            executor.clip(None)
            executor.update(0.1)
            sent, executor.bytes_sent = executor.bytes_sent, 0
            executor.end_run({})
            return sent, len(executor.optimizer.parameters.data), executor.bytes_sent
        return executor.bytes_sent, len(executor.optimizer.parameters.data), 0

    results = run_ranks(3, work, timeout=20)
    size = results[0][1]
    blocks = -(-size // 100)
    ends = [min(size, 100 * (blocks * rank // 3)) for rank in range(4)]
    for rank, (sent, _, _) in enumerate(results):
        own = ends[rank + 1] - ends[rank]
        assert sent == 4 * ((size - own) + 2 * own)
    assert results[0][2] == 2 * 4 * size  # the best weights, to both others


def test_a_resumed_run_begins_with_the_weights_and_vectors_of_rank_0(monkeypatch):
    """Then a step is the step that one process takes."""
    alone = executor_of(2)
    steps(alone, 0.5)
    state = {name: vector.copy() for name, vector in alone.optimizer.state.items()}
    weights, threads = alone.optimizer.parameters.data.copy(), []

    @contextlib.contextmanager
    def fixed(count: int):
        threads.append(count)
        yield
        threads.append(0)

    monkeypatch.setattr(rank_executor.blas, "training_threads", fixed)

    def work(ranks: Ranks):
        executor = executor_of(2, ranks)
        if ranks.rank:
            return executor.serve([]) and None
        executor.optimizer.parameters.data[...] = weights
        for name, vector in executor.optimizer.state.items():
            vector[...] = state[name]
        executor.optimizer.steps = 3
        executor.start()
        executor.gradient(4, PairBatch.of(WORDS))
        executor.clip(0.5)
        executor.update(0.01)
        executor.optimizer_state()
        executor.end_run({"step": 4})
        return [executor.optimizer.parameters.data, *executor.optimizer.state.values()]

    (arrays, *_) = run_ranks(3, work, timeout=20)
    alone.gradient(4, PairBatch.of(WORDS))
    alone.clip(0.5)
    alone.update(0.01)
    vectors = [alone.optimizer.parameters.data, *alone.optimizer.state.values()]
    assert all(np.array_equal(*pair) for pair in zip(arrays, vectors, strict=True))
    assert threads.count(1) == 3 and threads.count(0) == 2  # rank 0 goes on


def test_a_step_that_broke_is_replayed_in_turn():
    def work(ranks: Ranks):
        executor = executor_of(2, ranks)
        if ranks.rank:
            return executor.serve([]) and None
        executor.gradient(1, PairBatch.of(WORDS))
        executor.replay(1, PairBatch.of(WORDS))
        grad = executor.optimizer.parameters.grad.copy()
        executor.end_run({"step": 1})
        return grad

    alone = executor_of(2)
    alone.gradient(1, PairBatch.of(WORDS))
    assert np.array_equal(run_ranks(2, work, timeout=20)[0], alone.optimizer.parameters.grad)


def test_the_parts_are_dealt_so_that_none_is_missed():
    for size, count in itertools.product((1, 2, 3, 4, 5, 40), range(1, 8)):
        ranks = Ranks()
        ranks.size = size
        executor = executor_of(count, ranks)
        assert isinstance(executor, RankExecutor)
        places = [place for rank in range(size) for place in executor._branches(rank, count)]
        assert [first for first, _ in places] == [0, *[last for _, last in places[:-1]]]
        assert places[-1][1] == count
        blocks = [block for rank in range(size) for block in executor._blocks_to_sum(rank)]
        assert blocks == [*range(len(executor._blocks))]
        numbers = np.arange(len(executor.optimizer.parameters.data))
        stretches = [numbers[executor._sum_stretches[rank]] for rank in range(size)]
        assert np.array_equal(np.concatenate(stretches), numbers)
