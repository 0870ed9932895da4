"""How a model is trained: the loss's smoothing, the optimizer, the learning rate, clipping (5)."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from numformer import settings
from numformer.errors import InputError
from numformer.layer import FlatParameters
from numformer.optimization.optimizers import (
    OPTIMIZERS,
    Optimizer,
    OptimizerSettings,
    optimizer_for,
    owners,
    settings_of,
    without_effect,
)
from numformer.paper.adam import warmup_rate


def linear_rate(
    step: int, steps: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """As `warmup_rate` up to its peak, then in a straight line down to 0 after the last step.

    A short run ends with small steps this way, which the paper reaches by averaging the last
    checkpoints (section 6.1). `step` counts from 1 to `steps`, beyond which the rate stays 0; a run
    shorter than the warm-up only rises.
    """
    share = min(step / warmup, max(steps + 1 - step, 0) / max(steps + 1 - warmup, 1))
    return factor * d_model**-0.5 * warmup**-0.5 * share


def cosine_rate(
    step: int, steps: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """As `linear_rate`, but down along half a cosine (Loshchilov and Hutter 2017).

    It stays near its peak for longer, and near 0.
    """
    peak = factor * d_model**-0.5 * warmup**-0.5
    if step > steps:
        return 0.0
    if step <= warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (steps + 1 - warmup))) / 2


# A rate is a function of step, d_model, warmup, factor and, where it must know the end, of steps.
DECAYS: dict[str, Callable[..., float]] = {
    "inverse_sqrt": warmup_rate,
    "linear": linear_rate,
    "cosine": cosine_rate,
}


@dataclass(frozen=True, kw_only=True)
class Recipe(OptimizerSettings):
    """How a model is trained; defaults are the paper's (section 5). InputError for other values."""

    label_smoothing: float = settings.share(0.1, "probability spread over all symbols (5.4)")
    r_drop: float = settings.weight(
        0.0,
        "how much two predictions under dropout are to agree (not the paper's: R-Drop, whose "
        "authors take 5)",
    )
    optimizer: str = settings.choice("adam", OPTIMIZERS, "what makes a step of a gradient (5.3)")
    warmup: int = settings.size(4000, "steps in which the learning rate rises (5.3, equation 3)")
    factor: float = settings.above_zero(1.0, "multiplies the learning rate of equation 3")
    decay: str = settings.choice(
        "inverse_sqrt",
        DECAYS,
        "how the learning rate falls after warm-up (5.3; the others are not in the paper)",
    )
    clip_norm: float | None = settings.above_zero(
        None, "largest global norm of a gradient (the paper does not clip)"
    )
    average: int = settings.size(
        1,
        "latest evaluations, the mean of whose weights is evaluated, and kept after the last step "
        "(6.1: 5 or 20); with 1, or where a run ends before, the best is kept",
    )

    precision: str = settings.choice(
        "float32",
        ("float32", "mixed"),
        "mixed: products in half precision and a scaled loss, as for a GPU's tensor cores (not the "
        "paper's; with NumPy it is slower)",
    )

    def __post_init__(self):
        super().__post_init__()
        for name in without_effect(vars(self)):
            raise InputError(
                f"{name} is a setting of the optimizer {' or '.join(owners(name))}",
                f"{name} {getattr(self, name)!r} with the optimizer {self.optimizer}",
                f"Choose such an optimizer, or leave out {name}.",
            )

    @property
    def knows_the_end(self) -> bool:
        """Whether a step's rate depends on how many steps there are, so a run has a fixed end."""
        return "steps" in inspect.signature(DECAYS[self.decay]).parameters

    def rate(self, step: int, steps: int, d_model: int) -> float:
        """The learning rate of a step (from 1) in a run of `steps`."""
        end = {"steps": steps} if self.knows_the_end else {}
        how = dict(d_model=d_model, warmup=self.warmup, factor=self.factor)
        return DECAYS[self.decay](step, **end, **how)

    def optimizer_of(self, parameters: FlatParameters) -> Optimizer:
        """The optimizer, with those of the settings that its rule takes."""
        rule = OPTIMIZERS[self.optimizer]
        own = {keyword: getattr(self, name) for name, keyword in settings_of(rule).items()}
        return optimizer_for(parameters, rule, **own)
