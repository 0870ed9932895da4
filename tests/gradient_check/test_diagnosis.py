"""For each mistake in the readers' table the failed check names the right cause, and no other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from strangers import Dense, Glu, HalfSquare

from numformer.backend import dropout_stream
from numformer.gradient_check.cases import SOURCE, SOURCE_MASK, TARGET_IN, TARGET_MASK, TARGET_OUT
from numformer.gradient_check.diagnosis import diagnose
from numformer.gradient_check.gradients import GradientCheck, check
from numformer.gradient_check.symptoms import Evidence, explain
from numformer.layer import Layer, Parameter
from numformer.layers.activation import ReLU
from numformer.layers.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
    merge_heads,
    split_heads,
)
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.residual import Residual
from numformer.layers.softmax import Softmax, softmax
from numformer.models import Config, Transformer

B, S, T, D, H, V = 3, 5, 4, 8, 2, 11
RNG = np.random.default_rng(7)
X, MEMORY = RNG.standard_normal((B, T, D)), RNG.standard_normal((B, S, D))
SCORES = RNG.standard_normal((B, H, T, S))
HEADS = [RNG.standard_normal((B, H, n, 3)) for n in (T, S, S)]
LOGITS = RNG.standard_normal((B, T, V))
IDS = np.array([[4, 9, 4, 2], [4, 1, 1, 0]])


def wrong(base: type[Layer], backward: Callable) -> type[Layer]:
    """`base` with the result of backward(layer, right, dy), where `right` is the right backward."""

    class Wrong(base):
        def backward(self, dy):
            return backward(self, super().backward, dy)

    return Wrong


def wrong_parameter(base: type[Layer], name: str, change: Callable) -> type[Layer]:
    """`base`, which adds change(gradient) to the parameter `name`."""

    def backward(layer, right, dy):
        parameter = getattr(layer, name)
        before = parameter.grad.copy()
        dx = right(dy)
        parameter.grad[...] = before + change(parameter.grad - before)
        return dx

    return wrong(base, backward)


def without_parameter_gradient(linear, right, dy):
    return dy @ linear.weight.data.T + 0 * linear.pop_saved()["x"]


def swapped(attention, right, dy):
    dquery, dkey, dvalue = right(dy)
    return dquery, dvalue, dkey


def through_weight(linear, right, dy):
    right(dy)
    return dy @ linear.weight.data


def keys_subtracted(attention, right, dy):
    attention.pop_saved()
    dheads = split_heads(attention.output.backward(dy), H)
    dquery, dkey, dvalue = map(merge_heads, attention.attention.backward(dheads))
    dmemory = attention.value.backward(dvalue)
    dmemory -= attention.key.backward(dkey)
    return attention.query.backward(dquery) + dmemory


class Gate(Layer):
    """y = a sigmoid(b), whose backward forgets the a in db."""

    def forward(self, a, b):
        gate = 1 / (1 + np.exp(-b))
        self.save(a=a, gate=gate)
        return a * gate

    def backward(self, dy):
        gate = self.pop_saved()["gate"]
        return dy * gate, dy * gate * (1 - gate)


def skip_forgotten(residual, right, dy):
    dsum = residual.norm.backward(dy)
    return residual.sublayer.backward(residual.dropout.backward(dsum))


class InlineSkip(Layer):
    """y = x + x^3 / 10, whose backward forgets the x."""

    def forward(self, x):
        self.save(x=x)
        return x + x**3 / 10

    def backward(self, dy):
        return dy * 3 * self.pop_saved()["x"] ** 2 / 10


def assigned_ids(embedding, right, dx):
    embedding.weight.grad[embedding.pop_saved()["ids"]] += dx * D**0.5


def only_diagonal(softmax, right, dy):
    return dy * softmax.pop_saved()["weights"]


def sum_over_queries(softmax, right, dy):
    weights = softmax.pop_saved()["weights"]
    return weights * (dy - (dy * weights).sum(axis=-2, keepdims=True))


def norm_backward(formula: Callable) -> type[LayerNorm]:
    """LayerNorm with dx = formula(dx_hat, x_hat, rstd, gamma, mean)."""

    def mean(values):
        return values.mean(axis=-1, keepdims=True)

    def backward(norm, right, dy):
        saved, gamma = norm.saved[-1], norm.gamma.data
        right(dy)
        return formula(dy * gamma, saved["x_hat"], saved["rstd"], gamma, mean)

    return wrong(LayerNorm, backward)


def epsilon_outside(norm, right, dy):
    norm.saved[-1]["rstd"] = 1 / (
        np.sqrt(norm.saved[-1]["rstd"] ** -2 - norm.epsilon) + norm.epsilon
    )
    return right(dy)


def ungated(relu, right, dy):
    relu.pop_saved()
    return dy.copy()


def gated_on_dy(relu, right, dy):
    relu.pop_saved()
    return dy * (dy > 0)


def unmasked_softmax(attention, right, dy):
    saved = attention.saved[-1]
    scores = saved["query"] @ saved["key"].swapaxes(-1, -2) / 3**0.5
    saved["weights"] = saved["dropped"] = softmax(scores)
    return right(dy)


def weights_before_dropout(attention, right, dy):
    attention.saved[-1]["dropped"] = attention.saved[-1]["weights"]
    return right(dy)


def another_draw(dropout, right, dy):
    dropout.pop_saved()
    return dy * dropout_stream.keep(dy.shape, dropout.p_drop, dy)


def without_root(attention, right, dy):
    dquery, dkey, dvalue = right(dy)
    return dquery * 3**0.5, dkey * 3**0.5, dvalue


def heads_mixed(attention, right, dy):
    """(B, H, T, K) is reshaped to (B, T, H K) without changing the order of its axes."""
    attention.pop_saved()
    dheads = split_heads(attention.output.backward(dy), H)
    dquery, dkey, dvalue = attention.attention.backward(dheads)
    dmemory = attention.value.backward(dvalue.reshape(B, S, D))
    dmemory += attention.key.backward(dkey.reshape(B, S, D))
    return attention.query.backward(dquery.reshape(B, T, D)), dmemory


class UnguardedSoftmax(Softmax):
    def forward(self, scores, mask):
        scores = np.where(mask, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
        self.save(weights=weights)
        return weights


def divided_by_weights(softmax, right, dy):
    weights = softmax.saved[-1]["weights"]
    with np.errstate(invalid="ignore"):
        return right(dy) / weights * weights


class Tied(Layer):
    """ids -> logits with one Parameter, whose second gradient is written over the first."""

    def __init__(self):
        self.embedding = Embedding(V, D, RNG)
        self.projection = OutputProjection(self.embedding.weight)

    def forward(self, ids):
        return self.projection.forward(self.embedding.forward(ids))

    def backward(self, dy):
        dx = self.projection.backward(dy)
        self.embedding.weight.grad.fill(0)
        return self.embedding.backward(dx)


class Holding(Linear):
    """A Linear that holds something else besides."""

    def __init__(self, held):
        super().__init__(D, 6, RNG)
        self.held = held


class OneSlot(Dropout):
    """Its mask is an attribute, so a second use of the same object forgets that of the first."""

    def forward(self, x):
        self.keep = self.draw(x.shape, like=x)
        return x * self.keep

    def backward(self, dy):
        return dy * self.keep


class Mistake(NamedTuple):
    name: str
    build: Callable[[], tuple[Layer, list]]
    fails: str  # the tensors whose gradients are wrong; "refused" where no gradient is looked at
    says: str


MISTAKES = [
    Mistake(
        "the sign",
        lambda: (wrong(Linear, lambda layer, right, dy: -right(dy))(D, 6, RNG), [X]),
        "x",
        "the sign is wrong",
    ),
    Mistake(
        "divided by the batch size",
        lambda: (wrong(Softmax, lambda layer, right, dy: right(dy) / len(dy))(), [SCORES]),
        "scores",
        "divided by the batch size",
    ),
    Mistake(
        "bias: the mean over positions, not the sum",
        lambda: (wrong_parameter(Linear, "bias", lambda g: g / (B * T))(D, 6, RNG), [X]),
        "bias",
        "divided by the number of positions",
    ),
    Mistake(
        "loss: not divided by the number of targets",
        lambda: (
            wrong(CrossEntropy, lambda layer, right, dy: right(dy) * (TARGET_OUT > 0).sum())(),
            [LOGITS, TARGET_OUT],
        ),
        "logits",
        "the division by the number of real ids",
    ),
    Mistake(
        "loss: divided by padding too",
        lambda: (
            wrong(CrossEntropy, lambda layer, right, dy: right(dy) * (TARGET_OUT > 0).mean())(),
            [LOGITS, TARGET_OUT],
        ),
        "logits",
        "divided by all ids, padding included",
    ),
    Mistake(
        "a gradient added twice",
        lambda: (wrong_parameter(Linear, "weight", lambda g: 2 * g)(D, 6, RNG), [X]),
        "weight",
        "counted twice, or a factor 1/2 is missing",
    ),
    Mistake(
        "half a squared error: the 1/2 forgotten",
        lambda: (HalfSquare(), [X]),
        "x",
        "counted twice, or a factor 1/2 is missing",
    ),
    Mistake(
        "a gradient never added",
        lambda: (wrong(Linear, without_parameter_gradient)(D, 6, RNG, bias=False), [X]),
        "weight",
        "never accumulated",
    ),
    Mistake(
        "a weight's gradient transposed",
        lambda: (wrong_parameter(Linear, "weight", lambda g: g.T)(D, D, RNG), [X]),
        "weight",
        "the gradient is transposed",
    ),
    Mistake(
        "dx through W instead of W.T, W square",
        lambda: (wrong(Linear, through_weight)(D, D, RNG), [X]),
        "x",
        "exactly the gradient for `weight` transposed",
    ),
    Mistake(
        "dz @ W for dz @ W.T, W square, before a sigmoid",
        lambda: (Dense(through=lambda dz, kernel: dz @ kernel), [X]),
        "x",
        "exactly the gradient for `kernel` transposed",
    ),
    Mistake(
        "bias: the sum over a wrong axis of the same size",
        lambda: (Dense(T, summed=lambda dz: dz.sum(axis=(0, 2))), [X]),
        "offset",
        "is summed over the wrong axes",
    ),
    Mistake(
        "sigmoid: a wrong derivative, as s * s",
        lambda: (Dense(6, slope=lambda z, s: s * s), [X]),
        "x kernel offset",
        "the derivative of sigmoid is s * (1 - s)",
    ),
    Mistake(
        "two results of backward swapped",
        lambda: (wrong(ScaledDotProductAttention, swapped)(), HEADS),
        "key value",
        "two results of backward are swapped",
    ),
    Mistake(
        "`=` for `+=` between two uses of a weight",
        lambda: (Tied(), [IDS]),
        "refused",
        "Write parameter.grad += ...",
    ),
    Mistake(
        "self-attention: only the queries' share of dx",
        lambda: (
            wrong(SelfAttention, lambda layer, _, dy: MultiHeadAttention.backward(layer, dy)[0])(
                D, H, RNG
            ),
            [X, TARGET_MASK],
        ),
        "x",
        "add: that of `key` is missing, that of `value` is missing",
    ),
    Mistake(
        "self-attention: the keys' share subtracted",
        lambda: (wrong(SelfAttention, keys_subtracted)(D, H, RNG), [X, TARGET_MASK]),
        "x",
        "that of `key` has the wrong sign",
    ),
    Mistake(
        "residual: the skip connection forgotten",
        lambda: (wrong(Residual, skip_forgotten)(FeedForward(D, 12, RNG), D, 0.3), [X]),
        "x",
        "add: that of the skip connection (all else) is missing",
    ),
    Mistake(
        "x + f(x) in one layer: the x forgotten",
        lambda: (InlineSkip(), [X]),
        "x",
        "exactly the upstream gradient is missing",
    ),
    Mistake(
        "embedding: grad[ids] += dx",
        lambda: (wrong(Embedding, assigned_ids)(V, D, RNG), [IDS]),
        "weight",
        "wrong only in rows whose ids occur more than once",
    ),
    Mistake(
        "embedding: the factor √d_model forgotten",
        lambda: (wrong_parameter(Embedding, "weight", lambda g: g / D**0.5)(V, D, RNG), [IDS]),
        "weight",
        "sqrt(d_model) of the embedding is missing",
    ),
    Mistake(
        "attention: the factor 1/√d_k forgotten",
        lambda: (wrong(ScaledDotProductAttention, without_root)(), HEADS),
        "query key",
        "1 / sqrt(d_k) of the scores is missing",
    ),
    Mistake(
        "softmax: only the diagonal of the Jacobian",
        lambda: (wrong(Softmax, only_diagonal)(), [SCORES, SOURCE_MASK]),
        "scores",
        "softmax's sum is missing",
    ),
    Mistake(
        "softmax: the sum over a wrong axis",
        lambda: (wrong(Softmax, sum_over_queries)(), [SCORES, SOURCE_MASK]),
        "scores",
        "runs over axis 2 instead of the last",
    ),
    Mistake(
        "attention: scores masked in forward only",
        lambda: (wrong(ScaledDotProductAttention, unmasked_softmax)(), [*HEADS, SOURCE_MASK]),
        "query key value",
        "masked positions take part in backward",
    ),
    Mistake(
        "attention: dV through the weights before dropout",
        lambda: (wrong(ScaledDotProductAttention, weights_before_dropout)(0.3), HEADS),
        "value",
        "exactly the gradient without dropout",
    ),
    Mistake(
        "attention: heads merged by reshape alone",
        lambda: (wrong(MultiHeadAttention, heads_mixed)(D, H, RNG), [X, MEMORY]),
        "x memory query.weight key.weight value.weight",
        "the right numbers at wrong places",
    ),
    Mistake(
        "LayerNorm: mean(dx_hat) forgotten",
        lambda: (
            norm_backward(lambda d, x_hat, r, gamma, mean: r * (d - x_hat * mean(d * x_hat)))(D),
            [X],
        ),
        "x",
        "a mean over each row is missing",
    ),
    Mistake(
        "LayerNorm: the term along x_hat forgotten",
        lambda: (norm_backward(lambda d, x_hat, r, gamma, mean: r * (d - mean(d)))(D), [X]),
        "x",
        "off by a multiple of `x_hat`",
    ),
    Mistake(
        "LayerNorm: mean and variance as constants",
        lambda: (norm_backward(lambda d, x_hat, r, gamma, mean: r * d)(D), [X]),
        "x",
        "mean and variance are treated as constants",
    ),
    Mistake(
        "LayerNorm: dx without gamma",
        lambda: (
            norm_backward(
                lambda d, x_hat, r, gamma, mean: (
                    r * (d / gamma - mean(d / gamma) - x_hat * mean(d / gamma * x_hat))
                )
            )(D),
            [X],
        ),
        "x",
        "backward leaves out `gamma`",
    ),
    Mistake(
        "LayerNorm: gamma after the means",
        lambda: (
            norm_backward(
                lambda d, x_hat, r, gamma, mean: (
                    gamma * r * (d / gamma - mean(d / gamma) - x_hat * mean(d / gamma * x_hat))
                )
            )(D),
            [X],
        ),
        "x",
        "multiply dy by `gamma` first",
    ),
    Mistake(
        "LayerNorm: rstd forgotten",
        lambda: (
            norm_backward(lambda d, x_hat, r, gamma, mean: d - mean(d) - x_hat * mean(d * x_hat))(
                D
            ),
            [X],
        ),
        "x",
        "`rstd` is missing",
    ),
    Mistake(
        "LayerNorm: epsilon outside the root",
        lambda: (wrong(LayerNorm, epsilon_outside)(D, epsilon=1e-2), [3 + 0.1 * X]),
        "x",
        "epsilon outside the root",
    ),
    Mistake(
        "ReLU: not gated",
        lambda: (wrong(ReLU, ungated)(), [X]),
        "x",
        "forward's `positive` is not applied",
    ),
    Mistake(
        "ReLU: gated on dy instead of x",
        lambda: (wrong(ReLU, gated_on_dy)(), [X]),
        "x",
        "gated on the upstream gradient",
    ),
    Mistake(
        "a gate: db without the factor a",
        lambda: (Gate(), [X, MEMORY[:, :T]]),
        "b",
        "the factor `a` is missing",
    ),
    Mistake(
        "a gate a(x) * b(x): dx through a alone",
        lambda: (Glu(), [X]),
        "x",
        "a branch is left out",
    ),
    Mistake(
        "dropout: not masked",
        lambda: (
            wrong(Dropout, lambda layer, _, dy: dy * layer.pop_saved()["keep"].max())(0.3),
            [X],
        ),
        "x",
        "forward's `keep` is not applied",
    ),
    Mistake(
        "dropout: the mask of another sequence",
        lambda: (
            wrong(Dropout, lambda layer, _, dy: dy * layer.pop_saved()["keep"][::-1])(0.3),
            [X],
        ),
        "x",
        "not the `keep` that forward applied",
    ),
    Mistake(
        "dropout: the scale forgotten",
        lambda: (
            wrong(Dropout, lambda layer, _, dy: dy * (layer.pop_saved()["keep"] > 0))(0.3),
            [X],
        ),
        "x",
        "dropout's scale is missing",
    ),
    Mistake(
        "dropout: the scale applied twice",
        lambda: (wrong(Dropout, lambda layer, right, dy: right(dy) / 0.7)(0.3), [X]),
        "x",
        "dropout's scale is applied twice",
    ),
    Mistake(
        "one object used twice, its mask in an attribute",
        lambda: (OneSlot(0.3), [X]),
        "refused",
        "not in an attribute, and not drawn anew",
    ),
    Mistake(
        "dropout: a new mask drawn in backward",
        lambda: (wrong(Dropout, another_draw)(0.3), [X]),
        "refused",
        "not in an attribute, and not drawn anew",
    ),
    Mistake(
        "a layer in a dict, or in a list within a list",
        lambda: (Holding({"a": Linear(D, 6, RNG)}), [X]),
        "refused",
        "layers and Parameters are attributes, or items of a list or tuple",
    ),
    Mistake(
        "a weight in a plain array",
        lambda: (Holding(RNG.standard_normal((D, D))), [X]),
        "refused",
        "weights are kept in Parameters",
    ),
    Mistake(
        "a row with every key masked, softmax unguarded",
        lambda: (UnguardedSoftmax(), [SCORES, SOURCE_MASK]),
        "scores",
        "forward itself gives NaN",
    ),
    Mistake(
        "backward divides by a weight of 0",
        lambda: (wrong(Softmax, divided_by_weights)(), [SCORES, SOURCE_MASK]),
        "scores",
        "NaN or infinity in backward",
    ),
]


def reports(mistake: Mistake) -> tuple[str, list[str]]:
    """The names of the tensors that fail, and what is said of each."""
    layer, inputs = mistake.build()
    try:
        failed = [row for row in check(layer, inputs, directions=1) if not row.passed]
    except ValueError as problem:
        return "refused", [str(problem)]
    return " ".join(row.name for row in failed), [row.meaning for row in failed]


@pytest.fixture(scope="module")
def said():
    return {mistake.name: reports(mistake) for mistake in MISTAKES}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_check_names_the_cause_and_no_other(mistake, said):
    failed, messages = said[mistake.name]
    assert failed == mistake.fails, messages
    assert all(mistake.says in message for message in messages), messages
    for other in MISTAKES:
        if other.says != mistake.says:
            assert not any(other.says in message for message in messages), messages


def test_the_table_for_readers_is_the_one_tested():
    """Each row of lessons/equations.md ends with its mistake's words of the check."""
    page = Path(__file__).parents[2] / "lessons" / "equations.md"
    _, section = page.read_text().split("## When the check fails")
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    table = [(row[0].strip(), row[-1].strip()) for row in rows if row[0].strip() != "mistake"]
    assert table == [(mistake.name, mistake.says) for mistake in MISTAKES]
    assert len(table) >= 20


