"""Token embeddings, and the projection of the output onto the vocabulary (section 3.4)."""

import math

import numpy as np

from numformer.arithmetic import matmul, rows, scatter_add
from numformer.backend import array_module, has_kernel, to_module
from numformer.errors import InputError, require_width
from numformer.layer import Array, Layer, Parameter
from numformer.paper.dropout import Dropout
from numformer.paper.linear import linear
from numformer.paper.masks import Places


@has_kernel
def embed(ids, weight):
    """ids (B, T), weight (V, D) -> x (B, T, D): x = weight[id] * sqrt(D)."""
    x = weight[ids]
    x *= math.sqrt(weight.shape[1])
    return x


@has_kernel
def embed_backward(dx, ids, dweight) -> None:
    """dx (B, T, D), ids (B, T): dweight[id] += dx * sqrt(D), for every occurrence of an id."""
    scatter_add(dweight, ids.ravel(), rows(dx) * math.sqrt(dx.shape[-1]))


def check_ids(ids, vocabulary: int) -> None:
    """Raise InputError unless `ids` is a host array of integers in [0, vocabulary)."""
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        received = f"dtype {ids.dtype}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InputError(
            "token ids are a NumPy array of integers",
            received,
            "Use numpy.array(ids) for lists, ids.astype(int) for whole-number floats and "
            "numformer.Vocabulary(symbols).encode for symbols.",
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise InputError(
            f"token ids are at least 0 and below the vocabulary's size {vocabulary}",
            f"ids from {ids.min()} to {ids.max()}",
            "Encode with the vocabulary for which the model was built.",
        )


class Embedding(Layer):
    """ids (B, T), integers -> (B, T, D): for each id its row of the weight, times sqrt(D).

    Initial weights are normal with standard deviation D^-0.5. Multiplied by sqrt(D), the embeddings
    have variance 1 (the sinusoids added to them have mean square 1/2). Used as a tied output
    projection, the same weights give logits of variance about 1. A `weight` that is passed in is
    shared, not copied.

    `forward` takes ids on the host, where their range can be checked without waiting for a GPU, and
    raises InputError for an id out of range, which a GPU would silently wrap around.
    """

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        rng: np.random.Generator | None = None,
        weight: Parameter | None = None,
    ):
        if weight is None:
            assert rng is not None
            weight = Parameter(rng.normal(0, d_model**-0.5, (vocabulary, d_model)))
        if weight.shape != (vocabulary, d_model):
            raise InputError(
                "a shared embedding weight has the shape (vocabulary, d_model) wherever it is used",
                f"{weight.shape} for ({vocabulary}, {d_model})",
                "Use one vocabulary for both, or choose another tying.",
            )
        self.weight = weight

    def forward(self, ids: Array) -> Array:
        return embed(self._save_ids(ids), self.weight.data)

    def _save_ids(self, ids):
        check_ids(ids, len(self.weight.data))
        ids = to_module(ids, array_module(self.weight.data))
        self.save(ids=ids)
        return ids

    def backward(self, dx: Array) -> None:
        embed_backward(dx, **self.pop_saved(), dweight=self.weight.grad)


def output_projection(x, weight):
    """x (..., D), weight E (V, D) -> logits (..., V): x E^T."""
    return linear(x, weight.T)


@has_kernel
def output_projection_backward(dlogits, x, weight):
    """dlogits (..., V) -> dx (..., D), dE (V, D): logits = x E^T."""
    return matmul(dlogits, weight), matmul(rows(dlogits).T, rows(x))


class OutputProjection(Layer):
    """x (..., D) -> logits (..., V): x E^T, the linear map before the softmax (section 3.4).

    E is (V, D), so it may be the Parameter of an Embedding. There is no bias.
    """

    def __init__(self, weight: Parameter):
        if len(weight.shape) != 2:
            raise InputError(
                "an output projection needs a weight of shape (V, D)",
                f"shape {weight.shape}",
                "Pass the Parameter of an Embedding.",
            )
        self.weight = weight

    def forward(self, x: Array) -> Array:
        require_width(self, x, self.weight.shape[1])
        self.save(x=x)
        return output_projection(x, self.weight.data)

    def backward(self, dlogits: Array) -> Array:
        x = self.pop_saved()["x"]
        dx, dweight = output_projection_backward(dlogits, x, self.weight.data)
        self.weight.grad += dweight
        return dx


class InputEmbedding(Layer):
    """ids (B, T) -> x (B, T, D): embedding plus position, then dropout (3.4, 3.5, 5.4).

    `ids` is a host array. `places` says which ids are real; with places.skip_padding, x is (N, D).
    """

    def __init__(self, embedding: Embedding, positions: Layer, p_drop: float = 0.0):
        self.embedding = embedding
        self.positions = positions
        self.dropout = Dropout(p_drop)

    def forward(self, ids: Array, places: Places | None = None) -> Array:
        places = places or Places.without_padding(*ids.shape)
        x = self.embedding.forward(places.pick(ids))
        return self.dropout.forward(self.positions.forward(x, places.row_positions))

    def backward(self, dx: Array) -> None:
        return self.embedding.backward(self.positions.backward(self.dropout.backward(dx)))
