# %% [markdown]
# # Many machines
#
# > A model would take a year on one machine, and you have 64 of them. How do they share the work?
# > And why is it not done in six days?

# %%
import functools
import itertools

import numpy as np

from lessons.kit import lesson as kit
from lessons.kit.lesson import Beside, Picture, Words, scientific, show, table
from lessons.kit.quiz import Question
from lessons.kit.simulation import Simulation
from lessons.lesson_14 import ring, timelines, wires
from lessons.lesson_14.all_reduce import ring_all_reduce
from lessons.lesson_14.exercises import EXERCISES
from lessons.lesson_14.pipeline import _order
from lessons.lesson_14.tensor import ColumnLinear, RowLinear, shard
from lessons.lesson_14.wires import BATCHES, GIGABIT, NUMBER, PARAMETERS, TOKENS, speed
from numformer import FeedForward, PairBatch, SelfAttention, Transformer, pack
from numformer.execution.ranks import run_ranks

MB = 1e6
WIRES = 1, 10, 100  # Gbit/s


@show
def a_ring_of_machines() -> Simulation:
    """The first simulation: gradients are added up in a ring, step by step."""
    return ring.ring


# %% [markdown]
# In the end every machine has the same sum. In the ring, no wire has carried as much as two whole
# gradients, however many machines there are. First see what is being added up, and why.
#
# ## One batch, four machines
#
# Our example is small: a linear layer with four inputs and one output, so $W$ has four weights. The
# batch has four examples, one for each machine. Machine 1 has $x = (3, 1, 4, 2)$, and its output is
# off by $\mathrm{d}y = 2$. So its gradient is $\mathrm{d}W = x^\top \mathrm{d}y = (6, 2, 8, 4)$. In
# the [figure](#ring), these are the four chunks of machine 1 before the first step.
#
# The loss of a batch is a mean over its tokens. Let machine $r$ have $n_r$ of the $n$ tokens, and
# let $L_r$ be the mean over its own. The slope of a sum is the sum of the slopes:
#
# $$L = \sum_r \frac{n_r}{n} L_r, \quad \mathrm{d}W = \sum_r \frac{n_r}{n} \mathrm{d}W_r$$
#
# So no machine needs another one's examples. Each has **all** weights and a part of the batch. It
# computes its gradient, the gradients are added up, and every machine makes the same update. All
# began with the same weights and add the same numbers, so their weights stay the same, and no
# weight is ever sent. This is **data parallel** training.
#
# Is this true of a whole Transformer? Here the machines are threads of one process (`run_ranks`),
# each with a model of its own, in float64. The sentences differ in length.


# %%
PAIRS = [([4] * n + [5, 6], [7] * (n % 3 + 1)) for n in range(8)]


def gradient_on(machines: int, dtype=np.float64) -> list[np.ndarray]:
    """Each machine's share of the gradient of one batch."""
    batch = PairBatch.of(PAIRS)
    parts = batch.split(machines)

    def work(ranks) -> np.ndarray:
        sizes = dict(d_model=16, d_ff=32, heads=2, layers=2, p_drop=0.0)
        objective = Transformer(Transformer.Config.base(vocabulary=10, **sizes), seed=0).objective()
        parameters, part = pack(objective, dtype), parts[ranks.rank]
        objective.zero_grad()
        objective.forward(*part.inputs)
        objective.backward(part.weight / batch.weight)
        return parameters.grad.copy()

    return run_ranks(machines, work)


@show
def the_same_gradient():
    """One machine beside two, four and eight; then the same gradients added in another order."""
    (whole,) = gradient_on(1)
    rows = []
    for machines in (2, 4, 8):
        off = abs(sum(gradient_on(machines)) - whole).max()
        rows.append((f"{machines}", scientific(off)))
    rounded = gradient_on(4, np.float32)
    forwards, backwards = sum(rounded), sum(rounded[::-1])
    differ = np.mean(forwards != backwards)
    return [
        table(
            ["machines", "largest difference from one machine"],
            rows,
            f"The gradient of {len(whole):,} weights. Its largest entry is {abs(whole).max():.2f}.",
        ),
        Words(f"""
            The differences are rounding, and nothing else. But rounding matters: a sum in another
            order can have other last bits. In float32, (1 + 0.00000001) − 1 is 0, and (1 − 1) +
            0.00000001 is not. Add the gradients of four machines in reverse order, in float32, and
            {100 * differ:.0f} % of the numbers come out a little different. After thousands of
            steps, two such runs are different models. So numformer adds in one fixed order,
            whichever machine is done first. Then the same run on the same number of machines gives
            the same bits.
        """),
    ]


