"""Lesson 10's measurements on two translators: next words, beams, BLEU, means and ensembles."""

import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file

from lessons.kit import models
from numformer import Ensemble, Trained, inference, load
from numformer.data.batching import PairBatch, pad_sources
from numformer.data.vocabulary import END
from numformer.generation import greedy, log_probabilities, n_best
from numformer.layer import pack
from numformer.paper.beam import Beam
from numformer.training.average import average
from toy_tasks.data.datasets import multi30k
from toy_tasks.data.parallel_corpus import read_corpus
from toy_tasks.measures.bleu import import_sacrebleu

MODELS = ["translator", "averaged"]
SHOWN = 10  # words that have a bar each
SOURCE = "A small brown dog is chasing a ball across the wet grass."
PLACES = {"sure": 3, "torn": 8, "open": 11}  # how much of the translation is written
TREES = {
    "couple": "A couple is dancing in an empty parking lot at night.",
    "children": "Three children are building a castle out of sand on the beach.",
}
WIDTHS, ALPHAS, LONGEST = (1, 2, 4), (0.0, 0.6, 2.0), 24
BEAMS = (1, 2, 4, 8, 16, 32)
SENTENCES, FEW = 1000, 250  # of the test set: all, and some for what takes long


def shown(symbol: str) -> str:
    """A subword as a reader sees it: one that continues a word begins with a hyphen."""
    return symbol.removeprefix("▁") if symbol.startswith("▁") else f"-{symbol}"


def next_words(trained: Trained) -> dict:
    """How probable each symbol is, at some places of the greedy translation of SOURCE.

    `below` says by how many thousandths the log probability of each symbol lies below the largest,
    the most probable symbol first.
    """
    text, results = trained.text, {}
    source = pad_sources([text.source.encode(text.symbols(SOURCE))])
    (written,) = greedy(trained.model, source, LONGEST)
    for place, length in PLACES.items():
        with inference():
            state = trained.model.start(source, LONGEST)
            ids = state.ids
            for symbol in [*written[:length], None]:
                (log_p,) = log_probabilities(trained.model.step(ids, state))
                ids = np.array([symbol])
        order = np.argsort(-log_p, kind="stable")[:-3]  # without padding, start and unknown
        below = np.minimum(1000 * (log_p[order[0]] - log_p[order]), 65535).round()
        results[place] = {
            "written": [shown(symbol) for symbol in text.target.decode(written[:length])],
            "words": named(text, order[:SHOWN]),
            "below": base64.b64encode(below.astype("<u2").tobytes()).decode(),
        }
    return results


def named(text, ids) -> list[str]:
    """Symbols as a reader sees them, the end id too."""
    return ["⊣" if n == END else shown(*text.target.decode([n])) for n in map(int, ids)]


def tree(trained: Trained, sentence: str, width: int) -> dict:
    """The steps of a beam of this width, noted while the library's own lines run.

    For each step: the symbols, log probabilities and parents of the hypotheses that go on, best
    first, and the parent and log probability of each that ended. `stops` has the number of steps
    for each alpha.
    """
    text, extend, results = trained.text, Beam.extend, {"stops": []}
    source = pad_sources([text.source.encode(text.symbols(sentence))])
    for alpha in ALPHAS:
        steps: list[dict] = []

        def noted(self, symbols, log_p, steps=steps):
            before = [*map(tuple, self.written[0].tolist())]
            parents, ended = extend(self, symbols, log_p)
            steps.append(
                {
                    "words": named(text, self.written[0, :, -1]),
                    "log_p": self.log_p[0].round(4).tolist(),
                    "parents": parents[0].tolist(),
                    "ended": [(before.index((*ids,)), round(p, 4)) for _, p, ids in ended],
                }
            )
            return parents, ended

        with patch.object(Beam, "extend", noted):
            n_best(trained.model, source, LONGEST, 1, width, alpha)
        results["stops"].append(len(steps))
        if len(steps) == max(results["stops"]):
            results["steps"] = steps
    return results


def corpus(folder: Path) -> dict:
    """The data that a run was trained on."""
    options = json.loads((folder / "config.json").read_text(encoding="utf-8"))["options"]
    return read_corpus(Path(options["data"] or multi30k()), tuple(options["languages"]))


