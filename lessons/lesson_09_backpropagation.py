# %% [markdown]
# # Backpropagation by hand
#
# > How does the loss, one number at the end, reach the first weight? And if a wrong gradient
# > arrived there, would you notice?

# %%
import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Matrix, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_09 import bugs, stations, whole
from lessons.lesson_09.bugs import BUGS, LETTER, end
from lessons.lesson_09.exercises import EXERCISES
from numformer import Adam, CrossEntropy, Embedding, LayerNorm, Parameter, Transformer, pack
from numformer.gradient_check.gradients import check
from numformer.paper import Decoder, MultiHeadAttention, OutputProjection, Softmax
from numformer.paper.attention import SelfAttention
from numformer.paper.embedding import embed_backward, output_projection_backward


@show
def which_is_right() -> Simulation:
    """The first simulation: the losses of fourteen models. Only one has the right backward."""
    return bugs.curves


# %% [markdown]
# You have derived the backward of every part. Even so, a mistake in one of them is hard to see: all
# but one of these models learn something, and about half learn the task. A falling loss says
# little. Here we put the parts together, follow the gradient from the loss to the first weight, and
# then come back to the fourteen runs with a tool that finds each mistake in seconds.
#
# ## Forward, read upwards
#
# A backward pass is a forward pass read from its last line to its first. Where forward computed
# $b = f(a)$, backward turns $\mathrm{d}b$ into $\mathrm{d}a$. Nothing else happens, however large
# the model is. You need only three rules:
#
# 1. **The last line comes first.** Its result is the loss, whose gradient is 1.
# 2. **A gradient has the shape of its array.**
# 3. **What is used twice gets two gradients, and they add up.**
#
# The first two are bookkeeping. The third is where the mistakes are, and this lesson goes from one
# such place to the next. Here is the whole Transformer of the library, forward and backward. Read
# forward from its last line up, and compare each line with backward.


# %%
@show
def the_whole_transformer():
    """The library's Transformer, forward and backward."""
    return [
        Beside(
            Transformer.forward,
            {
                "special": "The ids that stand for no symbol: padding, start and end.",
                "require_pair": "This checks that the ids make sense.",
                "sources = ": "Where the source has symbols, and where it has padding.",
                "targets = ": "The same for the target.",
                "memory = ": "The encoder: rows of the table, positions, blocks. Its result is the "
                "memory $H$.",
                "x, reach = ": "Rows of the table for what the decoder reads, and the causal mask "
                "(lesson 7).",
                "x = self.decoder": "The decoder's blocks, each of which looks at $H$. Call the "
                "result $Y$.",
                "return": r"The logits $Z = Y\,W^{E\top}$, with the table $W^E$ once more.",
            },
        ),
        Beside(
            Transformer.backward,
            {
                "dx, dmemory": r"From $\mathrm{d}Z$ through the table to $\mathrm{d}Y$, then down "
                "the decoder, which returns two gradients.",
                "self.target": "One goes to the rows of the table that the decoder has read.",
                "self.source": "The other goes down the encoder, to the rows that the encoder has "
                "read. Ids have no gradient: there is no id 4.01.",
            },
        ),
    ]


# %% [markdown]
# ## A model that fits on a napkin
#
# Begin with a Transformer that has no layer at all. It looks up a row of the table, and at once
# compares it with all rows. There are three symbols, *a*, *b* and *c*, each with a row of four
# numbers. The model reads *a*, and the right answer is *b*. As in section 3.4 of the paper, each
# row is multiplied by $\sqrt{D}$ when it is looked up; here that is 2. ($Z$ is what
# goes into a softmax: scaled scores in lesson 3, logits here.)
#
# $$x = \sqrt{D}\,W^E_a$$
#
# $$z_v = \sum_i x_i\,W^E_{vi}$$
#
# $$p = \mathrm{softmax}(z)$$
#
# The loss is $-\ln p_b$, and its gradient at the logits is $p - p^*$, where $p^*$ is 1 for the
# right symbol and 0 elsewhere. (If the loss is a mean over several symbols, the gradient is divided
# by their number.)

# %%
SYMBOLS, FEATURES = ["a", "b", "c"], ["1", "2", "3", "4"]


def plain(number: float, digits: int = 3) -> str:
    return f"{number + 0.0:.{digits}f}".replace("-", "−")


