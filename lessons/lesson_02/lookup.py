"""The example of lesson 2, five jugs of juice, and its simulations: move, smooth, learn."""

import functools

import numpy as np

from lessons.kit.simulation import Choice, Option, Pad, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Matrices, Of
from numformer.backend import matmul
from numformer.layers.scores import dot_product_score, dot_product_score_backward
from numformer.layers.softmax import softmax, softmax_backward

jugs = ["cherry", "banana", "lemon", "carrot", "apple"]
tastes, contents = ["sweet", "sour"], ["price", "vitamin C"]
key = np.array([[2, 1], [2, -1], [-1, 2], [-1, -1], [1, 0]], dtype=float)
value = np.array([[4, 1], [1, 0], [2, 5], [0, 2], [1, 2]], dtype=float)
around = [1, 0, 2, 3]  # the corners of both areas, in their order; apple lies inside
query, temperature = np.array([[1.0, 2.0]]), 2.0
doutput = np.array([[1.0, -1.0]])  # of the loss that is the price minus the vitamin C
HARD = 1e-9  # a temperature so low that only the highest score counts


def lookup(query, temperature, key=key, value=value):
    """query (T, 2) -> weights (T, 5) and glasses (T, 2)."""
    weights = softmax(dot_product_score(query, key, 1 / temperature))
    return weights, matmul(weights, value)


def slope(query, temperature):
    """query (T, 2) -> dquery (T, 2) of the loss, each query's own."""
    weights, _ = lookup(query, temperature)
    dweights = np.broadcast_to(matmul(doutput, value.T), weights.shape)
    dscores = softmax_backward(dweights, weights)
    return dot_product_score_backward(dscores, query, key, 1 / temperature)[0]


def array(numbers) -> str:
    return f"np.array({np.asarray(numbers).tolist()})"


# 1. Move the query.


def wish(query, temperature, score) -> dict[str, np.ndarray]:
    scores = dot_product_score(query[None], key, 1.0)[0]
    if score == "distance":
        scores -= (query @ query + (key * key).sum(axis=1)) / 2
    weights = softmax(scores / temperature)
    return {
        "query": query,
        "key": key,
        "value": value,
        "corners": value[around],
        "scores": scores,
        "weights": weights,
        "glass": weights @ value,
        "best": np.flatnonzero(scores == scores.max()),
    }


TEMPERATURES = [
    Option(HARD, "0 (hard)", "The highest score takes all. Two that are equally high share."),
    Option(0.25, "0.25", "Scores count four times as much: nearly hard."),
    0.5,
    1.0,
    Option(2.0, "2", "As in the text."),
    4.0,
    8.0,
    Option(np.inf, "∞", "No score counts: every jug gives the same share.", "np.inf"),
]
SCORES = [
    Option("dot product", note="$e_s = q \\cdot k_s$. The longer a key, the louder it is."),
    Option("distance", note="$e_s = -\\frac12 |q - k_s|^2$. The nearest key scores highest."),
]
GRID = np.arange(-3, 3.5, 0.5).tolist()

move_the_wish = Simulation(
    name="wish",
    title="Move the wish",
    say="Drag the wish in the left plane, or use its two sliders. A dot is as large as the share "
    "of its jug. On the right, see where the glass goes.",
    caption="Left: the wish, and the labels of the jugs. Right: their contents, and the glass. A "
    "dot is as large as the share of its jug.",
    alt="Two planes. In the left one the labels of five jugs and a wish between cherry and lemon, "
    "which have the largest dots. In the right one the contents of the jugs, and among them, on "
    "the line from cherry to lemon or near it, the glass.",
    size=(7.6, 11),
    controls=[
        Pad(
            "query",
            "Wish (sweet, sour)",
            start=GRID.index(2) * len(GRID) + GRID.index(1),
            across=GRID,
        ),
        Slider("temperature", "Temperature", TEMPERATURES, start=4),
        Choice("score", "Score", SCORES),
    ],
    compute=wish,
    views=[
        Chart(
            [
                Drawn("key", "labels (keys)", "dots", names=jugs, sizes="weights"),
                Drawn("query", "wish (query)", "arrows"),
            ],
            Axis("sweet", -3.2, 3.2),
            Axis("sour", -3.2, 3.2),
            pad="query",
            square=True,
        ),
        Chart(
            [
                Drawn("corners", "all that can be mixed", "area", colour=3),
                Drawn("value", "contents (values)", "dots", names=jugs, sizes="weights", colour=0),
                Drawn("glass", "glass (result)", "dots", names=["glass"], colour=1),
            ],
            Axis("price", -0.5, 5.5),
            Axis("vitamin C", -0.5, 5.5),
            square=True,
        ),
        Matrices(
            [
                Of("scores", "e", ["score"], jugs, 6),
                Of("weights", "a", ["share"], jugs, 1),
                Of("glass", "o", ["glass"], contents, 5),
            ],
            after=["weights", "glass"],
            height=0.5,
        ),
        Figures({"best": "A hard lookup takes"}, ["best"], jugs, height=0.3),
    ],
    code=f"""\
import numpy as np
from numformer.layers.scores import dot_product_score
from numformer.layers.softmax import softmax

key = {array(key)}
value = {array(value)}
query = 0
temperature = 0
score = 0

scores = dot_product_score(query[None], key, 1.0)[0]
if score == "distance":
    scores -= (query @ query + (key * key).sum(axis=1)) / 2
weights = softmax(scores / temperature)
glass = weights @ value
print(scores, weights.round(3), glass.round(3), sep="\\n")""",
)

