"""Embeddings without a factor, or with segments and a norm; an output projection with a bias."""

import numpy as np

from numformer.arithmetic import rows, scatter_add, sum_rows
from numformer.later.activations import Cap
from numformer.layer import Array, Layer, Parameter
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding, InputEmbedding, OutputProjection
from numformer.paper.masks import Places


class UnscaledEmbedding(Embedding):
    """ids (B, T) -> (B, T, D): the row of each id, without the paper's factor sqrt(D)."""

    def forward(self, ids: Array) -> Array:
        return self.weight.data[self._save_ids(ids)]

    def backward(self, dx: Array) -> None:
        scatter_add(self.weight.grad, self.pop_saved()["ids"].ravel(), rows(dx))
        return None


class RichInputEmbedding(InputEmbedding):
    """ids, segments (B, T) -> x (B, T, D): the sum of three embeddings, then a norm and dropout.

    The symbol, its segment and its position each have an embedding (Devlin et al. 2019).
    The layers `segments` (the embedding of segments), `norm` and `projection` (from a smaller width
    of the embeddings to D: Lan et al. 2020, section 3.1) are optional. In forward, the default
    segment is 0.
    """

    def __init__(
        self,
        embedding: Embedding,
        positions: Layer,
        p_drop: float = 0.0,
        segments: Embedding | None = None,
        norm: Layer | None = None,
        projection: Layer | None = None,
    ):
        self.embedding = embedding
        self.segments = segments
        self.positions = positions
        self.norm = norm
        self.dropout = Dropout(p_drop)
        self.projection = projection

    def forward(
        self, ids: Array, places: Places | None = None, segments: np.ndarray | None = None
    ) -> Array:
        places = places or Places.without_padding(*ids.shape)
        x = self.embedding.forward(places.pick(ids))
        if self.segments:
            segments = np.zeros_like(ids) if segments is None else segments
            x += self.segments.forward(places.pick(segments))
        x = self.positions.forward(x, places.row_positions)
        x = self.dropout.forward(self.norm.forward(x) if self.norm else x)
        return self.projection.forward(x) if self.projection else x

    def backward(self, dx: Array) -> None:
        if self.projection:
            dx = self.projection.backward(dx)
        dx = self.dropout.backward(dx)
        if self.norm:
            dx = self.norm.backward(dx)
        dx = self.positions.backward(dx)
        if self.segments:
            self.segments.backward(dx)
        return self.embedding.backward(dx)


class CappedOutputProjection(OutputProjection):
    """x (..., D) -> logits (..., V): x E^T, capped at +-`limit` (Gemma Team 2024)."""

    def __init__(self, weight: Parameter, limit: float):
        super().__init__(weight)
        self.cap = Cap(limit)

    def forward(self, x: Array) -> Array:
        return self.cap.forward(super().forward(x))

    def backward(self, dlogits: Array) -> Array:
        return super().backward(self.cap.backward(dlogits))


class BiasedOutputProjection(OutputProjection):
    """x (..., D) -> logits (..., V): x E^T + b, where b starts at 0."""

    def __init__(self, weight: Parameter):
        super().__init__(weight)
        self.bias = Parameter(np.zeros(len(weight.data)))

    def forward(self, x: Array) -> Array:
        logits = super().forward(x)
        logits += self.bias.data
        return logits

    def backward(self, dlogits: Array) -> Array:
        self.bias.grad += sum_rows(dlogits)  # b is added at every position
        return super().backward(dlogits)
