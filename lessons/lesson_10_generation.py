# %% [markdown]
# # Generation
#
# > A model says how probable each next word is. Which one should it write? And why does a whole
# > translation need more than the best word each time?

# %%
import itertools

import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Picture, Words, scientific, show, table
from lessons.kit.models import measured
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_10 import beams, cache, drawing
from lessons.lesson_10.exercises import EXERCISES, scores
from lessons.lesson_10.measured import BEAMS, FEW, SENTENCES
from lessons.lesson_11 import small
from numformer import Layer, Sampling, n_best, pad_sources
from numformer.data.vocabulary import END
from numformer.generation import Ensemble, length_penalty, log_probabilities
from numformer.generation.sampling import log_softmax
from numformer.gradient_check.gradients import check
from numformer.paper.attention import SelfAttention
from numformer.paper.beam import Beam
from numformer.paper.memory import KeysAndValues
from numformer.paper.softmax import softmax, softmax_backward
from numformer.paper.writing import write
from numformer.symbols import DEFAULT_IDS
from numformer.training.average import mean


@show
def draw_the_next_word() -> Simulation:
    """The first simulation: a translator's next word, drawn again and again."""
    return drawing.drawing


# %% [markdown]
# All that the model does is set the lengths of these bars. Then somebody has to choose a word, and
# the choice is not part of the model: the same weights write dull sentences or wild ones.
#
# Once a word is chosen, the model reads it like any other (lesson 7), and gives the bars of the
# next position. This goes on until the end mark ⊣ is chosen. If $y_t$ is the word at position $t$,
# the probability of the whole sentence is the product of the probabilities of its words, and the
# logarithm turns the product into a sum:
#
# $$\log p(y) = \sum_t \log p(y_t\,|\,y_1, \ldots, y_{t-1})$$


# %%
@show
def the_lines_of_log_probabilities():
    """From logits to log probabilities."""
    return Beside(
        log_softmax,
        {
            "xp = ": "NumPy or CuPy.",
            "shifted = ": "In float64, so that sums of many logarithms stay accurate.",
            "shifted -= ": "The largest logit becomes 0, so $e^z$ cannot overflow (lesson 3).",
            "result = ": r"$\log p_v = z_v - \log \sum_u e^{z_u}$",
            "require": "Broken weights give NaN. Then the model must not write.",
            "return": "",
        },
    ), Beside(
        log_probabilities,
        {
            "result = ": "The function above.",
            "result[:, special.unwritten]": "Padding, the start mark and the mark of unknown "
            "symbols are never written.",
            "return": "",
        },
    )


# %% [markdown]
# ## The best word each time
#
# **Greedy** choice always takes the most probable word. Here is a language so small that you can
# check it by hand. A sentence has two words: *ein* or *der*, and then an animal.


# %%
FIRST = {"ein": 0.6, "der": 0.4}
SECOND = {
    "ein": {"hund": 0.4, "welpe": 0.35, "mops": 0.25},
    "der": {"hund": 0.9, "welpe": 0.05, "mops": 0.05},
}
SENTENCES_OF_TWO = {
    f"{a} {b}": FIRST[a] * SECOND[a][b] for a, b in itertools.product(FIRST, SECOND["ein"])
}


@show
def two_words_by_hand():
    """All sentences of the small language; what greedy choice finds, and the best one."""
    rows = [
        (f"*{a}*", f"{p:.2f}", *(f"{SECOND[a][b]:.2f}" for b in SECOND[a]))
        for a, p in FIRST.items()
    ]
    first = max(FIRST, key=FIRST.get)
    greedy = f"{first} {max(SECOND[first], key=SECOND[first].get)}"
    best = max(SENTENCES_OF_TWO, key=SENTENCES_OF_TWO.get)
    assert (greedy, best) == ("ein hund", "der hund")
    return [
        table(["first word", "$p$", *(f"then *{b}*" for b in SECOND["ein"])], rows),
        Words(f"""
            Greedy choice takes *ein*, and then *hund*: 0.6 · 0.4 = {SENTENCES_OF_TWO[greedy]:.2f}.
            But *der hund* has 0.4 · 0.9 = {SENTENCES_OF_TWO[best]:.2f}. The better sentence begins
            with the worse word, and greedy choice never looks back.
        """),
    ]


@show
def the_lines_of_writing():
    """The loop in which every model of the library writes."""
    return Beside(
        write,
        {
            "written = ": "Room for what is written. What is not filled stays 0, which is padding.",
            "ended, rows": "Which sentences of the batch have ended, and which are still open.",
            "with inference": "`model.start` reads the source. Then, position by position, the "
            "model gives the logits of the next word, `choose` picks a word, and the model reads "
            "it. In greedy choice `choose` takes the largest logit; a softmax would not change "
            "which one that is. Sentences that have ended are left out once they are half of the "
            "batch.",
            "return": "Each sentence up to its end mark.",
        },
        whole=False,
    )


