# %% [markdown]
# # The decoder block
#
# > To write, a model reads the words it has written so far and says the next one. It learns this
# > from finished texts. How can it read such a text and yet not see the answer?

# %%
import math

import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_07.exercises import EXERCISES
from lessons.lesson_07.forcing import SENTENCES, forcing
from lessons.lesson_07.mask import BECOMES, CHANGES, HIDING, compute, mask, vectors, words
from lessons.lesson_07.toy import KINDS, KNOWN, NEW, SEEDS, Leaky, floor, ids_of, look, trained
from numformer import CrossAttention, PairBatch, Transformer, inference
from numformer.data.batching import pad_sources
from numformer.data.vocabulary import END, START
from numformer.gradient_check.gradients import GradientCheck
from numformer.paper import Decoder, DecoderLayer
from numformer.paper.attention import (
    MultiHeadAttention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.config import LayerConfig
from numformer.paper.masks import causal_mask
from numformer.paper.softmax import softmax


@show
def simulation_of_the_mask() -> Simulation:
    """The first simulation: the future hidden in three ways."""
    return mask


# %% [markdown]
# ## Read the right words
#
# The encoder (lesson 6) has read *son chat saute*. Now the **decoder** writes it in English, one
# word after another: *her*, *cat*, *is*, *jumping*. Before each word it reads what it has written
# so far, and looks across at the French words.
#
# It learns this from examples. But a pupil who finds the solution next to the exercise learns to
# copy. The decoder must never see the word that it has to say.
#
# At each position the decoder reads one word and has to say the next. In all it has to say the
# translation and an end mark ⟨end⟩. It reads the same text *shifted by one*: a start mark ⟨s⟩ comes
# first, and ⟨end⟩ is left out. The paper's Figure 1 calls this "outputs (shifted right)".
#
# In training the decoder always reads the *right* words, whatever it has said: **teacher forcing**
# (Williams and Zipser 1989). So everything it reads is known from the start, and one forward pass
# handles all positions at once. Each position has a **loss** of its own: minus the logarithm of the
# probability that the decoder gives to the right word.
#
# Here is a small model that was trained on such sentences. The last column comes from five separate
# passes, each of which reads the words up to its position and no more. Compare the two losses.

# %%
FRENCH, TARGET = "son chat saute", "her cat is jumping"


@show
def teacher_forcing():
    """What the decoder reads and has to say, with the loss of each position."""
    model = trained(Transformer, SEEDS[0]).model
    batch = PairBatch.of([(ids_of(FRENCH), ids_of(TARGET))])
    inputs, right = batch.target_in[0].tolist(), batch.target_out[0].tolist()

    def losses(count):
        """The losses of a pass over the first `count` positions."""
        probabilities, *_ = look(model, FRENCH, inputs[:count])
        return -np.log(probabilities[range(count), right[:count]])

    at_once, says = losses(5), [*words[1:], "⟨end⟩"]
    rows = [
        (
            t + 1,
            words[t],
            says[t],
            *(f"{x:.4f}" for x in (math.exp(-loss), loss, losses(t + 1)[-1])),
        )
        for t, loss in enumerate(at_once)
    ]
    columns = ["position", "reads", "has to say", "probability", "loss", "loss, separate pass"]
    return [
        table(columns, rows),
        Words(f"""
            They are the same: one pass has done the work of five. Training makes the mean of the
            losses small, here {at_once.mean():.3f}. Most of it comes from the first word. *son* may
            be his, her or its, and nothing says which, so the model gives *her* a probability of
            about a third.
        """),
    ]


# %% [markdown]
# But the model gets all five words at once. Position 1 has to say *her*, and *her* is in the input,
# at position 2. If the model may look there, what will it learn?
#
# ## Hide the future
#
# Only one part of the decoder lets one position look at another: attention. So here is the
# decoder's self-attention on our five words, with numbers that you can check by hand. The sizes are
# $d_k = 3$ and $d_v = 2$. The queries are chosen to make trouble: each but the last fits the key of
# the word that comes *next*. This decoder wants to peek.


# %%
@show
def it_peeks():
    """Queries, keys and values of the words that are read, and which words these look at."""
    query, key, value = vectors()
    _, peeking = scaled_dot_product_attention(query, key, value)
    return [
        Matrix("Q", query, words, "123"),
        Matrix("K", key, words, "123"),
        Matrix("V", value, words, "xy"),
        Words(f"""
            Choose to hide nothing [above](#mask): in every row but the last, the largest weight
            stands in the column of the next word. ⟨s⟩ looks at *her* with the weight
            {peeking[0, 1]:.2f}, *her* at *cat* with {peeking[1, 2]:.2f}. Each has found the word
            that it has to say.

            The **causal mask** $M$ ends this. Its entry $(t, s)$ says whether position $t$ may look
            at position $s$. It is 1 where $s \\le t$, so a position may look at itself. Elsewhere
            it is 0: there the score counts as $-\\infty$, and the weight is exactly 0.

            By hand, the row of *her*: it may look at ⟨s⟩ and at *her*. Its query is (0, 2, 0), the
            two keys are (0, 0, 0) and (2, 0, 0). Both scores are 0, so each gets half the weight.
        """),
    ]


# %% [markdown]
# As an equation (sections 3.1 and 3.2.3), with the scores $Z = QK^\top/\sqrt{d_k}$:
#
# $$A_{ts} = \frac{e^{Z_{ts}}}{e^{Z_{t1}} + \ldots + e^{Z_{tt}}} \;\text{ for } s \le t, \qquad
# A_{ts} = 0 \;\text{ for } s > t$$
#
# The mask and the shift by one work together: position $t$ reads the words before the one that it
# has to say, and nothing else. Is this so? [Above](#mask) you can change a word and see which rows
# of the result $O = AV$ change. Guess before you look: if *jumping* becomes *eating*, which rows
# may change?
#
# ### Why before the softmax?
#
# Setting weights to 0 after the softmax looks just as good: the same corner of $A$ is empty. But
# then earlier rows still react to later words. How do they know them? The softmax divides by a
# sum over *all* keys, $n_t = \sum_u e^{Z_{tu}}$, hidden or not. A weight that is kept is
# $A_{ts} = e^{Z_{ts}} / n_t$, and $n_t$ depends on the hidden words. Lesson 3 derived what a score
# $Z_{tu}$ does to the weight of another key:
#
# $$\frac{\partial A_{ts}}{\partial Z_{tu}} = -\,A_{ts}\,A_{tu}$$
#
# Here $A_{tu}$ is the weight *before* it is set to 0. The better a hidden word fits, the less is
# left for the others. Let $c_t$ be the sum of the weights that row $t$ keeps. Then row $t$ of the
# result is $c_t$ times the row that the causal mask gives, and this one number is all that leaks.
# ⟨s⟩ may look only at itself, so its $c_1$ is the weight that it gives itself:


# %%
@show
def what_leaks():
    """The weight that ⟨s⟩ gives itself, as it is and with each later word changed."""
    weights = [
        [
            f"{compute(HIDING[how].value, change.value, new.value)['weights'][0, 0]:.4f}"
            for change, new in zip(CHANGES, BECOMES, strict=True)
        ]
        for how in (0, 2)
    ]
    honest, (before, *after) = weights
    assert {*honest} == {"1.0000"}
    changed = [
        f"{weight} if *{word}* changes" for word, weight in zip(words[1:], after, strict=True)
    ]
    return Words(f"""
        It is {before}; {"; ".join(changed)}. (Masked before the softmax, it is 1 each time.) Four
        changes, four different numbers. One number sounds like little. Further below you can see
        what a model makes of it.
    """)


# %% [markdown]
# ## Nothing leaks: the proof
#
# One masked attention is safe. Is a whole decoder? Look at row $t$ of the result of each part. In
# masked self-attention it depends only on rows up to $t$ of the input. In all other parts it
# depends on row $t$ alone, and on the French words. So no part brings in anything from a later row.
# Follow row $t$ down through all blocks: you meet only words up to $t$.
#
# Let us try it with a decoder of three blocks with random weights. We change all words from some
# position on. Then we count the positions whose *logits* stay the same, bit for bit. (The logits
# are the numbers that go into the last softmax.)

# %%
SOURCE, BEFORE = np.array([[5, 9, 7, 2]]), np.array([[1, 4, 8, 6, 9, 5]])


def decoders() -> dict[str, Transformer]:
    """Three random blocks with four heads, with the causal mask and without."""
    config = Transformer.Config.base(20, d_model=16, d_ff=32, heads=4, layers=3, p_drop=0.0)
    return {"with the mask": Transformer(config, 5), "without": Leaky(config, 5)}


@show
def forward_nothing_leaks():
    """How many positions are the same bit for bit when later words change."""

    def the_same(model, s):
        changed = BEFORE.copy()
        changed[0, s:] += 10
        with inference():
            before, after = (model.forward(SOURCE, ids)[0] for ids in (BEFORE, changed))
        return sum(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))

    found = {name: [the_same(model, s) for s in range(1, 6)] for name, model in decoders().items()}
    same = {name: ", ".join(map(str, counts)) for name, counts in found.items()}
    return Words(f"""
        We change all words from the second position on, then from the third on, and so on to the
        sixth alone. With the mask {same["with the mask"]} positions stay the same, without it
        {same["without"]}.
    """)