# %% [markdown]
# ## How the sum gets around
#
# The obvious way is this: all send their gradients to machine 1, which adds them up and sends the
# sum back. With $R$ machines, $R - 1$ whole gradients come in through *one* wire, and $R - 1$ sums
# go out. The other wires mostly wait.
#
# In a **ring** each machine sends only to the next one. Cut the gradient into $R$ chunks. In every
# step each machine sends one chunk, and adds its own share to the chunk that comes in. After $R-1$
# steps each chunk has been everywhere, and one machine holds its finished sum (*reduce-scatter*).
# In another $R-1$ steps the sums are handed round (*all-gather*). Both halves together are an
# *all-reduce*: a sum that all get. Each step takes the time of one chunk, which is $1/R$ of a
# gradient. In units of a whole gradient, all steps together take
#
# $$2\,(R - 1) \cdot \frac{1}{R} = 2\,\frac{R - 1}{R}$$
#
# That is less than 2, whether there are four machines or four thousand. No other way needs less
# (Patarasuk and Yuan 2009).


# %%
@show
def a_chunk_by_hand():
    """The first chunk on its way, and what both ways cost at the end."""
    shares = ring.gradients(4)[:, 0]
    sums = np.cumsum(shares)
    ends = {way: ring.compute(10, 4, way) for way in ("ring", "one")}
    times = {way: float(end["times"]) for way, end in ends.items()}
    sent = {float(end["megabytes"]) for end in ends.values()}
    (both,) = sent
    return Words(f"""
        **Follow chunk a** in the [figure](#ring), with four machines.
        Machine 1 sends {shares[0]:.0f}. Machine 2 adds its own:
        {sums[0]:.0f} + {shares[1]:.0f} = {sums[1]:.0f}.
        Then {sums[1]:.0f} + {shares[2]:.0f} = {sums[2]:.0f} and
        {sums[2]:.0f} + {shares[3]:.0f} = {sums[3]:.0f}. Three steps, and machine 4 has the sum.
        Three more, and all have it.

        At the end the ring took 2 · 3 / 4 = {times["ring"]:.1f} times as long as one gradient takes
        on a wire, and *all to one* took {times["one"]:.0f} times as long. But look at what all
        machines have sent together: {both:,.0f} MB, both with the ring and without it! The ring
        sends not a byte less. It keeps all wires busy at once.
    """)


@show
def the_lines_of_the_ring():
    """The library's ring, line by line."""
    notes = {
        "size = ": "$R$.",
        "before, after": "The number of a machine is its *rank*. These are its neighbours' ranks.",
        "chunks = ": "Views of the gradient: what is written into a chunk is written into it.",
        "for step": "Both halves of the all-reduce in one loop.",
        "sent, received": "In step $s$, rank $r$ sends chunk $r - s$ and gets chunk $r - s - 1$.",
        "adds = ": "The first half adds, the second half only hands round.",
        "arriving = ": "A chunk that is to be added needs room of its own.",
        "sending = ": "One chunk leaves, and meanwhile…",
        "ranks.wait({before": "…another arrives. All wires are in use, in both directions.",
        "ranks.wait({after": "Before the next step, both messages are done.",
        "if adds": "The sum that arrived is added to the machine's own share.",
    }
    return Beside(ring_all_reduce, notes, whole=False, loops=True)


# %% [markdown]
# **Half a ring** is good for something, too. After reduce-scatter each machine has the finished
# gradient of one chunk. Let each machine alone update the weights of its chunk, and hand round the
# new *weights* in place of the sums. This takes as many bytes as before. But the two numbers that
# Adam keeps for each weight (lesson 8) are now needed on one machine only. This is stage 1 of ZeRO
# (Rajbhandari et al. 2020).


