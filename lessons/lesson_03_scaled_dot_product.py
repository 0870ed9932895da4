# %% [markdown]
# # Scaled dot-product attention
#
# > A word looks at other words and takes something from each. How much from which? And how does a
# > mistake in the result find its way back to the word that caused it?


# %%
import math

import numpy as np

from lessons.kit.lesson import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Beside,
    Matrix,
    Picture,
    Words,
    scientific,
    show,
    table,
)
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_03.attention import (
    attention,
    doutput,
    features,
    key,
    keys,
    query,
    tokens,
    value,
)
from lessons.lesson_03.exercises import EXERCISES
from lessons.lesson_03.retrieval import compare
from numformer import AdditiveScore, MultiplicativeScore, ScaledDotProductAttention
from numformer.gradient_check.gradients import check
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax, softmax_backward


@show
def stepper() -> Simulation:
    """The simulation: forward and backward, with the numbers of the example."""
    return attention


# %% [markdown]
# Read the sentence *the cat, it purrs*. To know what *it* means, you looked back at *cat*. Nobody
# told you how far back. You looked for a noun, and *cat* was one.
#
# Attention does this with numbers. A model reads a text as *tokens*; here each word is one. Each
# token has three vectors:
#
# - a **query**: what it looks for,
# - a **key**: what it offers to those who look,
# - a **value**: what it hands over when it is looked at.
#
# The steps above compute attention for these tokens, first forward and then backward, with numbers
# small enough to check by hand. Go through the forward steps now. There is a **temperature**, too:
# it divides all scores once more. Below 1 it makes the weights sharper, above 1 flatter. And there
# is a mask, which the library applies inside its softmax.
#
# The text takes the same steps, slowly. At the end you have derived every line of the backward pass
# and written it yourself.


# %% [markdown]
# ## Four tokens
#
# In a trained model each of these vectors is the token's own vector times a learned matrix. Here we
# choose them so that they mean something. The three numbers of a query or key stand for *article*,
# *noun*, *verb*. *the* looks for its noun. *cat* looks for its article, and a little for a verb.
# *it* looks for a noun and not for an article. *purrs* looks for its subject: a noun and no other
# verb.
#
# *cat* offers a noun (2). *it* offers a little of one (1), because a pronoun may stand for a noun,
# and is no verb (−1). There is one more key than there are queries: every text begins with the mark
# ⟨s⟩. It was read before, so nobody needs its result any more, but the others can look at it. Its
# vectors are all 0: it offers nothing.


# %%
@show
def the_three_vectors_of_each_token():
    """The example: what each token looks for, offers and hands over."""
    return [
        Matrix("Q", query, tokens, features),
        Matrix("K", key, keys, features),
        Matrix("V", value, keys, ["x", "y"]),
    ]


# %% [markdown]
# Query and key have the same number of entries, $d_k = 3$, because they are compared with each
# other. A value may have another size, $d_v$; here it is 2.
#
# ## Four steps
#
# **1. Compare.** The score of a query and a key is their dot product. It is large where the key
# offers what the query looks for. All scores at once are one matrix product: row $t$ of $E$ belongs
# to the query of token $t$, column $s$ to the key of token $s$.
#
# $$E = QK^\top$$
#
# **2. Scale.** Each score is divided by $\sqrt{d_k}$, here by $\sqrt 3 \approx 1.73$. The next
# section shows why.
#
# $$Z = \frac{E}{\sqrt{d_k}}$$
#
# **3. Turn scores into weights.** The softmax makes every entry positive and every row sum to 1, so
# that a row tells how a whole is shared out. The highest score gets the largest weight, but no
# weight is 0. That is what makes it *soft*.
#
# $$A_{ts} = \frac{e^{Z_{ts}}}{\sum_u e^{Z_{tu}}}$$
#
# **4. Blend.** The result of token $t$ is a mean of all values; its row of weights says how much of
# each.
#
# $$O = AV$$
#
# Before you look at the numbers: which token will *it* take most from? And *purrs*?


# %%
scores = query @ key.T
scaled = scores / math.sqrt(query.shape[-1])
weights = softmax(scaled)
output = weights @ value


@show
def four_steps():
    """The four steps on the example, equal to the library's result."""
    assert np.allclose(output, ScaledDotProductAttention().forward(query, key, value))
    return [
        Matrix("E", scores, tokens, keys, 4),
        Matrix("Z", scaled, tokens, keys, 4),
        Matrix("A", weights, tokens, keys, 1),
        Matrix("O", output, tokens, ["x", "y"]),
    ]


