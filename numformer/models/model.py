"""What the training loop, checkpoints and scripts ask of a model, whichever it is."""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numformer.errors import InputError
from numformer.later.auxiliary import auxiliary_losses, auxiliary_losses_count
from numformer.later.divergence import Divergence
from numformer.layer import Layer, Parameter, missing_backward, mode, training
from numformer.paper.cross_entropy import CrossEntropy

ROLES = "positions", "attention", "feed_forward", "norm", "embedding"
"""What parameters are for. A layer says which `role` those within it have."""


class Model(Layer):
    """A Layer with a config, whose outputs are logits that a batch has targets for.

    A model of another kind is one file in `numformer/models` with one class of these, of which a
    checkpoint names the file; or a class anywhere else, by whose own name it is loaded (`kind`).
    `Model(config, seed)` builds it; the seed determines the initial weights. Parameters are float32
    on the host until `pack` says otherwise.

    Besides what builds the model, its config, a dataclass, tells `d_model` (the width that the
    paper's learning rate depends on) and `longest`, the most positions that it takes, or None. For
    checks of memory those here tell `layers`, `least_parameters` and `least_saved`, too.

    A model that writes also has `start(inputs, length) -> State` and
    `step(ids, state) -> logits (B, V)`, which `numformer.generation` works with.
    """

    Config: type[Any]  # of Settings
    config: Any
    start: Callable[..., Any]  # of a model that writes, as is step
    step: Callable[..., Any]

    if TYPE_CHECKING:

        def __init__(self, config: Any, seed: Any = 0) -> None: ...

    @classmethod
    def is_ours(cls) -> bool:
        """Whether the class stands in `numformer.models`."""
        return cls.__module__.startswith("numformer.models.")

    @classmethod
    def kind(cls) -> str:
        """What a checkpoint names the model by: its file here; the class of a model elsewhere."""
        return cls.__module__.rpartition(".")[2] if cls.is_ours() else cls.__name__

    @classmethod
    def fitting(cls, config: Any) -> Any:
        """The config itself. Raises InputError where it is none of this model's Config."""
        if not isinstance(config, cls.Config):
            kind = config if isinstance(config, type) else type(config)
            received = f"{kind.__module__}.{kind.__qualname__}"
            raise InputError(
                f"a {cls.__name__} is built of its Config, {cls.__name__}.Config(...)",
                f"the class {received}" if kind is config else f"an object of {received}",
                f"Write {cls.__name__}({cls.__name__}.Config(...)).",
            )
        return config

    def predictions(self, *inputs: Any) -> tuple[Any, ...]:
        """The inputs of a batch -> logits (..., V), targets (...): what it is to predict.

        A third result, `valid` (...), says which targets count, where not all do. `backward` takes
        dlogits (..., V) afterwards.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predictions")

    def objective(self, label_smoothing: float = 0.0, r_drop: float = 0.0) -> "Objective":
        """The layer from the inputs of a batch to the loss that training makes small."""
        return Objective(self, label_smoothing, r_drop)

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by role (ROLES, and any other that a layer has), and their total.

        A tied embedding counts once; an output projection of its own counts as embedding, and so
        does all that has none of the other roles, a recurrent cell for example.
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
    """The inputs of a batch -> the loss that training makes small, (); `backward` takes dloss.

    That is the mean loss of the batch's predictions and, in training and evaluation alike, the
    auxiliary losses of layers that have some (later/auxiliary.py). Of a batch in parts it is the
    mean of the parts' losses, each weighed by its number of predictions. `prediction_loss` is the
    first term alone, for measures such as a perplexity.

    With `r_drop` > 0 (R-Drop: Liang et al. 2021) the batch is predicted twice in training, and
    dropout differs: loss = (loss_1 + loss_2 + r_drop (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2) / 2.
    Warns when MANY of its forwards wait for a backward.
    """

    MANY = 10

    def __init__(self, model: Model, label_smoothing: float = 0.0, r_drop: float = 0.0):
        self.model = model
        self.loss = CrossEntropy(label_smoothing)
        self.r_drop, self.divergence = r_drop, Divergence()

    def forward(self, *inputs: Any) -> Any:
        twice = self.r_drop > 0 and training()
        self.save(twice=twice)
        if len(self.saved) == self.MANY:
            warnings.warn(missing_backward(f"{self.pending()} records so far"), stacklevel=2)
        with auxiliary_losses() as further:
            logits, targets, *valid = self.model.predictions(*inputs)
        loss = sum(further, start=self.loss.forward(logits, targets, *valid))
        return self._agreed(inputs, logits, loss) if twice else loss

    def prediction_loss(self, *inputs: Any) -> Any:
        """The mean loss of a batch's predictions alone, (); for an evaluation."""
        with mode(saving=False):
            return self.loss.forward(*self.model.predictions(*inputs))

    def _agreed(self, inputs, logits, loss):
        """The mean loss of two predictions, and what keeps them from being the same."""
        with auxiliary_losses() as further:
            others, targets, *valid = self.model.predictions(*inputs)
        loss_2 = sum(further, start=self.loss.forward(others, targets, *valid))
        return (loss + loss_2 + self.r_drop * self.divergence.forward(logits, others, *valid)) / 2

    def backward(self, dloss: Any = 1.0) -> Any:
        if not self.pop_saved()["twice"]:
            return self._predicted_backward(dloss, self.loss.backward(dloss))
        return self._agreed_backward(dloss)

    def _predicted_backward(self, dloss, dlogits):
        with auxiliary_losses_count(dloss):
            return self.model.backward(dlogits)

    def _agreed_backward(self, dloss):
        dloss = dloss / 2  # (loss + loss_2 + r_drop * divergence) / 2
        dlogits, dothers = self.divergence.backward(self.r_drop * dloss)
        dothers += self.loss.backward(dloss)
        self._predicted_backward(dloss, dothers)
        dlogits += self.loss.backward(dloss)
        return self._predicted_backward(dloss, dlogits)
