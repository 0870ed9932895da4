# %% [markdown]
# # Attention as a soft lookup
#
# > What does it mean to look something up softly? Why would you want to, and what does it cost?


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
    dot_by_hand,
    scientific,
    show,
    table,
)
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_02.exercises import EXERCISES
from lessons.lesson_02.lookup import (
    ERROR,
    HARD,
    contents,
    doutput,
    jugs,
    key,
    learning,
    lookup,
    move_the_wish,
    query,
    slope,
    smooth_the_river,
    tastes,
    temperature,
    value,
)
from numformer.paper.softmax import softmax, softmax_backward
from numformer.recurrence.scores import dot_product_score, dot_product_score_backward


@show
def the_wish() -> Simulation:
    """The simulation: move the query, see the weights and the blend."""
    return move_the_wish


# %% [markdown]
# Before you read on, find out by dragging:
#
# - Where must the wish be for the glass to be nearly pure carrot?
# - Set the temperature to 0 and move the wish slowly from the cherry to the lemon. When does the
#   glass change, and when does it not? Then do the same at 2.
# - Put the wish in the middle, (0, 0). Does the temperature matter there?
# - Try to get a glass of mostly *apple*, whose label lies inside the area spanned by the others.
#   Then change the score to *distance*.
#
# A dictionary gives you an answer if you know exactly what to ask for. Ask it for *lemon* and you
# find something; ask for *lemmon* and you find nothing. Neural networks look things up, too, but
# their question is a handful of numbers that never match anything exactly. And a network has to
# *learn* what to ask: something must be able to tell it "a little more to the left, please".
#
# Attention is a lookup that takes any question and can be corrected like that. Here you build it
# from a Python dictionary in three small steps, derive its gradients by hand, and watch a question
# learn to find its answer.
#
# ## Five jugs
#
# The juice bar has five jugs. A label on each gives the taste of its juice in two numbers: how
# sweet and how sour it is compared with other juices. We care about two more numbers: what a glass
# of the juice costs, and how much vitamin C it holds.
#
# A guest does not know the jugs. She says what taste she is after: a little sweet (1) and quite
# sour (2).
#
# - Her wish is the **query** $q$: it says what she is looking for.
# - A label is a **key** $k_s$: it says what a jug has to offer. There is one for each jug $s$.
# - The content of a jug is a **value** $v_s$: it is what she gets in the end.


# %%
@show
def the_jugs():
    """The example: a wish, five labels, five contents."""
    return [
        Matrix("q", query, ["wish"], tastes, 2),
        Matrix("K", key, jugs, tastes, 2),
        Matrix("V", value, jugs, contents, 5),
    ]


# %% [markdown]
# Query and keys have the same number of entries, because they are compared with each other. Keys
# and values come in pairs, but need not be alike. A key says how to find a thing, and its value is
# the thing itself.
#
# ## Exact, hard, soft
#
# **Exact.** A Python dictionary finds the value whose key is *equal* to the query.
#
# ```
# >>> bar = {(2, 1): (4, 1), (2, -1): (1, 0), (-1, 2): (2, 5),
# ...        (-1, -1): (0, 2), (1, 0): (1, 2)}
# >>> bar[(-1, 2)]
# (2, 5)
# >>> bar[(1, 2)]
# KeyError: (1, 2)
# ```
#
# No label says exactly what our guest wants, so she gets nothing.
#
# **Hard.** Give her the jug that fits best. How well does a label fit? We take the dot product of
# wish and label as its *score*. It is large where the label offers much of what the wish asks for,
# and negative where it offers the opposite:
#
# $$e_s = q \cdot k_s$$
#
# For the lemon this is $1 \cdot (-1) + 2 \cdot 2 = 3$. The jug with the highest score is poured.
#
# **Soft.** Give her *all* jugs at once, mixed in one glass: a lot of a jug that fits well, a little
# of one that does not. The scores have to become shares $a_s$ that are positive and sum to 1. That
# is what the softmax does:
#
# $$z_s = \frac{e_s}{\tau} \qquad a_s = \frac{e^{z_s}}{\sum_u e^{z_u}}$$
#
# The number $\tau$ is called the *temperature*; here it is 2. The glass then holds a mean of all
# contents, each weighted by its share:
#
# $$o = \sum_s a_s\,v_s$$
#
# Before you look: the cherry has the highest score, the lemon the second highest. Will the glass
# hold more vitamin C than cherry juice does, or less?


