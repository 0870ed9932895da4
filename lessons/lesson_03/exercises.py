"""The exercises of lesson 3: softmax, attention and other scores, backwards.

`lessons/kit/exercise.py` explains how exercises are declared, and `lessons/kit/solution.py` what
the notes are for.
"""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.explanations import apart, sums_to_0, zero_where
from lessons.kit.solution import Mistake
from numformer.arithmetic import transpose
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.softmax import softmax
from numformer.recurrence.scores import dot_product_score


def a_mask(*shape: int) -> np.ndarray:
    """One query does not see the last key, and one sees none at all."""
    mask = np.ones(shape, bool)
    mask[..., 0, -1] = mask[..., 1, :] = False
    return mask


def softmax_backward(dweights, weights):
    """dweights, weights (T, S) -> dscores (T, S).

    Forward was weights = softmax(scores), row by row.
    """
    # A term of the average. It comes from one weight of the row, and a weight of 0 adds nothing.
    counted = weights * dweights
    # The average of a row. Each row is a softmax of its own, and its weights add up to 1: ask along
    # which axis they do.
    average = counted.sum(axis=-1, keepdims=True)
    # The gradient of the scores. Try two cases. Where a weight is 0, its score changes nothing.
    # Where every weight of a row raises the loss by the same amount, no score of the row matters.
    # See “Through the softmax”.
    dscores = weights * (dweights - average)
    return dscores


IDEAS = [
    Mistake(
        "dscores",
        lambda dweights, weights: dweights * weights * (1 - weights),
        "You treat each score as if it moved its own weight alone. It moves all weights of its "
        "row, which still have to add up to 1. You have the diagonal of the Jacobian; the other "
        "entries are missing.",
    ),
    Mistake(
        "dscores",
        lambda dweights, weights: weights * (dweights - dweights.mean(axis=-1, keepdims=True)),
        "You subtract a plain mean, in which every key counts alike. A key whose weight is 0 would "
        "count as much as one that takes nearly everything.",
    ),
    Mistake(
        "dscores",
        lambda dweights: softmax(dweights),
        "You apply the softmax once more, to gradients. Backward does not repeat the step of "
        "forward: it multiplies by the slopes of that step, at the weights that forward found.",
    ),
    Mistake(
        "dscores",
        lambda dweights, weights: dweights - weights * dweights.sum(axis=-1, keepdims=True),
        "This is the backward of log-softmax, whose result is the logarithm of the weights. Here "
        "forward returned the weights themselves: the chain rule brings in one more factor.",
    ),
    Mistake(
        "dscores",
        lambda dweights, weights: weights - dweights,
        "Weights minus target is the gradient of softmax and cross-entropy together. Here there "
        "is no target: the chain rule multiplies by the slopes of the softmax.",
    ),
]


def attention_backward(doutput, query, key, value, gate, weights):
    """doutput (..., T, d_v) -> dquery, dkey, dvalue, dgate.

    Forward was weights = softmax(query key^T / sqrt(d_k)),
    output = gate * (weights value), entry by entry, with
    query (..., T, d_k), key (..., S, d_k), value (..., S, d_v),
    gate (..., T, d_v), weights (..., T, S).
    """
    # The gradient of the blend. The gate let a share of each entry through: let the gradient
    # through in the same way.
    dblend = doutput * gate
    # The gradient of the weights. Its entry (t, s) says how much the loss rises when query t takes
    # more of value s. See “Through a matrix product”.
    dweights = dblend @ value.swapaxes(-1, -2)
    dscores = softmax_backward(dweights, weights)
    # The gradient of query key^T. Forward scales these products once, before the softmax: so their
    # gradient is scaled once, and the gradient of the values never.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dquery. Query t was used in all of row t of query key^T, and each key says how far the query
    # moves the entry of this key.
    dquery = dproducts @ key
    # dkey. Key s was used in all of column s of query key^T, and each query says how far the key
    # moves the entry of this query.
    dkey = dproducts.swapaxes(-1, -2) @ query
    # dvalue. Value s was used by every query that took some of it, and collects from all of them.
    dvalue = weights.swapaxes(-1, -2) @ dblend
    # dgate. An entry of the gate met one entry of the blend. Forward did not save the blend:
    # compute it again.
    dgate = doutput * (weights @ value)
    return dquery, dkey, dvalue, dgate


def attention(query, key, value, gate, mask):
    blend, weights = scaled_dot_product_attention(query, key, value, mask)
    return gate * blend, {"weights": weights}


UNMASKED = Mistake(
    "weights",
    lambda query, key: softmax(query @ transpose(key) / math.sqrt(query.shape[-1])),
    "You compute the weights again, from queries and keys, but without the mask that forward had. "
    "The weights that forward used are among the arguments.",
)