# %%
@show
def memory_of_the_optimizer():
    """What a machine holds of weights, gradients and Adam's two vectors."""
    rows = []
    for name, count in PARAMETERS.items():
        held = [NUMBER * count * (2 + 2 / machines) / MB for machines in (1, 8, 64)]
        rows.append((name, f"{count / 1e6:.0f} million", *(f"{mb:,.0f}" for mb in held)))
    return table(
        ["model", "weights", "1 machine", "8 machines", "64 machines"],
        rows,
        "MB on each machine, at four bytes a number: all weights, all gradients, and its share of "
        "Adam’s two vectors. (Sizes as in Table 3 of the paper.)",
    )


# %% [markdown]
# ## Sending during backward
#
# So far, nobody computes while gradients travel. Does it have to be this way? Backward begins with
# the *last* layer. Once it has left that layer, the layer's gradient is final and can be sent. So
# gradients are gathered in **buckets**. As soon as a bucket is full it leaves, while backward goes
# on with the layers before (Li et al. 2020). This sending *hides* behind backward: nobody waits for
# it.
#
# Even a short message has a delay $\alpha$, here of 50 microseconds. The sum of a bucket of $s$
# bytes takes $2(R-1)$ messages, each of $s/R$ bytes. On a wire of $\beta$ bytes a second, they take
#
# $$2\,(R - 1)\,\Bigl(\alpha + \frac{s}{R\,\beta}\Bigr)$$


# %%
@show
def behind_backward() -> Simulation:
    """The second simulation: what is sent while backward is still at work."""
    return timelines.overlap


@show
def what_hid():
    """The answer to the guess, computed."""
    rows = []
    for label, bucket in (("all", timelines.GRADIENT), ("25 MB", 25e6), ("1 MB", 1e6)):
        row = [label]
        for wire in WIRES:
            found = timelines.step_of(12, bucket, wire * GIGABIT)
            row.append(f"{found['after']:.2f} of {found['wire']:.2f}")
        rows.append(row)
    found = timelines.step_of(12, 25e6, 10 * GIGABIT)
    hidden = 100 * (1 - found["after"] / found["wire"])
    return [
        table(
            ["bucket", *(f"{wire} Gbit/s" for wire in WIRES)],
            rows,
            "The seconds that 16 machines with 12 layers spend waiting, out of the seconds that "
            "they spend sending.",
        ),
        Words(f"""
            With buckets of 25 MB, {hidden:.0f} % of the sending hides on wires of 10 Gbit/s. Two
            kinds of sending cannot hide. The last bucket has the gradient of the first layer, which
            is ready only when backward is done. And what takes longer than all of backward cannot
            hide behind it: at 1 Gbit/s the machines wait for most of the sending. Buckets of 1 MB
            leave earlier, but then the delays of 260 times 30 messages add up.
        """),
    ]