# %%
weights, glass = lookup(query, temperature)
scores = dot_product_score(query, key, 1.0)


def decimal(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".replace("-", "−")


@show
def hard_and_soft():
    """The glass, and how it comes about."""
    hard, jug = lookup(query, HARD)
    best, powers = jugs[int(hard.argmax())], [decimal(x) for x in np.exp(scores[0] / temperature)]
    return [
        Matrix("o", np.concatenate([jug, glass]), ["hard", "soft"], contents, 5),
        Words(f"""
            The figure at the top shows all scores and shares. By hand, the share of the lemon: the
            exponentials of $z$ are {", ".join(powers)}, so the share
            is {powers[2]} / ({" + ".join(powers)}) ≈ {decimal(weights[0, 2])}.

            The hard lookup pours {best}: price {jug[0, 0]:g}, vitamin C {jug[0, 1]:g}. The soft one
            mixes. Its vitamin C is {dot_by_hand(weights[0], value[:, 1], 2, 4)}. The lemon has so
            much vitamin C that the glass holds more than twice what cherry juice does.
        """),
    ]


# %% [markdown]
# The shares are positive and sum to 1. So the glass never leaves the area between the contents: no
# mixture costs more than the most expensive juice.
#
# ## The temperature is a bridge
#
# A softmax depends on differences alone. Let $m$ be the largest $z_s$, and subtract it from every
# $z_s$. That changes no share, because the same factor $e^{-m}$ appears above and below the line:
#
# $$a_s = \frac{e^{z_s-m}}{\sum_u e^{z_u-m}}$$
#
# Now every exponent is 0 or negative: a difference of scores divided by $\tau$. That settles both
# extremes:
#
# - **Cold**, $\tau \to 0$: an exponent below 0 goes to $-\infty$ and its share to 0. Only the
#   highest score is left: the hard lookup.
# - **Hot**, $\tau \to \infty$: every exponent goes to 0, and $e^0 = 1$. All shares become equal,
#   whatever the query was: the glass is the mean of all contents.
#
# The scores are divided by the temperature, $q \cdot k_s / \tau$. Twice the temperature has the
# same effect as a query half as long: **a hot lookup is a lookup with a short query**, a cold one
# has a long query. A network can set its own temperature by making its queries longer or shorter.
#
# ## Why the apple never wins
#
# With the dot product as score the apple never wins. Its label (1, 0) is a weighted mean of the
# other labels, so its score is the same mean of the other scores, and a mean is never above the
# largest. With the distance as score it wins wherever the wish is close to its label.
#
# The two scores are less different than they look:
#
# $$-|q - k_s|^2 / 2 = q \cdot k_s - |k_s|^2 / 2 - |q|^2 / 2$$
#
# The last term is the same for all jugs, so the softmax ignores it. A distance is a dot product
# with a handicap for long keys. If all keys are equally long, the two agree, and then a dot product
# really does find the nearest key.
#
# ## The equation and its lines
#
# The Transformer paper says it like this (section 3.2): *"The output is computed as a weighted sum
# of the values, where the weight assigned to each value is computed by a compatibility function of
# the query with the corresponding key."* From here on we say *weight* instead of share, as
# everybody does.
#
# With the keys as rows of $K$ and the values as rows of $V$ the whole lookup is one line:
#
# $$o = \mathrm{softmax}\left(\frac{q\,K^\top}{\tau}\right) V$$
#
# This is the paper's equation 1 for one query. Its temperature is fixed, $\tau = \sqrt{d_k}$, where
# $d_k$ is how many numbers a key has; lesson 3 shows why. Here is the library's softmax, for many
# queries at once, one in each row. The other two steps are a `matmul` each: the scores, and the
# mixture of the values (the *blend*).


# %%
@show
def the_lines_of_the_softmax():
    """The library's softmax, line by line."""
    return Beside(
        softmax,
        {
            "xp = array_module": "NumPy, or CuPy if the numbers lie on a graphics card.",
            "if mask is not None": r"The score of a forbidden key (lesson 3) becomes $-\infty$.",
            "highest = max_last": "The highest score of each row, $m$,",
            "highest = xp.maximum": "or a finite number if every key is forbidden.",
            "weights = scores - highest": "$z_s - m$: at most 0, so no exponential can overflow.",
            "xp.exp": "$e^{z_s - m}$, written over $z_s - m$.",
            "total = sum_last": "The sum of each row: at least $e^0 = 1$, from the highest score.",
            "weights /= ": "Divide by the sum, which is 0 only if every key is forbidden.",
            "return weights": "The weights.",
        },
    )


# %% [markdown]
# ## What softness buys, and what it costs
#
# Soft lookup is older than deep networks. In 1964 Nadaraya and Watson independently asked: what is
# the value at a place where nobody has measured? Take a river, and measured pairs: the hour $k_s$,
# and the level $v_s$ at that hour. Their answer is a weighted mean of *all* measurements, in which
# those nearby count most. With the Gaussian bell curve this *kernel regression* is
#
# $$o = \sum_s a_s\,v_s \qquad a_s = \frac{w_s}{\sum_u w_u} \qquad w_s = e^{-(q-k_s)^2/2h^2}$$
#
# Look again. It is a softmax of the scores $-(q - k_s)^2/2$ at the temperature $h^2$, and then a
# blend: attention, with a query of one number. What attention adds is that queries, keys and values
# are learned.
#
# Here are 24 measurements of one day, each with an error. (We made them up, so we know the truth:
# the level sways, and at 16:00 a weir is opened.) Find out:
#
# - Which width brings the curve closest to the true level?
# - At the smallest width the curve nearly *is* the staircase. What is wrong with a staircase?
# - Go to 16:00. Why does no width show the jump as it is?


# %%
@show
def the_river() -> Simulation:
    """A lookup in one dimension, as a curve."""
    return smooth_the_river


# %% [markdown]
# Even the best width leaves an error. On average, the square of the error has two parts, and both
# follow from the weights.
#
# **Noise.** Each measurement is a little off. A mean of $n$ of them with equal weights is typically
# off by $\sqrt{n}$ times less. With unequal weights $1 / \sum_s a_s^2$ takes the place of $n$; it
# is the second number under the simulation. The wider the lookup, the less noise. This is what
# softness *buys*.
#
# **Blur.** Even from measurements without error the lookup would get a wrong level, because it
# mixes in the levels of other hours. It flattens waves and turns a jump into a slope. This is what
# softness *costs*. Softness also costs time: a dictionary goes straight to its entry, a soft lookup
# compares the query with *every* key.
#
# ## What a hard lookup cannot tell you
#
# Back to the juice bar. Softness buys something else there, and for a neural network that is what
# counts. Say the guest wants her glass cheap and full of vitamin C. Her *loss* says how bad a glass
# is for her. It should be small:
#
# $$\mathrm{loss} = o_{\mathrm{price}} - o_{\mathrm{vitamin}}$$
#
# For a glass of lemon it is $2 - 5 = -3$, the best there is. How should she change her wish? Let
# her keep its second number, 2, and move the first one.


# %%
@show
def a_cliff_and_slopes():
    """The loss against the first number of the wish."""
    across = np.linspace(-3, 3, 301)
    wishes = np.stack([across, np.full_like(across, query[0, 1])], axis=1)
    losses = {each: lookup(wishes, each)[1] @ doutput[0] for each in (HARD, 0.5, 2.0, 8.0)}

    def draw(figure):
        axes = figure.subplots()
        styles = [(GREY, "-."), (ORANGE, "--"), (BLUE, "-"), (GREEN, ":")]
        for (each, loss), (color, style) in zip(losses.items(), styles, strict=True):
            label = "hard" if each == HARD else f"temperature {each:g}"
            axes.plot(across, loss, style, color=color, label=label)
        axes.axvline(query[0, 0], color=GREY, lw=0.8)
        axes.set(xlabel="sweet, the first number of the wish", ylabel="loss")
        axes.legend()

    return Picture(
        "lesson_02_cliff",
        draw,
        "The loss against the first number of the wish. Hard: two flat lines, at −3 on the "
        "left and 3 on the right, with a jump near two thirds. The soft lookups rise smoothly "
        "from left to right, the hotter the more gently.",
        "The vertical line is the guest's wish, (1, 2).",
    )


# %% [markdown]
# The hard lookup has only two answers here, lemon and cherry. Between them is a cliff, where their
# scores are equal: $2x + 2 = -x + 4$, so at $x = 2/3$. The wish stands on the flat part to the
# right of the cliff, and there the derivative is 0: nothing says which way is better. The soft
# lookups have a slope where the wish stands, and all three say: less sweet.
#
# A network learns by gradient descent. It asks each of its numbers: if I raise you a little, how
# much does the loss rise? With a hard lookup, the answer for the query and the keys is always "not
# at all". (The values do learn. An embedding table is a hard lookup, and the one row that was taken
# gets a gradient.) That is why networks use the *soft* lookup: query, keys and values all get a
# slope.
#
# ## The way back
#
# Write $\mathrm{d}x$ for the gradient of the loss with respect to $x$. For each number in $x$ it
# says how fast the loss rises when that number rises. Whatever comes after the lookup hands us
# $\mathrm{d}o$, the *upstream gradient*. Here it is $(1, -1)$: one coin more raises the loss by 1,
# one portion of vitamin more lowers it by 1. We have to find $\mathrm{d}q$, $\mathrm{d}k_s$ and
# $\mathrm{d}v_s$.
#
# Go back through the lines of forward, last line first, and always ask: *where was this number
# used, and with which factor?* Each use contributes its factor times the gradient of its result.
#
# ### Through the blend
#
# Entry by entry, where $c$ stands for price or vitamin C, the glass is
#
# $$o_c = \sum_s a_s\,v_{sc}$$
#
# Where was $v_{sc}$ used? Only in $o_c$, with the factor $a_s$:
#
# $$\mathrm{d}v_{sc} = a_s\,\mathrm{d}o_c$$
#
# The larger a jug's share, the more gradient its content gets. Where was the weight $a_s$ used? In
# every $o_c$, with the factor $v_{sc}$:
#
# $$\mathrm{d}a_s = \sum_c v_{sc}\,\mathrm{d}o_c = v_s \cdot \mathrm{d}o$$
#
# In our example this is the price of jug $s$ minus its vitamin C: the loss if it is poured alone.


# %%
dvalue = weights.T @ doutput
dweights = doutput @ value.T


@show
def back_through_the_blend():
    """The gradients of the contents and of the weights."""
    return [
        Matrix(r"\mathrm{d}V", dvalue, jugs, contents, 1),
        Matrix(r"\mathrm{d}a", dweights, ["gradient"], jugs, 3),
        Words(f"""
            By hand: the lemon's vitamin C has the gradient
            {dot_by_hand(weights[0, 2:3], doutput[0, 1:], 2, 4)}. The weight of the lemon has the
            gradient 2 · 1 + 5 · (−1) = {decimal(dweights[0, 2], 0)}.
        """),
    ]


# %% [markdown]
# ### Through the softmax
#
# No weight can change alone. They sum to 1: if the lemon gets more, the others get less, each in
# proportion to what it has. So it does not matter how bad a jug is. What matters is whether it is
# worse than the *mixture*. The rule is
#
# $$\mathrm{d}z_s = a_s\,\Bigl(\mathrm{d}a_s - \sum_u a_u\,\mathrm{d}a_u\Bigr)$$
#
# Lesson 3 derives it in full. The sum is an average of all $\mathrm{d}a_u$ in which each counts by
# its weight. Put $\mathrm{d}a_s = v_s \cdot \mathrm{d}o$ into the rule. The average becomes $o
# \cdot \mathrm{d}o$, and
#
# $$\mathrm{d}z_s = a_s\,(v_s - o) \cdot \mathrm{d}o$$
#
# In words: *a score matters as much as its weight, times how far its value lies from the blend, in
# the direction that matters to the loss.*


# %%
dscaled = softmax_backward(dweights, weights)


@show
def back_through_the_softmax():
    """The gradient of the scores, row by row."""
    average = dweights[0] @ weights[0]
    rows = np.array([weights[0], dweights[0], dweights[0] - average, dscaled[0]])
    names = ["weight a", "gradient da", "da minus average", "times a: dz"]
    blame = dscaled[0].argsort()
    return [
        Matrix(r"\text{wish}", rows, names, jugs, 3),
        Words(f"""
            The average is {dot_by_hand(weights[0], dweights[0], 2, 4)}: the loss of the glass. The
            score of the {jugs[blame[-1]]} gets the largest positive gradient: it should fall. The
            score of the {jugs[blame[0]]} gets the most negative one: it should rise. The carrot is
            nearly as good as the lemon
            ({decimal(dweights[0, 3], 0)} against {decimal(dweights[0, 2], 0)}), but its weight is
            so small that its score gets hardly any gradient.
        """),
    ]


# %% [markdown]
# ### Through the temperature and the score
#
# Entry by entry, where $i$ counts the numbers of a label, a scaled score is
#
# $$z_s = \frac{1}{\tau} \sum_i q_i\,k_{si}$$
#
# Where was $q_i$ used? In the score of *every* key, each time with the factor $k_{si}/\tau$:
#
# $$\mathrm{d}q_i = \frac{1}{\tau} \sum_s \mathrm{d}z_s\,k_{si}$$
#
# Where was $k_{si}$ used? Only in the score of its own key, with the factor $q_i/\tau$:
#
# $$\mathrm{d}k_{si} = \frac{1}{\tau}\,\mathrm{d}z_s\,q_i$$


# %%
dquery, dkey = dot_product_score_backward(dscaled, query, key, 1 / temperature)


@show
def back_through_the_score():
    """The gradients of the wish and of the labels."""
    return [
        Matrix(r"\mathrm{d}q", dquery, ["wish"], tastes, 2),
        Matrix(r"\mathrm{d}K", dkey, jugs, tastes, 2),
        Words(f"""
            By hand, the gradient of *sweet* in the wish: half (because $\\tau$ is 2) of
            {dot_by_hand(dscaled[0], key[:, 0], 3, 4)}, that is {decimal(dquery[0, 0], 3)}. A
            sweeter wish would make the loss rise, a sourer one would make it fall
            ({decimal(dquery[0, 1], 3)}). So the guest should ask for less sweet and more sour: for
            the lemon. Nobody told her about the lemon. The gradient knows of it, because the lemon
            was in the glass.
        """),
    ]


# %% [markdown]
# ### Is it true?
#
# A gradient is a promise: raise a number a little, and the loss rises by that little times the
# gradient. Test it. We raise and lower each of the 22 numbers by $10^{-5}$ and look at the loss.


# %%
def loss(query, key, value) -> float:
    return (lookup(query, temperature, key, value)[1] @ doutput.T).item()


@show
def promises_kept():
    """Gradients as derived and as measured."""
    derived = {"wish, sweet": dquery, "lemon's label, sour": dkey, "lemon, vitamin C": dvalue}
    inputs, rows = [query, key, value], []
    for index, (name, gradient) in enumerate(derived.items()):
        measured = np.zeros_like(gradient)
        for place in np.ndindex(gradient.shape):
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in inputs]
                moved[index][place] += step
                measured[place] += loss(*moved) / (2 * step)
        place = min(index, 1) * 2, min(index, 1)
        numbers = (decimal(x[place], 8) for x in (gradient, measured))
        rows.append((name, *numbers, scientific(np.abs(gradient - measured).max())))
    return table(["gradient of", "derived", "measured", "largest difference in its array"], rows)


