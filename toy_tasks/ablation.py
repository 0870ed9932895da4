"""The paper's Table 3 in small: what each choice of the model brings, with the spread of seeds."""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np

from numformer.models import Config, Transformer
from numformer.plots import new_figure
from toy_tasks import translate
from toy_tasks.command_line import any_path, exit_code, settings_from, study
from toy_tasks.data.datasets import pronunciations
from toy_tasks.pronounce import PronunciationTask
from toy_tasks.reports import charts

DESCRIPTION = """\
Vary the Transformer as Table 3 of the paper does, a choice at a time, and print how good each is
beside the paper's figure: word error rate on the development words of `pronounce`, or perplexity
on the development sentences of `translate`. Several seeds tell what is more than chance.

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
"""Each row with the settings in which it differs, and the paper's perplexity and BLEU on its
development set. The proportions to the base are the paper's, which has 8 heads of 64, 6 layers,
d_model 512, d_ff 2048 and dropout 0.1; but of heads it is the number 1 that both have."""
TOKENS = 16
"""About what a sentence has of them, as batches of sentences become batches of tokens."""
TASKS = "pronounce", "translate"


def make(options):
    """What a run trains, and on what."""
    if options.task == "translate":
        usual = translate.flags().parse_args([])
        tokens = dict(batch_size=TOKENS * options.batch_size)
        ours = {name: value for name, value in vars(options).items() if value is not None}
        options = Namespace(**vars(usual) | ours | tokens)
        task = translate.make_task(options)
        vocabularies = task.text.source, task.text.target
        return task, Transformer, translate.config_for(options, vocabularies)
    data = pronunciations(options.language, options.data)
    task = PronunciationTask(data, options.batch_size, options.seed)
    sizes = dict(source_vocabulary=len(task.text.source), target_vocabulary=len(task.text.target))
    return task, Transformer, settings_from(options, Config, **sizes)


def measure(model: Transformer, task, folder: Path) -> dict:
    """What the task measures on its development set, and the model's size."""
    measured, parameters = task.evaluate(model), model.parameter_counts()["total"]
    return measured | {"figure": measured[task.metric], "parameters": parameters}


def named(results: study.Results) -> str:
    """What the figures of the study's task are."""
    return "perplexity" if "perplexity" in results["base"][0] else "word error rate"


def compared(results: study.Results) -> dict[str, tuple[str, str]]:
    """Of each row the direction of the paper and ours, seen from the base: better, worse, same.

    A direction of ours counts where no run of a row lies among several of the base; the paper has
    one run each, of which a difference of 0.2 BLEU or more counts. Ours of perplexity are beside
    the paper's of perplexity, of which 0.04 or more count.
    """
    base = [run["figure"] for run in results["base"]]
    of_perplexity = named(results) == "perplexity"
    place, least, sign = (1, 0.035, -1) if of_perplexity else (2, 0.15, 1)
    directions = {}
    for row, runs in results.items():
        figures = [run["figure"] for run in runs]
        ours = "?"
        if len(base) > 1 and max(figures) < min(base):
            ours = "better"
        elif len(base) > 1 and min(figures) > max(base):
            ours = "worse"
        gain = sign * (ROWS[row][place] - ROWS["base"][place])
        theirs = "same" if abs(gain) < least else "better" if gain > 0 else "worse"
        directions[row] = theirs, ours
    return directions


def table(results: study.Results) -> list[list[str]]:
    """The paper's rows beside ours."""
    head = [
        "row",
        "parameters",
        f"{named(results)} (lowest to highest)",
        "paper: perplexity",
        "BLEU",
        "paper says",
        "we see",
    ]
    directions = compared(results)
    return [head] + [
        [
            row,
            f"{runs[0]['parameters']:,}",
            charts.spread([run["figure"] for run in runs], ".2f"),
            f"{ROWS[row][1]:.2f}",
            f"{ROWS[row][2]:.1f}",
            *(("", "") if row == "base" else directions[row]),
        ]
        for row, runs in results.items()
    ]


def draw(results: study.Results, folder: Path) -> None:
    """Our figure of every run, row by row."""
    figure = new_figure(8, 0.34 * len(results) + 1.2, layout="constrained")
    axes = figure.subplots()
    for place, runs in enumerate(results.values()):
        values = [run["figure"] for run in runs]
        axes.plot(values, [place] * len(values), "o", color="C0", alpha=0.6)
        axes.plot(np.mean(values), place, "|", color="C1", markersize=16, markeredgewidth=2)
    axes.axvline(np.mean([run["figure"] for run in results["base"]]), color="grey", linestyle=":")
    axes.set_yticks(range(len(results)), results)
    axes.invert_yaxis()
    axes.set(xlabel=f"{named(results)} on the development set: the lower the better")
    axes.grid(alpha=0.3)
    figure.savefig(folder / "ablation.png", dpi=110)


def verdict(results: study.Results):
    """How many rows go the paper's way."""
    directions = compared(results).items()
    clear = {row: (theirs, ours) for row, (theirs, ours) in directions if ours != "?"}
    agreeing = sum(theirs == ours for theirs, ours in clear.values())
    figures = {
        "too close to say:": f"{len(results) - 1 - len(clear)} of {len(results) - 1} rows",
        "clear and as in the paper:": f"{agreeing} of {len(clear)}",
    }
    return "the development set", figures, None


def add_flags(flags) -> None:
    flags.add_argument("--task", choices=TASKS, default="pronounce", help="what is learned")
    flags.add_argument("--language", default="fre", help="of pronounce")
    flags.add_argument("--data", type=any_path, metavar="DIR", help="the task's data")


STUDY = study.Study(
    name="ablation",
    description=DESCRIPTION,
    model=Transformer,
    defaults=DEFAULTS,
    rows={row: differs for row, (differs, *_) in ROWS.items()},
    make=make,
    measure=measure,
    figure="figure",
    table=table,
    draw=draw,
    verdict=verdict,
    flags=add_flags,
)


def main(arguments: list[str] | None = None) -> int:
    """Train and compare; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
