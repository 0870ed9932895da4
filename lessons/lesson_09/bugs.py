"""A wrong backward: what a small Transformer learns with each mistake, and what the check says."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lessons.kit.models import measured
from lessons.kit.simulation import Choice, Option, Simulation
from lessons.kit.views import Axis, Block, Chart, Diagram, Drawn, Figures
from lessons.lesson_09.wrong_lines import WRONG_LINES, WrongLines
from numformer import Adam, PairBatch, Transformer, greedy, pack
from numformer.data.batching import pad_sources
from numformer.data.vocabulary import END, START
from numformer.errors import InputError
from numformer.gradient_check.gradients import check
from numformer.randomness import dropout_stream

LETTERS, LENGTH, SPECIALS = 6, 3, 4
STEPS, WORDS, RATE, RISE, EVERY = 300, 32, 0.006, 40, 10
SEEDS = 1, 2
CONFIG = Transformer.Config.base(
    SPECIALS + LETTERS, d_model=16, d_ff=32, heads=2, layers=2, p_drop=0.05, attention_dropout=0.05
)


# The runs, in the order in which the page shows them, each with its mistake; "none" has none.
BUGS = {
    "bias": WRONG_LINES["bias: the mean over positions, not the sum"],
    "around": WRONG_LINES["residual: the skip connection forgotten"],
    "undropped": WRONG_LINES["attention: dV through the weights before dropout"],
    "sum": WRONG_LINES["softmax: only the diagonal of the Jacobian"],
    "tied": WRONG_LINES["`=` for `+=` between two uses of a weight"],
    "none": WrongLines(),
    "keys": WRONG_LINES["attention: the keys' share of dmemory lost"],
    "gamma": WRONG_LINES["LayerNorm: gamma after the means"],
    "zero": WRONG_LINES["a gradient never added"],
    "mask": WRONG_LINES["dropout: neither masked nor scaled"],
    "variance": WRONG_LINES["LayerNorm: the term along x_hat forgotten"],
    "last": WRONG_LINES["decoder: dmemory of the first layer alone"],
    "batch": WRONG_LINES["divided by the batch size"],
    "ids": WRONG_LINES["embedding: grad[ids] += dx"],
}
PARTS = (
    "decoder feed_forward",
    "decoder cross_attention",
    "decoder self_attention",
    "encoder feed_forward",
    "encoder self_attention",
    "source embedding",
)


def words_of(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(SPECIALS, SPECIALS + LETTERS, (count, LENGTH))


def batch(words: np.ndarray) -> tuple[np.ndarray, ...]:
    """Words (N, LENGTH), to be reversed -> source ids, decoder input, decoder output."""
    return PairBatch.of([(word, word[::-1]) for word in words.tolist()]).inputs


@dataclass(frozen=True)
class Run:
    """Losses (STEPS / EVERY,), means over EVERY steps, and the share of new words written right."""

    losses: list[float]
    right: float


def train(bug: str, seed: int, stop: int = STEPS) -> Run:
    """Train a model with this backward to the step `stop`."""
    model, losses, rng = Transformer(CONFIG, seed), [], np.random.default_rng(seed)
    with BUGS[bug].applied():
        objective, adam = model.objective(), Adam(pack(model))
        for step in range(1, stop + 1):
            objective.zero_grad()
            dropout_stream.reseed(seed, step)
            losses.append(float(objective.forward(*batch(words_of(rng, WORDS)))))
            objective.backward()
            adam.step(RATE * min(1, step / RISE))
    new = words_of(np.random.default_rng(0), 100)
    written = greedy(model, pad_sources(new.tolist()), max_length=2 * LENGTH)
    right = [list(ids) == word[::-1].tolist() for ids, word in zip(written, new, strict=True)]
    means = np.reshape(losses, (-1, EVERY)).mean(axis=1)
    return Run([round(float(mean), 4) for mean in means], float(np.mean(right)))


def trained(bug: str) -> list[Run]:
    """The stored runs with this backward, one for each of SEEDS."""
    return [Run(**run) for run in measured(9)["runs"][bug]]


@dataclass(frozen=True)
class Report:
    """What the gradient check says about a small Transformer."""

    of: int  # how many gradients it compared, 0 if it stopped before
    wrong: dict[str, int]  # by part (PARTS)
    there: str  # which gradients of the first wrong part are wrong, and which are right
    says: str


def check_model(bug: str) -> Report:
    """Check the gradients of a small Transformer with this backward."""
    sizes = dict(d_model=14, d_ff=6, layers=1 + (bug == "last"), p_drop=0.25)
    config = replace(CONFIG, **sizes, attention_dropout=0.25)
    rng = np.random.default_rng(2)
    source, target = (rng.integers(SPECIALS, SPECIALS + LETTERS, (3, n)) for n in (4, 5))
    source[:, -1], target[:, 0] = END, START
    with BUGS[bug].applied(), np.errstate(all="ignore"):
        try:
            rows = check(Transformer(config, 3), [source, target])
        except InputError as problem:  # a rule is broken, and it compares nothing
            wrong = {part: part_of(str(problem)) == part for part in PARTS}
            return Report(0, wrong, "The check compares nothing: a rule is broken.", str(problem))
    found = [row for row in rows if not row.passed]
    wrong = {part: sum(part_of(row.name) == part for row in found) for part in PARTS}
    said = [plain(row.meaning) for row in found] or ["All gradients are right."]
    first = next((part for part in PARTS if wrong[part]), None)
    names = {
        right: [row.name for row in rows if part_of(row.name) == first and row.passed == right]
        for right in (False, True)
    }
    kinds = ((word, names[word == "right"]) for word in ("wrong", "right"))
    there = "; ".join(f"{word}: {listed(some)}" for word, some in kinds if first and some)
    # The explanation of the most gradients; of several such, the first.
    return Report(len(rows), wrong, there or "Nothing is wrong.", max(said, key=said.count))


@functools.cache
def report(bug: str) -> Report:
    """The stored report on a model with this backward."""
    return Report(**measured(9)["reports"][bug])


def listed(names: Sequence[str]) -> str:
    """The last two parts of each name, each pair once."""
    return ", ".join(dict.fromkeys(".".join(name.split(".")[-2:]) for name in names))


def plain(meaning: str) -> str:
    """What the check says, without marks of code, and without sentences on a command's options."""
    sentences = re.split(r"(?<=\.) (?=[A-Z`])", meaning)
    return " ".join(s for s in sentences if not s.startswith("`--")).replace("`", "")


