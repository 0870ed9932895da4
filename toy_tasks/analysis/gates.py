"""Gates of attention heads: how important a head is, and how to run a model without it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer.data import Batch
from numformer.later import Mixer, attention_weights
from numformer.layer import Array, mode
from numformer.models import Model
from numformer.paper.attention import SelfAttention
from numformer.plots import kind_of
from toy_tasks.analysis.attention_patterns import Lexicon, PatternScores, example_symbols, patterns


@dataclass(frozen=True, eq=False)
class Head:
    """One head of the attention layer `name`; `layer` and `number` count from 1.

    MultiHead(Q, K, V) = sum_h head_h W_h, where W_h (d_v, D) are the rows of W^O that multiply
    head_h (section 3.2.2). So a gate g_h that multiplies head_h can multiply W_h instead.
    """

    kind: str
    layer: int
    number: int
    name: str
    attention: Any

    def __str__(self) -> str:
        tower = self.kind.replace("_attention", "").removeprefix("self")
        return f"{tower} {self.layer}.{self.number}".strip()

    def output_rows(self, array: Array) -> Array:
        """A view of this head's rows of `array`, which is W^O or its gradient."""
        size = len(array) // self.attention.heads
        return array[(self.number - 1) * size : self.number * size]

    @property
    def weight(self) -> Array:
        """W_h (d_v, D)."""
        return self.output_rows(self.attention.output.weight.data)

    def gate_gradient(self) -> float:
        """dL/dg_h at g_h = 1: the output uses g_h W_h, so it is the sum over W_h dL/dW_h."""
        return float((self.weight * self.output_rows(self.attention.output.weight.grad)).sum())


def observable_heads(model: Model, batch: Batch) -> tuple[list[Head], list[str]]:
    """The heads of the layers that save attention weights; names of mixers that save none."""
    with mode(training=False, saving=True):
        model.predictions(*batch.inputs)
    layers = model.named_layers()
    with_heads = [name for name, layer in layers.items() if hasattr(layer, "heads")]
    observable = [name for name in with_heads if attention_weights(layers[name]) is not None]
    model.clear_saved()
    mixers = [name for name, layer in layers.items() if isinstance(layer, Mixer | SelfAttention)]
    heads = [
        Head(kind_of(name), _layer(name), number, name, layers[name])
        for kind in dict.fromkeys(map(kind_of, observable))
        for name in observable
        if kind_of(name) == kind
        for number in range(1, layers[name].heads + 1)
    ]
    return heads, [f"{kind_of(n)}, layer {_layer(n)}" for n in mixers if n not in observable]


def _layer(name: str) -> int:
    return 1 + int(name.partition(".layers.")[2].partition(".")[0])


@contextlib.contextmanager
def without_heads(heads: Sequence[Head]) -> Iterator[None]:
    """Set the gates of these heads to 0 within the block."""
    weights = [head.weight.copy() for head in heads]
    for head in heads:
        head.weight[...] = 0
    try:
        yield
    finally:
        for head, weight in zip(heads, weights, strict=True):
            head.weight[...] = weight


def single_examples(batches: Sequence[Batch]) -> list[Batch]:
    """Each example as a batch of one."""
    return [example for batch in batches for example in batch.split(len(batch.inputs[0]))]


def importances(
    model: Model,
    heads: Sequence[Head],
    examples: Sequence[Batch],
    observe: Callable[[Batch], None] = lambda example: None,
) -> np.ndarray:
    """I_h = E_x |dL(x) / dg_h|: the mean absolute gradient of each gate over single examples.

    (Michel, Levy and Neubig 2019, equation 2: head_h(x)^T dL(x) / dhead_h(x) is that gradient.)
    `observe` is called between forward and backward, while the attention weights are saved.
    """
    objective, total = model.objective(), np.zeros(len(heads))
    with mode(training=False, saving=True):
        for example in examples:
            objective.zero_grad()
            objective.forward(*example.inputs)
            observe(example)
            objective.backward()
            total += [abs(head.gate_gradient()) for head in heads]
    objective.zero_grad()
    return total / len(examples)


class AttentionObserver:
    """Collects what heads look at in each example: their confidence and scores."""

    def __init__(self, model: Model, heads: Sequence[Head], lexicon: Lexicon | None):
        self.model, self.lexicon = model, lexicon
        self.layers = {head.name: head.attention for head in heads}
        self.pattern_scores = {
            name: PatternScores(layer.heads) for name, layer in self.layers.items()
        }
        self.largest = {name: [0.0, 0] for name in self.pattern_scores}

    def __call__(self, example: Batch) -> None:
        special = self.model.config.special
        for name, layer in self.layers.items():
            kind, weights = kind_of(name), attention_weights(layer)[0]
            reads, looks_at, follows = example_symbols(example, kind, special)
            lexicon = self.lexicon if "cross" in kind else None
            rows = special.real(reads[None])[0]
            self.pattern_scores[name].add(
                weights, patterns(reads, looks_at, follows, special, lexicon), rows
            )
            self.largest[name][0] += weights.max(axis=-1)[:, rows].sum(axis=-1)
            self.largest[name][1] += np.count_nonzero(rows)

    def confidence(self, head: Head) -> float:
        """The largest weight of each query, averaged over all queries (Voita et al. 2019)."""
        largest, places = self.largest[head.name]
        return float(largest[head.number - 1] / places)

    def scores(self, head: Head) -> list:
        return self.pattern_scores[head.name].scores(head.number - 1)
