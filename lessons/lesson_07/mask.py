"""The first simulation of lesson 7: hide the future, or do not, and change a word of it."""

from collections.abc import Sequence

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation
from lessons.kit.views import Heatmap, Matrices, Of
from numformer.layers.attention import scaled_dot_product_attention

# What the decoder reads, for each word a query of three numbers, a key of three and a value of two.
# A query fits the key of the word that comes next. Then the words that may stand in their place.
words = ["⟨s⟩", "her", "cat", "is", "jumping"]
rows = [
    [2, 0, 0, 0, 0, 0, 1, 1],
    [0, 2, 0, 2, 0, 0, 1, -1],
    [0, 0, 2, 0, 2, 0, 2, 1],
    [0, -1, 1, 0, 0, 2, -1, 0],
    [0, 1, 0, 0, -2, 1, 0, -2],
]
other_words = ["⟨s⟩", "the", "dog", "was", "eating"]
others = [
    rows[0],
    [0, 2, 0, 1, 0, 0, 2, -1],
    [0, 0, 1, 1, 1, 1, 2, 2],
    [0, -1, 1, 2, 2, 1, -1, 1],
    [0, 1, 0, 3, 2, 3, 1, -2],
]
NAMES = [*words, *other_words[1:]]


def vectors(change: Sequence[int] = ()) -> list[np.ndarray]:
    """query (5, 3), key (5, 3), value (5, 2), the words at the places `change` exchanged."""
    of_words = np.array(rows, float)
    of_words[[*change]] = np.array(others, float)[[*change]]
    return np.split(of_words, [3, 6], axis=1)


CAUSAL = np.tri(5, dtype=bool)  # query t, key s: s <= t
HIDING = [
    Option(
        (CAUSAL, None),
        "before the softmax",
        "The causal mask, as the paper has it: hidden "
        "scores count as $-\\infty$. Only rows from the changed word on answer.",
        "(causal, None)",
    ),
    Option(
        (None, None),
        "not at all",
        "Every row sees every word, and every row of $O$ changes. "
        "As the words are, each row but the last looks hardest at the next: it cheats.",
        "(None, None)",
    ),
    Option(
        (None, CAUSAL.astype(float)),
        "after the softmax",
        "The hidden weights are set to 0 "
        "when the softmax is done. They look just as hidden. But look at $D$: earlier rows "
        "still know of the changed word.",
        "(None, causal.astype(float))",
    ),
]
CHANGES = [Option([], "nothing", "Which rows of $O$ will answer? Say it, then choose a word.")]
CHANGES += [Option([s], f"{words[s]} → {other_words[s]}") for s in range(1, 5)]


def compute(hide, change) -> dict[str, np.ndarray]:
    """Attention before and after the change, and its weights then."""
    output, *_ = scaled_dot_product_attention(*vectors(), *hide)
    after, _, weights = scaled_dot_product_attention(*vectors(change), *hide)
    names = [s + 4 if [s] == change else s for s in range(5)]
    return dict(
        names=np.array(names),
        weights=weights,
        output=output,
        after=after,
        difference=after - output,
    )


mask = Simulation(
    name="mask",
    title="Hide the future, then change it",
    say="The decoder reads five words at once and is to write the next one at each of them. Choose "
    "how the future is hidden, then **change a word** and look at $D$, what this does to the "
    "results. A row of $D$ before the changed word should be 0, every number of it.",
    caption="Above: the weights of the five words, each a row. Below: the results before and after "
    "a change, and their difference.",
    alt="A heatmap of five rows and columns that is empty above its diagonal. Below it the "
    "matrices O, O after the change and their difference D, which is 0.",
    size=(7.6, 5.2),
    controls=[Choice("hide", "Hide the future", HIDING), Choice("change", "Change", CHANGES)],
    compute=compute,
    views=[
        Heatmap(
            "weights",
            "result of",
            "looks at",
            row_names="names",
            column_names="names",
            vocabulary=NAMES,
            height=1.6,
        ),
        Matrices(
            [
                Of("output", "O", words, ["x", "y"], 2, "as it was"),
                Of("after", r"O_\text{new}", words, ["x", "y"], 2, "after the change"),
                Of("difference", "D", words, ["x", "y"], 2, "new minus old"),
            ]
        ),
    ],
    code=f"""\
import numpy as np
from numformer.layers.attention import scaled_dot_product_attention

# For each word a query (3), a key (3) and a value (2); then the words to change to.
words = np.array({rows}, float)
others = np.array({others}, float)
causal = np.tri(5, dtype=bool)
hide = 0
change = 0

output, *_ = scaled_dot_product_attention(*np.split(words, [3, 6], axis=1), *hide)
words[change] = others[change]
after, _, weights = scaled_dot_product_attention(*np.split(words, [3, 6], axis=1), *hide)
difference = after - output
print(weights.round(2), difference.round(2), sep="\\n\\n")""",
)
