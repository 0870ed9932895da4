"""Adam (Kingma and Ba 2015) on the flat vectors of `pack`, and its learning rate (section 5.3).

The rule of an optimizer is one function, which updates weights in place from their gradients. Its
arguments after data and grad are the optimizer's state; its keywords, step, rate and settings.
"""

import inspect
import warnings
from collections.abc import Callable

from numformer.backend import array_module, cache_pieces, has_kernel
from numformer.errors import InputError
from numformer.layer import FlatParameters


def elementwise(rule: Callable[..., None]) -> Callable[..., None]:
    """Mark a rule that treats each weight separately, so it may be called on pieces of vectors."""
    vars(rule)["elementwise"] = True
    return rule


@elementwise
@has_kernel
def adam(data, grad, mean, square, *, step, rate, beta1, beta2, epsilon) -> None:
    """Update data, mean and square (N) in place from grad (N); `step` counts from 1.

    mean = beta1 * mean + (1 - beta1) * grad, square = beta2 * square + (1 - beta2) * grad^2,
    data -= rate * (mean / (1 - beta1^step)) / (sqrt(square / (1 - beta2^step)) + epsilon).
    """
    xp = array_module(data)
    mean *= beta1
    mean += (1 - beta1) * grad
    change = grad * grad
    change *= 1 - beta2
    square *= beta2
    square += change
    # mean and square start at 0 and are too small at first; the factors with beta**step correct it.
    xp.sqrt(square, out=change)
    change *= (1 - beta2**step) ** -0.5
    change += epsilon
    xp.divide(mean, change, out=change)
    change *= rate / (1 - beta1**step)
    data -= change


def vectors_of(rule: Callable) -> list[str]:
    """Return the names of a rule's state vectors, its arguments after data and grad."""
    arguments = inspect.signature(rule).parameters.values()
    return [a.name for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD][2:]


class Optimizer:
    """Applies an elementwise rule such as `adam`, with its `settings`, to the vectors of `pack`.

    `state` holds the vectors (N,) that the rule keeps, by name; all start at 0. To resume a run,
    restore them and `steps`, the number of steps taken. Raises InputError for an unpacked model.
    """

    def __init__(self, parameters: FlatParameters, rule: Callable, **settings: float):
        if not isinstance(parameters, FlatParameters):
            raise InputError(
                "an optimizer works on the vectors that pack() makes from a model's parameters",
                type(parameters).__name__,
                f"Write {type(self).__name__}(pack(model)).",
            )
        if type(self).apply is Optimizer.apply and not getattr(rule, "elementwise", False):
            raise InputError(
                "a rule that Optimizer calls on pieces of vectors is declared elementwise",
                getattr(rule, "__name__", repr(rule)),
                "Decorate it with @elementwise, or write Parameterwise(pack(model), rule).",
            )
        xp = array_module(parameters.data)
        self.parameters, self.rule, self.settings = parameters, rule, settings
        self.state = {name: xp.zeros_like(parameters.data) for name in vectors_of(rule)}
        self.steps = 0

    def step(self, rate: float) -> None:
        """Update all parameters once from their gradients.

        Warns if these include gradients that an earlier step has already used.
        """
        if self.parameters.stale:
            warnings.warn(
                "each step uses only new gradients; received a sum including gradients that an "
                "earlier step has used. Begin each step with objective.zero_grad().",
                stacklevel=2,
            )
        self.update(self.parameters.grad, self.steps + 1, rate)
        self.steps += 1
        self.parameters.needs_zeroing, self.parameters.stale = True, False

    def update(self, grad, step: int, rate: float, stretch: slice = slice(None)) -> None:
        """Update one stretch of the parameters' vector from the same stretch of `grad` (N)."""
        if not self.parameters.is_current():
            raise RuntimeError(
                "the model was packed again after this optimizer was made, so its vectors no "
                "longer hold the model's parameters: make a new optimizer from the new vectors"
            )
        keywords = {"step": step, "rate": rate, **self.settings}
        self.apply([self.parameters.data, grad, *self.state.values()], stretch, keywords)

    def apply(self, vectors: list, stretch: slice, keywords: dict) -> None:
        """Call the rule on pieces that fit into the processor's cache."""
        vectors = [vector[stretch] for vector in vectors]
        for piece in cache_pieces(vectors[0]):
            self.rule(*(vector[piece] for vector in vectors), **keywords)


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


def warmup_rate(step: int, d_model: int, warmup: int = 4000, factor: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1   (section 5.3, equation 3).

    rate = factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) rises linearly for `warmup`
    steps and then falls as the inverse square root of the step.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
