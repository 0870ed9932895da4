"""The first simulation of lesson 7: hide the future or not, then change one of its words."""

import numpy as np

from lessons.kit.simulation import Choice, Entries, Option, Simulation
from lessons.kit.views import Matrices, Of
from numformer.arithmetic import matmul
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.dropout import dropout

# The words that the decoder reads. Each has a query of three numbers, a key of three and a value of
# two. All queries but the last fit the key of the next word. `others` has the keys and values of
# words that may stand in the place of these.
words = ["⟨s⟩", "her", "cat", "is", "jumping"]
rows = [
    [2, 0, 0, 0, 0, 0, 1, 1],
    [0, 2, 0, 2, 0, 0, 1, -1],
    [0, 0, 2, 0, 2, 0, 2, 1],
    [0, -1, 1, 0, 0, 2, -1, 0],
    [0, 1, 0, 0, -2, 1, 0, -2],
]
other_words = ["⟨s⟩", "the", "dog", "was", "eating"]
others = [rows[0][3:], [1, 0, 0, 2, -1], [1, 1, 1, 2, 2], [2, 2, 1, -1, 1], [3, 2, 3, 1, -2]]


def vectors() -> list[np.ndarray]:
    """query (5, 3), key (5, 3), value (5, 2)."""
    return np.split(np.array(rows, float), [3, 6], axis=1)


CAUSAL = np.tri(5, dtype=bool)  # query t, key s: s <= t
HIDING = [
    Option(
        (CAUSAL, None),
        "before the softmax",
        "The causal mask, as in the paper: hidden scores count as $-\\infty$.",
        "(causal, None)",
    ),
    Option(
        (None, None),
        "not at all",
        "Every row sees every word. All but the last look hardest at the next word: they peek.",
        "(None, None)",
    ),
    Option(
        (None, CAUSAL.astype(float)),
        "after the softmax",
        "The later weights are set to 0 after the softmax. They look just as hidden. But look at "
        "$\\Delta$.",
        "(None, causal.astype(float))",
    ),
]
CHANGES = [Option(np.eye(5)[:, [s]], words[s], "", f"np.eye(5)[:, [{s}]]") for s in range(5)]
BECOMES = [Option(np.array([row], float), w) for w, row in zip(other_words, others, strict=True)]


def attention(query, key, value, mask, keep):
    """-> output, weights; the weights are multiplied by `keep`, if given, after the softmax."""
    _, weights = scaled_dot_product_attention(query, key, value, mask)
    dropped = dropout(weights, keep)
    return matmul(dropped, value), dropped


def compute(hide, change, becomes) -> dict[str, np.ndarray]:
    """Attention before and after the change of a word; the weights are those after it."""
    query, key, value = vectors()
    output, _ = attention(query, key, value, *hide)
    key = np.where(change, becomes[:, :3], key)
    value = np.where(change, becomes[:, 3:], value)
    after, weights = attention(query, key, value, *hide)
    return dict(
        weights=weights,
        value=value,
        output=output,
        after=after,
        difference=after - output,
    )


mask = Simulation(
    name="mask",
    title="Hide the future, then change it",
    say="The decoder reads five words at once, and at each it has to say the next one. **Change a "
    "word**: type any numbers for it, and look at $\\Delta$, the change in the results. Rows above "
    "the changed word should be 0. Then hide the future in another way.",
    caption="The weights, a row for each of the five words; the values; the results before and "
    "after one word has changed, and the difference between them.",
    alt="The weights A, whose entries above the diagonal are 0. Beside them the values V, the "
    "results O, O after the change and their difference, which is 0 above the changed word.",
    size=(9, 3),
    controls=[
        Choice("hide", "Hide the future", HIDING),
        Choice("change", "Change", CHANGES, start=3, live=True),
        Entries(
            "becomes",
            "Becomes",
            BECOMES[:0:-3],
            symbol=r"K, \, V",
            rows=["new"],
            columns=["key 1", "key 2", "key 3", "value x", "value y"],
        ),
    ],
    compute=compute,
    views=[
        Matrices(
            [
                Of("weights", "A", words, words, 1, "who looks at whom"),
                Of("value", "V", words, ["x", "y"], 2, "after the change"),
                Of("output", "O", words, ["x", "y"], 2, "before the change"),
                Of("after", r"O_\text{new}", words, ["x", "y"], 2, "after the change"),
                Of("difference", r"\Delta", words, ["x", "y"], 2, "new minus old"),
            ],
            picked="change",
            marked=["weights", "value", "difference"],
        ),
    ],
    code=f"""\
import numpy as np
from lessons.lesson_07.mask import attention

# For each word a query (3), a key (3) and a value (2).
words = np.array({rows}, float)
causal = np.tri(5, dtype=bool)
hide = 0
change = 0
becomes = 0

query, key, value = np.split(words, [3, 6], axis=1)
output, _ = attention(query, key, value, *hide)
key, value = np.where(change, becomes[:, :3], key), np.where(change, becomes[:, 3:], value)
after, weights = attention(query, key, value, *hide)
difference = after - output
print(weights.round(2), difference.round(2), sep="\\n\\n")""",
)
