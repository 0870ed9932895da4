# %% [markdown]
# # Long sequences
#
# > Every word looks at every word. In a text of a hundred thousand words, who can pay for that? And
# > what does a model lose if it pays less?

# %%
import math
import tracemalloc

import numpy as np

from lessons.kit import lesson as kit
from lessons.kit.lesson import Beside, Picture, Words, dot_by_hand, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_13 import patterns, walk
from lessons.lesson_13.cost import KINDS, LENGTHS, WINDOW, exponent, measured
from lessons.lesson_13.exercises import EXERCISES
from lessons.lesson_13.walk import doutput, forward_block, key, query, value
from numformer.gradient_check.gradients import check
from numformer.later.attention.patterns import Window
from numformer.later.attention.tiles import TiledAttention, attention_in_tiles
from numformer.later.attention.tiles import attention_in_tiles_backward as backward_in_tiles
from numformer.later.mixers.linear_attention import LinearAttention, positive_features
from numformer.later.mixers.running_sums import running_sums, running_sums_backward
from numformer.later.mixers.state_space import selective_scan
from numformer.layer import pack
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.softmax import softmax

MIB = 2**20


@show
def block_by_block() -> Simulation:
    """The first simulation: the blocks of the scores, forward and backward."""
    return walk.walk


# %% [markdown]
# The figure computes attention without ever holding all scores. Its results are those of lesson 3,
# apart from rounding. First see why that matters.
#
# ## Every pair costs
#
# With $T$ words a head has $T^2$ scores. Each is a number of four bytes. Twice as many words take
# four times as many bytes.


# %%
@show
def bytes_of_scores():
    """The memory of one head's weights: computed, and for short sequences also measured."""
    rows = []
    for length in (512, 1024, 2048, 8192, 131072):
        found = "-"
        if length <= 2048:
            x = np.ones((length, 8), np.float32)
            tracemalloc.start()
            kept = scaled_dot_product_attention(x, x, x)
            found = f"{tracemalloc.get_traced_memory()[0] / MIB:.1f}"
            tracemalloc.stop()
            del kept
        rows.append((f"{length:,}", f"{length**2:,}", f"{4 * length**2 / MIB:,.0f}", found))
    return table(
        ["$T$", "scores $T^2$", "MiB, computed", "MiB that forward keeps, measured"],
        rows,
        "One head of one layer, float32. Measured: weights and output of the plain formula.",
    )


# %% [markdown]
# A model of 12 layers with 12 heads each has 144 such arrays of $T \times T$ numbers, and training
# keeps them all until backward. At 131,072 words, each one takes 64 GiB.
#
# There are two ways out. You can compute the same thing in less memory, or you can compute
# something else.
#
# ## Four words, two at a time
#
# Our example is small: *I saw two cats*, four words with a query, a key and a value of two numbers
# each ([figure](#walk)). The two numbers of a key say how much the word is a *thing* and how much
# it is a *doing*. The queries are already divided by $\sqrt{d_k}$. So the scores are $Z = QK^\top$,
# and they are whole numbers.
#
# Take the last row, *cats*. Its scores are 2, 2, 0 and 4. Suppose that we may look at only two of
# them at a time. Can we still compute the softmax? We need two numbers: the highest score, so that
# no exponential becomes too large, and the sum of all exponentials. After half the row we know
# neither. So compute with the scores that are there, and *correct the result later*.


