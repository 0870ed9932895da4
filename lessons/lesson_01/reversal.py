"""Reversing letters through one vector or with attention: recorded results, and a simulation."""

import functools
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.simulation import Choice, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Heatmap
from numformer import Adam, PairBatch, inference, pack
from numformer.models import RecurrentEncoderDecoder
from numformer.optimization.clipping import clip_global_norm
from toy_tasks.data.splits import is_held_out
from toy_tasks.text_to_text.sequences import Rule, SequenceTask

# What `python -m toy_tasks.bottleneck` printed: the exact match on unseen sources of 1 to 20
# letters out of 26, as the mean of three seeds, and the number of parameters.
MEASURED = {
    "fixed context": """1.000 1.000 0.999 0.999 0.996 0.991 0.944 0.884 0.771 0.560 0.432 0.260
        0.137 0.064 0.039 0.009 0.001 0.000 0.000 0.000""",
    "attention": f"{16 * '1.000 '} 0.999 1.000 1.000 1.000",
    "Transformer": f"{3 * '1.000 '} 0.999 {15 * '1.000 '} 0.992",
}
MEASURED = {kind: [*map(float, right.split())] for kind, right in MEASURED.items()}
PARAMETERS = 73_984, 74_880  # of the first two models

LETTERS, LONGEST, RATE = "abcdefgh", 8, 0.03
KINDS = {
    "fixed context": dict(context="fixed", d_model=16, steps=400),
    "attention": dict(context="attention", d_model=12, steps=250),
}


@dataclass(frozen=True)
class Trained:
    """A model, its task, and the share of unseen sources that it reverses, by length from 1."""

    model: RecurrentEncoderDecoder
    task: SequenceTask
    right: list[float]

    def weights(self, source: str) -> np.ndarray:
        """Where the model looks as it writes the reverse, a row for each letter and the end."""
        batch = PairBatch.of(self.task.encode([(source, source[::-1])]))
        self.model.forward(batch.source, batch.target_in)
        attention = self.model.decoder.cross_attention
        found = np.concatenate([record["weights"] for record in attention.saved])
        self.model.clear_saved()
        return found


def unseen(length: int) -> list[str]:
    """Up to 200 sources of this length, none of which training sees."""
    drawn = np.random.default_rng(length).choice([*LETTERS], (2000, length))
    return [*filter(is_held_out, dict.fromkeys(map("".join, drawn)))][:200]


def random_source(rng: np.random.Generator) -> str:
    letters = rng.integers(len(LETTERS), size=rng.integers(1, LONGEST + 1)).tolist()
    return "".join(map(LETTERS.__getitem__, letters))


def backwards(source: str) -> str:
    return source[::-1]


@functools.cache
def reversal() -> SequenceTask:
    """The task of both models."""
    rule = Rule("reversal", "", LETTERS, random_source, backwards, 1.0, {})
    return SequenceTask(rule, 32, seed=1)


@functools.cache
def trained(kind: str) -> Trained:
    """Train a model of KINDS, in about two seconds."""
    context, d_model, steps = KINDS[kind].values()
    task = reversal()
    sizes = dict.fromkeys(["source_vocabulary", "target_vocabulary"], len(task.text.source))
    config = RecurrentEncoderDecoder.Config(**sizes, d_model=d_model, context=context, p_drop=0)
    with threadpool_limits(1, "blas"):
        model = RecurrentEncoderDecoder(config, seed=1)
        objective, parameters = model.objective(label_smoothing=0.0), pack(model)
        adam = Adam(parameters)
        for step in range(steps):
            parameters.zero_grad()
            objective.forward(*task.batch(step).inputs)
            objective.backward()
            clip_global_norm(parameters.grad, 1.0)
            adam.step(RATE * min(1, (step + 1) / 50) * (1 - step / steps))
        with inference():
            right = [share_right(task, model, unseen(n)) for n in range(1, LONGEST + 1)]
            return Trained(model, task, right)


def share_right(task: SequenceTask, model, sources: list[str]) -> float:
    written = task.write(model, sources)
    return float(np.mean([w == backwards(s) for w, s in zip(written, sources, strict=True)]))


WORDS = ["abcdefgh", "headache", "deadhead", "hgfedcba"]  # training sees none of them


@functools.cache
def written(kind: str) -> dict[str, str]:
    """What a model writes for every beginning of every word in WORDS."""
    sources = [word[:n] for word in WORDS for n in range(1, LONGEST + 1)]
    of = trained(kind)
    with inference():
        return dict(zip(sources, of.task.write(of.model, sources), strict=True))


def compute(word, length) -> dict[str, np.ndarray]:
    source, made = word[:length], {}
    for name, kind in zip(("fixed", "attention"), KINDS, strict=True):
        made[name] = np.array([*map(LETTERS.index, written(kind)[source])], float)
        made[f"{name}_right"] = np.array(trained(kind).right)
    read, end = [*map(LETTERS.index, source)], [len(LETTERS)]
    left = LONGEST - length  # rows and columns that stay empty, so that the matrix keeps its size
    empty = left * [len(LETTERS) + 1]
    return made | {
        "read": np.array(read),
        "reversed": np.array(read[::-1]),
        "columns": np.array(read + end + empty),
        "rows": np.array(read[::-1] + end + empty),
        "weights": np.pad(trained("attention").weights(source), (0, left)),
    }


collapse = Simulation(
    name="collapse",
    title="Write it backwards",
    say="Two small networks have learned to write letters in reverse. Both read letter by letter. "
    "One has to write from memory, a vector of 16 numbers. The other may look back at every letter "
    "(*attention*). Press **Play**. Wrong letters are underlined.",
    caption="What both write, how often they are right for each number of letters, and where the "
    "second one looks. Each row is a letter that it writes, each column one that it read; ⊣ is the "
    "end.",
    alt="Two curves against the number of letters: with attention nearly all words are reversed, "
    "from one vector hardly any with eight letters. Below, a matrix of weights with large ones on "
    "the diagonal that rises to the right.",
    size=(7.6, 7.4),
    controls=[
        Slider("length", "Letters", range(1, LONGEST + 1), start=LONGEST - 1, plays=True),
        Choice("word", "Word", WORDS),
    ],
    compute=compute,
    views=[
        Figures(
            {
                "read": "read",
                "fixed": "written from one vector",
                "attention": "written with attention",
            },
            ["read", "fixed", "attention"],
            LETTERS,
            right=dict.fromkeys(["fixed", "attention"], "reversed"),
        ),
        Chart(
            [
                Drawn("fixed_right", "one vector", at=range(1, LONGEST + 1)),
                Drawn("attention_right", "attention", at=range(1, LONGEST + 1)),
            ],
            Axis("letters", 1, LONGEST),
            Axis("share of new words that it reverses", 0, 1.05),
            marker="length",
            at=range(1, LONGEST + 1),
        ),
        Heatmap(
            "weights",
            "written",
            "read",
            row_names="rows",
            column_names="columns",
            vocabulary=[*LETTERS, "⊣", "\N{NO-BREAK SPACE}"],
        ),
    ],
    code="""\
from lessons.lesson_01.reversal import np, trained, written

length = 0
word = 0
source = word[:length]
print(written("fixed context")[source], written("attention")[source])
weights = np.pad(trained("attention").weights(source), (0, 8 - length))
print(weights.round(2))""",
)
