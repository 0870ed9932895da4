"""A training step whose parts are divided among ranks: processes on one machine or on many.

Rank 0 runs the training loop: it calls methods in the other ranks, evaluates, prints and writes
files. Each rank computes its parts of each batch, and updates its stretch (a slice) of the weights,
as in ZeRO stage 1 (Rajbhandari et al. 2020). Every rank has all weights. While backward still runs,
each block of the gradient is sent to the rank that sums it and updates the block's weights. If the
optimizer needs whole parameters, each is updated by one rank, which first receives the rest of the
parameter's gradient.
"""

import itertools
import time
from typing import Any

import numpy as np

from numformer import blas
from numformer.backend import to_host
from numformer.data import Batch
from numformer.execution.gradient_ready import GradientReady
from numformer.execution.in_turn import InTurn, Piece, split
from numformer.execution.pairwise import Branch, add_branches, branches
from numformer.execution.ranks import VECTORS, Pending, Ranks
from numformer.layer import Array
from numformer.models import Objective
from numformer.optimization.clipping import block_squares, blocks_of, clip_factor, norm_of
from numformer.optimization.optimizers import stretches
from numformer.paper.adam import Optimizer

GRADIENTS = 16  # the message tag of the gradient's first block
END = "end"


class RankExecutor(InTurn):
    """The executor of several ranks: rank 0 calls Executor's methods, the others call `serve`.

    With `overlap`, gradients are sent during backward, otherwise after it. `seconds_waiting` and
    `bytes_sent` are this rank's totals.
    """

    overlap = True

    def __init__(
        self, objective: Objective, optimizer: Optimizer, seed: int, parts: int, ranks: Ranks
    ):
        super().__init__(objective, optimizer, seed, parts)
        self.ranks = ranks
        self.seconds_waiting, self.bytes_sent = 0.0, 0
        self._blocks = blocks_of(len(optimizer.parameters.data))
        self._gradient_ready = GradientReady(objective, self._blocks)
        ends = [*(block.start for block in self._blocks), self._blocks[-1].stop]
        cuts = [ends[self._blocks_to_sum(rank).start] for rank in range(ranks.size + 1)]
        # By rank: the stretch of the gradient that it sums, and of the weights that it updates.
        self._sum_stretches = [slice(*both) for both in itertools.pairwise(cuts)]
        self._update_stretches = stretches(optimizer, cuts)
        self._clip_factor: Any = None

    def _share(self, count: int, rank: int) -> range:
        """Return the indices of those of `count` parts or blocks that belong to a rank."""
        return range(count * rank // self.ranks.size, count * (rank + 1) // self.ranks.size)

    def _blocks_to_sum(self, rank: int) -> range:
        """Return the indices of the gradient's blocks that a rank sums."""
        return self._share(len(self._blocks), rank)

    def _branches(self, rank: int, parts: int) -> list[tuple[int, int]]:
        """Return the branches (pairwise.py) that a rank computes if a batch has `parts` parts."""
        own = self._share(self.parts, rank)
        return branches(min(own.start, parts), min(own.stop, parts), parts)

    # What rank 0 calls

    def start(self) -> None:
        super().start()
        self._call("_begin", [(self.threads, self.optimizer.steps)] * self.ranks.size)

    def gradient(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        parts = split(batch, self.parts, scale)
        arguments = []
        for rank in range(self.ranks.size):
            own = [parts[first:last] for first, last in self._branches(rank, len(parts))]
            arguments.append((step, len(parts), own, scale))
        results = self._call("_sum_gradients", arguments)
        self._squares = np.concatenate([squares for _, squares in results])
        losses = [loss for losses, _ in results for loss in losses]
        return sum(losses[1:], start=losses[0])

    def clip(self, max_norm: float | None) -> Any:
        norm = norm_of(self._squares)
        self._clip_factor = None if max_norm is None else clip_factor(norm, max_norm)
        return norm

    def update(self, rate: float) -> None:
        step = self.optimizer.steps + 1
        self._call("_update_and_share", [(step, rate, self._clip_factor)] * self.ranks.size)
        self.optimizer.steps = step

    def optimizer_state(self) -> dict[str, Any]:
        self._call("_collect_state", [()] * self.ranks.size)
        return self.optimizer.state

    def end_run(self, best: dict) -> None:
        """Send the other ranks the current weights, and make their `serve` return `best`."""
        for rank in self.ranks.others:
            self.ranks.post((END, (best,)), rank)
        self._broadcast_weights()

    def _call(self, method: str, arguments: list[tuple]) -> list:
        """Call a method in every rank, each with its own arguments, and return the results."""
        for rank in self.ranks.others:
            self.ranks.post((method, arguments[rank]), rank)
        results = [getattr(self, method)(*arguments[0])]
        for rank in self.ranks.others:
            result, interrupted = self.ranks.take(rank)
            results.append(result)
            self.interrupted |= interrupted
        return results

    # What the other ranks call

    def serve(self, interrupts: list) -> dict:
        """Run the methods that rank 0 calls until the run ends; return the best evaluation.

        With each result, rank 0 learns whether `interrupts` has an entry. If rank 0 raises an
        error, raises the same error.
        """
        with self._fixed_threads:
            while True:
                method, arguments = self.ranks.take(0)
                if method == END:
                    self._broadcast_weights()
                    return arguments[0]
                result = getattr(self, method)(*arguments)
                self.ranks.post((result, bool(interrupts)), 0)

    # What every rank does

    def _begin(self, threads: int, steps: int) -> None:
        if self.ranks.rank:
            self._fixed_threads.enter_context(blas.training_threads(threads))
        self._broadcast_weights()
        if steps:  # a resumed run: rank 0 has optimizer state to share
            self._move([(vector, 0, rank) for vector, rank in self._state_of_others()])

    def _sum_gradients(
        self, step: int, parts: int, own: list[list[list[Piece]]], scale: Any
    ) -> tuple[list, np.ndarray]:
        """Compute this rank's branches, and sum all ranks' branches within this rank's stretch.

        Returns the losses of this rank's parts, and the sum of squares of each of its blocks.
        """
        rank, grad = self.ranks.rank, self.optimizer.parameters.grad
        losses, sums = self._exchange_branches(step, parts, own, scale is not None)
        stretch = self._sum_stretches[rank]
        grad[stretch] = add_branches(sums, parts)
        if scale is not None:
            grad[stretch] *= 1 / scale
        blocks = [self._blocks[block] for block in self._blocks_to_sum(rank)]
        squares = to_host(block_squares(grad, blocks)) if blocks else np.zeros(0, grad.dtype)
        return [to_host(loss) for loss in losses], squares

    def _exchange_branches(
        self, step: int, parts: int, own: list[list[list[Piece]]], half: bool
    ) -> tuple[list, dict[tuple[int, int], Array]]:
        """Return the losses of this rank's parts, and the sums of all branches in its stretch."""
        rank, grad = self.ranks.rank, self.optimizer.parameters.grad
        losses: list = []
        sums, arriving = self._receive_branches(parts)
        leaving: Pending = {to: [] for to in self.ranks.others}
        for number, (place, branch) in enumerate(
            zip(self._branches(rank, parts), own, strict=True)
        ):
            before = self._all_but_last(step, branch, half, losses)

            def send_block(block: int, before: Branch = before) -> None:
                before.finish(grad, self._blocks[block])
                self._send(grad, block, leaving)

            reports = self._gradient_ready.reports(send_block) if self.overlap else None
            losses.append(self.compute(step, branch[-1], half, reports))
            if not self.overlap:
                for block in range(len(self._blocks)):
                    send_block(block)
            sums[place] = grad[self._sum_stretches[rank]]
            if number < len(own) - 1:  # the next branch overwrites `grad`
                self._wait(leaving)
                sums[place] = sums[place].copy()
        self._wait(arriving)
        self._wait(leaving)
        return losses, sums

    def _all_but_last(
        self, step: int, branch: list[list[Piece]], half: bool, losses: list
    ) -> Branch:
        """Compute and sum the gradients of all parts of a branch except the last."""
        before = Branch()
        for pieces in branch[:-1]:
            losses.append(self.compute(step, pieces, half))
            before.append(self.optimizer.parameters.grad.copy())
        return before

    def _send(self, grad: np.ndarray, block: int, leaving: Pending) -> None:
        to = next(rank for rank in range(self.ranks.size) if block in self._blocks_to_sum(rank))
        if to != self.ranks.rank:
            values = grad[self._blocks[block]]
            leaving[to].append(self.ranks.send(values, to, GRADIENTS + block))
            self.bytes_sent += values.nbytes
        for pending in leaving.values():  # MPI sends only while it is called, so poll
            pending[:] = [done for done in pending if not done()]

    def _receive_branches(self, parts: int) -> tuple[dict[tuple[int, int], np.ndarray], Pending]:
        """Begin to receive the sums of the other ranks' branches, within this rank's stretch."""
        stretch, sums = self._sum_stretches[self.ranks.rank], {}
        arriving: Pending = {source: [] for source in self.ranks.others}
        for source in self.ranks.others:
            for place in self._branches(source, parts):  # in the order in which they are sent
                sums[place] = np.empty_like(self.optimizer.parameters.grad[stretch])
                for block in self._blocks_to_sum(self.ranks.rank):
                    first, last = self._blocks[block].start, self._blocks[block].stop
                    values = sums[place][first - stretch.start : last - stretch.start]
                    pending = self.ranks.receive(values, source, GRADIENTS + block)
                    arriving[source].append(pending)
        return sums, arriving

    def _update_and_share(self, step: int, rate: float, clip: Any) -> None:
        """Update this rank's stretch of the weights, then exchange the updated stretches."""
        rank, grad = self.ranks.rank, self.optimizer.parameters.grad
        if clip is not None:
            grad[self._sum_stretches[rank]] *= clip
        data, ranks = self.optimizer.parameters.data, range(self.ranks.size)
        pairs = [(source, to) for source in ranks for to in ranks if to != source]
        moves = [
            (_overlap(self._sum_stretches[a], self._update_stretches[b]), a, b) for a, b in pairs
        ]
        self._move([(grad[part], a, b) for part, a, b in moves if part.start < part.stop])
        self.optimizer.update(grad, step, rate, self._update_stretches[rank])
        self._move([(data[self._update_stretches[source]], source, to) for source, to in pairs])

    def _broadcast_weights(self) -> None:
        """Send the weights of rank 0 to all other ranks."""
        data = self.optimizer.parameters.data
        self._move([(data, 0, to) for to in range(1, self.ranks.size)])

    def _collect_state(self) -> None:
        self._move([(vector, rank, 0) for vector, rank in self._state_of_others()])

    def _state_of_others(self) -> list[tuple[np.ndarray, int]]:
        """Return the optimizer's vectors within the stretch of each rank but 0, and that rank."""
        vectors = self.optimizer.state.values()
        others = range(1, self.ranks.size)
        return [
            (vector[self._update_stretches[rank]], rank) for vector in vectors for rank in others
        ]

    def _move(self, moves: list[tuple[np.ndarray, int, int]]) -> None:
        """Copy each array (N,) from rank `source` to rank `to`, into the same array there."""
        rank = self.ranks.rank
        pending: Pending = {other: [] for other in self.ranks.others}
        for array, source, to in moves:
            if rank == source:
                pending[to].append(self.ranks.send(array, to, VECTORS))
                self.bytes_sent += array.nbytes
            elif rank == to:
                pending[source].append(self.ranks.receive(array, source, VECTORS))
        self._wait(pending)

    def _wait(self, pending: Pending) -> None:
        began = time.perf_counter()
        self.ranks.wait(pending)
        self.seconds_waiting += time.perf_counter() - began


def _overlap(one: slice, other: slice) -> slice:
    """Return the intersection of two stretches; if it is empty, its stop is not above its start."""
    return slice(max(one.start, other.start), min(one.stop, other.stop))
