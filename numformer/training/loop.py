"""The training loop that every task and every model shares."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from numformer.data import Batch
from numformer.errors import InputError
from numformer.models import Model
from numformer.training.recipe import Recipe
from numformer.training.trainer import Trainer


class Interrupted(Exception):
    """Training was stopped by Ctrl-C or SIGTERM and has saved its state."""


class Task(Protocol):
    """What the loop needs of a task."""

    metric: str  # the entry of `evaluate` that chooses the best checkpoint
    higher_is_better: bool
    longest: int  # positions of a sequence that it trains on or decodes; scripts look at it

    def batch(self, step: int) -> Batch:
        """The training batch of a step (from 1): a function of the step alone."""

    def evaluate(self, model: Model) -> dict[str, float]:
        """Measures on data that is neither trained on nor the final test; called in inference."""

    def description(self) -> dict:
        """JSON values that tell this task and its data from others: a run goes on with the same."""

    # Optional: `text`, what the model does with texts (numformer.Transduction, Continuation), with
    # which numformer.load uses the saved model.


@dataclass(frozen=True)
class Schedule:
    """How long a run trains, and how often it reports (steps)."""

    steps: int
    log_every: int = 50
    evaluate_every: int = 250

    def __post_init__(self):
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                flag = name.replace("_", "-")
                raise InputError(f"{name} is at least 1", value, f"Change --{flag}.")


def train(
    model: Model,
    task: Task,
    folder: Path,
    schedule: Schedule,
    recipe: Recipe | None = None,
    seed: int = 0,
    xp=np,
    resume: bool = False,
    parts: int = 1,
) -> dict:
    """Train `model` on `task`; leave the best weights in it; return the best evaluation.

    Into `folder` go metrics.jsonl (a line every log_every steps and one each evaluation),
    last.safetensors (all that resuming needs) and best.safetensors (the best model so far by
    task.metric). The loss of a line is the mean since the line before. Each batch is computed in
    `parts` parts (numformer/training/parts.py).

    With `resume` a run in the same folder goes on from where it was saved, and ends bit for bit as
    if nothing had interrupted it. Without, what the folder holds of an earlier run is replaced.
    Only one process at a time may train into a folder (`locked`), and only one thread of a process
    at all, since modes and dropout's stream are the process's.

    Raises Interrupted after Ctrl-C or SIGTERM, with the state saved, BrokenNumbers where loss or
    gradient turn NaN or infinite, before they touch the weights, and OSError where a file cannot
    be written; what was saved before stands.
    """
    trainer = Trainer(model, task, folder, schedule.steps, recipe or Recipe(), seed, xp, parts)
    # Numbers that break are found in the loss and the norm, and told once.
    quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with contextlib.closing(trainer.parts), quiet:
        if resume:
            trainer.resume()
        else:
            trainer.files.begin()
        trainer.parts.start()
        bar = tqdm(
            total=schedule.steps, initial=trainer.step, unit="step", disable=not sys.stderr.isatty()
        )
        with bar, _interrupts() as interrupted:
            while trainer.step < schedule.steps:
                trainer.advance()
                bar.update()
                if trainer.step % schedule.log_every == 0 or trainer.step == schedule.steps:
                    bar.set_postfix(loss=f"{trainer.log()['loss']:.4f}")
                if trainer.step % schedule.evaluate_every == 0 or trainer.step == schedule.steps:
                    measured = trainer.evaluate()
                    trainer.save()
                    line = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
                    tqdm.write(f"step {trainer.step}: {line}", file=sys.stdout)
                    sys.stdout.flush()
                if interrupted:
                    trainer.save()
                    raise Interrupted(f"stopped at step {trainer.step}; continue with --resume")
    return trainer.use_best()


@contextlib.contextmanager
def _interrupts() -> Iterator[list]:
    """A list that Ctrl-C and SIGTERM append to, so that a step ends whole; twice stops at once.

    Outside the main thread Python receives no signals; there the list stays empty.
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