# %% [markdown]
# ## A query learns to ask
#
# Now use it. Gradient descent takes a step *against* the gradient, here with the rate 0.5, looks
# again, and takes the next. One such step by hand: $1 - 0.5 \cdot 1.746 \approx 0.13$ for *sweet*,
# $2 + 0.5 \cdot 0.444 \approx 2.22$ for *sour*. Step after step the wish turns towards the lemon,
# and the glass with it. In the simulation, find out:
#
# - From (1, 2), which temperature gets to the lemon in the fewest steps?
# - From (2, 0.5) at 0.25: where does the query end up, and why does it stay there?
# - From (1.5, −1.5): at which temperatures does the query leave the banana within 30 steps?
# - Find a beginning from which the query hardly moves at 0.25, and see it move at 2.


# %%
@show
def the_learning_query() -> Simulation:
    """Gradient descent on a query."""
    return learning


# %% [markdown]
# A cold lookup is nearly hard, and has nearly the same trouble. From (2, 0.5) at 0.25 three steps
# throw the wish deep into the region of the banana, and no gradient is left there to bring it back:
# one weight is nearly 1, so its value *is* the blend, and all other weights are nearly 0. A hot
# lookup hardly depends on its query, so the query gets hardly any gradient either.
#
# ### Does every query find the lemon?
#
# Now 400 random wishes take 100 steps at several temperatures, each with the best of five rates.
# How many of them ask for the lemon in the end? In the last row the lookup starts hot and cools
# down while the wishes learn.


