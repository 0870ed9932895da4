"""The steps of the attention stepper: what each says, and the lines and matrices that it shows."""

from dataclasses import dataclass, field

from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax, softmax_backward

FORWARD = scaled_dot_product_attention.__name__
BACKWARD = scaled_dot_product_attention_backward.__name__
SOFTMAX = softmax.__name__
SOFTMAX_BACKWARD = softmax_backward.__name__


@dataclass(frozen=True)
class TracedMatrix:
    """A matrix of the stepper: its symbol, its axes, and the line that makes it."""

    latex: str
    rows: str
    columns: str
    function: str
    begins: str  # how the line begins
    variable: str = ""  # the variable that holds it after this line; "" for what is returned


MATRICES = {
    "query": TracedMatrix("Q", "queries", "features", FORWARD, "def", "query"),
    "key": TracedMatrix("K", "keys", "features", FORWARD, "def", "key"),
    "value": TracedMatrix("V", "keys", "entries", FORWARD, "def", "value"),
    "scores": TracedMatrix("S", "queries", "keys", FORWARD, "scores = matmul", "scores"),
    "scaled": TracedMatrix("Z", "queries", "keys", FORWARD, "scores *= 1", "scores"),
    "allowed": TracedMatrix("M", "queries", "keys", FORWARD, "def", "mask"),
    "masked": TracedMatrix("Z", "queries", "keys", SOFTMAX, "scores = masked(", "scores"),
    "exponentials": TracedMatrix("E", "queries", "keys", SOFTMAX, "xp.exp(", "weights"),
    "total": TracedMatrix("n", "queries", "sum", SOFTMAX, "total = sum_last", "total"),
    "weights": TracedMatrix("A", "queries", "keys", SOFTMAX, "weights /= ", "weights"),
    "output": TracedMatrix("O", "queries", "entries", FORWARD, "return "),
    "doutput": TracedMatrix(r"\mathrm{d}O", "queries", "entries", BACKWARD, "def", "doutput"),
    "dvalue": TracedMatrix(r"\mathrm{d}V", "keys", "entries", BACKWARD, "dvalue = ", "dvalue"),
    "dweights": TracedMatrix(
        r"\mathrm{d}A", "queries", "keys", BACKWARD, "dweights = ", "dweights"
    ),
    "average": TracedMatrix("r", "queries", "average", SOFTMAX_BACKWARD, "dscores = dweights - "),
    "centred": TracedMatrix(
        "C", "queries", "keys", SOFTMAX_BACKWARD, "dscores = dweights - ", "dscores"
    ),
    "dscaled": TracedMatrix(
        r"\mathrm{d}Z", "queries", "keys", SOFTMAX_BACKWARD, "dscores *= weights", "dscores"
    ),
    "dscores": TracedMatrix(r"\mathrm{d}S", "queries", "keys", BACKWARD, "dscores *= 1", "dscores"),
    "dquery": TracedMatrix(r"\mathrm{d}Q", "queries", "features", BACKWARD, "dquery = ", "dquery"),
    "dkey": TracedMatrix(r"\mathrm{d}K", "keys", "features", BACKWARD, "dkey = ", "dkey"),
}


