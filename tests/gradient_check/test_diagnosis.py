"""For each mistake in the readers' table the failed check names the right cause, and no other."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from strangers import Chain, Dense, Formula, Holding, logistic

import numformer as nf
from numformer.gradient_check.cases import IDS as OF_CASES
from numformer.gradient_check.cases import InputGenerator
from numformer.gradient_check.diagnosis import diagnose
from numformer.gradient_check.gradients import GradientCheck, check
from numformer.gradient_check.trace import TracedArray
from numformer.paper.attention import merge_heads, split_heads
from numformer.paper.softmax import softmax
from numformer.randomness import dropout_stream

B, S, T, D, H, V = 3, 5, 4, 8, 2, 11
RNG = np.random.default_rng(7)
X, MEMORY = RNG.standard_normal((B, T, D)), RNG.standard_normal((B, S, D))
SCORES = RNG.standard_normal((B, H, T, S))
HEADS = [RNG.standard_normal((B, H, n, 3)) for n in (T, S, S)]
LOGITS = RNG.standard_normal((B, T, V))
IDS = np.array([[4, 9, 4, 2], [4, 1, 1, 0]])
LEFT, RIGHT = RNG.standard_normal((2, D, 5))
GIVEN = InputGenerator(RNG, **OF_CASES)
REAL = GIVEN.target_out > 0


def wrong(layer: nf.Layer, backward: Callable) -> nf.Layer:
    """`layer` with the result of backward(layer, right, dy), where `right` is its backward."""
    base = type(layer)

    class Wrong(base):
        def backward(self, dy):
            return backward(self, super().backward, dy)

    layer.__class__ = Wrong
    return layer


def times(factor: float, layer: nf.Layer) -> nf.Layer:
    return wrong(layer, lambda layer, right, dy: right(dy) * factor)


def in_parameter(name: str, layer: nf.Layer, change: Callable) -> nf.Layer:
    """`layer`, which adds change(gradient) to the parameter `name`."""

    def backward(layer, right, dy):
        grad = getattr(layer, name).grad
        before = grad.copy()
        dx = right(dy)
        grad[...] = before + change(grad - before)
        return dx

    return wrong(layer, backward)


def stale(layer: nf.Layer, **changes: Callable) -> nf.Layer:
    """`layer`, whose backward finds other saved values, made of those that forward saved."""

    def backward(layer, right, dy):
        saved = layer.saved[-1]
        saved |= {name: change(saved) for name, change in changes.items()}
        return right(dy)

    return wrong(layer, backward)


def linear(d_out: int = 6) -> nf.Linear:
    return nf.Linear(D, d_out, RNG)


def gradient(change: Callable, name: str = "weight", layer=None) -> tuple:
    return of(in_parameter(name, layer or linear(D), change), name)


def attention(change: Callable) -> nf.Layer:
    """Attention whose backward returns change(dquery, dkey, dvalue)."""
    return wrong(nf.ScaledDotProductAttention(), lambda layer, right, dy: change(*right(dy)))


def with_keep(change: Callable) -> nf.Layer:
    return stale(nf.Dropout(0.3), keep=lambda saved: change(saved["keep"]))


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

    return wrong(nf.LayerNorm(D), backward)


class Remembering(nf.Dropout):
    def forward(self, x):
        self.x, self.y = x, super().forward(x)
        return self.y


def remembering(backward: Callable) -> nf.Layer:
    return wrong(Remembering(0.3), backward)


def written_over(dropout, right, dy):
    dropout.y *= dy
    return right(dy)


def weight_of_the_first_backward(linear, right, dy):
    right(dy)
    if not hasattr(linear, "turned"):
        linear.turned = linear.weight.data.T.copy()
    return dy @ linear.turned


def assigned(linear, right, dy):
    linear.weight.grad.fill(0)
    return right(dy)


def of_heads(attention, dy, merged=merge_heads, parts=("query", "key", "value")) -> tuple:
    """What the parts' backwards make of the gradients of queries, keys, values (B, H, T, K)."""
    attention.pop_saved()
    gradients = attention.attention.backward(split_heads(attention.output.backward(dy), H))
    merged = dict(zip(parts, map(merged, gradients), strict=True))
    return tuple(
        getattr(attention, part).backward(split_heads(dx, H)) for part, dx in merged.items()
    )


def keys_subtracted(attention, right, dy):
    dquery, dkey, dvalue = of_heads(attention, dy)
    return dquery + dvalue - dkey


