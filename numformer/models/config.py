"""The config of a stack of layers, with alternatives from later work, and the parts it builds."""

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.later.attention.rotary import require_pairs
from numformer.later.checkpointed import Checkpointed
from numformer.later.embeddings import (
    BiasedOutputProjection,
    CappedOutputProjection,
    RichInputEmbedding,
    UnscaledEmbedding,
)
from numformer.later.mixers.attention import (
    AttentionMixer,
    build_cross_attention,
    matrix_entries,
)
from numformer.later.pre_norm import RESIDUALS, NormedDecoder, NormedEncoder, ParallelLayer
from numformer.later.registries import (
    ACTIVATIONS,
    ATTENTIONS,
    FEED_FORWARDS,
    MIXERS,
    NORMALIZATIONS,
    POSITIONS,
    POSITIONS_IN_ATTENTION,
)
from numformer.layer import Layer, Parameter
from numformer.models import fields
from numformer.models.owned_settings import OwnedSettings, own_names, settings_classes
from numformer.paper.config import LayerConfig
from numformer.paper.decoder import Decoder, DecoderLayer
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.encoder import Encoder, EncoderLayer
from numformer.paper.linear import Linear
from numformer.symbols import DEFAULT_IDS, SpecialIds

CHOICES_WITH_SETTINGS: dict[str, dict[str, Any]] = {
    "mixers": MIXERS,
    "feed_forwards": FEED_FORWARDS,
    "normalization": NORMALIZATIONS,
}
"""The registry of each field whose choices may have settings of their own."""
OWN_SETTINGS = settings_classes(
    entry for registry in CHOICES_WITH_SETTINGS.values() for entry in registry.values()
)


def share_parameters(layer: Layer, first: Layer) -> None:
    """Replace the parameters of a layer by those of `first`, which has the same parts."""
    for part, first_part in zip(layer.layers_within(), first.layers_within(), strict=True):
        for name, value in vars(first_part).items():
            if isinstance(value, Parameter):
                setattr(part, name, value)


def attention_mixers() -> set[str]:
    """Return the names of the mixers that are attention."""
    return {name for name, mixer in MIXERS.items() if isinstance(mixer, AttentionMixer)}


WITH_ATTENTION = attention_mixers()
ROTARY = "rotary", "sinusoidal_rotary"
DENSE = ("dense",)
WITH_PROJECTIONS: dict[str, Callable[[], set[str]]] = {
    "d_k": lambda: attention_mixers() | {"linear"},
    "attention_bias": lambda: attention_mixers() | {"linear"},
    "attention_output_bias": attention_mixers,
    "attention_cap": attention_mixers,
    "attention_dropout": attention_mixers,
    "attention_function": lambda: {"attention"},
}
"""Settings that affect only cross-attention and the layers with these mixers."""