# %% [markdown]
# ## A layer in two halves
#
# Data parallel training needs room for all weights on each machine. What if one layer is already
# too large, or too slow? Then **cut its matrices** (Shoeybi et al. 2019, section 3). Take the
# feed-forward network without biases, $Y = \mathrm{relu}(XA)\,B$. Cut $A$ by columns into $A_1$ and
# $A_2$, and $B$ by rows into $B_1$ and $B_2$. Machine $p$ gets $A_p$ and $B_p$, and both machines
# get all of $X$.
#
# **Forward.** Column $j$ of $XA$ needs only column $j$ of $A$, and relu works entry by entry. So
# each machine has its columns of the hidden layer, without a message from the other:
#
# $$H_p = \mathrm{relu}(X A_p)$$
#
# The second product sums over the hidden columns. Half of these are on machine 1 and half on
# machine 2, so the sum splits into two:
#
# $$Y_{tj} = \sum_k H_{tk}\,B_{kj} = (H_1 B_1)_{tj} + (H_2 B_2)_{tj}$$
#
# So one sum over machines is enough for two products and all that lies between. (If $A$ were cut by
# rows, a sum would be needed *before* the relu, because $\mathrm{relu}(a + b)$ is not
# $\mathrm{relu}(a) + \mathrm{relu}(b)$.)
#
# **Backward.** $Y$ is a sum, so each summand gets the whole $\mathrm{d}Y$. The rest is as in lesson
# 6, on each machine by itself:
#
# $$\mathrm{d}B_p = H_p^\top\,\mathrm{d}Y, \quad \mathrm{d}H_p = \mathrm{d}Y\,B_p^\top$$
#
# $$\mathrm{d}Z_p = \mathrm{d}H_p \odot [X A_p > 0], \quad \mathrm{d}A_p = X^\top\,\mathrm{d}Z_p$$
#
# But $X$ went to both machines. An array that is used twice collects gradients from both uses:
#
# $$\mathrm{d}X = \mathrm{d}Z_1\,A_1^\top + \mathrm{d}Z_2\,A_2^\top$$
#
# So forward has one sum, for $Y$, and backward has one sum, for $\mathrm{d}X$. Shoeybi et al. call
# the two places $g$ and $f$. Where forward copies, backward sums ($f$). Where forward sums,
# backward copies ($g$). Attention is cut by its heads: the projections to $Q$, $K$ and $V$ are cut
# by columns, and the projection that follows the heads is cut by rows.
#
# In the library the two are layers, `ColumnLinear` with $f$ and `RowLinear` with $g$. Apart from
# its sum, each is a `Linear`, and between them stands whatever stood there before.


# %%
@show
def the_lines_of_the_cut():
    """The two sums in the library: f in backward, g in forward."""
    columns = {
        "dx = ": r"$\mathrm{d}Z_p\,A_p^\top$: what has come back through this machine's columns.",
        "ring_all_reduce": "$f$: the sum over all machines.",
        "return": r"$\mathrm{d}X$, the same on all machines.",
    }
    rows = {
        "y = ": "$H_p B_p$.",
        "ring_all_reduce": "$g$: the sum over all machines.",
        "if self.bias": "The bias comes after the sum, or it would be added once for each machine.",
    }
    forward = Beside(RowLinear.forward, rows, whole=False)
    return [Beside(ColumnLinear.backward, columns), forward]


def cut_up(ranks, make, ends, x, dy):
    """What one machine computes of a layer: y, dx, and the gradients of its columns and rows."""
    layer = make(np.random.default_rng(14))
    shard(layer, ranks)
    pack(layer, np.float64)
    y, dx = layer.forward(x), layer.backward(dy)
    return y, dx, *(getattr(layer, name).weight.grad for name in ends)


@show
def the_same_layer():
    """Parts of a layer on several machines, beside the whole layer on one."""
    x, dy = np.random.default_rng(14).standard_normal((2, 2, 5, 8))
    layers = {
        "feed-forward": (lambda rng: FeedForward(8, 16, rng), ("inner", "outer")),
        "self-attention": (lambda rng: SelfAttention(8, 4, rng), ("value", "output")),
    }
    rows = []
    for (name, how), machines in itertools.product(layers.items(), (2, 4)):
        work = functools.partial(cut_up, make=how[0], ends=how[1], x=x, dy=dy)
        (wanted,) = run_ranks(1, work)
        y, dx, da, db = zip(*run_ranks(machines, work), strict=True)
        found = y[0], dx[0], np.concatenate(da, axis=1), np.concatenate(db)
        off = max(abs(a - b).max() for a, b in zip(found, wanted, strict=True))
        rows.append((name, f"{machines}", scientific(off)))
    caption = r"Output, $\mathrm{d}X$ and the gradients of all columns and all rows, put together."
    return table(["layer", "machines", "largest difference from one machine"], rows, caption)


# %% [markdown]
# **The price:** these sums have the size of $X$, and the work cannot go on without them. Every
# layer has two of them in forward and two in backward, and no other work to hide them behind. So
# matrices are cut between cards in one box, where wires are short and fast.
#
# ## A pipeline
#
# Or cut the *stack* of layers: machine 1 has the first layers, machine 2 the next. Each machine
# with its layers is a *stage*. Only what flows from layer to layer is sent, which is little. But a
# stage has nothing to do until the stage before it has sent something. So the batch is cut into
# **micro-batches**, which follow each other (Huang et al. 2019).


