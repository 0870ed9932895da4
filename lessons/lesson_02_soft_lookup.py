# %% [markdown]
# # Attention as a soft lookup
#
# > What does it mean to look something up softly? Why would one want to, and what does it cost?
#
# A dictionary has an answer for you if you know exactly what to ask for. Ask for *lemon*, and you
# find it. Ask for *lemmon*, and you find nothing.
#
# A neural network has to look things up, too. But its question is a handful of numbers that some
# layer has computed. They never fit anything exactly. And the network has to *learn* what to ask:
# someone must be able to tell it "a little more to the left, please".
#
# Attention is a lookup that can be asked anything, and that can be told so. In this lesson you
# build it from a Python dictionary in three small steps. Then you derive its gradients by hand, and
# watch a question learn to find its answer.

# %%
import numpy as np

from lessons.lesson import (
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
    statements,
    table,
)
from lessons.lesson_02.lookup import (
    DAY,
    ERROR,
    HARD,
    RATE,
    contents,
    doutput,
    jugs,
    key,
    learning,
    levels,
    lookup,
    move_the_wish,
    nearest,
    query,
    root_mean_square,
    shares,
    slope,
    smooth_the_river,
    smoothed,
    tastes,
    temperature,
    true_level,
    value,
    walk,
)
from lessons.quiz import Question
from lessons.simulation import Simulation
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.scores import dot_product_score, dot_product_score_backward
from numformer.layers.softmax import softmax, softmax_backward

# %% [markdown]
# ## Five jugs
#
# A juice bar has five jugs. On each jug is a label that tells its taste in two numbers: how sweet
# and how sour it is, compared with other juices. Inside is the juice. What matters to us about a
# glass of it are again two numbers: what it costs, and how much vitamin C it holds.
#
# A guest does not know the jugs. He says which taste he is after: a little sweet (1) and quite sour
# (2).
#
# - His wish is the **query** $q$: what is looked for.
# - A label is a **key** $k_s$: what is offered to those who look. There is one for each jug $s$.
# - The content of a jug is a **value** $v_s$: what is handed over in the end.


# %%
@show
def the_jugs():
    """The example: a wish, five labels, five contents."""
    return [
        Matrix("q", query, ["wish"], tastes, 2),
        Matrix("K", key, jugs, tastes, 2),
        Matrix("V", value, jugs, contents, 5),
    ]


# %% [markdown]
# Query and keys have equally many numbers, because they are compared with each other. Keys and
# values come in pairs. But the two need not resemble each other: what a thing is found by is not
# what it gives.
#
# ## Exact, hard, soft
#
# **Exact.** A Python dictionary finds the value whose key is *equal* to the query.


# %%
@show
def a_python_dictionary():
    """What a dictionary answers, and to whom."""
    bar = {
        tuple(k): v for k, v in zip(key.astype(int).tolist(), value.astype(int).tolist(), strict=True)
    }
    wish = tuple(query[0].astype(int).tolist())
    assert wish not in bar
    return Words(f"""
        ```
        >>> bar = {bar}
        >>> bar[(-1, 2)]
        {bar[(-1, 2)]}
        >>> bar[{wish}]
        KeyError: {wish}
        ```
    """)


# %% [markdown]
# No label says just what our guest wants, so he gets nothing.
#
# **Hard.** Let the guest have the jug that fits best. How well does a label fit? We take the dot
# product of wish and label as its *score*. It is large where the label offers much of what the wish
# asks for, and negative where it offers the opposite:
#
# $$e_s = q \cdot k_s$$
#
# For the lemon this is $1 \cdot (-1) + 2 \cdot 2 = 3$. The jug with the highest score is poured,
# the others are not.
#
# **Soft.** Let the guest have *all* jugs at once, mixed in one glass: much of a jug that fits well,
# little of one that does not. The scores have to become shares $a_s$ that are positive and sum
# to 1. The softmax does that:
#
# $$z_s = \frac{e_s}{\tau} \qquad a_s = \frac{e^{z_s}}{\sum_u e^{z_u}}$$
#
# The number $\tau$ is called the *temperature*; here it is 2. What comes into the glass is a mean
# of all contents, in which each counts by its share:
#
# $$o = \sum_s a_s\,v_s$$
#
# Before you look: the cherry has the highest score, the lemon the second. Will the glass hold more
# vitamin C than cherry juice does, or less?


# %%
weights, glass = lookup(query, temperature)
scores = dot_product_score(query, key, 1.0)


def by_hand(left, right, digits=4) -> str:
    """The arithmetic of a dot product, to be followed by hand."""
    terms = [
        f"{a:.{digits}f} · {f'({b:g})' if b < 0 else f'{b:g}'}" for a, b in zip(left, right)
    ]
    return f"{' + '.join(terms)} ≈ {left @ right:.2f}".replace("-", "−")


@show
def hard_and_soft():
    """The scores, the shares and the glass, each row by hand."""
    hard, jug = lookup(query, HARD)
    best = jugs[int(hard.argmax())]
    return [
        Matrix("e", scores, ["score"], jugs, 4),
        Matrix("z", scores / temperature, ["score / 2"], jugs, 4),
        Matrix("a", weights, ["share"], jugs, 1),
        Matrix("o", np.concatenate([jug, glass]), ["hard", "soft"], contents, 5),
        Words(f"""
            The hard lookup pours {best}: price {jug[0, 0]:g}, vitamin C {jug[0, 1]:g}. The soft one
            mixes. Its vitamin C is {by_hand(weights[0], value[:, 1])}: the lemon has so much of it
            that its share of {weights[0, 2]:.2f} more than doubles what is in the glass.
        """),
    ]