def heads_mixed(attention, right, dy):
    """(B, H, T, K) is reshaped to (B, T, H K) without changing the order of its axes."""
    dquery, dkey, dvalue = of_heads(attention, dy, lambda dx: dx.reshape(B, -1, D))
    return dquery, dvalue + dkey


def assigned_ids(embedding, right, dx):
    embedding.weight.grad[embedding.pop_saved()["ids"]] += dx * D**0.5


def sum_over_queries(softmax, right, dy):
    weights = softmax.pop_saved()["weights"]
    return weights * (dy - (dy * weights).sum(axis=-2, keepdims=True))


def gated_on_dy(relu, right, dy):
    relu.saved[-1]["positive"] = dy > 0
    return right(dy)


@np.errstate(invalid="ignore")
def unguarded(scores):
    exponentials = np.exp(np.where(GIVEN.source_mask, scores, -np.inf))
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
    nf.CrossEntropy: [LOGITS, GIVEN.target_out],
    nf.Embedding: [IDS],
    nf.MultiHeadAttention: [X, MEMORY],
    nf.ScaledDotProductAttention: [*HEADS, GIVEN.source_mask],
    nf.BiasedAttention: [*HEADS, GIVEN.source_mask],
    nf.SelfAttention: [X, GIVEN.target_mask],
    nf.Softmax: [SCORES, GIVEN.source_mask],
}


def of(layer: nf.Layer, fails: str = "x", *inputs) -> tuple[nf.Layer, str, list]:
    """The layer, the tensors whose gradients are wrong, and inputs."""
    usual = next((INPUTS[kind] for kind in type(layer).__mro__ if kind in INPUTS), [X])
    return layer, fails, [*inputs] or usual


