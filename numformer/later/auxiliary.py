"""Auxiliary losses: what layers within a model add to the loss of its predictions.

A layer's forward calls `add_auxiliary_loss(loss)`, its backward multiplies the gradient of that
loss by `auxiliary_gradient()`. The Objective of a model, or a gradient check, collects the losses
around its forward, and says around its backward how much they count. Anywhere else nobody collects
them, and their gradient is 0.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_losses: contextvars.ContextVar[list | None] = contextvars.ContextVar("losses", default=None)
_gradient: contextvars.ContextVar[Any] = contextvars.ContextVar("gradient", default=0.0)


def add_auxiliary_loss(loss: Any) -> None:
    """Count a loss () of this forward, where somebody collects them."""
    if (losses := _losses.get()) is not None:
        losses.append(loss)


def auxiliary_gradient() -> Any:
    """The gradient () of the whole loss with respect to each auxiliary loss, during a backward."""
    return _gradient.get()


@contextlib.contextmanager
def auxiliary_losses() -> Iterator[list]:
    """A list of the losses () that the forwards within the block add."""
    losses: list = []
    before = _losses.set(losses)
    try:
        yield losses
    finally:
        _losses.reset(before)


@contextlib.contextmanager
def auxiliary_losses_count(dloss: Any) -> Iterator[None]:
    """Within the block backwards take `dloss` () for the gradient of each auxiliary loss.

    A layer that is computed again for its backward adds no loss once more.
    """
    before, nobody = _gradient.set(dloss), _losses.set(None)
    try:
        yield
    finally:
        _losses.reset(nobody)
        _gradient.reset(before)
