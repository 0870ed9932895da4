"""Computes a training step in parts, one after the other; splits a batch into the parts.

The parts are computed separately, and their gradients are added in a fixed order (pairwise.py). So
the bits of the result do not depend on the number of processes that share the parts.
"""

import contextlib
from typing import Any, NamedTuple

from numformer import blas
from numformer.backend import on_host
from numformer.data import Batch
from numformer.errors import InputError
from numformer.execution.pairwise import Branch
from numformer.half_precision import half_products
from numformer.models import Objective
from numformer.optimization.clipping import clip_global_norm
from numformer.paper.adam import Optimizer
from numformer.randomness import dropout_stream


class Piece(NamedTuple):
    """Rows of a batch that go through one forward and one backward.

    `number` selects the dropout masks. The loss of the whole batch is the sum over its pieces of
    `share` times the piece's mean loss; `dloss` is `share` times the loss scale.
    """

    number: int
    batch: Batch
    share: float
    dloss: Any


def split(batch: Batch | list[Batch], parts: int, scale: Any = None) -> list[list[Piece]]:
    """Return at most `parts` lists: list n has the n-th piece of every batch that has one."""
    batches: list[Any] = batch if isinstance(batch, list) and batch else [batch]
    if foreign := [item for item in batches if not isinstance(item, Batch)]:
        raise InputError(
            "a task's batch(step) returns a Batch, or a list of them",
            type(foreign[0]).__name__,
            "Return PairBatch.of(pairs of ids), for example.",
        )
    splits = [item.split(parts) for item in batches]
    total = max(sum(sum(rows.weight for rows in rows_of_parts) for rows_of_parts in splits), 1)
    pieces: list[list[Piece]] = [[] for _ in range(max(map(len, splits)))]
    for number, rows_of_parts in enumerate(splits):
        for index, rows in enumerate(rows_of_parts):
            share = rows.weight / total
            dloss = share * (1.0 if scale is None else scale)
            pieces[index].append(Piece(index + parts * number, rows, share, dloss))
    return pieces


class InTurn:
    """The executor of a single process, which computes one part after the other."""

    def __init__(self, objective: Objective, optimizer: Optimizer, seed: int, parts: int):
        if parts < 1:
            raise InputError("a batch has at least one part", parts, "Choose one or more.")
        self.objective, self.optimizer, self.seed, self.parts = objective, optimizer, seed, parts
        self.threads = 1 if parts > 1 else blas.threads()
        self.interrupted = False
        self._fixed_threads = contextlib.ExitStack()

    def start(self) -> None:
        if on_host(self.optimizer.parameters.data):
            self._fixed_threads.enter_context(blas.training_threads(self.threads))

    def gradient(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        losses: list = []
        grad, before = self.optimizer.parameters.grad, Branch()
        for pieces in split(batch, self.parts, scale):
            if losses:
                before.append(grad.copy())
            losses.append(self.compute(step, pieces, scale is not None))
        before.finish(grad)
        if scale is not None:
            grad *= 1 / scale
        return sum(losses[1:], start=losses[0])

    def clip(self, max_norm: float | None) -> Any:
        return clip_global_norm(self.optimizer.parameters.grad, max_norm)

    def update(self, rate: float) -> None:
        self.optimizer.step(rate)

    def replay(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        return InTurn.gradient(self, step, batch, scale)

    def optimizer_state(self) -> dict[str, Any]:
        return self.optimizer.state

    def close(self) -> None:
        self._fixed_threads.close()

    def compute(
        self,
        step: int,
        pieces: list[Piece],
        half: bool,
        last_backward: contextlib.AbstractContextManager | None = None,
    ) -> Any:
        """Write one part's gradient into the gradient vector, and return its scalar loss ().

        The backward of the last piece runs within `last_backward`.
        """
        self.optimizer.parameters.zero_grad()
        losses = []
        with half_products(half):
            for piece in pieces:
                dropout_stream.reseed(self.seed, step, piece.number)
                losses.append(self.objective.forward(*piece.batch.inputs) * piece.share)
                around = last_backward if piece is pieces[-1] else None
                with around or contextlib.nullcontext():
                    self.objective.backward(piece.dloss)
        return sum(losses[1:], start=losses[0])
