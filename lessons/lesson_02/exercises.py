"""The exercises of lesson 2: three lookups, backwards."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.arithmetic import matmul
from numformer.later.activations import sigmoid
from numformer.paper.softmax import softmax
from numformer.recurrence.scores import dot_product_score


def soft_backward(doutput, query, keys, values, tau, weights):
    """doutput (d_v,) -> dquery, dkeys, dvalues.

    Forward was weights = softmax(keys query / tau),
    output = the sum of weights[s] values[s], with
    query (d_k,), keys (S, d_k), values (S, d_v), weights (S,),
    and tau one number.
    """
    # The gradient of the weights. It says for each weight how much the loss rises when more of its
    # value is taken. See “Through the blend”.
    dweights = values @ doutput
    # The average of the weights' gradient. Each entry counts by its weight.
    average = (weights * dweights).sum()
    # The gradient of the scores. One number added to all scores changes no weight. See “Through
    # the softmax”.
    dscores = weights * (dweights - average)
    # The gradient of the products of keys and query. Forward divides them once by the temperature.
    dproducts = dscores / tau
    # dquery. The query was used in every product, each time with another key.
    dquery = dproducts @ keys
    # dkeys. A key was used in its own product alone, and its factor there was the query.
    dkeys = dproducts[:, None] * query
    # dvalues. A value was used once, in the output, and counts there by its weight.
    dvalues = weights[:, None] * doutput
    return dquery, dkeys, dvalues


def lookup(query, keys, values, tau):
    weights = softmax(dot_product_score(query[None], keys, 1 / tau))
    return matmul(weights, values)[0], {"weights": weights[0]}


OWN_WEIGHT = Mistake(
    "dscores",
    lambda dweights, weights: dweights * weights * (1 - weights),
    "You treat each score as if it moved its own weight alone. It moves all weights, because they "
    "still have to add up to 1.",
)


def river_backward(doutput, query, keys, values, width, weights):
    """doutput (T,) -> dquery, dkeys, dwidth.

    Forward was scores[t, s] = -(query[t] - keys[s])^2 / (2 width^2),
    weights = softmax(scores), output = weights values, with
    query (T,), keys (S,), values (S,), weights (T, S),
    and width one number.
    """
    # The gradient of the weights. An output is a mixture of all values, by its row of the weights.
    dweights = doutput[:, None] * values
    # The average of a row. Each row is a softmax of its own.
    average = (weights * dweights).sum(axis=1, keepdims=True)
    # The gradient of the scores. One number added to a whole row of scores changes no weight.
    dscores = weights * (dweights - average)
    # How far each query is from each key. Its sign says on which side the key lies.
    away = query[:, None] - keys
    # What each score gives to the gradient of its key. A score is minus a square over twice the
    # square of the width: write down its slope, and see what becomes of the 2.
    pull = dscores * away / width**2
    # dquery. A query was used in its own row. When it moves away from a key, does that score rise?
    dquery = -pull.sum(axis=1)
    # dkeys. A key was used in its own column, with the sign opposite to the query's.
    dkeys = pull.sum(axis=0)
    # dwidth. There is one width for all scores. Write a score as a number over the square of the
    # width, and find its slope with respect to the width.
    dwidth = (pull * away).sum() / width
    return dquery, dkeys, dwidth


def river(query, keys, values, width):
    weights = softmax(-((query[:, None] - keys) ** 2) / (2 * width**2))
    return matmul(weights, values[:, None])[:, 0], {"weights": weights}


TWICE = Mistake(
    "pull",
    lambda dscores, away, width: dscores * away / (2 * width**2),
    "You kept the 2 in the denominator. But the slope of the square puts a 2 in the numerator, so "
    "the two cancel.",
)


def taps_backward(doutput, query, keys, values, tau, shares):
    """doutput (d_v,) -> dquery, dkeys, dvalues.

    Forward was shares = sigmoid(keys query / tau),
    output = the sum of shares[s] values[s], with
    query (d_k,), keys (S, d_k), values (S, d_v), shares (S,),
    and tau one number.
    """
    # The gradient of the shares. It says for each share how much the loss rises when more of its
    # value is taken.
    dshares = values @ doutput
    # The gradient of the scores. Each has a sigmoid of its own.
    dscores = dshares * (shares - shares**2)
    # The gradient of the products of keys and query. Forward divides them once by the temperature.
    dproducts = dscores / tau
    # dquery. The query was used in every product, each time with another key.
    dquery = dproducts @ keys
    # dkeys. A key was used in its own product alone, and its factor there was the query.
    dkeys = dproducts[:, None] * query
    # dvalues. A value was used once, in the output, and counts there by its share.
    dvalues = shares[:, None] * doutput
    return dquery, dkeys, dvalues


def taps(query, keys, values, tau):
    shares = sigmoid(keys @ query / tau)
    return shares @ values, {"shares": shares}


def sizes(n) -> dict:
    return dict(query=(n.K,), keys=(n.S, n.K), values=(n.S, n.K_v), tau=np.array(1.7))


EXERCISES = [
    Exercise(
        lesson=2,
        title="The soft lookup, backwards",
        task="""Write the whole backward of a soft lookup with one query and a temperature. The
lesson derives all of it entry by entry; here you need arrays. `values[s]` is a row, and
`weights[:, None]` makes a column of the weights.""",
        solution=soft_backward,
        forward=lookup,
        inputs=sizes,
        mistakes=[OWN_WEIGHT],
        done="With many queries, one in each row, these are the lines of attention.",
    ),
    Exercise(
        lesson=2,
        title="The river, backwards",
        task="""You set the width of the river's lookup with a slider. A gradient could learn the
width instead, and the hours too, if the clocks were wrong. The lesson derives neither gradient. Ask
where each number was used, and with which slope. There are many queries now, one for each row of
the weights.""",
        solution=river_backward,
        forward=river,
        inputs=lambda n: dict(query=(n.T,), keys=(n.S,), values=(n.S,), width=np.array(0.8)),
        mistakes=[OWN_WEIGHT, TWICE],
        done="Nadaraya and Watson had to choose their width. Your lookup can learn the width, and "
        "also where to ask.",
    ),
    Exercise(
        lesson=2,
        title="Find the mistake",
        task="""In another bar every jug has a tap: its share is the sigmoid of its score, and the
shares need not add up to 1. With the backward below, queries learn slowly at a high temperature and
jump about at a low one. The loss falls all the same. One line is wrong: find it and mend it.""",
        solution=taps_backward,
        forward=taps,
        inputs=sizes,
        to_find="dproducts = dscores / tau / tau",
        done="A gradient that is off by a factor points the right way, so the loss falls and hides "
        "the mistake. Numerical gradients do not hide it.",
    ),
]