# %%
@show
def a_row_in_two_halves():
    """The row of `cats`, two scores at a time."""
    scores = query[3:] @ key.T
    kept = np.full((1, 1), -np.inf), np.zeros((1, 1)), np.zeros((1, 2))
    for half in (slice(0, 2), slice(2, 4)):
        high, factor, total, parts, blend = forward_block(scores[:, half], value[half], *kept)
        kept = high, total, blend
    plain, _ = scaled_dot_product_attention(math.sqrt(2) * query, key, value)
    assert np.allclose(blend / total, plain[3])
    shares = np.append(factor, parts)
    summed, blended = (
        dot_by_hand(shares, [before, *new], 3, 4)
        for before, new in ((2, (1, 1)), (1, value[2:, 0]))
    )
    return Words(f"""
        **First half**, scores 2 and 2. The highest so far is $m = 2$. Subtract it from both: the
        exponentials of the differences are 1 and 1, so their sum is $n = 2$. The *blend* is the sum
        of the values, each times its exponential. The values of *I* and *saw* begin with 1 and 0,
        so the blend begins with 1 + 0 = 1. It is not divided by $n$ yet, so we call it $\\hat O$.

        **Second half**, scores 0 and 4. Now the highest is 4. Our sum and our blend are relative to
        2, so they are too large by a factor of $e^{{4-2}}$. Multiply both by
        $c = e^{{2-4}} \\approx {factor[0, 0]:.4f}$, and add what is new:
        $e^{{0-4}} \\approx {parts[0, 0]:.4f}$ and $e^{{4-4}} = 1$.

        The sum is {summed}. The blend begins with {blended}. Only now divide: {blend[0, 0]:.3f} /
        {total[0, 0]:.3f} ≈ {plain[3, 0]:.3f}. The plain formula gives {plain[3, 0]:.3f}, too.
    """)


# %% [markdown]
# ## A running maximum
#
# In general we keep three things for each row: the highest score so far, $m$; the sum $n$ of the
# exponentials relative to $m$; and the blend $\hat O$ of the values with these exponentials. A new
# block has scores $z_s$ and values $v_s$. With it, the three become
#
# $$m' = \max(m, \max_s z_s), \quad c = e^{m - m'}$$
#
# $$n' = c\,n + \sum_s e^{z_s - m'}$$
#
# $$\hat O' = c\,\hat O + \sum_s e^{z_s - m'}\,v_s$$
#
# This is right because $e^{z - m}\,c = e^{z - m'}$: after the correction everything is as if $m'$
# had been known from the beginning. At the end $O = \hat O / n$. Nothing is left out and nothing is
# approximated: it is the same formula in another order. Milakov and Gimelshein 2018 did this for
# the softmax, Rabe and Staats 2021 for attention. Dao et al. 2022 (FlashAttention, algorithm 1)
# choose blocks that fit into a graphics card's fastest memory. (They write $\ell$ for our $n$.)


# %%
@show
def the_lines_of_a_block():
    """The general case, as the figure computes it."""
    notes = {
        "new = ": "$m'$, a column: each row has its own maximum.",
        "factor = ": "$c$. Where the maximum did not rise, it is 1; at the beginning it is 0.",
        "exponentials = ": "$e^{z_s - m'}$, of this block alone.",
        "total = ": "$n'$",
        "blend = ": r"$\hat O'$",
        "return": "The block's scores are no longer needed. A few numbers for each row are kept.",
    }
    return Beside(forward_block, notes)


# %% [markdown]
# numformer cuts its blocks differently. A block has 128 rows, and **all** columns that these rows
# may see. It fits into a processor's cache, and it makes the maximum simple: the whole row is
# there, so nothing has to be corrected. In the figure this is the choice *1 × 4, rows*: $c$ is 0,
# because a row begins and ends within one block. The fastest memories of a graphics card are too
# small for whole rows, so there the maximum has to run.


