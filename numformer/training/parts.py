"""A training step in parts: processes that share the weights, each with a part of the batch.

NumPy computes most things on one core. So a batch is dealt out in parts, and where there are cores
each part has a process of its own, forked from this one. Weights and the optimizer's vectors lie in
memory that all of them see; every process has a gradient vector there. The gradients are summed in
a fixed order, so the bits are the same whether parts were computed side by side or in turn.
"""

import atexit
import contextlib
import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from numformer.backend import dropout_stream, on_host
from numformer.data import Batch
from numformer.layer import FlatParameters
from numformer.models import Objective
from numformer.training.optimizers import Optimizer


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def usual_parts(xp) -> int:
    """Two where each can have a process of its own: on Linux, with arrays on the host."""
    return 2 if on_host(xp.empty(0)) and sys.platform == "linux" else 1


def blas_threads() -> int:
    """How many threads a product of matrices takes."""
    counts = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
    return max(counts, default=1)


def shared(vector: np.ndarray) -> np.ndarray:
    """A copy of `vector` (N,) in memory that later forked processes share."""
    copy = np.frombuffer(mmap.mmap(-1, max(vector.nbytes, 1)), vector.dtype, len(vector))
    copy[...] = vector
    return copy


class Parts:
    """Steps of training, each batch computed in `count` parts.

    When the parts get processes of their own, the vectors of `optimizer` and of its parameters move
    to shared memory; then each process also does its stretch of the optimizer's update.

    The number of threads may decide the last bits of a product. So `threads` is fixed while the
    parts compute, and a run that goes on elsewhere takes those that it began with.
    """

    def __init__(self, objective: Objective, optimizer: Optimizer, seed: int, count: int):
        self.objective, self.optimizer = objective, optimizer
        self.seed, self.count = seed, count
        self.threads = 1 if count > 1 else blas_threads()
        self.processes: list[multiprocessing.Process] = []
        self._others: list[Connection] = []
        self._limit: threadpool_limits | None = None

    def start(self) -> None:
        """Give each part a process of its own, where there are cores; without it they take turns.

        Afterwards the other processes see nothing of what changes in the objective or the modes,
        except the weights, and these only where they are written in place.
        """
        if not on_host(self.optimizer.parameters.data):
            return
        self._limit = threadpool_limits(self.threads, "blas")
        # On systems other than Linux, libraries may not survive a fork.
        if self.count > 1 and sys.platform == "linux" and cores() > 1:
            try:
                self._fork()
            except BaseException:  # not all can be made: none shall be left
                self.end_processes()
                raise

    def gradient(self, step: int, batch: Batch):
        """The loss of `batch` (); its gradient is then in the parameters' vector.

        The dropout masks of a part are those of (seed, step, part).
        """
        parts = batch.split(self.count)
        whole = max(sum(part.weight for part in parts), 1)
        shares = [float(part.weight / whole) for part in parts]  # NumPy's float64 would widen
        jobs = [(step, index, *each) for index, each in enumerate(zip(parts, shares, strict=True))]
        if self._others:
            losses = self._everywhere("_compute", jobs)
            self._everywhere("_sum", [(len(jobs),)] * self.count)
        else:
            losses = self._in_turn(jobs)
        return sum(losses[1:], start=losses[0])

    def update(self, rate: float) -> None:
        """One step of the optimizer."""
        if self._others:
            self._everywhere("_update", [(self.optimizer.steps + 1, rate)] * self.count)
            self.optimizer.steps += 1
        else:
            self.optimizer.step(rate)

    # What every process does

    def _compute(self, step: int, index: int, part: Batch, share: float):
        """`share` times the mean loss of one part, its gradient in the parameters' vector."""
        dropout_stream.reseed(self.seed, step, index)
        self.optimizer.parameters.grad.fill(0)
        loss = self.objective.forward(*part.inputs)
        self.objective.backward(share)
        return loss * share

    def _sum(self, used: int) -> None:
        """Add the gradients of the first `used` parts into the first's, along this stretch."""
        total, *others = (grad[self._stretch] for grad in self._gradients[:used])
        for other in others:
            total += other

    def _update(self, step: int, rate: float) -> None:
        """The optimizer's update of this stretch."""
        grad = self._gradients[0]
        self.optimizer.update(grad, step, rate, self._stretch)

    # Who does it

    def _in_turn(self, jobs) -> list:
        """The losses of all parts, computed here one after the other."""
        grad = self.optimizer.parameters.grad
        losses = [self._compute(*jobs[0])]
        if len(jobs) > 1:
            total = grad.copy()
            for job in jobs[1:]:
                losses.append(self._compute(*job))
                total += grad
            grad[...] = total
        return losses

    def _everywhere(self, method: str, arguments: list[tuple]) -> list:
        """What a method gives in the first processes, called in each with its own arguments."""
        others = self._others[: len(arguments) - 1]
        try:
            for connection, each in zip(others, arguments[1:], strict=True):
                _or_ended(connection.send, (method, each))
            try:
                own = getattr(self, method)(*arguments[0])
            except Exception as problem:  # the answers of the others must be read all the same
                own = problem
            answers = [own, *(_or_ended(connection.recv) for connection in others)]
        except BaseException:  # Ctrl-C, or a process that was ended: nobody will read the others
            self.end_processes()
            raise
        if problems := [answer for answer in answers if isinstance(answer, Exception)]:
            raise problems[0]
        return answers

    def _fork(self) -> None:
        flat, optimizer = self.optimizer.parameters, self.optimizer
        self._gradients = [shared(flat.grad) for _ in range(self.count)]
        optimizer.state = {name: shared(vector) for name, vector in optimizer.state.items()}
        self._use(0, shared(flat.data))
        atexit.register(self.end_processes)
        for index in range(1, self.count):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=self._serve, args=(index, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._others.append(ours)

    def _use(self, index: int, data: np.ndarray) -> None:
        """Make this the process of part `index`: its gradient, its stretch of all vectors."""
        parameters = [*self.objective.named_parameters().values()]
        self.optimizer.parameters = FlatParameters(data, self._gradients[index], parameters)
        ends = [len(data) * each // self.count for each in (index, index + 1)]
        self._stretch = slice(*ends)

    def _serve(self, index: int, connection: Connection) -> None:
        """Another process: do what the first one asks for until it ends."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the first process decides
            signal.signal(number, signal.SIG_IGN)
        # While another end of a pipe is open here, or the lock on a run's folder, the end of the
        # first process goes unnoticed.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        self._use(index, self.optimizer.parameters.data)
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                method, arguments = connection.recv()
                try:
                    with np.errstate(all="ignore"):  # the first process looks at the loss
                        answer = getattr(self, method)(*arguments)
                except Exception as problem:
                    answer = problem
                connection.send(answer)

    def end_processes(self) -> None:
        """End the other processes; what is asked for later is computed in turn, the same bits."""
        atexit.unregister(self.end_processes)
        for connection in self._others:
            connection.close()
        for process in self.processes:
            process.join()
        self.processes, self._others = [], []

    def close(self) -> None:
        """End the other processes, and give BLAS the threads back that it had."""
        self.end_processes()
        if self._limit:
            self._limit.restore_original_limits()
            self._limit = None


def _or_ended(talk: Callable, *message):
    """What `talk` gives; an end of the process at the other side is an error that says so."""
    try:
        return talk(*message)
    except (EOFError, ConnectionError):
        raise ChildProcessError("a process that computed part of the batch was ended") from None
