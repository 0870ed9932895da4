"""The training loop that every task shares."""

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from numformer.backend import array_module, to_host
from numformer.batching import Batch
from numformer.checkpoint_io import load_checkpoint, save_checkpoint, save_model, write_atomically
from numformer.errors import InputError
from numformer.layer import inference, pack
from numformer.loss import CrossEntropy
from numformer.model import Transformer
from numformer.optim import Adam, clip_global_norm, learning_rate
from numformer.parts import Parts


class Interrupted(Exception):
    """Training was stopped by Ctrl-C and has saved its state."""


class BrokenNumbers(ArithmeticError):
    """The loss or the gradient is not a finite number any more."""


class Task(Protocol):
    """What the loop needs of a task."""

    metric: str  # the entry of `evaluate` that chooses the best checkpoint
    higher_is_better: bool

    def batch(self, step: int) -> Batch:
        """The training batch of a step (from 1): a function of the step alone."""

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """Measures on data that is neither trained on nor the final test; called in inference."""

    def description(self) -> dict:
        """JSON values that using a saved model needs: vocabularies and the like."""


@dataclass(frozen=True)
class Schedule:
    """How long a run trains, and how often it reports (steps)."""

    steps: int
    log_every: int = 50
    evaluate_every: int = 250

    def __post_init__(self):
        for name, value in asdict(self).items():
            if value < 1:
                flag = name.replace("_", "-")
                raise InputError(f"{name} is at least 1", value, f"Change --{flag}.")