# %% [markdown]
# Why are they the same in every bit, and not just nearly? A hidden weight is exactly 0, and 0 times
# a number adds nothing. (But 0 · NaN is NaN: a mask does not protect against broken numbers.)
#
# ### The same, backwards
#
# The loss of position $t$ must not depend on later words, so its gradient at each later word has to
# be exactly 0. Lesson 3 derived the gradient of the scores:
#
# $$\mathrm{d}Z_{tu} = A_{tu}\Bigl(\mathrm{d}A_{tu} - \sum_s A_{ts}\,\mathrm{d}A_{ts}\Bigr)$$
#
# Where $u$ is hidden from $t$, $A_{tu}$ is 0, and so is $\mathrm{d}Z_{tu}$. Now look at the key and
# the value of position $s$. Their gradients collect a term from each position that used them:
#
# $$\mathrm{d}K_{si} = \sum_{t \ge s} \mathrm{d}E_{ts}\,Q_{ti}, \qquad \mathrm{d}V_{sj} =
# \sum_{t \ge s} A_{ts}\,\mathrm{d}O_{tj}$$
#
# (Here $\mathrm{d}E = \mathrm{d}Z / \sqrt{d_k}$ is the gradient of the products $QK^\top$.) Terms
# with $t < s$ are 0. Data flow from earlier words to later results, gradients from later losses to
# earlier words. Here are the lengths of the gradients in the same decoder. Row $t$ belongs to the
# loss of position $t$ alone, column $s$ to the input vector of word $s$.


