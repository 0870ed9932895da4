# %% [markdown]
# # Connections
#
# > What became of the Transformer?

# %%
import math

import numpy as np

from lessons import running
from lessons.kit.facts import fact
from lessons.kit.lesson import Beside, Picture, Words, scientific, show, table
from lessons.kit.models import measured
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.kit.views import amount
from lessons.lesson_11 import small
from lessons.lesson_12 import families, landscape, sizes
from lessons.lesson_12.exercises import EXERCISES
from lessons.lesson_12.landscape import HOUR, LENGTHS, P100, TABLE_2
from lessons.lesson_12.sizes import PRESETS, count_operations, count_parameters, counted
from numformer import LanguageModel, RMSNorm, Transformer
from numformer.gradient_check.gradients import check
from numformer.later import Checkpointed
from numformer.later.activations import SwiGLU
from numformer.later.rms_norm import rms_norm_backward
from numformer.paper import FeedForward, Linear

PAPER = {name: sizes.compute(**preset) for name, preset in PRESETS.items()}
YEAR = 365.25 * 24 * HOUR


@show
def what_it_is_made_of() -> Simulation:
    """The first simulation: parameters and operations of any Transformer."""
    return sizes.ledger


# %% [markdown]
# Everything in this ledger is counted from seven sizes and two choices. First count one model
# yourself. Then see what others made of the same parts.
#
# ## Count a model
#
# GPT-2 small has 12 layers of width $D = 768$. Attention has four square matrices. The feed-forward
# network has two, from $D$ to $F = 3072$ and back. Each product has a bias.


# %%
@show
def by_hand():
    """GPT-2 small, counted step by step."""
    d, f, total = 768, 3072, int(PAPER["GPT-2 small"]["total"])
    attention, network, norms = 4 * d**2 + 4 * d, 2 * d * f + f + d, 4 * d
    layer, rows = attention + network + norms, (50257 + 1024) * d
    assert 12 * layer + rows + 2 * d == total == 124_439_808
    return Words(f"""
        Attention has 4 · {d}² + 4 · {d} = {attention} parameters, the network 2 · {d} · {f} + {f} +
        {d} = {network}. Two norms have {norms}. So a layer has {attention} + {network} + {norms} =
        {layer}.

        Each of 50,257 symbols has a row, and so has each of 1,024 places: {rows} numbers. The
        logits use the rows of the symbols again. One norm follows the last layer. Together
        12 · {layer} + {rows} + 2 · {d} = {total}: exactly as many as the published GPT-2 small has
        (Radford et al. 2019).

        For *Marian* the ledger says {PAPER["Marian"]["total"]:,.0f}. Programs that count that
        model print 74,410,496: they leave out the {58101:,} biases of the logits, and count two
        tables of sinusoids (512 places, width 512). None of these numbers are trained.
    """)


# %% [markdown]
# An operation is one multiplication or one addition. A product of $(T, D)$ and $(D, F)$ has $TF$
# results, each a sum of $D$ products: $2TDF$ operations. The ledger counts matrix products alone:
# norms, softmax and sums need few operations compared with them.
#
# $$\text{attention:}\quad 8TD^2 + 4T^2D$$
#
# $$\text{feed-forward:}\quad 4TDF$$
#
# Four projections make the first term; scores and blends make the second, the only one with $T^2$.
# With $F = 4D$ it is as large as *everything else* in the layer when $T = 2D + F = 6D$.


# %%
@show
def the_lines_of_the_ledger():
    """The functions behind the figure, line by line."""
    parameters = {
        "bias": "Four switches: models differ from the paper in these details.",
        "towers": "Encoder, decoder, or both.",
        "crossing": "Only a decoder that has an encoder to look at needs cross-attention.",
        "attention": r"$W^Q, W^K, W^V, W^O$. The number of heads does not occur: they share the "
        "columns.",
        "network": "Two matrices and two biases.",
        "norm": r"$\gamma$ and $\beta$.",
        "tables": "One table for all, or one for each tower.",
        "return": "The eight rows, in the ledger's order.",
    }
    operations = {
        "crossing": "As above.",
        "attention": "Projections, then pairs. With a causal mask nearly half of the pairs could "
        "be skipped; all of them are counted.",
        "network": "Two products.",
        "return": "Looking up an embedding multiplies nothing. The logits are a product with the "
        "row of every symbol.",
    }
    return [Beside(count_parameters, parameters), Beside(count_operations, operations)]


# %% [markdown]
# Is it true? We can record the library's operations while it runs, as on the page of lesson 9. Then
# we add up the operations of its matrix products, forward and backward.


