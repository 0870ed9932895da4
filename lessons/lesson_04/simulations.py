"""Two simulations on the trained model: what its heads look at, and what is left without some."""

import functools

import numpy as np

from lessons.lesson_04.reverse import (
    ATTENTIONS,
    HEADS,
    PLACES,
    RULE,
    TESTED,
    attentions,
    batch_of,
    pruned,
    shares,
    trained,
    without,
)
from lessons.simulation import Choice, Option, Simulation, Thumbnails
from lessons.views import Axis, Chart, Drawn, Figures, Heatmap
from numformer.plots import attention_weights

WORDS = ["backward", "banana", "cat"]
SYMBOLS = ["", "⊢", "⊣", "", *RULE.symbols]  # by their ids
SAID = sorted({place for places in PLACES.values() for place in places})


@functools.cache
def looked(word: str):
    """-> the word's ids, what is read as it is written, and the weights of all attentions."""
    model, task = trained()
    batch = batch_of(task, [word])
    return batch, attention_weights(model, batch.source, batch.target_in)


def look(attention: str, word: str, head: int) -> dict[str, np.ndarray]:
    """One head's weights for a word, and what it looks at most over many words."""
    batch, weights = looked(word)
    read, written = batch.source[0], batch.target_out[0]
    of_places = dict(shares()[attention])
    even = of_places.pop("even")[head]
    place = max(of_places, key=lambda name: of_places[name][head])
    return {
        "weights": weights[f"{ATTENTIONS[attention]}.attention"][0, head],
        "rows": written if "decoder" in attention else read,
        "columns": batch.target_in[0] if attention.startswith("decoder,") else read,
        "place": SAID.index(place), "share": of_places[place][head], "even": even,
    }  # fmt: skip


heads = Simulation(
    name="heads",
    title="Every head of a trained model",
    say="Choose an attention, then a head: the small pictures are its four heads, and the one you "
    "choose is shown large. A row is a position that looks, a column a symbol that it looks at; "
    "⊢ and ⊣ are the marks of start and end. **Ask first:** to write *backward* backwards, where "
    "should the decoder look? Then find the heads that do. And do two heads of one attention "
    "ever look alike?",
    caption="The weights of one head.",
    alt="A heatmap of attention weights. Its rows are letters to be written and its columns the "
    "letters of the word; the dark cells run from the upper right to the lower left.",
    controls=[
        Choice("attention", "Attention", [*ATTENTIONS], start=5),
        Choice("word", "Word", WORDS),
        Thumbnails("head", "Head", [Option(h, f"head {h + 1}") for h in range(HEADS)],
                   of="weights"),
    ],
    compute=look,
    views=[
        Heatmap("weights", "looks", "at", row_names="rows", column_names="columns",
                vocabulary=SYMBOLS),
        Figures({"place": f"On {TESTED} unseen words it looks most at",
                 "share": "Share of its weight there", "even": "Equal weights would give"},
                spelled=["place"], vocabulary=SAID),
    ],
    code="""\
from lessons.lesson_04.reverse import ATTENTIONS, batch_of, trained
from numformer.plots import attention_weights

attention = 'encoder, layer 1'
word = 'backward'
head = 0
model, task = trained()
batch = batch_of(task, [word])
of_all = attention_weights(model, batch.source, batch.target_in)
weights = of_all[f"{ATTENTIONS[attention]}.attention"][0, head]
print(weights.round(2))""",
)  # fmt: skip


@functools.cache
def written(attention: str, removed: tuple[int, ...]) -> np.ndarray:
    """The ids that the model writes for the first of WORDS without these heads."""
    model, task = trained()
    with without(attentions(model)[attention], removed):
        (found,) = task.written(model, WORDS[:1])
    return np.array([SYMBOLS.index(symbol) for symbol in found])


def left(attention: str, **of_heads: bool) -> dict[str, np.ndarray]:
    """What is left without the heads of an attention that are True."""
    removed = tuple(head for head, name in enumerate(NAMES) if of_heads[name])
    found = pruned()[attention]
    return {
        "choices": np.array([(len(each), exact) for each, exact in found.items()]),
        "here": np.array([(len(removed), found[removed])]),
        "exact": found[removed],
        "written": written(attention, removed),
    }


NAMES = ["one", "two", "three", "four"]
GONE = [Option(False, "there"), Option(True, "removed")]
pruning = Simulation(
    name="pruning",
    title="Remove heads and watch",
    say="Choose an attention and remove heads, one by one and together. Each dot is one of the 16 "
    "ways to remove heads of this attention. **Ask first:** the four heads of *decoder to word, "
    "layer 2* look alike. So will one of them be enough?",
    caption="Exact match against the number of heads removed from one attention.",
    alt="Dots for all 16 choices of heads to remove from one attention: exact match against how "
    "many are removed. It begins near 1, and falls to 0 where all four are gone.",
    controls=[
        Choice("attention", "Attention", [*ATTENTIONS], start=5),
        *(Choice(name, f"Head {n}", GONE) for n, name in enumerate(NAMES, 1)),
    ],
    compute=left,
    views=[
        Chart([Drawn("choices", "all choices", "dots"), Drawn("here", "this one", "dots")],
              Axis("heads removed", -0.3, 4.3), Axis("words without a mistake", -0.03, 1.03)),
        Figures({"exact": "Words without a mistake", "written": f"Writes for “{WORDS[0]}”"},
                spelled=["written"], vocabulary=SYMBOLS),
    ],
    code="""\
from lessons.lesson_04.reverse import attentions, exact_match, tested, trained, without

attention = 'encoder, layer 1'
one = False
two = False
three = False
four = False
removed = [head for head, gone in enumerate([one, two, three, four]) if gone]
model, task = trained()
with without(attentions(model)[attention], removed):
    exact = exact_match(model, tested())
print(exact)""",
)  # fmt: skip