def train(
    model: Transformer,
    task: Task,
    folder: Path,
    schedule: Schedule,
    seed: int = 0,
    xp=np,
    resume: bool = False,
    parts: int = 1,
) -> dict:
    """Train `model` on `task`; leave the best weights in it; return the best evaluation.

    Into `folder` go metrics.jsonl (a line every log_every steps and one each evaluation),
    last.safetensors (all that resuming needs) and best.safetensors (the best model so far by
    task.metric). The loss of a line is the mean since the line before. Each batch is computed in
    `parts` parts (numformer/parts.py).

    Raises Interrupted after Ctrl-C, with the state saved, and BrokenNumbers where loss or gradient
    turn NaN or infinite, before they touch the weights.
    """
    trainer = Trainer(model, task, folder, schedule, seed, xp, parts)
    if resume:
        trainer.resume()
    else:
        trainer.metrics.write_text("")
    bar = tqdm(
        total=schedule.steps, initial=trainer.step, unit="step", disable=not sys.stderr.isatty()
    )
    with contextlib.closing(trainer.parts), bar, _interrupts() as interrupted:
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


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl; a last line that a killed run left unfinished is left out."""
    *lines, _unfinished = path.read_text().split("\n")
    return [json.loads(line) for line in lines]


class Trainer:
    """The state of a training run and one method for each thing that happens to it."""

    def __init__(self, model, task, folder, schedule, seed, xp, parts=1):
        self.model, self.task, self.folder, self.seed = model, task, folder, seed
        self.schedule = schedule
        model.clear_saved()  # what an interrupted step may have left
        config = model.config
        loss = CrossEntropy(config.label_smoothing)
        self.parts = Parts(model, loss, pack(model, np.float32, xp), seed, parts)
        self.parameters = self.parts.parameters
        self.optimizer = Adam(self.parameters, config.beta1, config.beta2, config.adam_epsilon)
        self.losses: list[float] = []  # since the last line of metrics.jsonl
        self.unread: list[tuple] = []  # steps with their loss and norm, still where arrays live
        self.fine = True  # on a GPU an array (): whether all numbers so far were finite
        self.best: dict = {}

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.optimizer.steps

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def rate(self, step: int) -> float:
        """The learning rate of a step (from 1)."""
        return learning_rate(self.model.config, step, self.schedule.steps)

    def advance(self) -> None:
        """One training step: forward, backward, clip, Adam."""
        step = self.step + 1
        loss = self.parts.gradient(step, self.task.batch(step))
        norm = clip_global_norm(self.parameters.grad, self.model.config.clip_norm)
        xp = array_module(norm)
        self.unread.append((step, xp.stack([loss, norm])))
        if xp is np:
            self.read()
        else:
            self._keep_weights_from_broken_numbers(xp, loss, norm)
        self.optimizer.step(self.rate(step))

    def _keep_weights_from_broken_numbers(self, xp, loss, norm) -> None:
        """On a GPU: from a step with broken numbers on, no step moves a weight.

        Looking at the numbers would wait for the GPU in every step. So they stay there, and where
        they broke, the gradient and Adam's mean, which decide the update, become 0.
        """
        self.fine = xp.isfinite(loss) & xp.isfinite(norm) & self.fine
        for vector in (self.parameters.grad, self.optimizer.mean):
            xp.copyto(vector, 0, where=~self.fine)

    def read(self) -> None:
        """Look at loss and norm of each step since the last look; the only wait for a GPU.

        Raises BrokenNumbers at the first that is not finite.
        """
        if not self.unread:
            return
        steps, numbers = zip(*self.unread, strict=True)
        self.unread = []
        numbers = to_host(array_module(numbers[0]).stack(numbers)).tolist()
        for step, (loss, norm) in zip(steps, numbers, strict=True):
            if not math.isfinite(norm) or not math.isfinite(loss):
                self.optimizer.steps = step - 1  # a GPU has gone on, moving no weight
                raise self.broken(step, loss, norm)
            self.losses.append(loss)
            self.norm = norm

    def broken(self, step: int, loss: float, norm: float) -> BrokenNumbers:
        """What to raise when the numbers of a step broke."""
        return BrokenNumbers(
            f"step {step}: loss {loss}, gradient norm {norm}. The weights are those of "
            "the step before; a smaller --factor or a --clip-norm may help."
        )

    def log(self) -> dict:
        """Write the mean loss since the last call, the rate and the gradient's norm."""
        self.read()
        line = {
            "step": self.step,
            "loss": sum(self.losses) / len(self.losses),
            "rate": self.rate(self.step),
            "gradient_norm": self.norm,
        }
        self.losses = []
        self._write(line)
        return line

    def evaluate(self) -> dict[str, float]:
        """Measure on held-out data; where that is the best so far, save best.safetensors."""
        self.read()
        with inference():
            measured = self.task.evaluate(self.model)
        self._write({"step": self.step, **measured})
        metric, sign = self.task.metric, 1 if self.task.higher_is_better else -1
        # Among equals the latest, which has trained longest.
        if not self.best or sign * measured[metric] >= sign * self.best[metric]:
            self.best = {"step": self.step, **measured}
            save_model(
                self.folder / "best.safetensors",
                self.model,
                task=self.task.description(),
                best=self.best,
            )
        return measured

    def save(self) -> None:
        """Write last.safetensors: weights, Adam's state, and where the run stands."""
        self.read()
        adam = {"adam.mean": self.optimizer.mean, "adam.square": self.optimizer.square}
        tensors = self.model.state_dict() | {name: to_host(v) for name, v in adam.items()}
        metadata = {
            "config": asdict(self.model.config),
            "step": self.step,
            "seed": self.seed,
            "task": self.task.description(),
            "best": self.best,
            "losses": self.losses,
        }
        save_checkpoint(self.folder / "last.safetensors", tensors, metadata)

    def resume(self) -> None:
        """Continue from last.safetensors; metrics.jsonl is cut back to its step."""
        path = self.folder / "last.safetensors"
        tensors, metadata = load_checkpoint(path)
        if "adam.mean" not in tensors:
            raise InputError(
                "a run is resumed from the last.safetensors that it saved",
                f"{path}, which holds no state of Adam",
                "Start a new run.",
            )
        if metadata["task"] != self.task.description():
            raise InputError(
                "a run is resumed on the data that it was started with",
                "data with other symbols",
                "Give it the same data, or start a new run.",
            )
        started = metadata["config"] | {"seed": metadata["seed"]}
        asked = asdict(self.model.config) | {"seed": self.seed}
        if differing := [name for name in asked if asked[name] != started.get(name)]:
            name = differing[0]
            raise InputError(
                "a run is resumed with the Config and seed that it was started with",
                f"{name} {asked[name]} instead of {started.get(name)}",
                "Leave out what differs, or start a new run.",
            )
        xp = array_module(self.optimizer.mean)
        self.optimizer.mean[...] = xp.asarray(tensors.pop("adam.mean"))
        self.optimizer.square[...] = xp.asarray(tensors.pop("adam.square"))
        self.model.load_state_dict(tensors)
        self.optimizer.steps = metadata["step"]
        self.best, self.losses = metadata["best"], metadata["losses"]
        kept = [line for line in read_metrics(self.metrics) if line["step"] <= self.step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.metrics, text.encode())

    def use_best(self) -> dict:
        """Load best.safetensors into the model; return what it measured."""
        tensors, metadata = load_checkpoint(self.folder / "best.safetensors")
        self.model.load_state_dict(tensors)
        return metadata["best"]

    def _write(self, line: dict) -> None:
        with open(self.metrics, "a") as file:
            file.write(json.dumps(line) + "\n")


@contextlib.contextmanager
def _interrupts() -> Iterator[list]:
    """A list that Ctrl-C appends to, so that a step in progress ends whole; twice stops at once."""
    received: list = []

    def receive(number, frame):
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = signal.signal(signal.SIGINT, receive)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