# %%
@show
def counted_by_running():
    """Parameters and operations of small models, by formula and by running them."""
    rng, rows = np.random.default_rng(12), []
    small = dict(d_model=16, d_ff=32, heads=2, layers=3, p_drop=0.0)
    ids = rng.integers(4, 50, (1, 9))
    for name, model, given, towers in (
        ("decoder", LanguageModel(LanguageModel.Config(vocabulary=50, **small)), 2, (0, 3)),
        ("both", Transformer(Transformer.Config.base(50, **small)), 3, (3, 3)),
    ):
        formula = sum(count_operations(*towers, 16, 32, 50, 9))
        forward, backward = counted(model, *[ids] * given)
        assert forward == formula and backward == 2 * forward
        rows.append((name, f"{formula:,}", f"{forward:,}", f"{backward:,}"))
    return [
        table(
            ["model", "forward, formula", "forward, counted", "backward, counted"],
            rows,
            "Three layers of width 16 on 9 symbols. “Both” has three layers and 9 symbols in each "
            "tower.",
        ),
        Words("""
            Backward has exactly twice as many. Each product $Y = XW$ of forward gives two:
            $\\mathrm{d}X = \\mathrm{d}Y\\,W^\\top$ and $\\mathrm{d}W = X^\\top\\,\\mathrm{d}Y$. So
            a training step costs three forwards. In a forward each weight takes part in one
            multiplication and one addition for each word. So a step takes 6 operations for each
            parameter and word: the rule $C = 6ND$ of Kaplan et al. 2020 ($N$ parameters, $D$
            words). The ledger shows how far off the rule is. Watch it while you make the sequence
            longer.
        """),
    ]


# %% [markdown]
# ## Where everything is
#
# Here is the architecture once more, as a map of this repository. Each box of the picture leads to
# its lesson. The table names the file of each part and its gradient check.


# %%
@show
def the_map():
    """The architecture with lessons, files and gradient checks."""
    return landscape.PartsMap()


# %% [markdown]
# ## Four kinds of models
#
# The Transformer of 2017 has two towers. Most of its descendants have one.
#
# - **Encoder only** (BERT, Devlin et al. 2019): every word sees every word. It fills holes in a
#   text, all at once: `numformer/models/masked.py`.
# - **Decoder only** (GPT, Radford et al. 2018; before it Liu et al. 2018): there is one text, and
#   no word sees a later one: `numformer/models/language_model.py`.
# - **Encoder-decoder**: the source is read in both directions, the target is written from left to
#   right: `numformer/models/encoder_decoder.py`.
# - **Recurrent**, with attention (Bahdanau et al. 2015): `numformer/models/recurrent.py`.
#
# We give all four the same small task, and about 200,000 parameters each.


# %%
@show
def four_kinds() -> Simulation:
    """The second simulation: four kinds of models learn one task."""
    return families.figure()


@show
def what_the_four_learned():
    """The same in numbers."""
    runs = measured(12)["families"]
    rows = []
    for name in families.FAMILIES:
        back, either = (runs[task][name] for task in families.TASKS)
        first = next(n for n, share in zip(families.AT, back["right"], strict=True) if share > 0.95)
        shares = (f"{100 * run['right'][-1]:.0f} %" for run in (back, either))
        rows.append((name, f"{back['parameters']:,}", first, f"{back['seconds']:.0f}", *shares))
    floor = math.log(2) / families.WIDTH
    alone = runs["either way"]["encoder only"]["losses"][-1]
    return [
        table(
            ["kind", "parameters", "95 % at step", "seconds", "backwards", "either way"],
            rows,
            f"{families.STEPS} steps, one run each, one thread. Steps and seconds are those of "
            "“backwards”. Last two columns: the share of 256 new sources whose target was written "
            "without a mistake.",
        ),
        Words(f"""
            *Backwards* is easy for all, and here the recurrent network with attention learns it in
            the fewest steps: a task so small and regular does not need a Transformer.

            *Either way* shows what a decoder is for. A target begins with `>` or `<`, each half of
            the time, and this sign decides all that follows. A decoder chooses a sign, **reads its
            own choice**, and goes on accordingly. The encoder fills all holes at once. For each
            hole it knows two possible digits, but no hole knows what the others choose. Its loss
            stays at {alone:.2f}, near log 2 ≈ {math.log(2):.2f} for each hole. A model that reads
            what it wrote can reach {floor:.3f} at best: log 2 once in nine symbols.
        """),
    ]


# %% [markdown]
# ## The family tree


