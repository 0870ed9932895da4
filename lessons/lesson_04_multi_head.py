# %% [markdown]
# # Multi-head attention
#
# > Why should a word look at other words several times at once? What do the heads of a trained
# > model really do, and are all of them needed?

# %%
import functools

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.facts import fact
from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_04 import reverse, simulations
from lessons.lesson_04 import two_heads as example
from lessons.lesson_04.exercises import EXERCISES
from lessons.lesson_04.two_heads import columns, compute, features, handed, parts, words
from numformer import Adam, MultiHeadAttention, SelfAttention, pack
from numformer.gradient_check.gradients import check
from numformer.paper.attention import Heads, merge_heads, split_heads


@show
def all_heads() -> Simulation:
    """Every head of the trained model."""
    return simulations.heads


# %% [markdown]
# ## One look is a mean
#
# Read *dogs that he trusts bark*. At *bark* you need two things at once. The word before it is
# *trusts*, a verb, so the clause in the middle has ended. And it is *dogs* that bark, so you expect
# *bark*, not *barks*. You looked back twice, at different words and for different reasons. Lesson 3
# gave a word only one look: one query, one row of weights, one blend. Is that enough?
#
# Let the value of a word be three numbers: is it a noun, is it a verb, is it plural? *dogs* is
# (1, 0, 1) and *trusts* is (0, 1, 0). If *bark* gives each of them a weight of one half, what does
# it get? Now try *dog that they trust barks*, where *dog* is (1, 0, 0) and *trust* is (0, 1, 1).
# Which result calls for *bark*, and which for *barks*?
#
# Both are (0.5, 0.5, 0.5). In the first sentence the noun is plural, in the second the verb is. The
# mean does not say which.
#
# Would unequal weights help? Let *bark* give the subject the weight $a$ and the word before it the
# weight $b$, with $a + b = 1$. Let $u$ be a number of the subject, $v$ a number of the other word:
# independent, with mean 0 and variance 1. What arrives is $s = au + bv$. Guess $u$ as a multiple
# $cs$ of what arrives. The mean squared error of the guess is
#
# $$1 - 2ca + c^2(a^2 + b^2)$$
#
# It is smallest at $c = a/(a^2 + b^2)$, where it is $b^2/(a^2 + b^2)$. For $v$ it is
# $a^2/(a^2 + b^2)$. Add the two: whatever the weights, the sum is **1**. Two numbers of variance 1
# were sent, and half of the variance is lost. Looking harder at one word only loses more of the
# other.
#
# Is this still true when a layer *learns* its weights? Here is one attention layer and nothing
# else. Each of six words has eight random numbers and a mark of its place. From the third word on,
# the result of a word has to hold the numbers of two words at once: the word before it and the
# first word. The layer has the same number of parameters, however many looks (*heads*) it has. How
# large will the error of one head be in the end?


# %%
@functools.cache
def two_words_at_once(heads: int, steps: int = 300) -> np.ndarray:
    """Train one layer to hand over the word before and the first word -> the loss of each step."""
    of_weights, of_data = np.random.default_rng(4).spawn(2)
    layer = SelfAttention(16, heads, of_weights)
    adam, losses = Adam(pack(layer)), []
    places = np.broadcast_to(3 * np.eye(6, 8, dtype=np.float32), (64, 6, 8))
    for step in range(1, steps + 1):
        said = of_data.standard_normal((64, 6, 8), dtype=np.float32)
        first = np.broadcast_to(said[:, :1], (64, 4, 8))
        wanted = np.concatenate([said[:, 1:-1], first], axis=-1)
        layer.zero_grad()
        error = layer.forward(np.concatenate([said, places], axis=-1))[:, 2:] - wanted
        layer.backward(np.pad(2 / error.size * error, ((0, 0), (2, 0), (0, 0))))
        adam.step(0.02 * min(1, 2 - 2 * step / (steps + 1)))
        losses.append(float((error * error).mean()))
    return np.array(losses)


