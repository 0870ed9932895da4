"""A step in parts: the gradient of the whole batch, the same bits side by side and in turn."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info, threadpool_limits

from numformer.data.batching import PairBatch
from numformer.errors import InputError
from numformer.layer import pack
from numformer.models import Config, Objective, Transformer
from numformer.training import forks
from numformer.training import parts as module
from numformer.training.optimizers import Adam
from numformer.training.parts import Parts

CONFIG = Config.base(11, d_model=8, d_ff=12, heads=2, layers=1, p_drop=0.2)
SMOOTHING = 0.3
WORDS = [([4, 5, 6, 7], [7]), ([8], [9, 9, 4]), ([5, 5], []), ([6, 4, 9], [5, 4, 10, 4, 8])]
several_cores = pytest.mark.skipif(
    sys.platform != "linux", reason="only on Linux do parts have processes of their own"
)


@pytest.fixture
def make(monkeypatch):
    """`make(count, cores)`: Parts of a model in float64, its other processes ended afterwards."""
    made = []

    def build(count, cores=2, dtype=np.float64, **changes):
        monkeypatch.setattr(module, "cores", lambda: cores)
        model = Transformer(Config(**(vars(CONFIG) | changes)), seed=3)
        flat = pack(model, dtype)
        flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
        parts = Parts(Objective(model, SMOOTHING), Adam(flat), 7, count)
        parts.start()
        made.append(parts)
        return parts

    yield build
    for parts in made:
        parts.close()


def steps(parts: Parts, count: int = 3) -> list:
    """Loss, gradient and weights at each of a few steps, and in the end Adam's vectors."""
    found = []
    for step in range(1, count + 1):
        loss = parts.gradient(step, PairBatch.of(WORDS))
        found += [np.asarray(loss), parts.optimizer.parameters.grad.copy()]
        parts.update(rate=0.01 * step)
        found.append(parts.optimizer.parameters.data.copy())
    assert parts.optimizer.steps == count
    return [*found, *parts.optimizer.state.values()]


def assert_same(found: Parts, expected: Parts, **near):
    """The gradients of both, bit for bit unless they need only be near."""
    grads = [parts.optimizer.parameters.grad for parts in (found, expected)]
    assert_allclose(*grads, **near) if near else assert_array_equal(*grads)


@several_cores
@pytest.mark.parametrize(("count", "dtype"), [(2, np.float32), (3, np.float64), (9, np.float64)])
def test_side_by_side_and_in_turn_give_the_same_bits(make, count, dtype):
    """Every process sees the weights of now; losses and gradients are summed in one order."""
    side_by_side, in_turn = (steps(make(count, cores, dtype)) for cores in (2, 1))
    for found, expected in zip(side_by_side, in_turn, strict=True):
        assert_array_equal(found, expected)
        assert found.dtype == dtype


