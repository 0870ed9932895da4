# %% [markdown]
# # Position
#
# > Attention looks at all words at once. How does a model know what comes first?

# %%
import math

import numpy as np

from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_05 import beyond
from lessons.lesson_05.exercises import EXERCISES
from lessons.lesson_05.turning import ANGLES, attend, orders, sinusoids, turning, words, x
from numformer.gradient_check.gradients import check
from numformer.layers import SelfAttention
from numformer.layers.alibi import alibi
from numformer.layers.attention import scaled_dot_product_attention
from numformer.layers.positional import LearnedPositions, SinusoidalPositions, sinusoidal_table
from numformer.layers.rotary import Rotary, rotary, rotary_backward, rotary_turns
from toy_tasks import lengths


@show
def clocks() -> Simulation:
    """The simulation: pairs of numbers that turn from place to place."""
    return turning


# %% [markdown]
# ## Cards on a table
#
# *Dog bites man* is no news. *Man bites dog* is. The words are the same; only their order differs.
# Anyone who reads word by word gets the order for free. Attention does not read word by word. It
# has all words before it, like cards on a table. So what does it know of their order? Nothing at
# all, as you will see. Then you meet four ways to tell it: sinusoids, learned positions, rotary
# positions and ALiBi. For each you derive what flows back, and in the end all of them meet
# sentences longer than any in training. Most of them fail.
#
# Our sentence is *old dog bites man*. Each word is a vector of 8 numbers, a row of the matrix $X$.
# We choose small ones.


# %%
@show
def the_words():
    """The example: four words, each a vector."""
    return Matrix("X", x, words, range(8))


# %% [markdown]
# The words attend to each other, as in [lesson 3](lesson_03_scaled_dot_product.html). To have fewer
# numbers we leave the learned matrices out: queries, keys and values are all $X$.
#
# $$E = XX^\top, \quad A = \mathrm{softmax}\left(\frac{E}{\sqrt{8}}\right), \quad O = AX$$
#
# Now put the same cards down in another order: *old man bites dog*. Who is old now? **Before you
# look: which weights will change?**


# %%
OTHER = [0, 3, 2, 1]  # old man bites dog


@show
def two_orders():
    """The weights of two orders, and what each word takes with it."""
    (first, before), (second, after) = (attend(rows) for rows in (x, x[OTHER]))
    names = [words[n] for n in OTHER]
    moved = np.abs(first - second[np.argsort(OTHER)]).max()
    dog = ", ".join(f"{number:.2f}" for number in first[1, :4])
    return [
        Matrix("A", before, words, words, 1),
        Matrix("A'", after, names, names, 1),
        Words(f"""
            The numbers have moved, and that is all. *dog* gives *man* the weight
            {before[1, 3]:.2f} in both sentences, and *old* gives *dog* {before[0, 1]:.2f}, whether
            it stands beside it or not. (By hand: the score of *dog* and *man* is
            2 · 2 + 1 · 1 + 1 · 1 = 6, wherever they stand.) So the output of *dog* is the same,
            too: it begins with {dog} in both. The largest change in any output is {moved:.0g}. (In
            other orders the sixteenth digit may differ, because a computer rounds.)
        """),
    ]


# %% [markdown]
# Is that always so? Write $P$ for the matrix that puts rows into another order: each of its rows
# has a single 1. $PX$ is the sentence in the other order, and $P^\top$ puts it back, so $P^\top P$
# is the identity. What becomes of each step?
#
# - The scores are $(PX)(PX)^\top = P\,E\,P^\top$: rows and columns are reordered, nothing else.
# - The softmax works on one row at a time, and in a row it does not care which entry comes first.
#   So $A' = P\,A\,P^\top$.
# - In the output the two in the middle undo each other:
#
# $$A'\,PX = P\,A\,P^\top P\,X = P\,A\,X = P\,O$$
#
# Reorder what comes in, and what comes out is reordered in the same way. This is called
# *permutation equivariance*. Learned matrices do not help, because they stand on the right:
# $(PX)W = P(XW)$. Nor do the other parts of an encoder (lesson 6), which treat each word by itself.
# The same holds for gradients: the gradient of a word moves with its word. So average the outputs
# of such an encoder, however deep, and it cannot tell *dog bites man* from *man bites dog*. It sees
# a bag of words.