# %%
def after_training(wishes, schedule) -> tuple[float, float]:
    """wishes (N, 2), a temperature for each step -> mean loss, the share that asks for lemon."""
    found = []
    for rate in (0.1, 0.3, 1.0, 3.0, 10.0):
        moved = wishes
        for each in schedule:
            moved = moved - rate * slope(moved, each)
        loss = (lookup(moved, schedule[-1])[1] @ doutput[0]).mean()
        asks = (lookup(moved, HARD)[0].argmax(axis=1) == jugs.index("lemon")).mean()
        found.append((loss, asks))
    return min(found)


@show
def many_wishes():
    """How many of 400 random wishes learn to ask for the lemon."""
    wishes = 2 * np.random.default_rng(2).standard_normal((400, 2))
    at_first = (lookup(wishes, HARD)[0].argmax(axis=1) == jugs.index("lemon")).mean()
    schedules = {f"{each:g}": np.full(100, each) for each in (0.1, 0.5, 2, 8)}
    schedules["from 8 to 0.25"] = np.geomspace(8, 0.25, 100)
    asks = {name: after_training(wishes, each)[1] for name, each in schedules.items()}
    return [
        table(
            ["temperature", "ask for the lemon"],
            [(name, f"{100 * share:.0f} %") for name, share in asks.items()],
        ),
        Words(f"""
            Before the first step {100 * at_first:.0f} % asked for the lemon. A hard lookup would
            leave it at that. What decides is how soft the lookup is at the *beginning*: with all
            five jugs in the glass, a query learns about all five.
        """),
    ]


