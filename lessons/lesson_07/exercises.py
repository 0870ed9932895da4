"""The exercises of lesson 7: cross-attention backwards, and a bias that tells distances."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.layers.attention import scaled_dot_product_attention
from numformer.layers.scores import dot_product_score
from numformer.layers.softmax import softmax


def backward_through_cross_attention(
    doutput, query, key, value, weights, q_weight, k_weight, v_weight
):
    """doutput (T, d_v) -> dx, dmemory.

    Forward was query = x q_weight, key = memory k_weight,
    value = memory v_weight, output = weights value,
    weights = softmax(query key^T / sqrt(d_k)), with
    query (T, d_k), key (S, d_k), value (S, d_v), weights (T, S),
    q_weight, k_weight (D, d_k), v_weight (D, d_v).
    """
    # The gradient of the weights. Its entry (t, s) says what more of value s does to result t.
    dweights = doutput @ value.T
    # The average of a row. Each entry counts by its weight.
    average = (weights * dweights).sum(axis=-1, keepdims=True)
    # The gradient of the scores. A row of weights adds up to 1: see lesson 3.
    dscores = weights * (dweights - average)
    # The gradient of query key^T. Forward scales these products once.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dx. Ask where x is used, and what it is multiplied by there.
    dx = dproducts @ key @ q_weight.T
    # dmemory. Ask where the memory is used, and what it is multiplied by there. See “The way back,
    # to both sides”.
    dmemory = dproducts.T @ query @ k_weight.T + weights.T @ doutput @ v_weight.T
    return dx, dmemory


def cross_attention(x, memory, q_weight, k_weight, v_weight):
    query, key, value = x @ q_weight, memory @ k_weight, memory @ v_weight
    output, weights, _ = scaled_dot_product_attention(query, key, value)
    return output, dict(query=query, key=key, value=value, weights=weights)


def memory_backward(dread, memory, weights):
    """dread (H, S, K) -> dmemory, dweights.

    Forward was read[b] = memory weights[b] in each block b,
    its keys and values side by side, with
    memory (S, D), weights (H, D, K), H the number of blocks.
    """
    # The gradient through each block. What was the memory multiplied by there?
    through = dread @ weights.swapaxes(-1, -2)
    # dmemory. Ask how often it was used: see “From every block”.
    dmemory = through.sum(axis=0)
    # dweights. Each block has its own, which every word of the memory used.
    dweights = memory.T @ dread
    return dmemory, dweights


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
        title="Cross-attention, to both sides",
        task="""Write the way back from the result of one head to its two inputs, the decoder's `x`
and the encoder's `memory`. In between lies attention's own backward, that of lesson 3.""",
        done="These are the two ways out: to the decoder's own words, and to the encoder.",
        lesson=7,
        solution=backward_through_cross_attention,
        forward=cross_attention,
        inputs=lambda n: dict(
            x=(n.T, n.D),
            memory=(n.S, n.D),
            q_weight=(n.D, n.K),
            k_weight=(n.D, n.K),
            v_weight=(n.D, n.K_v),
        ),
    ),
    Exercise(
        lesson=7,
        title="A bias for each distance",
        task="""Some models have no positions. They learn one number for each distance, `bias[d]`,
and add it to every score whose query stands `d` places after its key. The same numbers serve all
queries. The lesson does not derive their gradient. You can.""",
        solution=distance_bias_backward,
        forward=distance_bias,
        inputs=lambda n: dict(query=(n.T, n.K), key=(n.S, n.K), bias=(n.T,)),
        mistakes=[
            Mistake(
                "dbias",
                lambda dscores: dscores.sum(axis=0),
                "You add up the columns: that is "
                "for a bias of each key. A column holds queries at many distances.",
            ),
            Mistake(
                "dbias",
                lambda dscores: np.array(
                    [np.diagonal(dscores, -d).mean() for d in range(len(dscores))]
                ),
                "You take means. One entry of the bias changes all of these scores.",
            ),
        ],
        done="One number that is used along a whole diagonal collects from all of it. T5 (Raffel "
        "et al. 2020) has such biases, some for each head.",
    ),
    Exercise(
        lesson=7,
        title="Find the mistake",
        task="What comes back to the memory from all blocks of a decoder. With this backward a "
        "model trains, and with one block it is right. Find the line and mend it.",
        solution=memory_backward,
        forward=lambda memory, weights: (memory @ weights, {}),
        inputs=lambda n: dict(memory=(n.S, n.D), weights=(n.H, n.D, n.K)),
        called={"H": "the number of blocks", "S": "the number of words read", "K": "d_k + d_v"},
        to_find="dmemory = through.mean(axis=0)",
        done="Every block reads the same memory, so their gradients add up.",
    ),
]
