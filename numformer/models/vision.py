"""An encoder-only model of images, as sequences of patches (ViT, Dosovitskiy et al. 2021)."""

import dataclasses
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.backend import array_module, dtype_kind
from numformer.errors import InputError
from numformer.later import ATTENTIONS, POSITIONS, ClassToken, Patches, Pick, TokenAndMean
from numformer.later.feed_forward import Chain
from numformer.layer import Array
from numformer.models import fields
from numformer.models.config import OWN_SETTINGS, TowerConfig
from numformer.models.model import Model
from numformer.paper.dropout import Dropout
from numformer.paper.linear import Linear

SYMBOL_SETTINGS = {"embedding_scale", "output_bias", "logit_cap"}
SYMBOL_SETTINGS |= {"padding_id", "start_id", "end_id", "unwritten", "other_ends"}
"""Settings of models of symbols, which a model of images cannot change."""


@fields.field_help(*OWN_SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig):
    """The config of a vision Transformer. Raises InputError for values that do not fit together.

    The task determines the size and channels of the images and the number of classes; a model
    without classes has no head.
    """

    height: int = settings.size(MISSING, "")
    width: int = settings.size(MISSING, "")
    channels: int = settings.size(MISSING, "")
    classes: int | None = fields.without_flag(settings.size(None, "number of classes"))
    patch: int = settings.size(2, "height and width of a patch; each patch is one position")
    positions: str = settings.choice("learned", POSITIONS, "how positions are encoded")
    attention_function: str = settings.choice(
        "tiled", ATTENTIONS, "how each head computes attention; tiled: long sequences in tiles"
    )
    max_length: int | None = fields.only_with(  # type: ignore[assignment]
        settings.size(None, "number of learned positions; default: 1 + the number of patches"),
        positions=["learned"],
    )

    patch_bias: bool = fields.without_flag(settings.switch(True, "a bias in the map of patches"))
    distilled: bool = fields.without_flag(
        settings.switch(False, "a second token, which learns from a teacher (DeiT)")
    )
    distilled_head: bool = fields.only_with(
        fields.without_flag(settings.switch(False, "a head of it; logits are both heads' mean")),
        distilled=["True"],
    )
    mean_head: bool = fields.without_flag(
        settings.switch(False, "the head reads the token and the mean of the patches (DINOv2)")
    )
    registers: int | None = fields.without_flag(
        settings.size(None, "number of registers, trained vectors that only attention reads")
    )

    def __post_init__(self):
        super().__post_init__()
        for setting in dataclasses.fields(self):
            if setting.name in SYMBOL_SETTINGS and getattr(self, setting.name) != setting.default:
                raise InputError(
                    "a model of images has no embedding of symbols and no special ids",
                    f"{setting.name} {getattr(self, setting.name)!r}",
                    f"Leave {setting.name} out.",
                )
        if self.height % self.patch or self.width % self.patch:
            raise InputError(
                "height and width of the images are multiples of the patch size",
                f"images {self.height} x {self.width}, patch {self.patch}",
                "Choose another patch, or crop the images.",
            )
        if self.max_length is not None and self.max_length < self.length:
            raise InputError(
                "max_length is at least the number of positions of an image",
                f"max_length {self.max_length} for images of {self.length} positions",
                "Leave max_length out.",
            )

    @property
    def length(self) -> int:
        """The number of positions of an image: one or two tokens, and the patches."""
        return 1 + self.distilled + self.height * self.width // self.patch**2

    @property
    def longest(self) -> int | None:
        """The maximum number of positions; None for no limit."""
        return (self.max_length or self.length) if self.positions == "learned" else None

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        heads = 1 + self.mean_head + self.distilled_head
        symbols = self.patch**2 * self.channels + heads * (self.classes or 0)
        return self.entries() + self.d_model * symbols


_Config = Config  # because the model below has a class attribute `Config`


