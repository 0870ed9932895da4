"""Studies: several ways of doing the same, each trained with several seeds, and compared.

Every run is one of its own in a folder of its own, computed by a process of its own on one core,
so neither its bits nor its time depend on how many go on side by side.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from threadpoolctl import threadpool_limits

from numformer.backend import on_host
from numformer.devices import find_backend
from numformer.errors import BrokenNumbers, InputError
from numformer.execution.forked import cores
from numformer.execution.mpi import started_by_mpi
from numformer.layer import inference
from numformer.models import Model
from numformer.runs.files import locked, write_atomically
from numformer.runs.run_folder import read_metrics
from numformer.settings import Settings
from numformer.training.loop import Interrupted, Task, interrupts
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.answers import answer_inputs
from toy_tasks.command_line.fine_tuning import take_weights
from toy_tasks.command_line.flags import OF_ROWS, build_parser
from toy_tasks.command_line.options import FREE_TO_CHANGE, parse_options, plain
from toy_tasks.command_line.quoting import quoted
from toy_tasks.command_line.training import finish, require, train_task
from toy_tasks.reports.charts import markdown

RESULT = "result.json"
FREE_IN_A_STUDY = FREE_TO_CHANGE - {"steps"} | {"jobs"}
Results = dict[str, list[dict]]
"""Of each row what was measured in each of its runs, and the run's `seed`, `seconds`, `folder`."""


