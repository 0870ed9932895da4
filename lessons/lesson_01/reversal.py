"""Letters reversed through one vector, or with attention: what was measured, and a small pair."""

import functools
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from numformer import Adam, PairBatch, inference, pack
from numformer.models import RecurrentEncoderDecoder
from numformer.training.optimizers import clip_global_norm
from toy_tasks.kit.sequences import Rule, SequenceTask, held_out

# What `python -m toy_tasks.bottleneck` printed: the exact match on unseen sources of 1 to 20 of 26
# letters, the mean of three seeds, and how many parameters they have.
MEASURED = {
    "fixed context": [
        1.000,
        1.000,
        0.999,
        0.999,
        0.996,
        0.991,
        0.944,
        0.884,
        0.771,
        0.560,
        0.432,
        0.260,
        0.137,
        0.064,
        0.039,
        0.009,
        0.001,
        0.000,
        0.000,
        0.000,
    ],
    "attention": [*[1.000] * 16, 0.999, 1.000, 1.000, 1.000],
    "Transformer": [*[1.000] * 3, 0.999, *[1.000] * 15, 0.992],
}
PARAMETERS = 73_984, 74_880  # of the first two

LETTERS, LONGEST, RATE = "abcdefgh", 8, 0.03
KINDS = {
    "fixed context": dict(context="fixed", d_model=16, steps=500),
    "attention": dict(context="attention", d_model=12, steps=250),
}


@dataclass(frozen=True)
class Trained:
    """A model, its task, and the share of unseen sources that it reverses, by length from 1."""

    model: RecurrentEncoderDecoder
    task: SequenceTask
    right: list[float]

    def weights(self, source: str) -> np.ndarray:
        """Where it looks as it writes the reverse: (letters and end, letters and end)."""
        batch = PairBatch.of(self.task.encode([(source, source[::-1])]))
        self.model.forward(batch.source, batch.target_in)
        attention = self.model.decoder.cross_attention
        found = np.concatenate([record["weights"] for record in attention.saved])
        self.model.clear_saved()
        return found


def unseen(length: int) -> list[str]:
    """Up to 200 sources of a length that training never sees."""
    drawn = np.random.default_rng(length).choice([*LETTERS], (2000, length))
    return [*filter(held_out, dict.fromkeys(map("".join, drawn)))][:200]


def random_source(rng: np.random.Generator) -> str:
    return "".join(rng.choice([*LETTERS], rng.integers(1, LONGEST + 1)))


def backwards(source: str) -> str:
    return source[::-1]


@functools.cache
def reversal() -> SequenceTask:
    """The task of both models."""
    rule = Rule("reversal", "", LETTERS, random_source, backwards, 1.0, {})
    return SequenceTask(rule, 32, seed=1)


@functools.cache
def trained(kind: str) -> Trained:
    """Train a model of KINDS; two seconds."""
    context, d_model, steps = KINDS[kind].values()
    task = reversal()
    sizes = dict.fromkeys(["source_vocabulary", "target_vocabulary"], len(task.text.source))
    config = RecurrentEncoderDecoder.Config(**sizes, d_model=d_model, context=context, p_drop=0)
    with threadpool_limits(1, "blas"):
        model = RecurrentEncoderDecoder(config, seed=1)
        objective, parameters = model.objective(label_smoothing=0.0), pack(model)
        adam = Adam(parameters)
        for step in range(steps):
            objective.zero_grad()
            objective.forward(*task.batch(step).inputs)
            objective.backward()
            clip_global_norm(parameters.grad, 1.0)
            adam.step(RATE * min(1, (step + 1) / 50) * (1 - step / steps))
        with inference():
            return Trained(
                model,
                task,
                [
                    float(
                        np.mean(
                            [
                                written == source[::-1]
                                for written, source in zip(
                                    task.written(model, sources), sources, strict=True
                                )
                            ]
                        )
                    )
                    for sources in map(unseen, range(1, LONGEST + 1))
                ],
            )