# %%
@show
def family_tree():
    """Some of the descendants, by year and kind."""
    return Picture(
        "lesson_12_tree",
        landscape.draw_tree,
        "A family tree from 2014 at the top to 2024. From the recurrent column an arrow leads to "
        "the Transformer, and from there to encoders, to encoder-decoders, and to decoders, GPT to "
        "LLaMA. S4 and Mamba stand in the recurrent column again.",
        "A few of many, by year: Sutskever et al. 2014, Bahdanau et al. 2015, Vaswani et al. 2017, "
        "Radford et al. 2018, Devlin et al. 2019, Raffel et al. 2020, Brown et al. 2020, "
        "Dosovitskiy et al. 2021, Gu et al. 2022, Radford et al. 2023, Touvron et al. 2023, Gu and "
        "Dao 2023.",
        size=(4.2, 4.6),
    )


# %% [markdown]
# Why did the decoder alone win? Not because of who looks at whom: on the task above an
# encoder-decoder does as well. But a decoder reads and writes with the same weights, it can learn
# from any text without a paired one, and you can state a task in words: the source is whatever
# stands before.
#
# ## Table 1: what a layer costs
#
# The paper compares layers by three things: operations, how many of them are sequential (each waits
# for the one before), and the longest path between two words. Here its table stands beside the
# times of our layers, forward and backward. **Guess:** at which length does attention become slower
# than an LSTM of the same width?


# %%
@show
def table_1():
    """Table 1 of the paper beside measured times."""
    theory = {
        "self-attention": ("$n^2 d$", "1", "1"),
        "recurrent (LSTM)": ("$n d^2$", "$n$", "$n$"),
        "restricted (window)": ("$r n d$", "1", "$n / r$"),
        "convolutional": ("$k n d^2$", "1", r"$\log_k n$"),
    }
    found = landscape.costs()
    rows = []
    for name, said in theory.items():
        times = [f"{1000 * seconds:.0f}" for seconds in found.get(name, ())] or len(LENGTHS) * ["-"]
        rows.append((name, *said, *times))
    more = (8 * landscape.WIDTH + 4 * LENGTHS[-1]) / (16 * landscape.WIDTH)
    first, last = (found["recurrent (LSTM)"][n] / found["self-attention"][n] for n in (0, -1))
    return [
        table(
            ["layer", "operations", "sequential", "path", *(f"$n$ = {n:,}" for n in LENGTHS)],
            rows,
            f"Milliseconds of one thread for {landscape.WORDS:,} words in sequences of $n$, $d$ = "
            f"{landscape.WIDTH}, window {landscape.NEAR}, causal. The paper's formulas leave out "
            "constant factors and attention's projections, $4nd^2$.",
        ),
        Words(f"""
            At {LENGTHS[0]} words the LSTM takes {first:.1f} times as long as attention, at
            {LENGTHS[-1]:,} words {last:.1f} times. Yet attention has {more:.1f} times as many
            operations there, if we count all pairs (our causal layer skips nearly half of them).
            The LSTM has nothing large to multiply: it goes through the text step by step, and the
            longer the sequences, the fewer are in a batch and the smaller its products.
            (numformer has convolutions only within Mamba,
            `numformer/later/mixers/convolution.py`, so that row is not measured.)
        """),
    ]


# %% [markdown]
# ## Table 2: what training costs
#
# The paper's Table 2 gives BLEU and the operations of training. Where do the $3.3 \cdot 10^{18}$ of
# *base* come from? From a clock (footnote 5): the time of training, times the number of processors,
# times the operations that one of them can do in a second.


# %%
def exact(number: float) -> str:
    """A number such as 2.3e19 as a formula, with two digits."""
    digits, power = f"{number:.1e}".split("e")
    return rf"${digits} \cdot 10^{{{int(power)}}}$"


@show
def table_2():
    """Table 2 of the paper, where its operations come from, and those of our translator."""
    processors, words = fact("processors"), fact("tokens of a batch")
    hours, steps = fact("hours of training"), fact("steps of training")
    clock = [processors * hours[name] * HOUR * P100 for name in ("base", "big")]
    done = [
        steps[name]
        * words
        * float(PAPER[f"{name} (2017)"]["step"])
        / PRESETS[f"{name} (2017)"]["length"]
        for name in ("base", "big")
    ]
    base_operations = TABLE_2["Transformer (base)"][2]
    ours, speed = measured(12)["translator"], landscape.rate()
    rows = [
        (
            name,
            *(f"{bleu:g}" if bleu else "-" for bleu in row[:2]),
            *(exact(cost) if cost else "-" for cost in row[2:]),
        )
        for name, row in TABLE_2.items()
    ]
    return [
        table(
            ["model", "BLEU en-de", "BLEU en-fr", "operations en-de", "operations en-fr"],
            rows,
            "Table 2 of the paper, newstest2014.",
        ),
        Words(f"""
            For *base* {processors} · {hours["base"]} · 3600 · {exact(P100)} = {exact(clock[0])}:
            twelve hours on eight P100. For *big* {processors} · {hours["big"]} · 3600 ·
            {exact(P100)} = {exact(clock[1])}. That is what the
            machines *could* have done. Our ledger knows what the model *needed*:
            {amount(PAPER["base (2017)"]["step"])} for 25 words on each side, so {exact(done[0])} in
            {steps["base"]:,} steps of {words:,} words. That is {100 * done[0] / clock[0]:.0f} % of
            what the machines could have done. (For *big* it is {100 * done[1] / clock[1]:.0f} %.)

            **Our translator** (`python -m toy_tasks.translate --preset minutes`) has
            {ours["parameters"]:,} parameters, reads 29,000 pairs {ours["epochs"]:.1f} times, with
            about {ours["words"]:.0f} subwords on each side, and needs {exact(ours["operations"])}
            operations: *base* needs {done[0] / ours["operations"]:,.0f} times as many. It has
            {ours["bleu"]:.1f} BLEU, but on an easier test (Multi30k's captions of pictures, short
            and all alike). So we cannot compare the two BLEU scores. We can compare the operations.

            **And on this computer?** In products of large matrices one thread does
            {speed / 1e9:.0f} billion operations a second. For the {exact(base_operations)} of the
            table it would take {base_operations / speed / YEAR:.1f} years; for what the model needs
            {done[0] / speed / YEAR:.2f} years, if it did nothing but large products.
        """),
    ]


