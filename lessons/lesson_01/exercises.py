"""The exercises of lesson 1: backward through time, and through two cells that are new."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.explanations import apart
from lessons.kit.solution import Mistake
from numformer.later.activations import sigmoid


def through_time_backward(doutput, h, weight):
    """doutput (T, d) -> da (T, d), dweight (d, d).

    Forward was h[t] = tanh(a[t] + h[t - 1] weight) for each of
    the T words, where the state before the first word is 0, with
    a and h (T, d), weight (d, d).
    """
    # The state before each word. The first word finds 0, every other word the state that the word
    # before it left.
    before = np.concatenate([np.zeros((1, h.shape[1])), h[:-1]])
    # da. Each word's part was added once, in its own step.
    da = np.zeros(h.shape)
    # What comes back from the next word. Nothing follows the last word.
    dlater = np.zeros(h.shape[1])
    for t in reversed(range(len(h))):
        # The gradient of a state. A state is used in two places, and collects from both: its own
        # row of the output, and the next word. See “The way back”.
        dstate = doutput[t] + dlater
        # da. A state is the tanh of a sum that contains a. The slope of this tanh follows from the
        # state itself.
        da[t] = dstate * (1 - h[t] ** 2)
        # What goes to the state before. Forward multiplied that state by the weight: go back
        # through this product.
        dlater = da[t] @ weight.T
    # dweight. There is one weight for all words. Each word used it once, on the state before.
    dweight = before.T @ da
    return da, dweight


def rnn(a, weight):
    h = [np.zeros(len(weight))]
    for each in a:
        h.append(np.tanh(each + h[-1] @ weight))
    return np.array(h[1:]), {"h": np.array(h[1:])}


def unit_backward(dnew, h, u, r, f, n):
    """dnew (B, d) -> da, de, dh, each (B, d).

    Forward was f = sigmoid(a + h u) and n = tanh(e + (f h) r),
    new = (1 - f) h + f n, with a, e, h, f, n (B, d). The matrices
    are u and r (d, d); f multiplies entry by entry.
    """
    # The gradient of n. The gate says how much of n was let in.
    dn = dnew * f
    # de. n is the tanh, so the slope follows from n.
    de = dn * (1 - n**2)
    # The gradient of f h. It was multiplied by r.
    dkept = de @ r.T
    # The gradient of the gate. It was used in three places: it lets the old go, it lets the new in,
    # and it decides how much of the old the new may see.
    dgate = dnew * (n - h) + dkept * h
    # da. The gate is the sigmoid, so the slope follows from the gate.
    da = dgate * (f - f**2)
    # dh. The old state was used in three places: in the part of it that is kept, in the part that
    # the new may see, and in the gate.
    dh = dnew * (1 - f) + dkept * f + da @ u.T
    return da, de, dh


def unit(a, e, h, u, r):
    f = sigmoid(a + h @ u)
    n = np.tanh(e + (f * h) @ r)
    return (1 - f) * h + f * n, {"f": f, "n": n}


def passed_back(slope=lambda h: 1 - h**2, order=reversed):
    """The loop of `through_time_backward`, with another slope or in another order."""

    def loop(doutput, h, weight):
        da, dlater = np.zeros(h.shape), np.zeros(h.shape[1])
        for t in order(range(len(h))):
            da[t] = (doutput[t] + dlater) * slope(h[t])
            dlater = da[t] @ weight.T
        return da

    return loop


def leaky_backward(dnew, c, p, f, g):
    """dnew (B, d) -> da, de, dc, each (B, d).

    Forward was f = sigmoid(a + p c) and g = tanh(e),
    new = f c + (1 - f) g, with a, e, c, f, g (B, d) and p (d,),
    all entry by entry. c is the memory.
    """
    # The gradient of the gate. The more it keeps of the old, the less it lets in of the new.
    dgate = dnew * (c - g)
    # da. The gate is a sigmoid. Its slope follows from the gate itself.
    da = dgate * (f - f**2)
    # de. The new content went through a tanh. Then the gate let it in: the less the gate keeps of
    # the old, the more it lets in of the new.
    de = dnew * (1 - f) * (1 - g**2)
    # dc. The memory was used twice: in the part of it that is kept, and in the gate.
    dc = dnew * f + da * p
    return da, de, dc


def leaky(a, e, c, p):
    f, g = sigmoid(a + p * c), np.tanh(e)
    return f * c + (1 - f) * g, {"f": f, "g": g}


EXERCISES = [
    Exercise(
        lesson=1,
        title="A recurrent network, backwards through time",
        task="""Write the whole way back, the loop included. `doutput[t]` is the gradient that
