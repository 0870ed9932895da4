# %% [markdown]
# # Multi-head attention
#
# > Attention lets a word look at other words. Why should it look several times at once? And what do
# > the heads of a trained model really do, do they all earn their keep?
#
# Read *dogs that he trusts bark*. When you come to *bark* you need two things at once. The word
# before is *trusts*, a verb, so the little sentence in the middle has ended. And those who bark are
# *dogs*, so it is *bark* and not *barks*. You looked back twice, at different words and for
# different reasons.
#
# Lesson 3 gave a word one look: one query, one row of weights, one blend. This lesson gives it
# several, side by side, for the same price. First by hand, with two looks whose weights we choose;
# then backward through all of it; then in a model that is trained while this page is built, where
# you can see every look, and take some away.

# %%
import math
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

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
    table,
)
from lessons.lesson_04.reverse import (
    ATTENTIONS,
    HEADS,
    TESTED,
    exact_match,
    pruned,
    removed_in_turn,
    shares,
    tested,
    trained,
    with_one_look,
)
from lessons.lesson_04.simulations import heads, pruning
from lessons.lesson_04.two_heads import (
    W_K,
    W_O,
    W_Q,
    columns,
    compute,
    described,
    features,
    handed,
    sentences,
    two,
    words,
)
from lessons.quiz import Question
from lessons.simulation import Simulation
from numformer import Adam, MultiHeadAttention, SelfAttention, inference, pack
from numformer.backend import matmul
from numformer.gradient_check.gradients import check
from numformer.layers.attention import merge_heads, split_heads
from numformer.layers.linear import linear_backward

# %% [markdown]
# ## One look is a mean
#
# Let the value of a word be three numbers: is it a noun, is it a verb, is it plural? Let *bark*
# look at the two words it needs, with a weight of one half for each. The result of attention is a
# mean of values, so you can compute it in your head. Now take a second sentence, *dog that they
# trust barks*, and do the same there. Which of the two results calls for *bark*, and which for
# *barks*?


# %%
@show
def two_sentences_with_one_mean():
    """The mean of the two words that are needed, in two sentences."""
    values = {word: np.array(value, float) for word, value in described.items()}
    pairs = [(sentence[0], sentence[3], sentence[4]) for sentence in sentences]
    rows = []
    for subject, before, verb in pairs:
        numbers = values[subject], values[before], (values[subject] + values[before]) / 2
        cells = (", ".join(f"{each:g}" for each in three) for three in numbers)
        texts = zip(("", "", "**"), cells, strict=True)
        rows.append((f"… {verb}", subject, before, *(f"{b}({text}){b}" for b, text in texts)))
    return table(
        ["sentence", "subject", "word before", "its value", "its value", "their mean"],
        rows,
        "Noun, verb, plural. The order of columns: the subject's value, that of the word before.",
    )


# %% [markdown]
# They are the same. The plural belongs once to the noun and once to the verb, and the mean does not
# say to which. It cannot: one row of weights gives one mixture, and in a mixture nobody knows who
# brought what.
#
# Would unequal weights help? Give the subject the weight $a$ and the word before $b$, with
# $a + b = 1$. Let $u$ and $v$ be a number of the one and of the other: independent, mean 0,
# variance 1. What arrives is $s = au + bv$. The best guess of $u$ is some multiple $cs$ of it, and
# its mean squared error is
#
# $$\mathrm{E}(u - cs)^2 = 1 - 2ca + c^2(a^2 + b^2)$$
#
# It is smallest at $c = a/(a^2 + b^2)$, and then it is $b^2/(a^2 + b^2)$. For $v$ it is
# $a^2/(a^2 + b^2)$ in the same way. Add the two: whatever the weights, the sum is **1**. Two
# numbers of variance 1 were sent, and half of it all is lost. Looking harder at one word only moves
# the loss to the other.


# %%
@show
def what_one_look_loses():
    """The errors of the best guesses, for several weights."""
    rows = []
    for a in (0.5, 0.6, 0.75, 0.9, 1.0):
        b = 1 - a
        of_u, of_v = b**2 / (a**2 + b**2), a**2 / (a**2 + b**2)
        rows.append((f"{a:g}", f"{b:.2g}", f"{of_u:.2f}", f"{of_v:.2f}", f"{of_u + of_v:.2f}"))
    return table(["weight a", "weight b", "error of u", "error of v", "both"], rows)