# %%
@show
def the_lines_of_forward():
    """numformer's attention in blocks of rows, line by line."""
    notes = {
        "xp, highest": "`xp` is NumPy or CuPy.",
        "output = ": "$O$, to be filled block by block.",
        "log_sums = ": r"One number $\ell = m + \ln n$ for each row. Backward will need it.",
        "scale = ": r"$1 / \sqrt{d_k}$",
        "query, key, value": r"$Q / \sqrt{d_k}$: $Q$ has fewer numbers to divide than the "
        "scores. And all three are laid out in memory so that products are fast.",
        "for scores": "In a causal block no row sees farther than the last row: later columns "
        "are never computed.",
        "weights = scores": r"$Z = QK^\top$ of this block, with masks and biases.",
        "if not small": "$Z - m$. (If no score can be large, this is left out.)",
        "xp.exp": "$e^{Z - m}$, in the same memory.",
        "total = ": "$n$",
        "log_sums[": r"$\ell$",
        "rows = matmul": r"$\hat O$, with dropout if there is any.",
        "rows /= ": r"$O = \hat O / n$",
        "output[": "These rows are done.",
        "del weights": "The next block uses the memory of this one.",
        "return": "No array here is $T \\times T$.",
    }
    return Beside(attention_in_tiles, notes, loops=True)


# %% [markdown]
# ## The way back
#
# Backward of lesson 3 begins with the weights $A$, and we have thrown them away. But we kept one
# number for each row, the logarithm of its sum of exponentials: $\ell_t = m_t + \ln n_t$. With it,
# we can compute any weight again without the other weights of its row:
#
# $$A_{ts} = \frac{e^{Z_{ts}}}{\sum_u e^{Z_{tu}}} = e^{Z_{ts} - \ell_t}$$
#
# So a block's scores are computed once more. Then everything goes as in lesson 3, block by block,
# because products such as $\mathrm{d}V = A^\top \mathrm{d}O$ are sums over blocks. One line needs
# more thought:
#
# $$\mathrm{d}Z_{ts} = A_{ts}\,(\mathrm{d}A_{ts} - r_t), \quad r_t = \sum_s A_{ts}\,
# \mathrm{d}A_{ts}$$
#
# The average $r_t$ runs over *all* keys, and a block knows only its own keys. Must we go through
# all blocks twice? Write out $\mathrm{d}A = \mathrm{d}O\,V^\top$, and change the order of the sums:
#
# $$r_t = \sum_s A_{ts} \sum_j \mathrm{d}O_{tj}\,V_{sj}$$
#
# $$= \sum_j \mathrm{d}O_{tj} \sum_s A_{ts}\,V_{sj} = \sum_j \mathrm{d}O_{tj}\,O_{tj}$$
#
# So $r_t$ is the dot product of two rows that we have, one of $\mathrm{d}O$ and one of $O$. (Dao et
# al. call it $D$.)


# %%
@show
def the_lines_of_backward():
    """r of the row of `cats`, both ways, and numformer's backward in blocks, line by line."""
    plain, weights = scaled_dot_product_attention(math.sqrt(2) * query, key, value)
    da = doutput[3] @ value.T
    by_hand = Words(f"""
        By hand, for the row of *cats*: over all four keys, $r$ is {dot_by_hand(weights[3], da)}.
        And from the two rows alone, it is {dot_by_hand(plain[3], doutput[3])}.
    """)
    notes = {
        "inner = ": r"$r$, for all rows: dot products of rows of $\mathrm{d}O$ and $O$.",
        "for scores": "The same blocks, in any order.",
        "weights = scores": "The scores once more: the price of not having kept them.",
        "weights -= ": r"$Z - \ell$",
        "xp.exp": r"$A = e^{Z - \ell}$",
        "dvalue[": r"Each block adds to $\mathrm{d}V = A^\top \mathrm{d}O$.",
        "ddropped = ": r"$\mathrm{d}A = \mathrm{d}O\,V^\top$",
        "dscores -= ": r"$\mathrm{d}A - r$",
        "dscores *= ": r"$\mathrm{d}Z = A\,(\mathrm{d}A - r)$",
        "dquery[": r"$\mathrm{d}Q = \mathrm{d}Z\,K$. No other block has these rows, so they "
        "are set. If blocks had fewer columns, each would add to them.",
        "dkey[": r"Each block adds to $\mathrm{d}K = \mathrm{d}Z^\top Q$.",
        "dquery *= scale": "The scale of forward, once more.",
    }
    return [by_hand, Beside(backward_in_tiles, notes, whole=False, loops=True)]


