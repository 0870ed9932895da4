# %% [markdown]
# # The recurrence bottleneck
#
# > Why do recurrent networks forget? And what does attention do about it?


# %%
import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Matrix, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_01 import through_time, timeline
from lessons.lesson_01.distance import gradient_by_distance, typical
from lessons.lesson_01.exercises import EXERCISES
from lessons.lesson_01.reversal import MEASURED, PARAMETERS, collapse
from lessons.lesson_01.through_time import at_the_end, read, share, units, weight, words
from numformer.gradient_check.gradients import check
from numformer.recurrence import LSTMCell, Recurrent, RNNCell
from numformer.recurrence.cells import lstm, rnn, rnn_backward


@show
def write_it_backwards() -> Simulation:
    """The simulation: one vector for a whole word, beside attention."""
    return collapse


# %% [markdown]
# Read *not very good*. When you reach *good*, you still know that there was a *not*, and so you
# know what is meant. You carried the *not* along.
#
# A *recurrent* network reads like this, word after word. One vector, its **state**, carries along
# everything that the network knows about the words so far. Before the Transformer nearly all
# networks that read or wrote text were of this kind. They had three troubles:
#
# - **They squeeze.** However long a sentence is, it has to pass through one vector. The simulation
#   above shows the result.
# - **They forget.** What was read long ago hardly reaches the end. And when the result at the end
#   is wrong, hardly any of the error gets back to the early words.
# - **They wait.** No word can be read before the word before it.
#
# This lesson follows a recurrent network through three words and back, by hand. Then it measures
# all three troubles, and what attention does about each.
#
# ## Read three words
#
# The simplest recurrent network (Elman 1990) has one rule. The new state is made from the old state
# and the current word:
#
# $$h_t = \tanh(a_t + h_{t-1} W)$$
#
# Here $h_{t-1}$ is the state before word $t$, a row of $d$ numbers, and $W$ is a learned matrix
# $(d, d)$, the same at every step. What the word contributes is $a_t$: in a model, the word's own
# vector times another learned matrix, plus a bias. We take it as given. The tanh keeps each number
# between −1 and 1.
#
# In our example the state has two numbers, u and v. It begins as (0, 0).


# %%
def comma(numbers, digits: int = 4) -> str:
    """Numbers as text, in brackets where there are several."""
    text = ", ".join(f"{x + 0.0:.{digits}f}" for x in np.atleast_1d(numbers)).replace("-", "−")
    return f"({text})" if np.ndim(numbers) else text


forward, backward, _ = read(1.0, at_the_end)


@show
def three_states():
    """The example: what each word contributes, a state by hand, the library's lines."""
    before, product, a, total, new = forward[1]
    notes = {
        "new = matmul": "The old state times the recurrent weight, $h_{t-1} W$.",
        "new += a": "What the word contributes is added: $a_t + h_{t-1} W$.",
        "array_module(new).tanh": "The tanh of each number. (`array_module` is NumPy here.)",
        "return new": "The new state $h_t$.",
    }
    return [
        Matrix("a", share, words, units, 1),
        Matrix("W", weight, units, units, 1),
        Words(f"""
            By hand, the state after *very*. Before it the state was {comma(before)}. Multiply by
            $W$: the first entry is
            {comma(before[0])} · 0.5 + 0 · (−1) ≈ {comma(product[0], 3)}, the second
            {comma(before[0])} · 1 + 0 · 0.5 ≈ {comma(product[1], 3)}. Add what *very* contributes,
            {comma(a, 1)}: the sum is {comma(total, 3)}. Its tanh is {comma(new, 3)}.

            Here is the rule in the library. `Recurrent`, the layer around it, calls it once for
            each word.
        """),
        Beside(rnn, notes),
    ]


# %% [markdown]
# ## Step through it, there and back
#
# Suppose a loss looks at the last state and finds: u should be smaller, v should be larger. The
# gradient of the last state is (1, −1). What should the word *not* have contributed instead? The
# answer has to travel back through every step. The next section derives each row of the table
# “backward”.
#
# Guess first: $W$ makes every vector 1.118 times as long. Will the gradient grow on its way back?
# Then scale $W$, and set the gradients $\mathrm{d}y$ from the loss yourself.