# 2. A curve through measurements: the level of a river, hour by hour, each with an error.

hours, levels = np.array(
    [
        [
            1.3,
            2.2,
            3.6,
            4.5,
            4.5,
            6.3,
            6.6,
            7.2,
            8.3,
            9.4,
            10.1,
            10.4,
            12.3,
            13.5,
            14.4,
            15.2,
            15.8,
            16.1,
            16.4,
            17.5,
            18.6,
            19.5,
            21.4,
            23.2,
        ],
        [
            2.0,
            2.8,
            3.2,
            1.5,
            1.5,
            1.0,
            1.9,
            1.6,
            2.0,
            2.1,
            2.1,
            2.2,
            2.4,
            2.8,
            1.7,
            1.8,
            1.9,
            3.9,
            2.8,
            2.6,
            2.9,
            3.7,
            3.8,
            4.5,
        ],
    ]
)
DAY = np.linspace(0, 24, 97)  # each quarter of an hour
ERROR = 0.4  # the standard deviation of a measurement
WIDTHS = [0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0]


def true_level(hour):
    """The level without errors: slow waves, and at 16:00 a weir is opened."""
    return 2 + 0.5 * np.sin(2 * np.pi * hour / 10) + 1.5 * (hour > 16)


def shares(query, width):
    """query (T,) of hours -> weights (T, 24) of the measurements."""
    return softmax(-((query[:, None] - hours) ** 2) / (2 * width**2))


def river(query, width) -> dict[str, np.ndarray]:
    weights = shares(np.array([query]), width)[0]
    curve, closest = shares(DAY, width) @ levels, np.abs(DAY[:, None] - hours).argmin(axis=1)
    return {
        "curve": curve,
        "nearest": levels[closest],
        "truth": true_level(DAY),
        "measured": np.stack([hours, levels], axis=1),
        "sizes": (weights / weights.max()).round(2),
        "largest": weights.max(),
        "effective": 1 / (weights @ weights),
        "error": np.sqrt(((curve - true_level(DAY)) ** 2).mean()),
    }


smooth_the_river = Simulation(
    name="river",
    title="A lookup in a day",
    say="Move the hour, or drag in the chart. Then make the lookup narrower and wider. A dot is as "
    "large as its measurement's share, beside the largest one.",
    caption="The level of a river over a day. Dots are measurements. The soft lookup is smooth, "
    "the nearest measurement is a staircase.",
    alt="A day's levels: 24 measurements, a smooth curve through them, the true level with a jump "
    "at 16:00, and the staircase of the nearest measurement. The smooth curve climbs slowly "
    "where the truth jumps.",
    size=(7.6, 5),
    controls=[
        Slider("query", "Hour (query)", DAY.tolist(), start=40),
        Slider("width", "Width h, in hours", WIDTHS, start=3),
    ],
    compute=river,
    views=[
        Chart(
            [
                Drawn("curve", "soft lookup", at=DAY.tolist()),
                Drawn("measured", "measured", "dots", sizes="sizes"),
                Drawn("truth", "true level", at=DAY.tolist()),
                Drawn("nearest", "nearest measurement", at=DAY.tolist()),
            ],
            Axis("hour", 0, 24),
            Axis("level", 0, 5),
            marker="query",
            at=DAY.tolist(),
        ),
        Figures(
            {
                "largest": "the largest share here",
                "effective": "1 / Σ a²: as a mean of so many measurements",
                "error": "error of the whole curve (root mean square)",
            }
        ),
    ],
    code=f"""\
import numpy as np
from numformer.layers.softmax import softmax

hours = {array(hours)}
levels = {array(levels)}
query = 0
width = 0

weights = softmax(-((query - hours) ** 2) / (2 * width**2))
largest, effective = weights.max(), 1 / (weights @ weights)
print(weights.round(3), weights @ levels, largest, effective, sep="\\n")""",
)