# %% [markdown]
# ## Is it true?
#
# The library moves the inputs a little and measures what changes. It checks attention in blocks of
# four rows, with a causal mask, and linear attention, which you will meet below. (With `least=0`
# the library cuts blocks even for six words. It would compute so few as a whole otherwise.)


# %%
@show
def gradient_check():
    """Attention in blocks and linear attention, explicit gradients beside measured ones."""
    rng = np.random.default_rng(13)
    of_heads = [rng.standard_normal((1, 2, 6, size)) for size in (3, 3, 4)]
    linear = LinearAttention(4, 2, rng)
    pack(linear, np.float64)
    found = check(TiledAttention(rows=2, least=0), [*of_heads, np.tri(6, dtype=bool)])
    found += check(linear, [rng.standard_normal((2, 6, 4))])
    names = [f"blocks: {row.name}" for row in found[:3]] + [f"linear: {r.name}" for r in found[3:]]
    numbers = [(f"{row.explicit:.6f}".replace("-", "−"), scientific(row.error)) for row in found]
    rows = [(name, *both) for name, both in zip(names, numbers, strict=True)]
    return table(["gradient of", "explicit", "relative error"], rows)


# %% [markdown]
# ## Fewer heads to remember
#
# From here on, the methods compute something else than the paper's attention, and each of them
# gives something up. The first one still has all $T^2$ scores. It shrinks what a model remembers
# while it *writes*: the keys and values of all words so far (the *cache*). In **grouped-query
# attention** (Ainslie et al. 2023) $h$ heads of queries share fewer heads of keys and values. If
# all share a single one, it is *multi-query* attention (Shazeer 2019). Head $i$ uses the keys and
# values of its group $g$:
#
# $$O_i = \mathrm{softmax}\Bigl(\frac{Q_i K_g^\top}{\sqrt{d_k}}\Bigr) V_g$$
#
# **Lost:** the heads of a group can look for different things, but a word shows all of them the
# same key and value.


# %%
@show
def groups():
    """The size of the cache with fewer heads of keys, and the backward."""
    gib = [32 * 131072 * 2 * heads * 128 * 2 / 2**30 for heads in (32, 8, 1)]
    notes = {
        'if "arrays" in saved': "Backward of attention, for each head of queries: in blocks, or "
        "for short sequences as a whole.",
        "if groups < heads": "Keys and values that several heads use collect from all of them: "
        r"$\mathrm{d}K_g = \sum_i \mathrm{d}K^{(i)}$ over the heads $i$ of the group.",
    }
    return [
        Words(f"""
            Take 32 layers with 32 heads of 128 numbers, 131,072 words and two bytes for each
            number. The cache has {gib[0]:.0f} GiB. With 8 heads of keys and values it has
            {gib[1]:.0f}, with one {gib[2]:.0f}.
        """),
        Beside(TiledAttention.backward, notes, whole=False),
    ]


# %% [markdown]
# ## Fewer pairs
#
# A model can also leave pairs out. Which positions does a position really need to see? Here are
# three answers; you can try all of them in the figure below:
#
# - **Window** (Beltagy et al. 2020; Jiang et al. 2023): position $t$ sees the latest $w$ positions
#   $s$, with $0 \le t - s < w$. There are at most $Tw$ scores, and the cache holds $w$ positions.
#   **Lost:** whatever is farther back has to be handed on from layer to layer, by $w - 1$ positions
#   in each: $N$ layers reach $N(w-1)$ back.
# - **Window with global positions** (Beltagy et al. 2020; Zaheer et al. 2020): a few positions see
#   all others and are seen by all. **Lost:** whatever is far away has to come through these few. In
#   a model that writes, the first position has seen no other. So it is no short cut there, only a
#   place to look at when nothing else fits (Xiao et al. 2024).
# - **Strided** (Child et al. 2019): some heads see the latest $l$ positions, the others every
#   $l$-th position. Two hops, one layer each, lead back to any position. With $l = \sqrt T$, two
#   such heads have at most $2\,T\sqrt T$ pairs. **Lost:** directness. After two hops a word sees
#   only what the position in between has kept.