@show
def one_head_against_several():
    """One layer learns to hand over two words, with one head, two and four."""
    with threadpool_limits(1, "blas"):
        losses = {count: two_words_at_once(count) for count in (1, 2, 4)}
    last = {count: found[-20:].mean() for count, found in losses.items()}

    def draw(figure):
        axes = figure.subplots()
        for count, found in losses.items():
            axes.plot(found, label=f"heads: {count}, of size {16 // count}")
        axes.axhline(0.5, color="C3", linestyle=":", label="half is lost")
        axes.set(xlabel="step", ylabel="mean squared error", ylim=(0, 1.6))
        axes.legend()

    return [
        Picture(
            "lesson_04_two_words",
            draw,
            "Error against training step. With one head it stays a little below one half; with two "
            "and with four it falls to 0.",
            "**Two words through one layer.** A layer that returns only zeros has the error 1.",
        ),
        Words(f"""
            One head ends at {last[1]:.2f}, a little better than a half because its weights can
            react to *what* a word says. Two end at {scientific(last[2])}, four at
            {scientific(last[4])}: each head hands over one word, or part of one.
        """),
    ]


# %% [markdown]
# The paper says so in two sentences (section 3.2.2): “Multi-head attention allows the model to
# jointly attend to information from different representation subspaces at different positions. With
# a single attention head, averaging inhibits this.”
#
# ## Two heads by hand
#
# Now let *bark* look twice. Each word is a row of $X$ with six numbers: *noun*, *verb*, *plural*, a
# constant 1, its place $p$ (counted from the middle), and $p^2$.
#
# A **head** makes its own queries, keys and values, here of three numbers each ($d_k = d_v = 3$).
# The weights $W^Q_1$ and $W^Q_2$ that make the queries of the two heads stand side by side in one
# matrix $W^Q$, so one product $XW^Q$ makes all queries.


# %%
made = compute()


@show
def words_and_weights():
    """The words and the weights that make queries and keys."""
    return [
        Matrix("X", made["x"], words, features),
        Matrix("W^Q", example.W_Q, features, columns),
        Matrix("W^K", example.W_K, features, columns),
    ]


# %% [markdown]
# **Head 1 looks for the word before.** A word at $p$ wants the place $p - 1$. With the columns of
# head 1 a key at $s$ scores $-4\,(s - (p - 1))^2$: 0 for the word before, $-4$ for the neighbours
# of that word, $-16$ for the words two places from it. Multiply the square out, and it is the dot
# product of the query $(-4p^2 + 8p - 4,\; 8p - 8,\; -4)$ and the key $(1,\; s,\; s^2)$.
#
# **Head 2 looks for the other kind of word.** Verbs have the query $(4, 0, 0)$ and nouns
# $(0, 4, 0)$; nouns have the key $(1, 0, 0)$ and verbs $(0, 1, 0)$. So verbs score 4 with nouns,
# and nouns score 4 with verbs.
#
# Check it by hand. *bark* is at $p = 2$, so its query in head 1 is $(-4, 8, -4)$. *he* is at 0 and
# has the key $(1, 0, 0)$: score $-4$. *trusts* is at 1, key $(1, 1, 1)$: score $-4 + 8 - 4 = 0$.
# Divide by $\sqrt{3}$ and take the softmax: $e^{-4/\sqrt{3}} \approx 0.1$, so *he* gets a tenth of
# what *trusts* gets. In head 2 *dogs* scores 4 and the others 0, so *dogs* gets ten times as much
# as each of them.


# %%
@show
def two_rows_of_weights():
    """The weights of both heads."""
    weights = {"A_1": made["aone"], "A_2": made["atwo"]}
    return [Matrix(symbol, each, words, words, 1) for symbol, each in weights.items()]


# %% [markdown]
# *bark* now has two rows of weights, the last row of each matrix, and each sums to 1.
#
# Each head hands over *noun*, *verb* and *plural* of the words it looks at. What the two heads
# found goes side by side into a matrix $C$ of six columns. Adding the two would make a mixture
# again. A last weight, $W^O$, says what the findings mean. Ours writes into the same six features:
# into *noun* whether there is a subject, into *verb* whether a verb comes before, into *plural* the
# *plural* of the subject **minus** the *plural* of the word before.


