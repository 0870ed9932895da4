"""The paper's Transformer as a Model, whose parts can be replaced by later alternatives."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numformer import paper, settings
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.models import fields
from numformer.models.config import OWN_SETTINGS, TowerConfig
from numformer.models.model import Model
from numformer.paper.transformer import Transformer as PaperTransformer


@dataclass(frozen=True, kw_only=True)
class TwoStacksConfig(TowerConfig):
    """The config of an encoder and a decoder. Raises InputError for unsuitable special ids."""

    has_cross_attention = True

    decoder_layers: int | None = fields.without_flag(
        settings.size(None, "default: as in the encoder")
    )

    def __post_init__(self):
        super().__post_init__()
        if self.start_id is None or self.end_id in (None, self.padding_id):
            raise InputError(
                "an encoder-decoder has a start id, and an end id other than the padding id",
                f"start_id {self.start_id}, end_id {self.end_id}, padding_id {self.padding_id}",
                "Set them to ids of the vocabulary.",
            )

    @property
    def decoder_config(self) -> Any:
        """The config of the decoder's stack."""
        return replace(self, layers=self.decoder_layers or self.layers, decoder_layers=None)

    def decoder(self, rng: np.random.Generator) -> Layer:
        if self.decoder_layers:
            return self.decoder_config.decoder(rng)
        return super().decoder(rng)

    def entries_of_stacks(self) -> int:
        """Return a lower bound on the parameters of both stacks, as `entries` does for one."""
        return self.entries() + self.decoder_config.entries(cross=True)


@fields.field_help(*OWN_SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Config(TwoStacksConfig, paper.Config):
    """The config of a Transformer; the defaults are the paper's base model.

    The task determines the two vocabulary sizes. Raises InputError for values that do not fit
    together.
    """

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        targets = dict(all=0, inputs=1, target=1, none=2)[self.tying]
        symbols = self.source_vocabulary + targets * self.target_vocabulary
        return self.entries_of_stacks() + self.d_model * symbols


_Config = Config  # because the model below has a class attribute `Config`


class Transformer(PaperTransformer, Model):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V): the paper's Transformer (Figure 1).

    The code is in numformer/paper/transformer.py; the Config adds later alternatives.
    """

    Config: type[_Config] = Config
    config: _Config

    def __init__(self, config: Any, seed: int | np.random.SeedSequence = 0):
        super().__init__(self.require_config(config), seed)

    def predictions(self, source, target_in, target_out):
        """A batch's ids (B, S), (B, T), (B, T) -> logits (N, V), targets (N,), without padding."""
        logits = self.forward(source, target_in, skip_padding=True)
        return logits, target_out[self.config.special.real(target_in)]
