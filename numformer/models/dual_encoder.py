"""Two towers, of texts and of images, whose vectors are compared (CLIP, Radford et al. 2021)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later import Pick, Similarity
from numformer.layer import Array
from numformer.models import fields, language_model, vision
from numformer.models.language_model import LanguageModel
from numformer.models.model import Model
from numformer.models.owned_settings import OwnedSettings
from numformer.models.vision import VisionTransformer
from numformer.paper.linear import Linear
from numformer.paper.masks import Places
from numformer.symbols import SpecialIds


@fields.field_help()
@dataclass(frozen=True, kw_only=True)
class Config(OwnedSettings):
    """The config of a DualEncoder. Raises InputError for a tower that has a head."""

    texts: language_model.Config = fields.config_of(LanguageModel)  # noqa: RUF009
    images: vision.Config = fields.config_of(VisionTransformer)  # noqa: RUF009
    width: int = settings.size(512, "width of the vectors that are compared")

    def __post_init__(self):
        super().__post_init__()
        if self.texts.head or self.images.classes:
            raise InputError(
                "the towers of a DualEncoder have no heads",
                f"head {self.texts.head}, classes {self.images.classes}",
                "Write head=False for texts, and classes=None for images.",
            )

    @property
    def d_model(self) -> int:
        return self.width

    @property
    def vocabulary(self) -> int:
        return self.texts.vocabulary

    @property
    def special(self) -> SpecialIds:
        return self.texts.special

    @property
    def longest(self) -> int | None:
        return self.texts.longest

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        towers = self.texts, self.images
        return sum(tower.least_parameters + self.width * tower.d_model for tower in towers)


_Config = Config  # because the model below has a class attribute `Config`


class DualEncoder(Model):
    """images (N, height, width, C), ids (B, T) -> logits (N, B): how alike each pair is.

    A matrix maps the vector of each tower to `width` numbers: for images the vector at the class
    token, for texts that at the first end id. Texts are padded by further end ids. The logits are
    those of Similarity. `backward` takes dlogits and returns dimages.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng: Any = np.random.default_rng(seed)
        self.config: _Config = self.require_config(config)
        self.texts = LanguageModel(config.texts, rng)
        self.pick = Pick()
        self.text_projection = Linear(config.texts.d_model, config.width, rng, False)
        self.images = VisionTransformer(config.images, rng)
        self.image_projection = Linear(config.images.d_model, config.width, rng, False)
        self.similarity = Similarity()

    @property
    def tower(self):  # type: ignore[override]
        """The stack of the texts' tower."""
        return self.texts.tower

    def forward(self, images: Array, ids: Array) -> Array:
        return self.similarity.forward(self.embed_images(images), self.embed_texts(ids))

    def backward(self, dlogits: Array) -> Array:
        dimages, dtexts = self.similarity.backward(dlogits)
        self.texts.backward(self.pick.backward(self.text_projection.backward(dtexts)))
        return self.images.backward(self.image_projection.backward(dimages))

    def embed_images(self, images: Array) -> Array:
        """images (N, height, width, C) -> vectors (N, width)."""
        return self.image_projection.forward(self.images.forward(images))

    def embed_texts(self, ids: Array) -> Array:
        """ids (B, T) -> vectors (B, width). Raises InputError for a row without the end id."""
        x = self.texts.forward(ids)
        is_end = ids == self.config.special.end
        if not (has_end := is_end.any(axis=-1)).all():
            rule, fix = f"a text has the end id, {self.config.special.end}", "Append it."
            raise InputError(rule, f"row {has_end.argmin()} without it", fix)
        ends = is_end.argmax(axis=-1) + np.arange(len(ids)) * ids.shape[1]
        return self.text_projection.forward(self.pick.forward(x, ends))

    def hidden(self, ids: Array, places: Places) -> Array:  # type: ignore[override]
        """ids (B, T), their Places -> the output of the texts' stack (B, T, D)."""
        return self.texts.hidden(ids, places)

    def embedded(self, ids: Array, places: Places) -> Array:
        """ids (B, T), their Places -> a vector for each text up to each position (B, T, width)."""
        return self.text_projection.forward(self.hidden(ids, places))
