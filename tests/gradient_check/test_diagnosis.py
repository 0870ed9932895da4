"""For each mistake in the readers' table a failed check names the right cause, and no other."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from user_layers import Chain, Dense, Formula, WithAttributes, logistic

import numformer as nf
from lessons.lesson_09.wrong_lines import WRONG_LINES, WrongLines, table_words
from numformer.gradient_check.cases import IDS as CASE_IDS
from numformer.gradient_check.cases import InputGenerator
from numformer.gradient_check.diagnosis import diagnose
from numformer.gradient_check.gradients import GradientCheck, check
from numformer.gradient_check.trace import TracedArray
from numformer.paper.attention import merge_heads, split_heads
from numformer.paper.softmax import softmax
from numformer.randomness import dropout_stream

B, S, T, D, H, V = 2, 5, 4, 8, 2, 11
RNG = np.random.default_rng(7)
X, MEMORY = RNG.standard_normal((B, T, D)), RNG.standard_normal((B, S, D))
SCORES = RNG.standard_normal((B, H, T, S))
HEADS = [RNG.standard_normal((B, H, n, 3)) for n in (T, S, S)]
LOGITS = RNG.standard_normal((B, T, V))
IDS = np.array([[4, 9, 4, 2], [4, 1, 1, 0]])
LEFT, RIGHT = RNG.standard_normal((2, D, 5))
GENERATOR = InputGenerator(RNG, **{name: ids[-B:] for name, ids in CASE_IDS.items()})
REAL = GENERATOR.target_out > 0


def with_backward(layer: nf.Layer, backward: Callable) -> nf.Layer:
    """`layer` with the result of backward(layer, right, dy), where `right` is its backward."""
    base = type(layer)

    class Wrong(base):
        def backward(self, dy):
            return backward(self, super().backward, dy)

    layer.__class__ = Wrong
    return layer


def with_factor(factor: float, layer: nf.Layer) -> nf.Layer:
    return with_backward(layer, lambda layer, right, dy: right(dy) * factor)


def in_parameter(name: str, layer: nf.Layer, change: Callable) -> nf.Layer:
    """`layer`, which adds change(gradient) to the parameter `name`."""

    def backward(layer, right, dy):
        grad = getattr(layer, name).grad
        before = grad.copy()
        dx = right(dy)
        grad[...] = before + change(grad - before)
        return dx

    return with_backward(layer, backward)


def with_saved(layer: nf.Layer, **changes: Callable) -> nf.Layer:
    """`layer`, whose backward finds other saved values, made of those that forward saved."""

    def backward(layer, right, dy):
        saved = layer.saved[-1]
        saved |= {name: change(saved) for name, change in changes.items()}
        return right(dy)

    return with_backward(layer, backward)


def linear(d_out: int = 6) -> nf.Linear:
    return nf.Linear(D, d_out, RNG)


def gradient(change: Callable, name: str = "weight", layer=None) -> tuple:
    return example(in_parameter(name, layer or linear(D), change), name)


def attention(change: Callable) -> nf.Layer:
    """Attention whose backward returns change(dquery, dkey, dvalue)."""
    return with_backward(
        nf.ScaledDotProductAttention(), lambda layer, right, dy: change(*right(dy))
    )


def with_keep(change: Callable) -> nf.Layer:
    return with_saved(nf.Dropout(0.3), keep=lambda saved: change(saved["keep"]))


def without_mask(saved):
    return softmax(saved["query"] @ saved["key"].swapaxes(-1, -2) / 3**0.5)


def mean(values):
    return values.mean(axis=-1, keepdims=True)


def centred(d, x):
    return d - mean(d) - x * mean(d * x)


def norm(formula: Callable) -> nf.Layer:
    """LayerNorm with dx = formula(d, x, r, g) of dx_hat, x_hat, rstd and gamma."""

    def backward(norm, right, dy):
        saved, gamma = norm.saved[-1], norm.gamma.data
        right(dy)
        return formula(dy * gamma, saved["x_hat"], saved["rstd"], gamma)

    return with_backward(nf.LayerNorm(D), backward)


class Remembering(nf.Dropout):
    def forward(self, x):
        self.x, self.y = x, super().forward(x)
        return self.y


def remembering(backward: Callable) -> nf.Layer:
    return with_backward(Remembering(0.3), backward)


def written_over(dropout, right, dy):
    dropout.y *= dy
    return right(dy)


def weight_of_the_first_backward(linear, right, dy):
    right(dy)
    if not hasattr(linear, "turned"):
        linear.turned = linear.weight.data.T.copy()
    return dy @ linear.turned


def head_gradients(attention, dy, merged=merge_heads, parts=("query", "key", "value")) -> tuple:
    """What the parts' backwards make of the gradients of queries, keys, values (B, H, T, K)."""
    attention.pop_saved()
    gradients = attention.attention.backward(split_heads(attention.output.backward(dy), H))
    merged = dict(zip(parts, map(merged, gradients), strict=True))
    return tuple(
        getattr(attention, part).backward(split_heads(dx, H)) for part, dx in merged.items()
    )