class Napkin:
    """The model without a layer, forward and backward, computed with the library's layers."""

    def __init__(self):
        weight = Parameter(np.eye(3, 4))
        embedding, output, loss = (
            Embedding(3, 4, weight=weight),
            OutputProjection(weight),
            CrossEntropy(),
        )
        pack(embedding, np.float64)
        self.x = embedding.forward(np.array([0]))
        loss.forward(output.forward(self.x), np.array([1]))
        self.dlogits = loss.backward()
        self.dx = output.backward(self.dlogits)
        self.by_output = weight.grad.copy()
        embedding.backward(self.dx)
        self.by_input, self.both = weight.grad - self.by_output, weight.grad.copy()


@show
def the_napkin():
    """The model without a layer, by hand."""
    made = Napkin()
    p = np.exp([2, 0, 0]) / np.exp([2, 0, 0]).sum()
    a, rest = made.dlogits[0, 0], made.dlogits[0, 2]
    return [
        Matrix("W^E", np.eye(3, 4), SYMBOLS, FEATURES),
        Matrix(r"\mathrm{d}z", made.dlogits, ["reads a"], SYMBOLS),
        Matrix(r"\text{from the output}", made.by_output, SYMBOLS, FEATURES, 3),
        Matrix(r"\text{from the input}", made.by_input, SYMBOLS, FEATURES, 3),
        Matrix(r"\mathrm{d}W^E", made.both, SYMBOLS, FEATURES, 3),
        Words(f"""
            By hand: $x$ is (2, 0, 0, 0), so the logits are (2, 0, 0). $e^2$ is 7.389, and *a* gets
            7.389 / (7.389 + 2) = {plain(p[0])}. That is too much, and *b* has too little: $p - p^*$
            is ({plain(a)}, {plain(made.dlogits[0, 1])}, {plain(rest)}).

            The table is used twice. **At the end**, $z_v$ is a product of $x$ and row $v$, so row
            $v$ gets $\\mathrm{{d}}z_v\\,x$. Every row gets something, even that of *c*, which does
            not occur at all: *c* should become less likely. **At the beginning** only row *a* was
            looked up. The gradient of $x$ is $\\sum_v \\mathrm{{d}}z_v W^E_v$, and row *a* gets
            this times 2.

            The two add up. The first number of row *a* gets {plain(a)} · 2 + 2 · {plain(a)} =
            {plain(made.both[0, 0])}. Is that right? The logit of *a* is $2\\,(W^E_{{a1}})^2$. A
            square has two equal factors, and half of the slope $4\\,W^E_{{a1}}$ comes from each.
            Leave one of the two gradients out, and you have half the slope of a square.
        """),
    ]


# %% [markdown]
# ## A table that is used three times
#
# In the real model there is a third use: the encoder looks up its symbols, too. The decoder reads
# the id $i_t$ at its position $t$ and looks up the row $X_t$; the encoder reads the id $j_s$ at its
# position $s$ and looks up the row $X'_s$. Where is $W^E_{vk}$ used? In the logit of $v$ at every
# position $t$, with the factor $Y_{tk}$. In $X_{tk}$ wherever $i_t = v$, and in $X'_{sk}$ wherever
# $j_s = v$, with the factor $\sqrt{D}$. So $\mathrm{d}W^E_{vk}$ has three parts:
#
# $$\text{output} \quad \sum_t \mathrm{d}Z_{tv}\,Y_{tk}$$
#
# $$\text{decoder} \quad \sqrt{D} \sum_{i_t = v} \mathrm{d}X_{tk}$$
#
# $$\text{encoder} \quad \sqrt{D} \sum_{j_s = v} \mathrm{d}X'_{sk}$$
#
# No line of the code adds the three parts. Each of the layers adds its own part to the same `grad`,
# with `+=`. And if a symbol occurs twice in a batch, `scatter_add` adds both of its gradients.


# %%
@show
def the_lines_of_the_table():
    """The library's backward of the output and of the lookup."""
    return [
        Beside(
            output_projection_backward,
            {
                "return": r"$\mathrm{d}Y = \mathrm{d}Z\,W^E$, and the first part, "
                r"$\mathrm{d}Z^\top\,Y$."
            },
        ),
        Beside(
            embed_backward,
            {
                "scatter_add": "The second part, or the third: each position's gradient is added "
                "to the row of its id, times $\\sqrt{D}$."
            },
        ),
    ]


