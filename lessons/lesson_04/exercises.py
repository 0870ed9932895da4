"""The exercises of lesson 4: split, heads with a factor, and a mistake among the axes."""

import numpy as np

from lessons.exercise import Exercise
from lessons.explanations import apart
from lessons.solution import Mistake
from numformer.layers.attention import merge_heads, split_heads


def split_backward(dheads):
    """dheads (B, H, T, K) -> dx (B, T, H K).

    Forward was heads = split_heads(x), with head 1 in the first K columns
    of x, head 2 in the next K, and so on.
    """
    # The gradient with the word in front of the head. A row of x is one word with all its heads.
    turned = dheads.swapaxes(1, 2)
    # dx. Each number went to one place, and its gradient comes back from there.
    dx = turned.reshape(dheads.shape[0], dheads.shape[2], -1)
    return dx


def gates_backward(dy, heads, gates, weight):
    """dy (T, D) -> dheads, dgates.

    Forward was y = concat(gates[0] heads[0], gates[1] heads[1], ...) weight,
    with heads (H, T, K), gates (H,), weight (H K, D).
    """
    # The gradient of what stands side by side. It went through one product.
    dmerged = dy @ weight.T
    # The gradient of each head with its factor. What concat put side by side is split again: ask
    # which axis holds the heads.
    dgated = dmerged.reshape(dy.shape[0], heads.shape[0], -1).swapaxes(0, 1)
    # dheads. Each number of a head was multiplied by one factor.
    dheads = dgated * gates[:, None, None]
    # dgates. A factor was used for every number of its head, and collects from all of them.
    dgates = (dgated * heads).sum(axis=(1, 2))
    return dheads, dgates


def gated(heads, gates, weight):
    return merge_heads((gates[:, None, None] * heads)[None])[0] @ weight, {}


UNSWAPPED = Mistake(
    "dgated",
    lambda dmerged, heads: dmerged.reshape(heads.shape),
    "The gradient of each head has the right shape and the numbers of other words. A row of what "
    "stands side by side is one word with all its heads: cut it first, then swap axes.",
)


def blend_backward(dy, memory, w_v, w_o, weights):
    """dy (T, D) -> dmemory, dw_v, dw_o.

    Forward was y = merge(weights split(memory w_v)) w_o, with
    memory (S, D), w_v (D, H K), w_o (H K, D), weights (H, T, S).
    """
    # The values of the heads.
    value = (memory @ w_v).reshape(memory.shape[0], weights.shape[0], -1).swapaxes(0, 1)
    # What all heads found, side by side.
    merged = (weights @ value).swapaxes(0, 1).reshape(dy.shape[0], -1)
    # dw_o. Every word used the same weight.
    dw_o = merged.T @ dy
    # The gradient of what all heads found. Each finding acted through its row of w_o.
    dmerged = dy @ w_o.T
    # The gradient of what each head found. Back through merge: a split.
    dheads = dmerged.reshape(dy.shape[0], weights.shape[0], -1).swapaxes(0, 1)
    # The gradient of the values of the heads. See lesson 3.
    dvalue = weights.swapaxes(-1, -2) @ dheads
    # The gradient of memory w_v. Back through split: a merge. Which axis has to stand first?
    dprojected = dvalue.swapaxes(0, 1).reshape(memory.shape[0], -1)
    # dw_v. Every word of the memory used the same weight.
    dw_v = memory.T @ dprojected
    # dmemory. A word of the memory gave a value to every head.
    dmemory = dprojected @ w_v.T
    return dmemory, dw_v, dw_o


def blended(memory, w_v, w_o, weights):
    value = split_heads((memory @ w_v)[None], weights.shape[0])
    return merge_heads(weights[None] @ value)[0] @ w_o, {}


EXERCISES = [
    Exercise(
        lesson=4,
        title="Split, backwards",
        task="Write the gradient of `split_heads`, without looking it up.",
        solution=split_backward,
        forward=lambda x: (split_heads(x, 2), {}),
        inputs=lambda n: dict(x=(n.B, n.T, 2 * n.K)),
        properties=[apart(0, "sequence")],
        done="It is merge, and the gradient of merge is split.",
    ),
    Exercise(
        lesson=4,
        title="Which head is needed?",
        task="""Michel et al. imagined a factor before each head, a *gate* $g_i$, and removed the
heads whose gates have a small gradient: $Y = \\mathrm{concat}(g_1 O_1, \\ldots, g_h O_h)\\,W^O$.
The lesson does not derive that gradient. You can.""",
        solution=gates_backward,
        forward=gated,
        inputs=lambda n: dict(heads=(n.H, n.T, n.K), gates=(n.H,), weight=(n.H * n.K, n.D)),
        mistakes=[UNSWAPPED],
        done="One backward pass gives the gradient of every gate; trying takes a run for each. "
        "With all gates at 1 its size tells, to first order, what removing a head does.",
    ),
    Exercise(
        lesson=4,
        title="Find the mistake",
        task="""Heads whose weights are given blend the values of a memory. In this backward one
line is wrong; its shape is right. Find it and mend it.""",
        solution=blend_backward,
        forward=blended,
        inputs=lambda n: dict(memory=(n.S, n.D), w_v=(n.D, n.H * n.K), w_o=(n.H * n.K, n.D),
                              weights=np.abs(np.random.default_rng(5).random((n.H, n.T, n.S)))),
        to_find="dprojected = dvalue.reshape(memory.shape[0], -1)",
        done="A reshape never asks which axis is which. Where head and word change places and the "
        "swap is forgotten, the shape fits and the numbers are those of other words.",
    ),
]  # fmt: skip
