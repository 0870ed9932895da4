"""The exercises of lesson 3: softmax and attention, backwards.

`EXERCISES` is what the lesson shows and `python -m lessons check 3 FILE` checks. What stands in
`mistakes` is what readers write: each with words for who wrote it, which say where to look.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np

from lessons.exercise import Exercise, Mistake, Sizes
from numformer.layers.attention import ScaledDotProductAttention, transpose
from numformer.layers.softmax import Softmax, softmax
from numformer.layers.softmax import softmax_backward as right_softmax_backward


class SoftmaxWith(Softmax):
    """The library's softmax with someone's backward."""

    def __init__(self, function):
        self.function = function

    def backward(self, dweights):
        return self.function(dweights, self.pop_saved()["weights"])


class AttentionWith(ScaledDotProductAttention):
    """The library's attention, without dropout, with someone's backward."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def backward(self, doutput):
        saved = self.pop_saved()
        names = ("query", "key", "value", "weights")
        return self.function(doutput, *(saved[name] for name in names))


def a_mask(sizes: Sizes) -> np.ndarray:
    """(B, 1, T, S): one sequence is shorter, and in the other one row has every key masked."""
    mask = np.ones((sizes.B, 1, sizes.T, sizes.S), bool)
    mask[0, ..., -1] = False
    mask[-1, :, 1] = False
    return mask


def a_softmax(function, sizes: Sizes):
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((sizes.B, sizes.H, sizes.T, sizes.S))
    return SoftmaxWith(function), [scores, a_mask(sizes)]


def an_attention(function, sizes: Sizes):
    rng = np.random.default_rng(3)
    heads = (sizes.B, sizes.H)
    query = rng.standard_normal((*heads, sizes.T, sizes.K))
    key = rng.standard_normal((*heads, sizes.S, sizes.K))
    value = rng.standard_normal((*heads, sizes.S, sizes.K_v))
    return AttentionWith(function), [query, key, value, a_mask(sizes)]


# 1. The softmax


def softmax_backward(dweights, weights):
    """dweights, weights (..., S) -> dscores (..., S).

    Forward was weights = softmax(scores).
    """
    raise NotImplementedError


def inner(a, b):
    """The inner product of each row of `a` with that of `b`."""
    return (a * b).sum(axis=-1, keepdims=True)