# %% [markdown]
# ## Table 3: what matters
#
# Table 3 changes one thing at a time. `python -m toy_tasks.ablation` does the same on a small
# scale: a model learns to pronounce French, with five seeds for each row. If it agreed with the
# paper, all points below would lie on a rising line.


# %%
def signed(number: float, places: int) -> str:
    return f"{number:+.{places}f}".replace("-", "−")


@show
def table_3():
    """Our rows of Table 3 beside those of the paper."""
    base, *rows = landscape.ablation()
    apart = [row for row in rows if row.lowest > base.highest or row.highest < base.lowest]
    agree = [row for row in apart if (row.errors > base.errors) == (row.bleu < base.bleu)]
    fewer = [row for row in rows if row.name[0] in "AB" or row.parameters < base.parameters]
    together = [
        np.corrcoef([row.bleu for row in some], [row.errors for row in some])[0, 1]
        for some in (rows, fewer)
    ]
    cells = [
        (
            row.name,
            f"{row.parameters:,}",
            signed(row.bleu - base.bleu, 1),
            f"{signed(row.errors - base.errors, 2)} ({row.lowest:.1f} to {row.highest:.1f})",
        )
        for row in rows
    ]
    return [
        Picture(
            "lesson_12_ablation",
            landscape.draw_ablation,
            "A dot for each row of Table 3: to the right how much BLEU the paper lost by it, "
            "upwards how many more errors our small model makes. Most dots lie right of 0 and "
            "above 0; they form no line.",
            "Each row, compared with the base. A dot right of 0 is worse in the paper, a dot above "
            "0 is worse here.",
            size=(4.2, 4),
        ),
        table(
            ["row", "our parameters", "BLEU, paper", "errors in %, ours (all seeds)"],
            cells,
            f"Differences from the base. The paper's base has {base.bleu} BLEU, ours makes "
            f"{base.errors:.1f} % errors ({base.lowest:.1f} to {base.highest:.1f}). Brackets: the "
            "errors of the best and of the worst seed.",
        ),
        Words(f"""
            There is no line. Our errors and the paper's BLEU have a correlation of
            {signed(together[0], 2)}; it would be near −1 if both studies agreed. Among rows A and B
            and the rows smaller than the base it is {signed(together[1], 2)}. Of {len(rows)}
            rows only {len(apart)} differ so clearly that all their seeds lie outside the range of
            the base, and {len(agree)} of these agree with the paper: one head, one layer, four
            layers, dropout 0.2. The fifth does not: twice the width is worse here, because so wide
            a model would need more steps. The paper has one run for each row. So its differences
            of 0.3 BLEU or less say little.
        """),
    ]


# %% [markdown]
# ## What came after
#
# Models of today differ from the paper in perhaps a dozen places. Each of these has a paragraph
# here, most with an equation and the file where numformer has it. [Another page](published.html)
# says which of them GPT-2, BERT, ViT, T5 and Llama have chosen, and what that costs.
#
# **Pre-norm** (Xiong et al. 2020). The norm moves into the branch, $y = x + f(\mathrm{norm}(x))$,
# so nothing stands in the way of the gradient from the last layer to the first. Lesson 6;
# `norm="pre"`, `numformer/later/pre_norm.py`.
#
# **RMSNorm** (Zhang and Sennrich 2019). LayerNorm without the mean and the shift: $y = \gamma \odot
# x\,r$ with $r = (m(x^2) + \varepsilon)^{-1/2}$, where $m$ is the mean over the $D$ entries.
# `numformer/later/rms_norm.py`. Derive its backward: an entry $x_j$ reaches $\hat x_j = x_j r$
# directly, and all $\hat x_i$ through $r$, whose slope is $-r^3 x_j / D$. With $g = \mathrm{d}y
# \odot \gamma$,
#
# $$\mathrm{d}x_j = r\,g_j - \sum_i g_i x_i \frac{r^3 x_j}{D}$$
#
# $$= r\,(g_j - \hat x_j\,m(g\,\hat x))$$
#
# It is LayerNorm's formula (lesson 6) without the part that came from the mean.