# %% [markdown]
# A hot lookup is one with short queries, so a network whose queries are short at first begins hot.
# And nothing keeps queries short: in the simulation, from (1, 2) at temperature 2, the query grows
# to twice its length. A network can begin soft, find out where to look, and then make its own
# lookups harder. The $\sqrt{d_k}$ of lesson 3 makes sure that it begins soft enough.


# %% [markdown]
# ## In the running example
#
# The translator of the [home page](index.html) looks things up like this, too. It has read *a woman
# is dancing with a bear* and has written *eine frau tanzt mit einem*. To find the next word it
# makes a query, and each English word offers a key and a value. Our wish stands for this query, and
# our jugs stand for the English words. Here is one of its lookups.


# %%
@show
def in_the_running_example():
    """One query of the decoder, and how softly it looks up an English word."""
    step, name = running.step(), "decoder.layers.2.cross_attention.sublayer"
    asks, offers = step.out[f"{name}.query"][0, running.HARD], step.out[f"{name}.key"][0]
    fits, taus = offers @ asks, np.sqrt(asks.size) * np.array([0.25, 1, 4])
    shares = [softmax(fits / tau) for tau in taus]
    rows = [
        (f"*{word}*", decimal(fit), *map(decimal, parts))
        for word, fit, *parts in zip(running.READ, fits, *shares, strict=True)
    ]
    best = int(fits.argmax())
    return [
        table(["key", "score", *(rf"$\tau$ = {tau:.2f}" for tau in taus)], rows),
        Words(f"""
            The query looks for *{running.READ[best]}*, which gets the weight
            {decimal(shares[1][best])} at the model's temperature,
            $\\tau = \\sqrt{{d_k}} = \\sqrt{{{asks.size}}}$. At a quarter of it the lookup is nearly
            hard ({decimal(shares[0][best])}); at four times it the other words get more, and
            *{running.READ[best]}* keeps {decimal(shares[2][best])}.
        """),
    ]


