# %% [markdown]
# # The encoder block
#
# > A layer of the encoder is more than attention. What else is in it, what is each part for, and
# > what would go wrong without it?

# %%
from collections import Counter

import numpy as np

from lessons import running
from lessons.kit.lesson import Beside, Matrix, Words, scientific, show, table
from lessons.kit.models import measured
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_06 import block, depth
from lessons.lesson_06.exercises import EXERCISES
from numformer import Config, FeedForward, LayerNorm, Transformer
from numformer.gradient_check.gradients import check
from numformer.later.pre_norm import PreNormResidual
from numformer.paper import Residual
from numformer.paper.config import LayerConfig
from numformer.paper.feed_forward import relu_backward
from numformer.paper.layer_norm import layer_norm, layer_norm_backward


@show
def data_and_gradient() -> Simulation:
    """The simulation: the parts of the block and what flows through them."""
    return block.flows


# %% [markdown]
# ## Three words go through
#
# Attention mixes. Its result is a mean of values that are already there (lesson 3). Twelve layers
# of attention alone would stir the same soup twelve times. So each layer of the Transformer has a
# second half that works on every word by itself. And both halves sit inside two devices that look
# like details: a sum and a norm. The paper (section 3.1) wraps each *sublayer*, attention or
# feed-forward network, in the same way:
#
# $$\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$$
#
# The weights above are chosen so that you can compute by hand all that happens to *cat*. Each word
# of *the cat purrs* is a row of five numbers. *cat* is a noun and no verb. Its row does not say
# that it is an animal, nor that there is a sound. The block has to find out.

# %%
tokens, features = block.tokens, block.features
cat = tokens.index("cat")
made = block.compute()  # every matrix, there and back


def plain(number: float) -> str:
    return f"{number + 0.0:.5g}".replace("-", "−")


def listed(numbers) -> str:
    """A row of numbers in brackets."""
    return f"({', '.join(map(plain, numbers))})"


@show
def one_row_through_the_block():
    """The example, three words with five features, and what happens to the row of `cat`."""
    steps = {
        "**X**, the input": "x",
        "**O**, what attention writes": "attended",
        "**U** = X + O": "sum_1",
        "**N**, the norm of U": "normed",
        "**F**, what the feed-forward network writes": "written",
        "**U'** = N + F": "sum_2",
        "**Y**, the norm of U'": "y",
    }
    rows = [(words, *map(plain, made[name][cat])) for words, name in steps.items()]
    return [Matrix("X", block.x, tokens, features), table(["*cat*", *features], rows)]


# %% [markdown]
# 1. **Attention** brings news from other words. *cat* looks at all three equally. It takes a third
#    of *the*'s 3 for definite, and a third of *purrs*' 3 for sound, which $W^O$ doubles.
# 2. **Add.** Nothing that was there is lost.
# 3. **Norm.** The mean of (4, −2, 0, 2, 1) is 1. Subtract it: (3, −3, −1, 1, 0). The mean of the
#    squares is 20 / 5 = 4, so the standard deviation is 2. Divide by it. Every row now has mean 0
#    and standard deviation 1.
# 4. **Feed-forward.** This part looks at one row alone. It knows that a noun with a sound is an
#    animal. So it writes 2 to *animal*, and takes 1 from each of the two clues.
# 5. **Add, norm** again. This row has mean 0 and standard deviation 1 already.
#
# The result has the shape of the input, so blocks can be stacked. [Above](#block) you can follow
# all three words, and the gradient on its way back. Only attention hands something from word to
# word: choose *only cat*, and the gradients of the other two rows stay 0 until you reach attention.
#
# ## The way around
#
# The sum $U = X + O$ is called a *residual connection*: the sublayer computes only what is to be
# *added*, the residual, and the row itself goes around the sublayer (He et al. 2016).
#
# ### Backward
#
# Take a sublayer $f$, one row, and $u_j = x_j + f_j(x)$. Ask where $x_i$ is used: in the sum, with
# the factor 1, and within the sublayer. Add up both contributions:
#
# $$\mathrm{d}x_i = \mathrm{d}u_i + \sum_j \mathrm{d}u_j\,\frac{\partial f_j}{\partial x_i}$$
#
# The second term is what the sublayer's own backward gives. The first is there whatever the
# sublayer does, so no sublayer can stop the gradient. Without the way around, a gradient has to get
# through the Jacobians of all sublayers, one after the other. With it, one path from end to
# beginning goes through none of them.
#
# The library has two orders: the paper's, with the norm after the sum, and a later one, with the
# norm before the sublayer.


