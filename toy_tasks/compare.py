# PYTHON_ARGCOMPLETE_OK
"""Compare training runs: print a table of the settings in which they differ, with their best
figures and times, and draw their curves. Runs that differ only in the seed are drawn as one line,
their mean, with a band from the lowest value to the highest.

  python -m toy_tasks.compare runs/reverse runs/reverse-2
  python -m toy_tasks.compare runs/lengths               (a study: all its runs)

In a notebook, `compare("runs/reverse", "runs/reverse-2")` shows the same.
"""

import argparse
import base64
import csv
import html
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle, filterfalse
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
from matplotlib.ticker import LogLocator, NullFormatter

from numformer.errors import InputError
from numformer.plots import limit_y_axis, new_figure
from numformer.runs.run_folder import read_metrics
from toy_tasks.command_line import Parser, any_path, exit_code, picture_path, run_folders
from toy_tasks.reports.charts import COLOURS, STROKES
from toy_tasks.reports.tables import aligned_table, fitted_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = Path("runs/compare.png")
# Options that are ignored when settings are compared: the seed, the machine, what is reported
# or written at the end, and the sizes of vocabularies, which the task decides.
IGNORED = {"seed", "log_every", "backend", "quick", "no_plots", "length", "temperature", "log_to"}
IGNORED |= {"source_vocabulary", "target_vocabulary", "vocabulary"}
LOSS = "held_out_loss"


@dataclass(frozen=True)
class Run:
    """The content of a run folder: settings by name, the lines of metrics.jsonl, the metric's name.

    `best` is the line of the best evaluation, empty before the first evaluation. `result` has the
    measures on the test set, if the run has saved them.
    """

    folder: Path
    settings: dict
    lines: list[dict]
    best: dict
    metric: str
    result: dict

    def curve(self, name: str, training: bool) -> dict[int, float]:
        """The values of `name` by step, from the lines of training or of evaluation."""
        lines = [line for line in self.lines if ("gradient_norm" in line) is training]
        return {line["step"]: float(line[name]) for line in lines if name in line}


def read_run(folder: Path) -> Run:
    """Read the run in a folder, finished or not. Raises InputError if there is none."""
    path, state = folder / "config.json", run_folders.last_state(folder)
    try:
        if not path.exists() and state:  # a run of numformer.train
            path = folder / "last.safetensors"
            seed, steps, task = (
                state["seed"],
                state["steps"],
                state["task"].get("name"),
            )
            saved = state | {"options": dict(seed=seed, steps=steps), "task": task}
        else:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved.pop("crc32") != run_folders.checksum(saved):
                raise ValueError("its checksum says that it was changed")
        settings = saved["options"] | saved["config"] | saved.get("recipe", {})
        settings["rate"] = saved["options"].get("rate")
        if settings["rate"] is not None:
            settings["factor"] = None  # the recipe has it in place of the rate
        settings |= {name: int(settings[name]) for name in ("seed", "steps")}
        path = folder / "metrics.jsonl"
        lines = [_require_numbers(line) for line in read_metrics(path)]
        if not lines:
            raise ValueError("it has no line yet")
        path, task, best = folder / "best.safetensors", saved.get("task") or "-", {}
        if path.exists():  # its weights are not read
            with safetensors.safe_open(path, framework="np") as file:
                metadata = json.loads(file.metadata()["numformer"])
            task, step = metadata["task"].get("name", task), metadata["best"]["step"]
            # A run in progress may have written the best line after `lines` were read.
            best = next((line for line in reversed(lines) if line["step"] == step), {})
        settings["steps"] = max(settings["steps"], state.get("steps", 0))
        measures = [n for line in lines if "gradient_norm" not in line for n in line]
        others = [name for name in measures if name not in ("step", "seconds", LOSS)]
        metric = saved.get("metric") or next(iter(others), LOSS)  # guessed for an older run
        path = folder / run_folders.RESULT
        result = run_folders.read_config(folder, path.name) if path.exists() else {}
        result = {n: v for n, v in result.items() if type(v) in (int, float)}
        result = {n: v for n, v in result.items() if n not in ("seed", "seconds")}
        return Run(folder, {"task": as_one_line(task)} | settings, lines, best, metric, result)
    except (*run_folders.UNREADABLE, AttributeError, OverflowError) as problem:
        message = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            "a run folder holds metrics.jsonl, and config.json or last.safetensors, as training "
            "wrote them",
            f"{path} ({message})",
            "Name folders of runs that have logged a step, such as runs/reverse.",
        ) from None


