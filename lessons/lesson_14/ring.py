"""The first simulation of lesson 14: machines sum their gradients, in a ring or on one of them."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from matplotlib.patches import Rectangle

from lessons.kit.lesson import BLUE, BROWN, GREEN, GREY, OCHRE, ORANGE
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Figures, View
from lessons.kit.views import figure as figure_of
from lessons.lesson_14.all_reduce import ring_all_reduce
from lessons.lesson_14.wires import GIGABIT, NUMBER, PARAMETERS
from numformer.execution.ranks import run_ranks
from numformer.paper.linear import linear_backward

MOST = 6
MEGABYTES = NUMBER * PARAMETERS["base"] / 1e6
# Each machine has an example of its own. An example has one input for each machine, and each input
# has one weight.
ROWS = "314212 122341 132426 214312 152342 421123"
EXAMPLES = np.array([[*row] for row in ROWS.split()], float)
ERRORS = np.array([2.0, 3, 1, 2, 1, 2])  # dy: what each machine's prediction is off by


def gradients(machines: int) -> np.ndarray:
    """(R, R): the gradient of each machine's example, with one weight in each chunk."""
    found = []
    for x, dy in zip(EXAMPLES[:machines, :machines], ERRORS, strict=False):
        _, dweight, _ = linear_backward(dy[None, None], x[None], np.ones((machines, 1)))
        found.append(dweight[:, 0])
    return np.array(found)


@functools.cache
def around(machines: int) -> list[tuple[int, int, int]]:
    """Which rank sends which chunk when, as the library does it: (step, rank, chunk)."""
    sent: list[tuple[int, int, int]] = []

    def work(ranks):
        def watch(step, sent_chunk, received_chunk):
            sent.append((step, ranks.rank, sent_chunk))

        ring_all_reduce(ranks, gradients(machines)[ranks.rank], watch)

    run_ranks(machines, work)
    return sorted(sent)


def messages(machines: int, way: str) -> list[list[tuple[int, int, int]]]:
    """For each step the messages (from, to, chunk); chunk R is the whole gradient."""
    if way == "one":
        come = [[(r, 0, machines)] for r in range(1, machines)]
        return come + [[(0, r, machines)] for r in range(1, machines)]
    steps: list[list[tuple[int, int, int]]] = [[] for _ in range(2 * (machines - 1))]
    for step, r, chunk in around(machines):
        steps[step].append((r, (r + 1) % machines, chunk))
    return steps


NAMES = "abcdef"
NOW = ["nothing is sent yet", "shares are added up", "sums are handed round", "all have the sum"]