# %%
@show
def there_and_back() -> Simulation:
    """The simulation: three words forward, three back, with the numbers of the example."""
    return through_time.through_time


# %% [markdown]
# ## The way back
#
# Write $s_t = a_t + h_{t-1}W$ for the sum inside the tanh. Entry by entry, forward is
#
# $$s_{t,j} = a_{t,j} + \sum_i h_{t-1,i}\,W_{ij}, \qquad h_{t,j} = \tanh(s_{t,j})$$
#
# Let $\mathrm{d}x$ be the gradient of the loss with respect to $x$. Go backwards, and ask of each
# number where it was used.
#
# **The state $h_t$ is used twice.** It is the output $y_t$ of its step, which a loss or another
# layer may read. (In our example only $\mathrm{d}y_3 = (1, -1)$ is not 0.) And the next step uses
# $h_{t,i}$ in $s_{t+1,j}$, for every $j$, with the factor $W_{ij}$. The contributions of all uses
# add up:
#
# $$\mathrm{d}h_{t,i} = \mathrm{d}y_{t,i} + \sum_j \mathrm{d}s_{t+1,j}\,W_{ij}$$
#
# In arrays this is
#
# $$\mathrm{d}h_t = \mathrm{d}y_t + \mathrm{d}s_{t+1}\,W^\top$$
#
# Nothing follows the last step, so there the second part is 0.
#
# **The sum $s_t$ is used in the tanh.** The slope of tanh is $1 - \tanh^2$, and forward has already
# computed the tanh, which is $h_t$:
#
# $$\mathrm{d}s_{t,j} = \mathrm{d}h_{t,j}\,(1 - h_{t,j}^2)$$
#
# **The word's contribution $a_t$ is added to the sum** with the factor 1, so $\mathrm{d}a_t =
# \mathrm{d}s_t$. From here on we write $\mathrm{d}a_t$ for both.
#
# **The weight $W_{ij}$ is used in $s_{t,j}$ of every step**, with the factor $h_{t-1,i}$: all steps
# share one $W$. So it collects a gradient from all of them:
#
# $$\mathrm{d}W_{ij} = \sum_t h_{t-1,i}\,\mathrm{d}a_{t,j}, \qquad\text{that is}\qquad
# \mathrm{d}W = \sum_t h_{t-1}^\top\,\mathrm{d}a_t$$
#
# This is called *backpropagation through time*. It is the chain rule applied to a loop. $W$ is
# square, so shapes will not warn you if you forget its transpose.


# %%
@show
def back_through_three_words():
    """A step back by hand, and the library's lines."""
    of_the_cell = {
        "da = tanh_backward": r"Through the tanh: `dnew` is $\mathrm{d}h_t$, and `new` is $h_t$.",
        "dstate, dweight, _ = linear_backward": r"""Through the product $h_{t-1}W$:
            $\mathrm{d}a_t\,W^\top$ and $h_{t-1}^\top\,\mathrm{d}a_t$.""",
        "return da": r"""`dstate` goes to the step before, `dweight` is added to
            $\mathrm{d}W$.""",
    }
    (_, _, dh3, da3, before), h3 = backward[2], forward[2, 4]
    slopes = 1 - h3**2
    return [
        Words(rf"""
            By hand, the step from *good* back to *very*. The state after *good* is {comma(h3)}, so
            the slopes are 1 − {comma(h3[0])}² ≈ {comma(slopes[0], 3)} and
            1 − {comma(h3[1])}² ≈ {comma(slopes[1], 3)}. Times the gradient {comma(dh3, 0)} they
            give $\mathrm{{d}}a_3 \approx$ {comma(da3)}. Multiply by $W^\top$: the first entry is
            0.5 · {comma(da3[0])} + 1 · ({comma(da3[1])}) ≈ {comma(before[0], 3)}, the second
            −1 · {comma(da3[0])} + 0.5 · ({comma(da3[1])}) ≈ {comma(before[1], 3)}.

            After *good*, u is nearly 1, where tanh is flat: a slope of {comma(slopes[0], 3)} lets
            hardly any gradient through.

            Here is one step back in the library. The layer around it runs its loop in reverse, and
            adds $\mathrm{{d}}y_t$ to the gradient that came back from the next step.
        """),
        Beside(rnn_backward, of_the_cell),
    ]


