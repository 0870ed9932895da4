# %% [markdown]
# # Scaled dot-product attention
#
# > A word looks at other words and takes something from each. How much does it take from each?
# > And how does a mistake in the result find its way back to the word that caused it?


# %%
import functools
import math

import numpy as np

from lessons import running
from lessons.kit.lesson import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Beside,
    Picture,
    Words,
    dot_by_hand,
    scientific,
    show,
    table,
)
from lessons.kit.models import measured
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_03.attention import attention, doutput, key, keys, query, tokens, value
from lessons.lesson_03.exercises import EXERCISES
from lessons.lesson_03.retrieval import SCORES, WIDTHS
from numformer import ScaledDotProductAttention
from numformer.gradient_check.gradients import check
from numformer.paper.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.softmax import softmax
from numformer.paper.softmax import softmax_backward as library_softmax_backward


@show
def stepper() -> Simulation:
    """The simulation: forward and backward, with the numbers of the example."""
    return attention


# %% [markdown]
# Read the sentence *the cat, it purrs*. To know what *it* means, you looked back at *cat*. Nobody
# told you how far back to look. You looked for a noun, and *cat* was one.
#
# Attention does this with numbers. A model reads a text as *tokens*; here each word is a token.
# Each token has three vectors:
#
# - a **query**: what it looks for,
# - a **key**: what it offers to the tokens that look,
# - a **value**: what it hands over when it is looked at.
#
# Go through the forward steps of the figure now. In it, the **temperature** divides all scores:
# below 1 it makes the weights sharper, above 1 flatter. The text then takes the same steps, slowly.
# At the end you will have derived every line of the backward pass and written it yourself.
#
# ## Four tokens
#
# In a trained model each of these vectors is the token's own vector times a learned matrix. We
# chose ours by hand, so you can read them ([figure](#step-inputs)). The three numbers of a query or
# key stand for *article*, *noun*, *verb*. *the* looks for its noun. *cat* looks for its article,
# and a little for a verb. *it* looks for a noun, and not for an article. *purrs* looks for its
# subject: a noun and no other verb.
#
# *cat* offers a noun (2). *it* offers half as much (1), since a pronoun stands for a noun; it is no
# verb (−1). There is one more key than there are queries: every text begins with the mark ⟨s⟩. The
# model has read this mark already, so it needs no query; but the other tokens can look at it. Its
# key and its value are all 0: it offers nothing.
#
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
# each row divides a whole into shares. The highest score gets the largest weight, but the others
# get some, too. That is what makes it *soft*.
#
# $$A_{ts} = \frac{e^{Z_{ts}}}{\sum_u e^{Z_{tu}}}$$
#
# **4. Blend.** The result of token $t$ is a weighted mean of all values, with the weights of row
# $t$.
#
# $$O = AV$$
#
# Check one entry by hand. The query of *it* is (−1, 2, 0), the key of *cat* is (0, 2, 0), so their
# score is 2 · 2 = 4. Divided by 1.73 it is 2.31. So *it* takes most from *cat*, as we wanted.
#
# Weights are positive and sum to 1. So a result never leaves the area between the values, as in
# lesson 2.


# %%
scaled = query @ key.T / math.sqrt(query.shape[-1])
weights = softmax(scaled)


# %% [markdown]
# ## Why divide by the root?
#
# Think of a query and a key whose numbers are random: independent, mean 0, variance 1. Each product
# $q_i k_i$ then has mean 0, too. Its variance is the mean of its square, which is the mean of
# $q_i^2$ times the mean of $k_i^2$: 1. A dot product adds $d_k$ such products, and variances of
# independent numbers add:
#
# $$\mathrm{Var}(q \cdot k) = \sum_{i=1}^{d_k} \mathrm{Var}(q_i k_i) = d_k$$
#
# So a typical score has the size $\sqrt{d_k}$. Dividing by $\sqrt{d_k}$ brings it back to 1,
# whatever $d_k$ is. That is all the scale does (footnote 4 of the paper).
#
# What is bad about large scores? The softmax depends only on the *differences* between scores. If
# they are large, the highest score takes nearly everything. The row is *saturated*: it hardly
# responds to a small change. Take the row of *it* and make its scores larger. Then raise the score
# of *cat* by 0.1, and see how much the weight of *cat* rises.


