"""The simulation of lesson 3: scaled dot-product attention, step by step, there and back."""

import numpy as np

from lessons.kit.simulation import Choice, Entries, Option, Simulation, Slider
from lessons.kit.stepper import Code, Step, Stepper, Steps
from lessons.kit.trace import Line, find, trace
from lessons.kit.views import Of
from numformer.arithmetic import dot_last
from numformer.paper.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.softmax import softmax, softmax_backward

# The example of the lesson. The start mark was read before: it has a key and a value, no query.
keys = ["⟨s⟩", "the", "cat", "it", "purrs"]
tokens = keys[1:]
features = ["article", "noun", "verb"]
query = np.array([[0, 2, 0], [2, 0, 1], [-1, 2, 0], [0, 2, -1]], dtype=float)
key = np.array([[0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 1, -1], [0, 0, 2]], dtype=float)
value = np.array([[0, 0], [-1, -1], [2, 1], [0, 2], [1, -2]], dtype=float)
doutput = np.array([[1, 0], [0, -1], [-1, 2], [1, 1]], dtype=float)

FORWARD = scaled_dot_product_attention.__name__
BACKWARD = scaled_dot_product_attention_backward.__name__
SOFTMAX, SOFTMAX_BACKWARD = softmax.__name__, softmax_backward.__name__
CENTRED = "dscores = dweights - "

# For each matrix: its symbol, its axes, how large an entry of the darkest colour is; then the
# function and the line of the library that make it, and the variable that holds it ("" for what is
# returned or has no name).
MATRICES = {
    "query": ("Q", "queries", "features", 2, FORWARD, "def", "query"),
    "key": ("K", "keys", "features", 2, FORWARD, "def", "key"),
    "value": ("V", "keys", "entries", 2, FORWARD, "def", "value"),
    "scores": ("E", "queries", "keys", 4, FORWARD, "scores = matmul", "scores"),
    "scaled": ("Z", "queries", "keys", 4, FORWARD, "scores *= 1", "scores"),
    "allowed": ("M", "queries", "keys", 1, FORWARD, "def", "mask"),
    "masked": ("Z'", "queries", "keys", 4, SOFTMAX, "scores = mask_scores(", "scores"),
    "exponentials": ("G", "queries", "keys", 1, SOFTMAX, "xp.exp(", "weights"),
    "total": ("n", "queries", "sum", 5, SOFTMAX, "total = sum_last", "total"),
    "weights": ("A", "queries", "keys", 1, SOFTMAX, "weights /= ", "weights"),
    "output": ("O", "queries", "entries", 2, FORWARD, "return ", ""),
    "doutput": (r"\mathrm{d}O", "queries", "entries", 4, BACKWARD, "def", "doutput"),
    "dvalue": (r"\mathrm{d}V", "keys", "entries", 4, BACKWARD, "dvalue = ", "dvalue"),
    "dweights": (r"\mathrm{d}A", "queries", "keys", 4, BACKWARD, "dweights = ", "dweights"),
    "average": ("r", "queries", "average", 4, SOFTMAX_BACKWARD, CENTRED, ""),
    "centred": (r"\mathrm{d}A'", "queries", "keys", 4, SOFTMAX_BACKWARD, CENTRED, "dscores"),
    "dscaled": (r"\mathrm{d}Z", "queries", "keys", 1, SOFTMAX_BACKWARD, "dscores *= w", "dscores"),
    "dscores": (r"\mathrm{d}E", "queries", "keys", 1, BACKWARD, "dscores *= 1", "dscores"),
    "dquery": (r"\mathrm{d}Q", "queries", "features", 1, BACKWARD, "dquery = ", "dquery"),
    "dkey": (r"\mathrm{d}K", "keys", "features", 1, BACKWARD, "dkey = ", "dkey"),
}
AXES = dict(queries=tokens, keys=keys, features=features, entries=["x", "y"])
SHOWN = {
    name: Of(
        name,
        symbol,
        AXES[rows],
        AXES.get(columns, [columns]),
        largest,
        f"{rows} × {columns}",
        ("no", "yes") if name == "allowed" else (),
    )
    for name, (symbol, rows, columns, largest, *_) in MATRICES.items()
}
MIRRORED = (
    "query key value",
    "scores masked weights output",
    "dscores dscaled dweights doutput",
    "dquery dkey dvalue",
)