# %%
@show
def findings_and_output():
    """What both heads found, what is made of it, and the same in the other sentence."""
    here, there = made["y"][-1, 2], compute(sentence=example.sentences[1])["y"][-1, 2]
    return [
        Matrix("C", made["c"], words, handed, 1),
        Matrix("W^O", example.W_O, handed, features, 1),
        Matrix("Y", made["y"], words, features, 1),
        Words(
            f"""
            For *bark*, *plural* is {here:.2f}. In *dog that they trust barks* the same weights
            give the last word {there:.2f}. One mean could not tell the two sentences apart; two
            heads give them opposite signs.
        """.replace("-", "−")
        ),
    ]


# %% [markdown]
# ## The equation and its lines
#
# That is all: **split, attend, concatenate, project**. The paper writes (section 3.2.2)
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\,W^O$$
#
# $$\mathrm{head}_i = \mathrm{Attention}(QW^Q_i,\; KW^K_i,\; VW^V_i)$$
#
# The paper's $Q$, $K$ and $V$ are the words themselves, before any weight. The library calls them
# `x`, the words that look, and `memory`, the words they look at. In *self-attention* both are the
# same; in *cross-attention* the memory is another text, of its own length $S$. A batch has $B$
# sentences of $T$ words, and a word has $D$ numbers.


