"""The second simulation of lesson 10: the tree of a beam, as the library's lines grew it."""

import functools

import numpy as np

from lessons.kit.models import measured
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Figures
from lessons.lesson_10.measured import ALPHAS, TREES, WIDTHS
from lessons.lesson_10.views import BEST, DROPPED, OPEN, Tree
from numformer.generation import length_penalty

GROWN = [measured(10)["trees"][sentence][f"{w}"] for sentence in TREES for w in WIDTHS]
STEPS = max(len(tree["steps"]) for tree in GROWN)
WORDS = [*dict.fromkeys(w for tree in GROWN for step in tree["steps"] for w in step["words"])]
WORDS += ["none yet"]


@functools.cache
def grow(sentence: str, beam: int, alpha: float, step: int) -> dict[str, np.ndarray]:
    """The tree after `step` steps: what each place of each row holds, and the best end so far."""
    tree = measured(10)["trees"][sentence][f"{beam}"]
    end = min(step, tree["stops"][ALPHAS.index(alpha)])
    shape = STEPS, max(WIDTHS)
    words, log_p, parents, ends, state = np.zeros((5, *shape))
    best, place = -np.inf, None
    for row, grown in enumerate(tree["steps"][:end]):
        words[row, :beam] = [*map(WORDS.index, grown["words"])]
        log_p[row, :beam], parents[row, :beam] = grown["log_p"], grown["parents"]
        state[row, :beam] = DROPPED
        for parent, ended in grown["ended"]:
            score = ended / length_penalty(row + 1, alpha)
            ends[row - 1, parent] = score
            if score > best:
                best, place, sure = score, (row - 1, parent), ended
    state[end - 1, :beam] = OPEN
    for row, column in [*np.argwhere(ends), *((end - 1, column) for column in range(beam))]:
        mark(state, parents, row, column, OPEN)
    line = mark(state, parents, *place, BEST) if place else []
    written = [words[at] for at in line[::-1]] or [len(WORDS) - 1]
    lost = {"score": best, "sum": sure} if place else {"score": 0.0, "sum": 0.0}
    arrays = dict(words=words, log_p=log_p, parents=parents, ends=ends, state=state)
    return arrays | {"best": np.array(written), **lost, "steps": np.array(end)}


def mark(state, parents, row, column, kind) -> list[tuple[int, int]]:
    """Mark a place and all places that lead to it -> these places, the last one first."""
    line = []
    while row >= 0:
        line.append((int(row), int(column)))
        state[line[-1]] = max(state[line[-1]], kind)
        row, column = row - 1, parents[line[-1]]
    return line


tree = Simulation(
    name="tree",
    title="A beam grows",
    say="Press **Play**. Each column is a step and holds the hypotheses that go on, the best at "
    "the top, each with the logarithm of its probability so far. Where a hypothesis has ended, a ⊣ "
    "and its score stand beside its last word. **Watch** which early leader dies out. Then set the "
    "beam to 1, which is greedy: which word turns out to be a mistake? And what does the penalty "
    "do to the scores?",
    caption="The tree of a beam of 4 after its last step.",
    alt="A tree that grows to the right, four places in a column, each with a word and a "
    "logarithm. Many branches end after a few columns; one leads to the best translation.",
    controls=[
        Choice("sentence", "Sentence", [Option(n, n, f"*{text}*") for n, text in TREES.items()]),
        Choice("beam", "Beam", WIDTHS, start=len(WIDTHS) - 1),
        Choice("alpha", "Length penalty α", ALPHAS, start=ALPHAS.index(0.6)),
        Slider("step", "Steps", range(1, STEPS + 1), start=STEPS - 1, plays=True),
    ],
    compute=grow,
    views=[
        Tree(WORDS, "words", "log_p", "parents", "ends", "state"),
        Figures(
            {
                "best": "Best finished translation",
                "sum": "Its log probability, ⊣ included",
                "score": "Its score: log probability / penalty",
            },
            spelled=["best"],
            vocabulary=WORDS,
        ),
    ],
    code="""\
from lessons.lesson_10.beams import WORDS, grow

sentence = 0
beam = 0
alpha = 0
step = 0
made = grow(sentence, beam, alpha, step)
best, score = made["best"], made["score"]
print(*(WORDS[int(n)] for n in best), score)""",
    size=(7.6, 4.2),
)
