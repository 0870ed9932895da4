"""The paper's Transformer as a model that trains, with every later choice of its parts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numformer import paper, settings
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.models import kinds
from numformer.models.config import TowerConfig
from numformer.models.model import Model
from numformer.paper.transformer import Transformer as PaperTransformer


@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig, paper.Config):
    """What a Transformer is made of; defaults are the paper's base model.

    The two vocabulary sizes belong to the task. Raises InputError for values that do not fit
    together.
    """

    crosses = True

    decoder_layers: int | None = kinds.unflagged(settings.size(None, "as many as the encoder has"))

    def __post_init__(self):
        super().__post_init__()
        if self.start_id is None or self.end_id in (None, self.padding_id):
            raise InputError(
                "what an encoder-decoder reads and writes has a start id, and an end id that is no "
                "padding",
                f"start_id {self.start_id}, end_id {self.end_id}, padding_id {self.padding_id}",
                "Give ids of the vocabulary.",
            )

    @property
    def decoder_config(self) -> "Config":
        """The config of the decoder's stack."""
        return replace(self, layers=self.decoder_layers or self.layers, decoder_layers=None)

    def decoder(self, rng: np.random.Generator) -> Layer:
        if self.decoder_layers:
            return self.decoder_config.decoder(rng)
        return super().decoder(rng)

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        targets = dict(all=0, inputs=1, target=1, none=2)[self.tying]
        symbols = self.source_vocabulary + targets * self.target_vocabulary
        stacks = self.entries() + self.decoder_config.entries(cross=True)
        return stacks + self.d_model * symbols


_Config = Config  # which a model has under the same name


class Transformer(PaperTransformer, Model):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V): the paper's Transformer (Figure 1).

    Its lines stand in numformer/paper/transformer.py; its Config has every later choice.
    """

    Config: type[_Config] = Config
    config: _Config

    def __init__(self, config: Any, seed: int | np.random.SeedSequence = 0):
        super().__init__(self.fitting(config), seed)

    def predictions(self, source, target_in, target_out):
        """A batch's ids (B, S), (B, T), (B, T) -> logits (N, V), targets (N,): the real ones."""
        logits = self.forward(source, target_in, skip_padding=True)
        return logits, target_out[self.config.special.real(target_in)]
