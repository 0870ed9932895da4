"""Token embeddings, multiplied by sqrt(d_model) (section 3.4)."""

import math

import numpy as np

from numformer.backend import array_module, rows, scatter_add
from numformer.errors import InputError
from numformer.layer import Array, Layer, Parameter


def embed(ids, weight):
    """ids (B, T), weight (V, D) -> x (B, T, D): x = weight[id] * sqrt(D)."""
    x = weight[ids]
    x *= math.sqrt(weight.shape[1])
    return x


def embed_backward(dx, ids, dweight) -> None:
    """dx (B, T, D), ids (B, T): dweight[id] += dx * sqrt(D), once for each time that id occurs."""
    scatter_add(dweight, ids.ravel(), rows(dx) * math.sqrt(dx.shape[-1]))


def check_ids(ids, vocabulary: int) -> None:
    """Raise InputError unless `ids` is a host array of integers in [0, vocabulary)."""
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        received = f"dtype {ids.dtype}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InputError(
            "token ids are a NumPy array of integers",
            received,
            "Take numpy.array(ids) of lists, ids.astype(int) of whole numbers, and what "
            "numformer.Vocabulary(symbols).encode gives of symbols.",
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise InputError(
            f"token ids are at least 0 and below the vocabulary's size {vocabulary}",
            f"ids from {ids.min()} to {ids.max()}",
            "Encode with the vocabulary that the model was built for.",
        )


class Embedding(Layer):
    """ids (B, T) of integers -> (B, T, D): the row of each id, times sqrt(D).

    Initial values are normal with standard deviation D^-0.5: after the factor sqrt(D) the
    embeddings have variance 1 (the sinusoids added to them have mean square 1/2), and as a tied
    output projection the same weights give logits of variance about 1. A given `weight` is
    shared, not copied. Later models leave out the factor: `scaled` False gives the rows alone.

    `forward` takes ids on the host, where it can check their range without waiting for a GPU (an
    index out of range wraps silently on one), and raises InputError for an id out of range.
    """

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        rng: np.random.Generator | None = None,
        weight: Parameter | None = None,
        scaled: bool = True,
    ):
        self.scaled = scaled
        if weight is None:
            assert rng is not None
            weight = Parameter(rng.normal(0, d_model**-0.5, (vocabulary, d_model)))
        if weight.shape != (vocabulary, d_model):
            raise InputError(
                "a shared embedding has the shape (vocabulary, d_model) of both its users",
                f"{weight.shape} for ({vocabulary}, {d_model})",
                "Give both sides one vocabulary, or choose another tying.",
            )
        self.weight = weight

    def forward(self, ids: Array) -> Array:
        check_ids(ids, len(self.weight.data))
        ids = array_module(self.weight.data).asarray(ids)
        self.save(ids=ids)
        return embed(ids, self.weight.data) if self.scaled else self.weight.data[ids]

    def backward(self, dx: Array) -> None:
        if self.scaled:
            embed_backward(dx, **self.pop_saved(), dweight=self.weight.grad)
        else:
            scatter_add(self.weight.grad, self.pop_saved()["ids"].ravel(), rows(dx))
        return None