def of(*same: str, **others) -> dict:
    """For each name in a line its matrix: the matrix of the same name, or one given in `others`."""
    return {name: name for name in same} | others


MASKED = "masked", "scaled", "scaled"  # the matrices that `scores` stands for in that line, in turn
GIVEN = "doutput", "query", "key", "value", "weights"
STEPS = (
    Step(
        "inputs",
        "inputs",
        "Three matrices come in",
        "Each token has a **query** (what it looks for), a **key** (what it offers) and a "
        "**value** (what it hands over), one row each. Pick a token: its query is the marked row. "
        "Type another query for *it*.",
        "Which key fits the marked query best?",
        "Multiply the query by each key, entry by entry, and add up: the key with the largest sum "
        "fits best. The next step does this for all pairs at once.",
        r"\mathrm{Attention}(@query, @key, @value) = "
        r"\mathrm{softmax}\!\left(\frac{@query @key^\top}{\sqrt{d_k}}\right) @value",
        [Code(FORWARD, "def", of("query", "key", "value"))],
        results=("query", "key", "value"),
        see="Four tokens",
    ),
    Step(
        "scores",
        "scores",
        "Every query meets every key",
        "An entry of $E$ is the dot product of one query with one key. It is large if both have "
        "large numbers in the same places.",
        "Raise the temperature: which entries change?",
        "The temperature divides every query, so it divides all of $E$; only a 0 stays as it is.",
        r"@scores = @query @key^\top",
        [Code(FORWARD, "scores = matmul", of("scores", "query", "key"))],
        ("query", "key"),
        ("scores",),
        ("query", "row", "key", "row"),
        see="Four steps",
    ),
    Step(
        "scale",
        "scale",
        "Divide by √d_k",
        "The more entries vectors have, the larger their dot products. Dividing by $\\sqrt{d_k}$ "
        "keeps them where the softmax still reacts.",
        "Which temperature undoes this step?",
        "$1/\\sqrt{d_k}$. The scale is itself a temperature, one that is always on.",
        r"@scaled = \frac{@scores}{\sqrt{d_k}}",
        [Code(FORWARD, "scores *= 1", of(scores="scaled"))],
        ("scores",),
        ("scaled",),
        ("/", "scores", float(np.sqrt(3))),
        see="Why divide by the root?",
    ),
    Step(
        "mask",
        "mask",
        "Hide the forbidden keys",
        "Where $M$ says no, the score becomes $-\\infty$. Its weight will be exactly 0, and the "
        "other weights of the row will still sum to 1.",
        "With the causal mask, which token still sees everything?",
        "The last. A token sees the start, itself and those before it.",
        r"@masked_{ts} = \begin{cases} @scaled_{ts} & \text{if } @allowed_{ts} \\ "
        r"-\infty & \text{else} \end{cases}",
        [
            Code(
                SOFTMAX,
                "scores = mask_scores(",
                of(scores=MASKED, mask="allowed"),
            )
        ],
        ("scaled", "allowed"),
        ("masked",),
        see="The equation and its lines",
    ),
    Step(
        "softmax",
        "softmax",
        "Each row becomes weights",
        "Exponentials make all entries positive; dividing by their sum $n$ makes each row sum "
        "to 1. The row's largest score is subtracted first, so no exponential overflows.",
        "Lower the temperature. What happens to the largest weight of each row?",
        "It goes towards 1, the others towards 0. Equal highest scores get equal weights. A high "
        "temperature makes all weights alike.",
        r"@exponentials_{ts} = e^{@masked_{ts} - \max_u @masked_{tu}}"
        "\n\n"
        r"@weights_{ts} = \frac{@exponentials_{ts}}{@total_t}, \quad "
        r"@total_t = \sum_s @exponentials_{ts}",
        [
            Code(SOFTMAX, "weights = scores - ", of(scores="masked")),
            Code(SOFTMAX, "xp.exp(", of(weights="exponentials")),
            Code(SOFTMAX, "total = sum_last", of("total", weights="exponentials")),
            Code(SOFTMAX, "weights /= ", of("weights", "total")),
        ],
        ("masked",),
        ("exponentials", "total", "weights"),
        ("/", "exponentials", "total"),
        note="`maximum(total, 1)`: a row that sees nothing has the total 0, and is divided by 1.",
        see="Four steps",
    ),
    Step(
        "blend",
        "blend",
        "Blend the values",
        "Each output is a mixture of the values, in the proportions of its row of $A$.",
        "Can an output be larger than the largest value in its column of $V$?",
        "No. A mixture stays between the smallest and the largest. A row that sees nothing gives "
        "0.",
        r"@output = @weights @value",
        [Code(FORWARD, "return ", of("value", "weights", matmul="output"))],
        ("weights", "value"),
        ("output",),
        ("weights", "row", "value", "column"),
        see="Four steps",
    ),
    Step(
        "upstream",
        "dO",
        "A gradient comes back",
        "Later in the model, a loss is computed from $O$. An entry of $\\mathrm{d}O$ says how "
        "much it grows when this entry of $O$ grows a little. Choose $\\mathrm{d}O$ yourself.",
        "You double $\\mathrm{d}O$. What happens to the gradients that follow?",
        "They double: all that follows is **linear** in $\\mathrm{d}O$. Try it: type numbers.",
        r"@doutput_{tj} = \frac{\partial\,\mathrm{loss}}{\partial @output_{tj}}",
        [Code(BACKWARD, "def", of(*GIVEN))],
        ("output",),
        ("doutput",),
        inverts="blend",
        see="The way back",
    ),
    Step(
        "dvalue",
        "dV",
        "Back to the values",
        "Going forward, token $s$ handed its value to all outputs $t$, with weights $A_{ts}$. "
        "Going back, its gradient collects from all of them, with the same weights: a column of "
        "$A$ instead of a row.",
        "Hide the last token. What is its row of $\\mathrm{d}V$?",
        "Exactly 0. Nobody looked at it, so its value changes nothing.",
        r"@dvalue = @weights^\top @doutput",
        [Code(BACKWARD, "dvalue = ", of("dvalue", "doutput", "weights"))],
        ("weights", "doutput"),
        ("dvalue",),
        ("weights", "column", "doutput", "column"),
        "blend",
        see="Through a matrix product",
    ),
    Step(
        "dweights",
        "dA",
        "Back to the weights",
        "$A$ is the other factor of the same product. A little more weight $A_{ts}$ adds a little "
        "of value $s$ to output $t$. The dot product of that value with row $t$ of $\\mathrm{d}O$ "
        "says how much the loss rises.",
        "Does the mask change $\\mathrm{d}A$?",
        "No. It says what a change of a weight would do, not whether the mask allows that weight. "
        "The mask acts through the weights, in the next two steps.",
        r"@dweights = @doutput @value^\top",
        [Code(BACKWARD, "dweights = ", of("dweights", "doutput", "value"))],
        ("doutput", "value"),
        ("dweights",),
        ("doutput", "row", "value", "row"),
        "blend",
        see="Through a matrix product",
    ),
    Step(
        "centred",
        "dA′",
        "Softmax, first line: subtract the average",
        "The weights of a row sum to 1: one grows only if others shrink. So what counts is how far "
        "an entry of $\\mathrm{d}A$ is above its row's weighted average $r$. (You will write the "
        "code for this.)",
        "Let one weight of a row be much larger than the others (temperature 0.25). Which entry of "
        "$\\mathrm{d}A'$ goes to 0?",
        "The entry of the large weight: its $\\mathrm{d}A$ is nearly the average itself.",
        r"@centred_{ts} = @dweights_{ts} - @average_t, \quad "
        r"@average_t = \sum_s @dweights_{ts}\, @weights_{ts}",
        (),  # exercise 1 asks for the code
        ("dweights", "weights"),
        ("average", "centred"),
        ("-", "dweights", "average"),
        "softmax",
        see="Through the softmax",
    ),
    Step(
        "dscaled",
        "dZ",
        "Softmax, second line: times the weights",
        "A score acts through its weight, so a small weight passes little back. A hidden entry "
        "passes exactly 0.",
        "What does each row of $\\mathrm{d}Z$ sum to?",
        "To 0. The same number added to all scores of a row changes no weight.",
        r"@dscaled = @weights \odot @centred",
        (),
        ("weights", "centred"),
        ("dscaled",),
        ("*", "weights", "centred"),
        "softmax",
        see="Through the softmax",
    ),
    Step(
        "dscores",
        "dE",
        "The same scale again",
        "Forward divided the scores by $\\sqrt{d_k}$, so backward divides their gradient by it.",
        "Suppose you forget this line. Which gradients are wrong, and by which factor?",
        "$\\mathrm{d}Q$ and $\\mathrm{d}K$ are $\\sqrt{d_k}$ times too large. $\\mathrm{d}V$ is "
        "right: it does not use this line. That pattern gives the mistake away.",
        r"@dscores = \frac{@dscaled}{\sqrt{d_k}}",
        [Code(BACKWARD, "dscores *= 1", of("dscores"))],
        ("dscaled",),
        ("dscores",),
        ("/", "dscaled", float(np.sqrt(3))),
        "scale",
        see="All of it",
    ),
    Step(
        "dquery",
        "dQ",
        "Back to the queries",
        "A query's gradient is a sum of the keys, each times its entry in the query's row of "
        "$\\mathrm{d}E$. A step against this gradient moves the query towards some keys and away "
        "from others.",
        "Set $\\mathrm{d}O$ to “only it”. Which rows of $\\mathrm{d}Q$ are not 0?",
        "At most the row of *it*. A query acts on its own output alone.",
        r"@dquery = @dscores @key",
        [Code(BACKWARD, "dquery = ", of("dquery", "dscores", "key"))],
        ("dscores", "key"),
        ("dquery",),
        ("dscores", "row", "key", "column"),
        "scores",
        see="All of it",
    ),
    Step(
        "dkey",
        "dK",
        "Back to the keys",
        "A key was read by every query, so its gradient gathers from all of them: a column of "
        "$\\mathrm{d}E$. Now each input has a gradient of its own shape.",
        "With $\\mathrm{d}O$ for only *it*, which rows of $\\mathrm{d}K$ are not 0?",
        "At most the rows of the keys that *it* may see.",
        r"@dkey = @dscores^\top @query",
        [Code(BACKWARD, "dkey = ", of("dkey", "dscores", "query"))],
        ("dscores", "query"),
        ("dkey",),
        ("dscores", "column", "query", "column"),
        "scores",
        see="All of it",
    ),
)

