"""The second simulation of lesson 13: who sees whom, and who knows of whom after some layers."""

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Figures, Heatmap
from numformer.later.attention.patterns import FullPattern, GlobalWindow, Strided, Window
from numformer.paper.masks import Places, Reach

LENGTH, LAYERS = 24, 8
KINDS = [
    Option("all", "all", "As in the paper: each position sees itself and all earlier ones."),
    Option("window", "window", "A position sees only the latest positions, itself included."),
    Option("global", "window and first", "Each position sees a window and the first position."),
    Option("strided", "strided", "One head sees the latest; the other looks back in strides."),
]


def seen(kind: str, size: int) -> np.ndarray:
    """(heads, T, T): whom each position sees in one causal layer, as numformer's patterns say."""
    pattern = {
        "all": FullPattern(),
        "window": Window(window=size),
        "global": GlobalWindow(window=size, global_tokens=1),
        "strided": Strided(stride=size),
    }[kind]
    reach, places = Reach(Places.without_padding(1, LENGTH), causal=True), np.arange(LENGTH)
    near = pattern.mask(places, places, heads=2)
    return reach.mask()[0] if near is None else reach.mask()[0] & near


def layers_between(mask: np.ndarray) -> np.ndarray:
    """(T, T): after how many layers, each with `mask` (T, T), t knows of s; or infinity."""
    between, known = np.full(mask.shape, np.inf), np.eye(len(mask))
    for layer in range(1, LENGTH + 1):
        known = (known @ mask > 0).astype(float)
        between = np.where((known > 0) & np.isinf(between), layer, between)
    return between


def compute(layers=1, kind="window", size=4) -> dict[str, np.ndarray]:
    """Who knows of whom after some layers: 1 over the number of layers that it takes, or 0."""
    heads = seen(kind, size)
    between = layers_between(heads.any(axis=0))
    known = np.where(between <= layers, 1 / between, 0.0)
    back = np.where(known[-1] > 0, LENGTH - 1.0 - np.arange(LENGTH), 0.0)
    return {
        "known": known,
        "scores": heads.sum() / len(heads),
        "back": back.max(axis=0),
        "needed": between[-1].max(),
    }


patterns = Simulation(
    name="patterns",
    title="Who sees whom, and who knows of whom",
    say="Each row is a position, each column a position that it may see. It sees dark cells "
    "directly. It knows of lighter ones through several layers: each layer hands on what it knows. "
    "**Before you move the slider**: with a window of 4, how far back does the last position know "
    "after 5 layers?",
    caption="Dark cells are seen in one layer; lighter ones are known only after several.",
    alt="A square of 24 by 24 cells. Dark cells lie in a band on and below the diagonal, as wide "
    "as the window; with more layers, lighter bands lie beside it.",
    size=(5, 5.4),
    controls=[
        Choice("kind", "Pattern", KINDS, 1),
        Choice("size", "Window or stride", [2, 4, 6, 8], 1),
        Slider("layers", "Layers", [*range(1, LAYERS + 1)], 1, live=True, plays=True),
    ],
    compute=compute,
    views=[
        Heatmap("known", "position", "knows of"),
        Figures(
            {
                "scores": "scores in a head of a layer; “all” has 300",
                "back": "how far back the last position knows",
                "needed": "layers until it knows of all",
            }
        ),
    ],
    code="""\
import numpy as np
from lessons.lesson_13.patterns import seen

kind = "window"
size = 4
layers = 2

heads = seen(kind, size)
scores = heads.sum() / len(heads)
reached = np.linalg.matrix_power(heads.any(axis=0).astype(float), layers) > 0
back = 23 - np.flatnonzero(reached[-1])[0]
print(scores, back)""",
)
