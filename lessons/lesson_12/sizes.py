"""Parameters and operations of a Transformer, counted by formulas and by recording it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import numpy as np

from lessons.kit import recorded
from lessons.kit.lesson import BLUE, GREEN, ORANGE
from lessons.kit.recording import Recording
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import View, amount, figure
from numformer.layer import FlatParameters, pack
from numformer.paper import Embedding

PARTS = [
    "embeddings",
    "encoder: attention",
    "encoder: feed-forward",
    "decoder: attention",
    "decoder: cross-attention",
    "decoder: feed-forward",
    "norms",
    "logits",
]
# Whether the projections of attention have biases, positions are learned, a norm follows the last
# layer, and the logits have a bias.
PAPER, PRE_NORM = (0, 0, 0, 0), (0, 0, 1, 0)
GPT_2, MARIAN = (1, 1, 1, 0), (1, 0, 0, 1)


TRAINED = 4 + 4 + 8  # bytes of a parameter in training: weight, gradient, Adam's two vectors


def count_parameters(encoder, decoder, d_model, d_ff, vocabulary, length, shared, details):
    """The parameters in each of PARTS, for `encoder` and `decoder` layers.

    `shared` is 1 where one matrix serves all embeddings and the logits, and 0 where each has its
    own.
    """
    bias, learned, final, of_logits = details
    towers = 1.0 * (encoder > 0) + 1.0 * (decoder > 0)
    crossing = decoder * (encoder > 0)
    attention = 4 * d_model**2 + bias * 4 * d_model
    network = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    tables = shared + (1 - shared) * towers
    return [
        tables * vocabulary * d_model + learned * towers * length * d_model,
        encoder * attention,
        encoder * network,
        decoder * attention,
        crossing * attention,
        decoder * network,
        (2 * encoder + 2 * decoder + crossing + final * towers) * norm,
        (1 - shared) * vocabulary * d_model + of_logits * vocabulary,
    ]


def count_operations(encoder, decoder, d_model, d_ff, vocabulary, length):
    """Multiplications and additions in the matrix products of each of PARTS, forward.

    They are those of one sequence of `length`, or with both towers of a source and a target, each
    of this length.
    """
    crossing = decoder * (encoder > 0)
    attention = 8 * length * d_model**2 + 4 * length**2 * d_model
    network = 4 * length * d_model * d_ff
    return [
        0 * network,
        encoder * attention,
        encoder * network,
        decoder * attention,
        crossing * attention,
        decoder * network,
        0 * network,
        2 * length * d_model * vocabulary,
    ]


def compute(
    encoder=6,
    decoder=6,
    d_model=512,
    d_ff=2048,
    heads=8,
    vocabulary=37_000,
    length=25,
    shared=1,
    details=PAPER,
) -> dict:
    """What the ledger shows of a model: its parts, their sums, and what these mean."""
    sizes = encoder, decoder, d_model, d_ff, vocabulary, length
    parameters = np.stack(count_parameters(*sizes, shared, details))
    operations = np.stack(count_operations(*sizes))
    total, forward = parameters.sum(), operations.sum()
    towers = decoder + encoder + decoder * (encoder > 0)
    return {
        "parameters": parameters,
        "operations": operations,
        "of_parameters": parameters / total,
        "of_operations": operations / forward,
        "total": total,
        "forward": forward,
        "step": 3 * forward,
        "rule": 3 * forward / (6 * total * length),
        "weights": TRAINED * total,
        "scores": 4 * towers * heads * length**2,
        "cache": 8 * (decoder + decoder * (encoder > 0)) * length * d_model,
    }


def counted(model, *ids) -> tuple[int, int]:
    """The operations in matrix products of a model's forward and backward, counted in a recording.

    Not counted: sums of rows, which the library computes with a vector of ones, and the lookup of
    embeddings.
    """
    objective = model.objective()
    data = pack(objective, np.float64).data.copy()
    with (
        Recording() as recording,
        mock.patch.object(Embedding, "backward", lambda self, dx: None),
    ):
        weights = recording.given("weights", data)
        named = [*objective.model.named_parameters().values()]
        FlatParameters(weights, recorded.zeros_like(weights), named)
        objective.forward(*(recording.given_ids(f"ids {n}", x) for n, x in enumerate(ids)))
        there = len(recording.operations)
        objective.backward()
    done = [
        2 * math.prod(shape) * more[0] if name == "matmul" and min(shape[-2:]) > 1 else 0
        for name, shape, _, _, more in recording.operations
    ]
    return sum(done[:there]), sum(done[there:])


# The figure


SIZES = {
    "encoder": (0, 1, 2, 3, 4, 6, 8, 12, 24),
    "decoder": (0, 1, 2, 3, 4, 6, 8, 12, 24, 48, 96),
    "d_model": (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1600, 2048, 4096, 12288),
    "d_ff": (128, 256, 384, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 49152),
    "heads": (1, 2, 4, 8, 12, 16, 32, 64, 96),
    "vocabulary": (1000, 4000, 8000, 16000, 30522, 37000, 50257, 58101, 128000, 256000),
    "length": (8, 16, 25, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072),
    "shared": (1, 0),
    "details": (PAPER, GPT_2, MARIAN, PRE_NORM),
}
PRESETS = {
    "base (2017)": dict(zip(SIZES, (6, 6, 512, 2048, 8, 37000, 25, 1, PAPER), strict=True)),
    "big (2017)": dict(zip(SIZES, (6, 6, 1024, 4096, 16, 37000, 25, 1, PAPER), strict=True)),
    "our translator": dict(zip(SIZES, (4, 4, 128, 256, 4, 4000, 16, 1, PRE_NORM), strict=True)),
    "Marian": dict(zip(SIZES, (6, 6, 512, 2048, 8, 58101, 25, 1, MARIAN), strict=True)),
    "GPT-2 small": dict(zip(SIZES, (0, 12, 768, 3072, 12, 50257, 1024, 1, GPT_2), strict=True)),
    "GPT-3": dict(zip(SIZES, (0, 96, 12288, 49152, 96, 50257, 2048, 1, GPT_2), strict=True)),
}
TOLD = {
    "total": "parameters",
    "forward": "operations, forward",
    "step": "operations, forward and backward",
    "rule": "a step, against 6 · parameters · words",
    "weights": "bytes: weights, gradients, Adam",
    "scores": "bytes of all scores, if stored",
    "cache": "bytes of cached keys and values",
}


@dataclass(frozen=True)
class Ledger(View):
    """Each part of a model with its parameters and its operations, their sums, and presets.

    For each button `presets` gives the options to which it sets controls, by index.
    """

    parts: Sequence[str]
    sums: Mapping[str, str]
    presets: Mapping[str, Mapping[str, int]]
    height: float = 3.0
    kind: ClassVar = "ledger"

    def more(self, page) -> dict:
        page.script("ledger")
        return {}

    def shown(self, arrays, chosen):
        pairs = zip(arrays["parameters"], arrays["operations"], strict=True)
        presets = enumerate(self.presets.values())
        pressed = [n for n, preset in presets if preset.items() <= chosen.items()]
        texts = {name: amount(float(arrays[name])) for name in self.sums}
        texts |= {"total": f"{arrays['total']:,.0f}", "rule": f"{figure(100 * arrays['rule'])} %"}
        return {
            "rows": [[f"{held:,.0f}", amount(float(done))] for held, done in pairs],
            "sums": texts,
            "pressed": pressed,
        }

    def draw(self, figure, arrays, chosen):
        texts = self.shown(arrays, chosen)
        left, right = figure.subplots(1, 2, sharey=True)
        rows = range(len(self.parts))
        for axes, name, column in ((left, "parameters", 0), (right, "operations", 1)):
            colours = [ORANGE, BLUE, BLUE, GREEN, GREEN, GREEN, ORANGE, ORANGE]
            axes.barh(rows, arrays[f"of_{name}"], color=colours)
            for row, cells in zip(rows, texts["rows"], strict=True):
                axes.text(0.01, row, cells[column], va="center", fontsize=9)
            axes.set(xlim=(0, 1), xlabel=f"share of all {name}", yticks=rows)
        left.set_yticklabels(self.parts, fontsize=9)
        left.invert_yaxis()
        left.set_title(f"{texts['sums']['total']} parameters", fontsize=10)
        right.set_title(f"{texts['sums']['forward']} operations", fontsize=10)


def at(name: str, value) -> int:
    return SIZES[name].index(value)


LABELS = {
    "encoder": "Encoder layers",
    "decoder": "Decoder layers",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "heads": "Heads",
    "vocabulary": "Symbols",
    "length": "Length",
}
BASE = PRESETS["base (2017)"]
ledger = Simulation(
    name="sizes",
    title="What a Transformer is made of, and what it costs",
    say="With 0 **encoder layers** you have a GPT, with 0 **decoder layers** a BERT. Before you "
    "move the **heads**: which numbers will they change? And at which **length** does "
    "attention overtake the feed-forward network?",
    caption="The paper’s base model: its parts, their parameters, and the operations of a forward "
    "pass for 25 words in and 25 words out.",
    alt="Two bar charts side by side, eight parts of a Transformer as rows. The embeddings and the "
    "two feed-forward networks have most parameters; the logits take 30 % of the operations.",
    controls=[
        *(
            Slider(
                name,
                label,
                [Option(size, f"{size:,}") for size in SIZES[name]],
                start=at(name, BASE[name]),
                live=True,
            )
            for name, label in LABELS.items()
        ),
        Choice(
            "shared",
            "Matrices of symbols",
            [Option(1, "one, shared"), Option(0, "one each")],
            live=True,
        ),
        Choice(
            "details",
            "Biases, positions, last norm",
            [
                Option(PAPER, "as in the paper", "No biases in attention, sinusoids, post-norm."),
                Option(GPT_2, "GPT-2", "Biases in attention, learned positions, a last norm."),
                Option(MARIAN, "Marian", "Biases in attention and of the logits, sinusoids."),
                Option(PRE_NORM, "our translator", "No biases in attention, pre-norm."),
            ],
            live=True,
        ),
    ],
    compute=compute,
    views=[
        Ledger(
            PARTS,
            TOLD,
            {
                label: {name: at(name, value) for name, value in preset.items()}
                for label, preset in PRESETS.items()
            },
        )
    ],
    code="""\
from lessons.lesson_12.sizes import PARTS, compute

encoder = 0
decoder = 0
d_model = 0
d_ff = 0
heads = 0
vocabulary = 0
length = 0
shared = 0
details = 0
sizes = encoder, decoder, d_model, d_ff, heads, vocabulary, length
made = compute(*sizes, shared, details)
parameters, operations, total = made["parameters"], made["operations"], made["total"]
for part, count, work in zip(PARTS, parameters, operations):
    print(f"{part:26}{count:16,.0f}{work:24,.0f}")
print(f"{total:,.0f}")""",
    size=(7.6, 3.8),
)
