"""The paper's recipe on the small language of lesson 7, and parts of it changed or left out."""

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.models import measured
from lessons.lesson_07.toy import KNOWN, NEW, WORDS, batch, translations, writes
from numformer import Adam, CrossEntropy, Transformer, pack
from numformer.layer import inference
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import warmup_rate
from numformer.paper.softmax import softmax
from numformer.randomness import dropout_stream

STEPS, EVERY, WARMUP, PEAK, SENTENCES, SEEDS = 200, 10, 50, 0.005, 16, (1, 2, 3)
MANY, FEW = 100, 25  # sentences to train on
RECIPE = {"warmup": WARMUP, "beta2": 0.98, "smoothing": 0.1, "p_drop": 0.1, "clip": None}
CHANGES: dict[str, dict] = {
    "the recipe": {},
    "no warm-up": {"warmup": 1},
    "β₂ = 0.999": {"beta2": 0.999},
    "no smoothing": {"smoothing": 0.0},
    "no dropout": {"p_drop": 0.0},
    "clipped at 1": {"clip": 1.0},
    "no warm-up, clipped": {"warmup": 1, "clip": 1.0},
}


@dataclass(frozen=True)
class Run:
    """The results of a run; losses are without smoothing, so that they can be compared.

    `losses` (STEPS / EVERY,) are means over EVERY steps. `clipped` is the share of the steps whose
    gradient is longer than 1, `shortest` the length of the shortest gradient. `held_out` is the
    loss of new sentences, `right` the share of them that is translated correctly, and `sure` the
    mean probability of the model's likeliest word.
    """

    losses: list[float]
    clipped: float
    shortest: float
    held_out: float
    right: float
    sure: float


def trained(name: str, sentences: int = MANY) -> list[Run]:
    """The stored runs with one of CHANGES, a run for each of SEEDS."""
    return [Run(**run) for run in measured(8)["runs"][f"{name}, {sentences} sentences"]]


def train(name: str, seed: int, sentences: int = MANY, stop: int = STEPS) -> Run:
    """Train to the step `stop` with one of CHANGES.

    Runs of one seed read the same sentences in the same order.
    """
    how = RECIPE | CHANGES[name]
    config = Transformer.Config.base(
        len(WORDS), d_model=32, d_ff=64, heads=2, layers=3, p_drop=how["p_drop"]
    )
    model, plain, losses, norms = Transformer(config, seed), CrossEntropy(), [], []
    loss, parameters = CrossEntropy(how["smoothing"]), pack(model)
    adam, rng = Adam(parameters, beta2=how["beta2"]), np.random.default_rng(seed)
    schedule = {"d_model": 1, "warmup": how["warmup"], "factor": PEAK * how["warmup"] ** 0.5}
    with threadpool_limits(1, "blas"):
        for step in range(1, stop + 1):
            dropout_stream.reseed(seed, step, 0)
            pairs = batch(rng.choice(KNOWN[:sentences], SENTENCES), rng)
            model.zero_grad()
            logits, targets = model.predictions(*pairs)
            loss.forward(logits, targets)
            with inference():
                losses.append(float(plain.forward(logits, targets)))
            model.backward(loss.backward())
            norms.append(float(clip_global_norm(parameters.grad, how["clip"])))
            adam.step(warmup_rate(step, **schedule))
        with inference():
            logits, targets = model.predictions(*batch(NEW, np.random.default_rng(1)))
            held_out = float(plain.forward(logits, targets))
        written = zip(NEW, writes(model, NEW), strict=True)
        right = np.mean([text in translations(french) for french, text in written])
    means = np.reshape(losses, (-1, EVERY)).mean(axis=1)
    clipped, sure = np.mean(np.array(norms) > 1), softmax(logits).max(axis=-1).mean()
    figures = clipped, min(norms), held_out, right, sure
    return Run([round(float(mean), 4) for mean in means], *(round(float(x), 4) for x in figures))
