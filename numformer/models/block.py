"""What models are composed of: an embedding of symbols, a block of sublayers, a tower of blocks."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from numformer import settings
from numformer.data.vocabulary import OURS, Special
from numformer.errors import InputError
from numformer.further_settings import choices, ids, special_id, unflagged
from numformer.layer import Array, Layer
from numformer.layers import (
    ACTIVATIONS,
    ATTENTIONS,
    MIXERS,
    NORMALIZATIONS,
    POSITIONS,
    POSITIONS_IN_ATTENTION,
    Checkpointed,
    CrossAttention,
    Dropout,
    Embedding,
    FeedForward,
    Memory,
    Mixer,
    Places,
    Residual,
)
from numformer.layers.attention import head_size
from numformer.layers.mixer import settings_of
from numformer.layers.rotary import require_pairs


@dataclass(frozen=True, kw_only=True)
class TowerConfig(*settings_of(MIXERS.values())):  # type: ignore[misc]
    """Every decision of the paper about blocks, as a field with the paper's choice as its default.

    Sections 3 and 5.4 of the paper, and Table 3 for what it varies. Raises InputError for values
    that do not fit together.
    """

    both_ways: ClassVar[bool] = True
    """Whether a tower of the model lets positions see later ones, so that its mixers look ahead."""

    d_model: int = settings.size(512, "width of every position's vector (3.1)")
    d_ff: int = settings.size(2048, "width inside the feed-forward network (3.3)")
    heads: int = settings.size(8, "attention heads, h (3.2.2)")
    d_k: int | None = settings.size(
        None, "size of a query or key; d_model / heads, 64 in the paper"
    )
    d_v: int | None = settings.size(None, "size of a value; d_model / heads, 64 in the paper")
    layers: int = settings.size(6, "layers of a tower: N of the encoder, and of the decoder (3.1)")
    mixers: str = choices(
        "attention", MIXERS, "what the layers have for self-attention, in turn: window,attention"
    )
    norm: str = settings.choice(
        "post", ("post", "pre"), "where the norm stands around a sublayer (3.1)"
    )
    normalization: str = settings.choice("layer", NORMALIZATIONS, "which norm it is (3.1)")
    attention_function: str = settings.choice(
        "scaled_dot_product", ATTENTIONS, "what each head computes (3.2.1)"
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
    max_length: int = settings.size(512, "longest sequence that learned positions can take")
    p_drop: float = settings.share(0.1, "dropout on sublayer outputs and embedding sums (5.4)")
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
    epsilon: float = unflagged(settings.above_zero(1e-5, "under the root of each norm"))
    embedding_scale: bool = unflagged(settings.switch(True, "sqrt(d_model) (3.4)"))
    embedding_norm: bool = unflagged(settings.switch(False, "of what blocks are given"))
    output_bias: bool = unflagged(settings.switch(False, "of the logits (3.4 has none)"))
    rotary_base: float = unflagged(settings.above_zero(1e4, "of rotary positions"))
    padding_id: int | None = unflagged(special_id(OURS.padding, ""))
    start_id: int | None = unflagged(special_id(OURS.start, ""))
    end_id: int | None = unflagged(special_id(OURS.end, ""))
    unwritten: str = unflagged(ids(",".join(map(str, OURS.unwritten)), "ids that no model writes"))
    other_ends: str = unflagged(ids("", "further ids that end a text"))

    def __post_init__(self):
        super().__post_init__()
        if self.d_k is None or self.d_v is None:
            head_size(self.d_model, self.heads)
        if "rotary" in self.positions_in_attention:
            require_pairs(self.size_of_key)
        for name in dict.fromkeys(self.mixers.split(",")):
            MIXERS[name].require(self)

    def mixer_of(self, layer: int) -> type[Mixer]:
        """What the layer of this number has where attention stands."""
        names = self.mixers.split(",")
        return MIXERS[names[layer % len(names)]]

    @property
    def size_of_key(self) -> int:
        """d_k, the size of a query or a key."""
        return self.d_k or head_size(self.d_model, self.heads)

    @cached_property
    def special(self) -> Special:
        """The ids that mean something else than a symbol."""
        unwritten, other_ends = (
            tuple(map(int, filter(None, listed.split(","))))
            for listed in (self.unwritten, self.other_ends)
        )
        return Special(self.padding_id, self.start_id, self.end_id, unwritten, other_ends)

    def new_norm(self, width: int) -> Layer:
        """A norm of vectors of this width."""
        return NORMALIZATIONS[self.normalization](width, self.epsilon)

    @property
    def of_attention(self) -> dict:
        """The settings of any attention, but for its sizes."""
        return dict(
            d_k=self.d_k,
            d_v=self.d_v,
            bias=self.attention_bias,
            p_drop=self.attention_dropout,
            attention=ATTENTIONS[self.attention_function],
        )

    @property
    def positions_in_attention(self) -> dict:
        """Further settings of self-attention, where positions come in there."""
        made = POSITIONS_IN_ATTENTION.get(self.positions)
        return made(self.rotary_base) if made else {}

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
        """The entries of a tower's matrices and of its table of positions; no tower has fewer."""
        in_turn = [Block.entries(self, n, cross) for n in range(self.mixers.count(",") + 1)]
        turns, rest = divmod(self.layers, len(in_turn))  # layers may be any number, so no loop
        of_blocks = turns * sum(in_turn) + sum(in_turn[:rest])
        return of_blocks + self.d_model * (self.longest or 0)

    @property
    def least_saved(self) -> int:
        """Numbers that every position at least saves in a tower, for backward."""
        of_layer = 4 * self.d_model + self.d_ff
        if self.checkpointing:
            return self.layers * self.d_model + of_layer
        return self.layers * of_layer