# %% [markdown]
# *it* takes most from *cat*, as we wanted. So does *purrs*, but it takes a lot from *it*, too: both
# could be its subject.
#
# Check one entry by hand. The query of *it* is (−1, 2, 0), the key of *cat* is (0, 2, 0), so their
# score is 2 · 2 = 4. Divided by 1.73 it is 2.31.
#
# Weights are positive and sum to 1. So a result never leaves the area between the values, as in
# lesson 2: it is a mixture of what is there, and nothing else.


# %% [markdown]
# ## Why divide by the root?
#
# Think of a query and a key whose numbers are random: independent, mean 0, variance 1. Each product
# $q_i k_i$ then has mean 0, too. Its variance is the mean of its square, which is the mean of
# $q_i^2$ times that of $k_i^2$: 1. A dot product adds $d_k$ such products, and variances of
# independent numbers add:
#
# $$\mathrm{Var}(q \cdot k) = \sum_{i=1}^{d_k} \mathrm{Var}(q_i k_i) = d_k$$
#
# So a typical score has size $\sqrt{d_k}$. Dividing by $\sqrt{d_k}$ brings it back to 1, whatever
# $d_k$ is. That is all that the scale does (footnote 4 of the paper).
#
# What is bad about large scores? The softmax looks at *differences*. If they are large, the highest
# score takes nearly everything. The row is *saturated*: it hardly responds to a small change. Take
# the row of *it* and make its scores larger. Then raise the score of *cat* by 0.1, and see how much
# the weight of *cat* rises.


# %%
@show
def a_saturated_row():
    """The same row with larger and larger scores, and how it answers to a small change."""
    row, cat = scaled[tokens.index("it")], keys.index("cat")
    found = []
    for factor in (1, 2, 4, 8):
        before, after = softmax(np.array([factor * row, factor * row + 0.1 * np.eye(5)[cat]]))
        found.append(
            (
                f"{factor}",
                ", ".join(f"{score:.3g}" for score in factor * row),
                f"{before[cat]:.6f}",
                f"{after[cat] - before[cat]:.6f}",
            )
        )
    return table(["scores times", "scores of *it*", "weight of *cat*", "its rise"], found)


# %% [markdown]
# A saturated row is sure of itself. If it is sure of the wrong token, no small change can tell it:
# the gradient is nearly 0, and there is nothing to learn from.
#
# Now 400 random queries with 16 random keys each, for many $d_k$, with the scale and without. Look
# at the variance of the scores and at the largest weight of a row. Then send a random gradient to
# the weights, and see how long the gradient is that arrives at the scores of a row.


# %%
WIDTHS = 2 ** np.arange(11)


def random_attention(d_k: int, scaled: bool, rng: np.random.Generator):
    """400 random queries, each with 16 random keys of its own.

    -> scores and weights (400, 1, 16), and the lengths (400,) of dscores and of dquery.
    """
    query, key = rng.standard_normal((400, 1, d_k)), rng.standard_normal((400, 16, d_k))
    scale = 1 / math.sqrt(d_k) if scaled else 1.0
    scores = scale * query @ key.swapaxes(1, 2)
    weights = softmax(scores)
    dweights = rng.standard_normal(weights.shape)
    dscores = softmax_backward(dweights, weights)
    dquery = scale * dscores @ key
    return scores, weights, *(np.linalg.norm(x, axis=-1).ravel() for x in (dscores, dquery))