# %% [markdown]
# ## Draw the word
#
# For a translation it is not a bad idea to take the best word each time. For a story it is: the
# model writes what everybody expects, and soon repeats itself. (Holtzman et al. 2020 show how.) So
# **draw** the word at random: a word with the probability 0.3 comes in three of ten cases. In the
# [figure at the top](#drawing) the line above the bars has all words side by side, each as long as
# it is probable. A random number from 0 to 1 points to one of them.
#
# You can set three things.
#
# **Temperature.** All logits are divided by $\tau$ before the softmax:
#
# $$p_v = \frac{e^{z_v/\tau}}{\sum_u e^{z_u/\tau}}$$
#
# As $p_v$ is $e^{z_v}$ over a sum, this is the same as raising each probability to the power
# $1/\tau$ and making them sum to 1 again. A temperature below 1 makes probable words still more
# probable. As $\tau$ goes to 0 only the most probable word is left: greedy choice. With $\tau = 1$
# the probabilities are the model's own, and as $\tau$ grows all words become equally probable.
#
# **Top-k** (Fan et al. 2018): only the $k$ most probable words may be drawn.
#
# **Top-p**, or the *nucleus* (Holtzman et al. 2020): only the fewest words that together have at
# least the probability $p$ may be drawn.

# %%
FOUR = np.array([0.5, 0.3, 0.1, 0.1])


def minus(x: float) -> str:
    """A number with two decimals and a true minus."""
    return f"{x:.2f}".replace("-", "−")


def sampled(**how) -> np.ndarray:
    """The probabilities with which the four words are drawn."""
    return Sampling(**how).probabilities(np.log(FOUR)[None])[0]


@show
def four_words_by_hand():
    """Temperature and both cuts on four words."""
    settings = [
        ("the model's own", {}),
        (r"$\tau = 0.5$", {"temperature": 0.5}),
        (r"$\tau = 2$", {"temperature": 2.0}),
        ("top-k 2", {"top_k": 2}),
        ("top-p 0.6", {"top_p": 0.6}),
        (r"$\tau = 0.5$, top-p 0.6", {"temperature": 0.5, "top_p": 0.6}),
    ]
    rows = [(name, *(f"{p:.3f}" for p in sampled(**how))) for name, how in settings]
    cold, cut = sampled(temperature=0.5), sampled(top_k=2)
    return [
        table(["", *(f"word {n}" for n in range(1, 5))], rows),
        Words(f"""
            **By hand.** With $\\tau = 0.5$ each probability is squared: 0.25, 0.09, 0.01 and 0.01,
            together 0.36. The first word gets 0.25 / 0.36 = {cold[0]:.3f}. With top-k 2 it gets 0.5
            / 0.8 = {cut[0]:.3f}. Top-p 0.6 needs two words here, because the first has only 0.5. In
            the last row the temperature comes first: after it the first word has more than 0.6, so
            it alone is left.
        """),
    ]


@show
def the_lines_of_sampling():
    """The library's temperature and cuts."""
    return Beside(
        Sampling.probabilities,
        {
            "p = ": "The largest logarithm becomes 0.",
            "if self.temperature": r"$e^{(\log p)/\tau}$. Temperature 0 leaves only the largest.",
            "p /= ": "Now they sum to 1.",
            "if self.top_k": "Excluded words get probability 0.",
            "return": "What is left sums to 1 again.",
        },
    )


@show
def what_is_kept():
    """Which words may be drawn: the library's lines."""
    return Beside(
        Sampling._candidates,
        {
            "ranked = ": "From the most probable to the least.",
            "most = ": "How many words stay at most: $k$ with top-k, otherwise all.",
            "count = ": "How many words stay, for each row.",
            "if self.top_p": "Top-p counts the words up to which the sum is still *below* $p$, and "
            "adds the one with which it reaches $p$. So the first word always stays.",
            "smallest = ": "The probability of the last one that stays.",
            "larger, equal = ": "Words with more than that stay.",
            "room = ": "How many of the words with just that probability may stay.",
            "return": "Of equally probable words the first ones stay.",
        },
    )


@show
def why_cut():
    """The share of the improbable words, and what becomes of it in a sentence."""
    tails = {t: float(drawing.choose("torn", t, 1e9, 2.0, 1)["tail"]) for t in (1.0, 1.4, 2.0)}
    after = 1 - (1 - round(tails[1.0], 3)) ** 12  # from the digits that the text shows
    nuclei = {p: int(drawing.choose(p, 1.0, 1e9, 0.9, 1)["left"]) for p in ("sure", "torn", "open")}
    return Words(f"""
        **Why cut at all?** Set the place to *torn* [above](#drawing). At $\\tau = 1$ the
        {drawing.OTHERS:,} words that have no bar have the probability {tails[1.0]:.3f} together:
        each one is absurd, but there are many. (Label smoothing taught the model to give them a
        share: in lesson 8 it spreads a tenth over all words.) At $\\tau = 1.4$ they have
        {tails[1.4]:.2f}, at 2 {tails[2.0]:.2f}. If they have {tails[1.0]:.3f} at every position, a
        sentence of 12 words contains at least one of them with the probability
        $1 - (1 - {tails[1.0]:.3f})^{{12}}$, which is {after:.2f}, and the rest of the sentence
        has to make sense of it.

        **Why top-p?** The model is sure at one place and not at another. Top-p 0.9 leaves
        {nuclei["sure"]} word{"s" * (nuclei["sure"] > 1)} at *sure*, {nuclei["torn"]} at *torn*,
        {nuclei["open"]} at *open*. No $k$ fits all three.
    """)