# %% [markdown]
# ## Why gradients vanish
#
# Put the formulas for $\mathrm{d}h$ and $\mathrm{d}s$ together. One step back is
#
# $$\mathrm{d}h_{t-1} = \mathrm{d}h_t\,J_t, \qquad J_t = D_t\,W^\top$$
#
# where $D_t$ has the slopes $1 - h_t^2$ on its diagonal and 0 elsewhere (if nothing else reads
# $h_{t-1}$). $J_t$ is the *Jacobian* of a step, the table of its slopes. The Jacobians of many
# steps multiply:
#
# $$\mathrm{d}h_1 = \mathrm{d}h_T\,J_T\,J_{T-1} \cdots J_2$$
#
# A product of many factors goes to 0, or grows without limit, unless the factors are near 1. A
# product of matrices does the same. Two things decide which:
#
# - The slopes in $D_t$ are never above 1, and far below 1 where a unit is *saturated*: so close to
#   −1 or 1 that tanh is flat.
# - $W$ can make a vector longer, but at most $|W|$ times as long. This norm $|W|$ is the largest
#   singular value of $W$. (Our example's $W$ makes every vector 1.118 times as long.)
#
# So $k$ steps make a gradient at most $|W|^k$ times as long. If $|W| < 1$, it **must vanish**. If
# $|W| > 1$ it **may explode**, but need not, because the slopes work against it (Hochreiter 1991;
# Bengio, Simard and Frasconi 1994; Pascanu et al. 2013).
#
# The blocks of the simulation show the gradient's length: 1.41 at *good*, 1.03 at *very*, 1.02 at
# *not*. $W$ alone would make it longer at both steps; the slopes shrink it by more. A text is
# longer than three words. Over 100 steps a factor of 0.9 shrinks a gradient to 0.00003 of its
# length, and a factor of 1.1 makes it 13,781 times as long.
#
# An exploding gradient is easy to see and to cut: scale it down whenever it is too long
# (*clipping*, lesson 8). A vanished one cannot be scaled up again. The gradient of $W$ is a sum
# over all words. Its length looks healthy, but distant words add next to nothing to it. So the
# network learns only from nearby words.
#
# ## The LSTM: a memory with gates
#
# If the factors have to be near 1, build the cell that way. The LSTM (Hochreiter and Schmidhuber
# 1997, with the forget gate of Gers et al. 2000) has a second vector beside $h$, the **memory**
# $c$. From step to step the memory is multiplied by no matrix and goes through no tanh:
#
# $$c_t = f_t \odot c_{t-1} + i_t \odot g_t, \qquad h_t = o_t \odot \tanh(c_t)$$
#
# ($\odot$ multiplies entry by entry.) The **forget gate** $f$ says how much of the memory is kept,
# the **input gate** $i$ how much of the new content $g$ is written to it, and the **output gate**
# $o$ how much of the memory is shown. All four are computed from the word and the last $h$. The
# gates go through the sigmoid $\sigma(x) = 1 / (1 + e^{-x})$, so they lie between 0 and 1:
#
# $$f_t = \sigma(a^f_t + h_{t-1} W^f), \quad i_t = \sigma(a^i_t + h_{t-1} W^i)$$
#
# $$o_t = \sigma(a^o_t + h_{t-1} W^o), \quad g_t = \tanh(a^g_t + h_{t-1} W^g)$$
#
# Here are our three words again, with a memory of one number. *not* writes something negative. How
# must *very* set the gates to keep it?


