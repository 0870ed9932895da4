"""Two heads whose weights are chosen by hand, and their simulation, there and back."""

import numpy as np

from lessons.simulation import Choice, Option, Simulation
from lessons.stepper import Code, Step, Stepper, Steps
from lessons.trace import Line, find, trace
from lessons.views import Of
from numformer import SelfAttention, pack
from numformer.layers.attention import (
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from numformer.layers.linear import linear, linear_backward

# The example of the lesson: T = 5 words, D = 6 features, h = 2 heads of d_k = 3.
features = ["noun", "verb", "plural", "1", "p", "p²"]
described = {
    "dogs": (1, 0, 1), "dog": (1, 0, 0), "that": (0, 0, 0), "he": (0, 0, 0), "they": (0, 0, 1),
    "trusts": (0, 1, 0), "trust": (0, 1, 1), "bark": (0, 1, 1), "barks": (0, 1, 0),
}  # fmt: skip
sentences = ["dogs that he trusts bark".split(), "dog that they trust barks".split()]
words = sentences[0]
columns = [f"{head} {part}" for head in "12" for part in "abc"]
handed = [f"{head} {feature}" for head in "12" for feature in features[:3]]


def embedded(sentence: list[str]) -> np.ndarray:
    """What each word is, a 1, and its place p, counted from the middle, with its square."""
    return np.array([(*described[word], 1, p, p * p) for p, word in enumerate(sentence, -2)], float)


def weight(**rows) -> np.ndarray:
    """A weight (6, 6) of its rows that are not 0, by the names of features."""
    names = ["noun", "verb", "plural", "one", "p", "pp"]
    return np.array([rows.get(name, [0] * 6) for name in names], float)


W_Q = weight(verb=[0, 0, 0, 4, 0, 0], noun=[0, 0, 0, 0, 4, 0],
             one=[-4, -8, -4, 0, 0, 0], p=[8, 8, 0, 0, 0, 0], pp=[-4, 0, 0, 0, 0, 0])  # fmt: skip
W_K = weight(noun=[0, 0, 0, 1, 0, 0], verb=[0, 0, 0, 0, 1, 0],
             one=[1, 0, 0, 0, 0, 0], p=[0, 1, 0, 0, 0, 0], pp=[0, 0, 1, 0, 0, 0])  # fmt: skip
W_V = weight(noun=[1, 0, 0, 1, 0, 0], verb=[0, 1, 0, 0, 1, 0], plural=[0, 0, 1, 0, 0, 1])
W_O = np.zeros((6, 6))
for row, column, entry in ((1, 1, 1), (2, 2, -1), (3, 0, 1), (5, 2, 1)):
    W_O[row, column] = entry
DY = np.array([[1, 0, -1, 0, 2, 0], [0, 1, 0, 0, 0, -1], [-1, 0, 1, 0, 0, 0],
               [0, 2, 0, -1, 0, 0], [2, -1, 1, 0, 1, 0]], float)  # fmt: skip
x = embedded(words)


def two_heads() -> SelfAttention:
    """The library's layer with these weights."""
    layer = SelfAttention(6, 2, np.random.default_rng(0))
    pack(layer, np.float64)
    for each, chosen in zip(layer.named_parameters().values(), (W_Q, W_K, W_V, W_O), strict=True):
        each.data[...] = chosen
    return layer


def compute(doutput=DY, sentence=words) -> dict[str, np.ndarray]:
    """Every matrix by its name, as the library's layer makes it, there and back."""
    layer, x = two_heads(), embedded(sentence)
    y = layer.forward(x[None])
    within, merged = layer.attention.saved[-1], layer.output.saved[-1]["x"]
    ran = back(layer, doutput)
    dheads = find(ran, "backward", "dheads = ").after["dheads"]
    split = find(ran, "backward", "dquery, dkey").after
    through = find(ran, "backward", "dmemory += ").after["dmemory"]
    dx = find(ran, "backward", "dx += ").after["dx"]
    arrays = dict(
        x=x, wq=W_Q, wo=W_O, q=merge_heads(within["query"]), c=merged, y=y, dy=doutput,
        dc=merge_heads(dheads), dwo=layer.output.weight.grad, dq=merge_heads(split["dquery"]),
        dwq=layer.query.weight.grad, dmemory=through, dx=dx, dxq=dx - through,
    )  # fmt: skip
    of_heads = dict(q=within["query"], k=within["key"], v=within["value"], a=within["weights"],
                    o=split_heads(merged, 2), do=dheads, dq=split["dquery"])  # fmt: skip
    for name, of_both in of_heads.items():
        arrays |= {f"{name}one": of_both[0, 0], f"{name}two": of_both[0, 1]}
    return {name: array.reshape(array.shape[-2:]) for name, array in arrays.items()}


def back(layer: SelfAttention, doutput: np.ndarray) -> list[Line]:
    """What the library's lines of backward do, after a forward."""
    into = [MultiHeadAttention.backward, linear_backward, merge_heads, split_heads]
    return trace(layer.backward, doutput[None], into=into)


def lines() -> list[Line]:
    """What the library's lines do, forward and backward."""
    layer = two_heads()
    into = [MultiHeadAttention.forward, MultiHeadAttention.keys_and_values, linear, split_heads,
            scaled_dot_product_attention, merge_heads]  # fmt: skip
    return trace(layer.forward, x[None], into=into) + back(layer, DY)


SHOWN = {  # of each matrix its symbol, its rows, its columns, the size of the darkest entry
    "x": ("X", words, features, 4), "wq": ("W^Q", features, columns, 8),
    "q": ("Q", words, columns, 16), "c": ("C", words, handed, 1),
    "wo": ("W^O", handed, features, 1), "y": ("Y", words, features, 1),
    "dy": (r"\mathrm{d}Y", words, features, 2), "dc": (r"\mathrm{d}C", words, handed, 2),
    "dwo": (r"\mathrm{d}W^O", handed, features, 2), "dq": (r"\mathrm{d}Q", words, columns, 1),
    "dwq": (r"\mathrm{d}W^Q", features, columns, 1), "dx": (r"\mathrm{d}X", words, features, 4),
    "dxq": (r"\mathrm{d}X^Q", words, features, 4), "dmemory": (r"\mathrm{d}M", words, features, 4),
}  # fmt: skip
for number, head in ((1, "one"), (2, "two")):
    SHOWN |= {
        f"q{head}": (f"Q_{number}", words, "abc", 16), f"k{head}": (f"K_{number}", words, "abc", 4),
        f"v{head}": (f"V_{number}", words, features[:3], 1),
        f"a{head}": (f"A_{number}", words, words, 1),
        f"o{head}": (f"O_{number}", words, features[:3], 1),
        f"do{head}": (rf"\mathrm{{d}}O_{number}", words, features[:3], 2),
        f"dq{head}": (rf"\mathrm{{d}}Q_{number}", words, "abc", 1),
    }  # fmt: skip
OF = [
    Of(name, symbol, rows, [*names], largest, f"{len(rows)} × {len(names)}")
    for name, (symbol, rows, names, largest) in SHOWN.items()
]

STEPS = (
    Step(
        "project", "Q", "Project: the queries of all heads at once",
        "A column of $W^Q$ makes one number of a query: the first three columns those of head 1, "
        "the last three those of head 2. Keys and values are made likewise by $W^K$ and $W^V$.",
        "Which column of $W^Q$ would a third head use?",
        "New ones: columns 7 to 9. More heads of the same size mean a wider weight, and nothing "
        "else.",
        r"@q = @x @wq",
        [Code("linear", "y = matmul", {"x": "x", "weight": "wq", "y": "q"})],
        ("x", "wq"), ("q",), ("x", "row", "wq", "column"), see="Two heads by hand",
    ),
    Step(
        "split", "split", "Split: each head takes its columns",
        "No number changes and none is moved. The same memory is read as two matrices.",
        "Take `reshape(B, H, T, K)` at once, without `swapaxes`. What would head 1 get?",
        "The first half of the memory: whole rows of $Q$, those of the first words, cut in pieces. "
        "The shape would be right.",
        r"@q = (@qone \mid @qtwo)",
        [Code("split_heads", "return x.reshape", {"x": "q"})],
        ("q",), ("qone", "qtwo"), see="Split and merge",
    ),
    Step(
        "attend", "attend", "Attend: each head by itself",
        "Lesson 3, twice. Head 1 gives most to the word before, head 2 lets a verb look for a noun "
        "and a noun for a verb.",
        "Pick *bark*. Where does each head look?",
        "Head 1 at *trusts*, head 2 at *dogs*. Two rows of weights, and each sums to 1.",
        r"@aone = \mathrm{softmax}\!\left(\frac{@qone @kone^\top}{\sqrt{d_k}}\right)" "\n\n"
        r"@atwo = \mathrm{softmax}\!\left(\frac{@qtwo @ktwo^\top}{\sqrt{d_k}}\right)",
        [Code("scaled_dot_product_attention", "weights = softmax")],
        ("kone", "ktwo"), ("aone", "atwo"), see="Two heads by hand",
    ),
    Step(
        "blend", "blend", "Each head blends its own values",
        "Here both heads hand over the same three numbers of a word. In a trained model each has "
        "columns of $W^V$ of its own, and hands over what it finds useful.",
        "Which word's number (plural or not) stands in the row of *bark* of $O_2$?",
        "Mostly that of *dogs*: 0.72 of a 1, and a little of *bark* itself.",
        r"@oone = @aone @vone, \quad @otwo = @atwo @vtwo",
        [Code("scaled_dot_product_attention", "return matmul")],
        ("atwo", "vtwo"), ("oone", "otwo"), ("atwo", "row", "vtwo", "column"),
        see="Two heads by hand",
    ),
    Step(
        "merge", "merge", "Concatenate: side by side again",
        "The split, undone. Each word has its six numbers in one row, what head 1 found and what "
        "head 2 found.",
        "Could the two be added instead, to save columns?",
        "Then they would be a mean again, up to a factor: nobody could tell who brought what.",
        r"@c = (@oone \mid @otwo)",
        [Code("merge_heads", "return x.swapaxes", {"x": "c"})],
        ("oone", "otwo"), ("c",), see="Split and merge",
    ),
    Step(
        "output", "Y", "Project: say what the findings mean",
        "$W^O$ reads what all heads found. Here its column *plural* subtracts: the subject's number "
        "less that of the word before.",
        "Which rows of $W^O$ belong to head 2?",
        "The last three. Make them 0 and head 2 is removed: its findings are never read.",
        r"@y = @c @wo",
        [Code("forward", "return self.output.forward(merge_heads(heads")],
        ("c", "wo"), ("y",), ("c", "row", "wo", "column"), see="Two heads by hand",
    ),
    Step(
        "upstream", "dY", "A gradient comes back",
        "How the loss changes with each number of $Y$. Choose another one among the controls.",
        "Let only *plural* of *bark* count. Which rows of $\\mathrm{d}X$ will not be 0?",
        "See at the last step: all, since every word was looked at a little by *bark*.",
        "", [Code("backward", "dheads = split_heads", {"dy": "dy", "dheads": "dc"})],
        (), ("dy",), inverts="output", see="Through the two projections",
    ),
    Step(
        "dwo", "dWO", "Back to the output's weight",
        "Every word used the same weight, so its gradient is a sum over all words.",
        "Why are three columns of $W^O$ all 0, and those of its gradient not?",
        "A weight that is 0 can still be worth changing. The gradient has $C$ in it and not $W^O$.",
        r"@dwo = @c^\top @dy",
        [Code("linear_backward", "dweight = ", {"dweight": "dwo", "dy": "dy", "x": "c"})],
        ("c", "dy"), ("dwo",), ("c", "column", "dy", "column"), "output",
        see="Through the two projections",
    ),
    Step(
        "dc", "dC", "Back to what the heads found",
        "A finding acted through its row of $W^O$.",
        "Why is the first column 0?",
        "The row *1 noun* of $W^O$ is 0: nobody reads that finding of head 1.",
        r"@dc = @dy @wo^\top",
        [Code("linear_backward", "dx = matmul", {"dx": "dc", "dy": "dy", "weight": "wo"})],
        ("dy", "wo"), ("dc",), ("dy", "row", "wo", "row"), "output",
        see="Through the two projections",
    ),
    Step(
        "dheads", "split", "Each head gets its part of the gradient",
        "Merge put every number in one place, so its gradient lies there. Fetching it is a split.",
        "Does a head's gradient depend on what the other found?",
        "Not here: $Y$ is linear in $C$. In a whole model it does, through $\\mathrm{d}Y$.",
        r"@dc = (@doone \mid @dotwo)",
        [Code("split_heads", "return x.reshape", {"x": "dc"})],
        ("dc",), ("doone", "dotwo"), (), "merge", see="Merge undoes split",
    ),
    Step(
        "dattend", "attend", "Back through each head",
        "The whole backward of lesson 3, for each head by itself. It gives three gradients; here "
        "are those of the queries.",
        "Why is the last column of $\\mathrm{d}Q_2$ 0?",
        "The third number of every key of head 2 is 0, and $\\mathrm{d}Q = \\mathrm{d}E\\,K$.",
        "", [Code("backward", "dquery, dkey, dvalue = ", {"dheads": "dotwo", "dquery": "dqtwo"})],
        ("doone", "dotwo"), ("dqone", "dqtwo"), (), "attend", see="Through each head",
    ),
    Step(
        "dmerge", "merge", "The heads' gradients side by side",
        "Going back through the split is a merge. Now a single product serves all heads.",
        "And the keys and values?",
        "The same, each with its own line.",
        r"@dq = (@dqone \mid @dqtwo)",
        [Code("merge_heads", "return x.swapaxes", {"x": "dq"})],
        ("dqone", "dqtwo"), ("dq",), (), "split", see="Merge undoes split",
    ),
    Step(
        "dwq", "dWQ", "Back to the weight of the queries",
        "As for $W^O$: a sum over words. Columns of head 1 come from head 1 alone.",
        "The row *1* of $\\mathrm{d}W^Q$ is the sum of all rows of $\\mathrm{d}Q$. Why?",
        "That feature is 1 for every word: it works as a bias, and a bias collects a plain sum.",
        r"@dwq = @x^\top @dq",
        [Code("linear_backward", "dweight = ", {"dweight": "dwq", "dy": "dq", "x": "x"})],
        ("x", "dq"), ("dwq",), ("x", "column", "dq", "column"), "project",
        see="Through the two projections",
    ),
    Step(
        "dx", "dX", "Three ways back to a word",
        "A word asked, was asked, and handed something over. $\\mathrm{d}X^Q$ comes through its "
        "query, $\\mathrm{d}M$ through its key and its value; they add up.",
        "Which of the two would be missing if *bark* looked at another sentence?",
        "None. But $\\mathrm{d}M$ would go to that sentence. That is cross-attention.",
        r"@dx = @dxq + @dmemory",
        [Code("backward", "dx += dmemory", {"dx": "dx", "dmemory": "dmemory"})],
        ("dxq", "dmemory"), ("dx",), (), "project", see="Three ways back to a word",
    ),
)  # fmt: skip

ONLY = np.zeros_like(DY)
ONLY[4, 2] = 1
UPSTREAM = [
    Option(DY, "as given", "A gradient without pattern.", f"np.array({DY.astype(int).tolist()}, float)"),
    Option(ONLY, "only “plural” of “bark”", "What tells *bark* from *barks*.",
           "np.eye(5)[:, 4:] * np.eye(6)[2]"),
]  # fmt: skip

two = Simulation(
    name="two_heads",
    title="Two heads, there and back",
    say="Press **Next**, and pick a word. Before each step say which shape will come out.",
    caption="The weights of both heads and what comes of them, forward in the first row, backward "
    "in the second.",
    alt="The weights of head 1 and of head 2, what both found side by side, and the output; below "
    "them the gradients of the output, of the findings, of the queries and of the words.",
    controls=[
        Steps("step", "Step", [step.name for step in STEPS], shows_only=True),
        Choice("picked", "Picked word", words, start=4, shows_only=True),
        Choice("doutput", "Upstream gradient", UPSTREAM),
    ],
    compute=compute,
    views=[Stepper(STEPS, OF, lines, "step", "picked",
                   [name for name, (_, rows, *_) in SHOWN.items() if rows is words])],
    code="""\
import numpy as np
from lessons.lesson_04.two_heads import two_heads, x

doutput = 0
layer = two_heads()
y = layer.forward(x[None])[0]
dx = layer.backward(doutput[None])[0]
dwq, dwo = layer.query.weight.grad, layer.output.weight.grad
print(y.round(2), dx.round(2), sep="\\n\\n")""",
    draw=None,
)  # fmt: skip
