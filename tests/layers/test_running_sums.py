"""Running sums and the layers made of them: chunks, padding, memory, errors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from numformer.later import LinearAttention, Rotary, StateSpace, attention_weights
from numformer.later.mixers import running_sums
from numformer.layer import inference, pack
from numformer.models import LanguageModel, TowerConfig
from numformer.paper import Memory, MultiHeadAttention, Places, Reach

B, T, D, H = 2, 7, 8, 2
CLOSE = dict(rtol=1e-11, atol=1e-13)
LAYERS = {
    "linear": lambda rng: LinearAttention(D, H, rng),
    "state_space": lambda rng: StateSpace(D, H, rng, d_state=3),
}
every_kind = pytest.mark.parametrize("kind", LAYERS)


def layer_of(kind: str):
    layer = LAYERS[kind](np.random.default_rng(1))
    pack(layer, np.float64)
    return layer


@pytest.mark.parametrize("heads", [(1, 1), (1, H), (H, 1)])
@pytest.mark.parametrize("fading", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunks_of_any_length_equal_the_recurrence(chunk, fading, heads, rng, monkeypatch):
    """Forward from a state, and backward; heads may share queries, keys or both."""
    monkeypatch.setattr(running_sums, "CHUNK", chunk)
    query, key = (rng.standard_normal((B, n, T, 3)) for n in heads)
    value, dy = rng.standard_normal((2, B, H, T, 5))
    state = start = rng.standard_normal((B, H, 3, 5))
    log_decay = -3 * rng.random((B, H, T)) if fading else None
    y, states, last = running_sums.running_sums(query, key, value, log_decay, start)
    for t in range(T):
        fade = np.exp(log_decay[:, :, t, None, None]) if fading else 1
        state = fade * state + key[:, :, t, :, None] * value[:, :, t, None]
        assert_allclose(y[:, :, t, None], query[:, :, t, None] @ state, **CLOSE)
    assert_allclose(last, state, **CLOSE)
    assert len(states) == -(-T // chunk) and states[0] is start

    c = np.cumsum(log_decay if fading else np.zeros((B, H, T)), axis=-1)[..., None]
    within = np.tril(np.exp(np.minimum(c - c.swapaxes(2, 3), 0)))
    dscores = dy @ value.swapaxes(2, 3) * within
    weights = query @ key.swapaxes(2, 3) * within
    dquery = dscores @ key + np.exp(c) * (dy @ start.swapaxes(2, 3))
    expected = [dquery, dscores.swapaxes(2, 3) @ query]
    for index, count in enumerate(heads):
        if count == 1:
            expected[index] = expected[index].sum(axis=1, keepdims=True)
    expected += [weights.swapaxes(2, 3) @ dy]
    by_pair = dy @ value.swapaxes(2, 3) * weights
    dsums = by_pair.sum(axis=3) - by_pair.sum(axis=2)
    dsums += (dy * np.exp(c) * (query @ start)).sum(axis=3)
    expected += [np.flip(np.flip(dsums, 2).cumsum(axis=2), 2)]
    arrays = query, key, value, log_decay, y, states
    found = running_sums.running_sums_backward(dy, *arrays)
    assert (found[3] is None) != fading
    for gradient, right in zip(found[: 3 + fading], expected, strict=False):
        assert_allclose(gradient, right, **CLOSE)


def test_immediate_decay_gives_zeros_and_no_nan(rng):
    query, key, value = rng.standard_normal((3, 1, 1, 5, 2)).astype(np.float32)
    log_decay = np.full((1, 1, 5), -1e4, np.float32)
    y, states, last = running_sums.running_sums(query, key, value, log_decay)
    assert_allclose(y, (query * key).sum(axis=-1, keepdims=True) * value, rtol=1e-5)
    gradients = running_sums.running_sums_backward(y, query, key, value, log_decay, y, states)
    assert all(np.isfinite(gradient).all() for gradient in (last, *gradients))


@every_kind
def test_rows_without_padding_give_the_numbers_of_padded_sequences(kind, rng):
    """Wherever the padding is, forward and backward: it never enters the sums."""
    for real in ([[1, 1, 1, 0], [1, 0, 0, 0]], [[0, 1, 1, 1], [0, 0, 0, 1]]):
        layer, valid = layer_of(kind), np.array(real, bool)
        x, dy = rng.standard_normal((2, B, 4, D))
        y = layer.forward(x, Reach(Places(valid), causal=True))
        dx = layer.backward(np.where(valid[..., None], dy, 0))
        gradients = [p.grad.copy() for p in layer.named_parameters().values()]
        layer.zero_grad()
        rows = layer.forward(x[valid], Reach(Places(valid, skip_padding=True), causal=True))
        assert_allclose(rows, y[valid], **CLOSE)
        assert_allclose(layer.backward(dy[valid]), dx[valid], **CLOSE)
        assert_array_equal(dx[~valid], 0)
        for parameter, expected in zip(layer.named_parameters().values(), gradients, strict=True):
            assert_allclose(parameter.grad, expected, **CLOSE)
        other = np.where(valid[..., None], x, 9)
        again = layer.forward(other, Reach(Places(valid), causal=True))
        assert_array_equal(again[valid], y[valid])


@every_kind
def test_the_size_of_the_state_does_not_depend_on_the_length(kind, rng):
    layer, past = layer_of(kind), Memory(1)  # there is no room to run out of
    x = rng.standard_normal((B, T, D))
    parts, sizes = [], []
    with inference():
        whole = layer.forward(x, Reach(Places.without_padding(B, T), causal=True))
        for length in (1, 3, 1, 2):
            places = Places.without_padding(B, length, past.length)
            part = x[:, past.length : past.length + length]
            parts.append(layer.forward(part, Reach(places, causal=True), past))
            past.advance(length)
            state = past.state(layer, None)
            sizes.append({name: array.shape for name, array in state.items()})
    assert_allclose(np.concatenate(parts, axis=1), whole, **CLOSE)
    assert all(size == sizes[0] for size in sizes) and len(sizes[0]) == 2


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (MultiHeadAttention, dict(d_k=4, d_v=4)),
        (LinearAttention, dict(d_k=4, d_v=4)),
        (StateSpace, dict(d_v=4)),
    ],
)
def test_a_head_has_d_model_divided_by_heads_unless_given(kind, sizes, rng):
    layers = kind(8, 2, rng), kind(8, 2, rng, **sizes)
    default, given = (
        {name: p.shape for name, p in layer.named_parameters().items()} for layer in layers
    )
    assert default == given


def test_linear_attention_continues_a_past_without_a_reach(rng):
    """Its positions continue."""
    layer = LinearAttention(D, H, np.random.default_rng(1), rotary=Rotary())
    pack(layer, np.float64)
    x, past, parts = rng.standard_normal((B, T, D)), Memory(T), []
    with inference():
        whole = layer.forward(x, Reach(Places.without_padding(B, T), causal=True))
        for part in (slice(3), slice(3, 4), slice(4, T)):
            parts.append(layer.forward(x[:, part], None, past))
            past.advance(parts[-1].shape[1])
    assert_allclose(np.concatenate(parts, axis=1), whole, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "smaller"), [(np.float32, 40), (np.float64, 90)])
def test_only_the_ratio_of_small_features_matters(dtype, smaller, causal, rng):
    """However small all of them are: phi(k - c) = exp(-c) phi(k) below 0."""
    layer, outputs = LinearAttention(D, H, rng, bias=True), []
    pack(layer, dtype)
    x = rng.uniform(-1, 1, (B, T, D)).astype(dtype)
    for constant in (9, smaller):
        layer.key.bias.data[...] = -constant
        outputs.append(layer.forward(x, Reach(Places.without_padding(B, T), causal=causal)))
    assert_allclose(*outputs, rtol=2e-3 if dtype == np.float32 else 1e-11)


def test_weights_of_linear_attention(rng):
    """They sum to 1, or to 0 if nothing can be seen; the output is then 0."""
    layer, valid = layer_of("linear"), np.array([[True] * 3 + [False], [False] * 4])
    x = rng.standard_normal((B, 4, D))
    for causal in (False, True):
        y = layer.forward(x, Reach(Places(valid), causal=causal))
        weights = attention_weights(layer)
        assert weights.shape == (B, H, 4, 4)
        assert_allclose(weights.sum(axis=-1)[0], 1)
        assert not weights[1].any() and not y[1].any() and not weights[0, :, :, 3].any()
        assert causal == (not np.triu(weights[0], 1).any())
        values = layer.value.forward(x).reshape(B, 4, H, -1).swapaxes(1, 2)
        heads = (weights @ values).swapaxes(1, 2).reshape(B, 4, -1)
        assert_allclose(y, heads @ layer.output.weight.data, **CLOSE)
    layer.forward(x)
    assert_allclose(attention_weights(layer).sum(axis=-1), 1)  # without a reach all see all
    assert attention_weights(LAYERS["state_space"](rng)) is None


@every_kind
def test_masks_other_than_order_and_padding_are_refused(kind, rng, complaint):
    layer, x, places = layer_of(kind), rng.standard_normal((B, 4, D)), Places.without_padding(B, 4)
    for reach, received in (
        (np.ones((4, 4), bool), "an explicit mask"),
        (Reach(places, Places.without_padding(B, 3)), "keys of another sequence"),
    ):
        message = complaint(layer.forward, x, reach)
        assert f"received {received}. Pass Reach(places)" in message
    for first in ((), (3,)):
        whole = running_sums.sequence_reach(kind, None, x, *first).queries
        assert whole.valid.shape == (B, 4)
        assert_array_equal(whole.positions, np.arange(4) + sum(first))
    if kind == "state_space":
        for reach in (None, Reach(places)):
            message = complaint(layer.forward, x, reach)
            assert "received a reach that is not causal. Pass Reach(places, causal=" in message


def test_alibi_and_sizes_of_0_are_refused(complaint):
    message = complaint(TowerConfig, mixers="attention,linear", positions="alibi")
    assert "linear attention has none; received positions alibi, mixers attention,linear" in message
    TowerConfig(mixers="attention,state_space", positions="alibi")
    for name in ("d_state", "expansion"):
        assert f"{name} is an integer of at least 1; received 0" in complaint(
            TowerConfig, **{name: 0}
        )


def test_initial_steps_and_rates_are_those_of_the_paper():
    layer = StateSpace(D, 200, np.random.default_rng(0), d_v=1)
    step, rate = np.log1p(np.exp(layer.step_bias.data)), np.exp(layer.log_rate.data)
    assert 0.001 < step.min() < 0.0015 and 0.07 < step.max() < 0.1
    assert 1 < rate.min() < 1.5 and 15 < rate.max() < 16
    assert layer.features == 400 and layer.d_state == 64
    sizes = dict(d_model=D, d_ff=4, heads=H, layers=4, vocabulary=9, d_v=3, d_state=5)
    config = LanguageModel.Config(**sizes, mixers="linear,state_space")
    layers = LanguageModel(config).tower.layers
    linear, scan, *others = (layer.self_attention.sublayer for layer in layers)
    assert [type(part) for part in (linear, scan, *others)] == [LinearAttention, StateSpace] * 2
    assert scan.features == 2 * H * 3 and scan.d_state == 5 and linear.value.weight.shape == (D, 6)