def _require_numbers(line: dict) -> dict:
    """Return the line. Raises ValueError if it has no step, or a value that cannot be drawn."""
    numbers = all(type(value) in (int, float) and abs(value) < 1e100 for value in line.values())
    if not numbers or type(line.get("step")) is not int or not 0 < line["step"] < 1 << 53:
        raise ValueError(f"training does not write the line {str(line)[:80]}")
    return line


def as_one_line(value) -> str:
    """A setting or a path (even one that is not UTF-8) as one line of text; 1.0 is 1, None is -."""
    value = "-" if value is None else value
    text = f"{value:.12g}" if isinstance(value, float) else " ".join(str(value).split())
    return text.encode("utf-8", "backslashreplace").decode()


def differing_settings(runs: list[Run]) -> list[str]:
    """The settings in which runs differ. Settings that older runs lack are ignored."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in IGNORED)
    values = {n: {as_one_line(run.settings[n]) for run in runs if n in run.settings} for n in names}
    names = [name for name in names if len(values[name]) > 1]
    settings = {tuple(as_one_line(run.settings.get(name, "-")) for name in names) for run in runs}
    # If there are as many rows as combinations of settings, a row implies all other settings.
    return ["row"] if len(values.get("row", ())) == len(settings) > 1 else names


def group_by_setting(runs: list[Run]) -> dict[str, list[Run]]:
    """Groups of runs with the same settings, each under a label of the settings that differ.

    If no setting differs, or the label would be too long, the label is the first run's folder.
    """
    names, groups, runs_by_label = differing_settings(runs), {}, {}
    for run in runs:
        values = tuple((name, as_one_line(run.settings.get(name, "-"))) for name in names)
        groups.setdefault(values, []).append(run)
    for values, group in groups.items():
        label = ", ".join(f"{name} {value}" for name, value in values if value != "-")
        if not 0 < len(label) <= 50:
            label = as_one_line(group[0].folder)
        seeds = len({run.settings["seed"] for run in group})
        label += f" ({len(group)} {'seeds' if seeds == len(group) else 'runs'})" * (len(group) > 1)
        runs_by_label[label] = group
    return runs_by_label


def run_rows(runs: list[Run]) -> list[list[str]]:
    """The names of the columns, then a row for each run."""
    names = differing_settings(runs)
    measures = [*dict.fromkeys(run.metric for run in runs if run.metric != LOSS), LOSS]
    results = [*dict.fromkeys(name for run in runs for name in run.result)]
    head = ["run", *names, "seed", "kept at step", *measures, *(f"test {name}" for name in results)]
    rows = [[*head, "steps taken", "seconds"]]
    for run in runs:
        steps, planned_steps = max(line["step"] for line in run.lines), run.settings["steps"]
        seconds = [line["seconds"] for line in run.lines if "seconds" in line]
        row = [
            as_one_line(run.folder),
            *(as_one_line(run.settings.get(name, "-")) for name in names),
            as_one_line(run.settings["seed"]),
            as_one_line(run.best.get("step", "-")),
            *(f"{run.best[name]:.4f}" if name in run.best else "-" for name in measures),
            *(f"{run.result[name]:.5g}" if name in run.result else "-" for name in results),
            f"{steps}" if steps >= planned_steps else f"{steps} of {planned_steps}",
            f"{max(seconds):.1f}" if seconds else "-",
        ]
        rows.append(row)
    return rows


def report(runs: list[Run]) -> str:
    """A table of the runs and, if some have the same settings, a table of means and ranges."""
    rows, groups = run_rows(runs), group_by_setting(runs)
    group_rows = [["same setting", "best", "mean", "least", "greatest"]]
    for label, group in groups.items():
        for metric in dict.fromkeys(run.metric for run in group):
            best = [r.best[metric] for r in group if r.metric == metric and metric in r.best]
            if len(best) > 1:
                numbers = sum(best) / len(best), min(best), max(best)
                group_rows.append([label, metric, *(f"{number:.4f}" for number in numbers)])
    return fitted_table(rows) + ("\n\n" + aligned_table(group_rows) if group_rows[1:] else "")


def draw(path: str | Path | None, runs: list[Run]) -> "Figure":
    """Draw losses, metrics and the learning rate, each in its own panel if any run recorded it."""
    groups = group_by_setting(runs)
    metrics = dict.fromkeys(run.metric for run in runs if run.metric != LOSS)
    panels = [("training loss", "loss", True), ("held-out loss", LOSS, False)]
    panels += [(name.replace("_", " "), name, False) for name in metrics]
    panels += [("learning rate", "rate", True)]
    panels = [panel for panel in panels if any(run.curve(*panel[1:]) for run in runs)]
    rows, columns = -(-len(panels) // 2), max(1, 110 // (8 + max(map(len, groups))))
    height = 1 + 3.2 * rows + 0.22 * (-(-len(groups) // columns))
    figure = new_figure(10, min(height, 100), layout="constrained")
    tasks = dict.fromkeys(run.settings["task"] for run in runs)
    title = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    title += f" of {', '.join(tasks)}" * ("-" not in tasks)
    legend = "\nlines: means of the seeds, bands: from the least to the greatest"
    figure.suptitle(title + legend * (len(groups) < len(runs)), fontsize=11, parse_math=False)
    styles = zip(cycle(COLOURS), cycle(STROKES), groups, strict=False)
    styles = [dict(color=color, linestyle=stroke, linewidth=1.8) for color, stroke, _ in styles]
    axes = None
    for place, (name, *which) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, place, sharex=axes)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if name.endswith("loss"):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        for style, group in zip(styles, groups.values(), strict=True):
            curves = [values for run in group if (values := run.curve(*which))]
            steps = sorted(set.intersection(*map(set, curves))) if curves else []
            values = [[curve[step] for curve in curves] for step in steps]
            marker = None if which[1] and len(steps) > 2 else "."
            axes.plot(steps, [sum(v) / len(v) for v in values], marker=marker, **style)
            if len(curves) > 1:
                band = [*map(min, values)], [*map(max, values)]
                axes.fill_between(steps, *band, color=style["color"], alpha=0.2, linewidth=0)
        if not name.endswith("loss"):
            limit_y_axis(axes)
    axes.set_xlim(left=0)
    labels = [label.replace("$", r"\$") for label in groups]  # else $ begins a formula
    figure.legend(figure.axes[0].lines, labels, loc="outside lower center", ncols=columns)
    return figure.save(path)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several runs. A notebook shows them as the table of `report` and the picture of `draw`."""

    runs: list[Run]

    def __repr__(self) -> str:
        return report(self.runs)

    def draw(self, path: str | Path | None = None) -> "Figure":
        """Draw the curves of the runs. Returns the figure; saves it if `path` is given."""
        return draw(path, self.runs)

    def _repr_html_(self) -> str:
        picture = base64.b64encode(self.draw()._repr_png_()).decode()
        table = html.escape(repr(self))
        return f'<pre>{table}</pre><img alt="curves" src="data:image/png;base64,{picture}">'