# %% [markdown]
# ## Several at once
#
# Greedy choice keeps one beginning of a sentence. To look at all sentences is impossible: their
# number is the size of the vocabulary to the power of the length. **Beam search** lies between the
# two. It keeps the best few beginnings, called *hypotheses*; together they are the *beam*. In each
# step every hypothesis is continued with every word, and the best few of all these continuations
# are kept.
#
# With a beam of 2 nothing is lost in our small language: after one word the beam holds *ein* (0.6)
# and *der* (0.4), and then it compares all six sentences. The best is *der hund*.
#
# Now watch it at work. Our translator is a Transformer of 1.8 million weights that has read 29,000
# captions of pictures (`python -m toy_tasks.translate --preset minutes`). It writes *subwords*: a
# piece that begins with a hyphen continues the word before it.


# %%
@show
def a_beam_grows() -> Simulation:
    """The second simulation: the tree of a beam, step by step."""
    return beams.tree


@show
def where_greedy_loses():
    """What greedy choice and a beam of 4 find for the sentences of the figure."""
    rows = []
    for sentence in beams.TREES:
        for beam in (1, 4):
            made = beams.grow(sentence, beam, 0.6, beams.STEPS)
            said = " ".join(beams.WORDS[int(n)] for n in made["best"]).replace(" -", "")
            rows.append((sentence, beam, f"*{said}*", minus(made["sum"])))
    return table(["sentence", "beam", "best finished translation", "log probability"], rows)


@show
def the_lines_of_a_step():
    """A step of the library's beam."""
    return Beside(
        Beam.extend,
        {
            "rows, width": "A row is a source sentence; `width` hypotheses belong to it.",
            "totals = ": "The sums of logarithms, for all continuations, in one row.",
            "order = ": "All continuations for a source sentence compete.",
            "row = ": "",
            "totals, symbols": "The best first.",
            "parents, is_end": "Which hypothesis each one continues, and whether it ends.",
            "ended = ": "Those among the best `width` that end are complete translations. "
            "They leave the beam.",
            "still_open": "The best `width` that do not end.",
            "self.log_p": "They are the new beam.",
            "latest": "",
            "self.written": "Each copies what its parent has written, and adds its symbol.",
            "return": "The parents, too: what the model remembers of each has to move with it.",
        },
    )


# %% [markdown]
# ### Longer is less probable
#
# Each further word multiplies by a probability, so it can only make a sentence less probable.
# Compare a short translation with a long one by $\log p$, and the short one has an advantage that
# says nothing about how good it is. The paper therefore divides by a **length penalty** (section
# 6.1; Wu et al. 2016, equation 14):
#
# $$\mathrm{score}(y) = \frac{\log p(y)}{\bigl((5 + T)/6\bigr)^{\alpha}}$$
#
# with $T$ the number of words, the end mark included, and $\alpha = 0.6$. With $\alpha = 0$ nothing
# is divided; with $\alpha = 1$ the score is nearly proportional to the mean of the words'
# logarithms.


# %%
@show
def two_lengths_by_hand():
    """A short and a long translation, with and without the penalty, and the line of code."""
    log_p, lengths = np.array([-4.0, -5.0]), np.array([5, 13])
    valid = (np.arange(13) < lengths[:, None]).astype(float)
    each = valid * (log_p / lengths)[:, None]
    by = {alpha: scores(each, valid, np.array(alpha)) for alpha in (0.0, 0.6, 1.0)}
    assert np.allclose(
        by[0.6], [p / length_penalty(n, 0.6) for p, n in zip(log_p, lengths, strict=True)]
    )
    assert by[0.0][0] > by[0.0][1] and by[0.6][0] < by[0.6][1]
    rows = [(f"{alpha:g}", *map(minus, pair)) for alpha, pair in by.items()]
    divisors = [length_penalty(int(n), 0.6) for n in lengths]
    return [
        Words(
            f"""
            One translation has five words and $\\log p = -4$, another has thirteen and $-5$. The
            penalties at $\\alpha = 0.6$ are $(10/6)^{{0.6}}$, or {divisors[0]:.2f}, and
            $(18/6)^{{0.6}}$, or {divisors[1]:.2f}, so the scores are −4 / {divisors[0]:.2f} ≈
            {minus(by[0.6][0])} and −5 / {divisors[1]:.2f} ≈ {minus(by[0.6][1])}. Now the longer one
            wins.
        """
        ),
        table([r"$\alpha$", "five words", "thirteen words"], rows),
        Beside(
            length_penalty,
            {"return": "The $\\log p$ of a hypothesis is divided by this once, when it ends."},
        ),
    ]