MISTAKES = {
    "the sign": of(times(-1, linear())),
    "divided by the batch size": of(times(1 / B, nf.Softmax()), "scores"),
    "bias: the mean over positions, not the sum": gradient(lambda g: g / (B * T), "bias"),
    "loss: not divided by the number of targets": of(
        times(REAL.sum(), nf.CrossEntropy()), "logits"
    ),
    "loss: divided by padding too": of(times(REAL.mean(), nf.CrossEntropy()), "logits"),
    "a gradient added twice": gradient(lambda g: 2 * g),
    "half a squared error: the 1/2 forgotten": of(
        Formula(lambda a: np.asarray((a * a).sum() / 2), lambda dy, a: dy * 2 * a)
    ),
    "a gradient never added": gradient(lambda g: 0 * g),
    "a weight's gradient transposed": gradient(lambda g: g.T),
    "dx through W instead of W.T, W square": of(
        wrong(linear(D), lambda layer, right, dy: 0 * right(dy) + dy @ layer.weight.data)
    ),
    "dz @ W for dz @ W.T, W square, before a sigmoid": of(
        Dense(through=lambda dz, kernel: dz @ kernel)
    ),
    "bias: the sum over a wrong axis of the same size": of(
        Dense(T, summed=lambda dz: dz.sum(axis=(0, 2))), "offset"
    ),
    "sigmoid: a wrong derivative, as s * s": of(
        Dense(6, slope=lambda z, s: s * s), "x kernel offset"
    ),
    "two results of backward swapped": of(attention(lambda dq, dk, dv: (dq, dv, dk)), "key value"),
    "`=` for `+=` between two uses of a weight": of(wrong(linear(), assigned), REFUSED),
    "self-attention: only the queries' share of dx": of(
        wrong(
            nf.SelfAttention(D, H, RNG),
            lambda layer, _, dy: nf.MultiHeadAttention.backward(layer, dy)[0],
        )
    ),
    "self-attention: the keys' share subtracted": of(
        wrong(nf.SelfAttention(D, H, RNG), keys_subtracted)
    ),
    "residual: the skip connection forgotten": of(
        wrong(
            nf.Residual(nf.FeedForward(D, 12, RNG), D, 0.3),
            lambda r, _, dy: r.sublayer.backward(r.dropout.backward(r.norm.backward(dy))),
        )
    ),
    "x + f(x) in one layer: the x forgotten": of(
        Formula(lambda a: a + a**3 / 10, lambda dy, a: dy * 3 * a**2 / 10)
    ),
    "embedding: grad[ids] += dx": of(wrong(nf.Embedding(V, D, RNG), assigned_ids), "weight"),
    "embedding: the factor √d_model forgotten": gradient(
        lambda g: g / D**0.5, layer=nf.Embedding(V, D, RNG)
    ),
    "attention: the factor 1/√d_k forgotten": of(
        attention(lambda dq, dk, dv: (dq * 3**0.5, dk * 3**0.5, dv)), "query key"
    ),
    "softmax: only the diagonal of the Jacobian": of(
        wrong(nf.Softmax(), lambda layer, _, dy: dy * layer.pop_saved()["weights"]), "scores"
    ),
    "softmax: the sum over a wrong axis": of(wrong(nf.Softmax(), sum_over_queries), "scores"),
    "attention: scores masked in forward only": of(
        stale(nf.ScaledDotProductAttention(), weights=without_mask),
        "query key value",
    ),
    "attention: dV through the weights before dropout": of(
        stale(nf.BiasedAttention(0.3), dropped=lambda saved: saved["weights"]), "value"
    ),
    "attention: heads merged by reshape alone": of(
        wrong(nf.MultiHeadAttention(D, H, RNG), heads_mixed),
        "x memory query.weight key.weight value.weight",
    ),
    "LayerNorm: mean(dx_hat) forgotten": of(norm(lambda d, x, r, g: r * (d - x * mean(d * x)))),
    "LayerNorm: the term along x_hat forgotten": of(norm(lambda d, x, r, g: r * (d - mean(d)))),
    "LayerNorm: mean and variance as constants": of(norm(lambda d, x, r, g: r * d)),
    "LayerNorm: dx without gamma": of(norm(lambda d, x, r, g: r * centred(d / g, x))),
    "LayerNorm: gamma after the means": of(norm(lambda d, x, r, g: g * r * centred(d / g, x))),
    "LayerNorm: rstd forgotten": of(norm(lambda d, x, r, g: centred(d, x))),
    "LayerNorm: epsilon outside the root": of(
        stale(
            nf.LayerNorm(D, epsilon=0.01),
            rstd=lambda saved: 1 / (np.sqrt(saved["rstd"] ** -2 - 0.01) + 0.01),
        ),
        "x",
        3 + 0.1 * X,
    ),
    "ReLU: not gated": of(stale(nf.ReLU(), positive=lambda saved: True)),
    "ReLU: gated on dy instead of x": of(wrong(nf.ReLU(), gated_on_dy)),
    "a gate: db without the factor a": of(
        Formula(
            lambda a, b: a * logistic(b),
            lambda dy, a, b: (dy * logistic(b), dy * logistic(b) * (1 - logistic(b))),
        ),
        "others",
        X,
        MEMORY[:, :T],
    ),
    "a gate a(x) * b(x): dx through a alone": of(GLU),
    "dropout: not masked": of(with_keep(lambda keep: keep.max())),
    "dropout: the mask of another sequence": of(with_keep(lambda keep: keep[::-1])),
    "dropout: the scale forgotten": of(with_keep(lambda keep: keep > 0)),
    "dropout: the scale applied twice": of(times(1 / 0.7, nf.Dropout(0.3))),
    "one object used twice, its mask in an attribute": of(
        remembering(lambda layer, right, dy: 0 * right(dy) + dy * layer.y / layer.x), REFUSED
    ),
    "dropout: a new mask drawn in backward": of(
        with_keep(lambda keep: dropout_stream.mask(keep.shape, 0.3, keep)), REFUSED
    ),
    "the size of a batch in an attribute": of(
        remembering(lambda layer, right, dy: right(dy) * (1 + 1e-4 * (len(layer.x) - len(dy)))),
        REFUSED,
    ),
    "a copy of a weight kept in backward": of(wrong(linear(), weight_of_the_first_backward)),
    "backward writes over what forward returned": of(remembering(written_over), REFUSED),
    "a layer in a dict, or in a list within a list": of(Holding(held={"a": linear()}), REFUSED),
    "a weight in a plain array": of(Holding(held=RNG.standard_normal((D, D))), REFUSED),
    "a row with every key masked, softmax unguarded": of(
        Formula(unguarded, lambda dy, a: dy.copy()), "x", SCORES
    ),
    "backward divides by a weight of 0": of(wrong(nf.Softmax(), divided_by_weights), "scores"),
}


def words_for_readers() -> dict[str, str]:
    """The mistakes of the table in lessons/equations.md, and the check's words for each."""
    page = Path(__file__).parents[2] / "lessons" / "equations.md"
    _, section = page.read_text().split("## When the check fails")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {mistake: words for mistake, *_, words in rows[1:]}


WORDS = words_for_readers()


def reports(layer: nf.Layer, inputs: list, **options) -> dict[str, str]:
    """What is said of each tensor that fails."""
    rows = check(layer, inputs, directions=1, **options)
    return {row.name: row.meaning for row in rows if not row.passed}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_check_names_the_cause_and_no_other(name):
    layer, fails, inputs = MISTAKES[name]
    try:
        said = reports(layer, inputs)
    except ValueError as problem:
        said = {REFUSED: str(problem)}
    assert " ".join(said) == fails, said
    for words in WORDS.values():
        assert [words in message for message in said.values()] == [words == WORDS[name]] * len(said)


