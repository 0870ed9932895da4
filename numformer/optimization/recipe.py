"""How a model is trained: label smoothing, optimizer, learning rate, clipping (section 5)."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from numformer import settings
from numformer.errors import InputError
from numformer.layer import FlatParameters
from numformer.models.fields import field_help
from numformer.optimization.optimizers import (
    OPTIMIZERS,
    Optimizer,
    OptimizerSettings,
    ineffective_settings,
    optimizer_for,
    owners,
    settings_of,
)
from numformer.paper.adam import warmup_rate


def linear_rate(
    step: int, steps: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """A rate that rises like `warmup_rate`, then falls linearly; after the last step it is 0.

    So a short run ends with small steps; for the same effect, the paper averages the last
    checkpoints (section 6.1). `step` counts from 1 to `steps`. In a run shorter than the warm-up,
    the rate only rises.
    """
    share = min(step / warmup, max(steps + 1 - step, 0) / max(steps + 1 - warmup, 1))
    return factor * d_model**-0.5 * warmup**-0.5 * share


def cosine_rate(
    step: int, steps: int, d_model: int, warmup: int = 4000, factor: float = 1.0
) -> float:
    """Like `linear_rate`, but the rate falls along half a cosine wave (Loshchilov and Hutter 2017).

    Compared with a linear fall, the rate stays longer near its peak and near 0.
    """
    peak = factor * d_model**-0.5 * warmup**-0.5
    if step > steps:
        return 0.0
    if step <= warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (steps + 1 - warmup))) / 2


DECAYS: dict[str, Callable[..., float]] = {
    "inverse_sqrt": warmup_rate,
    "linear": linear_rate,
    "cosine": cosine_rate,
}
"""Functions of step, d_model, warmup, factor, and of steps if the rate depends on the run's end."""


@field_help(OptimizerSettings)
@dataclass(frozen=True, kw_only=True)
class Recipe(OptimizerSettings):
    """How a model is trained; defaults are the paper's (section 5).

    Raises InputError for invalid values.
    """

    label_smoothing: float = settings.share(0.1, "probability spread over all symbols (5.4)")
    r_drop: float = settings.weight(
        0.0,
        "weight of the loss that makes two predictions under dropout agree (R-Drop, not in the "
        "paper; its authors take 5)",
    )
    optimizer: str = settings.choice(
        "adam", OPTIMIZERS, "the rule that updates weights from a gradient (5.3)"
    )
    warmup: int = settings.size(4000, "steps in which the learning rate rises (5.3, equation 3)")
    factor: float = settings.above_zero(1.0, "multiplies the learning rate of equation 3")
    rate: float | None = settings.above_zero(
        None, "the highest learning rate, reached at the end of warm-up; replaces factor"
    )
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
        "evaluate the mean of the weights at this many latest evaluations; the last mean is kept "
        "(6.1: 5 or 20); with 1, or if a run ends early, the best evaluation's weights are kept",
    )

    precision: str = settings.choice(
        "float32",
        ("float32", "mixed"),
        "mixed: products in half precision and a scaled loss, for a GPU's tensor cores (not in the "
        "paper; slower with NumPy)",
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ineffective_settings(vars(self)):
            raise InputError(
                f"{name} is a setting of the optimizer {' or '.join(owners(name))}",
                f"{name} {getattr(self, name)!r} with the optimizer {self.optimizer}",
                f"Choose such an optimizer, or leave out {name}.",
            )
        if self.rate is not None and self.factor != 1:
            rule = "the highest learning rate is set by rate or by factor"
            raise InputError(rule, f"rate {self.rate} and factor {self.factor}", "Leave out one.")

    @property
    def depends_on_steps(self) -> bool:
        """Whether the learning rate depends on the number of steps in the run."""
        return "steps" in inspect.signature(DECAYS[self.decay]).parameters

    def with_factor(self, d_model: int) -> "Recipe":
        """Return the recipe with a factor in place of its `rate`, if it has a rate, for this width.

        The rate of equation 3 is highest at step = warmup: factor / sqrt(d_model warmup).
        """
        if self.rate is None:
            return self
        return replace(self, rate=None, factor=self.rate * math.sqrt(d_model * self.warmup))

    def learning_rate(self, step: int, steps: int, d_model: int) -> float:
        """Return the learning rate of a step, counted from 1, in a run of `steps` steps."""
        end = {"steps": steps} if self.depends_on_steps else {}
        factor = self.with_factor(d_model).factor
        settings = dict(d_model=d_model, warmup=self.warmup, factor=factor)
        return DECAYS[self.decay](step, **end, **settings)

    def make_optimizer(self, parameters: FlatParameters) -> Optimizer:
        """Return the recipe's optimizer for `parameters`, with the settings that its rule takes."""
        rule = OPTIMIZERS[self.optimizer]
        keywords = {keyword: getattr(self, name) for name, keyword in settings_of(rule).items()}
        return optimizer_for(parameters, rule, **keywords)
