# PYTHON_ARGCOMPLETE_OK
"""Scaling laws of small models: how the loss falls with parameters and with training text."""

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
from toy_tasks.data.windows import Windows
from toy_tasks.reports.scaling_law_charts import draw_laws, short_number
from toy_tasks.reports.tables import mean_and_range
from toy_tasks.write import WritingTask, split

DESCRIPTION = """\
Train language models of eleven sizes, each on five amounts of Shakespeare's text, as characters and
as subwords. Fit how the loss L on unseen text falls with the number of parameters N, without
embeddings, and the number of symbols D, each read once: L = E + A N^-alpha + B D^-beta (Hoffmann et
al. 2022), and L = (A N^-alpha + B D^-beta)^gamma (with beta = 1: Kaplan et al. 2020). The same runs
show which size is best for a budget of operations. The form that better predicts the largest model
from the smaller ones then predicts a model three times as large, which is trained for comparison.
Target: the predictions for characters and for subwords are both within 0.03 nats of the loss. The
runs take 1.6 GB of disk space.

  python -m toy_tasks.scaling                        an hour on two cores
  python -m toy_tasks.scaling --resume               continue it
  python -m toy_tasks.scaling --data FILE.txt        any text of a million characters
"""
CHARACTERS, SUBWORDS = "characters", "subwords"
VOCABULARY = 512
"""The number of subwords. It is small, so that the text has many symbols."""
WINDOW, BATCH = 64, 2
"""Symbols in a window, and windows in a batch."""
AMOUNTS = {CHARACTERS: (400, 1000, 2500, 6250, 15625), SUBWORDS: (160, 400, 1000, 2500, 6250)}
"""Windows of training text. Each amount is 2.5 times the one before; the last is nearly all."""
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
"""(layers, d_model, heads): about 12 * layers * d_model^2 parameters, from 1,200 to 3,100,000."""
PREDICTED = 8, 312, 12
"""The shape of the predicted model, with three times the parameters of the largest of SHAPES."""
WIDTH_TIMES_RATE = 0.3
"""The highest learning rate is 0.3 / d_model, which was best for five widths."""
MAX_ERROR = 0.03
PUBLISHED = {
    "added": [f"Hoffmann et al. 2022: {number}" for number in ("0.34", "0.28", "0.46")],
    "joined": [f"Kaplan et al. 2020: {number}" for number in ("0.076", "0.095", "0.73")],
}
"""The exponents p, q and a that papers found with each form of the law."""
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


def inner_width(d_model: int) -> int:
    """The d_ff with which the three matrices of SwiGLU have 8 d_model^2 entries."""
    return round(8 * d_model / 3)


def parameter_count(shape: tuple[int, int, int]) -> int:
    """The parameters of all blocks: four matrices of attention, three of SwiGLU, the norms."""
    layers, d_model, _ = shape
    return layers * d_model * (4 * d_model + 3 * inner_width(d_model) + 2) + d_model


def row_name(unit: str, shape: tuple[int, int, int], windows: int) -> str:
    layers, d_model, _ = shape
    return f"{unit} {layers}x{d_model} {windows}"


