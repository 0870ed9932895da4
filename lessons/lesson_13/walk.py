"""The simulation of lesson 13: attention block by block, forward and backward.

A block here is some rows by some columns of the scores. A block of numformer's own
(later/attention/tiles.py) has all columns that its rows may see, so it needs no running maximum; a
block with fewer columns needs one.
"""

import numpy as np

from lessons.kit.simulation import Choice, Entries, Ids, Option, Simulation
from lessons.kit.views import Figures, Matrices, Of
from numformer.backend import array_module
from numformer.paper.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)

# The example of the lesson. The queries are already divided by the root of d_k = 2.
words = ["I", "saw", "two", "cats"]
query = np.array([[0, 1], [2, 0], [1, 0], [2, 1]], dtype=float)
key = np.array([[1, 0], [0, 2], [0, 0], [2, 0]], dtype=float)
value = np.array([[1, 0], [0, 2], [-1, 1], [2, -1]], dtype=float)
doutput = np.array([[1, 0], [0, 1], [-1, 1], [1, 2]], dtype=float)
LENGTH, ROOT = len(words), np.sqrt(2)


def forward_block(scores, value, highest, total, blend):
    """Add a block, scores (R, C) and value (C, K_v), to what is kept of R rows.

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
    """Four blocks (rows, columns), in order; None where there is nothing to compute."""
    down, across = block
    cut: list = []
    for top in range(0, LENGTH, down):
        for left in range(0, LENGTH, across):
            end = min(left + across, top + down) if causal else left + across
            cut.append((slice(top, top + down), slice(left, end)) if left < end else None)
    return cut + [None] * (4 - len(cut))


XY, FEATURES = ["x", "y"], ["thing", "doing"]
MATRICES = [
    Of("query", "Q", words, FEATURES, 2, "queries / √d_k", lit="rows"),
    Of("key", "K", words, FEATURES, 2, "keys", lit="columns"),
    Of("value", "V", words, XY, 2, "values", lit="columns"),
    Of("scores", "Z", words, words, 4, "scores of this block", lit="tile"),
    Of("exponentials", "G", words, words, 1, "exp(Z − m)", lit="tile"),
    Of("kept", r"m, \, c, \, n", words, ["m", "c", "n"], 4, "for each row", lit="rows"),
    Of("blend", r"\hat O", words, XY, 4, "not divided yet", lit="rows"),
    Of("output", "O", words, XY, 2, "Ô / n, once done", lit="done"),
    Of("ends", r"\ell, \, r", words, ["ℓ", "r"], 4, "m + ln n; dO · O", lit="rows"),
    Of("doutput", r"\mathrm{d}O", words, XY, 2, "from above", lit="rows"),
    Of("weights", "A", words, words, 1, "again: exp(Z − ℓ)", lit="tile"),
    Of("dweights", r"\mathrm{d}A", words, words, 4, "dO Vᵀ", lit="tile"),
    Of("dscores", r"\mathrm{d}Z", words, words, 1, "A (dA − r)", lit="tile"),
    Of("dquery", r"\mathrm{d}Q", words, FEATURES, 1, "dZ K is added", lit="rows"),
    Of("dkey", r"\mathrm{d}K", words, FEATURES, 1, "dZᵀ Q is added", lit="columns"),
    Of("dvalue", r"\mathrm{d}V", words, XY, 2, "Aᵀ dO is added", lit="columns"),
]
GROUPS = [
    "query key scores value exponentials → kept blend output".split(),
    "query key weights ends dweights doutput dscores value → dquery dkey dvalue".split(),
]
BLOCKS = [
    Option((2, 2), "2 × 2", "Two rows meet two columns, with a running maximum."),
    Option((1, 4), "1 × 4, rows", "As in numformer: whole rows. Their maximum is known at once."),
    Option((4, 1), "4 × 1, columns", "One key after another. The maximum may rise with each."),
    Option((4, 4), "4 × 4, all", "The plain formula: one block, so no memory is saved."),
]
STEPS = ["begin", *(f"{way} {n}" for way in ("forward", "backward") for n in range(1, 5))]
STEPS = [Option(n, name) for n, name in enumerate(STEPS)]


WORDS = ["not yet", "O alone", "O and all gradients", "nothing yet", "skipped: all keys are later"]
WORDS += ["nothing is left"]


def named(rows: slice, columns: slice) -> str:
    """A block in words for the reader."""
    return f"{', '.join(words[rows])} → {', '.join(words[columns])}"


for cut in (
    at for block in BLOCKS for causal in (False, True) for at in tiles(block.value, causal)
):
    WORDS += [named(*cut)] if cut and named(*cut) not in WORDS else []


def compute(step=8, query=query, block=(2, 2), causal=False) -> dict[str, np.ndarray]:
    """The arrays after `step` steps of the walk."""
    xp, cut, place = array_module(query), tiles(block, causal), np.arange(LENGTH)
    given = dict(query=query, key=key, value=value, doutput=doutput)
    now = {of.name: xp.zeros((LENGTH, len(of.columns))) for of in MATRICES if of.name not in given}
    now["kept"][:, 0] = -np.inf
    steps = {name: xp.zeros((len(STEPS), *x.shape)) for name, x in now.items()}
    steps["kept"][0] = now["kept"]
    lit = {name: np.zeros((len(STEPS), LENGTH, 1)) for name in ("rows", "columns", "done")}
    lit |= dict(done=lit["done"] - 1, tile=np.full((len(STEPS), LENGTH, LENGTH), -1))
    states = dict(there=np.zeros(len(STEPS)), now=np.full(len(STEPS), WORDS.index("nothing yet")))
    for number, tile in enumerate(2 * cut, 1):
        states["now"][number] += 1 if any(cut[(number - 1) % 4 :]) else 2
        if tile:
            rows, columns = tile
            seen = place[columns] <= place[rows, None]
            for name, at in dict(rows=rows, columns=columns, tile=tile).items():
                lit[name][number][at] = 1
            states["there"][number], states["now"][number] = seen.size, WORDS.index(named(*tile))
            scores = query[rows] @ key[columns].T
            now["scores"][tile] = np.where(seen, scores, -np.inf) if causal else scores
            (backward if number > 4 else forward)(now, query, *tile)
            if number <= 4 and not any(later and later[0] == rows for later in cut[number:]):
                finish(now, rows)
                lit["done"][number:, rows] = 0
        for name, x in now.items():
            steps[name][number] = x
    states |= dict(so_far=np.cumsum(states["there"]), group=np.arange(len(STEPS)) > 4)
    mask = np.tri(LENGTH, dtype=bool) if causal else None
    plain, weights = scaled_dot_product_attention(ROOT * query, key, value, mask)
    known = xp.asarray(doutput), ROOT * query, key, value, weights
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(*known)
    wanted = dict(output=plain, dquery=ROOT * dquery, dkey=dkey, dvalue=dvalue)
    off = [abs(steps[name] - x).max(axis=(1, 2)) for name, x in wanted.items()]
    all_off = np.maximum(np.maximum(off[0], off[1]), np.maximum(off[2], off[3]))
    states["same"] = np.where(off[0] < 1e-12, np.where(all_off < 1e-12, 2, 1), 0)
    arrays = (steps | lit | states).items()
    return given | {name: xp.asarray(x)[xp.asarray(step)] for name, x in arrays}


def forward(now, query, rows, columns) -> None:
    """Add a block to what is kept of its rows."""
    kept = now["kept"][rows]
    made = forward_block(
        now["scores"][rows, columns], value[columns], kept[:, :1], kept[:, 2:], now["blend"][rows]
    )
    now["exponentials"][rows, columns], now["blend"][rows] = made[3:]
    now["kept"][rows] = np.concatenate(made[:3], axis=1)


def finish(now, rows) -> None:
    """Compute the output and what backward needs, once all blocks of these rows are in."""
    kept = now["kept"][rows]
    now["output"][rows] = now["blend"][rows] / kept[:, 2:]
    now["ends"][rows, 0] = kept[:, 0] + np.log(kept[:, 2])
    now["ends"][rows, 1] = (doutput[rows] * now["output"][rows]).sum(axis=-1)


def backward(now, query, rows, columns) -> None:
    """Compute the weights of a block again, and add to the gradients."""
    ends, of_columns = now["ends"][rows], (key[columns], value[columns])
    of_rows = ends[:, :1], ends[:, 1:], doutput[rows], query[rows]
    made = backward_block(now["scores"][rows, columns], *of_rows, *of_columns)
    for name, x in zip(("weights", "dweights", "dscores"), made[:3], strict=True):
        now[name][rows, columns] = x
    for name, at, x in zip(
        ("dquery", "dkey", "dvalue"), (rows, columns, columns), made[3:], strict=True
    ):
        now[name][at] += x


walk = Simulation(
    name="walk",
    title="Attention, block by block, there and back",
    say="Each of four words looks at all four, but only one **block** of scores exists at a time. "
    "Press **Play**. What is done with a block before the next one takes its place? Look at $m$, "
    "the highest score that a row has seen so far: what happens when it rises?",
    caption="The second block. Outlined cells are at work; in an empty cell, nothing is kept.",
    alt="Matrices in a row. Of the 4 by 4 scores, only a block of two rows and two columns has "
    "numbers. Beside it stand what is kept of each row, and the outputs of the finished rows.",
    size=(13, 3),
    controls=[
        Ids("step", "Block", STEPS, 2, live=True, plays=True),
        Choice("block", "Rows × columns of a block", BLOCKS),
        Choice("causal", "Who sees whom", [Option(False, "all see all"), Option(True, "causal")]),
        Entries(
            "query",
            "Queries",
            [
                Option(query, "as in the text"),
                Option(query[::-1], "in reverse", "The rows of the text, the last one first."),
                Option(
                    0 * query, "all 0", "Every word looks at all words alike; the maxima stay 0."
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
                "now": "block at work",
                "there": "scores in memory",
                "so_far": "computed",
                "same": "equal to lesson 3, to 12 digits",
            },
            spelled=["now", "same"],
            vocabulary=WORDS,
        ),
    ],
    code="""\
import numpy as np
from lessons.lesson_13.walk import compute, key, value
from numformer.paper.attention import scaled_dot_product_attention

step = 2
query = 0
block = (2, 2)
causal = False

mask = np.tri(4, dtype=bool) if causal else None
plain, *_ = scaled_dot_product_attention(np.sqrt(2) * query, key, value, mask)
made = compute(step, query, block, causal)
scores, kept, output = made["scores"], made["kept"], made["output"]
print(scores, kept.round(2), output - plain, sep="\\n\\n")""",
)
