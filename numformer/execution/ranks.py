"""Ranks: processes that work at one thing, and send each other arrays.

Each has a number, its rank, as in MPI. What one of them sends to another arrives in the order in
which it was sent, within one tag.
"""

import contextlib
import operator
import pickle
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from numformer.errors import InputError

T = TypeVar("T")
OBJECTS, FAILED, BEAT, RING, STAGES, VECTORS = range(1, 7)
"""Tags of all that ranks send each other; those of gradients are above."""


class RankLost(ChildProcessError):
    """Another rank has ended, or does not answer."""


class Ranks:
    """This process alone, rank 0 of 1, and what all kinds of ranks can do.

    Each method is called by all ranks, in the same order. `timeout` is for how many seconds a rank
    waits for another: afterwards RankLost is raised, which names it.
    """

    rank, size = 0, 1
    timeout: float = 60.0
    failed = False  # whether a problem was told to the others, or by one of them
    heard = False  # whether by one of them

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]

    # What each kind brings

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        """Begin to send a contiguous array -> a function that says whether it may be overwritten.

        Until then it must keep its values.
        """
        raise NotImplementedError(f"{type(self).__name__} has no other rank")

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        """Begin to receive into a contiguous array -> a function that says whether it is there."""
        raise NotImplementedError(f"{type(self).__name__} has no other rank")

    def is_waiting(self, source: int, tag: int) -> bool:
        """Whether something of this tag has come from a rank and was not received yet."""
        return False

    # What follows from it

    def wait(self, pending: dict[int, list[Callable[[], bool]]]) -> None:
        """Return when all that is under way to or from each rank is there.

        Raises what another rank has failed with, and RankLost where one does not answer.
        """
        began, pause = time.monotonic(), 0.0
        while pending := {r: left for r, asked in pending.items() if (left := _open(asked))}:
            if self._hear():
                began = time.monotonic()
            # One after the other, so that one of them tells it.
            if time.monotonic() - began > self.timeout + 0.3 * self.rank:
                lost = ", ".join(map(str, pending))
                raise RankLost(f"rank {lost} has not answered for {self.timeout:g} seconds")
            time.sleep(pause)  # 0 leaves the processor to a rank that waits for it
            pause = min(1e-3, pause + 2e-6)

    def _hear(self) -> bool:
        """Whether another rank says that it is at work; raises what one has failed with."""
        beats = False
        for source in self.others:
            if not self.failed and self.is_waiting(source, FAILED):
                self.failed = self.heard = True
                raise pickle.loads(self._receive_bytes(source, FAILED))
            while self.is_waiting(source, BEAT):
                self.wait({source: [self.receive(np.empty(1, np.uint8), source, BEAT)]})
                beats = True
        return beats

    def fail(self, problem: BaseException) -> None:
        """Tell all others what this rank ends by, so that they end by it as well."""
        if not self.failed:
            self.failed = True
            if isinstance(problem, InputError) and self.rank:
                rule, received, fix = problem.args
                problem = InputError(rule, f"{received} (on rank {self.rank})", fix)
            written = pickle.dumps(problem)
            with contextlib.suppress(RankLost):
                self.wait({to: self._send_bytes(written, to, FAILED) for to in self.others})

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Within the block a problem of one rank is raised in all."""
        try:
            yield
        except SystemExit:  # no problem, or the same one everywhere
            raise
        except BaseException as problem:
            self.fail(problem)
            raise

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within the block tell the others now and then that this rank is at work."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.timeout / 4):
                for to in self.others:
                    self.send(np.zeros(1, np.uint8), to, BEAT)

        thread = threading.Thread(target=beat, daemon=True)
        if self.others:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self.others:
                thread.join()

    def post(self, value: Any, to: int) -> None:
        """Send any value to one rank, which takes it by `take`."""
        self.wait({to: self._send_bytes(pickle.dumps(value), to)})

    def take(self, source: int) -> Any:
        """The next value that a rank has posted."""
        return pickle.loads(self._receive_bytes(source))

    def share(self, value: T, root: int = 0) -> T:
        """What the rank `root` has; the others' values do not matter."""
        if self.rank != root:
            return self.take(root)
        written = pickle.dumps(value)
        self.wait({to: self._send_bytes(written, to) for to in self.others})
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        written = pickle.dumps(value)
        sent = {to: self._send_bytes(written, to) for to in self.others}
        received = {source: pickle.loads(self._receive_bytes(source)) for source in self.others}
        self.wait(sent)
        return [received.get(rank, value) for rank in range(self.size)]

    def agree(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Raise InputError, on all ranks, unless all have the same facts; it names who differs."""
        if not self.others:
            return
        of_ranks = self.gather(facts())
        for rank, theirs in enumerate(of_ranks):
            for name, value in theirs.items():
                if value != (usual := of_ranks[0].get(name)):
                    raise InputError(
                        "ranks that train together have the same version, settings, data, weights",
                        f"rank {rank} with {name} {value}, rank 0 with {usual}",
                        "Give all machines the same files, and start all ranks alike.",
                    )

    def _send_bytes(self, written: bytes, to: int, tag: int = OBJECTS) -> list:
        length, content = np.array([len(written)]), np.frombuffer(written, np.uint8)
        return [self.send(length, to, tag), self.send(content, to, tag)]

    def _receive_bytes(self, source: int, tag: int = OBJECTS) -> bytes:
        length = np.zeros(1, int)
        self.wait({source: [self.receive(length, source, tag)]})
        content = np.empty(int(length[0]), np.uint8)
        self.wait({source: [self.receive(content, source, tag)]})
        return content.tobytes()


def _open(asked: Sequence[Callable[[], bool]]) -> list[Callable[[], bool]]:
    return [done for done in asked if not done()]


class Threads(Ranks):
    """Ranks that are threads of one process, for tests and for lessons: see `together`."""

    def __init__(self, rank: int, size: int, letters: defaultdict[tuple, queue.SimpleQueue]):
        self.rank, self.size, self._letters = rank, size, letters

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        self._letters[self.rank, to, tag].put(array.copy())
        return lambda: True

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        letters = self._letters[source, self.rank, tag]
        there: list[bool] = []

        def done() -> bool:
            if not there:
                try:
                    array[...] = letters.get_nowait()
                except queue.Empty:
                    return False
                there.append(True)
            return True

        return done

    def is_waiting(self, source: int, tag: int) -> bool:
        return not self._letters[source, self.rank, tag].empty()


def together(count: int, work: Callable[[Ranks], T], timeout: float = 20.0) -> list[T]:
    """What `work(ranks)` gives in each of `count` ranks, which are threads of this process.

    Raises what one of them raises.
    """
    letters: Any = defaultdict(queue.SimpleQueue)
    results: list[Any] = [None] * count
    problems: list[tuple[bool, BaseException]] = []

    def run(rank: int) -> None:
        ranks = Threads(rank, count, letters)
        ranks.timeout = timeout
        try:
            with ranks.failing_together():
                results[rank] = work(ranks)
        except BaseException as problem:
            problems.append((ranks.heard, problem))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, problem in sorted(problems, key=operator.itemgetter(0)):  # first who did not hear of it
        raise problem
    return results
