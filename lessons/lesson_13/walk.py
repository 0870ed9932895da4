"""The simulation of lesson 13: attention block by block, there and back.

A block here is some rows by some columns of the scores. numformer's own (layers/blocks.py) has all
columns that its rows may see, so that it needs no maximum that runs; one of fewer columns does.
"""

import itertools

import numpy as np

from lessons.kit.simulation import Choice, Entries, Ids, Option, Simulation
from lessons.kit.views import Figures, Matrices, Of
from numformer.backend import array_module
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)

# The example of the lesson. Queries have been divided by the root of d_k, here of 2.
words = ["I", "saw", "two", "cats"]
query = np.array([[0, 1], [2, 0], [1, 0], [2, 1]], dtype=float)
key = np.array([[1, 0], [0, 2], [0, 0], [2, 0]], dtype=float)
value = np.array([[1, 0], [0, 2], [-1, 1], [2, -1]], dtype=float)
doutput = np.array([[1, 0], [0, 1], [-1, 1], [1, 2]], dtype=float)
LENGTH, ROOT = len(words), np.sqrt(2)


def forward_block(scores, value, highest, total, blend):
    """scores (R, C), value (C, K_v): what is kept of R rows -> the same with this block in it.

    highest, total (R, 1), blend (R, K_v) -> highest, factor, total, exponentials (R, C), blend.
    """
    new = np.maximum(highest, scores.max(axis=-1, keepdims=True))
    factor = np.exp(highest - new)
    exponentials = np.exp(scores - new)
    total = factor * total + exponentials.sum(axis=-1, keepdims=True)
    blend = factor * blend + exponentials @ value
    return new, factor, total, exponentials, blend


def backward_block(scores, log_sums, inner, doutput, query, key, value):
    """scores (R, C) -> weights, dweights, dscores (R, C), what is added to dquery, dkey, dvalue."""
    weights = np.exp(scores - log_sums)
    dweights = doutput @ value.T
    dscores = weights * (dweights - inner)
    of_scores = weights, dweights, dscores
    return *of_scores, dscores @ key, dscores.T @ query, weights.T @ doutput


def tiles(block, causal: bool) -> list[tuple[slice, slice] | None]:
    """Four rows and columns, in their order; None where there is nothing to compute."""
    down, across = block
    corners = itertools.product(range(0, LENGTH, down), range(0, LENGTH, across))
    cut: list = []
    for top, left in corners:
        end = min(left + across, top + down) if causal else left + across
        cut.append((slice(top, top + down), slice(left, end)) if left < end else None)
    return cut + [None] * (4 - len(cut))


PLACES = "scores exponentials weights dweights dscores".split()
BLOCKS = [
    Option((2, 2), "2 × 2", "Two rows meet two columns. The maximum runs."),
    Option((1, 4), "1 × 4, rows", "As in numformer: whole rows. Their maximum is known at once."),
    Option((4, 1), "4 × 1, columns", "One key after the other. The maximum runs through each."),
    Option((4, 4), "4 × 4, all", "The plain formula: one block, and nothing is saved."),
]
STEPS = ["begin", *(f"{way} {n}" for way in ("forward", "backward") for n in range(1, 5))]


def named(rows: slice, columns: slice) -> str:
    """A block as the reader is told of it."""
    return f"{', '.join(words[rows])} look at {', '.join(words[columns])}"


CUT = [cut for block in BLOCKS for way in (False, True) for cut in tiles(block.value, way) if cut]
WORDS = ["nothing yet", "skipped: all of it is later", "nothing is left", "not yet", "yes"]
WORDS += dict.fromkeys(named(*cut) for cut in CUT)