# %%
def gradient_lengths(model: Transformer) -> np.ndarray:
    """(T, T): row t has the lengths of the gradients of loss t at the decoder's inputs."""
    lengths = np.zeros((6, 6))
    for t in range(6):
        logits = model.forward(SOURCE, BEFORE)
        dlogits = np.zeros_like(logits)
        dlogits[0, t] = softmax(logits[0, t])  # p - p*, as if the id 3 were right
        dlogits[0, t, 3] -= 1
        dx, _ = model.decoder.backward(model.output.backward(dlogits))
        lengths[t] = np.linalg.norm(dx[0], axis=1)
        model.clear_saved()
    return lengths


@show
def backward_nothing_leaks():
    """The gradient of each position's loss at each word, with the mask and without."""
    axes = [f"loss {t}" for t in range(1, 7)], [f"word {s}" for s in range(1, 7)]
    found = {name: gradient_lengths(model) for name, model in decoders().items()}
    return [
        *(Matrix(rf"\text{{{name}}}", lengths, *axes, 1) for name, lengths in found.items()),
        Words("""
            A 0 without decimals is exactly 0. With the mask, all entries above the diagonal are
            exactly 0. You can test any model that writes in this way: if it has any other number
            there, it peeks.
        """),
    ]


# %% [markdown]
# ## Look across: cross-attention
#
# The French sentence comes in through a second attention. The encoder has turned it into $S$
# vectors, the **memory** $H$. The decoder has $T$ vectors $X$, one for each position. In
# **cross-attention** the queries come from the decoder, the keys and values from the memory
# (section 3.2.3):
#
# $$Q = XW^Q, \quad K = HW^K, \quad V = HW^V$$
#
# $$O = \mathrm{Attention}(Q, K, V)$$
#
# Here only padding is hidden: the whole French sentence is there before the first English word. Our
# example has one head. Each vector has three numbers, for *article*, *noun* and *verb*. In the
# decoder they say which kind of word comes next, in the memory which kind of word it is. $d_k$ is 2
# and $d_v$ is 1: each French word hands over one number, 1 for *son*, 2 for *chat*, 3 for *saute*.