# %%
@show
def the_lines_of_rms_norm():
    """RMSNorm's backward, line by line."""
    notes = {
        "dgamma": r"$\mathrm{d}\gamma = \sum_t \mathrm{d}y_t\,\hat x_t$",
        "dx_hat": r"$g = \mathrm{d}y \odot \gamma$",
        "along_x_hat": r"$m(g\,\hat x)$, one number for each position.",
        "dx = ": "The result is written into the memory of $g$.",
        "dx -= ": r"$g - \hat x\,m(g\,\hat x)$: the part of $g$ along $x$ is taken out, since a "
        "longer or shorter $x$ gives the same $y$.",
        "dx *= ": r"$\mathrm{d}x = r\,(\ldots)$",
        "return": "",
    }
    return Beside(rms_norm_backward, notes)


# %% [markdown]
# **SwiGLU** (Shazeer 2020). The hidden layer is a product of two: $(\mathrm{swish}(xW) \odot
# xV)\,W_2$ with $\mathrm{swish}(g) = g / (1 + e^{-g})$. These are three matrices instead of two, so
# $F$ is usually reduced to two thirds. `activation="swiglu"`, `numformer/later/activations.py`; its
# backward is an exercise.
#
# **Rotary positions** (Su et al. 2021). Queries and keys are turned by an angle that grows with the
# place, $q_t' = R_t q_t$. Then places enter the score $q_t'^\top k_s' = q_t^\top R_{s-t} k_s$ only
# through their distance. **ALiBi** (Press et al. 2022) lowers each score with the distance,
# $z_{ts} - m_h\,(t - s)$, by a slope $m_h$ for each head. Lesson 5; `rotary.py` and `alibi.py` in
# `numformer/later/attention`.
#
# **Grouped queries** (Ainslie et al. 2023; one group: Shazeer 2019). Several heads share keys and
# values: with $g$ groups each $K$ serves $h / g$ heads, and the cache below shrinks by this factor.
# Lesson 13; `numformer/later/attention/tiles.py`.
#
# **Windows and patterns** (Child et al. 2019; Beltagy et al. 2020). A word sees only the nearest
# ones, $0 \le t - s < w$, or those of another pattern. Lesson 13;
# `numformer/later/attention/patterns.py`.
#
# **Attention in blocks** (FlashAttention, Dao et al. 2022). The result is the same, but the scores
# are never stored as a whole. Backward computes $A = e^{Z - \ell}$ again, where $\ell$ is the
# logarithm of each row's sum of exponentials. Lesson 13; `numformer/later/attention/tiles.py`.
#
# **The cache of keys and values.** A model that writes word $t$ needs $K_{\le t}$ and $V_{\le t}$,
# and of these only the last row is new. So it keeps the others: `numformer/paper/memory.py`. The
# ledger says how many bytes the cache needs: $8NTD$ in float32 for a decoder alone.
#
# **Linear attention** (Katharopoulos et al. 2020): a running sum $S_t = S_{t-1} + \phi(k_t)^\top
# v_t$ replaces the scores, and the cost no longer grows with $T^2$. **State spaces** (Gu and Dao
# 2023): the same sum, with a decay that each word chooses. Lesson 13; `linear_attention.py`,
# `state_space.py`.
#
# **Checkpointing** (Chen et al. 2016). Forward keeps the input of each layer and nothing else;
# backward computes the layer once more. So memory holds $N$ inputs and what one layer saves,
# instead of what $N$ layers save. A step then costs 4 / 3 of the operations: four forwards instead
# of three. The one difficulty is to draw the same dropout masks again:


# %%
@show
def the_lines_of_checkpointing():
    """What a checkpointed layer does before its backward."""
    notes = {
        "now": "Go back to the state of the random numbers at forward. The masks will be the same.",
        "try": "Forward, this time with saving. Afterwards the random numbers go on where they "
        "were.",
    }
    return Beside(Checkpointed.recompute, notes)


