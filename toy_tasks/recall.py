# PYTHON_ARGCOMPLETE_OK
"""Recall and copy over long distances, with attention and with alternatives to it."""

import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

from numformer.data import Vocabulary
from numformer.generation import Continuation
from numformer.layer import mode
from numformer.models.language_model import LanguageModel
from numformer.randomness import seed_sequence
from toy_tasks.command_line import exit_code, settings_from, study
from toy_tasks.data.windows import PartialWindows
from toy_tasks.reports import charts

DESCRIPTION = """\
Learn to recall and to copy at lengths of up to 2,048, with attention and with alternatives to it.
Recall: first come keys with their values, then noise, then the keys again, and the model predicts
the value of each key (multi-query associative recall: Arora et al. 2023). Copy: a string of
different symbols, then noise, then the string again. Both need symbols from far back. A layer that
sees only nearby symbols, or has only a state of fixed size, cannot remember them all.

  python -m toy_tasks.recall
  python -m toy_tasks.recall --run runs/recall/attention-1 --input "k1 v5 k2 v9 n3 k2"
"""
KEYS, VALUES, NOISE = 128, 32, 16
LENGTHS = 64, 128, 256, 512, 1024, 2048
TABLE_LENGTHS = 256, 2048
"""Lengths in the table."""
PART = 16
"""A test sequence of T symbols has T / PART pairs, or copies T / PART symbols."""
FEW_PAIRS = 8
"""The number of pairs in the test in which only the distance grows with the length."""
TOKENS = 8192
"""The number of symbols in the test set of each length."""
STARTS = {16: 0, 32: 0.1, 64: 0.2, 128: 0.35, 256: 0.45, 512: 0.5, 1024: 0.6, 2048: 0.7}
"""The share of the training steps after which each length is used.

Two batches in five have the longest length so far, the others a random one."""
RECALL_SHARE = 0.4
"""The share of recall batches; without the others, which copy, models learn neither task."""
DEFAULTS = dict(
    steps=12000,
    batch_size=512,
    evaluate_every=2000,
    seeds=(1, 2),
    d_model=64,
    d_ff=128,
    heads=2,
    layers=2,
    norm="pre",
    positions="rotary",
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=50,
    factor=0.17,
    decay="linear",
    clip_norm=1.0,
)
ROW_SETTINGS = {
    "shared_keys": {"mixers": "attention", "key_value_heads": 1},
    "window": {"window": 64},
    "global_window": {"window": 64, "global_tokens": 16},
    "strided": {"stride": 32},
    "linear": {"positions": "none"},
    "state_space": {"positions": "none"},
    "state_space,attention": {"positions": "none"},
    "window,linear": {"window": 64, "positions": "none"},
}
"""Settings of rows. Linear attention and state-space layers see the order without positions."""
FIGURES = "few", "recall", "copy"
"""The tests: recall of FEW_PAIRS pairs, recall of more pairs in longer sequences, and copying."""
TITLES = f"recall, {FEW_PAIRS} pairs", f"recall, T / {PART} pairs", f"copy, T / {PART} symbols"
COSTS = "milliseconds", "MiB", "seconds"
THEORY = {
    "attention": "all, at any distance",
    "shared_keys": "all, at any distance",
    "window": "symbols within two windows",
    "global_window": "nearby symbols, and the first 16",
    "strided": "all, if one position can hold a whole stride",
    "linear": "as much as its state holds",
    "state_space": "as much as its state holds",
    "state_space,attention": "all, at any distance",
    "window,linear": "nearby symbols, and as much as its state holds",
}
"""What each mixer can recall in theory."""


