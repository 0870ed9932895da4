# %% [markdown]
# # Position
#
# > Attention looks at all words at once. How does a model know what comes first?

# %%
import math

import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_05 import beyond
from lessons.lesson_05.exercises import EXERCISES
from lessons.lesson_05.turning import ANGLES, attend, orders, sinusoids, turning, words, x
from numformer.gradient_check.gradients import check
from numformer.later.attention.alibi import ALiBi, alibi
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.heads import QueryKeyHeads
from numformer.later.attention.rotary import Rotary, rotary, rotary_backward, rotary_turns
from numformer.later.attention.tiles import TiledAttention
from numformer.paper import SelfAttention
from numformer.paper.positions import LearnedPositions, SinusoidalPositions, sinusoidal_table
from toy_tasks import lengths


@show
def clocks() -> Simulation:
    """The simulation: pairs of numbers that turn from place to place."""
    return turning


# %% [markdown]
# ## Cards on a table
#
# *Dog bites man* is no news. *Man bites dog* is. The words are the same; only their order differs.
# Anyone who reads word by word gets the order for free. But attention has all words in front of it
# at once, like cards on a table. What does it know of their order? Nothing at all, as you will see.
# Then come four ways to tell it the order, and at the end a test: sequences longer than any in
# training.
#
# Our sentence is *old dog bites man*. Each word is a vector of 8 numbers, a row of the matrix $X$.


# %%
@show
def the_words():
    """The example: four words, each a vector."""
    return Matrix("X", x, words, range(8))


# %% [markdown]
# The words attend to each other, as in [lesson 3](lesson_03_scaled_dot_product.html). To keep the
# numbers few, we leave out the learned matrices: queries, keys and values are all $X$.
#
# $$E = XX^\top, \quad A = \mathrm{softmax}\left(\frac{E}{\sqrt{8}}\right), \quad O = AX$$
#
# Now put the same cards down in another order: *old man bites dog*. Who is old now? **Before you
# look: which weights will change?**


# %%
OTHER = [0, 3, 2, 1]  # old man bites dog


@show
def two_orders():
    """The weights for two orders of the words: each word keeps its weights and its output."""
    (first, before), (second, after) = (attend(rows) for rows in (x, x[OTHER]))
    names = [words[n] for n in OTHER]
    moved = np.abs(first - second[np.argsort(OTHER)]).max()
    dog = ", ".join(f"{number:.2f}" for number in first[1, :4])
    return [
        Matrix("A", before, words, words, 1),
        Matrix("A'", after, names, names, 1),
        Words(f"""
            The numbers have only moved. In both sentences *dog* gives *man* the weight
            {before[1, 3]:.2f}, and *old* gives *dog* {before[0, 1]:.2f}, whether they are
            neighbours or not. (By hand: the score of *dog* and *man* is 2 · 2 + 1 · 1 + 1 · 1 = 6,
            wherever they stand.) So the output of *dog* stays the same, too: it begins with {dog}.
            The largest change in any output is {moved:.0g}.
        """),
    ]


# %% [markdown]
# Is that always so? Write $P$ for the matrix that reorders the rows: each row of $P$ has one entry
# 1, and the rest are 0. $PX$ is the reordered sentence, and $P^\top$ restores the old order. So
# $P^\top P$ is the identity.
#
# - The scores are $(PX)(PX)^\top = P\,E\,P^\top$: rows and columns are reordered, nothing else.
# - The softmax works on one row at a time, and does not care which entry comes first. So
#   $A' = P\,A\,P^\top$.
# - In the output, $P^\top$ and $P$ in the middle cancel:
#
# $$A'\,PX = P\,A\,P^\top P\,X = P\,A\,X = P\,O$$
#
# Reorder the input, and the output is reordered in the same way: *permutation equivariance*.
# Learned matrices do not change this, because they stand on the right: $(PX)W = P(XW)$. Nor do the
# other parts of an encoder (lesson 6), which treat each word by itself. To such an encoder, however
# deep, a sentence is a bag of words.


# %%
@show
def other_orders() -> Simulation:
    """The simulation: the same words in several orders, without positions and with them."""
    return orders


