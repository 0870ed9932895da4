"""The exercises of lesson 4: back through what heads hand over, and which head is needed."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.paper.attention import split_heads


def handed_backward(dheads, memory, w_v, weights):
    """dheads (H, T, K) -> dmemory, dw_v.

    Forward was heads = weights value, where the values of head i are
    value[i] = memory w_v[:, i], with
    memory (S, D), w_v (D, H, K), weights (H, T, S).
    """
    # The gradient of the values. Each head is an attention by itself: see “Through each head”.
    dvalue = weights.swapaxes(-1, -2) @ dheads
    # The gradient of the values with all heads of a word in one row. Back through split: see “Merge
    # undoes split”. Ask what a row of the array is before and after.
    dmerged = dvalue.swapaxes(0, 1).reshape(memory.shape[0], -1)
    # dw_v. Every word of the memory used the same weight: see “Through the projections”.
    dw_v = (memory.T @ dmerged).reshape(w_v.shape)
    # dmemory. A word of the memory gave a value to every head, and collects from all.
    dmemory = dmerged @ w_v.reshape(w_v.shape[0], -1).T
    return dmemory, dw_v


def handed(memory, w_v, weights):
    projected = memory @ w_v.reshape(len(w_v), -1)
    return weights @ split_heads(projected[None], len(weights))[0], {}


def projected_backward(dy, heads, w_o):
    """dy (T, D) -> dheads, dw_o.

    Forward was y = merged w_o, where the rows of all heads
    stand side by side in merged (T, H K), with
    heads (H, T, K), w_o (H K, D).
    """
    # The heads of a word side by side. Ask what a row of the array is before and after.
    merged = heads.swapaxes(0, 1).reshape(dy.shape[0], -1)
    # dw_o. Every word used the same weight: see “Through the projections”.
    dw_o = merged.T @ dy
    # The gradient of merged. Each number of a row was used for the whole row of y.
    dmerged = dy @ w_o.T
    # The gradient of merged, cut into heads. Back through merge: see “Merge undoes split”.
    dcut = dmerged.reshape(dy.shape[0], heads.shape[0], -1)
    # dheads. The axis of heads comes first.
    dheads = dcut.swapaxes(0, 1)
    return dheads, dw_o


def projected(heads, w_o):
    return heads.swapaxes(0, 1).reshape(heads.shape[1], -1) @ w_o, {}


def gates_backward(dy, heads, gates, w_o):
    """dy (T, D) -> dheads, dgates.

    Forward was y = the sum of gates[i] heads[i] w_o[i] over i, with
    heads (H, T, K), gates (H,), w_o (H, K, D).
    """
    # The gradient of each gated head. Each gated head went through its own rows of one weight.
    dgated = dy @ w_o.swapaxes(-1, -2)
    # dheads. Each number of a head was multiplied by the gate of its head.
    dheads = dgated * gates[:, None, None]
    # dgates. A gate was used for every number of its head, and collects from all of them.
    dgates = (dgated * heads).sum(axis=(1, 2))
    return dheads, dgates


def gated(heads, gates, w_o):
    return (gates[:, None, None] * heads @ w_o).sum(axis=0), {}


EXERCISES = [
    Exercise(
        title="What heads hand over, backwards",
        task="""The attention weights of all heads are given. Write the way back from what the heads
found to the memory and to $W^V$: back through blend, split and product. Here $W^V$ has an axis for
the heads, so you see which columns belong to which head.""",
        done="The way back to $W^Q$ and $W^K$ is the same, once you are back through the softmax.",
        lesson=4,
        solution=handed_backward,
        forward=handed,
        inputs=lambda n: dict(
            memory=(n.S, n.D),
            w_v=(n.D, n.H, n.K),
            weights=np.random.default_rng(5).dirichlet(np.ones(n.S), (n.H, n.T)),
        ),
        mistakes=[
            Mistake(
                "dmemory",
                lambda dvalue, w_v: dvalue[-1] @ w_v[:, -1].T,
                "Only the last head is left in dmemory: each head replaces the sum so far.",
            )
        ],
    ),
    Exercise(
        lesson=4,
        title="Which head is needed?",
        task="""Michel et al. imagined a factor in front of each head, a *gate* $g_i$, and removed
heads whose gates have a small gradient. With gates the output is the sum of $g_i\\,O_i\\,W^O_i$,
where $W^O_i$ are the rows of $W^O$ for head $i$. The lesson does not derive that gradient. You
can.""",
        solution=gates_backward,
        forward=gated,
        inputs=lambda n: dict(heads=(n.H, n.T, n.K), gates=(n.H,), w_o=(n.H, n.K, n.D)),
        done="One backward pass gives the gradients of all gates; to try the heads out, you need a "
        "run for each. At gates of 1 these gradients tell, to first order, what removing a head "
        "does.",
    ),
    Exercise(
        lesson=4,
        title="Find the mistake",
        task="""Back through $W^O$ and the merge. One line is wrong, though every shape is right.
With one head nobody would notice. Find the line and mend it.""",
        solution=projected_backward,
        forward=projected,
        inputs=lambda n: dict(heads=(n.H, n.T, n.K), w_o=(n.H * n.K, n.D)),
        to_find="merged = heads.reshape(dy.shape[0], -1)",
        done="A reshape never asks which axis is which. Without the swap the shape fits, but the "
        "numbers belong to other words.",
    ),
]
