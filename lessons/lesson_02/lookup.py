"""The example of lesson 2, five jugs of juice, and three simulations: move, smooth, learn."""

import numpy as np

from lessons.kit.simulation import Choice, Option, Pad, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Matrices, Of
from numformer.arithmetic import matmul
from numformer.paper.softmax import softmax, softmax_backward
from numformer.recurrence.scores import dot_product_score, dot_product_score_backward

jugs = ["cherry", "banana", "lemon", "carrot", "apple"]
tastes, contents = ["sweet", "sour"], ["price", "vitamin C"]
key = np.array([[2, 1], [2, -1], [-1, 2], [-1, -1], [1, 0]], dtype=float)
value = np.array([[4, 1], [1, 0], [2, 5], [0, 2], [1, 2]], dtype=float)
around = [1, 0, 2, 3]  # the corners of both areas, in order around; apple lies inside
query, temperature = np.array([[1.0, 2.0]]), 2.0
doutput = np.array([[1.0, -1.0]])  # the gradient of the loss, which is price minus vitamin C
HARD = 1e-9  # a temperature so low that only the highest score counts


def lookup(query, temperature, key=key, value=value):
    """query (T, 2) -> weights (T, 5) and glasses (T, 2)."""
    weights = softmax(dot_product_score(query, key, 1 / temperature))
    return weights, matmul(weights, value)


def slope(query, temperature):
    """query (T, 2) -> dquery (T, 2), each row the gradient of its own query's loss."""
    weights, _ = lookup(query, temperature)
    dweights = 0 * weights + matmul(doutput, value.T)  # a row for each query
    dscores = softmax_backward(dweights, weights)
    return dot_product_score_backward(dscores, query, key, 1 / temperature)[0]


def array(numbers) -> str:
    return f"np.array({np.asarray(numbers).tolist()})"


# 1. Move the query.


def wish(query, temperature, score) -> dict[str, np.ndarray]:
    scores = dot_product_score(query[None], key, 1.0)[0]
    if score == "distance":
        scores = scores - (query @ query + (key * key).sum(axis=1)) / 2
    scaled, there = scores / temperature, 1.0 * (temperature > HARD)
    weights = softmax(scaled)
    return {
        "query": query,
        "key": key,
        "value": value,
        "corners": value[around],
        "scores": scores,
        "scaled": there * scaled,
        "undefined": there - 1 + 0 * scores[None],
        "weights": weights,
        "glass": weights @ value,
        "best": 1.0 * (scores == scores.max()),
    }


# Steps of an eighth are exact in binary, so that equal scores are equal on every machine.
GRID = np.arange(-3, 3.125, 0.125).tolist()
BETWEEN = [0.125, *np.arange(0.25, 8.25, 0.25).tolist()]
TEMPERATURES = [
    Option(
        HARD,
        "0 (hard)",
        "Nothing can be divided by 0: $z$ is empty. In the limit the highest scores share all.",
    ),
    *BETWEEN,
    Option(np.inf, "∞", "Scores no longer count: every jug gives the same share.", "np.inf"),
]
SCORES = [
    Option("dot product", note="$e_s = q \\cdot k_s$. A longer key has stronger scores."),
    Option("distance", note="$e_s = -\\frac12 |q - k_s|^2$. The nearest key scores highest."),
]

