"""The state of a training run, with a method for each operation of the loop on it."""

import functools
import math
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from numformer.backend import array_module, to_host
from numformer.errors import BrokenNumbers, InputError
from numformer.execution.executor import make_executor
from numformer.execution.ranks import Ranks
from numformer.layer import FlatParameters, inference, pack
from numformer.models import Model
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.recipe import Recipe
from numformer.runs.checkpoints import as_json, checksum, description
from numformer.runs.resume import State
from numformer.runs.run_folder import RunFolder
from numformer.training.average import mean_weights
from numformer.training.broken_numbers import all_finite, broken_parameter, first_broken, restore
from numformer.training.measures import measures
from numformer.version import __version__


class Trainer:
    """The state of a training run: steps, logs, evaluates, saves and resumes."""

    def __init__(
        self,
        model: Model,
        task,
        folder: Path,
        steps: int,
        recipe: Recipe,
        seed: int = 0,
        xp=np,
        parts: int = 1,
        ranks: Ranks | None = None,
    ):
        model.clear_saved()  # an interrupted step may have left arrays saved for backward
        self.model, self.task, self.recipe, self.steps, self.seed = model, task, recipe, steps, seed
        self.parts, self.ranks = parts, ranks or Ranks()
        self.optimizer = recipe.make_optimizer(pack(model, np.float32, xp))
        # Passed only if set, so that the objective of a user's model need not have R-Drop.
        r_drop = {"r_drop": recipe.r_drop} if recipe.r_drop else {}
        self.objective = model.objective(recipe.label_smoothing, **r_drop)
        # With several ranks, rank 0 reads the numbers of every step on the host.
        scale = LossScale(np if self.ranks.others else xp)
        self.loss_scale = scale if recipe.precision == "mixed" else None
        self.executor = make_executor(self.objective, self.optimizer, seed, parts, self.ranks)
        self.losses: list[float] = []  # since the last line of metrics.jsonl
        self.unread: list[tuple] = []  # (step, loss, norm[, scale]); all but step on the device
        self.all_finite: Any = True  # on a GPU a scalar (): whether every loss and norm was finite
        self.best: dict = {}
        self.recent: list = []  # the weights (N,) at the latest evaluations, to be averaged
        self.evaluations: list[dict] = []  # the step and the measures of each
        self.began = time.monotonic()  # moved back on resume, so `seconds` includes earlier runs
        text, extra = _text_description(task, model), _task_metadata(task)
        self.files = RunFolder(folder, self.settings(), task.metric, text, extra)

    def settings(self) -> dict:
        """Return all that determines the run's results, and so must be equal when it is resumed."""
        settings = description(self.model) | {
            "recipe": asdict(self.recipe),
            "seed": self.seed,
            "steps": self.steps,
            "parts": self.parts,
        }
        settings = {name: as_json(name, value) for name, value in settings.items()}
        return settings | {"task": _task_description(self.task)}

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal in all ranks: version, settings, checksums of data, weights."""
        settings, batch = self.settings(), self.task.batch(1)
        batches = batch if isinstance(batch, list) else [batch]
        inputs = [array for batch in batches for array in getattr(batch, "inputs", ())]
        return {
            "version": __version__,
            **settings.pop("config"),
            **settings.pop("recipe"),
            **settings,
            "the first batch's checksums": [_checksum(array) for array in inputs],
            "the initial weights' checksum": _checksum(to_host(self.parameters.data)),
        }

    @property
    def parameters(self) -> FlatParameters:
        """The vector (N,) of all weights, and the vector of all gradients."""
        return self.optimizer.parameters

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.optimizer.steps

    @property
    def seconds(self) -> float:
        """How long training has taken so far, evaluations included."""
        return time.monotonic() - self.began

    @property
    def has_losses(self) -> bool:
        """Whether a step was taken since the last line of metrics.jsonl."""
        return len(self.losses) + len(self.unread) > 0

    @property
    def is_evaluated(self) -> bool:
        """Whether the weights of the latest step were evaluated."""
        return any(evaluation["step"] == self.step for evaluation in self.evaluations)

    @property
    def finished(self) -> bool:
        """Whether the last step was taken and evaluated."""
        return self.step == self.steps and self.is_evaluated

    def rate(self, step: int) -> float:
        """Return the learning rate of a step (from 1)."""
        return self.recipe.learning_rate(step, self.steps, self.model.config.d_model)

    # Training

    def advance(self) -> None:
        """Take one training step: forward, backward, clip, and the optimizer's update."""
        step, scale = self.step + 1, self.loss_scale.scale if self.loss_scale else None
        loss = self.executor.gradient(step, self.task.batch(step), scale)
        norm = self.executor.clip(self.recipe.clip_norm)
        xp, skipped = array_module(norm), None
        if self.loss_scale:
            skipped = self.loss_scale.skips(loss, norm)
            norm = xp.where(skipped, norm.dtype.type(0), norm)  # a skipped step changes no weight
        self.unread.append((step, loss, norm, *([scale] if self.loss_scale else [])))
        if xp is not np:
            self._update_if_finite(loss, norm, skipped)
            return
        self.read()
        if skipped:
            self.optimizer.steps = step
        else:
            self.executor.update(self.rate(step))

    def _update_if_finite(self, loss, norm, skipped=None) -> None:
        """On a GPU, update unless the loss or norm of this or an earlier step is not finite.

        Reading loss and norm here would wait for the GPU in every step. So the update is made and,
        if either is not finite or the step is `skipped`, undone on the GPU: the weights (and, with
        loss scaling, the optimizer's vectors) get their old values back.
        """
        vectors = [self.parameters.data]
        self.all_finite = moves = all_finite(loss, norm, self.all_finite)
        if skipped is not None:
            moves, vectors = moves & ~skipped, [*vectors, *self.optimizer.state.values()]
        before = [vector.copy() for vector in vectors]
        self.executor.update(self.rate(self.step + 1))
        for vector, values in zip(vectors, before, strict=True):
            restore(vector, values, moves)

    def read(self) -> None:
        """Read the loss and norm of each unread step; on a GPU, wait for these steps.

        Raises BrokenNumbers at the first step whose loss or norm is not finite.
        """
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        _, _, norm, *_ = unread[0]
        scalars = [scalar for _, *group in unread for scalar in group]
        numbers = to_host(array_module(norm).stack(scalars)).reshape(len(unread), -1).tolist()
        for (step, *_), (loss, norm, *scale) in zip(unread, numbers, strict=True):
            if not math.isfinite(norm) or not math.isfinite(loss):
                self.optimizer.steps = step - 1  # later steps on a GPU left the weights unchanged
                raise self.broken(step, loss, norm)
            self.losses.append(loss)
            self.norm, self.scale = norm, {"loss_scale": scale[0]} if scale else {}

    def broken(self, step: int, loss: float, norm: float) -> BrokenNumbers:
        """Return the error for a loss or norm that is not finite; replay the step to find where."""
        parameters = self.model.named_parameters()
        owners = self.objective.named_layers(), self.model.named_layers()
        # Each layer once. The model comes last, so its layers get their names within the model.
        layers = {id(layer): (name, layer) for layers in owners for name, layer in layers.items()}
        scale = self.loss_scale.scale if self.loss_scale else None
        replay = functools.partial(self.executor.replay, step, self.task.batch(step), scale)
        place = first_broken(dict(layers.values()), parameters, replay)
        if place is None:
            largest = max(parameters, key=lambda name: abs(parameters[name].grad).max())
            place = f"the norm alone, because of the size of the gradient of {largest}"
        fix = "Start again with a lower rate (--rate or --factor) or a --clip-norm"
        if step == 1:
            fix = "No rate has been used yet: start again with a new model, or with other data"
        others = ", or with --precision float32" if self.loss_scale else ""
        return BrokenNumbers(
            f"step {step}: loss {loss}, gradient norm {norm}; NaN or infinity first appears in "
            f"{place}. The weights are as they were before the step; saved files are intact. "
            f"{fix}{others}."
        )

    def _require_finite_weights(self) -> None:
        data = self.parameters.data
        if not array_module(data).isfinite(data).all():
            broken = broken_parameter(self.model.named_parameters())
            raise BrokenNumbers(
                f"step {self.step}: its update made {broken} NaN or infinite. Saved files are "
                "intact. Start again with a lower rate (--rate or --factor)."
            )

    # Measuring

    def latest(self) -> dict[str, float]:
        """Return loss, rate and gradient norm (0 if skipped) of the latest step.

        In half precision, return the loss scale, too.
        """
        self.read()
        return {
            "step": self.step,
            "loss": self.losses[-1],
            "rate": self.rate(self.step),
            "gradient_norm": self.norm,
            **self.scale,
        }

    def log(self) -> dict:
        """Write and return the mean loss since the last call, the rate and the gradient norm."""
        line = self.latest()
        line["loss"] = sum(self.losses) / len(self.losses)
        self.losses = []
        self._write(line)
        return line

    def evaluate(self) -> dict[str, float]:
        """Measure on held-out data, and note whether the result is the best so far."""
        self.read()
        self._require_finite_weights()
        if self.recipe.average > 1:
            self.recent = [*self.recent, self.parameters.data.copy()][-self.recipe.average :]
        try:
            weights = mean_weights(self.parameters.data, self.recent)
            with inference(), weights, self.ranks.busy():
                results = measures(self.task, self.model, self.objective)
        except BrokenNumbers as problem:
            raise BrokenNumbers(
                f"step {self.step}: the evaluation's {problem}, although every weight is finite. "
                "Saved files are intact. Look for the cause in the task's evaluate(); if that is "
                "correct, start again with a lower rate (--rate or --factor)."
            ) from None
        self.evaluations.append({"step": self.step, **results})
        self._write(self.evaluations[-1])
        if self._is_best(results):
            self.best = {"step": self.step, **results}
        return results

    def _is_best(self, results: dict[str, float]) -> bool:
        """Whether an evaluation is the best so far. Among equal ones, the latest is the best."""
        if not self.best or (self.recipe.average > 1 and self.step == self.steps):
            return True  # the mean of the last evaluated weights is the result, as in the paper
        new, best = results[self.task.metric], self.best[self.task.metric]
        return new >= best if self.task.higher_is_better else new <= best

    def since_progress(self) -> list[dict]:
        """Return the best evaluation and all evaluations after it.

        Of equal evaluations, that with the lowest held-out loss is the best, then the earliest.
        """
        sign = -1 if self.task.higher_is_better else 1
        values = [(sign * e[self.task.metric], e.get("held_out_loss", 0)) for e in self.evaluations]
        return self.evaluations[values.index(min(values)) :] if values else []

    def _write(self, line: dict) -> None:
        self.files.write(line | {"seconds": round(self.seconds, 2)})

    # Saving

    def save(self) -> None:
        """Write last.safetensors: weights, the optimizer's state, and the run's progress.

        If these weights are the best, write best.safetensors, too. A run that is killed between the
        two files writes best.safetensors when it is resumed.
        """
        self.read()
        self._require_finite_weights()
        vectors = self.executor.optimizer_state()
        with self.ranks.busy():
            # One copy of the whole vector from a GPU, instead of one per parameter.
            arrays = self.parameters.views(to_host(self.parameters.data))
            weights = dict(zip(self.model.named_parameters(), arrays, strict=True))
            state = {f"optimizer.{name}": to_host(vector) for name, vector in vectors.items()}
            if self.recent:
                state["recent"] = np.stack([to_host(vector) for vector in self.recent])
            if self.loss_scale:
                state["loss_scale"] = self.loss_scale.state()
            progress = {
                "step": self.step,  # also determines the next batch
                "best": self.best,
                "seconds": round(self.seconds, 2),
                "losses": self.losses,
                "threads": self.executor.threads,
            }
            self.files.save(weights | state, progress)
            self._save_best()

    def _save_best(self) -> None:
        if self.best and self.best["step"] == self.step:
            with mean_weights(self.parameters.data, self.recent):
                self.files.save_best(self.model, self.best)

    def resume(self) -> None:
        """Continue from last.safetensors, and cut metrics.jsonl back to the saved step.

        A run that was killed before it saved anything starts again. Raises InputError, and leaves
        the folder unchanged, unless the folder holds this run and its files are complete.
        """
        state = self.files.resume(self.model, self.parameters.data.dtype)
        if state:
            self._restore(state)
        self.files.cut_back(state)
        self.evaluations = self.files.evaluations()
        self._save_best()

    def _restore(self, state: State) -> None:
        if state.best and state.best["step"] < state.step:
            # Before anything else changes: raises InputError unless the file belongs to the run.
            self._load_best(state.best)
        self.model.load_state_dict(state.weights)
        for name, vector in self.optimizer.state.items():
            vector[...] = array_module(vector).asarray(state.optimizer[name])
        xp = array_module(self.parameters.data)
        self.recent = [xp.asarray(vector) for vector in state.recent]
        if self.loss_scale:
            self.loss_scale.load(array_module(self.loss_scale.scale).asarray(state.loss_scale))
        self.optimizer.steps, self.losses, self.best = state.step, state.losses, state.best
        self.began = time.monotonic() - state.seconds
        self.executor.threads = state.threads or self.executor.threads

    def _load_best(self, best: dict) -> None:
        self.files.load_best(self.model, best, self.parameters.data.dtype)

    def use_best(self) -> dict:
        """Load best.safetensors into the model; return its evaluation."""
        self._load_best(self.best)
        return self.best