# %%
@show
def other_orders() -> Simulation:
    """The simulation: the same words in several orders, without positions and with them."""
    return orders


# %% [markdown]
# Try the last choice, too. A causal mask (lesson 7) lets a word see itself and what is before it.
# That alone breaks the symmetry: the first word sees one word, the second sees two. So a model with
# such a mask can find out something about order with no positions at all. How much? The last
# section measures it.
#
# ## A clock with many hands
#
# The paper's way is the plainest: make a vector for each place, as wide as a word's, and **add** it
# to the word that stands there. Then *dog* at place 1 and *dog* at place 3 are different vectors,
# and attention can tell them apart. But which vector for which place?
#
# - The number $p$ itself? It grows without limit. At place 500 nothing of the word would be left.
# - The place divided by the length? Then a step means something else in each sentence.
#
# We want numbers that stay small, that never repeat, and for which a step is the same step
# everywhere. A clock does that. Each hand goes round and round and repeats itself. The fast one
# tells near times apart, the slow one far ones, and together they do not repeat for half a day.
#
# The paper's clock (section 3.5) has $d/2$ hands, where $d$ is the width of a word's vector. Hand
# $i$ moves on by the angle $f_i = 10000^{-2i/d}$ at each place, and its tip gives two numbers, how
# far right it is and how far up:
#
# $$PE(p, 2i) = \sin(p f_i)$$
#
# $$PE(p, 2i+1) = \cos(p f_i)$$
#
# For our width of 8 there are four hands, those of [the clocks](#turning), and the angles come out
# round: 1, 0.1, 0.01, 0.001. (In radians; a full turn is 2π.) By hand, place 2: the first pair is
# $\sin 2 = 0.91$ and $\cos 2 = -0.42$, the second $\sin 0.2 = 0.20$ and $\cos 0.2 = 0.98$.


# %%
@show
def heatmap() -> Simulation:
    """The simulation: sinusoids as a heatmap, and how much alike places are."""
    return sinusoids


# %% [markdown]
# ### Bounded, and never twice the same
#
# **Bounded.** The tip of a hand is always at distance 1 from the middle:
# $\sin^2 + \cos^2 = 1$. There are $d/2$ hands. So $PE(p)$ has the length $\sqrt{d/2}$ at every
# place, be it the first or the millionth.
#
# **Unique.** A hand points the same way again after a full turn, which is 2π. The first hand moves
# by 1. No whole number of steps is a whole number of turns, since π is no fraction. But it can come
# close.


# %%
@show
def never_twice():
    """How close two places come, by the first hand alone and by all."""
    pe = sinusoidal_table(5000, 64)
    pair, whole = (np.linalg.norm(each - each[0], axis=1) for each in (pe[:, :2], pe))
    near = 1 + pair[1:1000].argmin()
    assert np.allclose(np.linalg.norm(pe, axis=1), math.sqrt(32)) and whole[1:].argmin() == 0
    return Words(f"""
        After {near} places the first hand has made {near / (2 * np.pi):.4f} turns: it is back where
        it began but for {pair[near]:.5f}. The other hands are not. At width 64 the vectors of these
        two places are {whole[near]:.1f} apart, more than the {np.linalg.norm(pe[0]):.1f} that
        each is long. Of the first {len(pe):,} places none comes closer to place 0 than its
        neighbour, which is {whole[1]:.2f} away. (The same holds around every other place: only
        the distance counts, as you will see.)
    """)