# %%
@show
def a_pipeline() -> Simulation:
    """The third simulation: stages, micro-batches, and who waits."""
    return timelines.pipeline


# %% [markdown]
# Count it. There are $P$ stages and $M$ micro-batches. In forward, each stage works for $M$ turns.
# The last one begins after $P - 1$ turns, because the first micro-batch has to go through all
# stages before it. So forward takes $M + P - 1$ turns, and so does backward. In $P - 1$ of them a
# stage has nothing to do. That share of the time is the **bubble**:
#
# $$\frac{P - 1}{M + P - 1}$$
#
# With one micro-batch and four stages it is 3/4: four machines are no faster than one. With four
# micro-batches it is 3/7, with sixteen 3/19.
#
# Both orders in the figure have the same bubble. But for each micro-batch that has gone forward and
# not yet come back, a stage has to keep what backward needs. If all go forward first, it keeps this
# for all $M$. In **1F1B** (one forward, one backward; Narayanan et al. 2021) a stage goes back as
# soon as it can, and keeps this for no more micro-batches than there are stages from it to the end.
# So $M$ can be large, and the bubble small, with the same memory.


# %%
@show
def the_lines_of_the_order():
    """The library's order of the work of one stage."""
    notes = {
        "order: ": "First only forward, so that the later stages have something to do: "
        "$P - 1 - s$ micro-batches in stage $s$, counted from 0.",
        "for m": "Then both in turn: each backward frees the memory for the next forward.",
        "return": "At the end, only backward is left.",
    }
    return Beside(_order, notes)


# %% [markdown]
# ## When another machine no longer pays
#
# Back to data parallel training, with nothing hidden behind backward. There are $N$ weights and a
# batch of $D$ tokens. Forward and backward take about $6ND$ operations (lesson 12; Kaplan et al.
# 2020). A machine does $\rho$ operations in a second, a wire carries $\beta$ bytes in a second, and
# a number has four bytes:
#
# $$\mathrm{compute} = \frac{6ND}{R\,\rho}, \quad \mathrm{send} = 2\,\frac{R-1}{R} \cdot
# \frac{4N}{\beta}$$
#
# Divide the second by the first. $N$ cancels!
#
# $$\frac{\mathrm{send}}{\mathrm{compute}} = \frac{R - 1}{K}, \quad K = \frac{6D\,\beta}{8\,\rho}$$
#
# A larger model has more to send, but it also has as much more to compute. So only $K$ decides: it
# depends on the batch, the wire and the speed of a machine. $R$ machines are
#
# $$\frac{R}{1 + (R-1)/K}$$
#
# times as fast as one. The more machines there are, the nearer this comes to $K$. **Guess:** the
# machines *share* a batch of 25,000 tokens, as in the paper, and a machine does 9.5 trillion
# operations in a second, as the paper says of its graphics cards. How large is $K$ with wires of 10
# Gbit/s?


