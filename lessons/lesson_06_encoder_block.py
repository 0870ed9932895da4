# %% [markdown]
# # The encoder block
#
# > A layer of the encoder is more than attention. What stands around attention, and what is each
# > part for? What would go wrong without it?
#
# Attention mixes. Its result is a mean of values that are already there (lesson 3), and a mean of
# means is again a mean. With attention alone, twelve layers would stir the same soup twelve times.
# So each layer of the Transformer has a second half that works on every word by itself. And both
# halves stand within two devices that look like details: a sum and a norm. Without these two, we
# will see, a deep encoder learns next to nothing.
#
# The paper (section 3.1) puts it into one line. Each *sublayer*, attention or feed-forward network,
# is wrapped in the same way:
#
# $$\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$$
#
# In this lesson you follow three words through such a block and a gradient back. You derive the
# backward of each part, above all that of LayerNorm, which has a trap. And you measure what the
# parts are for.

# %%
import numpy as np

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
from lessons.lesson_06.block import (
    compute,
    doutput,
    features,
    flows,
    inner,
    inner_bias,
    memories,
    outer,
    tokens,
    x,
)
from lessons.lesson_06.depth import LAYERS, STEPS, SYMBOLS, depth, learn, measure
from lessons.lesson_06.row import row
from lessons.quiz import Question
from lessons.simulation import Simulation
from numformer import Config, FeedForward, LayerNorm, Transformer
from numformer.gradient_check.gradients import check
from numformer.layers import Residual
from numformer.layers.activation import relu_backward
from numformer.layers.layer_norm import layer_norm, layer_norm_backward
from numformer.layers.linear import linear_backward
from numformer.models.block import Block, TowerConfig

# %% [markdown]
# ## Three words go through
#
# The words are *the cat purrs*. Each is a row of five numbers, and in our example these numbers
# mean something: how much of a noun, of a verb, of an animal the word is, how much it has to do
# with a sound, and whether it is something definite.

# %%
cat = tokens.index("cat")
block = compute(part=0, dy=(-1, doutput))  # every matrix of the block, there and back


def plain(number: float) -> str:
    return f"{number + 0.0:.5g}".replace("-", "−")


def listed(numbers) -> str:
    """A row of numbers in brackets."""
    return f"({', '.join(map(plain, numbers))})"


@show
def the_input():
    """The example: three words, five features."""
    return Matrix("X", x, tokens, features)


# %% [markdown]
# *cat* is a noun and no verb. That it is an animal, the row does not say; nor that there is a
# sound. The block shall find out. It is a block of numformer, with weights that we have chosen so
# that all that happens to *cat* can be computed by hand. Read its row from the top to the bottom.


# %%
@show
def one_row_through_the_block():
    """What happens to the row of `cat`."""
    steps = [
        ("**X**, the input", "x"),
        ("**O**, what attention writes", "attended"),
        ("**U** = X + O", "sum_1"),
        ("**N**, the norm of U", "normed"),
        ("**F**, what the feed-forward network writes", "written"),
        ("**U'** = N + F", "sum_2"),
        ("**Y**, the norm of U'", "y"),
    ]
    rows = [(words, *map(plain, block[name][cat])) for words, name in steps]
    return table(["*cat*", *features], rows)


# %% [markdown]
# 1. **Attention** brings news from other words. Here *cat* looks at all three words alike. It takes
#    from *purrs* that there is a sound, and from *the* that it is something definite.
# 2. **Add.** The news is added to the row. Nothing that was there is lost.
# 3. **Norm.** The mean of (4, −2, 0, 2, 1) is 1. Subtract it: (3, −3, −1, 1, 0). The mean of the
#    squares is 20 / 5 = 4, so the standard deviation is 2. Divide by it. Every row now has mean 0
#    and standard deviation 1, however large it was before.
# 4. **Feed-forward.** This part looks at one row alone. It has learned: a noun with a sound is an
#    animal. So it writes 2 to *animal*, and takes 1 from the two clues, which are used up.
# 5. **Add, norm**, as before. This row has mean 0 and standard deviation 1 already, so the last
#    norm leaves it as it is.
#
# The result has the shape of the input. So the next block can begin where this one ended, and six
# of them stand one on the other.
#
# ## Through the block, there and back
#
# Now all three words at once, with the gradient. All numbers come out of numformer's own `Block`.


# %%
@show
def data_and_gradient() -> Simulation:
    """The simulation: the parts of the block and what flows through them."""
    return flows