# %% [markdown]
# ### A step is a turn
#
# How do you get from the vector of a place to that of $k$ places later? With a clock: turn each
# hand a little further, always by the same angle, wherever it points. In formulas these are the
# addition theorems of sine and cosine. For hand $i$, with $f$ for $f_i$:
#
# $$\sin((p+k)f) = \cos(kf)\,\sin(pf) + \sin(kf)\,\cos(pf)$$
#
# $$\cos((p+k)f) = -\sin(kf)\,\sin(pf) + \cos(kf)\,\cos(pf)$$
#
# Read them as a matrix product. The two new numbers are two fixed rows, $(\cos kf, \sin kf)$ and
# $(-\sin kf, \cos kf)$, each times the two old numbers. The rows depend on $k$ and $f$, but not on
# $p$. Put one such block for each hand along the diagonal of a matrix $M_k$, and you have
#
# $$PE(p+k) = M_k\,PE(p)$$
#
# $M_k$ turns each pair and leaves its length as it is: it is a *rotation*. Turning back is
# $M_{-k}$, which is the transposed matrix $M_k^\top$.


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
    asked = (pe[1:100] @ step(-1, 64).T) @ pe[:100].T
    right = (asked.argmax(axis=1) == np.arange(99)).mean()
    assert np.allclose(step(-3, 64), step(3, 64).T) and right == 1
    return [
        Matrix("M_1", step(1, 8), range(8), range(8), 1),
        Words(f"""
            At width 64, for the first 100 places and all steps up to 99, $M_k PE(p)$ and $PE(p+k)$
            differ by {scientific(far)} at most.
        """),
    ]


# %% [markdown]
# What is that good for? The paper hopes that it lets a model look at *relative* places: "two words
# back". Let a learned matrix of queries be $M_{-1}$. Then the query of place $p$ is
# $M_{-1}PE(p) = PE(p-1)$: it asks for the place before. At width 64, with the first hundred places
# as keys, every query from place 1 on then scores highest with the place before. So one matrix
# *can* do that everywhere. Whether training *finds* it is another question.
#
# ### How similar are two places?
#
# Take the dot product of two places, $p$ and $q$. Each hand contributes
#
# $$\sin(pf)\,\sin(qf) + \cos(pf)\,\cos(qf) = \cos((p-q)f)$$
#
# These are the numbers below the clocks. Together they are a sum of cosines of the *distance*:
#
# $$PE(p) \cdot PE(p+k) = \sum_i \cos(k f_i)$$
#
# It does not depend on $p$, so the curve in the simulation keeps its shape. And $k$ and $-k$ give
# the same: it tells how far, not on which side. The curve falls within a few places and then goes
# on in waves. At width 64, places 100 apart are more alike than places 50 apart.
#
# ### The way back
#
# Forward is $Y = X + PE$, and nothing in $PE$ is learned. Raise an entry of $X$ by a little and the
# same entry of $Y$ rises by as much: $\mathrm{d}X = \mathrm{d}Y$.


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
                "return table": "$PE$, a row for each place.",
            },
        ),
        Beside(
            SinusoidalPositions.backward,
            {"return dy.copy()": r"$\mathrm{d}X = \mathrm{d}Y$. The sum passes it on as it is."},
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
# sentence of the batch that has a place $t$. By the chain rule it collects from all of them.
#
# Here are two sentences, *old dog bites man* and *dog bites man*. The library puts the words of a
# batch below each other, without padding, so there are 7 rows. Their places are 0, 1, 2, 3 and
# again 0, 1, 2. Write this down as a matrix $L$: $L_{nt}$ is 1 where row $n$ is at place $t$,
# else 0. Then forward is a matrix product like any other:
#
# $$Y = X + LW$$
#
# And lesson 3 has derived its backward:
#
# $$\mathrm{d}X = \mathrm{d}Y, \quad \mathrm{d}W = L^\top\,\mathrm{d}Y$$
#
# Row $t$ of $\mathrm{d}W$ is the sum of all rows of $\mathrm{d}Y$ at place $t$. Here with two
# numbers a word, and rows of $W$ for six places.

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
        Matrix("L", chosen, names, range(6)),
        Matrix(r"\mathrm{d}Y", dy, names, range(2)),
        Matrix(r"\mathrm{d}W", layer.weight.grad, of_place, range(2)),
        Words(f"""
            By hand: at place 0 are *old* of the first sentence and *dog* of the second, (1, 0)
            and (0, 1), so its row gets ({first}, {second}). Place 3 exists in one sentence only.
            No sentence reaches places 4 and 5: their gradient is 0. **If no sentence of the whole
            training reaches them, their rows stay as random as they began.**
        """),
    ]


# %% [markdown]
# Adding rows at given indices, however often an index occurs, is called *scatter-add*. (NumPy's
# `dW[places] += dY` is not one: of all rows for a place it adds only the last. `np.add.at` is.) The
# backward of word embeddings is a scatter-add, too (`scatter_add` in `numformer/backend.py`).


