# PYTHON_ARGCOMPLETE_OK
"""Learn to continue repeated random sequences: how an induction head forms."""

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
from toy_tasks.data.windows import PartialWindows
from toy_tasks.reports import charts
from toy_tasks.reports.tables import mean_and_range

DESCRIPTION = """\
Learn to continue random sequences that are repeated, such as abcdeabcde, with two layers of
attention and with one. No symbol can be predicted the first time it appears. After that, a head
can predict it: the head finds the earlier occurrence of the current symbol, and looks at the
symbol that came next. This is an induction head (Elhage et al. 2021, Olsson et al. 2022). It needs
two layers, because the first has to pass each symbol on to the position after it. Prefix matching
is the mean weight that the best head puts on the symbol that came next; copying is the share of
symbols that are predicted correctly.

  python -m toy_tasks.induction
  python -m toy_tasks.induction --run runs/induction/two-layers-1 --input qwertyuiopqwert
"""

SYMBOLS = "abcdefghijklmnopqrstuvwxyz"
LENGTHS = range(4, 13)
"""Lengths of the repeated sequence. With a single length, position alone would be enough."""
MAX_PREFIX = 8
"""The most symbols before the sequence, so that it does not always begin at position 0."""
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
MIN_MATCHING, MIN_COPYING, MAX_MATCHING = 0.9, 0.99, 0.2
"""The target: with two layers at least the first two numbers, with one at most the third."""


class InductionTask:
    """Batches of repeated sequences, for `numformer.training.train`."""

    metric, higher_is_better, longest = "prefix_matching", True, 32

    def __init__(self, batch_size: int, seed: int):
        self.batch_size, self.seed = batch_size, seed
        self.text = Continuation(Vocabulary(SYMBOLS), self.longest)
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        self.held_out = [
            self.draw(rng, np.full(64, length), np.full(64, 4), 4 + 2 * length)
            for length in LENGTHS[2::3]
        ]

    def draw(self, rng, lengths: np.ndarray, prefixes: np.ndarray, total: int) -> PartialWindows:
        """Rows of `total` symbols: `prefixes` random ones, then a sequence that is repeated.

        A sequence has `lengths` different symbols. Only its repetitions are to be predicted,
        without the first symbol of the first one.
        """
        symbols = rng.permuted(np.tile(np.arange(len(SYMBOLS)), (len(lengths), 1)), axis=1)
        places = np.arange(total) - prefixes[:, None]  # 0 where the sequence begins
        chosen = np.where(places < 0, places, places % lengths[:, None])
        first = len(self.text.vocabulary) - len(SYMBOLS)
        ids = first + np.take_along_axis(symbols, chosen % len(SYMBOLS), axis=1)
        valid = places[:, 1:] > lengths[:, None]
        return PartialWindows(ids[:, :-1], ids[:, 1:], valid)

    def batch(self, step: int) -> PartialWindows:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        lengths = rng.choice(LENGTHS, self.batch_size)
        prefixes = rng.integers(MAX_PREFIX + 1, size=self.batch_size)
        return self.draw(rng, lengths, prefixes, self.longest)

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        """Prefix matching of the best head, and the accuracy in the repetition."""
        scores, right = [], []
        for ids, following, valid in (batch.inputs for batch in self.held_out):
            repetition = valid[0].nonzero()[0]
            expected = repetition - len(repetition)  # after the earlier occurrence
            weights = np.stack([*attention_weights(model, ids).values()])  # (layers, B, H, T, T)
            scores.append(weights[..., repetition, expected].mean(axis=(1, 3)))
            right.append((model.forward(ids).argmax(axis=-1) == following)[:, repetition].mean())
        best = float(np.mean(scores, axis=0).max())
        return {self.metric: best, "copying": float(np.mean(right))}

    def description(self) -> dict:
        return {"name": "induction"}


def make_task_and_config(options):
    """The task of a run, the kind of model and its config."""
    task = InductionTask(options.batch_size, options.seed)
    config = settings_from(options, LanguageModel.Config, vocabulary=len(task.text.vocabulary))
    return task, LanguageModel, config


def measure(model: LanguageModel, task: InductionTask, folder: Path) -> dict:
    """The scores, their curves, and the first step with a prefix matching of at least 0.5."""
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if task.metric in line]
    scores = task.evaluate(model)
    curves = {f"{name} by step": [line[name] for line in lines] for name in scores}
    steps = [line["step"] for line in lines]
    formation_steps = [line["step"] for line in lines if line[task.metric] >= 0.5]
    return scores | curves | {"steps": steps, "formed": formation_steps[:1]}


def table(results: study.Results) -> list[list[str]]:
    """A row for each number of layers."""
    rows = [["", "prefix matching", "copying", "a score of 0.5 at step"]]
    for row, runs in results.items():
        scores = [mean_and_range([run[name] for run in runs]) for name in FIGURES]
        steps = [str(*run["formed"]) or "never" for run in runs]
        rows.append([row, *scores, ", ".join(steps)])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """Draw the scores against the step, and the attention maps of the first run."""
    panels = {
        name.replace("_", " "): {
            row: [(run["steps"], run[f"{name} by step"]) for run in runs]
            for row, runs in results.items()
        }
        for name in FIGURES
    }
    charts.draw_chart(folder / "induction.png", "Induction heads", panels, "step", "score")
    trained = load(results["two layers"][0]["folder"])
    trained.attention("induct" * 2).draw(folder / "attention.png")


def verdict(results: study.Results):
    """The scores of the worst seed."""
    lowest = {name: min(run[name] for run in results["two layers"]) for name in FIGURES}
    single = max(run["prefix_matching"] for run in results["one layer"])
    two, copying = lowest["prefix_matching"], lowest["copying"]
    is_reached = two >= MIN_MATCHING and copying >= MIN_COPYING and single <= MAX_MATCHING
    target = f"prefix matching {MIN_MATCHING}, copying {MIN_COPYING}, one layer at most "
    target += f"{MAX_MATCHING}"
    figures = {"copying": f"{copying:.4f}", "two layers": f"{two:.3f}, one layer {single:.3f}"}
    return "the worst seed, on sequences that training never saw", figures, (target, is_reached)


FIGURES = "prefix_matching", "copying"
STUDY = study.Study(
    name="induction",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows={"two layers": {"layers": 2}, "one layer": {"layers": 1}},
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="prefix_matching",
    table=table,
    draw=draw,
    verdict=verdict,
    example="abcdefabc",
)


def main(arguments: list[str] | None = None) -> int:
    """Train all models and compare them; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
