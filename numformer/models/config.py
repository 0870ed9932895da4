"""The config that has every later choice, and makes the parts that the choices name."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later import (
    ACTIVATIONS,
    ATTENTIONS,
    FEED_FORWARDS,
    MIXERS,
    MIXERS_OF_ATTENTION,
    NORMALIZATIONS,
    POSITIONS,
    QK_NORMS,
    BiasedOutputProjection,
    Checkpointed,
    NormedDecoder,
    NormedEncoder,
    PreNormResidual,
    RichInputEmbedding,
    UnscaledEmbedding,
)
from numformer.later.attention.mixer import AttentionMixer, build_cross, entries
from numformer.later.attention.rotary import require_pairs
from numformer.layer import Layer, Parameter
from numformer.models import kinds
from numformer.paper.config import LayerConfig
from numformer.paper.decoder import Decoder, DecoderLayer
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.encoder import Encoder, EncoderLayer
from numformer.paper.residual import Residual
from numformer.symbols import DEFAULT_IDS, SpecialIds

CHOICES_WITH_SETTINGS: dict[str, dict[str, Any]] = {
    "mixers": MIXERS,
    "feed_forwards": FEED_FORWARDS,
    "normalization": NORMALIZATIONS,
}
"""Fields whose choices may have settings of their own, each with its registry."""
OWN_SETTINGS = kinds.classes_of(
    entry for registry in CHOICES_WITH_SETTINGS.values() for entry in registry.values()
)


def _mixers_with(*names: str) -> set[str]:
    """The mixers that are attention, and those of these names."""
    return {name for name, mixer in MIXERS.items() if isinstance(mixer, AttentionMixer)} | {*names}


# Without cross-attention these do something in the layers of these mixers alone.
SETTINGS_OF_ATTENTION: dict[str, Callable[[], set[str]]] = {
    "d_k": lambda: _mixers_with("linear"),
    "attention_bias": lambda: _mixers_with("linear"),
    "attention_dropout": _mixers_with,
    "attention_function": lambda: {"attention"},
}


@dataclass(frozen=True, kw_only=True)
class TowerConfig(kinds.OwnedSettings, LayerConfig, *OWN_SETTINGS):  # type: ignore[misc]
    """The paper's decisions about layers, and every later choice; the defaults are the paper's.

    Raises InputError for values that do not fit together, and for a setting whose owner is not
    chosen: `window` without a mixer that has a window.
    """

    both_ways: ClassVar[bool] = True
    """Whether a stack of the model lets positions see later ones, so that its mixers look ahead."""
    crosses: ClassVar[bool] = False
    """Whether a stack of the model has cross-attention."""

    mixers: str = kinds.choices(
        "attention", MIXERS, "what the layers have for self-attention, in turn: window,attention"
    )
    key_value_heads: int | str | None = kinds.only_with(
        kinds.sizes(
            None,
            "heads of keys and values in self-attention, in turn by layer (2, or 1,4); as many as "
            "of queries unless given",
        ),
        mixers=MIXERS_OF_ATTENTION,
    )
    qk_norm: str = kinds.only_with(
        settings.choice("none", QK_NORMS, "norm of each head's queries and keys (self-attention)"),
        mixers=MIXERS_OF_ATTENTION,
    )
    feed_forwards: str = kinds.choices(
        "dense", FEED_FORWARDS, "the layers' feed-forward networks, in turn"
    )
    norm: str = settings.choice(
        "post", ("post", "pre"), "where the norm stands around a sublayer (3.1)"
    )
    normalization: str = settings.choice("layer", NORMALIZATIONS, "which norm it is (3.1)")
    attention_function: str = settings.choice(
        "scaled_dot_product",
        ATTENTIONS,
        "what each head computes (3.2.1); tiled: the same, long sequences in tiles",
    )
    attention_bias: bool = settings.switch(
        False, "biases in the projections of attention (3.2.2 has none)"
    )
    feed_forward_bias: bool = settings.switch(True, "biases in the feed-forward network (3.3)")
    activation: str = settings.choice("relu", ACTIVATIONS, "inside the feed-forward network (3.3)")
    positions: str = settings.choice(
        "sinusoidal",
        POSITIONS,
        "how positions are encoded (3.5; learned: Table 3, row E; the others are later work)",
    )
    max_length: int = kinds.only_with(
        settings.size(512, "longest sequence that learned positions can take"),
        positions=["learned"],
    )
    attention_dropout: float = settings.share(
        0.0, "dropout on attention weights (not in the paper)"
    )
    activation_dropout: float = settings.share(
        0.0, "dropout after the activation (not in the paper)"
    )
    checkpointing: bool = settings.switch(
        False, "compute every layer again for backward, to save memory (not in the paper)"
    )
    # What models have that others trained; `numformer.published` reads them.
    epsilon: float = kinds.unflagged(settings.above_zero(1e-5, "under the root of each norm"))
    embedding_scale: bool = kinds.unflagged(settings.switch(True, "sqrt(d_model) (3.4)"))
    embedding_norm: bool = kinds.unflagged(settings.switch(False, "of what blocks are given"))
    output_bias: bool = kinds.unflagged(settings.switch(False, "of the logits (3.4 has none)"))
    rotary_base: float = kinds.only_with(
        kinds.unflagged(settings.above_zero(1e4, "of rotary positions")),
        positions=["rotary", "sinusoidal_rotary"],
    )
    padding_id: int | None = kinds.unflagged(kinds.special_id(DEFAULT_IDS.padding, ""))
    start_id: int | None = kinds.unflagged(kinds.special_id(DEFAULT_IDS.start, ""))
    end_id: int | None = kinds.unflagged(kinds.special_id(DEFAULT_IDS.end, ""))
    unwritten: str = kinds.unflagged(
        kinds.ids(",".join(map(str, DEFAULT_IDS.unwritten)), "ids that no model writes")
    )
    other_ends: str = kinds.unflagged(kinds.ids("", "further ids that end a text"))

    def __new__(cls, *_, **values):
        """A config of this class, or of one with the further fields of entries that it names.

        What is registered after this class was made may have settings, too.
        """
        base: Any = vars(cls).get("extends", cls)
        entries: list[Any] = []
        for field, registry in CHOICES_WITH_SETTINGS.items():
            chosen = str(values.get(field, base.__dataclass_fields__[field].default)).split(",")
            for name, entry in registry.items():
                if name in chosen or kinds.own_names(entry) & values.keys():
                    entries.append(entry)
        own = [kind for kind in kinds.classes_of(entries) if not issubclass(base, kind)]
        kind: Any = kinds.extended(base, (*own,)) if own else base
        return super().__new__(kind, **values)

    def __post_init__(self):
        super().__post_init__()
        if "rotary" in self.positions:
            require_pairs(self.sizes[0])
        for layer in range(min(self.layers, self.turns)):
            for name in ("mixers", "feed_forwards"):
                entry = self.choice(name, layer)
                if hasattr(entry, "require"):
                    entry.require(self.of_layer(layer))

    def owners(self, setting: Field) -> Mapping[str, Collection[str]]:
        """The choices that a setting belongs to: names that one of the other fields has then."""
        for field, registry in CHOICES_WITH_SETTINGS.items():
            entries = {
                name for name, entry in registry.items() if setting.name in kinds.own_names(entry)
            }
            if entries:
                return {field: entries}
        if setting.name in SETTINGS_OF_ATTENTION and not self.crosses:
            owners: dict[str, Collection[str]] = {"mixers": SETTINGS_OF_ATTENTION[setting.name]()}
            if getattr(self, setting.name) == "scaled_dot_product":  # which tiles stand in for
                owners["positions"] = POSITIONS.keys() - {"alibi"}
                owners["key_value_heads"] = ["None", str(self.heads)]
            return owners
        return super().owners(setting)

    # Choices by layer

    @property
    def turns(self) -> int:
        """After how many layers all choices are those of the first layer again."""
        listed = self.mixers, self.feed_forwards, str(self.key_value_heads)
        return int(np.lcm.reduce([text.count(",") + 1 for text in listed]))

    def choice(self, name: str, layer: int) -> Any:
        """What the layer of this number has by the field `mixers` or `feed_forwards`."""
        registry = MIXERS if name == "mixers" else FEED_FORWARDS
        names = getattr(self, name).split(",")
        return registry[names[layer % len(names)]]

    def of_layer(self, layer: int) -> Any:
        """The config of this layer alone: its number of heads of keys and values."""
        listed = str(self.key_value_heads or self.heads).split(",")
        count = int(listed[layer % len(listed)])
        if self.key_value_heads in (None, count):
            return self
        return replace(self, key_value_heads=count)

    @property
    def size_of_key(self) -> int:
        """d_k, the size of a query or a key."""
        return self.sizes[0]

    @cached_property
    def special(self) -> SpecialIds:  # type: ignore[override]
        """The ids that mean something else than a symbol."""
        unwritten, other_ends = (
            tuple(map(int, filter(None, listed.split(","))))
            for listed in (self.unwritten, self.other_ends)
        )
        return SpecialIds(self.padding_id, self.start_id, self.end_id, unwritten, other_ends)

    # The parts

    def new_norm(self, width: int) -> Layer:
        """A norm of vectors of this width."""
        entry = NORMALIZATIONS[self.normalization]
        return entry(
            width, self.epsilon, **{name: getattr(self, name) for name in kinds.own_names(entry)}
        )

    def new_activation(self) -> Layer:
        """What stands between the two products of the feed-forward network."""
        return ACTIVATIONS[self.activation]()

    def self_attention(
        self, rng: np.random.Generator, layer: int = 0, causal: bool = False
    ) -> Layer:
        """The mixer of the layer of this number; a `causal` one is to see nothing later."""
        return self.choice("mixers", layer).build(self.of_layer(layer), rng, causal)

    def cross_attention(self, rng: np.random.Generator) -> Layer:
        return build_cross(self, rng)

    def feed_forward(self, rng: np.random.Generator, layer: int = 0) -> Layer:
        return self.choice("feed_forwards", layer).build(self, rng)

    def residual(self, sublayer: Layer) -> Layer:
        kind = PreNormResidual if self.norm == "pre" else Residual
        return kind(sublayer, self.d_model, self.p_drop, self.new_norm(self.d_model))

    def encoder_layer(
        self, rng: np.random.Generator, layer: int = 0, causal: bool = False
    ) -> Layer:
        kind = getattr(self.choice("feed_forwards", layer), "EncoderLayer", EncoderLayer)
        mixer = self.residual(self.self_attention(rng, layer, causal))
        return kind(mixer, self.residual(self.feed_forward(rng, layer)))

    def decoder_layer(self, rng: np.random.Generator, layer: int = 0) -> Layer:
        kind = getattr(self.choice("feed_forwards", layer), "DecoderLayer", DecoderLayer)
        sublayers = self.self_attention(rng, layer, causal=True), self.cross_attention(rng)
        return kind(*map(self.residual, (*sublayers, self.feed_forward(rng, layer))))

    def encoder(self, rng: np.random.Generator, causal: bool = False) -> Any:
        """The stack of layers; InputError where one of them cannot look ahead and is to."""
        blind = [name for name in self.mixers.split(",") if not MIXERS[name].looks_ahead]
        if blind and not causal:
            raise InputError(
                "in a stack that reads both ways every mixer looks ahead",
                f"mixers {self.mixers}, of which {blind[0]} does not",
                "Choose another mixer, or a model that only looks back, a language model.",
            )
        layers = self._stacked(self.encoder_layer(rng, n, causal) for n in range(self.layers))
        if self.norm == "post":
            return Encoder(layers)
        return NormedEncoder(layers, self.new_norm(self.d_model))

    def decoder(self, rng: np.random.Generator) -> Any:
        layers = self._stacked(self.decoder_layer(rng, n) for n in range(self.layers))
        if self.norm == "post":
            return Decoder(layers)
        return NormedDecoder(layers, self.new_norm(self.d_model))

    def _stacked(self, layers: Iterable[Any]) -> list[Layer]:
        """The layers, which share what their mixers share, as checkpoints where the config asks."""
        layers = list(layers)
        firsts: dict[Any, Any] = {}
        for number, layer in enumerate(layers):
            entry, mixer = self.choice("mixers", number), layer.self_attention.sublayer
            entry.share(mixer, firsts.setdefault(entry, mixer))
        return [Checkpointed(layer) for layer in layers] if self.checkpointing else layers

    def embedding(
        self, vocabulary: int, rng: np.random.Generator, weight: Parameter | None = None
    ) -> Embedding:
        kind = Embedding if self.embedding_scale else UnscaledEmbedding
        return kind(vocabulary, self.d_model, rng, weight)

    def position_encoding(self, rng: np.random.Generator) -> Layer:
        return POSITIONS[self.positions](self.max_length, self.d_model, rng)

    def input_embedding(
        self, embedding: Embedding, rng: np.random.Generator, segments: int | None = None
    ) -> Any:
        if not (segments or self.embedding_norm):
            return super().input_embedding(embedding, rng)
        table = UnscaledEmbedding(segments, self.d_model, rng) if segments else None
        norm = self.new_norm(self.d_model) if self.embedding_norm else None
        positions = self.position_encoding(rng)
        return RichInputEmbedding(embedding, positions, self.p_drop, table, norm)

    def output(self, weight: Parameter) -> Layer:
        return (BiasedOutputProjection if self.output_bias else OutputProjection)(weight)

    # How large the model is

    @property
    def longest(self) -> int | None:
        """The most positions that a model can take, where there is a limit."""
        return self.max_length if self.positions == "learned" else None

    @property
    def unlimited(self) -> bool:
        """Whether positions beyond those of training are nothing new to a model.

        So it is with ALiBi, by the measure of its paper; and with positions that count from query
        to key, or with none, where no mixer sees further than it did in training.
        """
        near = all(MIXERS[name].sees_near for name in self.mixers.split(","))
        return self.positions == "alibi" or (self.positions in ("rotary", "none") and near)

    def entries(self, cross: bool = False) -> int:
        """The entries of a stack's matrices and of its table of positions; no stack has fewer."""

        def of_layer(n: int) -> int:
            config = self.of_layer(n)
            parts = self.choice("mixers", n), self.choice("feed_forwards", n)
            return sum(part.entries(config) for part in parts) + cross * entries(self, self.heads)

        in_turn = [of_layer(n) for n in range(self.turns)]
        rounds, rest = divmod(self.layers, len(in_turn))  # layers may be any number, so no loop
        of_layers = rounds * sum(in_turn) + sum(in_turn[:rest])
        return of_layers + self.d_model * (self.longest or 0)

    @property
    def least_saved(self) -> int:
        """Numbers that every position at least saves in a stack, for backward."""
        of_layer = 4 * self.d_model + self.d_ff
        if self.checkpointing:
            return self.layers * self.d_model + of_layer
        return self.layers * of_layer