@show
def what_the_scale_does():
    """Variance, saturation and gradient against d_k, with the scale and without."""
    measured = {}
    for scaled in True, False:
        rng = np.random.default_rng(3)
        runs = [random_attention(d_k, scaled, rng) for d_k in WIDTHS]
        scores, weights, dscores, dquery = (list(column) for column in zip(*runs, strict=True))
        carried = np.sort(dscores[-1])[::-1].cumsum()  # by the rows with the largest
        measured[scaled] = {
            "variance": [x.var() for x in scores],
            "largest": [x.max(axis=-1).mean() for x in weights],
            "gradient": [np.median(x) for x in dscores],
            "query": dquery[-1],
            # How many of the rows carry nine tenths of the gradient.
            "carriers": 1 + int((carried < 0.9 * carried[-1]).sum()),
        }

    def curves(name, label, scale):
        def draw(figure):
            axes = figure.subplots()
            for scaled, color in ((True, BLUE), (False, ORANGE)):
                words = r"divided by $\sqrt{d_k}$" if scaled else "as it is"
                axes.plot(WIDTHS, measured[scaled][name], "o-", color=color, label=words)
            axes.set(xlabel="$d_k$", ylabel=label, yscale=scale)
            axes.set_xscale("log", base=2)
            axes.legend()

        return draw

    with_it, without, first, last = measured[True], measured[False], WIDTHS[0], WIDTHS[-1]
    return [
        Picture(
            "lesson_03_variance",
            curves("variance", "variance of a score", "log"),
            f"Two lines against d_k from {first} to {last}. Undivided, the variance rises in "
            "proportion to d_k; divided, it stays at 1.",
            f"**Variance.** At $d_k = {last}$ it is {without['variance'][-1]:.0f} without the "
            f"scale and {with_it['variance'][-1]:.2f} with it.",
        ),
        Picture(
            "lesson_03_saturation",
            curves("largest", "largest weight of a row", "linear"),
            "Two lines against d_k. Undivided, the largest of 16 weights rises towards 1; divided, "
            "it stays near a quarter.",
            f"**Saturation.** With 16 keys the largest weight is {without['largest'][-1]:.2f} "
            f"without the scale, {with_it['largest'][-1]:.2f} with it.",
        ),
        Picture(
            "lesson_03_gradient",
            curves("gradient", "gradient of the scores, median", "log"),
            "Two lines against d_k. Undivided, the median gradient falls by more than four powers "
            "of ten; divided, it stays the same.",
            f"**Gradient.** What reaches a typical row of scores has the length "
            f"{scientific(without['gradient'][-1])} without the scale and "
            f"{with_it['gradient'][-1]:.2f} with it (medians).",
        ),
        Words(f"""
            The median tells of a typical row: without the scale almost nothing flows through it.
            A few rows still have two scores that happen to be close, and these few carry the
            gradient: nine tenths of it come from {without["carriers"]} of the 400 rows. With the
            scale they come from {with_it["carriers"]}.

            On its way to a query the gradient is multiplied by keys, and these grow longer with
            $d_k$. So at $d_k = {last}$ a typical query gets a gradient of length
            {scientific(np.median(without["query"]))} without the scale
            (with it {np.median(with_it["query"]):.2f}), but the mean is
            {without["query"].mean():.1f} (with it {with_it["query"].mean():.2f}). Most queries
            learn nothing, and a few are thrown far.
        """),
    ]


# %% [markdown]
# ## The equation and its lines
#
# The paper writes the four steps as one equation (section 3.2.1, equation 1):
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V$$
#
# One thing is not in the equation. Some tokens must not be seen. A model that writes word by word
# must not look at the words to come, or it would learn to copy them. And sentences of different
# lengths are padded to the same length with *padding*, which means nothing. A **mask** says for
# each query which keys it may see. The scores of all others count as $-\infty$. We write $Z'$ for
# the scores after the mask. Since $e^{-\infty} = 0$, the weights of what is hidden are exactly 0,
# and the rest of the row still sums to 1.
#
# Below are the library's own lines, taken from its source. In the code `scores` holds first $E$,
# then $Z$, and `weights` holds $A$. The result $O$ is returned without a name. Later lessons put
# more axes in front, for many sentences at once; these lines carry them along.


# %%
@show
def the_lines_of_forward():
    """The library's forward, line by line."""
    return Beside(
        scaled_dot_product_attention,
        {
            "scores = matmul": r"""**Compare.** $Q$ has a row of $d_k$ numbers for each query, $K$
                for each key. $QK^\top$ has a row for each query and a column for each key.""",
            "scores *= 1 / math.sqrt": """**Scale.** `query.shape[-1]` is $d_k$. The array of scores
                is ours alone, so it may be changed in place.""",
            "if position_bias": """Not in the paper: what later models add to each score for how far
                apart query and key are (lesson 5). Without it nothing happens here.""",
            "weights = softmax": r"""**Turn into weights**, row by row. Where the mask says False,
                the score counts as $-\infty$.""",
            "dropped = dropout": """Dropout sets some weights to 0 at random while a model is
                trained. The paper does not do this here, many recipes do. Without it `keep` is
                None, and `dropped` is `weights`.""",
            "return matmul": """**Blend.** One row of $d_v$ numbers for each query. What backward
                will need is returned beside it.""",
        },
    )


