"""Learn to go on with repeated random sequences: how a head that copies from the past is made."""

import sys
from pathlib import Path

import numpy as np

from numformer.data import Vocabulary
from numformer.generation import Continuation
from numformer.models.language_model import LanguageModel
from numformer.plots import attention_weights
from numformer.randomness import seed_sequence
from numformer.runs.run_folder import read_metrics
from numformer.trained import load
from toy_tasks.command_line import exit_code, settings_from, study
from toy_tasks.reports import charts
from toy_tasks.write import Answers

DESCRIPTION = """\
Learn random sequences that are repeated, abcdeabcde, with two layers of attention and with one.
None of the symbols can be guessed when it comes first, each can when it comes again, by a head that
finds the symbol's earlier occurrence and looks at what came after it: an induction head (Elhage et
al. 2021, Olsson et al. 2022). It takes two layers, for the first one has to write into a position
which symbol stands before it. Prefix matching is the mean weight with which the best head looks
there, copying how often the right symbol is the most probable one.

  python -m toy_tasks.induction
  python -m toy_tasks.induction --run runs/induction/two-layers-1 --input qwertyuiopqwert
"""

SYMBOLS = "abcdefghijklmnopqrstuvwxyz"
LENGTHS = range(4, 13)  # of what is repeated; a fixed one could be found by position alone
MOST_BEFORE = 8
DEFAULTS = dict(
    steps=500,
    batch_size=32,
    evaluate_every=20,
    d_model=64,
    d_ff=64,
    heads=2,
    norm="post",
    positions="rotary",
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=50,
    factor=0.3,
    decay="linear",
)
REACHED = 0.9, 0.99, 0.2  # prefix matching and copying of two layers, prefix matching of one


class InductionTask:
    """Batches of sequences that come again and again, for `numformer.training.train`."""

    metric, higher_is_better, longest = "prefix_matching", True, 32

    def __init__(self, batch_size: int, seed: int):
        self.batch_size, self.seed = batch_size, seed
        self.text = Continuation(Vocabulary(SYMBOLS), self.longest)
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        self.held_out = [
            self.draw(rng, np.full(64, length), np.full(64, 4), 4 + 2 * length)
            for length in LENGTHS[2::3]
        ]

    def draw(self, rng, lengths: np.ndarray, before: np.ndarray, total: int) -> Answers:
        """Rows of `total` symbols: `before` others, then `lengths` different ones again and again.

        With others before, it does not always begin at the first position.
        """
        symbols = rng.permuted(np.tile(np.arange(len(SYMBOLS)), (len(lengths), 1)), axis=1)
        places = np.arange(total) - before[:, None]  # 0 where the sequence begins
        taken = np.where(places < 0, places, places % lengths[:, None])
        first = len(self.text.vocabulary) - len(SYMBOLS)
        ids = first + np.take_along_axis(symbols, taken % len(SYMBOLS), axis=1)
        valid = places[:, 1:] > lengths[:, None]  # what comes before is chance
        return Answers(ids[:, :-1], ids[:, 1:], valid)

    def batch(self, step: int) -> Answers:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        lengths = rng.choice(LENGTHS, self.batch_size)
        before = rng.integers(MOST_BEFORE + 1, size=self.batch_size)
        return self.draw(rng, lengths, before, self.longest)

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        """Prefix matching of the best head, and the accuracy where the sequence comes again."""
        scores, right = [], []
        for ids, following, valid in (batch.inputs for batch in self.held_out):
            again = valid[0].nonzero()[0]  # these look where the sequence was, one place further
            came_after = again - len(again)
            weights = np.stack([*attention_weights(model, ids).values()])  # (layers, B, H, T, T)
            scores.append(weights[..., again, came_after].mean(axis=(1, 3)))
            right.append((model.forward(ids).argmax(axis=-1) == following)[:, again].mean())
        best = float(np.mean(scores, axis=0).max())
        return {self.metric: best, "copying": float(np.mean(right))}

    def description(self) -> dict:
        return {"name": "induction"}


def make(options):
    """What a run trains, and on what."""
    task = InductionTask(options.batch_size, options.seed)
    config = settings_from(options, LanguageModel.Config, vocabulary=len(task.text.vocabulary))
    return task, LanguageModel, config


def measure(model: LanguageModel, task: InductionTask, folder: Path) -> dict:
    """The scores, those on the way, and the first step with a prefix matching of a half."""
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if task.metric in line]
    measured = task.evaluate(model)
    curves = {f"{name} by step": [line[name] for line in lines] for name in measured}
    steps = [line["step"] for line in lines]
    formed = [line["step"] for line in lines if line[task.metric] >= 0.5]
    return measured | curves | {"steps": steps, "formed": formed[:1]}


def table(results: study.Results) -> list[list[str]]:
    """A row for each number of layers."""
    rows = [["", "prefix matching", "copying", "a score of 0.5 at step"]]
    for row, runs in results.items():
        scores = [charts.spread([run[name] for run in runs]) for name in FIGURES]
        steps = [str(*run["formed"]) or "never" for run in runs]
        rows.append([row, *scores, ", ".join(steps)])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """When it happens; and where the layers of the first run look."""
    panels = {
        name.replace("_", " "): {
            row: [(run["steps"], run[f"{name} by step"]) for run in runs]
            for row, runs in results.items()
        }
        for name in FIGURES
    }
    charts.chart(folder / "induction.png", "Induction heads", panels, "step", "score")
    trained = load(results["two layers"][0]["folder"])
    trained.attention("induct" * 2).draw(folder / "attention.png")


def verdict(results: study.Results):
    """The worst of the seeds decides."""
    lowest = {name: min(run[name] for run in results["two layers"]) for name in FIGURES}
    single = max(run["prefix_matching"] for run in results["one layer"])
    two, copying, most = lowest["prefix_matching"], lowest["copying"], REACHED[2]
    reached = two >= REACHED[0] and copying >= REACHED[1] and single <= most
    target = f"prefix matching {REACHED[0]}, copying {REACHED[1]}, one layer at most {most}"
    figures = {"copying": f"{copying:.4f}", "two layers": f"{two:.3f}, one layer {single:.3f}"}
    return "the worst seed, on sequences that training never saw", figures, (target, reached)


FIGURES = "prefix_matching", "copying"
STUDY = study.Study(
    name="induction",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows={"two layers": {"layers": 2}, "one layer": {"layers": 1}},
    make=make,
    measure=measure,
    figure="prefix_matching",
    table=table,
    draw=draw,
    verdict=verdict,
    example="abcdefabc",
)


def main(arguments: list[str] | None = None) -> int:
    """Train and compare; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
