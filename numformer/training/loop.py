"""The training loop that every task and every model shares."""

import contextlib
import difflib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Never, Protocol, SupportsIndex

import numpy as np
from tqdm import tqdm

from numformer.allocator import reuse_freed_memory
from numformer.counts import counted
from numformer.data import Batch
from numformer.errors import InputError
from numformer.execution.executor import default_parts
from numformer.execution.mpi import ranks_for
from numformer.execution.rank_executor import RankExecutor
from numformer.models import Model
from numformer.optimization.recipe import Recipe
from numformer.progress import shows_bars
from numformer.runs.files import folder_lock
from numformer.runs.metrics_writers import metrics_writers
from numformer.settings import Settings
from numformer.training.trainer import Trainer

SECONDS_BETWEEN_LINES = 10  # between lines of progress, if standard error is no terminal
_one_run = threading.Lock()  # held while a run trains


class Interrupted(Exception):
    """Training was stopped by Ctrl-C, SIGTERM or a closed pipe, and can be resumed."""


@contextlib.contextmanager
def closed_pipe_interrupts() -> Iterator[None]:
    """Within the block, turn a BrokenPipeError of standard output into Interrupted."""
    try:
        yield
    except BrokenPipeError:
        raise Interrupted("training stopped, because nothing reads its output any more") from None