def part_of(name: str) -> str:
    """The part of the model to which the gradient of this name belongs."""
    return next((p for p in PARTS if re.search(p.replace(" ", r"\b.*\b"), name)), "")


def curve(bug: str) -> np.ndarray:
    """The losses of the first run (STEPS / EVERY,)."""
    return np.array(trained(bug)[0].losses)


def end(bug: str) -> tuple[float, float]:
    """The loss of the last 30 steps, and the share of words written right: means over SEEDS."""
    runs = trained(bug)
    losses = [run.losses[-30 // EVERY :] for run in runs]
    return float(np.mean(losses)), float(np.mean([run.right for run in runs]))


def compare(run: str, other: str) -> dict[str, np.ndarray]:
    """Two runs: losses by step, and how they end."""
    shown = {}
    for name, bug in {"run": run, "other": other}.items():
        shown[name] = curve(bug)
        shown[f"{name}_loss"], right = end(bug)
        shown[f"{name}_right"] = 100 * right
    return shown


LETTER = {bug: chr(ord("A") + number) for number, bug in enumerate(BUGS)}
AT = np.arange(EVERY // 2, STEPS, EVERY)


def runs(start: str) -> dict:
    return dict(options=[Option(bug, LETTER[bug]) for bug in BUGS], start=[*BUGS].index(start))


curves = Simulation(
    name="curves",
    title="Which backward is right?",
    say="Fourteen small Transformers learn to write three letters backwards. They began with the "
    "same weights and read the same words. In thirteen of them one step of the library's backward "
    "is wrong. **Which run is the right one?** Decide before you read on.",
    caption="The loss of two of the fourteen runs. Which of them has a mistake in its backward?",
    alt="Two falling curves of the loss over 300 steps, from 2.6 to below 0.25, so near each other "
    "that neither looks wrong.",
    controls=[
        Choice("run", "Run", **runs("bias")),
        Choice("other", "Compare with", **runs("tied")),
    ],
    compute=compare,
    views=[
        Chart(
            [
                Drawn("run", "the run", at=AT.tolist()),
                Drawn("other", "the run to compare with", at=AT.tolist()),
            ],
            Axis("step", 0, STEPS),
            Axis("loss, mean of ten steps", 0, 3),
        ),
        Figures(
            {
                "run_loss": "loss at the end",
                "run_right": "words right, in %",
                "other_loss": "compared with: loss at the end",
                "other_right": "words right, in %",
            }
        ),
    ],
    code="""\
from lessons.lesson_09.bugs import curve, end

run = 0
other = 0
run_loss, run_right = end(run)  # as `python -m lessons.train --measure 9` measured it
other_loss, other_right = end(other)
run_right, other_right = 100 * run_right, 100 * other_right
run, other = curve(run), curve(other)
print(run.round(2), other.round(2), sep="\\n\\n")""",
)


def examine(bug: str, tell: int) -> dict[str, np.ndarray]:
    """The wrong gradients of each part, and as many sentences as the reader lets it tell."""
    number = [*BUGS].index(bug)
    wrong = np.array([0, *report(bug).wrong.values()])
    loss, right = end(bug)
    return dict(
        wrong=wrong,
        at=np.argmax(wrong > 0),
        way=-1,
        loss=loss,
        right=100 * right,
        there=3 * number + 1,
        says=3 * number + 2 if tell > 0 else 0,
        line=3 * number + 3 if tell > 1 else 0,
    )


TELL = "where it is wrong", "what the check says", "the line, too"


class Sentences(Sequence):
    """ "…", and for each bug: where gradients are wrong, what the check says, and the line."""

    def __len__(self):
        return 1 + 3 * len(BUGS)

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        if number == 0:
            return "…"
        bug = [*BUGS][(number - 1) // 3]
        found = report(bug)
        return [found.there, found.says, BUGS[bug].description][(number - 1) % 3]


BLOCKS = [
    Block("loss", "loss", 1, 0),
    Block("decoder feed_forward", "decoder: FFN", 1, 1),
    Block("decoder cross_attention", "cross-attention", 1, 2),
    Block("decoder self_attention", "self-attention", 1, 3),
    Block("encoder feed_forward", "encoder: FFN", 0, 2),
    Block("encoder self_attention", "self-attention", 0, 3),
    Block("source embedding", "table Wᴱ", 0.5, 4),
]
EDGES = [  # in the direction of forward
    ("source embedding", "encoder self_attention"),
    ("encoder self_attention", "encoder feed_forward"),
    ("encoder feed_forward", "decoder cross_attention"),
    ("source embedding", "decoder self_attention"),
    ("decoder self_attention", "decoder cross_attention"),
    ("decoder cross_attention", "decoder feed_forward"),
    ("decoder feed_forward", "loss"),
]

bugs = Simulation(
    name="bugs",
    title="Find the bug",
    say="The gradient check looks at a small model with the mistake of the run. The number in a "
    "part says how many of its gradients are wrong. The gradient comes from the loss, at the top: "
    "which is the first wrong part on its way? What is right in that part, and what is not? **Say "
    "what is wrong before you let the check say it.** Then let it show the line, too.",
    caption="How many gradients of each part are wrong. Below: how well a model with this mistake "
    "learns.",
    alt="The parts of a Transformer with the number of wrong gradients: none in the decoder, all "
    "or nearly all in the encoder and in the table of embeddings.",
    size=(7.6, 5.6),
    controls=[
        Choice("bug", "Run", **runs("keys")),
        Choice("tell", "Show", [Option(n, words) for n, words in enumerate(TELL)]),
    ],
    compute=examine,
    views=[
        Diagram(BLOCKS, EDGES, "at", "way", "wrong"),
        Figures(
            {
                "loss": "Loss at the end",
                "right": "Words right, in %",
                "there": "Gradients of the first wrong part",
                "says": "The check says",
                "line": "The wrong line",
            },
            spelled=("there", "says", "line"),
            vocabulary=Sentences(),
        ),
    ],
    code="""\
from lessons.lesson_09.bugs import BUGS, check_model, end

bug = 0
report = check_model(bug)
wrong = [0, *report.wrong.values()]
print(wrong, report.says, BUGS[bug].description, sep="\\n\\n")
loss, right = end(bug)  # as `python -m lessons.train --measure 9` measured it
right = 100 * right""",
)