# %%
@show
def what_is_gained():
    """Speed against the number of machines, and the seconds behind it."""
    machines = 2 ** np.arange(9)
    colours = dict(zip(WIRES, (kit.ORANGE, kit.BLUE, kit.GREEN), strict=True))

    def draw(figure):
        axes = figure.subplots()
        axes.plot(machines, machines, ":", color=kit.GREY, label="as hoped")
        for wire, color in colours.items():
            for hidden, stroke in ((False, "-"), (True, "--")):
                gained = [speed(1, count, wire * GIGABIT, hidden) for count in machines]
                label = None if hidden else f"{wire} Gbit/s"
                axes.plot(machines, gained, stroke, color=color, label=label)
        axes.set(xlabel="machines", ylabel="times as fast", xscale="log", yscale="log")
        axes.set_xticks(machines[::2], machines[::2])
        axes.set_yticks([1, 4, 16, 64], [1, 4, 16, 64])
        axes.set_ylim(0.1, 256)
        axes.minorticks_off()
        axes.legend(fontsize=8)

    rows = []
    for name, count in PARAMETERS.items():
        for many in (1, 4, 16, 64, 256):
            sent = (f"{wires.sending(count, many, wire * GIGABIT):.3f}" for wire in WIRES)
            rows.append((name, f"{many}", f"{wires.computing(count, TOKENS / many):.3f}", *sent))
    limits = [wires.fed(wire * GIGABIT) for wire in WIRES]
    year = [365 / speed(1, 64, wire * GIGABIT) for wire in WIRES]
    hidden = 365 / speed(1, 64, 100 * GIGABIT, hidden=True)
    larger = 64 / (1 + 63 / (16 * limits[2]))
    many = timelines.MACHINES * limits[1]
    alone = timelines.MACHINES / (1 + (timelines.MACHINES - 1) / many)
    return [
        Picture(
            "lesson_14_speed",
            draw,
            "The speed of up to 256 machines, in times that of one. A dotted line rises as hoped. "
            f"The solid line of 100 Gbit/s bends away below it and stays under {limits[2]:.0f}, "
            f"that of 10 Gbit/s stays under {limits[1]:.1f}, and that of 1 Gbit/s falls below 1.",
            "A batch of 25,000 tokens, divided among machines. Dashed: as much of the sending as "
            "fits hides behind backward. The lines hold for any model, base or big.",
        ),
        table(
            ["model", "machines", "computing", *(f"at {wire} Gbit/s" for wire in WIRES)],
            rows,
            "Seconds of a step: for computing, and for sending over wires of each speed.",
        ),
        Words(f"""
            $K$ is {limits[0]:.2f} at 1 Gbit/s, {limits[1]:.1f} at 10 and {limits[2]:.0f} at 100.
            So, if nothing is hidden, wires of 10 Gbit/s never make training more than
            {limits[1]:.1f} times as fast, with any number of machines, and at 1 Gbit/s a second
            machine makes it *slower*. (The [figure above](#overlap) gives each of its
            {timelines.MACHINES} machines 25,000 tokens. So its batch is {timelines.MACHINES} times
            as large, and so is $K$: {many:.0f} at 10 Gbit/s. There, {timelines.MACHINES} machines
            are {alone:.1f} times as fast as one even if nothing is hidden.) At 100 Gbit/s
            {limits[2] + 1:.0f} machines send for as long as they compute. From there on each new
            one mostly waits.

            And the year? With 64 machines you hoped for 365 / 64 ≈ {365 / 64:.1f} days. At 100
            Gbit/s it takes {year[2]:.0f}, or {hidden:.0f} if as much as possible is hidden. At 10
            Gbit/s it takes {year[1]:.0f} days.
        """),
        Words(f"""
            What helps? $K$ grows in three ways: with faster wires, with slower machines (nobody
            wants those), or with **more tokens in a batch**. With a batch 16 times as large, 64
            machines at 100 Gbit/s are {larger:.0f} times as fast as one. So everybody makes batches
            larger. Is that free?
        """),
    ]


# %% [markdown]
# ## A larger batch
#
# More examples make the gradient more exact, but on average it stays the same. Once it is good,
# more examples make it hardly any better. Here a small Transformer learns to reverse six digits,
# from batches of 2 to 512 examples. **Guess:** with a batch four times as large, how many fewer
# steps does it take?


# %%
@show
def larger_batches():
    """Steps until a model has learned, against the size of the batch."""
    steps = wires.steps_to_learn()

    def draw(figure):
        axes = figure.subplots()
        hoped = [steps[0] * BATCHES[0] / size for size in BATCHES]
        axes.plot(BATCHES, hoped, ":", color=kit.GREY, label="as hoped")
        axes.plot(BATCHES, steps, "o-", label="measured")
        axes.set(xlabel="examples in a batch", ylabel="steps", xscale="log", yscale="log")
        axes.set_xticks(BATCHES, BATCHES)
        axes.set_yticks([10, 100, 1000], [10, 100, 1000])
        axes.set_ylim(10, 1000)
        axes.minorticks_off()
        axes.legend(fontsize=8)

    assert steps[0] > 1.8 * steps[1] and steps[-2] < 1.3 * steps[-1]
    return [
        Picture(
            "lesson_14_batches",
            draw,
            "Steps against the size of the batch, on logarithmic axes. A dotted line falls as "
            "hoped. The measured one falls less and less, and is nearly flat from 128 examples on.",
            "At each size, the better of two learning rates is shown.",
        ),
        Words(f"""
            With 8 examples in place of 2, the steps fall from {steps[0]} to {steps[1]}. With 512 in
            place of 128, they fall from {steps[3]} to {steps[4]}: four times the work in each step,
            for almost nothing. In between lies the *critical batch size* (McCandlish et al. 2018).
            It is larger for harder tasks, and grows as training goes on. Up to this size, more
            machines save time. Beyond it, they only compute more.
        """),
    ]