# %%
@show
def a_saturated_row():
    """The same row with larger and larger scores, and how it responds to a small change."""
    row, cat, rows = scaled[tokens.index("it")], keys.index("cat"), []
    for factor in (1, 2, 4, 8):
        before, after = softmax(np.array([factor * row, factor * row + 0.1 * np.eye(5)[cat]]))[
            :, cat
        ]
        rows.append((factor, f"{before:.6f}", f"{after - before:.6f}"))
    return table(["scores multiplied by", "weight of *cat*", "its rise"], rows)


# %% [markdown]
# A saturated row is sure of itself. If it is sure of the wrong token, training can hardly correct
# it: its gradient is nearly 0.
#
# Now take 400 random queries with 16 random keys each, for many $d_k$, with the scale and without.
# Send a random gradient to the weights, and see how much of it arrives at the scores of a row.


# %%
D_K = 2 ** np.arange(11)


@functools.cache
def random_attention(d_k: int, scaled: bool) -> tuple[float, float]:
    """-> the mean largest weight, the median length of a row of dscores; a row has its own keys."""
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((400, 1, d_k)), rng.standard_normal((400, 16, d_k))
    weights = softmax(query @ key.swapaxes(1, 2) / (math.sqrt(d_k) if scaled else 1))
    dscores = library_softmax_backward(rng.standard_normal(weights.shape), weights)
    return weights.max(axis=-1).mean(), np.median(np.linalg.norm(dscores, axis=-1))


@show
def what_the_scale_does():
    """The gradient of a row against d_k, with the scale and without."""
    with_it, without = (
        np.array([random_attention(d_k, scaled) for d_k in D_K]).T for scaled in (True, False)
    )

    def draw(figure):
        axes = figure.subplots()
        axes.plot(D_K, with_it[1], "o-", color=BLUE, label=r"divided by $\sqrt{d_k}$")
        axes.plot(D_K, without[1], "o-", color=ORANGE, label="not divided")
        axes.set(xlabel="$d_k$", ylabel="gradient of the scores, median", yscale="log")
        axes.set_xscale("log", base=2)
        axes.legend()

    return Picture(
        "lesson_03_gradient",
        draw,
        "Two lines against d_k. If the scores are not divided, the median gradient falls by more "
        "than four powers of ten; if they are, it stays about the same.",
        f"At $d_k = {D_K[-1]}$ a typical row of scores gets a gradient of length "
        f"{scientific(without[1, -1])} without the scale and {with_it[1, -1]:.2f} with it. On "
        f"average, the largest weight of a row is {without[0, -1]:.2f} without it, "
        f"{with_it[0, -1]:.2f} with it.",
    )


# %% [markdown]
# ## The equation and its lines
#
# The paper writes the four steps as one equation (section 3.2.1, equation 1):
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V$$
#
# One thing is not in the equation. Some tokens must not be seen. A model that writes word by word
# must not look at the words to come, or it would learn to copy them. And where sentences have
# different lengths, the shorter ones are filled up with *padding*, which means nothing. A **mask**
# says for each query which keys it may see. All other scores count as $-\infty$; we write $Z'$ for
# the scores after the mask. Since $e^{-\infty} = 0$, the weights of hidden tokens are exactly 0,
# and the rest of the row still sums to 1.
#
# Below are the library's own lines. `scores` holds first $E$, then $Z$; `weights` holds $A$. The
# result $O$ is returned without a name. Later lessons put more axes in front, for many sentences at
# once; these lines work for them unchanged.


# %%
@show
def the_lines_of_forward():
    """The library's forward, line by line."""
    return Beside(
        scaled_dot_product_attention,
        {
            "scores = matmul": r"""**Compare**, $QK^\top$: a row for each query, a column for each
                key.""",
            "scores *= 1 / math.sqrt": "**Scale.** `query.shape[-1]` is $d_k$.",
            "weights = softmax": r"""**Turn into weights**, row by row. Where the mask says False,
                the score counts as $-\infty$.""",
            "return matmul": "**Blend.** The weights are returned, too: backward will need them.",
        },
    )