class Task(Protocol):
    """What the loop needs from a task.

    Three more attributes are optional. `held_out` is a list of batches that training never sees;
    each evaluation then measures the objective's mean loss on them as "held_out_loss", unless
    `evaluate` does. `text` is the pipeline, such as a numformer.Transduction, by which the saved
    model turns texts into texts once it is loaded by numformer.load. `metadata` is a dict of JSON
    values to save with the best model.
    """

    metric: str  # the measure from `evaluate` that decides which checkpoint is best
    higher_is_better: bool
    longest: int  # the longest sequence trained on or decoded; only scripts use it

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step (from 1), which must depend on the step alone."""
        ...

    def evaluate(self, model: Model) -> dict[str, float]:
        """Return measures by name, on data that is neither for training nor for the final test.

        Called within `inference()`. No measure may have a name that metrics.jsonl uses, as "step".
        """
        ...

    def description(self) -> dict:
        """Return JSON values that identify task and data; a run is resumed only with equal ones."""
        ...


@dataclass(frozen=True)
class Schedule(Settings):
    """How long a run trains, and how often it reports (in steps).

    The run ends early after `minutes` of training in all, or after `patience` evaluations in a row
    that are not better than the best before them. An equal result is better only if its
    "held_out_loss", if recorded, is lower.
    """

    steps: int
    log_every: int = 50
    evaluate_every: int = 250
    minutes: float | None = None
    patience: int | None = None

    def __post_init__(self):
        for name, value in asdict(self).items():
            kind, valid = "an integer of at least 1", type(value) is int and value >= 1
            if name == "minutes":
                kind, valid = "a number above 0", type(value) in (int, float) and 0 < value < np.inf
            if not valid and (name not in ("minutes", "patience") or value is not None):
                flag = name.replace("_", "-")
                raise InputError(f"{name} is {kind}", repr(value), f"Change {name} (--{flag}).")

    def ends_early(self, trainer: Trainer) -> str:
        """Return why the run ends before its last step, or an empty string if it does not."""
        if self.minutes and trainer.seconds >= 60 * self.minutes:
            return f"after {counted(self.minutes, 'minute')} of training"
        if self.patience and len(since := trainer.since_progress()) > self.patience:
            worse, step = len(since) - 1, since[0]["step"]
            return f"{counted(worse, 'evaluation')} no better than the one at step {step}"
        return ""


def _require_task(task) -> None:
    """Raise InputError unless `task` is a Task."""
    if isinstance(task, type):
        fix = f"Write {task.__name__}(...), with its arguments."
        raise InputError("train takes a task, an object", f"the class {task.__name__}", fix)
    names = "metric", "higher_is_better", "batch", "evaluate", "description"
    if lacking := [name for name in names if not hasattr(task, name)]:
        raise InputError(
            f"a task has {', '.join(names)}",
            f"{type(task).__name__} without {lacking[0]}",
            "Add it, as described in numformer.training.Task.",
        )


@closed_pipe_interrupts()
def train(
    model: Model,
    task: Task,
    folder: str | Path,
    schedule: Schedule | int,
    recipe: Recipe | None = None,
    seed: SupportsIndex = 0,
    xp=np,
    resume: bool = False,
    parts: int | None = None,
    parallel: str | None = None,
    timeout: float = 120.0,
    on_step: Callable[[dict[str, float]], object] | None = None,
    on_evaluation: Callable[[dict[str, float]], object] | None = None,
    verbose: bool = True,
    log_to: str | Collection[str] = (),
    **unknown: Never,
) -> dict:
    """Train `model` on `task`, load the best weights into it, and return the best evaluation.

    `folder`, which is created, gets metrics.jsonl (a line every log_every steps and for each
    evaluation), last.safetensors (all that resuming needs) and best.safetensors (the best model so
    far by task.metric). The `loss` of a line is the mean since the line before, `seconds` the time
    of training so far. `schedule` may be a number of steps; a Schedule also says how often the run
    reports, and when it ends early: `Schedule(500, patience=2)`. `recipe` says how the model
    learns: `Recipe(rate=0.001)`. Each batch is split into `parts` parts (numformer/execution/), by
    default a number that is fast on this machine, and at least one per rank. The process keeps the
    memory of freed arrays, even afterwards (`reuse_freed_memory`).

    `parallel` chooses what computes the parts: "forks", processes on this machine, or "mpi", the
    ranks that mpiexec has started, which all call this function with the same arguments. The
    default is "mpi" if mpiexec has started this process. With "mpi" only rank 0 writes, prints and
    calls `on_step` and `on_evaluation`; all ranks return the result; and if a rank does not answer
    for `timeout` seconds, ChildProcessError is raised.

    `on_step` is called after each step with its "step", "loss", "rate" and "gradient_norm" (on a
    GPU this waits for the step), `on_evaluation` after each evaluation, once the run is saved, with
    its "step" and measures. An exception in either ends the run. Each evaluation is printed.
    A bar shows progress on a terminal and in a notebook; elsewhere, a line is printed now and then.
    Without `verbose`, nothing is shown. `log_to` names the copies of metrics.jsonl to write: "csv",
    "tensorboard" or "wandb" (METRICS_WRITERS in numformer/runs/metrics_writers.py).

    With `resume` the run in `folder` continues from where it was saved, and ends bit for bit as if
    nothing had interrupted it. If no step was saved, `train` says so and begins a new run. So you
    can run a notebook's cell again. The number of steps may differ, unless the recipe's rates
    depend on it; the evaluation at the run's former end stays in metrics.jsonl and may be the best.
    A finished run is not changed. Only one process at a time writes to a folder. A process trains
    one model at a time: dropout's random stream and the BLAS threads belong to the whole process.

    Raises InputError for invalid arguments and, without `resume`, for a folder that holds a run;
    Interrupted after Ctrl-C or SIGTERM, with the state saved; BrokenNumbers if the loss or the
    gradient is NaN or infinite, before the weights change; OSError if a file cannot be written. No
    error removes files that were saved before.
    """
    for name in unknown:
        near = difflib.get_close_matches(name, train.__annotations__)
        fix = f"Did you mean {near[0]}?" if near else "Leave it out."
        for kind in (Schedule, Recipe):
            if name in kind.__dataclass_fields__:
                fix = f"Pass it to {kind.__name__}(...)."
        raise InputError("help(numformer.train) lists the arguments of train", name, fix)
    if not isinstance(model, Model):
        fix = "Write train(Transformer(config), task, folder, steps)."
        raise InputError("train takes a model", type(model).__name__, fix)
    if not isinstance(folder, str | os.PathLike):
        fix = "Write train(model, task, folder, steps)."
        raise InputError("a run has a folder, given by its path", type(folder).__name__, fix)
    if not (recipe is None or isinstance(recipe, Recipe)):
        fix = "Write train(model, task, folder, steps, numformer.Recipe(warmup=3))."
        raise InputError("a recipe is a numformer.Recipe", f"{type(recipe).__name__} {recipe}", fix)
    if not isinstance(seed, SupportsIndex) or index(seed) < 0:
        raise InputError("a seed is an integer of at least 0", repr(seed), "Write seed=3.")
    _require_task(task)
    if not _one_run.acquire(blocking=False):
        raise InputError(
            "a process trains one model at a time",
            "a second run while the first trains",
            "Start it afterwards, or in a process of its own.",
        )
    try:
        reuse_freed_memory()
        schedule = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        ranks = ranks_for(parallel, timeout)
        parts = max(default_parts(xp), ranks.size) if parts is None else parts
        recipe, steps = (recipe or Recipe()).with_factor(model.config.d_model), schedule.steps
        trainer = Trainer(model, task, Path(folder), steps, recipe, index(seed), xp, parts, ranks)
        trainer.files.copies = metrics_writers(log_to)
        with ranks.failing_together():
            ranks.agree(trainer.fingerprint)
            executor = trainer.executor
            if isinstance(executor, RankExecutor) and ranks.rank:
                with interrupts() as interrupted:
                    return executor.serve(interrupted)
            trainer.files.find()
            best = _train(trainer, schedule, resume, on_step, on_evaluation, verbose)
            if isinstance(executor, RankExecutor):
                executor.end_run(best)
            return best
    finally:
        _one_run.release()


def _train(
    trainer: Trainer, schedule: Schedule, resume: bool, on_step, on_evaluation, verbose: bool
) -> dict:
    """Train and evaluate the model of a run, from the beginning or from where the run was saved."""
    # NumPy need not warn: a NaN or infinity shows in the loss or the norm, and is reported once.
    quiet = np.errstate(all="ignore")
    closing = contextlib.closing
    with (
        folder_lock(trainer.files.folder),
        closing(trainer.executor),
        closing(trainer.files),
        quiet,
    ):
        if resume:
            trainer.resume()
        else:
            trainer.files.begin()
        if not trainer.finished:
            trainer.executor.start()
        progress = _Progress(trainer, verbose)
        if resume and not trainer.step:
            progress.say(f"no step is saved in {trainer.files.folder}: a new run begins")
        over = schedule.ends_early(trainer) if trainer.is_evaluated else ""
        with progress.bar, interrupts() as interrupted:
            while not (trainer.finished or over):
                if trainer.step < trainer.steps:  # else only the last evaluation is left
                    trainer.advance()
                    progress.bar.update()
                    if on_step:
                        on_step(trainer.latest())
                at_end = trainer.step == trainer.steps or schedule.ends_early(trainer)
                if (trainer.step % schedule.log_every == 0 or at_end) and trainer.has_losses:
                    progress.log(trainer.log()["loss"])
                if trainer.step % schedule.evaluate_every == 0 or at_end:
                    results = trainer.evaluate()
                    trainer.save()
                    line = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
                    progress.say(f"step {trainer.step}: {line}")
                    if on_evaluation:
                        on_evaluation({"step": trainer.step, **results})
                    over = schedule.ends_early(trainer)
                if interrupted or trainer.executor.interrupted:
                    trainer.save()
                    raise Interrupted(f"stopped at step {trainer.step}, which is saved")
        if over:
            progress.say(f"ends here: {over}")
    return trainer.use_best()


class _Progress:
    """Shows a run's progress on standard error: a bar if it can move, else a line now and then.

    Shows nothing unless `verbose`.
    """

    def __init__(self, trainer: Trainer, verbose: bool):
        self.trainer, self.first, self.verbose = trainer, trainer.step, verbose
        self.began = self.last_line = time.monotonic()
        self.bar: tqdm = tqdm(
            total=trainer.steps,
            initial=trainer.step,
            unit="step",
            disable=not (verbose and shows_bars(sys.stderr)),
        )

    def say(self, line: str) -> None:
        """Print a line on standard output."""
        if self.verbose:
            with tqdm.external_write_mode():
                print(line, flush=True)

    def log(self, loss: float) -> None:
        """Show the loss that was just written to metrics.jsonl."""
        self.bar.set_postfix(loss=f"{loss:.4f}")
        step, steps, now = self.trainer.step, self.trainer.steps, time.monotonic()
        if not self.verbose or not self.bar.disable or step == steps:
            return
        if now - self.last_line < SECONDS_BETWEEN_LINES:
            return
        self.last_line = now
        left = (now - self.began) / (step - self.first) * (steps - step)
        took = f"{_duration(self.trainer.seconds)}, about {_duration(left)} left"
        print(f"step {step} of {steps}: loss {loss:.4f}, {took}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextlib.contextmanager
def interrupts() -> Iterator[list]:
    """Yield a list to which Ctrl-C and SIGTERM append, so that the caller can finish its step.

    A second signal raises KeyboardInterrupt. Python delivers signals only to the main thread, so in
    other threads the list stays empty.
    """
    received: list = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number, frame):
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
