"""The exercises of lesson 10: the nucleus, a step of a beam, scores that are wrong, a gradient."""

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.paper.softmax import softmax


def nucleus(p, top_p):
    """p (B, D), top_p () -> kept (B, D).

    Each row of p has the probabilities of D symbols. kept
    keeps the fewest symbols that together have at least the
    probability top_p; all others get 0. Each row of kept sums
    to 1 again.
    """
    # Which symbol comes before which. More probable ones do, and none comes before itself.
    more = p[:, None, :] > p[:, :, None]
    # The sum of what comes before. Each symbol has its own.
    before = (p[:, None, :] * more).sum(axis=-1)
    # What stays. A symbol is dropped if those before it are enough.
    stays = p * (before < top_p)
    # kept. Each row has to sum to 1.
    kept = stays / stays.sum(axis=-1, keepdims=True)
    return kept


OF_NUCLEUS = [
    Mistake(
        "stays",
        lambda p, before, top_p: p * (before + p <= top_p),
        "The symbol with which the sum reaches top_p is left out. Where the first symbol alone "
        "has more than top_p, nothing would be left.",
    ),
    Mistake(
        "kept",
        lambda stays: stays,
        "The probabilities that you keep do not sum to 1 yet: this is no distribution.",
    ),
    Mistake(
        "more",
        lambda p: p[:, None, :] < p[:, :, None],
        "The least probable symbols come first: this keeps the wrong end.",
    ),
]