state `t` gets from outside the loop. `h` has all states, as forward left them.""",
        mistakes=[
            Mistake(
                "before",
                lambda h: h,
                "The weight multiplied the state *before* each word. You take the one after it.",
            ),
            Mistake(
                "before",
                lambda h: np.roll(h, 1, axis=0),
                "The state before the first word is "
                "0, and you take the last state: the index −1 means the last row.",
            ),
            Mistake(
                "dweight",
                lambda before, da, h: before.T @ (da / (1 - h**2)),
                "The weight stands inside the tanh: go back through the tanh first.",
            ),
            Mistake(
                "da",
                passed_back(slope=lambda h: h - h**2),
                "You used the slope of a sigmoid. These states came out of a tanh.",
            ),
            Mistake(
                "da",
                passed_back(order=lambda words: words),
                "The loop runs forwards. A state gets its gradient from the word *after* it, so "
                "the last word has to come first.",
            ),
            Mistake(
                "da",
                passed_back(order=lambda words: words[:0:-1]),
                "The loop ends one word early: the first word gets nothing. A range stops before "
                "its second number.",
            ),
        ],
        solution=through_time_backward,
        forward=rnn,
        inputs=lambda n: dict(  # a weight so small that most states stay where tanh is not flat
            a=(n.T, n.K), weight=0.2 * np.random.default_rng(5).standard_normal((n.K, n.K))
        ),
        called={"T": "the number of words", "K": "the size of the state"},
        done="This is backpropagation through time. The library's version does the same for a "
        "whole batch. It takes saved states off a stack where you use indices.",
    ),
    Exercise(
        lesson=1,
        title="A cell with one gate, backwards",
        task="""The *minimal gated unit* (Zhou et al. 2016) has a single gate where the LSTM has
three: it lets go as much of the old state as it lets in of the new one. The lesson does not derive
the backward of this cell. Write it for one step. `a` and `e` are what the word contributes.""",
        solution=unit_backward,
        forward=unit,
        inputs=lambda n: dict(a=(n.B, n.K), e=(n.B, n.K), h=(n.B, n.K), u=(n.K, n.K), r=(n.K, n.K)),
        called={"K": "the size of the state"},
        mistakes=[
            Mistake(
                "dn",
                lambda dnew, f: dnew * (1 - f),
                "You swapped the two shares of "
                "the gate: one keeps the old state, the other lets the new one in.",
            ),
            Mistake(
                "de",
                lambda dn, n: dn * (n - n**2),
                "In de, you used the slope of a sigmoid. But n came out of a tanh.",
            ),
            Mistake(
                "dgate",
                lambda dnew, dkept, n, h, f: dnew * f * (n - h) + dkept * h,
                "You multiply the gradient of the gate by the gate itself. Forward multiplied the "
                "gate by the numbers that it lets through, so its slope is those numbers alone.",
            ),
        ],
        properties=[apart(0, "sequence")],
        done="Where the gate is shut, the whole gradient passes to the old state: the same open "
        "path as in the LSTM. Now you can differentiate any cell.",
    ),
    Exercise(
        lesson=1,
        title="Find the mistake",
        task="""In this cell with a memory `c` the gate sees the memory, through one weight of `p`
for each entry. Below is the backward of one step. A network trained with it learns what depends on
the current word, but hardly what depends on earlier words. Find the wrong line and mend it.""",
        solution=leaky_backward,
        forward=leaky,
        inputs=lambda n: dict(a=(n.B, n.K), e=(n.B, n.K), c=(n.B, n.K), p=(n.K,)),
        called={"K": "the size of the memory"},
        to_find="dc = da * p",
        done="The memory got its gradient only through the gate. The open path, through which a "
        "whole gradient can pass, was closed.",
    ),
]