# %% [markdown]
# Try *only a causal mask*, too. With this mask (lesson 7) the first word sees one word, the second
# sees two. So a model with such a mask can learn something about order with no positions at all.
# The experiments at the end show how much.
#
# ## A clock with many hands
#
# The paper makes a vector for each place, as wide as a word's, and **adds** it to the word that
# stands there. Then *dog* at place 1 and *dog* at place 3 are different vectors, and attention can
# tell them apart. But which vector for which place?
#
# - The number $p$ itself? It grows without limit. At place 500 it would drown the word.
# - The place divided by the length? Then a step means something else in each sentence.
#
# We want numbers that stay small and never repeat, and a step should be the same step everywhere. A
# clock does that: the fast hand tells near times apart, the slow hand tells far times apart.
#
# The paper's clock (section 3.5) has $D/2$ hands, where $D$ is the width of a word's vector. Hand
# $i$ moves on by the angle $f_i = 10000^{-2i/D}$ at each place. Its tip gives two numbers: how far
# right it is, and how far up.
#
# $$\mathrm{PE}(p, 2i) = \sin(p f_i)$$
#
# $$\mathrm{PE}(p, 2i+1) = \cos(p f_i)$$
#
# Our width of 8 gives four hands, one for each of [the clocks](#turning), and the angles come out
# round: 1, 0.1, 0.01, 0.001. (In radians; a full turn is 2π.) By hand, place 2: the first pair is
# $\sin 2 = 0.91$ and $\cos 2 = -0.42$, the second $\sin 0.2 = 0.20$ and $\cos 0.2 = 0.98$.


# %%
@show
def heatmap() -> Simulation:
    """The simulation: sinusoids as a heatmap, and how alike places are."""
    return sinusoids


# %% [markdown]
# ### Bounded, and never twice the same
#
# **Bounded.** The tip of a hand is always at distance 1 from the middle: $\sin^2 + \cos^2 = 1$.
# With $D/2$ hands, $\mathrm{PE}(p)$ has the length $\sqrt{D/2}$ at every place, the first or the
# millionth.
#
# **Unique.** The first hand moves by 1, and π is irrational, so no whole number of steps makes a
# whole number of turns. But it can come close.


# %%
@show
def never_twice():
    """How close two places come, by the first hand alone and by all."""
    pe = sinusoidal_table(5000, 64)
    pair, whole = (np.linalg.norm(each - each[0], axis=1) for each in (pe[:, :2], pe))
    near = 1 + pair[1:1000].argmin()
    return Words(f"""
        After {near} places the first hand has made {near / (2 * np.pi):.4f} turns: it is only
        {pair[near]:.5f} from where it began. But not all hands are so close: at width 64 the
        vectors of these two places are {whole[near]:.1f} apart. Of the first {len(pe):,} places
        none is closer to place 0 than place 1, which is {whole[1]:.2f} away.
    """)


# %% [markdown]
# ### A step is a turn
#
# How do you get from the vector of a place to the one $k$ places later? Turn each hand a little
# further, always by the same angle, wherever it points. In formulas these are the addition theorems
# of sine and cosine. For hand $i$, with $f$ for $f_i$:
#
# $$\sin((p+k)f) = \cos(kf)\,\sin(pf) + \sin(kf)\,\cos(pf)$$
#
# $$\cos((p+k)f) = -\sin(kf)\,\sin(pf) + \cos(kf)\,\cos(pf)$$
#
# Each new number is a fixed row times the two old numbers. The rows are $(\cos kf, \sin kf)$ and
# $(-\sin kf, \cos kf)$: they depend on $k$ and $f$, but not on $p$. Together they are a block of
# 2 × 2. Put one such block for each hand along the diagonal of a matrix $M_k$, and you have
#
# $$\mathrm{PE}(p+k) = M_k\,\mathrm{PE}(p)$$
#
# $M_k$ turns each pair and keeps its length: it is a *rotation*. The matrix that turns back is
# $M_{-k}$, which is $M_k^\top$.