def compute(step=8, query=query, block=(2, 2), causal=False) -> dict[str, np.ndarray]:
    """What is there after each step of the walk, of which `step` chooses one."""
    xp, cut, states = array_module(query), tiles(block, causal), []
    width = query.shape[1]
    now = {name: xp.zeros((LENGTH, LENGTH)) for name in PLACES}
    now["highest"] = xp.zeros((LENGTH, 1)) - np.inf
    now |= {name: xp.zeros((LENGTH, 1)) for name in ("factor", "total", "logs", "inner")}
    now |= {name: xp.zeros((LENGTH, 2)) for name in ("blend", "output", "dvalue")}
    now |= {name: xp.zeros((LENGTH, width)) for name in ("dquery", "dkey")}
    lights = dict(block_lit=np.full((LENGTH, LENGTH), -1), rows_lit=np.zeros((LENGTH, 1)))
    lights |= dict(columns_lit=np.zeros((LENGTH, 1)), done=np.full((LENGTH, 1), -1))
    counts = dict(there=0, so_far=0, now=0, group=0)

    def snapshot():
        states.append({n: x.copy() for n, x in (now | lights).items()} | counts)

    snapshot()
    for number, tile in enumerate(2 * cut):
        back = number >= 4
        for lit in ("block_lit", "rows_lit", "columns_lit"):
            lights[lit][...] = -1 if lit == "block_lit" else 0
        counts.update(group=int(back), there=0, now=1 if any(cut[number % 4 :]) else 2)
        if tile:
            rows, columns = tile
            seen = np.arange(LENGTH)[columns] <= np.arange(LENGTH)[rows, None]
            lights["block_lit"][tile] = lights["rows_lit"][rows] = lights["columns_lit"][
                columns
            ] = 1
            counts.update(there=seen.size, now=WORDS.index(named(rows, columns)))
            counts["so_far"] += seen.size
            scores = query[rows] @ key[columns].T
            if causal:
                scores = np.where(seen, scores, -np.inf)
            now["scores"][tile] = scores
            if back:
                names = "weights", "dweights", "dscores", "dquery", "dkey", "dvalue"
                of_rows = (now["logs"][rows], now["inner"][rows], doutput[rows], query[rows])
                made = backward_block(scores, *of_rows, key[columns], value[columns])
                for name, x in zip(names, made, strict=True):
                    if name in PLACES:
                        now[name][tile] = x
                    else:
                        now[name][rows if name == "dquery" else columns] += x
            else:
                names = "highest", "factor", "total", "exponentials", "blend"
                kept = (now[name][rows] for name in ("highest", "total", "blend"))
                made = forward_block(scores, value[columns], *kept)
                for name, x in zip(names, made, strict=True):
                    now[name][tile if name in PLACES else rows] = x
        if not back and tile and not any(t and t[0] == rows for t in cut[number + 1 :]):
            now["output"][rows] = now["blend"][rows] / now["total"][rows]
            now["logs"][rows] = now["highest"][rows] + np.log(now["total"][rows])
            now["inner"][rows] = (doutput[rows] * now["output"][rows]).sum(axis=-1, keepdims=True)
            lights["done"][rows] = 0
        snapshot()
    mask = np.tri(LENGTH, dtype=bool) if causal else None
    plain, weights, _ = scaled_dot_product_attention(ROOT * query, key, value, mask)
    given = (xp.asarray(doutput), ROOT * query, key, value, weights, weights, None)
    wanted = (plain, *scaled_dot_product_attention_backward(*given))
    for state in states:
        both = state["output"], state["dquery"] / ROOT, state["dkey"], state["dvalue"]
        off = [abs(x - y).max() for x, y in zip(both, wanted, strict=True)]
        forward, backward = off[0], np.maximum(off[1], np.maximum(off[2], off[3]))
        state |= {
            name: np.where(x < 1e-12, WORDS.index("yes"), WORDS.index("not yet"))
            for name, x in (("same", forward), ("same_back", backward))
        }
        state["kept"] = np.concatenate([state[n] for n in ("highest", "factor", "total")], axis=1)
        state["ends"] = np.concatenate([state["logs"], state["inner"]], axis=1)
    at = xp.asarray(step)
    arrays = {name: np.stack([xp.asarray(state[name]) for state in states])[at] for name in SHOWN}
    return arrays | {"query": query, "key": key, "value": value, "doutput": doutput}


XY, FEATURES = ["x", "y"], ["thing", "doing"]
SHOWN = """scores exponentials kept blend output weights dweights dscores ends dquery dkey dvalue
           block_lit rows_lit columns_lit done there so_far now group same same_back""".split()