# %%
@show
def who_sees_whom() -> Simulation:
    """The second simulation: patterns, and which positions are known after several layers."""
    return patterns.patterns


@show
def the_line_of_the_window():
    """What a window changes in the library."""
    note = "The new rule: which pairs are seen. Blocks then skip the rest."
    return Beside(Window.mask, {"return": note})


# %% [markdown]
# ## A sum in place of a memory
#
# Why does attention need all pairs? Because of the softmax. If a weight were a plain product of two
# vectors, $\phi(q_t)\,\phi(k_s)^\top$ with some function $\phi$, we could change the order of the
# sums, as we did for $r$:
#
# $$\sum_{s \le t} \bigl(\phi(q_t)\,\phi(k_s)^\top\bigr)\,v_s = \phi(q_t)\,S_t$$
#
# $$S_t = \sum_{s \le t} \phi(k_s)^\top v_s$$
#
# $S_t$ is a $d_k \times d_v$ matrix, the *state*. It does not depend on any query, and a new word
# only adds to it: $S_t = S_{t-1} + \phi(k_t)^\top v_t$. That is **linear attention** (Katharopoulos
# et al. 2020, equations 9 to 12). So that the weights are positive and sum to 1, $\phi$ gives only
# positive numbers, and the result is divided by $\phi(q_t) \sum_{s \le t} \phi(k_s)^\top$.
#
# Now backward. Position $t$ reads the state $S_t$, and all later positions read it through later
# states. So the gradient of $S_t$ is a running sum from the end:
#
# $$\mathrm{d}S_t = \phi(q_t)^\top \mathrm{d}y_t + \mathrm{d}S_{t+1}$$
#
# **Lost: sharpness.** Thousands of words lie on top of each other in one matrix.


# %%
@show
def the_lines_of_sums():
    """The features, the running sum and the reversed running sum."""
    forward = {
        "for chunk": "One chunk of 64 positions after another.",
        "y_chunk = ": "Within the chunk: attention without a softmax.",
        "y_chunk += ": r"From all chunks before: $\phi(q_t)\,S$.",
        "state = across": r"The next $S$: add $K^\top V$ of the chunk. (Without decay, `across` "
        "and `to_end` are 1.)",
    }
    backward = {
        "for (chunk": "The chunks, from the last to the first.",
        "dv = matmul": r"$A^\top \mathrm{d}y$ from within the chunk, and $K\,\mathrm{d}S$ from "
        "later chunks.",
        "dk = dk": r"Add $V\,\mathrm{d}S^\top$ from later chunks.",
        "dstate = across": r"$\mathrm{d}S$ for the chunk before.",
    }
    return [
        Beside(
            positive_features, {"return": r"$\phi(x)$: $x + 1$, or $e^x$ below 0."}, whole=False
        ),
        Beside(running_sums, forward, whole=False, loops=True),
        Beside(running_sums_backward, backward, whole=False, loops=True),
    ]


@show
def crowded():
    """The weight of the right key, as more and more keys crowd the state."""
    rng, rows = np.random.default_rng(13), []
    for count in (4, 32, 256, 2048):
        keys, shares = rng.standard_normal((count, 64)), []
        for asked in (keys[:1], 4 * keys[:1]):
            linear = positive_features(asked) @ positive_features(keys).T
            shares += [softmax(asked @ keys.T / 8)[0, 0], linear[0, 0] / linear.sum()]
        rows.append((f"{count:,}", *(f"{share:.3f}" for share in shares)))
    return table(
        ["keys", *(f"{kind}, $q = {n}k$" for n in ("", 4) for kind in ("softmax", "linear"))],
        rows,
        "The weight of the right key $k$ among random keys of 64 numbers. The query $q$ is $k$ "
        "itself, or 4 times $k$.",
    )