# %%
@show
def the_lines_of_learned_positions():
    """The library's backward of learned positions, line by line."""
    return Beside(
        LearnedPositions.backward,
        {
            "positions = ": "The places that forward kept.",
            "dy_of_position = ": r"""Where a batch still has the axes (sentence, place, width),
                first sum over the sentences. The 7 rows of our example stay as they are.""",
            "scatter_add": r"""$\mathrm{d}W = L^\top\,\mathrm{d}Y$, added to what was there.""",
            "return": r"$\mathrm{d}X = \mathrm{d}Y$, as with sinusoids.",
        },
    )


# %% [markdown]
# ## Turn the queries and keys: rotary
#
# Once a place is added to a word, the two are mixed in one vector. A score of the sums has four
# parts: word with word, word with place, place with word, place with place. But a model mostly
# wants to know how *words* fit at a *distance*.
#
# Su et al. (2021) leave the words alone and use the clock within attention, just before the scores.
# A query at place $t$ is turned: its first two numbers by $t f_0$, the next two by $t f_1$, and so
# on. A key at place $s$ is turned by its own place. Values are not turned. This is called *rotary
# position embedding*, RoPE for short.
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
# a turned key? **Turn the paper on which both arrows are drawn: no length and no angle between them
# changes, so no dot product does.** Turn both back by $s$. The key is again as it was, and the
# query is turned by $t - s$:
#
# $$(R_t\,q) \cdot (R_s\,k) = (R_{t-s}\,q) \cdot k$$
#
# The places themselves are gone. Only their difference is left.
#
# Watch it: go back to [the clocks](#turning), choose a query and a key, and press **Play**. They
# turn, by the sign in the formula, against the clock; the numbers below do not change.
#
# In the library a pair is one complex number, $u + vi$, because a product of complex numbers turns:
# times $\cos r + i \sin r$ is turning by $r$.


# %%
@show
def the_lines_of_rotary():
    """The library's forward of rotary positions."""
    return [
        Beside(
            rotary_turns,
            {
                "theta = ": "The angles $f_i$, those of the sinusoids.",
                "return": r"""For place $t$ (a row) and pair $i$ (a column) the number
                    $\cos(t f_i) + i \sin(t f_i)$, as an exponential.""",
            },
        ),
        Beside(
            rotary,
            {
                "return": """`view` reads each pair of numbers as one complex number, without
                    copying. The product turns all of them, and the second `view` makes pairs again.
                    """
            },
        ),
    ]


# %% [markdown]
# ### The way back: turn back
#
# From the scores come $\mathrm{d}u'$ and $\mathrm{d}v'$, the gradients of the turned pair. We owe
# those of the pair before. Where is $u$ used? In $u'$ with the factor $\cos r$, and in $v'$ with
# the factor $\sin r$. Where is $v$ used? In $u'$ with $-\sin r$, and in $v'$ with $\cos r$. Add up:
#
# $$\mathrm{d}u = \mathrm{d}u' \cos r + \mathrm{d}v' \sin r$$
#
# $$\mathrm{d}v = -\mathrm{d}u' \sin r + \mathrm{d}v' \cos r$$
#
# Compare with forward: it is the same, but for the sign of the sines. And $-\sin r$ is
# $\sin(-r)$, while $\cos r$ is $\cos(-r)$. **So backward is turning by $-r$.** For complex numbers
# that is the product with the conjugate, $\cos r - i \sin r$. A gradient arrives as long as it was.


# %%
@show
def the_lines_of_rotary_backward():
    """The library's backward of rotary positions, line by line."""
    return [
        Beside(
            rotary_backward,
            {"return": "`conj` takes the other sign of all sines: each pair is turned back."},
        ),
        Beside(
            Rotary.backward,
            {
                "return": r"""Attention's own backward (lesson 3) comes first. It knows nothing of
                    positions: its `dquery` belongs to the *turned* query. This line turns it back,
                    each row by its own place: $R_{-t}\,\mathrm{d}q'$. Keys likewise. Values were
                    not turned, so nothing is turned back.""",
            },
        ),
    ]