# %%
@show
def the_lines_of_forward():
    """The library's forward, line by line."""
    return [
        Beside(
            MultiHeadAttention.forward,
            {
                "query = ": "**Project and split**: the queries of all heads, from the words that "
                "look. `reach.queries` says which of them are padding.",
                "key, value = ": "The same for keys and values, from the memory.",
                "return self.attend": "The rest happens in `attend`, below.",
            },
            whole=False,
        ),
        Beside(
            Heads.forward,
            {
                "return split_heads": r"""One product with $W^Q$ makes the queries of all heads,
                    $(B, T, D) \to (B, T, h d_k)$. Then each head gets its columns:
                    $(B, h, T, d_k)$."""
            },
            whole=False,
        ),
        Beside(
            MultiHeadAttention.attend,
            {
                "heads = ": """**Attend.** This is lesson 3, for every head of every sentence by
                    itself. One mask serves all heads.""",
                "return self.output": r"""**Concatenate and project.** Each word's findings side by
                    side, $(B, T, h d_v)$, times $W^O$.""",
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ## Split and merge
#
# Number the entries of $Q$ by word and column: 23 is word 2, column 3. They lie in memory row by
# row.


# %%
@show
def split_and_its_mistake():
    """Which entries each head gets, and which it would get without the swap of axes."""
    numbered = 10 * np.arange(1, 6)[:, None] + np.arange(1, 7.0)
    split = split_heads(numbered[None], 2)
    assert np.shares_memory(numbered, split)
    of_head, of_word = (step // numbered.itemsize for step in split.strides[1:3])
    mixed = numbered.reshape(2, 5, 3)[0]
    return [
        Matrix("Q", numbered, words, columns, 200),
        *(Matrix(f"Q_{head + 1}", split[0, head], words, parts, 200) for head in (0, 1)),
        Words(f"""
            `reshape` cuts the last axis in two, head and part: $(B, T, 6)$ becomes
            $(B, T, 2, 3)$. `swapaxes` puts the head before the word: $(B, 2, T, 3)$. No number
            moves. The result is a *view*, the same memory read in other steps: from one head to
            the next it is {of_head} numbers, from one word to the next {of_word}.

            It is tempting to ask for the final shape at once, `reshape(batch, heads, length, -1)`.
            The shape is right and nothing complains. But what would head 1 get?
        """),
        Matrix(r"\text{wrong}", mixed, words, parts, 200),
        Words("""
            It would get the first half of the memory, cut into threes. The row of *that* is part of
            *dogs*; *trusts* and *bark* are missing. A gradient check cannot find this: the gradient
            is right, but the function is wrong. To find it, change one word and see whether the
            *queries* of other words change.
        """),
        Beside(
            split_heads,
            {"return x.reshape": r"Cut, then swap: $(B, T, h d_k) \to (B, h, T, d_k)$."},
            whole=False,
        ),
        Beside(
            merge_heads,
            {
                "return x.swapaxes": r"""Swap, then glue: the paper's Concat,
                    $(B, h, T, d_v) \to (B, T, h d_v)$. This copies numbers, because in memory the
                    heads of a word do not lie side by side."""
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ## Every head of a trained model
#
# We told our heads what to look for. What do heads do on their own? While this page was built, a
# small Transformer learned to write words backwards: 3 to 8 random letters, width 32. Two layers
# read the word and two write it. Each attention has four heads of size 8. The layers that write
# have a second attention, *cross-attention*: the letters to be written look at the letters that
# were read.


# %%
@show
def what_heads_look_at():
    """How good the trained model is on words that it has not seen, and what its heads look at."""
    model, task = reverse.trained()
    (written,) = task.write(model, ["window"])
    last = reverse.shares("cross-attention, layer 2")["the letter to write"]
    return Words(f"""
        Of {reverse.TESTED} words that training never saw it writes
        {100 * reverse.exact_match():.1f} % without a mistake: *window* becomes *{written}*. You saw
        its 24 heads [at the top](#heads).

        All four heads of the last attention look at the letter to be written, with
        {last.min():.2f} to {last.max():.2f} of their weight. Other heads look at the end mark,
        which tells how long the word is, or at the symbol written last. Many look a little
        everywhere. The paper found that “individual attention heads clearly learn to perform
        different tasks” (section 4). Here, heads of different *attentions* do. But nothing in the
        equation asks the four heads of one attention to differ.
    """)


# %% [markdown]
# ## The way back
#
# The loss hands us $\mathrm{d}Y$. We need $\mathrm{d}X$ for what comes before, and a gradient for
# each of the four weights. Step through it with our two heads; each step is derived below.


# %%
@show
def stepper() -> Simulation:
    """Two heads, forward and backward, with the numbers of the example."""
    return example.two


# %% [markdown]
# ### Through the projections
#
# The last step was $Y = CW^O$ ([step](#step-output)), entry by entry
#
# $$Y_{tj} = \sum_c C_{tc}\,W^O_{cj}$$
#
# As in lesson 3, ask where a number is used, and collect. $C_{tc}$ is used in $Y_{tj}$ for every
# $j$, with the factor $W^O_{cj}$ ([step](#step-dc)). $W^O_{cj}$ is used for every word $t$, with
# the factor $C_{tc}$:
#
# $$\mathrm{d}C = \mathrm{d}Y\,W^{O\top} \qquad \mathrm{d}W^O = C^\top\,\mathrm{d}Y$$
#
# Every word of every sentence uses the weight, so its gradient collects from all of them. Nothing
# is divided here: if the loss is a mean, it has divided already. The products with $W^Q$, $W^K$ and
# $W^V$ go back in the same way ([step](#step-dwq)).
#
# ### Merge undoes split
#
# Split and merge compute nothing. They only give numbers new places, so a number's gradient is the
# gradient at its new place. Split puts back what merge rearranged, and merge what split rearranged
# ([step](#step-dwq)). Each is the backward of the other.
#
# ### Through each head
#
# Between split and merge lies lesson 3, for each head of each sentence by itself. It takes
# $\mathrm{d}O_i$, the gradient of what head $i$ found, and gives $\mathrm{d}Q_i$, $\mathrm{d}K_i$
# and $\mathrm{d}V_i$ ([step](#step-dattend)). The heads do not meet here, only in $Y$ and in $X$.
#
# ### Three ways back to a word
#
# All heads made their queries from the same word, so what they send back adds up. One product with
# the whole $W^Q$ does that:
#
# $$\mathrm{d}X = \sum_i \mathrm{d}Q_i\,W^{Q\top}_i = \mathrm{d}Q\,W^{Q\top}$$
#
# A word of the memory $H$ is used twice, for its key and for its value:
#
# $$\mathrm{d}H = \mathrm{d}K\,W^{K\top} + \mathrm{d}V\,W^{V\top}$$
#
# In self-attention the memory *is* $X$. The same word makes query, key and value, and gets all
# three gradients ([step](#step-dx)).
#
# ### All of it
#
# Read forward from bottom to top, and you have the library's backward.


# %%
@show
def the_lines_of_backward():
    """The library's backward, line by line."""
    return Beside(
        MultiHeadAttention.backward,
        {
            "dheads = split_heads": r"""Forward ended with merge and $W^O$. So: back through
                $W^O$ ($\mathrm{d}C$; this also adds to $\mathrm{d}W^O$), then split.""",
            "dquery, dkey, dvalue = ": "All heads of all sentences: the lines of lesson 3.",
            "dmemory = self.value": r"""The memory made the values: merge, then
                $\mathrm{d}V\,W^{V\top}$.""",
            "dmemory += self.key": r"""It made the keys too: $+\,\mathrm{d}K\,W^{K\top}$. With `=`
                the values' part would be lost.""",
            "return self.query": r"""The words made the queries: $\mathrm{d}Q\,W^{Q\top}$. In
                self-attention one more line follows, `dx += dmemory`.""",
        },
        whole=False,
    )


# %% [markdown]
# ### Is it true?
#
# Nudge an input or a weight, measure how much the result changes, and compare. Here is the check
# with 3 heads, a memory of another length, and different $d_k$ and $d_v$.


# %%
@show
def gradient_check():
    """The explicit gradients of multi-head attention beside measured ones."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 3, rng, d_k=2, d_v=5)
    checked = check(layer, [rng.standard_normal((2, 4, 8)), rng.standard_normal((2, 6, 8))])
    rows = []
    for row in checked:
        numbers = (f"{x:.7f}".replace("-", "−") for x in (row.explicit, row.numerical))
        rows.append((f"`{row.name}`", f"{row.shape}", *numbers, scientific(row.error)))
    return table(["gradient of", "shape", "explicit", "measured", "relative error"], rows)


# %% [markdown]
# ## What it costs
#
# Several looks for the price of one? The paper says: “Due to the reduced dimension of each head,
# the total computational cost is similar to that of single-head attention with full
# dimensionality.” With $d_k = d_v = D/h$ more heads are smaller heads, and $h\,d_k$ stays $D$. So
#
# - the parameters are four square matrices, $4D^2$, however many heads share their columns;
# - the multiplications are $4TD^2$ for the projections, and $T^2 d_k$ per head for the scores and
#   as many for the blend, $2T^2D$ for all heads together;
# - the number of attention weights grows: it is $hT^2$. Each needs an exponential, and training
#   keeps each for the way back.
#
# The cost is similar, not the same. And every head compares and hands over fewer numbers.

# %% [markdown]
# ## In the running example
#
# Our two heads of *bark* stand for one attention. The translator of the [home page](index.html) has
# nine attentions of four heads each. Look through them on its sentence. **Before you look:** which
# heads will connect *frau* with *woman*?


# %%
@show
def in_the_running_example() -> Simulation:
    """All 36 heads, on the sentence and its right translation."""
    return simulations.running_heads


# %% [markdown]
# ## To take with you
#
# $T$ words $X$ look at $S$ words $H$, the memory, with $h$ heads. In self-attention $H = X$.
#
# | forward | backward | shape |
# |---|---|---|
# | $Y = CW^O$ | $\mathrm{d}C = \mathrm{d}Y\,W^{O\top}$ | $(T, h\,d_v)$ |
# | | $\mathrm{d}W^O = C^\top\,\mathrm{d}Y$ | $(h\,d_v, D)$ |
# | $C$ = merge of all $O_i$ | $\mathrm{d}O_i$: split of $\mathrm{d}C$ | $(T, d_v)$ |
# | $O_i$ of $Q_i$, $K_i$, $V_i$ | lesson 3, in each head | |
# | $Q_i$: split of $Q$ | $\mathrm{d}Q$ = merge of all $\mathrm{d}Q_i$ | $(T, h\,d_k)$ |
# | $Q = XW^Q$ | $\mathrm{d}X = \mathrm{d}Q\,W^{Q\top}$ | $(T, D)$ |
# | | $\mathrm{d}W^Q = X^\top\,\mathrm{d}Q$ | $(D, h\,d_k)$ |
# | $K = HW^K$ | $\mathrm{d}H = \mathrm{d}K\,W^{K\top}$ | $(S, D)$ |
# | $V = HW^V$ | $\quad + \,\mathrm{d}V\,W^{V\top}$ | |
# | self-attention | $\mathrm{d}X + \mathrm{d}H$ | $(T, D)$ |

# %% [markdown]
# ## Are all heads needed?
#
# To remove a head, set its rows of $W^O$ to 0, so nothing reads it. The model is not trained again.


# %%
@show
def remove_heads() -> Simulation:
    """Remove heads of the trained model."""
    return simulations.pruning


# %%
@show
def heads_removed():
    """What is left without some heads of an attention, and with one look for all of them."""
    every = tuple(range(reverse.HEADS))
    first, *_, last = reverse.ATTENTIONS
    best = max(reverse.left_without(last, every[:n] + every[n + 1 :]) for n in every)
    return Words(f"""
        **Some heads are not needed.** Without all four heads of *{first}* the model still writes
        {100 * reverse.left_without(first, every):.0f} % of the words correctly.

        **Heads that look alike can all be needed.** The four heads of *{last}* look at the same
        letter. Yet with the best of them alone, {100 * best:.0f} % of the words are right. Why?
        $W^Q$ and $W^K$ decide where a head looks, but $W^V$ decides what it hands over: 8 numbers
        of a letter, different ones for each head. To check this, give all four the same look, the
        mean of their weights, and let each keep its values:
        {100 * reverse.left_with_one_look(last):.0f} % of the words are right. One look
        is enough here; one *head* is not.
    """)


# %% [markdown]
# Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*, removed heads from
# large trained models. Of the 96 heads in a translator's encoder, only 8 made a difference beyond
# chance when removed one at a time, and half of these removals *raised* BLEU. Cross-attention
# needed its heads more. To choose which heads to remove, they did not try out
# every head. They imagined a factor $g_i$ in front of each, equal to 1, and looked at the size of
# its *gradient*: a head whose factor has a small gradient can go.
#
# But in the Transformer paper, a model *trained* with one head was 0.9 BLEU worse, as the next
# table shows.
#
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    bleu = dict(fact("BLEU of variations"))
    base = bleu.pop("base")
    claimed = {"h = 16": "−0.3", "d_k = 32": "−1.5", "d_{model} = 1024": "+1.1"}
    changes = {row: f"{bleu[row] - base:+.1f}".replace("-", "−") for row in bleu}
    rows = [
        (f"${row}$", f"{bleu[row]}", changes[row].replace("+0.0", "0"), claimed.get(row, ""))
        for row in bleu
    ]
    lost = base - bleu["h = 4"]
    of_a_head = 4096**2 * 4 / 2**20
    return [
        Words(f"""
            **“In Table 3 of the paper h=16 loses 0.3 BLEU, d_k=32 loses 1.5, d_model=1024 gains
            1.1.”** None of the three changes is in the table ({lost:.1f} is what 4 heads lose):
        """),
        table(
            ["row", "BLEU", "change", "claimed"],
            rows,
            f"The base model has 8 heads, keys of 64, width 512 and {base} BLEU. In the rows of "
            "h, a head has the size 512 / h. In the rows of d_k, nothing else changes.",
        ),
        Words(f"""
            One head loses most, and 32 heads are too many. Compare the two rows with keys of size
            16: 32 heads lose {base - bleu["h = 32"]:.1f} BLEU, 8 heads lose
            {base - bleu["d_k = 16"]:.1f}.

            **“4,096² · 4 bytes = 64 MB of attention per layer.”** It is {of_a_head:.0f} MiB for
            *one head* and one sentence; with 8 heads it is {8 * of_a_head:.0f} MiB.
        """),
    ]


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    layer = MultiHeadAttention(96, 6, np.random.default_rng(0))
    return [
        Question(
            question="$W^Q$ is $96 \\times 96$ and there are 6 heads. How many columns of $W^Q$ "
            "belong to one head?",
            answer=layer.query.weight.shape[1] // layer.heads,
            mistakes={
                96: "Those are all the columns of the matrix. The 6 heads share them.",
                6: "That is the number of heads. Divide the columns among them.",
                96 * 6: "You multiplied. The heads do not have 96 columns each; they share 96.",
                96 * 16: "That is how many numbers one head's columns hold. The question asks for "
                "the number of columns.",
            },
            why="Each head has $d_k = 96 / 6 = 16$, and the heads stand side by side.",
        ),
        Question(
            question="How many parameters do these 6 heads have together, without biases?",
            answer=sum(each.size for each in layer.named_parameters().values()),
            mistakes={
                96**2: "That is one matrix. Queries, keys, values and the output have one each.",
                3 * 96**2: "You counted the matrices of queries, keys and values. The heads' "
                "results go through $W^O$ as well.",
                6 * 4 * 96**2: "You gave each head four whole matrices. All heads together share "
                "four.",
                4 * 96 * 16: "That is a single head. There are 6.",
                4 * 96**2 + 4 * 96: "You added the biases. The question leaves them out.",
            },
            why="Four square matrices, $4 \\cdot 96^2 = 36864$. The number of heads does not "
            "matter, as long as $h\\,d_k = D$.",
        ),
        Question(
            question="One look gives two words the weights 0.8 and 0.2. What share of the variance "
            "of the *first* word's numbers is lost at best? (Two decimals.)",
            answer=0.2**2 / (0.8**2 + 0.2**2),
            mistakes={
                0.8**2 / (0.8**2 + 0.2**2): "That is the share that the *second* word loses. The "
                "first has the larger weight, so it loses less.",
                0.2: "That is the other word's weight. Variances go with the squares of the "
                "weights.",
                0.2**2: "You still have to divide by $a^2 + b^2$, the variance of what arrives.",
                0.2 / 0.8: "That is the ratio of the weights. Variances go with their squares. "
                "Compare one square with the sum of both.",
                1 - 0.8**2: "You took $a^2$ as the share that survives. But a guess may rescale "
                "what arrives, and the best one loses less.",
                0.8**2 + 0.2**2: "That is the variance of what arrives. Which part of it comes "
                "from the second word?",
            },
            why="It is $b^2/(a^2+b^2) = 0.04 / 0.68 \\approx 0.06$; for the other word it is 0.94.",
        ),
        Question(
            question="What makes up $\\mathrm{d}H$, the gradient of a memory that is another text?",
            choices={
                "the queries' part": "The queries were made from the words that look, not from the "
                "memory. Their part goes to those words.",
                "the keys' and the values' part": "",
                "all three parts": "That is so in self-attention, where the words that look are "
                "themselves the memory. Here the queries come from another text.",
            },
            answer=1,
            why="The memory made keys and values, so its gradient is the sum of their parts.",
        ),
        Question(
            question="Two heads have the same weights $A$ for every sentence. Can you remove one "
            "of them without changing anything?",
            choices={
                "yes: they do the same thing": "They look at the same words, but looking is only "
                "half of what a head does. They may still hand over different numbers.",
                "no: two heads never look at the same word": "Nothing stops two heads from looking "
                "at the same word. In this lesson's model four do, and all four are needed.",
                "no: they may hand over different numbers of the same words": "",
            },
            answer=2,
            why="Only $W^Q$ and $W^K$ make $A$. $W^V$ makes the values, so heads with the same $A$ "
            "may hand over different numbers.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 4 mine.py` writes them into a file, and `python -m lessons check 4 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - *Attention Is All You Need*: section 3.2.2, rows A and B of Table 3, and the pictures of heads.
# - Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*; Voita et al. 2019,
#   *Analyzing Multi-Head Self-Attention*: 38 of 48 heads removed for 0.15 BLEU.
# - Lesson 5. Head 1 found the word before only because each word's place was among its numbers.
#   How does a model know what comes first?