NEARBY = "decoder.layers.0.feed_forward.sublayer.outer.weight"
AFTER = "decoder.layers.1.feed_forward.norm.gamma"


def test_a_mistake_deep_in_a_model_is_found_where_it_is():
    """Everything that the gradient passes afterwards is wrong too, and says the same."""
    config = Config(source_vocabulary=V, target_vocabulary=V, d_model=D, d_ff=12, heads=H, layers=2)
    model = Transformer(config, 0)
    model.decoder.layers[0].feed_forward.norm = wrong(
        LayerNorm, lambda norm, right, dy: -right(dy)
    )(D)
    checked = GradientCheck(model, [SOURCE, TARGET_IN])
    rows = [checked.row(name, directions=1) for name in ("source.embedding.weight", NEARBY, AFTER)]
    place = "`decoder.layers.0.feed_forward.norm` (Wrong) is wrong by itself, in x"
    assert [place in row.meaning for row in rows] == [True, True, False]
    assert "the sign is wrong" in rows[0].meaning and rows[2].passed


class Gain(Layer):
    """y = gain x, whose backward gives `times` the gradient of gain."""

    def __init__(self, times):
        self.gain, self.times = Parameter(np.ones(D)), times

    def forward(self, x):
        self.save(x=x)
        return x * self.gain.data

    def backward(self, dy):
        self.gain.grad += self.times * (dy * self.pop_saved()["x"]).sum(axis=(0, 1))
        return dy * self.gain.data


