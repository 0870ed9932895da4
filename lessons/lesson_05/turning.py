"""The example of lesson 5 and its simulations: orders, sinusoids, and pairs that turn."""

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Clocks, Drawn, Figures, Heatmap, Matrices, Of
from numformer.backend import array_module
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.rotary import rotary, rotary_turns
from numformer.paper.masks import causal_mask
from numformer.paper.positions import sinusoidal_table

words = ["old", "dog", "bites", "man"]
x = np.array(
    [
        [1, 0, 0, 2, 0, 1, 1, 0],
        [2, 1, 1, 0, 1, 0, 0, 1],
        [0, 2, 1, 0, 0, 1, 0, 0],
        [2, 0, 0, 1, 1, 0, 0, 1],
    ],
    dtype=float,
)
ANGLES = 10000.0 ** (-np.arange(0, 8, 2) / 8)  # 1, 0.1, 0.01, 0.001


def attend(words: np.ndarray, positions=lambda x: (x, x, x)) -> tuple[np.ndarray, np.ndarray]:
    """Attention of words (T, D) among themselves -> output (T, D), weights (T, T).

    `positions` turns the words into attention's inputs: queries, keys, values, a mask and so on.
    """
    attention = BiasedAttention()
    return attention.forward(*positions(words)), attention.saved[-1]["weights"]


# Orders

ORDERS = [
    Option(order, " ".join(words[n] for n in order))
    for order in ([0, 1, 2, 3], [0, 3, 2, 1], [1, 2, 0, 3], [3, 2, 0, 1], [2, 1, 3, 0])
]
WAYS = [  # from the words to attention's inputs: queries, keys, values, a mask and so on
    Option(lambda x: (x, x, x), "none", "", "lambda x: (x, x, x)"),
    Option(
        lambda x: 3 * [x + sinusoidal_table(4, 8)],
        "sinusoids",
        "A vector for each place is added to the word that stands there.",
        "lambda x: 3 * [x + sinusoidal_table(4, 8)]",
    ),
    Option(
        lambda x: 2 * [rotary(x, rotary_turns(4, 8))] + [x],
        "rotary",
        "Queries and keys are turned, each by its place.",
        "lambda x: 2 * [rotary(x, rotary_turns(4, 8))] + [x]",
    ),
    Option(
        lambda x: (x, x, x, None, ALiBi(8).forward(np.arange(4), np.arange(4), x)[0]),
        "ALiBi",
        "Half of the distance is subtracted from each score.",
        "lambda x: (x, x, x, None, ALiBi(8).forward(np.arange(4), np.arange(4), x)[0])",
    ),
    Option(
        lambda x: (x, x, x, causal_mask(4)[0, 0]),
        "only a causal mask",
        "A word sees itself and those before it.",
        "lambda x: (x, x, x, causal_mask(4)[0, 0])",
    ),
]


def reordered(order, positions) -> dict[str, np.ndarray]:
    """Weights for the first order and for `order`, the latter also with the words sorted back."""
    (first, before), (output, after) = attend(x, positions), attend(x[order], positions)
    back = np.argsort(order)
    return dict(
        sentence=order,
        before=before,
        after=after,
        sorted_back=after[np.ix_(back, back)],
        largest=np.abs(output[back] - first).max(),
    )


orders = Simulation(
    name="orders",
    title="The same words in another order",
    say="Choose another order. The second matrix has the weights for that order; the third has the "
    "same weights, with the words sorted back. **Without positions, does it differ from the "
    "first?** Then give the model positions.",
    caption="Weights for the first order, for another order, and for that order sorted back.",
    alt="Three matrices of weights, 4 by 4: one for the sentence old dog bites man, one for "
    "another order, and the second again with its rows and columns sorted back.",
    size=(7.6, 3.2),
    controls=[Choice("order", "Order", ORDERS, start=1), Choice("positions", "Positions", WAYS)],
    compute=reordered,
    views=[
        Figures(
            {"sentence": "The model reads", "largest": "Largest change in a word's output"},
            ["sentence"],
            words,
        ),
        Matrices(
            [
                Of("before", "A", words, words, 1, "old dog bites man"),
                Of("after", "A'", range(4), range(4), 1, "by places"),
                Of("sorted_back", r"P^\top A' P", words, words, 1, "sorted back"),
            ],
            ["after", "sorted_back"],
        ),
    ],
    code=f"""\
import numpy as np
from numformer.later.attention.alibi import ALiBi
from numformer.later.attention.biased_attention import BiasedAttention
from numformer.later.attention.rotary import rotary, rotary_turns
from numformer.paper.masks import causal_mask
from numformer.paper.positions import sinusoidal_table

x = np.array({x.astype(int).tolist()}, float)
order = [0, 3, 2, 1]
positions = 0

attention = BiasedAttention()
first = attention.forward(*positions(x))
output = attention.forward(*positions(x[order]))
before, after = (record["weights"] for record in attention.saved)
back = np.argsort(order)
sorted_back = after[np.ix_(back, back)]
largest = abs(output[back] - first).max()
print(sorted_back.round(2), largest)""",
)


