"""A step in parts: the gradient of the whole batch, the same bits side by side and in turn."""

import os
import signal
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_limits

from numformer import blas
from numformer.data.batching import PairBatch
from numformer.errors import InputError
from numformer.execution import executor as module
from numformer.execution import in_turn
from numformer.execution.executor import make_executor
from numformer.execution.forked import Forked
from numformer.execution.in_turn import InTurn
from numformer.execution.ranks import Ranks
from numformer.layer import pack
from numformer.models import Config, Objective, Transformer
from numformer.optimization.optimizers import OPTIMIZERS, Adam
from numformer.optimization.recipe import Recipe

CONFIG = Config.base(11, d_model=8, d_ff=12, heads=2, layers=1, p_drop=0.2)
SMOOTHING = 0.3
WORDS = [([4, 5, 6, 7], [7]), ([8], [9, 9, 4]), ([5, 5], []), ([6, 4, 9], [5, 4, 10, 4, 8])]
several_cores = pytest.mark.skipif(
    sys.platform != "linux", reason="only on Linux do parts have processes of their own"
)


@pytest.fixture
def make(monkeypatch):
    """`make(count, cores)`: an executor of a model in float64, closed afterwards."""
    executors = []

    def build(count, cores=2, dtype=np.float64, optimizer=Adam, **changes):
        monkeypatch.setattr(module, "cores", lambda: cores)
        model = Transformer(Config(**(vars(CONFIG) | changes)), seed=3)
        flat = pack(model, dtype)
        flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
        objective = Objective(model, SMOOTHING)
        executor = make_executor(objective, optimizer(flat), 7, count, Ranks())
        executor.start()
        executors.append(executor)
        return executor

    yield build
    for executor in executors:
        executor.close()


def steps(executor: InTurn) -> list:
    """Loss, gradient and weights at each of three steps, and in the end Adam's vectors."""
    found = []
    for step in (1, 2, 3):
        loss = executor.gradient(step, PairBatch.of(WORDS))
        found += [np.asarray(loss), executor.optimizer.parameters.grad.copy()]
        executor.update(rate=0.01 * step)
        found.append(executor.optimizer.parameters.data.copy())
    assert executor.optimizer.steps == 3
    return [*found, *executor.optimizer.state.values()]


def assert_same_steps(found: InTurn, expected: InTurn, rtol=0.0, atol=0.0) -> list:
    arrays = steps(found)
    for array, other in zip(arrays, steps(expected), strict=True):
        assert_allclose(array, other, rtol, atol)
    return arrays


def assert_same(found: InTurn, expected: InTurn, rtol=0.0, atol=0.0):
    assert_allclose(*(p.optimizer.parameters.grad for p in (found, expected)), rtol, atol)