class Chain(Layer):
    def __init__(self, *parts):
        self.parts = parts

    def forward(self, x):
        for part in self.parts:
            x = part.forward(x)
        return x

    def backward(self, dy):
        for part in reversed(self.parts):
            dy = part.backward(dy)
        return dy


def test_a_wrong_gradient_of_a_parameter_explains_that_parameter_alone():
    layer = Chain(Gain(-1), Chain(Gain(2), Gain(1)))
    failed = {row.name: row.meaning for row in check(layer, [X]) if not row.passed}
    assert failed == {
        "parts.0.gain": "`parts.0` (Gain) is wrong by itself, in gain: constant ratio -1: the sign "
        "is wrong.",
        "parts.1.parts.0.gain": "`parts.1.parts.0` (Gain) is wrong by itself, in gain: constant "
        "ratio 2: counted twice, or a factor 1/2 is missing, or 2 one too many.",
    }


def test_a_layer_that_returns_two_arrays_is_not_blamed():
    class Halves(Layer):
        def forward(self, x):
            return x[..., :4].copy(), x[..., 4:].copy()

        def backward(self, dy):
            return np.concatenate(dy, axis=-1)

    class Product(Layer):
        """The product of both halves, whose dx has the wrong sign."""

        def __init__(self):
            self.halves = Halves()

        def forward(self, x):
            a, b = self.halves.forward(x)
            self.save(a=a, b=b)
            return a * b

        def backward(self, dy):
            a, b = self.pop_saved().values()
            return -self.halves.backward((dy * b, dy * a))

    (row,) = check(Product(), [X])
    assert row.meaning == "constant ratio -1: the sign is wrong."