def test_the_table_for_readers_has_the_same_mistakes():
    assert [*WORDS] == [*MISTAKES] and min(map(len, WORDS.values())) > 10


def test_a_mistake_deep_in_a_model_is_found_where_it_is():
    """Everything that the gradient passes afterwards is wrong too, and says the same."""
    model = nf.Transformer(nf.Config.base(V, d_model=D, d_ff=12, heads=H, layers=1), 0)
    times(-1, model.decoder.layers[0].self_attention.norm)
    checked, layer = GradientCheck(model, [GIVEN.source, GIVEN.target_in]), "decoder.layers.0"
    within = f"{layer}.self_attention.sublayer.output.weight", f"{layer}.feed_forward.norm.gamma"
    rows = [checked.row(name, directions=1) for name in ("source.embedding.weight", *within)]
    place = "`decoder.layers.0.self_attention.norm` (Wrong) is wrong by itself, in x"
    assert [place in row.meaning for row in rows] == [True, True, False]
    assert "the sign is wrong" in rows[0].meaning and rows[2].passed


def test_a_wrong_gradient_of_a_parameter_explains_that_parameter_alone():
    first = in_parameter("gamma", nf.LayerNorm(D), np.negative)
    second = in_parameter("beta", nf.LayerNorm(D), lambda g: 2 * g)
    assert reports(Chain(first, Chain(second, nf.LayerNorm(D))), [X]) == {
        "parts.0.gamma": "`parts.0` (Wrong) is wrong by itself, in gamma: constant ratio -1: the "
        "sign is wrong.",
        "parts.1.parts.0.beta": "`parts.1.parts.0` (Wrong) is wrong by itself, in beta: constant "
        "ratio 2: counted twice, or a factor 1/2 is missing, or 2 one too many.",
    }


class First(nf.Linear):
    size = 0  # of its first batch

    def forward(self, x):
        self.size = self.size or len(x)
        return super().forward(x)


def test_a_size_that_does_not_fit_the_next_batch_is_noticed(complaint):
    def reshaped(layer, right, dy):
        return right(dy.reshape(layer.size, T, 6))

    text = complaint(check, wrong(First(D, 6, RNG), reshaped), [X])
    assert "batches of any size" in text and "ValueError after a forward of another batch" in text


def keys_for_values(attention, right, dy):
    dquery, dvalue, dkey = of_heads(attention, dy, parts=("query", "value", "key"))
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
TWICE = Around(linear(D), lambda f, x: f(2 * f(x)), lambda g, dy, x: g(3 * 2 * g(-dy)))


def of_sigmoid(slope, function=logistic):
    return of(Dense(5, function, slope), "x kernel offset")


def swish(dx):
    return of(Formula(lambda x: x * logistic(x), lambda dy, a: dx(dy, a, logistic(a))))


