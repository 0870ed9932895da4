"""Auxiliary losses: layers inside a model add losses of their own to the loss of its predictions.

A layer's forward calls `add_auxiliary_loss(loss)`; its backward multiplies the gradient of that
loss by `auxiliary_gradient()`. The Objective of a model, or a gradient check, collects the losses
during forward and sets their gradient during backward. Otherwise the losses are ignored, and their
gradient is 0.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_losses: contextvars.ContextVar[list | None] = contextvars.ContextVar("losses", default=None)
_gradient: contextvars.ContextVar[Any] = contextvars.ContextVar("gradient", default=0.0)


def add_auxiliary_loss(loss: Any) -> None:
    """Add a scalar loss () of the current forward to the losses, if they are being collected."""
    if (losses := _losses.get()) is not None:
        losses.append(loss)


def auxiliary_gradient() -> Any:
    """During backward, return the scalar gradient () with respect to each auxiliary loss."""
    return _gradient.get()


@contextlib.contextmanager
def collect_auxiliary_losses() -> Iterator[list]:
    """Within `with ... as losses`, append to `losses` the scalar losses () that forwards add."""
    losses: list = []
    token = _losses.set(losses)
    try:
        yield losses
    finally:
        _losses.reset(token)


@contextlib.contextmanager
def set_auxiliary_gradient(dloss: Any) -> Iterator[None]:
    """Within the block, the gradient of each auxiliary loss is the scalar `dloss` ().

    No losses are collected in the block, so that a recomputed layer does not add its loss twice.
    """
    gradient, losses = _gradient.set(dloss), _losses.set(None)
    try:
        yield
    finally:
        _losses.reset(losses)
        _gradient.reset(gradient)
