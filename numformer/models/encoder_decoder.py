"""The Transformer of section 3: encoder and decoder stacks, and the whole model."""

from collections import Counter

import numpy as np

from numformer.backend import array_module
from numformer.data.vocabulary import PADDING
from numformer.errors import InputError
from numformer.layer import Layer
from numformer.layers.attention import (
    CrossAttention,
    KeyValueCache,
    Mask,
    Places,
    SelfAttention,
    transpose,
)
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import OutputProjection
from numformer.layers.positional import LearnedPositions, SinusoidalPositions
from numformer.layers.residual import Residual
from numformer.models.config import Config


def padding_mask(ids):
    """ids (B, S) -> (B, 1, 1, S): no position may attend to padding (a mask on the keys)."""
    return (ids != PADDING)[:, None, None, :]


def causal_mask(length: int, xp=np):
    """(1, 1, T, T): position t may attend to positions up to and including t (section 3.2.3)."""
    return xp.tril(xp.ones((length, length), dtype=bool))[None, None]


def places_of(mask) -> Places | None:
    """The places of x's rows, where `mask` is a Mask that tells them."""
    return mask.queries if isinstance(mask, Mask) else None


def _attention(kind: type[Layer], config: Config, rng: np.random.Generator) -> Residual:
    attention = kind(
        config.d_model,
        config.heads,
        rng,
        config.d_k,
        config.d_v,
        config.attention_bias,
        config.attention_dropout,
    )
    return Residual(attention, config.d_model, config.p_drop, config.norm)


def _feed_forward(config: Config, rng: np.random.Generator) -> Residual:
    feed_forward = FeedForward(
        config.d_model, config.d_ff, rng, config.activation, config.activation_dropout
    )
    return Residual(feed_forward, config.d_model, config.p_drop, config.norm)


class EncoderLayer(Layer):
    """x (B, S, D), mask (B, 1, 1, S) -> (B, S, D): self-attention, then feed-forward (3.1)."""

    def __init__(self, config: Config, rng: np.random.Generator):
        self.self_attention = _attention(SelfAttention, config, rng)
        self.feed_forward = _feed_forward(config, rng)

    def forward(self, x, mask=None):
        return self.feed_forward.forward(self.self_attention.forward(x, mask))

    def backward(self, dy):
        return self.self_attention.backward(self.feed_forward.backward(dy))


class DecoderLayer(Layer):
    """x (B, T, D), memory (B, S, D) -> (B, T, D): self-, cross-attention, feed-forward (3.1).

    target_mask broadcasts to (B, H, T, T) and holds the causal mask, source_mask to (B, H, T, S).
    `backward` returns dx, dmemory.
    """

    def __init__(self, config: Config, rng: np.random.Generator):
        self.self_attention = _attention(SelfAttention, config, rng)
        self.cross_attention = _attention(CrossAttention, config, rng)
        self.feed_forward = _feed_forward(config, rng)

    def forward(self, x, memory, target_mask=None, source_mask=None, cache=None):
        self_cache, cross_cache = cache or (None, None)
        x = self.self_attention.forward(x, target_mask, self_cache)
        x = self.cross_attention.forward(x, memory, source_mask, cross_cache)
        return self.feed_forward.forward(x)

    def backward(self, dy):
        dx, dmemory = self.cross_attention.backward(self.feed_forward.backward(dy))
        return self.self_attention.backward(dx), dmemory