# 3. A query learns.

RATE, STEPS = 0.5, 30
BEGINNINGS = {
    (1.0, 2.0): "As in the text: near the border to the lemon.",
    (2.0, 0.5): "Between cherry and banana.",
    (1.5, -1.5): "Deep in the region of the banana.",
    (-1.0, -1.5): "At the carrot, which is nearly as good as the lemon.",
}
STARTS = [
    Option(at, f"({at[0]:g}, {at[1]:g})".replace("-", "−"), note, array([at]))
    for at, note in BEGINNINGS.items()
]


@functools.cache
def walk(start: tuple[float, float], temperature: float) -> np.ndarray:
    """The queries (STEPS + 1, 2) of gradient descent on the loss."""
    queries = [np.array([start])]
    for _ in range(STEPS):
        queries.append(queries[-1] - RATE * slope(queries[-1], temperature))
    return np.concatenate(queries)


def learn(start, temperature, step) -> dict[str, np.ndarray]:
    path = walk(start, temperature)
    weights, glasses = lookup(path, temperature)
    _, hard = lookup(path, HARD)
    return {
        "path": path,
        "small": np.zeros(STEPS + 1),
        "query": path[step],
        "key": key,
        "weights": weights[step],
        "loss": glasses @ doutput[0],
        "hard": hard @ doutput[0],
    }


learning = Simulation(
    name="learning",
    title="A query learns to ask",
    say="Press **Play**, or move the step. The guest wants a glass that is cheap and full of "
    "vitamin C: the loss is the price minus the vitamin C. Then choose other temperatures and "
    "beginnings.",
    caption="The path of a query that learns, from (1, 2) at temperature 2, and its loss.",
    alt="Left the labels of the jugs as dots, and a path of queries that leads from the cherry's "
    "side to beyond the lemon. Below it the loss, which falls from 0.5 to nearly −3, and that of "
    "a hard lookup with the same queries, which falls at once from 3 to −3.",
    size=(7.6, 8),
    controls=[
        Slider("step", "Step", list(range(STEPS + 1)), plays=True),
        Slider("temperature", "Temperature", TEMPERATURES[:6], start=4),
        Choice("start", "Beginning", STARTS),
    ],
    compute=learn,
    views=[
        Chart(
            [
                Drawn("path", "path", "dots", sizes="small", colour=3),
                Drawn("key", "labels (keys)", "dots", names=jugs, sizes="weights", colour=0),
                Drawn("query", "query", "dots", colour=1),
            ],
            Axis("sweet", -5, 5),
            Axis("sour", -5, 5),
            square=True,
        ),
        Chart(
            [
                Drawn("loss", "loss of the glass", at=range(STEPS + 1)),
                Drawn("hard", "loss of a hard lookup", at=range(STEPS + 1), colour=3),
            ],
            Axis("step", 0, STEPS),
            Axis("loss", -4, 4),
            marker="step",
            at=range(STEPS + 1),
        ),
    ],
    code=f"""\
import numpy as np
from numformer.layers.scores import dot_product_score, dot_product_score_backward
from numformer.layers.softmax import softmax, softmax_backward

key = {array(key)}
value = {array(value)}
doutput = {array(doutput)}
start = 0
temperature = 0
step = 0

query = start
for _ in range(step):
    weights = softmax(dot_product_score(query, key, 1 / temperature))
    dscores = softmax_backward(doutput @ value.T, weights)
    dquery, dkey = dot_product_score_backward(dscores, query, key, 1 / temperature)
    query = query - {RATE} * dquery
weights = softmax(dot_product_score(query, key, 1 / temperature))[0]
query = query[0]
print(query.round(3), weights.round(3), (weights @ value).round(3), sep="\\n")""",
)