# %% [markdown]
# ### Is a wider beam better?
#
# A wider beam compares more continuations, so what it finds should be better. It is more probable,
# yes. Decide before you read on: is it a better translation, too?


# %%
@show
def wider_beams():
    """Log probability, length and BLEU by the width of the beam, with and without a penalty."""
    rows = measured(10)["beams"]
    none, paper = ({row["beam"]: row[kind] for row in rows} for kind in ("none", "paper"))
    log_p = {row["beam"]: row["log_p"] for row in rows}
    found = {"none": none, "paper": paper}
    peaks = {kind: max(BEAMS, key=lambda beam: by[beam][0]) for kind, by in found.items()}
    widest = BEAMS[-1]
    assert all(log_p[a] <= log_p[b] for a, b in itertools.pairwise(BEAMS))
    assert max(peaks.values()) < widest and none[widest][1] < none[1][1]
    assert all(abs(by[beam][0] - by[4][0]) < 0.25 for by in found.values() for beam in BEAMS[3:])

    def draw(figure):
        axes = figure.subplots()
        for name, by in ("α = 0", none), ("α = 0.6", paper):
            axes.plot(BEAMS, [by[beam][0] for beam in BEAMS], "o-", label=name)
        axes.set(xscale="log", xlabel="width of the beam", ylabel="BLEU")
        axes.set_xticks(BEAMS, BEAMS)
        axes.minorticks_off()
        axes.legend()

    cells = [
        (
            row["beam"],
            minus(row["log_p"]),
            *(f"{x:.2f}" for kind in ("none", "paper") for x in row[kind]),
            f"{row['seconds'] / rows[0]['seconds']:.1f}",
        )
        for row in rows
    ]
    columns = [r"$\log p$", r"BLEU, $\alpha = 0$", "length", r"BLEU, $\alpha = 0.6$", "length"]
    return [
        Picture(
            "lesson_10_beams",
            draw,
            "BLEU against the width of the beam. Both lines rise steeply from a beam of 1 to "
            "4, and are nearly flat from there on.",
            f"**BLEU by beam.** {SENTENCES} sentences of the test set.",
        ),
        table(
            ["beam", *columns, "time"],
            cells,
            "Log probability: the mean over what is found without a penalty. Length: relative to "
            "human translations. Time: relative to a beam of 1.",
        ),
        Words(
            f"""
            Each wider beam finds something *more probable*: {minus(log_p[1])} at 1,
            {minus(log_p[4])} at 4, {minus(log_p[widest])} at {widest}. Up to 4 the translations
            become clearly better, too. From there on BLEU hardly moves. It is highest at
            {peaks["none"]} without a penalty, {none[peaks["none"]][0]:.2f}, and at
            {peaks["paper"]} with one, {paper[peaks["paper"]][0]:.2f}; at {widest} it has fallen to
            {none[widest][0]:.2f} and {paper[widest][0]:.2f}, for
            {rows[-1]["seconds"] / rows[2]["seconds"]:.0f} times the time of a beam of 4. That is no
            large loss, but look at the lengths: the translations found get shorter and shorter. The
            penalty slows that down, but does not stop it. So the search is not to blame. It finds
            what it is asked for, and the *model* gives short sentences too much probability. Larger
            models on longer sentences lose far more (Koehn and Knowles 2017; Stahlberg and Byrne
            2019). The paper uses a beam of 4.
        """
        ),
    ]


# %% [markdown]
# ## What need not be computed again
#
# To choose word 5 the model reads words 1 to 4. To choose word 6 it reads words 1 to 5. Must it
# compute everything about the first four once more?
#
# Look at what a word needs from the words before it: their keys and their values, nothing else. The
# causal mask (lesson 7) lets word 2 see words 1 and 2 only. So in every layer its key and its value
# stay the same, whatever comes later. Keep them, and a new word needs one row of everything: one
# query, one row of scores, one row of the feed-forward network. What is kept is called the
# **key-value cache**.


# %%
@show
def the_cache() -> Simulation:
    """The third simulation: matrices that grow by a row."""
    return cache.cache


# %% [markdown]
# Queries are not kept: a query is used once, in its own step. Rows of weights are not kept either.
#
# In cross-attention nothing grows: keys and values come from the source, so they are computed once,
# in the first step.


# %%
@show
def the_lines_of_the_cache():
    """Where attention appends to what it remembers, and how."""
    return [
        Beside(
            SelfAttention.forward,
            {
                "query = ": "The queries of the new words alone: one row in each step.",
                "key, value = ": "Their keys and values. Rotary positions (lesson 5) turn the keys "
                "here, before they are kept: a key's position does not change.",
                "if past": "From here on, the keys and values of all words so far. (In training "
                "all words come at once, and there is nothing to remember.)",
                "return self.attend": "The new word's query, with all keys and values.",
            },
            whole=False,
        ),
        Beside(
            KeysAndValues.append,
            {
                "start, room": "How many rows are filled, and for how many there is room.",
                "stop": "",
                "if stop > room": "",
                "self._arrays = ": "All the memory is reserved at once; a growing array would be "
                "copied in every step.",
                "for array": "The new row is written below the others.",
                "return": "The filled part.",
            },
        ),
    ]