# %% [markdown]
# You will have seen that only attention hands something from token to token: choose the gradient of
# *cat* alone, and the rows of the other two stay 0 until attention. And the *add* hands the same
# gradient to both sides. That is where we begin.
#
# ## The way around
#
# The sum $U = X + O$ is called a *residual connection*: the sublayer computes only what is to be
# *added*, the residue, and the row itself goes around it (He et al. 2016).
#
# ### Backward
#
# Take a sublayer $f$, one row, and $u_j = x_j + f_j(x)$. Ask where $x_i$ is used: in the sum, with
# the factor 1, and within the sublayer. Each use contributes, and the contributions add up:
#
# $$\mathrm{d}x_i = \mathrm{d}u_i + \sum_j \mathrm{d}u_j\,\frac{\partial f_j}{\partial x_i}$$
#
# The second term is what the sublayer's own backward gives. The first is there whatever the
# sublayer does. A sublayer that passes nothing back cannot stop the gradient. For twelve sublayers
# without the way around, a gradient must get through twelve Jacobians, one *times* the other. With
# it, one of the paths from the end to the beginning goes through none.
#
# In the library the same class has the paper's order (the norm after the sum) and a later one (the
# norm before the sublayer), to which we come back. Dropout sets some entries to 0 while a model is
# trained (lesson 8); without it, it does nothing.


# %%
@show
def the_lines_of_the_residual():
    """The library's residual connection, there and back."""
    return [
        Beside(
            Residual.forward,
            {
                "if self.norm_first": "The later order: $x + f(\\mathrm{norm}(x))$.",
                "return self.norm": "The paper's order: $\\mathrm{norm}(x + f(x))$. `others` are "
                "what attention needs besides, a mask for example.",
            },
        ),
        Beside(
            Residual.backward,
            {
                "dsum = ": "In the paper's order the norm came last, so its backward comes first.",
                "gradients = ": "Through the sublayer: the second term of the equation.",
                "dx, *dothers = ": "Some sublayers have further inputs with gradients of their own "
                "(lesson 7).",
                "if self.norm_first": "In the later order the norm stood within the path of the "
                "sublayer, so the gradient of this path goes through it.",
                "dx += dsum": "**The way around**: the first term. One line, without which nothing "
                "deep would learn.",
                "return": "",
            },
        ),
    ]


# %% [markdown]
# ### What is it for?
#
# Let us take it away. Here is numformer's encoder with 12 layers, random weights and random data,
# and for once without any norm. Once each sublayer's result is added to its input, once it takes
# its place. A gradient of length 1 comes in at the end. How long will it be at the first layer,
# with and without the way around? More than 1, less, about 1?


# %%
def by_layer(name: str, what: str, label: str, alt: str, caption: str) -> Picture:
    """A measured number against the layer, without norms, with and without residuals."""

    def draw(figure):
        axes = figure.subplots()
        for residual, colour in ((True, BLUE), (False, ORANGE)):
            words = "with the way around" if residual else "without"
            found = measure("none", residual)[what]
            axes.plot(range(1, LAYERS + 1), found, "o-", color=colour, label=words)
        axes.set(xlabel="layer", ylabel=label, yscale="log")
        axes.legend()

    return Picture(f"lesson_06_{name}", draw, alt, caption)


@show
def without_norms():
    """Data and gradient by depth, with and without the way around."""
    around, without = measure("none", True), measure("none", False)
    each = without["input"][0] ** (1 / LAYERS)
    assert without["size"][-1] < 1e-3 and without["input"][0] < 1e-3
    assert around["size"][-1] > 50 and around["input"][0] > 1e5
    return [
        by_layer(
            "size", "size", "typical size of the layer's input",
            "Two lines against the layer. With the way around the data grow about a hundredfold, "
            "without it they shrink to less than a thousandth.",
            f"**Data.** Before layer {LAYERS} they have the size {plain(around['size'][-1])} with "
            f"the way around and {scientific(without['size'][-1])} without.",
        ),
        by_layer(
            "gradient", "input", "length of the input's gradient",
            "Two lines against the layer. From layer 12 down to 1 the gradient grows to more than "
            "a hundred thousand with the way around and shrinks below a thousandth without it.",
            f"**Gradient.** At the first layer it has the length "
            f"{scientific(around['input'][0])} with the way around and "
            f"{scientific(without['input'][0])} without.",
        ),
        Words(f"""
            Without the way around the gradient *vanishes*: each layer leaves about
            {100 * each:.0f} % of it. With it, it cannot vanish. But now it *explodes*, and so do
            the data: each sublayer adds something, and nothing ever takes away. Something has to
            hold the size. That will be the norm.
        """),
    ]  # fmt: skip


# %% [markdown]
# Could the norm do it alone? It would hold the size with and without the way around. So measure
# something else, with the norm in its place: how *alike* the words have become. Take the share of
# all squares that the mean of all words has; 1 means that all words have the same vector.


