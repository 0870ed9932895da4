"""What lesson 12 compares: the paper's tables and ours, costs, scaling laws, the family tree."""

import functools
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import toy_tasks
from lessons import COURSE
from lessons.kit.facts import fact
from lessons.kit.index import PARTS, architecture
from lessons.kit.lesson import BLUE, GREEN, GREY, OCHRE, ORANGE, Piece, table
from lessons.kit.simulation import Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, amount, power
from numformer.later.attention.patterns import Window
from numformer.later.attention.tiles import TiledAttention
from numformer.layer import pack
from numformer.paper import Places, Reach
from numformer.paper.attention import SelfAttention
from numformer.recurrence import CELLS, Recurrent

# The map: for each part of the index's picture its file and a case of the gradient check.
WHERE = {
    "Embedding": ("paper/embedding.py", "embedding"),
    "+ position": ("paper/positions.py", "sinusoidal_positions"),
    "One head": ("paper/attention.py", "scaled_dot_product_attention"),
    "Several heads": ("paper/attention.py", "multi_head_attention"),
    "Self-attention": ("paper/attention.py", "self_attention"),
    "Masked attention": ("paper/masks.py", "decoder_layer_post_norm"),
    "Cross-attention": ("paper/attention.py", "cross_attention"),
    "Add & norm": ("paper/residual.py", "residual_post_norm"),
    "Feed forward": ("paper/feed_forward.py", "feed_forward"),
    "Linear": ("paper/linear.py", "output_projection"),
    "Softmax": ("paper/softmax.py", "softmax"),
    "Loss, training": ("paper/cross_entropy.py", "label_smoothed_cross_entropy"),
    "All gradients": ("paper/transformer.py", "transformer_post_norm"),
    "Recurrence": ("recurrence/recurrent.py", "recurrent"),
    "Long sequences": ("later/attention/tiles.py", "attention_in_tiles"),
}


@dataclass(frozen=True)
class PartsMap(Piece):
    """The architecture, each part with its lesson, its file and its gradient check."""

    def rows(self, linked: bool) -> Piece:
        number = {words: lesson for words, lesson, *_ in PARTS}
        rows = []
        for words, (file, case) in WHERE.items():
            lesson, page = f"{number[words]}", COURSE[number[words] - 1].page
            lesson = f"[{lesson}]({page})" if linked and page else lesson
            rows.append((words, lesson, f"`{file}`", f"`{case}`"))
        caption = (
            "The files are in `numformer`. `python -m numformer.gradient_check --only NAME` checks "
        )
        caption += (
            "the gradients of a case, `pytest tests/gradient_check -k NAME` runs all tests of it."
        )
        return table(["part", "lesson", "file", "case"], rows, caption)

    def markdown(self) -> str:
        return self.rows(linked=False).markdown()

    def html(self, page) -> str:
        drawn = f'<figure class="architecture">{architecture()}</figure>'
        made = page.markdown(self.rows(linked=True).markdown())
        return f'<div class="parts-map">{drawn}{made}</div>'


# Table 1: what layers cost.

WIDTH, WORDS, LENGTHS, NEAR = 256, 2048, (32, 128, 512, 2048), 32
LAYERS = {
    "self-attention": lambda rng: SelfAttention(WIDTH, 4, rng, attention=TiledAttention()),
    "recurrent (LSTM)": lambda rng: Recurrent(CELLS["lstm"](WIDTH, rng), WIDTH, rng),
    "restricted (window)": lambda rng: SelfAttention(
        WIDTH, 4, rng, attention=TiledAttention(Window(window=NEAR))
    ),
}


