"""Reading: a model computes the vectors of texts, and writes nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numformer.backend import to_host
from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.text_pipeline import OneVocabulary, Symbols
from numformer.interception import intercept
from numformer.layer import inference
from numformer.models import DualEncoder, Model
from numformer.paper.masks import Places

POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x: x.mean(axis=1),
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "max": lambda x: x.max(axis=1),
}
"""Ways to turn the vectors of a text's symbols (B, T, D) into one vector of the text (B, D)."""

LARGEST = 4096
"""The most symbols in a batch of several texts."""


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield batches of ids (B, T), with the numbers (B,) of their rows.

    The rows of a batch have one length, so there is no padding.
    """
    numbers_by_length: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        numbers_by_length[len(row)].append(number)
    for length, numbers in numbers_by_length.items():
        size = max(1, LARGEST // length)
        for first in range(0, len(numbers), size):
            batch = numbers[first : first + size]
            yield batch, np.array([rows[number] for number in batch])


def _read(read: Callable, ids: np.ndarray) -> np.ndarray:
    with inference():
        return to_host(read(ids, Places.without_padding(*ids.shape)))


def embed(
    model: Model, rows: Sequence[Sequence[int]], pooling: str, normalized: bool
) -> np.ndarray:
    """N rows of ids -> one vector each (N, D): the stack's output, pooled over the symbols.

    `normalized` vectors have length 1, so that the product of two is the cosine of their angle.
    Raises InputError for an unknown pooling. A DualEncoder's vectors are those that it compares.
    """
    if pooling not in POOLINGS:
        rule = f"pooling is one of {', '.join(POOLINGS)}"
        raise InputError(rule, repr(pooling), "Choose one of these.")
    read = model.embedded if isinstance(model, DualEncoder) else model.hidden
    vectors: dict[int, np.ndarray] = {}
    for numbers, ids in _batches(rows):
        vectors |= zip(numbers, POOLINGS[pooling](_read(read, ids)), strict=True)
    pooled = np.array([vectors[number] for number in range(len(rows))])
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True) if normalized else pooled


def hidden(model: Model, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """N rows of ids -> for each the vectors of its symbols (layers + 1, T, D).

    First comes the input of the stack, then the output of each layer. If the stack has a norm after
    its last layer, the norm's output replaces that layer's.
    """
    inputs: list[np.ndarray] = []

    def record(name, forward, x, *others):
        inputs.append(to_host(x))
        return forward(x, *others)

    states: dict[int, np.ndarray] = {}
    with intercept(dict(enumerate(model.tower.layers)), "forward", record):
        for numbers, ids in _batches(rows):
            last = _read(model.hidden, ids)
            states |= zip(numbers, np.stack([*inputs, last], axis=1), strict=True)
            inputs.clear()
    return [states[number] for number in range(len(rows))]


@dataclass(frozen=True)
class Reading(OneVocabulary):
    """Reads texts with a model that has no head: it writes nothing, but returns vectors.

    It reads the first `context` symbols of a text. `pooling`, one of POOLINGS, and `normalized` are
    the defaults of `embed`.
    """

    vocabulary: Vocabulary
    context: int
    pooling: str = "mean"
    normalized: bool = False

    def write(self, model: Model, texts: Sequence[Symbols]) -> list[list[str]]:
        """Raise InputError: the model has no head that computes symbols."""
        raise InputError(
            "a model that writes has a head",
            "a model without one",
            "Call embed(texts), which returns a vector for each text, or hidden(texts).",
        )

    def score(self, model, texts, written):
        """Raise InputError, as `write` does."""
        return self.write(model, texts)

    def maps(self, model, text, written=None):
        """Return attention maps for the first `context` symbols of the text."""
        text = text[: self.context]
        return text, [], self.self_attention_maps(model, text)

    def fits(self, config) -> bool:
        return super().fits(config) and self.pooling in POOLINGS and type(self.normalized) is bool
