"""Two views of lesson 10: the bars of a choice, and the tree of a beam (their page: chosen.js)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lessons.kit.lesson import BLUE, GREEN, GREY, written
from lessons.kit.views import View, tenth


@dataclass(frozen=True)
class Bars(View):
    """Bars of what may be drawn, with the latest draw; above, all side by side from 0 to 1.

    Arrays: `names` (N,) indices of words in `vocabulary`; `before` (N,) the hollow bars and `after`
    (N,) the full ones; `counts` (N,) how often each was drawn; `latest` () which one last; `number`
    () the place of that draw from 0 to 1. A button sets the control `again` to its next option.
    """

    vocabulary: Sequence[str]
    names: str
    before: str
    after: str
    counts: str
    latest: str
    number: str
    again: str
    height: float = 3.0
    kind: ClassVar = "bars"

    def more(self, page) -> dict:
        page.script("chosen")
        return {}

    def draw(self, figure, arrays, chosen):
        axes, rows = figure.subplots(), np.arange(len(arrays[self.names]))
        style = dict(facecolor="none", edgecolor=GREY, linestyle="--")
        axes.barh(rows, arrays[self.before], 0.7, **style, label="before the cut")
        axes.barh(rows, arrays[self.after], 0.7, color=BLUE, label="after the cut")
        axes.set_yticks(rows, self.shown(arrays, chosen)["names"])
        axes.invert_yaxis()
        axes.set(xlabel="probability", xlim=(0, 1))
        axes.legend(fontsize=8)

    def shown(self, arrays, chosen):
        def wide(values):
            return tenth(100 * np.atleast_1d(values)).tolist()

        return {
            "names": [self.vocabulary[int(n)] for n in arrays[self.names]],
            "before": wide(arrays[self.before]),
            "after": wide(arrays[self.after]),
            "texts": [written(p, whole=False) for p in arrays[self.after]],
            "counts": [int(count) for count in arrays[self.counts]],
            "latest": int(arrays[self.latest]),
            "line": wide(arrays[self.after]),
            "number": wide(arrays[self.number])[0],
        }


GONE, DROPPED, OPEN, BEST = 0, 1, 2, 3


@dataclass(frozen=True)
class Tree(View):
    """The hypotheses of a beam, a column for each step, the best at the top.

    Arrays (T, W): `words` (indices in `vocabulary`), `log_p`, `parents` (places in the step
    before), `ends` (the score of a hypothesis that ends there, or 0). `state` is 0 at an empty
    place, 1 at a word that led no further, 2 on the way to a hypothesis that is open or has ended,
    3 on the way to the best so far.
    """

    vocabulary: Sequence[str]
    words: str
    log_p: str
    parents: str
    ends: str
    state: str
    height: float = 3.0
    kind: ClassVar = "tree"

    def more(self, page) -> dict:
        page.script("chosen")
        return {}

    def draw(self, figure, arrays, chosen):
        axes, state = figure.add_axes((0, 0, 1, 1)), arrays[self.state]
        colours = {DROPPED: GREY, OPEN: BLUE, BEST: GREEN}
        for (step, place), kind in np.ndenumerate(state):
            if kind == GONE:
                continue
            if step:
                before = step - 1, arrays[self.parents][step, place]
                axes.plot(*zip(before, (step, place), strict=True), color=colours[kind], zorder=0)
            text = "\n".join(self.texts(arrays)[step][place].rsplit(" ", 1))
            box = dict(boxstyle="round", facecolor="white", edgecolor=colours[kind])
            axes.text(step, place, text, ha="center", va="center", fontsize=7, bbox=box)
        axes.set_xlim(-0.6, len(state) - 0.4)
        axes.set_ylim(state.shape[1] - 0.4, -0.6)
        axes.axis("off")

    def texts(self, arrays) -> list[list[str]]:
        """The text at each place."""

        def text(row, column):
            if arrays[self.state][row, column] == GONE:
                return ""
            end = arrays[self.ends][row, column]
            word = self.vocabulary[int(arrays[self.words][row, column])]
            word += f" ⊣ {written(end, whole=False)}" if end else ""
            return f"{word} {written(arrays[self.log_p][row, column], whole=False)}"

        rows, columns = arrays[self.state].shape
        return [[text(row, column) for column in range(columns)] for row in range(rows)]

    def shown(self, arrays, chosen):
        state = arrays[self.state]
        there = np.argwhere(state > GONE)
        edges = [(int(arrays[self.parents][row, n]), int(row), int(n)) for row, n in there if row]
        return {"texts": self.texts(arrays), "state": state.astype(int).tolist(), "edges": edges}