# Sinusoids

ROWS = 40


def likeness(width, every, picked) -> dict[str, np.ndarray]:
    """PE at 40 places, `every` apart, and how alike each of them and the picked one are."""
    is_picked = np.where(np.arange(ROWS) == picked, 1.0, 0.0)
    table = sinusoidal_table(every * ROWS, width, array_module(is_picked))[::every]
    return {"table": table, "alike": table @ (is_picked @ table) / (width / 2)}


sinusoids = Simulation(
    name="sinusoids",
    title="The places and their vectors",
    say="A row is a place, a column a dimension. **Which columns change fastest from row to row?** "
    "Choose every tenth place: now the columns further right change, too. The curve shows how much "
    "each place is like the picked one. Move the picked row: what happens to the curve's shape?",
    caption="Above, a row for each place and a column for each dimension: −1 is white, 1 is dark. "
    "Below, the likeness of every place to the picked one.",
    alt="A heatmap of sinusoids for 40 places: columns at the left change fast from row to row, "
    "those at the right hardly at all. Below it the likeness to the picked place, a peak of "
    "height 1 there and lower waves on both sides.",
    size=(6, 6.4),
    controls=[
        Slider("width", "Width D", [8, 16, 32, 64, 128], start=3),
        Choice("every", "A row is", [Option(1, "every place"), Option(10, "every tenth place")]),
        Slider("picked", "Picked row", range(ROWS), start=20, plays=True, live=True),
        Slider("other", "Compared with row", range(ROWS), start=23, shows_only=True),
    ],
    compute=likeness,
    views=[
        Heatmap("table", "row", "dimension", -1, 1, row="picked"),
        Chart(
            [Drawn("alike", "likeness to the picked row", at=range(ROWS))],
            Axis("row", 0, ROWS - 1),
            Axis("likeness", -1, 1.1),
            marker="other",
            at=range(ROWS),
        ),
    ],
    code=f"""\
from numformer.paper.positions import sinusoidal_table

width = 32
every = 1
picked = 20

table = sinusoidal_table(every * {ROWS}, width)[::every]
alike = table @ table[picked] / (width / 2)
print(table.round(2), alike.round(2))""",
)


# Two vectors, turned by their places; each pair of their numbers is the hand of a clock

LAST = 48


def turned(what, place, k) -> dict[str, np.ndarray]:
    """PE at two places, or the query of `dog` and the key of `man`, turned by those places."""
    places, (_, dog, _, man) = [place + k, place], x
    if what == "sinusoids":
        both = sinusoidal_table(LAST + 1, 8)[places]
    else:
        both = rotary(np.stack([dog, man]), rotary_turns(LAST + 1, 8)[places])
    later, earlier = both.reshape(2, 4, 2)
    scores = (later * earlier).sum(axis=1)
    reach = np.where(what == "sinusoids", 1.0, 2.4)
    return dict(earlier=earlier, later=later, scores=scores, total=scores.sum(), reach=reach)


turning = Simulation(
    name="turning",
    title="Clocks that tell the place",
    say="Press **Play** to walk along a sentence: each place shows its own times. **Which clock "
    "tells neighbours apart, and which tells far places apart?** Then move $p$ and $k$: which of "
    "them changes the numbers below?",
    caption="Four pairs of numbers as the hands of clocks, at a place and at a later one. Below "
    "each clock is the dot product of its two hands.",
    alt="Four clock faces with two hands each. On the first the two hands point in different "
    "directions; on the others they nearly coincide, most of all on the last.",
    size=(7.6, 3),
    controls=[
        Slider("place", "Place p", range(37), plays=True),
        Slider("k", "Distance k", range(13), start=1),
        Choice(
            "what",
            "The hands are",
            [
                Option(
                    "sinusoids",
                    "sinusoids, added to a word",
                    "All hands begin at twelve and turn clockwise.",
                ),
                Option(
                    "rotary",
                    "a query and a key (rotary)",
                    "Each clock has two numbers of *dog* and of *man*. They turn counterclockwise.",
                ),
            ],
        ),
    ],
    compute=turned,
    views=[
        Clocks(
            {"earlier": "at place p (rotary: the key)", "later": "at p + k (rotary: the query)"},
            [f"{angle:g} per place" for angle in ANGLES],
            "scores",
            "reach",
        ),
        Figures({"total": "The sum of the four dot products"}),
    ],
    code=f"""\
import numpy as np
from numformer.later.attention.rotary import rotary, rotary_turns
from numformer.paper.positions import sinusoidal_table

what = 0
place = 0
k = 1

if what == "sinusoids":
    both = sinusoidal_table({LAST + 1}, 8)[[place + k, place]]
else:  # the query of dog, the key of man
    both = np.array({x[[1, 3]].astype(int).tolist()}, float)
    both = rotary(both, rotary_turns({LAST + 1}, 8)[[place + k, place]])
later, earlier = both.reshape(2, 4, 2)
scores = (later * earlier).sum(axis=1)
print(scores, scores.sum())""",
)