# %% [markdown]
# ## The way back
#
# Now go on in the [stepper](#step-upstream), and read its backward steps side by side with what
# follows. Training needs to know how the loss $L$ changes with each number. Write $\mathrm{d}O$ for
# the gradient of the loss with respect to $O$: a matrix of the shape of $O$ whose entry says how
# much $L$ rises when that entry of $O$ rises by a little. Whatever comes after attention hands us
# $\mathrm{d}O$, the *upstream gradient*. To what comes before it we owe $\mathrm{d}Q$,
# $\mathrm{d}K$ and $\mathrm{d}V$.
#
# Backward is forward read upwards. There are three kinds of steps to go back through: a matrix
# product, the scale and the softmax. The scale is quick: $Z = E/\sqrt{d_k}$ gives $\mathrm{d}E =
# \mathrm{d}Z/\sqrt{d_k}$. In our example we take a $\mathrm{d}O$ without any pattern.
#
# ### Through a matrix product
#
# Take the last step, $O = AV$ ([blend](#step-blend) in the simulation). By entries it is
#
# $$O_{tj} = \sum_s A_{ts}\,V_{sj}$$
#
# Ask where $V_{sj}$ is used: in $O_{tj}$ of *every* token $t$, each time with the factor $A_{ts}$.
# By the chain rule each use contributes its factor times the gradient of its result, and the
# contributions add up:
#
# $$\mathrm{d}V_{sj} = \sum_t A_{ts}\,\mathrm{d}O_{tj}$$
#
# As a product of matrices that is $\mathrm{d}V = A^\top\,\mathrm{d}O$ ([step](#step-dvalue)).
#
# Ask where $A_{ts}$ is used: in $O_{tj}$ for every $j$, with the factor $V_{sj}$:
#
# $$\mathrm{d}A_{ts} = \sum_j \mathrm{d}O_{tj}\,V_{sj}$$
#
# As a product of matrices that is $\mathrm{d}A = \mathrm{d}O\,V^\top$ ([step](#step-dweights)).
#
# Nothing else is needed for any matrix product. If you forget which factor is transposed, look at
# the shapes: a gradient has the shape of what it belongs to. Where all sizes differ, as in our
# example, only one way fits. (So give a test more keys than queries, and a $d_k$ of its own.)


# %%
def sum_of_products(left, right) -> str:
    """The arithmetic of a dot product, to be followed by hand."""
    factors = [f"({b:g})" if b < 0 else f"{b:g}" for b in right]
    numbers = np.array([*left, left @ right])
    digits = 0 if (numbers.round() == numbers).all() else 3  # enough to come out
    terms = " + ".join(f"{a:.{digits}f} · {b}" for a, b in zip(left, factors, strict=True))
    equals = "=" if (numbers.round(2) == numbers).all() else "≈"
    return f"{terms} {equals} {numbers[-1]:.{min(digits, 2)}f}".replace("-", "−")


@show
def back_through_the_blend():
    """The gradients of values and weights on the example."""
    dvalue, dweights = weights.T @ doutput, doutput @ value.T
    cat, it = keys.index("cat"), tokens.index("it")
    return [
        Matrix(r"\mathrm{d}O", doutput, tokens, ["x", "y"]),
        Matrix(r"\mathrm{d}V", dvalue, keys, ["x", "y"]),
        Matrix(r"\mathrm{d}A", dweights, tokens, keys),
        Words(rf"""
            By hand, the x of *cat* in $\mathrm{{d}}V$: the column of *cat* in $A$ with the column x
            of $\mathrm{{d}}O$, {sum_of_products(weights[:, cat], doutput[:, 0])}.

            And how the loss changes with the weight that *it* gives *cat*: the row of *cat* in $V$
            with the row of *it* in $\mathrm{{d}}O$, {sum_of_products(value[cat], doutput[it])}. If
            this weight changed alone, the loss would stay as it is. But a row sums to 1, so it
            cannot change alone. That is what the softmax brings in.
        """),
    ]


# %% [markdown]
# ### Through the softmax
#
# Take one row, and write $n = \sum_u e^{z_u}$ for its sum of exponentials:
#
# $$a_s = \frac{e^{z_s}}{n}$$
#
# What happens to the weight $a_s$ when a score $z_u$ rises? If it is another score, $u \ne s$, then
# only $n$ rises, and the weight shrinks. The derivative of $1/n$ is $-1/n^2$ times that of $n$, and
# that of $n$ is $e^{z_u}$:
#
# $$\frac{\partial a_s}{\partial z_u} = -\frac{e^{z_s}\,e^{z_u}}{n^2} = -\,a_s\,a_u$$
#
# If it is its own score, $u = s$, the exponential above the line rises as well, and its derivative
# is itself:
#
# $$\frac{\partial a_s}{\partial z_s} = \frac{e^{z_s}}{n} - \frac{e^{z_s}\,e^{z_s}}{n^2} = a_s -
# a_s^2$$
#
# These numbers form the *Jacobian*, a matrix for each row: $J = \mathrm{diag}(a) - a\,a^\top$,
# where $\mathrm{diag}(a)$ has $a$ on its diagonal and 0 elsewhere. Its row $s$ belongs to the
# weight $a_s$, its column $u$ to the score $z_u$. Here it is for *it*.


# %%
@show
def jacobian():
    """The Jacobian of softmax for the row of `it`, by formula and by small steps."""
    z = scaled[tokens.index("it")]
    a = softmax(z)
    formula = np.diag(a) - np.outer(a, a)
    step = 1e-5
    measured = np.array(
        [(softmax(z + step * unit) - softmax(z - step * unit)) / (2 * step) for unit in np.eye(5)]
    ).T  # a column for each score that was moved
    return [
        Matrix("J", formula, keys, keys, 1),
        Words(f"""
            These numbers come from the formula. Raise each score a little and see how the weights
            really change: the largest difference is
            {scientific(np.abs(formula - measured).max())}. Each column sums to 0: where a score
            rises, what one token gains, the others lose.
        """),
    ]