SOFTMAX_MISTAKES = [
    Mistake(
        lambda dw, w: dw * w * (1 - w),
        "Each score is treated as if it moved its own weight alone. In a softmax it moves all "
        "weights of its row, because they share one sum and keep adding up to 1. Of the Jacobian "
        "you have the diagonal. Look at its other entries under “Through the softmax”.",
    ),
    Mistake(
        lambda dw, w: w * (1 - w),
        "The upstream gradient dweights does not occur in the result. What you compute is the "
        "slope of each weight by its own score. The chain rule multiplies the Jacobian with what "
        "comes from above, and the Jacobian has more than this diagonal.",
    ),
    Mistake(
        lambda dw, w: dw - inner(dw, w),
        "A factor is missing: what you have is not yet 0 where the weight is 0, although a masked "
        "score changes nothing. Look at the line in which the exponential is differentiated: the "
        "slope of exp is exp again.",
    ),
    Mistake(
        lambda dw, w: w * (dw - dw.sum(axis=-1, keepdims=True)),
        "The sum adds up dweights as they are. In the derivation each term of this sum comes from "
        "one weight of the row, and a weight that is 0 should have no say. Look at what stands "
        "beside dweights under the sum.",
    ),
    Mistake(
        lambda dw, w: w * (dw - (dw * w).sum(axis=-2, keepdims=True)),
        "The sum runs over the queries and not over the keys. Each row of weights is a softmax of "
        "its own, and rows know nothing of each other. Ask along which axis weights add up to 1.",
    ),
    Mistake(
        lambda dw, w: w * (dw - (dw * w).sum()),
        "The sum runs over the whole array. So one row of weights depends on all others, of other "
        "heads and of other sequences too. Each row is a softmax of its own: ask along which axis "
        "weights add up to 1.",
    ),
    Mistake(
        lambda dw, w: w * (dw - (dw * w).sum(axis=(-2, -1), keepdims=True)),
        "The sum runs over queries and keys together. Each row of weights is a softmax of its own: "
        "ask along which axis weights add up to 1.",
    ),
    *(
        Mistake(
            lambda dw, w, axis=axis: w * (dw - (dw * w).sum(axis=axis, keepdims=True)),
            f"The sum runs over the {whose} and not over the keys. The arrays have four axes, "
            "(batch, heads, T, S), and each row along the last is a softmax of its own: ask along "
            "which axis weights add up to 1.",
        )
        for axis, whose in ((0, "sequences"), (1, "heads"))
    ),
    *(
        Mistake(
            lambda dw, w, axes=axes: w * (dw - (dw * w).sum(axis=axes, keepdims=True)),
            f"The sum runs over the keys and over {too} too. The arrays have four axes, (batch, "
            "heads, T, S), and each row along the last is a softmax of its own: ask along which "
            "axis weights add up to 1.",
        )
        for axes, too in (
            ((0, -1), "sequences"),
            ((1, -1), "heads"),
            ((1, 2, 3), "heads and queries"),
        )
    ),
    *(
        Mistake(
            lambda dw, w, axes=axes: w * (dw - (dw * w).sum(axis=-1)[axes]),
            "The sum of each row has lost its axis, so NumPy lines it up with the wrong one. A sum "
            "of shape (..., T) has to stand beside an array of shape (..., T, S). Look at the "
            "arguments of the sum.",
        )
        for axes in (..., (..., None, slice(None)))  # all at once, and head by head
    ),
    Mistake(
        lambda dw, w: w * (dw - (dw * w).mean(axis=-1, keepdims=True)),
        "You subtract a mean where the derivation has a sum: it is too small by a factor, the "
        "number of keys. The weights in it already make it a weighted mean. Look at the Jacobian's "
        "second part: no number of keys stands there.",
    ),
    Mistake(
        lambda dw, w: w * (dw - (dw * w).sum(axis=-1, keepdims=True)) / len(w),
        "Every entry is the true gradient divided by the batch size. Sequences of a batch do not "
        "meet in a softmax, so nothing is averaged here; a loss that is a mean has divided "
        "already. With a batch of 1 this cannot be seen, and Adam, which divides by the gradient's "
        "size, trains as if nothing were wrong.",
    ),
    Mistake(
        lambda dw, w: w * (dw + inner(dw, w)),
        "A sign is wrong. Where the loss rises by the same with every weight of a row, the scores "
        "get no gradient, because the weights have to add up to 1: try dweights of ones. Look at "
        "the sign of the Jacobian's entries beside the diagonal.",
    ),
    Mistake(
        lambda dw, w: w * dw,
        "The second part of the derivative is missing: you have exp, but not the division by the "
        "sum. That sum depends on every score of the row. Look at the Jacobian beside its "
        "diagonal.",
    ),
    Mistake(
        lambda dw, w: w * (inner(dw, w) - dw),
        "Every entry has the wrong sign: training would go uphill. Where dweights is large at one "
        "key, that key's score should get a positive gradient.",
    ),
    Mistake(
        lambda dw, w: dw,
        "What comes in goes out unchanged: the softmax is skipped. A softmax squeezes, and so "
        "changes its gradient: dweights of ones, for example, has to become 0. Begin at “Through "
        "the softmax”.",
    ),
    Mistake(
        lambda dw, w: softmax(dw),
        "You apply the softmax once more, to the gradients. Backward does not repeat the forward "
        "step: it multiplies by the step's derivative, at the weights that forward found.",
    ),
    Mistake(
        lambda dw, w: w * (dw - dw.mean(axis=-1, keepdims=True)),
        "You subtract the plain mean of dweights, in which every key counts the same. The keys of "
        "a row do not count the same: ask what says how much each counts.",
    ),
    Mistake(
        lambda dw, w: w * (dw - dw.max(axis=-1, keepdims=True)),
        "You subtract the largest dweights of each row. Forward subtracts the largest score, so "
        "that exp does not overflow, and its result stays the same. That does not carry over to "
        "gradients: look at what the Jacobian has beside its diagonal.",
    ),
    Mistake(
        lambda dw, w: w * dw - inner(dw, w),
        "The sum of the row is subtracted from every entry alike, even where the weight is 0. In "
        "the Jacobian's entries beside the diagonal two weights meet. You have one of them, under "
        "the sum: look for the other.",
    ),
    Mistake(
        lambda dw, w: dw - w * dw.sum(axis=-1, keepdims=True),
        "This is the backward of log-softmax, whose result is the logarithm of the weights. Here "
        "forward returned the weights themselves, so one factor more comes in by the chain rule. "
        "Begin at the Jacobian under “Through the softmax”.",
    ),
    *(
        Mistake(
            wrong,
            "A difference of weights and something else is what softmax and cross-entropy give "
            "together, where that something is the target. Here no loss follows the softmax, and "
            "dweights is a gradient: the chain rule multiplies it with the Jacobian.",
        )
        for wrong in (lambda dw, w: w - dw, lambda dw, w: dw - w)
    ),
    Mistake(
        lambda dw, w: dw * w * (1 - w) - w * inner(dw, w),
        "Each score's own term is counted twice: once on the diagonal, where 1 - weights has it, "
        "and again in the sum over the whole row. Write out a row of two keys and count the terms.",
    ),
    Mistake(
        lambda dw, w: w * dw - w * (inner(dw, w) - dw * w),
        "Each score's own term is left out of the sum, and it is missing on the diagonal too. "
        "Compare your diagonal with that of the Jacobian.",
    ),
    Mistake(
        lambda dw, w: -w * inner(dw, w),
        "This is the part of the derivative that comes from the division by the sum. The other "
        "part is missing: a score also raises its own weight, by way of its exponential.",
    ),
    Mistake(
        lambda dw, w: w * dw - w * w * dw.sum(axis=-1, keepdims=True),
        "The weight of the score itself occurs twice in what is subtracted. In the Jacobian's "
        "entries beside the diagonal two weights meet, of two keys: under the sum each dweights "
        "goes with the weight of its own key.",
    ),
    Mistake(
        lambda dw, w: right_softmax_backward(w, dw),
        "dweights and weights have changed places, in the formula or where the function is called: "
        "dweights comes first.",
    ),
    Mistake(
        lambda dw, w: right_softmax_backward(dw * w, w),
        "The weights are multiplied in once too often: dweights was multiplied with them before "
        "the step through the softmax, which does that itself.",
    ),
]


