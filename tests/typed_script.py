"""What a user writes, which mypy --strict and pyright find nothing in."""

import numpy as np

from numformer import (
    Adam,
    Array,
    Batch,
    Layer,
    Model,
    PairBatch,
    Parameter,
    Recipe,
    Schedule,
    Transduction,
    Transformer,
    Vocabulary,
    greedy,
    inference,
    load,
    pack,
    pad_sources,
    train,
)
from numformer.gradient_check import check

letters = Vocabulary("abc")


class Scale(Layer):
    def __init__(self, width: int) -> None:
        self.weight = Parameter(np.ones(width))

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return x * self.weight.data

    def backward(self, dy: Array) -> Array:
        x = self.pop_saved()["x"]
        self.weight.grad += (dy * x).sum(axis=0)
        return dy * self.weight.data


class Copy:
    metric, higher_is_better, longest = "exact", True, 4
    text = Transduction(letters, letters, max_length=3)

    def batch(self, step: int) -> Batch:
        return PairBatch.of([([4, 5], [4, 5])])

    def evaluate(self, model: Model) -> dict[str, float]:
        return {"exact": 1.0}

    def description(self) -> dict[str, object]:
        return {"name": "copy"}


config = Transformer.Config.base(vocabulary=len(letters), d_model=8, d_ff=16, heads=2, layers=1)
model = Transformer(config, seed=1)
widths: tuple[int, int | None] = model.config.d_model, config.longest
best = train(model, Copy(), "runs/copy", Schedule(2), Recipe(warmup=2), on_step=print)
print(best["exact"])
trained = load("runs/copy")
print(trained("abc"))
with inference():
    print(greedy(model, pad_sources([[4, 5]]), 3))
objective, optimizer = model.objective(0.1), Adam(pack(model))
batch = PairBatch.of([([4, 5], [4])])
loss = float(objective(*batch.inputs))
objective.backward()
optimizer.step(0.001)
print(loss, check(Scale(3), [np.ones((2, 3))]))