# %% [markdown]
# We never build that matrix. Let $\mathrm{d}a$ be the row of $\mathrm{d}A$ that comes from above. A
# score $z_u$ acts on every weight of its row, so its gradient collects from all of them:
#
# $$\mathrm{d}z_u = \sum_s \mathrm{d}a_s\,\frac{\partial a_s}{\partial z_u}$$
#
# Every $s$ contributes $-\,\mathrm{d}a_s\,a_s\,a_u$, and $s = u$ contributes $\mathrm{d}a_u\,a_u$
# besides. Take the common factor $a_u$ out:
#
# $$\mathrm{d}z_u = a_u\,\Bigl(\mathrm{d}a_u - \sum_s a_s\,\mathrm{d}a_s\Bigr)$$
#
# These are the steps [dA′](#step-centred) and [dZ](#step-dscaled) of the simulation. In words: the
# sum on the right is an *average* of $\mathrm{d}a$, in which each entry counts by its weight. A
# score gets a positive gradient where more weight for its token would raise the loss by more than
# this average, and a negative one where it would raise it by less. Both are in proportion to its
# weight. Three things follow:
#
# - A score whose weight is 0 gets no gradient. From this row nothing flows to a masked token.
# - A score whose weight is 1 gets none either: then the average *is* its own $\mathrm{d}a$. This is
#   saturation.
# - A row of $\mathrm{d}z$ sums to 0. Adding the same number to all scores of a row changes nothing.


# %%
@show
def back_through_the_softmax():
    """The row of `it`, from the gradient of its weights to that of its scores."""
    it = tokens.index("it")
    a, da = weights[it], doutput[it] @ value.T
    average = a @ da
    dz = softmax_backward(da, a)
    rows = np.array([a, da, da - average, dz])
    names = ["weight a", "gradient da", "da minus average", "times a: dz"]
    return [
        Matrix(r"\text{it}", rows, names, keys),
        Words(f"""
            The average is {sum_of_products(a, da)}. The last line sums to
            {abs(dz.sum()):.0f}.
        """),
    ]


# %%
@show
def the_lines_of_softmax_backward():
    """The library's backward of softmax, line by line."""
    return Beside(
        softmax_backward,
        {
            "dscores = dweights - dot_last": r"""Subtract from each entry of a row the row's
                weighted average, $\mathrm{d}A_{tu} - \sum_s A_{ts}\,\mathrm{d}A_{ts}$.""",
            "dscores *= weights": r"""Multiply by the weight: $\mathrm{d}Z_{tu} = A_{tu}\,(\ldots)$.
                This line brings the zeros of the mask.""",
            "return dscores": "The gradient of the scores, row by row.",
        },
    )


# %% [markdown]
# ### All of it
#
# Now read attention from the bottom up. Each line of backward goes back through one line of
# forward, and its comment quotes that line.


# %%
@show
def the_lines_of_backward():
    """The library's backward of attention, line by line."""
    return Beside(
        scaled_dot_product_attention_backward,
        {
            "dvalue = ": r"""Forward ended with $O = AV$. The value of $s$ was used by every token
                $t$, so its gradient collects from all of them:
                $\mathrm{d}V = A^\top\,\mathrm{d}O$. With dropout these are the weights *after* it:
                they are what the values were really blended with.""",
            "ddropped = ": r"""The other factor of the same product:
                $\mathrm{d}A = \mathrm{d}O\,V^\top$. Its entry says how much the loss rises when
                token $t$ takes a little more of value $s$.""",
            "dweights = dropout_backward": """Dropout backward: what was dropped gets no gradient.
                Without dropout nothing happens here.""",
            "dscores = softmax_backward": r"""Through the softmax:
                $\mathrm{d}Z_{tu} = A_{tu}(\mathrm{d}A_{tu} - \sum_s A_{ts}\,\mathrm{d}A_{ts})$.""",
            "dscores *= 1 / math.sqrt": r"""Forward scaled, $Z = E/\sqrt{d_k}$, so backward scales
                as well: $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$.""",
            "dquery = ": r"""Forward began with $E = QK^\top$, that is
                $E_{ts} = \sum_i Q_{ti}\,K_{si}$. The query of $t$ was used in all of row $t$:
                $\mathrm{d}Q = \mathrm{d}E\,K$.""",
            "dkey = ": r"""The key of $s$ was used in all of *column* $s$, hence the transpose:
                $\mathrm{d}K = \mathrm{d}E^\top Q$.""",
            "return dquery": """One gradient for each input, in their order, each of its input's
                shape.""",
        },
    )