# %%
lstm_share = np.array([[2, 0, -2, -2], [-2, 2, -2, 1], [0, 2, 2, 1]], float)  # i, f, o, g
lstm_weight = np.array([[1, 1, -1, 1]], float)


def lstm_reads() -> np.ndarray:
    """i, f, o, g, c, tanh c and h at each word, (3, 7)."""
    state, rows = np.zeros((1, 2)), []
    for a in lstm_share[:, None]:
        state, gates, tanh_c = lstm(a, state, lstm_weight)
        rows.append([*gates[0], state[0, 1], *tanh_c[0], state[0, 0]])
    return np.array(rows)


@show
def an_lstm_reads():
    """The LSTM on three words, and the library's lines."""
    notes = {
        "gates = matmul": "One product for all four: $W$ has $W^i, W^f, W^o, W^g$ side by side.",
        "xp.multiply(f, c": r"The forget gate keeps a part of the memory, $f_t \odot c_{t-1}$,",
        "new_c +=": r"and the input gate adds new content to it: $+\; i_t \odot g_t$.",
        "xp.multiply(o": r"What others see of the memory: $h_t = o_t \odot \tanh(c_t)$.",
    }
    rows = lstm_reads()
    (i, f, o, g, c, tanh_c, h), c_before = rows[1], rows[0, 4]
    return [
        Matrix(r"\text{LSTM}", rows, words, ["i", "f", "o", "g", "c", "tanh c", "h"], 1),
        Words(f"""
            *very* keeps the memory: its forget gate is at {comma(f, 2)}, its input gate at
            {comma(i, 2)}. By hand, the memory is then
            {comma(f)} · ({comma(c_before)}) + {comma(i)} · {comma(g)} ≈ {comma(c, 2)}. The output
            gate is nearly shut, so it shows only {comma(o)} · ({comma(tanh_c)}) ≈ {comma(h, 2)}.
            *good* writes {comma(rows[2, 0] * rows[2, 3], 2)}, but most of what *not* wrote is still
            there. Together they make {comma(rows[2, 4], 2)}. Not very good.
        """),
        Beside(lstm, notes, whole=False),
    ]


# %% [markdown]
# ### The way back through an LSTM
#
# One line matters: $\mathrm{d}c_{t-1}$ gets $\mathrm{d}c_t \odot f_t$. There is no matrix in it
# and no slope. Where the forget gate is open, the whole gradient passes.
#
# <details><summary>All of it, derived</summary>
#
# Two gradients now come from the next step, one for $h_t$ and one for $c_t$. Ask again where each
# number was used. From $h_t = o_t \odot \tanh(c_t)$:
#
# $$\mathrm{d}o_t = \mathrm{d}h_t \odot \tanh(c_t)$$
#
# $$\mathrm{d}c_t = (\text{from the next step}) + \mathrm{d}h_t \odot o_t \odot (1 - \tanh^2(c_t))$$
#
# From $c_t = f_t \odot c_{t-1} + i_t \odot g_t$, where each factor gets the other one:
#
# $$\mathrm{d}f_t = \mathrm{d}c_t \odot c_{t-1}, \quad
# \mathrm{d}i_t = \mathrm{d}c_t \odot g_t$$
#
# $$\mathrm{d}g_t = \mathrm{d}c_t \odot i_t, \quad \mathrm{d}c_{t-1} = \mathrm{d}c_t \odot f_t$$
#
# Then each of the four goes back through its own sigmoid or tanh. The slope of the sigmoid is
# $\sigma - \sigma^2$, so for instance $\mathrm{d}a^f_t = \mathrm{d}f_t \odot (f_t - f_t^2)$. The
# slope of the tanh is $1 - g_t^2$. Last, all four go back through their product with $h_{t-1}$:
# $\mathrm{d}h_{t-1} = \mathrm{d}a_t W^\top$ and
# $\mathrm{d}W = \sum_t h_{t-1}^\top \mathrm{d}a_t$, as in the RNN.
#
# </details>
#
# ### Is it true?
#
# Move the inputs or a weight a little, measure how much a loss changes, and compare that with the
# gradient. The table does so for both cells, with three sequences of five words.