def test_of_two_square_weights_the_transposed_one_is_named():
    class TwoWeights(Layer):
        """y = x V W in one layer, whose backward has W for W^T."""

        def __init__(self):
            self.first, self.second = (Parameter(RNG.standard_normal((D, D))) for _ in range(2))

        def forward(self, x):
            self.save(x=x, h=x @ self.first.data)
            return x @ self.first.data @ self.second.data

        def backward(self, dy):
            x, h = (value.reshape(-1, D) for value in self.pop_saved().values())
            self.second.grad += h.T @ dy.reshape(-1, D)
            self.first.grad += x.T @ (dy @ self.second.data.T).reshape(-1, D)
            return dy @ self.second.data @ self.first.data.T

    row, *others = check(TwoWeights(), [X])
    assert "exactly the gradient for `second` transposed" in row.meaning
    assert all(other.passed for other in others)


def test_a_gradient_like_a_right_one_lacks_a_factor():
    """dgamma = sum(dy), which is dbeta, and dbeta is right: nothing is swapped."""

    def without_x_hat(norm, right, dy):
        norm.gamma.grad += dy.sum(axis=(0, 1))
        before = norm.gamma.grad.copy()
        dx = right(dy)
        norm.gamma.grad[...] = before
        return dx

    rows = check(wrong(LayerNorm, without_x_hat)(D), [X])
    assert [(row.name, row.meaning) for row in rows if not row.passed] == [
        (
            "gamma",
            "this is the gradient of `beta`: a factor that forward multiplies with is missing.",
        )
    ]


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        (lambda d, x_hat, r, _, mean: r * (d + mean(d) - x_hat * mean(d * x_hat)), "a mean over"),
        (lambda d, x_hat, r, _, mean: r * (d - mean(d) + x_hat * mean(d * x_hat)), "along it is"),
        (lambda d, x_hat, r, _, mean: r * (d + mean(d) + x_hat * mean(d * x_hat)), "their terms"),
    ],
    ids=["mean", "x_hat", "both"],
)
def test_a_term_with_another_sign_is_not_said_to_be_missing_alone(formula, says):
    (row,) = (row for row in check(norm_backward(formula)(D), [X]) if not row.passed)
    assert says in row.meaning and " another sign or factor" in row.meaning