# %%
@show
def the_lines_of_the_residual():
    """The library's residual connection, there and back."""
    return [
        Beside(
            Residual.forward,
            {
                "return self.norm": "The paper's order: $\\mathrm{norm}(x + f(x))$. `others` is "
                "what else attention needs, such as a mask.",
            },
        ),
        Beside(
            PreNormResidual.forward,
            {"return x + ": "The later order: $x + f(\\mathrm{norm}(x))$."},
        ),
        Beside(
            Residual.backward,
            {
                "dsum = ": "In the paper's order the norm came last, so its backward comes first.",
                "gradients = ": "Through the sublayer: the second term of the equation.",
                "dx, *dothers = ": "Some sublayers have further inputs with gradients (lesson 7).",
                "dx += dsum": "**The way around**: the first term. Without this line a deep "
                "model would not learn.",
                "return": "The gradient of the input.",
            },
        ),
        Beside(
            PreNormResidual.backward,
            {
                "dx = ": "In the later order the norm belongs to the sublayer's path,",
                "dx += dy": "and nothing stands on the way around.",
            },
            whole=False,
        ),
    ]


# %% [markdown]
# ### What is it for?
#
# Take the residual connections away, and see. Here is an encoder with 12 layers, random weights and
# random data. A gradient of length 1 comes in at the end. How long is it when it reaches each
# layer? Look at the line without norms first. Before you take the residual connections away, guess:
# will that line end above 1 at the first layer, below 1, or near 1?


# %%
@show
def gradient_against_depth() -> Simulation:
    """The simulation: gradient against depth, with the norm after, before, nowhere."""
    return depth.depth


@show
def with_and_without_the_way_around():
    """What the lines say, and how alike the words become."""
    around, without = depth.measure("none", True), depth.measure("none", False)
    post, lone = depth.measure("post", True), depth.measure("post", False)
    shares = [", ".join(f"{one['alike'][at]:.2f}" for at in range(5)) for one in (post, lone)]
    return Words(f"""
        With neither norm nor way around, the gradient *vanishes*: each layer leaves about
        {100 * without["input"][0] ** (1 / depth.LAYERS):.0f} % of it, so
        {scientific(without["input"][0])} arrives. With the way around, it *explodes* instead, to
        {scientific(around["input"][0])}, and the data grow to {around["size"][-1]:.0f} times their
        size: each sublayer adds something, and nothing takes it away. A norm limits that growth.

        With a norm the lines stay near 1, even without the way around. Could the norm do it alone,
        then? Leave the residual connections out and choose the gradient of the queries' matrix: it
        falls off the chart. To see why, measure how *alike* the words have become: at 1 all words
        have the same vector. With the norm after the sum, their likeness before each of the first
        five layers is {shares[0]}; without the way around, it is {shares[1]}. Attention takes
        means, and nothing brings the differences back (Dong et al. 2021). If all keys are the same,
        it does not matter where a word looks: the queries get no gradient, and attention cannot
        learn.

        So one plus sign does three things: the gradient arrives, a word stays itself, and a
        sublayer with nothing to say can say nothing.
    """)


# %% [markdown]
# ## LayerNorm
#
# Take one row $x$ of $D$ numbers (Ba et al. 2016). Let $\mu$ be its mean, $\sigma^2$ its variance,
# and $r$ one over its standard deviation:
#
# $$\mu = \frac{1}{D}\sum_j x_j \qquad \sigma^2 = \frac{1}{D}\sum_j (x_j - \mu)^2 \qquad
# r = \frac{1}{\sqrt{\sigma^2}}$$
#
# $$\hat x_i = (x_i - \mu)\,r \qquad y_i = \gamma_i\,\hat x_i + \beta_i$$
#
# $\gamma$ and $\beta$ are learned, one number for each feature. They begin at 1 and 0, and in our
# example they are still 1 and 0. The library adds a small $\varepsilon$ to the variance, so that a
# row of equal numbers is not divided by 0; we leave it out to get round numbers. The mean runs over
# the features of *one* word: no other word plays a part.
#
# Add the same number to all of $x$: $\mu$ grows by that number, and $\hat x$ stays the same.
# Multiply all of $x$ by 3: $r$ becomes a third, and $\hat x$ stays the same. If $x$ moves in one of
# these two directions, nothing changes behind the norm. Then what must the gradient along them be?


# %%
@show
def one_row() -> Simulation:
    """The simulation: LayerNorm of one row, and what its backward takes away."""
    return block.row


