"""The exercises of lesson 13: partial results, and backwards that keep no weights."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.later.mixers.running_sums import running_sums
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.softmax import softmax


def merge(highest_1, total_1, output_1, highest_2, total_2, output_2):
    """What two halves of the keys gave -> highest, total, output.

    Of T rows each half has the highest score (T, 1), the sum
    of exp(score - highest) over its keys (T, 1), and its own
    attention's output (T, d_v), divided by that sum already.
    """
    # The highest score of all keys. Each row has its own.
    highest = np.maximum(highest_1, highest_2)
    # The first half's share. Its sum is relative to its own maximum, and the new one may be higher.
    share_1 = total_1 * np.exp(highest_1 - highest)
    # The second half's share. Its sum is relative to its own maximum; the new one may be higher.
    share_2 = total_2 * np.exp(highest_2 - highest)
    # The total. Both halves are in it, counted alike.
    total = share_1 + share_2
    # The output of both halves. Each counts as much as its exponentials are of all of them.
    output = (output_1 * share_1 + output_2 * share_2) / total
    return highest, total, output


OF_MERGED = [
    Mistake(
        "output",
        lambda output_1, output_2: (output_1 + output_2) / 2,
        "The mean of two outputs: but a half whose scores are high has most of the weight.",
    ),
    Mistake(
        "output",
        lambda output_1, output_2: output_1 + output_2,
        "The outputs were divided already, each by the sum of its own half: they cannot be added.",
    ),
    Mistake(
        "output",
        lambda output_1, total_1, output_2, total_2, total: (
            (output_1 * total_1 + output_2 * total_2) / total
        ),
        "In the output the halves count by sums that are relative to two different maxima.",
    ),
]


def one_after_the_other(scores, value):
    """scores (T, S), value (S, d_v) -> output (T, d_v).

    Softmax of each row, times the values, key after key: no
    more than a column of scores is looked at, and no
    exponential becomes too large.
    """
    # The maximum so far. Before the first key every score is larger.
    highest = np.full((len(scores), 1), -np.inf)
    # The sum so far. Before the first key nothing is in it.
    total = np.zeros((len(scores), 1))
    # The blend so far. Before the first key nothing is in it.
    blend = np.zeros((len(scores), value.shape[-1]))
    for s in range(len(value)):
        # The maximum with this key. It never falls.
        new = np.maximum(highest, scores[:, s : s + 1])
        # The factor of what was there. The maximum may have risen: what was relative to the old one
        # becomes relative to the new one.
        factor = np.exp(highest - new)
        # The column of exponentials. They are relative to the maximum that is known by now.
        exponentials = np.exp(scores[:, s : s + 1] - new)
        # The sum with this key. What was there is relative to the old maximum.
        total = total * factor + exponentials
        # The blend with this key. What was there is relative to the old maximum.
        blend = blend * factor + exponentials * value[s]
        # The maximum for the next key. Nothing is forgotten.
        highest = new
    # The output. It is divided once, at the end.
    output = blend / total
    return output


def block_backward(doutput, query, key, value, output, log_sums):
    """doutput (T, d_v) -> dkey, dvalue, of one block of keys.

    Forward was softmax(query keys^T / sqrt(d_k)) values, where
    the block, key (S, d_k) and value (S, d_v), is a part of
    the keys and values. Kept are output (T, d_v) and, of each
    row, log_sums (T, 1): the logarithm of the sum of the
    exponentials of all its scores, of other blocks, too.
    """
    # The scores of this block. They are computed once more, as in forward.
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    # The weights. A weight is exp(score) over the sum of its row, and of that you have the
    # logarithm.
    weights = np.exp(scores - log_sums)
    # dvalue. Value s was used by every query that took some of it.
    dvalue = weights.swapaxes(-1, -2) @ doutput
    # The gradient of the weights. Its entry (t, s) says what more of value s does to row t.
    dweights = doutput @ value.swapaxes(-1, -2)
    # The average of a row. It runs over all keys, of other blocks, too: but there is a way to have
    # it without them.
    average = (doutput * output).sum(axis=-1, keepdims=True)
    # The gradient of the scores. A row of weights adds up to 1, over all blocks: see lesson 3.
    dscores = weights * (dweights - average)
    # The gradient of query key^T. Forward divides these products once.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dkey. Key s was used in all of column s of query key^T.
    dkey = dproducts.swapaxes(-1, -2) @ query
    return dkey, dvalue


def in_two_blocks(query, key, value, other_key, other_value):
    keys, values = np.concatenate([key, other_key]), np.concatenate([value, other_value])
    output, *_ = scaled_dot_product_attention(query, keys, values)
    exponentials = np.exp(query @ keys.T / math.sqrt(query.shape[-1]))
    log_sums = np.log(exponentials.sum(axis=-1, keepdims=True))
    return output, dict(output=output, log_sums=log_sums)


OF_BLOCK = [
    Mistake(
        "weights",
        lambda scores: softmax(scores),
        "You take a softmax of this block alone, as if its weights added up to 1. Those of all "
        "blocks together do: the sum that you need has been kept.",
    ),
    Mistake(
        "average",
        lambda weights, dweights: (weights * dweights).sum(axis=-1, keepdims=True),
        "Your average runs over the keys of this block alone. It belongs to the whole row. "
        "Remember what the weights of a row times the values are.",
    ),
]


def linear_attention_backward(dy, query, key, value):
    """dy (T, V) -> dquery, dkey, dvalue.

    Forward was y_t = query_t S_t, where the state S_t (K, V)
    is the sum of key_s^T value_s over all s up to t, with
    query and key (T, K), value (T, V). No T x T array.
    """
    # What is written. It is a product of a column and a row.
    written = key[:, :, None] * value[:, None]
    # The states. Position t has read all that was written up to there.
    states = np.cumsum(written, axis=0)
    # dquery. A query was multiplied by the state of its own position.
    dquery = (states * dy[:, None]).sum(axis=-1)
    # What is handed back. By each result, to the state that it came from: a product of a column and
    # a row, too.
    handed = query[:, :, None] * dy[:, None]
    # What comes back to what was written. It comes from its own position and the later ones.
    later = np.cumsum(handed[::-1], axis=0)[::-1]
    # dkey. It was written once, together with its value.
    dkey = (later * value[:, None]).sum(axis=-1)
    # dvalue. It was written once, together with its key.
    dvalue = (later * key[:, :, None]).sum(axis=1)
    return dquery, dkey, dvalue


def linear_attention(query, key, value):
    return running_sums(query, key, value)[0], {}


OF_LINEAR = [
    Mistake(
        "later",
        lambda handed: np.cumsum(handed, axis=0),
        "The running sum runs forwards, so a key hears of those who came before it. They have not "
        "read it: in backward the sum runs from the end.",
    ),
    Mistake(
        "later",
        lambda handed: np.cumsum(handed[::-1], axis=0)[::-1] - handed,
        "A position’s own result is left out. It has read what it wrote itself.",
    ),
    Mistake(
        "states",
        lambda written: np.cumsum(written, axis=0) - written,
        "The state without the position’s own key. It was written before it was read.",
    ),
]


def of_halves(n) -> dict:
    """Two halves: random maxima and outputs, sums that are positive."""
    rng = np.random.default_rng(13)
    one = dict(highest=(n.T, 1), total=rng.uniform(1, n.S, (n.T, 1)), output=(n.T, n.K_v))
    other = one | dict(total=rng.uniform(1, n.S, (n.T, 1)))
    return {f"{name}_{half}": x for half, of in ((1, one), (2, other)) for name, x in of.items()}


EXERCISES = [
    Exercise(
        13,
        "Two parts become one",
        """Half of the keys were seen by one processor, half by another. Each has what it kept of