# %%
@show
def gradient_check():
    """The explicit gradients of both recurrent layers beside measured ones."""
    rng, found = np.random.default_rng(1), []
    for name, cell in ("RNN", RNNCell), ("LSTM", LSTMCell):
        layer = Recurrent(cell(4, rng), 2, rng)
        for row in check(layer, [rng.standard_normal((3, 5, 2))]):
            numbers = comma(row.explicit, 8), comma(row.numerical, 8)
            found.append((f"{name}: `{row.name}`", *numbers, scientific(row.error)))
    return table(["gradient of", "explicit", "measured", "relative error"], found)


# %% [markdown]
# ## How far does a gradient reach?
#
# Now measure it. Below are three of numformer's own layers, before any training: an RNN, an LSTM
# and self-attention (lesson 4), 32 numbers wide, reading 61 random words. Only the *last* result
# gets a gradient, a random one. How much of it reaches each word?
#
# Guess first. In each of the three, how far back does the gradient get before only a hundredth is
# left? Each recurrent cell has one setting that everything depends on. For the RNN it is the size
# of $W$ (before training, $W$ keeps the length of every vector). For the LSTM it is the bias of the
# forget gate, which starts at 1.


# %%
@show
def how_far() -> Simulation:
    """The simulation: gradient against distance, with one setting for each cell."""
    return gradient_by_distance


# %%
@show
def what_was_measured():
    """How far a gradient reaches in the three layers as they begin, and with other settings."""
    rnn, lstm, attention = map(typical, ("RNN", "LSTM", "attention"))
    first = [int(np.argmax(curve < 1)) for curve in (rnn, lstm)]
    return Words(rf"""
        Before training, less than a hundredth of the gradient is left after {first[0]} words in the
        RNN and after {first[1]} words in the LSTM (each curve is the geometric mean of five seeds).
        The axis is logarithmic, so a straight line means the same factor at every step: a product
        of Jacobians.

        In self-attention nothing is far. Its result for the last word is a mixture of all words, so
        every word gets its gradient in a single step. Here each of the other words gets
        {attention[1:].min():.0f} to {attention[1:].max():.0f} % of what the last word itself gets.
        With more words each share is smaller: what counts is how *many* words there are, not how
        far away they are.

        For the RNN there is a point between vanishing and exploding, and nothing in the cell holds
        it there. For the LSTM a wide range of settings lets a good part of the gradient arrive, and
        within this range the LSTM can learn what to keep. But with the bias 0 the forget gate keeps
        about half at each step, and the LSTM forgets nearly as fast as the RNN.
    """)


# %% [markdown]
# ## One vector for a whole sentence
#
# To translate, one network reads the source, and another writes the target, starting from the last
# state of the first (Cho et al. 2014; Sutskever, Vinyals and Le 2014). That state is all the writer
# ever learns of the source. It is a **fixed context**, no longer for a page than for a word.
#
# Is it too small? Count. 20 random letters are $20 \log_2 26 \approx 94$ bits. If the state has 64
# numbers, each has to carry 1.5 bits: it must tell three values apart, no more. So 20 letters would
# fit! But there are astronomically many sources, and each needs a state of its own. The network has
# to learn to make these states, and the gradients from which it learns vanish.
#
# Bahdanau, Cho and Bengio (2015) let the writer look at the source instead. All states of the
# reader are kept, $h_1$ to $h_S$. Before each letter the writer compares its own state $r$ with
# every one of them, and gets a mixture of them:
#
# $$e_s = \tanh(r\,W_r + h_s W_h) \cdot v$$
#
# $$A = \mathrm{softmax}(e), \qquad \text{context} = \sum_s A_s\,h_s$$
#
# This is **additive attention**, and this is where attention began. The softmax turns the scores
# $e$ into positive weights $A$ that sum to 1 (lesson 2). The vector $v$ and both matrices are
# learned. Lesson 3 derives the backward of a softmax and compares ways to score. Now only one step
# lies between a letter that is written and a letter that was read.
#
# The simulation at the top shows both networks. (Their cells are GRUs, with two gates and no
# separate memory.) The weights $A$ show where the writer looks. Nobody told it where to look. It
# could learn that, because the softmax lets the gradient through to the scores.
#
# Do larger models fail, too? `python -m toy_tasks.bottleneck` trains models with about 75,000
# parameters each to reverse up to 20 letters, out of an alphabet of 26 (a few minutes). Before you
# look: at what length will the fixed context begin to fail, and how fast will it fall?


