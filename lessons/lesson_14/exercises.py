"""The exercises of lesson 14: unequal parts, half a ring, and a sum that was forgotten."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake


def whole_gradient(gradients, tokens):
    """gradients (R, N), tokens (R, 1) -> gradient (N).

    Machine r had tokens[r] tokens, and gradients[r] is the
    gradient of the mean loss of these. The gradient is that of
    the mean loss of all machines' tokens.
    """
    # The share of each machine. All shares add up to 1.
    share = tokens / tokens.sum()
    # What each machine brings. Its mean counts as much as it had tokens.
    brought = share * gradients
    # The gradient. All machines bring something to it.
    gradient = brought.sum(axis=0)
    return gradient


OF_WHOLE = [
    Mistake(
        "gradient",
        lambda gradients: gradients.mean(axis=0),
        "The mean of the machines’ means: but a machine with few tokens counts in it as much as "
        "one with many. The tokens of all count alike, not the machines.",
    ),
    Mistake(
        "gradient",
        lambda gradients: gradients.sum(axis=0),
        "A sum of means grows with the number of machines. What is asked for is a mean itself.",
    ),
    Mistake(
        "gradient",
        lambda gradients, tokens: (tokens * gradients).sum(axis=0),
        "This is the gradient of the sum of all tokens’ losses. That of their mean is smaller.",
    ),
]


def reduce_scatter(parts):
    """parts (R, R, N) -> held (R, R, N).

    parts[r, c] is chunk c of machine r's gradient. There are
    R - 1 steps, counted from 0. In step s machine r sends its
    chunk (r - s) mod R to the next machine, which adds it to
    its own. After machine R - 1 comes machine 0. What does
    each machine hold in the end?
    """
    # What all hold. At first it is what was given.
    held = parts.copy()
    for s in range(len(parts) - 1):
        for r in range(len(parts)):
            # The chunk that is sent. Each machine sends another one, and in each step another.
            chunk = (r - s) % len(parts)
            # The next machine. The last one sends to the first.
            following = (r + 1) % len(parts)
            # What all hold after a message. The next machine has two shares of this chunk now.
            held[following, chunk] = held[following, chunk] + held[r, chunk]
    return held


OF_RING = [
    Mistake(
        "held",
        lambda parts: parts + np.roll(parts, 1, axis=0),
        "Each chunk has gone one step far. What arrives has to travel on in the next step.",
    ),
    Mistake(
        "held",
        lambda parts: np.broadcast_to(parts.sum(axis=0), parts.shape).copy(),
        "Here all machines hold all sums. After the first half of a ring each has one finished "
        "chunk, and the others are on the way.",
    ),
]


def machines_backward(dy, x, inner, outer):
    """dy, x (T, D) -> dx, dinner, douter.

    inner (R, D, F) and outer (R, F, D) are what R machines have
    of two matrices. Machine r computes relu(x inner_r) outer_r,
    and y is the sum of what all machines compute.
    """
    # dx. It begins with nothing.
    dx = np.zeros(x.shape)
    # dinner. It begins with nothing.
    dinner = np.zeros(inner.shape)
    # douter. It begins with nothing.
    douter = np.zeros(outer.shape)
    for r in range(len(inner)):
        # What this machine has between its two products. Forward had it, too.
        hidden = np.maximum(x @ inner[r], 0)
        # douter. Each machine has its own part of the outer matrix.
        douter[r] = hidden.T @ dy
        # The gradient of the activation. The whole dy comes to every machine.
        dhidden = dy @ outer[r].T
        # The gradient before the activation. Nothing comes back where that gave 0.
        dbefore = dhidden * (hidden > 0)
        # dinner. Each machine has its own part of the inner matrix.
        dinner[r] = x.T @ dbefore
        # dx. Every machine has read all of x.
        dx = dbefore @ inner[r].T + dx
    return dx, dinner, douter


def machines(x, inner, outer):
    return sum(np.maximum(x @ a, 0) @ b for a, b in zip(inner, outer, strict=True)), {}


EXERCISES = [
    Exercise(
        14,
        "Unequal parts",
        """A batch was dealt out, but sentences differ in length, so machines have different
numbers of tokens. Each has the gradient of *its* mean loss. What is the gradient of the whole?""",
        whole_gradient,
        lambda n: dict(gradients=(n.T, n.K), tokens=np.arange(3.0, 3 + n.T)[:, None]),
        "Whoever averages the means gives the tokens of a crowded machine too little say.",
        mistakes=OF_WHOLE,
        called={"T": "the number of machines", "K": "the number of weights"},
    ),
    Exercise(
        14,
        "Half a ring",
        """The first half of the ring: the shares are added up, and nothing is handed round yet.
Write the steps as the machines do them. (To do a step's messages one after the other is all
right: why?)""",
        reduce_scatter,
        lambda n: dict(parts=(n.T, n.T, n.K)),
        "Machine r now holds the finished chunk (r + 1) mod R. In one step all messages are about "
        "different chunks, so their order does not matter. Handing round is the same walk again, "
        "with = for +=.",
        mistakes=OF_RING,
        called={"T": "the number of machines", "K": "the size of a chunk"},
    ),
    Exercise(
        14,
        "Find the mistake",
        """The way back through two matrices that are shared out. With one machine everything is
right, and all gradients of weights are right always. Find the line and mend it.""",
        machines_backward,
        lambda n: dict(x=(n.T, n.D), inner=(n.B, n.D, n.K), outer=(n.B, n.K, n.D)),
        "This is the one sum of the way back, the conjugate of the one of the way there. Without "
        "it the layers below learn from a single machine’s share.",
        machines,
        to_find="dx = dbefore @ inner[r].T",
        called={"B": "the number of machines", "T": "the number of positions", "K": "d_ff"},
    ),
]
