"""Measure what lesson 11 shows of trained models, and store the weights that its page runs."""

import base64
import json

import numpy as np
from safetensors.numpy import save
from threadpoolctl import threadpool_limits

from lessons.kit import models
from lessons.lesson_11 import costs, explorer, forming, small, translating
from numformer import Trained
from numformer.layer import Layer
from numformer.layer import pack as packed
from numformer.plots import attention_weights
from numformer.runs.files import write_atomically

MODELS = ["small_translator"]


def half(model: Layer) -> np.ndarray:
    """All weights of a model in float16, as the page stores them."""
    return np.concatenate([p.data.ravel() for p in model.named_parameters().values()]).astype("f2")


def rounding(trained: Trained, pairs) -> float:
    """The largest change of an attention weight by float16, over some pairs of sentences."""
    batch = translating.PairBatch.of(pairs)
    before = attention_weights(trained.model, batch.source, batch.target_in)
    rounded = small.Transformer(trained.model.config)
    packed(rounded).data[...] = half(trained.model)
    after = attention_weights(rounded, batch.source, batch.target_in)
    return max(float(abs(before[name] - after[name]).max()) for name in before)


def rounded(results, digits: int = 4):
    """Nested lists and arrays with rounded numbers, as JSON stores them."""
    if isinstance(results, dict):
        return {name: rounded(value, digits) for name, value in results.items()}
    if isinstance(results, list | tuple):
        return [rounded(value, digits) for value in results]
    if isinstance(results, np.ndarray):
        return np.round(results.astype(float), digits).tolist()
    return round(float(results), digits) if isinstance(results, float | np.floating) else results


def measure() -> dict:
    """All measured numbers; the weights go into a file of their own."""
    trained = models.model(*MODELS)
    data = translating.corpus(models.folder(*MODELS))
    subwords = trained.text.source

    def ids(sentence: str) -> list[int]:
        return subwords.encode(subwords.split(sentence))

    encoded = {split: [tuple(map(ids, pair)) for pair in pairs] for split, pairs in data.items()}
    reversal, reverse = forming.reversal()
    weights = {"translator": half(trained.model), "reverse": half(reverse)}
    write_atomically(small.FILE, save(weights))
    dice = translating.together(encoded["train"], len(subwords))
    tested = encoded["test"][: translating.OF_ROLES]
    results = {
        "pieces": subwords.symbols,
        "sentencepiece": base64.b64encode(subwords.model).decode(),
        "sentences": {sentence: ids(sentence) for sentence in explorer.SENTENCES},
        "bleu": translating.bleu(trained, data["test"]),
        "rounding": rounding(trained, tested[:100]),
        "reversal": reversal,
        "repetition": {str(layers): forming.repetition(layers) for layers in (2, 1)},
        "roles": {
            "translator": translating.roles(trained.model, tested, dice),
            "reverse": forming.of_reverse(reverse),
        },
    }
    with threadpool_limits(1, "blas"):
        results["costs"] = costs.measured()
        results["pruned"] = translating.pruned(trained, data, encoded)
    return json.loads(json.dumps(rounded(results)))
