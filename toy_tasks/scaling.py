"""Scaling laws in small: how the loss falls with parameters and with the text that is read."""

import argparse
import copy
import sys
from functools import cache
from pathlib import Path

import numpy as np

from numformer.data import Subwords
from numformer.errors import InputError
from numformer.models.language_model import LanguageModel
from numformer.randomness import seed_sequence
from numformer.runs.run_folder import read_metrics
from toy_tasks.analysis import scaling_laws as laws
from toy_tasks.command_line import any_path, exit_code, integer, settings_from, study
from toy_tasks.data.datasets import shakespeare
from toy_tasks.reports import charts
from toy_tasks.reports import scaling_law_charts as law_charts
from toy_tasks.reports.scaling_law_charts import size
from toy_tasks.write import Windows, WritingTask, split

DESCRIPTION = """\
Train language models of eleven sizes, each on five amounts of Shakespeare, cut into characters and
into subwords, and fit how the loss L on unseen text falls with N parameters, without embeddings,
and D symbols read, each once: L = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022), and L =
(A N^-alpha + B D^-beta)^gamma (with beta = 1: Kaplan et al. 2020). The same runs tell which size is
best for a budget of operations. The form that foretells the largest model from the smaller ones
then predicts one three times as large, which is trained and compared. Target: both predictions,
for characters and for subwords, within 0.03 nats of the loss. The runs take 1.6 GB.

  python -m toy_tasks.scaling                        an hour on two cores
  python -m toy_tasks.scaling --resume               go on with it
  python -m toy_tasks.scaling --data FILE.txt        any text of a million characters
"""
CHARACTERS, SUBWORDS = "characters", "subwords"
VOCABULARY = 512
"""Subwords: few, so that the text has many of them."""
WINDOW, BATCH = 64, 2
"""Symbols that a model sees at a time, and how many such windows a step takes."""
AMOUNTS = {CHARACTERS: (400, 1000, 2500, 6250, 15625), SUBWORDS: (160, 400, 1000, 2500, 6250)}
"""Windows that are read, each 2.5 times as many; the last is nearly all of the text."""
SHAPES = (
    (1, 10, 1),
    (2, 10, 1),
    (2, 14, 1),
    (2, 20, 2),
    (3, 24, 2),
    (3, 36, 2),
    (4, 48, 3),
    (4, 72, 4),
    (5, 96, 4),
    (5, 144, 6),
    (6, 208, 8),
)
"""Layers, d_model and heads: about 12 layers d_model^2 parameters, from 1,200 to 3,100,000."""
LARGER = 8, 312, 12
"""Three times the parameters of the largest."""
WIDTH_TIMES_RATE = 0.3
"""The rule for the highest learning rate: 0.3 / d_model, by trying on five widths."""
WITHIN = 0.03
THEIRS = {
    "added": [f"Hoffmann et al. 2022: {number}" for number in ("0.34", "0.28", "0.46")],
    "joined": [f"Kaplan et al. 2020: {number}" for number in ("0.076", "0.095", "0.73")],
}
"""What the papers found, each with a law of this form."""
DEFAULTS = dict(
    steps=1,
    batch_size=BATCH,
    context=WINDOW,
    norm="pre",
    normalization="rms",
    positions="rotary",
    activation="swiglu",
    feed_forward_bias=False,
    p_drop=0.0,
    label_smoothing=0.0,
    optimizer="adamw",
    weight_decay=0.1,
    decay="cosine",
    clip_norm=1.0,
    temperature=0.8,
    seeds=[1],
)


def width(d_model: int) -> int:
    """d_ff of SwiGLU, whose three matrices have 8 d_model^2 entries then."""
    return round(8 * d_model / 3)


def parameters_of(shape: tuple[int, int, int]) -> int:
    """Those of all blocks: four matrices of attention, three of SwiGLU, and the norms."""
    layers, d_model, _ = shape
    return layers * d_model * (4 * d_model + 3 * width(d_model) + 2) + d_model