# %%
french = ["son", "chat", "saute", "⟨end⟩"]
kinds = ["article", "noun", "verb"]
x = np.array([[1, 0, 0], [0, 1, 0], [0, -1, 1], [0, 0, 1], [0, 0, 0]], float)
memory = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], float)
query_weight = np.array([[-1, -1], [2, 0], [0, 2]], float)
key_weight = np.array([[-2, -2], [2, 0], [0, 2]], float)
value_weight = np.array([[1], [2], [3]], float)
doutput = np.array([[1], [-1], [2], [1], [-2]], float)

query, key, value = x @ query_weight, memory @ key_weight, memory @ value_weight
output, weights = scaled_dot_product_attention(query, key, value)


@show
def across_forward():
    """Cross-attention on the example."""
    return [
        Matrix("X", x, words, kinds),
        Matrix("W^Q", query_weight, kinds, "12"),
        Matrix("Q", query, words, "12"),
        Matrix("H", memory, french, kinds),
        Matrix("W^K", key_weight, kinds, "12"),
        Matrix("K", key, french, "12"),
        Matrix("W^V", value_weight, kinds, "v"),
        Matrix("V", value, french, "v"),
        Matrix("A", weights, words, french, 1),
        Matrix("O", output, words, "v"),
        Words(f"""
            By hand: the position of *her* wants a noun, so its query is (2, 0). The key of *chat*
            is (2, 0) as well. Their product is 4. Divided by $\\sqrt{{2}}$ it gives the
            score, {4 / math.sqrt(2):.2f}, and *chat* gets the weight {weights[1, 1]:.2f}. The row
            of *jumping* asks for nothing: each of the four words gets a quarter, and the result is
            (1 + 2 + 3 + 0) / 4 = {output[4, 0]:g}.
        """),
    ]


# %% [markdown]
# ### The way back, to both sides
#
# Attention's own backward (lesson 3) turns $\mathrm{d}O$ into $\mathrm{d}Q$, $\mathrm{d}K$ and
# $\mathrm{d}V$. What is new is where they go.
#
# **To the decoder.** $X_{ti}$ is used in the queries, $Q_{tk} = \sum_i X_{ti}\,W^Q_{ik}$, for every
# $k$, and nowhere else:
#
# $$\mathrm{d}X_{ti} = \sum_k \mathrm{d}Q_{tk}\,W^Q_{ik}, \qquad \mathrm{d}X =
# \mathrm{d}Q\,(W^Q)^\top$$
#
# **To the encoder.** $H_{si}$ is used in the keys, $K_{sk} = \sum_i H_{si}\,W^K_{ik}$, and in the
# values, $V_{sj} = \sum_i H_{si}\,W^V_{ij}$. Add up both contributions:
#
# $$\mathrm{d}H_{si} = \sum_k \mathrm{d}K_{sk}\,W^K_{ik} + \sum_j \mathrm{d}V_{sj}\,W^V_{ij}$$
#
# $$\mathrm{d}H = \mathrm{d}K\,(W^K)^\top + \mathrm{d}V\,(W^V)^\top$$
#
# The first part says how a memory vector should change so that the right queries *find* it, the
# second how it should change to *give* them something better. Which part is larger for *chat* in
# our example?


# %%
@show
def across_backward():
    """The gradients of decoder and memory on the example."""
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(
        doutput, query, key, value, weights
    )
    through_keys, through_values = dkey @ key_weight.T, dvalue @ value_weight.T
    largest, total = np.abs(through_values).max(), through_keys + through_values
    of_end = through_keys[3, 1], through_values[3, 1], total[3, 1]
    numbers = [dvalue[1, 0], *dkey[1], through_keys[1, 1], *of_end]
    n = [f"{x:.{4 if i < 4 else 2}f}".replace("-", "−") for i, x in enumerate(numbers)]
    return [
        Matrix(r"\mathrm{d}O", doutput, words, "v"),
        Matrix(r"\mathrm{d}X", dquery @ query_weight.T, words, kinds),
        Matrix(r"\mathrm{d}K\,(W^K)^\top", through_keys, french, kinds, largest),
        Matrix(r"\mathrm{d}V\,(W^V)^\top", through_values, french, kinds, largest),
        Matrix(r"\mathrm{d}H", total, french, kinds, largest),
        Words(f"""
            By hand, the row of *chat*: its $\\mathrm{{d}}V$ is {n[0]}. Multiply it by 1, 2 and 3,
            the numbers in $W^V$: this is its row of the second part. Its $\\mathrm{{d}}K$ is
            ({n[1]}, {n[2]}). The row *noun* of $W^K$ is (2, 0), so the entry *noun* of the first
            part is 2 · ({n[1]}), or {n[3]}.

            For *chat* the part of the values is larger. It can be the other way round: the entry
            *noun* of ⟨end⟩ gets {n[4]} through the keys and {n[5]} through the values, together
            {n[6]}. Without the keys even the sign would be wrong.
        """),
    ]


