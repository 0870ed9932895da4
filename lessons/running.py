"""The running example: one sentence in one trained model, at which every lesson looks.

It is what the home page shows: the translator of lesson 11 reads ENGLISH, and GERMAN is the right
translation. All numbers come from the library's forward and backward.
"""

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lessons.lesson_11 import small
from lessons.lesson_11.explorer import spelled
from lessons.opening import ENGLISH, GERMAN, RATE
from numformer import Adam, PairBatch, pad_sources
from numformer.data.subwords import _segment
from numformer.data.vocabulary import END, START
from numformer.interception import intercept
from numformer.later.attention.tiles import attention_weights
from numformer.layer import FlatParameters, mode
from numformer.layer import pack as packed
from numformer.models.model import Objective
from numformer.paper.softmax import softmax
from numformer.paper.writing import greedy


def ids(text: str) -> list[int]:
    """The ids of a text's pieces, as the page cuts it: a comma and a full stop are words."""
    ranks = {symbol: number for number, symbol in enumerate(small.symbols("translator"))}
    pieces = (
        _segment(f"▁{word}", ranks, itertools.repeat(False))
        for word in re.sub("[,.]", r" \g<0>", text.lower()).split()
    )
    return [ranks[piece] for piece in itertools.chain.from_iterable(pieces)]


def names(numbers: Iterable[int]) -> list[str]:
    """Ids as the page shows them: a hyphen stands before a piece that continues a word."""
    symbols = [small.symbols("translator")[number] for number in numbers]
    return [spelled(symbol) if symbol[0] in "▁<" else f"-{symbol}" for symbol in symbols]


def text(numbers: Iterable[int]) -> str:
    """Ids as a text."""
    symbols = [small.symbols("translator")[number] for number in numbers if number != END]
    return "".join(symbols).replace("▁", " ").replace(" .", ".").strip()


SOURCE, TARGET = ids(ENGLISH), ids(GERMAN)
READ, READS, SAYS = names([*SOURCE, END]), names([START, *TARGET]), names([*TARGET, END])
"""What the encoder reads, what the decoder reads, and what it has to say."""
HARD = SAYS.index("bä")  # the position at which the model fails


@dataclass(frozen=True)
class Step:
    """A forward and a backward of the model on the pair, before any training on it.

    `into`, `out`, `back` and `on` have, by a layer's name, the first array that its forward got,
    what that returned, the gradient that its backward got, and the first one that it returned.
    `weights` has the attention weights (H, T, S) of each attention, `table` what each use of the
    table of embeddings adds to its gradient (d_vocab, D).
    """

    objective: Objective
    flat: FlatParameters
    loss: float
    into: dict[str, np.ndarray]
    out: dict[str, np.ndarray]
    back: dict[str, np.ndarray]
    on: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    table: dict[str, np.ndarray]

    @property
    def chances(self) -> np.ndarray:
        """The probabilities (T, d_vocab) that the model gives the pieces at each position."""
        return softmax(self.out["output"])


def _first(arrays) -> np.ndarray:
    """The first of the arrays that a layer returns, without the axis of the batch."""
    array = np.array(arrays[0] if isinstance(arrays, tuple) else arrays)
    return array[0] if array.ndim > 2 and len(array) == 1 else array


@functools.cache
def step() -> Step:
    """The step with the stored weights."""
    objective = small.model("translator").objective()
    flat, model = packed(objective.model, np.float64), objective.model
    grad = model.source.embedding.weight.grad
    into, out, back, on, sums = {}, {}, {}, {}, {}

    def forward(name, call, *inputs):
        into[name] = _first(inputs[0])
        result = call(*inputs)
        out[name] = _first(result)
        return result

    def backward(name, call, gradient):
        back[name] = _first(gradient)
        result = call(gradient)
        on[name], sums[name] = _first(result), grad.copy()
        return result

    layers = dict(model.named_layers())
    with (
        mode(training=False, saving=True),
        intercept(layers, "forward", forward),
        intercept(layers, "backward", backward),
    ):
        loss = float(objective.forward(*PairBatch.of([(SOURCE, TARGET)]).inputs))
        weights = {
            name.removesuffix(".sublayer"): attention_weights(layer)[0]
            for name, layer in layers.items()
            if name.endswith("attention.sublayer")
        }
        objective.backward()
    output, target, source = (sums[use] for use in ("output", "target", "source"))
    table = {"output": output, "decoder": target - output, "encoder": source - target}
    return Step(objective, flat, loss, into, out, back, on, weights, table)


@functools.cache
def reached() -> np.ndarray:
    """(T, S, D): the gradients that the loss of each German piece sends to the English ones.

    The batch is the pair once for each German piece; in each copy the loss of one of them counts.
    """
    count, found = len(SAYS), []
    objective = small.model("translator").objective()
    packed(objective.model, np.float64)

    def backward(_, call, gradient):
        found.append(call(gradient))
        return found[0]

    with (
        mode(training=False, saving=True),
        intercept({"": objective.model.encoder}, "backward", backward),
    ):
        objective.forward(*PairBatch.of([(SOURCE, TARGET)] * count).inputs)
        counts = count * np.eye(count).reshape(-1, 1)
        objective.model.backward(objective.loss.backward() * counts)
    return found[0].reshape(count, len(READ), -1)


@functools.cache
def written(english: str, positions: bool = True) -> str:
    """What the model writes for a text, with the positions of the English words or without."""
    model = small.model("translator")
    cut = {} if positions else {"positions": model.source.positions}
    with intercept(cut, "forward", lambda name, call, x, *places: x):
        (found,) = greedy(model, pad_sources([ids(english)]), small.LENGTH)
    return text(found)


@functools.cache
def training() -> list[tuple[float, str]]:
    """The loss, and what the model writes, before each step of Train on the home page until the
    translation is right.
    """
    objective, found = small.model("translator").objective(), []
    adam, source = Adam(packed(objective.model, np.float64)), pad_sources([SOURCE])
    while not found or found[-1][1] != GERMAN:
        objective.zero_grad()
        with mode(training=False, saving=True):
            loss = float(objective.forward(*PairBatch.of([(SOURCE, TARGET)]).inputs))
            objective.backward()
        (writes,) = greedy(objective.model, source, small.LENGTH)
        found.append((loss, text(writes)))
        adam.step(RATE)
    return found