# %%
@show
def words_become_alike():
    """How alike positions become, and what attention's queries then learn from."""
    around, without = measure("post", True), measure("post", False)
    rows = []
    for layer in (1, 2, 3, 4, 8, 12):
        at = layer - 1
        rows.append(
            (
                layer,
                f"{around['alike'][at]:.3f}",
                f"{without['alike'][at]:.3f}",
                scientific(around["query"][at]),
                scientific(without["query"][at]),
            )
        )
    assert without["alike"][3] > 0.999 and without["query"][3] < 1e-4 < 0.1 < around["query"][3]
    return [
        table(
            ["layer", "alike, with", "alike, without", "gradient of $W_Q$, with", "without"], rows,
            "With the norm after each sublayer. “Without” means without the way around. What is "
            "below $10^{-14}$ is rounding.",
        ),
        Words("""
            Without the way around all words are the same after three layers. Attention takes means,
            and nothing brings the differences back (Dong et al. 2021). Where all keys are the same,
            it does not matter where a word looks. So the queries get no gradient: attention cannot
            learn. With the way around each word keeps something of its own. It still becomes more
            alike the others, layer by layer, in an encoder that has learned nothing yet.

            So there are three reasons for one plus sign: the gradient arrives, a word stays itself,
            and a sublayer that has nothing to say can say nothing.
        """),
    ]  # fmt: skip


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
# $\gamma$ and $\beta$ are learned, one number for each feature. They begin at 1 and 0, and ours are
# still there. The library adds a small $\varepsilon$ to the variance, so that a row of equal
# numbers does not divide by 0; in our example we leave it out, so that numbers come out.
#
# Note what the mean runs over: the features of *one* word. No other word comes into it, and no
# other sentence. So the norm does the same in training and in use, for one word as for a thousand.
#
# Two things follow at once. Add the same number to all of $x$: $\mu$ takes it up, and $\hat x$
# stays. Multiply all of $x$ by 3: $r$ becomes a third, and $\hat x$ stays. Both are directions in
# which $x$ can move and nothing happens behind the norm. Then what must the gradient in these two
# directions be?


# %%
@show
def one_row() -> Simulation:
    """The simulation: LayerNorm of one row, and what its backward takes away."""
    return row


# %% [markdown]
# ### Through the norm
#
# First the easy part, $y_i = \gamma_i\,\hat x_i + \beta_i$ for every row. Ask where each is used:
# $\gamma_i$ and $\beta_i$ in every row $t$, $\hat x_i$ in its own row alone. So
#
# $$\mathrm{d}\gamma_i = \sum_t \mathrm{d}y_{ti}\,\hat x_{ti} \qquad
# \mathrm{d}\beta_i = \sum_t \mathrm{d}y_{ti} \qquad
# \mathrm{d}\hat x_{ti} = \mathrm{d}y_{ti}\,\gamma_i$$
#
# Now one row, $\hat x_i = (x_i - \mu)\,r$. The trap: it looks as if $\mathrm{d}x_i$ were
# $\mathrm{d}\hat x_i\,r$. But $x_j$ acts on *every* $\hat x_i$, in three ways: directly where
# $i = j$, through the mean, and through the variance. Take them one after the other.
#
# **The mean.** Each number has the share $1/D$ in it:
#
# $$\frac{\partial \mu}{\partial x_j} = \frac{1}{D}$$
#
# **The variance.** Where $x_j$ moves, its own term changes with $2(x_j - \mu)$. The mean moves too,
# and with it all terms, but together they change by
# $-\frac{2}{D}\sum_i (x_i - \mu)\,\frac{1}{D}$, and the sum of what is centred is 0. What is left:
#
# $$\frac{\partial \sigma^2}{\partial x_j} = \frac{2}{D}(x_j - \mu)$$
#
# **One over its root.** $r = (\sigma^2)^{-1/2}$ has the derivative $-\frac12 (\sigma^2)^{-3/2}$,
# which is $-\frac12 r^3$. By the chain rule
#
# $$\frac{\partial r}{\partial x_j} = -\frac12 r^3 \cdot \frac{2}{D}(x_j - \mu)
# = -\frac{r^2\,\hat x_j}{D}$$
#
# where one $r$ has gone into $(x_j - \mu)\,r = \hat x_j$.
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
# Read it in words: from the gradient take away its mean, take away its part along $\hat x$, and
# divide by the standard deviation. Now by hand, for the gradient that arrives at *cat* in the
# block.


# %%
def product(left, right) -> str:
    """A dot product to be followed by hand."""
    pairs = [f"{plain(a)} · {plain(b)}" for a, b in zip(left, right, strict=True) if b]
    pairs = [pair.replace("· −", "· (−") + ")" * ("· −" in pair) for pair in pairs]
    return f"{' + '.join(pairs)} = {plain(left @ right)}".replace("+ −", "− ")


@show
def the_norm_backward_by_hand():
    """The row of `cat`, from the gradient of its norm to that of its sum."""
    dhat, hat = block["dnormed"][cat], block["normed"][cat]
    along = dhat @ hat / 5
    left = dhat - dhat.mean() - along * hat
    lines = [
        (r"$\hat x$", hat),
        (r"$\mathrm{d}\hat x$", dhat),
        ("its mean, taken away", np.full(5, -dhat.mean())),
        (r"its part along $\hat x$, taken away", -along * hat),
        ("what is left", left),
        (r"times $r = 1/2$: $\mathrm{d}x$", left / 2),
    ]
    assert np.allclose(left / 2, block["dsum_1"][cat])
    return [
        table(["*cat*", *features], [(words, *map(plain, numbers)) for words, numbers in lines]),
        Words(f"""
            The mean is {plain(dhat.sum())} / 5 = {plain(dhat.mean())}. The sum of the products with
            $\\hat x$ is {product(dhat, hat)}, a fifth of it {plain(along)}.

            Add up the last line: 0. Multiply it with $\\hat x$ and add up: 0 again. These are the
            two directions in which nothing happens, and there the gradient is 0. And look at
            *definite*: the gradient there was 0. It gets the largest of all. Its number was the
            mean of the row, and if it moves, it moves the mean, and so the four others.
        """),
    ]


