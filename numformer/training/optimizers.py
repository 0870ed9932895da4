"""Adam (Kingma and Ba 2015; section 5.3) on the flat vectors of `pack`, and gradient clipping.

An optimizer is one function that updates the vector of all weights from that of all gradients. Its
further vectors are its state; its settings are keywords.
"""

import inspect
import warnings
from collections.abc import Callable

from numformer.backend import array_module, cache_sized_pieces
from numformer.errors import InputError
from numformer.layer import FlatParameters

BLOCK = 1 << 18
"""Entries of a vector that are summed together, and that a rank sends at once."""


def blocks_of(size: int) -> list[slice]:
    """The blocks of a vector (size,)."""
    return [slice(first, min(first + BLOCK, size)) for first in range(0, max(size, 1), BLOCK)]


def clip_global_norm(grad, max_norm: float | None):
    """grad (N) -> its norm (); where that is above max_norm, `grad` is scaled down to it."""
    xp = array_module(grad)
    norm = norm_of(xp.stack([grad[block] @ grad[block] for block in blocks_of(len(grad))]))
    if max_norm is not None:
        grad *= clip_factor(norm, max_norm)
    return norm


def norm_of(squares):
    """The norm () of a vector from the sums of squares of its blocks (M,), added in their order."""
    return array_module(squares).sqrt(squares.cumsum()[-1])


def clip_factor(norm, max_norm: float):
    """What scales a vector of this norm () down to max_norm; 1 where it is below it."""
    return max_norm / array_module(norm).maximum(norm, max_norm)


def adam(data, grad, mean, square, *, step, rate, beta1, beta2, epsilon) -> None:
    """One update of the vectors data, mean, square (N), in place, from grad (N); step from 1.

    mean = beta1 mean + (1 - beta1) grad, square = beta2 square + (1 - beta2) grad^2,
    data -= rate * (mean / (1 - beta1^step)) / (sqrt(square / (1 - beta2^step)) + epsilon).
    """
    xp = array_module(data)
    mean *= beta1
    mean += (1 - beta1) * grad
    change = grad * grad
    change *= 1 - beta2
    square *= beta2
    square += change
    # The two corrections: mean and square start at 0, which makes the first values too small.
    xp.sqrt(square, out=change)
    change *= (1 - beta2**step) ** -0.5
    change += epsilon
    xp.divide(mean, change, out=change)
    change *= rate / (1 - beta1**step)
    data -= change


def adamw(data, grad, mean, square, *, step, rate, beta1, beta2, epsilon, weight_decay) -> None:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): in place, on vectors (N,).

    Every weight loses the share rate * weight_decay of itself, whatever its gradient, then Adam
    moves it. In the gradient, as the derivative of a penalty, Adam would divide the decay by the
    gradient's size.
    """
    data *= 1 - rate * weight_decay
    settings = dict(step=step, rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    adam(data, grad, mean, square, **settings)


OPTIMIZERS: dict[str, Callable[..., None]] = {"adam": adam, "adamw": adamw}


def vectors_of(rule: Callable) -> list[str]:
    """The names of the vectors that a rule keeps: its arguments after data and grad."""
    arguments = inspect.signature(rule).parameters.values()
    return [a.name for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD][2:]


class Optimizer:
    """A rule such as `adam` on the flat vectors of `pack`; `settings` are its keywords.

    `state` has the vectors (N,) that the rule keeps, by name, which begin at 0. These and the
    number of steps taken are what resuming needs. Raises InputError for a model that is not packed.
    """

    def __init__(self, parameters: FlatParameters, rule: Callable, **settings: float):
        if not isinstance(parameters, FlatParameters):
            raise InputError(
                "an optimizer works on the vectors that pack() makes of a model's parameters",
                type(parameters).__name__,
                f"Write {type(self).__name__}(pack(model)).",
            )
        xp = array_module(parameters.data)
        self.parameters, self.rule, self.settings = parameters, rule, settings
        self.state = {name: xp.zeros_like(parameters.data) for name in vectors_of(rule)}
        self.steps = 0

    def step(self, rate: float) -> None:
        """Update all parameters once from their gradients.

        Warns where backward added these to gradients that a step before has used.
        """
        if self.parameters.stale:
            warnings.warn(
                "each step has gradients of its own; received a sum with those that an earlier "
                "step has used. Begin each step with objective.zero_grad().",
                stacklevel=2,
            )
        self.update(self.parameters.grad, self.steps + 1, rate)
        self.steps += 1
        self.parameters.used, self.parameters.stale = True, False

    def update(self, grad, step: int, rate: float, stretch: slice = slice(None)) -> None:
        """Update the parameters along one stretch of their vector, from that of `grad` (N)."""
        if not self.parameters.is_current():
            raise RuntimeError(
                "the model was packed again after this optimizer was made, so its vectors are not "
                "the model's any more: make a new one from what the later pack() returned"
            )
        vectors = [v[stretch] for v in (self.parameters.data, grad, *self.state.values())]
        for piece in cache_sized_pieces(self.parameters.data[stretch]):
            self.rule(*(v[piece] for v in vectors), step=step, rate=rate, **self.settings)


class Adam(Optimizer):
    """Adam with the paper's beta1 0.9, beta2 0.98, epsilon 1e-9; its state is mean and square."""

    def __init__(
        self,
        parameters: FlatParameters,
        beta1: float = 0.9,
        beta2: float = 0.98,
        epsilon: float = 1e-9,
    ):
        super().__init__(parameters, adam, beta1=beta1, beta2=beta2, epsilon=epsilon)
