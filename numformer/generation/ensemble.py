"""Ensembles: several models that write one text together."""

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
    """The decoding states of an ensemble's models; all models read the same next `ids` (B,)."""

    states: list

    @property
    def ids(self) -> np.ndarray:
        return self.states[0].ids

    def choose(self, rows: np.ndarray) -> None:
        """Keep the batch rows with the indices `rows` (N,), in this order; an index may repeat."""
        for state in self.states:
            state.choose(rows)


class Ensemble(Layer):
    """Models with one vocabulary that write one text: p(y) is the mean of the models' p_m(y).

    `greedy`, `beam_search` and `sample` accept an ensemble in place of a model. Its `config` has
    the vocabulary sizes, the special ids and, as `longest`, the smallest of the length limits.
    """

    def __init__(self, models: Sequence[Model]):
        if not models:
            raise InputError("an ensemble has at least one model", "none", "Pass one or more.")
        for model in models:
            require_writer(model)
        first, *others = map(_vocabularies, models)
        if different := [sizes for sizes in others if sizes != first]:
            raise InputError(
                "the models of an ensemble have vocabularies of the same sizes",
                f"{first} and {different[0]}",
                "Train them on the same data.",
            )
        special, *rest = map(special_ids, models)
        if unequal := [ids for ids in rest if ids != special]:
            raise InputError(
                "the models of an ensemble have the same special ids",
                f"{special} and {unequal[0]}",
                "Choose models with one vocabulary.",
            )
        self.models = [*models]
        limits = [model.config.longest for model in models if model.config.longest]
        longest = min(limits, default=None)
        self.config = SimpleNamespace(longest=longest, special=special, **first)

    def start(self, inputs, length: int) -> States:
        """inputs (B, S), as model.start takes them -> the States before the first position."""
        return States([model.start(inputs, length) for model in self.models])

    def step(self, ids, state: States):
        """ids (B,) at the latest position of every row -> log p (B, V), which serve as logits."""
        pairs = zip(self.models, state.states, strict=True)
        p = [softmax(model.step(ids, own_state)) for model, own_state in pairs]
        mean = sum(p[1:], start=p[0]) / len(p)
        with np.errstate(divide="ignore"):  # a symbol that no model writes has log 0 = -inf
            return array_module(mean).log(mean)


def _vocabularies(model: Model) -> dict[str, int]:
    """The sizes of a model's vocabularies by their names in its config."""
    return {name: n for name, n in vars(model.config).items() if name.endswith("vocabulary")}