class MeanAt(Layer):
    """The mean over positions divided by a temperature, its dx times `factor`."""

    def __init__(self, factor):
        self.temperature, self.factor = Parameter(np.full(1, 2.5)), factor

    def forward(self, x):
        self.save(x=x)
        return x.mean(axis=1) / self.temperature.data

    def backward(self, dy):
        x, t = self.pop_saved()["x"], self.temperature.data
        self.temperature.grad -= (dy * x.mean(axis=1)).sum() / t**2
        return np.repeat(dy[:, None], x.shape[1], axis=1) / x.shape[1] / t * self.factor(t)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (lambda t: T, "4, the size of axis 1 of x: a mean's 1/4 is missing"),
        (lambda t: 1 / T, "1/4, the size of axis 1 of x: a sum is divided like a mean"),
        (lambda t: t, "the factor 1 / `temperature` is missing"),
        (lambda t: 1 / t, "1 / `temperature` is one too many"),
    ],
    ids=["size", "1/size", "scalar", "1/scalar"],
)
def test_sizes_of_axes_and_scalar_parameters_are_known_factors(factor, says):
    rows = {row.name: row for row in check(MeanAt(factor), [X])}
    assert says in rows["x"].meaning and rows["temperature"].passed


def test_two_gradients_swapped_on_their_way_are_named():
    def keys_for_values(attention, right, dy):
        attention.pop_saved()
        dheads = split_heads(attention.output.backward(dy), H)
        dquery, dkey, dvalue = map(merge_heads, attention.attention.backward(dheads))
        dmemory = attention.value.backward(dkey) + attention.key.backward(dvalue)
        return attention.query.backward(dquery), dmemory

    rows = check(wrong(MultiHeadAttention, keys_for_values)(D, H, RNG), [X, MEMORY])
    expected = (
        "the gradient that reaches `value` is wrong already: this is the gradient of `key`: two "
        "results of backward are swapped."
    )
    assert [row.name for row in rows if row.meaning == expected] == [
        "memory",
        "key.weight",
        "value.weight",
    ]


