# PYTHON_ARGCOMPLETE_OK
"""What attention is for: a decoder that sees one fixed-size state, against one that looks back."""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

from numformer.models import Config, Model, RecurrentEncoderDecoder, Transformer
from numformer.randomness import seed_sequence
from toy_tasks.command_line import exit_code, settings_from, study
from toy_tasks.data.splits import is_held_out
from toy_tasks.reports import charts
from toy_tasks.reports.tables import mean_and_range
from toy_tasks.text_to_text.sequences import Rule, SequenceTask

LETTERS, LONGEST, TEST_SIZE = "abcdefghijklmnopqrstuvwxyz", 20, 250
DESCRIPTION = f"""\
Reverse 1 to {LONGEST} letters, with three models of about 75,000 parameters each.

Fixed context: a GRU reads the source, and another GRU writes the target from nothing but the first
one's last state, 64 numbers (Cho et al. 2014). {LONGEST} letters are 94 bits. Attention: two GRUs
read the source, one from each side, and before each letter the decoder looks at all their states
(Bahdanau, Cho and Bengio 2015). The third model is a Transformer. Each length is tested on unseen
sequences of that length. Target: with attention an exact match of 0.99 at every length. With the
fixed context the exact match falls as sequences grow: the problem that led to attention.
"""
DEFAULTS = dict(
    batch_size=64,
    d_model=48,
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=100,
    factor=0.3,
    decay="linear",
    clip_norm=1.0,
)
ATTENTION, FIXED, TRANSFORMER = "attention", "fixed context", "Transformer"
ROWS = {
    ATTENTION: dict(context="attention", steps=1000, evaluate_every=250),
    FIXED: dict(context="fixed", d_model=64, steps=2400, evaluate_every=600),
    TRANSFORMER: dict(d_ff=48, heads=4, layers=2, factor=0.2, steps=1600, evaluate_every=400),
}


def draw_source(rng: np.random.Generator) -> str:
    """1 to LONGEST random letters."""
    return "".join(rng.choice([*LETTERS], rng.integers(1, LONGEST + 1)))


REVERSAL = Rule("bottleneck", "", LETTERS, draw_source, lambda source: source[::-1], 0.99, {})


def test_sources(length: int, count: int) -> list[str]:
    """Up to `count` different held-out sources of this length; fewer have one or two letters."""
    if length <= 2:
        sources = map("".join, itertools.product(LETTERS, repeat=length))
    else:
        rng = np.random.default_rng(seed_sequence(length, "held out"))
        sources = map("".join, rng.choice([*LETTERS], (16 * count, length)))
    return [*dict.fromkeys(filter(is_held_out, sources))][:count]


def make_task_and_config(options: argparse.Namespace):
    """The task of a run, the kind of model and its config."""
    task = SequenceTask(REVERSAL, options.batch_size, options.seed)
    sizes = dict.fromkeys(["source_vocabulary", "target_vocabulary"], len(task.text.source))
    if options.row != TRANSFORMER:
        config = settings_from(options, RecurrentEncoderDecoder.Config, **sizes)
        return task, RecurrentEncoderDecoder, config
    names = "d_model", "d_ff", "heads", "layers", "p_drop"
    config = Config(**sizes, **{name: getattr(options, name) for name in names})
    return task, Transformer, config


def measure(model: Model, task: SequenceTask, folder: Path) -> dict:
    """The exact match at every length, and the number of parameters."""
    by_length = []
    for length in range(1, LONGEST + 1):
        sources = test_sources(length, TEST_SIZE)
        answers = zip(task.write(model, sources), sources, strict=True)
        by_length.append(float(np.mean([written == source[::-1] for written, source in answers])))
    parameters = model.parameter_counts()["total"]
    return {"at_length_20": by_length[-1], "by length": by_length, "parameters": parameters}


def table(results: study.Results) -> list[list[str]]:
    """The exact match of each model at each length; below it, parameters and seconds."""
    rows = [["letters", "bits", *results]]
    for length in range(1, LONGEST + 1):
        bits = f"{length * np.log2(len(LETTERS)):.0f}"
        shares = ([run["by length"][length - 1] for run in runs] for runs in results.values())
        rows.append([str(length), bits, *map(mean_and_range, shares)])
    parameters = (f"{runs[0]['parameters']:,}" for runs in results.values())
    seconds = (mean_and_range([run["seconds"] for run in runs], ".0f") for runs in results.values())
    return [*rows, ["parameters", "", *parameters], ["seconds", "", *seconds]]


def draw(results: study.Results, folder: Path) -> None:
    """Draw the exact match against the length."""
    curves = {
        row: [(range(1, LONGEST + 1), run["by length"]) for run in runs]
        for row, runs in results.items()
    }
    title, marks = "Letters reversed, unseen sequences of every length", [1, 5, 10, 15, LONGEST]
    picture = folder / "bottleneck.png"
    charts.draw_chart(picture, title, {"": curves}, "letters", "exact match", xticks=marks)


def verdict(results: study.Results):
    """Mean exact match at length 20. Attention must reach the target at every length and seed."""
    means = {row: np.mean([run["at_length_20"] for run in runs]) for row, runs in results.items()}
    least = min(share for run in results[ATTENTION] for share in run["by length"])
    figures = ", ".join(f"{row} {mean:.4f}" for row, mean in means.items())
    test_set = f"up to {TEST_SIZE} sources of each length that training never saw"
    return (
        test_set,
        {f"at length {LONGEST}:": figures},
        ("attention 0.99 everywhere", least >= 0.99),
    )


STUDY = study.Study(
    name="bottleneck",
    description=DESCRIPTION,
    model=RecurrentEncoderDecoder,
    defaults=DEFAULTS,
    rows=ROWS,
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="at_length_20",
    table=table,
    draw=draw,
    verdict=verdict,
    example="transformer",
)


def main(arguments: list[str] | None = None) -> int:
    """Train all models and compare them, or with --run use one; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
