"""An encoder-only model (BERT, Devlin et al. 2019) that predicts masked symbols."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later import GELU, Pick, Tanh
from numformer.layer import Array, Layer
from numformer.models import fields, language_model
from numformer.models.config import OWN_SETTINGS
from numformer.models.model import Model
from numformer.paper.embedding import Embedding
from numformer.paper.feed_forward import ReLU
from numformer.paper.linear import Linear
from numformer.paper.masks import Places, Reach
from numformer.paper.transformer import require_batch

HEAD_ACTIVATIONS: dict[str, type[Layer]] = {"tanh": Tanh, "relu": ReLU, "gelu": GELU}
"""What may stand between the two matrices of the head for relations."""


@fields.field_help(*OWN_SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Config(language_model.Config):
    """The config of a masked language model; raises InputError for values that do not fit."""

    both_ways = True

    segments: int | None = fields.without_flag(settings.size(None, "number of kinds of segments"))
    relations: int | None = fields.without_flag(
        settings.size(None, "number of classes of relations between segments")
    )
    relation_activation: str = fields.without_flag(
        settings.choice("tanh", HEAD_ACTIVATIONS, "before the classes of relations")
    )
    labels: int | None = fields.without_flag(
        settings.size(None, "classes of each position; its logits replace those of symbols")
    )
    transform: bool = fields.without_flag(
        settings.switch(False, "a hidden layer before the output")
    )
    embedding_size: int | None = fields.without_flag(  # type: ignore[misc]
        settings.size(None, "width of the embeddings; a matrix maps them to d_model")
    )
    shared_layers: bool = fields.without_flag(  # type: ignore[misc]
        settings.switch(False, "all layers have the same parameters (ALBERT)")
    )

    def __post_init__(self):
        super().__post_init__()
        if self.shared_layers and self.period > 1:
            rule, fix = "layers that share parameters have the same parts", "Name one for all."
            raise InputError(rule, f"{self.period} in turn: {','.join(self.mixers)}", fix)


_Config = Config  # because the model below has a class attribute `Config`


class MaskedLanguageModel(Model):
    """ids (B, T) -> logits (B, T, V): the logits at a position predict the id of that position.

    With `labels` in the config, the logits (B, T, labels) are those of classes of the position.

    Ids are host arrays, padded; every position sees all others except padding. With `places` (N,),
    indices into the flattened B T positions, the logits are (N, V), at these positions only. If the
    config has `segments`, an argument `segments` (B, T) gives each position's segment (default: 0).
    `valid` (B, T) is False at padding (default: where ids have the padding id). With `tied` the
    output shares the weights of the embedding. `backward` takes dlogits and returns None, since ids
    have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.require_config(config)
        embedding = config.embedding(config.vocabulary, rng)
        self.input = config.input_embedding(embedding, rng, config.segments)
        self.tower = config.encoder(rng)
        self.pick = Pick()
        width = config.embedding_width
        self.transform: Any = Linear(config.d_model, width, rng) if config.transform else None
        self.activation = config.new_activation()
        self.norm: Any = config.new_norm(width) if config.transform else None
        self.pooler: Any = Linear(config.d_model, config.d_model, rng) if config.relations else None
        self.relation_activation = HEAD_ACTIVATIONS[config.relation_activation]()
        self.relation: Any = (
            Linear(config.d_model, config.relations, rng) if config.relations else None
        )
        if config.labels:
            output = Embedding(config.labels, config.d_model, rng)
        else:
            output = embedding if config.tied else config.embedding(config.vocabulary, rng)
        self.output = config.output(output.weight)

    def forward(
        self,
        ids: Array,
        places: np.ndarray | None = None,
        segments: np.ndarray | None = None,
        valid: np.ndarray | None = None,
    ) -> Array:
        x = self._encode(ids, segments, valid)
        self.save(picked=places is not None)
        if places is not None:
            x = self.pick.forward(x, places)
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

    def _encode(self, ids, segments, valid=None):
        require_batch(
            ids,
            "ids are a NumPy array (B, T)",
            "Use numformer.pad(rows), with at least one id in each row.",
        )
        is_symbol = ids != self.config.special.padding if valid is None else valid
        return self.hidden(ids, Places(is_symbol), segments)

    def hidden(self, ids: Array, places: Places, segments: np.ndarray | None = None) -> Array:
        """ids (B, T), their Places -> the stack's output (B, T, D), before any head."""
        inputs = (ids, places) if segments is None else (ids, places, segments)
        return self.tower.forward(self.input.forward(*inputs), Reach(places))

    def relation_logits(
        self,
        ids: Array,
        segments: np.ndarray | None = None,
        valid: np.ndarray | None = None,
    ) -> Array:
        """ids, segments (B, T) -> logits (B, relations) for the relation of the two segments.

        The logits are computed from f(x W + b) at the first position, where f is tanh (Devlin et
        al. 2019, section 3.1, "next sentence prediction") or the config's `relation_activation`.
        A classifier of texts has a single segment. `relation_logits_backward` takes dlogits. Raises
        InputError if the config has no `relations`.
        """
        if not self.config.relations:
            rule = "a model that relates segments has `relations` in its config"
            raise InputError(rule, "None", "Load a model that was trained with them, such as BERT.")
        first = np.arange(len(ids)) * ids.shape[1]
        x = self.pooler.forward(self.pick.forward(self._encode(ids, segments, valid), first))
        return self.relation.forward(self.relation_activation.forward(x))

    def relation_logits_backward(self, dlogits: Array) -> None:
        dx = self.relation_activation.backward(self.relation.backward(dlogits))
        dx = self.pooler.backward(dx)
        return self.input.backward(self.tower.backward(self.pick.backward(dx)))

    def predictions(self, ids, targets):
        """Ids (B, T), targets (B, T) -> logits (N, V), targets (N,), without padding targets.

        Raises InputError if all targets are padding.
        """
        padding = self.config.special.padding
        places = np.flatnonzero(targets != padding)
        if not len(places):
            raise InputError(
                "a batch has at least one target",
                f"targets that are all padding (id {padding})",
                "Leave this batch out.",
            )
        return self.forward(ids, places), targets.ravel()[places]
