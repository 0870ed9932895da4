# PYTHON_ARGCOMPLETE_OK
"""The paper's Table 3 with small models: how much each design choice matters."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from numformer.models import Config, Transformer
from numformer.plots import new_figure
from toy_tasks import translate
from toy_tasks.command_line import any_path, exit_code, settings_from, study
from toy_tasks.data.datasets import pronunciations
from toy_tasks.pronounce import PronunciationTask
from toy_tasks.reports.tables import mean_and_range

DESCRIPTION = """\
Vary the Transformer one choice at a time, as Table 3 of the paper does, and print the results
beside the paper's: the word error rate on the development words of `pronounce`, or the perplexity
on the development sentences of `translate`. Several seeds show which differences are more than
chance.

  python -m toy_tasks.ablation
  python -m toy_tasks.ablation --task translate --data DIR
"""
DEFAULTS = dict(
    steps=2500,
    batch_size=64,
    evaluate_every=500,
    d_model=96,
    d_ff=384,
    heads=4,
    layers=3,
    tying="target",
    p_drop=0.1,
    warmup=250,
    factor=0.5,
    decay="linear",
    log_every=100,
    seeds=[1, 2, 3, 4, 5],
)
ROWS = {
    "base": ({}, 4.92, 25.8),
    "A heads 1": (dict(heads=1, d_k=96, d_v=96), 5.29, 24.9),
    "A heads 2": (dict(heads=2, d_k=48, d_v=48), 5.00, 25.5),
    "A heads 8": (dict(heads=8, d_k=12, d_v=12), 4.91, 25.8),
    "A heads 16": (dict(heads=16, d_k=6, d_v=6), 5.01, 25.4),
    "B d_k 6": (dict(d_k=6, d_v=24), 5.16, 25.1),
    "B d_k 12": (dict(d_k=12, d_v=24), 5.01, 25.4),
    "C layers 1": (dict(layers=1), 6.11, 23.7),
    "C layers 2": (dict(layers=2), 5.19, 25.3),
    "C layers 4": (dict(layers=4), 4.88, 25.5),
    "C d_model 48": (dict(d_model=48), 5.75, 24.5),
    "C d_model 192": (dict(d_model=192), 4.66, 26.0),
    "C d_ff 192": (dict(d_ff=192), 5.12, 25.4),
    "C d_ff 768": (dict(d_ff=768), 4.75, 26.2),
    "D dropout 0": (dict(p_drop=0.0), 5.77, 24.6),
    "D dropout 0.2": (dict(p_drop=0.2), 4.95, 25.5),
    "D smoothing 0": (dict(label_smoothing=0.0), 4.67, 25.3),
    "D smoothing 0.2": (dict(label_smoothing=0.2), 5.47, 25.7),
    "E learned positions": (dict(positions="learned"), 4.92, 25.7),
}
"""For each row, its settings, and the paper's perplexity and BLEU on its development set.

