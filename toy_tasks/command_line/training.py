"""Training as the options say: the checks before it, the run folder, and the result."""

import argparse
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from numformer.counts import counted
from numformer.data import EpochBatches
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.execution.executor import default_parts
from numformer.execution.mpi import ranks_for
from numformer.models import Model
from numformer.models.fields import saved_values
from numformer.models.kinds import model_kind
from numformer.optimization.optimizers import OPTIMIZERS, vectors_of
from numformer.optimization.recipe import Recipe
from numformer.plots import loss_curve
from numformer.randomness import seed_sequence
from numformer.runs.checkpoints import require_size
from numformer.runs.files import folder_lock
from numformer.runs.resume import require_same_end
from numformer.runs.run_folder import read_metrics
from numformer.settings import Settings
from numformer.training.loop import Interrupted, Schedule, Task, train
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.fine_tuning import load_start_weights
from toy_tasks.command_line.options import saved_options
from toy_tasks.command_line.settings_flags import schedule_from, settings_from


def train_task(
    task: Task,
    kind: type[Model],
    config: Settings,
    options: argparse.Namespace,
    exit_other_ranks: bool = True,
) -> tuple[Model, Path]:
    """Train a model of this kind as the options say -> the best model and its run folder.

    The folder gets config.json, what the task's `begin(folder)` writes (if it has that method), the
    checkpoints and, without --no-plots, loss.png. If ranks train together, the programs of all
    ranks but 0 exit here; pass `exit_other_ranks` as False if another run follows.
    """
    if getattr(options, "epochs", None):
        options.steps = math.ceil(options.epochs * epoch_length(task))
    xp = find_backend(options.backend)
    ranks = ranks_for(options.parallel, options.timeout)
    options.parts = options.parts or min(max(default_parts(xp), ranks.size), options.batch_size)
    recipe, schedule, vectors = training_plan(task, config, options, xp)
    last = options.resume and options.out / "last.safetensors"
    if last and last.is_file():
        # The file holds the weights and the optimizer's vectors, in float32.
        require_size(last, last.stat().st_size // (4 + 4 * vectors), config)
    model = kind(config, seed_sequence(options.seed, "weights"))
    metadata = run_folders.read_config(options.out).get("kept", {}) if options.resume else {}
    if options.start and not options.resume:
        metadata = load_start_weights(model, getattr(task, "text", None), options.start)
    if metadata:
        task.metadata = metadata
    saved = saved_options(options)
    ranks.agree(lambda: saved)
    keywords = dict(seed=options.seed, xp=xp, resume=options.resume, parts=options.parts)
    keywords |= dict(parallel=options.parallel, timeout=options.timeout)
    keywords |= dict(verbose=not options.quiet, log_to=options.log_to or ())
    if ranks.rank:
        train(model, task, options.out or ".", schedule, recipe, **keywords)
        if exit_other_ranks:
            sys.exit(0)
        return model, ranks.broadcast(Path())
    # A new run writes its first file only here, after all checks.
    folder = options.out if options.resume else run_folders.new_folder(options.name, options.out)
    with folder_lock(folder):
        settings = {"options": saved, "model": model_kind(kind)}
        settings |= {"task": task.description().get("name"), "metric": task.metric}
        settings |= {"config": saved_values(config), "recipe": asdict(recipe)}
        settings |= {"kept": metadata} if metadata else {}
        if options.resume:
            print(_progress(folder, recipe, options.steps))
        else:
            run_folders.write_first_config(folder, settings)
        if hasattr(task, "begin"):
            task.begin(folder)
        if options.start and not options.resume:
            print(f"begins with the weights of {options.start}")
        parameters = counted(model.parameter_counts()["total"], "parameter")
        length = None if options.resume else epoch_length(task)  # counting may take long
        epochs = counted(float(f"{options.steps / length:.3g}"), "epoch") if length else ""
        epochs = f" ({epochs})" if epochs else ""
        print(f"{folder}: {parameters}, {counted(options.steps, 'step')}{epochs}")
        if options.warmup > options.steps and not options.quick:
            print(f"note: --warmup {options.warmup} is longer than the run: its rates stay low")
        try:
            best = train(model, task, folder, schedule, recipe, **keywords)
        except Interrupted as stopped:
            command = resume_command(options, folder)
            raise Interrupted(f"{stopped}; go on with: {command}") from None
        if options.resume and run_folders.read_config(folder)["options"]["steps"] != options.steps:
            run_folders.write_config(folder, settings)
        print(f"kept at step {best['step']}: {task.metric} {best[task.metric]:.4f}")
        if not options.no_plots:
            metrics = read_metrics(folder / "metrics.jsonl")
            loss_curve(folder / "loss.png", metrics, task.metric, folder.name)
    return model, folder if exit_other_ranks else ranks.broadcast(folder)


def epoch_length(task: Task) -> float | None:
    """The steps of an epoch; None for a task that draws its batches at random."""
    batches = getattr(task, "batches", task.batch)
    if not isinstance(batches, EpochBatches):
        return None
    return batches.count() / getattr(task, "accumulate", 1)


def resume_command(options: argparse.Namespace, folder: Path) -> str:
    """The command that resumes a run or a study."""
    return f"{options.program} --resume --out {quote(folder)}"


def quote(argument: object) -> str:
    """An argument of a command, quoted for the shell of this system."""
    windows = sys.platform == "win32"
    return subprocess.list2cmdline([str(argument)]) if windows else shlex.quote(str(argument))


def _progress(folder: Path, recipe: Recipe, steps: int) -> str:
    """Say how far the run in a folder has come. Raises InputError if it cannot go on to `steps`."""
    state = run_folders.last_state(folder)
    require_same_end(recipe, steps, step := state.get("step", 0), state.get("steps", steps))
    if step == steps:
        return f"{folder} is finished: all {steps} steps were taken"
    return f"going on with {folder}, after step {step} of {steps}"


def finish(
    options: argparse.Namespace,
    folder: Path,
    data: str,
    figures: dict[str, str],
    example: str | None,
    target: tuple[str, bool] | None = None,
    run: Path | None = None,
    measures: Mapping[str, float] = {},
) -> int:
    """Print the files of a folder, how to use its model and the result -> the exit code.

    With --quiet, only the result is printed.

    `data` says what the model was tested on. `figures` maps each measure to the text to print, the
    main measure last. `example` is a text for the model, if it takes texts. `target` is the figure
    to reach, and whether it was reached. If a folder has several runs, `run` is one to use. For a
    single run, `measures` are the numbers to save in result.json.
    """
    if measures:
        result = {name.replace(" ", "_"): number for name, number in measures.items()}
        run_folders.write_config(folder, result, run_folders.RESULT)
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    print(f"files in {folder}: {', '.join(files)}")
    if example is not None:
        print(f"use it: {options.program} --run {quote(run or folder)} --input {quote(example)}")
    if options.quick:
        print("--quick only shows that everything runs: so few steps teach nothing yet")
        target = None
    verdict = f"; target {target[0]}: {'reached' if target[1] else 'MISSED'}" if target else ""
    stream = getattr(sys.stdout, "result_stream", None)
    print(f"{data}{verdict}", file=stream)
    for measure, figure in figures.items():
        print(f"{measure} {figure}", file=stream)
    return 0 if target is None or target[1] else 1


def training_plan(
    task: Task, config: Settings, options: argparse.Namespace, xp
) -> tuple[Recipe, Schedule, int]:
    """The recipe and the schedule of the options, and how many vectors the optimizer keeps.

    Raises InputError, before anything is built or written, for options that do not allow training.
    """
    recipe = settings_from(options, Recipe).with_factor(config.d_model)
    vectors = len(vectors_of(OPTIMIZERS[recipe.optimizer]))
    _require_length(config, task)
    _require_memory(config, options, vectors, _memory(xp))
    return recipe, schedule_from(options), vectors


def _require_length(config: Settings, task: Task) -> None:
    if config.longest is not None and config.longest < task.longest:
        raise InputError(
            f"learned positions end at max_length = {config.longest}",
            f"a task that needs {task.longest} positions",
            "Raise --max-length, or use --positions sinusoidal.",
        )


def _memory(xp) -> int:
    """The bytes of memory for arrays of `xp`: the machine's for NumPy, otherwise the GPU's."""
    if xp is not np:
        return xp.cuda.Device().mem_info[1]
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= getattr(os, "sysconf_names", {}).keys():
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _require_memory(
    config: Settings, options: argparse.Namespace, vectors: int, memory: int
) -> None:
    """Raise InputError if training needs more than `memory` bytes, by a lower bound.

    Each parameter needs its weight, its gradient and a number in each of the optimizer's `vectors`.
    Each layer needs its Python objects. Each sequence in a part of a batch has at least two
    positions on each side, at which the layers save numbers for backward.
    """
    needed = (8 + 4 * vectors) * config.least_parameters + 10_000 * config.layers
    positions = 4 * options.batch_size // options.parts
    needed += 4 * positions * config.least_saved
    if needed > memory:
        raise InputError(
            "the model and its batches fit into memory",
            f"sizes that need at least {needed >> 30:,} GiB, where there are {memory >> 30:,}",
            "Choose smaller sizes.",
        )
