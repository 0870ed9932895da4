"""A training step in parts: processes that share the weights, each with a part of the batch.

NumPy computes most things on one core. So a batch is dealt out in parts, and where there are cores
each part has a process of its own, forked from this one. The weights lie in memory that all of
them see; every process has a gradient vector there, and the gradients are summed in a fixed order:
the result is the same bits whether the parts were computed side by side or in turn.
"""

import atexit
import contextlib
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
from threadpoolctl import threadpool_limits

from numformer.backend import dropout_stream
from numformer.batching import Batch
from numformer.layer import FlatParameters
from numformer.loss import CrossEntropy
from numformer.model import Transformer


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def shared(vector: np.ndarray) -> np.ndarray:
    """A copy of `vector` (N,) in memory that later forked processes share."""
    copy = np.frombuffer(mmap.mmap(-1, max(vector.nbytes, 1)), vector.dtype, len(vector))
    copy[...] = vector
    return copy


class Parts:
    """Loss and gradient of a batch, computed in `count` parts.

    `parameters` are the model's afterwards: for several parts its vectors move to shared memory.
    """

    def __init__(
        self,
        model: Transformer,
        loss: CrossEntropy,
        parameters: FlatParameters,
        seed: int,
        count: int,
    ):
        self.model, self.loss, self.seed, self.count = model, loss, seed, count
        self.parameters = parameters
        self.processes: list[multiprocessing.Process] = []
        self._others: list[tuple[Connection, np.ndarray]] = []
        if count > 1 and cores() > 1 and "fork" in multiprocessing.get_all_start_methods():
            everything = model.named_parameters().values()
            vectors = shared(parameters.data), shared(parameters.grad)
            self.parameters = FlatParameters(*vectors, list(everything))
            self._limit = threadpool_limits(max(1, cores() // count), "blas")
            for _ in range(1, count):
                self._fork()
            atexit.register(self.close)

    def gradient(self, step: int, batch: Batch):
        """The loss of `batch` (); its gradient is then in parameters.grad.

        The dropout masks of a part are those of (seed, step, part).
        """
        parts = batch.split(self.count)
        sizes = [np.count_nonzero(part.target_out) for part in parts]
        jobs = [
            (step, index, part, size / max(sum(sizes), 1))
            for index, (part, size) in enumerate(zip(parts, sizes, strict=True))
        ]
        return self._side_by_side(jobs) if self._others else self._in_turn(jobs)

    def _compute(self, step: int, index: int, part: Batch, share: float):
        """`share` times the mean loss of one part, its gradient in parameters.grad."""
        dropout_stream.reseed(self.seed, step, index)
        self.parameters.grad.fill(0)
        logits = self.model.forward(part.source, part.target_in, skip_padding=True)
        loss = self.loss.forward(logits, part.target_out)
        self.model.backward(self.loss.backward(share))
        return loss * share

    def _in_turn(self, jobs):
        loss = self._compute(*jobs[0])
        if len(jobs) > 1:
            total = self.parameters.grad.copy()
            for job in jobs[1:]:
                loss = loss + self._compute(*job)
                total += self.parameters.grad
            self.parameters.grad[...] = total
        return loss

    def _side_by_side(self, jobs):
        busy = list(zip(self._others, jobs[1:], strict=False))
        for (connection, _), job in busy:
            _or_ended(connection.send, job)
        loss = self._compute(*jobs[0])
        for (connection, grad), _ in busy:
            answer = _or_ended(connection.recv)
            if isinstance(answer, Exception):
                raise answer
            loss = loss + answer
            self.parameters.grad += grad
        return loss

    def _fork(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        grad = shared(self.parameters.grad)
        process = multiprocessing.get_context("fork").Process(
            target=self._serve, args=(theirs, grad), daemon=True
        )
        process.start()
        theirs.close()
        self.processes.append(process)
        self._others.append((ours, grad))

    def _serve(self, connection: Connection, grad: np.ndarray) -> None:
        """What another process does: compute parts until the first process ends."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the first process decides
            signal.signal(number, signal.SIG_IGN)
        # While another end of a pipe is open here, or the lock on a run's folder, the end of the
        # first process goes unnoticed.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        everything = self.model.named_parameters().values()
        self.parameters = FlatParameters(self.parameters.data, grad, list(everything))
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                job = connection.recv()
                try:
                    with np.errstate(all="ignore"):  # the first process looks at the loss
                        answer = self._compute(*job)
                except Exception as problem:
                    answer = problem
                connection.send(answer)

    def close(self) -> None:
        """End the other processes; what is still asked for is then computed in turn."""
        if self._others:
            self._limit.restore_original_limits()
            atexit.unregister(self.close)
        for process, (connection, _) in zip(self.processes, self._others, strict=True):
            connection.close()
            process.join()
        self.processes, self._others = [], []


def _or_ended(talk: Callable, *message):
    """What `talk` gives; an end of the process at the other side is an error that says so."""
    try:
        return talk(*message)
    except (EOFError, ConnectionError):
        raise ChildProcessError("a process that computed part of the batch was ended") from None
