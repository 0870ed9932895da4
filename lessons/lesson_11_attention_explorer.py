# %% [markdown]
# # Attention explorer
#
# > What has a trained model learned to look at? And how do you know that you do not just see what
# > you want to see?

# %%
import numpy as np

from lessons.kit import models
from lessons.kit.lesson import Beside, Matrix, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_11 import costs, explorer, scores, simulations, small
from lessons.lesson_11.exercises import EXERCISES
from lessons.lesson_11.translating import gates_backward
from numformer.gradient_check.gradients import check
from numformer.layer import Layer, pack
from numformer.paper.linear import Linear
from numformer.plots import attention_weights


@show
def explore() -> Simulation:
    """The first simulation: every head of two models, on any sentence."""
    return explorer.simulation()


# %% [markdown]
# It is easy to tell a story about a head. You see one of its lines go from *runs* to *dog*, and you
# think: it has found the subject. Perhaps. Or it always looks two words back. The lines of one
# sentence cannot tell the two apart.
#
# So this lesson does three things, in this order. It **measures** where heads look, and compares
# that with chance. It **takes heads out**, to see whether the model needs them. And it **watches**
# how heads form in training.


# %%
@show
def the_models():
    """The two models, and what float16 changes in them."""
    stored = models.measured(11)
    sizes = {name: small.weights(name).size for name in small.CONFIGS}
    exact = stored["reversal"]["exact"][-1]
    return Words(f"""
        The translator has {sizes["translator"]:,} weights. It was trained on 29,000 captions of
        pictures (Multi30k). On captions that it has not seen it reaches {stored["bleu"]:.1f} BLEU,
        writing the most probable piece at each place. (BLEU counts how many words and groups of
        words also stand in a person's translation; lesson 10 says more.) The model that reverses
        words has {sizes["reverse"]:,} weights and writes {100 * exact:.0f} % of unseen words
        without a mistake. The page stores each weight in 16 bits. In 100 sentences that moves no
        attention weight of the translator by more than {stored["rounding"]:.4f}.
    """)


# %% [markdown]
# ## Count, and then shuffle
#
# Here are the attention weights of one head on four words. The head seems to look at the word
# before. How much does it?


# %%
words = ["a", "small", "dog", "sleeps"]
looks = np.array(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.7, 0.1, 0.1, 0.1],
        [0.1, 0.8, 0.05, 0.05],
        [0.2, 0.2, 0.6, 0.0],
    ]
)


@show
def four_words():
    """The weights of the example, and its score by hand."""
    places = np.arange(-1, 3)[None]
    (score,) = scores.share(looks[None, None], places)
    return [
        Matrix("A", looks, words, words, 1),
        Words(f"""
            The first word has none before it and does not count. The other three give 0.7, 0.8 and
            0.6 of their weight to the word before: (0.7 + 0.8 + 0.6) / 3 = {score:.2f}.

            Is that much? Shuffle the weights of each row at random. The head stays as *sharp* as it
            was, but *where* it looks is left to chance. Each place then gets a quarter on average:
            0.25. So {score:.2f} means something. In a row of two words 0.5 would mean nothing.
        """),
    ]


# %% [markdown]
# In general, let $p(t)$ be the place at which we expect the word at $t$ to look. The **score** of
# head $h$ is the mean weight that it puts there, over all $N$ words that have such a place:
#
# $$s_h = \frac{1}{N} \sum_t A^h_{t,\,p(t)}$$
#
# The **baseline** is the same mean over shuffled rows. With $p(t) = t - 1$ the score asks for the
# word before, with $p(t) = t$ for the word itself. You may choose any $p(t)$, as long as you choose
# it without looking at the head. That is what makes it a test.


# %%
@show
def the_lines_of_the_score():
    """How a score is computed, and where the library keeps the weights."""
    return [
        Beside(
            scores.share,
            {
                "row, t = ": "The words for which a place is expected.",
                "return": "Their weights on these places; the mean, for every head.",
            },
        ),
        Words("The weights are those that each attention saved for its backward:"),
        Beside(
            attention_weights,
            {
                "with mode": "Forward saves everything, as in training, but without dropout.",
                "weights = ": "Each attention by its name, such as "
                "`encoder.layers.0.self_attention.sublayer`, with its weights $(B, h, T, S)$.",
                "model.clear_saved": "There is no backward, so what was saved is thrown away.",
                "return": "",
            },
        ),
    ]