# 2. Attention


def attention_backward(doutput, query, key, value, weights):
    """doutput (..., T, d_v) -> dquery, dkey, dvalue.

    Forward was weights = softmax(query key^T / sqrt(d_k)),
    output = weights value, with
    query (..., T, d_k), key (..., S, d_k), value (..., S, d_v),
    weights (..., T, S).
    """
    raise NotImplementedError


# The lines of the backward. `v` holds the arguments and the results of the lines above.
LINES = {
    "dweights": lambda v: v.doutput @ transpose(v.value),
    "dscores": lambda v: right_softmax_backward(v.dweights, v.weights),
    "scaled": lambda v: v.dscores / math.sqrt(v.query.shape[-1]),
    "dquery": lambda v: v.scaled @ v.key,
    "dkey": lambda v: transpose(v.scaled) @ v.query,
    "dvalue": lambda v: transpose(v.weights) @ v.doutput,
}


def altered(**lines):
    """Attention's backward with other lines in the place of those of LINES."""

    def backward(doutput, query, key, value, weights):
        v = SimpleNamespace(doutput=doutput, query=query, key=key, value=value, weights=weights)
        for name, line in (LINES | lines).items():
            setattr(v, name, line(v))
        return v.dquery, v.dkey, v.dvalue

    return backward


def divided_by_batch(*powers):
    """The right dquery, dkey, dvalue, each divided by a power of the batch size."""

    def backward(doutput, *others):
        results = altered()(doutput, *others)
        return tuple(x / len(doutput) ** power for x, power in zip(results, powers, strict=True))

    return backward


UNTRANSPOSED = (
    "Query and key change places between the two products with the scores' gradient. Row t of it "
    "belongs to query t, column s to key s. Ask which of them dkey has to add up over: all queries "
    "that looked at key s."
)
ALL_AXES = (
    "`.T` turns round all axes of an array, those of batch and heads too. It is what you want for "
    "two axes only. Here the arrays are (batch, heads, T, S): exchange the last two and leave the "
    "others where they are."
)
WITH_T = {
    "dvalue": lambda v: v.weights.T @ v.doutput,
    "dweights": lambda v: v.doutput @ v.value.T,
    "dkey": lambda v: v.scaled.T @ v.query,
}


def unmasked(v):
    """The weights as they would be without a mask."""
    return softmax(v.query @ transpose(v.key) / math.sqrt(v.query.shape[-1]))