# %% [markdown]
# **Mixed precision** (Micikevicius et al. 2018). Products are in 16 bits, sums and weights in 32. A
# gradient far below 6e-8, the least number above 0 in 16 bits, would become 0. So the loss is
# multiplied by $s$, and the gradients are divided by it: $\mathrm{d}w =
# \frac{1}{s}\,\mathrm{d}(sL)$. `numformer/optimization/loss_scale.py`.
#
# **Data parallelism.** Each processor takes a part of the batch; the gradients are added:
# $\mathrm{d}W = \sum_p \mathrm{d}W^{(p)}$. numformer does this on the cores of one computer:
# `numformer/execution/forked.py`.
#
# **Tensor parallelism** (Shoeybi et al. 2019). One matrix is cut by columns, $XW = (XW_1, XW_2)$,
# and the next one by rows, $Y_1 U_1 + Y_2 U_2$. So for two products the processors add up only
# once. The heads of attention are separate already. **Pipelines** (Huang et al. 2019): each
# processor has some layers, and $m$ parts of the batch follow each other. Each of $p$ processors
# waits for a share $(p - 1) / (m + p - 1)$ of the time. Lesson 14 explains all three.
#
# ## A larger model, or more text?


# %%
@show
def laws():
    """What two papers found."""
    *_, growth = fact("p, q, a")
    lowest, a, b, alpha, beta = fact("E, A, B, alpha, beta")
    by_size, by_text = rf"\frac{{{a}}}{{N^{{{alpha}}}}}", rf"\frac{{{b}}}{{D^{{{beta}}}}}"
    return [
        Words(f"""
            **Scaling laws** say what a budget of $C = 6ND$ operations buys. Kaplan et al. 2020
            fitted powers to the loss and advised spending most on size: $N$ should grow as
            $C^{{{growth}}}$. Hoffmann et al. 2022 measured again. Their learning rate decayed over
            exactly the length of each run. They found

            $$L = {lowest} + {by_size} + {by_text}$$

            Here $D$ is the number of words, or of their pieces, not the width. Both fractions fall
            together only if size and text grow together.
        """)
    ]


# %%
@show
def larger_or_longer() -> Simulation:
    """The third simulation: what a budget buys."""
    return landscape.budgets


# %% [markdown]
# You can measure such laws at home. `python -m toy_tasks.scaling` trains models of 1,000 to
# 3,000,000 parameters on Shakespeare, and fits two forms of a law. The better one predicts the loss
# of a model three times as large, which is then trained, too.


# %%
@show
def at_home():
    """The laws of our own models: `toy_tasks/scaling.md`."""
    laws = landscape.scaling()
    rows = [
        (
            unit,
            f"{law.by_size:.3f}",
            f"{law.by_text:.3f}",
            f"{law.growth:.2f}",
            f"{law.predicted:.3f}",
            f"{law.trained:.3f}",
        )
        for unit, law in laws.items()
    ]
    rows.append(("subwords of the web (Kaplan et al.)", *map(str, fact("p, q, a")), "", ""))
    head = ["unit", "loss ~ N^−p: p", "~ D^−q: q", "best N ~ C^a: a", "predicted", "trained"]
    missed = [f"{law.added:.3f}" for law in laws.values()]
    return [
        table(
            head,
            rows,
            "Predicted and trained: the loss of the larger model, which has 9.4 million parameters "
            "without its embedding.",
        ),
        Words(f"""
            The sum of two parts above does *not* fit here. Fitted to the models of up to 1.2
            million parameters, it misses the loss at 3.1 million by {missed[0]} for characters and
            {missed[1]} for subwords. Why? The more text, the further the largest model is ahead of
            the smallest, but in a sum it would always be ahead by the same amount. In another form
            the scarcer of size and text decides (Kaplan et al. 2020, equation 1.5):
            $L = (A N^{{-\\alpha}} + B D^{{-\\beta}})^\\gamma$. It predicts the loss at 3.1 million,
            and that of the larger model as well. A law holds for the models, the text and the
            training that it was measured on. `toy_tasks/scaling.md` says where else it fails.
        """),
    ]


# %% [markdown]
# ## Is it true?
#
# The library checks the gradients of the layers that are new here, and of all four kinds of models
# with their losses.


# %%
@show
def gradient_check():
    """The largest error among the gradients of each layer and model of this lesson."""
    rng, rows = np.random.default_rng(12), []
    x, inner = rng.standard_normal((2, 3, 6)), Linear(6, 2 * 8, rng)  # a gate beside each value
    network = FeedForward(6, 8, rng, inner, SwiGLU())
    checked = {
        "RMSNorm": (RMSNorm(6), [x]),
        "FeedForward with SwiGLU": (network, [x]),
        "Checkpointed": (Checkpointed(FeedForward(6, 8, rng)), [x]),
    }
    for name, family in families.FAMILIES.items():
        pairs = families.draw("either way", 2, rng)
        checked[name] = family.make(1, small=True).objective(), family.inputs(*pairs)
    for name, (layer, inputs) in checked.items():
        found = check(layer, inputs, directions=1)
        worst = max(found, key=lambda result: result.error)
        rows.append((name, len(found), f"`{worst.name}`", scientific(worst.error)))
    return table(["layer", "gradients checked", "the worst", "its relative error"], rows)