# %% [markdown]
# ## What 36 heads look at
#
# The translator has twelve heads of each kind. *Reading* is the encoder's self-attention, *writing*
# the decoder's, *cross-attention* looks from writing to reading. Within one text positions give us
# $p(t)$: the word before, the word after. Of cross-attention we ask more: does the head
# look at the word that is being **translated**? For that we must know which English piece goes with
# which German one, without asking a head. So we count. Of the 29,000 pairs of captions $n(s)$
# contain the English piece $s$, $n(t)$ the German piece $t$, and $n(s, t)$ both. Dice's coefficient
# (1945)
#
# $$\frac{2\,n(s, t)}{n(s) + n(t)}$$
#
# is 1 if $s$ and $t$ always come together. *hund* and *dog* are close to it. A German piece has a
# place only where the best English piece of its sentence reaches 0.3. This is a rough dictionary,
# made without any attention. The table calls this English piece *what is to be written,
# translated*.


# %%
CLEAR = 3  # times the baseline


def best_roles(name: str) -> list[tuple[str, float, float]]:
    """For each head the place whose score is furthest above chance, the score and the baseline."""
    stored = models.measured(11)["roles"][name]
    best = [max(found.items(), key=lambda item: item[1][0] - item[1][1]) for found in stored]
    return [(place, *shares) for place, shares in best]


@show
def roles_of_the_translator():
    """For each kind of attention and each place: how many heads clearly prefer it."""
    stored, best = models.measured(11)["roles"]["translator"], best_roles("translator")
    rows, size = [], small.LAYERS * small.HEADS
    for number, title in enumerate(explorer.TITLES.values()):
        mine = slice(size * number, size * number + size)
        for place in stored[mine][0]:
            shares = np.array([found[place] for found in stored[mine]])
            clear = sum(p == place and s >= CLEAR * c for p, s, c in best[mine])
            top = shares[shares[:, 0].argmax()]
            rows.append((title, place, f"{clear}", f"{top[0]:.2f}", f"{top[1]:.2f}"))
    return table(
        ["attention", "place", "heads", "best score", "shuffled"],
        rows,
        "“Heads” counts those of the 12 in each kind that prefer the place and give it at least "
        "three times what shuffled rows give it. 400 sentences of the test set.",
    )


@show
def scores_and_baselines():
    """Every head's best score beside its baseline."""
    best = best_roles("translator")
    size = small.LAYERS * small.HEADS

    def draw(figure):
        axes = figure.subplots()
        for number, title in enumerate(explorer.TITLES.values()):
            mine = sorted(best[size * number : size * number + size], key=lambda row: -row[1])
            at = np.arange(size) + (size + 1.5) * number
            axes.bar(at, [score for _, score, _ in mine], color=f"C{number}", label=title.lower())
            axes.plot(at, [chance for *_, chance in mine], "k_", markersize=7)
        axes.set(xticks=[], xlabel="heads", ylabel="mean weight on its place", ylim=(0, 1))
        axes.legend(fontsize=8)

    clear = [row for row in best if row[1] >= CLEAR * row[2]]
    top = max(best[:size], key=lambda row: row[1] / row[2])
    across = max(best, key=lambda row: row[1])
    return [
        Picture(
            "lesson_11_roles",
            draw,
            "Bars for 36 heads in three groups, each the mean weight on the place that the head "
            "prefers; a short black line marks the baseline of shuffled weights, which is lower.",
            "**A head's best place, and the baseline (black).**",
        ),
        Words(f"""
            {len(clear)} of 36 heads clearly prefer one place. The clearest heads look from writing
            to reading: one puts {across[1]:.2f} of its weight on *{across[0]}*, where shuffled rows
            give {across[2]:.2f}. Nobody told it which words belong together.

            Encoder heads are far less focused than stories about heads suggest. The clearest
            of them gives {top[1]:.2f} of its weight to *{top[0]}*. That is {top[1] / top[2]:.1f}
            times chance, and still three quarters go elsewhere. In one sentence you might not see
            it at all. For the other {36 - len(clear)} heads we have no name. That does not mean
            that they do nothing.

            Open a head in the figure [at the top](#explorer): below its name stands what was
            measured.
        """),
    ]


