"""A training step in parts: processes that share the weights, each with a part of the batch.

NumPy computes most things on one core. So a batch is dealt out in parts, and where there are cores
each part has a process of its own, forked from this one. Weights and the optimizer's vectors lie in
memory that all of them see; every process has a gradient vector there. The gradients are summed in
a fixed order (execution/pairwise.py), so the bits are the same whether parts were computed side by
side or in turn, or by ranks on many machines (ranked_parts.py).
"""

import contextlib
import sys
from typing import Any

import numpy as np

from numformer import blas
from numformer.allocator import return_freed_memory
from numformer.backend import on_host
from numformer.data import Batch
from numformer.errors import InputError
from numformer.execution.forks import Forks, cores, shared
from numformer.execution.pairwise import Branch, add_pairwise
from numformer.half_precision import half_products
from numformer.layer import FlatParameters
from numformer.models import Objective
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.optimizers import Optimizer, clip_global_norm, stretches
from numformer.randomness import dropout_stream


def usual_parts(xp) -> int:
    """Two where each can have a process of its own: on Linux, with arrays on the host."""
    return 2 if on_host(xp.empty(0)) and sys.platform == "linux" else 1


class Parts:
    """Steps of training, each batch computed in `count` parts.

    When the parts get processes of their own, the vectors of `optimizer` and of its parameters move
    to shared memory; then each process also does its stretch of the optimizer's update (of whole
    parameters where its rule needs these).

    The number of threads may decide the last bits of a product. So `threads` is fixed while the
    parts compute, and a run that goes on elsewhere takes those that it began with.

    With a `loss_scale` products are made in half precision, and the loss is scaled by it.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        seed: int,
        count: int,
        loss_scale: LossScale | None = None,
    ):
        if count < 1:
            raise InputError("a batch has at least one part", count, "Ask for more parts.")
        self.objective, self.optimizer = objective, optimizer
        self.seed, self.count, self.loss_scale = seed, count, loss_scale
        self.threads = 1 if count > 1 else blas.threads()
        self.processes: Forks | None = None
        self.interrupted = False  # whether another process was told to stop
        self._threads = contextlib.ExitStack()

    def start(self) -> None:
        """Give each part a process of its own, where there are cores; without it they take turns.

        Of what changes afterwards the other processes see the weights alone, and these only where
        they are written in place.
        """
        if on_host(self.optimizer.parameters.data):
            self._threads.enter_context(blas.training_threads(self.threads))
        self._start_processes()

    def _start_processes(self) -> None:
        # On systems other than Linux, libraries may not survive a fork; a GPU does on none.
        forks = sys.platform == "linux" and on_host(self.optimizer.parameters.data)
        if forks and self.count > 1 and cores() > 1:
            self._share()
            return_freed_memory()
            self.processes = Forks(self, self.count)

    def gradient(self, step: int, batch: Batch | list[Batch]):
        """The loss of `batch` (); its gradient is then in the parameters' vector.

        Of several batches it is that of all their predictions together, as of one large batch that
        would need more memory. The dropout masks of a part are those of (seed, step, part).
        """
        jobs = self.jobs(step, batch)
        if self.processes:
            losses = self._everywhere("_compute", jobs)
            self._everywhere("_sum", [(len(jobs),)] * self.count)
        else:
            losses, grad, before = [], self.optimizer.parameters.grad, Branch()
            for job in jobs:
                if losses:
                    before.append(grad.copy())
                losses.append(self._compute(*job))
            before.finish(grad)
        if self.loss_scale:
            self.optimizer.parameters.grad *= 1 / self.loss_scale.scale
        return sum(losses[1:], start=losses[0])

    def jobs(self, step: int, batch: Batch | list[Batch]) -> list[tuple[int, list]]:
        """What there is to compute in each part: the arguments of `_compute`."""
        batches: list[Any] = batch if isinstance(batch, list) and batch else [batch]
        if wrong := [item for item in batches if not isinstance(item, Batch)]:
            raise InputError(
                "a task's batch(step) gives a Batch, or a list of them",
                type(wrong[0]).__name__,
                "Return for example PairBatch.of(pairs of ids).",
            )
        splits = [item.split(self.count) for item in batches]
        weights = [[part.weight for part in split] for split in splits]
        whole = max(sum(map(sum, weights)), 1)
        scale = self.loss_scale.scale if self.loss_scale else 1.0
        jobs: list[tuple[int, list]] = [(step, []) for _ in range(max(map(len, splits)))]
        for number, split in enumerate(splits):
            for index, part in enumerate(split):
                share = weights[number][index] / whole
                job = index + self.count * number, part, share, share * scale
                jobs[index][1].append(job)
        return jobs

    def clip(self, max_norm: float | None):
        """The gradient's norm (), as `clip_global_norm` gives it."""
        return clip_global_norm(self.optimizer.parameters.grad, max_norm)

    def update(self, rate: float) -> None:
        """One step of the optimizer."""
        if self.processes:
            self._everywhere("_update", [(self.optimizer.steps + 1, rate)] * self.count)
            self.optimizer.steps += 1
        else:
            self.optimizer.step(rate)

    def dismiss(self, best: dict) -> None:
        """The run is over, by this evaluation: others get the weights that are here now."""

    def collect(self) -> None:
        """Bring the optimizer's vectors to this process."""

    def busy(self) -> contextlib.AbstractContextManager:
        """Within the block other processes wait for this one, however long."""
        return contextlib.nullcontext()

    # What every process does

    def _compute(
        self,
        step: int,
        parts: list[tuple[int, Batch, float, Any]],
        around: contextlib.AbstractContextManager | None = None,
    ):
        """The sum of `share` times the mean loss of each part, of `dloss` times its gradient.

        `around` is entered for the last backward.
        """
        self.optimizer.parameters.zero_grad()
        losses = []
        with half_products(self.loss_scale is not None):
            for number, part, share, dloss in parts:
                dropout_stream.reseed(self.seed, step, number)
                losses.append(self.objective.forward(*part.inputs) * share)
                last = len(losses) == len(parts)
                with around if last and around else contextlib.nullcontext():
                    self.objective.backward(dloss)
        return sum(losses[1:], start=losses[0])

    def _sum(self, used: int) -> None:
        """Add the gradients of the first `used` parts into the first's, along this stretch."""
        add_pairwise([grad[self._stretch] for grad in self._gradients[:used]])

    def _update(self, step: int, rate: float) -> None:
        """The optimizer's update of this stretch."""
        grad = self._gradients[0]
        self.optimizer.update(grad, step, rate, self._stretch)

    # Who does it

    def _everywhere(self, method: str, arguments: list[tuple]) -> list:
        """What a method gives in each of the first processes."""
        assert self.processes
        try:
            return self.processes.call(method, arguments)
        finally:
            if not self.processes.others:
                self.processes = None  # what is asked for later is computed in turn

    def _share(self) -> None:
        """Move all vectors to memory that the processes share, a gradient for each of them."""
        flat, optimizer = self.optimizer.parameters, self.optimizer
        self._gradients = [shared(flat.grad) for _ in range(self.count)]
        optimizer.state = {name: shared(vector) for name, vector in optimizer.state.items()}
        self._use(0, shared(flat.data))

    def become(self, index: int) -> None:
        """In another process: be that of part `index`."""
        self._use(index, self.optimizer.parameters.data)

    def _use(self, index: int, data: np.ndarray) -> None:
        """Make this the process of part `index`: its gradient, its stretch of all vectors."""
        parameters = [*self.objective.named_parameters().values()]
        self.optimizer.parameters = FlatParameters(data, self._gradients[index], parameters)
        cuts = [len(data) * place // self.count for place in range(self.count + 1)]
        self._stretch = stretches(self.optimizer, cuts)[index]

    def end_processes(self) -> None:
        """End the other processes; what is asked for later is computed in turn, the same bits."""
        if self.processes:
            self.processes.end()
            self.processes = None

    def close(self) -> None:
        """End the other processes, and give BLAS the threads back that it had."""
        self.end_processes()
        self._threads.close()