@show
def three_uses():
    """What each use adds to the rows of the table, in a model with its initial weights."""
    walk = stations.walk()
    rows = [
        (
            f"*{stations.SYMBOLS[row]}*",
            *(f"{np.linalg.norm(part[row]):.3g}" for part in walk.table.values()),
        )
        for row in (1, 2, *range(4, 10))
    ]
    unused = [6, 8, 9]  # c, e and f
    assert not np.any([p[unused] for use, p in walk.table.items() if use != "output"])
    return [
        table(
            ["symbol", "the output", "the decoder's lookup", "the encoder's lookup"],
            rows,
            "The length of the gradient that each use adds to a symbol's row.",
        ),
        Words(f"""
            This is the small Transformer of the runs above with its initial weights: width 16, two
            heads, two layers on each side. It reads *{stations.WORD}* and should write
            *{stations.WORD[::-1]}*. The letters *c*, *e* and *f* do not occur, so they get a
            gradient from the output alone. Only the decoder reads ⟨s⟩, and only the encoder reads
            ⟨end⟩.
        """),
    ]


# %% [markdown]
# ## Around and through
#
# Between the first use of the table and the last lie the sublayers, each with a residual
# connection. Lesson 6 derived what comes back through one of them, $u = x + f(x)$:
#
# $$\mathrm{d}x = \mathrm{d}u + \mathrm{d}u\,J_f$$
#
# where $J_f$ is the Jacobian of the sublayer. Now put one sublayer on top of another. The gradient
# goes around the upper one or through it, and then around the lower one or through it:
#
# $$\mathrm{d}x = \mathrm{d}u + \mathrm{d}u\,J_1 + \mathrm{d}u\,J_2 + \mathrm{d}u\,J_2\,J_1$$
#
# Here $J_2$ belongs to the upper sublayer, which the gradient meets first.
#
# There are four paths for two sublayers, eight for three. No program goes through them one by one.
# Each sublayer adds its two gradients and hands down only the sum, which stands for all the paths
# so far. That is the whole trick of backpropagation: *add up before you go on*. (In post-norm every
# path passes the norms as well.)


# %%
@show
def stations_of_the_way():
    """The length of the gradient at each residual connection, around and through."""
    walk = stations.walk()
    names = [name.removesuffix(".norm") for name in walk.handed if name.endswith(".norm")]
    words = dict(
        feed_forward="feed-forward", cross_attention="cross-attention", self_attention="attention"
    )
    rows = []
    for name in names:
        tower, _, layer, kind = name.split(".")
        lengths = [walk.length(f"{name}{part}") for part in (".norm", ".sublayer", "")]
        rows.append((f"{tower} {int(layer) + 1}: {words[kind]}", *(f"{x:.3f}" for x in lengths)))
    first, last = walk.length("output"), walk.length(names[-1])
    assert 0.3 < last / first < 1
    return [
        table(["sublayer", "around", "through", "both"], rows, "From the loss downwards."),
        Words(f"""
            From the logits, a gradient of length {first:.3f} enters the decoder. Ten sublayers
            later, at the input of the encoder's first layer, {last:.3f} is left. Nothing vanishes,
            nothing explodes. Nowhere is "both" the sum of the two before it: these are lengths of
            arrows, and the arrows point in different directions.
        """),
    ]


# %% [markdown]
# ## Three roads out of attention
#
# Attention has three inputs, so its backward has three outputs: $\mathrm{d}Q$, $\mathrm{d}K$
# and $\mathrm{d}V$. Where do they lead? Back to wherever $Q$, $K$ and $V$ came from.
#
# - In **self-attention** all three came from the same $X$, so three roads lead to one place:
#   $\mathrm{d}X$ is the sum of $\mathrm{d}Q\,(W^Q)^\top$, $\mathrm{d}K\,(W^K)^\top$ and
#   $\mathrm{d}V\,(W^V)^\top$.
# - In **cross-attention** the queries came from the decoder, the keys and values from the memory.
#   One road stays in the decoder, two lead to the encoder.
#
# The memory is read by *every* block of the decoder. With $N$ blocks, $2N$ roads lead to it:
#
# $$\mathrm{d}H = \sum_{l=1}^{N} \Bigl(\mathrm{d}K_l\,(W^K_l)^\top +
# \mathrm{d}V_l\,(W^V_l)^\top\Bigr)$$
#
# No other road leads there. Everything that the encoder ever learns has come along these roads.