# %% [markdown]
# ## Looking is not using
#
# A head may look at a word and yet hand over nothing that the rest of the model uses. To see
# whether a head *matters*, multiply its output by a **gate** $g_i$, a factor equal to 1 (Michel et
# al. 2019). Lesson 4 wrote the output of attention as a sum over heads. With gates:
#
# $$Y = \sum_i g_i\,O_i\,W^O_i$$
#
# Now ask backward: how does the loss change with a gate? $g_i$ multiplies every number of $O_i$,
# for every word, so its gradient collects from all of them. Write $C$ for the outputs of all heads
# side by side, the input of $W^O$. Its gradient $\mathrm{d}C = \mathrm{d}Y\,W^{O\top}$ is computed
# anyway, and at $g_i = 1$
#
# $$\mathrm{d}g_i = \sum_t \sum_k C_{tk}\,\mathrm{d}C_{tk} \quad (k \text{ in the columns of head }
# i)$$
#
# Since every gradient here is written by hand, this takes three lines: take $C$, which the layer
# saved; take $\mathrm{d}C$, which its backward returns; multiply and add up.


# %%
@show
def the_lines_of_the_gates():
    """The gradients of all gates of one attention."""
    return Beside(
        gates_backward,
        {
            "return": r"`heads` is $C$, `dheads` is $\mathrm{d}C$. Multiply, give the heads an "
            "axis of their own, and add up over words and over each head's numbers."
        },
    )


# %% [markdown]
# Taking a head out moves its gate from 1 to 0. To first order that changes the loss by
# $-\mathrm{d}g_i$. In some sentences the head helps, in others it harms, so its **importance** is
# the mean *size*, $|\mathrm{d}g_i|$, over sentences. One backward for each sentence gives it for
# all heads at once. To take each head out in turn, we would need a run for each head.
#
# ### Is it true?
#
# Here are three heads, their gates and a $W^O$: explicit gradients beside measured ones.