def tempered_backward(dweights, query, key, tau, weights):
    """dweights (T, S) -> dtau, dbias.

    Forward was weights = softmax(scores + bias),
    scores = query key^T / (tau sqrt(d_k)), with
    query (T, d_k), key (S, d_k), bias (S,), weights (T, S),
    and tau one number.
    """
    dscores = softmax_backward(dweights, weights)
    # Each score without its bias. Tau divides this part alone.
    scores = query @ key.T / math.sqrt(query.shape[-1]) / tau
    # The slope of each score with respect to tau. Write a score as c / tau: the larger tau is, the
    # smaller the score is, and the less it changes.
    slopes = -scores / tau
    # dtau. There is one tau for all scores.
    dtau = (dscores * slopes).sum()
    # dbias. A key has one bias, and every query adds it to its score for this key.
    dbias = dscores.sum(axis=0)
    return dtau, dbias


def tempered(query, key, tau, bias):
    scores = dot_product_score(query, key, 1 / (tau * math.sqrt(query.shape[-1])))
    weights = softmax(scores + bias)
    return weights, {"weights": weights}


def additive_backward(dscores, v, hidden):
    """dscores (T, S) -> dquery, dkey, dv.

    Forward was hidden[t, s] = tanh(query[t] + key[s]),
    scores = hidden v, with
    query (T, d), key (S, d), v (d,), hidden (T, S, d).
    """
    # The slopes of the tanh. Forward has taken the tanh already: its slopes follow from the hidden
    # values.
    slopes = 1 - hidden**2
    # The gradient of the sums of a query and a key. Each sum reached its score through the tanh and
    # v.
    dsums = dscores[..., None] * v * slopes
    # dquery. A query was added once for every key.
    dquery = dsums.sum(axis=1)
    # dkey. A key was added once for every query.
    dkey = dsums.sum(axis=0)
    # dv. There is one v for all pairs.
    dv = (dscores[..., None] * hidden).sum(axis=(0, 1))
    return dquery, dkey, dv


def additive(query, key, v):
    hidden = np.tanh(query[:, None] + key)
    return hidden @ v, {"hidden": hidden}


EXERCISES = [
    Exercise(
        lesson=3,
        title="The softmax, backwards",
        task="""Write the gradient of the softmax. `weights` is what forward returned, `dweights`
its gradient. Every row is a softmax of its own; where a key is masked its weight is 0. You need
nothing else: the scores themselves do not occur in the result.""",
        solution=softmax_backward,
        forward=lambda scores, mask: (weights := softmax(scores, mask), {"weights": weights}),
        inputs=lambda n: dict(scores=(n.T, n.S), mask=a_mask(n.T, n.S)),
        mistakes=IDEAS,
        properties=[
            apart(0, "row"),
            zero_where("dscores", "weights", "A masked score changes nothing."),
            sums_to_0("dscores", "One number added to all scores of a row changes no weight."),
        ],
        done="A masked score gets the gradient 0, because its weight is 0. This function is one "
        "step of attention's backward.",
    ),
    Exercise(
        lesson=3,
        title="Attention with a gate, backwards",
        task="""Some recent models multiply what attention has blended by a *gate*, which says how
much of each entry may go on. Write the whole backward: go through forward from the last step to the
first. The mask needs no line, because masked keys have the weight 0. The arrays have four axes now,
(batch, heads, T, S) for the weights. You may call your `softmax_backward`, if it works with four
axes.""",
        solution=attention_backward,
        forward=attention,
        inputs=lambda n: dict(
            query=(n.B, n.H, n.T, n.K),
            key=(n.B, n.H, n.S, n.K),
            value=(n.B, n.H, n.S, n.K_v),
            gate=(n.B, n.H, n.T, n.K_v),
            mask=a_mask(n.B, 1, n.T, n.S),
        ),
        mistakes=[*IDEAS, UNMASKED],
        properties=[apart(0, "sequence"), apart(1, "head")],
        done="That is the whole way back through attention, with masked keys and with T unlike S. "
        "The library's backward is the same without the gate.",
    ),
    Exercise(
        lesson=3,
        title="A temperature and a bias that are learned",
        task="""Some models learn how sharp their attention is: a temperature `tau` divides the
scores. And some learn a bias for each key: it makes all queries look at this key more, or less. The
lesson derives neither gradient. You can. You may call your `softmax_backward`.""",
        solution=tempered_backward,
        forward=tempered,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), tau=np.array(1.7), bias=(n.S,)),
        mistakes=IDEAS,
        done="A number that is used in several places collects gradient from all of them: the bias "
        "of a key from all queries, the temperature from all scores.",
    ),
    Exercise(
        lesson=3,
        title="Find the mistake",
        task="""This is the backward of an additive score, which the lesson does not derive. One
line has a mistake that a published project made in another place. The project's models trained, and
its author noticed nothing, because the optimizer was Adam. Find the line and mend it.""",
        solution=additive_backward,
        forward=additive,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), v=(n.K,)),
        called={"K": "the width"},
        to_find="dsums = dscores[..., None] * v * slopes / dscores.shape[0]",
        done="dquery and dkey pointed the right way and were only too small. Adam divides by a "
        "gradient's size, so the loss hid the mistake. Numerical gradients show it.",
    ),
]