# %%
@show
def the_lines_of_the_roads():
    """The library's lines in which the roads meet."""
    return [
        Beside(
            MultiHeadAttention.backward,
            {
                "dmemory = ": "The road through the values.",
                "dmemory += ": "The road through the keys is added.",
                "return": "The road through the queries, and the sum of the two others.",
            },
            whole=False,
        ),
        Beside(
            SelfAttention.backward,
            {
                "dx, dmemory": "Attention returns two gradients.",
                "dx += dmemory": "Here the memory is $X$ itself, so three roads lead to one place.",
                "return": "",
            },
        ),
        Beside(
            Decoder.backward,
            {
                "dx, dmemory": "No gradient has reached the memory yet.",
                "for layer": "Down through the blocks; each adds its gradient for the memory.",
                "return": "The decoder returns both.",
            },
        ),
    ]


@show
def roads_into_the_memory():
    """The length of the gradient that reaches the memory on each road."""
    walk, rows, parts = stations.walk(), [], []
    for layer in (1, 0):
        for road in ("key", "value"):
            (part,) = walk.handed[f"decoder.layers.{layer}.cross_attention.sublayer.{road}"]
            parts.append((road, part[0]))
            numbers = np.linalg.norm(part), np.linalg.norm(part.sum(axis=1))
            shown = [f"{x:.3f}" if x > 1e-9 else "0" for x in numbers]
            rows.append((f"decoder {layer + 1}: {road}s", *shown))
    assert np.allclose(sum(part for _, part in parts), walk.handed["decoder"][1][0])
    rows.append(("**all**", f"{walk.length('decoder', 1):.3f}", ""))
    return [
        table(["road", "length", "length of its sum over the positions"], rows),
        Words("""
            None of the four is small. If you leave one out, every shape is still right and the
            encoder still learns.

            The last column has a surprise. Add up the keys' gradient over the positions of the
            memory: the sum is 0. Why? Add the same vector to *all* keys. Every score of a query
            changes by the same number, and the softmax does not notice. A move in this direction
            changes nothing, so the gradient in this direction is 0. Keep it in mind for the search
            below.
        """),
    ]


# %% [markdown]
# ## To the first weight
#
# Now go all the way. Our first weight is the first number in the row of *b*, the first symbol that
# the encoder reads; the loss is a tower of blocks away. What do the three uses add to its gradient?
# And does the sum say what really happens when the number is moved a little?


# %%
@show
def the_first_weight():
    """The gradient of one entry of the table, and the loss after the entry is moved."""
    walk, row, step = stations.walk(), stations.SYMBOLS.index("b"), 0.001
    parts = [part[row, 0] for part in walk.table.values()]
    up, down = (stations.nudged(row, 0, sign * step) for sign in (1, -1))
    slope = (up - down) / (2 * step)
    assert abs(slope - sum(parts)) < 1e-5
    added = " + ".join(plain(part, 6) for part in parts).replace("+ −", "− ")
    return Words(f"""
        The output adds {plain(parts[0], 6)}, the decoder's lookup {plain(parts[1], 6)}, and the
        encoder's lookup, whose gradient has come the longest way, {plain(parts[2], 6)}. Together
        {added} = {plain(sum(parts), 5)}.

        Now move the number, by {step} up and by {step} down. The loss is {up:.9f} and
        {down:.9f}. The slope is ({up:.9f} − {down:.9f}) / 0.002 = {plain(slope, 5)}. The loss has
        reached the first weight.
    """)


# %% [markdown]
# ## The whole model, there and back
#
# Here is one training step of a Transformer with every number. The task is the same, the model
# smaller: three symbols, and one layer on each side. Nothing on this map was computed beforehand.
# Whenever you change something, your browser goes through the library's own operations, one after
# the other.
#
# Play the step, first up to the loss and then back. Then open a block, pick a weight in one of its
# matrices, and look at the list of paths: it is the sum over all paths from the section above, the
# largest terms written out. The numbers above the list are the test of everything: the weight is
# moved a little, and the slope of the loss is compared with the gradient.


# %%
@show
def the_whole_model() -> Simulation:
    """The second simulation: one training step of a whole Transformer, with every number."""
    return whole.whole