# %%
class Gated(Layer):
    """heads (B, T, H K), gates (H,) -> (B, T, D): each head times its gate, then W^O."""

    def __init__(self, count: int, size: int, d_model: int, rng: np.random.Generator):
        self.count, self.output = count, Linear(count * size, d_model, rng, bias=False)

    def forward(self, heads, gates):
        self.save(heads=heads, gates=gates)
        return self.output.forward(heads * gates.repeat(heads.shape[-1] // self.count))

    def backward(self, dy):
        heads, gates = self.pop_saved().values()
        dgated = self.output.backward(dy)
        dheads = dgated * gates.repeat(heads.shape[-1] // self.count)
        return dheads, gates_backward(heads, dgated, self.count)


@show
def gradient_check():
    """The explicit gradients of gates beside measured ones."""
    rng = np.random.default_rng(11)
    layer = Gated(3, 4, 5, rng)
    pack(layer, np.float64)
    rows = []
    for row in check(layer, [rng.standard_normal((2, 6, 12)), rng.standard_normal(3)]):
        numbers = (f"{x:.6f}".replace("-", "−") for x in (row.explicit, row.numerical))
        rows.append((f"`{row.name}`", *numbers, scientific(row.error)))
    return table(["gradient of", "explicit", "measured", "relative error"], rows)


@show
def one_head_at_a_time():
    """Importance by gradient beside the loss that is added when each head is taken out alone."""
    stored = models.measured(11)["pruned"]
    importance, alone = np.array(stored["importance"]).ravel(), np.array(stored["alone"])
    size = small.LAYERS * small.HEADS

    def draw(figure):
        axes = figure.subplots()
        for number, title in enumerate(explorer.TITLES.values()):
            mine = slice(size * number, size * number + size)
            axes.plot(importance[mine], alone[mine], "os^"[number], label=title.lower())
        axes.axhline(0, color="C7", linewidth=0.8)
        axes.set(xlabel="mean size of the gate's gradient", ylabel="loss added without the head")
        axes.legend(fontsize=8)

    ranks = [np.argsort(np.argsort(x)) for x in (importance, alone)]
    agreement = float(np.corrcoef(*ranks)[0, 1])
    return [
        Picture(
            "lesson_11_gates",
            draw,
            "A dot for each of 36 heads: by how much the loss grows without it, against the mean "
            "size of its gate's gradient. Dots further right tend to lie higher.",
            "**One backward against 36 trials.**",
        ),
        Words(f"""
            Gradients order the heads much as trials do: the correlation of their ranks is
            {agreement:.2f} (1 means the same order, 0 no connection). For
            {(alone <= 0.005).sum()} of 36 heads the loss does not even grow by 0.005 when the head
            is taken out alone. Without the most needed one it grows by {alone.max():.2f}.
        """),
    ]


# %% [markdown]
# ## How many are needed?
#
# The cost of one missing head does not tell us the cost of many: two heads may stand in for each
# other, until both are gone.


# %%
@show
def take_heads_out() -> Simulation:
    """The second simulation: heads are taken out, those with the smallest gradient first."""
    return simulations.pruning()


@show
def what_is_left():
    """How many heads can go, here and in published work."""
    stored = models.measured(11)["pruned"]
    curve, encoder = np.array(stored["by importance"]), np.array(stored["encoder"])
    whole = curve[0, 1]
    rows = []
    for name, line in (("of all 36", curve), ("of the 12 that read", encoder)):
        lost = [int(np.argmax(whole - line[:, 1] > points)) - 1 for points in (1, 3)]
        rows.append((name, *map(str, lost), f"{line[len(line) // 2, 1]:.1f}", f"{line[-1, 1]:.1f}"))
    drawn = np.array(stored["at random"])[..., 1].mean(axis=0)  # every fourth step
    kept = simulations.translator()
    return [
        table(
            ["heads", "can go for 1 BLEU", "for 3 BLEU", "BLEU without half", "without all"],
            rows,
            "How many heads can go before more than 1 or 3 BLEU are lost. The whole model has "
            f"{whole:.1f} BLEU on these 200 sentences. The output of a head that is taken out is "
            "0; nothing is trained again.",
        ),
        Words(f"""
            With 16 heads gone, smallest gradient first, {curve[16, 1]:.1f} BLEU are left; in random
            order {drawn[4]:.1f} (mean of three draws). And look at the last column: without *any*
            head that reads, {encoder[-1, 1]:.1f} are left. Then each English word reaches the
            decoder alone, with its place but without its neighbours, and for short captions that is
            often enough. Without cross-attention no word would reach the decoder.

            Voita et al. 2019 pruned the encoder of a translator of the paper's base size, which
            has 48 heads (6 layers of 8): they took out 38 of them and lost 0.15 BLEU. Their method
            is better: training closed the gates, so the model had time to adapt. They also saw
            which heads are left at the end: heads that look at a neighbour, heads that follow the
            syntax, and one that looks at rare words.

            `python -m toy_tasks.heads --run DIR` measures the same for any trained model. A
            translator of 48 heads with {kept[48][0]:.1f} BLEU has {kept[42][0]:.1f} without the six
            least important ones, and {kept[42][1]:.1f} without six at random; without twelve
            {kept[36][0]:.1f} and {kept[36][1]:.1f} (`toy_tasks/heads.md`).
        """),
    ]


# %% [markdown]
# ## How heads form
#
# So far we looked at finished models. But we can also watch their training. The model that reverses
# words begins with random weights, and its heads look everywhere. Watch.


# %%
@show
def replay() -> Simulation:
    """The third simulation: the anti-diagonal appears."""
    return simulations.replayed()


@show
def which_came_first():
    """Which comes first: looking at the right letter, or writing it."""
    stored = models.measured(11)["reversal"]
    share, exact = np.array(stored["share"]), np.array(stored["exact"])
    size = small.LAYERS * small.HEADS
    best = share.reshape(len(exact), -1).max(axis=1)
    look = stored["steps"][int(np.argmax(best >= 0.4))]
    skill = stored["steps"][int(np.argmax(exact >= 0.4))]
    layers = [f"{x:.2f}" for x in share[-1].mean(axis=1)]
    first = models.measured(11)["roles"]["reverse"][2 * size : 2 * size + small.HEADS]
    end = max(found["the end mark"][0] for found in first)
    return Words(f"""
        By step {look} the best head gives 0.4 of its weight to the letter to be written. Only by
        step {skill} does the model get 0.4 of the words right. Looking comes first: until a head
        looks at the right letter, it has nothing to hand over that the model could write.

        At the end the heads of the three layers give {layers[0]}, {layers[1]} and {layers[2]} of
        their weight to that letter, on average. The first layer does not find it. One of its heads
        gives {end:.2f} to the end mark: its place says how long the word is, and so where to
        begin.
    """)


# %% [markdown]
# ## Heads that find what came before
#
# One kind of head has a name of its own. Read *train, train, tr…* What comes next? You go back to
# the *r* before this one, look **one further**, and say *a*. A head that does this is an
# **induction head** (Elhage et al. 2021, Olsson et al. 2022). It needs two steps:
#
# 1. Each position has to know **which letter stands before it**. A head in layer 1 looks one place
#    back and writes the letter that it finds into the position.
# 2. The query of a head in layer 2 asks: *which position comes after a letter like mine?* The keys
#    know the answer from step 1. The head looks there, and **copies** the letter that it finds.
#
# Its place is $p(t) = s + 1$, where $s$ is the latest earlier place with the same letter. One layer
# cannot do it: step 2 reads what step 1 wrote.


# %%
@show
def induction() -> Simulation:
    """The fourth simulation: two kinds of heads form together."""
    return simulations.inducing()


@show
def two_layers_and_one():
    """The scores of all heads at the end, and what they copy."""
    stored = models.measured(11)["repetition"]
    rows = []
    for layers in ("2", "1"):
        run = stored[layers]
        for layer, matching in enumerate(run["matching"][-1]):
            for head, score in enumerate(matching):
                before, writes = run["before"][-1][layer][head], run["writes"][layer][head]
                name = f"{layers} {'layers' if layers == '2' else 'layer'}: {layer + 1}.{head + 1}"
                rows.append((name, f"{score:.2f}", f"{before:.2f}", f"{writes:.2f}"))
    formed = [
        step
        for step, matching in zip(stored["2"]["steps"], stored["2"]["matching"], strict=True)
        if np.max(matching) >= 0.5
    ]
    return [
        table(
            ["head", "on what followed", "on the letter before", "copies"],
            rows,
            "The first two columns are weights. With shuffled rows a head puts "
            f"{stored['2']['chance']:.2f} on what followed. “Copies” is the share of letters for "
            "which the head's output for the letter, taken alone, makes this letter the most "
            "probable one. By chance it would be 1 in 26.",
        ),
        Words(f"""
            There are two kinds of heads, in two layers, and neither is of use without the other. So
            for a long time neither forms. Then both do, within a few steps: at step {formed[0]} the
            best head gives more than half of its weight to what followed. Soon the model knows what
            comes next ({100 * stored["2"]["copying"][-1]:.0f} % of the letters are right at the
            end). With one layer it never does ({100 * stored["1"]["copying"][-1]:.0f} %).

            The last column shows something that no picture of attention shows: what a head *does*
            with the letter that it found. The heads of layer 2 copy it. Head 1.1 does not. What it
            writes is not meant for the output. It is meant for the keys of layer 2.
        """),
    ]


# %% [markdown]
# ## What attention costs
#
# Every word looks at every word. How much of the time does that take? Count the multiplications of
# forward, for $T$ words of width $D$ and a feed-forward network of inner width $4D$:
#
# | | multiplications | steps that wait for each other |
# |---|---|---|
# | attention | $4TD^2 + 2T^2D$ | 1 |
# | feed-forward | $8TD^2$ | 1 |
# | recurrence (LSTM) | $8TD^2$ | $T$ |
#
# Attention has two parts. The projections, $4TD^2$, grow with the length like everything else.
# Scores and blend, $2T^2D$, grow with its square. Both parts are equal where $2T^2D = 4TD^2$, at
# $T = 2D$. At that length attention has as many multiplications as the feed-forward network.


# %%
@show
def measured_costs():
    """The time of forward and backward, against the length."""
    stored = models.measured(11)["costs"]
    lengths = np.array(costs.LENGTHS)

    def draw(figure):
        axes = figure.subplots()
        for number, (name, times) in enumerate(stored.items()):
            axes.loglog(lengths, times, "o-", color=f"C{number}", label=name)
            theory = np.array([costs.products(int(length))[name] for length in lengths])
            axes.loglog(lengths, theory * times[-1] / theory[-1], ":", color=f"C{number}")
        axes.axvline(2 * costs.WIDTH, color="C7", linewidth=0.8)
        axes.text(2 * costs.WIDTH, axes.get_ylim()[0] * 1.3, " T = 2D", fontsize=8)
        axes.set(xlabel="length $T$", ylabel="milliseconds, forward and backward")
        axes.legend(fontsize=8)

    long = lengths >= 512
    rows = []
    for name, times in stored.items():
        theory = [costs.products(int(length))[name] for length in lengths[long]]
        powers = (costs.exponent(lengths[long], cost) for cost in (theory, np.array(times)[long]))
        per_word = 1000 * times[3] / lengths[3]
        rows.append((name, *(f"{power:.2f}" for power in powers), f"{per_word:.1f}"))
    return [
        Picture(
            "lesson_11_costs",
            draw,
            "Three lines of time against length, both on logarithmic scales. The line of attention "
            "is low at first and becomes the steepest; the line of the recurrence is the highest; "
            "a vertical line marks twice the width.",
            f"**Time against length**, width {costs.WIDTH}, one core. Dotted: the number of "
            "multiplications, scaled to meet the last point.",
        ),
        table(
            ["", "power of T, counted", "measured", "microseconds a word at T = 128"],
            rows,
            "The power of $T$ with which costs grow from 512 to 2,048 words.",
        ),
    ]


# %% [markdown]
# For short texts the lines of attention and feed-forward are flatter than the dotted ones: each
# call of NumPy has a cost of its own, whatever the size. The recurrence pays it $T$ times, since no
# step can begin before the previous one has ended. For long texts the time of attention grows
# faster than its multiplications: its $T \times T$ weights no longer fit into the processor's
# cache, and the table above does not count exponentials. Lesson 13 is about long texts.
#
# ## To take with you
#
# | what | forward | backward |
# |---|---|---|
# | score of a head for $p(t)$ | $s_h = \frac{1}{N}\sum_t A^h_{t,\,p(t)}$, beside shuffled rows | |
# | gates | $Y = \sum_i g_i\,O_i\,W^O_i$ | $\mathrm{d}g_i = \sum_{t,k} C_{tk}\,\mathrm{d}C_{tk}$ |
# | importance | | mean size of $\mathrm{d}g_i$ over sentences |
# | induction head | $p(t) = s + 1$, $s$: the same symbol, earlier | |
# | cost of attention | $4TD^2 + 2T^2D$ | twice as much |
#
# A map of attention shows where a head looks. It shows neither what the head hands over nor whether
# the rest of the model uses it.
#
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    stored = models.measured(11)
    times = {name: np.array(of) for name, of in stored["costs"].items()}
    lengths = np.array(costs.LENGTHS)
    faster = lengths[times["attention"] < times["recurrence (LSTM)"]]
    at = costs.LENGTHS.index(128)
    ratio = times["recurrence (LSTM)"][at] / times["attention"][at]
    best, alone = best_roles("translator"), np.array(stored["pruned"]["alone"])
    clear = np.array([score >= CLEAR * chance for _, score, chance in best])
    return Words(f"""
        **“Attention is O(n²), so it is slower than a recurrent network.”** We measured forward
        and backward of one layer of width {costs.WIDTH}: at 128 words the LSTM takes {ratio:.0f}
        times as long. Attention is faster at {len(faster)} of the {len(lengths)} lengths that we
        tried, up to {faster.max():,} words. The square is real, but each of its parts is cheap, and
        each step of the recurrence has to wait for the one before.

        **“The heads that one can name are the heads that matter.”** {int(clear.sum())} heads of our
        translator clearly prefer one place. When one of them is taken out alone, the loss grows by
        {alone[clear].min():.3f} to {alone[clear].max():.3f}. The head that costs most,
        {alone.max():.3f}, is one of those for which we have no name. Jain and Wallace 2019 and
        Wiegreffe and Pinter 2019 argue about what weights explain and what they do not.

        **“This sentence shows what the head does.”** One sentence does not: count over many, and
        shuffle, as in the first section.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="A head of an encoder reads sentences of 10 words and gives 0.1 of its weight "
            "to the word after. How much does that word get when the rows are shuffled?",
            answer=1 / 10,
            tolerance=0.005,
            mistakes={
                0: "Shuffling takes no weight away. It only leaves to chance which of the 10 "
                "places gets it.",
                1 / 9: "You left out the word itself. When a row is shuffled, all 10 places are "
                "equally likely.",
                0.01: "You multiplied by a tenth twice. A shuffled row still sums to 1, and each "
                "place gets an equal share on average.",
                0.9: "That is what the other nine places get together.",
            },
            why="Each of 10 places gets a tenth on average. So this head does not prefer the word "
            "after: its score is what chance gives.",
        ),
        Question(
            question="The output $C$ of one head has the rows $(2, 0)$ and $(1, 1)$, one for each "
            "of two words. The gradient $\\mathrm{d}C$ has the rows $(0.5, 3)$ and $(-1, 0.5)$. "
            "What is $\\mathrm{d}g$ of this head?",
            answer=float(
                gates_backward(np.array([[2.0, 0], [1, 1]]), np.array([[0.5, 3], [-1, 0.5]]), 1)[0]
            ),
            mistakes={
                1: "That is what the first word contributes. The gate multiplies the output of "
                "every word, so the second word counts, too.",
                -0.5: "That is what the second word contributes. The gate multiplies the output of "
                "every word, so the first word counts, too.",
                0.25: "You took the mean of the two words. The contributions are added up.",
                2.5: "You added the sizes of the products. Keep their signs.",
            },
            why="$2 \\cdot 0.5 + 0 \\cdot 3 + 1 \\cdot (-1) + 1 \\cdot 0.5 = 0.5$.",
        ),
        Question(
            question="A model has read *n o o n n o*. Where does an induction head look from the "
            "last *o*? (Count places from 1.)",
            answer=4,
            mistakes={
                3: "At place 3 stands the latest earlier *o*. The head looks one further. (If you "
                "counted from 0: places count from 1.)",
                2: "At place 2 stands the first *o*. The head finds the *latest* earlier one, and "
                "looks one further.",
                5: "That is the letter just before the last *o*. The head does not look for its "
                "neighbour, but for what followed an earlier *o*.",
                6: "That is the last *o* itself. The head looks for what followed an *earlier* "
                "one.",
            },
            why="The latest *o* before it is at place 3. One further is place 4, an *n*.",
        ),
        Question(
            question="Why does a model with one layer of attention have no induction heads?",
            choices={
                "one layer has too few weights": "A wider layer would not help. In a single layer "
                "each key is made from its own symbol and place alone.",
                "a key must know the symbol before it, which a lower layer has to write there": "",
                "a causal mask hides what came after the earlier occurrence": "A causal mask hides "
                "only what is later than the current position, and what came after the earlier "
                "occurrence never is.",
            },
            answer=1,
            why="The head looks for *the position that comes after a symbol like mine*. So a key "
            "must know the symbol before it, and a head of a layer below writes it there.",
        ),
        Question(
            question="The mean of $\\mathrm{d}g$ over many sentences is 0. May we remove the head?",
            choices={
                "yes: on average it does nothing": "A mean of 0 does not need zeros: large "
                "gradients of both signs cancel, too. Look at their sizes first.",
                "not for this reason: it may help in some sentences and harm in others": "",
            },
            answer=1,
            why="That is why importance is the mean of the size, not the size of the mean.",
        ),
        Question(
            question="$D = 512$. From which length $T$ on do scores and blend take more "
            "multiplications than the projections of attention?",
            answer=2 * 512,
            tolerance=1,
            mistakes={
                512: "At $T = D$ scores and blend take $2D^3$ multiplications, and the four "
                "projections still take $4D^3$.",
                4 * 512: "You counted the scores or the blend. Together they take $2T^2D$.",
                1.5 * 512: "You left out a projection. There are four: queries, keys, values and "
                "output.",
            },
            why="Where $2T^2D = 4TD^2$, at $T = 2D$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 11 mine.py` writes them into a file, and `python -m lessons check 11 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?* for gates; Voita et
#   al. 2019, *Analyzing Multi-Head Self-Attention*, for what heads do.
# - Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*; Olsson et al. 2022,
#   *In-context Learning and Induction Heads*.
# - Jain and Wallace 2019, *Attention is not Explanation*; Wiegreffe and Pinter 2019, *Attention is
#   not not Explanation*.
# - `python -m toy_tasks.induction` trains models with induction heads, and
#   `numformer.load(RUN).attention(TEXT)` shows the heads of any run of yours.
