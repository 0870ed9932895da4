"""An encoder-only model: a tower that looks both ways, and tells what stands at hidden places.

The Transformer's encoder without a decoder (Devlin et al. 2019, BERT).
"""

import numpy as np

from numformer.errors import InputError
from numformer.layer import Array
from numformer.layers import Embedding, OutputProjection, Pick, Places, Reach
from numformer.models import language_model
from numformer.models.block import InputEmbedding, Tower
from numformer.models.model import Model, require_batch


class Config(language_model.Config):
    """What a masked language model is made of; InputError for values that do not fit together."""

    both_ways = True


_Config = Config  # which a model has under the same name


class MaskedLanguageModel(Model):
    """ids (B, T) -> logits (B, T, V): those at a position tell the id that belongs there.

    Ids are host arrays; every position sees all others but padding. With `asked`
    (N,), places among the B T of the batch, the logits are (N, V): those of these places alone.
    The output shares the weights of the embedding, where the config says `tied`. `backward` takes
    dlogits and returns None, since ids have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.fitting(config)
        size, scaled = (config.vocabulary, config.d_model), config.embedding_scale
        embedding = Embedding(*size, rng, scaled=scaled)
        self.input = InputEmbedding(config, embedding, rng)
        self.tower = Tower(config, rng)
        self.pick = Pick()
        output = embedding if config.tied else Embedding(*size, rng)
        self.output = OutputProjection(output.weight, config.output_bias)

    def forward(self, ids: Array, asked: np.ndarray | None = None) -> Array:
        require_batch(
            ids,
            "ids are a NumPy array (B, T)",
            "numformer.pad(rows) makes it of lists of ids, at least one in a row.",
        )
        places = Places(ids != self.config.special.padding)
        x = self.tower.forward(self.input.forward(ids, places), Reach(places))
        self.save(picked=asked is not None)
        if asked is not None:
            x = self.pick.forward(x, asked)
        return self.output.forward(x)

    def backward(self, dlogits: Array) -> None:
        dx = self.output.backward(dlogits)
        if self.pop_saved()["picked"]:
            dx = self.pick.backward(dx)
        return self.input.backward(self.tower.backward(dx))

    def predictions(self, ids, targets):
        """Ids (B, T), targets (B, T) -> logits (N, V), targets (N,): where these are no padding.

        Raises InputError where none is asked for at all.
        """
        asked = np.flatnonzero(targets != self.config.special.padding)
        if not len(asked):
            raise InputError(
                "a batch asks for the id of at least one place",
                f"targets that are all padding (id {self.config.special.padding})",
                "Leave this batch out.",
            )
        return self.forward(ids, asked), targets.ravel()[asked]