class Stack(Layer):
    """What encoder and decoder share: embedding, positions, dropout, N layers, final norm.

    With norm "pre" one LayerNorm follows the last layer, because there the sum of the residuals
    is not normalised; with norm "post" every layer ends with its own.
    """

    def __init__(self, config: Config, embedding: Embedding, layers: list[Layer], rng):
        self.embedding = embedding
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_length, config.d_model, rng)
        else:
            self.positions = SinusoidalPositions()
        self.dropout = Dropout(config.p_drop)
        self.layers = layers
        self.norm = LayerNorm(config.d_model) if config.norm == "pre" else None

    def embed(self, ids, offset: int = 0, places: Places | None = None):
        """ids (B, T) -> (B, T, D), or (N, D) at `places`: embedding plus position, then dropout.

        Sections 3.4, 3.5 and 5.4. `offset` is the position of the first id.
        """
        if places:
            ids, positions = ids.ravel()[places.real], places.positions
        else:
            positions = np.arange(offset, offset + ids.shape[1])
        x = self.positions.forward(self.embedding.forward(ids), positions)
        return self.dropout.forward(x)

    def embed_backward(self, dx) -> None:
        """dx as from `embed`: to the embedding's rows and, if learned, the positions'."""
        self.embedding.backward(self.positions.backward(self.dropout.backward(dx)))

    def finish(self, x):
        """x (B, T, D) -> (B, T, D): the final norm, where there is one."""
        return self.norm.forward(x) if self.norm else x

    def finish_backward(self, dx):
        """dx (B, T, D) -> (B, T, D)."""
        return self.norm.backward(dx) if self.norm else dx


class Encoder(Stack):
    """source ids (B, S), mask (B, 1, 1, S) -> memory (B, S, D); (M, D) with a Mask of places."""

    def __init__(self, config: Config, embedding: Embedding, rng: np.random.Generator):
        layers = [EncoderLayer(config, rng) for _ in range(config.layers)]
        super().__init__(config, embedding, layers, rng)

    def forward(self, source, mask=None):
        x = self.embed(source, places=places_of(mask))
        for layer in self.layers:
            x = layer.forward(x, mask)
        return self.finish(x)

    def backward(self, dmemory):
        dx = self.finish_backward(dmemory)
        for layer in reversed(self.layers):
            dx = layer.backward(dx)
        self.embed_backward(dx)
        return None


class DecoderCache:
    """The key-value caches of a decoder's layers, for decoding one position at a time."""

    def __init__(self, layers: list[tuple[KeyValueCache, KeyValueCache]]):
        self.layers = layers

    @property
    def length(self) -> int:
        """How many target positions have been decoded."""
        return self.layers[0][0].length

    def choose(self, batch_rows) -> None:
        """Keep the rows `batch_rows` (N,) of the batch, in this order, repeated ones included."""
        for layer in self.layers:
            for cache in layer:
                cache.choose(batch_rows)


class Decoder(Stack):
    """target ids (B, T), memory (B, S, D), masks as in DecoderLayer -> (B, T, D).

    With Masks of places memory is (M, D), and the result (N, D). With a cache the ids are those
    of the positions that follow the cached ones. `backward` returns dmemory, the sum over all
    layers.
    """

    def __init__(self, config: Config, embedding: Embedding, rng: np.random.Generator):
        layers = [DecoderLayer(config, rng) for _ in range(config.layers)]
        super().__init__(config, embedding, layers, rng)

    def forward(
        self,
        target,
        memory,
        target_mask=None,
        source_mask=None,
        cache: DecoderCache | None = None,
    ):
        offset = cache.length if cache else 0
        x = self.embed(target, offset, places_of(target_mask))
        caches = cache.layers if cache else [None] * len(self.layers)
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x = layer.forward(x, memory, target_mask, source_mask, layer_cache)
        return self.finish(x)

    def backward(self, dy):
        dx, dmemory = self.finish_backward(dy), 0
        for layer in reversed(self.layers):
            dx, dmemory_of_layer = layer.backward(dx)
            dmemory += dmemory_of_layer  # every layer looks at the same memory
        self.embed_backward(dx)
        return dmemory

    def new_cache(self, batch: int, length: int, memory_length: int) -> DecoderCache:
        """Empty caches for targets up to `length` and memories of `memory_length` positions."""
        return DecoderCache(
            [
                (
                    layer.self_attention.sublayer.new_cache(batch, length),
                    layer.cross_attention.sublayer.new_cache(batch, memory_length),
                )
                for layer in self.layers
            ]
        )


