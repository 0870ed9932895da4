"""The exercises of lesson 3: softmax, attention and other scores, backwards.

`lessons/kit/exercise.py` tells how they are declared, `lessons/kit/solution.py` what the notes are
for.
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
    # A term of the average. It comes from one weight of the row, and a weight of 0 has no say.
    counted = weights * dweights
    # The average of a row. Each row is a softmax of its own, and its weights add up to 1: ask along
    # which axis.
    average = counted.sum(axis=-1, keepdims=True)
    # The gradient of the scores. Try two cases: where a weight is 0, its score changes nothing; and
    # where the loss rises by the same with every weight of a row, no score matters. See “Through
    # the softmax”.
    dscores = weights * (dweights - average)
    return dscores


IDEAS = [
    Mistake(
        "dscores",
        lambda dweights, weights: dweights * weights * (1 - weights),
        "Each score is treated as if it moved its own weight alone. It moves all weights of its "
        "row, which keep adding up to 1. You have the diagonal of the Jacobian: look beside it.",
    ),
    Mistake(
        "dscores",
        lambda dweights: softmax(dweights),
        "You apply the softmax once more, to gradients. Backward does not repeat the step of "
        "forward: it multiplies by the slopes of this step, at the weights that forward found.",
    ),
    Mistake(
        "dscores",
        lambda dweights, weights: dweights - weights * dweights.sum(axis=-1, keepdims=True),
        "This is the backward of log-softmax, whose result is the logarithm of the weights. Here "
        "forward returned the weights themselves: one factor more comes in by the chain rule.",
    ),
    Mistake(
        "dscores",
        lambda dweights, weights: weights - dweights,
        "A difference from the weights is what softmax and cross-entropy give together, where the "
        "other is the target. Here no loss follows: the chain rule multiplies by the slopes.",
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
    # gradient passes the scale once, and that of the values never.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dquery. Query t was used in all of row t of query key^T, and each key says how far the query
    # moves its entry.
    dquery = dproducts @ key
    # dkey. Key s was used in all of column s of query key^T, and each query says how far the key
    # moves its entry.
    dkey = dproducts.swapaxes(-1, -2) @ query
    # dvalue. Value s was used by every query that took some of it, and collects from all of them.
    dvalue = weights.swapaxes(-1, -2) @ dblend
    # dgate. An entry of the gate met one entry of the blend. That was not saved: compute it again.
    dgate = doutput * (weights @ value)
    return dquery, dkey, dvalue, dgate


def attention(query, key, value, gate, mask):
    blend, weights = scaled_dot_product_attention(query, key, value, mask)
    return gate * blend, {"weights": weights}


UNMASKED = Mistake(
    "weights",
    lambda query, key: softmax(query @ transpose(key) / math.sqrt(query.shape[-1])),
    "The weights are computed once more, from queries and keys, but without the mask that forward "
    "had. Those that forward used are given to you: look at the arguments.",
)


def tempered_backward(dweights, query, key, tau, weights):
    """dweights (T, S) -> dtau, dbias.

    Forward was weights = softmax(scores + bias),
    scores = query key^T / (tau sqrt(d_k)), with
    query (T, d_k), key (S, d_k), bias (S,), weights (T, S),
    and tau one number.
    """
    dscores = softmax_backward(dweights, weights)
    # Each score without its bias. It is what tau divides.
    scores = query @ key.T / math.sqrt(query.shape[-1]) / tau
    # The slope of each score by tau. Write a score as c / tau: the larger tau is, the smaller the
    # score is, and the less it changes.
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
    # The slopes of the tanh. It has been taken already: they can be had from the hidden values.
    slopes = 1 - hidden**2
    # The gradient of the sums of a query and a key. Each went into its score by the tanh and v.
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
the gradient that arrives there. Every row is a softmax of its own; where a key is masked its weight
is 0. Nothing else is needed: the scores themselves do not occur in the result.""",
        solution=softmax_backward,
        forward=lambda scores, mask: (weights := softmax(scores, mask), {"weights": weights}),
        inputs=lambda n: dict(scores=(n.T, n.S), mask=a_mask(n.T, n.S)),
        mistakes=IDEAS,
        properties=[
            apart(0, "row"),
            zero_where("dscores", "weights", "A masked score changes nothing."),
            sums_to_0("dscores", "One number added to all scores of a row changes no weight."),
        ],
        done="A masked key gets the gradient 0, because its weight is 0. Attention's backward "
        "needs this function as one of its steps.",
    ),
    Exercise(
        lesson=3,
        title="Attention with a gate, backwards",
        task="""Some recent models multiply what attention has blended by a *gate*: how much of each
entry may go on. Write the whole backward: read forward upwards. The mask needs no line, because
what was masked has the weight 0. The arrays have four axes now, (batch, heads, T, S) for the
weights. You may call your `softmax_backward`, if it takes them all.""",
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
        "The library's backward does the same, with dropout instead of the gate.",
    ),
    Exercise(
        lesson=3,
        title="A temperature and a bias that are learned",
        task="""Some models learn how sharp their attention is: a temperature `tau` divides the
scores. And some learn a bias for each key: how much it is looked at, whatever the query. The lesson
derives neither gradient. You can. You may call your `softmax_backward`.""",
        solution=tempered_backward,
        forward=tempered,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), tau=np.array(1.7), bias=(n.S,)),
        mistakes=IDEAS,
        done="What is used in several places collects from all of them: the bias of a key from all "
        "queries, the temperature from all scores.",
    ),
    Exercise(
        lesson=3,
        title="Find the mistake",
        task="""The backward of an additive score, which the lesson does not derive. It has a
mistake that a published project had in another place. Its models trained, and its author saw
nothing: the optimizer was Adam. Find the line and mend it.""",
        solution=additive_backward,
        forward=additive,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), v=(n.K,)),
        called={"K": "the width"},
        to_find="dsums = dscores[..., None] * v * slopes / dscores.shape[0]",
        done="dquery and dkey were too small and pointed the right way, and Adam divides by a "
        "gradient's size: the loss hid the mistake, and numerical gradients show it.",
    ),
]