SEEN, AWAKE = np.arange(5) < 4, np.arange(4) != 2
MASKS = [
    Option(np.ones((4, 5), bool), "none", "Everyone sees everyone.", "np.ones((4, 5), bool)"),
    Option(
        np.tri(4, 5, 1, dtype=bool),
        "causal",
        "A token sees the start, itself and those before it.",
        "np.tri(4, 5, 1, dtype=bool)",
    ),
    Option(
        np.tile(SEEN, (4, 1)),
        "“purrs” hidden",
        "As if *purrs* were padding: nobody sees it. It still looks at others.",
        "np.tile(np.arange(5) < 4, (4, 1))",
    ),
    Option(
        np.tile(AWAKE[:, None], 5),
        "“it” sees nothing",
        "All keys are hidden from *it*. Its weights, output and gradient are 0: no NaN anywhere.",
        "np.tile(np.arange(4)[:, None] != 2, 5)",
    ),
]
IT = slice(2, 3)
WANTED = [
    Option(query[IT], "a noun", "As in the text: a noun, and no article."),
    Option(np.array([[0.0, 0, 2]]), "a verb", "Now *it* finds *purrs*."),
    Option(np.zeros((1, 3)), "nothing", "All its scores are 0: *it* takes the same from everyone."),
]
TEMPERATURES = [n / 20 for n in range(5, 81)]
UPSTREAM = [
    Option(doutput, "as given", "A gradient without pattern, the best test of a backward pass."),
    Option(doutput * ~AWAKE[:, None], "only it", "Only the output of *it* matters to the loss."),
    Option(
        np.ones((4, 2)),
        "all ones",
        r"All rows of $\mathrm{d}A$ are the same, and so are the columns of $\mathrm{d}V$. "
        "Mistakes that mix them up stay unseen: a poor test of a backward pass.",
    ),
]


