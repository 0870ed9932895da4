"""What lesson 12 shows of trained models: four kinds on two tasks, and the translator's cost."""

import json
from pathlib import Path

from lessons.kit import models
from lessons.lesson_12.families import FAMILIES, TASKS, train
from numformer.data.batching import TokenBatches
from toy_tasks.data.datasets import multi30k
from toy_tasks.data.parallel_corpus import read_corpus
from toy_tasks.text_to_text.translation import print_bleu

MODELS = ["translator"]


def of_pair(config, source: int, target: int) -> int:
    """The operations in matrix products of a Transformer's forward for a pair of these lengths."""
    d, f, n = config.d_model, config.d_ff, config.layers
    encoder = source * (8 * d**2 + 4 * source * d + 4 * d * f)
    decoder = target * (8 * d**2 + 4 * target * d + 4 * d * f)
    crossing = 4 * d**2 * (source + target) + 4 * source * target * d
    return n * (encoder + decoder + crossing) + 2 * target * d * config.target_vocabulary


def of_translator() -> dict:
    """BLEU of the translator, and the operations of its whole training."""
    trained = models.model("translator")
    model, text = trained.model, trained.text
    options = json.loads((models.folder("translator") / "config.json").read_text(encoding="utf-8"))[
        "options"
    ]
    folder = Path(options["data"] or multi30k())
    data = read_corpus(folder, tuple(options["languages"]))
    sides = text.source, text.target
    pairs = [
        [side.encode(side.split(line)) for line, side in zip(pair, sides, strict=True)]
        for pair in data["train"]
    ]
    # A source has one end mark more than its symbols, a target one start mark more.
    every = [of_pair(model.config, len(source) + 1, len(target) + 1) for source, target in pairs]
    epochs = options["steps"] / TokenBatches(pairs, options["batch_size"], options["seed"]).count()
    return dict(
        bleu=print_bleu(model, text, data["test"]),
        operations=3 * sum(every) * epochs,
        epochs=epochs,
        words=sum(len(source) + len(target) + 2 for source, target in pairs) / len(pairs) / 2,
        parameters=sum(x.size for x in model.named_parameters().values()),
    )


def measure() -> dict:
    runs = {task: {name: train(name, task) for name in FAMILIES} for task in TASKS}
    return {"families": runs, "translator": of_translator()}
