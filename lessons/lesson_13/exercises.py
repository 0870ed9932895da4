"""The exercises of lesson 13: partial results, and backward without stored weights."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.later.mixers.running_sums import running_sums
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.softmax import softmax


def merge(highest_1, total_1, output_1, highest_2, total_2, output_2):
    """The results of two halves of keys -> highest, total, output.

    For each of T rows, a half gives the highest score (T, 1),
    the sum of exp(score - highest) over its keys (T, 1), and
    the output of attention over its keys alone (T, d_v), which
    is already divided by that sum.
    """
    # The highest score of all keys. Each row has its own.
    highest = np.maximum(highest_1, highest_2)
    # The first half's share. Its sum is relative to its own maximum, and the new maximum may be
    # higher.
    share_1 = total_1 * np.exp(highest_1 - highest)
    # The second half's share. Its sum is relative to its own maximum; the new maximum may be
    # higher.
    share_2 = total_2 * np.exp(highest_2 - highest)
    # The total. Both halves count in it, relative to the same maximum.
    total = share_1 + share_2
    # The output of both halves. Each half counts by its part of the sum of all exponentials.
    output = (output_1 * share_1 + output_2 * share_2) / total
    return highest, total, output


OF_MERGED = [
    Mistake(
        "output",
        lambda output_1, output_2: (output_1 + output_2) / 2,
        "This is a mean of two outputs, but a half whose scores are high has most of the weight.",
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
        "In the output, the halves are weighted by sums that are relative to two different maxima.",
    ),
]


def one_after_the_other(scores, value):
    """scores (T, S), value (S, d_v) -> output (T, d_v).

    The softmax of each row, times the values, key after key:
    only one column of scores is used at a time, and no
    exponential becomes too large.
    """
    # The maximum so far. It starts below every score.
    highest = np.full((len(scores), 1), -np.inf)
    # The sum so far. Before the first key, nothing is in it.
    total = np.zeros((len(scores), 1))
    # The blend so far. Before the first key, nothing is in it.
    blend = np.zeros((len(scores), value.shape[-1]))
    for s in range(len(value)):
        # The maximum with this key. It never falls.
        new = np.maximum(highest, scores[:, s : s + 1])
        # The factor of the old sum and blend. The maximum may have risen: the factor makes what was
        # relative to the old one relative to the new one.
        factor = np.exp(highest - new)
        # The column of exponentials. They are relative to the maximum of all keys so far.
        exponentials = np.exp(scores[:, s : s + 1] - new)
        # The sum with this key. The old sum is relative to the old maximum.
        total = total * factor + exponentials
        # The blend with this key. The old blend is relative to the old maximum.
        blend = blend * factor + exponentials * value[s]
        # The maximum for the next key. It covers all keys so far.
        highest = new
    # The output. It is divided once, at the end.
    output = blend / total
    return output


def block_backward(doutput, query, key, value, output, log_sums):
    """doutput (T, d_v) -> dkey, dvalue, of one block of keys.

    Forward was softmax(query keys^T / sqrt(d_k)) values, where
    the block, key (S, d_k) and value (S, d_v), is a part of
    the keys and values. Forward kept output (T, d_v) and
    log_sums (T, 1): for each row, the logarithm of the sum of
    exp(score) over all keys, those of other blocks included.
    """
    # The scores of this block. They are computed once more, as in forward.
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    # The weights. A weight is exp(score), divided by the sum of its row. You have the logarithm of
    # that sum.
    weights = np.exp(scores - log_sums)
    # dvalue. Value s was used by every query that took some of it.
    dvalue = weights.swapaxes(-1, -2) @ doutput
    # The gradient of the weights. Its entry (t, s) says how much the loss rises when row t takes
    # more of value s.
    dweights = doutput @ value.swapaxes(-1, -2)
    # The average of a row. It runs over all keys, those of other blocks included: but there is a
    # way to compute it without them.
    average = (doutput * output).sum(axis=-1, keepdims=True)
    # The gradient of the scores. Over all blocks, a row of weights adds up to 1: see lesson 3.
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
        "You take a softmax of this block alone, as if its weights added up to 1. Only the "
        "weights of all blocks together do. The sum that you need has been kept.",
    ),
    Mistake(
        "average",
        lambda weights, dweights: (weights * dweights).sum(axis=-1, keepdims=True),
        "Your average runs over the keys of this block alone. It belongs to the whole row. "
        "Remember what the weights of a row, times the values, give.",
    ),
]


def linear_attention_backward(dy, query, key, value):
    """dy (T, V) -> dquery, dkey, dvalue.

    Forward was y_t = query_t S_t, where the state S_t (K, V)
    is the sum of key_s^T value_s over all s up to t, with
    query and key (T, K), value (T, V). Make no T x T array.
    """
    # What is written. It is a product of a column and a row.
    written = key[:, :, None] * value[:, None]
    # The states. Position t reads all that was written up to and at t.
    states = np.cumsum(written, axis=0)
    # dquery. A query was multiplied by the state of its own position.
    dquery = (states * dy[:, None]).sum(axis=-1)
    # What each result hands back. It goes to the state from which the result was read, and is a
    # product of a column and a row, too.
    handed = query[:, :, None] * dy[:, None]
    # The gradient of what was written. It comes from its own position and from the later ones.
    later = np.cumsum(handed[::-1], axis=0)[::-1]
    # dkey. A key was written once, together with its value.
    dkey = (later * value[:, None]).sum(axis=-1)
    # dvalue. A value was written once, together with its key.
    dvalue = (later * key[:, :, None]).sum(axis=1)
    return dquery, dkey, dvalue


def linear_attention(query, key, value):
    return running_sums(query, key, value)[0], {}


OF_LINEAR = [
    Mistake(
        "later",
        lambda handed: np.cumsum(handed, axis=0),
        "The running sum runs forwards, so a key collects from the positions before it. These have "
        "not read it: in backward, the sum runs from the end.",
    ),
    Mistake(
        "later",
        lambda handed: np.cumsum(handed[::-1], axis=0)[::-1] - handed,
        "A position’s own result is left out. But a position reads what it has written itself.",
    ),
    Mistake(
        "states",
        lambda written: np.cumsum(written, axis=0) - written,
        "This is the state without the position’s own key. That key was written before the state "
        "was read.",
    ),
]


def of_halves(n) -> dict:
    """Two halves: random maxima and outputs, and positive sums."""
    rng = np.random.default_rng(13)
    one = dict(highest=(n.T, 1), total=rng.uniform(1, n.S, (n.T, 1)), output=(n.T, n.K_v))
    other = one | dict(total=rng.uniform(1, n.S, (n.T, 1)))
    return {f"{name}_{half}": x for half, of in ((1, one), (2, other)) for name, x in of.items()}


EXERCISES = [
    Exercise(
        13,
        "Two parts become one",
        """One processor has seen half of the keys, another the other half. Each has kept three