class InputEmbedding(Layer):
    """ids (B, T) -> x (B, T, D): embedding plus position, then dropout (3.4, 3.5, 5.4).

    Ids are host arrays at `places`. Where these leave padding out, x is (N, D). With a number of
    `segments` a vector is added that says which of them a position is in, (B, T), the first unless
    given (Devlin et al. 2019).
    """

    def __init__(
        self,
        config: TowerConfig,
        embedding: Embedding,
        rng: np.random.Generator,
        segments: int | None = None,
    ):
        self.embedding = embedding
        self.segments = Embedding(segments, config.d_model, rng, scaled=False) if segments else None
        self.positions = POSITIONS[config.positions](config.max_length, config.d_model, rng)
        self.norm = config.new_norm(config.d_model) if config.embedding_norm else None
        self.dropout = Dropout(config.p_drop)

    def forward(
        self, ids: Array, places: Places | None = None, segments: np.ndarray | None = None
    ) -> Array:
        places = places or Places.whole(*ids.shape)
        x = self.embedding.forward(places.pick(ids))
        if self.segments:
            segments = np.zeros_like(ids) if segments is None else segments
            x += self.segments.forward(places.pick(segments))
        x = self.positions.forward(x, places.of_rows)
        return self.dropout.forward(self.norm.forward(x) if self.norm else x)

    def backward(self, dx: Array) -> Any:
        dx = self.dropout.backward(dx)
        if self.norm:
            dx = self.norm.backward(dx)
        dx = self.positions.backward(dx)
        if self.segments:
            self.segments.backward(dx)
        return self.embedding.backward(dx)