# %% [markdown]
# ## Lower the score: ALiBi
#
# Press et al. (2022) do without any vectors. They subtract something from each score, more for keys
# that are further away. With $D_{ts}$ for how many places $t$ and $s$ are apart:
#
# $$Z = \frac{E}{\sqrt{d_k}} - m\,D$$
#
# The slope $m$ differs from head to head: with 8 heads it is 1/2, 1/4 and so on to 1/256.
# Nothing is learned. The name means *attention with linear biases*.


# %%
@show
def lower_by_distance():
    """What is added to the scores, and the weights without it and with it."""
    bias = alibi(8, np.arange(4), np.arange(4))
    _, before = attend(x)
    _, after = attend(x, lambda words: (words, words, words, None, None, bias[0]))
    halves = math.log(2) / -bias[:, 0, 1]
    return [
        Matrix("-mD", bias[0], words, words),
        Matrix(r"A \text{ without}", before, words, words, 1),
        Matrix(r"A \text{ with}", after, words, words, 1),
        Words(f"""
            The first head, $m$ = 1/2. *dog* and *man* are 2 apart, so their score falls by 1, and
            the weight from {before[1, 3]:.2f} to {after[1, 3]:.2f}. In this head a key of the same
            score has half the weight when it is {halves[0]:.1f} places further away; in the last
            one of eight that takes {halves[-1]:.0f} places. So some heads see what is near, others
            see everything.
        """),
    ]


# %% [markdown]
# And back? $mD$ is a constant, like $PE$: $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$, as ever. The
# formulas of attention's backward stay as they are. But they contain the weights $A$, and a key far
# away has little weight. So it gets little gradient, too.


