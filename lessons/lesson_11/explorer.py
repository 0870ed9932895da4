"""The figure of lesson 11: every head of two models, on sentences of the reader's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lessons.kit import models
from lessons.kit.simulation import Option, Simulation, Slider
from lessons.kit.stepper import Steps
from lessons.kit.views import View
from lessons.lesson_11 import small
from lessons.lesson_11.small import HEADS, KINDS, LAYERS, LENGTH
from numformer.data.vocabulary import END, START

SENTENCES = """\
a woman is dancing with a bear .
two children in red jackets play with a ball .
a woman with a big hat sells fruit at the market .
three men are sitting on a bench in front of a house .
the young man jumps into the water .
a girl in a blue dress reads a book under a tree .
people are waiting for the train .
an old man plays the guitar while a dog sleeps .
a boy throws a stone , and his sister laughs .
the black cat and the white dog look at the camera .""".splitlines()
WORDS = "window", "banana", "noon"
TEMPERATURES = 0.25, 0.5, 1.0, 2.0, 4.0
HEADS_IN_ALL = [
    (kind, layer, head) for kind in KINDS for layer in range(LAYERS) for head in range(HEADS)
]
TITLES = {"encoder": "Reading", "decoder": "Writing", "cross": "Cross-attention"}
SEEN = 0.02  # a weight below this has no line


@dataclass(frozen=True)
class Text:
    """A text: which model reads it, its words, and its ids without the end mark."""

    model: str
    words: str
    ids: Sequence[int]


def texts() -> list[Text]:
    ids = models.measured(11)["sentences"]
    letters = small.symbols("reverse").index
    return [
        *(Text("translator", words, ids[words]) for words in SENTENCES),
        *(Text("reverse", word, [*map(letters, word)]) for word in WORDS),
    ]


def role(found: Mapping) -> str:
    """The place that a head prefers, in words: its score beside the shuffled baseline."""
    best = max(found, key=lambda name: found[name][0] - found[name][1])
    score, shuffled = found[best]
    return f"Measured: {score:.2f} of its weight on {best} (shuffled {shuffled:.2f})"


def notes(name: str) -> list[str]:
    """The measured preference of every head of a model."""
    return [role(found) for found in models.measured(11)["roles"][name]]


def percent(weights: np.ndarray) -> np.ndarray:
    return np.floor(100 * weights + 0.5).astype(int)


@dataclass(frozen=True)
class Explorer(View):
    """All heads of a model small, one large: who looks at whom in the chosen sentence."""

    head: str
    query: str
    kind: ClassVar = "explorer"
    height: float = 4.0

    def more(self, page) -> dict:
        page.script("explorer")
        return {
            "models": {name: small.recordings(name) for name in small.CONFIGS},
            "texts": [vars(text) for text in texts()],
            "heads": HEADS_IN_ALL,
            "titles": TITLES,
            "temperatures": TEMPERATURES,
            "notes": {name: notes(name) for name in small.CONFIGS},
            "length": LENGTH,
            "seen": SEEN,
        }

    def looked(self, arrays, chosen) -> tuple[Text, list[int], dict[str, np.ndarray]]:
        """The text that is read, the ids that are written, and all weights."""
        text = texts()[chosen["sentence"]]
        target = [int(n) for n in arrays["written"] if n]
        temperature = TEMPERATURES[chosen["temperature"]]
        return text, target, small.attention(text.model, (*text.ids,), (*target,), temperature)

    def sides(self, text: Text, target: Sequence[int], kind: str) -> list[list[str]]:
        """The words that look, and the words that are looked at."""
        symbols = small.symbols(text.model)
        read, wrote = ([spelled(symbols[n]) for n in ids] for ids in ([*text.ids, END], target))
        return {
            "encoder": [read, read],
            "decoder": [wrote, [spelled(symbols[START]), *wrote[:-1]]],
            "cross": [wrote, read],
        }[kind]

    def draw(self, figure, arrays, chosen):
        text, target, weights = self.looked(arrays, chosen)
        kind, layer, head = HEADS_IN_ALL[chosen[self.head]]
        axes, (rows, columns) = figure.subplots(), self.sides(text, target, kind)
        axes.imshow(weights[kind][layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.set_xticks(range(len(columns)), columns, fontsize=8, rotation=60)
        axes.set_title(f"{TITLES[kind]}, layer {layer + 1}, head {head + 1}", fontsize=9)

    def shown(self, arrays, chosen):
        text, target, weights = self.looked(arrays, chosen)
        kind, layer, head = HEADS_IN_ALL[chosen[self.head]]
        rows, columns = self.sides(text, target, kind)
        query, own = min(chosen[self.query], len(rows) - 1), weights[kind][layer, head]
        levels = [np.floor(255 * weights[k][n, h] + 0.5).sum() for k, n, h in HEADS_IN_ALL]
        return {
            "left": rows,
            "right": columns,
            "query": query,
            "percents": percent(own[query]).tolist(),
            "lines": int((own >= SEEN).sum()),
            "levels": np.array(levels).astype(int).tolist(),
            "written": small_text(text.model, target),
            "note": notes(text.model)[chosen[self.head]],
        }


def spelled(symbol: str) -> str:
    """A symbol as a page shows it: words and pieces without the space before them."""
    return {"<start>": "⟨s⟩", "<end>": "⟨end⟩"}.get(symbol, symbol.replace("▁", "") or "␣")


def small_text(name: str, ids: Sequence[int]) -> str:
    """The text of the written ids, without the end mark."""
    said = "".join(small.symbols(name)[n] for n in ids if n != END)
    return said.replace("▁", " ").strip()


def compute(sentence: int, temperature: float) -> dict:
    """The ids that the model writes, padded."""
    text = texts()[sentence]
    return {"written": small.padded(small.written(text.model, (*text.ids,), temperature))}


def simulation() -> Simulation:
    heads = [
        Option(n, f"{TITLES[kind]}, layer {layer + 1}, head {head + 1}")
        for n, (kind, layer, head) in enumerate(HEADS_IN_ALL)
    ]
    positions = [Option(n, f"word {n + 1}") for n in range(LENGTH)]
    options = [Option(n, text.words) for n, text in enumerate(texts())]
    return Simulation(
        "explorer",
        alt="The attention of one head of a trained translator as a map: a row for each word that "
        "looks, a column for each word that is looked at, dark where the weight is large.",
        caption="One head of the translator. The page shows all 36, on sentences of your own.",
        title="What does each head look at?",
        say="This page runs two Transformers: one translates captions of pictures from English "
        "into German, one writes words backwards. All 36 heads of a model are shown small; open "
        "one and follow its lines from the word that looks to the words that it looks at. **Find a "
        "head that knows which word is being translated.** Then type a sentence of your own: does "
        "the head still know?",
        controls=[
            Slider("sentence", "Sentence", options, start=0),
            Slider("query", "The word that looks", positions, start=2, shows_only=True),
            Slider(
                "temperature",
                "Temperature: scores are divided by it",
                [Option(t) for t in TEMPERATURES],
                start=2,
            ),
            Steps("head", "Head", heads, start=FIRST, shows_only=True),
        ],
        compute=compute,
        views=[Explorer("head", "query")],
        code=CODE,
        size=(6.4, 5.0),
    )


FIRST = HEADS_IN_ALL.index(("cross", 1, 3))
CODE = """\
from lessons.lesson_11 import explorer, small

sentence = 0
temperature = 1.0
text = explorer.texts()[sentence]
ids = small.written(text.model, (*text.ids,), temperature)
written = small.padded(ids)
weights = small.attention(text.model, (*text.ids,), ids, temperature)
print(explorer.small_text(text.model, ids), weights["cross"].shape)"""