move_the_wish = Simulation(
    name="wish",
    title="Order by taste",
    say="Drag the wish in the left chart. The juice bar mixes a glass from five jugs, with the "
    "largest share from the jug whose label fits the wish best: the larger a dot, the larger its "
    "share. Watch where the glass goes on the right. Then turn the temperature down to 0.",
    caption="Left: the wish and the labels of the jugs. Right: what the jugs contain, and the "
    "glass. The larger a dot, the larger the share of its jug.",
    alt="Two charts. The left one has the labels of five jugs and a wish between cherry and lemon, "
    "which have the largest dots. The right one has the contents of the jugs, and in the middle of "
    "them the glass.",
    size=(7.6, 11),
    controls=[
        Pad(
            "query",
            "Wish (sweet, sour)",
            start=GRID.index(2) * len(GRID) + GRID.index(1),
            across=GRID,
            live=True,
        ),
        Slider("temperature", "Temperature", TEMPERATURES, 1 + BETWEEN.index(2), live=True),
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
                Of("scaled", r"z = e / \tau", ["scaled"], jugs, 6, lit="undefined"),
                Of("weights", "a", ["share"], jugs, 1),
                Of("glass", "o", ["glass"], contents, 5),
                Of("best", r"\text{hard}", ["taken"], jugs, 1, words=("no", "yes")),
            ],
            after=["weights", "glass"],
            height=0.5,
        ),
    ],
    code=f"""\
import numpy as np
from numformer.recurrence.scores import dot_product_score
from numformer.paper.softmax import softmax

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

hours = np.array(
    """1.3 2.2 3.6 4.5 4.5 6.3 6.6 7.2 8.3 9.4 10.1 10.4 12.3 13.5 14.4 15.2 15.8 16.1 16.4 17.5
    18.6 19.5 21.4 23.2""".split(),
    float,
)
levels = np.array(
    """2.0 2.8 3.2 1.5 1.5 1.0 1.9 1.6 2.0 2.1 2.1 2.2 2.4 2.8 1.7 1.8 1.9 3.9 2.8 2.6
    2.9 3.7 3.8 4.5""".split(),
    float,
)
DAY = np.linspace(0, 24, 97)  # each quarter of an hour
ERROR = 0.4  # the standard deviation of a measurement
WIDTHS = [*(n / 20 for n in range(2, 61)), *(n / 2 for n in range(7, 21)), 15.0, 20.0, 30.0]


def true_level(hour):
    """The level without errors: slow waves, and at 16:00 a weir is opened."""
    return 2 + 0.5 * np.sin(2 * np.pi * hour / 10) + 1.5 * (hour > 16)


def shares(query, width):
    """query (T,) of hours -> weights (T, 24) of the measurements."""
    return softmax(-((query[:, None] - hours) ** 2) / (2 * width**2))


def river(query, width) -> dict[str, np.ndarray]:
    weights = shares(np.reshape(query, 1), width)[0]
    day = DAY + 0 * query  # depends on the query, so the page computes it and stores no curve
    curve = shares(day, width) @ levels
    return {
        "curve": curve,
        "nearest": levels[np.abs(DAY[:, None] - hours).argmin(axis=1)],
        "truth": true_level(DAY),
        "measured": np.stack([hours, levels], axis=1),
        "sizes": weights / weights.max(),
        "largest": weights.max(),
        "effective": 1 / (weights @ weights),
        "error": np.sqrt(((curve - true_level(DAY)) ** 2).mean()),
    }


smooth_the_river = Simulation(
    name="river",
    title="A lookup in a day",
    say="Press **Play**, or drag in the chart: the larger a dot, the more it counts at this hour. "
    "Then make the lookup narrower and wider.",
    caption="The level of a river over a day. Dots are measurements. The soft lookup is smooth, "
    "the nearest measurement is a staircase.",
    alt="A day's levels: 24 measurements, a smooth curve through them, the true level with a jump "
    "at 16:00, and the staircase of the nearest measurement. The smooth curve climbs slowly "
    "where the truth jumps.",
    size=(7.6, 5),
    controls=[
        Slider("query", "Hour (query)", DAY.tolist(), start=40, live=True, plays=True),
        Slider("width", "Width h, in hours", WIDTHS, start=WIDTHS.index(1), live=True),
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
                "effective": "1 / Σ a²: as noisy as a plain mean of this many",
                "error": "error of the whole curve (root mean square)",
            }
        ),
    ],
    code=f"""\
import numpy as np
from numformer.paper.softmax import softmax

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
BEGINNING = np.arange(-3, 3.25, 0.25).tolist()
SOFTNESS = [n / 20 for n in range(5, 20)] + [n / 4 for n in range(4, 33)]


def walk(start, temperature) -> np.ndarray:
    """The queries (STEPS + 1, 2) of gradient descent on the loss."""
    queries = [np.reshape(start, (1, 2))]
    for _ in range(STEPS):
        queries.append(queries[-1] - RATE * slope(queries[-1], temperature))
    return np.concatenate(queries)


def learn(start, temperature, step) -> dict[str, np.ndarray]:
    path = walk(start, temperature)
    weights, glasses = lookup(path, temperature)
    _, hard = lookup(path, HARD)
    now = 1.0 * (np.arange(STEPS + 1) == step)  # 1 at this step
    return {
        "path": path,
        "small": np.zeros(STEPS + 1),
        "query": now @ path,
        "key": key,
        "weights": now @ weights,
        "loss": glasses @ doutput[0],
        "hard": hard @ doutput[0],
    }


learning = Simulation(
    name="learning",
    title="A query learns to ask",
    say="Press **Play**: from step to step the query moves to where the loss is lower. Then drag "
    "its starting point to another place, and change the temperature.",
    caption="The path of a query that learns, starting at (1, 2) with temperature 2, and its loss.",
    alt="Two charts. One has the labels of the jugs as dots, and a path of queries that leads from "
    "the cherry's side to beyond the lemon. The other has the loss, which falls from 0.5 to nearly "
    "−3, and the loss of a hard lookup with the same queries, which falls at once from 3 to −3.",
    size=(7.6, 8),
    controls=[
        Slider("step", "Step", range(STEPS + 1), plays=True, live=True),
        Slider("temperature", "Temperature", SOFTNESS, SOFTNESS.index(2), live=True),
        Pad(
            "start",
            "Start (sweet, sour)",
            start=BEGINNING.index(2) * len(BEGINNING) + BEGINNING.index(1),
            across=BEGINNING,
            live=True,
        ),
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
            pad="start",
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
from lessons.lesson_02.lookup import lookup, slope, walk

start = 0
temperature = 0
step = 0

path = walk(start, temperature)  # {STEPS} times: query -= {RATE} * slope(query, temperature)
weights = lookup(path, temperature)[0][step]
query = path[step]
print(query.round(3), weights.round(3), slope(query[None], temperature))""",
)
