# %% [markdown]
# # Training
#
# > How do random weights become a translator? And why does the paper train with small steps at
# > first, with answers that are not quite right, and with some numbers switched off?

# %%
import numpy as np

from lessons import running
from lessons.kit.lesson import (
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
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_08 import by_hand, runs, training
from lessons.lesson_08.exercises import EXERCISES
from numformer import Config, CrossEntropy
from numformer.gradient_check.gradients import check
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.optimizers import adam
from numformer.optimization.recipe import warmup_rate
from numformer.paper import Residual
from numformer.paper.cross_entropy import cross_entropy, cross_entropy_backward
from numformer.paper.dropout import dropout, dropout_backward


@show
def train_it_yourself() -> Simulation:
    """The simulation: a small Transformer that trains in the page."""
    return training.training


# %% [markdown]
# Every loss curve above is a whole training run. One step of it fits in four lines:
#
# 1. **Forward**: the model gives each symbol a probability, and the **loss** says how bad these
#    probabilities are.
# 2. **Backward**: each weight $w$ gets its gradient $g$: how fast the loss grows as $w$ grows.
# 3. The **learning rate** $\eta$ says how far to go: $w \leftarrow w - \eta\,g$.
# 4. Start over with other sentences.
#
# Nobody trains a Transformer with these four lines alone. The third line gets an optimizer with
# memory (Adam), a rate that rises and falls (warm-up), and often a limit on the gradient
# (clipping). The loss is changed (label smoothing), and so is forward (dropout). This lesson takes
# these parts one by one, with numbers that you can check by hand. At the end it changes or leaves
# out each part to see what the part is good for.
#
# ## What the loss is
#
# The sentence begins with *the*, and the next word is *cat*. The model has given each of four words
# a number $z$, its *logit*. A softmax (lesson 3) turns the logits into probabilities $p$, the
# model's **prediction**. What should we tell the model? That *cat* is right: 1 for *cat*, 0 for the
# others. This is the **target** $p^*$.
#
# The **cross-entropy** is the price the model pays, a sum over all words it can choose from:
#
# $$\mathrm{loss} = -\sum_v p^*_v \log p_v$$
#
# If one word is right, one term is left: minus the logarithm of its probability. Being sure and
# right costs nothing, $-\log 1 = 0$. If the model considers the right word impossible, the price is
# infinite. Guessing evenly among $d_{vocab}$ words costs $\log d_{vocab}$: every loss curve
# above begins there, or a bit higher.

# %%
thought = by_hand.loss_and_gradient(by_hand.LOGITS, 0.0)
smoothed = by_hand.loss_and_gradient(by_hand.LOGITS, 0.2)


@show
def four_words():
    """The example: prediction, target, loss and gradient."""
    assert np.allclose(thought["p"], [[0.5, 0.3, 0.1, 0.1]])
    rows = np.concatenate([thought[name] for name in ("p", "target", "dlogits")])
    names = ["prediction", "target", "gradient"]
    return [
        Matrix("p, p^*, \\mathrm{d}z", rows, names, by_hand.WORDS, 1),
        Words(f"""
            The loss is $-\\log 0.5$, which is {thought["loss"]:.3f}. The last row is the gradient
            that flows back to the logits. Look at it before you read on: how can you compute it
            from the two rows above?
        """),
    ]


# %% [markdown]
# ### Loss and softmax together
#
# The gradient is the first row minus the second. Here is why. Begin with the gradient of the
# probabilities. Each $p_v$ appears in one term, and the derivative of $\log p$ is $1 / p$:
#
# $$\mathrm{d}p_v = -\frac{p^*_v}{p_v}$$
#
# Then go back through the softmax, as lesson 3 derived it: from each entry subtract the average of
# all entries, in which each counts by its probability. Then multiply by the probability.
#
# $$\mathrm{d}z_u = p_u\Bigl(\mathrm{d}p_u - \sum_v p_v\,\mathrm{d}p_v\Bigr)$$
#
# Put the first formula into the second. In the sum each $p_v$ meets its own $1 / p_v$, and they
# cancel. What is left is $-\sum_v p^*_v = -1$, since the $p^*_v$ sum to 1:
#
# $$\mathrm{d}z_u = p_u\Bigl(-\frac{p^*_u}{p_u} + 1\Bigr) = p_u - p^*_u$$
#
# **Prediction minus target.** A division by numbers that may be tiny has become
# a subtraction. That is why libraries compute softmax and cross-entropy together: computed apart, a
# probability that is rounded to 0 would give 0 times infinity.
#
# ## Label smoothing
#
# To reach a loss of 0 a model must be infinitely sure, with the logit of the right word infinitely
# far above all others. It will keep trying for as long as you train it. **Label smoothing**
# (Szegedy et al. 2016; section 5.4) tells it something else: a small share $\varepsilon_{ls}$, 0.1
# in the paper, is taken from the right word and shared out among all $d_{vocab}$ words.
#
# $$p^*_v = (1 - \varepsilon_{ls})\,[v\ \mathrm{is\ right}] + \frac{\varepsilon_{ls}}{d_{vocab}}$$
#
# The bracket is 1 for the right word and 0 for the others. The derivation above needs only that the
# $p^*_v$ sum to 1, and they still do. So the gradient is still $p - p^*$.


# %%
@show
def what_the_loss_wants() -> Simulation:
    """The simulation: logits, smoothing, and the gradient that they give."""
    return by_hand.smoothed


@show
def smoothing_by_hand():
    """The example with smoothing, and where its gradient is 0."""
    right, other = smoothed["target"][0, :2]
    gap = np.log(right / other)
    paper = np.log((0.9 + 0.1 / 37_000) / (0.1 / 37_000))
    return Words(f"""
        By hand, with $\\varepsilon_{{ls}} = 0.2$: each word gets 0.2 / 4 = {other:.2f}, and *cat*
        0.8 + 0.05 = {right:.2f}. The gradient of *cat* is 0.5 − 0.85 =
        −{-smoothed["dlogits"][0, 0]:.2f}, that of *dog* 0.3 − 0.05 =
        {smoothed["dlogits"][0, 1]:.2f}.

        The gradient is 0 where $p = p^*$. Then the logit of the right word is
        $\\log(0.85 / 0.05)$, or {gap:.2f}, above the others, and there it stays. With the paper's
        0.1 and 37,000 symbols the gap is {paper:.1f}. Without smoothing no gap is ever wide enough.

        Smoothing has a price. The smoothed loss cannot reach 0, and the model is less sure than it
        could be. The paper says so: smoothing “hurts perplexity, as the model learns to be more
        unsure, but improves accuracy and BLEU score”. (Perplexity is $e$ to the power of the
        loss. BLEU says, on a scale from 0 to 100, how closely a translation matches a person's.)
        We will see below how much of this our own runs show.
    """)


@show
def the_lines_of_the_loss():
    """The library's cross-entropy, forward and backward."""
    return [
        Beside(
            cross_entropy,
            {
                "xp = ": "NumPy, or CuPy for arrays on a GPU.",
                "with np.errstate": r"The highest logit becomes 0, so $e^z$ cannot overflow; "
                r"the probabilities stay the same. `spread` is $\varepsilon_{ls}$ times the mean "
                "of all logits, for the share that every word gets.",
                "at_target": "The logit of the right word, in each row.",
                "exponentials": "$e^z$, written over the logits.",
                "total": "Their sum. $p$ is `exponentials` divided by `total`.",
                "losses": r"$\log p_v = z_v - \log \sum_u e^{z_u}$, and $p^*$ sums to 1. So the "
                "loss needs this logarithm, the right word's logit, and the mean of all logits.",
                "return": "`share` is 1 over the number of positions that count, 0 for padding.",
            },
        ),
        Beside(
            cross_entropy_backward,
            {
                "xp = ": "",
                "dlogits = ": "The result is written over the exponentials.",
                "dlogits *= ": "$p$, times the row's share in the mean, `dlosses`.",
                "if smoothing": r"Minus $\varepsilon_{ls} / d_{vocab}$, for every word.",
                "dlogits[": r"Minus $1 - \varepsilon_{ls}$, for the right one.",
                "return": r"$p - p^*$, times that share. No logarithm is left.",
            },
        ),
    ]


# %% [markdown]
# ## Adam, for one number
#
# A gradient says which way is up, for each weight by itself. It does not say how far to go: one
# weight's gradients may be a thousand times another's. And each batch of sentences gives a
# different gradient. **Adam** (Kingma and Ba 2015; section 5.3) remembers two things about each
# weight: the mean $m$ of its gradients, and the mean $n$ of their squares. Old gradients count less
# and less. In step $i$:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\,g \qquad n \leftarrow \beta_2 n + (1 - \beta_2)\,g^2$$
#
# Both begin at 0, so at first they are too small. Each gradient counts with a share: the latest
# with $1 - \beta$, the one before with $\beta\,(1 - \beta)$, and so on. After $i$ steps the shares
# sum to $1 - \beta^i$. Divide by this sum, and you have true means:
#
# $$\hat m = \frac{m}{1 - \beta_1^i} \qquad \hat n = \frac{n}{1 - \beta_2^i} \qquad
# w \leftarrow w - \eta\,\frac{\hat{m}}{\sqrt{\hat{n}} + \varepsilon}$$
#
# The paper has $\beta_1 = 0.9$, $\beta_2 = 0.98$, and $\varepsilon = 10^{-9}$, which is only there
# to avoid dividing by 0. Here are ten steps, written out.


# %%
@show
def ten_steps_of_adam() -> Simulation:
    """The simulation: gradients to be typed, and what Adam makes of them."""
    return by_hand.adam_of_one


@show
def adam_by_hand():
    """The first and the fourth step, with the arithmetic; what beta2 does to the last one."""
    steps = by_hand.ten_steps(by_hand.ten(by_hand.LARGE), 0.98)["steps"]
    last = {b: by_hand.ten_steps(by_hand.ten(by_hand.LARGE), b)["change"][-1] for b in (0.5, 0.98)}
    third, fourth = steps[2:4]
    assert np.allclose(steps[0, -1], 1) and fourth[-1] < 1
    return Words(f"""
        **Step 1.** $m$ = 0.1 · 1 = 0.1, and $n$ = 0.02 · 1² = 0.02. The shares are 0.1 and 0.02.
        Divide by them: $\\hat m$ = 1 and $\\hat n$ = 1. The step is 1, and it would be 1 for *any*
        positive gradient, 0.001 or 1,000: **the first step of every weight has the full length
        $\\eta$**, however little is known.

        **Step 4** has the large gradient. $m$ = 0.9 · {third[1]:.3f} + 0.1 · 10 = {fourth[1]:.3f}.
        The shares sum to 1 − 0.9⁴, or {1 - 0.9**4:.4f}, so $\\hat m$ is {fourth[3]:.2f}. The root
        of $\\hat n$ is {fourth[4]:.2f}: it has grown more than $\\hat m$. A gradient ten times as
        large makes the step not longer but *shorter*, {fourth[5]:.2f}.

        **After step 4** the mean $m$ forgets the large gradient fast, in about 1 / (1 − 0.9) = 10
        steps, and $n$ slowly, in about 1 / (1 − 0.98) = 50. So the steps stay short for a while:
        the last step is {last[0.98]:.2f}. If β₂ is 0.5, $n$ forgets faster than $m$. In the last
        step the same gradient of 1 then moves the number by {last[0.5]:.2f}. Set β₂ to 0.5 in the
        [first simulation](#training) and see what becomes of its curve.

        Two things follow. Adam ignores the overall size of the gradients: multiply all of them by
        1,000, and nothing changes. And where gradients keep changing sign, $m$ is small compared
        with the root of $n$, and the step is short.
    """)


@show
def the_lines_of_adam():
    """The library's Adam, for all weights at once."""
    return Beside(
        adam,
        {
            "xp = ": "`data` holds all weights of the model in one vector, or a piece of it.",
            "mean *= ": r"$\beta_1 m$",
            "mean += ": r"$+\,(1 - \beta_1)\,g$",
            "change = ": r"$g^2$, in an array of its own.",
            "change *= 1": r"$(1 - \beta_2)\,g^2$",
            "square *= ": r"$\beta_2 n$",
            "square += ": "The sum of the two: the new $n$.",
            "xp.sqrt": r"$\sqrt n$",
            "change *= (1": r"Corrected: $\sqrt{\hat{n}}$",
            "change += ": r"$+\,\varepsilon$",
            "xp.divide": r"$m$ divided by `change`.",
            "change *= rate": r"Times $\eta$, and $m$ is corrected, too.",
            "data -= ": "The step.",
        },
    )


# %% [markdown]
# ## Warm-up
#
# So in the first step every weight moves by the full learning rate. All that Adam uses of its
# gradient is the sign, and this sign comes from a single batch. Thousands of weights move like this
# at once. In a deep model with the
# norm after the sum this can throw them so far off that the gradient does not lead back (lesson 6).
# The paper's answer (section 5.3, equation 3) is a rate that begins near 0:
#
# $$\eta = d_{model}^{-0.5} \cdot \min(i^{-0.5},\ i \cdot i_{warmup}^{-1.5})$$
#
# The second term rises in a straight line, the first falls like one over the root of the step. They
# meet at $i = i_{warmup}$. Go back to the [first simulation](#training): with a warm-up of 30 steps
# the model has learned the task after 80. Set the warm-up to 1, and 120 steps are not enough. Let
# the rate stay high as well, and the model learns little.


# %%
@show
def the_schedule_of_the_paper():
    """The learning rates of the base model, and the line that gives them."""
    steps = (1, 100, 1000, 4000, 16_000, 100_000)
    width = Config.base(37_000).d_model
    rows = [(f"{step:,}", f"{warmup_rate(step, width):.7f}") for step in steps]
    peak = warmup_rate(4000, width)
    return [
        Beside(warmup_rate, {"return": "`factor` is 1 in the paper."}),
        table(["step", "learning rate of the base model"], rows),
        Words(f"""
            The highest rate is {peak:.5f}, in step 4,000. After four times as many steps it is half
            as high. The formula ties warm-up and peak together: a shorter warm-up has a *higher*
            peak. With 1,000 steps it would be twice as high. In our simulation you set the two
            separately.
        """),
    ]


# %% [markdown]
# ## Dropout
#
# A model that has seen the same sentences often enough learns them by heart. **Dropout**
# (Srivastava et al. 2014) makes that hard. In each training step it sets every number of an array
# to 0 with the probability $p_{drop}$, and divides the numbers that are left by $1 - p_{drop}$. So
# no number can rely on another particular number being there. Let $k$ be the mask, whose entries
# are 0 or $1 / (1 - p_{drop})$:
#
# $$y = x\,k \qquad \mathrm{d}x = \mathrm{d}y\,k$$
#
# The division keeps the mean: with $p_{drop} = 0.25$ a number is kept in 3 of 4 cases, and then it
# is 4/3 of what it was. So when the model is used, dropout is left out and nothing else has to
# change. Backward uses the mask of forward, not a new one.
#
# Where? Section 5.4 names two places:
#
# - the output of each sublayer, before it is added to the sublayer's input,
# - the sums of embeddings and positions, in both the encoder and the decoder.


# %%
@show
def the_lines_of_dropout():
    """The library's dropout, and where the residual connection has it."""
    return [
        Beside(dropout, {"return": "`keep` is the mask $k$."}),
        Beside(dropout_backward, {"return": "The same mask."}),
        Beside(
            Residual.forward,
            {
                "return self.norm": "Dropout on the sublayer's output, then the sum. The `x` that "
                "goes around the sublayer is kept whole.",
            },
        ),
    ]


# %% [markdown]
# ## Clipping
#
# The paper does not clip, but most later recipes do. (The idea is older: Pascanu et al. 2013.) All
# gradients of the model together are one long vector. If it is longer than a limit $c$, it is
# shortened and keeps its direction:
#
# $$g \leftarrow g \cdot \min\Bigl(1, \frac{c}{\mathrm{norm}(g)}\Bigr)$$
#
# An unusual batch can then do no more harm than any other. Is Adam not enough? It makes up for a
# factor that is always the same. But without clipping, a single large gradient stays in $n$ for
# many steps, as the fourth one did above.


# %%
@show
def the_lines_of_clipping():
    """The library's clipping."""
    return Beside(
        clip_global_norm,
        {
            "norm = ": "The length of the vector of all gradients.",
            "if max_norm": "At or below the limit the factor is 1.",
            "return": "The length before clipping: worth a look when a run goes wrong.",
        },
    )


# %% [markdown]
# ## One change at a time
#
# Now the real test. The task is the small language of lesson 7, where *son chat noir saute* becomes
# *his black cat is jumping*, or the same with *her* or *its*. The model has three layers on each
# side and is 32 numbers wide. We train it with the recipe, and then with parts of the recipe
# changed or left out. Each run is repeated three times, with different random weights and different
# draws from the same training sentences. Guess first: which change will matter most?

# %%
COLOURS = {"the recipe": BLUE, "no warm-up": ORANGE, "no warm-up, clipped": GREEN}


def spread(values, form: str = ".2f") -> str:
    """The mean, with the lowest and the highest value."""
    low, high = min(values), max(values)
    return f"{np.mean(values):{form}} ({low:{form}} to {high:{form}})"


@show
def each_switched_off():
    """Learning curves and results, with parts of the recipe changed or left out."""
    every = {name: runs.trained(name) for name in runs.CHANGES}
    held_out = {name: [run.held_out for run in made] for name, made in every.items()}
    right = {name: [100 * run.right for run in made] for name, made in every.items()}
    sure = {name: np.mean([run.sure for run in made]) for name, made in every.items()}
    mean = {name: np.mean(values) for name, values in right.items()}
    # What the text below says.
    assert min(right["the recipe"]) > max(right["no warm-up"]) + 40
    assert np.mean(held_out["no smoothing"]) < np.mean(held_out["the recipe"]) - 0.02
    assert sure["no smoothing"] > sure["the recipe"] + 0.02
    assert mean["no warm-up"] < mean["no warm-up, clipped"] < mean["the recipe"] - 30
    small = [
        mean[name] - mean["the recipe"] for name in ("β₂ = 0.999", "clipped at 1", "no dropout")
    ]
    assert max(map(abs, [*small, mean["no smoothing"] - mean["the recipe"]])) < 12

    def curves(figure):
        axes = figure.subplots()
        for name, color in COLOURS.items():
            lines = np.array([run.losses for run in every[name]])
            at = np.arange(runs.EVERY, runs.STEPS + 1, runs.EVERY)
            axes.plot(at, lines.mean(axis=0), color=color, label=name)
            axes.fill_between(at, lines.min(axis=0), lines.max(axis=0), color=color, alpha=0.2)
        axes.set(xlabel="step", ylabel="loss without smoothing", ylim=(0, None))
        axes.legend()

    def bars(figure):
        axes = figure.subplots()
        for place, (name, values) in enumerate(right.items()):
            color = COLOURS.get(name, GREY)
            axes.barh(place, np.mean(values), color=color, alpha=0.5)
            axes.plot(values, [place] * len(values), "o", color=color, ms=4)
        axes.set_yticks(range(len(right)), right)
        axes.invert_yaxis()
        axes.set(xlabel="% of new sentences right", xlim=(0, 102))

    rows = [(name, spread(held_out[name]), spread(right[name], ".0f")) for name in every]
    few = {name: runs.trained(name, runs.FEW) for name in ("the recipe", "no dropout")}
    losses = {name: [run.held_out for run in made] for name, made in few.items()}
    rights = {name: [100 * run.right for run in made] for name, made in few.items()}
    assert np.mean(losses["the recipe"]) < np.mean(losses["no dropout"])
    assert np.mean(rights["the recipe"]) > np.mean(rights["no dropout"])
    return [
        Picture(
            "lesson_08_curves",
            curves,
            "Three bands of loss against the step. With the recipe it falls to below 0.3; without "
            "warm-up it stays near 1; clipping helps a little.",
            "**How it learns.** The mean of three runs, and the band between the lowest and the "
            "highest. Each point is a mean over ten steps.",
        ),
        Picture(
            "lesson_08_switched_off",
            bars,
            "Bars of how many new sentences are right. All means are above 85 % except "
            f"those without warm-up: {mean['no warm-up']:.0f} %, and "
            f"{mean['no warm-up, clipped']:.0f} % with clipping.",
            "**What it has learned.** Bars are means, dots the three runs.",
        ),
        table(
            ["run", "loss, new sentences", "% right"], rows, "Mean, lowest and highest of three."
        ),
        Words(f"""
            - **Warm-up** matters most. With none {mean["no warm-up"]:.0f} % of the sentences are
              right, not {mean["the recipe"]:.0f} %. Without it the rate begins at the same peak
              and falls at once, so it is soon lower than with warm-up. Clipping at 1 does not
              replace warm-up.
            - **Label smoothing** makes the model less sure, as the paper says. Without it the loss
              of new sentences is lower, {np.mean(held_out["no smoothing"]):.2f} and not
              {np.mean(held_out["the recipe"]):.2f} on average: the model gives its likeliest word
              a probability of {sure["no smoothing"]:.2f}, not {sure["the recipe"]:.2f}. Three runs
              are too few to show whether smoothing makes more sentences right:
              {spread(right["the recipe"], ".0f")} % are right with it, and
              {spread(right["no smoothing"], ".0f")} % without.
            - **β₂, clipping and dropout** change the mean share of right sentences by at most
              {max(map(abs, small)):.1f} points. We could not expect much of a β₂ of 0.999:
              {runs.STEPS} steps are too few to show what a longer memory does.
            - **Dropout** is meant for when there is little to learn from. With {runs.FEW} sentences
              instead of {runs.MANY}, {spread(rights["the recipe"], ".0f")} % of the new ones are
              right with dropout, and {spread(rights["no dropout"], ".0f")} % without; the loss is
              {spread(losses["the recipe"])} with it and {spread(losses["no dropout"])} without.

            One small task and three runs show large effects, such as that of warm-up. Where the
            ranges overlap or touch, it would take more runs to decide.
        """),
    ]


# %% [markdown]
# ## Is it true?
#
# Here the gradient of the loss, with padding, is compared with a measured one, as in lesson 3.


# %%
@show
def gradient_check():
    """The largest error of the gradients of the loss."""
    rng, rows = np.random.default_rng(8), []
    logits, targets = 3 * rng.standard_normal((2, 5, 7)), rng.integers(7, size=(2, 5))
    for smoothing in (0.0, 0.1, 0.5):
        (found,) = check(CrossEntropy(smoothing), [logits, targets, targets != 0])
        rows.append((f"{smoothing:g}", scientific(found.error)))
    return table(["smoothing", "relative error"], rows)


# %% [markdown]
# ## In the running example
#
# The translator of the [home page](index.html) does not know *bären*. The four words above stand
# for the 2,000 pieces of this model. Here is the gradient of the logits where it has to say *bä*.


# %%
@show
def in_the_running_example():
    """The gradient of the logits where the translator is wrong, and a few steps of Adam."""
    p, right = running.step().chances[running.HARD], running.TARGET[running.HARD]
    shown = [right, *p.argsort()[::-1][:3]]
    rows = [
        (
            f"*{name}*",
            f"{p[n]:.3f}",
            int(n == right),
            f"{p[n] - (n == right):.3f}".replace("-", "−"),
        )
        for n, name in zip(shown, running.names(shown), strict=True)
    ]
    steps = running.training()
    return [
        table(["piece", "$p$", "$p^*$", r"$\mathrm{d}z$"], rows),
        table(
            ["after step", "loss", "the model writes"],
            [(n, f"{loss:.2f}", f"*{words}*") for n, (loss, words) in enumerate(steps)],
            f"Steps of Adam on this pair, with the rate {running.RATE}.",
        ),
        Words(f"""
            One logit is pulled up, and all others are pushed down, each by its probability. After
            {len(steps) - 1} steps the model writes the right sentence. *Train* on the home page
            takes the same steps.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $k$ is the mask of dropout, $c$ the limit of clipping, $i$ the number of the step.
#
# | forward | backward | shape |
# |---|---|---|
# | $p^* = (1 - \varepsilon_{ls})\,[\mathrm{right}] + \varepsilon_{ls}/d_{vocab}$ | none | as $z$ |
# | softmax of $z$, then $-\sum_v p^*_v \log p_v$ | $\mathrm{d}z = p - p^*$ | $(T, d_{vocab})$ |
# | mean over the positions that count | times 1 over their number | as $z$ |
# | $y = x\,k$ | $\mathrm{d}x = \mathrm{d}y\,k$ | as $x$ |
#
# | step of training | rule |
# |---|---|
# | clipping | $g \leftarrow g \cdot \min(1, c / \mathrm{norm}(g))$ |
# | mean of the gradients | $m \leftarrow 0.9\,m + 0.1\,g$ |
# | mean of their squares | $n \leftarrow 0.98\,n + 0.02\,g^2$ |
# | corrected | $\hat m = m / (1 - 0.9^i)$ and $\hat n = n / (1 - 0.98^i)$ |
# | learning rate | $\eta = d_{model}^{-0.5} \cdot \min(i^{-0.5},\ i \cdot 4000^{-1.5})$ |
# | step | $w \leftarrow w - \eta\,\hat m / (\sqrt{\hat{n}} + 10^{-9})$ |

# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims about the recipe, checked."""
    config = Config.base(37_000)
    steps = by_hand.ten_steps(by_hand.ten([1000.0] + [1.0] * 9), 0.98)["change"]
    return Words(f"""
        **“The paper puts dropout in three places, attention weights among them.”** Section 5.4
        names two: the output of each sublayer, and the sums of embeddings and positions. Dropout on
        the attention weights is found in many implementations, but nowhere in the paper.
        numformer's base model has `p_drop` {config.p_drop:g} for the two places, and
        `attention_dropout` {config.attention_dropout:g}.

        **“Warm-up is needed because Adam's first steps are too large.”** A large gradient does not
        make them larger: they are about $\\eta$ at most. Ten gradients, the first 1,000 and the
        rest 1, give the steps {steps[0]:.2f}, {steps[1]:.2f}, {steps[2]:.2f} at first, with
        $\\eta$ = 1. What is true: the first step has the full length for every weight at once, and
        at that time the model has seen only one batch.

        **“The paper uses Adam's defaults.”** Its β₂ is 0.98 and its ε $10^{{-9}}$; Kingma and Ba
        propose 0.999 and $10^{{-8}}$. So the paper's $n$ remembers about 50 steps and not 1,000.

        **“Label smoothing keeps a model from overfitting, so its loss on new text is lower.”** The
        paper says that perplexity gets worse. In our runs, too, the loss on new sentences is higher
        with smoothing.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    given = by_hand.loss_and_gradient(by_hand.LOGITS, 0.1)
    change = by_hand.ten_steps(by_hand.ten([0.001] * 10), 0.98)["change"]
    return [
        Question(
            "The model gives the right word the probability 0.2, without smoothing. What is the "
            "gradient of its logit?",
            "$p - p^* = 0.2 - 1$. The gradients of all other words are their probabilities, which "
            "sum to 0.8. So all the gradients together sum to 0.",
            0.2 - 1,
            mistakes={
                0.8: "The size is right, the sign is not: a higher logit of the right word "
                "*lowers* the loss.",
                0.2: "That is $p$. Subtract the target: 1, because the word is right.",
                -5: "That is the gradient of the *probability*, $-1 / p$. It still has to go back "
                "through the softmax.",
                -0.16: "You multiplied the gradient of the logit by $p$ once more. The $p$ of the "
                "softmax cancels the $1 / p$ of the logarithm.",
                -np.log(0.2): "That is the loss. The question asks for its gradient.",
            },
        ),
        Question(
            "Four words, $p$ = (0.5, 0.3, 0.1, 0.1), smoothing 0.1. What is the gradient of the "
            "logit of *dog*, the second, which is wrong?",
            "The target of *dog* is 0.1 / 4 = 0.025, so the gradient is 0.3 − 0.025 = 0.275.",
            float(given["dlogits"][0, 1]),
            tolerance=0.001,
            mistakes={
                0.3: "That is the gradient without smoothing. With it, even the target of a wrong "
                "word is a little above 0.",
                0.2: "You gave *dog* the whole 0.1. All four words share it.",
                0.3 - 0.1 / 3: "You shared the 0.1 among the three wrong words. The right word "
                "gets its part, too.",
                0.025: "That is the target of *dog*. Subtract it from the prediction.",
                -0.275: "The size is right, the sign is not: it is prediction minus target.",
                0.3 - 0.925: "You subtracted the target of the *right* word. *dog* is wrong.",
            },
        ),
        Question(
            "A weight has had the gradient 0.001 in each of the first ten steps, and the learning "
            "rate was always 0.01. How far has Adam moved it?",
            "Here $\\hat m$ is 0.001, the root of $\\hat n$ is 0.001, so each step is the whole "
            "learning rate: 10 · 0.01 = 0.1. The size of the gradients makes no difference.",
            float(0.01 * change.sum()),
            tolerance=0.001,
            mistakes={
                10 * 0.01 * 0.001: "That is plain gradient descent. Adam divides by the size of "
                "the gradients.",
                0.01: "That is one step. There were ten.",
                -0.1: "It is true that Adam moves against the gradient. But the question asks only "
                "how far, so leave out the sign.",
                10: "You left out the learning rate.",
            },
        ),
        Question(
            "In the paper's formula you quarter the warm-up, from 4,000 to 1,000 steps. What "
            "happens to the highest learning rate?",
            "It is $d_{model}^{-0.5} \\cdot i_{warmup}^{-0.5}$, and the root of 1/4 is a half.",
            1,
            {
                "it stays the same": "The warm-up seems to say only *when* the rate is highest. "
                "But the slope of the line depends on it, too: with a quarter of the warm-up the "
                "line is eight times as steep.",
                "it is twice as high": "",
                "it is four times as high": "That would be so if the highest rate were "
                "proportional to one over the warm-up. It is proportional to one over the *root* "
                "of the warm-up.",
            },
        ),
        Question(
            "Dropout is left out when the model is used. Why is no rescaling needed then?",
            "In training the numbers that are kept are divided by $1 - p_{drop}$. So the mean of "
            "each number is the same with dropout and without.",
            2,
            {
                "the norms take care of it": "A norm does rescale its input, but it does not know "
                "what was dropped. Dropout needs no rescaling in a network without norms either.",
                "the weights have shrunk by themselves": "Smaller weights could make up for larger "
                "inputs. But in training the numbers already had the right mean, so nothing made "
                "the weights shrink.",
                "training has rescaled what it kept": "",
            },
        ),
        Question(
            "By mistake someone takes the sum of the losses of a batch and not the mean: 1,000 "
            "times too much. They train with Adam and clip at 1. What happens?",
            "Without clipping Adam would take the same steps, but for its tiny $\\varepsilon$. Now "
            "nearly every gradient is far above the limit and is cut to the length 1, so all "
            "batches count alike.",
            1,
            {
                "nothing: both are blind to the size of the gradient": "Adam is blind to it. "
                "Clipping is not: it compares the size with a fixed limit.",
                "nearly every step is clipped": "",
                "the steps are 1,000 times too long": "In plain gradient descent they would be. "
                "Adam divides by the size of the gradients, so a constant factor cancels.",
            },
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 8 mine.py` writes them into a file, and `python -m lessons check 8 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `cross_entropy.py`, `dropout.py` and `adam.py` in `numformer/paper`.
# - *Attention Is All You Need*, sections 5.3 and 5.4: half a page.
# - Kingma and Ba 2015, *Adam: A Method for Stochastic Optimization*.
# - Szegedy et al. 2016, *Rethinking the Inception Architecture for Computer Vision*, section 7:
#   where label smoothing was proposed.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*: why warm-up.
# - Lesson 9: the gradient's whole way, from this loss to the first weight.