def lines(mask=MASKS[0].value, temperature=1.0, own=query[IT], doutput=doutput) -> list[Line]:
    """What the library's lines do, forward and backward; `own` is the query of `it`."""
    queries = np.concatenate([query[: IT.start], own, query[IT.stop :]])
    inputs = queries / temperature, key, value
    forward = trace(scaled_dot_product_attention, *inputs, mask, into=[softmax])
    _, weights = forward[-1].value
    backward = scaled_dot_product_attention_backward, doutput, *inputs, weights
    return forward + trace(*backward, into=[softmax_backward])


def compute(**values) -> dict[str, np.ndarray]:
    """Each matrix by its name, as a line of the library made it."""
    ran, made = lines(**values), {}
    for name, (*_, function, begins, variable) in MATRICES.items():
        line = find(ran, function, begins)
        made[name] = line.after.get(variable)
        if name == "output":
            made[name] = line.value[0]
        elif name == "average":
            made[name] = dot_last(line.after["dweights"], line.after["weights"])
    return made


def draw_all(figure) -> None:
    """Matrices in two rows; below them their gradients, as in a mirror."""
    arrays = compute()
    grid = figure.add_gridspec(4, 4)
    for row, names in enumerate(MIRRORED):
        for column, name in enumerate(names.split()):
            SHOWN[name].matrix(arrays).draw(figure.add_subplot(grid[row, column]))