# %%
@show
def the_fall_by_length():
    """Accuracy by length for a fixed context and for additive attention."""
    recorded, at = MEASURED["fixed context"], (1, 5, 10, 15, 20)
    return [
        table(
            ["letters", *map(str, at)],
            [(kind, *(f"{right[n - 1]:.2f}" for n in at)) for kind, right in MEASURED.items()],
            "Share of new sources reversed without a mistake, mean of three seeds.",
        ),
        Words(f"""
            With the fixed context all goes well up to 6 letters ({recorded[5]:.3f}); then the share
            falls. Attention hardly ever fails, and neither does the Transformer, which has no state
            at all. The fixed context had nearly as many parameters as attention
            ({PARAMETERS[0]:,} against {PARAMETERS[1]:,}), and trained for more than twice as many
            steps. No source was longer than the longest in training; lesson 5 asks what happens
            with longer ones.
        """),
    ]


# %% [markdown]
# ## Who has to wait
#
# The third trouble. $h_t$ cannot be computed before $h_{t-1}$: a text of 1,000 words means 1,000
# products one after the other, and a processor that could do thousands at once does one at a time.
# In self-attention a word needs only the words of the layer *below*, and these are all there.
#
# In the simulation a *turn* is the time of one matrix product. A recurrent step takes one (we do
# not count the product that makes $a_t$). A layer of self-attention takes four, one after the
# other (lessons 3 and 4 show them). Guess: with 4 words and 2 layers, which finishes first?


# %%
@show
def who_waits() -> Simulation:
    """The simulation: a timeline of recurrent layers and of self-attention."""
    return timeline.timeline


# %% [markdown]
# With $n$ words and $L$ layers the recurrent network takes $n + L - 1$ turns forward and
# self-attention $4L$. Each takes as many turns back. With 4 words and 2 layers that is 5 against 8:
# on so short a text the recurrent network wins. Real sentences are longer, and there it loses. But
# self-attention needs a worker for each word. With a single worker, there is nothing to gain.
#
# <details><summary>Operations, path and memory: Table 1 of the paper</summary>
#
# With $n$ words and $d$ numbers for each, Table 1 of *Attention Is All You Need* compares the two:
#
# | layer | operations | sequential operations | longest path | kept for the way back |
# |---|---|---|---|---|
# | self-attention | $O(n^2 d)$ | $O(1)$ | $O(1)$ | $O(n^2 + n d)$ |
# | recurrent | $O(n d^2)$ | $O(n)$ | $O(n)$ | $O(n d)$ |
#
# The *path* is the number of steps between two words, all of which a gradient has to survive. (The
# last column is not in the paper.)
#
# </details>
#
# A model that *writes* word by word waits in any case, because the next word is not there yet.
# Meanwhile a recurrent network has to store one state. Attention has to store something of every
# word so far: that is the price of not forgetting.
#
# ## In the running example
#
# The other lessons look at one sentence in one trained model, the translator of the
# [home page](index.html). It reads *a woman is dancing with a bear*, in nine pieces, and has to
# write the German sentence. Take the loss of one German piece, and follow its gradient back to the
# English pieces. Which of them does it reach most? And in how many steps would a recurrent network
# without attention get there?