# %%
def step(k: int, width: int) -> np.ndarray:
    """M_k (D, D): PE(p + k) = M_k PE(p) for every p."""
    made = np.zeros((width, width))
    for i in range(0, width, 2):
        sin, cos = (turn(k * 10000 ** (-i / width)) for turn in (math.sin, math.cos))
        made[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return made


@show
def one_matrix_for_all_places():
    """M_1 at width 8, and the largest difference at width 64."""
    pe = sinusoidal_table(200, 64)
    far = max(np.abs(pe[k : k + 100] - pe[:100] @ step(k, 64).T).max() for k in range(100))
    return [
        Matrix("M_1", step(1, 8), range(8), range(8), 1),
        Words(f"""
            At width 64, for the first 100 places and all steps up to 99, $M_k \\mathrm{{PE}}(p)$
            and $\\mathrm{{PE}}(p+k)$
            differ by {scientific(far)} at most.
        """),
    ]


# %% [markdown]
# The paper hopes that this lets a model look at *relative* places. Let $M_{-1}$ be the learned
# matrix of the queries: the query of place $p$ is $M_{-1}\mathrm{PE}(p) = \mathrm{PE}(p-1)$, so it
# asks for the place before, everywhere. Whether training *finds* such a matrix is another question.
#
# ### How similar are two places?
#
# Take the dot product of two places, $p$ and $q$. Each hand contributes
#
# $$\sin(pf)\,\sin(qf) + \cos(pf)\,\cos(qf) = \cos((p-q)f)$$
#
# These are the numbers below the clocks. Their sum depends on the *distance* alone:
#
# $$\mathrm{PE}(p) \cdot \mathrm{PE}(p+k) = \sum_i \cos(k f_i)$$
#
# So the curve in the simulation keeps its shape when you move the picked row. And $k$ and $-k$ give
# the same sum: it tells how far apart two places are, not which of them comes first.
#
# ### The way back
#
# Forward is $Y = X + \mathrm{PE}$, and nothing in $\mathrm{PE}$ is learned. Raise an entry of $X$ a
# little, and the same entry of $Y$ rises by as much: $\mathrm{d}X = \mathrm{d}Y$.


# %%
@show
def the_lines_of_sinusoids():
    """The library's sinusoidal positions, there and back."""
    return [
        Beside(
            sinusoidal_table,
            {
                "position = ": "The places $p$, one below the other.",
                "angle = ": "The angles $p f_i$, a column for each hand; `arange` counts $2i$.",
                "table = ": "Room for the table.",
                "table[:, ::2] = ": "The even dimensions are the sines,",
                "table[:, 1::2] = ": "the odd ones the cosines.",
                "return table": r"$\mathrm{PE}$, a row for each place.",
            },
        ),
        Beside(
            SinusoidalPositions.backward,
            {"return dy.copy()": r"$\mathrm{d}X = \mathrm{d}Y$: the sum passes it on unchanged."},
        ),
    ]


# %% [markdown]
# ## Let training choose: learned positions
#
# Why not leave the vectors to training? Give each place a row of a matrix $W$, random at first, and
# add it to the word. The paper tried it (Table 3, row E): BLEU 25.7 instead of 25.8, "nearly
# identical".
#
# The way back holds the one trap of this lesson. **Ask where row $t$ of $W$ is used.** In *every*
# sentence of the batch that has a place $t$. So its gradient collects from all of them.
#
# Here are two sentences, *old dog bites man* and *dog bites man*. The library puts the words of a
# batch below each other: 7 rows, with the places 0, 1, 2, 3 and again 0, 1, 2. A matrix $P$ picks a
# row of $W$ for each: $P_{nt}$ is 1 where row $n$ is at place $t$, else 0. Then forward is a matrix
# product like any other:
#
# $$Y = X + PW$$
#
# $$\mathrm{d}X = \mathrm{d}Y, \quad \mathrm{d}W = P^\top\,\mathrm{d}Y$$
#
# Row $t$ of $\mathrm{d}W$ is the sum of all rows of $\mathrm{d}Y$ at place $t$. Here each word has
# two numbers, and $W$ has rows for six places.

# %%
PLACES = np.array([0, 1, 2, 3, 0, 1, 2])
dy = np.array([[1, 0], [0, 2], [-1, 1], [2, -1], [0, 1], [1, 1], [-2, 0]], dtype=float)


@show
def a_row_collects():
    """The gradient of learned positions, by the library."""
    layer = LearnedPositions(6, 2, np.random.default_rng(0))
    layer.forward(np.zeros_like(dy), PLACES)
    layer.backward(dy)
    names = [f"{word} ({p})" for word, p in zip([*words, *words[1:]], PLACES, strict=True)]
    of_place = [f"place {p}" for p in range(6)]
    chosen = (PLACES[:, None] == np.arange(6)).astype(float)
    assert np.allclose(chosen.T @ dy, layer.weight.grad)
    first, second = layer.weight.grad[0].astype(int)
    return [
        Matrix("P", chosen, names, range(6)),
        Matrix(r"\mathrm{d}Y", dy, names, range(2)),
        Matrix(r"\mathrm{d}W", layer.weight.grad, of_place, range(2)),
        Words(f"""
            By hand: place 0 has *old* of the first sentence, with the gradient (1, 0), and *dog* of
            the second, with (0, 1), so its row gets ({first}, {second}). No sentence reaches places
            4 and 5: their gradient is 0. **If no sentence in all of training reaches them, their
            rows stay as random as they began.**
        """),
    ]


# %% [markdown]
# To add rows at given indices, however often an index occurs, is called a *scatter-add*. (NumPy's
# `dW[places] += dY` is not one: of all rows for a place it adds only the last. `np.add.at` is one.)
# The backward of word embeddings is a scatter-add, too.


# %%
@show
def the_lines_of_learned_positions():
    """The library's backward of learned positions, line by line."""
    return Beside(
        LearnedPositions.backward,
        {
            "positions = ": "The places that forward kept.",
            "dy_of_position = ": "If sentences have an axis of their own, first sum over it.",
            "scatter_add": r"""$\mathrm{d}W = P^\top\,\mathrm{d}Y$, added to earlier gradients.""",
            "return": r"$\mathrm{d}X = \mathrm{d}Y$, as with sinusoids.",
        },
    )


# %% [markdown]
# ## Turn the queries and keys: rotary
#
# Once the vector of a place is added to a word's vector, the sum mixes both. But a model mostly
# needs to know how well two *words* fit at a certain *distance*.
#
# Su et al. (2021) leave the words alone and use the clock within attention, just before the scores.
# A query at place $t$ is turned: its first two numbers by $t f_0$, the next two by $t f_1$, and so
# on. A key at place $s$ is turned by its own place; values are not turned. This is *rotary position
# embedding*, or RoPE.
#
# Turning a pair $(u, v)$ by the angle $r$ gives
#
# $$u' = u \cos r - v \sin r, \quad v' = u \sin r + v \cos r$$
#
# By hand: *dog* begins with (2, 1). At place 1 the first pair turns by 1, and
# $\cos 1 = 0.54$, $\sin 1 = 0.84$. So $u' = 2 \cdot 0.54 - 1 \cdot 0.84 = 0.24$ and
# $v' = 2 \cdot 0.84 + 1 \cdot 0.54 = 2.22$.
#
# Write $R_t$ for turning by a place $t$, all pairs at once. What is the score of a turned query and
# a turned key? **Turn the paper on which both arrows are drawn: lengths and angles between them
# stay the same, and so do dot products.** So turn both back by $s$. Then the key is as it was, and
# the query is turned by $t - s$:
#
# $$(R_t\,q) \cdot (R_s\,k) = (R_{t-s}\,q) \cdot k$$
#
# The places are gone. Only their difference is left. Watch it: in [the clocks](#turning), choose a
# query and a key, and press **Play**. They turn counterclockwise, as the signs in the formula say;
# the numbers below do not change.
#
# In the library a pair is one complex number, $u + vi$, because multiplying by $\cos r + i \sin r$
# turns it by $r$.


# %%
@show
def the_lines_of_rotary():
    """The library's forward of rotary positions."""
    return [
        Beside(
            rotary_turns,
            {
                "theta = ": "The angles $f_i$, the same as in the sinusoids.",
                "return": r"""For place $t$ (a row) and pair $j$ (a column), the complex number
                    $\cos(t f_j) + i \sin(t f_j)$, written as an exponential.""",
            },
        ),
        Beside(
            rotary,
            {
                "return": """`view` reads each pair of numbers as one complex number, without
                    copying. The product turns them all; the second `view` makes pairs again."""
            },
        ),
    ]


# %% [markdown]
# ### The way back: turn back
#
# The scores give us $\mathrm{d}u'$ and $\mathrm{d}v'$, the gradients of the turned pair. Where was
# $u$ used? In $u'$ with the factor $\cos r$, and in $v'$ with the factor $\sin r$. And $v$? In $u'$
# with $-\sin r$, and in $v'$ with $\cos r$. Add up:
#
# $$\mathrm{d}u = \mathrm{d}u' \cos r + \mathrm{d}v' \sin r$$
#
# $$\mathrm{d}v = -\mathrm{d}u' \sin r + \mathrm{d}v' \cos r$$
#
# This is forward with the sines' signs reversed. And $-\sin r$ is $\sin(-r)$, while $\cos r$ is
# $\cos(-r)$. **So backward is turning by $-r$.** For complex numbers that is the product with the
# conjugate, $\cos r - i \sin r$. The gradient keeps its length.


# %%
@show
def the_lines_of_rotary_backward():
    """The library's backward of rotary positions, line by line."""
    return [
        Beside(
            rotary_backward,
            {"return": "`conj` reverses the sign of all sines: each pair is turned back."},
        ),
        Beside(
            Rotary.backward,
            {
                "return": r"""Attention's own backward (lesson 3) comes first. It knows nothing of
                    positions: its `dquery` belongs to the *turned* query. This line turns each row
                    back by its own place: $R_{-t}\,\mathrm{d}q'$. Keys likewise.""",
            },
        ),
    ]


# %% [markdown]
# ## Lower the score: ALiBi
#
# Press et al. (2022) need no vectors. They subtract something from each score, more for keys that
# are further away. The distance between the places $t$ and $s$ is $|t - s|$:
#
# $$Z_{ts} = \frac{E_{ts}}{\sqrt{d_k}} - m\,|t - s|$$
#
# The slope $m$ differs from head to head: with 8 heads it is 1/2, 1/4 and so on to 1/256. Nothing
# is learned. The name means *attention with linear biases*.


# %%
@show
def lower_by_distance():
    """What is added to the scores, and the weights without it and with it."""
    bias = ALiBi(8).forward(np.arange(4), np.arange(4), x)
    _, before = attend(x)
    _, after = attend(x, lambda words: (words, words, words, None, bias[0]))
    halves = math.log(2) / -bias[:, 0, 1]
    return [
        Matrix(r"\text{added to } Z", bias[0], words, words),
        Matrix(r"A \text{ without}", before, words, words, 1),
        Matrix(r"A \text{ with}", after, words, words, 1),
        Words(f"""
            In the first head $m$ = 1/2. *dog* and *man* are 2 apart, so their score falls by 1, and
            the weight of *man* falls from {before[1, 3]:.2f} to {after[1, 3]:.2f}. In this head a
            key with the same score gets half the weight when it is {halves[0]:.1f} places further
            away; in the last of eight heads that takes {halves[-1]:.0f} places. So some heads see
            only what is near, others see everything.
        """),
    ]


# %% [markdown]
# And the way back? $m\,|t - s|$ is a constant, like $\mathrm{PE}$: $\mathrm{d}E =
# \mathrm{d}Z/\sqrt{d_k}$, as always. But a key far away has little weight, so it gets little
# gradient, too.


# %%
@show
def the_lines_of_alibi():
    """The library's lines of ALiBi, there and back."""
    return [
        Beside(
            ALiBi.__init__,
            {"self.slopes": "$m$ of each head: for 8 heads $2^{-1}, 2^{-2}$ and so on."},
        ),
        Beside(
            alibi,
            {"return": r"$-m\,|t - s|$ for each head, (heads, queries, keys)."},
        ),
        Beside(
            BiasedAttention.forward,
            {
                "if bias": "The bias is added before the softmax. It is constant, so backward "
                "needs no line for it.",
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ## Is it true?
#
# Move each input and each weight a little, and measure how the loss changes, for all four ways.


# %%
@show
def gradient_check():
    """The explicit gradients of four kinds of positions, beside measured ones."""
    rng = np.random.default_rng(5)
    sentence = [rng.standard_normal((1, 4, 6))]

    def rotary_attention():
        query, key = (QueryKeyHeads(6, 1, 6, rng, False, rotary=Rotary()) for _ in range(2))
        return SelfAttention(6, 1, rng, query=query, key=key)

    checked = {
        "sinusoids": (SinusoidalPositions(), [x]),
        "learned": (LearnedPositions(6, 2, rng), [rng.standard_normal(dy.shape), PLACES]),
        "rotary": (rotary_attention(), sentence),
        "ALiBi": (SelfAttention(6, 1, rng, attention=TiledAttention(bias=ALiBi(1))), sentence),
    }
    rows = []
    for name, (layer, inputs) in checked.items():
        for row in check(layer, inputs):
            numbers = (f"{n:.9f}".replace("-", "−") for n in (row.explicit, row.numerical))
            rows.append((name, row.name, *numbers, scientific(row.error)))
    return table(["positions", "gradient of", "explicit", "measured", "relative error"], rows)


# %% [markdown]
# ## Longer than in training
#
# A model trains on short texts and then meets a longer one. It knows the words, but not the places.
# What will happen? Make a guess for each of the four ways, then look.
#
# The task is small: at each place, say the letter *before*. A model of two layers with a causal
# mask trains on 12 letters at a time, for 200 steps, with two seeds. Then it is tested on 48.


# %%
NAMES = dict(sinusoidal="sinusoids", learned="learned", rotary="rotary", alibi="ALiBi", none="none")


@show
def the_letter_before():
    """How often five models are right, by place."""
    runs = beyond.trained()
    found = {way: np.mean([run.right for run in of], axis=0) for way, of in runs.items()}
    within = {way: curve[: beyond.TRAINED - 1].mean() for way, curve in found.items()}
    two_before = np.mean([run.two_before for run in runs["alibi"]])

    def right(way: str, place: int) -> str:
        return f"{found[way][place - 2]:.2f}"

    def before(way: str, place: int) -> str:
        return f"{np.mean([run.before[place - 2] for run in runs[way]]):.2f}"

    def draw(figure):
        axes = figure.subplots()
        for way, curve in found.items():
            style = "--" if way == "learned" else "-"
            axes.plot(range(2, beyond.TESTED + 1), curve, style, label=NAMES[way])
        axes.axvline(beyond.TRAINED, color="C3", linewidth=0.8)
        axes.set(xlabel="place in the sequence", ylabel="right", ylim=(0, 1.03))
        axes.legend(fontsize=9)

    return [
        Picture(
            "lesson_05_beyond",
            draw,
            "Five curves of accuracy against place, four of them near 1 up to place 12. Beyond it, "
            "learned positions fall at once, sinusoids soon, rotary positions after more than "
            "twice the length; ALiBi stays near 0.9. No positions, the fifth, fall from the start.",
            "**Trained up to place 12** (grey line), mean of two seeds. Guessing is right once "
            "in 8.",
            (5.2, 3.5),
        ),
        Words(f"""
            - **Learned**: right as far as training reached. At the next place,
              {right("learned", 13)} is no better than guessing: its row never got a gradient.
            - **Sinusoids**: {right("sinusoidal", 13)} at the first new place, and soon no better
              than guessing. One matrix for all places exists, but training found something else.
              The head that looks most at the place before gives it {before("sinusoidal", 12)} of
              its weight at place 12, and {before("sinusoidal", 24)} at place 24.
            - **Rotary**: one place back is the same turn everywhere. Here such a head gives the
              place before {before("rotary", 12)} at place 12 and {before("rotary", 24)} at 24. But
              more and more keys lie at distances it never trained on, and nothing taught it to
              ignore them. At place 48, {right("rotary", 48)} of the letters are right.
            - **ALiBi**: far keys count for little, so new ones do little harm: {right("alibi", 48)}
              at the end. But it is not sharp: it reaches only {within["alibi"]:.2f} at trained
              places. Of all its mistakes, {100 * two_before:.0f} % are the letter *two* places
              before: the steepest of its four slopes is 1/4, so a key one place further away loses
              only 1/4 in its score.
            - **None**: {within["none"]:.2f} at trained places! The causal mask gives away something
              about the order. At later places the model gets worse and worse.
        """),
    ]


# %% [markdown]
# ### Three tasks, three seeds
#
# Is ALiBi the best, then? One task is too few to say so. In a longer study models copy letters,
# reverse them and add two numbers digit by digit. They train up to length 10 and are tested at 15
# (`python -m toy_tasks.lengths`: half an hour on two cores).


# %%
@show
def the_table_of_the_study():
    """What `python -m toy_tasks.lengths` found at length 15."""
    found, tasks = beyond.measured(), ("copy", "reverse", "addition")

    def text(task: str, way: str) -> str:
        mean, low, high = (f"{number:.2f}" for number in found[task, way]["15"])
        return mean if low == high else f"{mean} ({low}–{high})"

    _, low, high = found["addition", "alibi"]["15"]
    return [
        table(
            ["", *tasks],
            [(name, *(text(task, way) for task in tasks)) for way, name in NAMES.items()],
            f"The share of {lengths.EXAMPLES} new inputs whose whole answer is right: mean of "
            "three seeds (lowest and highest). Up to length 10 every mean is above 0.99.",
        ),
        Words(f"""
            ALiBi gets furthest in all three, and sinusoids do worse than no positions at all. But
            look at the ranges. Of the sums of 15-digit numbers, ALiBi gets {low:.2f} right with one
            seed and {high:.2f} with another. A single run could have told you either story.
        """),
    ]


# %% [markdown]
# ## In the running example
#
# Our *old dog bites man* stands for a sentence that an encoder reads. The translator of the [home
# page](index.html) adds sinusoids to the 80 numbers of each word. Two sentences have the same words
# in another order. What does the model write for them? And what if nothing is added in the encoder,
# so that it reads bags of words?


# %%
@show
def in_the_running_example():
    """What the translator writes for two orders of the same words, with positions and without."""
    sentences = running.ENGLISH, "a bear is dancing with a woman."
    rows = [
        (f"*{each}*", *(f"*{running.written(each, on)}*" for on in (True, False)))
        for each in sentences
    ]
    assert rows[0][1] != rows[1][1] and rows[0][2] == rows[1][2]
    before, after = (
        array["source.positions"][[n for n, word in enumerate(running.READ) if word == "a"]]
        for array in (running.step().into, running.step().out)
    )
    assert (before[0] == before[1]).all()
    return [
        table(["reads", "with positions", "without"], rows),
        Words(f"""
            Without positions both sentences give the same translation: to the encoder they *are*
            the same. With positions even the two *a* differ: before the addition they are equal in
            all {before.shape[1]} numbers, and after it they are
            {np.linalg.norm(after[0] - after[1]):.1f} apart.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# | forward | backward | shape |
# |---|---|---|
# | sinusoids: $Y = X + \mathrm{PE}$ | $\mathrm{d}X = \mathrm{d}Y$ | $(T, D)$ |
# | learned: $Y = X + PW$ | $\mathrm{d}X = \mathrm{d}Y$ | $(T, D)$ |
# | | $\mathrm{d}W = P^\top\,\mathrm{d}Y$, a scatter-add | (places, $D$) |
# | rotary: $q' = R_t\,q$ | $\mathrm{d}q = R_{-t}\,\mathrm{d}q'$, keys likewise | $(T, d_k)$ |
# | ALiBi lowers $Z$ by $m$ times the distance | $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$ | $(T, S)$ |
#
# Without positions, reordering $X$ to $PX$ reorders $O$ to $P\,O$. With sinusoids,
# $\mathrm{PE}(p+k) = M_k\,\mathrm{PE}(p)$. With rotary positions, places enter the score by
# $t - s$ alone.

# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    pe = sinusoidal_table(51, 64)
    near, far = pe[[1, 50]] @ pe[0] / 32
    return Words(f"""
        **“Low dimensions of the positional encoding are the low frequencies.”** It is the other way
        round. Dimensions 0 and 1 make a full turn in {2 * math.pi:.1f} places, at width 512 the
        last two in {2 * math.pi * 10000 ** (510 / 512):,.0f}.

        **“At width 64 the likeness of places 0 and 1 is about 0.95, of 0 and 50 about 0.4.”**
        They are {near:.2f} and {far:.2f}.

        **“*The cat chased the dog* and *the dog chased the cat* give the same attention matrix.”**
        Not quite: rows and columns move with the words, as in our first example. What stays the
        same is each word's output.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="An encoder without positions reads *man bites dog*, then *dog bites man*. "
            "What happens to the output of *bites*?",
            choices={
                "it stays the same": "",
                "it changes, because its neighbours have changed places": "A person would notice. "
                "But attention adds up what all words hand over, and without positions it does not "
                "know where they stand.",
                "it stays only if *dog* and *man* have equal weights": "Equal weights are not "
                "needed: each word takes its weight along to its new place.",
            },
            answer=0,
            why="The word *bites* sees the same keys and values with the same scores, and a sum "
            "does not care which term comes first.",
        ),
        Question(
            question="At width 8 the four hands move by 1, 0.1, 0.01 and 0.001 at each place. What "
            "is the dot product of $\\mathrm{PE}(3)$ and $\\mathrm{PE}(10)$? (Two decimals.)",
            answer=float(np.cos(7 * ANGLES).sum()),
            mistakes={
                4: "A place with itself gives 4. If you took cosines, set your calculator to "
                "radians: in degrees all four are nearly 1.",
                float(np.cos(13 * ANGLES).sum()): "You added the two places. What counts is how "
                "far apart they are.",
                float(np.sin(7 * ANGLES).sum()): "You added sines. Each hand contributes the "
                "*cosine* of the angle between its two positions.",
                math.cos(7): "That is the fastest hand alone. All four contribute.",
            },
            why="The places are 7 apart, so the hands are 7, 0.7, 0.07 and 0.007 apart. Their "
            "cosines add up: 0.754 + 0.765 + 0.998 + 1.000.",
        ),
        Question(
            question="A batch has sentences of 5, 3 and 2 words. All entries of $\\mathrm{d}Y$ are "
            "1. What is an entry of $\\mathrm{d}W$ for place 2? (Places count from 0.)",
            answer=sum(length > 2 for length in (5, 3, 2)),
            mistakes={
                3: "You counted all three sentences. Places count from 0, so place 2 is the third "
                "word, and the shortest sentence has only two words.",
                1: "That is what one sentence contributes. The contributions of all sentences that "
                "have a place 2 add up.",
                5 + 3 + 2: "That is the number of all words. Only the words at place 2 use this "
                "row of $W$.",
                2 / 3: "You took a mean over the three sentences. The contributions are added; "
                "nothing is divided.",
            },
            why="Place 2 is the third word. Two sentences have one, and each contributes 1.",
        ),
        Question(
            question="Learned positions have 128 rows. No training text had more than 20 words. "
            "What is added to word 25 of a new text?",
            choices={
                "zeros": "The *gradient* of this row was always 0. The row itself began with "
                "random numbers.",
                "the row of place 20": "No place borrows another's row. Each place looks up its "
                "own, trained or not.",
                "a row as random as at first": "",
                "an error": "There are 128 rows, so word 25 has one. An error comes only beyond "
                "word 128.",
            },
            answer=2,
            why="Its gradient was always 0, so no step has moved it.",
        ),
        Question(
            question="A head of ALiBi has the slope 1/4. Two keys have the same dot product with "
            "the query; one is 2 places away, the other 6. How many times as much weight does the "
            "near one get?",
            answer=math.exp(0.25 * (6 - 2)),
            mistakes={
                1: "That is the difference of the two scores. The softmax turns it into a factor: "
                "$e$ to the power of this difference.",
                3: "That is the ratio of the distances. What counts is their difference, times the "
                "slope.",
                4: "That is the difference of the distances. Multiply it by the slope, and let the "
                "softmax take the exponential.",
                math.exp(4): "You took $e$ to the power of the difference of the distances. "
                "Multiply it by the slope first.",
                math.exp(-1): "That is the far key's weight divided by the near one's. The "
                "question asks for the reverse.",
                math.exp(6 / 4): "You lowered only the far key's score. The near key's score "
                "falls, too, for its 2 places.",
                2: "You took a power of 2. The softmax takes powers of $e$.",
            },
            why="Their scores differ by $(6 - 2)/4 = 1$, and the softmax turns a difference into a "
            "factor: $e^1 \\approx 2.72$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 5 mine.py` writes them into a file, and `python -m lessons check 5 mine.py` checks
# your answers.
#
# None of these gradients is on this page.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - *Attention Is All You Need*, section 3.5, and row E of Table 3.
# - Su et al. 2021, *RoFormer*, section 3; Press et al. 2022, *Train Short, Test Long*, section 3.
# - `toy_tasks/lengths.py`: the study. Train one way longer, or with other slopes.
# - Lesson 6: what is built around attention.
