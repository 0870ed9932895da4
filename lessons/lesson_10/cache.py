"""The third simulation of lesson 10: matrices that grow by a row; and what the cache saves."""

import functools
import time

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.trace import find, trace
from lessons.kit.views import Figures, Matrices, Of
from numformer import LanguageModel, SelfAttention, inference, pack
from numformer.paper import Memory
from numformer.paper.attention import MultiHeadAttention, scaled_dot_product_attention

WORDS = ["ein", "hund", "rennt", "im", "schnee"]
X = np.array([[1, 0, 0], [0, 2, 1], [-1, 1, 0], [1, 0, 1], [0, 1, 2]], float)
W_Q, W_K, W_V = np.array(
    [
        [[1, 0, 1], [0, 1, 0], [1, 0, -1]],
        [[1, 1, 0], [0, 1, -1], [1, 0, 1]],
        [[1, 0, 0], [1, 1, 0], [0, -1, 1]],
    ],
    float,
)


def layer() -> SelfAttention:
    """The library's self-attention with one head, these weights, and W^O = 1."""
    made = SelfAttention(3, 1, np.random.default_rng(0))
    pack(made, np.float64)
    for parameter, chosen in zip(
        made.named_parameters().values(), (W_Q, W_K, W_V, np.eye(3)), strict=True
    ):
        parameter.data[...] = chosen
    return made


def look(made: SelfAttention, x, *more) -> dict[str, np.ndarray]:
    """x (T, D) -> what the library's lines make of it: q (T, K), k and v (S, K), a (T, S), y."""
    lines = trace(made.forward, x[None], *more, into=INTO)
    after = find(lines, "attend", "heads = ").after
    weights = find(lines, "scaled_dot_product_attention", "weights = ").after["weights"]
    found = dict(q=after["query"], k=after["key"], v=after["value"], a=weights)
    found["y"] = find(lines, "attend", "return self.output").value[None]
    return {name: array[0, 0] for name, array in found.items()}


INTO = [MultiHeadAttention.attend, scaled_dot_product_attention]


def write(step: int, cached: bool, x=X) -> dict[str, np.ndarray]:
    """Step `step` of writing, from 1 on.

    The arrays "lit ..." are 1 for cells that this step computes, 0 for kept ones, -1 for none.
    """
    length, made, past = len(WORDS), layer(), Memory(len(WORDS))
    with inference():
        if cached:
            for at in range(step):
                found = look(made, x[at : at + 1], None, past)
                past.advance(1)
        else:
            found = look(made, x[:step], np.tri(step, dtype=bool))
    now = np.arange(length)[:, None] == step - 1
    there = np.arange(length)[:, None] < step
    new = now if cached else there
    lit = {"x": np.where(new, 1, -1), "k": np.where(new, 1, np.where(there, 0, -1))}
    lit |= {"v": lit["k"], "q": lit["x"], "y": lit["x"]}
    lit["a"] = np.where(new & (np.arange(length) <= np.arange(length)[:, None]), 1, -1)
    arrays = {"x": x}
    for name, array in found.items():
        whole = np.zeros((length, length if name == "a" else 3))
        rows = slice(step - len(array), step)
        whole[rows, : array.shape[1]] = array
        arrays[name] = whole
    rows = 1 if cached else step
    total = step if cached else step * (step + 1) // 2
    counts = {"rows": rows, "total": total, "kept": 6 * step if cached else 0}
    return arrays | {f"lit {n}": x for n, x in lit.items()} | counts


def numbers(name: str, symbol: str, below: str, largest: float = 3) -> Of:
    columns = [*("12345" if name == "a" else "123")]
    return Of(name, symbol, WORDS, columns, largest, below, lit=f"lit {name}")


cache = Simulation(
    name="cache",
    title="What is kept, and what is computed again",
    say="Five words are written one after the other. Outlined cells are computed in this step. "
    "Which rows of $K$ change when a word comes? Which rows of $A$ will be needed again? Guess, "
    "then step on. Then switch the cache off: compare the last row of $Y$, and the counts.",
    caption="The third step with a cache: one row of everything is computed, older keys and values "
    "are kept.",
    alt="Six matrices. With the cache, one row of X, Q, A and Y is there, and three rows of K and "
    "of V, of which the last one is outlined.",
    controls=[
        Slider("step", "Word", [Option(n, w) for n, w in enumerate(WORDS, 1)], 2, plays=True),
        Choice("cached", "Cache", [Option(True, "on"), Option(False, "off")]),
    ],
    compute=write,
    views=[
        Matrices(
            [
                numbers("x", "X", "words"),
                numbers("q", "Q", "queries"),
                numbers("k", "K", "keys"),
                numbers("v", "V", "values"),
                numbers("a", "A", "weights", 1),
                numbers("y", "Y", "results"),
            ],
            after=["q", "a"],
        ),
        Figures(
            {
                "rows": "rows of X projected in this step",
                "total": "in all steps so far",
                "kept": "numbers kept for the next step",
            }
        ),
    ],
    code="""\
from lessons.lesson_10.cache import write

step = 0
cached = 0
made = write(step, cached)
k, y, total = made["k"], made["y"], made["total"]
print(k, y.round(2), total, sep="\\n")""",
    size=(7.6, 3.4),
)

LENGTHS = (16, 32, 64, 128, 256)
MEASURED = "a language model of 4 layers, 128 wide, 8 texts at a time"


@functools.cache
def speed() -> dict[int, tuple[float, float]]:
    """For each length: the processor time to write so many symbols with the cache, and without.

    Without the cache, one step is measured at each of these lengths; straight lines between them
    give the times of the other steps.
    """
    config = LanguageModel.Config(vocabulary=1000, d_model=128, d_ff=256, heads=4, layers=4)
    model, ids = LanguageModel(config, 0), np.random.default_rng(0).integers(4, 1000, (8, 256))

    def seconds(function, *arguments) -> float:
        start = time.process_time()
        function(*arguments)
        return time.process_time() - start

    steps, lengths = range(1, max(LENGTHS) + 1), (1, *LENGTHS)
    with threadpool_limits(1, "blas"), inference():
        state = model.start(ids[:, :1], max(LENGTHS))
        with_cache = np.cumsum([seconds(model.step, ids[:, at - 1], state) for at in steps])
        times = [min(seconds(model.forward, ids[:, :n]) for _ in range(3)) for n in lengths]
        without_cache = np.cumsum(np.interp(steps, lengths, times))
    return {n: (float(with_cache[n - 1]), float(without_cache[n - 1])) for n in LENGTHS}