# %% [markdown]
# ## The way back
#
# Now go on in the [figure](#step-upstream), and read its backward steps along with what follows.
# Training needs to know how the loss changes with each number. Write $\mathrm{d}O$ for the
# gradient of the loss with respect to $O$: a matrix of the shape of $O$. Each entry says how much
# the loss rises when the same entry of $O$ rises by a little. Whatever comes after attention hands
# us $\mathrm{d}O$, the *upstream gradient*. We have to hand $\mathrm{d}Q$, $\mathrm{d}K$ and
# $\mathrm{d}V$ to what comes before attention.
#
# Backward goes through forward's lines from the last to the first. They are of three kinds: matrix
# products, the scale and the softmax. The scale is quick: $Z = E/\sqrt{d_k}$ gives
# $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$.
#
# ### Through a matrix product
#
# Take the last step, $O = AV$ ([blend](#step-blend)). By entries it is
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
# Any matrix product goes back like this. If you forget which factor is transposed, look at the
# shapes: a gradient has the shape of its array. Where all sizes differ, only one way fits.
# (So a test should have more keys than queries, and a $d_k$ that equals neither number.)


# %%
@show
def back_through_the_blend():
    """An entry of the values' gradient and one of the weights', by hand."""
    cat, it = keys.index("cat"), tokens.index("it")
    return Words(rf"""
        By hand, the entry x of *cat* in $\mathrm{{d}}V$ is the column of *cat* in $A$ times the
        column x of $\mathrm{{d}}O$: {dot_by_hand(weights[:, cat], doutput[:, 0])}.

        And how does the loss change with the weight that *it* gives *cat*? Take the row of *cat*
        in $V$ times the row of *it* in $\mathrm{{d}}O$:
        {dot_by_hand(value[cat], doutput[it], 0, 0)}. If this weight changed alone, the loss would
        stay as it is. But a row sums to 1, so no weight changes alone. That is where the softmax
        comes in.
    """)


# %% [markdown]
# ### Through the softmax
#
# Take one row, and write $n = \sum_u e^{z_u}$ for its sum of exponentials:
#
# $$a_s = \frac{e^{z_s}}{n}$$
#
# What happens to the weight $a_s$ when a score $z_u$ rises? If $z_u$ is the score of another key,
# $u \ne s$, then only $n$ rises, and the weight shrinks. The derivative of $1/n$ is $-1/n^2$ times
# the derivative of $n$, which is $e^{z_u}$:
#
# $$\frac{\partial a_s}{\partial z_u} = -\frac{e^{z_s}\,e^{z_u}}{n^2} = -\,a_s\,a_u$$
#
# If it is the weight's own score, $u = s$, the exponential in the numerator rises as well, and its
# derivative is itself:
#
# $$\frac{\partial a_s}{\partial z_s} = \frac{e^{z_s}}{n} - \frac{e^{z_s}\,e^{z_s}}{n^2} = a_s -
# a_s^2$$
#
# These numbers form the *Jacobian*, a matrix for each row, $J = \mathrm{diag}(a) - a\,a^\top$. We
# never build it. Let $\mathrm{d}a$ be the gradient of $a$, which is a row of $\mathrm{d}A$. A score
# $z_u$ acts on every weight of its row, so its gradient collects from all of them:
#
# $$\mathrm{d}z_u = \sum_s \mathrm{d}a_s\,\frac{\partial a_s}{\partial z_u}$$
#
# Every $s$ contributes $-\,\mathrm{d}a_s\,a_s\,a_u$, and $s = u$ contributes $\mathrm{d}a_u\,a_u$
# as well. Take the common factor $a_u$ out:
#
# $$\mathrm{d}z_u = a_u\,\Bigl(\mathrm{d}a_u - \sum_s a_s\,\mathrm{d}a_s\Bigr)$$
#
# These are the steps [dA′](#step-centred) and [dZ](#step-dscaled) of the figure. The sum on the
# right is an *average* of $\mathrm{d}a$ where each entry counts by its weight. A score gets a
# positive gradient if more weight for its token would raise the loss by more than this average, and
# a negative one if by less. Three things follow:
#
# - A score whose weight is 0 gets no gradient. From this row nothing flows to a masked token.
# - A score whose weight is 1 gets none either: then the average *is* its own $\mathrm{d}a$. This is
#   saturation.
# - A row of $\mathrm{d}z$ sums to 0, since adding the same number to all scores of a row changes no
#   weight.