# %% [markdown]
# ## In the running example
#
# The translator of the [home page](index.html) has 3 layers on each side, a width of 80 and a
# feed-forward network of 160. What does it consist of, and what does one sentence cost? Here is its
# ledger for *a woman is dancing with a bear*: nine pieces in English, nine in German.


# %%
@show
def in_the_running_example():
    """The parameters of the translator, part by part, and its operations for the sentence."""
    config, length = small.config("translator"), len(running.READ)
    assert len(running.SAYS) == length and config.layers == 3
    layers, rest = (3, 3), (config.d_model, config.d_ff, len(small.symbols("translator")), length)
    held = count_parameters(*layers, *rest, 1, sizes.PRE_NORM)
    done = count_operations(*layers, *rest)
    assert sum(held) == small.weights("translator").size
    rows = [
        (name, f"{count:,.0f}", amount(work))
        for name, count, work in zip(sizes.PARTS, held, done, strict=True)
    ]
    return [
        table(
            ["part", "parameters", "operations"],
            [*rows, ("all", f"{sum(held):,.0f}", amount(sum(done)))],
        ),
        Words(f"""
            The logits, which compare each position with all {rest[2]:,} pieces, take
            {100 * done[-1] / sum(done):.0f} % of the operations; in *base* they take
            {100 * PAPER["base (2017)"]["of_operations"][-1]:.0f} %. A step of *Train* on the home
            page costs three times as much as this: {amount(3 * sum(done))} operations, all of them
            in your browser.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $T$ words, width $D$, inner width $F$, $V$ symbols, $N$ layers.
#
# | forward | backward |
# |---|---|
# | $Y = XW$: $2TDF$ operations | twice as many: $\mathrm{d}X$ and $\mathrm{d}W$ |
# | attention: $4D^2$ parameters, $8TD^2 + 4T^2D$ operations | twice as many |
# | feed-forward: $2DF$ parameters, $4TDF$ operations | twice as many |
# | one step: $6$ operations for each parameter and word | included |
# | $\hat x = xr$, $r = (m(x^2) + \varepsilon)^{-1/2}$ | $\mathrm{d}x = r(g - \hat x\,m(g\hat x))$ |
# | $y = \mathrm{swish}(g) \odot v$ | $\mathrm{d}v = \mathrm{d}y \odot \mathrm{swish}(g)$ |
# | checkpointed: keep $x$ | compute $f(x)$ again, then $f$ backward |
# | a batch in parts | $\mathrm{d}W = \sum_p \mathrm{d}W^{(p)}$ |
#
# An encoder alone fills all holes at once. A decoder alone reads what it wrote. An encoder-decoder
# reads the source in both directions, then writes.
#
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    base = PAPER["base (2017)"]["total"]
    separate = sizes.compute(**PRESETS["base (2017)"] | {"shared": 0})["total"]
    d, attentions = 512, 6 + 2 * 6
    saved = [attentions * n * d * 8 * (64 - 16) / 1e6 for n in (2, 4)]
    found = landscape.costs()
    slower = [n for n, a, b in zip(LENGTHS, *list(found.values())[:2], strict=True) if a > b]
    where = f"at {slower[0]:,}" if slower else f"at none of our lengths, up to {LENGTHS[-1]:,}"
    gopher, chinchilla = landscape.loss(280e9, 300e9), landscape.loss(70e9, 1.4e12)
    budget = 6 * 70e9 * 1.4e12
    return Words(f"""
        **“Base has 65M parameters.”** With the 37,000 shared symbols that the paper states, it has
        {base / 1e6:.1f}M; with three separate matrices of symbols, {separate / 1e6:.1f}M. Try it in
        the ledger.

        **“h=16 loses 0.3 BLEU, d_k=32 loses 1.5, d_model=1024 gains 1.1.”** Table 3 of the paper
        says 0, 0.4 and 0.2 (lesson 4 compares the numbers).

        **“d_k 16 instead of 64 saves 7M parameters.”** It saves {saved[0]:.1f}M in queries and keys
        if the values keep their 64, and {saved[1]:.1f}M if the values shrink as well.

        **“EN-FR: 41.0 BLEU.” “No, 41.8.”** Both are in the paper: the first version on arXiv has
        41.0 in its abstract and in its text, later ones 41.8 in the abstract and in Table 2, while
        section 6.1 still says 41.0. **“Base took 3.5 days.”** That was *big*. Base took 12 hours
        (section 5.2), as the arithmetic of Table 2 above confirms.

        **“Model size matters more than data.”** So it looked in 2020. By the fit of 2022 a model
        of 280 billion parameters that reads 300 billion words reaches a loss of {gopher:.3f}; one
        of 70 billion that reads 1,400 billion reaches {chinchilla:.3f}, for about as many
        operations ({exact(6 * 280e9 * 300e9)} and {exact(budget)}). For the second budget Kaplan's
        power advises {landscape.kaplan(budget) / landscape.best(budget):.0f} times as many
        parameters as the fit does. (The fit has critics, but its direction has held up.)

        **“Attention is O(n²), so it is slower than an RNN.”** By the clock it is slower than an
        LSTM of the same width {where} words. The operations do grow with the square. But time also
        depends on how much can be done at once.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="In *base* you double the number of heads, and nothing else. How does the "
            "number of parameters change?",
            choices={
                "it doubles": "Attention's parameters would double if each head kept its width. "
                "But the heads share $D$ columns, so each becomes half as wide.",
                "it stays the same": "",
                "it halves": "Each head does become half as wide. But there are twice as many "
                "heads, and the matrices keep all their columns.",
            },
            answer=1,
            why="The heads share $D$ columns. Twice as many heads are half as wide. Only the "
            "number of scores doubles.",
        ),
        Question(
            question="An encoder layer has $d_{model} = 512$ and $d_{ff} = 2048$. From which "
            "length on do scores and blends need more operations than the rest of the layer?",
            answer=2 * 512 + 2048,
            mistakes={
                2 * 512: "You compared with the projections of attention alone. The rest of the "
                "layer includes the feed-forward network.",
                2048: "You compared with the feed-forward network alone. The rest of the layer "
                "includes the projections of attention.",
                4 * 512 + 2 * 2048: "You counted the scores or the blends. Together they need "
                "$4T^2D$ operations.",
                512 + 2048: "You counted two projections of attention. There are four, and they "
                "need $8TD^2$ operations.",
            },
            why="Set them equal: $4T^2D = 8TD^2 + 4TDF$ gives $T = 2D + F = 3072$.",
        ),
        Question(
            question="A model of $10^9$ parameters reads $2 \\cdot 10^{10}$ words. How many times "
            "$10^{20}$ operations does its training take, by the rule?",
            answer=6 * 1e9 * 2e10 / 1e20,
            mistakes={
                0.2: "That is $ND$. By the rule each parameter takes more than one operation for "
                "each word.",
                0.4: "That is forward alone, with $2ND$. Training also needs backward.",
                0.8: "That is backward alone, with $4ND$. Training also needs forward.",
                12: "You are off by a power of ten: $10^9 \\cdot 10^{10} = 10^{19}$.",
            },
            why="It is $6ND = 6 \\cdot 10^9 \\cdot 2 \\cdot 10^{10} = 1.2 \\cdot 10^{20}$.",
        ),
        Question(
            question="A text has two right continuations, *red car* and *blue bus*. A model fills "
            "both holes at once, each with the most probable word. What can it write?",
            choices={
                "always one of the two": "To match the first hole, the second would have to know "
                "what was written there. Both are filled at once.",
                "*red bus*, too": "",
                "nothing": "Each hole has a most probable word, so something is always written. "
                "The trouble is that the two words need not fit together.",
            },
            answer=1,
            why="Each hole decides alone. A decoder reads its first word before it chooses the "
            "second.",
        ),
        Question(
            question="Why does backward need twice the operations of forward?",
            choices={
                "Its code is worse.": "Bad code would need more time. But we counted the "
                "operations of the formulas, and they are exactly twice as many.",
                "Every product has two factors, and each gets a gradient.": "",
                "It computes forward again.": "It does so only with checkpointing, and then it "
                "needs three times the operations of forward.",
            },
            answer=1,
            why="Both $\\mathrm{d}X = \\mathrm{d}Y\\,W^\\top$ and $\\mathrm{d}W = "
            "X^\\top\\mathrm{d}Y$ are products of the same size as $XW$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 12 mine.py` writes them into a file, and `python -m lessons check 12 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `numformer/models`: the models of this lesson, each in one file, mostly built from the layers of
#   `numformer/paper`; `config.py` there lists the layers that can replace these.
# - `toy_tasks/ablation.md`: our whole Table 3. `toy_tasks/translate.md`: what else was tried for
#   the translator.
# - *Attention Is All You Need* once more, sections 4 to 6. By now you know what every number in its
#   tables means, and can recompute most of them.
# - Kaplan et al. 2020, *Scaling Laws for Neural Language Models*, and Hoffmann et al. 2022,
#   *Training Compute-Optimal Large Language Models*: read them as a pair.