def test_a_layer_that_breaks_a_rule_is_named():
    class Copying(Linear):
        """Its dx has one row too many; the layer around it cuts it off."""

        def backward(self, dy):
            return np.concatenate([dx := super().backward(dy), dx])

    class Cutting(Layer):
        def __init__(self):
            self.inner = Copying(D, 6, RNG)

        def forward(self, x):
            return self.inner.forward(x)

        def backward(self, dy):
            return 2 * self.inner.backward(dy)[: len(dy)]

    (row, *_) = check(Cutting(), [X])
    assert "`inner` (Copying) is wrong by itself: a gradient has the shape" in row.meaning


def test_a_ratio_of_two_meanings_names_both():
    """With a batch of 2, half of a gradient may be 1/B or one of two uses."""
    layer = wrong(Softmax, lambda layer, right, dy: right(dy) / 2)()
    (row,) = check(layer, [SCORES[:2]])
    assert "divided by the batch size" in row.meaning and "used twice" in row.meaning


def test_a_layer_that_refuses_to_be_run_again_still_gets_its_report():
    """What backward did wrong must be printed, even where nothing more can be found out."""

    class Once(Linear):
        refuses = False

        def forward(self, x):
            if self.refuses:
                raise RuntimeError("no more")
            return super().forward(x)

    checked = GradientCheck(wrong(Once, lambda layer, right, dy: -right(dy))(D, 6, RNG), [X])
    checked.layer.refuses = True
    assert diagnose(checked, "x").startswith("No known pattern. ")