def beam_step(log_p, step, state):
    """log_p (T,), step (T, D), state (T, K) -> best, kept (T, K).

    T hypotheses have the log probabilities log_p. For each of
    them, a row of step has the log probabilities of the D
    symbols that can come next, and a row of state is what the
    model remembers. best (T,) has the T highest log
    probabilities of all continuations, the highest first; kept
    is what the model remembers of the hypotheses they come from.
    """
    # The sums. Each hypothesis can go on with each symbol.
    totals = log_p[:, None] + step
    # All continuations in one row. They compete, whichever hypothesis they continue.
    ways = totals.ravel()
    # best. Keep as many continuations as there were hypotheses.
    best = np.sort(ways)[::-1][: len(log_p)]
    # The rows that are remembered. The index in the row of all continuations says which
    # hypothesis is continued.
    kept = state[np.argsort(-ways)[: len(log_p)] // step.shape[1]]
    return best, kept


OF_STEP = [
    Mistake(
        "kept",
        lambda state: state,
        "You left the memories where they were. A new hypothesis may continue another row, and "
        "then it would go on with the memory of the wrong hypothesis.",
    ),
    Mistake(
        "best",
        lambda totals: np.sort(totals.max(axis=1))[::-1],
        "You continued each hypothesis only in its best way. The second-best continuation of a "
        "good hypothesis may beat the best one of a poor hypothesis, which is then dropped.",
    ),
    Mistake(
        "kept",
        lambda state, ways: state[np.argsort(-ways)[: len(state)] % len(state)],
        "The index of a continuation tells you two things, and you took the wrong one: in the row "
        "of all continuations, those of one hypothesis lie side by side.",
    ),
]


def scores(log_p, valid, alpha):
    """log_p (B, T), valid (B, T), alpha () -> score (B,).

    The scores of B translations. log_p are the log
    probabilities of their symbols; valid is 1 for a symbol and
    0 for padding. The sum is divided by the length penalty
    ((5 + length) / 6)^alpha.
    """
    # The log probability. It is a sum over the symbols of a translation; padding does not count.
    total = (log_p * valid).sum(axis=-1)
    # The length. Each translation has its own.
    length = valid.sum(axis=-1)
    # The penalty. It grows with the length.
    penalty = ((5 + length) / 6) ** alpha
    # The score. A logarithm is negative, so a larger penalty brings it nearer to 0.
    score = total / penalty
    return score


def drawn_backward(dlog_p, logits, p, drawn, temperature):
    """dlog_p (T,) -> dlogits, dtemperature.

    Forward was log_p = the logarithm of p at the drawn symbol,
    with p = softmax(logits / temperature), logits and p (T, D);
    in each row of drawn (T, D) the drawn symbol has 1, the
    others have 0; temperature is one number, an array ().
    """
    # The gradient of logits / temperature. Lesson 8 has it for a loss, which has the other sign.
    # See “What was drawn, and the way back”.
    dquotients = dlog_p[:, None] * (drawn - p)
    # dlogits. Each logit was divided once.
    dlogits = dquotients / temperature
    # dtemperature. It divides every logit of every row: what is the derivative of 1 / temperature?
    dtemperature = -(dquotients * logits).sum() / temperature**2
    return dlogits, dtemperature


def drawn_log_p(logits, drawn, temperature):
    p = softmax(logits / temperature)
    return np.log((p * drawn).sum(axis=-1)), {"p": p}


OF_DRAWN = [
    Mistake(
        "dquotients",
        lambda dlog_p, p, drawn: dlog_p[:, None] * (p - drawn),
        "This is the gradient of a loss, which is minus the logarithm. Here you need that of the "
        "logarithm itself.",
    ),
    Mistake(
        "dquotients",
        lambda dlog_p, drawn, p: dlog_p[:, None] * drawn / np.maximum(p, 1e-9),
        "This is the gradient of the probabilities. It has to go back through the softmax, too.",
    ),
]


def one_drawn(n) -> np.ndarray:
    """(T, D): the symbol that was drawn in each row."""
    return np.eye(n.D)[np.arange(2, n.T + 2) % n.D]


def of_rows(n) -> np.ndarray:
    """(B, T): translations of different lengths, padded."""
    return (np.arange(n.T) < n.T - np.arange(n.B)[:, None]).astype(float)


SYMBOLS = {"D": "the number of symbols"}
EXERCISES = [
    Exercise(
        10,
        "The nucleus",
        """Write top-p: find what comes before each symbol, cut, and make what stays sum to 1.
You may sort, but you need not. No two symbols are equally probable.""",
        nucleus,
        lambda n: dict(
            p=softmax(np.random.default_rng(10).standard_normal((n.B, n.D))), top_p=np.array(0.6)
        ),
        "Where the model is sure, one symbol is left; where it is not, many are. A fixed number, "
        "as in top-k, cannot do that.",
        mistakes=OF_NUCLEUS,
        called=SYMBOLS,
    ),
    Exercise(
        10,
        "A step of a beam",
        """Extend the hypotheses of a beam by one symbol. None ends here. What the model
remembers of each hypothesis, its cache, has to move with it.""",
        beam_step,
        lambda n: dict(log_p=(n.T,), step=(n.T, n.D), state=(n.T, n.K)),
        "This is `Beam.extend` and `state.choose(parents)` without the hypotheses that end.",
        mistakes=OF_STEP,
        called=SYMBOLS | {"T": "the number of hypotheses", "K": "the width of a memory"},
    ),
    Exercise(
        10,
        "Find the mistake",
        """A beam has found a few translations, and this function computes their scores. The code
runs, and nothing complains. But whatever α is, the order of the scores stays the same: the short
translations win as before. Find the line and mend it.""",
        scores,
        lambda n: dict(
            log_p=-abs(np.random.default_rng(3).standard_normal((n.B, n.T))),
            valid=of_rows(n),
            alpha=np.array(0.6),
        ),
        "A penalty that is the same for all translations does not change their order.",
        called={"B": "the number of translations", "T": "the number of positions"},
        to_find="length = valid.sum(axis=(0, 1))",
    ),
    Exercise(
        10,
        "The gradient of what was drawn",
        """A model has drawn T symbols at a temperature. Write the gradient of their log
probabilities. Multiplied by a reward, it is the REINFORCE gradient of Williams 1992, with which
models are trained on what they wrote themselves.""",
        drawn_backward,
        lambda n: dict(logits=(n.T, n.D), drawn=one_drawn(n), temperature=np.array(0.7)),
        "With a reward of 1 for every symbol of the right target, this is training with the "
        "cross-entropy, but for the sign: one loss, two names.",
        drawn_log_p,
        OF_DRAWN,
        called={"T": "the number of positions", "D": "the number of symbols"},
    ),
]
