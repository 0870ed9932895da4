"""Training as the flags say, from what is checked before it to the last lines that are printed."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.execution.executor import default_parts
from numformer.execution.mpi import ranks_for
from numformer.models import Model
from numformer.optimization.optimizers import OPTIMIZERS, vectors_of
from numformer.optimization.recipe import Recipe
from numformer.plots import loss_curve
from numformer.randomness import seed_sequence
from numformer.runs.checkpoints import require_size
from numformer.runs.files import locked
from numformer.runs.run_folder import read_metrics
from numformer.settings import Settings
from numformer.training.loop import Interrupted, Schedule, Task, train
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.fine_tuning import take_weights
from toy_tasks.command_line.flags import settings_from
from toy_tasks.command_line.options import plain
from toy_tasks.command_line.quoting import quoted


def train_task(
    task: Task,
    kind: type[Model],
    config: Settings,
    options: argparse.Namespace,
    others_end: bool = True,
) -> tuple[Model, Path]:
    """Train a kind of model as the options say -> the best one, its run folder.

    The folder gets config.json, what the task's `begin(folder)` writes, if it has one, the
    checkpoints and, unless told otherwise, loss.png. Where ranks train together, the programs of
    all but rank 0 end here, unless another training follows.
    """
    xp = find_backend(options.backend)
    ranks = ranks_for(options.parallel, options.timeout)
    options.parts = options.parts or min(max(default_parts(xp), ranks.size), options.batch_size)
    recipe, schedule, kept = require(task, config, options, xp)
    last = options.resume and options.out / "last.safetensors"
    if last and last.is_file():
        # Weights and the optimizer's vectors, in float32.
        require_size(last, last.stat().st_size // (4 + 4 * kept), config)
    model = kind(config, seed_sequence(options.seed, "weights"))
    kept = run_folders.read_config(options.out).get("kept", {}) if options.resume else {}
    if options.start and not options.resume:
        kept = take_weights(model, getattr(task, "text", None), options.start)
    if kept:
        task.kept = kept
    ranks.agree(lambda: plain(options))
    how = dict(seed=options.seed, xp=xp, resume=options.resume, parts=options.parts)
    how |= dict(parallel=options.parallel, timeout=options.timeout)
    if ranks.rank:
        train(model, task, options.out or ".", schedule, recipe, **how)
        if others_end:
            sys.exit(0)
        return model, ranks.broadcast(Path())
    # Only now, when nothing that was asked for is wrong, does a new run leave a trace.
    folder = options.out if options.resume else run_folders.new_folder(options.name, options.out)
    with locked(folder):
        settings = {"options": plain(options), "model": kind.kind()}
        settings |= {"task": task.description().get("name"), "metric": task.metric}
        settings |= {"config": asdict(config), "recipe": asdict(recipe)}
        settings |= {"kept": kept} if kept else {}
        if options.resume:
            if "study" in run_folders.read_config(folder):
                raise InputError(
                    "a run is resumed in its own folder",
                    f"{folder}, that of a study",
                    "Resume the study itself, or name another folder with --out.",
                )
            begun = run_folders.read_config(folder).get("task")
            if begun not in (None, settings["task"]):
                raise InputError(
                    "a run is resumed by the script that began it",
                    f"{folder}, a run of {begun}",
                    f"Use python -m toy_tasks.{begun}, or name another folder with --out.",
                )
            print(_where_it_stands(folder, options.steps))
        else:
            run_folders.begin(folder, settings)
        if hasattr(task, "begin"):
            task.begin(folder)
        if options.start and not options.resume:
            print(f"begins with the weights of {options.start}")
        print(f"{folder}: {model.parameter_counts()['total']:,} parameters, {options.steps} steps")
        try:
            best = train(model, task, folder, schedule, recipe, **how)
        except Interrupted as stopped:
            again = f"{options.program} --resume --out {quoted(folder)}"
            raise Interrupted(f"{stopped}; go on with: {again}") from None
        if options.resume and run_folders.read_config(folder)["options"]["steps"] != options.steps:
            run_folders.write_config(folder, settings)
        print(f"kept at step {best['step']}: {task.metric} {best[task.metric]:.4f}")
        if not options.no_plots:
            metrics = read_metrics(folder / "metrics.jsonl")
            loss_curve(folder / "loss.png", metrics, task.metric, folder.name)
    return model, folder if others_end else ranks.broadcast(folder)


def _where_it_stands(folder: Path, steps: int) -> str:
    taken = run_folders.stands(folder).get("step", 0)
    if taken == steps:
        return f"{folder} is finished: all {steps} steps were taken"
    return f"going on with {folder}, after step {taken} of {steps}"


def finish(
    options: argparse.Namespace,
    folder: Path,
    what: str,
    figures: dict[str, str],
    example: str | None,
    target: tuple[str, bool] | None = None,
    run: Path | None = None,
) -> int:
    """Say which files there are, how to use them and what came out; the exit code.

    `what` was measured on, `figures` are in words and numbers, the one that counts last, `example`
    is a text for the model, where it takes one, and `target` says what is to be reached, and
    whether it was. The model is that of `run` where `folder` holds several.
    """
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    print(f"files in {folder}: {', '.join(files)}")
    if example is not None:
        print(f"use it: {options.program} --run {run or folder} --input {quoted(example)}")
    if options.quick:
        print(f"--quick only shows that everything runs: {options.steps} steps teach nothing yet")
        target = None
    verdict = f"; target {target[0]}: {'reached' if target[1] else 'MISSED'}" if target else ""
    print(f"{what}{verdict}")
    for measure, figure in figures.items():
        print(f"{measure} {figure}")
    return 0 if target is None or target[1] else 1


def require(
    task: Task, config: Settings, options: argparse.Namespace, xp
) -> tuple[Recipe, Schedule, int]:
    """Recipe and schedule that the options describe, and how many vectors the optimizer keeps.

    Raises InputError for what cannot be trained, before anything is built or written.
    """
    recipe = settings_from(options, Recipe)
    when = "steps", "log_every", "evaluate_every", "minutes", "patience"
    schedule = Schedule(*(getattr(options, name) for name in when))
    kept = len(vectors_of(OPTIMIZERS[recipe.optimizer]))
    _require_length(config, task)
    _require_memory(config, options, kept, _memory(xp))
    return recipe, schedule, kept


def _require_length(config: Settings, task: Task) -> None:
    if config.longest is not None and config.longest < task.longest:
        raise InputError(
            f"learned positions reach to max_length = {config.longest}",
            f"a task that needs {task.longest}",
            "Raise --max-length, or use --positions sinusoidal.",
        )


def _memory(xp) -> int:
    """How many bytes of memory the arrays of `xp` can have: this machine's, or the GPU's."""
    if xp is not np:
        return xp.cuda.Device().mem_info[1]
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= getattr(os, "sysconf_names", {}).keys():
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _require_memory(config: Settings, options: argparse.Namespace, kept: int, held: int) -> None:
    """Raise InputError where `held` bytes cannot hold the least that is needed.

    That is for each parameter its weight, its gradient and the `kept` numbers of the optimizer; for
    each layer its objects; and for each sequence of a part of a batch, of at least two positions on
    both sides, what attention and the feed-forward network save.
    """
    needed = (8 + 4 * kept) * config.least_parameters + 10_000 * config.layers
    positions = 4 * options.batch_size // options.parts
    needed += 4 * positions * config.least_saved
    if needed > held:
        raise InputError(
            "the model and its batches fit into memory",
            f"sizes that need at least {needed >> 30:,} GiB of {held >> 30:,}",
            "Choose smaller sizes.",
        )