def array(numbers) -> str:
    return f"np.array({numbers.astype(int).tolist()}, float)"


attention = Simulation(
    name="attention",
    title="Attention, step by step, there and back",
    say="Four words of *the cat, it purrs* look at each other. Press **Next**: *it* finds *cat* in "
    "six steps. Eight more take the gradient back.",
    caption="Read it row by row: forward in the first two rows, then backward, from the third row "
    "to the fourth. Each gradient stands below the matrix that it belongs to.",
    alt="Matrices of the example with their numbers. First row: Q, K and V. Second row: E, Z′, "
    "the weights A and the output O. Below them, each under the matrix that it belongs to: the "
    "gradients dE, dZ, dA and dO, then dQ, dK and dV.",
    size=(7.6, 6.4),
    controls=[
        Steps("step", "Step", [step.name for step in STEPS], shows_only=True),
        Choice("picked", "Picked token", tokens, start=2, shows_only=True),
        Choice("mask", "Mask", MASKS),
        Slider("temperature", "Temperature", TEMPERATURES, TEMPERATURES.index(1), live=True),
        Entries("own", "Query of it", WANTED, symbol=r"q_\text{it}", rows=["it"], columns=features),
        Entries(
            "doutput",
            "Upstream gradient",
            UPSTREAM,
            symbol=r"\mathrm{d}O",
            rows=tokens,
            columns=["x", "y"],
        ),
    ],
    compute=compute,
    views=[
        Stepper(
            STEPS,
            list(SHOWN.values()),
            lines,
            "step",
            "picked",
            [name for name, (_, rows, *_) in MATRICES.items() if rows == "queries"],
        )
    ],
    draw=draw_all,
    code=f"""\
import numpy as np
from numformer.paper.attention import scaled_dot_product_attention
from numformer.paper.attention import scaled_dot_product_attention_backward

query = {array(query)}
key = {array(key)}
value = {array(value)}
own = 0  # the query of `it`
temperature = 1
mask = 0
doutput = 0

query[2] = own
query /= temperature
output, weights = scaled_dot_product_attention(query, key, value, mask)
dquery, dkey, dvalue = scaled_dot_product_attention_backward(doutput, query, key, value, weights)
print(weights.round(2), dquery.round(2), dkey.round(2), dvalue.round(2), sep="\\n\\n")""",
)
