"""The training loop that every task shares."""

import contextlib
import functools
import json
import math
import operator
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from numformer.backend import array_module, to_host
from numformer.data.batching import Batch
from numformer.errors import InputError
from numformer.layer import FlatParameters, inference, pack
from numformer.layers.cross_entropy import CrossEntropy
from numformer.models.encoder_decoder import Transformer
from numformer.training.broken_numbers import BrokenNumbers, broken_parameter, first_broken
from numformer.training.checkpoints import (
    PARTIAL,
    load_checkpoint,
    named,
    save_checkpoint,
    save_model,
)
from numformer.training.optimizers import Adam, clip_global_norm, learning_rate
from numformer.training.parts import Parts
from numformer.training.resume import State, saved_state, summary


class Interrupted(Exception):
    """Training was stopped by Ctrl-C or SIGTERM and has saved its state."""


class Task(Protocol):
    """What the loop needs of a task."""

    metric: str  # the entry of `evaluate` that chooses the best checkpoint
    higher_is_better: bool
    longest: int  # positions of a sequence that it trains on or decodes; scripts look at it

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
            if type(value) is not int or value < 1:
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

    With `resume` a run in the same folder goes on from where it was saved, and ends bit for bit as
    if nothing had interrupted it. Only one process at a time may train into a folder (`locked`).

    Raises Interrupted after Ctrl-C or SIGTERM, with the state saved, BrokenNumbers where loss or
    gradient turn NaN or infinite, before they touch the weights, and OSError where a file cannot
    be written; what was saved before stands.
    """
    trainer = Trainer(model, task, folder, schedule, seed, xp, parts)
    # Numbers that break are found in the loss and the norm, and told once.
    quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with contextlib.closing(trainer.parts), quiet:
        if resume:
            trainer.resume()
        else:
            trainer.metrics.write_text("")
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
        packed = pack(model, np.float32, xp)
        self.optimizer = Adam(packed, config.beta1, config.beta2, config.adam_epsilon)
        self.parts = Parts(model, loss, self.optimizer, seed, parts)
        self.losses: list[float] = []  # since the last line of metrics.jsonl
        self.unread: list[tuple] = []  # steps with their loss and norm, still where arrays live
        self.fine = True  # on a GPU an array (): whether all numbers so far were finite
        self.best: dict = {}

    @property
    def parameters(self) -> FlatParameters:
        """The vectors of all weights and of all gradients."""
        return self.optimizer.parameters

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.optimizer.steps

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def _last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def _best(self) -> Path:
        return self.folder / "best.safetensors"

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
        self.parts.update(self.rate(step))

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
        """What to raise when the numbers of a step broke: it is replayed to name the place."""
        layers, parameters = self.model.named_layers(), self.model.named_parameters()
        self.parts.end_processes()  # in turn, in this process, the step is the same, bit for bit
        replay = functools.partial(self.parts.gradient, step, self.task.batch(step))
        place = first_broken(layers | {"loss": self.parts.loss}, parameters, replay)
        if place is None:
            largest = max(parameters, key=lambda name: abs(parameters[name].grad).max())
            place = f"the norm alone, by the size of the gradient of {largest}"
        return BrokenNumbers(
            f"step {step}: loss {loss}, gradient norm {norm}; the first to break is {place}. The "
            "weights are those of the step before, and what was saved stands. Start again with a "
            "smaller --factor or a --clip-norm."
        )

    def _require_finite_weights(self) -> None:
        if broken := broken_parameter(self.model.named_parameters()):
            raise BrokenNumbers(
                f"step {self.step}: its update made {broken} not finite. What was saved before "
                "stands. Start again with a smaller --factor."
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
        """Measure on held-out data, and note whether that is the best so far."""
        self.read()
        self._require_finite_weights()
        with inference():
            measured = self.task.evaluate(self.model)
        for name, value in measured.items():
            if not math.isfinite(value):
                raise BrokenNumbers(
                    f"step {self.step}: the evaluation's {name} is {value}, although every weight "
                    "is finite. What was saved before stands. Start again with a smaller --factor."
                )
        self._write({"step": self.step, **measured})
        metric = self.task.metric
        # Among equals the latest, which has trained longest.
        as_good = operator.ge if self.task.higher_is_better else operator.le
        if not self.best or as_good(measured[metric], self.best[metric]):
            self.best = {"step": self.step, **measured}
        return measured

    def save(self) -> None:
        """Write last.safetensors: weights, Adam's state, and where the run stands.

        Where these weights are the best, best.safetensors follows; a run that was killed between
        the two writes it when it is resumed.
        """
        self.read()
        self._require_finite_weights()
        adam = {"adam.mean": self.optimizer.mean, "adam.square": self.optimizer.square}
        tensors = self.model.state_dict() | {name: to_host(v) for name, v in adam.items()}
        place = {
            "step": self.step,  # which is also where the data stands
            "best": self.best,
            "losses": self.losses,
            "metrics": summary(self._metrics_on_disk()),
        }
        save_checkpoint(self._last, tensors, self._settings() | place)
        self._save_best()

    def _settings(self) -> dict:
        """What decides how a run goes on, and so must be the same when it is resumed."""
        return {
            "config": asdict(self.model.config),
            "seed": self.seed,
            "steps": self.schedule.steps,
            "parts": self.parts.count,
            "task": self.task.description(),
        }

    def _save_best(self) -> None:
        if self.best and self.best["step"] == self.step:
            description = self.task.description()
            save_model(self._best, self.model, task=description, best=self.best)

    def _metrics_on_disk(self) -> bytes:
        """What metrics.jsonl holds, once it is safe from a power cut."""
        with named(self.metrics), open(self.metrics, "ab+") as file:
            os.fsync(file.fileno())
            file.seek(0)
            return file.read()

    def resume(self) -> None:
        """Continue from last.safetensors; metrics.jsonl is cut back to its step.

        A run that was killed before it saved anything starts again. Raises InputError, with the
        folder as it was, unless the run is the one that was started and its files are whole.
        """
        if self._last.exists():
            settings, dtype = self._settings(), self.parameters.data.dtype
            state = saved_state(self._last, self.metrics, settings, self.task.metric, dtype)
            self._take_over(state)
            os.truncate(self.metrics, state.written)
            self._save_best()
        elif self._best.exists():
            raise InputError(
                "a run is resumed from the last.safetensors that it saved",
                f"{self.folder}, which has none beside its best.safetensors",
                "Put it back, or start a new run.",
            )
        else:
            if self.metrics.exists() and not self.metrics.is_file():
                raise InputError(
                    "a run is resumed with the metrics.jsonl that it wrote",
                    f"{self.metrics}, which is no file",
                    "Start a new run.",
                )
            self.metrics.write_text("")
        for path in (self._last, self._best):  # what a kill may have left half written
            path.with_name(path.name + PARTIAL).unlink(missing_ok=True)

    def _take_over(self, state: State) -> None:
        if state.best and state.best["step"] < state.step:
            self._load_best(state.best)  # is it there, and the run's own?
        self.model.load_state_dict(state.weights)
        xp = array_module(self.optimizer.mean)
        self.optimizer.mean[...] = xp.asarray(state.mean)
        self.optimizer.square[...] = xp.asarray(state.square)
        self.optimizer.steps, self.losses, self.best = state.step, state.losses, state.best

    def _load_best(self, best: dict) -> None:
        """Load best.safetensors into the model. Raises InputError unless it measured `best`."""
        tensors, metadata = load_checkpoint(self._best, self.parameters.data.dtype)
        if metadata.get("best") != best or metadata.get("config") != asdict(self.model.config):
            raise InputError(
                "a run's best.safetensors belongs to its last.safetensors",
                f"{self._best}, which does not",
                "Put the run's own back, or start a new run.",
            )
        self.model.load_state_dict(tensors)

    def use_best(self) -> dict:
        """Load best.safetensors into the model; return what it measured."""
        self._load_best(self.best)
        return self.best

    def _write(self, line: dict) -> None:
        with named(self.metrics), open(self.metrics, "a") as file:
            file.write(json.dumps(line) + "\n")


@contextlib.contextmanager
def _interrupts() -> Iterator[list]:
    """A list that Ctrl-C and SIGTERM append to, so that a step ends whole; twice stops at once."""
    received: list = []

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
