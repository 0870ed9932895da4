"""The exercises of lesson 9: backwards of attention, LayerNorm, a tied table, an encoder layer."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.explanations import sums_to_0
from lessons.kit.solution import Mistake
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.feed_forward import relu
from numformer.paper.layer_norm import layer_norm

CALLED = {
    "H": "the number of heads",
    "T": "the number of words",
    "D": "the width of a row",
    "S": "the width of the hidden layer",
}


def multi_head_self_attention_backward(
    dy, x, query, key, value, weights, w_query, w_key, w_value, w_out
):
    """dy (T, D) -> dx, dw_query, dw_key, dw_value, dw_out.

    Forward was, for each of H heads (the first axis of all arrays
    but x and y), query = x w_query, key = x w_key,
    value = x w_value,
    weights = softmax(query key^T / sqrt(d_k)), row by row, and
    y = the sum of weights value w_out over the heads, with
    x and y (T, D), query and key (H, T, d_k), value (H, T, d_v),
    weights (H, T, T), w_query and w_key (H, D, d_k),
    w_value (H, D, d_v), w_out (H, d_v, D).
    """
    # dw_out. The last matrix multiplied what each head had gathered.
    dw_out = (weights @ value).swapaxes(-1, -2) @ dy
    # The gradient of what each head gathered. All heads were added up in y, so each gets all of dy.
    dgathered = dy @ w_out.swapaxes(-1, -2)
    # dvalue. Value s was used by every query that took some of it, and collects from all of them.
    dvalue = weights.swapaxes(-1, -2) @ dgathered
    # The gradient of the weights. Entry (t, s) says what it does to the
    # loss if word t takes more of value s.
    dweights = dgathered @ value.swapaxes(-1, -2)
    # The average of a row. Each entry counts by its weight.
    average = (weights * dweights).sum(axis=-1, keepdims=True)
    # The gradient of the scores. A row of weights adds up to 1: see lesson 3.
    dscores = weights * (dweights - average)
    # The gradient of query key^T. Forward scales these products once.
    dproducts = dscores / math.sqrt(query.shape[-1])
    # dquery. Query t was used in all of row t of query key^T.
    dquery = dproducts @ key
    # dkey. Key s was used in all of column s of query key^T.
    dkey = dproducts.swapaxes(-1, -2) @ query
    # dw_query. Every word was multiplied by the same matrix.
    dw_query = x.T @ dquery
    # dw_key. Every word was multiplied by the same matrix.
    dw_key = x.T @ dkey
    # dw_value. Every word was multiplied by the same matrix.
    dw_value = x.T @ dvalue
    # The road through the queries. Each head has one.
    by_query = dquery @ w_query.swapaxes(-1, -2)
    # The road through the keys. Each head has one.
    by_key = dkey @ w_key.swapaxes(-1, -2)
    # The road through the values. Each head has one.
    by_value = dvalue @ w_value.swapaxes(-1, -2)
    # dx. Count how often x is used: on how many roads, by how many heads?
    dx = (by_query + by_key + by_value).sum(axis=0)
    return dx, dw_query, dw_key, dw_value, dw_out


def self_attention(x, w_query, w_key, w_value, w_out):
    query, key, value = x @ w_query, x @ w_key, x @ w_value
    gathered, weights = scaled_dot_product_attention(query, key, value)
    made = dict(query=query, key=key, value=value, weights=weights)
    return (gathered @ w_out).sum(axis=0), made


def layer_norm_backward(dy, gamma, x_hat, rstd):
    """dy (T, D) -> dx, dgamma, dbeta.

    Forward was y = gamma x_hat + beta, x_hat = (x - mean) rstd,
    rstd = 1 / sqrt(variance + 1e-5), row by row, with
    x and x_hat (T, D), gamma and beta (D,), rstd (T, 1).
    """
    # dgamma. Every row was multiplied by the same gamma.
    dgamma = (dy * x_hat).sum(axis=0)
    # dbeta. It was added to every row.
    dbeta = dy.sum(axis=0)
    # The gradient of x_hat. Forward did something to x_hat before it became y.
    dhat = dy * gamma
    # The mean of the gradient of x_hat. It comes through the mean of a row; each row has its own.
    mean = dhat.mean(axis=-1, keepdims=True)
    # The part along x_hat. It comes through the variance, and each row has its own.
    along = (dhat * x_hat).mean(axis=-1, keepdims=True)
    # dx. Forward multiplied by rstd, and a row can move in two directions without any effect.
    dx = rstd * (dhat - mean - x_hat * along)
    return dx, dgamma, dbeta


def norm_of(x, gamma, beta):
    y, x_hat, rstd = layer_norm(x, gamma, beta, 1e-5)
    return y, dict(x_hat=x_hat, rstd=rstd)


def encoder_layer_backward(
    dy,
    x,
    query,
    key,
    value,
    weights,
    w_query,
    w_key,
    w_value,
    w_out,
    gamma_1,
    x_hat_1,
    rstd_1,
    normed,
    hidden,
    inner,
    outer,
    gamma_2,
    x_hat_2,
    rstd_2,
):
    """dy (T, D) -> dx, dgamma_1, dinner, douter.

    Forward was sum_1 = x + self_attention(x),
    normed = layer_norm(sum_1), hidden = max(0, normed inner),
    sum_2 = normed + hidden outer, y = layer_norm(sum_2).
    gamma_1, x_hat_1 and rstd_1 belong to the first norm,
    gamma_2, x_hat_2 and rstd_2 to the second; inner (D, d_ff),
    hidden (T, d_ff), outer (d_ff, D). Everything else is as in
    the exercises before.
    """
    # The gradient of the second sum. The norm came last, so its backward comes first.
    dsum_2 = layer_norm_backward(dy, gamma_2, x_hat_2, rstd_2)[0]
    # douter. Forward multiplied the hidden values of every word by outer.
    douter = hidden.T @ dsum_2
    # The gradient of what comes out of the ReLU. It comes through one matrix.
    dhidden = dsum_2 @ outer.T
    # The gradient of what goes into the ReLU. The ReLU let through only what was positive.
    dbefore = dhidden * (hidden > 0)
    # dinner. Forward multiplied what the first norm had made by inner.
    dinner = normed.T @ dbefore
    # The gradient of what the first norm made. Count how often that is used.
    dnormed = dsum_2 + dbefore @ inner.T
    # dgamma_1. Every row was multiplied by the same gamma.
    dgamma_1 = (dnormed * x_hat_1).sum(axis=0)
    # The gradient of the first sum. You have written the backward of a norm.
    dsum_1 = layer_norm_backward(dnormed, gamma_1, x_hat_1, rstd_1)[0]
    # The gradient that comes back through attention. You have written its backward, too.
    through = multi_head_self_attention_backward(
        dsum_1, x, query, key, value, weights, w_query, w_key, w_value, w_out
    )[0]
    # dx. Count how often x is used.
    dx = dsum_1 + through
    return dx, dgamma_1, dinner, douter


def encoder_layer(x, w_query, w_key, w_value, w_out, gamma_1, inner, outer, gamma_2):
    attended, made = self_attention(x, w_query, w_key, w_value, w_out)
    normed, x_hat_1, rstd_1 = layer_norm(x + attended, gamma_1, 0.0, 1e-5)
    hidden, positive = relu(normed @ inner)
    y, x_hat_2, rstd_2 = layer_norm(normed + hidden @ outer, gamma_2, 0.0, 1e-5)
    made |= dict(x_hat_1=x_hat_1, rstd_1=rstd_1, normed=normed, hidden=hidden)
    made |= dict(positive=positive)  # so that the check keeps away from the kinks
    return y, made | dict(x_hat_2=x_hat_2, rstd_2=rstd_2)


def tied_backward(dlogits, x, table, ids):
    """dlogits (T, V) -> dtable.

    Forward was x_t = sqrt(D) table[ids[t]] and
    logits = x table^T, the model on a napkin, with
    ids (T,), x (T, D), table (V, D).
    """
    # The part from the output. Row v was compared with every word.
    by_output = dlogits.T @ x
    # The gradient of x. Each word was compared with every row of the table.
    dx = dlogits @ table
    # The gradient of the rows that were looked up. They were multiplied by something.
    drows = math.sqrt(table.shape[-1]) * dx
    # The part from the lookup. A symbol that occurs twice was looked up twice.
    by_lookup = np.eye(len(table))[ids].T @ drows
    # dtable. Count how often the table is used.
    dtable = by_output + by_lookup
    return dtable


def tied(table, ids):
    x = math.sqrt(table.shape[-1]) * table[ids]
    return x @ table.T, dict(x=x)


FORGETS = Mistake(
    "by_lookup",
    lambda drows, ids, table: np.array(
        [drows[ids == symbol][-1:].sum(axis=0) for symbol in range(len(table))]
    ),
    "If a symbol occurs several times, only its last place counts. NumPy’s += with an "
    "array of indices does that: where an index occurs twice, the second addition forgets the "
    "first. Look for a function of NumPy that adds them all.",
)


def of_attention(n) -> dict:
    """The inputs of self-attention, with weights so small that no score becomes too large."""
    narrow, wide = (n.H, n.D, n.K), (n.H, n.D, n.K_v)
    shapes = dict(w_query=narrow, w_key=narrow, w_value=wide, w_out=(n.H, n.K_v, n.D))
    return {"x": (n.T, n.D)} | normal(n.D**-0.5, shapes)


def of_layer(n) -> dict:
    """The inputs of an encoder layer, with x so large that no norm is steep."""
    large = normal(2.0, dict(x=(n.T, n.D)))
    matrices = normal(n.D**-0.5, dict(inner=(n.D, n.S), outer=(n.S, n.D)))
    return of_attention(n) | large | dict(gamma_1=(n.D,)) | matrices | dict(gamma_2=(n.D,))


def normal(size: float, shapes: dict) -> dict:
    """Random numbers with this standard deviation, the same each time."""
    rng = np.random.default_rng(8)
    return {name: rng.normal(0, size, shape) for name, shape in shapes.items()}


PLAIN_MEAN = Mistake(
    "average",
    lambda dweights: dweights.mean(axis=-1, keepdims=True),
    "You took the plain mean of the row. In the softmax each entry counts by its weight.",
)
ROADS = [
    Mistake("dx", wrong, f"The road through the {name} is missing: each head read x three times.")
    for name, wrong in {
        "queries": lambda by_key, by_value: (by_key + by_value).sum(axis=0),
        "keys": lambda by_query, by_value: (by_query + by_value).sum(axis=0),
        "values": lambda by_query, by_key: (by_query + by_key).sum(axis=0),
    }.items()
]
ROADS += [
    Mistake("dx", wrong, "You have one of three roads. Queries, keys and values all came from x.")
    for wrong in (
        lambda by_query: by_query.sum(axis=0),
        lambda by_key: by_key.sum(axis=0),
        lambda by_value: by_value.sum(axis=0),
    )
]
ROADS += [
    Mistake(
        "dx",
        lambda by_query, by_key, by_value: (by_query + by_key + by_value)[0],
        "You take one head alone. All heads read the same x, so their gradients add up.",
    ),
]
CONSTANTS = [
    Mistake(
        "dx", wrong, f"This would be right if {name} constant. But each number of a row moves them."
    )
    for name, wrong in {
        "means and variances were": lambda dhat, rstd: dhat * rstd,
        "the variances were": lambda dhat, mean, rstd: (dhat - mean) * rstd,
        "the means were": lambda dhat, along, x_hat, rstd: (dhat - x_hat * along) * rstd,
    }.items()
]
EXERCISES = [
    Exercise(
        9,
        "Attention, backwards",
        """Write the whole backward of multi-head self-attention: through the last matrix, the