# %% [markdown]
# ## Is it true?
#
# A derivation can be wrong, and a network with a wrong gradient often still learns, only worse. So
# check it: move an input a little, see how much the result really changes, and compare. The library
# does this for every layer; here for ours, with a mask that hides later tokens.


# %%
@show
def gradient_check():
    """The explicit gradients of attention beside measured ones."""
    later_hidden = np.tri(4, 5, 1, dtype=bool)
    rows = check(ScaledDotProductAttention(), [query, key, value, later_hidden])
    return table(
        ["gradient of", "explicit", "measured", "relative error"],
        [
            (
                row.name,
                *(f"{number:.9f}".replace("-", "−") for number in (row.explicit, row.numerical)),
                scientific(row.error),
            )
            for row in rows
        ],
        "Explicit: the inner product of the gradient with a random direction. Measured: how fast a "
        "fixed weighted sum of the results changes as the input moves in this direction.",
    )


# %% [markdown]
# ## To take with you
#
# $T$ is the number of queries, $S$ that of keys.
#
# | forward | backward | shape |
# |---|---|---|
# | $O = AV$ | $\mathrm{d}V = A^\top\,\mathrm{d}O$ | $(S, d_v)$ |
# | | $\mathrm{d}A = \mathrm{d}O\,V^\top$ | $(T, S)$ |
# | softmax of a row | $\mathrm{d}z_u = a_u(\mathrm{d}a_u - \sum_s a_s\,\mathrm{d}a_s)$ | $(T, S)$ |
# | $Z = E / \sqrt{d_k}$ | $\mathrm{d}E = \mathrm{d}Z / \sqrt{d_k}$ | $(T, S)$ |
# | $E = QK^\top$ | $\mathrm{d}Q = \mathrm{d}E\,K$ | $(T, d_k)$ |
# | | $\mathrm{d}K = \mathrm{d}E^\top Q$ | $(S, d_k)$ |
#
# Forward has two matrix products, backward four of the same size. That is why a training step costs
# about three times a forward pass. And backward needs $Q$, $K$, $V$ and $A$ again, which is why
# training takes so much more memory than using a model.


# %% [markdown]
# ## Other ways to score
#
# A dot product is not the only way to compare a query with a key. Two others, both from 2015:
#
# - **additive** (Bahdanau et al. 2015), a small network with one hidden layer, where $W_q$, $W_k$
#   and the vector $v$ are learned: $E_{ts} = v \cdot \tanh(q_t W_q + k_s W_k)$,
# - **multiplicative** (Luong et al. 2015, who call it "general"; the Transformer paper uses the
#   word for the plain dot product, too), a dot product with a learned matrix in between: $E_{ts} =
#   q_t W k_s^\top$.
#
# The paper (section 3.2.1, after Britz et al. 2017) says that for small $d_k$ additive and
# dot-product attention do equally well, and that additive attention wins for large $d_k$ where the
# dot product is not scaled. It *suspects* saturation as the reason. Is that so? Here is a small
# test (`lessons/lesson_03/retrieval.py`).
#
# Eight words of one language ask for their translations, which come in another order. Each
# translation carries a random value, and its word should fetch exactly that value: the loss is the
# mean squared error. The model has a vector for each of 32 words in each language, random at first,
# and has to learn which belong together. Query and key are these vectors, so their size is $d_k$.
# There are four score functions: the dot product with and without the scale, the additive and the
# multiplicative. Each trains for the same 100 steps, three times from different random numbers,
# with the best of the same four learning rates.
#
# Which of the four will fail where $d_k$ is large? Decide before you look.


# %%
def additive_with_large_v(width: int, rng: np.random.Generator) -> AdditiveScore:
    """Additive scores whose v begins with variance 1, whatever the width."""
    score = AdditiveScore(width, width, width, rng)
    score.v.data[...] = rng.standard_normal(score.v.shape)
    return score


def multiplicative_and_scaled(width: int, rng: np.random.Generator) -> MultiplicativeScore:
    """Multiplicative scores whose matrix begins smaller, by the root of d_k."""
    score = MultiplicativeScore(width, width, rng)
    score.weight.data[...] /= math.sqrt(width)
    return score