def row_of(unit: str, shape: tuple[int, int, int], windows: int) -> str:
    layers, d_model, _ = shape
    return f"{unit} {layers}x{d_model} {windows}"


def rows() -> dict[str, dict]:
    """Those that take longest first, as two processes then end at about the same time.

    The corners, the smallest and the largest model with the least and the most text, have three
    seeds: they tell how far chance goes.
    """
    made = {}
    for shape in (LARGER, *reversed(SHAPES)):
        layers, d_model, heads = shape
        for unit, amounts in AMOUNTS.items():
            for windows in amounts[-1:] if shape == LARGER else reversed(amounts):
                steps, ends = windows // BATCH, (amounts[0], amounts[-1])
                corner = shape in (SHAPES[0], SHAPES[-1]) and windows in ends
                made[row_of(unit, shape, windows)] = dict(
                    unit=unit,
                    layers=layers,
                    d_model=d_model,
                    heads=heads,
                    d_ff=width(d_model),
                    rate=WIDTH_TIMES_RATE / d_model,
                    steps=steps,
                    evaluate_every=steps,
                    warmup=max(1, steps // 10),
                    more_seeds=2 * corner,
                    last=shape == LARGER,
                )
    return made


class OnePass(WritingTask):
    """A text of which each window is read once, in an order that the seed decides."""

    def seeded(self, batch_size: int, seed: int, steps: int) -> "OnePass":
        """A task of its own on the same text. Raises InputError where that is too short."""
        count = (len(self.training) - 1) // self.longest
        if count < steps * batch_size:
            raise InputError(
                f"every step reads {batch_size} windows of {self.longest} {self.unit} of its own, "
                f"so {steps:,} steps need {steps * batch_size * self.longest:,} of them",
                f"a text with {len(self.training):,} to train on",
                "Give a longer text.",
            )
        task = copy.copy(self)
        task.batch_size, task.seed = batch_size, seed
        task.order = np.random.default_rng(seed_sequence(seed, "data")).permutation(count)
        return task

    def batch(self, step: int) -> Windows:
        read = self.order[(step - 1) * self.batch_size : step * self.batch_size]
        return self.windows(self.training, read * self.longest)


@cache
def read(data: Path | None, unit: str, context: int) -> OnePass:
    """The text, in the symbols of the unit."""
    text = shakespeare(data)
    lines = split(text)[0].split("\n")
    known = Subwords.train(lines, VOCABULARY, exact=True) if unit == SUBWORDS else None
    return OnePass(text, context, BATCH, 1, "scaling", known)


def make(options: argparse.Namespace):
    """What a run trains, and on what."""
    text = read(options.data, options.unit, options.context)
    task = text.seeded(options.batch_size, options.seed, options.steps)
    if options.quick:
        task.unseen = task.unseen[: 10 * options.context + 1]
    vocabulary = len(task.text.vocabulary)
    return task, LanguageModel, settings_from(options, LanguageModel.Config, vocabulary=vocabulary)


def measure(model: LanguageModel, task: OnePass, folder: Path) -> dict:
    """The loss on the unseen tenth, the parameters without embeddings, the symbols read."""
    line = read_metrics(folder / "metrics.jsonl")[-1]
    counts = model.parameter_counts()
    return {
        "loss": line[task.metric],
        "parameters": counts["total"] - counts["embedding"],
        "symbols": line["step"] * task.batch_size * task.longest,
    }


def runs_of(results: study.Results, unit: str, last: bool = False) -> tuple[laws.Run, ...]:
    """The runs of a unit that are fitted, or the `last` ones, which are predicted."""
    return tuple(
        laws.Run(run["parameters"], run["symbols"], run["loss"])
        for row, runs in results.items()
        if row.startswith(unit) and bool(STUDY.rows[row]["last"]) is last
        for run in runs
    )


def table(results: study.Results) -> list[list[str]]:
    """The loss of every size with every amount of text, unit by unit."""
    most = max(len(amounts) for amounts in AMOUNTS.values())
    lines = [["unit", "parameters", *[f"amount {i + 1}" for i in range(most)]]]
    for unit in AMOUNTS:
        losses: dict[float, dict[float, list[float]]] = {}
        for run in runs_of(results, unit) + runs_of(results, unit, last=True):
            losses.setdefault(run.symbols, {}).setdefault(run.parameters, []).append(run.loss)
        amounts = sorted(losses)
        lines.append([unit, "symbols read:", *map(size, amounts)])
        for parameters in sorted({n for by_size in losses.values() for n in by_size}):
            found = [losses[amount].get(parameters) for amount in amounts]
            lines.append(["", size(parameters), *[charts.spread(f) if f else "" for f in found]])
    return [line + [""] * (2 + most - len(line)) for line in lines]


def between(results: study.Results) -> None:
    """Print what was fitted, and what the law says of the larger runs."""
    for unit in AMOUNTS:
        of = laws.fitted(runs_of(results, unit))
        most, bottoms = max(run.symbols for run in of.runs), laws.growth(of.budgets)
        print(f"{unit}: of the largest model's loss the laws of all smaller ones miss")
        for name in laws.FORMS.keys() - of.forms.keys():
            print(f"  {name}: no law fits")
        for name, form in of.forms.items():
            law, floor = form.law, f"{form.law.E:.3f} + " * (form.law.E > 0)
            power = f"^{law.gamma:.3f}" * (law.gamma != 1)
            terms = f"{law.A:.3g} N^-{law.alpha:.3f} + {law.B:.3g} D^-{law.beta:.3f}"
            print(f"  {name}: {form.missed:+.4f}; L = {floor}({terms}){power}")
            print(f"    L ~ N^-p, p = {form.number('by_size')}; {THEIRS[name][0]}")
            print(f"    L ~ D^-q, q = {form.number('by_text')}; {THEIRS[name][1]}")
            print(f"    best size ~ C^a, a = {form.number('growth')}; {THEIRS[name][2]}")
        by_bottoms = "unknown" if bottoms is None else laws.told(bottoms, of.growths)
        print(f"  best size by parabolas: a = {by_bottoms}; Hoffmann et al.: 0.49")
        expected = of.forms[of.chosen].loss(parameters_of(LARGER), most)
        print(f"  {of.chosen}, {parameters_of(LARGER):,} parameters, {most:,} symbols: {expected},")
        print("    the law's interval; a run's own seed moves its loss further")


def draw(results: study.Results, folder: Path) -> None:
    """A row of pictures for each unit."""
    of_unit = {
        u: (laws.fitted(runs_of(results, u)), runs_of(results, u, last=True)) for u in AMOUNTS
    }
    law_charts.draw(folder / "scaling.png", of_unit)


def verdict(results: study.Results):
    """How far each prediction is from the loss of the run that it predicts."""
    misses, figures = [], {}
    for unit in AMOUNTS:
        of, (run, *_) = laws.fitted(runs_of(results, unit)), runs_of(results, unit, last=True)
        predicted = of.law.loss(run.parameters, run.symbols)
        misses.append(abs(predicted - run.loss))
        figures[f"{unit}: predicted"] = f"{predicted:.4f}, trained {run.loss:.4f}"
    figures["the predictions are off by"] = ", ".join(f"{miss:.4f}" for miss in misses)
    what = "loss on the last tenth of the text, in nats of a symbol"
    return what, figures, (f"within {WITHIN}", max(misses) <= WITHIN)


def add_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--data", type=any_path, metavar="FILE.txt", help="a text to learn from")
    flags.add_argument("--context", type=integer, default=WINDOW, help="symbols in a window")


STUDY = study.Study(
    name="scaling",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows=rows(),
    make=make,
    measure=measure,
    figure="loss",
    table=table,
    draw=draw,
    verdict=verdict,
    example="ROMEO:",
    flags=add_flags,
    between=between,
)


def main(arguments: list[str] | None = None) -> int:
    """Train, fit and predict, or with --run go on from texts; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