def rows() -> dict[str, dict]:
    """The settings of each row. The longest runs come first, so that all processes end together.

    The smallest and the largest model with the least and the most text have three seeds, which
    show how much results vary by chance.
    """
    settings = {}
    for shape in (PREDICTED, *reversed(SHAPES)):
        layers, d_model, heads = shape
        for unit, amounts in AMOUNTS.items():
            for windows in amounts[-1:] if shape == PREDICTED else reversed(amounts):
                steps, ends = windows // BATCH, (amounts[0], amounts[-1])
                corner = shape in (SHAPES[0], SHAPES[-1]) and windows in ends
                settings[row_name(unit, shape, windows)] = dict(
                    unit=unit,
                    layers=layers,
                    d_model=d_model,
                    heads=heads,
                    d_ff=inner_width(d_model),
                    rate=WIDTH_TIMES_RATE / d_model,
                    steps=steps,
                    evaluate_every=steps,
                    warmup=max(1, steps // 10),
                    more_seeds=2 * corner,
                    last=shape == PREDICTED,
                )
    return settings


class OnePass(WritingTask):
    """A task that reads each window of a text once, in an order that depends on the seed."""

    def with_seed(self, batch_size: int, seed: int, steps: int) -> "OnePass":
        """A new task on the same text. Raises InputError if the text is too short."""
        count = (len(self.training) - 1) // self.longest
        if count < steps * batch_size:
            raise InputError(
                f"every step reads {batch_size} new windows of {self.longest} {self.unit}, "
                f"so {steps:,} steps need {steps * batch_size * self.longest:,} symbols",
                f"a text with {len(self.training):,} to train on",
                "Give a longer text.",
            )
        task = copy.copy(self)
        task.batch_size, task.seed = batch_size, seed
        task.order = np.random.default_rng(seed_sequence(seed, "data")).permutation(count)
        return task

    def batch(self, step: int) -> Windows:
        windows = self.order[(step - 1) * self.batch_size : step * self.batch_size]
        return self.windows(self.training, windows * self.longest)


@cache
def read_task(data: Path | None, unit: str, context: int) -> OnePass:
    """Read the text as a task, in characters or in subwords."""
    text = shakespeare(data)
    lines = split(text)[0].split("\n")
    subwords = Subwords.train(lines, VOCABULARY, exact=True) if unit == SUBWORDS else None
    return OnePass(text, context, BATCH, 1, "scaling", subwords)


def make_task_and_config(options: argparse.Namespace):
    """The task of a run, the kind of model and its config."""
    text = read_task(options.data, options.unit, options.context)
    task = text.with_seed(options.batch_size, options.seed, options.steps)
    if options.quick:
        task.unseen = task.unseen[: 10 * options.context + 1]
    vocabulary = len(task.text.vocabulary)
    return task, LanguageModel, settings_from(options, LanguageModel.Config, vocabulary=vocabulary)


def measure(model: LanguageModel, task: OnePass, folder: Path) -> dict:
    """The held-out loss, and the numbers of parameters (without embeddings) and symbols read."""
    line = read_metrics(folder / "metrics.jsonl")[-1]
    counts = model.parameter_counts()
    return {
        "loss": line[task.metric],
        "parameters": counts["total"] - counts["embedding"],
        "symbols": line["step"] * task.batch_size * task.longest,
    }


def law_runs(results: study.Results, unit: str, last: bool = False) -> tuple[laws.Run, ...]:
    """The runs of a unit, to fit a law to; with `last`, the larger model's runs, to predict."""
    return tuple(
        laws.Run(run["parameters"], run["symbols"], run["loss"])
        for row, runs in results.items()
        if row.startswith(unit) and bool(STUDY.rows[row]["last"]) is last
        for run in runs
    )


def table(results: study.Results) -> list[list[str]]:
    """The loss of every size with every amount of text, for each unit."""
    most = max(len(amounts) for amounts in AMOUNTS.values())
    lines = [["unit", "parameters", *[f"amount {i + 1}" for i in range(most)]]]
    for unit in AMOUNTS:
        losses: dict[float, dict[float, list[float]]] = {}
        for run in law_runs(results, unit) + law_runs(results, unit, last=True):
            losses.setdefault(run.symbols, {}).setdefault(run.parameters, []).append(run.loss)
        amounts = sorted(losses)
        lines.append([unit, "symbols read:", *map(short_number, amounts)])
        for parameters in sorted({n for by_size in losses.values() for n in by_size}):
            losses_by_amount = [losses[amount].get(parameters) for amount in amounts]
            lines.append(
                [
                    "",
                    short_number(parameters),
                    *[mean_and_range(f) if f else "" for f in losses_by_amount],
                ]
            )
    return [line + [""] * (2 + most - len(line)) for line in lines]


def between(results: study.Results) -> None:
    """Print the fitted laws, and what they predict for the larger model."""
    for unit in AMOUNTS:
        fit = laws.fit_all(law_runs(results, unit))
        most, exponent = max(run.symbols for run in fit.runs), laws.growth(fit.budgets)
        print(f"{unit}: laws fitted to smaller models, and their error for the largest model")
        for name in laws.FORMS.keys() - fit.forms.keys():
            print(f"  {name}: no law fits")
        for name, form in fit.forms.items():
            law, floor = form.law, f"{form.law.E:.3f} + " * (form.law.E > 0)
            power = f"^{law.gamma:.3f}" * (law.gamma != 1)
            terms = f"{law.A:.3g} N^-{law.alpha:.3f} + {law.B:.3g} D^-{law.beta:.3f}"
            print(f"  {name}: {form.error:+.4f}; L = {floor}({terms}){power}")
            print(f"    L ~ N^-p, p = {form.number('by_size')}; {PUBLISHED[name][0]}")
            print(f"    L ~ D^-q, q = {form.number('by_text')}; {PUBLISHED[name][1]}")
            print(f"    best size ~ C^a, a = {form.number('growth')}; {PUBLISHED[name][2]}")
        interval = "unknown" if exponent is None else laws.with_interval(exponent, fit.growths)
        print(f"  best size by parabolas: a = {interval}; Hoffmann et al.: 0.49")
        size = parameter_count(PREDICTED)
        loss = fit.forms[fit.chosen].loss(size, most)
        print(f"  {fit.chosen}, {size:,} parameters, {most:,} symbols: {loss},")
        print("    the interval is the law's; a single run varies more, by its seed")


def draw(results: study.Results, folder: Path) -> None:
    """Draw a row of charts for each unit."""
    fits = {
        unit: (laws.fit_all(law_runs(results, unit)), law_runs(results, unit, last=True))
        for unit in AMOUNTS
    }
    draw_laws(folder / "scaling.png", fits)


def verdict(results: study.Results):
    """The error of each prediction."""
    errors, figures = [], {}
    for unit in AMOUNTS:
        fit, (run, *_) = laws.fit_all(law_runs(results, unit)), law_runs(results, unit, last=True)
        prediction = fit.law.loss(run.parameters, run.symbols)
        errors.append(abs(prediction - run.loss))
        figures[f"{unit}: predicted"] = f"{prediction:.4f}, trained {run.loss:.4f}"
    figures["the predictions are off by"] = ", ".join(f"{error:.4f}" for error in errors)
    loss_name = "loss on the last tenth of the text, in nats per symbol"
    return loss_name, figures, (f"within {MAX_ERROR}", max(errors) <= MAX_ERROR)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=any_path, metavar="FILE.txt", help="a text to learn from")
    parser.add_argument("--context", type=integer, default=WINDOW, help="symbols in a window")


STUDY = study.Study(
    name="scaling",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows=rows(),
    make_task_and_config=make_task_and_config,
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
    """Train, fit and predict, or with --run continue texts; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