# %% [markdown]
# So large models are trained in all three ways at once: matrices are cut between the cards of a
# box, layers between boxes, and the batch between groups of boxes (Narayanan et al. 2021).
#
# ## To take with you
#
# | forward | backward |
# |---|---|
# | each machine has its part of a batch | $\mathrm{d}W = \sum_r (n_r / n)\,\mathrm{d}W_r$ |
# | | by a ring: $2\,(R-1)/R$ gradients on each wire |
# | $X$ is copied ($f$) | $\mathrm{d}X = \sum_p \mathrm{d}Z_p\,A_p^\top$, a sum over machines |
# | $H_p = \mathrm{relu}(X A_p)$, columns | $\mathrm{d}A_p = X^\top\,\mathrm{d}Z_p$, no message |
# | $Y = \sum_p H_p B_p$, a sum ($g$) | $\mathrm{d}H_p = \mathrm{d}Y\,B_p^\top$ |
# | pipeline: $M$ micro-batches, $P$ stages | a stage waits for $(P-1)/(M+P-1)$ of the time |
# | compute: $2ND/(R\rho)$ | compute: $4ND/(R\rho)$; send: $8N(R-1)/(R\beta)$ |


# %% [markdown]
# ## Common claims, checked


# %%
@show
def common_claims():
    """Popular claims, computed again."""
    many = speed(1, 128, 100 * GIGABIT) / speed(1, 64, 100 * GIGABIT)
    steps = wires.steps_to_learn()
    parts = gradient_on(4, np.float32)
    differ = np.mean(sum(parts) != sum(parts[::-1]))
    shared = 100 * (2 + 2 / 64) / 4
    return Words(f"""
        **“Data parallelism changes nothing in the result.”** It changes nothing in the formula. But
        {100 * differ:.0f} % of the gradient's numbers had other last bits when those of four
        machines were added in reverse order. With another number of machines you get another run.

        **“Twice the machines, half the time.”** From 64 to 128 machines, at 100 Gbit/s and with the
        paper's batch, you gain {100 * (many - 1):.0f} %.

        **“A larger batch is free, if there are machines for it.”** With a batch 256 times as large,
        our model needed {steps[0] / steps[-1]:.1f} times fewer steps, but
        {256 * steps[-1] / steps[0]:.0f} times as many examples.

        **“The ring is faster because it sends less.”** All machines together send as much as when
        all send to one and back: $2(R-1)$ gradients. The ring only shares this out, so that no wire
        has to carry more than another.

        **“With ZeRO a machine holds 1/64 of everything.”** With 64 machines, stage 1 does this only
        for the optimizer's vectors. Weights and gradients stay whole, so a machine holds
        {shared:.0f} % of the memory, not 2 %. (Stage 2 divides the gradients, too, and stage 3 also
        the weights; stage 3 has more to send.)
    """)


# %% [markdown]
# ## Questions