blend, the softmax, the scale and the product, and along all three roads back to `x`. The
heads stand along the first axis, so one line serves them all.""",
        multi_head_self_attention_backward,
        of_attention,
        "This is the longest backward of the Transformer, and you have written all of it.",
        self_attention,
        [*ROADS, PLAIN_MEAN],
        called=CALLED,
    ),
    Exercise(
        9,
        "LayerNorm, backwards",
        """Write the backward of LayerNorm. What does a number of `x` change in its row, besides its
own place?""",
        layer_norm_backward,
        lambda n: dict(x=(n.T, n.D), gamma=(n.D,), beta=(n.D,)),
        "Two directions are taken out of the gradient; what is left is divided by the standard "
        "deviation.",
        norm_of,
        CONSTANTS,
        [sums_to_0("dx", "The same number added to a whole row changes nothing after the norm.")],
        called=CALLED,
    ),
    Exercise(
        9,
        "A table that is used twice, backwards",
        """The model on a napkin, with any number of symbols and words. Some symbols occur more than
once. How often is the table used?""",
        tied_backward,
        lambda n: dict(table=(n.S, n.D), ids=np.arange(n.T) % (n.S // 2)),
        "With an encoder there is a third part, which is computed just like the second.",
        tied,
        [FORGETS],
        called=CALLED | {"S": "the number of symbols"},
    ),
    Exercise(
        9,
        "A whole encoder layer, backwards",
        """Put the parts together, and call the two functions that you have written. Return the
gradients of the layer's input, of the first gamma, and of the feed-forward network's two
matrices.""",
        encoder_layer_backward,
        of_layer,
        "An encoder is a stack of such layers; a decoder layer has one attention more. You can "
        "train a Transformer with what you have written.",
        encoder_layer,
        called=CALLED,
    ),
]