# %% [markdown]
# ### From every block
#
# A decoder has $N$ blocks, six in the paper, and all of them look at the *same* memory. So $H$ is
# used $2N$ times, for keys and for values in each block, and all the gradients are added:
#
# $$\mathrm{d}H = \sum_{n=1}^{N} \Bigl(\mathrm{d}K^{(n)}(W^{K(n)})^\top +
# \mathrm{d}V^{(n)}(W^{V(n)})^\top\Bigr)$$
#
# The encoder has no loss of its own: $\mathrm{d}H$ is all it learns from. Here are the library's
# lines, for one attention and for the whole decoder.


# %%
@show
def the_lines_of_the_way_back():
    """The library's backward of attention and of a decoder, line by line."""
    return [
        Beside(
            MultiHeadAttention.backward,
            {
                "dmemory = ": r"""Back through the projection of the values:
                    $\mathrm{d}V\,(W^V)^\top$.""",
                "dmemory += ": r"""**Added**: $\mathrm{d}K\,(W^K)^\top$. With `=` instead of `+=`
                    all shapes would still be right, but not the gradient.""",
                "return self.query.backward": r"""$\mathrm{d}X = \mathrm{d}Q\,(W^Q)^\top$ for the
                    decoder, $\mathrm{d}H$ for the encoder.""",
            },
            whole=False,
        ),
        Beside(
            Decoder.backward,
            {
                "dx, dmemory = ": "`dmemory` begins with 0.",
                "for layer in reversed": """The blocks in reverse. Each *replaces* `dx` by the
                    gradient of its own input, and *adds* its part to `dmemory`.""",
                "return dx, dmemory": "`dx` goes to the English words, `dmemory` to the encoder.",
            },
        ),
    ]


# %% [markdown]
# ### Is it true?
#
# Nudge the inputs and measure how the result changes (lesson 3): first in cross-attention with two
# heads and hidden padding, then in a decoder of two blocks.


# %%
@show
def gradient_check():
    """Explicit gradients beside measured ones."""
    rng, config = np.random.default_rng(8), LayerConfig(d_model=6, d_ff=8, heads=2, layers=2)
    x, memory = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 4, 6))
    seen = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)[:, None, None]
    attention = GradientCheck(CrossAttention(6, 2, rng), [x, memory, seen])
    decoder = GradientCheck(config.decoder(rng), [x, causal_mask(5), memory, seen])
    rows = []
    for name, check in ("cross-attention", attention), ("decoder", decoder):
        for row in map(check.row, check.input_names):
            numbers = (f"{x:.8f}".replace("-", "−") for x in (row.explicit, row.numerical))
            rows.append((name, row.name, *numbers, scientific(row.error)))
    return table(["", "gradient of", "explicit", "measured", "relative error"], rows)


# %% [markdown]
# ## The whole block
#
# A decoder block has three parts (section 3.1), each in a residual connection with a norm
# (lesson 6). [Lesson 9](lesson_09_backpropagation.html) shows the block in the whole model.
#
# 1. **masked self-attention**: look back at the words written so far,
# 2. **cross-attention**: look across at the sentence that is translated,
# 3. **feed-forward**: work on what was found, each position by itself.
#
# $$N_1 = \mathrm{Norm}(X + \mathrm{SelfAttention}(X))$$
#
# $$N_2 = \mathrm{Norm}(N_1 + \mathrm{CrossAttention}(N_1, H))$$
#
# $$Y = \mathrm{Norm}(N_2 + \mathrm{FFN}(N_2))$$


# %%
@show
def the_lines_of_the_block():
    """The library's block, backward."""
    return Beside(
        DecoderLayer.backward,
        {
            "dx, dmemory = ": """The last part first, then the middle one. It has two inputs, so
                there are two gradients. `dmemory` leaves the block here: the residual connection
                and the norm have no part in it.""",
            "return self.self_attention": "The first part. `dmemory` is returned as it is.",
        },
    )


