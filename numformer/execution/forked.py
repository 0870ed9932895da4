"""A training step in parts: this process computes one, and a forked process each of the others.

NumPy computes most operations on one core, so computing parts in parallel is faster. A forked
process has all objects of this one, without copying them. The weights, the optimizer's vectors and
one gradient vector per process are in memory that all processes share.
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

from numformer.allocator import return_freed_memory
from numformer.execution.in_turn import InTurn, split
from numformer.execution.pairwise import add_branches
from numformer.layer import FlatParameters
from numformer.optimization.optimizers import stretches


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(vector: np.ndarray) -> np.ndarray:
    """Return a copy of `vector` (N,) in memory that this process shares with its later forks."""
    copy = np.frombuffer(mmap.mmap(-1, max(vector.nbytes, 1)), vector.dtype, len(vector))
    copy[...] = vector
    return copy


class Forked(InTurn):
    """The executor with one process per part; each also updates its stretch (slice) of the weights.

    This process computes all parts in turn before `start`, after `close`, and once Ctrl-C or the
    death of a process (ChildProcessError) has ended the other processes.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.processes: list[BaseProcess] = []  # numbers 1, 2, ...; this process is number 0
        self._connections: list[Connection] = []

    def start(self) -> None:
        super().start()
        flat, optimizer = self.optimizer.parameters, self.optimizer
        self._gradients = [shared(flat.grad) for _ in range(self.parts)]
        optimizer.state = {name: shared(vector) for name, vector in optimizer.state.items()}
        self._use_gradient(0, shared(flat.data))
        return_freed_memory()
        atexit.register(self._end_processes)
        try:
            for index in range(1, self.parts):
                self._fork(index)
        except BaseException:
            self._end_processes()
            raise

    def gradient(self, step, batch, scale=None):
        if not self.processes:
            return super().gradient(step, batch, scale)
        parts = split(batch, self.parts, scale)
        losses = self._call("compute", [(step, pieces, scale is not None) for pieces in parts])
        self._call("sum_gradients", [(len(parts),)] * self.parts)
        if scale is not None:
            self.optimizer.parameters.grad *= 1 / scale
        return sum(losses[1:], start=losses[0])

    def update(self, rate: float) -> None:
        if not self.processes:
            return super().update(rate)
        self._call("update_stretch", [(self.optimizer.steps + 1, rate)] * self.parts)
        self.optimizer.steps += 1

    def close(self) -> None:
        self._end_processes()
        super().close()

    # What every process does

    def _use_gradient(self, index: int, data: np.ndarray) -> None:
        """Use gradient vector `index` in this process, and set its stretch of the vectors."""
        parameters = [*self.objective.named_parameters().values()]
        self.optimizer.parameters = FlatParameters(data, self._gradients[index], parameters)
        cuts = [len(data) * place // self.parts for place in range(self.parts + 1)]
        self._stretch = stretches(self.optimizer, cuts)[index]

    def sum_gradients(self, parts: int) -> None:
        """Within this process's stretch, add the gradients of all `parts` into that of part 0."""
        gradients = {(n, n + 1): self._gradients[n][self._stretch] for n in range(parts)}
        add_branches(gradients, parts)

    def update_stretch(self, step: int, rate: float) -> None:
        """Update this process's stretch of the weights."""
        self.optimizer.update(self._gradients[0], step, rate, self._stretch)

    # Processes

    def _fork(self, index: int) -> None:
        parent_end, child_end = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=self._serve, args=(index, child_end), daemon=True
        )
        process.start()
        child_end.close()
        self.processes.append(process)
        self._connections.append(parent_end)

    def _call(self, method: str, arguments: list[tuple]) -> list:
        """Call a method in as many processes as `arguments` has tuples, and return their results.

        If the method raises an exception in a process, raises that here.
        """
        connections = self._connections[: len(arguments) - 1]
        try:
            for connection, values in zip(connections, arguments[1:], strict=True):
                _require_alive(connection.send, (method, values))
            # An exception in this process is returned, so that the others' results are still read.
            results = [self._result(method, arguments[0])]
            results += [_require_alive(connection.recv) for connection in connections]
        except BaseException:  # the other results will never be read
            self._end_processes()
            raise
        if problems := [result for result in results if isinstance(result, Exception)]:
            raise problems[0]
        return results

    def _result(self, method: str, arguments: tuple):
        """Call a method, and return its result or its exception."""
        try:
            return getattr(self, method)(*arguments)
        except Exception as problem:
            return problem

    def _serve(self, index: int, connection: Connection) -> None:
        """In a forked process, call each method that process 0 names, until process 0 ends."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the first process handles signals
            signal.signal(number, signal.SIG_IGN)
        # If inherited pipes or folder locks stayed open here, they would outlive the first process,
        # and other processes would not notice that it has ended.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        self._use_gradient(index, self.optimizer.parameters.data)
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                method, arguments = connection.recv()
                with np.errstate(all="ignore"):  # the first process checks the loss
                    result = self._result(method, arguments)
                connection.send(result)

    def _end_processes(self) -> None:
        atexit.unregister(self._end_processes)
        for connection in self._connections:
            connection.close()
        for process in self.processes:
            process.join()
        self.processes, self._connections = [], []


def _require_alive(send_or_receive: Callable, *message):
    """Send or receive. Raises ChildProcessError if the process at the other end has died."""
    try:
        return send_or_receive(*message)
    except (EOFError, ConnectionError):
        raise ChildProcessError("a process that computed part of the batch was ended") from None