@dataclass(frozen=True, kw_only=True)
class TowerConfig(OwnedSettings, LayerConfig, *OWN_SETTINGS):  # type: ignore[misc]
    """The config of a stack of layers: the paper's choices, and alternatives from later work.

    The defaults are the paper's. Raises InputError for values that do not fit together, and for a
    setting that no chosen part has, such as `window` if no mixer has a window.
    """

    registries = CHOICES_WITH_SETTINGS
    both_ways: ClassVar[bool] = True
    """Whether the positions of a stack see later positions, so that its mixers must look ahead."""
    has_cross_attention: ClassVar[bool] = False
    embedding_size: ClassVar[int | None] = None
    """The width of the embeddings if a matrix maps them to d_model; None if they have d_model."""
    shared_layers: ClassVar[bool] = False
    """Whether all layers of a stack have the same parameters."""

    mixers: tuple[str, ...] = fields.choices(
        "attention",
        MIXERS,
        "self-attention, or what replaces it; layers cycle through a list: window,attention",
    )
    key_value_heads: int | tuple[int, ...] | None = fields.only_with(
        fields.sizes(
            None,
            "key and value heads in self-attention; layers cycle through a list (1,4); default: "
            "as many as query heads",
        ),
        mixers=WITH_ATTENTION,
    )
    qk_norm: str = fields.only_with(
        settings.choice(
            "none",
            ChainMap[str, Any](NORMALIZATIONS, {"none": None}),
            "norm of each head's queries and keys (self-attention)",
        ),
        mixers=WITH_ATTENTION,
    )
    qk_norm_width: str = fields.only_with(
        settings.choice("head", ("head", "heads"), "qk_norm of each head, or of all as one vector"),
        qk_norm=NORMALIZATIONS,
    )
    feed_forwards: tuple[str, ...] = fields.choices(
        "dense", FEED_FORWARDS, "feed-forward networks; layers cycle through a list"
    )
    norm: str = settings.choice(
        "post",
        RESIDUALS,
        "a norm after each sum (3.1), before each sublayer, of its output, or both of these; "
        "pre_scaled: before, and trained factors of the output",
    )
    sublayers: str = fields.only_with(
        settings.choice(
            "in_turn",
            ("in_turn", "parallel", "parallel_one_norm"),
            "the feed-forward network reads what attention wrote, or what it read (GPT-J)",
        ),
        norm=["pre"],
    )
    normalization: str = settings.choice("layer", NORMALIZATIONS, "kind of norm (3.1)")
    attention_function: str = settings.choice(
        "scaled_dot_product",
        ATTENTIONS,
        "how each head computes attention (3.2.1); tiled: long sequences in tiles",
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
    max_length: int = fields.only_with(
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
        False, "recompute every layer for backward, which saves memory (not in the paper)"
    )
    # Only published models need values other than these defaults.
    epsilon: float = fields.without_flag(settings.above_zero(1e-5, "epsilon of every norm"))
    embedding_scale: bool = fields.without_flag(settings.switch(True, "times sqrt(d_model) (3.4)"))
    embedding_norm: bool = fields.without_flag(settings.switch(False, "a norm of the embeddings"))
    attention_output_bias: bool | None = fields.without_flag(
        fields.maybe("a bias in W^O; default: as attention_bias")
    )
    attention_key_bias: bool = fields.only_with(
        fields.without_flag(settings.switch(True, "a bias in W^K, too")),
        attention_bias=["True"],
    )
    attention_cap: float | None = fields.without_flag(
        settings.above_zero(None, "the scores s of attention become c tanh(s / c), with this c")
    )
    logit_cap: float | None = fields.only_with(
        fields.without_flag(settings.above_zero(None, "like attention_cap, for the logits")),
        output_bias=["False"],
    )
    output_bias: bool = fields.without_flag(
        settings.switch(False, "a bias of the logits (3.4 has none)")
    )
    rotary_base: float = fields.only_with(
        fields.without_flag(settings.above_zero(1e4, "base of rotary positions")),
        positions=ROTARY,
    )
    rotary_frequencies: tuple[tuple[float, ...], ...] = fields.only_with(
        fields.without_flag(
            fields.frequencies("angles between neighbours, pair by pair; layers cycle through them")
        ),
        positions=ROTARY,
    )
    rotary_longest: int | None = fields.only_with(
        fields.without_flag(settings.size(None, "longest sequence for these rotary positions")),
        positions=ROTARY,
    )
    padding_id: int | None = fields.without_flag(fields.special_id(DEFAULT_IDS.padding, ""))
    start_id: int | None = fields.without_flag(fields.special_id(DEFAULT_IDS.start, ""))
    end_id: int | None = fields.without_flag(fields.special_id(DEFAULT_IDS.end, ""))
    unwritten: tuple[int, ...] = fields.without_flag(
        fields.ids((*DEFAULT_IDS.unwritten,), "ids that are never generated")
    )
    other_ends: tuple[int, ...] = fields.without_flag(
        fields.ids((), "further ids that end a sequence")
    )

    def __post_init__(self):
        if self.sublayers in ("parallel", "parallel_one_norm") and self.has_cross_attention:
            rule, fix = "parallel sublayers leave no place for cross-attention", "Choose in_turn."
            raise InputError(rule, f"sublayers {self.sublayers}", fix)
        super().__post_init__()
        if "rotary" in self.positions:
            require_pairs(self.sizes[0], self.rotary_frequencies)
        if self.sublayers != "in_turn" and self.feed_forwards != DENSE:
            raise InputError(
                "parallel sublayers are attention and a dense feed-forward network",
                f"sublayers {self.sublayers}, feed_forwards {','.join(self.feed_forwards)}",
                "Choose sublayers in_turn, or leave out feed_forwards.",
            )
        for layer in range(min(self.layers, self.period)):
            for name in ("mixers", "feed_forwards"):
                entry = self.choice(name, layer)
                if hasattr(entry, "require"):
                    entry.require(self.layer_config(layer))

    def owners(self, setting: Field) -> Mapping[str, Collection[str]]:
        """Like OwnedSettings.owners; some settings of attention also belong to certain mixers."""
        if setting.name in WITH_PROJECTIONS and not self.has_cross_attention:
            owners: dict[str, Collection[str]] = {"mixers": WITH_PROJECTIONS[setting.name]()}
            if getattr(self, setting.name) == "scaled_dot_product":
                owners["positions"] = POSITIONS.keys() - {"alibi"}  # which needs TiledAttention
                owners["key_value_heads"] = ["None", str(self.heads)]
            return owners
        return super().owners(setting)

    # Choices by layer

    @property
    def period(self) -> int:
        """The number of layers after which the choices repeat."""
        return math.lcm(*map(len, (self.mixers, self.feed_forwards, self._groups)))

    def choice(self, field: str, layer: int) -> Any:
        """Return the entry that the field `mixers` or `feed_forwards` names for a layer."""
        names = getattr(self, field)
        return self.registries[field][names[layer % len(names)]]

    def layer_config(self, layer: int) -> Any:
        """Return the config of one layer: its number of key and value heads, its frequencies."""
        frequencies = self.rotary_frequencies
        if not isinstance(self.key_value_heads, tuple) and len(frequencies) < 2:
            return self
        groups = self._groups[layer % len(self._groups)]
        if frequencies:
            frequencies = (frequencies[layer % len(frequencies)],)
        return replace(self, key_value_heads=groups, rotary_frequencies=frequencies)

    @property
    def _groups(self) -> tuple[int | None, ...]:
        """The numbers of key and value heads, which layers take in turn."""
        groups = self.key_value_heads
        return groups if isinstance(groups, tuple) else (groups,)

    @property
    def key_size(self) -> int:
        """d_k, the size of a query or a key."""
        return self.sizes[0]

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings, and of the vectors that become logits."""
        return self.embedding_size or self.d_model

    @cached_property
    def special(self) -> SpecialIds:  # type: ignore[override]
        """The special ids, such as padding."""
        ids = self.padding_id, self.start_id, self.end_id, self.unwritten, self.other_ends
        return SpecialIds(*ids)

    # The parts, each with new weights drawn from `rng`

    def new_norm(self, width: int) -> Layer:
        """Build a norm of vectors of this width."""
        entry = NORMALIZATIONS[self.normalization]
        own = {name: getattr(self, name) for name in own_names(entry)}
        return entry(width, self.epsilon, **own)

    def new_qk_norm(self, width: int) -> Layer | None:
        """Build the norm of each head's queries or keys; None if there is none."""
        return None if self.qk_norm == "none" else NORMALIZATIONS[self.qk_norm](width, self.epsilon)

    def new_activation(self) -> Layer:
        """Build the activation between the two matrices of the feed-forward network."""
        return ACTIVATIONS[self.activation]()

    def attention_positions(self) -> dict[str, Any]:
        """Build the part of self-attention, `rotary` or `bias`, that encodes positions, if any."""
        entry = POSITIONS_IN_ATTENTION.get(self.positions)
        return entry(self) if entry else {}

    @property
    def attention_class(self) -> Callable[..., Layer]:
        """The class that computes attention in each head."""
        return ATTENTIONS[self.attention_function]

    def self_attention(
        self, rng: np.random.Generator, layer: int = 0, causal: bool = False
    ) -> Layer:
        """Build the mixer of a layer; a `causal` one never sees later positions."""
        return self.choice("mixers", layer).build(self.layer_config(layer), rng, causal)

    def cross_attention(self, rng: np.random.Generator) -> Layer:
        return build_cross_attention(self, rng)

    def feed_forward(self, rng: np.random.Generator, layer: int = 0) -> Layer:
        return self.choice("feed_forwards", layer).build(self, rng)

    def residual(self, sublayer: Layer) -> Layer:
        kind, norms = RESIDUALS[self.norm]
        new = (self.new_norm(self.d_model) for _ in range(norms))
        return kind(sublayer, self.d_model, self.p_drop, *new)

    def encoder_layer(
        self, rng: np.random.Generator, layer: int = 0, causal: bool = False
    ) -> Layer:
        kind = getattr(self.choice("feed_forwards", layer), "EncoderLayer", EncoderLayer)
        mixer = self.residual(self.self_attention(rng, layer, causal))
        network = self.residual(self.feed_forward(rng, layer))
        if self.sublayers != "in_turn":
            return ParallelLayer(mixer, network, self.sublayers == "parallel_one_norm")
        return kind(mixer, network)

    def decoder_layer(self, rng: np.random.Generator, layer: int = 0) -> Layer:
        kind = getattr(self.choice("feed_forwards", layer), "DecoderLayer", DecoderLayer)
        sublayers = self.self_attention(rng, layer, causal=True), self.cross_attention(rng)
        return kind(*map(self.residual, (*sublayers, self.feed_forward(rng, layer))))

    def encoder(self, rng: np.random.Generator, causal: bool = False) -> Any:
        """Build the encoder. Raises InputError unless it is causal or every mixer looks ahead."""
        backward_looking = [name for name in self.mixers if not MIXERS[name].looks_ahead]
        if backward_looking and not causal:
            raise InputError(
                "every mixer of a bidirectional stack looks ahead",
                f"mixers {','.join(self.mixers)}: {backward_looking[0]} does not",
                "Choose another mixer, or a language model, which only looks back.",
            )
        layers = self._stack(self.encoder_layer(rng, n, causal) for n in range(self.layers))
        if self.norm == "post":
            return Encoder(layers)
        return NormedEncoder(layers, self.new_norm(self.d_model))

    def decoder(self, rng: np.random.Generator) -> Any:
        layers = self._stack(self.decoder_layer(rng, n) for n in range(self.layers))
        if self.norm == "post":
            return Decoder(layers)
        return NormedDecoder(layers, self.new_norm(self.d_model))

    def _stack(self, layers: Iterable[Any]) -> list[Layer]:
        """Let mixers share parameters, wrap layers if `checkpointing` is on, and return them."""
        layers = list(layers)
        for layer in layers[1:] if self.shared_layers else ():
            share_parameters(layer, layers[0])
        first: dict[Any, Any] = {}  # registry entry -> its first mixer in the stack
        for number, layer in enumerate(layers):
            entry, mixer = self.choice("mixers", number), layer.self_attention.sublayer
            entry.share(mixer, first.setdefault(entry, mixer))
        return [Checkpointed(layer) for layer in layers] if self.checkpointing else layers

    def embedding(
        self, vocabulary: int, rng: np.random.Generator, weight: Parameter | None = None
    ) -> Embedding:
        kind = Embedding if self.embedding_scale else UnscaledEmbedding
        return kind(vocabulary, self.embedding_width, rng, weight)

    def position_encoding(self, rng: np.random.Generator) -> Layer:
        return POSITIONS[self.positions](self.max_length, self.embedding_width, rng)

    def input_embedding(
        self, embedding: Embedding, rng: np.random.Generator, segments: int | None = None
    ) -> Any:
        if not (segments or self.embedding_norm or self.embedding_size):
            return super().input_embedding(embedding, rng)
        width = self.embedding_width
        table = UnscaledEmbedding(segments, width, rng) if segments else None
        norm = self.new_norm(width) if self.embedding_norm else None
        positions = self.position_encoding(rng)
        projection = Linear(width, self.d_model, rng) if self.embedding_size else None
        return RichInputEmbedding(embedding, positions, self.p_drop, table, norm, projection)

    def output(self, weight: Parameter) -> Layer:
        if self.logit_cap:
            return CappedOutputProjection(weight, self.logit_cap)
        return (BiasedOutputProjection if self.output_bias else OutputProjection)(weight)

    # The longest sequence, and lower bounds on the model's size

    @property
    def longest(self) -> int | None:
        """The maximum number of positions; None for no limit."""
        return self.max_length if self.positions == "learned" else self.rotary_longest

    @property
    def extrapolates(self) -> bool:
        """Whether the model is as good on longer sequences as on those that it was trained on.

        This holds with ALiBi, as its paper measured; and with rotary or no positions, if every
        mixer is local, because the model then sees no further than in training.
        """
        local = all(MIXERS[name].is_local for name in self.mixers)
        return self.positions == "alibi" or (self.positions in ("rotary", "none") and local)

    def entries(self, cross: bool = False) -> int:
        """Return a lower bound on a stack's parameters: the entries of matrices and positions."""

        def layer_entries(n: int) -> int:
            config = self.layer_config(n)
            parts = self.choice("mixers", n), self.choice("feed_forwards", n)
            entries = sum(part.entries(config) for part in parts)
            return entries + cross * matrix_entries(self, self.heads)

        entries = [layer_entries(n) for n in range(self.period)]
        positions: Any = self.longest if self.positions == "learned" else 0
        count = 1 if self.shared_layers else self.layers
        rounds, rest = divmod(count, self.period)  # no loop over `layers`: it may be huge
        return rounds * sum(entries) + sum(entries[:rest]) + self.embedding_width * positions

    @property
    def least_saved(self) -> int:
        """A lower bound on how many numbers a stack saves for backward at each position."""
        layer = 4 * self.d_model + self.d_ff
        if self.checkpointing:
            return self.layers * self.d_model + layer
        return self.layers * layer
