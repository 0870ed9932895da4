# %% [markdown]
# # Multi-head attention
#
# > Why should a word look at other words several times at once? What do the heads of a trained
# > model really do, and are all of them needed?

# %%
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_04 import reverse, simulations
from lessons.lesson_04 import two_heads as example
from lessons.lesson_04.exercises import EXERCISES
from lessons.lesson_04.two_heads import columns, compute, features, handed, parts, words
from numformer import Adam, MultiHeadAttention, SelfAttention, pack
from numformer.backend import matmul
from numformer.gradient_check.gradients import check
from numformer.layers.attention import merge_heads, split_heads


@show
def all_heads() -> Simulation:
    """Every head of the trained model."""
    return simulations.heads


# %% [markdown]
# ## One look is a mean
#
# Read *dogs that he trusts bark*. When you come to *bark* you need two things at once. The word
# before is *trusts*, a verb, so the little sentence in the middle has ended. And those who bark are
# *dogs*, so it is *bark* and not *barks*. You looked back twice, at different words and for
# different reasons. Lesson 3 gave a word one look: one query, one row of weights, one blend. What
# is wrong with that?
#
# Let the value of a word be three numbers: is it a noun, is it a verb, is it plural? *dogs* is
# (1, 0, 1) and *trusts* is (0, 1, 0). Let *bark* look at these two, with a weight of one half each.
# The result of attention is a mean of values, so you can compute it in your head. Now do the same
# in *dog that they trust barks*, where *dog* is (1, 0, 0) and *trust* is (0, 1, 1). Which of the
# two results calls for *bark*, and which for *barks*?
#
# They are the same, (0.5, 0.5, 0.5). One *plural* belongs to the noun, the other to the verb, and
# the mean does not say to which. It cannot: one row of weights gives one mixture, and in a mixture
# nobody knows who brought what.
#
# Would unequal weights help? Give the subject the weight $a$ and the word before $b$, with
# $a + b = 1$. Let $u$ be a number of the one and $v$ of the other: independent, mean 0, variance 1.
# What arrives is $s = au + bv$. The best guess of $u$ is some multiple $cs$ of it, and its mean
# squared error is
#
# $$\mathrm{E}(u - cs)^2 = 1 - 2ca + c^2(a^2 + b^2)$$
#
# It is smallest at $c = a/(a^2 + b^2)$, and then it is $b^2/(a^2 + b^2)$. In the same way it is
# $a^2/(a^2 + b^2)$ for $v$. Now add the two: whatever the weights, the sum is **1**. Two numbers of
# variance 1 were sent, and half of what was sent is lost. Looking harder at one only moves the
# loss.
#
# Does this hold when a layer *learns* its weights? Here is one attention layer and nothing else.
# Six words have eight random numbers each, and a mark of their place. From the third on, each has
# to hand over two words at once: the numbers of the word before it, and those of the first word.
# The layer has the same number of weights, however many looks (*heads*). Where will one head end?


# %%
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
            "**Two words through one layer.** A layer that says nothing has the error 1.",
        ),
        Words(f"""
            One head ends at {last[1]:.2f}: a little better than a half, because its weights can
            react to *what* a word says. Two end at {scientific(last[2])} and four at
            {scientific(last[4])}: each hands over one word, or a part of one.
        """),
    ]