# %% [markdown]
# ## To take with you
#
# One query $q$, keys $k_s$ and values $v_s$, temperature $\tau$. $S$ is the number of keys, $d_k$
# how many numbers a key has, $d_v$ how many a value has.
#
# | forward | backward | shape |
# |---|---|---|
# | $o = \sum_s a_s\,v_s$ | $\mathrm{d}v_s = a_s\,\mathrm{d}o$ | $(S, d_v)$ |
# | | $\mathrm{d}a_s = v_s \cdot \mathrm{d}o$ | $(S)$ |
# | softmax | $\mathrm{d}z_s = a_s\,(\mathrm{d}a_s - \sum_u a_u\,\mathrm{d}a_u)$ | $(S)$ |
# | $z_s = e_s / \tau$ | $\mathrm{d}e_s = \mathrm{d}z_s / \tau$ | $(S)$ |
# | $e_s = q \cdot k_s$ | $\mathrm{d}q = \sum_s \mathrm{d}e_s\,k_s$ | $(d_k)$ |
# | | $\mathrm{d}k_s = \mathrm{d}e_s\,q$ | $(S, d_k)$ |
#
# - $\tau \to 0$: the value with the highest score, and no gradient. $\tau \to \infty$: the mean of
#   all values, and no gradient either.
# - The result is a mixture of the values. A score's gradient is its weight times how far its value
#   lies from this mixture, in the direction that matters to the loss.
#
# ## Common claims, checked


