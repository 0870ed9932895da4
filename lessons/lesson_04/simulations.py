"""Two simulations on the trained model: what its heads look at, and what removing them does."""

import itertools

import numpy as np

from lessons import running
from lessons.kit.simulation import Choice, Option, Simulation, Thumbnails
from lessons.kit.views import Axis, Chart, Drawn, Figures, Heatmap
from lessons.lesson_04 import reverse
from lessons.lesson_04.reverse import ATTENTIONS, HEADS, PLACES, RULE, TESTED
from lessons.lesson_11 import small

WORDS = ["backward", "banana", "cat"]
SYMBOLS = ["", "⊢", "⊣", "", *RULE.symbols]  # by their ids
SAID = sorted({place for places in PLACES.values() for place in places})
EVERY = [heads for count in range(HEADS + 1) for heads in itertools.combinations(range(4), count)]


def look(attention: str, word: str, head: int) -> dict[str, np.ndarray]:
    """One head's weights for a word, and the place it looks at most over many words."""
    batch, found = reverse.batch_of([word]), reverse.shares(attention)
    read, written = batch.source[0], batch.target_out[0]
    place = max(found, key=lambda name: found[name][head])
    return {
        "weights": reverse.weights_of(attention, batch)[0, head],
        "rows": read if attention.startswith("reading") else written,
        "columns": batch.target_in[0] if attention.startswith("writing,") else read,
        "place": SAID.index(place),
        "share": found[place][head],
    }


heads = Simulation(
    name="heads",
    title="Look through the heads",
    say="A small model has learned to write words backwards. Each row is a letter to be written, "
    "each column a letter to look at; ⊢ and ⊣ mark start and end. **Where should a head look, and "
    "do all four heads look there?** Then choose another attention.",
    caption="The weights of one head.",
    alt="A heatmap of attention weights. Its rows are letters to be written and its columns the "
    "letters of the word; the dark cells run from the upper right to the lower left.",
    controls=[
        Thumbnails(
            "head", "Head", [Option(h, f"head {h + 1}") for h in range(HEADS)], of="weights"
        ),
        Choice("attention", "Attention", [*ATTENTIONS], start=5),
        Choice("word", "Word", WORDS),
    ],
    compute=look,
    views=[
        Heatmap(
            "weights", "looks", "at", row_names="rows", column_names="columns", vocabulary=SYMBOLS
        ),
        Figures(
            {
                "place": f"On {TESTED} unseen words it looks most at",
                "share": "With this share of its weight",
            },
            spelled=["place"],
            vocabulary=SAID,
        ),
    ],
    code="""\
from lessons.lesson_04.reverse import batch_of, weights_of

attention = 0
word = 0
head = 0
weights = weights_of(attention, batch_of([word]))[0, head]
print(weights.round(2))""",
)


LOOKS = {
    f"{kind}, block {layer + 1}": f"{tower}.layers.{layer}.{part}_attention"
    for kind, tower, part in (
        ("encoder", "encoder", "self"),
        ("decoder", "decoder", "self"),
        ("cross-attention", "decoder", "cross"),
    )
    for layer in range(small.LAYERS)
}
PIECES = sorted({*running.READ, *running.READS, *running.SAYS})


def look_in(attention: str, head: int) -> dict[str, np.ndarray]:
    """One head's weights on the running example."""
    rows = running.READ if attention.startswith("encoder") else running.SAYS
    columns = running.READS if "self" in attention and rows is running.SAYS else running.READ
    return {
        "weights": running.step().weights[attention][head],
        "rows": [*map(PIECES.index, rows)],
        "columns": [*map(PIECES.index, columns)],
    }


running_heads = Simulation(
    name="running-heads",
    title="Every head of the running example",
    say="Each row is a piece that looks: an English piece in the encoder, elsewhere the German "
    "piece to be written. Each column is a piece to look at. **Find a head** of cross-attention "
    "that looks at the word to be translated, and a head of the encoder that looks at the word "
    "before.",
    caption="The weights of one head.",
    alt="A heatmap of attention weights. Its rows are the German pieces to be written, its columns "
    "the English words; in most rows one or two cells are dark.",
    controls=[
        Thumbnails(
            "head", "Head", [Option(h, f"head {h + 1}") for h in range(HEADS)], of="weights"
        ),
        Choice(
            "attention",
            "Attention",
            [Option(name, label) for label, name in LOOKS.items()],
            start=len(LOOKS) - 1,
        ),
    ],
    compute=look_in,
    views=[
        Heatmap(
            "weights", "looks", "at", row_names="rows", column_names="columns", vocabulary=PIECES
        )
    ],
    code="""\
from lessons import running

attention = 0
head = 0
weights = running.step().weights[attention][head]
print(weights.round(2))""",
)


def left(attention: str, **gone: bool) -> dict[str, np.ndarray]:
    """The share of words still right without the heads that are `gone`."""
    removed = tuple(head for head, is_gone in enumerate(gone.values()) if is_gone)
    every = [(len(each), reverse.left_without(attention, each)) for each in EVERY]
    here = every[EVERY.index(removed)]
    return {"every": every, "here": [here], "exact": here[1]}


pruning = Simulation(
    name="pruning",
    title="Remove heads and watch",
    say="Remove heads, one by one and together. Each dot is one of the 16 choices of heads to "
    "remove. **Guess first:** the four heads of *cross-attention, layer 2* look alike. Is one of "
    "them enough?",
    caption="The share of words written without a mistake, against the number of heads removed "
    "from one attention.",
    alt="Dots for all 16 choices of heads to remove from one attention: exact match against how "
    "many are removed. It begins near 1, and falls to 0 where all four are gone.",
    controls=[
        Choice("attention", "Attention", [*ATTENTIONS], start=5),
        *(
            Choice(name, f"Head {number}", [Option(False, "kept"), Option(True, "removed")])
            for number, name in enumerate(("one", "two", "three", "four"), 1)
        ),
    ],
    compute=left,
    views=[
        Chart(
            [Drawn("every", "all choices", "dots"), Drawn("here", "this one", "dots")],
            Axis("heads removed", -0.3, 4.3),
            Axis("words without a mistake", -0.03, 1.03),
        ),
        Figures({"exact": "Words without a mistake"}),
    ],
    code="""\
from lessons.lesson_04.reverse import exact_match, without

attention = 0
one = 0
two = 0
three = 0
four = 0
removed = [head for head, gone in enumerate([one, two, three, four]) if gone]
with without(attention, removed):
    exact = exact_match()
print(exact)""",
)