# The lines that readers write in the place of those of LINES, and what to say to it.
FAULTS: list[tuple[dict, str]] = [
    (
        dict(scaled=lambda v: v.dscores),
        "The scale is missing: every entry is too large by sqrt(d_k). Forward divides the scores "
        "by it between the product and the softmax, so the gradient passes there too. Read "
        "forward upwards and mark where you come by it; dvalue does not. Look at “All of it”.",
    ),
    (
        dict(dkey=lambda v: transpose(v.dscores) @ v.query),
        "The scale is missing in dkey alone. Queries and keys meet in one product, and it is this "
        "product that is scaled. So both gradients pass the scale: apply it before their ways "
        "part.",
    ),
    (
        dict(dquery=lambda v: v.dscores @ v.key),
        "The scale is missing in dquery alone. Queries and keys meet in one product, and it is "
        "this product that is scaled. So both gradients pass the scale: apply it before their ways "
        "part.",
    ),
    (
        dict(scaled=lambda v: v.dscores / v.query.shape[-1]),
        "You divide by d_k, where forward has its square root: the scale is applied twice, or the "
        "root is missing. The scores are scaled once in forward, so their gradient is scaled once "
        "in backward. Count 1/sqrt(d_k) on the way to dquery.",
    ),
    (
        dict(scaled=lambda v: v.dscores * math.sqrt(v.query.shape[-1])),
        "The scale is turned round: you multiply by sqrt(d_k) where forward divides. The "
        "derivative of c x by x is c, so the same factor stands in backward, not its inverse.",
    ),
    (
        dict(scaled=lambda v: v.dscores / math.sqrt(v.value.shape[-1])),
        "The scale has the size of the values in it. Forward scales a product of queries and keys. "
        "Here the two sizes differ, as d_k and d_v may: take the one that forward takes.",
    ),
    *(
        (
            dict(scaled=lambda v, axis=axis: v.dscores / math.sqrt(v.query.shape[axis])),
            f"You scale by the number of {whose}. Here the arrays have four axes, (batch, heads, "
            "T, d_k) for the queries. Ask which axis of query and key is summed over, and count "
            "axes from the end.",
        )
        for axis, whose in ((0, "sequences"), (1, "heads"))
    ),
    *(
        (
            dict(scaled=lambda v, array=array: v.dscores / math.sqrt(getattr(v, array).shape[-2])),
            f"You scale by the number of {whose}, a length: axis -2 where d_k is another. Forward "
            "scales so that an inner product does not grow with the number of its terms. Ask "
            "which axis of query and key is summed over.",
        )
        for array, whose in (("query", "queries"), ("key", "keys"))
    ),
    (
        dict(dkey=lambda v: v.scaled @ v.query),
        f"dkey lacks a transpose. {UNTRANSPOSED}",
    ),
    (
        dict(dquery=lambda v: transpose(v.scaled) @ v.key),
        f"dquery has a transpose too many. {UNTRANSPOSED}",
    ),
    (
        dict(dquery=lambda v: v.scaled @ v.query, dkey=lambda v: transpose(v.scaled) @ v.key),
        "Query and key are exchanged. In a product each factor's gradient contains the other "
        "factor: how far a query moves a score is said by the key, and how far a key moves it by "
        "the query. Look at the lesson's “Through a matrix product”.",
    ),
    (
        dict(dquery=lambda v: v.scaled @ v.query),
        "dquery is made of the queries. In a product each factor's gradient contains the other "
        "factor: how far a query moves a score is said by the key. Look at the lesson's “Through "
        "a matrix product”.",
    ),
    (
        dict(dkey=lambda v: transpose(v.scaled) @ v.key),
        "dkey is made of the keys. In a product each factor's gradient contains the other factor: "
        "how far a key moves a score is said by the query. Look at the lesson's “Through a matrix "
        "product”.",
    ),
    *(
        (
            {name: lambda v, line=line, power=power: line(v) / v.query.shape[-1] ** power},
            f"{name} is made of the weights. They are a result of the product of queries and keys, "
            "and backward multiplies by the gradient of that result: which array of yours is it?",
        )
        for name, line in (
            ("dquery", lambda v: v.weights @ v.key),
            ("dkey", lambda v: transpose(v.weights) @ v.query),
        )
        for power in (0, 0.5)
    ),
    *(
        (
            line,
            f"{next(iter(line))} is made of another gradient. In a product each factor's gradient "
            "contains the other factor as forward had it, query or key, and not its gradient.",
        )
        for line in (
            dict(dkey=lambda v: transpose(v.scaled) @ v.dquery),
            dict(dquery=lambda v: v.scaled @ (transpose(v.scaled) @ v.query)),
        )
    ),
    (
        dict(dvalue=lambda v: transpose(v.weights) @ v.value),
        "dvalue is made of the values. In a product the gradient of a factor contains the other "
        "factor and the gradient of the product: value does not occur in dvalue.",
    ),
    (
        dict(dvalue=lambda v: v.weights * v.doutput),
        "dvalue is multiplied entry by entry. Forward has a matrix product there, weights with "
        "values, so backward has matrix products too: each value collects from all queries.",
    ),
    (
        dict(dvalue=lambda v: v.weights @ v.doutput),
        "dvalue lacks a transpose. Row t of the weights says how query t mixes the values. The "
        "gradient of value s collects from all queries that took some of it: ask whether that is a "
        "row or a column.",
    ),
    (
        dict(dvalue=lambda v: transpose(v.dweights) @ v.doutput),
        "dvalue is made of dweights. The output is weights times values, and in a product each "
        "factor's gradient contains the other factor itself, not its gradient.",
    ),
    (
        dict(dvalue=lambda v: transpose(v.scaled) @ v.doutput),
        "dvalue is made of the scores' gradient. The output is weights times values, and in a "
        "product each factor's gradient contains the other factor itself, not a gradient.",
    ),
    (
        dict(dvalue=lambda v: LINES["dvalue"](v) / math.sqrt(v.query.shape[-1])),
        "dvalue is scaled. The values come in after the softmax, the scale stands before it: on "
        "the way from the output to the values there is no scale.",
    ),
    (
        dict(dweights=lambda v: v.doutput @ v.value),
        "dweights lacks a transpose. Its entry (t, s) says how much the loss rises when query t "
        "takes more of value s: the inner product of row t of doutput with row s of the values.",
    ),
    *(
        ({name: WITH_T[name] for name in names}, ALL_AXES)
        for names in (WITH_T, ("dvalue", "dkey"), ("dvalue",), ("dkey",), ("dweights",))
    ),
    *(
        (
            dict(dscores=lambda v, wrong=mistake.wrong: wrong(v.dweights, v.weights)),
            "The step through the softmax is wrong, and dquery and dkey come after it. "
            + mistake.why,
        )
        for mistake in SOFTMAX_MISTAKES
    ),
    (
        dict(
            dscores=lambda v: right_softmax_backward(v.dweights, unmasked(v)),
            dvalue=lambda v: transpose(unmasked(v)) @ v.doutput,
        ),
        "The weights are computed once more, from queries and keys, but without the mask that "
        "forward had. Those that forward used are given to you: look at the arguments.",
    ),
    (
        dict(
            dscores=lambda v: v.dweights,
            scaled=lambda v: v.dweights,
        ),
        "Two steps between the output and the product of queries and keys are skipped: softmax and "
        "scale. Read forward upwards: each of its steps has a line in backward.",
    ),
]

