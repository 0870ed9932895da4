"""A model cut into stages, one a rank, through which micro-batches follow each other."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError
from numformer.execution.ranks import Ranks
from numformer.layer import Array, Layer

LONGEST = 8  # axes of what is sent
TAG = 6  # of the messages between stages
Order = list[tuple[str, int]]  # ("forward", m) and ("backward", m), m the number of a micro-batch


def one_forward_one_backward(stages: int, micro_batches: int) -> list[Order]:
    """The order of forwards and backwards in each stage, with at most `stages` at once on the way.

    PipeDream-flush (Narayanan et al. 2021, section 2.2.1): stage s begins with the forwards that
    keep the stages behind it at work, P - 1 - s of them; then one forward and one backward take
    turns; then come the backwards that are left. So stage s keeps what P - s forwards saved, and
    not what all M did.
    """
    _require(stages, micro_batches)
    return [
        _order(min(stages - 1 - stage, micro_batches), micro_batches) for stage in range(stages)
    ]


def _order(ahead: int, micro_batches: int) -> Order:
    order: Order = [("forward", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("forward", ahead + m), ("backward", m)]
    return order + [("backward", m) for m in range(micro_batches - ahead, micro_batches)]


def all_forward_all_backward(stages: int, micro_batches: int) -> list[Order]:
    """The order of GPipe (Huang et al. 2019, figure 2c): all forwards, then all backwards.

    The backwards begin with the latest micro-batch. Each stage keeps what all forwards saved.
    """
    _require(stages, micro_batches)
    forwards: Order = [("forward", m) for m in range(micro_batches)]
    backwards: Order = [("backward", m) for m in reversed(range(micro_batches))]
    return [forwards + backwards for _ in range(stages)]


def bubble(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage waits, with either order: (P - 1) / (M + P - 1).

    The first micro-batch reaches the last stage after P - 1 forwards, and as long passes at the end
    (Huang et al. 2019, section 2.3).
    """
    _require(stages, micro_batches)
    return (stages - 1) / (micro_batches + stages - 1)


def _require(stages: int, micro_batches: int) -> None:
    if stages < 1 or micro_batches < 1:
        raise InputError(
            "a pipeline has stages and micro-batches",
            f"{stages} stages, {micro_batches} micro-batches",
            "Give at least one of each.",
        )


class MicroBatch(NamedTuple):
    """A part of a batch: what the stages are given, and its share of the batch's loss.

    `inputs` are x and what every stage needs besides, as who may see whom. `targets` go to the loss
    after the last stage's output. The loss of the batch is the sum of `share` times the mean loss:
    the shares are the micro-batches' numbers of targets over the number of all.
    """

    inputs: tuple
    targets: tuple
    share: float


class Pipeline(Layer):
    """This rank's stage of a model that goes through all ranks, one after the other.

    Its `stage` is a layer, or several that follow each other, with forward(x, *others) -> y and
    backward(dy) -> dx. The last rank's output meets `loss`, forward(y, *targets) -> (). `schedule`
    is one of the two orders above.

    A pipeline is no forward and backward, but `step`, in which they take turns. Layers keep what
    they save on a stack, but the backward of the earliest micro-batch comes first. So what a
    forward has saved is set aside, and put back for its backward.

    Dropout draws in each rank from that process's stream, in the order of its forwards.
    """

    def __init__(
        self,
        stage: Layer | Sequence[Layer],
        ranks: Ranks,
        loss: Layer,
        schedule: Callable[[int, int], list[Order]] = one_forward_one_backward,
    ):
        self.layers = [stage] if isinstance(stage, Layer) else [*stage]
        self.ranks, self.schedule = ranks, schedule
        self.first, self.last = ranks.rank == 0, ranks.rank == ranks.size - 1
        self.loss = loss if self.last else None
        self._sent: list[tuple[int, Callable[[], bool], Array]] = []

    def step(self, micro_batches: Sequence[MicroBatch]) -> tuple[Any, list]:
        """All ranks call it with the same -> the batch's loss (), and dx of each micro-batch.

        The gradients of the parameters are added up as those of the whole batch. A rank other than
        the first needs no x, and has no dx; one other than the last needs no targets.
        """
        orders = self.schedule(self.ranks.size, len(micro_batches))
        losses, gradients, kept = [], [None] * len(micro_batches), {}
        for kind, m in orders[self.ranks.rank]:
            if kind == "forward":
                losses.append(self._forward(micro_batches[m]))
                kept[m] = self._set_aside()
            else:
                self._put_back(kept.pop(m))
                gradients[m] = self._backward(micro_batches[m])
        while self._sent:
            to, done, _ = self._sent.pop()
            self.ranks.wait({to: [done]})
        return self.ranks.broadcast(
            sum(losses) if self.loss else None, self.ranks.size - 1
        ), gradients

    def _forward(self, batch: MicroBatch) -> Any:
        x, *others = batch.inputs
        if not self.first:
            x = self._receive(self.ranks.rank - 1)
        for layer in self.layers:
            x = layer.forward(x, *others)
        if self.loss:
            return batch.share * self.loss.forward(x, *batch.targets)
        self._send(x, self.ranks.rank + 1)
        return None

    def _backward(self, batch: MicroBatch) -> Any:
        if self.loss:
            dx = self.loss.backward(float(batch.share))  # loss = share * the mean loss
        else:
            dx = self._receive(self.ranks.rank + 1)
        for layer in reversed(self.layers):
            dx = layer.backward(dx)
        if self.first:
            return dx
        self._send(dx, self.ranks.rank - 1)
        return None

    # What forwards saved, a micro-batch at a time

    def _set_aside(self) -> list[list[dict]]:
        """Take off what all layers have saved."""
        kept = [list(layer.saved) for layer in self.layers_within()]
        self.clear_saved()
        return kept

    def _put_back(self, kept: list[list[dict]]) -> None:
        for layer, records in zip(self.layers_within(), kept, strict=True):
            layer.saved.extend(records)

    # Arrays of any shape, as micro-batches may have different lengths

    def _send(self, array: Array, to: int) -> None:
        """Begin to send the shape, then the array; both are held until they are there."""
        array = np.ascontiguousarray(array)
        header = np.zeros(2 + LONGEST, int)
        header[: 2 + array.ndim] = array.itemsize, array.ndim, *array.shape
        self._sent = [held for held in self._sent if not held[1]()]
        self._sent += [(to, self.ranks.send(part, to, TAG), part) for part in (header, array)]

    def _receive(self, source: int) -> Array:
        header = np.zeros(2 + LONGEST, int)
        self.ranks.wait({source: [self.ranks.receive(header, source, TAG)]})
        itemsize, axes, *shape = header
        array = np.empty(shape[:axes], f"f{itemsize}")
        self.ranks.wait({source: [self.ranks.receive(array, source, TAG)]})
        return array