# %% [markdown]
# ## An honest model and one that peeks
#
# What if somebody forgets the mask, or applies it too late? Nothing crashes. Here such models learn
# a small language: 250 French sentences such as *son chat noir saute*, of which 50 are held out.
# *son* is *his*, *her* or *its*, a third of the time each. So an honest model, one that does not
# peek, pays at best $\ln 3 \approx 1.10$ for that word. Half of the sentences have a *son*, and a
# translation has 5.8 words on average, counting ⟨end⟩. So the lowest mean loss is near
# 1.10 / 2 / 5.8 = 0.095.
#
# We train three kinds of models: with the future hidden before the softmax, after it, and not at
# all. Each is trained twice, with two seeds. Which will reach the lowest loss? Which will translate
# best?


# %%
@show
def three_ways_to_hide():
    """Loss and translations of models trained with the future hidden in three ways."""
    runs = {name: [trained(kind, seed) for seed in SEEDS] for name, kind in KINDS.items()}
    french = SENTENCES[0][0]

    def curves(figure):
        axes = figure.subplots()
        for (name, (run, _)), style in zip(runs.items(), ("-", "-", "--"), strict=True):
            axes.plot(run.losses, style, label=name)
        axes.axhline(floor(KNOWN), color="C3", linestyle=":", label="lowest possible")
        axes.set(xlabel="step", ylabel="loss", yscale="log")
        axes.legend()

    rows = [
        (
            name.split(" the")[0],
            f"{run.losses[-20:].mean():.4f}",
            f"{run.held_out:.4f}",
            f"{run.right:.0%}",
            run.written[french] or "(nothing)",
        )
        for name, found in runs.items()
        for run in found
    ]
    losses = np.array([[run.losses[-20:].mean() for run in found] for found in runs.values()])
    ratio = losses[0].mean() / losses[1:].mean()
    peeking = [run for found in [*runs.values()][1:] for run in found]
    texts = [text for run in peeking for text in run.written.values()]
    short = 100 * np.mean([len(text.split()) < 4 for text in texts])
    return [
        Picture(
            "lesson_07_losses",
            curves,
            "Loss against step on a logarithmic scale. With the mask it falls to the dotted line "
            "of the lowest possible loss. The other two fall below a twentieth of that.",
            f"**Too good to be true.** The dotted line, {floor(KNOWN):.3f}, is the lowest mean "
            f"loss possible without peeking. For the new sentences it is {floor(NEW):.3f}.",
        ),
        table(
            ["hidden", "loss, last steps", "loss, new sentences", "right", f"*{french}*"],
            rows,
            "Right: the share of 50 new sentences that the model translates correctly, reading its "
            "own words. The last column: what it writes for one of them.",
        ),
        Words(f"""
            Judged by the loss, the models that peek are {ratio:.0f} times as good. Judged by what
            they write, they are useless. Their loss is just as low on new sentences: **held-out
            data does not reveal this mistake**, because there, too, the answer is in the input.

            Zeroing after the softmax is as bad as no mask. All that leaks is $c_t$, one number for
            each head and position, and training has found a way to put the next word into it.
            When the peeking models write by themselves, there is no answer to read off. And
            {short:.0f} % of their translations end before the fourth word: in training only the
            last position had no word after it, and there ⟨end⟩ was right.

            Two things do reveal the mistake: a loss below the lowest possible one, and letting the
            model write.
        """),
    ]


# %% [markdown]
# Watch the three models at *son chat noir saute*, with *her* as the right first word. The one with
# the causal mask gives it a probability of about a third. The others *know* it: it leaks to them.


# %%
@show
def simulation_of_teacher_forcing() -> Simulation:
    """The second simulation: a decoder reads the right words, or its own."""
    return forcing


# %% [markdown]
# The honest model has a smaller problem: in training it never reads a mistake of its own (*exposure
# bias*, Ranzato et al. 2016).
#
# ## One word at a time
#
# A trained decoder writes one word after another. Must it compute all positions again each time?
# No: because of the mask, what a position computes does not change when later words arrive. So its
# keys and values can be kept in a **key-value cache** (lesson 10). For a new word the decoder
# computes a single new position, whose query looks at the kept keys. Is the result the same?


# %%
@show
def one_at_a_time():
    """Logits with a cache, word by word, beside those of one pass over all positions."""
    source, inputs = pad_sources([ids_of(FRENCH)]), [START, *ids_of(TARGET)]

    def differences(kind):
        model = trained(kind, SEEDS[0]).model
        with inference():
            state = model.start(source, len(inputs))
            one_by_one = [model.step(np.array([each]), state)[0] for each in inputs]
            return np.abs(model.forward(source, np.array([inputs]))[0] - one_by_one).max(axis=1)

    honest, leaky = differences(Transformer), differences(Leaky)
    return Words(f"""
        With the mask the logits differ by {scientific(honest.max())} at most: rounding. With the
        cache the decoder computes 5 positions, one for each word. Starting again for each word, it
        computes 1 + 2 + 3 + 4 + 5 = {sum(range(6))}, and for 1000 words {sum(range(1001)):,}.

        Without the mask they differ by {leaky.max():.1f}: training and writing compute different
        things. Only the last position agrees: no word comes after it, and the model has one block.
    """)


