"""The exercises of lesson 8: label smoothing, dropout, and a mean that leaves out padding."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.paper.dropout import dropout
from numformer.paper.softmax import softmax

CALLED = {"T": "the number of positions", "D": "the number of symbols"}


def smoothed_backward(dlosses, p, right, smoothing):
    """dlosses (T,) -> dlogits.

    Forward was losses = -sum(target log(p)), the sum of each row,
    target = (1 - smoothing) right + smoothing / D,
    p = softmax(logits),
    with logits, p and right (T, D); in each row of right the right
    symbol has 1, the others 0; smoothing is one number.
    """
    # The target. The smoothing is shared out among all symbols.
    target = (1 - smoothing) * right + smoothing / right.shape[-1]
    # dlogits. Compare the prediction with the target. See “Loss and softmax together”.
    dlogits = dlosses[:, None] * (p - target)
    return dlogits


def smoothed(logits, right, smoothing):
    p = softmax(logits)
    target = (1 - smoothing) * right + smoothing / right.shape[-1]
    return -(target * np.log(p)).sum(axis=-1), {"p": p}


def dropped_backward(dy, x, weight, keep):
    """dy (T, D) -> dx, dweight.

    Forward was y = x + keep (x weight), with x (T, D),
    weight (D, D), and keep (T, D), whose entries are
    0 where a value was dropped, and 1 / (1 - p) elsewhere.
    """
    # The gradient of x weight. A value that was dropped has changed nothing.
    dproduct = dy * keep
    # dweight. Each row of x made one row of the product, and every row adds to dweight.
    dweight = x.T @ dproduct
    # dx. Count how often x is used.
    dx = dy + dproduct @ weight.T
    return dx, dweight


def counted_backward(dloss, p, right, valid):
    """dloss () -> dlogits.

    Forward was loss = sum(valid losses) / sum(valid), where
    losses = -log(p) at the right symbol of each row, and
    p = softmax(logits), with logits, p and right (T, D); valid (T,)
    is 1 where a row counts, and 0 where it is padding.
    """
    # The share of each row. The rows that count have equal shares, and padding has none.
    share = valid / valid.sum()
    # dlogits. Each row adds to the loss with its share.
    dlogits = dloss * share[:, None] * (p - right)
    return dlogits


def counted(logits, right, valid):
    p = softmax(logits)
    losses = -np.log((p * right).sum(axis=-1))
    return (valid * losses).sum() / valid.sum(), {"p": p}


def one_right(n) -> np.ndarray:
    """(T, D): the right symbol of each row."""
    return np.eye(n.D)[np.arange(1, n.T + 1) % n.D]


EXERCISES = [
    Exercise(
        8,
        "A smoothed answer",
        """Write the gradient of the loss with label smoothing, from the model's
prediction and the target. The softmax and the logarithm need no backward of their own: the lesson
has combined them.""",
        smoothed_backward,
        lambda n: dict(logits=(n.T, n.D), right=one_right(n), smoothing=np.array(0.2)),
        "With a smoothing of 0 it is the plain gradient. With any smoothing it is 0 where the "
        "prediction equals the target.",
        smoothed,
        [
            Mistake(
                "dlogits",
                lambda dlosses, p, right: dlosses[:, None] * (p - right),
                "This is the gradient without label smoothing.",
            ),
            Mistake(
                "target",
                lambda right, smoothing: (
                    (1 - smoothing) * right + (1 - right) * smoothing / (right.shape[-1] - 1)
                ),
                "The smoothing is shared among the wrong symbols alone. Here all D symbols get an "
                "equal part of it, the right one, too.",
            ),
            Mistake(
                "dlogits",
                lambda dlosses, p, target: -dlosses[:, None] * target / p,
                "This is the gradient of the probabilities. It has to go back through the softmax, "
                "too.",
            ),
        ],
        called=CALLED,
    ),
    Exercise(
        8,
        "A sublayer with dropout",
        """Here is a residual connection whose sublayer is one matrix, with
dropout where the paper puts it. Forward drew the mask and kept it. Write the backward. Where does
the gradient go at an entry that was dropped?""",
        dropped_backward,
        lambda n: dict(
            x=(n.T, n.D),
            weight=(n.D, n.D),
            keep=np.where(np.arange(n.T * n.D).reshape(n.T, n.D) % 3, 1 / 0.75, 0),
        ),
        "At a dropped entry the gradient still reaches `x`, around the sublayer. And the mask has "
        "to be that of forward: a new one would give the gradient of another function.",
        lambda x, weight, keep: (x + dropout(x @ weight, keep), {}),
        called=CALLED,
    ),
    Exercise(
        8,
        "Find the mistake",
        """Here some rows are padding, and the loss is a mean over the others. With
this backward and Adam a model learns, and nobody complains. But someone who clips at 1 wonders why
every step is clipped. Find the wrong line and mend it.""",
        counted_backward,
        lambda n: dict(
            logits=(n.T, n.D), right=one_right(n), valid=np.array([1.0] * (n.T - 2) + [0, 0])
        ),
        "The shares add up to 1 again. Adam hides a factor that is always the same, because it "
        "divides by the size of the gradients. Clipping does not.",
        counted,
        [
            Mistake(
                "share",
                lambda valid: valid / len(valid),
                "You divide by the number of all rows. But padding is no part of the mean.",
            ),
        ],
        called=CALLED,
        to_find="share = valid / valid.mean()",
    ),
]