ATTENTION_MISTAKES = [
    *(Mistake(altered(**lines), why) for lines, why in FAULTS),
    Mistake(
        divided_by_batch(1, 1, 1),
        "Every entry is the true gradient divided by the batch size. Sequences do not meet in "
        "attention, so nothing is averaged here. A loss that is a mean has divided already.",
    ),
    # Two at once.
    *(
        Mistake(altered(**one, **other), f"{why}\n\n{also}")
        for (one, why), (other, also) in itertools.combinations(FAULTS, 2)
        if not one.keys() & other.keys()
    ),
]


# 3. A mistake to find


def mended_attention_backward(doutput, query, key, value, weights):
    """doutput (..., T, d_v) -> dquery, dkey, dvalue.

    query (..., T, d_k), key (..., S, d_k), value (..., S, d_v),
    weights (..., T, S).
    """
    d_k = query.shape[-1]
    dvalue = weights.swapaxes(-1, -2) @ doutput
    dweights = doutput @ value.swapaxes(-1, -2)
    expected = (weights * dweights).sum(axis=-1, keepdims=True)
    dscores = weights * (dweights - expected) / len(weights)
    dscores = dscores / math.sqrt(d_k)
    dquery = dscores @ key
    dkey = dscores.swapaxes(-1, -2) @ query
    return dquery, dkey, dvalue