# %%
WISH = np.array([[1.5, 0.5]])


def without(jug: int, wish=WISH) -> float:
    """How much the loss changes when a jug is hidden."""
    row = dot_product_score(wish, key, 1 / temperature)
    return ((softmax(row, np.arange(5) != jug) - softmax(row)) @ value @ doutput[0]).item()


@show
def common_claims():
    """Popular claims about the weights, checked with numbers."""
    share, _ = lookup(WISH, temperature)
    rows = [
        (jug, decimal(a), f"{without(n):+.2f}".replace("-", "−"))
        for n, (jug, a) in enumerate(zip(jugs, share[0], strict=True))
    ]
    # The same glass of three jugs: three equations for three weights.
    others = np.linalg.solve(np.vstack([value[:3].T, np.ones(3)]), [*glass[0], 1])
    assert (others > 0).all()
    mixture = ", ".join(f"{decimal(a, 3)} {jug}" for jug, a in zip(jugs[:3], others, strict=True))
    return [
        Words("""
            **“The weights tell how much each input matters.”** Take the wish (1.5, 0.5) at
            temperature 2, hide one jug after the other, and see how the loss of the glass changes.
        """),
        table(["hidden", "its weight", "change of the loss"], rows),
        Words(f"""
            The banana has the second-largest weight and matters least: its own loss is close to
            that of the glass. Even the carrot, with {share[0, 3]:.2f}, matters more. A weight says
            how much was taken. How much that matters depends on the weight *times how far the value
            lies from the blend*, as in the gradient of a score.

            **“The weights explain the result.”** Other weights may give the same result: the glass
            of our example can be mixed from three jugs, too: {mixture}. No later layer can tell the
            two apart. (Jain and Wallace 2019, *Attention is not Explanation*; Wiegreffe and Pinter
            2019, *Attention is not not Explanation*.) Weights show what a model takes, and how
            much. They do not show why.
        """),
    ]


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="Two keys have the scores 1 and 3. The temperature is 2. Which weight does "
            "the second key get? (Two decimals; $e \\approx 2.718$.)",
            answer=float(softmax(np.array([1.0, 3.0]) / 2)[1]),
            mistakes={
                1 / (1 + np.exp(-2)): "That is the weight at temperature 1. Divide the scores by 2 "
                "first.",
                1 / (1 + np.exp(-4)): "You multiplied the scores by the temperature. Divide by it: "
                "the hotter a lookup, the more equal its weights.",
                3 / 4: "That is the second key's share of the scores. The softmax takes shares of "
                "the exponentials.",
                1 / (1 + np.exp(1)): "That is the weight of the first key, whose score is lower.",
                1 / 2: "Equal weights need equal scores. A temperature of 2 brings the two weights "
                "closer together, but not that close.",
            },
            why="Divided by 2 the scores are 0.5 and 1.5. Only their difference counts, and it is "
            "1: $e / (e + 1) \\approx 0.73$.",
        ),
        Question(
            question="Three keys have the weights 0.5, 0.25 and 0.25. The gradients $\\mathrm{d}a$ "
            "of these weights are 4, 0 and −4. What is $\\mathrm{d}z$ of the first?",
            answer=0.5 * (4 - (0.5 * 4 + 0.25 * 0 + 0.25 * -4)),
            mistakes={
                2: "You subtracted nothing, or the plain mean of the gradients, which is 0. "
                "Subtract the average in which each counts by its weight.",
                3: "That is $\\mathrm{d}a$ minus the average. It still has to be multiplied by the "
                "weight.",
                1: "That is the average that is subtracted. It is also $a(1 - a)\\,\\mathrm{d}a$, "
                "which comes through the first weight alone; but the score changes the other "
                "weights, too.",
                4: "That is $\\mathrm{d}a$ itself, as if weight and score were the same. But one "
                "score changes all three weights.",
                -1.5: "The size is right, the sign is not: the first $\\mathrm{d}a$ lies above the "
                "average.",
            },
            why="The average is $0.5 \\cdot 4 + 0.25 \\cdot 0 - 0.25 \\cdot 4 = 1$. The first "
            "$\\mathrm{d}a$ is 3 above it, and its weight is 0.5. That makes 1.5.",
        ),
        Question(
            question="All values are equal. Which gradients are 0, whatever the upstream gradient?",
            choices={
                "the gradients of the values": "Equal values may look as if they did not matter. "
                "But raise one of them, and the mixture rises with it.",
                "the gradients of the query and the keys": "",
                "all gradients": "The weights have no effect here, but the values do: the mixture "
                "is made of them.",
            },
            answer=1,
            why="Every mixture of equal values is the same value, so no weight can change the "
            "result: $v_s - o = 0$. The values themselves still get $a_s\\,\\mathrm{d}o$.",
        ),
        Question(
            question="The score is a dot product, and one key lies inside the area between the "
            "others. When does a hard lookup choose this key alone?",
            choices={
                "when the query is near it": "This is how a score by distance works. A dot product "
                "does not measure nearness.",
                "when the query is short": "A short query makes all scores small, but it keeps "
                "their order. So it brings no other key to the top.",
                "never": "",
            },
            answer=2,
            why="Its score is a weighted mean of the other keys' scores, so at least one other "
            "key scores as high. With a score by distance, every key can win.",
        ),
        Question(
            question="A kernel regression has equal weights on 16 measurements and 0 on all "
            "others. A measurement's error has the standard deviation 0.4. What standard deviation "
            "does the noise of the estimate have?",
            answer=float(ERROR * np.sqrt((np.full(16, 1 / 16) ** 2).sum())),
            mistakes={
                0.4: "That is the error of one measurement. In a mean of 16 the errors partly "
                "cancel.",
                0.4 / 16: "You divided by the number of measurements. That is right for the "
                "*variance*; the standard deviation is its root.",
                0.4**2 / 16: "That is the variance of the noise. The standard deviation is its "
                "root.",
                0.4 * 4: "That is the noise of the *sum* of 16 measurements. The estimate is their "
                "mean.",
            },
            why="$0.4 / \\sqrt{16} = 0.1$. Here $1 / \\sum_s a_s^2$ is just the number of "
            "measurements, 16. It says nothing about the blur.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 2 mine.py` writes them into a file, and `python -m lessons check 2 mine.py` checks
# your answers.
#
# The lesson derives gradients entry by entry; the exercises want arrays. The lesson does not derive
# the gradients of the second exercise, but you have everything you need.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - Watson 1964, *Smooth Regression Analysis*: the lookup without learning.
# - Sukhbaatar et al. 2015, *End-To-End Memory Networks*: with a softmax, a network no longer has to
#   be told which memory is the right one.
# - Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and
#   Translate*: the soft lookup in translation.
# - Lesson 3: many queries at once, and why the temperature is $\sqrt{d_k}$.