@several_cores
@pytest.mark.parametrize(("count", "dtype"), [(2, np.float32), (3, np.float64), (9, np.float64)])
def test_side_by_side_and_in_turn_give_the_same_bits(make, count, dtype):
    """Every process sees the weights of now, updates its share of them, and sums in one order."""
    executor = make(count, 2, dtype)
    arrays = assert_same_steps(executor, make(count, 1, dtype))
    assert {array.dtype for array in arrays} == {np.dtype(dtype)}
    assert executor._stretch == slice(0, len(executor.optimizer.state["mean"]) // count)


def shortened(data, grad, length, *, step, rate):
    """A rule that is not elementwise, with a state: a parameter's step is shorter than `rate`."""
    length += np.sqrt((grad * grad).sum())
    data -= rate * grad / (1 + length)


@several_cores
@pytest.mark.parametrize(
    ("count", "rule"), [(9, "shortened"), *((3, rule) for rule in ("shortened", *OPTIMIZERS))]
)
def test_every_optimizer_gives_the_same_bits_side_by_side(make, monkeypatch, count, rule):
    """One of whole parameters also with more processes than some of these would fill."""
    monkeypatch.setitem(OPTIMIZERS, "shortened", shortened)

    def optimizer(flat):
        return Recipe(optimizer=rule).make_optimizer(flat)

    settings = dict(dtype=np.float32, optimizer=optimizer)
    executor = make(count, 2, **settings)
    assert executor.processes
    assert_same_steps(executor, make(count, 1, **settings))


@pytest.mark.parametrize(("count", "cores"), [(2, 1), (3, 2), (9, 1)])
def test_the_parts_sum_to_the_whole_batch(make, count, cores):
    """Parts with few real targets weigh little: shares of 1 / count would be wrong."""
    executor, one_part = make(count, cores, p_drop=0.0), make(1, p_drop=0.0)
    assert_same_steps(executor, one_part, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_batches_are_one_large_batch(make, count):
    """Also where they have not so many rows as there are parts; the masks of each are others."""
    several = [PairBatch.of(WORDS[:1]), PairBatch.of(WORDS[1:3]), PairBatch.of(WORDS[3:])]
    one_part, executor = make(1, p_drop=0.0), make(count, p_drop=0.0)
    assert_allclose(
        executor.gradient(1, several), one_part.gradient(1, PairBatch.of(WORDS)), rtol=1e-9
    )
    assert_same(executor, one_part, rtol=1e-8, atol=1e-11)
    side_by_side, in_turn = make(count), make(count, 1)
    twice = [several[0]] * 2
    for batches in (several, twice):
        assert side_by_side.gradient(1, batches) == in_turn.gradient(1, batches)
        assert_same(side_by_side, in_turn)
    assert in_turn.gradient(1, twice) != pytest.approx(in_turn.gradient(1, twice[:1]), rel=1e-9)


def test_every_part_of_every_batch_has_dropout_masks_of_its_own(make, monkeypatch):
    """With all of a batch in one part the sums would be right, and nothing gained."""
    executor, seen = make(2, 1), []
    monkeypatch.setattr(in_turn.dropout_stream, "reseed", lambda *numbers: seen.append(numbers))
    executor.gradient(5, [PairBatch.of(WORDS[:2]), PairBatch.of(WORDS[2:])])
    assert sorted(seen) == [(7, 5, number) for number in range(4)]


@pytest.mark.filterwarnings("error")
def test_what_is_no_batch_is_refused(make, complaint):
    executor, nothing = make(2, 1), np.zeros((2, 3), int)
    assert "a Batch, or a list of them; received list" in complaint(executor.gradient, 1, [])
    padding = PairBatch(np.array([[4, 2, 0]] * 2), nothing, nothing)
    assert "at least one target position" in complaint(executor.gradient, 1, padding)
    for count in (0, -3):
        assert f"received {count}" in complaint(make, count)


@several_cores
@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_a_part_arrives_and_a_step_after_it_is_right(make, bad):
    """The answers that the failed step left in the pipes must not be taken for the next one's."""
    executor, words = make(2), [WORDS[0], WORDS[1]]
    words[bad] = [99], [4]
    with pytest.raises(InputError, match="below the vocabulary's size 11"):
        executor.gradient(1, PairBatch.of(words))
    assert_same_steps(executor, make(2, 1))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_batch_smaller_than_the_parts_after_a_larger_one(make, cores):
    """The gradient that an idle part still holds is of another batch; one target counts whole."""
    executor, one_part = make(3, cores, p_drop=0.0), make(1, p_drop=0.0)
    executor.gradient(1, PairBatch.of(WORDS))
    for words in (WORDS[:2], [([4, 5], [])]):
        batch = PairBatch.of(words)
        assert_allclose(executor.gradient(2, batch), one_part.gradient(2, batch), rtol=1e-12)
        assert_same(executor, one_part, rtol=1e-10, atol=1e-14)
    expected = one_part.objective.forward(*batch.inputs)
    assert one_part.gradient(2, batch) == pytest.approx(expected)


@pytest.mark.parametrize(("count", "threads"), [(1, 2), (1, 3), (2, 1)])
def test_one_part_keeps_the_threads_of_blas_that_it_began_with(make, count, threads):
    """Their number may decide the last bits: a run that goes on elsewhere takes the old one."""
    here = 2 if count == 2 else threads
    with threadpool_limits(here, "blas"):
        began = make(count)
        assert blas.threads() == began.threads == threads
        began.close()
        assert blas.threads() == here
    with threadpool_limits(1, "blas"):
        goes_on = InTurn(began.objective, began.optimizer, 7, count)
        goes_on.threads = began.threads
        goes_on.start()
        assert blas.threads() == threads
        goes_on.close()


@several_cores
def test_a_process_that_was_ended_is_an_error_not_a_hang(make):
    """As by a system that is out of memory, while the first process computes."""
    executor, compute = make(2), Forked.compute
    (other,) = executor.processes
    os.kill(other.pid, signal.SIGSTOP)
    executor.compute = lambda *job: (other.kill(), other.join(), compute(executor, *job))[-1]
    with pytest.raises(ChildProcessError, match="was ended"):
        executor.gradient(1, PairBatch.of(WORDS))


@several_cores
def test_only_close_ends_the_processes_and_the_parts_still_compute(make):
    """Not Ctrl-C of a terminal, which signals all of a group, nor the end of a service."""
    executor = make(3)
    others = executor.processes
    loss = executor.gradient(1, PairBatch.of(WORDS))
    for process, number in zip(others, (signal.SIGINT, signal.SIGTERM), strict=True):
        os.kill(process.pid, number)
    assert executor.gradient(1, PairBatch.of(WORDS)) == loss
    executor.close()
    assert len(others) == 2 and not any(process.is_alive() for process in others)
    assert executor.gradient(1, PairBatch.of(WORDS)) == loss


@several_cores
def test_no_process_outlives_a_killed_first_one(make):
    """kill -9 leaves the first process no time to tell the others."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.dup2(write, sys.__stdout__.fileno())
            make(3).gradient(1, PairBatch.of(WORDS))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    os.waitpid(first, 0)
    assert os.read(read, 1) == b""  # the end: nobody is left that could write
    os.close(read)
