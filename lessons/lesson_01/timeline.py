"""The simulation of what can be computed at once, and what has to wait."""

import numpy as np

from lessons.kit.simulation import Choice, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures

LAYERS, WORDS = (1, 2, 4), (4, 8, 16, 24)
TURNS = range(0, 57, 2)
STAGES = 4  # matrix products of self-attention, one after the other


def compute(layers, words) -> dict[str, np.ndarray]:
    """A row (word, begin, end) for the work on each word in each layer, forward and backward.

    A recurrent step waits for the one before it and for its word in the layer below; a word's
    self-attention waits for all words of the layer below. Backward is the same in reverse.
    """
    layer, word = (place.ravel() for place in np.mgrid[:layers, :words])
    made = {}
    for name, begins, length in ("rnn", layer + word, 1), ("attention", STAGES * layer, STAGES):
        whole = 2 * (begins.max() + length)
        ends = begins + length
        made |= {
            f"{name}_forward": np.stack([word, begins, ends], axis=1),
            f"{name}_backward": np.stack([word, whole - ends, whole - begins], axis=1),
            f"{name}_chain": whole,
            f"{name}_at_once": np.unique(begins, return_counts=True)[1].max(),
        }
    return made


def chart(name: str, title: str) -> Chart:
    drawn = [Drawn(f"{name}_{way}", f"{title}, {way}", "work") for way in ("forward", "backward")]
    rows = [str(n + 1) if n % 4 == 3 or n == 0 else "" for n in range(WORDS[-1])]
    return Chart(
        drawn,
        Axis("turns", 0, TURNS[-1]),
        Axis("word", len(rows), 0, names=rows),
        marker="turn",
        at=TURNS,
    )


timeline = Simulation(
    name="timeline",
    title="Who waits for whom?",
    say="Press **Play**. A bar is the work for one word in one layer. It begins as soon as its "
    "input is ready, because there are always enough workers. Then double the words. Which of the "
    "two takes longer now?",
    caption="Top: the recurrent network. Bottom: self-attention. Each row is a word. Time runs to "
    "the right.",
    alt="Two timelines with a row for each word. In the recurrent network the bars form a "
    "staircase, one word after the other, down and up again. In self-attention the bars of all "
    "words begin and end together, layer after layer.",
    size=(7.6, 7.0),
    controls=[
        Choice("layers", "Layers", LAYERS, 1),
        Choice("words", "Words", WORDS, 2),
        Slider("turn", "Time, in turns", TURNS, 28, shows_only=True, plays=True),
    ],
    compute=compute,
    views=[
        chart("rnn", "recurrent"),
        chart("attention", "self-attention"),
        Figures(
            {
                "rnn_chain": "turns, recurrent",
                "attention_chain": "turns, self-attention",
                "rnn_at_once": "bars at once, recurrent",
                "attention_at_once": "bars at once, self-attention",
            }
        ),
    ],
    code="""\
from lessons.lesson_01.timeline import compute

layers = 2
words = 16
found = compute(layers, words)
rnn_chain, attention_chain = found["rnn_chain"], found["attention_chain"]
print(rnn_chain, attention_chain)""",
)