class Block(Layer):
    """x (B, T, D) -> (B, T, D): self-attention, then feed-forward, each in a Residual (3.1).

    Where self-attention stands the config may name another mixer for the layer of this number.
    `reach` says who may see whom in x. With `cross` there is cross-attention to a memory (B, S, D)
    between the two, with a reach of its own, and `backward` returns dx, dmemory. A `past` is what
    is remembered where x continues earlier positions.
    """

    def __init__(
        self,
        config: TowerConfig,
        rng: np.random.Generator,
        cross: bool = False,
        causal: bool = False,
        layer: int = 0,
    ):
        mixer = config.mixer_of(layer)
        self.mixer = _residual(mixer.build(config, rng, causal), config)
        self.cross_attention = (
            _residual(CrossAttention.build(config, rng), config) if cross else None
        )
        self.feed_forward = _residual(_feed_forward(config, rng), config)

    @classmethod
    def entries(cls, config: TowerConfig, layer: int, cross: bool) -> int:
        """The entries of its matrices."""
        parts: list[Any] = [config.mixer_of(layer), *[CrossAttention] * cross, FeedForward]
        return sum(part.entries(config) for part in parts)

    def forward(
        self,
        x: Array,
        reach: Any = None,
        memory: Array | None = None,
        memory_reach: Any = None,
        past: Memory | None = None,
    ) -> Array:
        x = self.mixer.forward(x, reach, past)
        if self.cross_attention:
            x = self.cross_attention.forward(x, memory, memory_reach, past)
        return self.feed_forward.forward(x)

    def backward(self, dy: Array) -> Any:
        dx = self.feed_forward.backward(dy)
        if not self.cross_attention:
            return self.mixer.backward(dx)
        dx, dmemory = self.cross_attention.backward(dx)
        return self.mixer.backward(dx), dmemory


def _feed_forward(config: TowerConfig, rng: np.random.Generator) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        rng,
        activation=ACTIVATIONS[config.activation],
        p_drop=config.activation_dropout,
        bias=config.feed_forward_bias,
    )


def _residual(sublayer: Layer, config: TowerConfig) -> Residual:
    return Residual(sublayer, config.d_model, config.p_drop, config.norm, config.new_norm)


class Tower(Layer):
    """x (B, T, D) -> (B, T, D): N blocks, one on the other; the arguments are those of a Block.

    With norm "pre" one norm follows the last block, because there the sum of the residuals is not
    normalised; with norm "post" every block ends with its own. With `cross`, `backward` returns
    dx, dmemory. A tower that is not `causal` lets positions see later ones; InputError for a mixer
    that cannot. With `checkpointing` each block is computed again for its backward.
    """

    def __init__(
        self,
        config: TowerConfig,
        rng: np.random.Generator,
        cross: bool = False,
        causal: bool = False,
    ):
        blind = [name for name in config.mixers.split(",") if not MIXERS[name].looks_ahead]
        if blind and not causal:
            raise InputError(
                "in a tower that reads both ways every mixer looks ahead",
                f"mixers {config.mixers}, of which {blind[0]} does not",
                "Choose another mixer, or a model that only looks back, a language model.",
            )
        self.layers = [Block(config, rng, cross, causal, layer) for layer in range(config.layers)]
        self.checkpoints = [Checkpointed(block) for block in self.layers * config.checkpointing]
        firsts: dict[type, Any] = {}
        mixers: list[Any] = [block.mixer.sublayer for block in self.layers]
        for mixer in mixers:
            mixer.share(firsts.setdefault(type(mixer), mixer))
        self.norm = config.new_norm(config.d_model) if config.norm == "pre" else None
        self.cross = cross

    def forward(
        self,
        x: Array,
        reach: Any = None,
        memory: Array | None = None,
        memory_reach: Any = None,
        past: Memory | None = None,
    ) -> Array:
        for block in self.checkpoints or self.layers:
            x = block.forward(x, reach, memory, memory_reach, past)
        return self.norm.forward(x) if self.norm else x

    def backward(self, dy: Array) -> Any:
        dx, dmemory = self.norm.backward(dy) if self.norm else dy, 0
        for block in reversed(self.checkpoints or self.layers):
            if self.cross:
                dx, dmemory_of_block = block.backward(dx)
                dmemory += dmemory_of_block  # every block looks at the same memory
            else:
                dx = block.backward(dx)
        return (dx, dmemory) if self.cross else dx