# %% [markdown]
# A softmax can be as sharp as it likes: double the query, and the ratio of two weights is squared.
# In linear attention a larger query changes next to nothing, because it stands in the numerator and
# in the denominator. With more keys, the right one is lost in the crowd. (Schlag et al. 2021: a
# state of $d_k$ rows has room for at most $d_k$ keys that do not disturb each other.)
#
# ## A state that forgets on purpose
#
# If the state is too small for everything, let each word decide what it writes, and how much of the
# old state fades. That is a **selective state space** (Gu and Dao 2023, Mamba):
#
# $$S_t = e^{-\rho\,\delta_t}\,S_{t-1} + k_t^\top (\delta_t\,x_t), \quad y_t = q_t\,S_t$$
#
# The word determines its value $x_t$, the step $\delta_t > 0$, the key $k_t$ with which it writes
# and the query $q_t$ with which it reads (in the paper $B$ and $C$). The rate $\rho$ is learned. A
# large step lets the old state fade and writes much; a step near 0 passes over the word. This is
# the same running sum, with a decay (Dao and Gu 2024). Its backward is a running sum from the end,
# with the same decay.
#
# **Lost: looking back.** The state has to keep a word when it comes by, before anyone has asked for
# it.


# %%
@show
def the_lines_of_the_state_space():
    """The selective scan in terms of running sums."""
    notes = {
        "written = ": r"$\delta_t\,x_t$, the value.",
        "log_decay = ": r"$-\rho\,\delta_t$, the logarithm of the share that stays.",
        "y_before_skip, states": "The running sum of linear attention, now with a decay.",
        "return": "A share of $x$ itself is added: it has gone past the state.",
    }
    return Beside(selective_scan, notes)


# %% [markdown]
# Which of these layers can find a word that stood far back? `python -m toy_tasks.recall`
# trains each of them on that task, and writes a table of the results.
#
# ## What it costs
#
# Here are five layers, forward and backward, measured on this computer: plain attention, blocks, a
# window, linear attention and a state space. On logarithmic axes a power $T^p$ is a straight line,
# and $p$ is its slope. Which lines will be steep? Decide first, for time and for memory.