@pytest.mark.parametrize(("count", "cores"), [(2, 1), (3, 2), (9, 1)])
def test_the_parts_sum_to_the_whole_batch(make, count, cores):
    """Parts with few real targets weigh little: shares of 1 / count would be wrong."""
    whole = steps(make(1, p_drop=0.0))
    for found, expected in zip(steps(make(count, cores, p_drop=0.0)), whole, strict=True):
        assert_allclose(found, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_batches_are_one_large_batch(make, count):
    """Also where they have not so many rows as there are parts; the masks of each are others."""
    several = [PairBatch.of(WORDS[:1]), PairBatch.of(WORDS[1:3]), PairBatch.of(WORDS[3:])]
    whole, parts = make(1, p_drop=0.0), make(count, p_drop=0.0)
    assert_allclose(parts.gradient(1, several), whole.gradient(1, PairBatch.of(WORDS)), rtol=1e-9)
    assert_same(parts, whole, rtol=1e-8, atol=1e-11)
    side_by_side, in_turn = make(count), make(count, 1)
    twice = [several[0]] * 2
    for batches in (several, twice):
        assert side_by_side.gradient(1, batches) == in_turn.gradient(1, batches)
        assert_same(side_by_side, in_turn)
    assert in_turn.gradient(1, twice) != pytest.approx(in_turn.gradient(1, twice[:1]), rel=1e-9)


def test_every_part_of_every_batch_has_dropout_masks_of_its_own(make, monkeypatch):
    """With all of a batch in one part the sums would be right, and nothing gained."""
    parts, seen = make(2, 1), []
    monkeypatch.setattr(module.dropout_stream, "reseed", lambda *numbers: seen.append(numbers))
    parts.gradient(5, [PairBatch.of(WORDS[:2]), PairBatch.of(WORDS[2:])])
    assert sorted(seen) == [(7, 5, number) for number in range(4)]


@pytest.mark.filterwarnings("error")
def test_what_is_no_batch_is_refused(make, complaint):
    parts, nothing = make(2, 1), np.zeros((2, 3), int)
    assert "a Batch, or a list of them; received list" in complaint(parts.gradient, 1, [])
    padding = PairBatch(np.array([[4, 2, 0]] * 2), nothing, nothing)
    assert "some target position" in complaint(parts.gradient, 1, padding)
    for count in (0, -3):
        assert f"received {count}" in complaint(make, count)


@several_cores
@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_a_part_arrives_and_a_step_after_it_is_right(make, bad):
    """The answers that the failed step left in the pipes must not be taken for the next one's."""
    parts, words = make(2), [WORDS[0], WORDS[1]]
    words[bad] = [99], [4]
    with pytest.raises(InputError, match="below the vocabulary's size 11"):
        parts.gradient(1, PairBatch.of(words))
    for found, expected in zip(steps(parts), steps(make(2, 1)), strict=True):
        assert_array_equal(found, expected)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_batch_smaller_than_the_parts_after_a_larger_one(make, cores):
    """The gradient that an idle part still holds is of another batch; one target counts whole."""
    parts, whole = make(3, cores, p_drop=0.0), make(1, p_drop=0.0)
    parts.gradient(1, PairBatch.of(WORDS))
    for words in (WORDS[:2], [([4, 5], [])]):
        batch = PairBatch.of(words)
        assert_allclose(parts.gradient(2, batch), whole.gradient(2, batch), rtol=1e-12)
        assert_same(parts, whole, rtol=1e-10, atol=1e-14)
    expected = whole.objective.forward(*batch.inputs)
    assert whole.gradient(2, batch) == pytest.approx(expected)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_part_without_a_source_is_computed_and_one_without_a_target_left_out(make, cores):
    """Padded by hand: the second part has a source of nothing, the third a target of nothing."""
    source, target = np.array([[4, 5, 2], [0, 0, 0], [6, 2, 0]]), np.array([[9, 2], [5, 2], [0, 0]])
    batch = PairBatch(source, np.where(target, 1, 0), target)
    whole, parts = make(1, p_drop=0.0), make(3, cores, p_drop=0.0)
    assert len(batch.split(3)) == 2
    assert_allclose(parts.gradient(1, batch), whole.gradient(1, batch), rtol=1e-12)
    assert_same(parts, whole, rtol=1e-9, atol=1e-12)


@several_cores
def test_an_interrupt_while_the_others_compute_leaves_no_stale_answers(make, monkeypatch):
    """Ctrl-C arrives as the first process waits for the second's answer."""
    parts, recv = make(2), forks.Connection.recv

    def interrupted(connection):
        monkeypatch.setattr(forks.Connection, "recv", recv)
        raise KeyboardInterrupt

    monkeypatch.setattr(forks.Connection, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parts.gradient(1, PairBatch.of(WORDS))
    for found, expected in zip(steps(parts), steps(make(2, 1)), strict=True):
        assert_array_equal(found, expected)


@pytest.mark.parametrize(("count", "threads"), [(1, 2), (1, 3), (2, 1)])
def test_one_part_keeps_the_threads_of_blas_that_it_began_with(make, count, threads):
    """Their number may decide the last bits: a run that goes on elsewhere takes the old one."""
    with threadpool_limits(threads, "blas"):
        began = make(count)
        expected = 1 if count > 1 else threads
        assert began.threads == expected and set(threads_of_blas()) == {expected}
        began.close()
    with threadpool_limits(1, "blas"):
        goes_on = Parts(began.objective, began.optimizer, 7, count)
        goes_on.threads = began.threads
        goes_on.start()
        assert set(threads_of_blas()) == {expected}
        goes_on.close()


@several_cores
def test_each_process_updates_its_share_of_the_weights(make):
    parts = make(2)
    assert parts._stretch == slice(0, len(parts.optimizer.state["mean"]) // 2)


@several_cores
@pytest.mark.filterwarnings("error")
def test_other_processes_print_no_warnings(make, capfd):
    """The first process finds broken numbers in the loss and says so once."""
    parts = make(2, dtype=np.float32)
    with np.errstate(all="ignore"):
        parts.optimizer.parameters.data[...] = np.inf
        assert not np.isfinite(parts.gradient(1, PairBatch.of(WORDS)))
    assert capfd.readouterr() == ("", "")


@several_cores
def test_a_fork_that_fails_leaves_no_process_behind(make, monkeypatch):
    """Two processes are there when the third cannot be made."""
    context = forks.multiprocessing.get_context("fork")
    begin, begun = context.Process.start, []

    def start(process):
        if len(begun) == 2:
            raise BlockingIOError("no more processes")
        begin(process)
        begun.append(process)

    monkeypatch.setattr(context.Process, "start", start)
    with pytest.raises(BlockingIOError):
        make(4)
    assert len(begun) == 2 and not any(process.is_alive() for process in begun)


@several_cores
def test_blas_has_one_thread_while_the_parts_compute(make):
    """Its threads would fight over the cores, and their number may decide the last bits."""
    before = threads_of_blas()
    with threadpool_limits(2, "blas"):
        parts = make(2)
        assert threads_of_blas() == [1] * len(before)
        parts.end_processes()
        assert threads_of_blas() == [1] * len(before)
        parts.close()
        assert threads_of_blas() == [2] * len(before)
    assert threads_of_blas() == before


def threads_of_blas() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@several_cores
def test_a_model_packed_again_is_refused(make):
    parts = make(2)
    pack(parts.objective)
    with pytest.raises(RuntimeError, match="packed again"):
        parts.update(0.1)
    assert parts.optimizer.steps == 0


@several_cores
@pytest.mark.parametrize("asked", [False, True])
def test_a_process_that_was_ended_is_an_error_not_a_hang(make, asked):
    """Before it was asked for anything, or before it answered."""
    parts = make(2)
    (other,) = parts.processes.others
    os.kill(other.pid, signal.SIGSTOP)

    def compute(*job):
        other.kill()
        other.join()
        return Parts._compute(parts, *job)

    if asked:
        parts._compute = compute
    else:
        other.kill()
        other.join()
    with pytest.raises(ChildProcessError, match="was ended"):
        parts.gradient(1, PairBatch.of(WORDS))


@several_cores
def test_only_close_ends_the_processes_and_the_parts_still_compute(make):
    """Not Ctrl-C of a terminal, which signals all of a group, nor the end of a service."""
    parts = make(3)
    others = parts.processes.others
    loss = parts.gradient(1, PairBatch.of(WORDS))
    for process, number in zip(others, (signal.SIGINT, signal.SIGTERM), strict=True):
        os.kill(process.pid, number)
    assert parts.gradient(1, PairBatch.of(WORDS)) == loss
    parts.close()
    assert len(others) == 2 and not any(process.is_alive() for process in others)
    assert parts.gradient(1, PairBatch.of(WORDS)) == loss


@several_cores
def test_no_process_outlives_a_killed_first_one():
    """kill -9 leaves the first process no time to tell the others."""
    program = """
import numpy as np, test_parts
from numformer.training import parts
parts.cores = lambda: 3
model = test_parts.Transformer(test_parts.CONFIG)
adam = test_parts.Adam(test_parts.pack(model))
made = parts.Parts(test_parts.Objective(model), adam, 7, 3)
made.start()
made.gradient(1, test_parts.PairBatch.of(test_parts.WORDS))
print(*(process.pid for process in made.processes.others), flush=True)
input()
"""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    first = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    others = [int(pid) for pid in first.stdout.readline().split()]
    assert len(others) == 2
    first.send_signal(signal.SIGKILL)
    first.communicate()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in others):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
