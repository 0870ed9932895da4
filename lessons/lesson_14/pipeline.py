"""A model cut into stages, one for each rank; micro-batches follow each other through them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError
from numformer.execution.ranks import Ranks
from numformer.layer import Array, Layer

MOST_AXES = 8  # the most axes of an array that is sent
TAG = 6  # of the messages between stages
Order = list[tuple[str, int]]  # ("forward", m) and ("backward", m), m the number of a micro-batch


def one_forward_one_backward(stages: int, micro_batches: int) -> list[Order]:
    """The order of forwards and backwards in each stage, with at most P micro-batches in flight.

    PipeDream-flush (Narayanan et al. 2021, section 2.2.1): stage s begins with P - 1 - s forwards,
    which keep the stages behind it at work; then forwards and backwards alternate; then come the
    remaining backwards. So stage s keeps what P - s forwards saved, not what all M saved.
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
    """The share of a step in which a stage waits, with both orders: (P - 1) / (M + P - 1).

    The first micro-batch reaches the last stage after P - 1 forwards, and the last backward
    takes as long to return (Huang et al. 2019, section 2.3).
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
    """A part of a batch: the inputs of the stages, the targets, and its share of the loss.

    `inputs` are x and what every stage needs besides, such as a Reach. `targets` are the further
    arguments of the loss. The loss of the batch is the sum, over its micro-batches, of
    `share` times the mean loss. The share is the part of the batch's targets that it has.
    """

    inputs: tuple
    targets: tuple
    share: float


class Pipeline(Layer):
    """This rank's stage of a model whose stages follow each other from rank to rank.

    A `stage` is a layer, or several in sequence, with forward(x, *others) -> y and backward(dy) ->
    dx. The output of the last rank goes to `loss`, forward(y, *targets) -> (). `schedule` is one of
    the two orders above.

    A pipeline has `step` in place of forward and backward: the two alternate in it. Layers save on
    a stack, from which the latest is taken first, but with `one_forward_one_backward` the earliest
    micro-batch comes back first. So what a forward has saved is set aside, and put back for its
    backward.

    Dropout in each rank draws from the stream of its process, in the order of its forwards.
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
        """Return the loss () of the batch, and dx of each micro-batch. All ranks call it.

        Adds the gradients of the parameters over the batch. Only the first rank needs x and gets
        dx; only the last needs targets.
        """
        orders = self.schedule(self.ranks.size, len(micro_batches))
        losses, gradients, saved = [], [None] * len(micro_batches), {}
        for kind, m in orders[self.ranks.rank]:
            if kind == "forward":
                losses.append(self._forward(micro_batches[m]))
                saved[m] = self._set_aside()
            else:
                self._put_back(saved.pop(m))
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
        """Remove and return what all layers have saved."""
        saved = [list(layer.saved) for layer in self.layers_within()]
        self.clear_saved()
        return saved

    def _put_back(self, saved: list[list[dict]]) -> None:
        for layer, records in zip(self.layers_within(), saved, strict=True):
            layer.saved.extend(records)

    # Arrays of any shape, as micro-batches may have different lengths

    def _send(self, array: Array, to: int) -> None:
        """Begin to send the shape, then the array; both are kept until they have arrived."""
        array = np.ascontiguousarray(array)
        header = np.zeros(2 + MOST_AXES, int)
        header[: 2 + array.ndim] = array.itemsize, array.ndim, *array.shape
        self._sent = [message for message in self._sent if not message[1]()]
        self._sent += [(to, self.ranks.send(part, to, TAG), part) for part in (header, array)]

    def _receive(self, source: int) -> Array:
        header = np.zeros(2 + MOST_AXES, int)
        self.ranks.wait({source: [self.ranks.receive(header, source, TAG)]})
        itemsize, axes, *shape = header
        array = np.empty(shape[:axes], f"f{itemsize}")
        self.ranks.wait({source: [self.ranks.receive(array, source, TAG)]})
        return array
