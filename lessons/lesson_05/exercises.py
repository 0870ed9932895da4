"""The exercises of lesson 5: what positions get, backwards."""

import numpy as np

from lessons.exercise import Exercise
from lessons.lesson_03.exercises import IDEAS
from numformer.layers.softmax import softmax


def turned_backward(dscores, u, v, first, second, frequency, places):
    """dscores (T, S) -> du, dv, dfrequency.

    Query t is one pair (u, v), turned by the angle
    frequency * places[t]; its turned pair is (p, q).
    Forward was scores_ts = p_t first_s + q_t second_s, with
    u, v, places (T,), first, second (S,),
    and frequency one number.
    """
    # The sines. Each query has an angle of its own.
    sin = np.sin(frequency * places)
    # The cosines. Each query has an angle of its own.
    cos = np.cos(frequency * places)
    # The gradient of p. It met the first number of every key.
    dp = dscores @ first
    # The gradient of q. It met the second number of every key.
    dq = dscores @ second
    # du. Ask where u was used: in both turned numbers. See “The way back: turn back”.
    du = dp * cos + dq * sin
    # dv. Ask where v was used: in both turned numbers. See “The way back: turn back”.
    dv = dq * cos - dp * sin
    # What p loses as the angle grows. The slope of a cosine is minus the sine.
    loss = u * sin + v * cos
    # What q gains as the angle grows. The slope of a sine is the cosine.
    gain = u * cos - v * sin
    # The gradient of each angle. It moved both turned numbers of its query.
    dangle = dq * gain - dp * loss
    # dfrequency. Every query used it, and the angle of each grew by its own place.
    dfrequency = (dangle * places).sum()
    return du, dv, dfrequency


def turned(u, v, first, second, frequency, places):
    pair = (u + 1j * v) * np.exp(1j * frequency * places)
    return np.outer(pair.real, first) + np.outer(pair.imag, second), {}


def sloped_backward(dweights, distance, weights):
    """dweights (H, T, S) -> dscores, dslopes.

    Forward was weights = softmax(scores - slopes distance),
    where every head has a slope of its own, with
    distance (T, S), weights (H, T, S).
    """
    # A term of the average. A weight of 0 has no say.
    counted = weights * dweights
    # The average of a row. Each row is a softmax of its own.
    average = counted.sum(axis=-1, keepdims=True)
    # dscores. What is subtracted from the scores does not depend on them.
    dscores = weights * (dweights - average)
    # What a slope does to the loss through each score. It lowers a score by the distance.
    through = -dscores * distance
    # dslopes. A slope was used in every score of its head, and in no other head.
    dslopes = through.sum(axis=(-2, -1))
    return dscores, dslopes


def sloped(scores, slopes, distance):
    weights = softmax(scores - slopes[:, None, None] * distance)
    return weights, {"weights": weights}


def placed_backward(dy, places, table):
    """dy (S, D) -> dtable.

    Forward was y_n = x_n + table[places[n]], with
    places (S,), table (T, D).
    """
    dtable = np.zeros(table.shape)
    for n in range(len(dy)):
        # dtable. A row of the table was used by every word at its place.
        dtable[places[n]] += dy[n]
    return dtable


def distances(T: int, S: int) -> np.ndarray:
    return abs(np.arange(T, dtype=float)[:, None] - np.arange(S))


EXERCISES = [
    Exercise(
        lesson=5,
        title="A pair, turned back, and a frequency that is learned",
        task="""The first two gradients stand in the lesson. The third does not: let the frequency,
by which the angle grows from place to place, be learned. How does the loss change with it?""",
        solution=turned_backward,
        forward=turned,
        inputs=lambda n: dict(u=(n.T,), v=(n.T,), first=(n.S,), second=(n.S,),
                              frequency=np.array(0.7), places=np.arange(n.T, dtype=float)),
        done="Far places turn the most, so they say the most about the frequency.",
    ),
    Exercise(
        lesson=5,
        title="Slopes that are learned",
        task="""The slopes of ALiBi are fixed. Let them be learned, one for each head: what is their
gradient? `distance` holds how many places query and key are apart. The softmax is lesson 3's.""",
        solution=sloped_backward,
        forward=sloped,
        inputs=lambda n: dict(scores=(n.H, n.T, n.S), slopes=(n.H,), distance=distances(n.T, n.S)),
        mistakes=IDEAS,
        done="A slope collects from all scores of its head; far keys count most.",
    ),
    Exercise(
        lesson=5,
        title="Find the mistake",
        task="""Learned positions, backwards. Models with this line learn, and their loss looks
well. Try two sentences by hand, as in the lesson, then mend it.""",
        solution=placed_backward,
        forward=lambda x, places, table: (x + table[places], {}),
        inputs=lambda n: dict(x=(n.S, n.D), places=np.arange(n.S) % 4 % n.T, table=(n.T, n.D)),
        called={"T": "the number of places", "S": "the number of words"},
        to_find="for n in range(len(dy)):\n    dtable[places[n]] = dy[n]",
        done="Each place keeps the gradient of all words that stand there. Before, the last "
        "sentence of a batch alone taught the table.",
    ),
]  # fmt: skip