# %% [markdown]
# ### Through the norm
#
# First the easy part, $y_i = \gamma_i\,\hat x_i + \beta_i$ for every row. $\gamma_i$ and $\beta_i$
# are used in every row $t$, $\hat x_i$ in its own row alone. So
#
# $$\mathrm{d}\gamma_i = \sum_t \mathrm{d}y_{ti}\,\hat x_{ti} \qquad
# \mathrm{d}\beta_i = \sum_t \mathrm{d}y_{ti} \qquad
# \mathrm{d}\hat x_{ti} = \mathrm{d}y_{ti}\,\gamma_i$$
#
# Now one row, $\hat x_i = (x_i - \mu)\,r$. The trap: it looks as if $\mathrm{d}x_i$ were
# $\mathrm{d}\hat x_i\,r$. But $x_j$ acts on *every* $\hat x_i$, in three ways: directly where
# $i = j$, through the mean, and through the variance.
#
# **The mean.** Each number has the share $1/D$ in it:
#
# $$\frac{\partial \mu}{\partial x_j} = \frac{1}{D}$$
#
# **The variance.** When $x_j$ moves, its own term in the sum changes at the rate $2(x_j - \mu)$.
# The mean moves too, and all terms with it: together at the rate
# $-2\sum_i (x_i - \mu)\,\frac{1}{D}$, which is 0, because centred numbers sum to 0. What is left,
# divided by $D$:
#
# $$\frac{\partial \sigma^2}{\partial x_j} = \frac{2}{D}(x_j - \mu)$$
#
# **One over its root.** $r = (\sigma^2)^{-1/2}$ has the derivative
# $-\frac{1}{2} (\sigma^2)^{-3/2}$, which is $-\frac{1}{2} r^3$. By the chain rule
#
# $$\frac{\partial r}{\partial x_j} = -\frac{1}{2} r^3 \cdot \frac{2}{D}(x_j - \mu)
# = -\frac{r^2\,\hat x_j}{D}$$
#
# since $(x_j - \mu)\,r = \hat x_j$.
#
# **Together**, by the product rule. Write $\delta_{ij}$ for 1 where $i = j$, and 0 elsewhere:
#
# $$\frac{\partial \hat x_i}{\partial x_j}
# = \Bigl(\delta_{ij} - \frac{1}{D}\Bigr)\,r - (x_i - \mu)\,\frac{r^2\,\hat x_j}{D}
# = r\,\Bigl(\delta_{ij} - \frac{1}{D} - \frac{\hat x_i\,\hat x_j}{D}\Bigr)$$
#
# **The gradient** collects over all $i$:
# $\mathrm{d}x_j = \sum_i \mathrm{d}\hat x_i\,\frac{\partial \hat x_i}{\partial x_j}$. The three
# terms give
#
# $$\mathrm{d}x_j = r\,\Bigl(\mathrm{d}\hat x_j - \frac{1}{D}\sum_i \mathrm{d}\hat x_i
# - \hat x_j\,\frac{1}{D}\sum_i \mathrm{d}\hat x_i\,\hat x_i\Bigr)$$
#
# In words: from the gradient subtract its mean, subtract its part along $\hat x$, and divide by the
# standard deviation. Now by hand, for the gradient that arrives at the row of *cat*.


# %%
def product(left, right) -> str:
    """A dot product written out, to be followed by hand."""
    pairs = [f"{plain(a)} · {plain(b)}" for a, b in zip(left, right, strict=True) if b]
    pairs = [pair.replace("· −", "· (−") + ")" * ("· −" in pair) for pair in pairs]
    return f"{' + '.join(pairs)} = {plain(left @ right)}".replace("+ −", "− ")


@show
def the_norm_backward_by_hand():
    """The row of `cat`, from the gradient of its norm to that of its sum."""
    dhat, hat = made["dnormed"][cat], made["normed"][cat]
    along = dhat @ hat / 5
    left = dhat - dhat.mean() - along * hat
    return Words(f"""
        The gradient $g$ is {listed(dhat)}, and $\\hat x$ is {listed(hat)}. The mean of $g$ is
        {plain(dhat.sum())} / 5 = {plain(dhat.mean())}. Its dot product with $\\hat x$ is
        {product(dhat, hat)}, a fifth of it {plain(along)}. Subtract both parts: what is left is
        {listed(left)}. Half of this, since $r = 1/2$, is $\\mathrm{{d}}x$: {listed(left / 2)}.
        [The simulation](#row) has these rows under *from the block*.

        Add up what is left: 0. Multiply it by $\\hat x$ and add up: 0 again. In the two
        directions that change nothing, the gradient is 0. And look at *definite*: it had no
        gradient and gets the largest of all, because it moves the mean, and so the others.
    """)


