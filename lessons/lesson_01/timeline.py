"""The simulation of what can be computed at once, and what has to wait."""

import numpy as np

from lessons.kit.simulation import Choice, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures

LAYERS, WORDS = (1, 2, 4), (4, 8, 16, 24)
TURNS = range(0, 57, 2)
STAGES = 4  # of self-attention, one after the other


def pieces(kind: str, layers: int, words: int) -> dict[str, np.ndarray]:
    """A piece of work for each word, layer and way: rows of (word, begin, end), by the way.

    A recurrent step waits for the one before it and for its word in the layer below, its backward
    for the same in reverse. A word's self-attention waits for all words of the layer below.
    """
    top, waits = layers - 1, {}
    for way, order in ("forward", 1), ("backward", -1):
        for layer in range(layers)[::order]:
            for word in range(words)[::order]:
                below = range(words) if kind == "attention" else [word]
                waits[way, layer, word] = [(way, layer - order, each) for each in below]
                if kind == "RNN":
                    waits[way, layer, word] += [(way, layer, word - order)]
    for word in range(words):  # the loss stands between
        waits["backward", top, word] += [("forward", top, each) for each in range(words)]
    length, begins = STAGES if kind == "attention" else 1, {}
    for piece, others in waits.items():  # which stand after those that they wait for
        begins[piece] = max((begins[o] + length for o in others if o in begins), default=0)
    return {
        way: np.array(
            [[word, at, at + length] for (each, _, word), at in begins.items() if each == way]
        )
        for way in ("forward", "backward")
    }


def compute(layers, words) -> dict[str, np.ndarray]:
    made = {}
    for kind, name in ("RNN", "rnn"), ("attention", "attention"):
        found = pieces(kind, layers, words)
        work = np.concatenate([*found.values()])
        made |= {f"{name}_{way}": array for way, array in found.items()}
        made[f"{name}_chain"] = work[:, 2].max()
        made[f"{name}_at_once"] = np.unique(work[:, 1], return_counts=True)[1].max()
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
    say="Press **Play**. A bar is the work for one word in one layer. It begins as soon as all "
    "its input is there: there are as many workers as anyone could use. Then double the words. "
    "Which of the two takes longer?",
    caption="Above the recurrent network, below self-attention. A row is a word, the axis is time.",
    alt="Two timelines with a row for each word. In the recurrent network the bars form a "
    "staircase, one word after the other, up and down again. In self-attention all words work at "
    "the same time, layer after layer.",
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
