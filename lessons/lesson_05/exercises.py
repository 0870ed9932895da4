"""The exercises of lesson 5: gradients of positions that are learned."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.lesson_03.exercises import IDEAS
from numformer.paper.softmax import softmax


def turned_backward(dscores, first, second, p, q, places):
    """dscores (T, S) -> dfrequency.

    A query is one pair (u, v), turned by an angle into (p, q):
    p = u cos - v sin, q = u sin + v cos,
    scores_ts = p_t first_s + q_t second_s, with
    p, q, places (T,), first, second (S,).
    The angle of query t is frequency * places[t].
    """
    # The gradient of p. The scores multiply p by the first number of every key.
    dp = dscores @ first
    # The gradient of q. The scores multiply q by the second number of every key.
    dq = dscores @ second
    # The gradient of each angle. Take the derivatives of p and q by the angle: which arrays are
    # they?
    dangle = dq * p - dp * q
    # dfrequency. Every query used it, multiplied by its own place.
    dfrequency = (dangle * places).sum()
    return dfrequency


def turned(u, v, first, second, frequency, places):
    angle = frequency * places
    turned = (u + 1j * v) * np.exp(1j * angle)
    p, q = turned.real, turned.imag
    scores = np.outer(p, first) + np.outer(q, second)
    return scores, {"p": p, "q": q}


def sloped_backward(dweights, distance, weights):
    """dweights (H, T, S) -> dscores, dslopes.

    Forward was weights = softmax(scores - slopes distance),
    where every head has a slope of its own, with
    distance (T, S), weights (H, T, S).
    """
    # The average of a row. Each row is a softmax of its own.
    average = (weights * dweights).sum(axis=-1, keepdims=True)
    # dscores. The slopes play no part here: this is the softmax's own backward (lesson 3).
    dscores = weights * (dweights - average)
    # The gradient of a slope through each score. A score falls by the slope times the distance.
    through = -dscores * distance
    # dslopes. A slope was used in every score of its head, and in no other head.
    dslopes = through.sum(axis=(-2, -1))
    return dscores, dslopes


def sloped(scores, slopes, distance):
    weights = softmax(scores - slopes[:, None, None] * distance)
    return weights, {"weights": weights}


def squeezed_backward(dy, below, share, table):
    """dy (S, D) -> dtable.

    Forward was y_n = x_n + (1 - share_n) table[below_n]
    + share_n table[below_n + 1], with
    below (S,), share (S, 1), table (T, D).
    """
    # The gradient before the first word. Nothing has been collected yet.
    dtable = np.zeros(table.shape)
    for n in range(len(dy)):
        # dtable. A word between two places used the rows of both, each with its own share.
        dtable[below[n]] += (1 - share[n]) * dy[n]
        # dtable. A word between two places used the rows of both, each with its own share.
        dtable[below[n] + 1] += share[n] * dy[n]
    return dtable


def squeezed(x, below, share, table):
    return x + (1 - share) * table[below] + share * table[below + 1], {}


EXERCISES = [
    Exercise(
        lesson=5,
        title="A frequency that is learned",
        task="""The frequencies of rotary positions are fixed. Let one be learned: what is its
gradient? `first` and `second` are the two numbers of each key.""",
        solution=turned_backward,
        forward=turned,
        inputs=lambda n: dict(
            u=(n.T,),
            v=(n.T,),
            first=(n.S,),
            second=(n.S,),
            frequency=np.array(0.7),
            places=np.arange(float(n.T)),
        ),
        done="Queries at far places turn the most, so they say the most about the frequency.",
    ),
    Exercise(
        lesson=5,
        title="Slopes that are learned",
        task="""The slopes of ALiBi are fixed. Let them be learned, one for each head: what is their
gradient? `distance` counts the places from query to key. The softmax is the one of lesson 3.""",
        solution=sloped_backward,
        forward=sloped,
        inputs=lambda n: dict(
            scores=(n.H, n.T, n.S),
            slopes=(n.H,),
            distance=abs(np.arange(n.T)[:, None] - np.arange(float(n.S))),
        ),
        mistakes=IDEAS,
        done="A slope collects from all scores of its head; far keys count most.",
    ),
    Exercise(
        lesson=5,
        title="Find the mistake",
        task="""Squeeze a longer text into the places that were trained: a word between two places
gets a part of the row below and a part of the row above. (Chen et al. 2023 do this with rotary
positions.) This backward is right for one sentence that is not squeezed, but wrong for others.""",
        solution=squeezed_backward,
        forward=squeezed,
        inputs=lambda n: dict(
            x=(n.S, n.D),
            below=np.arange(n.S) % (n.T - 1),
            share=np.linspace(0.1, 0.9, n.S)[:, None],
            table=(n.T, n.D),
        ),
        called={"T": "the number of places", "S": "the number of words"},
        to_find="for n in range(len(dy)):\n"
        "    dtable[below[n]] = dtable[below[n]] + (1 - share[n]) * dy[n]\n"
        "    dtable[below[n] + 1] = share[n] * dy[n]",
        done="Each row collects from all words that used it, as the row below or the row above.",
    ),
]