# %% [markdown]
# The paper says it in one sentence (section 3.2.2): “Multi-head attention allows the model to
# jointly attend to information from different representation subspaces at different positions. With
# a single attention head, averaging inhibits this.”
#
# ## Two heads by hand
#
# Now let *bark* look twice. Each word is a row of $X$ with six numbers: *noun*, *verb*, *plural*, a
# constant 1, its place $p$ (counted from the middle), and $p^2$.
#
# A **head** makes queries, keys and values of its own, here three numbers each ($d_k = d_v = 3$).
# It has weights of its own for that, say $W^Q_1$ and $W^Q_2$ for the queries. We put them side by
# side into one matrix $W^Q$: its first three columns make the queries of head 1, its last three
# those of head 2. One product $XW^Q$ then makes the queries of both.


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
# **Head 1 looks for the word before.** A word at $p$ wants the place $p - 1$. Its columns are
# chosen so that a key at $s$ scores $-4\,(s - (p - 1))^2$: 0 for the word before, $-4$ for the
# neighbours of that, $-16$ for the next ones. Multiply the square out: it is the product of the
# query $(-4p^2 + 8p - 4,\; 8p - 8,\; -4)$ and the key $(1,\; s,\; s^2)$.
#
# **Head 2 looks for the other kind of word.** The query of a verb is $(4, 0, 0)$, that of a noun
# $(0, 4, 0)$; the key of a noun is $(1, 0, 0)$, that of a verb $(0, 1, 0)$. So a verb scores 4 with
# a noun, and a noun with a verb.
#
# Check it by hand. *bark* is at $p = 2$, so its query in head 1 is $(-4, 8, -4)$. *he* is at 0 and
# has the key $(1, 0, 0)$: score $-4$. *trusts* is at 1, key $(1, 1, 1)$: score
# $-4 + 8 - 4 = 0$. Divide by $\sqrt{3}$ and take the softmax: $e^{-4/\sqrt{3}} \approx 0.1$, so
# *he* gets a tenth of what *trusts* gets. In head 2 *dogs* scores 4, the others 0: ten to one.


# %%
@show
def two_rows_of_weights():
    """The weights of both heads."""
    weights = {"A_1": made["aone"], "A_2": made["atwo"]}
    return [Matrix(symbol, each, words, words, 1) for symbol, each in weights.items()]


# %% [markdown]
# Look at the last row of each: *bark* now has two rows of weights, and each sums to 1. (Not all
# get what they want. *dogs* has no word before it and looks at itself. And *trusts* takes *dogs*
# for its subject, because this head does not know *he*.)
#
# Both heads hand over *noun*, *verb* and *plural* of the words that they look at. What they found
# is put side by side, into a matrix $C$ of six columns. Side by side and not added: that is the
# point. One more weight, $W^O$, says what the findings mean. Ours writes into the same six
# features: *noun* if there is a subject, *verb* if a verb comes before, and as *plural* the number
# of the subject **less** that of the word before.


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
            The row of *bark* says: there is a subject, there is a verb before, and *plural* is
            {here:.2f}. In *dog that they trust barks* the same weights give the last word
            {there:.2f}. What one mean could not tell apart has opposite signs.
        """.replace("-", "−")
        ),
    ]


# %% [markdown]
# ## The equation and its lines
#
# That is all of it: **split, attend, concatenate, project**. The paper writes (section 3.2.2)
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\,W^O$$
#
# $$\mathrm{head}_i = \mathrm{Attention}(QW^Q_i,\; KW^K_i,\; VW^V_i)$$
#
# The paper's $Q$, $K$ and $V$ are the words themselves, before any weight. In the library they are
# `x`, the words that look, and `memory`, those that are looked at: in *self-attention* the same, in
# *cross-attention* another text, of a length $S$ of its own. $B$ counts the sentences of a batch,
# $D$ the numbers of a word.


# %%
@show
def the_lines_of_forward():
    """The library's forward, line by line."""
    return Beside(
        MultiHeadAttention.forward,
        {
            "query = split_heads": r"""**Project and split.** One product with $W^Q$ makes the
                queries of all heads, $(B, T, D) \to (B, T, h d_k)$. Then each head gets its
                columns: $(B, h, T, d_k)$. `reach.queries` says where padding is.""",
            "key, value, reach_of_keys = ": """The same for keys and values, from the memory. (A
                `past` is for writing word by word; training has none.)""",
            "heads = self.attend": """**Attend.** Lesson 3, word for word. The axes in front,
                sentence and head, are carried along: every head of every sentence is an attention
                by itself. One mask serves all heads.""",
            "return self.output": r"""**Concatenate and project.** Each word's findings side by
                side, $(B, T, h d_v)$, times $W^O$.""",
        },
        whole=False,
    )