# %%
@show
def back_through_the_softmax():
    """The row of `it`, from the gradient of its weights to that of its scores."""
    it, cat = tokens.index("it"), keys.index("cat")
    a, da = weights[it], doutput[it] @ value.T
    dscore = library_softmax_backward(da, a)[cat]
    return Words(
        f"""
        By hand, the row of *it*: the average is {dot_by_hand(a, da)}. So the gradient of the
        score of *cat* is
        {a[cat]:.3f} · ({da[cat] + 0:.0f} − {a @ da:.2f}) ≈ {dscore:.2f}.
    """.replace("-", "−")
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
            "dvalue = ": r"""$\mathrm{d}V = A^\top\,\mathrm{d}O$. Many recipes set some weights to 0
                at random during training (*dropout*); the paper does not. With dropout, this line
                needs the weights *after* it: they are the ones that blended the values.""",
            "dweights = ": r"The other factor, $\mathrm{d}A = \mathrm{d}O\,V^\top$.",
            "dscores = softmax_backward": r"""Through the softmax:
                $\mathrm{d}Z_{tu} = A_{tu}(\mathrm{d}A_{tu} - \sum_s A_{ts}\,\mathrm{d}A_{ts})$.""",
            "dscores *= 1 / math.sqrt": r"The scale again: $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$.",
            "dquery = ": r"""Forward began with $E_{ts} = \sum_i Q_{ti}\,K_{si}$. The query of $t$
                was used in all of row $t$: $\mathrm{d}Q = \mathrm{d}E\,K$.""",
            "dkey = ": r"""The key of $s$ was used in all of *column* $s$, hence the transpose:
                $\mathrm{d}K = \mathrm{d}E^\top Q$.""",
            "return dquery": "One gradient for each input, with the shape of that input.",
        },
    )


# %% [markdown]
# ## Is it true?
#
# A derivation can be wrong, and a network with a wrong gradient often still learns, only worse. So
# check it: move an input a little, see how much the result really changes, and compare. The library
# does this for every layer; here we do it for attention, with a mask that hides later tokens.


# %%
@show
def gradient_check():
    """The explicit gradients of attention beside measured ones."""
    later_hidden = np.tri(4, 5, 1, dtype=bool)
    rows = []
    for row in check(ScaledDotProductAttention(), [query, key, value, later_hidden]):
        numbers = (f"{x:.9f}".replace("-", "−") for x in (row.explicit, row.numerical))
        rows.append((row.name, *numbers, scientific(row.error)))
    return table(
        ["gradient of", "explicit", "measured", "relative error"],
        rows,
        "Explicit: the inner product of the gradient with a random direction. Measured: how fast a "
        "fixed weighted sum of the results changes as the input moves in this direction.",
    )


# %% [markdown]
# ## In the running example
#
# Our four tokens stand for one head of self-attention. The translator of the
# [home page](index.html) has twelve such heads in its encoder. Here are the same steps in one of
# them, for one query and with the model's own numbers: forward to the weights, and back from the
# loss of the right translation to the scores.


