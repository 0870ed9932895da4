"""One word goes through a small Transformer, and its gradient all the way back to the table."""

import functools
from dataclasses import dataclass

import numpy as np

from lessons.lesson_09.bugs import CONFIG, SPECIALS
from numformer import CrossEntropy, PairBatch, Transformer, pack
from numformer.interception import intercept
from numformer.layer import mode

ALPHABET, WORD = "abcdef", "bad"
SYMBOLS = ["·", "⟨s⟩", "⟨end⟩", "?", *ALPHABET]


@dataclass(frozen=True)
class Walk:
    """A model with its initial weights, the loss of WORD, and the gradients on the way back."""

    model: Transformer
    loss: float
    dlogits: np.ndarray  # (T, V)
    handed: dict[str, tuple[np.ndarray, ...]]  # the gradients that a layer returned, by its name
    table: dict[str, np.ndarray]  # what each use of the table adds to its gradient (V, D)

    def length(self, name: str, number: int = 0) -> float:
        return float(np.linalg.norm(self.handed[name][number]))


def example() -> tuple[np.ndarray, ...]:
    """What the encoder reads, what the decoder reads, and what it has to say, each (1, T)."""
    ids = [SPECIALS + ALPHABET.index(letter) for letter in WORD]
    return PairBatch.of([(ids, ids[::-1])]).inputs


def loss_of(model: Transformer, objective: CrossEntropy) -> float:
    """The mean loss of the example without dropout."""
    source, inputs, right = example()
    with mode(training=False):
        return float(objective.forward(model.forward(source, inputs), right))


@functools.cache
def walk() -> Walk:
    model, objective = Transformer(CONFIG, 1), CrossEntropy()
    pack(model, np.float64)
    grad, handed, sums = model.source.embedding.weight.grad, {}, {}

    def around(path, backward, dy):
        gradients = backward(dy)
        there = gradients if isinstance(gradients, tuple) else (gradients,)
        handed[path] = tuple(x.copy() for x in there if x is not None)
        sums[path] = grad.copy()
        return gradients

    loss = loss_of(model, objective)
    dlogits = objective.backward()
    with mode(training=False), intercept(model.named_layers(), "backward", around):
        model.backward(dlogits)
    output, target, source = (sums[use] for use in ("output", "target", "source"))
    table = {"output": output, "target": target - output, "source": source - target}
    return Walk(model, loss, dlogits[0], handed, table)


def nudged(row: int, column: int, by: float) -> float:
    """The loss if `by` is added to one entry of the table."""
    model = walk().model
    entry = model.source.embedding.weight.data[row]
    before = entry[column]
    entry[column] += by
    try:
        return loss_of(model, CrossEntropy())
    finally:
        entry[column] = before
        model.clear_saved()
