"""What a user writes, which mypy --strict and pyright find nothing in."""

import numpy as np

import numformer as nf
from numformer import Array, Layer, PairBatch, Recipe, Transformer, train
from numformer.gradient_check import check

letters, RNG = nf.Vocabulary("abc"), np.random.default_rng(0)


class Scale(Layer):
    def __init__(self, width: int) -> None:
        self.weight = nf.Parameter(np.ones(width))

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return x * self.weight.data

    def backward(self, dy: Array) -> Array:
        x = self.pop_saved()["x"]
        self.weight.grad += (dy * x).sum(axis=0)
        return dy * self.weight.data


class Two(Layer):
    """A layer of the library's own."""

    def __init__(self, width: int) -> None:
        self.norm, self.linear = nf.LayerNorm(width), nf.Linear(width, width, RNG)

    def forward(self, x: Array) -> Array:
        return self.linear.forward(self.norm.forward(x))

    def backward(self, dy: Array) -> Array:
        return self.norm.backward(self.linear.backward(dy))


class Copy:
    metric, higher_is_better, longest = "exact", True, 4
    text = nf.Transduction(letters, letters, max_length=3)

    def batch(self, step: int) -> nf.Batch:
        return PairBatch.of([([4, 5], [4, 5])])

    def evaluate(self, model: nf.Model) -> dict[str, float]:
        return {"exact": 1.0}

    def description(self) -> dict[str, object]:
        return {"name": "copy"}


config = Transformer.Config.base(vocabulary=len(letters), d_model=8, d_ff=16, heads=2, layers=1)
model = Transformer(config, seed=1)
widths: tuple[int, int | None] = model.config.d_model, config.longest
best = train(model, Copy(), "runs/copy", nf.Schedule(2), Recipe(warmup=2), on_step=print)
print(best["exact"])
trained = nf.load("runs/copy")
print(trained("abc").upper(), len(trained(["abc"])))
with nf.inference():
    print(nf.greedy(model, nf.pad_sources([[4, 5]]), 3))
objective, optimizer = model.objective(0.1), nf.Adam(nf.pack(model))
batch = PairBatch.of([([4, 5], [4])])
loss = float(objective(*batch.inputs))
objective.backward()
optimizer.step(0.001)
print(loss, check(Scale(3), [np.ones((2, 3))]))