HALF, EIGHT = X[:2], np.arange(8)
SIGMOID = "the derivative of sigmoid is s * (1 - s), s its output: not "
REACHES = "the gradient that reaches `%s` is wrong already: "
# What a message begins with ... and what else stands in it.
OTHERS = {
    "this is the gradient of `beta`: a factor that forward multiplies with is missing.": of(
        wrong(nf.LayerNorm(D), without_x_hat), "gamma"
    ),
    "constant ratio 4: ... 4, the size of axis 1 of x: a mean's 1/4": of(MeanAt(lambda t: T)),
    "constant ratio 0.25: ... 1/4, the size of axis 1 of x: a sum is divided like a mean": of(
        MeanAt(lambda t: 1 / T)
    ),
    "constant ratio ... the factor 1 / `temperature` is missing": of(MeanAt(lambda t: t)),
    "constant ratio 2.001: a constant factor is missing, or one too many.": of(
        MeanAt(lambda t: 2.001)
    ),
    REACHES % "value" + "this is the gradient of `key`: two results of backward are swapped.": of(
        wrong(nf.MultiHeadAttention(D, H, RNG), keys_for_values),
        "memory key.weight value.weight",
        HALF[:, :3],
        MEMORY[:2, :4],
    ),
    REACHES % "inner" + "constant ratio -1: ": of(TWICE, "x inner.weight inner.bias", HALF),
    "x is used by `inner`, `inner`, and their gradients add: that of `inner` is missing.": of(
        Around(
            nf.Tanh(), lambda f, x: f(x) + EIGHT * f(x), lambda g, dy, x: [g(EIGHT * dy), g(dy)][0]
        )
    ),
    "`parts.1.parts.0` (Wrong): right in the first forward and backward, wrong in the next": of(
        Chain(linear(D), Chain(wrong(linear(), weight_of_the_first_backward))),
        "x parts.0.weight parts.0.bias",
    ),
    "right in the first forward ... no size of a batch in an attribute": of(
        wrong(First(D, 6, RNG), lambda layer, right, dy: right(dy) * layer.size / len(dy))
    ),
    # One line of forward, whose derivative is wrong.
    SIGMOID + "1 (left out). ": of_sigmoid(lambda z, s: 1),
    SIGMOID + "z * (1 - z), z its input. ": of_sigmoid(
        lambda z, s: z * (1 - z), lambda z: (1 + np.tanh(z / 2)) / 2
    ),
    SIGMOID + "s * (1 - s) with sigmoid(s) for s. ": of_sigmoid(
        lambda z, s: logistic(s) * (1 - logistic(s))
    ),
    "a branch is left out: that through the second operand of `multiply`. Forward's line: "
    "`lambda x: (x @ LEFT) * logistic(x @ RIGHT), ... (test_diagnosis.py, ": of(GLU),
    "a branch is left out: that through `x`": swish(lambda dy, x, s: dy * x * s * (1 - s)),
    "a branch has the wrong sign: that through the second operand": swish(
        lambda dy, x, s: dy * s - dy * x * s * (1 - s)
    ),
    "a branch is counted twice: that through `x`": swish(
        lambda dy, x, s: 2 * dy * s + dy * x * s * (1 - s)
    ),
    "the derivative of a product by the second operand lacks `x`": swish(
        lambda dy, x, s: dy * s + dy * s * (1 - s)
    ),
    "the gradient of `offset` is summed over the wrong axes, (0, 1, 2) instead of (0, 1)": of(
        Dense(summed=lambda dz: dz.sum()), "offset"
    ),
    "the derivative of tanh is 1 - s * s, s its output: not 1": of(  # in a loop
        Formula(
            lambda x: functools.reduce(lambda h, a: np.tanh(h + a), x.swapaxes(0, 1)),
            lambda dy, a: np.repeat(dy[:, None], T, axis=1),
        )
    ),
    "the derivative of `divide` is left out. ... a.mean(axis=1, keepdims=True)": of(  # in NumPy
        Formula(
            lambda a: a * a.mean(axis=1, keepdims=True),
            lambda dy, a: dy * a.mean(axis=1, keepdims=True) + (dy * a).sum(axis=1, keepdims=True),
        )
    ),
    "the derivative of `exp` is left out": of(
        Formula(lambda x: np.exp(z := 2 * x, out=z), lambda dy, a: 2 * dy)
    ),
    # A product y = x W whose W has another x: nothing in the numbers tells which.
    "No known pattern. 48 of 48 entries are wrong. ": of(
        stale(linear(), x=lambda saved: saved["x"] ** 2), "weight"
    ),
}


@pytest.mark.parametrize("says", OTHERS)
def test_the_check_tells_where_and_what_and_how_much_is_known(says):
    layer, fails, inputs = OTHERS[says]
    said = reports(layer, inputs)
    assert " ".join(said) == fails, said
    start, *inside = says.split(" ... ")
    for message in said.values():
        assert message.startswith(start) and all(words in message for words in inside), message


def test_a_layer_that_refuses_to_be_run_again_still_gets_its_report():
    """What backward did wrong must be printed, even where nothing more can be found out."""
    checked = GradientCheck(times(-1, linear()), [X])
    checked.layer.forward = lambda x: 1 / 0
    assert diagnose(checked, "x").startswith("No known pattern. ") and TracedArray.trace is None


@pytest.mark.parametrize("shape", [(30, 20), (450,)], ids=str)
def test_of_a_large_tensor_the_measured_part_is_enough(shape):
    """No row is measured whole where it has more than 400 entries."""
    ungated = stale(nf.ReLU(), positive=lambda saved: True)
    (message,) = reports(ungated, [RNG.standard_normal(shape)]).values()
    assert "only where it should be 0" in message


def test_the_cause_is_named_on_the_device_too(stand_in):
    for name in ("residual: the skip connection forgotten", "LayerNorm: dx without gamma"):
        layer, fails, inputs = MISTAKES[name]
        assert WORDS[name] in reports(layer, inputs, xp=stand_in)[fails]
