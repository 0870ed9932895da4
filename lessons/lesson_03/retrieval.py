"""What the score function does to learning: a dictionary to be learned, at several widths.

Words of one language ask for their translations: word 7 fits word 7. The model starts with one
random vector for each word of each language and has to find out. A set holds eight words in both
languages, and behind each key stands a random value that only this word's query should get. So the
right weights are the identity matrix; without positions the model cannot see that they always are.

It is one task of many: where one trained matrix serves all keys, the ranking can be another.
"""

import functools
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from numformer import Adam, Embedding, Layer, Softmax, inference, pack
from numformer.backend import matmul
from numformer.layers.attention import transpose
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import softmax, softmax_backward

WORDS, SET, D_V = 32, 8, 8
STEPS, SETS = 100, 16  # each step on new sets
RATES = (0.003, 0.01, 0.03, 0.1)  # every score at every width gets the best of these

SCORES = {
    "scaled dot product": lambda width, rng: DotProductScore(),
    "dot product": lambda width, rng: DotProductScore(scaled=False),
    "multiplicative": lambda width, rng: MultiplicativeScore(width, width, rng),
    "additive": lambda width, rng: AdditiveScore(width, width, width, rng),
}


class Lookup(Layer):
    """query (B, T), key (B, S) of words, value (B, S, K_v) -> softmax(score) value (B, T, K_v).

    An Embedding's entries begin with mean 0 and variance 1, as section 3.2.1 assumes of Q and K.
    """

    def __init__(self, score: Layer, width: int, rng: np.random.Generator):
        self.query = Embedding(WORDS, width, rng)
        self.key = Embedding(WORDS, width, rng)
        self.score = score
        self.softmax = Softmax()

    def scores(self, query, key):
        return self.score.forward(self.query.forward(query), self.key.forward(key))

    def forward(self, query, key, value):
        weights = self.softmax.forward(self.scores(query, key))
        self.save(weights=weights, value=value)
        return matmul(weights, value)

    def backward(self, doutput):
        saved = self.pop_saved()
        dvalue = matmul(transpose(saved["weights"]), doutput)  # output = weights V
        dweights = matmul(doutput, transpose(saved["value"]))  # output = weights V
        dquery, dkey = self.score.backward(self.softmax.backward(dweights))
        self.key.backward(dkey)
        self.query.backward(dquery)
        return dvalue


def draw(rng: np.random.Generator, sets: int):
    """-> words (B, S), those of a set all different, and a value (B, S, K_v) for each."""
    words = rng.permuted(np.tile(np.arange(WORDS), (sets, 1)), axis=1)[:, :SET]
    return words, rng.standard_normal((sets, SET, D_V), dtype=np.float32)


def step(model: Lookup, adam: Adam, rate: float, words, value) -> float:
    """One step of training -> the mean squared error before it."""
    model.zero_grad()
    error = model.forward(words, words, value) - value
    model.backward(2 / error.size * error)
    adam.step(rate)
    return float((error * error).mean())


def look(model: Lookup, words, value):
    """-> the scores' spread, the medians of the largest weight and of |dscores|, the accuracy."""
    with inference():
        scores = model.scores(words, words)
    weights = softmax(scores)
    doutput = 2 / D_V * (matmul(weights, value) - value)  # of each query's own mean squared error
    dscores = softmax_backward(matmul(doutput, transpose(value)), weights)
    typical = np.median([weights.max(axis=-1), np.linalg.norm(dscores, axis=-1)], axis=(1, 2))
    return scores.std(), *typical, (scores.argmax(axis=-1) == np.arange(SET)).mean()


@dataclass(frozen=True)
class Result:
    """One score function at one width, trained from several seeds; all but `accuracy` are means."""

    score: str
    width: int
    rate: float
    losses: np.ndarray  # (STEPS,): the mean squared errors of the steps
    spread: float  # before the first step: the standard deviation of the scores,
    largest: float  # a typical query's largest weight,
    gradient: float  # and the length of its dscores
    accuracy: np.ndarray  # (seeds,): after the last, how often the right key has the largest weight


@functools.cache
def run(build, width: int, rate: float, seed: int) -> tuple[list[float], tuple, tuple]:
    """Train a model -> its losses, what `look` sees before the first step and after the last."""
    of_weights, of_data, held_out = np.random.default_rng(seed).spawn(3)
    model = Lookup(build(width, of_weights), width, of_weights)
    adam, new_sets = Adam(pack(model)), draw(held_out, 128)
    before = look(model, *new_sets)
    losses = [step(model, adam, rate, *draw(of_data, SETS)) for _ in range(STEPS)]
    return losses, before, look(model, *new_sets)


def train(score: str, build, width: int, rate: float, seeds) -> Result:
    losses, before, after = zip(*(run(build, width, rate, seed) for seed in seeds), strict=True)
    at_the_start = np.mean(before, axis=0)[:3].tolist()
    accuracy = np.array(after)[:, 3]
    return Result(score, width, rate, np.mean(losses, axis=0), *at_the_start, accuracy)


def compare(widths=(4, 16, 64, 256), seeds=(0, 1, 2), scores=SCORES) -> list[Result]:
    """Train each score at each width with every rate -> the Results with the lowest last losses.

    A rate whose last losses from the first seed are more than twice the lowest is not tried again.
    """

    def last(result):
        return result.losses[-10:].mean()

    def best(*choice):
        first = [train(*choice, rate, seeds[:1]) for rate in RATES]
        least = min(map(last, first))
        rates = [result.rate for result in first if last(result) <= 2 * least]
        return min((train(*choice, rate, seeds) for rate in rates), key=last)

    # A second thread gains nothing on matrices this small, and beside other programs the two would
    # wait for each other most of the time.
    choices = [(score, scores[score], width) for width in widths for score in scores]
    with threadpool_limits(1, "blas"):
        return [best(*choice) for choice in tqdm(choices, "training", leave=False, disable=None)]