results for every row. Put them together, exactly, without any score or value.""",
        merge,
        of_halves,
        "So attention can be shared out: over blocks, over processors, over machines.",
        mistakes=OF_MERGED,
    ),
    Exercise(
        13,
        "Find the mistake",
        """This function computes attention from given scores, key after key. Its mistake goes
unnoticed as long as the first score of each row is the highest. Find the line and mend it.""",
        one_after_the_other,
        lambda n: dict(scores=(n.T, n.S), value=(n.S, n.K_v)),
        "A value that is not rescaled counts too much: the more so, the more the maximum has "
        "risen since.",
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
        "Of all other blocks, a block needs only two numbers for each row. So the order of the "
        "blocks does not matter, and they can be computed at the same time.",
        in_two_blocks,
        OF_BLOCK,
    ),
    Exercise(
        13,
        "Linear attention, backwards",
        """This is the numerator of linear attention, in which no position sees a later one. Forward
is a running sum. What is backward?""",
        linear_attention_backward,
        lambda n: dict(query=(n.T, n.K), key=(n.T, n.K), value=(n.T, n.K_v)),
        "Forward is a running sum, backward is a running sum from the end. As in a recurrent "
        "network, it goes back through time, but nothing vanishes on the way.",
        linear_attention,
        OF_LINEAR,
        called={"T": "the number of positions", "K_v": "the width of a value"},
    ),
]