# %% [markdown]
# ### What is taken away, as geometry
#
# Picture a row as an arrow in $D$ dimensions. Let $\mathbf{1}$ be the arrow of ones. Its squared
# length is $D$. So is the squared length of $\hat x$, whose squares have the mean 1. The two arrows
# are at right angles, because $\hat x$ sums to 0. The part of an arrow $g$ along another arrow $a$
# is $a\,(a \cdot g)/(a \cdot a)$. Along $\mathbf{1}$ this is the mean of $g$, in every entry. Along
# $\hat x$ it is $\hat x$ times the mean of $\hat x g$. So the two terms are two *projections*, and
#
# $$J = r\,\Bigl(I - \frac{\mathbf{1}\mathbf{1}^\top}{D} - \frac{\hat x\,\hat x^\top}{D}\Bigr)$$
#
# is the Jacobian: it takes two directions out and multiplies the rest by $r$. The larger a row's
# standard deviation, the smaller its gradient. In the code `rstd` is $r$, and `dot_last(a, b)` sums
# the products in each row.


# %%
@show
def the_lines_of_layer_norm():
    """The library's LayerNorm, there and back."""
    return [
        Beside(
            layer_norm,
            {
                "centred = ": r"$x - \mu$, each row with its own mean.",
                "variance = ": r"$\sigma^2$: the mean of the squared centred numbers.",
                "rstd = ": r"$r$, with $\varepsilon$ added to the variance.",
                "centred *= rstd": r"$\hat x = (x - \mu)\,r$",
                "x_hat = ": "Only a new name for the array.",
                "y = gamma": r"$y = \gamma\,\hat x$ …",
                "y += beta": r"… $+\ \beta$",
                "return": "Backward will need $\\hat x$ and $r$.",
            },
        ),
        Beside(
            layer_norm_backward,
            {
                "dgamma": r"$\mathrm{d}\gamma_i = \sum_t \mathrm{d}y_{ti}\,\hat x_{ti}$",
                "dbeta": r"$\mathrm{d}\beta_i = \sum_t \mathrm{d}y_{ti}$",
                "dx_hat = ": r"$\mathrm{d}\hat x = \mathrm{d}y\,\gamma$. The two means below are "
                r"means of this, not of $\mathrm{d}y$.",
                "along_x_hat": r"$\frac{1}{D}\sum_i \mathrm{d}\hat x_i\,\hat x_i$, computed before "
                "the next lines change the array.",
                "dx = dx_hat": "The array becomes the result, line by line.",
                "dx -= mean_last": r"The part along $\mathbf{1}$: through the mean.",
                "dx -= x_hat": r"The part along $\hat x$: through the variance.",
                "dx *= rstd": "Times $r$.",
                "return": "",
            },
        ),
    ]


# %% [markdown]
# ## The feed-forward network
#
# The second sublayer is a small network with one hidden layer (section 3.3, equation 2):
#
# $$\mathrm{FFN}(x) = \max(0,\, xW_1 + b_1)\,W_2 + b_2$$
#
# It is *position-wise*: it takes one row, and the same weights serve every row. In the paper a row
# has 512 numbers and the hidden layer 2,048; here they have 5 and 6.
#
# ### A memory of keys and values
#
# What does such a network compute? Write $k_j$ for column $j$ of $W_1$ and $v_j$ for row $j$ of
# $W_2$. Then the network is a sum over the hidden values:
#
# $$\mathrm{FFN}(x) = \sum_j \max(0,\, x \cdot k_j + b_j)\;v_j + b_2$$
#
# That is like attention: a query $x$ is compared with keys, each comparison becomes a weight, and
# the result is the weighted sum of the values. But the keys and values do not come from words: they
# are learned, and the same for every text. The network is a memory (Geva et al. 2021). A ReLU
# replaces the softmax: if no key fits, nothing is written. Here is what it writes for *cat*, whose
# row is (1.5, −1.5, −0.5, 0.5, 0). Our $b_2$ is 0.


# %%
@show
def a_memory():
    """The feed-forward network of the example as six keys and six values."""
    the, _, purrs = (" and ".join(np.array(block.memories)[row > 0]) for row in made["hidden"])
    silent = np.array(block.memories)[~made["hidden"].any(axis=0)]
    return Words(f"""
        The six keys look for {", ".join(f"*{name}*" for name in block.memories[:-1])} and
        *{block.memories[-1]}*; see their numbers in [the block](#block). Two fit *cat*. The first
        gives 1.5 + 0.5 − 1 = 1: a noun with a sound. Its value writes 2 to *animal* and takes 1
        from *sound*. The fourth gives 1.5 + 1.5 − 1 = 2, so its value, −0.5 to *noun*, counts
        twice. Together they write {listed(made["written"][cat])}.

        *purrs* fits {purrs} alone, *the* fits {the}. The key *{silent.item()}* fits none of the
        three words. Keep it in mind.
    """)


