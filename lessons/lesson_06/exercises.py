"""The exercises of lesson 6: another norm, a gate, and a highway with a mistake."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.later.rms_norm import rms_norm
from numformer.paper.feed_forward import relu

CALLED = {"T": "the number of words", "D": "the width of a row"}


def rms_norm_backward(dy, gamma, x_hat, rrms):
    """dy (T, D) -> dx, dgamma.

    Forward was y = gamma x_hat, x_hat = x rrms,
    rrms = 1 / sqrt(mean(x^2) + 1e-5), the mean of each row, with
    x and x_hat (T, D), gamma (D,), rrms (T, 1).
    """
    # dgamma. Every row was multiplied by the same gamma.
    dgamma = (dy * x_hat).sum(axis=0)
    # The gradient of x_hat. What did forward do to x_hat to get y?
    dhat = dy * gamma
    # The part along x_hat. Each row has one number for this part, a mean: the mean of what?
    along = (dhat * x_hat).mean(axis=-1, keepdims=True)
    # dx. Every number of a row acts in two ways: by itself, and through the size of its row. In
    # which direction can a row move without changing the result?
    dx = rrms * (dhat - x_hat * along)
    return dx, dgamma


def gated_backward(dy, x, gate, weight, hidden):
    """dy (T, D) -> dx, dgate, dweight.

    Forward was y = x + gate hidden, hidden = max(0, x weight), with
    x and hidden (T, D), weight (D, D), and gate one number.
    """
    # dgate. One number multiplies all of hidden: where was it used?
    dgate = (dy * hidden).sum()
    # The gradient of x weight. It comes through the gate and through the ReLU.
    dproduct = gate * dy * (hidden > 0)
    # dweight. Each row of x is multiplied by the same weight, and every row adds to dweight.
    dweight = x.T @ dproduct
    # dx. Count how often x is used.
    dx = dy + dproduct @ weight.T
    return dx, dgate, dweight


def highway_backward(dy, x, hidden, weight, gate):
    """dy (T, D) -> dx, dhidden, dweight.

    Forward was y = gate hidden + (1 - gate) x, entry by entry,
    gate = sigmoid(x weight), with
    x, hidden and gate (T, D), weight (D, D).
    """
    # dhidden. Forward multiplied hidden by the gate.
    dhidden = dy * gate
    # The gradient of the gate. Ask where the gate was used: it opens one way and closes the other.
    dgate = dy * (hidden - x)
    # The gradient of x weight. The sigmoid has the slope gate (1 - gate).
    dproduct = dgate * gate * (1 - gate)
    # dweight. Each row of x is multiplied by the same weight, and every row adds to dweight.
    dweight = x.T @ dproduct
    # dx. Count how often x is used.
    dx = dy * (1 - gate) + dproduct @ weight.T
    return dx, dhidden, dweight


def highway(x, hidden, weight):
    gate = 1 / (1 + np.exp(-x @ weight))
    return gate * hidden + (1 - gate) * x, {"gate": gate}


CENTRED = Mistake(
    "dx",
    lambda dhat, x_hat, along, rrms: (
        rrms * (dhat - dhat.mean(axis=-1, keepdims=True) - x_hat * along)
    ),
    "You subtract the mean of the gradient, as in LayerNorm. But this forward subtracts no mean: a "
    "constant added to a row changes the result.",
)
EXERCISES = [
    Exercise(
        6,
        "RMSNorm, backwards",
        """*RMSNorm* (Zhang and Sennrich 2019) divides a row by the root of
the mean of its squares, and leaves its mean alone. Derive its backward as the lesson derives
LayerNorm's, and write it. What is subtracted from the gradient, and what is not?""",
        rms_norm_backward,
        lambda n: dict(x=(n.T, n.D), gamma=(n.D,)),
        "One direction is taken out instead of two: the direction of the row itself.",
        lambda x, gamma: ((n := rms_norm(x, gamma, 1e-5))[0], dict(x_hat=n[1], rrms=n[2])),
        [CENTRED],
        called=CALLED,
    ),
    Exercise(
        6,
        "A gate on what is added",
        r"""Let a learned number $g$ say how much a sublayer adds:
$y = x + g \max(0, xW)$. If $g$ starts at 0, a deep network starts out changing nothing
(Bachlechner et al. 2020). Write the gradients. If $g$ is 0, which of them are 0, and can $g$
learn?""",
        gated_backward,
        lambda n: dict(x=(n.T, n.D), gate=np.array(0.6), weight=(n.D, n.D)),
        "While the gate is 0, the weights get no gradient, but the gate gets one. So it opens, and "
        "then the weights learn, too.",
        lambda x, gate, weight: (x + gate * (h := relu(x @ weight)[0]), {"hidden": h}),
        [
            Mistake(
                "dgate",
                lambda dy, gate, hidden: (gate * dy * hidden).sum(),
                "You multiply by the gate once too often. Forward multiplied the gate by hidden, "
                "so the gradient of the gate does not depend on the gate itself.",
            )
        ],
        called=CALLED,
    ),
    Exercise(
        6,
        "Find the mistake",
        """Before residual connections there were *highways* (Srivastava et al. 2015): a gate says
how much comes from the sublayer, here `hidden`, and the rest goes around it. In this backward one
line is wrong, though every shape is right. Find the line and mend it.""",
        highway_backward,
        lambda n: dict(x=(n.T, n.D), hidden=(n.T, n.D), weight=(n.D, n.D)),
        "The gate was used twice. A residual connection has no gate: nothing can close the way.",
        highway,
        called=CALLED,
        to_find="dgate = dy * hidden",
    ),
]