@show
def four_ways_to_score():
    """Four score functions learn the same task at several widths."""
    results = compare()
    widths = sorted({result.width for result in results})
    styles = {
        "scaled dot product": (BLUE, "o-"),
        "additive": (GREEN, "s--"),
        "dot product": (ORANGE, "o-"),
        "multiplicative": (GREY, "s--"),
    }

    def accuracy(figure):
        axes = figure.subplots()
        for score, (color, style) in styles.items():
            found = [result.accuracy.mean() for result in results if result.score == score]
            ring = dict(ms=11, mfc="none", mew=2) if score == "scaled dot product" else {}
            axes.plot(widths, found, style, color=color, label=score, **ring)
        axes.set(xlabel="$d_k$", ylabel="right word found, new sets", ylim=(0.5, 1.03))
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, widths)
        axes.legend(loc="lower left")

    def learning(figure):
        axes = figure.subplots()
        for score, (color, style) in styles.items():
            losses = [r.losses for r in results if (r.score, r.width) == (score, widths[-1])]
            axes.plot(losses[0], style[1:], color=color, label=score)
        axes.set(xlabel="step", ylabel=f"loss at $d_k = {widths[-1]}$")
        axes.legend()

    wide = {result.score: result for result in results if result.width == widths[-1]}
    dot, scaled = wide["dot product"], wide["scaled dot product"]
    others = {"large v": additive_with_large_v, "small W": multiplicative_and_scaled}
    large_v, small_w = compare(widths[-1:], scores=others)
    last = {score: wide[score].accuracy.mean() for score in styles}
    # What the text below says.
    good = [last["scaled dot product"], last["additive"], small_w.accuracy.mean()]
    bad = [last["dot product"], last["multiplicative"], large_v.accuracy.mean()]
    assert min(good) > max(bad) + 0.05
    return [
        Picture(
            "lesson_03_scores",
            accuracy,
            "Accuracy of four score functions against d_k. For small d_k all are near 1. At "
            f"{widths[-1]} "
            + ", ".join(f"{score} is at {found:.2f}" for score, found in last.items())
            + ".",
            "**What was learned.** Mean of three runs, on new sets of eight words.",
        ),
        Picture(
            "lesson_03_learning",
            learning,
            "Loss against step at the largest width. The scaled dot product falls to 0 at once, "
            "the additive score more slowly; the other two begin higher and stay above.",
            f"**How it was learned**, at $d_k = {widths[-1]}$.",
        ),
        table(
            [
                f"before the first step, $d_k = {widths[-1]}$",
                "scores, standard deviation",
                "largest weight",
                "gradient of a row, median",
            ],
            [
                (
                    score,
                    f"{wide[score].spread:.1f}",
                    f"{wide[score].largest:.3f}",
                    f"{wide[score].gradient:.4f}",
                )
                for score in styles
            ],
        ),
        Words(rf"""
            The paper's claim holds here. Without the scale the scores begin with a standard
            deviation of {dot.spread:.0f}: each word is sure of one translation, mostly of a wrong
            one. The gradient of a typical row of scores is
            {scaled.gradient / dot.gradient:.0f} times smaller than with the scale, so at first it
            hardly learns that it was wrong. It does learn, but slowly. The multiplicative score has
            no scale either, and fails in the same way.

            What decides is the size of the first scores, for every kind of score. Let the matrix
            of the multiplicative score begin $\sqrt{{d_k}}$ times smaller: it finds
            {100 * small_w.accuracy.mean():.0f} % of the words. The $v$ of the additive score begins
            the smaller the more numbers it has. Let it begin with variance 1 instead: it finds only
            {100 * large_v.accuracy.mean():.0f} %.

            One experiment is not a law. Here each word has a vector of its own, with the variance
            that the paper assumes. Where learned matrices make the queries and keys, or everything
            begins smaller, the result may differ.

            Why does the Transformer not use the additive score? The paper's reason is speed and
            memory. The additive score makes a hidden vector for every *pair* of a query and a key,
            where the dot product has one number, and no single matrix product computes it.
        """),
    ]


# %% [markdown]
# ## Often told: check it
#
# Some claims about attention are copied from page to page. Here is what you get when you compute
# them.


# %%
def printed(numbers) -> str:
    return "[" + ", ".join(f"{number + 0.0:.3g}" for number in numbers).replace("-", "−") + "]"