@show
def how_much_faster():
    """Processor time of writing with the cache and without."""
    spent = cache.speed()
    ratios = {n: again / kept for n, (kept, again) in spent.items()}
    shortest, longest = min(ratios), max(ratios)
    assert ratios[longest] > 8 > 3 > ratios[shortest]

    def draw(figure):
        axes = figure.subplots()
        for name, values in zip(
            ("with the cache", "without"), zip(*spent.values(), strict=True), strict=True
        ):
            axes.plot([*spent], values, "o-", label=name)
        axes.set(xscale="log", yscale="log", xlabel="words written", ylabel="seconds")
        axes.set_xticks([*spent], [*spent])
        axes.minorticks_off()
        axes.legend()

    rows = [
        (n, f"{kept:.2f}", f"{again:.2f}", f"{again / kept:.1f}")
        for n, (kept, again) in spent.items()
    ]
    return [
        Picture(
            "lesson_10_cache",
            draw,
            "Seconds against words written, on logarithmic axes. The line without the cache is "
            "twice as steep as the one with it, and far above it at 256 words.",
            f"**Time to write**, processor time of this computer: {cache.MEASURED}.",
        ),
        table(["words", "with the cache, s", "without, s", "times as fast"], rows),
        Words("""
            Without the cache, $T$ words cost $1 + 2 + \\ldots + T = T(T+1)/2$ rows instead of $T$,
            each through every layer. One cost of this kind remains even with the cache: each new
            query meets all keys, so the scores are still $T(T+1)/2$ numbers. At these lengths that
            is little compared with the products with weight matrices. The price is memory,
            $2\\,T\\,d_{model}$ numbers for each layer and each hypothesis. Lesson 13 shows how to
            spend less.
        """),
    ]


# %% [markdown]
# ## What was drawn, and the way back
#
# The choice of a word has no backward. Greedy choice takes the largest logit: if you move a logit a
# little, the choice stays the same or jumps to another word. A draw jumps, too. But the
# *probability* of the drawn word is as smooth as ever, and its gradient is useful: it says how to
# make this word more probable.
#
# Write $y$ for the word that was drawn, $z$ for the logits and $q = z/\tau$. Then
# $\log p_y = q_y - \log \sum_u e^{q_u}$. The derivative of the second term is the softmax, so
#
# $$\mathrm{d}q_u = [u = y] - p_u, \qquad \mathrm{d}z_u = \frac{\mathrm{d}q_u}{\tau}$$
#
# The bracket is 1 where $u = y$, and 0 elsewhere. Lesson 8 had the same for the loss, with the
# other sign: the loss is minus $\log p$ of the *right* word, and here we have $\log p$ of the
# *drawn* one. The temperature divides all logits, and
# $\partial(z_u/\tau)/\partial\tau = -z_u/\tau^2$, so it collects a gradient from all of them:
#
# $$\mathrm{d}\tau = -\frac{1}{\tau^2}\sum_u z_u\,\bigl([u = y] - p_u\bigr)$$
#
# $$= \frac{1}{\tau^2}\Bigl(\sum_u p_u z_u - z_y\Bigr)$$
#
# In words: if the logit of the drawn word is below the mean logit, in which each logit counts by
# its probability, a higher temperature would have made the word more probable.


# %%
class DrawnLogProbability(Layer):
    """logits (T, N), temperature (1,) -> log p (T,) of the words `drawn`, with backward by hand."""

    def __init__(self, drawn):
        self.drawn = drawn

    def forward(self, logits, temperature):
        p = softmax(logits / temperature)
        self.save(logits=logits, temperature=temperature, p=p)
        return np.log(p[np.arange(len(p)), self.drawn])

    def backward(self, dlog_p):
        logits, temperature, p = self.pop_saved().values()
        dquotients = -dlog_p[:, None] * p
        dquotients[np.arange(len(p)), self.drawn] += dlog_p
        return dquotients / temperature, -(dquotients * logits).sum() / temperature**2


@show
def gradient_check():
    """The gradients of logits and temperature, and how far they are from measured ones."""
    rng = np.random.default_rng(10)
    layer = DrawnLogProbability(rng.integers(7, size=4))
    found = check(layer, [rng.standard_normal((4, 7)), np.array([0.7])])
    numbers = [(f"{row.explicit:.6f}".replace("-", "−"), scientific(row.error)) for row in found]
    rows = [
        (name, *both) for name, both in zip(("the logits", "the temperature"), numbers, strict=True)
    ]
    return table(["gradient of", "explicit", "relative error"], rows)