# %% [markdown]
# ### What is taken away, as geometry
#
# Look at the row as an arrow in $D$ dimensions. Let $\mathbf{1}$ be the arrow whose entries are all
# 1. Its squared length is $D$, and that of $\hat x$ is $D$, too: the mean of its squares is 1. They
#    are at right angles, since $\hat x$ sums to 0. The part of an arrow $g$ along another arrow $a$
#    is $a\,(a \cdot g)/(a \cdot a)$. For $\mathbf{1}$ this is the mean of $g$, in every entry. For
#    $\hat x$ it is $\hat x$ times the mean of $\hat x g$. So the two terms are two *projections*,
#    and
#
# $$J = r\,\Bigl(I - \frac{\mathbf{1}\mathbf{1}^\top}{D} - \frac{\hat x\,\hat x^\top}{D}\Bigr)$$
#
# is the Jacobian: it takes two directions out and multiplies what is left by $r$.


# %%
@show
def the_jacobian():
    """The Jacobian of LayerNorm for the row of `cat`, by formula and by small steps."""
    u, hat, step = block["sum_1"][cat], block["normed"][cat], 1e-5

    def norm(one):
        return layer_norm(one, 1.0, 0.0, 0.0)[1]

    formula = (np.eye(5) - 1 / 5 - np.outer(hat, hat) / 5) / 2
    moved = [(norm(u + step * unit) - norm(u - step * unit)) / (2 * step) for unit in np.eye(5)]
    stretched = np.linalg.eigvalsh(formula)[::-1]
    return [
        Matrix("J", formula, features, features),
        Words(f"""
            By small steps one gets the same, up to
            {scientific(np.abs(formula - np.array(moved).T).max())}. Its stretching factors (its
            eigenvalues) are {listed(stretched.round(12))}: in {int((stretched > 1e-9).sum())}
            directions it passes half, in 2 nothing. Half, because the standard deviation is 2. So
            the norm also holds the *gradient*: what comes from large data is made smaller by just
            as much.
        """),
    ]


# %% [markdown]
# Now the library's lines. In the code `rstd` is $r$, and `dot_last(a, b)` is the sum of the
# products of each row.


