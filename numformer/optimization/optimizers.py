"""The update rules of the paper's Adam and of other optimizers, their settings and registry.

A rule is a function rule(data, grad, *vectors, *, step, rate, **settings) that updates the weights
`data` and its state `vectors` in place. An `elementwise` rule is called on pieces of the vectors
that `pack` makes; any other rule is called once for each parameter, in the parameter's shape.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from numformer import settings
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import FlatParameters, Layer, Parameter
from numformer.models import Model
from numformer.paper.adam import Adam as Adam
from numformer.paper.adam import Optimizer, adam, elementwise, vectors_of
from numformer.paper.linear import Linear
from numformer.recurrence.cells import Cell

# Rules


@elementwise
def adamw(data, grad, mean, square, *, step, rate, beta1, beta2, epsilon, weight_decay) -> None:
    """Update vectors (N,) by Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Every weight first shrinks by the fraction rate * weight_decay, whatever its gradient; then Adam
    updates it. A penalty in the loss would instead add the decay to the gradient, and Adam would
    divide it by the gradient's size.
    """
    data *= 1 - rate * weight_decay
    settings = dict(step=step, rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    adam(data, grad, mean, square, **settings)


@elementwise
def sgd(data, grad, velocity, *, step, rate, momentum) -> None:
    """Update vectors (N,) by stochastic gradient descent with momentum (Polyak 1964).

    velocity = momentum * velocity + grad, data -= rate * velocity. SGD needs far larger rates than
    Adam, because it does not divide the gradient by its size.
    """
    velocity *= momentum
    velocity += grad
    data -= rate * velocity


@elementwise
def lion(data, grad, mean, *, step, rate, beta1, beta2, weight_decay) -> None:
    """Update vectors (N,) by Lion (Chen et al. 2023, algorithm 2).

    data -= rate * (sign(beta1 * mean + (1 - beta1) * grad) + weight_decay * data),
    mean = beta2 * mean + (1 - beta2) * grad. The sign makes every weight change by the rate, so the
    authors use a rate 3 to 10 times smaller than AdamW's, and a weight_decay larger by that factor.
    """
    direction = beta1 * mean
    direction += (1 - beta1) * grad
    data *= 1 - rate * weight_decay
    data -= rate * array_module(data).sign(direction)
    mean *= beta2
    mean += (1 - beta2) * grad


def muon(
    data, grad, mean, square, *, step, rate, hidden, momentum, beta1, beta2, epsilon, weight_decay
) -> None:
    """Muon (Jordan et al. 2024) for a matrix (M, N) between hidden layers, AdamW for the rest.

    mean = momentum * mean + (1 - momentum) * grad,
    data -= rate * (0.2 * sqrt(max(M, N)) * orthogonal((1 - momentum) * grad + momentum * mean)
    + weight_decay * data). The factor 0.2 * sqrt(max(M, N)) makes a step about as large as AdamW's,
    so that both can use the same rate (Liu et al. 2025).
    """
    if not hidden:
        settings = dict(beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)
        adamw(data, grad, mean, square, step=step, rate=rate, **settings)
        return
    mean *= momentum
    mean += (1 - momentum) * grad
    direction = orthogonal((1 - momentum) * grad + momentum * mean)
    data *= 1 - rate * weight_decay
    data -= 0.2 * math.sqrt(max(data.shape)) * rate * direction


def orthogonal(x):
    """x (M, N) = U S V^T -> U S' V^T, whose singular values S' are about 1 (0.68 to 1.21).

    x is divided by its norm |x|, then set 5 times to a x + b (x x^T) x + c (x x^T)^2 x. The
    coefficients of this Newton-Schulz iteration raise small singular values fast (Jordan et al.
    2024); values of S below 0.002 |x| still end up below 0.68.
    """
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    xp = array_module(x)
    x = x / xp.maximum(xp.sqrt((x * x).sum()), 1e-7)
    for _ in range(5):
        product = x @ x.T
        x = 3.4445 * x + (2.0315 * (product @ product) - 4.775 * product) @ x
    return x


OPTIMIZERS: dict[str, Callable[..., None]] = {
    "adam": adam,
    "adamw": adamw,
    "sgd": sgd,
    "lion": lion,
    "muon": muon,
}
"""The rules by their names in a Recipe. A rule's settings are fields of OptimizerSettings."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(settings.Settings):
    """The settings of all optimizers. A Recipe refuses settings that its optimizer lacks."""

    beta1: float = settings.share(0.9, "decay of the mean gradient (5.3)")
    beta2: float = settings.share(
        0.98, "decay of the mean squared gradient (5.3); for lion, of the mean gradient"
    )
    adam_epsilon: float = settings.above_zero(1e-9, "Adam's epsilon (5.3)")
    momentum: float = settings.share(
        0.95, "decay of the summed gradients; for muon, of the mean gradient of a hidden matrix"
    )
    weight_decay: float = settings.share(0.01, "each step shrinks weights by the rate times this")


# Which settings a rule has

