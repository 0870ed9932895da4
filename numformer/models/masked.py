"""An encoder-only model: a tower that looks both ways, and tells what stands at hidden places.

The Transformer's encoder without a decoder (Devlin et al. 2019, BERT).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later import Pick, Tanh
from numformer.layer import Array
from numformer.models import kinds, language_model
from numformer.models.model import Model
from numformer.paper.linear import Linear
from numformer.paper.masks import Places, Reach
from numformer.paper.transformer import require_batch


@dataclass(frozen=True, kw_only=True)
class Config(language_model.Config):
    """What a masked language model is made of; InputError for values that do not fit together."""

    both_ways = True

    segments: int | None = kinds.unflagged(settings.size(None, "kinds of stretches of a text"))
    relations: int | None = kinds.unflagged(settings.size(None, "between two segments"))
    transform: bool = kinds.unflagged(settings.switch(False, "one more layer before the output"))


_Config = Config  # which a model has under the same name


class MaskedLanguageModel(Model):
    """ids (B, T) -> logits (B, T, V): those at a position tell the id that belongs there.

    Ids are host arrays, padded; every position sees all others but padding. With `asked` (N,),
    places among the B T of the batch, the logits are (N, V): those of these places alone. Where the
    config has `segments`, each position is of one of them, `segments` (B, T), the first unless
    given. The output shares the weights of the embedding, where the config says `tied`. `backward`
    takes dlogits and returns None, since ids have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.fitting(config)
        embedding = config.embedding(config.vocabulary, rng)
        self.input = config.input_embedding(embedding, rng, config.segments)
        self.tower = config.encoder(rng)
        self.pick = Pick()
        self.transform: Any = (
            Linear(config.d_model, config.d_model, rng) if config.transform else None
        )
        self.activation = config.new_activation()
        self.norm: Any = config.new_norm(config.d_model) if config.transform else None
        self.pooler: Any = Linear(config.d_model, config.d_model, rng) if config.relations else None
        self.tanh = Tanh()
        self.relation: Any = (
            Linear(config.d_model, config.relations, rng) if config.relations else None
        )
        output = embedding if config.tied else config.embedding(config.vocabulary, rng)
        self.output = config.output(output.weight)

    def forward(
        self, ids: Array, asked: np.ndarray | None = None, segments: np.ndarray | None = None
    ) -> Array:
        x = self._encode(ids, segments)
        self.save(picked=asked is not None)
        if asked is not None:
            x = self.pick.forward(x, asked)
        if self.config.transform:
            x = self.norm.forward(self.activation.forward(self.transform.forward(x)))
        return self.output.forward(x)

    def backward(self, dlogits: Array) -> None:
        dx = self.output.backward(dlogits)
        if self.config.transform:
            dx = self.transform.backward(self.activation.backward(self.norm.backward(dx)))
        if self.pop_saved()["picked"]:
            dx = self.pick.backward(dx)
        return self.input.backward(self.tower.backward(dx))

    def _encode(self, ids, segments):
        require_batch(
            ids,
            "ids are a NumPy array (B, T)",
            "numformer.pad(rows) makes it of lists of ids, at least one in a row.",
        )
        places = Places(ids != self.config.special.padding)
        read = (ids, places) if segments is None else (ids, places, segments)
        return self.tower.forward(self.input.forward(*read), Reach(places))

    def relate(self, ids: Array, segments: np.ndarray | None = None) -> Array:
        """ids, segments (B, T) -> logits (B, relations): how the two segments belong together.

        They are read off the first position, tanh(x W + b) (Devlin et al. 2019, section 3.1, "next
        sentence prediction"); `relate_backward` takes dlogits. Raises InputError for a model whose
        config has no `relations`.
        """
        if not self.config.relations:
            rule = "a model that relates segments has `relations` in its config"
            raise InputError(rule, "None", "Load one that was trained so, as BERT was.")
        first = np.arange(len(ids)) * ids.shape[1]
        x = self.pick.forward(self._encode(ids, segments), first)
        return self.relation.forward(self.tanh.forward(self.pooler.forward(x)))

    def relate_backward(self, dlogits: Array) -> None:
        dx = self.pooler.backward(self.tanh.backward(self.relation.backward(dlogits)))
        return self.input.backward(self.tower.backward(self.pick.backward(dx)))

    def predictions(self, ids, targets):
        """Ids (B, T), targets (B, T) -> logits (N, V), targets (N,): where these are no padding.

        Raises InputError where none is asked for at all.
        """
        padding = self.config.special.padding
        asked = np.flatnonzero(targets != padding)
        if not len(asked):
            raise InputError(
                "a batch asks for the id of at least one place",
                f"targets that are all padding (id {padding})",
                "Leave this batch out.",
            )
        return self.forward(ids, asked), targets.ravel()[asked]