# %%
@show
def what_it_costs():
    """Seconds and memory against the length, and the exponents beside those of theory."""
    found = measured()
    colours = kit.ORANGE, kit.BLUE, kit.GREEN, kit.OCHRE, kit.GREY

    def draw(figure):
        units = ("milliseconds", 1e3), ("MiB", 1 / MIB)
        for what, axes in enumerate(figure.subplots(2, sharex=True)):
            for color, (kind, costs) in zip(colours, found.items(), strict=True):
                axes.plot(LENGTHS, units[what][1] * costs[what], "o-", color=color, label=kind)
            axes.set(ylabel=units[what][0], xscale="log", yscale="log")
            axes.set_xticks(LENGTHS, LENGTHS)
            axes.minorticks_off()
        axes.set(xlabel="$T$")
        figure.axes[0].legend(fontsize=8, ncols=2)

    rows = []
    for kind, (_, of_time, of_memory) in KINDS.items():
        time, memory = (f"{exponent(costs):.2f}" for costs in found[kind])
        rows.append((kind, of_time, time, of_memory, memory))
    assert exponent(found["plain"][1]) > 1.8 > 1.2 > exponent(found["blocks"][1])
    saved = found["plain"][1, -1] / found["blocks"][1, -1]
    return [
        Picture(
            "lesson_13_costs",
            draw,
            "Time and memory of five layers against the length. In both, plain attention rises "
            "most steeply. In memory, the four others lie far below it and are half as steep.",
            f"Above, the processor's time for a step; below, the most memory that the step holds. "
            f"At {LENGTHS[-1]:,} words, blocks need {saved:.0f} times less memory than the plain "
            "formula.",
            size=(4.2, 5.4),
        ),
        table(
            ["layer", "time, theory", "time, measured", "memory, theory", "memory, measured"],
            rows,
            f"Exponents of $T$. Width 64, two heads, a window of {WINDOW}, causal.",
        ),
        Words("""
            Memory follows theory. The memory of a window rises even less, because its blocks have
            the same size at every length. Time is less tidy: a layer also has projections, whose
            work only doubles when $T$ doubles, and at these lengths they still count. So attention
            in blocks, whose exponent is 2 in the end, may look better than it is. Theory says how a
            line goes on. It does not say where two lines cross.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# In the rows with $S_t$, linear attention has the features $\phi(q)$ and $\phi(k)$ in place of $q$
# and $k$.
#
# | forward | backward |
# |---|---|
# | $m' = \max(m, \max_s z_s)$, $c = e^{m-m'}$ | |
# | $n' = cn + \sum_s e^{z_s-m'}$, $\hat O' = c\,\hat O + \sum_s e^{z_s-m'} v_s$ | |
# | $O = \hat O / n$, keep $\ell = m + \ln n$ | $r = \sum_j \mathrm{d}O_j\,O_j$ |
# | $A = e^{Z - \ell}$, of one block | $\mathrm{d}Z = A\,(\mathrm{d}A - r)$, of one block |
# | groups share $K_g$ | $\mathrm{d}K_g = \sum_i \mathrm{d}K^{(i)}$ over the group |
# | window: $0 \le t - s < w$ | the same pairs |
# | $S_t = S_{t-1} + k_t^\top v_t$ | $\mathrm{d}S_t = \mathrm{d}S_{t+1} + q_t^\top \mathrm{d}y_t$ |
# | decay: $e^{-\rho\,\delta_t} S_{t-1}$ | $e^{-\rho\,\delta_{t+1}}\,\mathrm{d}S_{t+1}$ |


# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    rng = np.random.default_rng(13)
    q, k, v = rng.standard_normal((3, 1, 1, 400, 16))
    blocks = TiledAttention(rows=64).forward(q, k, v)
    apart = scientific(abs(blocks - scaled_dot_product_attention(q, k, v)[0]).max())
    raw = q[0, 0] @ k[0, 0].T
    sums = raw.sum(axis=-1)
    thin = np.abs(raw / sums[:, None]).max()
    far = patterns.compute(7, "window", 4)["back"]
    return Words(f"""
        **“FlashAttention is an approximation.”** It is the same sum in another order. Blocks of 64
        rows and the plain formula differ by {apart} here, in float64: that is rounding. Windows,
        linear attention and state spaces, however, *do* compute something else.

        **“It is faster because it does fewer operations.”** It does more. Forward has two products
        with $T \\times T$ matrices and backward four. In blocks, backward has five, because it
        computes the scores again: 7 / 6 ≈ {7 / 6:.2f} times as many in all. What it saves is
        traffic with the memory: a block is made, used and forgotten in the cache. (With a causal
        mask it does save operations: about half of the scores are skipped.)

        **“Linear attention is attention without the softmax.”** If you leave out the softmax, and
        change nothing else, {100 * (sums < 0).mean():.0f} % of our random queries have weights
        whose sum is negative. Divide by these sums, and the largest “share” is {thin:,.0f}. Only a
        positive $\\phi$ and the division together make a mean.

        **“With a window of 4 nobody sees farther than 4.”** That holds for one layer. Seven layers
        reach 7 · 3 = {far:.0f} back. Whether anything useful arrives is another question: each
        layer hands on a mixture.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="A row has seen the scores 1 and 1. Now comes a block with a single score, 3. "
            "What is the sum $n$ after it? (Two decimals; $e^{-2} \\approx 0.135$.)",
            answer=1 + 2 * math.exp(-2),
            mistakes={
                3: "You added 1 to the old sum as it was. The old sum is relative to the maximum "
                "1, so it has to be rescaled to the new maximum 3.",
                1 + math.exp(-2): "You rescaled one old score. The row had seen two, so the old "
                "sum is 2.",
                2 * math.exp(-2): "That is the old sum, rescaled. The new score adds $e^{3-3} = "
                "1$.",
                2 + math.exp(2): "You kept the old maximum, 1. The highest score is now 3.",
                2 * math.e + math.exp(3): "You added the exponentials as they are. Subtract the "
                "maximum, 3, from each score first.",
                1 + 2 * math.exp(2): "You multiplied the old sum by $e^{3-1}$. When the maximum "
                "rises, the old sum shrinks: $c = e^{m-m'}$.",
            },
            why="Before, $m = 1$ and $n = 2$. Now $m' = 3$, so $c = e^{-2}$ and $n' = 0.135 \\cdot "
            "2 + 1 \\approx 1.27$.",
        ),
        Question(
            question="Besides queries, keys, values and outputs, what does forward keep for "
            "backward?",
            choices={
                "nothing": "The scores can be computed again from queries and keys. But to turn "
                "one score into a weight, you need the sum of its whole row.",
                "the logarithm of each row's sum": "",
                "the block with the largest weights": "Large weights matter most, but backward "
                "needs *every* block again. All blocks can be computed again in the same way.",
            },
            answer=1,
            why="With one number for each row, every weight can be computed again by itself: "
            "$A_{ts} = e^{Z_{ts} - \\ell_t}$.",
        ),
        Question(
            question="$\\sum_j \\mathrm{d}O_{tj}\\,O_{tj}$ equals $\\sum_s "
            "A_{ts}\\,\\mathrm{d}A_{ts}$. Why is the first better here?",
            choices={
                "It is more exact.": "Both are sums of products, and rounding affects them alike. "
                "What differs is which numbers they need.",
                "It needs no other block.": "",
                "It has no factor $\\sqrt{d_k}$.": "Neither sum has this factor. It belongs to the "
                "scores, before the softmax.",
            },
            answer=1,
            why="The second runs over all keys, so over all blocks of the row. The first needs "
            "only two rows that we have.",
        ),
        Question(
            question="Each of six layers has a window of 512. How far back can a word reach at "
            "most?",
            answer=6 * 511,
            mistakes={
                6 * 512: "A window of 512 includes the word itself, so a layer reaches 511 words "
                "back.",
                511: "That is one layer. In the layers above, the words that it sees have "
                "themselves looked back.",
                512: "That is the window of one layer, with the word itself. Count only the words "
                "before it, and count all six layers.",
                6 * 511 + 1: "You counted the word itself. The question asks how far back it "
                "reaches.",
                5 * 511: "You counted five layers. The first layer looks back, too.",
            },
            why="A window of 512 holds the word itself and 511 before it, and each layer reaches "
            "as far again: $6 \\cdot 511 = 3066$.",
        ),
        Question(
            question="In linear attention, the queries become ten times as long. Their numbers are "
            "large and positive. What happens to the weights?",
            choices={
                "They become sharp.": "In a softmax they would, because of its exponentials. "
                "Linear attention has none.",
                "Next to nothing.": "",
                "They become ten times as large.": "The numerator does. But the denominator "
                "becomes ten times as large, too, and the weights still sum to 1.",
            },
            answer=1,
            why="For such numbers $\\phi(10q) \\approx 10\\,\\phi(q)$, in the numerator and in the "
            "denominator.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 13 mine.py` writes them into a file, and `python -m lessons check 13 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/later/attention/tiles.py`: the blocks of this lesson, with masks, biases and dropout.
#   `patterns.py` beside it has the windows, and `linear_attention.py` and `state_space.py` in
#   `numformer/later/mixers` have the layers with a state.
# - Dao et al. 2022, *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*:
#   what a graphics card gains, and why. Rabe and Staats 2021, *Self-attention Does Not Need O(n²)
#   Memory*, is shorter.
# - Katharopoulos et al. 2020, *Transformers are RNNs*; Gu and Dao 2023, *Mamba*; and Dao and Gu
#   2024, *Transformers are SSMs*, which shows that the two are relatives.