@functools.cache
def costs() -> dict[str, list[float]]:
    """For each layer the processor seconds of WORDS words, forward and backward, by LENGTHS."""
    made = {}
    with threadpool_limits(1, "blas"):
        for name, make in LAYERS.items():
            rng = np.random.default_rng(12)
            layer, made[name] = make(rng), []
            pack(layer)
            for length in LENGTHS:
                x = rng.standard_normal((WORDS // length, length, WIDTH), dtype=np.float32)
                reach = [Reach(Places.without_padding(*x.shape[:2]), causal=True)]
                marks = []
                for _ in range(3):
                    marks.append(time.process_time())
                    layer.zero_grad()
                    layer.forward(x, *([] if "LSTM" in name else reach))
                    layer.backward(x.copy())
                made[name].append(float(min(np.diff([*marks, time.process_time()])[1:])))
    return made


@functools.cache
def rate() -> float:
    """How many operations a second one thread does in a large matrix product in float32."""
    x, seconds = np.ones((1024, 1024), np.float32), []
    with threadpool_limits(1, "blas"):
        for _ in range(6):
            begun = time.process_time()
            x @ x
            seconds.append(time.process_time() - begun)
    return 2 * 1024**3 / float(np.median(seconds[1:]))


# Tables 2 and 3.

TABLE_2 = fact("BLEU and operations")
P100, HOUR = fact("operations a second"), 3600


@dataclass(frozen=True)
class Row:
    """A row of Table 3: our errors in percent of words, and the paper's BLEU."""

    name: str
    parameters: int
    errors: float
    lowest: float
    highest: float
    bleu: float


@functools.cache
def ablation() -> list[Row]:
    """The rows of toy_tasks/ablation.md."""
    text = (Path(toy_tasks.__file__).parent / "ablation.md").read_text(encoding="utf-8")
    digits = r"\s*([\d.,]+)\s*"
    pattern = rf"^\| ([^|]+?) *\|{digits}\|{digits}\({digits}to{digits}\)\s*\|{digits}\|{digits}\|"
    found = re.findall(pattern, text, re.MULTILINE)
    return [
        Row(name, int(count.replace(",", "")), *map(float, (errors, low, high, bleu)))
        for name, count, errors, low, high, _, bleu in found
    ]


class Law(NamedTuple):
    """What toy_tasks/scaling.md says of a unit: exponents, misses, and the larger model's loss."""

    by_size: float
    by_text: float
    growth: float
    added: float
    joined: float
    predicted: float
    trained: float


@functools.cache
def scaling() -> dict[str, Law]:
    """The laws of toy_tasks/scaling.md, for characters and for subwords."""
    text = (Path(toy_tasks.__file__).parent / "scaling.md").read_text(encoding="utf-8")
    laws = {}
    for unit in ("characters", "subwords"):
        interval = text.partition(f"\n{unit}: laws fitted")[2]
        added, joined = (
            abs(float(x)) for x in re.findall(r"(?:added|joined): (\S+);", interval)[:2]
        )
        joined_part = interval.partition("  joined:")[2]
        exponents = [float(x) for x in re.findall(r"(?:p|q|a) = ([\d.]+)", joined_part)[:3]]
        predicted = float(re.search(r"symbols: ([\d.]+)", interval)[1])
        trained = float(re.findall(r"\| 9\.4 M .*?([\d.]+) *\|\n", text)[len(laws)])
        laws[unit] = Law(*exponents, added, joined, predicted, trained)
    return laws


# Where the names stand that would otherwise lie on another name.
BESIDE = {
    "C layers 1": ((-3, 3), "right"),
    "C layers 2": ((3, -9), "left"),
    "C layers 4": ((3, -9), "left"),
    "C d_ff 768": ((3, -9), "left"),
    "A heads 16": ((3, -9), "left"),
    "A heads 2": ((-4, -2), "right"),
    "B d_k 12": ((4, -5), "left"),
}


def draw_ablation(figure) -> None:
    """How much worse than the base each row is, by the paper's BLEU and by our errors."""
    base, *rows = ablation()
    axes = figure.subplots()
    colours = dict(zip("ABCDE", (BLUE, ORANGE, GREEN, OCHRE, GREY), strict=True))
    for row in rows:
        x, y = base.bleu - row.bleu, row.errors - base.errors
        axes.plot(x, y, "o", color=colours[row.name[0]], markersize=4)
        place, side = BESIDE.get(row.name, ((3, 3), "left"))
        said = dict(textcoords="offset points", fontsize=6.5, ha=side)
        axes.annotate(row.name[2:], (x, y), place, **said)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set(xlabel="the paper: BLEU lost", ylabel="ours: more errors, in % of words")


# Scaling laws.

E, A, B, ALPHA, BETA = fact("E, A, B, alpha, beta")
DAY = 1e15 * 24 * HOUR  # a petaflop/s-day, the unit of Kaplan et al. 2020
BUDGETS = 10.0 ** np.arange(18, 27)
NUMBERS = 10.0 ** np.arange(6, 14.01, 0.25)


def loss(parameters, words):
    """The loss of a language model of so many parameters after so many words of training."""
    return E + A / parameters**ALPHA + B / words**BETA


def best(budget: float) -> float:
    """The best number of parameters N for a budget of operations; each word takes 6 N of them."""
    ratio = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    return ratio * (budget / 6) ** (BETA / (ALPHA + BETA))


def kaplan(budget: float) -> float:
    """The size that Kaplan et al. 2020 advised: N grows as a power of the budget."""
    *_, growth = fact("p, q, a")
    return fact("best size for a petaflop/s-day") * (budget / DAY) ** growth


def compute(budget=1e22, place=16) -> dict:
    """The losses that one budget buys with models of all sizes."""
    words = budget / (6 * NUMBERS)
    by_size, of_best, of_kaplan = loss(NUMBERS, words), best(budget), kaplan(budget)
    there = [[n, loss(n, budget / (6 * n))] for n in (of_best, of_kaplan)]
    return {
        "losses": by_size,
        "best": there[:1],
        "kaplan": there[1:],
        "words": words[place],
        "ratio": words[place] / NUMBERS[place],
        "behind": by_size[place] - there[0][1],
        "paper": budget / TABLE_2["Transformer (base)"][2],
    }


budgets = Simulation(
    name="budget",
    title="A large model, or many words?",
    say="You can pay for a fixed number of operations. So a model of twice the size reads half as "
    "many words. **Which size would you take for 10²⁴?** Put the marker there, and see how many "
    "words the model reads for each parameter. Then let the budget grow: how far apart do the "
    "advice of 2020 and that of 2022 move?",
    caption="The loss that 10²² operations buy, by the size of the model.",
    alt="A curve that falls and rises again: the loss against the number of parameters, for one "
    "budget. Dots mark its lowest point and, to the right of it, the size advised in 2020.",
    controls=[
        Slider(
            "budget",
            "Budget of operations",
            [Option(float(budget), power(budget)) for budget in BUDGETS],
            start=4,
            plays=True,
        ),
        Slider(
            "place",
            "Parameters",
            [Option(n, amount(number)) for n, number in enumerate(NUMBERS)],
            start=16,
        ),
    ],
    compute=compute,
    views=[
        Chart(
            [
                Drawn("losses", "loss", at=NUMBERS.tolist()),
                Drawn("best", "best by Hoffmann et al. 2022", "dots"),
                Drawn("kaplan", "advised by Kaplan et al. 2020", "dots"),
            ],
            Axis("parameters", NUMBERS[0], NUMBERS[-1], log=True),
            Axis("loss", 1.5, 6),
            marker="place",
            at=NUMBERS.tolist(),
        ),
        Figures(
            {
                "words": "words read",
                "ratio": "words for each parameter",
                "behind": "loss above the best",
                "paper": "times the training of the paper's base model",
            },
            amounts=["words", "ratio", "paper"],
        ),
    ],
    code="""\
from lessons.lesson_12.landscape import NUMBERS, loss

budget = 0
place = 0
words = budget / (6 * NUMBERS)
losses = loss(NUMBERS, words)
print(NUMBERS[losses.argmin()], losses.min())
words = words[place]""",
)


# The family tree: of each name the year, the place and the parents. The column nearest to a place
# is one of the lesson's four kinds.

COLUMNS = ["encoder", "both", "decoder", "recurrent"]
TREE = {
    "seq2seq": (2014, 3, ()),
    "attention": (2015, 3, ("seq2seq",)),
    "Transformer": (2017, 1, ("attention",)),
    "GPT": (2018, 2, ("Transformer",)),
    "BERT": (2018.5, 0, ("Transformer",)),
    "GPT-2": (2019, 2, ("GPT",)),
    "T5": (2020, 0.8, ("Transformer",)),
    "GPT-3": (2020, 2, ("GPT-2",)),
    "ViT": (2021, 0, ("Transformer",)),
    "S4": (2021.8, 3, ()),
    "Whisper": (2022.6, 1.2, ("Transformer",)),
    "LLaMA": (2023, 2, ("GPT-3",)),
    "Mamba": (2023.8, 3, ("S4",)),
}
NAMES = {"attention": "attention\n(Bahdanau)", "seq2seq": "sequence to\nsequence"}


def draw_tree(figure) -> None:
    axes, boxes = figure.subplots(), {}
    for name, (year, place, parents) in TREE.items():
        style = dict(ha="center", va="center", fontsize=9, bbox=dict(pad=2, fill=False, lw=0))
        colour = (BLUE, ORANGE, GREEN, GREY)[round(place)]
        text = axes.text(place, year, NAMES.get(name, name), color=colour, **style)
        boxes[name] = text.get_bbox_patch()
        for parent in parents:
            ends = dict(patchA=boxes[parent], patchB=boxes[name])  # an arrow crosses no name
            arrow = dict(arrowstyle="->", color=GREY, shrinkA=0, shrinkB=0, **ends)
            axes.annotate("", (place, year), TREE[parent][1::-1], arrowprops=arrow)
    axes.set(xlim=(-0.5, 3.6), ylim=(2024.4, 2013.4), xticks=range(4))
    axes.set_xticklabels(COLUMNS)
    axes.xaxis.tick_top()
    axes.set_yticks(range(2014, 2025, 2))
    axes.spines["bottom"].set_visible(False)