# %%
@show
def in_the_running_example():
    """One row of a trained head: its scores, its weights and their gradients."""
    step, name, head = running.step(), "encoder.layers.1.self_attention", 2
    row = running.READ.index("bear")
    query, key, value = (
        step.out[f"{name}.sublayer.{part}"][head] for part in ("query", "key", "value")
    )
    a, root = step.weights[name][head, row], math.sqrt(query.shape[-1])
    da = step.back[f"{name}.sublayer.attention"][head, row] @ value.T
    e = key @ query[row]
    dz = library_softmax_backward(da, a)
    assert np.allclose(softmax(e / root), a)
    columns = ["key", "$e$", "$z$", "$a$", r"$1000\,\mathrm{d}a$", r"$1000\,\mathrm{d}z$"]
    numbers = np.array([e, e / root, a, 1000 * da, 1000 * dz]).T + 0.0
    rows = [
        (f"*{word}*", *(f"{x:.2f}".replace("-", "−") for x in line))
        for word, line in zip(running.READ, numbers, strict=True)
    ]
    return [
        table(columns, rows),
        Words(f"""
            *bear* asks, with $d_k = {query.shape[-1]}$ numbers, and takes {a.max():.2f} of its
            blend from *{running.READ[int(a.argmax())]}*. So its row is nearly saturated, and little
            gets through the softmax: the gradients of the weights reach {np.abs(da).max():.3f}, the
            gradients of the scores only {np.abs(dz).max():.4f}. The last column sums to 0, as it
            must.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $T$ is the number of queries, $S$ the number of keys.
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
# about three times a forward pass. And backward needs $Q$, $K$, $V$ and $A$ again, so training
# takes much more memory than using a model.


# %% [markdown]
# ## Other ways to score
#
# A query and a key can be compared in other ways. Here are two, both from 2015:
#
# - **additive** (Bahdanau et al. 2015), a small network with one hidden layer, where $W_q$, $W_k$
#   and the vector $v$ are learned: $E_{ts} = v \cdot \tanh(q_t W_q + k_s W_k)$,
# - **multiplicative** (Luong et al. 2015), a dot product with a learned matrix in between:
#   $E_{ts} = q_t W k_s^\top$. (The Transformer paper uses the word for the plain dot product, too.)
#
# The paper (section 3.2.1, after Britz et al. 2017) says that for small $d_k$ additive and
# dot-product attention do equally well, and that additive attention wins for large $d_k$ if the dot
# product is not scaled. It *suspects* saturation as the reason. Does the claim hold? Here is a
# small test (`lessons/lesson_03/retrieval.py`).
#
# Eight words of one language look for their translations among eight words of another; the model
# does not see positions. Each translation carries a random value, and its word should fetch exactly
# that value. The model starts with a random vector for each of 32 words in each language and has to
# learn which belong together. These vectors are queries and keys, so their size is $d_k$. Four
# score functions compete: the dot product with and without the scale, the multiplicative score and
# the additive one. Each trains for 100 steps, three times, with the best of the same four learning
# rates.
#
# Which of the four will fail where $d_k$ is large? Decide before you look.


# %%
@show
def four_ways_to_score():
    """Four score functions learn the same task at several widths."""
    found = measured(3)["accuracy"]
    looks = dict(
        zip(SCORES, ((BLUE, "o-"), (ORANGE, "o-"), (GREY, "s--"), (GREEN, "s--")), strict=True)
    )

    def accuracy(figure):
        axes = figure.subplots()
        for score, (color, style) in looks.items():
            ring = dict(ms=11, mfc="none", mew=2) if score == "scaled dot product" else {}
            axes.plot(WIDTHS, found[score], style, color=color, label=score, **ring)
        axes.set(xlabel="$d_k$", ylabel="share of right words, new sets", ylim=(0.5, 1.03))
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, WIDTHS)
        axes.legend(loc="lower left")

    last = {score: right[-1] for score, right in found.items()}
    # What the text below says.
    good, bad = ("scaled dot product", "additive"), ("dot product", "multiplicative")
    assert min(last[score] for score in good) > max(last[score] for score in bad) + 0.05
    return [
        Picture(
            "lesson_03_scores",
            accuracy,
            "Accuracy of four score functions against d_k. For small d_k all are near 1. At "
            f"{WIDTHS[-1]} "
            + ", ".join(f"{score} is at {right:.2f}" for score, right in last.items())
            + ".",
            "**What was learned**, tested on new sets of eight words. Each point is the mean of "
            "three runs.",
        ),
        Words(f"""
            The paper's claim holds here: at $d_k = {WIDTHS[-1]}$ the plain dot product finds
            {100 * last["dot product"]:.0f} % of the words, the scaled one
            {100 * last["scaled dot product"]:.0f} %. The multiplicative score has no scale either,
            and fails in the same way. The additive score needs no scale: the more numbers its $v$
            has, the smaller they are at first. So what counts is how large the scores are when
            training begins. One experiment is not a law: where learned matrices make queries and
            keys, the result may differ.

            Why does the Transformer not use the additive score? The paper's reason is speed and
            memory. The additive score makes a hidden vector for every *pair* of a query and a key,
            where the dot product needs one number.
        """),
    ]


# %% [markdown]
# ## Common claims, checked
#
# Some claims about attention are copied from page to page. Here is what you get when you compute
# them.


# %%
def printed(numbers) -> str:
    return "[" + ", ".join(f"{number + 0.0:.3g}" for number in numbers).replace("-", "−") + "]"


@show
def common_claims():
    """Popular claims, computed again."""
    copied, right = [0.399, 0.179, 0.327, 0.066], softmax(np.array([0.9, 0.1, 0.7, -0.9]))
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(np.full(4, -np.inf))
        all_hidden = exponentials / exponentials.sum()
    nothing = softmax(np.zeros(4), np.zeros(4, dtype=bool))
    allowed = np.tri(4, 5, 1, dtype=bool)
    before, after = softmax(scaled, allowed), weights * allowed
    return Words(f"""
        **“softmax([0.9, 0.1, 0.7, −0.9]) is {printed(copied)}.”** It is {printed(right)}. The
        copied numbers sum to {sum(copied):.3f}, so every blend made with them is too small.

        **“A row of −∞ is harmless.”** Where *every* key of a row is masked, the formula divides 0
        by 0, and that is {all_hidden[0]}: not a number. One such row is enough: after the next
        training step nearly every parameter of the model is {all_hidden[0]}. It happens: a batch
        may contain an empty sentence. numformer gives such a row the weights {printed(nothing)}. It
        attends to nothing.

        **“You may as well zero the weights after the softmax.”** Hide later tokens in our example:
        *the* may see the start and itself. Masked before the softmax, its weights are
        {printed(before[0])}. Zeroed afterwards they are {printed(after[0])}: they do not sum to 1,
        and how small they are still depends on the hidden tokens. Their gradient
        depends on these tokens, too.
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
            mistakes={
                64: "That is the variance. The standard deviation is its square root.",
                1: "That is the standard deviation of one product $q_i k_i$. The dot product adds "
                "up 64 of them.",
                1 / 8: "That is $1/\\sqrt{d_k}$, the factor that scales the scores in the paper. "
                "The question is about the scores before that.",
                math.sqrt(128): "You counted all 128 numbers. But they are multiplied in pairs, so "
                "the sum has 64 terms.",
                0: "That is the mean. The standard deviation says how far from it a typical dot "
                "product lies.",
            },
            why="Variances add, so the variance is 64. The standard deviation is its square root, "
            "8. This is the number by which the paper divides its scores: $\\sqrt{d_k}$ with $d_k "
            "= 64$.",
        ),
        Question(
            question="The scaled scores of a row are 0, 0, 1.5, 0, 0. What weight does the third "
            "key get? (Two decimals; $e^{1.5} \\approx 4.48$.)",
            answer=float(softmax(np.array([0, 0, 1.5, 0, 0]))[2]),
            mistakes={
                1: "You gave the other keys no weight. But a score of 0 is not a weight of 0: $e^0 "
                "= 1$.",
                math.exp(1.5) / (math.exp(1.5) + 1): "You counted only one of the other keys. "
                "There are four, each with $e^0 = 1$.",
                0.2: "That is an equal share for each of the five keys. The third has a higher "
                "score than the others.",
                4 / (math.exp(1.5) + 4): "That is what the other four keys get together. It is "
                "also the result if you count five of them in the sum.",
                1 / (math.exp(1.5) + 4): "That is the weight of one of the other keys.",
            },
            why="$4.48 / (4.48 + 4 \\cdot 1) \\approx 0.53$. Four keys with score 0 still get a "
            "weight each, since $e^0 = 1$.",
        ),
        Question(
            question="There are 5 queries and 7 keys; $d_k = 64$, $d_v = 32$. How many numbers "
            "does $\\mathrm{d}K$ hold?",
            answer=7 * 64,
            mistakes={
                7 * 32: "That is the size of $\\mathrm{d}V$. A value has $d_v$ numbers, a key has "
                "$d_k$.",
                5 * 64: "That is the size of $\\mathrm{d}Q$, with a row for each query. "
                "$\\mathrm{d}K$ has a row for each key.",
                5 * 7: "That is the size of the scores, one for each pair of query and key. A key "
                "has $d_k$ numbers.",
                5 * 32: "That is the size of the output $O$, with a row for each query.",
                64: "That is one row. $\\mathrm{d}K$ has a row for each key.",
                5 * 7 * 64: "Every query contributes to the gradient of every key, but the "
                "contributions are added up. They are not kept apart.",
            },
            why="A gradient has the shape of its array: $K$ is (7, 64), so $\\mathrm{d}K$ "
            "holds 448 numbers.",
        ),
        Question(
            question="What does a row of $\\mathrm{d}Z$, the gradient after the softmax's "
            "backward, sum to?",
            choices={
                "1": "A row of *weights* sums to 1, because weights are shares of a whole. A "
                "gradient is not made of shares.",
                "0": "",
                "the row's sum of $\\mathrm{d}A$": "That would be so if backward left the gradient "
                "unchanged at the softmax. But it subtracts the row's average and multiplies by "
                "the weights.",
                "it depends on the row": "The entries depend on the row, but their sum does not. "
                "Add the same number to all scores of a row: what happens to its weights?",
            },
            answer=1,
            why="Adding the same number to all scores of a row leaves its weights as they are. So "
            "the loss cannot change in that direction. Its slope there, the sum of the row, is 0.",
        ),
        Question(
            question="You test your softmax backward with an upstream gradient of ones, and get 0 "
            "everywhere, as you should. What may still be wrong?",
            choices={
                "nothing": "The right result looks like a proof. But a function that always "
                "returns 0 would pass this test, too.",
                "the sign of the whole result, or a factor in front of it": "",
                "the axis of the sum": "This mistake is common, but the test shows it: the weights "
                "of a column hardly ever sum to 1, so the result would not be 0.",
            },
            answer=1,
            why="The weights of a row always sum to 1, so with ones the right gradient is 0, and 0 "
            "times any factor is 0. A random upstream gradient shows such mistakes.",
        ),
        Question(
            question="In a row one weight is 0.999. How large is the gradient that its scores get, "
            "compared with a row of four equal weights?",
            choices={
                "larger": "A large weight is indeed a large factor. But it multiplies a difference "
                "from the average, and the average almost equals its own $\\mathrm{d}a$.",
                "about the same": "The same upstream gradient reaches both rows. But each entry is "
                "multiplied by its weight and by a difference from the average, and in a saturated "
                "row one of the two is tiny.",
                "very much smaller": "",
            },
            answer=2,
            why="An entry of the gradient is $a_u$ times a difference from the average. For the "
            "large weight the difference is nearly 0, for the others $a_u$ is nearly 0. This is "
            "saturation, and the reason for the scale.",
        ),
        Question(
            question="With dropout on the weights, what does $\\mathrm{d}V$ need?",
            choices={
                "the weights before dropout": "These are the weights of the softmax, but they did "
                "not blend the values. A value whose weight was dropped would get a gradient "
                "although it was not used.",
                "the weights after dropout": "",
                "either": "Without dropout the two are the same. With dropout they differ: some "
                "weights have become 0, and the others are larger.",
            },
            answer=1,
            why="$\\mathrm{d}V = A^\\top\\,\\mathrm{d}O$ with the $A$ that really blended the "
            "values. Published projects have got this wrong.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 3 mine.py` writes them into a file, and `python -m lessons check 3 mine.py` checks
# your answers.
#
# The checker moves the inputs a little and measures, as above. Where a gradient is wrong, it tries
# to name the mistake.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/paper/attention.py`: the lines of this lesson, and further down the multi-head
#   attention of lesson 4.
# - *Attention Is All You Need*, section 3.2.1 with its footnote 4: what you have just read, in half
#   a page.
# - Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and
#   Translate*: where attention came from.
# - Lesson 4: why one look is not enough.