# %%
@show
def in_the_running_example():
    """Which English piece the gradient of each German one reaches most, and how far away it is."""
    reached = np.linalg.norm(running.reached(), axis=-1).argmax(axis=1)
    rows = [
        (f"*{says}*", f"*{running.READ[s]}*", len(running.READ) - s + t)
        for t, (says, s) in enumerate(zip(running.SAYS, reached, strict=True))
    ]
    assert [running.READ[s] for s in reached[[1, 2, 5]]] == ["woman", "dancing", "bear"]
    return [
        table(
            ["loss of", "its gradient is longest at", "steps of a recurrent network"],
            rows,
            "Steps: from the English piece to the end of the sentence, and on to the German piece. "
            "A hyphen stands before a piece that continues a word.",
        ),
        Words(f"""
            The gradient of *frau* is longest at *woman*, that of *tanzt* at *dancing*, that of *bä*
            at *bear*. That of *eine* is longest at *woman*, too: the German article has to fit the
            noun. In the translator, attention leads from each German piece to each English one in a
            single step. A recurrent network would need about
            {np.mean([row[2] for row in rows]):.0f} steps, and the gradient would have to survive a
            factor in each.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $d$ is the size of the state, and $\mathrm{d}y_t$ the gradient that $h_t$ gets from outside the
# loop.
#
# | forward | backward | shape |
# |---|---|---|
# | $h_t = \tanh(a_t + h_{t-1}W)$ | $\mathrm{d}a_t = \mathrm{d}h_t \odot (1 - h_t^2)$ | $(d)$ |
# | | $\mathrm{d}h_{t-1} = \mathrm{d}y_{t-1} + \mathrm{d}a_t W^\top$ | $(d)$ |
# | | $\mathrm{d}W = \sum_t h_{t-1}^\top \mathrm{d}a_t$ | $(d, d)$ |
# | $T - 1$ steps | $\mathrm{d}h_1 = \mathrm{d}h_T J_T \cdots J_2$, $J_t = D_t W^\top$ | $(d)$ |
# | $c_t = f_t c_{t-1} + i_t g_t$ | $\mathrm{d}c_{t-1}$ gets $\mathrm{d}c_t f_t$ | $(d)$ |
# | $h_t = o_t \tanh(c_t)$ | $\mathrm{d}c_t$ gets $\mathrm{d}h_t o_t (1 - \tanh^2(c_t))$ | $(d)$ |
#
# A product of many factors vanishes or explodes. Clipping cures exploding. Only another path cures
# vanishing: a memory with an open gate, or attention, whose path is one step long.
#
# ## Common claims, checked


# %%
@show
def common_claims():
    """A popular claim, checked by counting."""
    return Words("""
        **“Attention is $O(n^2)$, so it is slower than an RNN.”** The square is real, but it starts
        small. Count the multiplications. An LSTM has eight $d \\times d$ matrices: $8nd^2$.
        Self-attention has four, and each pair of words meets twice, in the score and in the
        mixture: $4nd^2 + 2n^2d$. So attention needs fewer multiplications than an LSTM as long as
        the text is short. (A plain RNN, with $2nd^2$, always needs the fewest.) Which is slower by
        the clock depends on how many multiplications the machine can do at once.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="An RNN has one unit and the recurrent weight 2. The state after a step is $h "
            "= 0.9$. A gradient goes back through this step. By how much is it multiplied?",
            answer=2 * (1 - 0.9**2),
            tolerance=0.005,
            mistakes={
                2: "That is the weight alone. The gradient also passes through the tanh, whose "
                "slope at this state is far below 1.",
                1 - 0.9**2: "That is the slope of the tanh. On its way to the old state the "
                "gradient is also multiplied by the weight.",
                2 * 0.9: "You multiplied the weight by the state. Backward needs the slope of the "
                "tanh instead, which is $1 - h^2$.",
                2 * (1 - 0.9): "You did not square the state: the slope of the tanh is $1 - h^2$.",
                2 * 0.9 * (1 - 0.9): "You used $h\\,(1 - h)$, the slope of the sigmoid. This "
                "network has a tanh.",
                2 * (1 - np.tanh(0.9) ** 2): "You took the tanh of 0.9, but 0.9 is the state, so "
                "it has been through the tanh already.",
            },
            why="The slope is $1 - 0.9^2 = 0.19$. Times the weight, that is $0.38$. A weight above "
            "1 does not make a gradient explode where the unit is saturated.",
        ),
        Question(
            question="Your backward through time forgets to add the gradient from the next step. "
            "It takes $\\mathrm{d}h_t = \\mathrm{d}y_t$. The loss looks at the last state only. In "
            "a text of three words, what is $\\mathrm{d}a_1$?",
            choices={
                "right": "It would be right if all of its gradient came straight from the loss. "
                "But the loss does not look at the first state.",
                "half of what it should be": "Half would fit if $\\mathrm{d}y_1$ were as large as "
                "the missing term. But the loss does not look at the first state, so "
                "$\\mathrm{d}y_1$ is 0.",
                "0": "",
                "too large": "A sum can grow when a negative term is left out. But here the "
                "missing term is the only one.",
            },
            answer=2,
            why="Nothing looks at the first state, $\\mathrm{d}y_1 = 0$, so all of its gradient "
            "comes from the next step. Only the last word's gradient is right: nothing follows it.",
        ),
        Question(
            question="A forget gate stands at 0.95 for 30 steps. What share of the gradient comes "
            "back along the memory? (Two decimals.)",
            answer=0.95**30,
            mistakes={
                1 - 0.95**30: "That is the share that is lost. The question asks for the share "
                "that comes back.",
                0.95: "That is what one step leaves. The gradient passes through the gate 30 "
                "times.",
                0.95 * 30: "The factors of the steps multiply; they do not add up. A share is at "
                "most 1.",
                1 - 0.05 * 30: "You subtracted 0.05 for each step. But each step takes 5 % of what "
                "is *still there*, so the factors multiply.",
                0: "0.95 is close to 1, so even 30 steps leave a good part. Multiply 0.95 by "
                "itself 30 times.",
            },
            why="It is $0.95^{30} \\approx 0.21$. So four fifths of the gradient are lost.",
        ),
        Question(
            question="A recurrent network with 2 layers reads 30 words, with as many workers as it "
            "can use. How many turns does its forward take?",
            answer=30 + 2 - 1,
            mistakes={
                30 * 2: "You let the second layer wait until the first has read everything. But it "
                "can read word 1 while the first layer reads word 2.",
                30: "After 30 turns the first layer is done. The second layer still has to read "
                "the last word.",
                30 + 2: "That is one turn too many: the second layer begins in turn 2, while the "
                "first is still at work.",
                4 * 2: "$4L$ is the number of turns of self-attention. In a recurrent layer each "
                "word waits for the state before it.",
                2: "Two turns would be enough if a layer could read all words at once. But each "
                "word waits for the state before it.",
            },
            why="It takes $n + L - 1 = 31$. The second layer runs one word behind the first. More "
            "workers do not help: at most two ever have something to do.",
        ),
        Question(
            question="Take numformer's LSTM and its self-attention, both 512 wide. At how many "
            "words do they need equally many multiplications?",
            answer=2 * 512,
            mistakes={
                512: "That is $n = d$. Subtract $4nd^2$ from both sides of $8nd^2 = 4nd^2 + "
                "2n^2d$, and look at the factors once more.",
                4 * 512: "You left out a part of attention: its four matrices, the score or the "
                "mixture. Score and mixture take $n^2d$ multiplications each.",
                8 * 512: "You counted only the score or only the mixture. Attention has both, and "
                "four matrices as well.",
            },
            why="Set the two counts equal: $8nd^2 = 4nd^2 + 2n^2d$ gives $n = 2d = 1024$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 1 mine.py` writes them into a file, and `python -m lessons check 1 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/recurrence/cells.py` and `recurrent.py`: these cells, a GRU, and the loop, which also
#   handles padding. `numformer/models/recurrent.py`: the whole encoder-decoder, with both contexts.
# - Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and
#   Translate*: section 3 is the additive attention of this lesson; figure 2 shows how translations
#   get worse as sentences get longer.
# - Pascanu, Mikolov and Bengio 2013, *On the Difficulty of Training Recurrent Neural Networks*.
# - *Attention Is All You Need*, section 4.
