"""The exercises of lesson 14: unequal parts, half a ring, and a sum that was forgotten."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake


def whole_gradient(gradients, tokens):
    """gradients (R, N), tokens (R, 1) -> gradient (N).

    Machine r had tokens[r] tokens, and gradients[r] is the
    gradient of their mean loss. Return the gradient of the mean
    loss of the tokens of all machines.
    """
    # The share of each machine. All shares add up to 1.
    share = tokens / tokens.sum()
    # What each machine brings. Its mean counts by the number of its tokens.
    brought = share * gradients
    # The gradient. All machines contribute to it.
    gradient = brought.sum(axis=0)
    return gradient


OF_WHOLE = [
    Mistake(
        "gradient",
        lambda gradients: gradients.mean(axis=0),
        "In this mean of means, a machine with few tokens counts as much as one with many. "
        "All tokens should count alike, not all machines.",
    ),
    Mistake(
        "gradient",
        lambda gradients: gradients.sum(axis=0),
        "A sum of means grows with the number of machines. The result should be a mean itself.",
    ),
    Mistake(
        "gradient",
        lambda gradients, tokens: (tokens * gradients).sum(axis=0),
        "This is the gradient of the sum of all tokens’ losses. The gradient of their mean is "
        "smaller.",
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
    # What the machines hold. At first it is what was given.
    held = parts.copy()
    for s in range(len(parts) - 1):
        for r in range(len(parts)):
            # The chunk that is sent. It differs from machine to machine and from step to step.
            chunk = (r - s) % len(parts)
            # The next machine. The last one sends to the first.
            following = (r + 1) % len(parts)
            # What the machines hold after a message. The next machine adds what arrives.
            held[following, chunk] = held[following, chunk] + held[r, chunk]
    return held


OF_RING = [
    Mistake(
        "held",
        lambda parts: parts + np.roll(parts, 1, axis=0),
        "Each chunk has gone only one step. What arrives has to travel on in the next step.",
    ),
    Mistake(
        "held",
        lambda parts: np.broadcast_to(parts.sum(axis=0), parts.shape).copy(),
        "Here all machines hold all sums. After the first half of a ring, each has one finished "
        "chunk. In its other chunks, shares are missing.",
    ),
]


def machines_backward(dy, x, inner, outer):
    """dy, x (T, D) -> dx, dinner, douter.

    inner (R, D, F) and outer (R, F, D) are the parts of two
    matrices on R machines. Machine r computes
    relu(x inner_r) outer_r, and y is the sum over all machines.
    """
    # dx. At first nothing is in it.
    dx = np.zeros(x.shape)
    # dinner. At first nothing is in it.
    dinner = np.zeros(inner.shape)
    # douter. At first nothing is in it.
    douter = np.zeros(outer.shape)
    for r in range(len(inner)):
        # What this machine has between its two products. Forward computed it, too.
        hidden = np.maximum(x @ inner[r], 0)
        # douter. Each machine has its own part of the outer matrix.
        douter[r] = hidden.T @ dy
        # The gradient of the activation. The whole dy comes to every machine.
        dhidden = dy @ outer[r].T
        # The gradient before the activation. Nothing comes back where the activation gave 0.
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
numbers of tokens. Each has the gradient of *its* mean loss. What is the gradient of the mean loss
of the whole batch?""",
        whole_gradient,
        lambda n: dict(gradients=(n.T, n.K), tokens=np.arange(3.0, 3 + n.T)[:, None]),
        "If you average the means, the tokens of a machine that has many count too little.",
        mistakes=OF_WHOLE,
        called={"T": "the number of machines", "K": "the number of weights"},
    ),
    Exercise(
        14,
        "Half a ring",
        """In the first half of the ring the shares are added up, and nothing is handed round yet.
Write the steps as the machines do them. (You may do the messages of a step one after another:
why?)""",
        reduce_scatter,
        lambda n: dict(parts=(n.T, n.T, n.K)),
        "Machine r now holds the finished chunk (r + 1) mod R. In one step all messages carry "
        "different chunks, so their order does not matter. Handing round is the same walk again, "
        "with = in place of +=.",
        mistakes=OF_RING,
        called={"T": "the number of machines", "K": "the size of a chunk"},
    ),
    Exercise(
        14,
        "Find the mistake",
        """This is backward through two matrices that are divided among machines. With one machine
all results are right, and the gradients of the weights are always right. Find the line and mend
it.""",
        machines_backward,
        lambda n: dict(x=(n.T, n.D), inner=(n.B, n.D, n.K), outer=(n.B, n.K, n.D)),
        "This is the one sum over machines in backward; forward has its counterpart. Without it, "
        "the layers below learn from a single machine’s share.",
        machines,
        to_find="dx = dbefore @ inner[r].T",
        called={"B": "the number of machines", "T": "the number of positions", "K": "d_ff"},
    ),
]