# %% [markdown]
# ## Split and merge
#
# `split_heads` looks like work, and is none. Number the entries of $Q$ by word and column: 23 is
# word 2, column 3. In memory they lie row by row.


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
            First the last axis is cut in two, head and part (`reshape`): $(B, T, 6)$ becomes
            $(B, T, 2, 3)$. Then the head comes in front of the word (`swapaxes`): $(B, 2, T, 3)$.
            No number is moved. It is a *view*: the same memory, read in other steps. From a head to
            the next it is {of_head} numbers, from a word to the next {of_word}, as before.

            It is tempting to ask for the last shape at once, `reshape(batch, heads, length, -1)`.
            The shape is right and nothing complains. But what would head 1 get?
        """),
        Matrix(r"\text{wrong}", mixed, words, parts, 200),
        Words("""
            The first half of the memory, cut into threes. The row of *that* is a part of *dogs*,
            and *trusts* and *bark* are missing. Words are mixed. A gradient check cannot find this:
            the wrong function has a right gradient. What finds it: change one word, and see whether
            the *queries* of other words change.
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
                    $(B, h, T, d_v) \to (B, T, h d_v)$. Now numbers are copied, because in memory
                    the heads of a word do not lie side by side."""
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ## Every head of a trained model
#
# Our heads were told what to look for. What do heads do on their own? While this page was built, a
# small Transformer learned to write words backwards: 3 to 8 random letters, width 32. Two layers
# read the word, two write the other one, each with four heads of size 8. When it writes, a second
# attention in each layer looks from what is written to what was read.


# %%
@show
def what_was_trained():
    """How good the trained model is on words that it has not seen."""
    model, task = reverse.trained()
    (written,) = task.written(model, ["window"])
    return Words(f"""
        Of {reverse.TESTED} words that training never saw it writes
        {100 * reverse.exact_match():.1f} % without a mistake; *window*, for example, becomes
        *{written}*. It has six attentions, so 24 heads: see them [at the top](#heads).
    """)


@show
def what_heads_look_at():
    """What the heads of the last attention look at, and what the paper found."""
    last = reverse.shares("from writing to reading, layer 2")["the letter to write"]
    return Words(f"""
        The last attention does what the task asks for. All four of its heads look at the letter to
        be written, with {last.min():.2f} to {last.max():.2f} of their weight: the anti-diagonal.
        Other heads look at the mark of the end, which tells how long the word is, or at what was
        written last. Many look a little everywhere.

        The paper found that “individual attention heads clearly learn to perform different tasks”
        (section 4). Here heads of different *attentions* do. But four heads of one attention may
        all do the same, and nothing in the equation asks them to differ.
    """)


# %% [markdown]
# ## The way back
#
# The loss hands us $\mathrm{d}Y$. We owe $\mathrm{d}X$ to what comes before, and a gradient to each
# of the four weights. Step through it with our two heads; below, each step is derived.


# %%
@show
def stepper() -> Simulation:
    """Two heads, forward and backward, with the numbers of the example."""
    return example.two


# %% [markdown]
# ### Through the projections
#
# The last step was $Y = CW^O$ ([step](#step-output)), by entries
#
# $$Y_{tj} = \sum_c C_{tc}\,W^O_{cj}$$
#
# As in lesson 3, ask where a number is used, and collect. $C_{tc}$ is used in $Y_{tj}$ for every
# $j$, with the factor $W^O_{cj}$ ([step](#step-dc)). $W^O_{cj}$ is used for every word $t$, with
# the factor $C_{tc}$:
#
# $$\mathrm{d}C = \mathrm{d}Y\,W^{O\top} \qquad \mathrm{d}W^O = C^\top\,\mathrm{d}Y$$
#
# The weight is used by every word of every sentence of a batch and collects from all of them.
# Nothing is divided: where a mean is wanted, the loss has it. The products with $W^Q$, $W^K$ and
# $W^V$ go back in the same way ([step](#step-dwq)).
#
# ### Merge undoes split
#
# Split and merge compute nothing. They move each number to another place, unchanged. So the
# gradient of a number is the gradient at the place where it went. Split puts back what merge did,
# and merge what split did ([step](#step-dwq)). Each is the backward of the other.
#
# ### Through each head
#
# Between split and merge comes lesson 3, for each head of each sentence by itself. It takes
# $\mathrm{d}O_i$, the gradient of what head $i$ found, and gives $\mathrm{d}Q_i$, $\mathrm{d}K_i$
# and $\mathrm{d}V_i$ ([step](#step-dattend)). Heads do not meet there. They met in $Y$, and they
# will meet in $X$.
#
# ### Three ways back to a word
#
# All heads made their queries of the same word, so their gradients add up. In one product with the
# whole $W^Q$ that happens by itself:
#
# $$\mathrm{d}X = \sum_i \mathrm{d}Q_i\,W^{Q\top}_i = \mathrm{d}Q\,W^{Q\top}$$
#
# A word of the memory $H$ is used twice. It gave a key, and it gave a value:
#
# $$\mathrm{d}H = \mathrm{d}K\,W^{K\top} + \mathrm{d}V\,W^{V\top}$$
#
# In self-attention the memory *is* $X$. The same word asks, is asked and hands over, and all three
# gradients come back to it ([step](#step-dx)).
#
# ### All of it
#
# Read forward from the bottom to the top, and you have the library's backward.


# %%
@show
def the_lines_of_backward():
    """The library's backward, line by line."""
    return Beside(
        MultiHeadAttention.backward,
        {
            "dheads = split_heads": r"""Forward ended with merge and $W^O$. So back through $W^O$
                ($\mathrm{d}C$, and inside of it $\mathrm{d}W^O$), then split.""",
            "dquery, dkey, dvalue = ": "All heads of all sentences: the lines of lesson 3.",
            "dmemory = self.value": r"""The memory gave the values: merge, then
                $\mathrm{d}V\,W^{V\top}$.""",
            "dmemory += self.key": r"""It gave the keys as well: $+\,\mathrm{d}K\,W^{K\top}$. With
                `=` the values' part would be lost.""",
            "return self.query": r"""The words gave the queries: $\mathrm{d}Q\,W^{Q\top}$. In
                self-attention one more line follows, `dx += dmemory`.""",
        },
        whole=False,
    )


# %% [markdown]
# ### Is it true?
#
# Move an input or a weight a little, see how much the result really changes, and compare. Here with
# 3 heads, a memory of another length, and $d_v$ unlike $d_k$.


# %%
@show
def gradient_check():
    """The explicit gradients of multi-head attention beside measured ones."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 3, rng, d_k=2, d_v=5)
    checked = check(layer, [rng.standard_normal((2, 4, 8)), rng.standard_normal((2, 6, 8))])
    rows = [
        (
            f"`{row.name}`",
            f"{row.shape}",
            f"{row.explicit:.7f}".replace("-", "−"),
            f"{row.numerical:.7f}".replace("-", "−"),
            scientific(row.error),
        )
        for row in checked
    ]
    return table(["gradient of", "shape", "explicit", "measured", "relative error"], rows)


# %% [markdown]
# ## What it costs
#
# Several looks at the price of one? The paper says: “Due to the reduced dimension of each head, the
# total computational cost is similar to that of single-head attention with full dimensionality.” It
# lets $d_k = d_v = D/h$: more heads are smaller heads, and $h\,d_k$ stays $D$. Count what the
# library's layer does, every multiplication of its matrix products, for $D = 512$ as in the paper
# and a sentence of 100 words. Which column will change with the number of heads?


# %%
@show
def what_heads_cost():
    """Parameters, multiplications and weights for several numbers of heads."""
    rows, multiplied = [], []

    def counting(a, b):
        multiplied[-1] += a.size * b.shape[-1]
        return matmul(a, b)

    for count in (1, 2, 4, 8, 16, 32):
        layer = SelfAttention(512, count, np.random.default_rng(0))
        multiplied.append(0)
        with (
            patch("numformer.layers.attention.matmul", counting),
            patch("numformer.layers.linear.matmul", counting),
        ):
            layer.forward(np.zeros((1, 100, 512), np.float32))
        parameters = sum(each.size for each in layer.named_parameters().values())
        numbers = parameters, multiplied[-1], layer.attention.saved[-1]["weights"].size
        rows.append((f"{count}", f"{layer.d_k}", *(f"{number:,}" for number in numbers)))
    return [
        table(["heads", "$d_k$", "parameters", "multiplications", "weights"], rows),
        Words(f"""
            The parameters are four square matrices, $4D^2$, however their columns are shared out.
            The multiplications are $4TD^2$ for the projections, and $T^2 d_k$ a head for the scores
            and as many for the blend: $2T^2D$ for all heads together. What grows is the number of
            attention weights, $hT^2$: {rows[3][-1]} with 8 heads, {rows[0][-1]} with one. Each
            needs an exponential, and in training each is kept for the way back. So the cost is
            similar, not the same. And each head pays: it compares and hands over fewer numbers.
        """),
    ]


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
# Then count the words that it still writes without a mistake.


# %%
@show
def remove_heads() -> Simulation:
    """Remove heads of the trained model."""
    return simulations.pruning


# %%
@show
def heads_removed():
    """What is left without some heads of an attention, and with one look for all of them."""
    rows, every = [], range(reverse.HEADS)
    for name in reverse.ATTENTIONS:
        alone = [reverse.left_without(name, (head,)) for head in every]
        best = max(reverse.left_without(name, tuple({*every} - {head})) for head in every)
        rows.append(
            (
                name,
                *alone,
                best,
                reverse.left_without(name, (*every,)),
                reverse.left_with_one_look(name),
            )
        )
    least, of_least = min((min(row[1:5]), row[0]) for row in rows)
    first, last = rows[0], rows[-1]
    return [
        table(
            [
                "words without a mistake",
                *(f"without head {head + 1}" for head in every),
                "best one alone",
                "without all",
                "one look for all",
            ],
            [(name, *(f"{number:.2f}" for number in numbers)) for name, *numbers in rows],
            "One look for all: every head keeps its values, and all get the mean of the four rows "
            "of weights.",
        ),
        Words(f"""
            **Some heads are not needed.** Without all four heads of *{first[0]}* the model still
            writes {100 * first[6]:.0f} % of the words. They were trained like the others. Elsewhere
            one head alone matters: in *{of_least}* there is one without which only
            {100 * least:.0f} % are left.

            **Heads that look alike can all be needed.** The four of *{last[0]}* look at the same
            letter. Yet the best of them alone leaves {100 * last[5]:.0f} % of the words. Why? A
            head is two things: where it looks, made by $W^Q$ and $W^K$, and what it hands over,
            made by $W^V$. A head of size 8 hands over 8 numbers of a letter, and each hands over
            others. The last column shows it: give all four the same look, the mean of theirs, and
            {100 * last[7]:.0f} % of the words are right. In this place one look would do, and one
            *head* would not.
        """),
    ]


# %% [markdown]
# The published counterpart is Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than
# One?* They removed heads of large trained models. Of the 96 heads with which a translator reads,
# only 8 made a difference beyond chance when removed by themselves, and removing half of these made
# the translations *better*. The attention from writing to reading needed its heads more; here, too,
# it is where one head alone does worst. Voita et al. 2019 removed 38 of 48 such heads, by a method
# that learns which, and lost 0.15 BLEU.
#
# To choose heads Michel et al. did not try all. They imagined a factor $g_i$ before each head, with
# the value 1, and took the size of its *gradient*: a head whose factor has a small gradient can go.
#
# That heads can be removed afterwards does not mean that one head would have been enough. A model
# *trained* with one was 0.9 BLEU worse, as we are about to see.
#
# ## Often told: check it


# %%
@show
def often_told():
    """Popular claims, computed again."""
    bleu = {
        "base": 25.8,
        "h = 1": 24.9,
        "h = 4": 25.5,
        "h = 16": 25.8,
        "h = 32": 25.4,
        "d_k = 16": 25.1,
        "d_k = 32": 25.4,
        "d_{model} = 1024": 26.0,
    }
    told = {"h = 16": "−0.3", "d_k = 32": "−1.5", "d_{model} = 1024": "+1.1"}
    changes = {row: f"{bleu[row] - bleu['base']:+.1f}".replace("-", "−") for row in bleu}
    rows = [
        (f"${row}$", f"{bleu[row]}", changes[row].replace("+0.0", "0"), told.get(row, ""))
        for row in bleu
        if row != "base"
    ]
    layer = SelfAttention(64, 8, np.random.default_rng(0))
    layer.forward(np.zeros((1, 256, 64), np.float32))
    measured = layer.attention.saved[-1]["weights"].nbytes / 2**20
    of_a_head = 4096**2 * 4 / 2**20
    assert measured * (4096 // 256) ** 2 == 8 * of_a_head
    return [
        Words("""
            **“In Table 3 of the paper h=16 loses 0.3 BLEU, d_k=32 loses 1.5, d_model=1024 gains
            1.1.”** None of the three is there (0.3 is what 4 heads lose):
        """),
        table(
            ["row", "BLEU", "change", "told"],
            rows,
            f"The base model has 8 heads, keys of 64, width 512 and {bleu['base']} BLEU. In the "
            "rows of h the size of a head changes as well, to 512 / h. In those of the key's size "
            "only that changes.",
        ),
        Words(f"""
            One head loses most, and 32 are too many. Compare two rows with keys of size 16: 32
            heads of them lose 0.4, and 8 heads of them 0.7.

            **“4,096² · 4 bytes = 64 MB of attention a layer.”** It is {of_a_head:.0f} MiB for *a
            head* of one sentence. With 8 heads it is {8 * of_a_head:.0f} MiB a layer. The library's
            layer agrees: for 256 words its 8 heads keep {measured:.0f} MiB of weights for the
            way back. 4,096 words are 16 times as many, and have {16**2} times the weights.
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
            answer=layer.d_k,
            why="Each head has $d_k = 96 / 6 = 16$. Those of all heads stand side by side.",
        ),
        Question(
            question="How many parameters do these 6 heads have together, without biases?",
            answer=sum(each.size for each in layer.named_parameters().values()),
            why="Four square matrices, $4 \\cdot 96^2 = 36864$. The number of heads does not "
            "matter, as long as $h\\,d_k = D$.",
        ),
        Question(
            question="One look gives two words the weights 0.8 and 0.2. What share of a number of "
            "the *first* word is lost at best? (Two decimals.)",
            answer=0.2**2 / (0.8**2 + 0.2**2),
            why="It is $b^2/(a^2+b^2) = 0.04 / 0.68 \\approx 0.06$. Of the other 0.94: together 1.",
        ),
        Question(
            question="What makes up $\\mathrm{d}H$, the gradient of a memory that is another text?",
            choices=("the queries' part", "the keys' and the values' part", "all three parts"),
            answer=1,
            why="Queries are made of the words that look. The memory made keys and values, and "
            "their parts add up. In self-attention the words are the memory, and get all three.",
        ),
        Question(
            question="Two heads of an attention have the same weights $A$ for every sentence. May "
            "one of them be removed without a change?",
            choices=(
                "yes: they do the same",
                "no: two heads never look at the same word",
                "no: they may hand over different numbers of the same words",
            ),
            answer=2,
            why="The weights $A$ are made by $W^Q$ and $W^K$, what is handed over by $W^V$. In the "
            "model of this lesson four heads look at the same letter, and all four are needed.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# `python -m lessons start 4 mine.py` writes the file to begin with, `python -m lessons check 4
# mine.py` tells what it thinks of yours.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - *Attention Is All You Need*: section 3.2.2, rows A and B of Table 3, and the pictures of heads.
# - Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?* Voita et al. 2019,
#   *Analyzing Multi-Head Self-Attention*.
# - Lesson 5. Head 1 found the word before only because our words had their place among their
#   numbers. How does a model know what comes first?
