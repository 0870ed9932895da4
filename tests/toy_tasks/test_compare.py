"""Comparisons of runs: what the table says, which runs are one group, what is drawn and refused."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from numformer.runs import draw_losses
from numformer.runs.checkpoints import save_checkpoint
from numformer.training.loop import train
from tests.training.tiny_runs import Copying, recipe, tiny
from toy_tasks import compare
from toy_tasks.command_line import run_folders
from toy_tasks.reports.tables import aligned_table, fitted_table

OPTIONS = dict(steps=4, seed=1, log_every=1, backend="numpy", heads=4, factor=0.5, clip_norm=None)


def make(folder: str, figures=(0.25, 0.5), best=4, losses=(8, 4, 2, 1), **others) -> str:
    """A run with a line for each loss and, every second step, a figure -> its folder.

    A run that is not `new` has no seconds and no held-out loss, which is ten times the figure.
    """
    how = dict(metric="exact_match", task="reverse", new=True, without=()) | others
    metric, task, new, without = map(how.pop, ("metric", "task", "new", "without"))
    run = Path(folder)
    run.mkdir(parents=True)
    options = {k: v for k, v in (OPTIONS | how).items() if k not in without}
    recipe, config = {"factor": options.pop("factor")}, {"source_vocabulary": 10 + options["seed"]}
    run_folders.write_first_config(run, {"options": options, "config": config, "recipe": recipe})
    lines = []
    for step, loss in enumerate(losses, start=1):
        lines.append(dict(step=step, loss=loss, rate=step / 8, gradient_norm=1.0))
        if step % 2 == 0:
            figure = figures[step // 2 - 1]
            line = {"step": step} | ({"held_out_loss": 10 * figure} if new else {})
            more = {} if metric == compare.LOSS else {"another": 1.0}
            lines.append(line | {metric: figure} | more)
    if new:
        lines = [line | {"seconds": 1.5 * i} for i, line in enumerate(lines, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if best:
        metadata = {"task": {"name": task} if task else {}, "best": {"step": best}}
        save_checkpoint(run / "best.safetensors", {"x": np.zeros(1)}, metadata)
    return folder


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))

    def figure_of(*folders) -> Figure:
        assert compare.main([*folders]) == 0
        return figures.pop()

    return figure_of


def curves(axes) -> list[list[list[float]]]:
    return [line.get_xydata().tolist() for line in axes.lines]


def test_the_table_of_runs_and_of_their_seeds(succeed, pixels):
    """The best is that of best.safetensors, whatever comes after it; old runs lack some columns."""
    make("a", heads=1, figures=(0.5, 0.25), best=2)
    make("b", heads=1, figures=(0.0, 0.75), seed=22)
    make("c", heads=16, losses=(8, 4, 2), best=2, new=False)
    assert succeed(compare.main, "a b c") == [
        "run  heads  seed  kept at step  exact_match  held_out_loss  steps taken  seconds",
        "a        1     1             2       0.5000         5.0000            4      9.0",
        "b        1    22             4       0.7500         7.5000            4      9.0",
        "c       16     1             2       0.2500              -       3 of 4        -",
        "",
        "same setting              best    mean   least  greatest",
        "heads 1 (2 seeds)  exact_match  0.6250  0.5000    0.7500",
        "picture: runs/compare.png",
    ]
    assert Path("runs/compare.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([{}, {}], ["0 (2 runs)"]),
        ([dict(heads=1), dict(heads=8), dict(heads=1, seed=2)], ["heads 1 (2 seeds)", "heads 8"]),
        ([dict(rate=0.1), dict(rate=0.2, factor=2.0)], ["rate 0.1", "rate 0.2"]),
        ([dict(rate=0.1), {}], ["rate 0.1", "factor 0.5"]),
        ([dict(heads=1), dict(factor=2.0)], ["heads 1, factor 0.5", "heads 4, factor 2"]),
        ([{}, dict(log_every=2, backend="auto", seed=2)], ["0 (2 seeds)"]),
        ([{}, dict(task=None, heads=5)], ["task reverse, heads 4", "heads 5"]),
        ([dict(heads=8, seed=2, without=["clip_norm"]), dict(heads=8)], ["0 (2 seeds)"]),
        ([dict(data="x" * 60), dict(data="y"), dict(data="y", seed=2)], ["0", "data y (2 seeds)"]),
    ],
    ids=str,
)
def test_runs_that_differ_in_their_seed_alone_are_one_group(runs, labels, drawn, capsys):
    """Groups are named by what they differ in; where it is nothing or too much, by a folder."""
    figure = drawn(*(make(str(number), **options) for number, options in enumerate(runs)))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    assert all(len(axes.lines) == len(labels) for axes in figure.axes)
    colours = [line.get_color() for line in figure.axes[-1].lines]
    assert [h.get_color() for h in legend.legend_handles] == colours
    assert len({*colours}) == len(labels)
    assert ("bands" in figure.get_suptitle()) is (len(labels) < len(runs))
    assert "None" not in capsys.readouterr().out


def test_the_curves_of_a_run_and_the_band_of_seeds(drawn):
    make("a", heads=1, figures=(0.5, 0.25))
    make("b", heads=1, figures=(0.0, 0.75), losses=(6, 2, 1, 3), seed=2)
    make("c", heads=8, losses=(5, 4))
    figure = drawn("a", "b", "c")
    losses, held_out, figures, rates = figure.axes
    assert figure.get_suptitle().startswith("3 runs of reverse\n")
    titles = "training loss", "held-out loss", "exact match", "learning rate"
    assert tuple(axes.get_title() for axes in figure.axes) == titles
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear", "linear"]
    assert curves(losses) == [[[1, 7], [2, 3], [3, 1.5], [4, 2]], [[1, 5], [2, 4]]]
    (band,) = losses.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 6), (1, 8), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1), (4, 3)}
    assert curves(held_out) == [[[2, 2.5], [4, 5]], [[2, 2.5]]]
    assert curves(figures) == [[[2, 0.25], [4, 0.5]], [[2, 0.25]]]
    assert curves(rates)[1] == [[1, 1 / 8], [2, 2 / 8]]
    make("d", heads=1, losses=(5, 5), seed=3, new=False)
    losses, held_out, _, _ = drawn("a", "d").axes  # a band holds the steps that runs share
    assert curves(losses) == [[[1, 6.5], [2, 4.5]]] and curves(held_out) == [[[2, 5], [4, 2.5]]]


def test_each_measure_has_its_own_column_and_panel(drawn, capsys):
    make("a")
    make("b", metric="word_error_rate", task="pronounce", figures=(50.0, 25.0))
    make("c", metric="held_out_loss", task="write", figures=(2.0, 1.5))
    figure = drawn("a", "b", "c")
    assert figure.get_suptitle() == "3 runs of reverse, pronounce, write"
    assert [axes.get_title() for axes in figure.axes][2:4] == ["exact match", "word error rate"]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    rows = "exact_match 0.5000 - -", "word_error_rate - 25.0000 -", "held_out_loss 5.0000 250.0000"
    assert all(any(line.startswith(row) for line in lines) for row in rows)  # a row for a measure


def test_a_run_in_progress_is_shown_as_far_as_it_is(succeed):
    make("a", losses=(8,), best=None)
    with open("a/metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    out = succeed(compare.main, "a --out new/folder/b.png")
    assert out[1].split() == ["a", "1", "-", "-", "1", "of", "4", "1.5"]
    assert out[2] == "picture: new/folder/b.png" and Path("new/folder/b.png").is_file()


def test_what_is_no_run_is_refused(refuse):
    for folder in "ab":
        make(folder)
    for name, old, new, reason in (
        ("config.json", None, None, "No such file"),
        ("config.json", b'"heads": 4', b'"heads": 5', "its checksum says that it was changed"),
        ("metrics.jsonl", None, b"", "it has no line yet"),
        ("metrics.jsonl", None, b"{'step': 1}\n", "line 1"),
        (
            "metrics.jsonl",
            b'"loss": 8',
            b'"loss": NaN',
            "training does not write the line {'step': 1",
        ),
        ("best.safetensors", b'\\"step\\": 4', b'\\"stop\\": 4', "'step'"),
    ):
        content = (path := Path("a", name)).read_bytes()
        assert old is None or old in content
        path.unlink()
        if new is not None:
            path.write_bytes(content.replace(old, new, 1) if old else new)
        words = "a run folder holds", f"received a/{name} (", reason, "such as runs/rev"
        refuse(compare.main, "b a", *words)
        path.write_bytes(content)


def test_runs_of_train_are_compared_and_the_table_written_as_csv(succeed, complaint):
    for seed in range(2):
        train(tiny(), Copying([0.5]), f"runs/{seed}", 2, recipe(factor=1.0 + seed), seed)
    out = succeed(compare.main, "runs/0 runs/1 --csv new/a.csv")
    assert out[-1] == "table: new/a.csv"
    files, shown = {*Path("runs").iterdir()}, compare.compare("runs/0", "runs/1")._repr_html_()
    assert (
        "steps taken" in shown
        and base64.b64encode(Path("runs/compare.png").read_bytes()).decode() in shown
    )
    losses, *_, measure = draw_losses("runs/1").axes
    assert losses.get_ylabel() == "loss" and measure.get_ylabel() == "measure"
    assert {*Path("runs").iterdir()} == files and draw_losses("runs/1", "runs/1/b.svg")
    assert "a run writes metrics.jsonl" in complaint(draw_losses, "runs")
    assert [row.rpartition(",")[0] for row in Path("new/a.csv").read_text().splitlines()] == [
        "run,factor,seed,kept at step,measure,held_out_loss,steps taken",
        "runs/0,1,0,2,0.5000,-,2",
        "runs/1,2,1,2,0.5000,-,2",
    ]


def test_pictures_among_runs_are_left_out_and_a_run_is_compared_once(succeed):
    make("runs/1")
    make("runs/2", seed=2)
    Path("runs/compare.png").write_bytes(b"")
    out = succeed(compare.main, "runs/1 runs/2 runs/compare.png runs/../runs/1")
    assert [line.split()[1] for line in out[1:3]] == ["1", "2"]
    assert out[-2].startswith("runs/../runs/1 (2 seeds)")
    assert out[-1] == "picture: runs/compare-2.png" and Path("runs/compare.png").read_bytes() == b""


def test_a_table_that_is_too_wide_is_turned_if_that_helps():
    """Runs of different tasks differ in many settings."""
    wide = [["run", *(f"setting {n}" for n in range(12))], ["runs/a", *(12 * ["1"])]]
    turned = fitted_table(wide).splitlines()
    assert turned[0].split() == ["run", "runs/a"] and turned[3].split() == ["setting", "2", "1"]
    assert len(turned) == 13
    small = [["run", "seed"], ["runs/a", "1"], ["runs/b", "2"]]
    assert fitted_table(small) == aligned_table(small)
    long = [["run", "a"], *([f"runs/{n}", "x" * 60] for n in range(5))]
    assert fitted_table(long) == aligned_table(long)