# %% [markdown]
# The shares of a glass are positive and sum to 1. So the glass never leaves the area between the
# contents: no mixture costs more than the most expensive juice.
#
# ## The temperature is a bridge
#
# Exponentials look at differences. Subtract the highest score $m$ above and below the line; nothing
# changes, since a common factor cancels:
#
# $$a_s = \frac{e^{(e_s - m)/\tau}}{\sum_u e^{(e_u - m)/\tau}}$$
#
# Now every exponent is 0 or negative. That tells what happens at both ends:
#
# - **Cold**, $\tau \to 0$: an exponent below 0 goes to $-\infty$ and its share to 0. Only the
#   highest score is left: the hard lookup.
# - **Hot**, $\tau \to \infty$: every exponent goes to 0, and $e^0 = 1$. All shares become equal,
#   whatever was asked: the mean of all contents.


# %%
@show
def temperatures():
    """The same wish from cold to hot."""
    rows = []
    for each in (0.1, 0.5, 1, 2, 4, 16, np.inf):
        share, mixed = (found[0] for found in lookup(query, each))
        numbers = [f"{x:.3f}" for x in share] + [f"{x:.2f}" for x in mixed]
        rows.append((f"{each:g}".replace("inf", "∞"), *numbers))
    mean = value.mean(axis=0)
    return [
        table(["temperature", *jugs, *contents], rows),
        Words(f"The last line is the mean of the five contents, ({mean[0]:g}, {mean[1]:g})."),
    ]


# %% [markdown]
# There is nothing between the scores and the temperature but a quotient, $q \cdot k_s / \tau$. So
# it does not matter which of the two you change: **a hot lookup is a lookup with a short query**, a
# cold one has a long query. A network can turn its own temperature by making its queries longer or
# shorter.
#
# ## The equation and its lines
#
# The Transformer's paper says it in two sentences (section 3.2): *"An attention function can be
# described as mapping a query and a set of key-value pairs to an output, where the query, keys,
# values, and output are all vectors. The output is computed as a weighted sum of the values, where
# the weight assigned to each value is computed by a compatibility function of the query with the
# corresponding key."* From here on we say *weight* for a share, as everybody does.
#
# With the keys as rows of $K$ and the values as rows of $V$ all of it is one line:
#
# $$o = \mathrm{softmax}\left(\frac{q\,K^\top}{\tau}\right) V$$
#
# This is the paper's equation 1 for one query. Its temperature is fixed, $\tau = \sqrt{d_k}$, where
# $d_k$ is how many numbers a key has; lesson 3 shows why. Here are the library's lines, for many
# queries at once, one in each row. `scale` is $1/\tau$.


# %%
@show
def the_lines_of_the_score():
    """The library's score, line by line."""
    return Beside(
        dot_product_score,
        {
            "scores = matmul": r"""**Compare** every query with every key, $e_s = q \cdot k_s$. A
                row of `scores` belongs to a query, a column to a key.""",
            "scores *= scale": r"""The temperature: $z_s = e_s / \tau$.""",
            "return scores": "One row of scores for each query.",
        },
    )


@show
def the_lines_of_softmax():
    """The library's softmax, line by line."""
    return Beside(
        softmax,
        {
            "xp = array_module": "NumPy, or CuPy where the numbers lie on a graphics card.",
            "if mask is not None": r"""Some keys may be forbidden (lesson 3). Their scores become
                $-\infty$.""",
            "highest = max_last": "The highest score of each row, $m$.",
            "highest = xp.maximum": r"""Where every key is forbidden the highest is $-\infty$. Then
                a finite number stands in for it.""",
            "weights = scores - highest": r"""$z_s - m$: at most 0, so that no exponential can
                overflow.""",
            "xp.exp": "$e^{z_s - m}$, in the place of what was there.",
            "total = sum_last": "Their sum, row by row.",
            "weights /= ": """Each divided by the sum of its row. The sum is at least 1, since the
                highest score alone adds $e^0 = 1$; only a row with all forbidden has less.""",
            "return weights": "The weights.",
        },
    )


# %% [markdown]
# The blend is one more matrix product, `matmul(weights, value)`.
#
# ## Move the wish
#
# First guess, then try:
#
# - Where must the wish be, so that the glass is pure carrot?
# - Set the temperature to 0. Move the wish slowly from the cherry to the lemon. When does the glass
#   change, and when not? Then do it at 2.
# - Put the wish in the middle, (0, 0). Does the temperature matter there?
# - Try to get a glass of mostly *apple*. Its label lies inside the area that the others span. Then
#   change the score to *distance*.


# %%
@show
def the_wish() -> Simulation:
    """Move the query, see the weights and the blend."""
    return move_the_wish


# %% [markdown]
# Did the apple ever have the largest share? By dot product it cannot. Its label (1, 0) is a mean of
# the other labels. Then its score is the same mean of the other scores, and a mean is never above
# the largest. By distance it wins wherever the wish is close to it.
#
# The two scores are less different than they look:
#
# $$-\frac12\,|q - k_s|^2 = q \cdot k_s - \frac12\,|k_s|^2 - \frac12\,|q|^2$$
#
# The last term is the same for all jugs, so the softmax does not see it. A distance is a dot
# product with a handicap for long keys. If all keys are equally long, the two agree, and then a
# dot product really finds the nearest key.
