"""The exercises of lesson 11: a score for induction, learned gates, a lost sign."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake


def induction_score(weights, symbols):
    """weights (H, T, T), symbols (T,) -> score (H,).

    The mean weight on what followed the latest earlier
    occurrence of the current symbol. Positions whose symbol
    is new are left out of the mean. weights[:, t, s] is the
    weight with which position t looks at s.
    """
    # Which symbols are the same. Compare each symbol with every symbol.
    same = symbols[:, None] == symbols
    # Which of them came earlier. A symbol at t or later did not come before t.
    earlier = np.tril(same, -1)
    # The latest earlier place. Where there is none, it is -1.
    latest = np.where(earlier, np.arange(len(symbols)), -1).max(axis=1)
    # The positions that count. A symbol that is new has no place to look at.
    counted = np.flatnonzero(latest >= 0)
    # The weights on what followed. Which place shows what came next?
    looks = weights[:, counted, latest[counted] + 1]
    # The score. It is a mean over the positions that count.
    score = looks.mean(axis=1)
    return score


OF_SCORE = [
    Mistake(
        "looks",
        lambda weights, counted, latest: weights[:, counted, latest[counted]],
        "You look at the earlier occurrence itself. An induction head looks one place further, at "
        "the symbol that came after it.",
    ),
    Mistake(
        "latest",
        lambda earlier: np.where(earlier.any(axis=1), earlier.argmax(axis=1), -1),
        "You take the first occurrence. What counts is the latest one before t.",
    ),
    Mistake(
        "score",
        lambda looks, symbols: looks.sum(axis=1) / len(symbols),
        "You divide by the number of all positions. Positions whose symbol is new have no place to "
        "look at and should not count.",
    ),
]


def sequence(n) -> dict:
    """Random attention weights of some heads, and symbols that occur more than once."""
    rng = np.random.default_rng(11)
    length = n.T + n.S
    weights = rng.dirichlet(np.ones(length), (n.H, length))
    return dict(weights=weights, symbols=np.append(np.arange(3), rng.integers(4, size=length - 3)))


def learned_gates_backward(dy, heads, logits, w_o):
    """dy (T, D) -> dheads, dlogits.

    Forward was y = the sum of g[i] heads[i] w_o[i] over i, with
    gates g = 1 / (1 + exp(-logits)), and
    heads (H, T, K), logits (H,), w_o (H, K, D).
    """
    # The gates. They lie between 0 and 1.
    gates = 1 / (1 + np.exp(-logits))
    # The gradient of each gated head. Each head has its own rows of one weight.
    dgated = dy @ w_o.swapaxes(-1, -2)
    # dheads. Each number of a head was multiplied by one gate.
    dheads = dgated * gates[:, None, None]
    # The gradient of the gates. A gate was used for every number of its head.
    dgates = (dgated * heads).sum(axis=(1, 2))
    # dlogits. The slope of a sigmoid follows from its value.
    dlogits = dgates * gates * (1 - gates)
    return dheads, dlogits


def learned_gates(heads, logits, w_o):
    gates = 1 / (1 + np.exp(-logits))
    return (gates[:, None, None] * heads @ w_o).sum(axis=0), {}


OF_GATES = [
    Mistake(
        "dlogits",
        lambda dgates: dgates,
        "You stop at the gates. A sigmoid made them from the logits: go back through it.",
    ),
    Mistake(
        "dlogits",
        lambda dgates, gates: dgates * (1 - gates**2),
        "The slope is that of a tanh. A gate is a sigmoid.",
    ),
]


def importance(heads, dheads):
    """heads, dheads (B, T, H, K) -> importance (H,).

    `heads` is the output of every head in B sentences,
    `dheads` its gradient. The importance of a head is the
    mean size, over sentences, of the gradient of its gate.
    """
    # The product of each number and its gradient. The gate multiplies every number of its head.
    moved = heads * dheads
    # The gradient of the gate in each sentence. It collects from all positions and all numbers.
    gates = moved.sum(axis=(1, 3))
    # The size in each sentence. Less loss in one does not make up for more loss in another.
    size = abs(gates)
    # The importance. Every sentence counts the same.
    importance = size.mean(axis=0)
    return importance


EXERCISES = [
    Exercise(
        11,
        "A score for induction",
        """Measure how far a head acts as an induction head: its mean weight on what followed the
latest earlier occurrence of the current symbol.""",
        induction_score,
        sequence,
        "With this score you can find induction heads in any model whose attention weights you can "
        "see. Always compare it with the score of shuffled weights.",
        mistakes=OF_SCORE,
        called={"H": "the number of heads"},
    ),
    Exercise(
        11,
        "Learned gates",
        """Voita et al. did not only look at gates, they trained them: a trainable logit sets each
gate, and a penalty pushes the gate towards 0. Here a gate is the sigmoid of its logit
(theirs also have random noise). Write the backward.""",
        learned_gates_backward,
        lambda n: dict(heads=(n.H, n.T, n.K), logits=(n.H,), w_o=(n.H, n.K, n.D)),
        "Where a gate is nearly 0 or nearly 1, its logit gets hardly any gradient: the gate has "
        "decided.",
        learned_gates,
        OF_GATES,
    ),
    Exercise(
        11,
        "Find the mistake",
        """This computes the importance of heads over several sentences. With one sentence it is
right except for a sign. With many sentences, a head that helps in half of them and harms in the
others seems unimportant. Find the line and mend it.""",
        importance,
        lambda n: dict(heads=(n.B, n.T, n.H, n.K), dheads=(n.B, n.T, n.H, n.K)),
        "A mean of signed numbers asks whether a head helps on the whole. A mean of sizes asks "
        "whether it matters.",
        to_find="size = gates",
    ),
]