def keys_subtracted(attention, right, dy):
    dquery, dkey, dvalue = head_gradients(attention, dy)
    return dquery + dvalue - dkey


def heads_mixed(attention, right, dy):
    """(B, H, T, K) is reshaped to (B, T, H K) without changing the order of its axes."""
    dquery, dkey, dvalue = head_gradients(attention, dy, lambda dx: dx.reshape(B, -1, D))
    return dquery, dvalue + dkey


def sum_over_queries(softmax, right, dy):
    weights = softmax.pop_saved()["weights"]
    return weights * (dy - (dy * weights).sum(axis=-2, keepdims=True))


def gated_on_dy(relu, right, dy):
    relu.saved[-1]["positive"] = dy > 0
    return right(dy)


@np.errstate(invalid="ignore")
def unguarded(scores):
    exponentials = np.exp(np.where(GENERATOR.source_mask, scores, -np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@np.errstate(invalid="ignore")
def divided_by_weights(softmax, right, dy):
    weights = softmax.saved[-1]["weights"]
    return right(dy) / weights * weights


REFUSED = "refused"
GLU = Formula(
    lambda x: (x @ LEFT) * logistic(x @ RIGHT), lambda dy, a: dy * logistic(a @ RIGHT) @ LEFT.T
)
INPUTS = {
    nf.CrossEntropy: [LOGITS, GENERATOR.target_out],
    nf.Embedding: [IDS],
    nf.MultiHeadAttention: [X, MEMORY],
    nf.ScaledDotProductAttention: [*HEADS, GENERATOR.source_mask],
    nf.BiasedAttention: [*HEADS, GENERATOR.source_mask],
    nf.SelfAttention: [X, GENERATOR.target_mask],
    nf.Softmax: [SCORES, GENERATOR.source_mask],
}


def example(layer: nf.Layer, fails: str = "x", *inputs) -> tuple[nf.Layer, str, list]:
    """A layer, the tensors whose gradients are wrong, and inputs."""
    usual = next((INPUTS[kind] for kind in type(layer).__mro__ if kind in INPUTS), [X])
    return layer, fails, [*inputs] or usual


MISTAKES = {
    "the sign": example(with_factor(-1, linear())),
    "divided by the batch size": example(nf.Softmax(), "scores"),
    "bias: the mean over positions, not the sum": example(linear(), "bias"),
    "loss: not divided by the number of targets": example(
        with_factor(REAL.sum(), nf.CrossEntropy()), "logits"
    ),
    "loss: divided by padding too": example(with_factor(REAL.mean(), nf.CrossEntropy()), "logits"),
    "a gradient added twice": gradient(lambda g: 2 * g),
    "half a squared error: the 1/2 forgotten": example(
        Formula(lambda a: np.asarray((a * a).sum() / 2), lambda dy, a: dy * 2 * a)
    ),
    "a gradient never added": example(nf.Softmax(), "scores"),
    "a weight's gradient transposed": gradient(lambda g: g.T),
    "dx through W instead of W.T, W square": example(
        with_backward(linear(D), lambda layer, right, dy: 0 * right(dy) + dy @ layer.weight.data)
    ),
    "dz @ W for dz @ W.T, W square, before a sigmoid": example(
        Dense(through=lambda dz, kernel: dz @ kernel)
    ),
    "bias: the sum over a wrong axis of the same size": example(
        Dense(T, summed=lambda dz: dz.sum(axis=(0, 2))), "offset"
    ),
    "sigmoid: a wrong derivative, as s * s": example(
        Dense(6, slope=lambda z, s: s * s), "x kernel offset"
    ),
    "two results of backward swapped": example(
        attention(lambda dq, dk, dv: (dq, dv, dk)), "key value"
    ),
    "`=` for `+=` between two uses of a weight": example(nf.Embedding(V, D, RNG), REFUSED),
    "self-attention: only the queries' share of dx": example(
        with_backward(
            nf.SelfAttention(D, H, RNG),
            lambda layer, _, dy: nf.MultiHeadAttention.backward(layer, dy)[0],
        )
    ),
    "self-attention: the keys' share subtracted": example(
        with_backward(nf.SelfAttention(D, H, RNG), keys_subtracted)
    ),
    "residual: the skip connection forgotten": example(
        nf.Residual(nf.FeedForward(D, 12, RNG), D, 0.3)
    ),
    "x + f(x) in one layer: the x forgotten": example(
        Formula(lambda a: a + a**3 / 10, lambda dy, a: dy * 3 * a**2 / 10)
    ),
    "embedding: grad[ids] += dx": example(nf.Embedding(V, D, RNG), "weight"),
    "embedding: the factor √d_model forgotten": gradient(
        lambda g: g / D**0.5, layer=nf.Embedding(V, D, RNG)
    ),
    "attention: the factor 1/√d_k forgotten": example(
        attention(lambda dq, dk, dv: (dq * 3**0.5, dk * 3**0.5, dv)), "query key"
    ),
    "softmax: only the diagonal of the Jacobian": example(nf.Softmax(), "scores"),
    "softmax: the sum over a wrong axis": example(
        with_backward(nf.Softmax(), sum_over_queries), "scores"
    ),
    "attention: scores masked in forward only": example(
        with_saved(nf.ScaledDotProductAttention(), weights=without_mask),
        "query key value",
    ),
    "attention: dV through the weights before dropout": example(nf.BiasedAttention(0.3), "value"),
    "attention: heads merged by reshape alone": example(
        with_backward(nf.MultiHeadAttention(D, H, RNG), heads_mixed),
        "x memory query.weight key.weight value.weight",
    ),
    "LayerNorm: mean(dx_hat) forgotten": example(
        norm(lambda d, x, r, g: r * (d - x * mean(d * x)))
    ),
    "LayerNorm: the term along x_hat forgotten": example(nf.LayerNorm(D)),
    "LayerNorm: mean and variance as constants": example(norm(lambda d, x, r, g: r * d)),
    "LayerNorm: dx without gamma": example(norm(lambda d, x, r, g: r * centred(d / g, x))),
    "LayerNorm: gamma after the means": example(nf.LayerNorm(D)),
    "LayerNorm: rstd forgotten": example(norm(lambda d, x, r, g: centred(d, x))),
    "LayerNorm: epsilon outside the root": example(
        with_saved(
            nf.LayerNorm(D, epsilon=0.01),
            rstd=lambda saved: 1 / (np.sqrt(saved["rstd"] ** -2 - 0.01) + 0.01),
        ),
        "x",
        3 + 0.1 * X,
    ),
    "ReLU: not gated": example(with_saved(nf.ReLU(), positive=lambda saved: True)),
    "ReLU: gated on dy instead of x": example(with_backward(nf.ReLU(), gated_on_dy)),
    "a gate: db without the factor a": example(
        Formula(
            lambda a, b: a * logistic(b),
            lambda dy, a, b: (dy * logistic(b), dy * logistic(b) * (1 - logistic(b))),
        ),
        "others",
        X,
        MEMORY[:, :T],
    ),
    "a gate a(x) * b(x): dx through a alone": example(GLU),
    "dropout: not masked": example(with_keep(lambda keep: keep.max())),
    "dropout: the mask of another sequence": example(with_keep(lambda keep: keep[::-1])),
    "dropout: the scale forgotten": example(with_keep(lambda keep: keep > 0)),
    "dropout: the scale applied twice": example(with_factor(1 / 0.7, nf.Dropout(0.3))),
    "one object used twice, its mask in an attribute": example(
        remembering(lambda layer, right, dy: 0 * right(dy) + dy * layer.y / layer.x), REFUSED
    ),
    "dropout: a new mask drawn in backward": example(
        with_keep(lambda keep: dropout_stream.mask(keep.shape, 0.3, keep)), REFUSED
    ),
    "the size of a batch in an attribute": example(
        remembering(lambda layer, right, dy: right(dy) * (1 + 1e-4 * (len(layer.x) - len(dy)))),
        REFUSED,
    ),
    "a copy of a weight kept in backward": example(
        with_backward(linear(), weight_of_the_first_backward)
    ),
    "backward writes over what forward returned": example(remembering(written_over), REFUSED),
    "a layer in a dict, or in a list within a list": example(
        WithAttributes(held={"a": linear()}), REFUSED
    ),
    "a weight in a plain array": example(WithAttributes(held=RNG.standard_normal((D, D))), REFUSED),
    "a row with every key masked, softmax unguarded": example(
        Formula(unguarded, lambda dy, a: dy.copy()), "x", SCORES
    ),
    "backward divides by a weight of 0": example(
        with_backward(nf.Softmax(), divided_by_weights), "scores"
    ),
}


WORDS = table_words()


def reports(layer: nf.Layer, inputs: list, **options) -> dict[str, str]:
    """The diagnosis of each tensor whose gradient is wrong, by name."""
    rows = check(layer, inputs, directions=1, **options)
    return {row.name: row.meaning for row in rows if not row.passed}


def reports_on(mistake: str, **options) -> dict[str, str]:
    """The reports on a layer with this mistake; with the name REFUSED where a rule is broken."""
    layer, _, inputs = MISTAKES[mistake]
    with WRONG_LINES.get(mistake, WrongLines()).applied():
        try:
            return reports(layer, inputs, **options)
        except ValueError as problem:
            return {REFUSED: str(problem)}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_check_names_the_cause_and_no_other(mistake):
    messages = reports_on(mistake)
    assert " ".join(messages) == MISTAKES[mistake][1], messages
    for words in WORDS.values():
        expected = words == WORDS[mistake]
        assert all((words in message) == expected for message in messages.values()), messages


def test_the_table_for_readers_has_the_same_mistakes():
    assert [*WORDS] == [*MISTAKES] and min(map(len, WORDS.values())) > 10


def test_a_mistake_deep_in_a_model_is_found_where_it_is():
    """Everything that the gradient passes afterwards is wrong too, and says the same."""
    model = nf.Transformer(nf.Config.base(V, d_model=D, d_ff=12, heads=H, layers=1), 0)
    with_factor(-1, model.decoder.layers[0].self_attention.norm)
    checked, layer = (
        GradientCheck(model, [GENERATOR.source, GENERATOR.target_in]),
        "decoder.layers.0",
    )
    within = f"{layer}.self_attention.sublayer.output.weight", f"{layer}.feed_forward.norm.gamma"
    rows = [checked.row(name, directions=1) for name in ("source.embedding.weight", *within)]
    place = "`decoder.layers.0.self_attention.norm` (Wrong) is wrong by itself, in x"
    assert [place in row.meaning for row in rows] == [True, True, False]
    assert "the sign is wrong" in rows[0].meaning and rows[2].passed


def test_a_wrong_gradient_of_a_parameter_explains_that_parameter_alone():
    first = in_parameter("gamma", nf.LayerNorm(D), np.negative)
    second = in_parameter("beta", nf.LayerNorm(D), lambda g: 2 * g)
    x = np.concatenate([X, X[:1]])  # a batch size of 2 would be another possible cause
    assert reports(Chain(first, Chain(second, nf.LayerNorm(D))), [x]) == {
        "parts.0.gamma": "`parts.0` (Wrong) is wrong by itself, in gamma: constant ratio -1: the "
        "sign is wrong.",
        "parts.1.parts.0.beta": "`parts.1.parts.0` (Wrong) is wrong by itself, in beta: constant "
        "ratio 2: counted twice, or a factor 1/2 is missing, or 2 is an extra factor.",
    }


class First(nf.Linear):
    size = 0  # of its first batch

    def forward(self, x):
        self.size = self.size or len(x)
        return super().forward(x)


def test_a_size_that_does_not_fit_the_next_batch_is_noticed(complaint):
    def reshaped(layer, right, dy):
        return right(dy.reshape(layer.size, T, 6))

    text = complaint(check, with_backward(First(D, 6, RNG), reshaped), [X])
    assert "batches of any size" in text and "ValueError after a forward on another batch" in text


def keys_for_values(attention, right, dy):
    dquery, dvalue, dkey = head_gradients(attention, dy, parts=("query", "value", "key"))
    return dquery, dvalue + dkey


def without_x_hat(norm, right, dy):
    """dgamma = sum(dy), which is dbeta."""
    norm.gamma.grad += (dy * (1 - norm.saved[-1]["x_hat"])).sum(axis=(0, 1))
    return right(dy)


class MeanAt(nf.Layer):
    """The mean over positions divided by a temperature, its dx times `factor`."""

    def __init__(self, factor):
        self.temperature, self.factor = nf.Parameter(np.full(1, 2.5)), factor

    def forward(self, x):
        self.save(x=x)
        return x.mean(axis=1) / self.temperature.data

    def backward(self, dy):
        x, t = self.pop_saved()["x"], self.temperature.data
        self.temperature.grad -= (dy * x.mean(axis=1)).sum() / t**2
        return np.repeat(dy[:, None], x.shape[1], axis=1) / x.shape[1] / t * self.factor(t)


class Around(nf.Layer):
    """y = formula(f, x) with a layer f within, whose backward is dx(g, dy, x), g that of f."""

    def __init__(self, inner: nf.Layer, formula: Callable, dx: Callable):
        self.inner, self.formula, self.dx = inner, formula, dx

    def forward(self, x):
        self.save(x=x)
        return self.formula(self.inner.forward, x)

    def backward(self, dy):
        return self.dx(self.inner.backward, dy, self.pop_saved()["x"])


# y = f(2 f(x)), with factors of 3 and -1 on the gradients of the two uses of f
TWO_USES = Around(linear(D), lambda f, x: f(2 * f(x)), lambda g, dy, x: g(3 * 2 * g(-dy)))


def sigmoid_example(slope, function=logistic):
    return example(Dense(5, function, slope), "x kernel offset")


def swish(dx):
    return example(Formula(lambda x: x * logistic(x), lambda dy, a: dx(dy, a, logistic(a))))


EIGHT = np.arange(8)
SIGMOID = "the derivative of sigmoid is s * (1 - s) (s is its output), not "
REACHES = "the gradient that reaches `%s` is wrong already: "
# What a message begins with ... and what else stands in it.
MESSAGES = {
    "this is the gradient of `beta`: a factor by which forward multiplies is missing.": example(
        with_backward(nf.LayerNorm(D), without_x_hat), "gamma"
    ),
    "constant ratio 4: ... 4, the size of axis 1 of x: a mean's 1/4": example(MeanAt(lambda t: T)),
    "constant ratio 0.25: ... 1/4, the size of axis 1 of x: a sum is divided like a mean": example(
        MeanAt(lambda t: 1 / T)
    ),
    "constant ratio ... the factor 1 / `temperature` is missing": example(MeanAt(lambda t: t)),
    "constant ratio 2.001: a constant factor is missing or extra.": example(
        MeanAt(lambda t: 2.001)
    ),
    REACHES % "value"
    + "this is the gradient of `key`: two results of backward are swapped.": example(
        with_backward(nf.MultiHeadAttention(D, H, RNG), keys_for_values),
        "memory key.weight value.weight",
        X[:, :3],
        MEMORY[:, :4],
    ),
    REACHES % "inner" + "constant ratio -1: ": example(TWO_USES, "x inner.weight inner.bias", X),
    "a branch is left out: the one through `f(x)` in `f(x) + EIGHT * f(x)`.": example(
        Around(
            nf.Tanh(), lambda f, x: f(x) + EIGHT * f(x), lambda g, dy, x: [g(EIGHT * dy), g(dy)][0]
        )
    ),
    "`parts.1.parts.0` (Wrong): right in the first forward and backward, wrong in": example(
        Chain(linear(D), Chain(with_backward(linear(), weight_of_the_first_backward))),
        "x parts.0.weight parts.0.bias",
    ),
    "right in the first forward ... no size of a batch in an attribute": example(
        with_backward(First(D, 6, RNG), lambda layer, right, dy: right(dy) * layer.size / len(dy))
    ),
    # One line of forward, whose derivative is wrong.
    SIGMOID + "1 (left out). ": sigmoid_example(lambda z, s: 1),
    SIGMOID + "z * (1 - z) (z is its input). ": sigmoid_example(
        lambda z, s: z * (1 - z), lambda z: (1 + np.tanh(z / 2)) / 2
    ),
    SIGMOID + "s * (1 - s) with sigmoid(s) for s. ": sigmoid_example(
        lambda z, s: logistic(s) * (1 - logistic(s))
    ),
    "a branch is left out: the one through `logistic(x @ RIGHT)` in `(x @ LEFT) * logistic(x @ "
    "RIGHT)`. Forward's line: `lambda x: (x @ LEFT) * ... (test_diagnosis.py, ": example(GLU),
    "a branch is left out: the one through `x` in": swish(lambda dy, x, s: dy * x * s * (1 - s)),
    "a branch has the wrong sign: the one through `logistic(x)`": swish(
        lambda dy, x, s: dy * s - dy * x * s * (1 - s)
    ),
    "a branch is counted twice: the one through `x`": swish(
        lambda dy, x, s: 2 * dy * s + dy * x * s * (1 - s)
    ),
    "the derivative of `x * logistic(x)` with respect to `logistic(x)` lacks `x`": swish(
        lambda dy, x, s: dy * s + dy * s * (1 - s)
    ),
    "the derivative of swish is sigmoid(z) * (1 + z - s) (s is its output), not s.": swish(
        lambda dy, x, s: dy * x * s
    ),
    "the gradient of `self.offset.data` is summed over the wrong axes, (0, 1, 2) instead": example(
        Dense(summed=lambda dz: dz.sum()), "offset"
    ),
    # The operation is in a loop.
    "the derivative of tanh is 1 - s * s (s is its output), not 1": example(
        Formula(
            lambda x: functools.reduce(lambda h, a: np.tanh(h + a), x.swapaxes(0, 1)),
            lambda dy, a: np.repeat(dy[:, None], T, axis=1),
        )
    ),
    # The operation is inside a function of NumPy.
    "a branch counts 4 times (4, the size of axis 1 of x: a mean's 1/4 is missing): the one "
    "through `a.mean(axis=1, keepdims=True)` in `a * a.mean(axis=1, keepdims=True)`": example(
        Formula(
            lambda a: a * a.mean(axis=1, keepdims=True),
            lambda dy, a: dy * a.mean(axis=1, keepdims=True) + (dy * a).sum(axis=1, keepdims=True),
        )
    ),
    "the derivative of `np.exp(z := 2 * x, out=z)` is left out": example(
        Formula(lambda x: np.exp(z := 2 * x, out=z), lambda dy, a: 2 * dy)
    ),
    # A product y = x W whose W has another x: nothing in the numbers tells which.
    "No known pattern. 48 of 48 entries are wrong. ": example(
        with_saved(linear(), x=lambda saved: saved["x"] ** 2), "weight"
    ),
}


@pytest.mark.parametrize("says", MESSAGES)
def test_the_check_tells_where_and_what_and_how_much_is_known(says):
    layer, fails, inputs = MESSAGES[says]
    messages = reports(layer, inputs)
    assert " ".join(messages) == fails, messages
    start, *inside = says.split(" ... ")
    for message in messages.values():
        assert message.startswith(start) and all(words in message for words in inside), message


def test_a_layer_that_refuses_to_be_run_again_still_gets_its_report():
    """What backward did wrong must be printed, even where nothing more can be found out."""
    checked = GradientCheck(with_factor(-1, linear()), [X])
    checked.layer.forward = lambda x: 1 / 0
    assert diagnose(checked, "x").startswith("No known pattern. ") and TracedArray.trace is None


@pytest.mark.parametrize("shape", [(30, 20), (450,)], ids=str)
def test_of_a_large_tensor_the_measured_part_is_enough(shape):
    """No row is measured whole where it has more than 400 entries."""
    ungated = with_saved(nf.ReLU(), positive=lambda saved: True)
    (message,) = reports(ungated, [RNG.standard_normal(shape)]).values()
    assert "maximum(x, 0)` is left out" in message


def test_the_cause_is_named_on_the_device_too(stand_in):
    for mistake in ("residual: the skip connection forgotten", "LayerNorm: dx without gamma"):
        assert WORDS[mistake] in reports_on(mistake, xp=stand_in)["x"]
