"""Adam (Kingma and Ba 2015), the learning rate of section 5.3, and gradient clipping."""

import math

from numformer.backend import array_module, cache_sized_pieces
from numformer.layer import FlatParameters
from numformer.models.config import Config


def warmup_rate(step: int, d_model: int, warmup: int = 4000, factor: float = 1.0) -> float:
    """The learning rate of a step, counted from 1   (section 5.3, equation 3).

    rate = factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): it rises linearly for
    `warmup` steps and then falls with the square root of the step.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def linear_rate(
    step: int, steps: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """As `warmup_rate` up to its peak, then in a straight line down to 0 after the last step.

    A short run ends with small steps this way, which the paper reaches by averaging the last
    checkpoints (section 6.1). `step` counts from 1 to `steps`; a run shorter than the warm-up
    only rises.
    """
    share = min(step / warmup, (steps + 1 - step) / max(steps + 1 - warmup, 1))
    return factor * d_model**-0.5 * warmup**-0.5 * share


def learning_rate(config: Config, step: int, steps: int) -> float:
    """The rate of a step (from 1) in a run of `steps`, as config.decay says."""
    if config.decay == "linear":
        return linear_rate(step, steps, config.d_model, config.warmup, config.factor)
    return warmup_rate(step, config.d_model, config.warmup, config.factor)


def clip_global_norm(grad, max_norm: float | None):
    """grad (N) -> its norm (); where that is above max_norm, `grad` is scaled down to it."""
    xp = array_module(grad)
    norm = xp.sqrt(grad @ grad)
    if max_norm is not None:
        grad *= max_norm / xp.maximum(norm, max_norm)
    return norm


def adam(data, grad, mean, square, step, rate, beta1, beta2, epsilon) -> None:
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
    change *= 1 / math.sqrt(1 - beta2**step)
    change += epsilon
    xp.divide(mean, change, out=change)
    change *= rate / (1 - beta1**step)
    data -= change


class Adam:
    """Adam on the flat vectors of `pack`, with the paper's beta1 0.9, beta2 0.98, epsilon 1e-9.

    `mean` and `square` (N) and the number of steps taken are the state that resuming needs.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        beta1: float = 0.9,
        beta2: float = 0.98,
        epsilon: float = 1e-9,
    ):
        xp = array_module(parameters.data)
        self.parameters = parameters
        self.mean = xp.zeros_like(parameters.data)
        self.square = xp.zeros_like(parameters.data)
        self.steps = 0
        self.betas_and_epsilon = beta1, beta2, epsilon

    def step(self, rate: float) -> None:
        """Update all parameters once from their gradients."""
        self.update(self.parameters.grad, self.steps + 1, rate)
        self.steps += 1

    def update(self, grad, step: int, rate: float, stretch: slice = slice(None)) -> None:
        """Update the parameters along one stretch of their vector, from that of `grad` (N)."""
        if not self.parameters.is_current():
            raise RuntimeError(
                "the model was packed again after this Adam was made, so its vectors are not the "
                "model's any more: make a new Adam from what the later pack() returned"
            )
        vectors = self.parameters.data, grad, self.mean, self.square
        data, grad, mean, square = (vector[stretch] for vector in vectors)
        for piece in cache_sized_pieces(data):
            these = data[piece], grad[piece], mean[piece], square[piece]
            adam(*these, step, rate, *self.betas_and_epsilon)
