"""What models are composed of: an embedding of symbols, a block of sublayers, a tower of blocks."""

from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.layer import Layer
from numformer.layers import (
    ACTIVATIONS,
    ATTENTIONS,
    NORMALIZATIONS,
    POSITIONS,
    POSITIONS_IN_ATTENTION,
    CrossAttention,
    Dropout,
    Embedding,
    FeedForward,
    Places,
    Residual,
    RotaryAttention,
    SelfAttention,
)
from numformer.layers.attention import head_size
from numformer.layers.rotary import require_pairs


@dataclass(frozen=True, kw_only=True)
class TowerConfig(settings.Settings):
    """Every decision of the paper about blocks, as a field with the paper's choice as its default.

    Sections 3 and 5.4 of the paper, and Table 3 for what it varies. Raises InputError for values
    that do not fit together.
    """

    d_model: int = settings.size(512, "width of every position's vector (3.1)")
    d_ff: int = settings.size(2048, "width inside the feed-forward network (3.3)")
    heads: int = settings.size(8, "attention heads, h (3.2.2)")
    d_k: int | None = settings.size(
        None, "size of a query or key; d_model / heads, 64 in the paper"
    )
    d_v: int | None = settings.size(None, "size of a value; d_model / heads, 64 in the paper")
    layers: int = settings.size(6, "layers of a tower: N of the encoder, and of the decoder (3.1)")
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

    def __post_init__(self):
        super().__post_init__()
        if self.d_k is None or self.d_v is None:
            head_size(self.d_model, self.heads)
        if POSITIONS_IN_ATTENTION.get(self.positions) is RotaryAttention:
            require_pairs(self.d_k or head_size(self.d_model, self.heads))

    @property
    def longest(self) -> int | None:
        """The most positions that a model can take, where there is a limit."""
        return self.max_length if self.positions == "learned" else None

    @property
    def least_parameters(self) -> int:
        """No model of this config has fewer: the entries of the matrices of one tower."""
        return self.least_parameters_of(towers=1, attentions=1, symbols=0)

    def least_parameters_of(self, towers: int, attentions: int, symbols: int) -> int:
        """The entries of the matrices of towers with so many attentions in a block, and of tables.

        No model has fewer. `symbols` counts the rows of all tables.
        """
        d_k_and_d_v = sum(size or self.d_model // self.heads for size in (self.d_k, self.d_v))
        widths = 2 * attentions * self.heads * d_k_and_d_v + 2 * towers * self.d_ff
        rows = symbols + towers * (self.longest or 0)
        return self.d_model * (rows + self.layers * widths)

    @property
    def least_saved(self) -> int:
        """Numbers that every position at least saves in a tower, for backward."""
        return self.layers * (4 * self.d_model + self.d_ff)


class InputEmbedding(Layer):
    """ids (B, T) -> x (B, T, D): embedding plus position, then dropout (3.4, 3.5, 5.4).

    Ids are host arrays. `places` are those of a padded batch; where they leave padding out,
    x is (N, D). `offset` is the position of the first id.
    """

    def __init__(self, config: TowerConfig, embedding: Embedding, rng: np.random.Generator):
        self.embedding = embedding
        self.positions = POSITIONS[config.positions](config.max_length, config.d_model, rng)
        self.dropout = Dropout(config.p_drop)

    def forward(self, ids, places: Places | None = None, offset: int = 0):
        positions = places.positions if places else offset + np.arange(ids.shape[1])
        x = self.embedding.forward(places.pick(ids) if places else ids)
        return self.dropout.forward(self.positions.forward(x, positions))

    def backward(self, dx):
        return self.embedding.backward(self.positions.backward(self.dropout.backward(dx)))


class Block(Layer):
    """x (B, T, D) -> (B, T, D): self-attention, then feed-forward, each in a Residual (3.1).

    With `cross` it has cross-attention to a memory (B, S, D) between them, and `backward` returns
    dx, dmemory. `mask` broadcasts to (B, H, T, T), `memory_mask` to (B, H, T, S).
    """

    def __init__(self, config: TowerConfig, rng: np.random.Generator, cross: bool = False):
        self.self_attention = _attention(SelfAttention, config, rng)
        self.cross_attention = _attention(CrossAttention, config, rng) if cross else None
        self.feed_forward = _residual(_feed_forward(config, rng), config)

    def forward(self, x, mask=None, memory=None, memory_mask=None, cache=None):
        x = self.self_attention.forward(x, mask, cache)
        if self.cross_attention:
            x = self.cross_attention.forward(x, memory, memory_mask, cache)
        return self.feed_forward.forward(x)

    def backward(self, dy):
        dx = self.feed_forward.backward(dy)
        if not self.cross_attention:
            return self.self_attention.backward(dx)
        dx, dmemory = self.cross_attention.backward(dx)
        return self.self_attention.backward(dx), dmemory


def _attention(sublayer: type[Layer], config: TowerConfig, rng: np.random.Generator) -> Residual:
    function = ATTENTIONS[config.attention_function]
    within = POSITIONS_IN_ATTENTION.get(config.positions)
    # A memory is another sequence: how far its positions are from those of x says nothing.
    of_positions = within if sublayer is SelfAttention else None
    attention = sublayer(
        config.d_model,
        config.heads,
        rng,
        config.d_k,
        config.d_v,
        config.attention_bias,
        config.attention_dropout,
        (lambda p_drop: of_positions(function(p_drop))) if of_positions else function,
    )
    return _residual(attention, config)


def _feed_forward(config: TowerConfig, rng: np.random.Generator) -> FeedForward:
    activation = ACTIVATIONS[config.activation]
    return FeedForward(
        config.d_model,
        config.d_ff,
        rng,
        activation,
        config.activation_dropout,
        config.feed_forward_bias,
    )


def _residual(sublayer: Layer, config: TowerConfig) -> Residual:
    normalization = NORMALIZATIONS[config.normalization]
    return Residual(sublayer, config.d_model, config.p_drop, config.norm, normalization)


class Tower(Layer):
    """x (B, T, D) -> (B, T, D): N blocks, one on the other; the arguments are those of a Block.

    With norm "pre" one norm follows the last block, because there the sum of the residuals is not
    normalised; with norm "post" every block ends with its own. With `cross`, `backward` returns
    dx, dmemory.
    """

    def __init__(self, config: TowerConfig, rng: np.random.Generator, cross: bool = False):
        self.layers = [Block(config, rng, cross) for _ in range(config.layers)]
        normalization = NORMALIZATIONS[config.normalization]
        self.norm = normalization(config.d_model) if config.norm == "pre" else None
        self.cross = cross

    def forward(self, x, mask=None, memory=None, memory_mask=None, cache=None):
        for block in self.layers:
            x = block.forward(x, mask, memory, memory_mask, cache)
        return self.norm.forward(x) if self.norm else x

    def backward(self, dy):
        dx, dmemory = self.norm.backward(dy) if self.norm else dy, 0
        for block in reversed(self.layers):
            if self.cross:
                dx, dmemory_of_block = block.backward(dx)
                dmemory += dmemory_of_block  # every block looks at the same memory
            else:
                dx = block.backward(dx)
        return (dx, dmemory) if self.cross else dx
