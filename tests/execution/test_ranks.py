"""Ranks: values, arrays and errors that they send each other, as threads of one process."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from numformer.errors import InputError
from numformer.execution import ranks as ranks_module
from numformer.execution.ranks import FAILED, RankLost, Ranks, Threads, run_ranks


@pytest.mark.parametrize(
    ("name", "own", "other", "words"),
    [
        ("steps", 5, 6, "rank 2 with steps 6, rank 0 with 5"),
        ("clip_norm", None, 0.5, "rank 2 with clip_norm 0.5, rank 0 with None"),
        ("clip_norm", 0.5, None, "rank 2 with clip_norm None, rank 0 with 0.5"),
    ],
)
def test_ranks_agree_or_say_who_differs(name, own, other, words):
    def work(ranks: Ranks):
        ranks.agree(lambda: {"seed": 1, name: own})
        try:
            ranks.agree(lambda: {"seed": 1, name: other if ranks.rank == 2 else own})
        except InputError as problem:
            return str(problem)

    results = run_ranks(3, work, timeout=20)
    assert all(words in complaint for complaint in results)
    Ranks().agree(lambda: pytest.fail("one process has nobody to agree with"))


def test_a_problem_of_one_rank_is_that_of_all():
    def work(ranks: Ranks):
        with pytest.raises(
            InputError, match=r"received 3 \(on rank 1\)" if ranks.rank != 1 else "3"
        ):
            with ranks.failing_together():
                if ranks.rank == 1:
                    raise InputError("a rule", 3, "A fix.")
                ranks.take(1)
        return ranks.failed_elsewhere, ranks.failed

    assert run_ranks(3, work, timeout=20) == [(True, True), (False, True), (True, True)]


def test_a_rank_that_is_busy_is_waited_for():
    def work(ranks: Ranks):
        ranks.timeout = 0.4
        if ranks.rank:
            return ranks.take(0)
        with ranks.busy():
            time.sleep(1.0)
        ranks.post("late", 1)
        return None

    assert run_ranks(2, work) == [None, "late"]


def test_a_rank_that_fails_does_not_wait_for_one_that_is_lost():
    class Deaf(Ranks):
        size, timeout = 2, 0.05

        def send(self, array, to, tag=0):
            return lambda: False

    deaf = Deaf()
    deaf.fail(ValueError("told to nobody"))
    assert deaf.failed and not deaf.failed_elsewhere


@pytest.mark.parametrize("method", [Ranks.send, Ranks.receive])
def test_one_process_has_nobody_to_send_to(method):
    with pytest.raises(NotImplementedError, match="Ranks has no other rank"):
        method(Ranks(), np.ones(1), 1)


def test_a_queue_that_two_threads_make_at_once_loses_no_message(monkeypatch):
    """Sender and receiver both make the queue, slowly, as if garbage were collected then."""

    def slow_queue() -> queue.SimpleQueue:
        time.sleep(0.001)
        return queue.SimpleQueue()

    def exchange(ranks: Ranks) -> list[list[int]]:
        return [ranks.gather(ranks.rank) for _ in range(3)]

    slow = SimpleNamespace(SimpleQueue=slow_queue, Empty=queue.Empty)
    monkeypatch.setattr(ranks_module, "queue", slow)
    assert run_ranks(4, exchange, timeout=5) == [[[0, 1, 2, 3]] * 3] * 4


@pytest.mark.parametrize("rank", [0, 2])
def test_the_lost_are_named_after_the_timeout_by_the_first_rank_first(monkeypatch, rank):
    """Pauses grow from 0 to a millisecond; each rank waits 0.3 seconds longer than the last."""
    now, pauses = [100.0], []

    def sleep(pause: float) -> None:
        pauses.append(pause)
        now[0] += pause + 1e-4

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(ranks_module, "time", clock)
    ranks = Ranks()
    ranks.rank, ranks.size, ranks.timeout = rank, 4, 5
    with pytest.raises(RankLost, match=r"^rank 1, 3 has not answered for 5 seconds$"):
        ranks.wait({1: [lambda: False], 3: [lambda: True, lambda: False]})
    assert now[0] == pytest.approx(105 + 0.3 * rank, abs=0.002)
    assert pauses[0] == 0 and pauses == sorted(pauses)
    assert pauses[100] == pytest.approx(2e-4) and max(pauses) == 1e-3


def test_the_error_of_the_rank_that_failed_first_is_raised():
    """Even if others, to which it was sent, end before it."""
    problem, own = ValueError("one"), []

    def work(ranks: Ranks):
        own.append((ranks, threading.current_thread().daemon))
        if ranks.rank == 2:
            fail = ranks.fail
            ranks.fail = lambda problem: (fail(problem), time.sleep(0.05))
            raise problem
        ranks.take(2)

    with pytest.raises(ValueError, match="one") as caught:
        run_ranks(3, work, timeout=7)
    assert caught.value is problem
    for ranks, daemon in own:
        assert ranks.failed and ranks.failed_elsewhere == (ranks.rank != 2)
        assert ranks.timeout == 7 and daemon  # so Ctrl-C ends the process while ranks still wait


def test_an_array_is_received_into_one_of_its_size():
    ranks = Threads(0, 1, {})
    ranks.send(np.ones(1), 0)
    with pytest.raises(ValueError, match="size 1"):
        ranks.receive(np.zeros(2), 0)()


def test_an_end_without_an_error_concerns_no_other_rank():
    ranks = Threads(0, 2, {})
    with pytest.raises(SystemExit), ranks.failing_together():
        raise SystemExit
    assert not ranks.failed and not Threads(1, 2, ranks._messages).is_waiting(0, FAILED)


@pytest.mark.parametrize("problem", [ValueError("wrong"), InputError("a rule", "wrong", "A fix.")])
def test_a_rank_that_fails_itself_does_not_listen_and_rank_0_adds_no_name(problem, answers):
    messages: dict = {}
    ranks, other = Threads(0, 2, messages), Threads(1, 2, messages)
    other.fail(KeyError("of rank 1"))
    ranks.fail(problem)
    with pytest.raises(type(problem)) as caught:
        Threads(1, 2, messages).wait({0: [lambda: False]})
    assert str(caught.value) == str(problem)


def test_messages_are_waited_for_until_they_have_left(answers):
    assert run_ranks(3, lambda ranks: ranks.gather(ranks.rank)) == [[0, 1, 2]] * 3
    assert len(answers) == 12 and all(answer[-1] for answer in answers)


def test_beats_come_at_a_quarter_of_the_timeout_and_end_with_the_block(monkeypatch):
    pauses, beats = [], []

    class Event(threading.Event):
        def wait(self, pause):
            pauses.append(pause)
            return super().wait(0.001)

    class Deaf(Ranks):
        size, timeout = 2, 8

        def send(self, array, to, tag=0):
            time.sleep(0.01)
            beats.append(to)

    monkeypatch.setattr(
        ranks_module, "threading", SimpleNamespace(Event=Event, Thread=threading.Thread)
    )
    with Deaf().busy():
        time.sleep(0.03)
    count = len(beats)
    time.sleep(0.03)
    assert pauses[0] == 2 and len(beats) == count > 0