# %%
@show
def the_lines_of_layer_norm():
    """The library's LayerNorm, there and back."""
    return [
        Beside(
            layer_norm,
            {
                "centred = ": r"$x - \mu$, each row with its own mean.",
                "variance = ": r"$\sigma^2$: the mean of the squares of what is centred.",
                "rstd = ": r"$r$, with $\varepsilon$ added to the variance.",
                "centred *= rstd": r"$\hat x = (x - \mu)\,r$",
                "x_hat = ": "From here on it has this name.",
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
                "dx_hat = ": r"$\mathrm{d}\hat x = \mathrm{d}y\,\gamma$. This has to come first: "
                "the two means are means of this, not of $\\mathrm{d}y$.",
                "along_x_hat": r"$\frac{1}{D}\sum_i \mathrm{d}\hat x_i\,\hat x_i$, before the next "
                "lines change the array.",
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
# It is *position-wise*: it takes one row, and the same weights serve every row. Change *the*, and
# what it writes for *cat* stays the same. In the paper a row has 512 numbers and the hidden layer
# 2,048; in our example it is 5 and 6.
#
# ### A memory of keys and values
#
# What does such a network compute? Write $k_j$ for column $j$ of $W_1$ and $v_j$ for row $j$ of
# $W_2$. Then it is a sum over the hidden values:
#
# $$\mathrm{FFN}(x) = \sum_j \max(0,\, x \cdot k_j + b_j)\;v_j + b_2$$
#
# Compare with attention: a query is compared with keys, each comparison becomes a weight, and
# values are added up with these weights. Here $x$ is the query. The keys and values are no other
# words: they are learned, and the same for every text. It is a memory (Geva et al. 2021). And a
# ReLU stands in the place of the softmax: weights need not sum to 1, and if no key fits, nothing is
# written. Go through it for *cat*, whose row is (1.5, −1.5, −0.5, 0.5, 0). Our $b_2$ is 0.


# %%
def sum_of(numbers, names) -> str:
    """`noun + sound` for (1, 0, 0, 1, 0)."""
    parts = [f"{'−' if a < 0 else '+'} {'' if abs(a) == 1 else plain(abs(a)) + ' '}{name}"
             for a, name in zip(numbers, names, strict=True) if a]  # fmt: skip
    return " ".join(parts).removeprefix("+ ").replace("− ", "−", parts[0][0] == "−")


@show
def a_memory():
    """The feed-forward network of the example as six keys and six values."""
    n, rows = block["normed"][cat], []
    for key, bias, value in zip(inner.T, inner_bias, outer, strict=True):
        before = n @ key + bias
        rows.append(
            (
                sum_of(key, features),
                plain(bias),
                plain(before),
                plain(max(0, before)),
                sum_of(value, features),
            )
        )
    fits = block["hidden"] > 0
    silent = memories[int(np.flatnonzero(~fits.any(axis=0))[0])]
    return [
        table(
            ["key $k_j$ looks for", "$b_j$", "$n \\cdot k_j + b_j$", "after the ReLU",
             "value $v_j$"], rows,
        ),
        Words(f"""
            Two keys fit. The first is 1.5 + 0.5 − 1 = 1: a noun with a sound. Its value says
            *animal* and takes one from each clue but the noun. The fourth is 1.5 + 1.5 − 1 = 2 and
            writes twice its value. Together they write {listed(block["written"][cat])}, as in the
            table above.

            *purrs* fits {" and ".join(np.array(memories)[fits[2]])} alone, *the* fits
            {" and ".join(np.array(memories)[fits[0]])}. The key *{silent}* fits none of the
            three words. Such hidden values are called silent. Keep it in mind.
        """),
    ]  # fmt: skip


# %% [markdown]
# ### Through the feed-forward network
#
# There are two products, two biases and a ReLU between them. Write $H = NW_1 + b_1$,
# $R = \max(0, H)$, $F = RW_2 + b_2$. By entries the last is
#
# $$F_{ti} = \sum_j R_{tj}\,W_{ji} + b_i$$
#
# Ask where each is used. $R_{tj}$ is used in all of row $t$. $W_{ji}$ is used by every word $t$, in
# column $i$. $b_i$ is used by every word, with the factor 1. So (lesson 3 did the same for
# $O = AV$)
#
# $$\mathrm{d}R = \mathrm{d}F\,W_2^\top \qquad \mathrm{d}W_2 = R^\top\,\mathrm{d}F \qquad
# \mathrm{d}b_2 = \sum_t \mathrm{d}F_t$$
#
# The ReLU is $H$ itself where $H$ is positive, with the slope 1, and 0 elsewhere, with the slope 0:
#
# $$\mathrm{d}H_{tj} = \begin{cases} \mathrm{d}R_{tj} & \text{if } H_{tj} > 0 \\
# 0 & \text{else} \end{cases}$$
#
# And the first product is like the second: $\mathrm{d}N = \mathrm{d}H\,W_1^\top$,
# $\mathrm{d}W_1 = N^\top\,\mathrm{d}H$, $\mathrm{d}b_1 = \sum_t \mathrm{d}H_t$.


# %%
@show
def the_memory_backward_by_hand():
    """The gradient of the row of `cat` through the feed-forward network."""
    df, dh = block["dwritten"][cat], block["dhidden"][cat]
    fits = np.flatnonzero(dh)
    assert memories[fits[0]] == "noun + sound" and len(fits) == 2
    return Words(f"""
        By hand, for *cat*. Its row of $\\mathrm{{d}}F$ is {listed(df)}.

        - Along the **values**: the first value with it, {product(df, outer[0])}. The fourth,
          {product(df, outer[3])}. The other four did not fit, and get 0. So the row of
          $\\mathrm{{d}}H$ is {listed(dh)}.
        - Along the **keys**: {plain(dh[fits[0]])} times the first key and {plain(dh[fits[1]])}
          times the fourth, together {listed(block["dnormed_2"][cat])}.
        - The way around brings $\\mathrm{{d}}F$ itself, once more: the sum is
          {listed(block["dnormed"][cat])}. This is what we sent through the norm above.

        The weights learn what a memory should. Row $j$ of $\\mathrm{{d}}W_2$ is
        $\\sum_t R_{{tj}}\\,\\mathrm{{d}}F_t$: a value learns from the words that its key fitted,
        each as much as it fitted. A key that fits no word gets no gradient, and neither does its
        value. Our *animal* learns nothing from this sentence. If it fits no word of any sentence,
        it is dead: nothing will ever wake it.
    """)


# %%
@show
def the_lines_of_the_feed_forward_network():
    """The library's backward of the feed-forward network."""
    return [
        Beside(
            FeedForward.backward,
            {
                "dhidden = ": "From $\\mathrm{d}F$ through $W_2$ to $\\mathrm{d}R$ (and through "
                "dropout, if there is any).",
                "return": "Through the ReLU to $\\mathrm{d}H$, then through $W_1$.",
            },
        ),
        Beside(
            linear_backward,
            {
                "dx = ": r"$\mathrm{d}R = \mathrm{d}F\,W_2^\top$",
                "dweight": r"$\mathrm{d}W_2 = R^\top\,\mathrm{d}F$. `rows` lays the words of all "
                "sentences below each other.",
                "dbias": r"$\mathrm{d}b_2 = \sum_t \mathrm{d}F_t$: a sum, not a mean.",
                "return": "",
            },
        ),
        Beside(relu_backward, {"return": "`positive` is where $H > 0$."}),
    ]


# %% [markdown]
# ## Is it true?
#
# The library moves every input and every parameter a little and measures, as in lesson 3. For the
# norm, the network and the whole block:


# %%
@show
def gradient_check():
    """The largest error of every gradient of the parts and of the whole block."""
    rng = np.random.default_rng(6)
    batch = rng.standard_normal((2, 3, 5))
    config = TowerConfig(d_model=5, d_ff=6, heads=1, d_k=2, d_v=4, p_drop=0)
    parts = {
        "LayerNorm": LayerNorm(5),
        "FeedForward": FeedForward(5, 6, rng),
        "Block": Block(config, rng),
    }
    rows = []
    for name, layer in parts.items():
        found = check(layer, [batch])
        worst = max(found, key=lambda one: one.error)
        rows.append((f"`{name}`", len(found), f"`{worst.name}`", scientific(worst.error)))
    return table(["layer", "gradients checked", "the worst", "its relative error"], rows)


# %% [markdown]
# ## To take with you
#
# $T$ is the number of words, $D$ the width of a row, $d_{ff}$ that of the hidden layer. Write $g$
# for $\mathrm{d}\hat x$, and $m(g)$ for the mean of each of its rows.
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
# | $R = \max(0, H)$ | $\mathrm{d}H = \mathrm{d}R$ where $H > 0$, else 0 | $(T, d_{ff})$ |
# | $H = NW_1 + b_1$ | $\mathrm{d}N = \mathrm{d}H\,W_1^\top$ | $(T, D)$ |
# | | $\mathrm{d}W_1 = N^\top\,\mathrm{d}H$ | $(D, d_{ff})$ |
# | | $\mathrm{d}b_1 = \sum_t \mathrm{d}H_t$ | $(d_{ff})$ |

# %% [markdown]
# ## After the sum, or before the sublayer?
#
# The paper normalises *after* the sum (post-norm). Most later models normalise *before* the
# sublayer (pre-norm), and once more at the very end:
#
# $$\text{post:}\quad y = \mathrm{norm}(x + f(x)) \qquad\qquad \text{pre:}\quad
# y = x + f(\mathrm{norm}(x))$$
#
# It looks like a matter of taste. But look at the way around. In post-norm a gradient that goes
# around all sublayers still passes every norm. In pre-norm it passes none but the last: there is a
# path from the end to the beginning with nothing on it but plus signs.


# %%
@show
def gradient_against_depth() -> Simulation:
    """The simulation: gradient against depth, with the norm after, before, nowhere."""
    return depth


# %% [markdown]
# With a norm of either kind the gradient keeps its size, through 12 layers. There is a difference,
# though; choose the gradient of $W_2$ to see it. In pre-norm the sums are never normalised, so the
# rows grow from layer to layer. The norm behind the last layer divides the gradient by that size.
# Where there are more layers, it divides by more. Xiong et al. (2020) prove it for the last layer:
# in pre-norm the gradient of its $W_2$ falls like $1/\sqrt L$ with the number of layers $L$, in
# post-norm it does not fall. Measure it.


# %%
DEPTHS = (3, 6, 12, 24)


@show
def the_last_layer():
    """The gradient of the last layer's W_2 by the number of layers, post and pre."""
    post, pre = ([measure(norm, True, n)["value"][-1] for n in DEPTHS] for norm in ("post", "pre"))
    rows = [
        (n, f"{a:.2f}", f"{b:.2f}", f"{b * n**0.5:.1f}")
        for n, a, b in zip(DEPTHS, post, pre, strict=True)
    ]
    assert max(post) < 1.2 * min(post) and pre[0] > 2.5 * pre[-1]
    first = measure("pre", True)["value"][0] / measure("pre", True)["value"][-1]
    return [
        table(["layers $L$", "post", "pre", "pre times $\\sqrt{L}$"], rows,
              "Length of the gradient of the last layer's $W_2$, for a gradient of length 1 from "
              "above."),
        Words(f"""
            The last column hardly changes: it is $1/\\sqrt L$. Post-norm stays. Xiong et al. also
            report (their Figure 3) that in a translation model in post-norm the gradient grows from
            layer to layer, and in pre-norm is about the same in all. With our random data it is the
            other way round: in post-norm it is about the same, in pre-norm the first layer has
            {first:.1f} times as much as the last. So trust the theorem, and measure your own model.
        """),
    ]  # fmt: skip


# %% [markdown]
# Does it matter for learning? Here is a small task: an encoder of 12 layers reads five symbols and
# has to write them backwards. Five runs, each with a constant learning rate from the first step on.


# %%
RUNS = [
    ("post", True, 0.0005, BLUE, "-"),
    ("post", True, 0.003, BLUE, "--"),
    ("pre", True, 0.0005, GREEN, "-"),
    ("pre", True, 0.003, GREEN, "--"),
    ("post", False, 0.0005, GREY, "-"),
]


@show
def does_it_learn():
    """Losses of encoders with 12 layers, post, pre and without the way around."""
    runs = {run[:3]: learn(*run[:3]) for run in RUNS}
    last = {run: losses[-20:].mean() for run, (losses, _) in runs.items()}
    slow_post, fast_post, slow_pre, fast_pre, without = last.values()
    assert fast_pre < slow_pre < slow_post < fast_post - 0.25 and without > slow_post + 0.25
    (_, post), (_, pre) = runs["post", True, 0.003], runs["pre", True, 0.003]

    def draw(figure):
        axes = figure.subplots()
        for norm, residual, rate, colour, stroke in RUNS:
            smooth = runs[norm, residual, rate][0].reshape(-1, 10).mean(axis=1)
            words = f"{norm}, {rate:g}" if residual else f"no way around, {rate:g}"
            axes.plot(range(5, STEPS, 10), smooth, stroke, color=colour, label=words)
        axes.set(xlabel="step", ylabel="loss")
        axes.legend(fontsize=9)

    return [
        Picture(
            "lesson_06_learning",
            draw,
            "Five lines of loss against step. Pre-norm falls fastest, with the larger rate more. "
            "Post-norm falls with the small rate, and hardly at all with the large one. Without "
            "the way around it hardly falls either.",
            f"Mean loss of each ten steps. Guessing among {SYMBOLS} symbols costs "
            f"{np.log(SYMBOLS):.2f}.",
            (4.6, 3.6),
        ),
        Words(f"""
            Over the last 20 steps, pre-norm comes to {slow_pre:.2f} with the rate 0.0005 and to
            {fast_pre:.2f} with 0.003. Post-norm comes to {slow_post:.2f} with the small rate. With
            the large one it ends at {fast_post:.2f}: it has learned which symbols there are, and no
            more. Without the way around it is {without:.2f} even with the small rate.

            In the first step the gradient of the last $W_2$ is {post[-1] / pre[-1]:.1f} times as
            long in post-norm as in pre-norm. That alone explains little, because Adam divides by it
            (lesson 8). Liu et al. (2020) blame another thing: in post-norm a change of the weights
            changes the result of a deep model more. Whatever it is, post-norm has to begin with
            small steps. The paper does: its learning rate begins at 0 and rises for 4,000 steps.
            This *warm-up* is a matter of lesson 8. Xiong et al. show that pre-norm can do without.
        """),
    ]


# %% [markdown]
# ## How many parameters?
#
# Count the base model of the paper (Table 3), row by row. Before you look: which part of an encoder
# layer has more parameters, attention or the feed-forward network? And how much of the whole model
# is the embedding, the table with a vector for each symbol?

# %%
VOCABULARY, LAYERS_OF_BASE = 37_000, 6


def base_rows(**changes) -> list[tuple[str, int, int]]:
    """(part, parameters, how often it is there) of the library's base model."""
    # One layer is as large as each other, and one symbol has as many numbers as each other.
    model = Transformer(Config.base(100, layers=1, **changes))

    def size(*layers) -> int:
        return sum(one.size for layer in layers for one in layer.named_parameters().values())

    rows = [("embedding, also the output's weights", VOCABULARY * model.config.d_model, 1)]
    for name, tower in (("encoder", model.encoder), ("decoder", model.decoder)):
        (layer,) = tower.layers
        wrapped = {"self-attention": layer.self_attention, "cross-attention": layer.cross_attention,
                   "feed-forward": layer.feed_forward}  # fmt: skip
        there = {words: one for words, one in wrapped.items() if one}
        rows += [
            (f"{name}: {words}", size(one.sublayer), LAYERS_OF_BASE) for words, one in there.items()
        ]
        norms = [one.norm for one in there.values()]
        rows.append((f"{name}: {len(norms)} norms", size(*norms), LAYERS_OF_BASE))
    return rows


def total(rows) -> int:
    return sum(number * times for _, number, times in rows)


@show
def parameters_of_base():
    """The parameters of the base model, row by row."""
    rows = base_rows()
    numbers = {name: number for name, number, _ in rows}
    layer = sum(number for name, number in numbers.items() if name.startswith("encoder"))
    return [
        table(
            ["part", "parameters", "times", "together"],
            [(name, f"{n:,}", times, f"{n * times:,}") for name, n, times in rows]
            + [("**all**", "", "", f"{total(rows):,}")],
        ),
        Words(f"""
            Attention has four matrices of 512 × 512, the feed-forward network two of 512 × 2,048
            and two biases. So of an encoder layer
            {100 * numbers["encoder: feed-forward"] / layer:.0f} % are feed-forward: most of what a
            layer can remember, it remembers in keys and values, not in attention. The norms are
            next to nothing. The embedding is {100 * rows[0][1] / total(rows):.0f} % of the model.
        """),
    ]


# %% [markdown]
# ## Often told: check it


# %%
@show
def often_told():
    """Popular claims about the number of parameters, computed again."""
    base = total(base_rows())
    separate = base + 2 * VOCABULARY * 512
    symbols = (65_000_000 - base) / 512
    narrow = {d_k: base - total(base_rows(d_k=d_k, d_v=64)) for d_k in (16, 32)}
    both = base - total(base_rows(d_k=16, d_v=16))
    return Words(f"""
        **“The base model has 65M parameters.”** The paper says so (Table 3). With the vocabulary
        that it states, about 37,000 symbols shared by both languages (section 5.1), and one matrix
        for both embeddings and the output (section 3.4), it comes to {base / 1e6:.1f}M. For 65M
        there would have to be {symbols:,.0f} more symbols. The paper does not say where the
        difference lies. Some implementations give each of the three its own matrix: then it is
        {separate / 1e6:.1f}M, with the same computation in between.

        **“d_k 16 instead of 64 saves 7M parameters.”** In Table 3 (rows B) the model with
        $d_k = 16$ has 58M. It saves {narrow[16] / 1e6:.1f}M only if the *values* keep their 64
        numbers: then $W_Q$ and $W_K$ become a quarter, $W_V$ and $W_O$ stay. If values shrink too,
        which is what the usual $d_v = d_k$ would do, it saves {both / 1e6:.1f}M. The other row says
        the same: $d_k = 32$ saves {narrow[32] / 1e6:.1f}M, and the paper has 60M.
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    given = np.array([9.0, 3, 5, 7, 6])
    hat = layer_norm(given, 1.0, 0.0, 0.0)[1]
    config = Config.base(VOCABULARY)
    return [
        Question(
            question="LayerNorm gets the row (9, 3, 5, 7, 6), with $\\gamma = 1$ and $\\beta = 0$. "
            "What is the first number of the result?",
            answer=float(hat[0]),
            why="The mean is 6, the row less its mean (3, −3, −1, 1, 0), its standard deviation 2. "
            "So it is 1.5: the row of *cat* plus 5, but for the order. Adding a constant changes "
            "nothing.",
        ),
        Question(
            question="The loss is the sum of all numbers behind a LayerNorm with $\\gamma = 1$. "
            "What is the gradient of its input?",
            choices=("1 everywhere", "$r$ everywhere", "0 everywhere", "it depends on the row"),
            answer=2,
            why="A normalised row sums to 0, whatever the input is. So the loss is always the "
            "same. In the formula: a gradient of ones lies along $\\mathbf{1}$, and that part is "
            "taken away. It is a poor test of a backward: try random upstream gradients.",
        ),
        Question(
            question="A row has 512 numbers. How many dimensions do the gradients have that can "
            "come back through LayerNorm for this row?",
            answer=512 - 2,
            why="Two directions are taken out, $\\mathbf{1}$ and $\\hat x$: 510 are left.",
        ),
        Question(
            question="A sublayer in a residual connection has all weights 0 in its last matrix and "
            "no norm around it. What is the gradient of its input $x$?",
            choices=("0", "$\\mathrm{d}u$, the gradient of the sum", "twice $\\mathrm{d}u$"),
            answer=1,
            why="Nothing comes back through a matrix of zeros, and $\\mathrm{d}u$ comes along the "
            "way around. Many deep networks are begun like this on purpose: each layer starts as "
            "one that changes nothing.",
        ),
        Question(
            question="How many parameters has one feed-forward network of the base model, with its "
            "biases ($d_{model} = 512$, $d_{ff} = 2048$)?",
            answer=2 * config.d_model * config.d_ff + config.d_ff + config.d_model,
            why="Two matrices of 512 · 2,048 = 1,048,576, and 2,048 + 512 biases.",
        ),
        Question(
            question="A hidden value of the feed-forward network is negative before the ReLU for "
            "every word of a batch. Which parameters get a gradient of 0 from this batch?",
            choices=(
                "its key alone",
                "its value alone",
                "its key, its bias and its value",
                "none",
            ),
            answer=2,
            why="Its column of $R$ is 0, so $\\mathrm{d}W_2 = R^\\top\\mathrm{d}F$ has a row of "
            "zeros: the value. Its column of $\\mathrm{d}H$ is 0, so "
            "$\\mathrm{d}W_1 = N^\\top\\mathrm{d}H$ has a column of zeros, and the bias has 0.",
        ),
    ]


# %% [markdown]
# ## What to read next
#
# - `numformer/layers/residual.py` and `numformer/layers/layer_norm.py`, 60 lines each: what you
#   have just read, with nothing left out. `numformer/models/block.py` puts them together.
# - `numformer/layers/rms_norm.py`: a norm that leaves the mean alone. Most large models have it.
# - *Attention Is All You Need*, sections 3.1 and 3.3.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*: the proof for the
#   last layer, and training without warm-up.
# - Geva et al. 2021, *Transformer Feed-Forward Layers Are Key-Value Memories*: which texts the keys
#   of a trained model fit.
# - Lesson 7, when it is there: the decoder's block has one sublayer more.