def test_a_difference_without_a_pattern_gets_advice():
    """A product y = x W whose W has another x: nothing in the numbers tells which."""

    def overwritten(linear, right, dy):
        linear.saved[-1]["x"] = linear.saved[-1]["x"] ** 2
        return right(dy)

    rows = {row.name: row for row in check(wrong(Linear, overwritten)(D, 6, RNG), [X])}
    assert [name for name, row in rows.items() if not row.passed] == ["weight"]
    assert rows["weight"].meaning.startswith("No known pattern. 48 of 48 entries are wrong. ")


@pytest.mark.parametrize("shape", [(60, 40), (2, 3, 500), (900,)], ids=str)
def test_of_a_large_tensor_the_measured_part_is_enough(shape):
    """No row is measured whole where it has more than 400 entries."""
    layer = wrong(ReLU, ungated)()
    (row,) = check(layer, [RNG.standard_normal(shape)])
    assert "only where it should be 0" in row.meaning


def test_the_cause_is_named_on_the_device_too(stand_in):
    for mistake in MISTAKES:
        if mistake.name in (
            "residual: the skip connection forgotten",
            "LayerNorm: dx without gamma",
        ):
            rows = check(*mistake.build(), directions=1, xp=stand_in)
            assert mistake.says in rows[0].meaning