# %% [markdown]
# ### Through the feed-forward network
#
# There are two matrix products with biases, and a ReLU between them. Write $G = NW_1 + b_1$,
# $R = \max(0, G)$, $F = RW_2 + b_2$. Entry by entry, the last of them is
#
# $$F_{ti} = \sum_j R_{tj}\,W_{ji} + b_i$$
#
# Ask where each number is used. $R_{tj}$ is used in all of row $t$ of $F$. $W_{ji}$ is used by
# every word $t$, in column $i$. $b_i$ is used by every word, with the factor 1. So
#
# $$\mathrm{d}R = \mathrm{d}F\,W_2^\top \qquad \mathrm{d}W_2 = R^\top\,\mathrm{d}F \qquad
# \mathrm{d}b_2 = \sum_t \mathrm{d}F_t$$
#
# The ReLU has the slope 1 where $G$ is positive, and 0 elsewhere. Write $[\ldots]$ for 1 where the
# condition in the brackets is true, and 0 where it is not:
#
# $$\mathrm{d}G_{tj} = \mathrm{d}R_{tj} \cdot [G_{tj} > 0]$$
#
# And the first product is like the second: $\mathrm{d}N = \mathrm{d}G\,W_1^\top$,
# $\mathrm{d}W_1 = N^\top\,\mathrm{d}G$, $\mathrm{d}b_1 = \sum_t \mathrm{d}G_t$.


# %%
@show
def the_memory_backward_by_hand():
    """The gradient of the row of `cat` through the feed-forward network."""
    df, dh = made["dwritten"][cat], made["dhidden"][cat]
    return Words(f"""
        By hand, for *cat*. Its row of $\\mathrm{{d}}F$ is {listed(df)}.

        - Through the **values**: its dot product with the first is
          {product(df, block.outer[0])}, with the fourth {product(df, block.outer[3])}. The other
          keys did not fit and get 0. So the row of $\\mathrm{{d}}G$ is {listed(dh)}.
        - Through the **keys**: {plain(dh[0])} times the first key and {plain(dh[3])}
          times the fourth are together {listed(made["dnormed_2"][cat])}.
        - The way around adds $\\mathrm{{d}}F$ itself: {listed(made["dnormed"][cat])}. This is what
          we sent through the norm above.

        Row $j$ of $\\mathrm{{d}}W_2$ is $\\sum_t R_{{tj}}\\,\\mathrm{{d}}F_t$. So a value learns
        from the words that its key fitted: the better the fit, the more. A key that fits no word
        gets no gradient, and neither does its value. Our *animal* learns nothing from this
        sentence. If a key fits no word of any sentence, it is *dead*: only a change of its input
        can wake it.
    """)


# %%
@show
def the_lines_of_the_feed_forward_network():
    """The library's backward of the feed-forward network."""
    return [
        Beside(
            FeedForward.backward,
            {
                "return": r"From the inside out: from $\mathrm{d}F$ through $W_2$ to "
                r"$\mathrm{d}R$, through the ReLU to $\mathrm{d}G$, then through $W_1$ to "
                r"$\mathrm{d}N$.",
            },
        ),
        Beside(relu_backward, {"return": "`positive` is where $G > 0$."}),
    ]


# %% [markdown]
# ## Is it true?
#
# The library nudges every input and every parameter and measures what it does to the loss, as in
# lesson 3.


# %%
@show
def gradient_check():
    """The largest error among the gradients of each part and of the whole block."""
    rng, rows = np.random.default_rng(6), []
    config = LayerConfig(d_model=5, d_ff=6, heads=1, d_k=2, d_v=4, p_drop=0)
    for layer in (LayerNorm(5), FeedForward(5, 6, rng), config.encoder_layer(rng)):
        found = check(layer, [rng.standard_normal((2, 3, 5))])
        worst, name = max(found, key=lambda one: one.error), type(layer).__name__
        rows.append((f"`{name}`", len(found), f"`{worst.name}`", scientific(worst.error)))
    return table(["layer", "gradients checked", "the worst", "its relative error"], rows)


# %% [markdown]
# ## In the running example
#
# Our block of *the cat purrs* stands for one block of an encoder. The translator of the [home
# page](index.html) has three, with the norm before the sublayer. How much do attention and the
# feed-forward network add to a word's row? How many of the network's 160 keys fit a word? And does
# the gradient shrink on its way down?