class RecallTask:
    """Batches of about `batch_size` symbols, for `numformer.training.train`."""

    metric, higher_is_better, longest = "right", True, LENGTHS[-1]

    def __init__(self, batch_size: int, steps: int, seed: int, tokens: int = TOKENS):
        self.batch_size, self.steps, self.seed, self.tokens = batch_size, steps, seed, tokens
        symbols = [f"{kind}{n}" for kind, count in KINDS.items() for n in range(count)]
        vocabulary = Vocabulary([*symbols, "="], separator=" ")
        ids = np.array(vocabulary.encode([*symbols, "="]))
        self.keys, self.values, self.noise, (self.equals,) = np.split(
            ids, np.cumsum([*KINDS.values()])
        )
        self.text = Continuation(vocabulary, self.longest)

    def recall(self, rng, rows: int, length: int, pairs: int, queries: int) -> PartialWindows:
        """`pairs` keys with their values, noise, and `queries` keys whose values are predicted."""
        ids = rng.choice(self.noise, (rows, length + 1))
        keys = rng.permuted(np.tile(self.keys, (rows, 1)), axis=1)[:, :pairs]
        pairs_of_row = np.stack([keys, rng.choice(self.values, keys.shape)], axis=-1)
        rounds = -(-queries // pairs)  # every key comes once before any comes twice
        order = [rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1) for _ in range(rounds)]
        order = np.concatenate(order, axis=1)[:, :queries]
        repeats = np.take_along_axis(pairs_of_row, order[..., None], axis=1)
        ids[:, : 2 * pairs] = pairs_of_row.reshape(rows, -1)
        ids[:, length + 1 - 2 * queries :] = repeats.reshape(rows, -1)
        valid = np.zeros((rows, length), bool)
        valid[:, length - 2 * queries + 1 :: 2] = True
        return PartialWindows(ids[:, :-1], ids[:, 1:], valid)

    def copy(self, rng, rows: int, length: int, count: int, prefix: int = 0) -> PartialWindows:
        """`prefix` symbols of noise, "=", a string of `count` symbols, noise, "=", the string.

        The second string is predicted.
        """
        ids = rng.choice(self.noise, (rows, length + 1))
        symbols = np.tile(np.concatenate([self.keys, self.values]), (rows, 1))
        string = rng.permuted(symbols, axis=1)[:, :count]
        for start in prefix, length - count:
            ids[:, start] = self.equals
            ids[:, start + 1 : start + 1 + count] = string
        valid = np.zeros((rows, length), bool)
        valid[:, -count:] = True
        return PartialWindows(ids[:, :-1], ids[:, 1:], valid)

    def batch(self, step: int) -> PartialWindows:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        lengths = [length for length, start in STARTS.items() if step > start * self.steps]
        length = lengths[-1] if rng.random() < 0.4 else rng.choice(lengths)
        rows, recall = max(1, self.batch_size // length), rng.random() < RECALL_SHARE
        pairs = int(np.exp(rng.uniform(np.log(2), np.log(min(KEYS, length // 4) + 1))))
        if recall:
            gap = int(rng.random() * (length - 4 * pairs)) * int(rng.integers(2))
            return self.recall(rng, rows, length, pairs, (length - 2 * pairs - gap) // 2)
        count = min(2 * pairs - 1, (length - 1) // 2, KEYS + VALUES)
        prefix = int(rng.integers(length - 2 * count))
        return self.copy(rng, rows, length, count, prefix)

    def accuracy(self, model: LanguageModel, kind: str, length: int) -> float:
        """The share of symbols predicted correctly in the test set of this length."""
        rng = np.random.default_rng(seed_sequence(0, "held out", length))
        rows, part = max(1, self.tokens // length), length // PART
        if kind == "copy":
            test = self.copy(rng, rows, length, part)
        else:
            pairs = FEW_PAIRS if kind == "few" else part
            test = self.recall(rng, rows, length, pairs, pairs)
        right = model.forward(test.ids).argmax(axis=-1) == test.following
        return float(right[test.valid].mean())

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        """The mean accuracy of all tests."""
        shares = [self.accuracy(model, kind, n) for kind in FIGURES for n in LENGTHS]
        return {self.metric: float(np.mean(shares))}

    def description(self) -> dict:
        return {"name": "recall"}


KINDS = {"k": KEYS, "v": VALUES, "n": NOISE}
"""The number of symbols that are keys, values and noise."""


def make_task_and_config(options):
    """The task of a run, the kind of model and its config."""
    tokens = 256 if options.quick else TOKENS
    task = RecallTask(options.batch_size, options.steps, options.seed, tokens)
    config = settings_from(options, LanguageModel.Config, vocabulary=len(task.text.vocabulary))
    return task, LanguageModel, config


def measure(model: LanguageModel, task: RecallTask, folder: Path) -> dict:
    """The accuracy at every length, and the cost of a training step at the longest."""
    shares = {kind: [task.accuracy(model, kind, n) for n in LENGTHS] for kind in FIGURES}
    rng, objective = np.random.default_rng(0), model.objective()
    batch = task.recall(rng, 1, LENGTHS[-1], 16, 16)

    def step() -> None:
        with mode(training=True, saving=True):
            objective.forward(*batch.inputs)
            objective.backward()

    step()
    start = time.process_time()
    step()
    milliseconds = 1000 * (time.process_time() - start)
    tracemalloc.start()
    step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    model.zero_grad()
    return {"right": float(np.mean([*shares.values()])), **shares} | {
        "milliseconds": milliseconds,
        "MiB": peak / 2**20,
    }


def table(results: study.Results) -> list[list[str]]:
    """A row for each mixer."""
    heads = [f"{title.removesuffix(' symbols')}: {n:,}" for title in TITLES for n in TABLE_LENGTHS]
    rows = [["mixer", *heads, "ms a step", "MiB", "training, s", "in theory it recalls"]]
    for row, runs in results.items():
        by_length = np.array([[run[kind] for kind in FIGURES] for run in runs])
        means = by_length[..., [LENGTHS.index(n) for n in TABLE_LENGTHS]].mean(axis=0).ravel()
        costs = [np.mean([run[name] for run in runs]) for name in COSTS]
        numbers = [*(f"{mean:.2f}" for mean in means), *(f"{cost:,.0f}" for cost in costs)]
        rows.append([row, *numbers, THEORY[row]])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """Draw the accuracy against the length, a panel for each test."""
    panels = {
        title: {row: [(LENGTHS, run[kind]) for run in runs] for row, runs in results.items()}
        for title, kind in zip(TITLES, FIGURES, strict=True)
    }
    title = "Recall over long distances, with attention and with alternatives to it"
    charts.draw_chart(folder / "recall.png", title, panels, "length", "share right", xscale="log")


def verdict(results: study.Results):
    """The mean accuracy of attention, and of window attention, which does not reach far enough."""
    at = LENGTHS.index(256)
    attention, window = (
        np.mean([run[kind][at] for run in results[row] for kind in FIGURES])
        for row in ("attention", "window")
    )
    figures = {"attention at 256:": f"{attention:.4f}", "window of 64 at 256:": f"{window:.4f}"}
    test_set = f"about {TOKENS:,} symbols at each length"
    return (
        test_set,
        figures,
        ("attention 0.99, the window at most 0.1", attention >= 0.99 and window <= 0.1),
    )


STUDY = study.Study(
    name="recall",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows={mixers: {"mixers": mixers} | ROW_SETTINGS.get(mixers, {}) for mixers in THEORY},
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="right",
    table=table,
    draw=draw,
    verdict=verdict,
    example="k1 v5 k2 v9 n3 k2",
)


def main(arguments: list[str] | None = None) -> int:
    """Train all models and compare them; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