MATRICES = [
    Of("query", "Q", words, FEATURES, 2, "divided by √d_k", lit="rows_lit"),
    Of("key", "K", words, FEATURES, 2, lit="columns_lit"),
    Of("value", "V", words, XY, 2, lit="columns_lit"),
    Of("scores", "Z", words, words, 4, "this block alone", lit="block_lit"),
    Of("exponentials", "G", words, words, 1, "exp(Z − m)", lit="block_lit"),
    Of("kept", r"m, \, c, \, n", words, ["m", "c", "n"], 4, "kept of each row", lit="rows_lit"),
    Of("blend", r"\hat O", words, XY, 4, "not divided yet", lit="rows_lit"),
    Of("output", "O", words, XY, 2, "Ô / n of rows that are done", lit="done"),
    Of("ends", r"\ell, \, r", words, ["ℓ", "r"], 4, "m + ln n, and dO · O", lit="done"),
    Of("doutput", r"\mathrm{d}O", words, XY, 2, lit="rows_lit"),
    Of("weights", "A", words, words, 1, "made again: exp(Z − ℓ)", lit="block_lit"),
    Of("dweights", r"\mathrm{d}A", words, words, 4, "dO Vᵀ", lit="block_lit"),
    Of("dscores", r"\mathrm{d}Z", words, words, 1, "A (dA − r)", lit="block_lit"),
    Of("dquery", r"\mathrm{d}Q", words, FEATURES, 1, lit="rows_lit"),
    Of("dkey", r"\mathrm{d}K", words, FEATURES, 1, lit="columns_lit"),
    Of("dvalue", r"\mathrm{d}V", words, XY, 2, lit="columns_lit"),
]
GROUPS = [
    "query key value scores exponentials → kept blend output ends".split(),
    "query key value doutput ends weights dweights dscores → dquery dkey dvalue".split(),
]


def draw(figure) -> None:
    """The walk in the middle, there and back."""
    parts = figure.subfigures(2, 1)
    for part, step, names in zip(parts, (2, 7), GROUPS, strict=True):
        arrays, by_name = compute(step), {of.name: of for of in MATRICES}
        shown = [by_name[name] for name in names if name != "→"]
        for axes, of in zip(part.subplots(1, len(shown)), shown, strict=True):
            of.draw(axes, arrays)


walk = Simulation(
    name="walk",
    title="Attention, block by block, there and back",
    say="Each of four words looks at all four, but never more than one **block** of scores exists. "
    "Press **Play**. What is done with a block before the next one takes its place? Look at $m$, "
    "the highest score that a row has met so far: what happens where it rises?",
    caption="Above the second block of the way there, below the third of the way back. What is "
    "outlined is at work; where nothing stands, nothing is stored.",
    alt="Two rows of small matrices. Of the 4 by 4 scores only a block of two rows and two columns "
    "has numbers; beside it what is kept of each row, and the gradients that blocks have added to.",
    size=(13, 4.4),
    controls=[
        Ids(
            "step",
            "Block",
            [Option(n, name) for n, name in enumerate(STEPS)],
            2,
            live=True,
            plays=True,
        ),
        Choice("block", "Rows × columns of a block", BLOCKS),
        Choice("causal", "Who sees whom", [Option(False, "all see all"), Option(True, "causal")]),
        Entries(
            "query",
            "Queries",
            [
                Option(query, "as in the text"),
                Option(query[::-1], "turned round", "The rows of the text in reverse order."),
                Option(
                    200 * query, "200 times", "exp(800) is too large for a computer; exp(0) is not."
                ),
            ],
            symbol="Q",
            rows=words,
            columns=FEATURES,
        ),
    ],
    compute=compute,
    views=[
        Matrices(MATRICES, groups=GROUPS, group="group", height=3),
        Figures(
            {
                "now": "at work",
                "there": "scores that exist",
                "so_far": "scores computed",
                "same": "O as the plain formula’s, to 12 digits",
                "same_back": "gradients, too",
            },
            spelled=["now", "same", "same_back"],
            vocabulary=WORDS,
        ),
    ],
    draw=draw,
    code="""\
import numpy as np
from lessons.lesson_13.walk import compute, key, value
from numformer.layers.attention import scaled_dot_product_attention

step = 2
query = 0
block = (2, 2)
causal = False

mask = np.tri(4, dtype=bool) if causal else None
plain, *_ = scaled_dot_product_attention(np.sqrt(2) * query, key, value, mask)
there = compute(step, query, block, causal)
scores, kept, output = there["scores"], there["kept"], there["output"]
print(scores, kept.round(2), output - plain, sep="\\n\\n")""",
)