# %% [markdown]
# ## Without an encoder
#
# Is the encoder needed at all? Write the French sentence and its translation in one row,
# *son chat saute* ⟨s⟩ *her cat is jumping*, and let a decoder continue after ⟨s⟩. Its
# self-attention sees the French words, because they come first. So it needs no encoder, no memory
# and no cross-attention. In the paper's size, leaving out cross-attention alone saves 1,049,600
# parameters per block: four matrices of 512 × 512 and a norm. The price: the French words look only
# back, never ahead.
#
# The causal mask, teacher forcing and the cache stay. This is the **decoder-only** model
# (Liu et al. 2018, Radford et al. 2018) behind today's large language models. In numformer it is
# `LanguageModel`. Lesson 12 trains both kinds on one task.

# %% [markdown]
# ## In the running example
#
# The translator of the [home page](index.html) has three decoder blocks, and our examples stand for
# one head of one of them. It learned by teacher forcing. Here it reads the right translation of *a
# woman is dancing with a bear*, and at each position says what comes next. Cross-attention of its
# last block looks at the English words.


# %%
@show
def in_the_running_example():
    """What the translator reads, looks at, has to say and would say, with the loss."""
    step = running.step()
    right = step.chances[range(len(running.SAYS)), [*running.TARGET, END]]
    looks = step.weights["decoder.layers.2.cross_attention"].mean(axis=0).argmax(axis=1)
    says = running.names(step.chances.argmax(axis=1))
    rows = [
        (
            f"*{reads}*",
            f"*{running.READ[at]}*",
            f"*{wanted}*",
            f"{p:.3f}",
            f"{-math.log(p):.2f}",
            f"*{said}*",
        )
        for reads, at, wanted, p, said in zip(
            running.READS, looks, running.SAYS, right, says, strict=True
        )
    ]
    columns = ["reads", "looks most at", "has to say", "its probability", "loss", "would say"]
    losses = -np.log(right)
    assert np.isclose(losses.mean(), step.loss)
    return [
        table(columns, rows, "A hyphen stands before a piece that continues a word."),
        Words(f"""
            Most of the loss comes from one word: *{running.SAYS[running.HARD]}*, the beginning of
            *bären*, costs {losses[running.HARD]:.2f}, and the mean of all positions is
            {step.loss:.2f}. The model looks at the right word, *bear*, and does not know its
            German. Teacher forcing gives it the right *bä* next, whatever it has said.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# The decoder has $T$ positions, the memory $S$ vectors; $D$ is the width of both.
#
# | forward | backward | shape |
# |---|---|---|
# | $A_{ts} = 0$ for $s > t$ | $\mathrm{d}Z_{ts} = 0$ for $s > t$, exactly | $(T, T)$ |
# | result $t$ uses words $s \le t$ | word $s$ gets gradients from losses $t \ge s$ | |
# | $Q = XW^Q$ | $\mathrm{d}X = \mathrm{d}Q\,(W^Q)^\top$ | $(T, D)$ |
# | $K = HW^K$ | $\mathrm{d}H = \mathrm{d}K\,(W^K)^\top$ | $(S, D)$ |
# | $V = HW^V$ | plus $\mathrm{d}V\,(W^V)^\top$ | $(S, D)$ |
# | $N$ blocks read $H$ | $\mathrm{d}H$ is the sum over the $N$ blocks | $(S, D)$ |
# | reads the target shifted by one, ⟨s⟩ first | a loss at each position, all at once | $(T)$ |

# %% [markdown]
# ## Common claims, checked


# %%
def listed(numbers) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


@show
def common_claims():
    """A popular claim, computed again."""
    hidden = float(trained(KINDS["after the softmax"], SEEDS[0]).losses[-20:].mean())
    masked = softmax(np.zeros((1, 3)), np.zeros((1, 3), bool))[0]
    return Words(f"""
        **“You may as well set the weights to 0 after the softmax.”** A model trained like that ends
        at a loss of {hidden:.4f}, far below {floor(KNOWN):.3f}, the lowest possible without seeing
        the answer.

        **“A row in which everything is masked is harmless.”** The softmax first subtracts the
        largest score of the row. If *every* key is hidden, this is $-\\infty$, and $-\\infty$
        minus itself is not a number. numformer's softmax gives such a row the weights
        {listed(masked)}; plain formulas give nan.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question=f"A decoder with a causal mask reads the translation *{TARGET}*. How many "
            f"entries of its weight matrix, in one head, may differ from 0?",
            answer=int(np.tri(len(TARGET.split()) + 1).sum()),
            mistakes={
                10: "Either you left out ⟨s⟩, which the decoder reads first, or the diagonal: a "
                "position may look at itself.",
                25: "That is the whole matrix. The mask hides all later words.",
                16: "You left out ⟨s⟩, which the decoder reads first, and the mask, which hides "
                "all later words.",
                21: "You counted ⟨end⟩ among the words that are read. The decoder has to say it, "
                "but does not read it.",
            },
            why="It reads ⟨s⟩ and four words, so the matrix has 5 rows and 5 columns. Row $t$ has "
            "$t$ entries that it may see: $1 + 2 + 3 + 4 + 5 = 15$.",
        ),
        Question(
            question="The hidden weights are set to 0 *after* the softmax. Then the last word of "
            "five is replaced. Which rows of the result may change?",
            choices={
                "only the last row": "This is so with the mask *before* the softmax. After it, the "
                "weights have already been divided by a sum over all words.",
                "all five rows": "",
                "none": "The mask hides the last word from the rows before it, but the last row "
                "looks at its own word.",
            },
            answer=1,
            why="Each row is divided by a sum that contains the last word's score, hidden or not. "
            "So all rows may change a little, and that is a leak.",
        ),
        Question(
            question="No model can know whether *son* is his, her or its. What is the lowest mean "
            "loss at that word? (Natural logarithm, two decimals.)",
            answer=math.log(3),
            mistakes={
                math.log2(3): "That is the loss in bits, with the logarithm to the base 2. Take "
                "the natural logarithm.",
                math.log10(3): "That is the logarithm to the base 10. Take the natural logarithm.",
                1 / 3: "That is the probability that an honest model gives the right word. The "
                "loss is minus its logarithm.",
                -math.log(3): "The logarithm of a third is negative, and the loss is *minus* this "
                "logarithm.",
                0: "A loss of 0 needs a model that is sure and always right. Here it can only "
                "guess.",
                math.log(3) / 2 / 5.8: "That is the lowest mean over the words of all sentences. "
                "The question asks for this one word.",
            },
            why="The best it can do is give each a third: $-\\ln(1/3) \\approx 1.10$. A model with "
            "a lower loss has seen the answer, or has been lucky.",
        ),
        Question(
            question="Your new model has a far lower loss than the old one, also on held-out data. "
            "When it writes by itself, it writes nonsense. What do you check first?",
            choices={
                "dropout": "With too little dropout a model learns its training data by heart. "
                "Then the held-out loss would be high, but it is low.",
                "the learning rate": "With a bad learning rate the loss stays high in training. "
                "Here it is low.",
                "whether a loss depends on later inputs": "",
            },
            answer=2,
            why="This looks like peeking. Take the loss of one position and its gradient at later "
            "inputs: it has to be exactly 0.",
        ),
        Question(
            question="A decoder has six blocks with cross-attention. How many projections of the "
            "memory contribute to its gradient?",
            answer=2 * 6,
            mistakes={
                6: "You counted one for each block. What does a block make from the memory?",
                3 * 6: "You counted the queries, too. They are made from the decoder's vectors.",
                4 * 6: "You counted all four matrices of each cross-attention. Count only the "
                "matrices that are applied to the memory.",
                2: "That is one block. All six look at the same memory.",
            },
            why="Each block makes keys and values from it, so $2 \\cdot 6 = 12$. Queries come from "
            "the decoder, so the memory gets no gradient through them.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 7 mine.py` writes them into a file, and `python -m lessons check 7 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/paper/decoder.py` and `numformer/paper/transformer.py`: the whole decoder.
# - *Attention Is All You Need*, sections 3.1 and 3.2.3: three ways to use attention.
# - Liu et al. 2018, *Generating Wikipedia by Summarizing Long Sequences*: a model without an
#   encoder.
# - Lesson 8: how such a model is trained.