class VisionTransformer(Model):
    """images (B, height, width[, C]), floating-point -> logits (B, classes).

    Without `classes` in the config there is no head: the result is what it would read, the vector
    (B, D) at the token, or (B, 2 D) with `mean_head`.

    A linear map turns each patch into a vector. A trained token precedes the patches; the stack's
    output at the token gives the logits. A `distilled` model has a second token (Touvron et al.
    2021); with `distilled_head` the logits are the mean of those of both. With `mean_head`, the
    head reads the token and the mean of the other positions. `registers` (Darcet et al. 2024) are
    trained vectors without positions, which only attention reads. Images may be on the host and of
    any floating-point dtype: they are moved to the device and dtype of the weights. `backward`
    takes dlogits and returns dimages.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.require_config(config)
        self.patches = Patches(config.patch)
        numbers = config.patch**2 * config.channels
        self.embedding = Linear(numbers, config.d_model, rng, config.patch_bias)
        self.distillation: Any = ClassToken(config.d_model, rng) if config.distilled else Chain()
        self.token = ClassToken(config.d_model, rng)
        length = config.max_length or config.length
        self.positions = POSITIONS[config.positions](length, config.d_model, rng)
        self.norm: Any = config.new_norm(config.d_model) if config.embedding_norm else Chain()
        registers = range(config.registers or 0)
        self.registers = Chain(*(ClassToken(config.d_model, rng) for _ in registers))
        self.dropout = Dropout(config.p_drop)
        self.tower = config.encoder(rng)
        self.pick, self.token_and_mean = Pick(), TokenAndMean()
        width, classes = (1 + config.mean_head) * config.d_model, config.classes
        self.output: Any = Linear(width, classes, rng) if classes else Chain()
        self.distilled_output: Any = None
        if config.distilled_head and classes:
            self.distilled_output = Linear(config.d_model, classes, rng)

    def forward(self, images: Array) -> Array:
        x = self.hidden(images)
        first = np.arange(len(x)) * self.config.length  # the class token of each image
        if self.config.mean_head:
            y = self.output.forward(self.token_and_mean.forward(x))
        else:
            y = self.output.forward(self.pick.forward(x, first))
        if self.distilled_output:
            y = (y + self.distilled_output.forward(self.pick.forward(x, first + 1))) / 2
        return y

    def backward(self, dlogits: Array) -> Array:
        dx: Any = 0
        if self.distilled_output:
            dlogits = dlogits / 2
            dx = self.pick.backward(self.distilled_output.backward(dlogits))
        read = self.token_and_mean if self.config.mean_head else self.pick
        return self.hidden_backward(dx + read.backward(self.output.backward(dlogits)))

    def hidden(self, images: Array) -> Array:  # type: ignore[override]
        """images (B, height, width[, C]) -> the stack's output (B, T, D), one or two tokens first.

        Registers are left out. `hidden_backward` takes its gradient and returns dimages.
        """
        x = self.patches.forward(self._images(images))
        x = self.token.forward(self.distillation.forward(self.embedding.forward(x)))
        x = self.registers.forward(self.norm.forward(self.positions.forward(x)))
        return self.tower.forward(self.dropout.forward(x))[:, len(self.registers.layers) :]

    def hidden_backward(self, dx: Array) -> Array:
        unread = [(0, 0), (len(self.registers.layers), 0), (0, 0)]  # the output at registers
        dx = self.dropout.backward(self.tower.backward(array_module(dx).pad(dx, unread)))
        dx = self.norm.backward(self.registers.backward(dx))
        dx = self.distillation.backward(self.token.backward(self.positions.backward(dx)))
        return self.patches.backward(self.embedding.backward(dx))

    def predictions(self, images, labels):
        """A batch's images (B, height, width[, C]), labels (B,) -> logits (B, classes), labels."""
        self._require_labels(labels)
        return self.forward(images), labels

    def _require_labels(self, labels):
        classes, is_array = self.config.classes or 0, isinstance(labels, np.ndarray)
        fits = is_array and labels.dtype.kind in "iu" and labels.ndim == 1 and labels.size > 0
        if not fits or labels.min() < 0 or labels.max() >= classes:
            kind = f"shape {labels.shape}, {labels.dtype}" if is_array else type(labels).__name__
            raise InputError(
                f"labels are a NumPy array (B,) of integers from 0 to {classes - 1}",
                f"{labels.min()} to {labels.max()}" if fits else kind,
                "Number the classes from 0.",
            )

    def _images(self, images):
        """Return the images in the dtype and on the device of the weights."""
        config, weight = self.config, self.embedding.weight.data
        shape = getattr(images, "shape", ())
        sizes = config.height, config.width, config.channels
        allowed = (sizes[:2], sizes) if config.channels == 1 else (sizes,)
        if dtype_kind(images) != "f" or 0 in shape or shape[1:] not in allowed:
            raise InputError(
                f"images are an array (B, {', '.join(map(str, allowed[0]))}) of floating-point "
                "numbers, B at least 1",
                f"shape {shape}, dtype {images.dtype}" if shape else type(images).__name__,
                "Divide integers by their maximum, and crop images to one size.",
            )
        return array_module(weight).asarray(images, dtype=weight.dtype)