# %% [markdown]
# **What it is good for.** Suppose that somebody rates the words: each word $y$ that may be drawn
# has a reward $r_y$. The model should be well rewarded on average: $R = \sum_y p_y r_y$ should
# grow. With four words we can compute its gradient: $\mathrm{d}p_y = r_y$, and back through the
# softmax (lesson 3) $\mathrm{d}z_u = p_u (r_u - R)$. Over all possible translations nobody can
# compute this sum. But the derivative of $p_y$ is $p_y$ times that of $\log p_y$, so the same
# gradient is
#
# $$\mathrm{d}z_u = \sum_y p_y\, r_y \bigl([u = y] - p_u\bigr)$$
#
# This is a mean over draws: each $y$ comes with the probability $p_y$. So draw a word, multiply the
# gradient of its $\log p$ by its reward, and take the mean over a few draws. That is **REINFORCE**
# (Williams 1992). With it models are trained on what they wrote themselves, with BLEU or a person's
# judgement as the reward.


# %%
@show
def reinforce():
    """The gradient of the mean reward, exactly and from draws."""
    rewards, rng = np.array([0.0, 1.0, 2.0, -1.0]), np.random.default_rng(10)
    exact = softmax_backward(rewards[None], FOUR[None])[0]
    rows = [("exact", *(f"{x:.3f}" for x in exact), "")]
    for count in (10, 1000, 100_000):
        drawn = rng.choice(4, size=count, p=FOUR)
        each = rewards[drawn, None] * (np.eye(4)[drawn] - FOUR)
        error = np.linalg.norm(each.mean(axis=0) - exact)
        rows.append((f"{count:,} draws", *(f"{x:.3f}" for x in each.mean(axis=0)), f"{error:.3f}"))
    rows = [[cell.replace("-", "−") for cell in row] for row in rows]
    return [
        table(["", *(f"word {n}" for n in range(1, 5)), "how far off"], rows),
        Words("""
            Words with the probabilities 0.5, 0.3, 0.1 and 0.1 have the rewards 0, 1, 2 and −1. The
            mean over draws is right on average, but slow: with a hundred times as many draws it is
            ten times as exact.
        """),
    ]


# %% [markdown]
# ## Several checkpoints, several models
#
# While a model is trained its weights wander: each batch pulls them in another direction. The paper
# therefore takes the **mean of the weights** of the last five *checkpoints*, weights saved during
# the training (section 6.1; the last 20 for the big model). What single steps changed
# by chance cancels out. The result is one model, no slower than any of them.
#
# Or let several models write together. An **ensemble** takes the mean of their *probabilities* in
# each step: $p(y) = \frac{1}{M}\sum_m p_m(y)$. The price: all $M$ of them have to compute in every
# step.


# %%
@show
def the_lines_of_together():
    """The mean of weights, and a step of an ensemble."""
    return [
        Beside(
            mean,
            {
                "xp = ": "",
                "total = ": "Summed in float64, or small differences would be lost.",
                "for array": "The same weight of each checkpoint.",
                "return": "Back in the type of the weights.",
            },
        ),
        Beside(
            Ensemble.step,
            {
                "pairs = ": "Each model has read the same words, and has a cache of its own.",
                "p = ": "$p_m$, for each model.",
                "mean = ": "Their mean.",
                "with np.errstate": "Its logarithm. Greedy choice, beams and draws use it like "
                "logits.",
            },
        ),
    ]


@show
def together():
    """Perplexity and BLEU of single checkpoints, their mean, and models that write together."""
    found = measured(10)["together"]
    rows = [(name, f"{x['perplexity']:.2f}", f"{x['bleu']:.2f}") for name, x in found.items()]
    singles = [x for name, x in found.items() if name.startswith("checkpoint")]
    best = min(x["perplexity"] for x in singles)
    averaged, five = found["their mean"], found["all five, as an ensemble"]
    other, both = found["the other translator"], found["the mean and the other"]
    mixed = found["weights of both, averaged"]
    assert averaged["perplexity"] < best and five["perplexity"] < best
    assert other["perplexity"] < both["perplexity"] < averaged["perplexity"]
    assert mixed["perplexity"] > 100
    return [
        table(
            ["who writes", "perplexity", "BLEU"],
            rows,
            f"Perplexity on the development sentences; BLEU of {FEW} sentences of the test set, "
            "beam 4, α 0.6. The checkpoints are 100 steps apart.",
        ),
        Words(f"""
            The checkpoints are those of a second translator, trained for a quarter of the time, at
            a learning rate that stays high. The best of them has a perplexity of {best:.2f}, the
            mean of the weights {averaged["perplexity"]:.2f}. All five as an ensemble have
            {five["perplexity"]:.2f}: no better than the mean, at five times the cost. (With so few
            sentences, BLEU cannot tell them apart.)

            Do two models write better than one? Only if both are good. Our first translator alone
            has a perplexity of {other["perplexity"]:.2f}. Together with the second one's mean it
            has {both["perplexity"]:.2f}: each has an equal say, and the weak one spoils more than
            it adds. Two equally good models make *different* mistakes, so together they write
            better. `translate --preset hour`, trained twice, has a BLEU of 41.4 and 41.7, and
            together 42.6 (the project's README).

            And do not take the mean of the *weights* of two models. For these two it has a
            perplexity of {mixed["perplexity"]:,.0f}. What one has learned in its third number the
            other has in its fiftieth. The mean works for checkpoints of one run, because these are
            close together.
        """),
    ]