# %%
PARTS = "self_attention", "feed_forward"


@show
def in_the_running_example():
    """What each block of the trained encoder adds, and the gradient on its way back."""
    step, rows = running.step(), []

    def length(array) -> str:
        return f"{np.linalg.norm(array, axis=-1).mean():.1f}"

    for layer in range(3):
        name = f"encoder.layers.{layer}"
        found = step.into[f"{name}.feed_forward.sublayer.activation"] > 0
        parts = (step.into[name], *(step.out[f"{name}.{part}.sublayer"] for part in PARTS))
        back = np.linalg.norm(step.back[name])
        rows.append((layer + 1, *map(length, parts), f"{found.mean():.0%}", f"{back:.3f}"))
    below = np.linalg.norm(step.on["encoder.layers.0"])
    names = [
        "block",
        "row that enters",
        "attention adds",
        "network adds",
        "keys that fit",
        "gradient",
    ]
    return [
        table(
            names,
            rows,
            "Lengths are means over the words of “a woman is dancing with a bear”. The gradient is "
            "the one that arrives at the end of the block.",
        ),
        Words(f"""
            Each sublayer adds a row that is shorter than the row that enters: the word's row goes
            around, and the sublayers correct it. A word fits only a few of the network's keys. The
            gradient that leaves the first block has the length {below:.3f}: it has not vanished.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# $T$ is the number of words, $D$ the width of a row, $d_{ff}$ the width of the hidden layer. Write
# $g$ for $\mathrm{d}\hat x$, and $m(g)$ for the mean of each of its rows.
#
# | forward | backward | shape |
# |---|---|---|
# | $U = X + O$ | $\mathrm{d}O = \mathrm{d}U$ | $(T, D)$ |
# | | $\mathrm{d}X = \mathrm{d}U$, plus what comes back through the sublayer | $(T, D)$ |
# | $\hat x = (x - \mu)\,r$ | $\mathrm{d}x = r\,(g - m(g) - \hat x\,m(g\,\hat x))$ | $(T, D)$ |
# | $y = \gamma\,\hat x + \beta$ | $\mathrm{d}\hat x = \mathrm{d}y\,\gamma$ | $(T, D)$ |
# | | $\mathrm{d}\gamma = \sum_t \mathrm{d}y_t\,\hat x_t$ | $(D)$ |
# | | $\mathrm{d}\beta = \sum_t \mathrm{d}y_t$ | $(D)$ |
# | $F = RW_2 + b_2$ | $\mathrm{d}R = \mathrm{d}F\,W_2^\top$ | $(T, d_{ff})$ |
# | | $\mathrm{d}W_2 = R^\top\,\mathrm{d}F$ | $(d_{ff}, D)$ |
# | | $\mathrm{d}b_2 = \sum_t \mathrm{d}F_t$ | $(D)$ |
# | $R = \max(0, G)$ | $\mathrm{d}G = \mathrm{d}R$ where $G > 0$, else 0 | $(T, d_{ff})$ |
# | $G = NW_1 + b_1$ | $\mathrm{d}N = \mathrm{d}G\,W_1^\top$ | $(T, D)$ |
# | | $\mathrm{d}W_1 = N^\top\,\mathrm{d}G$ | $(D, d_{ff})$ |
# | | $\mathrm{d}b_1 = \sum_t \mathrm{d}G_t$ | $(d_{ff})$ |

# %% [markdown]
# ## After the sum, or before the sublayer?
#
# The paper normalises *after* the sum (post-norm). Most later models normalise *before* the
# sublayer (pre-norm), and once more at the very end:
#
# $$\text{post:}\quad y = \mathrm{norm}(x + f(x))$$
#
# $$\text{pre:}\quad y = x + f(\mathrm{norm}(x))$$
#
# In post-norm even a gradient that goes around all sublayers passes through every norm. In pre-norm
# it passes through the last one alone: from there to the beginning one path has only plus signs on
# it.
#
# Go back to [gradient against depth](#depth) and choose the gradient of $W_2$. In pre-norm the sums
# are never normalised, so the rows grow from layer to layer, and the norm behind the last layer
# divides the gradient by their size. Xiong et al. (2020) prove it for untrained layers: in pre-norm
# the gradient of the last layer's $W_2$ falls like one over the root of the
# number of layers, in post-norm it does not.


# %%
@show
def the_last_layer():
    """The gradient of the last layer's W_2 by the number of layers, post and pre."""
    layers, norms = (3, 24), ("post", "pre")
    found = [[depth.measure(norm, True, n)["value"][-1] for n in layers] for norm in norms]
    post, pre = np.array(found)
    first, *_, last = depth.measure("pre", True)["value"]
    return Words(f"""
            In pre-norm, this gradient falls from {pre[0]:.2f} with 3 layers to {pre[-1]:.2f} with
            24, by a factor of {pre[0] / pre[-1]:.2f}, and $\\sqrt{{24/3}}$ is {np.sqrt(8):.2f}. In
            post-norm it is {post[0]:.2f} and {post[-1]:.2f}. In our 12 layers, post-norm gives all
            layers about the same gradient; pre-norm gives the first layer {first / last:.1f} times
            as much as the last.

            Does this matter for learning? Encoders of 12 layers read five symbols and have to write
            them backwards. In one of six runs the learning rate rises from 0 for 60 steps; in the
            others it is constant.
    """)


@show
def does_it_learn():
    """Losses of encoders with 12 layers, post, pre and without the way around."""
    losses = measured(6)["losses"]
    rows = [
        (name, f"{rate:g}", f"{losses[name][-1]:.2f}")
        for name, (_, _, rate, _) in depth.RUNS.items()
    ]
    return [
        table(["encoder", "learning rate", "loss, last 20 of 120 steps"], rows),
        Words(f"""
            Guessing among {depth.SYMBOLS} symbols costs {np.log(depth.SYMBOLS):.2f}. Without the
            way around the encoder does no better. Pre-norm learns with either rate, post-norm only
            with the small one. But make just its first 60 steps smaller, and it learns with the
            large rate, too. This is a *warm-up*: the paper's rate rises for 4,000 steps (section
            5.3, lesson 8).
        """),
    ]


# %% [markdown]
# ## How many parameters?
#
# Count the base model of the paper (Table 3). Before you look: which part of an encoder layer has
# more parameters, attention or the feed-forward network?

# %%
VOCABULARY = 37_000


def sizes_of_base(**changes) -> Counter:
    """The parameters of each part of the library's base model, six layers on each side."""
    # One layer is enough, since all have the same size; so are 100 symbols of the embedding.
    model = Transformer(Config.base(100, layers=1, **changes))
    sizes = Counter(embedding=VOCABULARY * model.config.d_model)
    for name, parameter in model.named_parameters().items():
        if ".layers." in name:
            tower, _, _, part, *_ = name.split(".")
            sizes[f"{tower}: {part}"] += 6 * parameter.size
    return sizes


@show
def parameters_of_base():
    """Which parts of the base model have most of its parameters."""
    sizes = sizes_of_base()
    count, of_memory = sum(sizes.values()), sizes["encoder: feed_forward"]
    share = 100 * of_memory / (of_memory + sizes["encoder: self_attention"])
    return Words(f"""
        Attention has four matrices of 512 × 512, the feed-forward network two of 512 × 2,048. So
        the keys and values of the memory are {share:.0f} % of an encoder layer. With
        {VOCABULARY:,} symbols the embedding is {100 * sizes["embedding"] / count:.0f} % of the
        model, which has {count:,} parameters.
    """)


# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims about the number of parameters, computed again."""
    changes = {}, dict(d_k=16, d_v=64), dict(d_k=32, d_v=64), dict(d_k=16, d_v=16)
    base, *others = (sum(sizes_of_base(**each).values()) for each in changes)
    separate, symbols = base + 2 * VOCABULARY * 512, (65_000_000 - base) / 512
    saved_16, saved_32, saved_both = ((base - other) / 1e6 for other in others)
    return Words(f"""
        **“The base model has 65M parameters.”** The paper says so (Table 3). With about 37,000
        symbols shared by both languages (section 5.1), and one matrix for both embeddings and the
        output (section 3.4), it comes to {base / 1e6:.1f}M. For 65M it would need {symbols:,.0f}
        more symbols. With three separate matrices it is {separate / 1e6:.1f}M.

        **“d_k 16 instead of 64 saves 7M parameters.”** In Table 3 (rows B) the model with
        $d_k = 16$ has 58M. It saves {saved_16:.1f}M only if the *values* keep their 64 numbers. If
        they shrink too, as with the usual $d_v = d_k$, it saves {saved_both:.1f}M. The other row
        agrees: with $d_k = 32$, which saves {saved_32:.1f}M, the paper has 60M.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    d, f = (getattr(Config.base(VOCABULARY), name) for name in ("d_model", "d_ff"))
    return [
        Question(
            "LayerNorm gets the row (9, 3, 5, 7, 6), with $\\gamma = 1$ and $\\beta = 0$. What is "
            "the first number of the result?",
            "The mean is 6. Subtract it: (3, −3, −1, 1, 0). The standard deviation is 2, so the "
            "first number is 1.5. This is $U$ of *cat* plus 5, and a constant changes nothing.",
            float(layer_norm(np.array([9.0, 3, 5, 7, 6]), 1.0, 0.0, 0.0)[1][0]),
            mistakes={
                3: "You subtracted the mean. Now divide by the standard deviation.",
                3 / 4: "You divided by the variance. LayerNorm divides by its root, the standard "
                "deviation.",
                3 / np.sqrt(5): "You divided the sum of the squares by 4. LayerNorm divides it by "
                "$D$, which is 5 here.",
                3 / np.sqrt(20): "You divided by the length of the centred row. The standard "
                "deviation is the root of the *mean* of the squares.",
                9 / 2: "You divided by the standard deviation, but did not subtract the mean "
                "first.",
            },
        ),
        Question(
            "A row has 512 numbers. In how many directions, at right angles to each other, can a "
            "gradient come back through its norm?",
            "Two directions are taken out, $\\mathbf{1}$ and $\\hat x$: 510 are left.",
            d - 2,
            mistakes={
                d: "Those are all the directions. But add the same number to the whole row: the "
                "result stays the same, so in this direction the gradient is 0.",
                d - 1: "You took out one direction. Both a shift of the row and a stretch of its "
                "centred numbers leave the result as it is.",
                2: "That is the number of directions that are taken out. The question asks for "
                "the directions that are left.",
            },
        ),
        Question(
            "A sublayer stands in a residual connection without a norm. All weights of its last "
            "matrix are 0. What is the gradient of its input $x$?",
            "$\\mathrm{d}u$ comes along the way around, and nothing comes back through the matrix "
            "of zeros. Many deep networks begin like this on purpose: at first no layer changes "
            "anything.",
            1,
            {
                "0": "It is true that nothing comes back through a matrix of zeros. But there is "
                "also a way around the sublayer.",
                "$\\mathrm{d}u$, the gradient of the sum": "",
                "twice $\\mathrm{d}u$": "You let the sublayer pass the gradient on as it is. But "
                "nothing comes back through a matrix of zeros.",
            },
        ),
        Question(
            "How many parameters does one feed-forward network of the base model have, with its "
            "biases ($d_{model} = 512$, $d_{ff} = 2048$)?",
            "Two matrices of 512 · 2,048 = 1,048,576, and 2,048 + 512 biases.",
            2 * d * f + f + d,
            mistakes={
                2 * d * f: "You left out the biases: one for each hidden number, and one for each "
                "number of the result.",
                d * f: "That is one matrix. There are two: one leads to the hidden layer, and one "
                "leads back.",
                d * f + f: "That is the first layer. The second one leads back to 512 numbers.",
                2 * d * f + 2 * f: "You gave both layers 2,048 biases. The result of the second "
                "has only 512 numbers.",
                2 * d * f + 2 * d: "You gave both layers 512 biases. The hidden layer has 2,048 "
                "numbers.",
            },
        ),
        Question(
            "A hidden value of the feed-forward network is negative before the ReLU for every word "
            "of a batch. Which parameters get a gradient of 0 from this batch?",
            "Its column of $R$ is 0, so $\\mathrm{d}W_2 = R^\\top\\mathrm{d}F$ has a row of zeros: "
            "the value. Its column of $\\mathrm{d}G$ is 0, so $\\mathrm{d}W_1 = "
            "N^\\top\\mathrm{d}G$ has a column of zeros, the key, and its bias gets 0.",
            2,
            {
                "its key": "The key is among them, because nothing comes back through the ReLU. "
                "Ask what else lies before the ReLU, and what its output, 0, is multiplied by.",
                "its value": "The value is among them, because it is multiplied by 0. Ask also "
                "what comes back through the ReLU, whose slope is 0 here.",
                "its key, its bias and its value": "",
                "none": "It is true that each of these parameters is used for every word. But "
                "where its input is negative, the ReLU returns 0 and has the slope 0.",
            },
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 6 mine.py` writes them into a file, and `python -m lessons check 6 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `residual.py`, `layer_norm.py` and `feed_forward.py` in `numformer/paper`, put together in
#   `encoder.py` there; `pre_norm.py` and `rms_norm.py` in `numformer/later`.
# - *Attention Is All You Need*, sections 3.1 and 3.3.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*.
# - Geva et al. 2021, *Transformer Feed-Forward Layers Are Key-Value Memories*.
# - Lesson 7: the decoder's block has one sublayer more.