def no_flags(made: argparse.ArgumentParser) -> None:
    """What a page without flags of its own adds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """What a page says of its study; `main(study)` does the rest.

    `rows` names the ways, each with the flags in which it differs from `defaults`, or with entries
    of the page's own, which are in the options as well. `model` is the kind whose Config gets
    flags. With the entry `more_seeds` a row has so many seeds beyond those of --seeds; one with
    `last` waits for all the others, and before it begins `between(results)` says what it likes.
    `make(options)` gives the task, the kind of model and its config for `options.row` and
    `options.seed`. `measure(model, task, folder)` gives numbers and lists of numbers by name that
    tell how good the best model of the run in `folder` is; it is called in inference, and `figure`
    is the number of it that stands for a run. `table(results)` gives rows of cells, first the head;
    `draw(results, folder)` draws what it likes into the study's folder. `verdict(results)` gives
    what was measured on, the last lines and the target, as `finish` takes them. `example` is
    a text for --input, where the models take texts; with `by_tokens` the size of a batch is
    --max-tokens; `flags(parser)` adds the page's own, and
    `use(options)` does what --run asks for. Where processes are not forked, each gets a copy of
    this, so functions are those of a module and no lambdas.
    """

    name: str
    description: str
    model: type[Model]
    defaults: dict
    rows: dict[str, dict]
    make: Callable[[argparse.Namespace], tuple[Task, type[Model], Settings]]
    measure: Callable[[Model, Task, Path], dict]
    figure: str
    table: Callable[[Results], list[list[str]]]
    draw: Callable[[Results, Path], None]
    verdict: Callable[[Results], tuple[str, dict[str, str], tuple[str, bool] | None]]
    example: str | None = None
    by_tokens: bool = False
    flags: Callable[[argparse.ArgumentParser], None] = no_flags
    between: Callable[[Results], None] | None = None
    use: Callable[[argparse.Namespace], int] = answer_inputs


@dataclass(frozen=True)
class _Run:
    """One training of a study, with the flags as its row has them."""

    options: argparse.Namespace

    @property
    def folder(self) -> Path:
        return self.options.out

    @property
    def work(self) -> int:
        """What its time grows with, nearly: steps, layers and the sizes of their matrices."""
        options = self.options
        return options.steps * getattr(options, "layers", 1) * options.d_model**2

    @property
    def ended(self) -> bool:
        return (self.folder / RESULT).is_file()

    def result(self) -> dict:
        return run_folders.read_config(self.folder, RESULT) | {"folder": self.folder}


def main(study: Study, arguments: list[str] | None = None) -> int:
    """Train and compare, or with --run answer texts with one of the models; the exit code."""
    how = dict(study.defaults)
    how |= dict(several=True, by_tokens=study.by_tokens)
    made = build_parser(study.name, study.description, study.model, **how)
    study.flags(made)
    of_all = set.intersection(*map(set, study.rows.values()))
    for action in filter(None, map(made.action, of_all)):
        action.help = f"{action.help or action.dest}{OF_ROWS}"
    options = parse_options(made, lambda options: study.name, arguments, FREE_IN_A_STUDY)
    if options.run:
        return study.use(options)
    if not options.resume and not options.quick and (wrong := sorted(options.given & of_all)):
        flag, rule = made.flag(wrong[0]), "every row of this study has its own"
        raise InputError(f"{flag}: {rule}", "one for all of them", f"Leave out {flag}.")
    if started_by_mpi():
        rule, fix = "a study trains its models side by side on one machine", "Leave out mpiexec."
        raise InputError(rule, "ranks of MPI", fix)
    xp = find_backend(options.backend)
    for run in _runs(study, options, options.seeds[:1]):
        task, kind, config = study.make(run.options)
        require(task, config, run.options, xp)
        if options.start and not options.resume:
            take_weights(kind(config), getattr(task, "text", None), options.start)
    said = json.loads(json.dumps({"name": study.name, "rows": study.rows}))
    if not options.resume:
        options.out = run_folders.new_folder(options.name, options.out)
    with locked(options.out):
        if not options.resume:
            run_folders.begin(options.out, {"options": plain(options), "study": said})
        elif run_folders.read_config(options.out).get("study") != said:
            raise InputError(
                f"a resumed study is one of {study.name}, with the rows that it was begun with",
                f"{options.out}, which is not",
                "Name the study's folder with --out, or start a new one without --resume.",
            )
        runs = _runs(study, options, options.seeds)
        results: Results = {row: [] for row in study.rows}
        for last in (False, True):
            some = [run for run in runs if bool(study.rows[run.options.row].get("last")) is last]
            if not some:
                continue
            if last and study.between:
                study.between(results)
            _train(study, some, options, on_host(xp.empty(0)))
            for run in some:
                results[run.options.row].append(run.result())
        table = markdown(study.table(results))
        write_atomically(options.out / "table.md", f"{table}\n".encode())
        print(table)
        if not options.no_plots:
            study.draw(results, options.out)
        what, figures, target = study.verdict(results)
        first = runs[0].folder
        return finish(options, options.out, what, figures, study.example, target, first)


def _runs(study: Study, options: argparse.Namespace, seeds: Sequence[int]) -> list[_Run]:
    """Every row with every seed, a seed after the other."""
    runs, most = [], max(row.get("more_seeds", 0) for row in study.rows.values())
    further = range(max(seeds) + 1, max(seeds) + 1 + most)
    for place, seed in enumerate((*seeds, *further)):
        for row, differs in study.rows.items():
            if place >= len(seeds) + differs.get("more_seeds", 0):
                continue
            flags = vars(options) | differs | dict(row=row, seed=seed, parts=1)
            flags |= dict(parallel="forks", timeout=1.0)
            if options.quick:
                flags["steps"] = min(flags["steps"], options.steps)
            if options.out:
                flags["out"] = options.out / f"{row}-{seed}".replace(" ", "-")
                flags["resume"] = (flags["out"] / "config.json").is_file()
            del flags["seeds"], flags["jobs"]
            runs.append(_Run(argparse.Namespace(**flags)))
    return runs


def _train(study: Study, runs: list[_Run], options: argparse.Namespace, on_cores: bool) -> None:
    """Train those that have not ended, side by side, and tell of each as it ends.

    Where one breaks, the others go on; the first problem is raised when they have ended.
    """
    waiting, running, problems = [run for run in runs if not run.ended], {}, []
    count, began = len(waiting), time.monotonic()
    whole, done = sum(run.work for run in waiting), 0
    ended = f"finished, all {len(runs)} runs are trained"
    print(f"{options.out}: {f'{count} of {len(runs)} runs to train' if count else ended}")
    sys.stdout.flush()  # what is not written yet, a forked process would have a copy of
    jobs = options.jobs or (cores() if on_cores else 1)
    # A forked process cannot go on with a GPU's context.
    fork = on_cores and sys.platform == "linux"
    context = multiprocessing.get_context("fork" if fork else "spawn")
    with interrupts() as interrupted, contextlib.ExitStack() as at_end:
        at_end.callback(_stop, running)
        while running or (waiting and not interrupted):
            while waiting and len(running) < jobs and not interrupted:
                process, said = _start(context, study, run := waiting.pop(0))
                running[process] = run, said
            wait([process.sentinel for process in running], timeout=0.2)
            if interrupted:
                break
            for process in [process for process in running if not process.is_alive()]:
                run, said = running.pop(process)
                try:
                    code, problem = said.recv()
                except EOFError:
                    code, problem = 2, "its process was ended"
                if code is None:
                    raise RuntimeError(f"{run.folder}\n{problem}")
                left, seconds = len(waiting) + len(running), time.monotonic() - began
                done += run.work
                minutes = seconds / done * (whole - done) / 60
                told = "FAILED"
                if code == 0:
                    result, name = run.result(), study.figure
                    told = f"{name.replace('_', ' ')} {result[name]:.4f}, {result['seconds']:.0f} s"
                told += f"; {left} left, about {minutes:.0f} min" * bool(left)
                print(f"{run.folder.name}: {told}", flush=True)
                problems += [(code, f"{run.folder.name}: {problem}")] * bool(code)
    again = f"{options.program} --resume --out {quoted(options.out)}"
    if interrupted:
        raise Interrupted(f"stopped, and every run is saved; go on with: {again}")
    for code, problem in problems[:1]:
        if code == 3:
            raise BrokenNumbers(problem)
        rule = "every run of a study comes to its end"
        raise InputError(rule, problem.rstrip("."), f"Mend that and go on with: {again}")


def _start(context, study: Study, run: _Run) -> tuple:
    """A process that computes the run, and where it says how that ended."""
    hears, says = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(study, run, says), daemon=True)
    with _without_signals():
        process.start()
    says.close()
    return process, hears


def _stop(running: dict) -> None:
    """Let processes save where they are and end."""
    for process in running:
        process.terminate()
    for process in running:
        process.join()


@contextlib.contextmanager
def _without_signals():
    """Within the block SIGTERM waits: a process that begins there cannot miss it."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _compute(study: Study, run: _Run, says) -> None:
    """In a process of its own: train, measure, and say the exit code and what went wrong."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "win32":
        os.setpgrp()  # Ctrl-C on a terminal is for the first process, which tells the others
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    said = 0, ""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, threadpool_limits(1, "blas"):
        sys.stdout = sys.stderr = nowhere
        try:
            _train_one(study, run)
        except (Interrupted, KeyboardInterrupt):
            return
        except BrokenNumbers as problem:
            said = 3, str(problem)
        except (InputError, MemoryError, OSError) as problem:
            said = 2, str(problem) or type(problem).__name__
        except Exception:
            said = None, traceback.format_exc()
    says.send(said)


def _end_with_parent() -> None:
    """End this process, which saves then where it can, soon after the first one was killed."""
    wait([multiprocessing.parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _train_one(study: Study, run: _Run) -> None:
    """Train a run, or go on with it, and save what its best model measures."""
    task, kind, config = study.make(run.options)
    model, folder = train_task(task, kind, config, run.options)
    with inference():
        measured = study.measure(model, task, folder)
    seconds = read_metrics(folder / "metrics.jsonl")[-1]["seconds"]
    told = {"seed": run.options.seed, "seconds": seconds}
    run_folders.write_config(folder, measured | told, RESULT)