Each size has the same ratio to the base's as in the paper, whose base has 8 heads of 64, 6 layers,
d_model 512, d_ff 2048 and dropout 0.1. The exception is "heads 1": one head, as in the paper."""
TOKENS_PER_SENTENCE = 16
"""Roughly the mean: turns a batch size in sentences into a batch size in tokens."""
TASKS = "pronounce", "translate"


def make_task_and_config(options):
    """The task of a run, the kind of model and its config."""
    if options.task == "translate":
        defaults = translate.program_parser().parse_args([])
        tokens = dict(batch_size=TOKENS_PER_SENTENCE * options.batch_size)
        chosen = {name: value for name, value in vars(options).items() if value is not None}
        options = Namespace(**vars(defaults) | chosen | tokens)
        task = translate.make_task(options)
        return task, Transformer, translate.config_for(options, task.text.source, task.text.target)
    data = pronunciations(options.language, options.data)
    task = PronunciationTask(data, options.batch_size, options.seed)
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    return task, Transformer, settings_from(options, Config, **sizes)


def measure(model: Transformer, task, folder: Path) -> dict:
    """Return measures on the development set, and the number of parameters."""
    results, parameters = task.evaluate(model), model.parameter_counts()["total"]
    return results | {"figure": results[task.metric], "parameters": parameters}


def figure_name(results: study.Results) -> str:
    """The name of the metric by which the runs are compared."""
    return "perplexity" if "perplexity" in results["base"][0] else "word error rate"


def directions(results: study.Results) -> dict[str, tuple[str, str]]:
    """For each row, how it compares with the base: (in the paper, in our runs).

    In our runs, a row is "better" if all its runs are better than all runs of the base, "worse" if
    all are worse, and otherwise "?". In the paper, it is "same" if its BLEU differs from the base's
    by less than 0.2; or if our metric is perplexity, if its perplexity differs by less than 0.04.
    """
    base = [run["figure"] for run in results["base"]]
    perplexity = figure_name(results) == "perplexity"
    column, least, sign = (1, 0.035, -1) if perplexity else (2, 0.15, 1)
    found = {}
    for row, runs in results.items():
        figures = [run["figure"] for run in runs]
        ours = "?"
        if len(base) > 1 and max(figures) < min(base):
            ours = "better"
        elif len(base) > 1 and min(figures) > max(base):
            ours = "worse"
        gain = sign * (ROWS[row][column] - ROWS["base"][column])
        paper = "same" if abs(gain) < least else "better" if gain > 0 else "worse"
        found[row] = paper, ours
    return found


def table(results: study.Results) -> list[list[str]]:
    """A table row for each design choice: our results beside the paper's."""
    head = [
        "row",
        "parameters",
        f"{figure_name(results)} (lowest to highest)",
        "paper: perplexity",
        "BLEU",
        "paper says",
        "we see",
    ]
    by_row = directions(results)
    return [head] + [
        [
            row,
            f"{runs[0]['parameters']:,}",
            mean_and_range([run["figure"] for run in runs], ".2f"),
            f"{ROWS[row][1]:.2f}",
            f"{ROWS[row][2]:.1f}",
            *(("", "") if row == "base" else by_row[row]),
        ]
        for row, runs in results.items()
    ]


def draw(results: study.Results, folder: Path) -> None:
    """Plot the metric of every run, with one line for each row of the study."""
    figure = new_figure(8, 0.34 * len(results) + 1.2, layout="constrained")
    axes = figure.subplots()
    for place, runs in enumerate(results.values()):
        values = [run["figure"] for run in runs]
        axes.plot(values, [place] * len(values), "o", color="C0", alpha=0.6)
        axes.plot(np.mean(values), place, "|", color="C1", markersize=16, markeredgewidth=2)
    axes.axvline(np.mean([run["figure"] for run in results["base"]]), color="grey", linestyle=":")
    axes.set_yticks(range(len(results)), results)
    axes.invert_yaxis()
    axes.set(xlabel=f"{figure_name(results)} on the development set: the lower the better")
    axes.grid(alpha=0.3)
    figure.save(folder / "ablation.png")


def verdict(results: study.Results):
    """How many rows differ clearly from the base, and how many of these agree with the paper."""
    clear = [(paper, ours) for paper, ours in directions(results).values() if ours != "?"]
    agreeing = sum(paper == ours for paper, ours in clear)
    figures = {
        "too close to say:": f"{len(results) - 1 - len(clear)} of {len(results) - 1} rows",
        "clear and as in the paper:": f"{agreeing} of {len(clear)}",
    }
    return "the development set", figures, None


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, default="pronounce", help="the task to learn")
    parser.add_argument("--language", default="fre", help="the language of pronounce")
    parser.add_argument("--data", type=any_path, metavar="DIR", help="the task's data")


STUDY = study.Study(
    name="ablation",
    description=DESCRIPTION,
    model=Transformer,
    defaults=DEFAULTS,
    rows={row: settings for row, (settings, *_) in ROWS.items()},
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="figure",
    table=table,
    draw=draw,
    verdict=verdict,
    flags=add_flags,
)


def main(arguments: list[str] | None = None) -> int:
    """Train all models and compare them; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