FLOATS = st.floats() | st.integers(-2, 2)


@st.composite
def pairs(draw):
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    gradient = arrays.arrays(np.float64, shape, elements=FLOATS)
    last_is_one = arrays.arrays(
        np.float64, (*shape[:-1], 1)[-max(len(shape), 1) :], elements=FLOATS
    )
    ids = arrays.arrays(np.int64, st.integers(0, 5), elements=st.integers(-1, 9))
    return Evidence(
        explicit=draw(gradient),
        numerical=draw(gradient),
        saved={"weights": draw(gradient), "x_hat": draw(gradient), "rstd": draw(last_is_one)},
        upstream=draw(st.none() | gradient),
        factors={"the sign is wrong": -1.0},
        others={"other": draw(gradient)},
        ids=draw(st.none() | ids),
    )


@given(pairs())
def test_no_arrays_make_the_diagnosis_fail(evidence):
    """Whatever the shapes, 0-d and empty ones included, and whatever the numbers."""
    message = explain(evidence)
    assert message is None or isinstance(message, str)


@given(pairs())
def test_gradients_that_agree_get_no_cause(evidence):
    finite = np.nan_to_num(evidence.numerical, nan=1.0, posinf=2.0, neginf=-2.0).clip(-1e6, 1e6)
    evidence = replace(evidence, explicit=finite + 1e-9 * finite, numerical=finite)
    assert explain(evidence) in (
        None,
        "the entries that were measured agree: look at those behind them.",
    )
