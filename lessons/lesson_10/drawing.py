"""The first simulation of lesson 10: a translator's next word is drawn at random."""

import base64
import functools

import numpy as np

from lessons.kit.models import measured
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Figures
from lessons.lesson_10.measured import PLACES, SHOWN, SOURCE
from lessons.lesson_10.views import Bars

TEMPERATURES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 2.0, 3.0]
KS = [1, 2, 3, 4, 5, 8, 10, 12, 20, 50, 100, 1000]
PS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]
NUMBERS = np.random.default_rng(8).random(100).round(6)
"""The numbers from 0 to 1 that are drawn, one after the other."""


@functools.cache
def log_p(place: str) -> np.ndarray:
    """(V,): log probabilities of all symbols at a place, the largest first."""
    stored = np.frombuffer(base64.b64decode(measured(10)["next"][place]["below"]), "<u2")
    below = stored / 1000
    return -below - np.log(np.exp(-below).sum())


def written(place: str) -> str:
    """What has been written at a place."""
    return " ".join(measured(10)["next"][place]["written"]) or "nothing yet"


OTHERS = len(log_p("open")) - SHOWN
NAMES = [*dict.fromkeys(word for place in PLACES for word in measured(10)["next"][place]["words"])]
NAMES += [f"{OTHERS:,} others"]


def running(p):
    """p (V,) -> the running sums (V,), by shifts of 1, 2, 4 ..."""
    sums, shift = p.copy(), 1
    while shift < len(p):
        sums[shift:] += sums[:-shift].copy()
        shift *= 2
    return sums


def kept(ranked, temperature, top_k, top_p):
    """ranked (V,) log probabilities, the largest first -> p at this temperature, what may be drawn.

    The same as `Sampling.probabilities`, but without decisions that depend on numbers: a recording
    cannot have those.
    """
    p = np.exp((ranked - ranked[0]).round(3) / temperature)  # as they are stored
    p /= p.sum()
    before = running(p) - p  # the sum of those that are more probable
    stays = (before < top_p) & (np.arange(len(ranked)) < top_k)
    drawn = p * stays
    return p, drawn / drawn.sum()


def bars(p):
    """p (V,) -> (11,): the first ten, and all others together."""
    return np.concatenate([p[:SHOWN], p[SHOWN:].sum(keepdims=True)])


def choose(place, temperature, top_k, top_p, draw):
    """What may be drawn, and what the first `draw` numbers draw of it."""
    p, after = kept(log_p(place), temperature, top_k, top_p)
    width = bars(after)
    begins = running(width) - width
    passed = (NUMBERS[:, None] >= begins) & (
        width > 0
    )  # each number lies in the last piece whose beginning it has passed
    hits = passed & np.logical_not(np.concatenate([passed[:, 1:], 0 * passed[:, :1]], axis=1))
    of_draw = np.arange(len(NUMBERS))
    last = (of_draw == draw - 1)[:, None] * hits
    words = [NAMES.index(word) for word in measured(10)["next"][place]["words"]]
    return {
        "names": np.array([*words, len(NAMES) - 1]),
        "before": bars(p),
        "after": width,
        "counts": ((of_draw < draw)[:, None] * hits).sum(axis=0),
        "latest": (last * np.arange(SHOWN + 1.0)).sum(),
        "number": (NUMBERS * (of_draw == draw - 1)).sum(),
        "left": (after > 0).sum() * 1.0,
        "covered": (p * (after > 0)).sum(),
        "tail": p[SHOWN:].sum(),
    }


OFF = Option(2.0, "off", code="None")
drawing = Simulation(
    name="drawing",
    title="Draw the next word",
    say=f"A translator reads “{SOURCE}” and has begun to write. Press **Draw again**, then "
    "**Play**. What do you have to set at *torn* so that only a few good words can be drawn? "
    "Does that suit *sure* and *open*? And at temperature 2, how often is none of the ten words "
    "drawn?",
    caption="The probabilities of the next word. Full bars: what may be drawn.",
    alt="Horizontal bars of the ten most probable next words, and one for all others together. "
    "A few bars are long, the others can hardly be seen.",
    controls=[
        Choice(
            "place",
            "Written so far",
            [Option(place, place, f"Written: *{written(place)}*") for place in PLACES],
            start=1,
        ),
        Slider("temperature", "Temperature", TEMPERATURES, TEMPERATURES.index(1.0), live=True),
        Slider(
            "top_k",
            "Top-k",
            [*(Option(float(k), str(k), code=str(k)) for k in KS), Option(1e9, "off", code="None")],
            len(KS),
            live=True,
        ),
        Slider("top_p", "Top-p", [*PS, OFF], len(PS), live=True),
        Slider(
            "draw",
            "Draws",
            [Option(float(n), str(n), code=str(n)) for n in range(1, len(NUMBERS) + 1)],
            live=True,
            plays=True,
        ),
    ],
    compute=choose,
    views=[
        Bars(NAMES, "names", "before", "after", "counts", "latest", "number", "draw"),
        Figures(
            {
                "left": "symbols that may be drawn (to three digits)",
                "covered": "their probability together, before the cut",
                "tail": f"probability of the {OTHERS:,} others, before the cut",
            }
        ),
    ],
    code="""\
from lessons.lesson_10.drawing import NUMBERS, bars, log_p
from numformer import Sampling

place = 0
temperature = 0
top_k = 0
top_p = 0
draw = 0
sampling = Sampling(temperature, top_k, top_p)
after = bars(sampling.probabilities(log_p(place)[None])[0])
number = NUMBERS[draw - 1]
latest = (after.cumsum() <= number).sum()
print(after.round(3), latest)""",
    size=(7.6, 5.0),
)