MENDED_MISTAKES = [
    Mistake(
        mended_attention_backward,
        "It still does what it did. dvalue is right, dquery and dkey are too small, every entry by "
        "the same factor. So one line is wrong that both come through and dvalue does not. Find "
        "out the factor from two batches of different size, and ask who needs that division.",
    ),
    Mistake(
        divided_by_batch(0, 1, 0),
        "Half mended: dkey is still too small. Both gradients came through the line that was "
        "wrong, so one change at that line mends both. What you changed comes after it.",
    ),
    Mistake(
        divided_by_batch(1, 0, 0),
        "Half mended: dquery is still too small. Both gradients came through the line that was "
        "wrong, so one change at that line mends both. What you changed comes after it.",
    ),
    Mistake(
        divided_by_batch(1, 1, 1),
        "Now all three agree, and all three are wrong: dvalue was right before. The batch size "
        "belongs in none of them, since sequences of a batch do not meet in attention.",
    ),
    Mistake(
        divided_by_batch(-1, -1, 0),
        "Now dquery and dkey are too large, by as much as they were too small. Turning a wrong "
        "factor round does not mend it. Ask which factor the derivation has there.",
    ),
    Mistake(
        altered(scaled=lambda v: v.dscores / v.weights.shape[-2] / math.sqrt(v.query.shape[-1])),
        "Now dquery and dkey are divided by the number of queries in place of that of sequences. "
        "Each query has a softmax of its own and each attends by itself: ask whether there is "
        "anything to take a mean of.",
    ),
    Mistake(
        altered(scaled=lambda v: v.dscores / v.weights.shape[-1] / math.sqrt(v.query.shape[-1])),
        "Now dquery and dkey are divided by the number of keys in place of that of sequences. A "
        "softmax's weights add up to 1 already: ask whether there is anything to take a mean of.",
    ),
    Mistake(
        altered(scaled=lambda v: v.dscores / v.weights.shape[1] / math.sqrt(v.query.shape[-1])),
        "Now dquery and dkey are divided by the number of heads in place of that of sequences. "
        "Heads do not meet in attention either: ask whether there is anything to take a mean of.",
    ),
    Mistake(
        altered(
            scaled=lambda v: v.weights * v.dweights / len(v.weights) / math.sqrt(v.query.shape[-1])
        ),
        "The sum that you took out was right, and what is wrong is still there. A row of weights "
        "adds up to 1, and the sum is what this costs. Put it back and look at the rest of that "
        "line.",
    ),
    *ATTENTION_MISTAKES,
]


EXERCISES = [
    Exercise(
        lesson=3,
        title="The softmax, backwards",
        task="""Write the gradient of the softmax. `weights` is what forward returned, `dweights`
the gradient that arrives there. Both have four axes, (batch, heads, T, S), and every row along the
last is a softmax of its own; where a key is masked its weight is 0. Nothing else is needed: the
scores themselves do not occur in the result.""",
        start=softmax_backward,
        case=a_softmax,
        mistakes=SOFTMAX_MISTAKES,
        done="A masked key gets the gradient 0, because its weight is 0. Attention's backward "
        "needs this function as one of its steps.",
    ),
    Exercise(
        lesson=3,
        title="Attention, backwards",
        task="""Write the whole backward of scaled dot-product attention: read forward upwards. The
mask needs no line, because what was masked has the weight 0. You may call your `softmax_backward`.
The arrays have four axes, (batch, heads, T, S) for the weights; T differs from S, and $d_k$ from
$d_v$.""",
        start=attention_backward,
        case=an_attention,
        mistakes=ATTENTION_MISTAKES,
        done="That is the whole way back through attention, with masked keys and with T unlike S. "
        "The library's backward does the same, with dropout besides.",
    ),
    Exercise(
        lesson=3,
        title="Find the mistake",
        task="""This backward has a mistake that a published project had. Its models trained, and
its author saw nothing: the optimizer was Adam. Find the line and mend it.""",
        start=mended_attention_backward,
        case=an_attention,
        mistakes=MENDED_MISTAKES,
        done="dquery and dkey were too small and pointed the right way, and Adam divides by a "
        "gradient's size: the loss hid the mistake, and numerical gradients show it.",
    ),
]