# %% [markdown]
# ## In the running example
#
# The translator of the [home page](index.html) chooses greedily, as we did in the small language of
# two words, and gets the bear wrong. Does a wider beam know better?


# %%
@show
def in_the_running_example():
    """What the translator writes with beams of several widths."""
    model, source = small.model("translator"), pad_sources([running.SOURCE])
    rows = []
    for beam in (1, 2, 4, 8):
        ((best,),) = n_best(model, source, small.LENGTH, 1, beam, alpha=0.0)
        rows.append((beam, f"*{running.text(best.ids)}*", minus(best.score)))
    right = np.log(running.step().chances[range(len(running.SAYS)), [*running.TARGET, END]]).sum()
    assert right < float(rows[-1][2].replace("−", "-"))
    return [
        table(["beam", "best translation", "log probability"], rows),
        Words(f"""
            No: the right sentence has the log probability {minus(right)}, less than all of these. A
            search can only find what the model thinks probable. To learn what a bear is, it has to
            be trained (lesson 8).
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $q = z/\tau$ are the logits divided by the temperature, $y$ is the word that was drawn.
#
# | choice | rule |
# |---|---|
# | greedy | the largest $z_v$ |
# | temperature | $p = \mathrm{softmax}(z/\tau)$ |
# | top-k | the $k$ largest $p_v$, made to sum to 1 |
# | top-p | the fewest largest $p_v$ whose sum reaches the share, made to sum to 1 |
# | beam | of all continuations the best few, by $\sum_t \log p(y_t)$ |
# | length penalty | $\log p(y)$ divided by $((5 + T)/6)^{\alpha}$ |
# | cache | $K$ and $V$ grow by a row; $Q$, $A$ and $Y$ have one row |
# | checkpoints | the mean of weights |
# | ensemble | the mean of probabilities |
#
# | forward | backward |
# |---|---|
# | $\log p_y$ of what was drawn | $\mathrm{d}q_u = [u = y] - p_u$ |
# | $q = z/\tau$ | $\mathrm{d}z = \mathrm{d}q/\tau$ |
# | the same | $\mathrm{d}\tau = -\sum_u \mathrm{d}q_u\,z_u/\tau^2$ |
# | mean reward $\sum_y p_y r_y$ | mean over draws of $r_y\,([u = y] - p_u)$ |


# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims about generation, computed again."""
    logits = np.array([[2, 1, 0.5, -0.5]])
    printed = np.array([0.506, 0.186, 0.113, 0.042])
    right = softmax(logits)[0]
    assert abs(printed.sum() - 1) > 0.1
    nucleus = int(drawing.choose("open", 1.0, 1e9, 0.9, 1)["left"])
    words = drawing.OTHERS + drawing.SHOWN
    rows = measured(10)["beams"]
    gains = [(a["beam"], b["beam"]) for a, b in itertools.pairwise(rows) if b["log_p"] > a["log_p"]]
    d_model, d_ff, length = 128, 256, 256
    of_scores = 2 * length * d_model  # products of a query with keys, of weights with values
    of_weights = 4 * d_model**2 + 2 * d_model * d_ff
    return Words(f"""
        **“softmax([2, 1, 0.5, −0.5]) at temperature 1 is [0.506, 0.186, 0.113, 0.042].”** These do
        not even sum to 1, but to {printed.sum():.3f}. The right numbers are
        [{", ".join(f"{p:.3f}" for p in right)}].

        **“Top-p 0.9 keeps 90 % of the words.”** It keeps the fewest that have 90 % of the
        *probability*. At *open*, our least certain place, these are {nucleus} of {words:,}. (The
        vocabulary has {words + len(DEFAULT_IDS.unwritten):,} symbols. Three of them are never
        written: padding, the start mark, and the mark of unknown symbols.)

        **“Beam search finds the most probable translation.”** Only if the beam is wide enough. In
        the table above, going from {gains[-1][0]} to {gains[-1][1]} hypotheses still found more
        probable ones.

        **“A wider beam is better.”** What it finds is more probable. But beyond a beam of 4
        BLEU hardly moved, and in the end it fell, as you saw [above](#is-a-wider-beam-better).

        **“With the cache the time no longer depends on the length.”** A new word still meets every
        key. In the model measured above, at {length} words, the scores and the blend take
        {of_scores:,} products for each layer, and the weight matrices {of_weights:,}. The first
        number grows with every word.

        **“Temperature 0 divides by zero.”** The formula does. Its limit does not: it is greedy
        choice, and that is what the library does.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            "Three words have the probabilities 0.6, 0.3 and 0.1. With temperature 0.5, what is "
            "the probability of the first? (Two decimals.)",
            "Each is squared: 0.36, 0.09 and 0.01, together 0.46. And 0.36 / 0.46 is about 0.78.",
            0.36 / 0.46,
            mistakes={
                0.6: "That is the probability at temperature 1. A temperature below 1 makes "
                "probable words still more probable.",
                0.36: "You squared it. Now make the three squares sum to 1.",
                0.6**0.5 / (0.6**0.5 + 0.3**0.5 + 0.1**0.5): "You took square roots, which is "
                "temperature 2. The power is *one over* the temperature.",
                float(softmax(np.array([0.6, 0.3, 0.1]) / 0.5)[0]): "You put probabilities into "
                "the softmax. It takes logits: the temperature divides the logarithms.",
                1.2: "You divided the probability by the temperature. It is the logit that is "
                "divided, and a probability is at most 1.",
                0.3: "You multiplied the probability by the temperature. It is the logit that is "
                "*divided* by it.",
            },
        ),
        Question(
            "The probabilities are 0.5, 0.3, 0.1 and 0.1. How many words does top-p 0.8 leave, and "
            "how many top-p 0.85?",
            "0.5 + 0.3 reach 0.8, so two are enough. 0.85 needs a third.",
            2,
            {
                "two, two": "The two most probable words have 0.8 together. That is not enough for "
                "0.85.",
                "three, three": "You asked for *more* than 0.8. The first two words have exactly "
                "0.8 together, and that is enough.",
                "two, three": "",
            },
        ),
        Question(
            "With a beam of 4, can all four hypotheses of the next step continue the same one?",
            "All continuations compete, whichever hypothesis they continue. If one hypothesis is "
            "far ahead, its four best continuations may all be better than any of the others.",
            1,
            {
                "no, each goes on in its best way": "This would be four searches side by side. In "
                "a beam all continuations compete, so a poor hypothesis can be dropped.",
                "yes": "",
                "only with a length penalty": "A length penalty compares hypotheses of different "
                "lengths. Within a step all are equally long.",
            },
        ),
        Question(
            "Ten words are written without a cache. How many rows in all go through the "
            "projections of a layer?",
            "1 + 2 + … + 10 = 55. With the cache there are 10.",
            10 * 11 // 2,
            mistakes={
                10: "That is the number with a cache. Without one, each step computes the rows of "
                "all words so far again.",
                10 * 10: "You gave each step ten rows. The first step has only one row, the second "
                "two.",
                9 * 10 // 2: "You began with no row. The first step already has one, for the start "
                "mark.",
                11 * 12 // 2: "You counted an eleventh step. The tenth word is written in step 10, "
                "and no step reads it.",
            },
        ),
        Question(
            "Why are queries not in the cache?",
            "A query is used once, in the step of its own word. Later words have queries of their "
            "own, and they meet the old *keys*.",
            0,
            {
                "No later step needs them.": "",
                "They change with each new word.": "A query depends on its own word and on those "
                "before it, so a new word does not change it.",
                "They are as large as the keys, and there is no room.": "It is true that they are "
                "as large as the keys. But a cache makes room for whatever is needed again.",
            },
        ),
        Question(
            "A word with $p = 0.3$ was drawn, at temperature 1. What is the gradient of $\\log p$ "
            "of this word, for its own logit?",
            "$[u = y] - p_u = 1 - 0.3$. The others get minus their probability, together −0.7.",
            1 - FOUR[1],
            mistakes={
                -0.7: "The size is right, the sign is not. This is the gradient of the *loss*, "
                "$-\\log p$; a higher logit raises $\\log p$.",
                0.3: "That is the probability itself. The gradient is 1 minus it.",
                -0.3: "That is the gradient for a word with this probability that was *not* drawn. "
                "For the drawn one, 1 is added.",
                1 / 0.3: "That is the derivative of $\\log p$ with respect to $p$. The way from "
                "$p$ to the logit still leads through the softmax.",
                0.3 * 0.7: "That is the gradient of $p$. The logarithm divides it by $p$.",
            },
        ),
        Question(
            "Two models of the same kind were trained from different random weights. Of what may "
            "you take the mean?",
            "Their probabilities mean the same, word by word. Their weights do not: what one keeps "
            "in one place the other keeps elsewhere.",
            1,
            {
                "their weights": "This works for checkpoints of one run, which are close to each "
                "other. Two runs store what they know in different places.",
                "their probabilities": "",
                "both": "For the probabilities this is right. For the weights it is not: look at "
                "the perplexity of such a mean in the text above.",
            },
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 10 mine.py` writes them into a file, and `python -m lessons check 10 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `writing.py` and `beam.py` in `numformer/paper`, `sampling.py` and `ensemble.py` in
#   `numformer/generation`; `memory.py` in `numformer/paper`, `average.py` in `numformer/training`.
# - *Attention Is All You Need*, section 6.1, and Wu et al. 2016, *Google's Neural Machine
#   Translation System*, section 7: beams and penalties.
# - Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*: why the most probable text
#   is not what people write.
# - Stahlberg and Byrne 2019, *On NMT Search Errors and Model Errors*: what an exact search finds:
#   often the empty translation.
# - Williams 1992, *Simple Statistical Gradient-Following Algorithms*: REINFORCE.
# - Lesson 13: what the cache costs, and variants that keep less.
