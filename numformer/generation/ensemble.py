"""Several models that write together."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.models import Model
from numformer.paper.softmax import softmax
from numformer.paper.writing import require_writer
from numformer.symbols import special_ids


@dataclass
class States:
    """How far each model of an ensemble has written; the next `ids` (B,) are the same for all."""

    of_models: list

    @property
    def ids(self) -> np.ndarray:
        return self.of_models[0].ids

    def choose(self, rows: np.ndarray) -> None:
        """Keep the rows `rows` (N,) of the batch, in this order, repeated ones included."""
        for state in self.of_models:
            state.choose(rows)


class Ensemble(Layer):
    """Models of one vocabulary, which write what is most probable to all of them together.

    p(y) is the mean of the models' p_m(y), so what only one of them takes for right counts little.
    `greedy`, `beam_search` and `sample` take it as they take a model. `config` has the sizes of
    their vocabularies, and as `longest` the fewest positions that a model has room for, or None.
    """

    def __init__(self, models: Sequence[Model]):
        if not models:
            raise InputError("an ensemble has models", "none", "Name one or more.")
        for model in models:
            require_writer(model)
        first, *others = map(_vocabularies, models)
        if wrong := [other for other in others if other != first]:
            raise InputError(
                "models that write together have vocabularies of the same sizes",
                f"{first} and {wrong[0]}",
                "Train them on the same data.",
            )
        special, *rivals = map(special_ids, models)
        if unlike := [rival for rival in rivals if rival != special]:
            raise InputError(
                "models that write together mean the same by their special ids",
                f"{special} and {unlike[0]}",
                "Take models of one vocabulary.",
            )
        self.models = [*models]
        rooms = [model.config.longest for model in models if model.config.longest]
        room = min(rooms, default=None)
        self.config = SimpleNamespace(longest=room, special=special, **first)

    def start(self, inputs, length: int) -> States:
        """What every model's `start` takes -> the States before the first position."""
        return States([model.start(inputs, length) for model in self.models])

    def step(self, ids, state: States):
        """The next position of every row: ids (B,) -> log p (B, V), which serve as its logits."""
        writing = zip(self.models, state.of_models, strict=True)
        p = [softmax(model.step(ids, of_model)) for model, of_model in writing]
        mean = sum(p[1:], start=p[0]) / len(p)
        with np.errstate(divide="ignore"):  # what no model can write has log 0 = -inf
            return array_module(mean).log(mean)


def _vocabularies(model: Model) -> dict[str, int]:
    """The sizes of a model's vocabularies by their names in its config."""
    return {name: n for name, n in vars(model.config).items() if name.endswith("vocabulary")}