# %% [markdown]
# Some things to try:
#
# - **Set a weight to 0**, or to 10, and see how far the change spreads: up to the loss, and from
#   there back to all gradients.
# - **Press Train.** Within some three hundred steps the loss falls below 0.1. Now look at
#   cross-attention. Some of its rows show the reversal: to write the last symbol, the model looks
#   at the first one it has read. Other rows do not, because self-attention in the encoder has
#   already carried symbols from place to place.
# - **Then hide a symbol:** press every cell of its column in the table of cross-attention. How many
#   symbols of the answer does the model now get wrong, and why may it be more than one, or none?


# %% [markdown]
# ## Is it true?
#
# One weight proves little. The library's gradient check moves every parameter of the whole model
# along random directions. It makes the test hard: gradients from above are random, norms have
# random gammas, sequences have different lengths, and dropout is on, with the same masks each time.
# You will see below why it needs all this.


# %%
@show
def gradient_check():
    """The largest error of every gradient of the whole model."""
    rng, rows = np.random.default_rng(9), []
    for norm in ("post", "pre"):
        sizes = dict(d_model=6, d_ff=5, heads=2, layers=2, norm=norm)
        model = Transformer(Transformer.Config.base(8, **sizes, attention_dropout=0.1), 2)
        source, target = rng.integers(4, 8, (3, 4)), rng.integers(4, 8, (3, 5))
        source[:, -1], source[1, 2:], target[:, 0], target[2, 3:] = 2, (2, 0), 1, 0
        found = check(model, [source, target], directions=1)
        assert all(row.passed for row in found)
        worst = max(found, key=lambda row: row.error)
        rows.append((f"{norm}-norm", len(found), f"`{worst.name}`", scientific(worst.error)))
    return table(["Transformer", "gradients checked", "the worst", "its relative error"], rows)


# %% [markdown]
# ## In the running example
#
# The model on the map has 1,192 weights. The translator of the [home page](index.html) is the same
# kind of model, with more of everything. Its loss on *a woman is dancing with a bear* goes back
# through 15 sublayers to the table. Whom does the gradient blame?


