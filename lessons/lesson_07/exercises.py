"""The exercises of lesson 7: one projection of the memory, distances, a mix of layers."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.softmax import softmax
from numformer.recurrence.scores import dot_product_score


def shared_backward(doutput, query, both, weights, memory, w_q, w):
    """doutput (T, K) -> dx, dmemory, dw.

    Forward was query = x w_q, both = memory w,
    output = weights both,
    weights = softmax(query both^T / sqrt(d_k)), with
    query (T, K), both (S, K), weights (T, S), memory (S, D),
    w_q and w (D, K).
    """
    # The gradient of the weights. Its entry (t, s) says how the loss grows as result t takes more
    # of value s.
    dweights = doutput @ both.T
    # The average of a row. Each entry counts by its weight.
    average = (weights * dweights).sum(axis=-1, keepdims=True)
    # The gradient of the scores. A row of weights adds up to 1: see lesson 3.
    dscores = weights * (dweights - average)
    # The gradient of query both^T. Forward scales these products once.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dx. Ask where x is used, and what it is multiplied by there.
    dx = dproducts @ both @ w_q.T
    # The gradient of both. Ask where it is used: as a key, and as a value.
    dboth = dproducts.T @ query + weights.T @ doutput
    # dmemory. Ask what the memory is multiplied by.
    dmemory = dboth @ w.T
    # dw. Every word of the memory used it.
    dw = memory.T @ dboth
    return dx, dmemory, dw


def shared(x, memory, w_q, w):
    query, both = x @ w_q, memory @ w
    output, weights = scaled_dot_product_attention(query, both, both)
    return output, dict(query=query, both=both, weights=weights)


def mixed_backward(dread, layers, shares):
    """dread (H, S, D) -> dlayers, dshares.

    Forward was read[b] = the sum of shares[b, l] layers[l]
    over l, for each block b, with
    layers (K, S, D), shares (H, K).
    """
    # dlayers. Ask which blocks read a layer, and how much of it.
    dlayers = np.tensordot(shares.T, dread, axes=1)
    # What each number of a layer does to the loss, through each block. Compare the axes.
    through = dread[:, None] * layers
    # dshares. One share was used for a whole layer.
    dshares = through.sum(axis=(-2, -1))
    return dlayers, dshares


def distance_bias_backward(dweights, weights):
    """dweights (T, S) -> dbias (T,).

    Forward was weights = softmax(scores), row by row, where
    scores[t, s] = query[t] key[s] / sqrt(d_k) + bias[t - s]
    for s <= t, and later keys were hidden; weights (T, S).
    """
    # The average of a row. Each entry counts by its weight.
    average = (weights * dweights).sum(axis=-1, keepdims=True)
    # The gradient of the scores. A row of weights adds up to 1: see lesson 3.
    dscores = weights * (dweights - average)
    # The distances. Query t stands t - s places after key s.
    offsets = np.arange(weights.shape[0])[:, None] - np.arange(weights.shape[1])
    # The choice of pairs. Entry (t, s, d) is 1 where query t and key s have the distance d.
    pairs = np.where(offsets[:, :, None] == np.arange(weights.shape[0]), 1.0, 0.0)
    # dbias. Ask which scores used the same entry of the bias, and where they stand in the matrix.
    dbias = (dscores[:, :, None] * pairs).sum(axis=(0, 1))
    return dbias


def distance_bias(query, key, bias):
    distances = np.arange(len(query))[:, None] - np.arange(len(key))
    scores = dot_product_score(query, key, 1 / math.sqrt(query.shape[-1])) + bias[distances.clip(0)]
    weights = softmax(scores, distances >= 0)
    return weights, {"weights": weights}


EXERCISES = [
    Exercise(
        title="One projection for keys and values",
        task="""Some models do with one matrix less: one projection of the memory serves as its keys
*and* as its values. Write the way back from the result of one head to the decoder's `x`, to the
`memory` and to that matrix. On the way lies attention's own backward, as in lesson 3.""",
        done="`both` is used as keys and as values. So its gradient is a sum of two, and this sum "
        "goes back through one matrix.",
        lesson=7,
        solution=shared_backward,
        forward=shared,
        inputs=lambda n: dict(x=(n.T, n.D), memory=(n.S, n.D), w_q=(n.D, n.K), w=(n.D, n.K)),
    ),
    Exercise(
        lesson=7,
        title="A bias for each distance",
        task="""Some models have no positional encoding. They learn one number for each distance,
`bias[d]`, and add it to every score whose query stands `d` places after its key. The same numbers
serve all queries. The lesson does not derive their gradient. You can.""",
        solution=distance_bias_backward,
        forward=distance_bias,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), bias=(n.T,)),
        mistakes=[
            Mistake(
                "dbias",
                lambda dscores: dscores.sum(axis=0),
                "You add up each column, as if each key had a bias of its own. But a column holds "
                "many distances.",
            ),
            Mistake(
                "dbias",
                lambda dscores: np.array(
                    [np.diagonal(dscores, -d).mean() for d in range(len(dscores))]
                ),
                "You take means. But one entry of the bias changes all these scores: take the sum.",
            ),
        ],
        done="One number is used along a whole diagonal, so its gradient is a sum over all of it. "
        "T5 (Raffel et al. 2020) has such biases, a set for each head.",
    ),
    Exercise(
        lesson=7,
        title="Find the mistake",
        task="""In the paper every block of the decoder reads the last layer of the encoder. Bapna
et al. (2018) let each block read a mix of all layers. Each block learns the shares of its own mix.
With this backward a model trains, and every shape is right. Find the wrong line and mend it.""",
        solution=mixed_backward,
        forward=lambda layers, shares: (np.tensordot(shares, layers, axes=1), {}),
        inputs=lambda n: dict(layers=(n.K, n.S, n.D), shares=(n.H, n.K)),
        called={
            "H": "the number of blocks",
            "S": "the number of words read",
            "K": "the number of layers",
        },
        to_find="dshares = through.mean(axis=(-2, -1))",
        done="One share scales a whole layer, so its gradient is a sum over all of it.",
    ),
]