# %%
@show
def the_lines_of_alibi():
    """The library's lines of ALiBi, there and back."""
    return [
        Beside(
            alibi,
            {
                "distance = ": "$D$, from the places of queries and keys.",
                "slopes = ": "$m$ of each head: for 8 heads $2^{-1}, 2^{-2}$ and so on.",
                "return": "$-mD$ for each head, (heads, queries, keys).",
            },
        ),
        Beside(
            scaled_dot_product_attention,
            {
                "if position_bias": """It is added before the softmax. A constant needs no
                    line in backward.""",
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ## Is it true?
#
# Move each input a little and measure, for all four.


# %%
@show
def gradient_check():
    """The explicit gradients of four kinds of positions beside measured ones."""
    rng = np.random.default_rng(5)

    def attention(**positions):
        return SelfAttention(6, 1, rng, **positions)

    sentence = [rng.standard_normal((1, 4, 6))]
    checked = {
        "sinusoids": (SinusoidalPositions(), [x]),
        "learned": (LearnedPositions(6, 2, rng), [rng.standard_normal(dy.shape), PLACES]),
        "rotary": (attention(rotary=Rotary()), sentence),
        "ALiBi": (attention(position_bias=alibi), sentence),
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
# A model trains on short texts and then meets a longer one. Its words are known, its places are
# not. What will happen? Think for a moment about each way, then look.
#
# A small task (`lessons/lesson_05/beyond.py`): at each place, say the letter of the place *before*.
# A model of two layers with a causal mask trains on sequences of 12 letters, for 200 steps, with
# two seeds. Then it gets sequences of 48. (Places count from 1 here.)


# %%
NAMES = dict(sinusoidal="sinusoids", learned="learned", rotary="rotary", alibi="ALiBi", none="none")


@show
def the_letter_before():
    """How often five models are right, by place."""
    runs = beyond.compare()
    found = {way: np.mean([run.right for run in of], axis=0) for way, of in runs.items()}
    within = {way: curve[: beyond.TRAINED - 1].mean() for way, curve in found.items()}
    two_before = np.mean([run.two_before for run in runs["alibi"]])

    def right(way: str, place: int) -> str:
        return f"{found[way][place - 2]:.2f}"

    def before(way: str, place: int) -> str:
        return f"{np.mean([run.before[place - 2] for run in runs[way]]):.2f}"

    def draw(figure):
        axes = figure.subplots()
        colours = "C1", "C1", "C0", "C2", "C3"  # those of other pictures
        for (way, curve), colour in zip(found.items(), colours, strict=True):
            style = dict(color=colour, linestyle="--" if way == "learned" else "-")
            axes.plot(range(2, beyond.TESTED + 1), curve, label=NAMES[way], **style)
        axes.axvline(beyond.TRAINED, color="C3", linewidth=0.8)
        axes.set(xlabel="place in the sequence", ylabel="right", ylim=(0, 1.03))
        axes.legend(fontsize=9)

    return [
        Picture(
            "lesson_05_beyond",
            draw,
            "Five curves of accuracy against place, four of them near 1 up to place 12. Beyond, "
            "that of learned positions falls at once, that of sinusoids soon, the rotary one after "
            "more than twice the length; that of ALiBi stays near 0.9.",
            "**Trained up to place 12** (grey line), mean of two seeds. Guessing is right once "
            "in 8.",
            (5.2, 3.5),
        ),
        Words(f"""
            - **Learned**: right as far as training reached. At the next place it is
              {right("learned", 13)}, which is a guess: its row never got a gradient.
            - **Sinusoids**: {right("sinusoidal", 13)} at the first new place, and soon a guess. One
              matrix for all places exists, as you saw. Training found something else. The head that
              looks most at the place before gives it the weight {before("sinusoidal", 12)} at place
              12, and {before("sinusoidal", 24)} at place 24.
            - **Rotary**: one place back is the same turn everywhere. Such a head gives the place
              before {before("rotary", 12)} at place 12 and {before("rotary", 24)} at 24. But more
              and more keys are at distances that were never trained, and nothing has taught it to
              ignore them. At place 48 it is {before("rotary", 48)}, and {right("rotary", 48)} of
              the letters are right.
            - **ALiBi**: far keys count for little, so new ones hardly disturb: {right("alibi", 48)}
              at the end. But it is not sharp. At trained places it reaches {within["alibi"]:.2f},
              and {100 * two_before:.0f} % of its mistakes are the letter of *two* places before:
              the steepest of four slopes is 1/4, so one place more costs only that.
            - **None**: {within["none"]:.2f} at trained places! The causal mask tells something of
              the order. Beyond, it gets worse and worse.
        """),
    ]


# %% [markdown]
# ### Three tasks, three seeds
#
# Is ALiBi the best, then? One task is too few to say so. The repository has a longer study: copying
# letters, reversing them, and adding two numbers digit by digit, trained up to length 10. It takes
# half an hour on two cores (`python -m toy_tasks.lengths`); here is the table that it wrote.


# %%
@show
def the_table_of_the_study():
    """The table that `python -m toy_tasks.lengths` wrote."""
    found = beyond.measured()
    mean = {key: f"{row['15'][0]:.2f}" for key, row in found.items()}
    _, low, high = found["addition", "alibi"]["15"]

    def text(cell) -> str:
        mean, low, high = (f"{each:.2f}" for each in cell)
        return mean if low == high else f"{mean} ({low}–{high})"

    columns = [str(length) for length in lengths.TESTED]
    return [
        table(
            ["", *(f"length {length}" for length in columns)],
            [
                (f"{task}, {NAMES[way]}", *(text(row[length]) for length in columns))
                for (task, way), row in found.items()
            ],
            f"The share of {lengths.EXAMPLES} new sources whose whole target is right: mean of "
            "three seeds, lowest and highest. Over all lengths up to 10 the mean is above 0.99 in "
            "every row.",
        ),
        Words(f"""
            Look at length 15. ALiBi reverses {mean["reverse", "alibi"]} of the sources and copies
            {mean["copy", "alibi"]}. Rotary positions reverse {mean["reverse", "rotary"]} and copy
            {mean["copy", "rotary"]}. *No* positions reverse {mean["reverse", "none"]} and copy
            {mean["copy", "none"]}. Sinusoids and learned positions have failed long before.

            Look at the brackets, too. Of the sums of 15 digits ALiBi gets {low:.2f} right with one
            seed and {high:.2f} with another. A single run could have told you either story.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# | forward | backward | shape |
# |---|---|---|
# | sinusoids: $Y = X + PE$ | $\mathrm{d}X = \mathrm{d}Y$ | $(T, d)$ |
# | learned: $Y = X + LW$ | $\mathrm{d}X = \mathrm{d}Y$ | $(T, d)$ |
# | | $\mathrm{d}W = L^\top\,\mathrm{d}Y$, a scatter-add | (places, $d$) |
# | rotary: $q' = R_t\,q$ | $\mathrm{d}q = R_{-t}\,\mathrm{d}q'$, keys likewise | $(T, d_k)$ |
# | ALiBi: $Z = E/\sqrt{d_k} - mD$ | $\mathrm{d}E = \mathrm{d}Z/\sqrt{d_k}$ | $(T, S)$ |
#
# Without positions $X$ becomes $PX$, so $O$ becomes $P\,O$. With sinusoids $PE(p+k) = M_k\,PE(p)$.
# With rotary positions the score depends on $t - s$ alone.

# %% [markdown]
# ## Often told: check it


# %%
@show
def often_told():
    """Popular claims, computed again."""
    pe = sinusoidal_table(51, 64)
    near, far = pe[[1, 50]] @ pe[0] / 32
    text = ["the", "cat", "chased", "the", "dog"]
    vectors = dict(
        zip(dict.fromkeys(text), np.random.default_rng(4).standard_normal((4, 8)), strict=True)
    )
    order = [0, 4, 2, 3, 1]
    first, second = (
        attend(np.stack([vectors[text[n]] for n in each]))[1] for each in (range(5), order)
    )
    apart = np.abs(first - second).max()
    back = np.argsort(order)
    sorted_back = np.abs(first - second[np.ix_(back, back)]).max()
    return Words(f"""
        **“Low dimensions of the positional encoding are the low frequencies.”** It is the other way
        round. Dimensions 0 and 1 make a full turn in {2 * math.pi:.1f} places, at width 512 the
        last two in {2 * math.pi * 10000 ** (510 / 512):,.0f}. (The paper says that these lengths
        go up to 10000 times 2π, which is {20000 * math.pi:,.0f}: the last pair stops short of it.)

        **“The likeness of places 0 and 1 is about 0.95, that of 0 and 50 about 0.4, at width 64.”**
        They are {near:.2f} and {far:.2f}.

        **“*The cat chased the dog* and *the dog chased the cat* give the same attention matrix.”**
        Without positions they do not: with random vectors for the words an entry differs by
        {apart:.2f}. Sort the words back, and the difference is {sorted_back:.0g}. The two matrices
        are equal *up to a permutation*, and that is another claim: each word's output is the same
        in both sentences.
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
            choices=(
                "it stays the same",
                "it changes, because its neighbours have changed places",
                "it stays only if *dog* and *man* have equal weights",
            ),
            answer=0,
            why="The word *bites* sees the same keys and values with the same scores. A sum does "
            "not care which of its terms comes first.",
        ),
        Question(
            question="At width 8 the four hands move by 1, 0.1, 0.01 and 0.001 at each place. What "
            "is the dot product of $PE(3)$ and $PE(10)$? (Two decimals.)",
            answer=float(np.cos(7 * ANGLES).sum()),
            why="The places are 7 apart, so the hands are 7, 0.7, 0.07 and 0.007 apart. Their "
            "cosines add up: 0.754 + 0.765 + 0.998 + 1.000. The places themselves do not matter.",
        ),
        Question(
            question="A batch has sentences of 5, 3 and 2 words. All entries of $\\mathrm{d}Y$ are "
            "1. What is an entry of $\\mathrm{d}W$ for place 2? (Places count from 0.)",
            answer=sum(length > 2 for length in (5, 3, 2)),
            why="Place 2 is the third word. Two sentences have one, and each contributes 1.",
        ),
        Question(
            question="Learned positions have 128 rows. No training text had more than 20 words. "
            "What is added to word 25 of a new text?",
            choices=(
                "nothing: its row is 0",
                "the row of place 20",
                "a row as random as at the beginning",
                "an error is raised",
            ),
            answer=2,
            why="The gradient of this row was always 0, so no step has moved it. An error comes "
            "only beyond row 128.",
        ),
        Question(
            question="A head of ALiBi has the slope 1/4. Two keys have the same dot product with "
            "the query; one is 2 places away, the other 6. How many times as much weight does "
            "the near one get?",
            answer=math.exp(0.25 * (6 - 2)),
            why="Their scores differ by $(6 - 2)/4 = 1$, and the softmax makes of a difference a "
            "factor: $e^1 \\approx 2.72$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# `python -m lessons start 5 mine.py` writes a file to begin with. Complete or mend its functions,
# and let `python -m lessons check 5 mine.py` tell you what it thinks. Two of the gradients are
# nowhere on this page.


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