def compute(step=0, machines=4, way="ring") -> dict[str, np.ndarray]:
    """What machines hold after `step` steps, whose shares are in it, and what was sent last."""
    values, whose = gradients(machines), np.zeros((machines, machines, machines), int)
    whose[np.arange(machines), :, np.arange(machines)] = 1
    steps = messages(machines, way)
    changed, moves = np.zeros((machines, machines), int), np.zeros((0, 3 + 1 + MOST))
    for number, sent in enumerate(steps[:step]):
        adding, before, moves, changed = number < len(steps) // 2, values.copy(), [], 0 * changed
        shares = whose.copy()
        for source, to, chunk in sent:
            at = slice(None) if chunk == machines else chunk
            come = before[source, at]
            values[to, at] = before[to, at] + come if adding else come
            whose[to, at] = whose[to, at] + shares[source, at] if adding else shares[source, at]
            changed[to, at] = 1
            stripes = np.zeros(MOST)
            stripes[:machines] = np.atleast_2d(shares[source, at]).max(axis=0)
            moves.append([source, to, chunk, np.atleast_1d(come)[0], *stripes])
        moves = np.array(moves, float)
    done, share = min(step, len(steps)), 1 if way == "one" else 1 / machines
    if step > len(steps):
        changed, moves = 0 * changed, moves[:0]
    now = 0 if not done else 3 if done == len(steps) else 1 + (done > len(steps) // 2)
    progress = dict(now=now, finished=(whose.sum(axis=2) == machines).sum(), times=done * share)
    progress["seconds"] = done * share * MEGABYTES * 1e6 / (10 * GIGABIT)
    progress["megabytes"] = sum(map(len, steps[:done])) * share * MEGABYTES
    return dict(values=values, whose=whose, changed=changed, moves=moves) | progress


# Where the machines stand: some in a row above, the others below, in the opposite direction.
ACROSS, DOWN = {1: [0], 2: [-75, 75], 3: [-140, 0, 140]}, 78
PLACES = {
    machines: [(x, -DOWN * (below > 0)) for x in ACROSS[machines - below]]
    + [(x, DOWN) for x in ACROSS.get(below, [])[::-1]]
    for machines, below in {2: 0, 3: 1, 4: 2, 5: 2, 6: 3}.items()
}
COLOURS = BLUE, ORANGE, GREEN, BROWN, OCHRE, GREY
WIDE, HIGH, TITLE = 80, 102, 18
BOX = -182, -132, 364, 264  # left, top, width and height of all


@dataclass(frozen=True)
class Ring(View):
    """Machines in a ring, the chunks of each, and the messages of the last step (ring.js).

    Arrays: `values` (R, R) by machine and chunk; `shares` (R, R, R), 1 where the chunk has the
    share of the machine of the last axis; `changed` (R, R); `moves` (A, 10): from, to, chunk, its
    value, whose shares it has.
    """

    values: str
    shares: str
    changed: str
    moves: str
    height: float = 4.0
    kind: ClassVar = "ring"

    def more(self, page) -> dict:
        page.script("ring")
        return {"positions": PLACES, "size": (WIDE, HIGH, TITLE), "box": BOX}

    def draw(self, figure, arrays, chosen):
        axes, values = figure.subplots(), arrays[self.values]
        machines, tall, frames = len(values), (HIGH - TITLE) / len(values), []
        for r, (x, y) in enumerate(PLACES[machines]):
            left, top = x - WIDE / 2, y - HIGH / 2
            frames.append(axes.add_patch(Rectangle((left, top), WIDE, HIGH, fill=False, lw=0)))
            axes.text(x, top + TITLE / 2, f"machine {r + 1}", ha="center", va="center", fontsize=7)
            for c, value in enumerate(values[r]):
                low = top + TITLE + c * tall
                for n in np.flatnonzero(arrays[self.shares][r, c]):
                    stripe = (left + n * WIDE / machines, low), WIDE / machines, tall
                    axes.add_patch(Rectangle(*stripe, color=COLOURS[n], alpha=0.4, linewidth=0))
                axes.add_patch(Rectangle((left, low), WIDE, tall, fill=False, edgecolor=GREY))
                text = f"{NAMES[c]}   {figure_of(value)}"
                axes.text(x, low + tall / 2, text, ha="center", va="center", fontsize=7)
        for source, to, *_ in arrays[self.moves].astype(int):
            ends = PLACES[machines][to], PLACES[machines][source]
            style = dict(arrowstyle="->", color=GREY, patchA=frames[source], patchB=frames[to])
            axes.annotate("", *ends, arrowprops=style)
        axes.set(xlim=(-182, 182), ylim=(132, -132), aspect="equal")
        axes.axis("off")

    def shown(self, arrays, chosen):
        def read(name, value, stripes):
            return [name + value, *np.flatnonzero(stripes).tolist()]

        values, whose, packets = arrays[self.values], arrays[self.shares], []
        count = len(values)
        for _, _, chunk, value, *stripes in arrays[self.moves]:
            words = ("", "all") if chunk == count else (NAMES[int(chunk)], figure_of(value))
            packets.append(read(*words, stripes[:count]))
        chunks = [
            [read(NAMES[c], figure_of(values[r, c]), whose[r, c]) for c in range(count)]
            for r in range(count)
        ]
        changed = arrays[self.changed].astype(int).tolist()
        return {"chunks": chunks, "changed": changed, "packets": packets}


ring = Simulation(
    name="ring",
    title="Many gradients become one sum",
    say="Each machine has a colour, and a gradient of its own that is cut into chunks. All need "
    "the sum of all gradients. Press **Play**, and follow one chunk: when does it have every "
    "colour? How much has gone through one machine’s wire by then? Then let all send to machine 1 "
    "instead.",
    caption="Each chunk has a stripe for every machine whose share is in it.",
    alt="Four machines in a ring, each with a gradient of four chunks. Every chunk is striped "
    "with the colours of the machines whose shares have been added to it.",
    size=(5, 4.4),
    controls=[
        Slider("step", "Step", range(2 * MOST - 1), 2, plays=True),
        Choice("machines", "Machines", [2, 3, 4, 5, 6], 2),
        Choice("way", "Way", [Option("ring", "a ring"), Option("one", "all to one, and back")]),
    ],
    compute=compute,
    views=[
        Ring("values", "whose", "changed", "moves"),
        Figures(
            {
                "now": "at the moment",
                "finished": "chunks that have every share",
                "times": "time so far (1: a whole gradient)",
                "seconds": "seconds for 260 MB on wires of 10 Gbit/s",
                "megabytes": "MB sent by all machines",
            },
            spelled=["now"],
            vocabulary=NOW,
            height=0.7,
        ),
    ],
    code="""\
from lessons.lesson_14.ring import compute, gradients

step = 2
machines = 4
way = "ring"
found = compute(step, machines, way)
values, seconds = found["values"], found["seconds"]
print(values, gradients(machines).sum(axis=0), seconds)""",
)
