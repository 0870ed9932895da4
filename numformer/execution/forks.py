"""Copies of this process that compute beside it, when they are asked.

On Linux a forked process has all that this one has, weights in shared memory included, at no cost.
"""

import atexit
import contextlib
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(vector: np.ndarray) -> np.ndarray:
    """A copy of `vector` (N,) in memory that later forked processes share."""
    copy = np.frombuffer(mmap.mmap(-1, max(vector.nbytes, 1)), vector.dtype, len(vector))
    copy[...] = vector
    return copy


class Forks:
    """`count` processes, of which this is the first, that call methods of one object.

    Each other one begins with `owner.become(index)`. Afterwards it sees nothing of what changes
    here, except what lies in shared memory. Raises what a fork raises, and then leaves no process
    behind.
    """

    def __init__(self, owner, count: int):
        self.owner = owner
        self.others: list[BaseProcess] = []
        self._connections: list[Connection] = []
        atexit.register(self.end)
        try:
            for index in range(1, count):
                self._fork(index)
        except BaseException:  # not all can be made: none shall be left
            self.end()
            raise

    def _fork(self, index: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self.owner, index, theirs), daemon=True
        )
        process.start()
        theirs.close()
        self.others.append(process)
        self._connections.append(ours)

    def call(self, method: str, arguments: list[tuple]) -> list:
        """What a method gives in the first processes, called in each with its own arguments.

        Raises what it raises in one of them. After Ctrl-C, or when a process was ended
        (ChildProcessError), all are ended, since nobody will read their answers.
        """
        connections = self._connections[: len(arguments) - 1]
        try:
            for connection, values in zip(connections, arguments[1:], strict=True):
                _or_ended(connection.send, (method, values))
            # Where it fails, the answers of the others must be read all the same.
            answers = [_answer(self.owner, method, arguments[0])]
            answers += [_or_ended(connection.recv) for connection in connections]
        except BaseException:
            self.end()
            raise
        if problems := [answer for answer in answers if isinstance(answer, Exception)]:
            raise problems[0]
        return answers

    def end(self) -> None:
        """End the other processes."""
        atexit.unregister(self.end)
        for connection in self._connections:
            connection.close()
        for process in self.others:
            process.join()
        self.others, self._connections = [], []


def _serve(owner, index: int, connection: Connection) -> None:
    """Another process: do what the first one asks for until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process decides
        signal.signal(number, signal.SIG_IGN)
    # While another end of a pipe is open here, or the lock on a run's folder, the end of the
    # first process goes unnoticed.
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    owner.become(index)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            with np.errstate(all="ignore"):  # the first process looks at the loss
                answer = _answer(owner, method, arguments)
            connection.send(answer)


def _answer(owner, method: str, arguments: tuple):
    """What a method gives or raises."""
    try:
        return getattr(owner, method)(*arguments)
    except Exception as problem:
        return problem


def _or_ended(talk: Callable, *message):
    """What `talk` gives; an end of the process at the other side is an error that says so."""
    try:
        return talk(*message)
    except (EOFError, ConnectionError):
        raise ChildProcessError("a process that computed part of the batch was ended") from None
