"""The settings of the paper's model, and methods that build its parts from them (section 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from numformer import settings
from numformer.errors import InputError
from numformer.layer import Layer, Parameter
from numformer.paper.attention import CrossAttention, SelfAttention, head_size
from numformer.paper.decoder import Decoder, DecoderLayer
from numformer.paper.embedding import Embedding, InputEmbedding, OutputProjection
from numformer.paper.encoder import Encoder, EncoderLayer
from numformer.paper.feed_forward import FeedForward
from numformer.paper.positions import LearnedPositions, SinusoidalPositions
from numformer.paper.residual import Residual
from numformer.symbols import DEFAULT_IDS, SPECIAL

POSITIONS: dict[str, Callable[..., Layer]] = {
    "sinusoidal": lambda max_length, d_model, rng: SinusoidalPositions(),
    "learned": LearnedPositions,
}


@dataclass(frozen=True, kw_only=True)
class LayerConfig(settings.Settings):
    """The settings of encoder and decoder layers. Raises InputError for inconsistent values."""

    d_model: int = settings.size(512, "width of every position's vector (3.1)")
    d_ff: int = settings.size(2048, "width inside the feed-forward network (3.3)")
    heads: int = settings.size(8, "attention heads, h (3.2.2)")
    d_k: int | None = settings.size(
        None, "size of a query or key; default d_model / heads, 64 in the paper"
    )
    d_v: int | None = settings.size(None, "size of a value; default d_model / heads, as for d_k")
    layers: int = settings.size(6, "layers of each stack, encoder and decoder: N (3.1)")
    positions: str = settings.choice(
        "sinusoidal", POSITIONS, "how positions are encoded (3.5; learned: Table 3, row E)"
    )
    max_length: int = settings.size(512, "longest sequence that learned positions can take")
    p_drop: float = settings.share(0.1, "dropout on sublayer outputs and embedding sums (5.4)")

    def __post_init__(self):
        super().__post_init__()
        _ = self.sizes  # raises InputError if d_k and d_v do not follow from d_model and heads

    @property
    def sizes(self) -> tuple[int, int]:
        """d_k and d_v."""
        default = None if self.d_k and self.d_v else head_size(self.d_model, self.heads)
        return self.d_k or default, self.d_v or default  # type: ignore[return-value]

    # Methods that build a part, with new weights drawn from `rng`

    def self_attention(self, rng: np.random.Generator) -> Layer:
        """Build multi-head attention of a sequence to itself (3.2.3)."""
        return SelfAttention(self.d_model, self.heads, rng, *self.sizes)

    def cross_attention(self, rng: np.random.Generator) -> Layer:
        """Build multi-head attention of the decoder to the encoder's output (3.2.3)."""
        return CrossAttention(self.d_model, self.heads, rng, *self.sizes)

    def feed_forward(self, rng: np.random.Generator) -> Layer:
        """Build the feed-forward network (3.3)."""
        return FeedForward(self.d_model, self.d_ff, rng)

    def residual(self, sublayer: Layer) -> Layer:
        """Wrap a sublayer in a residual connection, with norm and dropout (3.1, 5.4)."""
        return Residual(sublayer, self.d_model, self.p_drop)

    def encoder_layer(self, rng: np.random.Generator) -> Layer:
        """Build a layer of the encoder (3.1)."""
        attention = self.self_attention(rng)
        return EncoderLayer(self.residual(attention), self.residual(self.feed_forward(rng)))

    def decoder_layer(self, rng: np.random.Generator) -> Layer:
        """Build a layer of the decoder (3.1)."""
        attentions = self.self_attention(rng), self.cross_attention(rng)
        return DecoderLayer(*map(self.residual, (*attentions, self.feed_forward(rng))))

    def encoder(self, rng: np.random.Generator) -> Layer:
        """Build the encoder's stack of N layers (3.1)."""
        return Encoder(self.encoder_layer(rng) for _ in range(self.layers))

    def decoder(self, rng: np.random.Generator) -> Layer:
        """Build the decoder's stack of N layers (3.1)."""
        return Decoder(self.decoder_layer(rng) for _ in range(self.layers))

    def embedding(
        self, vocabulary: int, rng: np.random.Generator, weight: Parameter | None = None
    ) -> Embedding:
        """Build the embedding of symbols (3.4), with a new weight or a shared one."""
        return Embedding(vocabulary, self.d_model, rng, weight)

    def position_encoding(self, rng: np.random.Generator) -> Layer:
        """Build the layer that adds positions to the embeddings (3.5)."""
        return POSITIONS[self.positions](self.max_length, self.d_model, rng)

    def input_embedding(self, embedding: Embedding, rng: np.random.Generator) -> Layer:
        """Build the layer that turns ids into a stack's input (3.4, 3.5, 5.4)."""
        return InputEmbedding(embedding, self.position_encoding(rng), self.p_drop)

    def output(self, weight: Parameter) -> Layer:
        """Build the projection onto the symbols (3.4)."""
        return OutputProjection(weight)


@dataclass(frozen=True, kw_only=True)
class Config(LayerConfig):
    """The settings of the paper's Transformer; the defaults are its base model.

    The two vocabulary sizes depend on the task. The other fields follow section 3 and Table 3 of
    the paper. Raises InputError for inconsistent values.
    """

    special: ClassVar[Any] = DEFAULT_IDS
    """The special ids, such as padding, that stand for no symbol."""

    source_vocabulary: int = settings.vocabulary(len(SPECIAL))
    target_vocabulary: int = settings.vocabulary(len(SPECIAL))
    tying: str = settings.choice(
        "all", ("all", "inputs", "target", "none"), "which embeddings share one weight (3.4)"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.tying in ("all", "inputs") and self.source_vocabulary != self.target_vocabulary:
            raise InputError(
                f"tying {self.tying} needs one vocabulary for source and target",
                f"sizes {self.source_vocabulary} and {self.target_vocabulary}",
                'Use one vocabulary for both, or set tying to "target" or "none".',
            )

    @classmethod
    def base(cls, vocabulary: int, **changes) -> Self:
        """Return the config of the base model (Table 3, first row), with one shared vocabulary."""
        return cls(source_vocabulary=vocabulary, target_vocabulary=vocabulary, **changes)

    @classmethod
    def big(cls, vocabulary: int, **changes) -> Self:
        """Return the config of the big model (Table 3, last row), with one shared vocabulary."""
        big = dict(d_model=1024, d_ff=4096, heads=16, p_drop=0.3)
        return cls.base(vocabulary, **(big | changes))

    def embeddings(self, rng: np.random.Generator) -> tuple[Embedding, Embedding, Embedding]:
        """Build the embeddings of source, target and output, which may share one weight (3.4)."""
        source = self.embedding(self.source_vocabulary, rng)
        shared = source.weight if self.tying in ("all", "inputs") else None
        output = target = self.embedding(self.target_vocabulary, rng, shared)
        if self.tying in ("inputs", "none"):
            output = self.embedding(self.target_vocabulary, rng)
        return source, target, output