def compare(*folders: str | Path) -> Comparison:
    """Read the runs in these folders, each once; a study's folder stands for all its runs.

    Prints a note on standard error for each folder without a run. Raises InputError if no folder
    holds a run.
    """
    if not all(isinstance(folder, str | Path) for folder in folders):
        fix = 'Write compare("runs/a", "runs/b"), or compare(*folders) for a list.'
        raise InputError("runs are named by the paths of their folders", folders, fix)
    runs = [run for folder in map(Path, folders) for run in _runs_in(folder)]
    runs = [*{run.resolve(): run for run in runs}.values()]
    names = "config.json", "metrics.jsonl"
    others = [run for run in runs if run.is_dir() and not any((run / n).exists() for n in names)]
    if len(others) < len(runs):
        runs = [run for run in runs if run not in others]
        for run in others:
            print(f"note: {as_one_line(run)} is left out: it holds no run", file=sys.stderr)
    return Comparison([read_run(run) for run in runs])


def _runs_in(folder: Path) -> list[Path]:
    """The folders of the runs in a study's folder; for any other folder, the folder itself."""
    runs = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    return [folder] if (folder / "metrics.jsonl").exists() or not runs else runs


def pictures() -> Iterator[Path]:
    """PICTURE, then its name with -2, -3 and so on."""
    yield PICTURE
    for number in count(2):
        yield PICTURE.with_stem(f"{PICTURE.stem}-{number}")


def main(arguments: list[str] | None = None) -> int:
    """Compare the runs; returns the exit code."""
    parser = Parser(
        "python -m toy_tasks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=any_path, metavar="RUN", help="a run folder")
    add(
        "--out",
        type=picture_path,
        metavar="FILE.png",
        help=f"default: {PICTURE}, or the next free name with a number",
    )
    add("--csv", type=any_path, metavar="FILE.csv", help="write the runs' table to this file")
    options = parser.parse_args(arguments)
    # runs/* also matches the picture of an earlier comparison.
    runs = [run for run in options.runs if run.suffix != ".png" or run.is_dir()] or options.runs
    comparison = compare(*runs)
    print(comparison)
    picture = options.out or next(filterfalse(Path.exists, pictures()))
    comparison.draw(picture)
    print(f"picture: {picture}")
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(run_rows(comparison.runs))
        print(f"table: {options.csv}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