# %%
@show
def in_the_running_example():
    """The gradient of the translator's loss on its way back, and the words that it blames."""
    step = running.step()
    stations = [("logits", step.back["output"]), ("end of the decoder", step.on["output"])]
    stations += [
        (f"below decoder block {n + 1}", step.on[f"decoder.layers.{n}"]) for n in (2, 1, 0)
    ]
    stations += [("memory", step.back["encoder"])]
    stations += [
        (f"below encoder block {n + 1}", step.on[f"encoder.layers.{n}"]) for n in (2, 1, 0)
    ]
    rows = [(name, f"{np.linalg.norm(gradient):.3f}") for name, gradient in stations]
    whole = np.linalg.norm(sum(step.table.values()), axis=1)
    blamed = whole.argsort()[::-1][:5]
    uses = [
        (f"*{name}*", *(f"{np.linalg.norm(part[row]):.3f}" for part in step.table.values()))
        for row, name in zip(blamed, running.names(blamed), strict=True)
    ]
    return [
        table(["where", "length of the gradient"], rows, "From the loss downwards."),
        table(
            ["row of $W^E$", *(f"by the {use}" for use in step.table)],
            uses,
            "The five rows of the table with the longest gradients, and what each use adds.",
        ),
        Words(f"""
            The gradient blames the words that the model does not know: *bä*, *-ren* and, on the
            English side, *{running.READ[-3]}*. The row of *bear* is reached only through
            cross-attention and the whole encoder, and still gets one of the longest gradients.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $W^E$ is the table, $Z$ the logits, $Y$ what leaves the decoder, $H$ the memory, $T$ and $S$ the
# lengths of target and source, $d_{vocab}$ the number of symbols.
#
# | forward | backward | shape |
# |---|---|---|
# | loss: mean of $-\ln p$ | $\mathrm{d}z = p - p^*$, over the number of losses | $(T, d_{vocab})$ |
# | $Z = Y\,W^{E\top}$ | $\mathrm{d}Y = \mathrm{d}Z\,W^E$ | $(T, D)$ |
# | | to $\mathrm{d}W^E$: $\mathrm{d}Z^\top\,Y$ | $(d_{vocab}, D)$ |
# | $u = x + f(x)$ | $\mathrm{d}x = \mathrm{d}u$, plus what comes back through $f$ | $(T, D)$ |
# | self-attention | $\mathrm{d}X$ is the sum of three roads | $(T, D)$ |
# | cross-attention | $\mathrm{d}Q$ stays in the decoder | $(T, D)$ |
# | | $\mathrm{d}K$ and $\mathrm{d}V$ go to the memory | $(S, D)$ |
# | $N$ blocks read $H$ | $\mathrm{d}H$ is the sum of $2N$ roads | $(S, D)$ |
# | $x_t = \sqrt{D}\,W^E_{i_t}$ | to row $i_t$ of $\mathrm{d}W^E$: times $\sqrt{D}$ | $(D)$ |
# | the table is used three times | `grad +=`, three times | $(d_{vocab}, D)$ |

# %% [markdown]
# ## Find the bug
#
# Back to the fourteen runs. Some of their mistakes are taken from published code, the others are
# close relatives. We now run the check on a small model with each mistake. Two rules help you to
# read what it finds:
#
# - **A wrong gradient is passed on.** Parts nearer to the loss than the mistake are right, and
#   parts that the gradient reaches later are wrong. So look for the *first* wrong part on the
#   gradient's way.
# - **What is right in that part tells you as much as what is wrong.** If the queries' gradient is
#   wrong and the values' is right, the mistake lies in the softmax or in the scores.


# %%
@show
def find_the_bug() -> Simulation:
    """The third simulation: where gradients are wrong, what the check says, and the line."""
    return bugs.bugs


@show
def all_the_runs():
    """How well the models with each mistake have learned in the end, the best first."""
    ends = {bug: end(bug) for bug in BUGS}
    rows = [
        (
            LETTER[bug],
            f"`{BUGS[bug].function.__qualname__}`" if BUGS[bug].function else "**none**",
            f"{loss:.2f}",
            f"{right:.0%}",
        )
        for bug, (loss, right) in sorted(ends.items(), key=lambda item: item[1][0])
    ]
    good = [bug for bug, (_, right) in ends.items() if right >= 0.9 and bug != "none"]
    assert len(good) >= 5 and ends["sum"][1] < 0.1 and {"bias", "gamma", "tied"} <= {*good}
    return [
        table(["run", "the mistake is in", "loss, last steps", "words right"], rows),
        Words(f"""
            Each row is the mean of {len(bugs.SEEDS)} seeds. Run {LETTER["none"]}, which has no
            mistake, ends with the loss {ends["none"][0]:.2f} and writes {ends["none"][1]:.0%} of
            the words right. {len(good)} of the thirteen others write at least nine of ten words
            right. Nobody would suspect a mistake in them: the best ends with the loss
            {min(ends[b][0] for b in good):.2f}.

            Some are nearly right for a reason. A **bias** whose gradient is a mean and not a sum
            (run {LETTER["bias"]}) has the right direction: Adam divides by the size of a gradient,
            so a constant factor hardly matters. Multiplying by **gamma** after the means, not
            before ({LETTER["gamma"]}), is exact as long as all gammas are 1, as they are at the
            beginning. A table that gets only one of its three gradients ({LETTER["tied"]}) is still
            moved by that one.

            And {LETTER["zero"]} is a warning: nothing comes back through its softmax. Queries and
            keys keep their random initial weights, so the heads look where they happen to look.
            Values and feed-forward networks make do with that, and still {ends["zero"][1]:.0%} of
            the words are right.
        """),
    ]


# %% [markdown]
# The report on run D names a line deep inside attention. If such a report is hard to read, check
# the layer of that line alone: here, the softmax.


# %%
@show
def a_smaller_layer():
    """The softmax alone, with the mistake of run D."""
    with BUGS["sum"].applied():
        (row,) = check(Softmax(), [np.random.default_rng(0).standard_normal((2, 3, 5))])
    assert LETTER["sum"] == "D", "the text above names it"
    assert not row.passed and "the sum is missing" in row.meaning
    cause = row.meaning.split(". Forward")[0]
    return Words(f"""
        The check says: “{cause}”. Without the sum, backward keeps the part of the gradient that all
        weights of a row have in common. But the weights cannot all grow: their sum is always 1.
    """)


# %% [markdown]
# ### What the check cannot see
#
# The check asks whether backward fits forward. If forward itself does the wrong thing, the right
# gradient of this wrong function passes, as with lesson 7's decoder without its causal mask. For
# this you need other tests: change a later symbol, and see that nothing before it changes. The
# check does not see a wrong learning rate either, such as a warm-up that counts one step for each
# *tensor* of the model, so that 4,000 steps are over after a few dozen. Nor does it see dropout
# that is still on when the model writes. Both mistakes have been published.

# %% [markdown]
# ## Common claims, checked


# %%
def slope_error(layer, x: np.ndarray, dy: np.ndarray) -> float:
    """How far backward is from the slope that two forwards measure along a random direction."""
    pack(layer, np.float64)
    along, step = np.random.default_rng(3).standard_normal(x.shape), 1e-5
    layer.forward(x)
    explicit = (layer.backward(dy) * along).sum()
    up, down = (layer.forward(x + sign * step * along) for sign in (1, -1))
    layer.clear_saved()
    return abs(explicit - ((up - down) * dy).sum() / (2 * step))


@show
def common_claims():
    """Popular claims about tests and about Adam, tried out."""
    rng = np.random.default_rng(5)
    x, dy, ones = rng.standard_normal((3, 5)), rng.standard_normal((3, 5)), np.ones((3, 5))
    norm = LayerNorm(5)
    varied = LayerNorm(5)
    varied.gamma.data[...] = rng.uniform(0.5, 2, 5)
    tests = [
        ("zero", "a gradient of ones from above", Softmax(), x, ones, Softmax(), x, dy),
        ("gamma", "gamma at its initial value, 1", norm, x, dy, varied, x, dy),
        ("batch", "a single key", Softmax(), x[:, :1], dy[:, :1], Softmax(), x, dy),
    ]
    rows = []
    for bug, blind, *arguments in tests:
        with BUGS[bug].applied():
            errors = slope_error(*arguments[:3]), slope_error(*arguments[3:])
        assert errors[0] < 1e-8 and errors[1] > 1e-2
        shown = "less than $10^{-8}$", f"{errors[1]:.2f}"
        rows.append((f"{LETTER[bug]}, `{BUGS[bug].function.__name__}`", blind, *shown))
    paths = []
    for factor in (1, 1000):
        layer = LayerNorm(5)
        adam = Adam(pack(layer, np.float64))
        for step in range(10):
            layer.gamma.grad[...] = factor * np.sin(np.arange(5) + step)
            adam.step(0.01)
        paths.append(layer.gamma.data.copy())
    apart, way = np.abs(paths[0] - paths[1]).max(), np.abs(paths[0] - 1).max()
    assert apart < 1e-4 * way
    return [
        Words("""
            **“Our tests check the gradients.”** How well? Here are three tests from published
            projects, each with a wrong backward that passes it.
        """),
        table(["wrong backward", "the test", "error in this test", "error in a fair test"], rows),
        Words(f"""
            *Ones:* the weights of a row add up to 1 whatever the scores are, so the slope of their
            sum is 0, and 0 is just what the wrong backward returns. *Gamma 1:* a factor of 1 may
            stand anywhere. *One key:* its weight is always 1, so no score has a slope. A check
            needs a random gradient from above, random gammas and more than one of everything.

            **“It trains, so the gradients are right.”** The table of runs says otherwise.

            **“With Adam a wrong factor would show.”** Multiply all gradients by 1000. After ten
            steps of Adam the weights have moved by up to {way:.3f}, and the two runs differ by
            {scientific(apart)}. Adam divides by the size of the gradients, so a factor on all of
            them is invisible. But run {LETTER["batch"]} divides *within* attention: two of three
            roads become smaller than the third, and Adam cannot mend that.
        """),
    ]


# %% [markdown]
# ## Questions


# %%
def paths_into_the_memory(blocks: int) -> int:
    """In how many ways the gradient gets from the decoder's end to the memory.

    Around or through each sublayer above a cross-attention, then by its keys or its values.
    """
    return sum(2 * 2 ** (1 + 3 * above) for above in range(blocks))


@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            "One table serves encoder, decoder and output. A symbol occurs neither in the source "
            "nor in the target of a batch. What is the gradient of its row?",
            "The softmax divides by a sum over all symbols, so even this symbol is made a little "
            "less likely at every position: its row gets $\\sum_t p_{tv} Y_t$ from the output.",
            2,
            {
                "0": "It is true that nobody looks this symbol up. But the output uses all rows of "
                "the table, at every position.",
                "that of the two lookups": "A lookup gives a gradient only to the symbols that it "
                "reads, and this one is not read.",
                "that of the output alone": "",
            },
        ),
        Question(
            "A decoder has two blocks, each with self-attention, cross-attention and feed-forward. "
            "On how many paths does a gradient get from its end to the memory? A path goes around "
            "or through each sublayer, and reaches the memory through keys or through values.",
            "A path may end in the upper cross-attention: there are 2 ways past the feed-forward "
            "network above it, and 2 roads, so $2 \\cdot 2 = 4$. Or it ends in the lower one, with "
            "four sublayers above it: $2^4 \\cdot 2 = 32$. Together 36.",
            paths_into_the_memory(2),
            mistakes={
                4: "That is the number of paths that end in the upper cross-attention. Others go "
                "on to the lower one.",
                32: "That is the number of paths that end in the lower cross-attention. Others end "
                "in the upper one.",
                18: "You counted one road into the memory for each cross-attention. There are two: "
                "keys and values.",
                2**6: "You let a path pass all six sublayers. But a path to the memory ends in a "
                "cross-attention.",
                8: "You counted the upper block's paths twice. A path to the lower cross-attention "
                "also passes the three sublayers of the upper block.",
            },
        ),
        Question(
            "The report says that `query` has a constant ratio of 4, and that `value` is right. "
            "The heads have $d_k = 16$. Which line do you look at?",
            "4 is $\\sqrt{16}$. Queries and keys go through the scale, values do not: "
            "$1/\\sqrt{d_k}$ is missing in backward.",
            1,
            {
                "the softmax": "The softmax lies on the way back to the queries and not to the "
                "values, so the idea is good. But a mistake there would hardly change every entry "
                "by the same factor.",
                "the scale of the scores": "",
                "the last matrix $W^O$": "Backward passes $W^O$ before queries, keys and values "
                "part ways. A mistake there would make `value` wrong, too.",
            },
        ),
        Question(
            f"In run {LETTER['keys']} the memory gets no gradient from the keys. In the encoder's "
            f"last sublayer all gradients are wrong except that of the norm's $\\beta$. Why is it "
            f"right?",
            "$\\mathrm{d}\\beta$ is a sum over the positions, and over them the keys' gradient "
            "sums to 0: the same vector added to all keys changes no attention weight. So nothing "
            "is missing in $\\mathrm{d}\\beta$.",
            0,
            {
                "What is missing sums to 0 over the positions": "",
                "$\\beta$ does not reach the loss": "It does: $\\beta$ is a part of every vector "
                "of the memory, and the decoder reads these vectors through keys and values.",
                "The check does not look at $\\beta$": "The check looks at every parameter. It has "
                "compared the gradient of $\\beta$, too, and found it right.",
            },
        ),
        Question(
            "One Dropout object serves two sublayers and keeps its mask in an attribute. Forward "
            "passes the first sublayer, then the second. Which mask does backward use?",
            "The attribute holds the last mask that was drawn. Backward meets the second sublayer "
            "first and uses its mask, which is right, but then uses the same mask for the first "
            "one. A layer has to keep a mask for each forward, as `save` and `pop_saved` do.",
            2,
            {
                "each sublayer its own": "So it should be. But one attribute has room for one "
                "mask, and the second forward overwrites what the first one stored.",
                "the first sublayer's for both": "The first sublayer's mask is gone by then: the "
                "second forward has stored a new one in its place.",
                "the second sublayer's for both": "",
            },
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 9 mine.py` writes them into a file, and `python -m lessons check 9 mine.py` checks
# your answers.
#
# The parts are derived in lesson 3 (attention) and lesson 6 (norm, feed-forward network, residual
# connection). Once you have solved all four, you have written, and checked, the backward of an
# encoder and its table.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/paper/transformer.py`: read `forward` from its last line to its first.
# - `numformer/gradient_check/`: how the check finds out what is wrong. `lessons/equations.md` lists
#   the mistakes that it knows by name.
# - Rumelhart, Hinton and Williams 1986, *Learning Representations by Back-Propagating Errors*.
# - Griewank and Walther 2008, *Evaluating Derivatives*: how programs derive backward by themselves.
# - Lesson 10: how a trained model writes.