its rows. Put the two together, exactly, without any score or value.""",
        merge,
        of_halves,
        "So attention can be shared out: over blocks, over processors, over machines.",
        mistakes=OF_MERGED,
    ),
    Exercise(
        13,
        "Find the mistake",
        """Attention of given scores, key after key. It has a mistake that stays unseen as long as
the first score of a row is its highest. Find the line and mend it.""",
        one_after_the_other,
        lambda n: dict(scores=(n.T, n.S), value=(n.S, n.K_v)),
        "What is not rescaled counts too much, by how far the maximum has risen since.",
        to_find="blend = blend + exponentials * value[s]",
    ),
    Exercise(
        13,
        "A block, backwards, without its weights",
        """The weights were thrown away. Compute the gradients of one block of keys and values from
what was kept. The other blocks are not given, and you do not need them.""",
        block_backward,
        lambda n: dict(
            query=(n.T, n.K),
            key=(n.S, n.K),
            value=(n.S, n.K_v),
            other_key=(n.D, n.K),
            other_value=(n.D, n.K_v),
        ),
        "A block needs two numbers for each row from all the others. So their order "
        "does not matter, and they can be computed at the same time.",
        in_two_blocks,
        OF_BLOCK,
    ),
    Exercise(
        13,
        "Linear attention, backwards",
        """The sum above the line of linear attention, where nothing later is seen. Forward is a
running sum. What is backward?""",
        linear_attention_backward,
        lambda n: dict(query=(n.T, n.K), key=(n.T, n.K), value=(n.T, n.K_v)),
        "Forward a running sum, backward a running sum from the end. Like a recurrent network it "
        "goes back through time, but nothing vanishes on the way.",
        linear_attention,
        OF_LINEAR,
        called={"T": "the number of positions", "K_v": "the width of a value"},
    ),
]
