"""An encoder-only model of images: their patches are the sequence (Dosovitskiy et al. 2021)."""

from dataclasses import MISSING, dataclass, fields

import numpy as np

from numformer import settings
from numformer.backend import array_module, dtype_kind
from numformer.errors import InputError
from numformer.later import ATTENTIONS, POSITIONS, ClassToken, Patches, Pick
from numformer.layer import Array
from numformer.models import kinds
from numformer.models.config import TowerConfig
from numformer.models.model import Model
from numformer.paper.dropout import Dropout
from numformer.paper.linear import Linear

OF_TEXTS = {"embedding_scale", "embedding_norm", "output_bias", "padding_id", "start_id", "end_id"}
OF_TEXTS |= {"unwritten", "other_ends"}
"""Settings of models that read or write symbols."""


@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig):
    """What a vision Transformer is made of; InputError for values that do not fit together.

    Size and channels of the images and the number of classes belong to the task.
    """

    height: int = settings.size(MISSING, "")
    width: int = settings.size(MISSING, "")
    channels: int = settings.size(MISSING, "")
    classes: int = settings.size(MISSING, "")
    patch: int = settings.size(2, "height and width of a patch, which becomes one position")
    positions: str = settings.choice("learned", POSITIONS, "how positions are encoded")
    attention_function: str = settings.choice(
        "tiled", ATTENTIONS, "what each head computes; tiled: long sequences in tiles"
    )
    max_length: int | None = kinds.only_with(  # type: ignore[assignment]
        settings.size(None, "learned positions; 1 + patches, as many as an image has"),
        positions=["learned"],
    )

    def __post_init__(self):
        super().__post_init__()
        for setting in fields(self):
            if setting.name in OF_TEXTS and getattr(self, setting.name) != setting.default:
                raise InputError(
                    "a model of images has no embedding of symbols, and no special ids",
                    f"{setting.name} {getattr(self, setting.name)!r}",
                    f"Leave {setting.name} out.",
                )
        if self.height % self.patch or self.width % self.patch:
            raise InputError(
                "height and width of the images are multiples of the patch",
                f"images {self.height} x {self.width}, patch {self.patch}",
                "Choose another patch, or cut the images.",
            )
        if self.max_length is not None and self.max_length < self.length:
            raise InputError(
                "learned positions reach to max_length",
                f"max_length {self.max_length} for images of {self.length} positions",
                "Leave max_length out.",
            )

    @property
    def length(self) -> int:
        """Positions of an image: the class token and its patches."""
        return 1 + self.height * self.width // self.patch**2

    @property
    def longest(self) -> int | None:
        """The most positions that a model can take, where there is a limit."""
        return (self.max_length or self.length) if self.positions == "learned" else None

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        symbols = self.patch**2 * self.channels + self.classes
        return self.entries() + self.d_model * symbols


_Config = Config  # which a model has under the same name


class VisionTransformer(Model):
    """images (B, height, width[, C]), floating-point -> logits (B, classes).

    Each patch becomes a vector by one linear map. A trained token stands before them; what the
    tower makes of it tells the class. Images may live on the host and have any floating-point
    dtype: they are brought to those of the weights. `backward` takes dlogits and returns dimages.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.fitting(config)
        self.patches = Patches(config.patch)
        self.embedding = Linear(config.patch**2 * config.channels, config.d_model, rng)
        self.token = ClassToken(config.d_model, rng)
        length = config.max_length or config.length
        self.positions = POSITIONS[config.positions](length, config.d_model, rng)
        self.dropout = Dropout(config.p_drop)
        self.tower = config.encoder(rng)
        self.pick = Pick()
        self.output = Linear(config.d_model, config.classes, rng)

    def forward(self, images: Array) -> Array:
        x = self.patches.forward(self._images(images))
        x = self.token.forward(self.embedding.forward(x))
        x = self.tower.forward(self.dropout.forward(self.positions.forward(x)))
        first = np.arange(len(x)) * self.config.length  # the class token of each image
        return self.output.forward(self.pick.forward(x, first))

    def backward(self, dlogits: Array) -> Array:
        dx = self.tower.backward(self.pick.backward(self.output.backward(dlogits)))
        dx = self.token.backward(self.positions.backward(self.dropout.backward(dx)))
        return self.patches.backward(self.embedding.backward(dx))

    def predictions(self, images, labels):
        """A batch's images (B, height, width[, C]), labels (B,) -> logits (B, classes), labels."""
        self._require_labels(labels)
        return self.forward(images), labels

    def _require_labels(self, labels):
        classes, is_array = self.config.classes, isinstance(labels, np.ndarray)
        fits = is_array and labels.dtype.kind in "iu" and labels.ndim == 1 and labels.size > 0
        if not fits or labels.min() < 0 or labels.max() >= classes:
            what = f"shape {labels.shape}, {labels.dtype}" if is_array else type(labels).__name__
            raise InputError(
                f"labels are a NumPy array (B,) of integers from 0 to {classes - 1}",
                f"{labels.min()} to {labels.max()}" if fits else what,
                "Number the classes from 0.",
            )

    def _images(self, images):
        """The images in the dtype and on the device of the weights."""
        config, weight = self.config, self.embedding.weight.data
        shape = getattr(images, "shape", ())
        sizes = config.height, config.width, config.channels
        allowed = (sizes[:2], sizes) if config.channels == 1 else (sizes,)
        if dtype_kind(images) != "f" or 0 in shape or shape[1:] not in allowed:
            raise InputError(
                f"images are an array (B, {', '.join(map(str, allowed[0]))}) of floating-point "
                "numbers, B at least 1",
                f"shape {shape}, dtype {images.dtype}" if shape else type(images).__name__,
                "Divide whole numbers by their largest, and cut images to one size.",
            )
        return array_module(weight).asarray(images, dtype=weight.dtype)
