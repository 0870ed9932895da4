"""A training step in parts that ranks compute: processes on one machine or on many.

Rank 0 trains: it says what there is to do, measures, prints and writes. The others compute their
parts of each batch, and what the optimizer does to their stretch of the vectors, as in ZeRO stage 1
(Rajbhandari et al. 2020). Each has all weights. A block of the gradient leaves for the rank that
sums it while backward still runs; the order of the sums is the tree of the parts. That rank also
updates it, but for an optimizer of whole parameters the ends of some move to their owners before.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer import blas
from numformer.backend import to_host
from numformer.data import Batch
from numformer.execution.gradient_ready import Finished
from numformer.execution.pairwise import Branch, add_branches, branches
from numformer.execution.parts import Parts
from numformer.execution.ranks import VECTORS, Ranks
from numformer.layer import Array
from numformer.models import Objective
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.optimizers import (
    Optimizer,
    block_squares,
    blocks_of,
    clip_factor,
    norm_of,
    stretches,
)

GRADIENTS = 16  # the first tag of theirs
END = "end"


class RankParts(Parts):
    """`Parts` whose work ranks share; `serve` is what all but rank 0 do.

    `hidden` off sends gradients only after backward. `seconds` are those in which this rank waited
    for others, and `sent` the bytes that it sent.
    """

    hidden = True

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        seed: int,
        count: int,
        loss_scale: LossScale | None,
        ranks: Ranks,
    ):
        super().__init__(objective, optimizer, seed, count, loss_scale)
        self.ranks, self.alone = ranks, False
        self.seconds, self.sent = 0.0, 0
        self._blocks = blocks_of(len(optimizer.parameters.data))
        self._finished = Finished(objective, self._blocks)
        ends = [*(block.start for block in self._blocks), self._blocks[-1].stop]
        cuts = [ends[self._dealt(len(self._blocks), rank)[0]] for rank in range(ranks.size + 1)]
        self._updated = stretches(optimizer, cuts)  # by each rank
        self._factor: Any = None

    def _dealt(self, count: int, rank: int) -> tuple[int, int]:
        """Of `count` things the first that is a rank's, and the first that is not any more."""
        return count * rank // self.ranks.size, count * (rank + 1) // self.ranks.size

    def _owned(self, rank: int) -> range:
        """The blocks whose gradients a rank sums."""
        return range(*self._dealt(len(self._blocks), rank))

    def _stretch_of(self, rank: int) -> slice:
        """All of them."""
        of_rank = self._owned(rank)
        blocks = [self._blocks[block] for block in of_rank] or [slice(0, 0)]
        return slice(blocks[0].start, blocks[-1].stop)

    def _branches(self, rank: int, used: int) -> list[tuple[int, int]]:
        """The branches of the tree of the `used` parts that a rank computes."""
        first, last = self._dealt(self.count, rank)
        return branches(min(first, used), min(last, used), used)

    # What rank 0 asks for

    def _start_processes(self) -> None:
        self._all("_begin", [(self.threads, self.optimizer.steps)] * self.ranks.size)

    def gradient(self, step: int, batch: Batch | list[Batch]):
        if self.alone:
            return super().gradient(step, batch)
        jobs = self.jobs(step, batch)
        scale = self.loss_scale.scale if self.loss_scale else None
        arguments = []
        for rank in range(self.ranks.size):
            own = [jobs[first:last] for first, last in self._branches(rank, len(jobs))]
            arguments.append((len(jobs), own, scale))
        answers = self._all("_compute_branches", arguments)
        self._squares = np.concatenate([squares for _, squares in answers])
        losses = [loss for losses, _ in answers for loss in losses]
        return sum(losses[1:], start=losses[0])

    def clip(self, max_norm: float | None):
        norm = norm_of(self._squares)
        self._factor = None if max_norm is None else clip_factor(norm, max_norm)
        return norm

    def update(self, rate: float) -> None:
        step = self.optimizer.steps + 1
        self._all("_update_and_share", [(step, rate, self._factor)] * self.ranks.size)
        self.optimizer.steps = step

    def collect(self) -> None:
        self._all("_collect", [()] * self.ranks.size)

    def busy(self) -> contextlib.AbstractContextManager:
        return self.ranks.busy()

    def dismiss(self, best: dict) -> None:
        for rank in self.ranks.others:
            self.ranks.post((END, (best,)), rank)
        self._spread_weights()

    def end_processes(self) -> None:
        self.alone = True

    def serve(self, interrupts: list) -> dict:
        """Do what rank 0 asks for, until the run is over: its best evaluation, with its weights.

        Tells rank 0 when `interrupts` holds something. Raises what rank 0 raises.
        """
        with self._threads:
            while True:
                method, arguments = self.ranks.take(0)
                if method == END:
                    self._spread_weights()
                    return arguments[0]
                answer = getattr(self, method)(*arguments)
                self.ranks.post((answer, bool(interrupts)), 0)

    def _all(self, method: str, arguments: list[tuple]) -> list:
        """What a method gives in all ranks."""
        for rank in self.ranks.others:
            self.ranks.post((method, arguments[rank]), rank)
        answers = [getattr(self, method)(*arguments[0])]
        for rank in self.ranks.others:
            answer, interrupted = self.ranks.take(rank)
            answers.append(answer)
            self.interrupted |= interrupted
        return answers

    # What every rank does

    def _begin(self, threads: int, steps: int) -> None:
        if self.ranks.rank:
            self.threads = threads
            self._threads.enter_context(blas.training_threads(threads))
        self._spread_weights()
        if steps:  # of a resumed run
            self._move([(v, 0, rank) for v, rank in self._state_of_others()])

    def _compute_branches(self, used: int, own: list[list], scale) -> tuple[list, np.ndarray]:
        """Losses of this rank's parts, and squares of the gradient's blocks that it updates.

        Those blocks then hold the sum of all parts, divided by the loss's scale.
        """
        rank, grad = self.ranks.rank, self.optimizer.parameters.grad
        losses, sums = self._exchange_branches(used, own)
        mine = self._stretch_of(rank)
        grad[mine] = add_branches(sums, used)
        if scale is not None:
            grad[mine] *= 1 / scale
        blocks = [self._blocks[block] for block in self._owned(rank)]
        squares = to_host(block_squares(grad, blocks)) if blocks else np.zeros(0, grad.dtype)
        return [to_host(loss) for loss in losses], squares

    def _exchange_branches(
        self, used: int, own: list[list]
    ) -> tuple[list, dict[tuple[int, int], Array]]:
        """Losses of this rank's parts, and all branches of the sum along its stretch."""
        rank, grad = self.ranks.rank, self.optimizer.parameters.grad
        losses: list = []
        sums, coming = self._receive_branches(used)
        leaving: dict[int, list[Callable[[], bool]]] = {to: [] for to in self.ranks.others}
        for number, (place, jobs) in enumerate(zip(self._branches(rank, used), own, strict=True)):
            before = self._before_last(jobs, losses)

            def leave(block: int, number: int = number, before: Branch = before) -> None:
                """The block is finished: it leaves for the rank that updates it."""
                before.finish(grad, self._blocks[block])
                self._send(grad, number, block, leaving)

            told = self._finished.told(leave) if self.hidden else None
            step, parts = jobs[-1]
            losses.append(self._compute(step, parts, told))
            if not self.hidden:
                for block in range(len(self._blocks)):
                    leave(block)
            sums[place] = grad[self._stretch_of(rank)]
            if number < len(own) - 1:  # the next branch needs the vector
                self._wait(leaving)
                sums[place] = sums[place].copy()
        self._wait(coming)
        self._wait(leaving)
        return losses, sums

    def _before_last(self, jobs: list, losses: list) -> Branch:
        """The sum of all parts of a branch but the last."""
        before = Branch()
        for job in jobs[:-1]:
            losses.append(self._compute(*job))
            before.append(self.optimizer.parameters.grad.copy())
        return before

    def _send(self, grad: np.ndarray, branch: int, block: int, leaving: dict) -> None:
        owner = next(rank for rank in range(self.ranks.size) if block in self._owned(rank))
        if owner != self.ranks.rank:
            stretch, tag = grad[self._blocks[block]], self._tag(branch, block)
            leaving[owner].append(self.ranks.send(stretch, owner, tag))
            self.sent += stretch.nbytes
        for pending in leaving.values():  # MPI moves on what it is asked about
            pending[:] = [done for done in pending if not done()]

    def _receive_branches(self, used: int) -> tuple[dict[tuple[int, int], np.ndarray], dict]:
        """Arrays for the branches of the other ranks along this one's stretch, on their way."""
        mine, sums = self._stretch_of(self.ranks.rank), {}
        coming: dict[int, list[Callable[[], bool]]] = {source: [] for source in self.ranks.others}
        for source in self.ranks.others:
            for branch, place in enumerate(self._branches(source, used)):
                sums[place] = np.empty_like(self.optimizer.parameters.grad[mine])
                for block in self._owned(self.ranks.rank):
                    first, last = self._blocks[block].start, self._blocks[block].stop
                    part = sums[place][first - mine.start : last - mine.start]
                    pending = self.ranks.receive(part, source, self._tag(branch, block))
                    coming[source].append(pending)
        return sums, coming

    def _tag(self, branch: int, block: int) -> int:
        return GRADIENTS + branch * len(self._blocks) + block

    def _update_and_share(self, step: int, rate: float, factor) -> None:
        """The optimizer's update of this rank's stretch; then all have the new weights."""
        mine, grad = self._stretch_of(self.ranks.rank), self.optimizer.parameters.grad
        if factor is not None:
            grad[mine] *= factor
        data, ranks = self.optimizer.parameters.data, range(self.ranks.size)
        pairs = [(owner, to) for owner in ranks for to in ranks if to != owner]
        summed = [(_both(self._stretch_of(a), self._updated[b]), a, b) for a, b in pairs]
        self._move([(grad[part], a, b) for part, a, b in summed if part.start < part.stop])
        self.optimizer.update(grad, step, rate, self._updated[self.ranks.rank])
        self._move([(data[self._updated[owner]], owner, to) for owner, to in pairs])

    def _spread_weights(self) -> None:
        """All get the weights of rank 0."""
        data = self.optimizer.parameters.data
        self._move([(data, 0, to) for to in range(1, self.ranks.size)])

    def _collect(self) -> None:
        self._move([(vector, rank, 0) for vector, rank in self._state_of_others()])

    def _state_of_others(self) -> list[tuple[np.ndarray, int]]:
        """The optimizer's vectors along the stretches that all ranks but rank 0 update."""
        vectors = self.optimizer.state.values()
        others = range(1, self.ranks.size)
        return [(vector[self._updated[rank]], rank) for vector in vectors for rank in others]

    def _move(self, moves: list[tuple[np.ndarray, int, int]]) -> None:
        """Send arrays (N,), each from one rank to another, where it is written over."""
        rank = self.ranks.rank
        pending: dict[int, list[Callable[[], bool]]] = {other: [] for other in self.ranks.others}
        for array, source, to in moves:
            if rank == source:
                pending[to].append(self.ranks.send(array, to, VECTORS))
                self.sent += array.nbytes
            elif rank == to:
                pending[source].append(self.ranks.receive(array, source, VECTORS))
        self._wait(pending)

    def _wait(self, pending: dict[int, list[Callable[[], bool]]]) -> None:
        began = time.perf_counter()
        self.ranks.wait(pending)
        self.seconds += time.perf_counter() - began


def _both(one: slice, other: slice) -> slice:
    """What two stretches have in common."""
    return slice(max(one.start, other.start), min(one.stop, other.stop))