@dataclass(frozen=True)
class Code:
    """A line of the library in a step, and which matrices its names stand for.

    A name that stands for several in turn has a tuple of them.
    """

    function: str
    begins: str
    names: dict[str, str | tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step. In `equation` @name is the symbol of a matrix.

    `worked` says how an entry of the result comes about, for the arithmetic that is spelt out:
    a product names its factors and whether a row or a column of each takes part.
    """

    id: str
    name: str
    title: str
    say: str
    ask: str
    answer: str
    equation: str
    code: tuple[Code, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    worked: dict = field(default_factory=dict)
    inverts: str = ""  # the forward step that a backward step goes back through
    note: str = ""  # on a name in the code


def product(left: str, left_axis: str, right: str, right_axis: str) -> dict:
    return {"kind": "product", "left": [left, left_axis], "right": [right, right_axis]}


STEPS = (
    Step(
        "inputs",
        "inputs",
        "Three matrices come in",
        "Each token has a **query** (what it looks for), a **key** (what it offers) and a "
        "**value** (what it hands over). Each is one row. Pick a token: its query is the marked "
        "row.",
        "Which key fits the marked query best?",
        "Multiply the query by each key, entry by entry, and add up: that is its score. The "
        "largest fits best. The next step does this for all pairs at once.",
        r"\mathrm{Attention}(@query, @key, @value) = "
        r"\mathrm{softmax}\!\left(\frac{@query @key^\top}{\sqrt{d_k}}\right) @value",
        (Code(FORWARD, "def", {"query": "query", "key": "key", "value": "value"}),),
        (),
        ("query", "key", "value"),
    ),
    Step(
        "scores",
        "scores",
        "Every query meets every key",
        "An entry of $S$ is the dot product of one query with one key. It is large where both have "
        "large numbers in the same places.",
        "Pick another token: which row of $S$ is marked? Raise the temperature: which entries "
        "change?",
        "The row of its query, which has one score for each key. The temperature divides every "
        "query, so it divides all of $S$; only a 0 stays as it is.",
        r"@scores = @query @key^\top",
        (Code(FORWARD, "scores = matmul", {"scores": "scores", "query": "query", "key": "key"}),),
        ("query", "key"),
        ("scores",),
        product("query", "row", "key", "row"),
    ),
    Step(
        "scale",
        "scale",
        "Divide by √d_k",
        "The longer the vectors, the larger their dot products. Dividing by $\\sqrt{d_k}$ keeps "
        "them where softmax still reacts.",
        "Which temperature undoes this step?",
        "A temperature of $1/\\sqrt{d_k}$: it multiplies all queries by $\\sqrt{d_k}$ first. The "
        "scale is itself a temperature, one that is always on.",
        r"@scaled = \frac{@scores}{\sqrt{d_k}}",
        (Code(FORWARD, "scores *= 1", {"scores": "scaled"}),),
        ("scores",),
        ("scaled",),
        {"kind": "scale"},
    ),
    Step(
        "mask",
        "mask",
        "Hide what may not be seen",
        "Where $M$ says no, the score becomes $-\\infty$. Its weight will be exactly 0, and the "
        "others will still sum to 1.",
        "With the causal mask, which token still sees everything?",
        "The last. A token sees itself and those before it.",
        r"@masked_{ts} = \begin{cases} @scaled_{ts} & \text{if } @allowed_{ts} \\ "
        r"-\infty & \text{else} \end{cases}",
        (
            Code(
                SOFTMAX,
                "scores = masked(",
                {"scores": ("masked", "scaled", "scaled"), "mask": "allowed"},
            ),
        ),
        ("scaled", "allowed"),
        ("masked",),
        {"kind": "mask"},
    ),
    Step(
        "softmax",
        "softmax",
        "Each row becomes weights",
        "Exponentials make all entries positive; dividing by their sum $n$ makes each row sum "
        "to 1. The row's largest score is subtracted first: no weight changes by that, and no "
        "exponential can overflow.",
        "Lower the temperature. What happens to the largest weight of each row?",
        "It goes to 1 and the others to 0: the soft lookup becomes a hard one. If several scores "
        "are the highest, they get equal weights. A high temperature makes all weights alike.",
        r"@exponentials_{ts} = e^{@masked_{ts} - \max_u @masked_{tu}}"
        "\n\n"
        r"@total_t = \sum_s @exponentials_{ts}"
        "\n\n"
        r"@weights_{ts} = \frac{@exponentials_{ts}}{@total_t}",
        (
            Code(SOFTMAX, "weights = scores - ", {"scores": "masked"}),
            Code(SOFTMAX, "xp.exp(", {"weights": "exponentials"}),
            Code(SOFTMAX, "total = sum_last", {"total": "total", "weights": "exponentials"}),
            Code(SOFTMAX, "weights /= ", {"weights": "weights", "total": "total"}),
        ),
        ("masked",),
        ("exponentials", "total", "weights"),
        {"kind": "softmax"},
        note="`highest` is the largest score of each row; the library finds it just before. Why "
        "`maximum(total, 1)`? A row that may see nothing has total 0, and 0 / 1 is 0. In every "
        "other the largest score alone adds exp(0) = 1, so nothing changes.",
    ),
    Step(
        "blend",
        "blend",
        "Blend the values",
        "Each output is a mixture of the values, in the proportions of its row of $A$.",
        "Can an output be larger than the largest value in its column of $V$?",
        "No. The weights of a row are at least 0 and sum to 1, so a mixture stays between the "
        "smallest and the largest. A row that sees nothing gives 0.",
        r"@output = @weights @value",
        (
            Code(
                FORWARD,
                "return ",
                {
                    "matmul": "output",
                    "dropped": "weights",
                    "value": "value",
                    "weights": "weights",
                },
            ),
        ),
        ("weights", "value"),
        ("output",),
        product("weights", "row", "value", "column"),
    ),
    Step(
        "upstream",
        "dO",
        "A gradient comes back",
        "Somewhere above, a loss $L$ is computed from $O$. An entry of $\\mathrm{d}O$ says how "
        "much $L$ grows when this entry of $O$ grows a little. Choose it yourself: all that "
        "follows is **linear** in $\\mathrm{d}O$.",
        "You double $\\mathrm{d}O$. What happens to the gradients that follow?",
        "They double. And the gradients of a sum are the sums of the gradients: this page holds "
        "what numformer computed for a 1 in one entry of $\\mathrm{d}O$ and 0 elsewhere, once for "
        "each entry, and only adds these up.",
        r"@doutput_{tj} = \frac{\partial L}{\partial @output_{tj}}",
        (
            Code(
                BACKWARD,
                "def",
                {
                    "doutput": "doutput",
                    "query": "query",
                    "key": "key",
                    "value": "value",
                    "weights": "weights",
                    "dropped": "weights",
                },
            ),
        ),
        ("output",),
        ("doutput",),
        inverts="blend",
    ),
    Step(
        "dvalue",
        "dV",
        "Back to the values",
        "On the way there, token $s$ handed its value to all outputs $t$, with weights $A_{ts}$. "
        "On the way back it collects from them, with the same weights: a column of $A$ instead of "
        "a row.",
        "Hide the last token. What is its row of $\\mathrm{d}V$?",
        "Exactly 0. Nobody looked at it, so its value changes nothing.",
        r"@dvalue = @weights^\top @doutput",
        (
            Code(
                BACKWARD,
                "dvalue = ",
                {"dvalue": "dvalue", "dropped": "weights", "doutput": "doutput"},
            ),
        ),
        ("weights", "doutput"),
        ("dvalue",),
        product("weights", "column", "doutput", "column"),
        "blend",
    ),
    Step(
        "dweights",
        "dA",
        "Back to the weights",
        "The other factor of the same product. A little more weight $A_{ts}$ adds a little of "
        "value $s$ to output $t$. The dot product of that value with row $t$ of $\\mathrm{d}O$ "
        "says how much the loss rises.",
        "Does the mask change $\\mathrm{d}A$?",
        "No. It says what a weight would do, not whether it may. The mask comes in with the "
        "weights, in the next two steps: a hidden entry has weight 0.",
        r"@dweights = @doutput @value^\top",
        (
            Code(
                BACKWARD,
                "ddropped = ",
                {"ddropped": "dweights", "doutput": "doutput", "value": "value"},
            ),
            Code(BACKWARD, "dweights = ", {"dweights": "dweights", "ddropped": "dweights"}),
        ),
        ("doutput", "value"),
        ("dweights",),
        product("doutput", "row", "value", "row"),
        "blend",
    ),
    Step(
        "centred",
        "C",
        "Softmax, first line: subtract the average",
        "The weights of a row sum to 1: one grows only if others shrink. So what counts is how far "
        "an entry is above its row's average $r$, in which each counts by its weight.",
        "Let only one weight of a row be large (temperature 0.25). Which entry of $C$ goes to 0?",
        "The one with the large weight: it is nearly the average itself.",
        r"@average_t = \sum_s @dweights_{ts}\, @weights_{ts}"
        "\n\n"
        r"@centred_{ts} = @dweights_{ts} - @average_t",
        (
            Code(
                SOFTMAX_BACKWARD,
                "dscores = dweights - ",
                {"dscores": "centred", "dweights": "dweights", "weights": "weights"},
            ),
        ),
        ("dweights", "weights"),
        ("average", "centred"),
        {"kind": "centre"},
        "softmax",
    ),
    Step(
        "dscaled",
        "dZ",
        "Softmax, second line: times the weights",
        "A score acts through its weight, so a small weight passes little back. A hidden entry "
        "passes exactly 0.",
        "What does each row of $\\mathrm{d}Z$ sum to?",
        "To 0. The same number added to all scores of a row changes no weight, so it cannot change "
        "the loss.",
        r"@dscaled = @weights \odot @centred",
        (
            Code(
                SOFTMAX_BACKWARD,
                "dscores *= weights",
                {"dscores": "dscaled", "weights": "weights"},
            ),
        ),
        ("weights", "centred"),
        ("dscaled",),
        {"kind": "times"},
        "softmax",
    ),
    Step(
        "dscores",
        "dS",
        "The same scale again",
        "What was divided by $\\sqrt{d_k}$ on the way there is divided by it on the way back.",
        "Leave this line out by mistake. Which gradients are wrong, and by which factor?",
        "$\\mathrm{d}Q$ and $\\mathrm{d}K$ by $\\sqrt{d_k}$. $\\mathrm{d}V$ is right: it left the "
        "path earlier. That pattern is how the mistake is found.",
        r"@dscores = \frac{@dscaled}{\sqrt{d_k}}",
        (Code(BACKWARD, "dscores *= 1", {"dscores": "dscores"}),),
        ("dscaled",),
        ("dscores",),
        {"kind": "scale"},
        "scale",
    ),
    Step(
        "dquery",
        "dQ",
        "Back to the queries",
        "A query's gradient is a sum of the keys, each times its entry in the query's row of "
        "$\\mathrm{d}S$. These entries may be negative: a step against the gradient moves the "
        "query towards some keys and away from others.",
        "Set $\\mathrm{d}O$ to only the picked token. Which rows of $\\mathrm{d}Q$ are not 0?",
        "At most its own. A query acts on its own output alone.",
        r"@dquery = @dscores @key",
        (
            Code(
                BACKWARD,
                "dquery = ",
                {"dquery": "dquery", "dscores": "dscores", "key": "key"},
            ),
        ),
        ("dscores", "key"),
        ("dquery",),
        product("dscores", "row", "key", "column"),
        "scores",
    ),
    Step(
        "dkey",
        "dK",
        "Back to the keys",
        "A key was read by every query, so its gradient gathers from all of them: a column of "
        "$\\mathrm{d}S$. Now each input has a gradient of its own shape.",
        "With $\\mathrm{d}O$ for only the picked token, which rows of $\\mathrm{d}K$ are not 0?",
        "At most those of the keys that this token may see: without a mask all, with the causal "
        "mask those up to itself. With the causal mask and the first token all rows are 0: its "
        "only weight is 1, whatever its score.",
        r"@dkey = @dscores^\top @query",
        (Code(BACKWARD, "dkey = ", {"dkey": "dkey", "dscores": "dscores", "query": "query"}),),
        ("dscores", "query"),
        ("dkey",),
        product("dscores", "column", "query", "column"),
        "scores",
    ),
)