def bleu(trained: Trained, pairs: list, written: list) -> tuple[float, float]:
    """BLEU of the written symbols, and their length divided by that of people's translations."""
    texts = [trained.text.target.join(symbols) for symbols in written]
    score = import_sacrebleu().BLEU(tokenize="none", force=True)
    results = score.corpus_score(texts, [[reference for _, reference in pairs]])
    return round(results.score, 2), round(results.sys_len / results.ref_len, 3)


def found(trained: Trained, pairs: list, beam: int, alpha: float) -> list[tuple[float, list[str]]]:
    """The best translation that a beam finds for each source, with its score."""
    asked = [trained.text.source.split(source) for source, _ in pairs]
    how = dict(beam=beam, length_penalty=alpha, penalty="paper")
    return [best for (best,) in trained.text.n_best(trained.model, asked, 1, **how)]


def by_beam(trained: Trained, pairs: list, beams: Sequence[int] = BEAMS) -> list[dict]:
    """For each width: the mean log probability found, and with each penalty BLEU and length."""
    rows = []
    for width in beams:
        begun = time.process_time()
        plain = found(trained, pairs, width, 0.0)
        seconds = time.process_time() - begun
        paper = found(trained, pairs, width, 0.6)
        rows.append(
            {
                "beam": width,
                "seconds": round(seconds, 2),
                "log_p": round(float(np.mean([score for score, _ in plain])), 3),
                "none": bleu(trained, pairs, [symbols for _, symbols in plain]),
                "paper": bleu(trained, pairs, [symbols for _, symbols in paper]),
            }
        )
    return rows


def perplexity(model, text, pairs: list) -> float:
    """e to the mean loss of a symbol, without smoothing; an ensemble's by its mean probability."""
    sides = [[text.source.encode(text.source.split(side)) for side in pair] for pair in pairs]
    total = count = 0
    for start in range(0, len(sides), 64):
        batch = PairBatch.of(sides[start : start + 64])
        with inference():
            state = model.start(batch.source, batch.target_in.shape[1])
            for t in range(batch.target_in.shape[1]):
                log_p = log_probabilities(model.step(batch.target_in[:, t], state))
                valid = batch.target_in[:, t] != 0
                total -= log_p[valid, batch.target_out[valid, t]].sum()
                count += valid.sum()
    return round(float(np.exp(total / count)), 3)


def together(data: dict) -> dict:
    """Single checkpoints of a run, their mean, all of them as an ensemble, and two models."""
    folder = models.folder("averaged")
    best, other = models.model("averaged"), models.model("translator")
    saved = load_file(folder / "last.safetensors")["recent"]
    singles, states = [], []
    for vector in saved:
        single = load(folder)
        pack(single.model).data[...] = vector
        singles.append(single.model)
        states.append(single.model.state_dict())
    mean = load(folder)
    mean.model.load_state_dict(average(states))
    both, mixed = Ensemble([mean.model, other.model]), load(folder)
    mixed.model.load_state_dict(average([model.state_dict() for model in both.models]))
    writers = {f"checkpoint {n}": model for n, model in enumerate(singles, 1)}
    writers |= {"their mean": mean.model, "all five, as an ensemble": Ensemble(singles)}
    writers |= {"the other translator": other.model, "the mean and the other": both}
    writers |= {"weights of both, averaged": mixed.model}
    results, pairs = {}, data["test"][:FEW]
    for name, model in writers.items():
        trained = Trained(model, best.text, {})
        written = [symbols for _, symbols in found(trained, pairs, 4, 0.6)]
        score, _ = bleu(trained, pairs, written)
        results[name] = {"perplexity": perplexity(model, best.text, data["val"]), "bleu": score}
    return results


def measure() -> dict:
    """All measurements that the lesson shows, by name."""
    trained = models.model("translator")
    data = corpus(models.folder("translator"))
    pairs = data["test"][:SENTENCES]
    return {
        "next": next_words(trained),
        "trees": {n: {w: tree(trained, s, w) for w in WIDTHS} for n, s in TREES.items()},
        "beams": by_beam(trained, pairs),
        "together": together(data),
    }