KEYWORDS = {"adam_epsilon": "epsilon"}
"""Settings whose name is not the rule's keyword; in a config, `epsilon` belongs to a norm."""


@cache
def settings_of(rule: Callable) -> dict[str, str]:
    """Return a dict that maps a rule's settings, as a Recipe names them, to its keywords."""
    arguments = inspect.signature(rule).parameters.values()
    keywords = {a.name for a in arguments if a.kind is a.KEYWORD_ONLY}
    known = {f.name: KEYWORDS.get(f.name, f.name) for f in fields(OptimizerSettings)}
    return {name: keyword for name, keyword in known.items() if keyword in keywords}


def owners(name: str) -> list[str]:
    """Return the names of the optimizers that have this setting."""
    return [optimizer for optimizer, rule in OPTIMIZERS.items() if name in settings_of(rule)]


def ineffective_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: default} for the settings that a recipe changes but its optimizer lacks."""
    own = settings_of(OPTIMIZERS[recipe["optimizer"]])
    others = {f.name: f.default for f in fields(OptimizerSettings) if f.name not in own}
    return {name: others[name] for name in others if recipe.get(name, others[name]) != others[name]}


# Optimizers that call a rule once for each parameter


def hidden_matrices(layer: Layer) -> set[Parameter]:
    """Return the matrices between hidden layers, the weights of Linears and Cells in `layer`.

    A Linear that is an attribute of a Model itself, usually for inputs or outputs, is left out.
    """
    models = [part for part in layer.layers_within() if isinstance(part, Model)]
    outer = {id(child) for model in models for _, child in model._children()}
    parts = [part for part in layer.layers_within() if isinstance(part, Linear | Cell)]
    return {part.weight for part in parts if id(part) not in outer}


class Parameterwise(Optimizer):
    """An Optimizer that calls its rule once for each parameter, in the parameter's shape.

    If the rule has a keyword `hidden`, it is True for the matrices between hidden layers.
    """

    def __init__(self, parameters: FlatParameters, rule: Callable, **settings: float):
        super().__init__(parameters, rule, **settings)
        if parameters.layer is None:
            raise InputError(
                "a Parameterwise optimizer updates each parameter in its own shape",
                "vectors without their parameters",
                "Pass the vectors that pack(model) returns.",
            )
        self.takes_hidden = "hidden" in inspect.signature(rule).parameters
        self.hidden = hidden_matrices(parameters.layer)

    def ends(self) -> list[int]:
        """Return the indices at which parameters begin or end in the vectors."""
        sizes = (parameter.size for parameter in self.parameters.parameters)
        return [*itertools.accumulate(sizes, initial=0)]

    def apply(self, vectors: list, stretch: slice, keywords: dict) -> None:
        """Call the rule for each parameter in the stretch, which must not split a parameter."""
        flat = self.parameters
        start, stop, _ = stretch.indices(len(flat.data))
        if not {start, stop} <= {*self.ends()}:
            raise InputError(
                "each parameter is updated as a whole by one process",
                f"a stretch from {start} to {stop}, which splits a parameter",
                "Pass a slice that stretches(optimizer, cuts) returns.",
            )
        groups = zip(flat.parameters, *map(flat.views, vectors), strict=True)
        for end, (parameter, *arrays) in zip(self.ends()[1:], groups, strict=True):
            if start < end <= stop:
                hidden = {"hidden": parameter in self.hidden} if self.takes_hidden else {}
                self.rule(*arrays, **keywords, **hidden)


def optimizer_for(parameters: FlatParameters, rule: Callable, **settings: float) -> Optimizer:
    """Return an optimizer that applies the rule, Parameterwise unless the rule is elementwise.

    Raises InputError if `rule` does not take the arguments of a rule and these settings.
    """
    hidden = {"hidden"} & {*inspect.signature(rule).parameters}
    keywords = dict.fromkeys(["step", "rate", *hidden])
    try:
        inspect.signature(rule).bind(None, None, *vectors_of(rule), **keywords, **settings)
    except TypeError as problem:
        raise InputError(
            "a rule is called as rule(data, grad, *vectors, step=, rate=, **settings), with "
            f"the settings {', '.join(field.name for field in fields(OptimizerSettings))}",
            f"{getattr(rule, '__name__', rule)}: {problem}",
            "Change the rule's arguments, or give its other keywords defaults.",
        ) from None
    kind = Optimizer if getattr(rule, "elementwise", False) else Parameterwise
    return kind(parameters, rule, **settings)


def stretches(optimizer: Optimizer, cuts: Sequence[int]) -> list[slice]:
    """Return the stretches of the vectors between the cuts, one stretch for each process.

    For a Parameterwise optimizer, each cut is moved to the nearest end of a parameter.
    """
    if isinstance(optimizer, Parameterwise):
        ends = np.array(optimizer.ends())
        cuts = [ends[abs(ends - cut).argmin()] for cut in cuts]
    return [slice(*both) for both in itertools.pairwise(cuts)]