# %% [markdown]
# Is it so when a layer learns its weights? Here is one attention layer and nothing else. Six words
# have eight random numbers each, and a mark of their place. From the third word on, each has to
# hand over two words at once: the eight numbers of the word before it, and those of the first word.
# The layer has the same number of weights, however many looks ("heads") it has.


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
        styles = {1: (ORANGE, "-"), 2: (BLUE, "-"), 4: (GREEN, "--")}
        for count, found in losses.items():
            colour, style = styles[count]
            label = f"{count} head{'s' * (count > 1)} of {16 // count}"
            axes.plot(found, style, color=colour, label=label)
        axes.axhline(0.5, color=GREY, linestyle=":", label="half is lost")
        axes.set(xlabel="step", ylabel="mean squared error", ylim=(0, 1.6))
        axes.legend()

    return [
        Picture(
            "lesson_04_two_words",
            draw,
            "Error against training step. With one head it stays a little below one half; with two "
            "and with four it falls to 0.",
            "**Two words through one layer.** The error is 1 for a layer that says nothing.",
        ),
        Words(f"""
            One head ends at {last[1]:.2f}, two at {last[2]:.4f}, four at {last[4]:.4f}. One head is
            a little better than the half of our sum, because its weights can answer to what the
            words say, and so tell a little more. It still loses most of that half. Two heads lose
            nothing: each hands over one word.
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
# Each **head** makes queries, keys and values of its own, three numbers each ($d_k = d_v = 3$), by
# weights of its own. We could keep two small matrices $W^Q_1$ and $W^Q_2$. It is simpler to put
# them side by side into one matrix $W^Q$. Its first three columns make the queries of head 1, its
# last three those of head 2.


# %%
made = compute()


@show
def words_and_weights():
    """The words and the weights that make queries and keys."""
    return [
        Matrix("X", made["x"], words, features),
        Matrix("W^Q", W_Q, features, columns),
        Matrix("W^K", W_K, features, columns),
    ]


# %% [markdown]
# **Head 1 looks for the word before.** A word at $p$ wants the place $p - 1$. The columns are
# chosen so that the score of a key at $s$ is $-4\,(s - (p - 1))^2$: 0 for the word before, $-4$ for
# its neighbours, $-16$ for the next. Multiply the square out, and you have the query
# $(-4p^2 + 8p - 4,\; 8p - 8,\; -4)$ and the key $(1,\; s,\; s^2)$.
#
# **Head 2 looks for the other kind of word.** The query of a verb is $(4, 0, 0)$, that of a noun
# $(0, 4, 0)$; the key of a noun is $(1, 0, 0)$, that of a verb $(0, 1, 0)$. So a verb scores 4 with
# a noun.
#
# Check one by hand: the place of *bark* is $p = 2$, so its query in head 1 is $(-4, 8, -4)$. *he*
# stands at 0 and has the key $(1, 0, 0)$: score $-4$. *trusts* stands at 1, key $(1, 1, 1)$: score
# $-4 + 8 - 4 = 0$. Divide by $\sqrt 3$, take the softmax: $e^{-4/\sqrt 3} \approx 0.1$, so *he*
# gets a tenth of what *trusts* gets. In head 2 *dogs* scores 4, all others 0: again ten to one.


# %%
@show
def two_rows_of_weights():
    """The weights of both heads."""
    return [
        Matrix("A_1", made["aone"], words, words, 1),
        Matrix("A_2", made["atwo"], words, words, 1),
    ]


# %% [markdown]
# Look at the last row of each. There are two rows of weights now for *bark*, and each sums to 1.
# (Two words do not get what they want. *dogs* has no word before it and looks at itself. And head 2
# lets *trusts* look at *dogs*: it is a simple head, which knows nothing of *he*.)
#
# Both heads hand over *noun*, *verb* and *plural* of the words that they look at. What they found is
# put side by side, into a matrix $C$ of six columns. Side by side, and not added: that is the
# point. Then one more weight, $W^O$, says what the findings mean. Ours writes into the same six
# features: *noun* if a subject was found, *verb* if a verb stands before, and for *plural* the
# number of the subject **less** that of the word before. It is positive if the subject is plural and
# the word before is not.


# %%
@show
def findings_and_output():
    """What both heads found, what is made of it, and the same in the other sentence."""
    other = compute(sentence=sentences[1])["y"][-1, 2]
    return [
        Matrix("C", made["c"], words, handed, 1),
        Matrix("W^O", W_O, handed, features, 1),
        Matrix("Y", made["y"], words, features, 1),
        Words(f"""
            The row of *bark* says: a subject, a verb before, and *plural* {made["y"][-1, 2]:.2f}.
            In *dog that they trust barks* the same weights give the last word *plural*
            {other:.2f}, like this with a minus: “−{-other:.2f}”. The two sentences that no mean
            could tell apart are told apart.
        """),
    ]


# %% [markdown]
# ## The equation and its lines
#
# That was all of it: **split, attend, concatenate, project**. The paper writes (section 3.2.2)
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\,W^O$$
#
# $$\mathrm{head}_i = \mathrm{Attention}(QW^Q_i,\; KW^K_i,\; VW^V_i)$$
#
# Here the paper's $Q$, $K$ and $V$ are the words themselves, before any weight. In the library they
# are `x`, the words that look, and `memory`, the words that are looked at. In *self-attention* both
# are the same. In *cross-attention* `memory` is another text, and may have another length $S$.
# The size of a head, $d_k$, is called `K` in the library's notes on shapes.


# %%
@show
def the_lines_of_forward():
    """The library's forward, line by line."""
    return Beside(
        MultiHeadAttention.forward,
        {
            "if cache is not None": """Only for writing word by word, where keys and values of
                earlier words are kept. Training has no cache.""",
            "mask = ": """Who may look at whom. Lesson 7 is about masks; the same one serves all
                heads.""",
            "self.save": """Where padding stands in the batch, for the way back.""",
            "query = split_heads": r"""**Project and split.** One product with $W^Q$ makes the
                queries of all heads, $(B, T, D) \to (B, T, h d_k)$. Then each head gets its
                columns: $(B, h, T, d_k)$.""",
            "key, value = ": """The same for keys and values, from the memory.""",
            "heads = self.attention": """**Attend.** Lesson 3, word for word. The axes in front,
                sentence and head, are carried along: every head of every sentence is an attention
                by itself.""",
            "return self.output": r"""**Concatenate and project.** Each word's findings side by
                side, $(B, T, h d_v)$, times $W^O$.""",
        },
    )


# %% [markdown]
# ## Split and merge
#
# `split_heads` looks like work, and is none. Number the entries of $Q$ by word and column: 23 is
# word 2, column 3. In memory they lie row by row. Head 1 is columns 1 to 3, head 2 is columns 4
# to 6.


# %%
numbered = 10 * np.arange(1, 6)[:, None] + np.arange(1, 7.0)


@show
def split_and_its_mistake():
    """Which entries each head gets, and which it would get without the swap of axes."""
    one, two = split_heads(numbered[None], 2)[0]
    mixed = numbered[None].reshape(1, 2, 5, 3)[0, 0]
    of_query, of_heads = numbered[None].strides, split_heads(numbered[None], 2).strides
    assert np.shares_memory(numbered, one)
    steps = [", ".join(f"{step // 8}" for step in strides) for strides in (of_query, of_heads)]
    return [
        Matrix("Q", numbered, words, columns, 200),
        Matrix("Q_1", one, words, "abc", 200),
        Matrix("Q_2", two, words, "abc", 200),
        table(
            ["array", "axes", "shape", "steps in memory, in numbers"],
            [
                ("Q", "sentence, word, column", f"{numbered[None].shape}", steps[0]),
                (
                    "the heads",
                    "sentence, head, word, part",
                    f"{split_heads(numbered[None], 2).shape}",
                    steps[1],
                ),
            ],
            "A view: the same memory, read in other steps. From one head to the next it is 3 "
            "numbers, from one word to the next still 6.",
        ),
        Words("""
            Two things are done: cut the last axis into head and part (`reshape`), then bring the
            head in front of the word (`swapaxes`). It is tempting to ask for the shape at once,
            `reshape(batch, heads, length, -1)`. The shape is right, and nobody complains. But this
            is what “head 1” would get:
        """),
        Matrix(r"\text{wrong}", mixed, words, "abc", 200),
        Words("""
            The first half of the memory, cut into rows of three. Its second row is columns 4 to 6
            of *dogs*, and *he*, *trusts* and *bark* are missing: words are mixed. A gradient check
            does not find this, since the wrong forward has a right gradient. What finds it: change
            one word of a sentence and see whether *queries* of other words change.
        """),
    ]


# %%
@show
def the_lines_of_split_and_merge():
    """The library's split and merge, line by line."""
    return [
        Beside(
            split_heads,
            {
                "if places": """Where padding is left out, the rows are spread to their places
                    first.""",
                "batch, length, _": "Sentences and words keep their places.",
                "return x.reshape": r"""Cut $h d_k$ columns into $h$ heads of $d_k$; then the head
                    goes in front of the word.""",
            },
        ),
        Beside(
            merge_heads,
            {
                "if places": "The same, backwards.",
                "batch, heads, length, size": "",
                "return x.swapaxes": r"""The word in front of the head again; then glue
                    $h$ heads of $d_v$ to one row. This is the paper's Concat. Here numbers are
                    copied, because in memory they no longer lie side by side.""",
            },
        ),
    ]


# %% [markdown]
# ## Every head of a trained model
#
# Our two heads were told what to look for. What do heads do that nobody told? While this page was
# built, a small Transformer learned to write words backwards: 3 to 8 random letters, width 32, two
# layers in the encoder and two in the decoder, four heads of size 8 in every attention. It has six
# attentions, so 24 heads.


# %%
@show
def what_was_trained():
    """How good the trained model is on words that it has not seen."""
    model, task = trained()
    written = ", ".join(
        f"*{word}* → *{found}*"
        for word, found in zip(
            ["window", "heads"], task.written(model, ["window", "heads"]), strict=True
        )
    )
    return Words(f"""
        On {TESTED} words that training never saw it writes {100 * exact_match(model, tested()):.0f}
        % without a mistake; for example {written}.
    """)


@show
def all_heads() -> Simulation:
    """Every head of the trained model."""
    return heads


# %% [markdown]
# What did you find? Here is what can be measured.


# %%
@show
def what_heads_look_at():
    """For each attention the heads that are surest of one place."""
    rows = []
    for name, found in shares().items():
        places = {place: share for place, share in found.items() if place != "even"}
        best = [max(places, key=lambda place: places[place][head]) for head in range(HEADS)]
        rows.append(
            (
                name,
                *(f"{place}: {places[place][h]:.2f}" for h, place in enumerate(best)),
                f"{found['even'].mean():.2f}",
            )
        )
    last = shares()["decoder to word, layer 2"]["the letter to write"]
    first = max(
        shares()["decoder to word, layer 1"]["the letter to write"].max(),
        shares()["encoder, layer 1"]["the end mark"].min(),
    )
    return [
        table(
            ["attention", *(f"head {h + 1}" for h in range(HEADS)), "equal weights"],
            rows,
            "What each head looks at most, among the places that we asked about, and its share of "
            "weight there.",
        ),
        Words(f"""
            The last attention does what the task asks for. All four heads look at the letter to
            be written, with {last.min():.2f} to {last.max():.2f} of their weight: the
            anti-diagonal of the picture. In the first layers the looks are broad; few heads give
            one place more than {first:.2f}. So the paper's “individual attention heads clearly
            learn to perform different tasks” (section 4) is half true here: heads of different
            *attentions* differ a lot, heads of one attention may all do the same. Nothing in the
            equation asks them to differ.
        """),
    ]


# %% [markdown]
# ## The way back
#
# The loss hands us $\mathrm{d}Y$. We owe $\mathrm{d}X$ to what comes before, and a gradient to each
# of the four weights. Step through it first, with our two heads; the derivation follows.


# %%
@show
def stepper() -> Simulation:
    """Two heads, forward and backward, with the numbers of the example."""
    return two


# %% [markdown]
# ### Through the two projections
#
# The last step was $Y = CW^O$ ([step](#step-output)), by entries
#
# $$Y_{tj} = \sum_c C_{tc}\,W^O_{cj}$$
#
# Lesson 3 showed what comes of a product: ask where a number is used, and collect. $C_{tc}$ is used
# in $Y_{tj}$ for every $j$, with the factor $W^O_{cj}$ ([step](#step-dc)). $W^O_{cj}$ is used for
# every word $t$, with the factor $C_{tc}$ ([step](#step-dwo)):
#
# $$\mathrm{d}C = \mathrm{d}Y\,W^{O\top} \qquad \mathrm{d}W^O = C^\top\,\mathrm{d}Y$$
#
# A weight is used by every word of every sentence of a batch, and collects from all of them. In the
# code `rows` lays all words of all sentences below each other, so that one product adds them up.
# Nothing is divided: where a mean is wanted, the loss has it.
#
# The products with $W^Q$, $W^K$ and $W^V$ go back in the same way ([step](#step-dwq)).


# %%
@show
def the_lines_of_linear_backward():
    """The library's backward of a product with a weight, line by line."""
    return Beside(
        linear_backward,
        {
            "dx = ": r"$\mathrm{d}X = \mathrm{d}Y\,W^\top$: every word by itself.",
            "dweight = ": r"""$\mathrm{d}W = X^\top\,\mathrm{d}Y$: summed over all words of all
                sentences.""",
            "dbias = ": "As in the paper, the projections of attention have no bias.",
            "return dx": "One gradient for each input, each of its input's shape.",
        },
    )


# %% [markdown]
# ### Merge undoes split
#
# Split and merge compute nothing. They put every number in one place, $C_{t,c}$ becomes
# $O_{i,t,k}$, once and with the factor 1. So the gradient of a number is the gradient at the place
# where it went: to go back is to put everything back where it came from. What puts back what merge
# did is split ([step](#step-dheads)), and what puts back what split did is merge
# ([step](#step-dmerge)). Each is the backward of the other, and neither needs a line of its own.
#
# In words of matrices: putting numbers elsewhere is a product with a permutation $P$, its backward
# is the product with $P^\top$, and for a permutation $P^\top = P^{-1}$.
#
# ### Through each head
#
# Between split and merge stands lesson 3, for each head and sentence by itself. It takes
# $\mathrm{d}O_i$ and gives $\mathrm{d}Q_i$, $\mathrm{d}K_i$ and $\mathrm{d}V_i$
# ([step](#step-dattend)). Heads do not meet there. They have met in $Y$, and they will meet
# in $X$.
#
# ### Three ways back to a word
#
# A word of `x` is used once: to make its queries. All heads made theirs from it, so their gradients
# add up. In the product that happens by itself:
#
# $$\mathrm{d}X = \sum_i \mathrm{d}Q_i\,W^{Q\top}_i = \mathrm{d}Q\,W^{Q\top}$$
#
# A word of the memory $M$ is used twice: it gave a key and it gave a value. So
#
# $$\mathrm{d}M = \mathrm{d}K\,W^{K\top} + \mathrm{d}V\,W^{V\top}$$
#
# And in self-attention the memory *is* `x`. The same word asks, is asked and hands over, and all
# three come back to it ([step](#step-dx)). Before you read on: in our example the gradient of
# *plural* of *dogs* comes by only one of the three ways. Which?


# %%
@show
def three_ways():
    """The three parts of the gradient of the words."""
    part = made["dxq"], made["dmemory"]
    assert not made["dxq"][0, 2] and not W_Q[2].any() and not W_K[2].any()
    return [
        Matrix(r"\mathrm{d}Q\,W^{Q\top}", part[0], words, features, 4),
        Matrix(r"\mathrm{d}M", part[1], words, features, 4),
        Matrix(r"\mathrm{d}X", made["dx"], words, features, 4),
        Words(f"""
            As a value. No query and no key of ours looks at *plural*, its rows of $W^Q$ and
            $W^K$ are 0. So all of {made["dx"][0, 2]:.2f} comes through what *dogs* handed over. And
            the row of *that* in the first matrix is 0 but for traces: it asked for nothing in
            head 2, and is sure of itself in head 1.
        """),
    ]


# %% [markdown]
# ### All of it
#
# Now the library's backward. Read forward from the bottom to the top, and you have it.


# %%
@show
def the_lines_of_backward():
    """The library's backward, line by line."""
    return [
        Beside(
            MultiHeadAttention.backward,
            {
                "queries, keys = ": "Where padding stands.",
                "dheads = split_heads": r"""Forward ended with merge and $W^O$. Back:
                    $\mathrm{d}C = \mathrm{d}Y\,W^{O\top}$ (and, inside, $\mathrm{d}W^O$), then split,
                    since merge is undone by split.""",
                "dquery, dkey, dvalue = ": """All heads of all sentences at once: the seven lines of
                    lesson 3.""",
                "dmemory = self.value": r"""The values came from the memory: merge, then
                    $\mathrm{d}V\,W^{V\top}$.""",
                "dmemory += self.key": r"""The keys came from it, too: $+\,\mathrm{d}K\,W^{K\top}$.
                    With `=` the values' part would be lost.""",
                "return self.query": r"""The queries came from `x`:
                    $\mathrm{d}X = \mathrm{d}Q\,W^{Q\top}$.""",
            },
        ),
        Beside(
            SelfAttention.backward,
            {
                "dx, dmemory": "As if words and memory were two texts.",
                "dx += dmemory": "They are one: its words get both.",
                "return dx": "",
            },
        ),
    ]


# %% [markdown]
# ### Is it true?
#
# Move an input or a weight a little, see how much the result really changes, and compare. Here with
# cross-attention, where words and memory have different lengths, 3 heads, and $d_v$ unlike $d_k$.


# %%
@show
def gradient_check():
    """The explicit gradients of multi-head attention beside measured ones."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 3, rng, d_k=2, d_v=5)
    rows = check(layer, [rng.standard_normal((2, 4, 8)), rng.standard_normal((2, 6, 8))])
    return table(
        ["gradient of", "shape", "explicit", "measured", "relative error"],
        [
            (
                f"`{row.name}`",
                f"{row.shape}",
                *(f"{number:.7f}".replace("-", "−") for number in (row.explicit, row.numerical)),
                scientific(row.error),
            )
            for row in rows
        ],
    )


# %% [markdown]
# ## What it costs
#
# Several looks at the price of one? The paper says: “Due to the reduced dimension of each head, the
# total computational cost is similar to that of single-head attention with full dimensionality”.
# It lets $d_k = d_v = D/h$. More heads are then smaller heads, and $h \cdot d_k$ stays $D$. Count
# what the library's layer does: every multiplication of its matrix products, for $D = 512$ as in
# the paper and a sentence of 100 words. Which column will change with the number of heads?


# %%
def cost(heads: int, length: int = 100) -> tuple[int, int, int]:
    """-> the parameters of a layer, the multiplications of a forward, the weights it computes."""
    layer, counted = SelfAttention(512, heads, np.random.default_rng(0)), []

    def counting(a, b):
        counted.append(a.size * b.shape[-1])
        return matmul(a, b)

    places = [f"numformer.layers.{module}.matmul" for module in ("attention", "linear")]
    x = np.zeros((1, length, 512), np.float32)
    with patch(places[0], counting), patch(places[1], counting):
        layer.forward(x)
    weights = layer.attention.saved[-1]["weights"].size
    return sum(each.size for each in layer.named_parameters().values()), sum(counted), weights


@show
def what_heads_cost():
    """Parameters, multiplications and weights for several numbers of heads."""
    costs = {heads: cost(heads) for heads in (1, 2, 4, 8, 16, 32)}
    rows = [(f"{h}", f"{512 // h}", *(f"{n:,}" for n in found)) for h, found in costs.items()]
    return [
        table(["heads", "$d_k$", "parameters", "multiplications", "weights"], rows),
        Words(f"""
            The parameters are $4D^2$, four square matrices, however their columns are shared out.
            The multiplications are $4TD^2$ for the projections and $2T^2D$ for scores and blends:
            $h$ heads with $T^2 d_k$ each. What grows is the number of weights, $hT^2$: with 8 heads
            {costs[8][2]:,} and not {costs[1][2]:,}. Each needs an exponential, and in training each
            is kept for the way back. So the cost is similar, not the same.

            And what does a head pay? It compares and hands over fewer numbers. One head of 512 can
            hand over all of a word; one of 64 only what it chose. Too many heads are too small:
            see Table 3 of the paper, below.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $T$ words look at $S$ words of a memory $M$; $h$ heads. In self-attention $M = X$.
#
# | forward | backward | shape |
# |---|---|---|
# | $Y = CW^O$ | $\mathrm{d}C = \mathrm{d}Y\,W^{O\top}$ | $(T, h\,d_v)$ |
# | | $\mathrm{d}W^O = C^\top\,\mathrm{d}Y$ | $(h\,d_v, D)$ |
# | $C = \mathrm{merge}(O_1, \ldots, O_h)$ | $\mathrm{d}O_i = \mathrm{split}(\mathrm{d}C)_i$ | $(T, d_v)$ |
# | $O_i$ from $Q_i$, $K_i$, $V_i$ | lesson 3, for each head | |
# | $Q_i = \mathrm{split}(Q)_i$ | $\mathrm{d}Q = \mathrm{merge}(\mathrm{d}Q_1, \ldots)$ | $(T, h\,d_k)$ |
# | $Q = XW^Q$ | $\mathrm{d}X = \mathrm{d}Q\,W^{Q\top}$ | $(T, D)$ |
# | | $\mathrm{d}W^Q = X^\top\,\mathrm{d}Q$ | $(D, h\,d_k)$ |
# | $K = MW^K$, $V = MW^V$ | $\mathrm{d}M = \mathrm{d}K\,W^{K\top} + \mathrm{d}V\,W^{V\top}$ | $(S, D)$ |
# | self-attention, $M = X$ | $\mathrm{d}X + \mathrm{d}M$ | $(T, D)$ |

# %% [markdown]
# ## Are all heads needed?
#
# To remove a head, see to it that nobody reads it: make its rows of $W^O$ 0. The model is not
# trained again. Then count the words that are still written without a mistake.


# %%
@show
def remove_heads() -> Simulation:
    """Remove heads of the trained model."""
    return pruning


# %%
@show
def heads_removed():
    """What is left without some heads of an attention, and of the whole model."""
    rows = []
    for name in ATTENTIONS:
        found = pruned()[name]
        alone = [found[(h,)] for h in range(HEADS)]
        kept = [found[tuple(set(range(HEADS)) - {h})] for h in range(HEADS)]
        numbers = (*alone, max(kept), found[tuple(range(HEADS))], with_one_look(name))
        rows.append((name, *(f"{number:.2f}" for number in numbers)))
    first, last = pruned()["encoder, layer 1"], pruned()["decoder to word, layer 2"]
    everything = tuple(range(HEADS))
    best_alone = max(last[tuple(set(everything) - {h})] for h in everything)
    least, most = removed_in_turn(), removed_in_turn(worst_first=True)
    free = sum(value >= least[0] - 0.05 for value in least) - 1

    def draw(figure):
        axes = figure.subplots()
        axes.plot(least, "o-", color=BLUE, label="least harmful first")
        axes.plot(most, "s--", color=ORANGE, label="most harmful first")
        axes.set(xlabel="heads removed, of 24", ylabel="words without a mistake")
        axes.legend()

    return [
        table(
            [
                "words without a mistake",
                *(f"without head {h + 1}" for h in range(HEADS)),
                "the best one alone",
                "without all four",
                "one look for all four",
            ],
            rows,
            "One look for all four: every head keeps its values and gets the mean of the four rows "
            "of weights.",
        ),
        Words(f"""
            **Some heads are not needed.** Without any of the four heads of *encoder, layer 1* the
            model still writes {100 * first[everything]:.0f} % of the words. They were trained like
            all others.

            **Heads that look alike can all be needed.** The four of *decoder to word, layer 2* look
            at the same letter. Yet the best of them alone leaves only {100 * best_alone:.0f} % of
            the words. Why? A head is two things: where it looks (its $W^Q$ and $W^K$) and what it
            hands over (its $W^V$). A head of size 8 hands over 8 numbers of a letter, and each hands
            over others. The last column shows it. Give all four the same look, the mean of theirs:
            {100 * with_one_look("decoder to word, layer 2"):.0f} % of the words. Here one look is
            enough, and one *head* is not.

            **It is not a matter of counting.** Remove heads of the whole model in the order of the
            harm that each does by itself, and {free} of {HEADS * len(ATTENTIONS)} go before five
            words in a hundred are lost. In the other order the first one is too many.
        """),
        Picture(
            "lesson_04_removed",
            draw,
            "Exact match against the number of heads removed. Removing the least harmful first it "
            "stays high for several heads and then falls; removing the most harmful first it falls "
            "at once.",
            "**Heads of the whole model, one after the other.**",
        ),
    ]


# %% [markdown]
# The published counterpart: Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than
# One?* They removed heads of large trained models for translation and of BERT. Of the 96 heads of
# an encoder only 8 made a difference that was beyond chance when they were removed by themselves,
# and half of these made the translations *better* by being gone. Some layers could be reduced to
# one head. And the attention from decoder to encoder needed its heads more than self-attention: as
# here. Voita et al. 2019 removed 38 of 48 encoder heads, with a little training in between, and
# lost 0.15 BLEU.
#
# To choose which heads to remove, Michel et al. did not try all. They imagined a factor $g_i$ on
# each head, $g_i = 1$, and took its *gradient*: a head whose factor has a small gradient can go.
# One backward pass serves all heads. How that gradient is computed is the last exercise.
#
# What does it mean, then, that heads can be removed? Not that one head would have done: a model
# *trained* with a single head was 0.9 BLEU worse (the paper's Table 3). Several heads make it
# likely that some find what is needed.

# %% [markdown]
# ## Often told: check it


# %%
BLEU = {"base": 25.8, "h = 1": 24.9, "h = 4": 25.5, "h = 16": 25.8, "h = 32": 25.4,
        "d_k = 16": 25.1, "d_k = 32": 25.4, "d_model = 1024": 26.0}  # fmt: skip
"""Of Vaswani et al. 2017, Table 3: rows A, B and C, on newstest2013."""


@show
def often_told():
    """Popular claims, computed again."""
    told = {"h = 16": "loses 0.3", "d_k = 32": "loses 1.5", "d_model = 1024": "gains 1.1"}
    changes = {row: BLEU[row] - BLEU["base"] for row in BLEU}
    written = {
        row: f"{'gains' if change > 0 else 'loses'} {abs(change):.1f}" if round(change, 1) else
        "changes nothing" for row, change in changes.items()
    }  # fmt: skip
    layer = SelfAttention(64, 8, np.random.default_rng(0))
    layer.forward(np.zeros((1, 256, 64), np.float32))
    measured = layer.attention.saved[-1]["weights"].nbytes
    of_a_head, of_a_layer = (4096**2 * 4 * heads / 2**20 for heads in (1, 8))
    assert measured * (4096 // 256) ** 2 == of_a_layer * 2**20
    return [
        Words("""
            **“In Table 3 of the paper h=16 loses 0.3 BLEU, d_k=32 loses 1.5, d_model=1024 gains
            1.1.”** Look at the table:
        """),
        table(
            ["against the base model", "told", "Table 3", "BLEU"],
            [
                (
                    f"${row.replace('d_model', 'd_{model}')}$",
                    told.get(row, ""),
                    written[row],
                    f"{BLEU[row]:.1f}",
                )
                for row in BLEU
                if row != "base"
            ],
            f"The base model has h = 8, d_k = 64, d_model = 512 and {BLEU['base']:.1f} BLEU. With "
            "the number of heads d_k changes so that h · d_k = 512; in the rows d_k = 16 and 32 "
            "it alone changes, and values keep their size.",
        ),
        Words(f"""
            None of the three is right. The largest change by heads is that of a single one. Note
            what the rows of $d_k$ say: smaller keys cost more than fewer heads, for the same size.
            ($h = 16$ has keys of 32 as well, and loses nothing, because it has twice as many.)

            **“4,096² · 4 bytes: attention takes 64 MB a layer.”** That is *one head* of one
            sentence: {of_a_head:.0f} MiB. A layer with 8 heads computes {of_a_layer:.0f} MiB of
            weights. The library's layer says the same: for 256 words its 8 heads keep
            {measured / 2**20:.0f} MiB of weights for the way back, and 4,096 words are 16 times as
            many, so {16**2} times the weights. For a model of 6 such layers and a batch of 8
            sentences it is {6 * 8 * of_a_layer / 1024:.0f} GiB.
        """),
    ]


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    parameters = sum(
        each.size
        for each in MultiHeadAttention(96, 6, np.random.default_rng(0)).named_parameters().values()
    )
    return [
        Question(
            question="$W^Q$ is $96 \\times 96$ and there are 6 heads. How many columns of $W^Q$ "
            "belong to one head?",
            answer=96 / 6,
            why="$d_k = 96 / 6 = 16$. The weights of all heads stand side by side in one matrix: 6 "
            "times 16 columns.",
        ),
        Question(
            question="How many parameters does multi-head attention of width 96 with 6 heads have, "
            "without biases?",
            answer=parameters,
            why="Four square matrices, $4 \\cdot 96^2 = 36{,}864$. The number of heads does not "
            "matter, as long as $h\\,d_k = D$.",
        ),
        Question(
            question="One look gives two words the weights 0.8 and 0.2. What share of the variance "
            "of the *first* word's number is lost, at best? (Two decimals.)",
            answer=0.2**2 / (0.8**2 + 0.2**2),
            why="$b^2/(a^2+b^2) = 0.04 / 0.68 \\approx 0.06$. And of the second word's number 0.94 "
            "is lost: together 1, as always.",
        ),
        Question(
            question="Someone splits heads by `x.reshape(batch, heads, length, -1)` and leaves out "
            "`swapaxes`. What happens?",
            choices=(
                "an error, since the shape does not fit",
                "the gradient check fails",
                "no error, but a row of a head is no longer made of one word's part",
            ),
            answer=2,
            why="The shape fits, and the gradient of this other function is computed rightly, too. "
            "But row $t$ of a head is then whatever lies there in memory, cut from other words. "
            "A mask would hide the wrong words, as well.",
        ),
        Question(
            question="In cross-attention, from where does $\\mathrm{d}M$, the gradient of the "
            "memory, come?",
            choices=("from the queries", "from the keys and the values",
                     "from queries, keys and values"),
            answer=1,
            why="Queries are made of the words that look. The memory made keys and values, so both "
            "bring a gradient, and they add up. In self-attention the words are the memory as "
            "well, and there all three add up.",
        ),
        Question(
            question="Two heads of an attention have the same weights $A$ for every sentence. May "
            "one be removed without a change?",
            choices=(
                "yes, they do the same",
                "no: they may hand over different numbers of the words that they look at",
                "no: heads never look at the same place",
            ),
            answer=1,
            why="$A$ is made by $W^Q$ and $W^K$ alone. What is handed over is made by $W^V$. In the "
            "trained model of this lesson four heads look at the same letter and all are needed.",
        ),
        Question(
            question="A sentence of 1,000 words, 8 heads, 4 bytes a number: how many millions of "
            "bytes are the weights of one layer?",
            answer=1000**2 * 8 * 4 / 1e6,
            why="$8 \\cdot 1000^2$ weights of 4 bytes: 32 million. Twice the words are four times "
            "the weights.",
        ),
    ]  # fmt: skip


# %% [markdown]
# ## What to read next
#
# - `numformer/layers/attention.py`: the lines of this lesson in their place; `tests/layers` has
#   their gradient checks.
# - *Attention Is All You Need*, section 3.2.2, Table 3 (rows A and B), and the pictures of heads in
#   its appendix.
# - Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*; Voita et al. 2019,
#   *Analyzing Multi-Head Self-Attention*.
# - Lesson 5: our head 1 found the word before only because each word had its place among its
#   numbers. How does a model know what comes first?