@show
def often_told():
    """Popular claims, computed again."""
    told_first, told_second = [0.399, 0.179, 0.327, 0.066], [0.506, 0.186, 0.113, 0.042]
    first, second = softmax(np.array([[0.9, 0.1, 0.7, -0.9], [2, 1, 0.5, -0.5]]))
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(np.full(4, -np.inf))
        all_hidden = exponentials / exponentials.sum()
    nothing = softmax(np.zeros(4), np.zeros(4, dtype=bool))

    allowed = np.tri(4, 5, 1, dtype=bool)
    before, after = softmax(scaled, allowed), weights * allowed
    dweights = np.array([0, 1.0, 0, 0, 0])  # the gradient of the weight of *the*
    right = softmax_backward(dweights, before[0])
    wrong = softmax_backward(dweights, weights[0])
    return Words(f"""
        **“softmax([0.9, 0.1, 0.7, −0.9]) is {printed(told_first)}.”** It is {printed(first)}. The
        printed numbers sum to {sum(told_first):.3f}, so whatever values they blend comes out too
        small.

        **“softmax([2, 1, 0.5, −0.5]) is {printed(told_second)}.”** It is {printed(second)}. The
        printed numbers sum to {sum(told_second):.3f}.

        **“A masked row of −∞ is harmless.”** Where *every* key of a row is masked, the formula
        divides 0 by 0, and that is {all_hidden[0]}: not a number. One such row, and after the next
        step nearly every parameter of the model is {all_hidden[0]}. It happens: a batch may contain
        an empty sentence. numformer gives such a row the weights {printed(nothing)}. It attends to
        nothing.

        **“You may as well zero the weights after the softmax.”** Hide later tokens in our example:
        *the* may see the start and itself. Masked before the softmax, its weights are
        {printed(before[0])}. Zeroed afterwards they are {printed(after[0])}: they do not sum to 1,
        and how small they are still depends on the hidden tokens. So does the gradient. Send a
        gradient of 1 to the weight of *the* itself: the scores get {printed(wrong)}, which do not
        sum to 0. Right is {printed(right)}.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="Query and key have 64 independent random numbers each, with mean 0 and "
            "variance 1. What is the standard deviation of their dot product?",
            answer=math.sqrt(64),
            why="Variances add, so the variance is 64. The standard deviation is its square root, "
            "8. This is the number that the paper's scores are divided by: $\\sqrt{d_k}$ with "
            "$d_k = 64$.",
        ),
        Question(
            question="The scaled scores of a row are 0, 0, 1.5, 0, 0. What weight does the third "
            "key get? (Two decimals; $e^{1.5} \\approx 4.48$.)",
            answer=float(softmax(np.array([0, 0, 1.5, 0, 0]))[2]),
            why="$4.48 / (4.48 + 4 \\cdot 1) \\approx 0.53$. Four keys with score 0 still get a "
            "weight each, since $e^0 = 1$.",
        ),
        Question(
            question="There are 5 queries and 7 keys; $d_k = 64$, $d_v = 32$. How many numbers "
            "does $\\mathrm{d}K$ hold?",
            answer=7 * 64,
            why="A gradient has the shape of what it belongs to: $K$ is (7, 64), so "
            "$\\mathrm{d}K$ holds 448 numbers.",
        ),
        Question(
            question="What does a row of $\\mathrm{d}Z$, the gradient after the softmax's "
            "backward, sum to?",
            choices=("1", "0", "the row's sum of $\\mathrm{d}A$", "it depends on the row"),
            answer=1,
            why="Adding the same number to all scores of a row leaves its weights as they are. So "
            "the loss cannot change in that direction, and the gradient along it, the sum, is 0.",
        ),
        Question(
            question="You test your softmax backward with an upstream gradient of ones, and get 0 "
            "everywhere, as you should. What may still be wrong?",
            choices=(
                "nothing",
                "the sign of the whole result, or a factor in front of it",
                "the axis of the sum",
            ),
            answer=1,
            why="The weights of a row always sum to 1, so with ones the right gradient is 0, and 0 "
            "times any factor is 0. A backward that returns zeros always would pass as well. A sum "
            "over the wrong axis would show. Use random upstream gradients: they see all of it.",
        ),
        Question(
            question="In a row one weight is 0.999. How large is the gradient that its scores get, "
            "compared with a row of four equal weights?",
            choices=("larger", "about the same", "very much smaller"),
            answer=2,
            why="An entry of the gradient is $a_u$ times a difference from the average. For the "
            "large weight the difference is nearly 0, for the others $a_u$ is nearly 0. This is "
            "saturation, and the reason for the scale.",
        ),
        Question(
            question="With dropout on the weights, what does $\\mathrm{d}V$ need?",
            choices=("the weights before dropout", "the weights after dropout", "either"),
            answer=1,
            why="$\\mathrm{d}V = A^\\top\\,\\mathrm{d}O$ with the $A$ that really blended the "
            "values, and that is the one after dropout. Published projects have got this wrong.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# Write the starting file, complete its functions, and let the checker tell you what it thinks:
#
# ```
# python -m lessons start 3 mine.py
# python -m lessons check 3 mine.py
# ```
#
# The checker moves the inputs a little and measures, as above. Where a gradient is wrong it tries
# to name the mistake.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/layers/attention.py`: the lines of this lesson, and further down the multi-head
#   attention of lesson 4.
# - *Attention Is All You Need*, section 3.2.1 with its footnote 4: what you have just read, in half
#   a page.
# - Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and
#   Translate*: where attention came from.
# - Lesson 4: why one look is not enough.
