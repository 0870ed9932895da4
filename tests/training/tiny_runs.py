"""Runs of a tiny model that take moments, and what they leave."""

import dataclasses
import signal

import numpy as np
import pytest

from numformer.data.batching import PairBatch
from numformer.generation import greedy
from numformer.layer import Layer, training
from numformer.models import Config, Transformer
from numformer.optimization.recipe import Recipe
from numformer.randomness import dropout_stream
from numformer.training.loop import Interrupted, Schedule, train

MEASURES = [1.0, 3.0, 2.0]  # of a run of 14 steps, evaluated at 5, 10 and 14
SIZES = dict(d_model=8, d_ff=16, heads=2, layers=1, p_drop=0.2)
RECIPE_FIELDS = {field.name for field in dataclasses.fields(Recipe)}


class Copying:
    """Copy 1 to 3 symbols. `measures`: what evaluations say in turn; `at`: calls before a step."""

    metric = "measure"

    def __init__(self, measures=(), higher_is_better=True, at=None):
        self.measures, self.higher_is_better, self.at = iter(measures), higher_is_better, at or {}
        self.weights_evaluated = []

    def batch(self, step: int) -> PairBatch:
        self.at.get(step, lambda: None)()
        rng = np.random.default_rng(step)
        words = [rng.integers(4, 9, rng.integers(1, 4)).tolist() for _ in range(6)]
        return PairBatch.of([(word, word) for word in words])

    def evaluate(self, model) -> dict:
        self.weights_evaluated.append(model.state_dict())
        dropout_stream.mask((3,), 0.5, np.zeros(3))  # training must not notice
        greedy(model, np.array([[4, 2], [5, 2]]), 3)
        model.forward(np.array([[4, 2], [5, 2]]), np.array([[1], [1]]))
        assert not training() and model.pending() == 0
        return {"other": 7.0, "measure": next(self.measures, 0.0)}

    def description(self) -> dict:
        return {"symbols": "abcde"}


class HoldingOut(Copying):
    """With two batches that count 3 and 8 predictions."""

    held_out = (
        PairBatch.of([([4, 5], [5]), ([6], [])]),
        PairBatch.of([([7], [8, 8, 4, 5]), ([4, 4, 4], [6, 5])]),
    )


class Own(Transformer):
    """A model that is in no file of numformer/models, with an objective of its own."""

    factor = 0.5

    def objective(self, label_smoothing=0.0):
        @dataclasses.dataclass  # which makes it equal to its like, so it cannot be hashed
        class Multiplied(Layer):
            whole: Layer
            factor: float

            def forward(self, *inputs):
                return self.factor * self.whole.forward(*inputs)

            def backward(self, dloss=1.0):
                return self.whole.backward(self.factor * dloss)

        return Multiplied(super().objective(label_smoothing), self.factor)


def tiny(kind=Transformer, **changes) -> Transformer:
    return kind(Config.base(9, **(SIZES | changes)), seed=5)


def recipe(**changes) -> Recipe:
    return Recipe(**(dict(warmup=10) | changes))


def run(folder, steps=7, log_every=3, evaluate_every=5, *, task=None, **changes):
    """Train a tiny model in `folder` -> the model and the best evaluation."""

    def chosen(names) -> dict:
        return {name: changes.pop(name) for name in names & changes.keys()}

    schedule = Schedule(steps, log_every, evaluate_every, **chosen({"minutes", "patience"}))
    settings = dict(seed=1, parts=1) | chosen({"seed", "parts", "resume", "verbose", "log_to"})
    settings["recipe"] = recipe(**chosen(RECIPE_FIELDS))
    model = tiny(**changes)
    return model, train(model, task or Copying(), folder, schedule, **settings)


def interrupt(folder, step: int, measures=(), **settings) -> None:
    """Begin such a run, or go on with it, and stop it by Ctrl-C in a step."""
    with pytest.raises(Interrupted, match=f"stopped at step {step}, which is saved"):
        run(folder, task=Copying(measures, at={step: send_ctrl_c}), **settings)


def send_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise RuntimeError("killed")


class Clock:
    """Time as a test wants it, in the place of the module `time`."""

    def __init__(self, now: float = 0.0):
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds
