"""The base class of models, and the objective that training minimises."""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numformer.errors import InputError
from numformer.later.auxiliary import collect_auxiliary_losses, set_auxiliary_gradient
from numformer.later.divergence import Divergence
from numformer.layer import Layer, Parameter, missing_backward, mode, training
from numformer.paper.cross_entropy import CrossEntropy

ROLES = "positions", "attention", "feed_forward", "norm", "embedding"
"""The roles of parameters. A layer's `role` is the role of the parameters in it."""


class Model(Layer):
    """A Layer that is built from a config and computes logits for the targets of a batch.

    `Model(config, seed)` builds a model; the seed determines the initial weights. Parameters are
    float32 on the host until `pack` changes that. A checkpoint names the model by its key in MODELS
    (`kinds`), or by the name of its class if it has no key.

    The config, a dataclass, has `d_model` (the paper's learning rate depends on it) and `longest`,
    the maximum number of positions or None. The configs of this package also have `layers` and,
    for checks of memory, the lower bounds `least_parameters` and `least_saved`.

    A model that generates also has `start(inputs, length) -> State` and
    `step(ids, state) -> logits (B, V)`, which `numformer.generation` uses; a model that is a single
    stack of symbols, its `tower`, has `hidden(ids, places) -> (B, T, D)`.
    """

    Config: type[Any]  # a subclass of Settings
    config: Any
    start: Callable[..., Any]  # only in models that generate
    step: Callable[..., Any]  # only in models that generate
    hidden: Callable[..., Any]  # only in models that are a single stack
    tower: Any

    if TYPE_CHECKING:

        def __init__(self, config: Any, seed: Any = 0) -> None: ...

    @classmethod
    def require_config(cls, config: Any) -> Any:
        """Return the config. Raises InputError unless it is a Config of this model."""
        if not isinstance(config, cls.Config):
            kind = config if isinstance(config, type) else type(config)
            received = f"{kind.__module__}.{kind.__qualname__}"
            raise InputError(
                f"a {cls.__name__} is built from its Config, {cls.__name__}.Config(...)",
                f"the class {received}" if kind is config else f"an object of {received}",
                f"Write {cls.__name__}({cls.__name__}.Config(...)).",
            )
        return config

    def predictions(self, *inputs: Any) -> tuple[Any, ...]:
        """The inputs of a batch -> logits (..., V), targets (...).

        If some targets are ignored, a third result, `valid` (...), is False there. `backward`
        takes dlogits (..., V) afterwards.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predictions")

    def objective(self, label_smoothing: float = 0.0, r_drop: float = 0.0) -> "Objective":
        """Return a layer that computes the loss of a batch, which training minimises."""
        return Objective(self, label_smoothing, r_drop)

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters for each role (ROLES or a layer's own), and in total.

        A tied embedding is counted once. Parameters without a role, such as those of an untied
        output projection or a recurrent cell, are counted in "embedding".
        """
        role_of: dict[Parameter, str] = {}
        for layer in self.layers_within():
            if role := getattr(layer, "role", None):
                for parameter in layer.named_parameters().values():
                    role_of.setdefault(parameter, role)
        counts: Counter[str] = Counter(dict.fromkeys(ROLES, 0))
        for parameter in self.named_parameters().values():
            counts[role_of.get(parameter, "embedding")] += parameter.size
        return {**counts, "total": counts.total()}


class Objective(Layer):
    """The inputs of a batch -> the loss that training minimises, scalar (); `backward` takes dloss.

    The loss is the mean loss of the batch's predictions plus, in training and evaluation alike, the
    auxiliary losses of the model's layers (later/auxiliary.py). If training splits a batch, its
    loss is the mean of the parts' losses, weighted by their numbers of predictions.
    `prediction_loss` is the first term alone, for measures such as perplexity.

    With `r_drop` > 0 (R-Drop: Liang et al. 2021) a training batch is predicted twice, with
    different dropout: loss = (loss_1 + loss_2 + r_drop (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2) / 2.
    Warns when MAX_PENDING forwards wait for a backward.
    """

    MAX_PENDING = 10

    def __init__(self, model: Model, label_smoothing: float = 0.0, r_drop: float = 0.0):
        self.model = model
        self.loss = CrossEntropy(label_smoothing)
        self.r_drop, self.divergence = r_drop, Divergence()

    def forward(self, *inputs: Any) -> Any:
        twice = self.r_drop > 0 and training()
        self.save(twice=twice)
        if len(self.saved) == self.MAX_PENDING:
            warnings.warn(missing_backward(f"{self.pending()} records so far"), stacklevel=2)
        with collect_auxiliary_losses() as auxiliary:
            logits, targets, *valid = self.model.predictions(*inputs)
        loss = sum(auxiliary, start=self.loss.forward(logits, targets, *valid))
        return self._r_drop_loss(inputs, logits, loss) if twice else loss

    def prediction_loss(self, *inputs: Any) -> Any:
        """Return the mean loss of a batch's predictions alone, scalar (), for evaluations."""
        with mode(saving=False):
            return self.loss.forward(*self.model.predictions(*inputs))

    def _r_drop_loss(self, inputs, logits, loss):
        """Return the loss of R-Drop, from two predictions and their divergence."""
        with collect_auxiliary_losses() as auxiliary:
            logits_2, targets, *valid = self.model.predictions(*inputs)
        loss_2 = sum(auxiliary, start=self.loss.forward(logits_2, targets, *valid))
        return (loss + loss_2 + self.r_drop * self.divergence.forward(logits, logits_2, *valid)) / 2

    def backward(self, dloss: Any = 1.0) -> Any:
        if not self.pop_saved()["twice"]:
            return self._model_backward(dloss, self.loss.backward(dloss))
        return self._r_drop_backward(dloss)

    def _model_backward(self, dloss, dlogits):
        with set_auxiliary_gradient(dloss):
            return self.model.backward(dlogits)

    def _r_drop_backward(self, dloss):
        dloss = dloss / 2  # (loss + loss_2 + r_drop * divergence) / 2
        dlogits, dlogits_2 = self.divergence.backward(self.r_drop * dloss)
        dlogits_2 += self.loss.backward(dloss)
        self._model_backward(dloss, dlogits_2)
        dlogits += self.loss.backward(dloss)
        return self._model_backward(dloss, dlogits)
