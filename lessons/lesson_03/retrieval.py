"""How the score function changes learning: models learn a dictionary, at several widths.

Words of one language look for their translations: word 7 fits word 7. A set holds eight words in
both languages, in the same order. Each key comes with a random value, which only the query of the
same word should get. So the right weights are the identity matrix; the model has no positions, so
it cannot know this.
"""

import functools

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from numformer import Adam, Embedding, Layer, Softmax, inference, pack
from numformer.arithmetic import matmul, transpose
from numformer.recurrence.scores import AdditiveScore, DotProductScore, MultiplicativeScore

WORDS, SET, D_V = 32, 8, 8
WIDTHS = 4, 16, 64, 256
STEPS, SETS = 100, 16  # each step on new sets
RATES = (0.003, 0.01, 0.03, 0.1)  # every score at every width gets the best of these

SCORES = {
    "scaled dot product": lambda width, rng: DotProductScore(),
    "dot product": lambda width, rng: DotProductScore(scaled=False),
    "multiplicative": lambda width, rng: MultiplicativeScore(width, width, rng),
    "additive": lambda width, rng: AdditiveScore(width, width, width, rng),
}


class Lookup(Layer):
    """Ids query (B, T), key (B, S); value (B, S, K_v) -> softmax(score) value (B, T, K_v).

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
    """-> words (B, S), all different within a set, and a value (B, S, K_v) for each."""
    words = rng.permuted(np.tile(np.arange(WORDS), (sets, 1)), axis=1)[:, :SET]
    return words, rng.standard_normal((sets, SET, D_V), dtype=np.float32)


def step(model: Lookup, adam: Adam, rate: float, words, value) -> float:
    """One step of training -> the mean squared error before it."""
    model.zero_grad()
    error = model.forward(words, words, value) - value
    model.backward(2 / error.size * error)
    adam.step(rate)
    return float((error * error).mean())


def accuracy(model: Lookup, words) -> float:
    """How often the right key has the largest score."""
    with inference():
        return (model.scores(words, words).argmax(axis=-1) == np.arange(SET)).mean()


@functools.cache
def run(score: str, width: int, rate: float, seed: int) -> tuple[float, float]:
    """Train a model -> the mean loss of its last ten steps, its accuracy on new sets."""
    of_weights, of_data, held_out = np.random.default_rng(seed).spawn(3)
    model = Lookup(SCORES[score](width, of_weights), width, of_weights)
    adam = Adam(pack(model))
    losses = [step(model, adam, rate, *draw(of_data, SETS)) for _ in range(STEPS)]
    return np.mean(losses[-10:]), accuracy(model, draw(held_out, 128)[0])


def compare(seeds=(0, 1, 2), widths=WIDTHS) -> dict[str, list[float]]:
    """The mean accuracy of each score by width, at the rate whose last losses are the lowest."""

    def best(score, width):
        rate = min(RATES, key=lambda rate: run(score, width, rate, seeds[0])[0])
        return round(float(np.mean([run(score, width, rate, seed)[1] for seed in seeds])), 4)

    # A second thread gains nothing on matrices this small, and beside other programs the two would
    # wait for each other most of the time.
    with threadpool_limits(1, "blas"):
        scores = tqdm(SCORES, "training", leave=False, disable=None)
        return {score: [best(score, width) for width in widths] for score in scores}