def _checksum(array: np.ndarray) -> int:
    return checksum({"": np.ascontiguousarray(array)}, {})


def _task_metadata(task) -> dict:
    """Return the task's `metadata` (formerly named `kept`), or an empty dict if it has none."""
    if hasattr(task, "kept") and not hasattr(task, "metadata"):
        warnings.warn("Task.kept is now Task.metadata", DeprecationWarning, stacklevel=5)
        return task.kept
    return getattr(task, "metadata", {})


def _task_description(task) -> dict:
    description = as_json("the task's description()", task.description())
    if type(description) is dict:
        return description
    rule, fix = "a task's description() returns a dict", "Return, for example, {'name': 'copy'}."
    raise InputError(rule, repr(description)[:200], fix)


def _text_description(task, model: Model) -> dict | None:
    """Return the task's `text` description, if any. Raises InputError if `load` would refuse it."""
    text = getattr(task, "text", None)
    if text is None:
        return None
    try:
        description = text.description()
        fits = text.fits(model.config)
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            "a task's text has the vocabularies that its model was built for, and its lengths are "
            "integers up to 4096",
            repr(text)[:200],
            "Make both from the same vocabularies: numformer.Transduction(source, target, 20), and "
            "a Config with source_vocabulary=len(source), target_vocabulary=len(target).",
        )
    return as_json("the text's description()", description)
