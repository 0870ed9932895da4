"""A study trains several variants of a model or task, with several seeds, and compares them."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numformer.backend import on_host
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.execution.mpi import started_by_mpi
from numformer.models import Model
from numformer.runs.files import folder_lock, write_atomically
from numformer.settings import Settings
from numformer.training.loop import Task
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.answers import answer_inputs
from toy_tasks.command_line.conflicts import require_settings
from toy_tasks.command_line.fine_tuning import load_start_weights
from toy_tasks.command_line.flags import build_parser
from toy_tasks.command_line.options import FREE_TO_CHANGE, parse_options, saved_options
from toy_tasks.command_line.parser import ROW_SETTING, Parser
from toy_tasks.command_line.study_runs import Run, train_side_by_side
from toy_tasks.command_line.training import finish, training_plan
from toy_tasks.reports.tables import markdown_table

FREE_IN_A_STUDY = FREE_TO_CHANGE - {"steps"} | {"jobs"}
Results = dict[str, list[dict]]
"""The measures of each run of each row, with the run's `seed`, `seconds` and `folder`."""


def add_no_flags(parser: Parser) -> None:
    """Add nothing: the default for a study without flags of its own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """A study as its script describes it; `main(study)` trains and compares.

    `rows` has, for the name of each row, the options in which it differs from `defaults`, with or
    without a flag. Two options are for the study itself: a row with `more_seeds` is trained with
    that many further seeds after those of --seeds; rows with `last` are trained after all others,
    and before them `between(results)` may print. `choose_rows(options)`, if given, replaces the
    rows once the options are known. The fields of `model.Config` become flags.

    `make_task_and_config(options)` returns the task, the kind of model and its config for
    `options.row` and `options.seed`. `measure(model, task, folder)` measures the best model of the
    run in `folder`, in inference mode, and returns numbers and lists of numbers by name. `figure`
    names the measure to print when a run ends. `table(results)` returns rows of cells, the head
    first; `draw(results, folder)` draws pictures into the study's folder; `verdict(results)`
    returns the data, the figures and the target, as `finish` takes them.

    `example` is a text for --input, if the models take texts. With `by_tokens`, --max-tokens sets
    the size of a batch. `flags(parser)` adds the script's own flags. With --run, `use(options)` is
    called. Processes that are not forked get a pickled study, so its functions must be at module
    level.
    """

    name: str
    description: str
    model: type[Model]
    defaults: dict
    rows: dict[str, dict]
    make_task_and_config: Callable[[argparse.Namespace], tuple[Task, type[Model], Settings]]
    measure: Callable[[Model, Task, Path], dict]
    figure: str
    table: Callable[[Results], list[list[str]]]
    draw: Callable[[Results, Path], None]
    verdict: Callable[[Results], tuple[str, dict[str, str], tuple[str, bool] | None]]
    example: str | None = None
    by_tokens: bool = False
    flags: Callable[[Parser], None] = add_no_flags
    between: Callable[[Results], None] | None = None
    choose_rows: Callable[[argparse.Namespace], dict[str, dict]] | None = None
    use: Callable[[argparse.Namespace], int] = answer_inputs


def main(study: Study, arguments: list[str] | None = None) -> int:
    """Train and compare, or with --run answer texts with one of the models -> the exit code."""
    keywords = dict(is_study=True, by_tokens=study.by_tokens, **study.defaults)
    parser = build_parser(study.name, study.description, study.model, **keywords)
    study.flags(parser)
    row_settings = set.intersection(*map(set, study.rows.values()))
    for action in filter(None, map(parser.action, row_settings)):
        action.help = f"{action.help or action.dest}{ROW_SETTING}"
    options = parse_options(parser, lambda options: study.name, arguments, FREE_IN_A_STUDY)
    if options.run:
        return study.use(options)
    if not options.resume and not options.quick:
        for name in sorted(options.explicit & row_settings):
            flag, rule = parser.flag(name), "every row of this study has its own value"
            raise InputError(f"{flag}: {rule}", "one for all rows", f"Leave out {flag}.")
    if started_by_mpi():
        rule, fix = "a study trains its models side by side on one machine", "Leave out mpiexec."
        raise InputError(rule, "ranks of MPI", fix)
    xp = find_backend(options.backend)
    for run in _runs(study, options, options.seeds[:1]):
        require_settings(run.options, study.model)
    if study.choose_rows:  # choose_rows may read the data
        study = replace(study, rows=study.choose_rows(options))
    for run in _runs(study, options, options.seeds[:1]):
        task, kind, config = study.make_task_and_config(run.options)
        training_plan(task, config, run.options, xp)
        if options.start and not options.resume:
            try:
                load_start_weights(kind(config), getattr(task, "text", None), options.start)
            except InputError as problem:
                rule, received, _ = problem.args
                fix = f"Leave out --start: it has to fit each row, also {run.options.row!r}."
                raise InputError(rule, received, fix) from None
    identity = json.loads(json.dumps({"name": study.name, "rows": study.rows}))
    if not options.resume:
        options.out = run_folders.new_folder(options.name, options.out)
    with folder_lock(options.out):
        if not options.resume:
            config = {"options": saved_options(options), "study": identity}
            run_folders.write_first_config(options.out, config)
        elif run_folders.read_config(options.out).get("study") != identity:
            raise InputError(
                f"a resumed study is named {study.name} and has the rows that it began with",
                f"{options.out}, which holds no such study",
                "Name the study's folder with --out, or start a new one without --resume.",
            )
        runs = _runs(study, options, options.seeds)
        results: Results = {row: [] for row in study.rows}
        for last in (False, True):
            group = [run for run in runs if bool(study.rows[run.options.row].get("last")) is last]
            if last and group and study.between:
                study.between(results)
            if group:
                train_side_by_side(study, group, options, on_host(xp.empty(0)))
            for run in group:
                results[run.options.row].append(run.result())
        table = markdown_table(study.table(results))
        write_atomically(options.out / "table.md", f"{table}\n".encode())
        print(table)
        if not options.no_plots:
            study.draw(results, options.out)
        data, figures, target = study.verdict(results)
        first = runs[0].folder
        return finish(options, options.out, data, figures, study.example, target, first)


def _runs(study: Study, options: argparse.Namespace, seeds: Sequence[int]) -> list[Run]:
    """The runs of the study: every row with the first seed, then every row with the next."""
    runs, most = [], max(row.get("more_seeds", 0) for row in study.rows.values())
    more_seeds = range(max(seeds) + 1, max(seeds) + 1 + most)
    for place, seed in enumerate((*seeds, *more_seeds)):
        for row, settings in study.rows.items():
            if place >= len(seeds) + settings.get("more_seeds", 0):
                continue
            own = vars(options) | settings | dict(row=row, seed=seed, parts=1)
            own |= dict(parallel="forks", timeout=1.0)
            if options.quick:
                own["steps"] = min(own["steps"], options.steps)
            if options.out:
                own["out"] = options.out / f"{row}-{seed}".replace(" ", "-")
                own["resume"] = (own["out"] / "config.json").is_file()
            del own["seeds"], own["jobs"]
            runs.append(Run(argparse.Namespace(**own)))
    return runs
