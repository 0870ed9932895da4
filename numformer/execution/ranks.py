"""Ranks: processes, numbered as in MPI, that work on one task and send each other arrays.

Messages with the same tag from one rank to another arrive in the order in which they were sent.
"""

import contextlib
import operator
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from numformer.errors import InputError

T = TypeVar("T")
OBJECTS, FAILED, BEAT, VECTORS = range(1, 5)
"""Tags of messages; messages with blocks of the gradient have larger tags."""
Pending = dict[int, list[Callable[[], bool]]]
"""For each rank, the unfinished messages to or from it: functions that return True once done."""


class RankLost(ChildProcessError):
    """Raised if another rank has ended or does not answer."""


class Ranks:
    """A process without other ranks, rank 0 of 1; the base class of ranks that exchange arrays.

    All ranks must call `broadcast`, `gather` and `agree` in the same order. A rank that has waited
    `timeout` seconds for another rank raises RankLost, with the other rank's number.
    """

    rank, size = 0, 1
    timeout: float = 60.0
    failed = False  # whether this rank or another has ended with an error
    failed_elsewhere = False  # whether another rank has ended with an error

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]

    # What a subclass implements

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        """Start sending a contiguous array; return a function that tells if it may be reused."""
        raise NotImplementedError(f"{type(self).__name__} has no other rank")

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        """Start receiving into a contiguous array; return a function that tells if it is filled."""
        raise NotImplementedError(f"{type(self).__name__} has no other rank")

    def is_waiting(self, source: int, tag: int) -> bool:
        """Whether a message with this tag from rank `source` can be received."""
        return False

    # What all subclasses inherit

    def wait(self, pending: Pending) -> None:
        """Wait until all messages have been sent or received.

        If another rank fails, raises its error; if another rank does not answer, RankLost.
        """
        began, pause = time.monotonic(), 0.0
        while pending := {rank: left for rank, all in pending.items() if (left := _undone(all))}:
            if self._receive_beats():
                began = time.monotonic()
            # The ranks give up one after the other, so that the first can tell the others why.
            if time.monotonic() - began > self.timeout + 0.3 * self.rank:
                silent = ", ".join(map(str, pending))
                raise RankLost(f"rank {silent} has not answered for {self.timeout:g} seconds")
            time.sleep(pause)  # even a pause of 0 lets another rank use the core
            pause = min(1e-3, pause + 2e-6)

    def _receive_beats(self) -> bool:
        """Receive heartbeats; return whether one came. If a rank has failed, raise its error."""
        beats = False
        for source in self.others:
            if not self.failed and self.is_waiting(source, FAILED):
                self.failed = self.failed_elsewhere = True
                raise pickle.loads(self._receive_bytes(source, FAILED))
            while self.is_waiting(source, BEAT):
                self.wait({source: [self.receive(np.empty(1, np.uint8), source, BEAT)]})
                beats = True
        return beats

    def fail(self, problem: BaseException) -> None:
        """Send the error that ends this rank to the others, which then raise it as well."""
        if not self.failed:
            self.failed = True
            if isinstance(problem, InputError) and self.rank:
                rule, received, fix = problem.args
                problem = InputError(rule, f"{received} (on rank {self.rank})", fix)
            message = pickle.dumps(problem)
            with contextlib.suppress(RankLost):
                self.wait({to: self._send_bytes(message, to, FAILED) for to in self.others})

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Within the block, an error of one rank is raised in all ranks."""
        try:
            yield
        except SystemExit:  # not an error, or one that all ranks raise
            raise
        except BaseException as problem:
            self.fail(problem)
            raise

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Send heartbeats within the block, so that the other ranks keep waiting for this one."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.timeout / 4):
                for to in self.others:
                    self.send(np.zeros(1, np.uint8), to, BEAT)

        thread = threading.Thread(target=beat)
        if self.others:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self.others:
                thread.join()

    def post(self, value: Any, to: int) -> None:
        """Send any value to rank `to`, which must call `take`."""
        self.wait({to: self._send_bytes(pickle.dumps(value), to)})

    def take(self, source: int) -> Any:
        """Return the next value that rank `source` has posted."""
        return pickle.loads(self._receive_bytes(source))

    def broadcast(self, value: T, root: int = 0) -> T:
        """Return the value of rank `root` on all ranks; the others' values are ignored."""
        if self.rank != root:
            return self.take(root)
        message = pickle.dumps(value)
        self.wait({to: self._send_bytes(message, to) for to in self.others})
        return value

    def gather(self, value: T) -> list[T]:
        """Return the list of all ranks' values, in the order of the ranks."""
        message = pickle.dumps(value)
        leaving = {to: self._send_bytes(message, to) for to in self.others}
        values = {source: pickle.loads(self._receive_bytes(source)) for source in self.others}
        self.wait(leaving)
        return [values.get(rank, value) for rank in range(self.size)]

    def agree(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Raise InputError on all ranks if `facts()` of any rank differ from those of rank 0."""
        if not self.others:
            return
        first, *others = self.gather(facts())
        for rank, facts_of_rank in enumerate(others, start=1):
            for name, value in facts_of_rank.items():
                if value != first.get(name):
                    raise InputError(
                        "ranks that train together have equal version, settings, data and weights",
                        f"rank {rank} with {name} {value}, rank 0 with {first.get(name)}",
                        "Give all machines the same files, and start all ranks the same way.",
                    )

    def _send_bytes(self, message: bytes, to: int, tag: int = OBJECTS) -> list:
        length, content = np.array([len(message)]), np.frombuffer(message, np.uint8)
        return [self.send(length, to, tag), self.send(content, to, tag)]

    def _receive_bytes(self, source: int, tag: int = OBJECTS) -> Any:
        length = np.zeros(1, int)
        self.wait({source: [self.receive(length, source, tag)]})
        content = np.empty(length[0], np.uint8)
        self.wait({source: [self.receive(content, source, tag)]})
        return content


def _undone(messages: Sequence[Callable[[], bool]]) -> list[Callable[[], bool]]:
    return [done for done in messages if not done()]


class Threads(Ranks):
    """Ranks that are threads of one process, for tests and lessons (see `run_ranks`)."""

    def __init__(self, rank: int, size: int, messages: dict[tuple, queue.SimpleQueue]):
        self.rank, self.size, self._messages = rank, size, messages

    def _queue(self, source: int, to: int, tag: int) -> queue.SimpleQueue:
        # Not a defaultdict: there, two threads at once can each make a queue, and one is lost.
        return self._messages.setdefault((source, to, tag), queue.SimpleQueue())

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        self._queue(self.rank, to, tag).put(array.copy())
        return lambda: True

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        messages, arrived = self._queue(source, self.rank, tag), False

        def done() -> bool:
            nonlocal arrived
            if not arrived:
                with contextlib.suppress(queue.Empty):
                    array[...] = messages.get_nowait().reshape(array.shape)  # of equal size
                    arrived = True
            return arrived

        return done

    def is_waiting(self, source: int, tag: int) -> bool:
        return not self._queue(source, self.rank, tag).empty()


def run_ranks(count: int, work: Callable[[Ranks], T], timeout: float = 20.0) -> list[T]:
    """Call `work(ranks)` in `count` ranks, which are threads of this process; return the results.

    If a rank fails, raises the error of the first rank that failed.
    """
    messages: dict[tuple, queue.SimpleQueue] = {}
    results: list[Any] = [None] * count
    problems: list[tuple[bool, BaseException]] = []

    def run(rank: int) -> None:
        ranks = Threads(rank, count, messages)
        ranks.timeout = timeout
        try:
            with ranks.failing_together():
                results[rank] = work(ranks)
        except BaseException as problem:
            problems.append((ranks.failed_elsewhere, problem))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, problem in sorted(problems, key=operator.itemgetter(0)):  # the first to fail is first
        raise problem
    return results