# %%
@show
def quiz() -> list[Question]:
    """Questions on this lesson; numbers are computed."""
    return [
        Question(
            question="A ring of 8 machines adds up gradients of 400 MB. How many MB does each "
            "machine send?",
            answer=2 * 7 / 8 * 400,
            mistakes={
                400: "That is the whole gradient once. In the ring the chunks go around twice: "
                "once to be added up, once as sums.",
                2 * 400: "You counted 8 steps in each half. After 7 steps a chunk has been "
                "everywhere.",
                7 / 8 * 400: "That is the first half, in which the chunks are added up. Then the "
                "sums have to go around, too.",
                7 * 400: "You sent the whole gradient to each of the 7 other machines. In the ring "
                "a step sends one chunk, to the next machine only.",
                400 / 8: "That is one chunk, which is sent in one step.",
                2 * 7 * 400: "In each of the 14 steps you sent the whole gradient. A step sends "
                "one chunk, an eighth of it.",
            },
            why="$2 \\cdot 7$ steps, and in each of them a chunk of 400 / 8 = 50 MB: 700 MB.",
        ),
        Question(
            question="Machine 1 had 300 tokens, machine 2 had 100. Each has the gradient of its "
            "own mean loss. How do you get the gradient of the batch's mean loss?",
            choices={
                "the sum of both": "For *sums* of losses this would be right. But these are means, "
                "and a sum of two means is about twice as large as a mean.",
                "the mean of both": "With equally many tokens this would be right. Here each token "
                "of machine 2 would count three times as much as one of machine 1.",
                "three quarters of the first and one quarter of the second": "",
            },
            answer=2,
            why="$\\mathrm{d}W = \\sum_r (n_r / n)\\,\\mathrm{d}W_r$, with 3/4 and 1/4 here.",
        ),
        Question(
            question="Which gradient is still to be sent when backward is over, however small the "
            "buckets are?",
            choices={
                "that of the last layer": "Backward begins with the last layer. So its gradient is "
                "ready first and has all of backward to travel.",
                "that of the first layer": "",
                "that of the largest layer": "A large gradient takes longer to send. But if it is "
                "ready early, it can be sent while backward goes on.",
            },
            answer=1,
            why="Backward ends with the first layer. Nothing is left to hide its gradient behind.",
        ),
        Question(
            question="$A$ is cut by columns and $B$ by rows. Where does backward need a sum over "
            "machines?",
            choices={
                "for $\\mathrm{d}X$": "",
                "for $\\mathrm{d}A$ and $\\mathrm{d}B$": "Copies of the same weights would need a "
                "sum. But here each part of $A$ and $B$ is on one machine only.",
                "for $\\mathrm{d}H$": "Each machine has its own columns of $H$, and it alone used "
                "them. So it alone computes their gradient.",
                "nowhere": "It is true that nothing was added up at $X$ in forward. But $X$ was "
                "copied to all machines, and backward of a copy is a sum.",
            },
            answer=0,
            why="Every machine has used all of $X$. Each knows only what came back through its own "
            "columns.",
        ),
        Question(
            question="A pipeline has 8 stages. How many micro-batches does it need so that the "
            "bubble is at most one tenth of the time?",
            answer=63,
            mistakes={
                70: "That is the number of turns, $M + 7$. It includes the 7 turns of the bubble.",
                72: "You took a bubble of 8 turns. The last stage waits for the 7 stages before "
                "it.",
                80: "You divided 8 by a tenth. The bubble has 7 turns, and the whole time is $M + "
                "7$ turns.",
                64: "That is enough, but one fewer is also enough.",
            },
            why="$7 / (M + 7) \\le 1/10$ means $M + 7 \\ge 70$.",
        ),
    ]


# %% [markdown]
# ## Exercises
#
# With `python -m lessons serve` you solve these exercises on this page. In a shell, `python -m
# lessons start 14 mine.py` writes them into a file, and `python -m lessons check 14 mine.py` checks
# your answers.


# %%
@show
def exercises():
    """The exercises of this lesson."""
    return EXERCISES


# %% [markdown]
# ## What to read next
#
# - `lessons/lesson_14`: the ring (`all_reduce.py`), layers that are cut (`tensor.py`), and a
#   pipeline that runs (`pipeline.py`). `numformer/execution` trains in data parallel, on the cores
#   of one computer or on many machines, and divides the update among them as ZeRO does.
# - Li et al. 2020, *PyTorch Distributed*: buckets, and what they gain.
# - Shoeybi et al. 2019, *Megatron-LM*, section 3: two pages that explain how to cut a layer.
# - Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*: all
#   three ways at once, and how to choose.
