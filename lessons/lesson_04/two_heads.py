"""Two heads whose weights are chosen by hand, and their simulation, there and back."""

import numpy as np

from lessons.kit.simulation import Choice, Entries, Option, Simulation
from lessons.kit.stepper import Code, Step, Stepper, Steps
from lessons.kit.trace import Line, find, trace
from lessons.kit.views import Of
from numformer import SelfAttention, pack
from numformer.backend import array_module
from numformer.paper.attention import (
    Heads,
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from numformer.paper.linear import linear_backward

# The example of the lesson: T = 5 words, D = 6 features, h = 2 heads of d_k = 3.
features = ["noun", "verb", "plural", "1", "p", "p²"]
described = {
    "dogs": (1, 0, 1),
    "dog": (1, 0, 0),
    "that": (0, 0, 0),
    "he": (0, 0, 0),
    "they": (0, 0, 1),
    "trusts": (0, 1, 0),
    "trust": (0, 1, 1),
    "bark": (0, 1, 1),
    "barks": (0, 1, 0),
}
sentences = ["dogs that he trusts bark".split(), "dog that they trust barks".split()]
words, parts = sentences[0], ["a", "b", "c"]
columns = [f"{head} {part}" for head in "12" for part in parts]
handed = [f"{head} {feature}" for head in "12" for feature in features[:3]]


W_Q, W_K, W_V, W_O = np.zeros((4, 6, 6))  # the entries that are not 0, by rows and columns
W_Q[[1, 0, 3, 3, 3, 4, 4, 5], [3, 4, 0, 1, 2, 0, 1, 0]] = 4, 4, -4, -8, -4, 8, 8, -4
W_K[[0, 1, 3, 4, 5], [3, 4, 0, 1, 2]] = 1
W_V[[0, 1, 2, 0, 1, 2], range(6)] = 1
W_O[[1, 2, 3, 5], [1, 2, 0, 2]] = 1, -1, 1, 1
DY = np.array(
    [
        [1, 0, -1, 0, 2, 0],
        [0, 1, 0, 0, 0, -1],
        [-1, 0, 1, 0, 0, 0],
        [0, 2, 0, -1, 0, 0],
        [2, -1, 1, 0, 1, 0],
    ],
    float,
)


def embedded(sentence: list[str]) -> np.ndarray:
    """What each word is, a 1, and its place p, counted from the middle, with its square."""
    return np.array([(*described[word], 1, p, p * p) for p, word in enumerate(sentence, -2)], float)


def two_heads(xp=np) -> SelfAttention:
    """The library's layer with these weights."""
    layer = SelfAttention(6, 2, np.random.default_rng(0))
    pack(layer, np.float64)
    for each, chosen in zip(layer.named_parameters().values(), (W_Q, W_K, W_V, W_O), strict=True):
        each.data[...] = chosen
    pack(layer, np.float64, xp)
    return layer


def ran(dy=DY, sentence=words) -> tuple[SelfAttention, list[Line]]:
    """The layer, and what the library's lines do in it, forward and backward."""
    xp = array_module(dy)
    layer, x = two_heads(xp), xp.asarray(embedded(sentence))
    into = [
        Heads.forward,
        MultiHeadAttention.attend,
        MultiHeadAttention.backward,
        split_heads,
        merge_heads,
        linear_backward,
        scaled_dot_product_attention,
    ]
    forward = trace(layer.forward, x[None], into=into)
    return layer, forward + trace(layer.backward, dy[None], into=into)


def compute(dy=DY, sentence=words) -> dict[str, np.ndarray]:
    """Every matrix by its name, as the library's layer makes it, there and back."""
    layer, lines = ran(dy, sentence)
    heads = find(lines, "attend", "heads = ").after
    within = find(lines, "backward", "dquery, dkey").after
    weights = find(lines, "scaled_dot_product_attention", "weights = ").after["weights"]
    dmemory = find(lines, "backward", "dmemory += ").after["dmemory"]
    dx = find(lines, "backward", "dx += ").after["dx"]
    arrays = dict(
        x=embedded(sentence),
        q=merge_heads(heads["query"]),
        c=merge_heads(heads["heads"]),
        wo=W_O,
        y=find(lines, "attend", "return self.output").value,
        dc=merge_heads(within["dheads"]),
        dy=dy,
        dq=merge_heads(within["dquery"]),
        dwq=layer.query.weight.grad,
        dmemory=dmemory,
        dx=dx,
        dxq=dx - dmemory,
        wq=W_Q,
    )
    for name, of_both in dict(q=heads["query"], a=weights, dq=within["dquery"]).items():
        arrays |= {f"{name}one": of_both[0, 0], f"{name}two": of_both[0, 1]}
    return {name: array.reshape(array.shape[-2:]) for name, array in arrays.items()}


SHOWN = {  # for each matrix its symbol, rows, columns, and the size of the darkest entry
    "x": ("X", words, features, 4),
    "q": ("Q", words, columns, 16),
    "qone": ("Q_1", words, parts, 16),
    "qtwo": ("Q_2", words, parts, 16),
    "wq": ("W^Q", features, columns, 8),
    "aone": ("A_1", words, words, 1),
    "atwo": ("A_2", words, words, 1),
    "c": ("C", words, handed, 1),
    "wo": ("W^O", handed, features, 1),
    "y": ("Y", words, features, 1),
    "dy": (r"\mathrm{d}Y", words, features, 2),
    "dc": (r"\mathrm{d}C", words, handed, 2),
    "dqone": (r"\mathrm{d}Q_1", words, parts, 1),
    "dqtwo": (r"\mathrm{d}Q_2", words, parts, 1),
    "dq": (r"\mathrm{d}Q", words, columns, 1),
    "dwq": (r"\mathrm{d}W^Q", features, columns, 1),
    "dxq": (r"\mathrm{d}Q\,W^{Q\top}", words, features, 2),
    "dmemory": (r"\mathrm{d}H", words, features, 2),
    "dx": (r"\mathrm{d}X", words, features, 2),
}
OF = [Of(name, *shown) for name, shown in SHOWN.items()]

STEPS = (
    Step(
        "project",
        "Q",
        "Project: the queries of all heads at once",
        "Three columns of $W^Q$ make the query of head 1, three the query of head 2. $W^K$ and "
        "$W^V$ make keys and values in the same way.",
        "What would a third head need?",
        "Columns 7 to 9 in each of these weights, and three more rows in $W^O$.",
        r"@q = @x @wq",
        [Code("forward", "return split_heads", {"x": "x", "matmul": "q", "weight": "wq"})],
        ("x", "wq"),
        ("q",),
        ("x", "row", "wq", "column"),
        see="Two heads by hand",
    ),
    Step(
        "attend",
        "attend",
        "Split, and attend: each head by itself",
        "Each head takes its three columns of $Q$, $K$ and $V$. Then lesson 3 happens twice.",
        "Pick *bark*. Where does each head look?",
        "Head 1 at *trusts*, head 2 at *dogs*. There are two rows of weights, and each sums to 1.",
        r"@aone = \mathrm{softmax}(@qone K_1^\top / \sqrt{d_k})"
        "\n\n"
        r"@atwo = \mathrm{softmax}(@qtwo K_2^\top / \sqrt{d_k})",
        [
            Code("split_heads", "return x.reshape", {"x": "q"}),
            Code("scaled_dot_product_attention", "weights = softmax"),
        ],
        ("qone", "qtwo"),
        ("aone", "atwo"),
        see="Split and merge",
    ),
    Step(
        "merge",
        "merge",
        "Concatenate: what both found, side by side",
        "Each head blends its values. Then each word has what both heads found in one row.",
        "Could we add the two instead, to save columns?",
        "That would be a mixture again, and nobody could tell which head brought what.",
        r"@c = (@aone V_1 \mid @atwo V_2)",
        [Code("merge_heads", "return x.swapaxes", {"x": "c"})],
        ("aone", "atwo"),
        ("c",),
        see="Split and merge",
    ),
    Step(
        "output",
        "Y",
        "Project: say what the findings mean",
        "$W^O$ reads what all heads found. Its column *plural* takes the *plural* of the subject "
        "minus the *plural* of the word before.",
        "Which rows of $W^O$ belong to head 2?",
        "The last three. Set them to 0, and nothing reads head 2: it is removed.",
        r"@y = @c @wo",
        [Code("attend", "return self.output.forward(merge_heads(heads")],
        ("c", "wo"),
        ("y",),
        see="Two heads by hand",
    ),
    Step(
        "dc",
        "dC",
        "A gradient comes back to what the heads found",
        "$\\mathrm{d}Y$ says how the loss changes with each number of $Y$; you can change it. Each "
        "finding acted through its row of $W^O$.",
        "Why is the first column 0?",
        "The row *1 noun* of $W^O$ is 0: nothing reads that finding of head 1.",
        r"@dc = @dy @wo^\top",
        [Code("linear_backward", "dx = matmul", {"dx": "dc", "dy": "dy", "weight": "wo"})],
        ("dy", "wo"),
        ("dc",),
        (),
        "output",
        see="Through the projections",
    ),
    Step(
        "dattend",
        "attend",
        "Back through merge, and through each head",
        "Back through merge is a split: each head gets its columns of $\\mathrm{d}C$. Then comes "
        "the whole backward of lesson 3, for each head by itself.",
        "Why is the last column of $\\mathrm{d}Q_2$ 0?",
        "The third number of every key of head 2 is 0, and $\\mathrm{d}Q = \\mathrm{d}E\\,K$.",
        r"@dc = (\mathrm{d}O_1 \mid \mathrm{d}O_2)"
        "\n\n"
        r"@dqone = \mathrm{d}E_1 K_1, \quad @dqtwo = \mathrm{d}E_2 K_2",
        [Code("backward", "dquery, dkey, dvalue = ", {"dheads": "dc"})],
        ("dc",),
        ("dqone", "dqtwo"),
        (),
        "attend",
        see="Through each head",
    ),
    Step(
        "dwq",
        "dQ, dWQ",
        "Back through split, and to the weight of the queries",
        "Back through split is a merge: $\\mathrm{d}Q_1$ and $\\mathrm{d}Q_2$ side by side. "
        "Then one product serves all heads.",
        "The row *1* of $\\mathrm{d}W^Q$ is the sum of all rows of $\\mathrm{d}Q$. Why?",
        "That feature is 1 for every word, so its row acts as a bias. The gradient of a bias is a "
        "plain sum.",
        r"@dq = (@dqone \mid @dqtwo)" "\n\n" r"@dwq = @x^\top @dq",
        [
            Code("merge_heads", "return x.swapaxes", {"x": "dq"}),
            Code("linear_backward", "dweight = ", {"dweight": "dwq", "dy": "dq", "x": "x"}),
        ],
        ("x", "dq"),
        ("dwq",),
        (),
        "project",
        see="Merge undoes split",
    ),
    Step(
        "dx",
        "dX",
        "Three ways back to a word",
        "Each word made a query, a key and a value. The last two make $\\mathrm{d}H$.",
        "And if *bark* looked at another sentence?",
        "Then $\\mathrm{d}H$ would go to that sentence: this is cross-attention.",
        r"@dx = @dxq + @dmemory",
        [Code("backward", "dx += dmemory", {"dx": "dx", "dmemory": "dmemory"})],
        ("dxq", "dmemory"),
        ("dx",),
        (),
        "project",
        see="Three ways back to a word",
    ),
)

UPSTREAM = [
    Option(DY, "as given", "A gradient without pattern.", f"np.array({DY.astype(int).tolist()})"),
    Option(
        np.outer(np.eye(5)[4], np.eye(6)[2]),
        "only “plural” of “bark”",
        "The number that tells *bark* from *barks*.",
        "np.outer(np.eye(5)[4], np.eye(6)[2])",
    ),
]


two = Simulation(
    name="two_heads",
    title="Two heads, there and back",
    say="Press **Next**, and pick a word. Before each step, guess the shape of the result.",
    caption="The first step: the words, the weight $W^Q$ and the queries of both heads.",
    alt="Three matrices side by side: the five words with their six features, the weight, and the "
    "queries, three columns for head 1 and three for head 2.",
    controls=[
        Steps("step", "Step", [step.name for step in STEPS], shows_only=True),
        Choice("picked", "Picked word", words, start=4, shows_only=True),
        Entries(
            "dy",
            "Upstream gradient",
            UPSTREAM,
            symbol=r"\mathrm{d}Y",
            rows=words,
            columns=features,
        ),
    ],
    compute=compute,
    views=[
        Stepper(
            STEPS,
            OF,
            lambda: ran()[1],
            "step",
            "picked",
            [name for name, (_, rows, *_) in SHOWN.items() if rows is words],
        )
    ],
    code="""\
import numpy as np
from lessons.lesson_04.two_heads import embedded, two_heads, words

dy = 0
layer, x = two_heads(), embedded(words)
y = layer.forward(x[None])[0]
dx = layer.backward(dy[None])[0]
dwq = layer.query.weight.grad
print(y.round(2), dx.round(2), sep="\\n\\n")""",
)