class Transformer(Layer):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V)   (Figure 1).

    With `skip_padding` only what stands for a real position is computed, and the logits are
    (N, V): those of the N real target positions, row after row. Without dropout, whose masks have
    other shapes then, the numbers are the same.

    Ids are host arrays of integers, padded with 0. `target` is the decoder's input: the start id
    and then the target without its last id; logits at position t predict the id at t + 1.
    `backward` takes dlogits and returns None, since ids have no gradient.

    `seed` determines the initial weights. Parameters are float32 on the host until `pack` says
    otherwise.
    """

    def __init__(self, config: Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config = config
        source = Embedding(config.source_vocabulary, config.d_model, rng)
        shared = source.weight if config.tying == "all" else None
        target = Embedding(config.target_vocabulary, config.d_model, rng, shared)
        own = Embedding(config.target_vocabulary, config.d_model, rng) if (
            config.tying == "none"
        ) else target  # fmt: skip
        self.encoder = Encoder(config, source, rng)
        self.decoder = Decoder(config, target, rng)
        self.output = OutputProjection(own.weight)

    def forward(self, source, target, skip_padding: bool = False):
        self._require_batch(source, "source")
        self._require_batch(target, "target")
        if len(target) != len(source):
            raise InputError(
                "source and target hold the same number of sequences",
                f"{len(source)} sources and {len(target)} targets",
                "Pass one target for each source.",
            )
        xp = array_module(self.output.weight.data)
        source_mask = cross_mask = xp.asarray(padding_mask(source))
        real_target = xp.asarray(padding_mask(target))
        target_mask = causal_mask(target.shape[1], xp) & real_target
        if skip_padding:
            for name, ids in (("source", source), ("target", target)):
                if not ids.any():
                    raise InputError(
                        f"with skip_padding some {name} position is no padding",
                        "only id 0",
                        "Leave skip_padding out.",
                    )
            sources, targets = Places(source, xp), Places(target, xp)
            cross_mask = Mask(transpose(real_target) & source_mask, targets, sources)
            source_mask = Mask(transpose(source_mask) & source_mask, sources, sources)
            target_mask = Mask(transpose(real_target) & target_mask, targets, targets)
        memory = self.encoder.forward(source, source_mask)
        x = self.decoder.forward(target, memory, target_mask, cross_mask)
        return self.output.forward(x)

    def backward(self, dlogits):
        dmemory = self.decoder.backward(self.output.backward(dlogits))
        self.encoder.backward(dmemory)
        return None

    def encode(self, source):
        """source ids (B, S) -> memory (B, S, D), source_mask (B, 1, 1, S)."""
        self._require_batch(source, "source")
        xp = array_module(self.output.weight.data)
        source_mask = xp.asarray(padding_mask(source))
        return self.encoder.forward(source, source_mask), source_mask

    def decode_next(self, ids, memory, source_mask, cache: DecoderCache):
        """The next position of every row: ids (B,) -> logits (B, V), given the cache before it."""
        x = self.decoder.forward(ids[:, None], memory, None, source_mask, cache)
        return self.output.forward(x)[:, 0]

    @staticmethod
    def _require_batch(ids, name: str):
        if not isinstance(ids, np.ndarray) or ids.ndim != 2 or 0 in ids.shape:
            raise InputError(
                f"{name} ids are a NumPy array (B, {name} length), neither of them 0",
                f"shape {ids.shape}" if isinstance(ids, np.ndarray) else type(ids).__name__,
                "Pad the sequences to one length (numformer.batching.pad).",
            )

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by part: embedding, positions, attention, feed_forward, norm, total.

        A tied embedding counts once; an output projection of its own counts as embedding.
        """
        marks = {
            ".norm.": "norm",
            "attention.sublayer.": "attention",
            "feed_forward.sublayer.": "feed_forward",
            ".positions.": "positions",
            "": "embedding",
        }
        counts = Counter(dict.fromkeys(marks.values(), 0))
        for name, parameter in self.named_parameters().items():
            part = next(part for mark, part in marks.items() if mark in name)
            counts[part] += parameter.size
        return {**counts, "total": counts.total()}
