"""Lesson 1: its numbers and claims, computed again another way."""

import itertools

import numpy as np
import pytest

import lessons
from lessons.lesson_01 import distance, reversal, through_time, timeline
from lessons.lesson_01.distance import SCALES, measured, typical
from numformer.layer import pack
from numformer.layers import LSTMCell, MultiHeadAttention, Recurrent, RNNCell
from numformer.models import RecurrentEncoderDecoder
from toy_tasks.bottleneck import ATTENTION, DEFAULTS, FIXED, ROWS

LESSON = lessons.load(1)

KINDS_OF_LAYERS = {
    "RNN": (1.5, lambda rng: Recurrent(RNNCell(32, rng), 32, rng)),
    "LSTM": (2, lambda rng: Recurrent(LSTMCell(32, rng), 32, rng)),
    "attention": (1, lambda rng: MultiHeadAttention(32, 4, rng)),
}


@pytest.mark.parametrize("kind", KINDS_OF_LAYERS)
def test_gradients_against_distance_are_those_of_small_steps(kind):
    rng, steps, lengths = np.random.default_rng(1), 1e-5 * np.eye(32), []
    setting, build = KINDS_OF_LAYERS[kind]
    layer = build(rng)
    pack(layer, np.float64)
    if kind == "RNN":
        layer.cell.weight.data[...] *= setting
    elif kind == "LSTM":
        layer.input.bias.data[32:64] += setting - 1
    rng = np.random.default_rng([1, 1])
    x, upstream = rng.standard_normal((8, 61, 32)), rng.standard_normal((8, 32))
    for back in (0, 1, 20):
        moved = np.repeat(x[None], 64, axis=0)
        moved[:, :, 60 - back] += np.concatenate([steps, -steps])[:, None]
        moved = moved.reshape(-1, 61, 32)
        results = layer.forward(moved, *[moved] * (kind == "attention"))
        results = results[:, -1].reshape(2, 32, 8, 32)
        slopes = np.einsum("inj,nj->ni", results[0] - results[1], upstream)
        lengths.append((np.linalg.norm(slopes, axis=1) / np.linalg.norm(upstream, axis=1)).mean())
    expected = 100 * np.array(lengths) / lengths[0]
    np.testing.assert_allclose(measured(kind, setting)[1, [0, 1, 20]], expected, rtol=1e-4)
    shown = distance.compute(setting if kind == "RNN" else 1.0, setting if kind == "LSTM" else 1)
    curve, rate = shown[kind.lower()], shown[f"{kind.lower()}_kept"]
    np.testing.assert_array_equal(curve, typical(kind, setting))
    np.testing.assert_allclose(np.log(rate), np.diff(np.log(curve[10:51])).mean())


def states(a, w):
    def step(state, share):
        return np.tanh(share + state @ w)

    return np.array([*itertools.accumulate(a, step, initial=np.zeros(2))])


def slopes(function, x):
    units = 1e-6 * np.eye(x.size).reshape(-1, *x.shape)
    return np.array([function(x + d) - function(x - d) for d in units]).reshape(x.shape) / 2e-6


@pytest.mark.parametrize("moment", range(6))
def test_three_words_there_and_back_are_those_of_small_steps(moment):
    """The derivatives of the weighted sum of the states, in each a and in W."""
    (_, scales, losses), a = through_time.through_time.controls, through_time.share
    t, forward = min(moment, 5 - moment), moment < 3
    for scale, loss in itertools.product(scales.options, losses.options):
        w, g = scale.value * through_time.weight, loss.value
        da = slopes(lambda a, w=w, g=g: (states(a, w)[1:] * g).sum(), a)
        h, later = states(a, w), np.vstack([da[1:] @ w.T, np.zeros((1, 2))])
        numbers = [*h[1:], *a] if forward else [*(g + later), *da]
        known = [n <= t if forward else n >= t for n in range(3)] * 2
        back = np.array([g[t], later[t], g[t] + later[t], da[t], da[t] @ w.T])
        dw = slopes(lambda w, g=g: (states(a, w)[1:] * g).sum(), w)
        dw = {5: dw, 4: dw - np.outer(h[0], da[0]), 3: np.outer(h[2], da[2])}.get(moment, 0)
        expected = dict(at=t, way=1 if forward else -1, weight=w, dweight=dw)
        expected["forward"] = [h[t], h[t] @ w, a[t], h[t] @ w + a[t], h[t + 1]]
        expected["backward"] = back * (not forward)
        expected["lengths"] = np.linalg.norm(numbers, axis=1) * known
        shown = through_time.compute(moment, scale.value, g)
        for name, wanted in expected.items():
            np.testing.assert_allclose(shown[name], wanted, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(("layers", "words"), [(1, 4), (2, 24), (4, 16)])
def test_what_waits_ends_when_it_should(layers, words):
    shown = timeline.compute(layers, words)
    ends = {(t, t + n + 1) for t in range(words) for n in range(layers)}
    assert {(t, end) for t, _, end in shown["rnn_forward"]} == ends
    whole = 2 * (words + layers - 1)
    assert {(t, whole - begin) for t, begin, _ in shown["rnn_backward"]} == ends
    both = np.concatenate([shown["attention_forward"], shown["attention_backward"]])
    wanted = [[t, 4 * n, 4 * n + 4] for n in range(2 * layers) for t in range(words)]
    assert sorted(both.tolist()) == sorted(wanted)
    at_once = shown["rnn_at_once"], shown["attention_at_once"]
    assert at_once == (min(layers, words), words)
    assert (shown["rnn_chain"], shown["attention_chain"]) == (whole, 8 * layers)


def test_what_the_text_says_of_the_example_and_of_gradients():
    rnn, lstm, attention = (typical(kind) for kind in ("RNN", "LSTM", "attention"))
    assert rnn[10] < 1 < rnn[9] and lstm[27] < 1 < lstm[26]
    assert rnn[-1] < 1e-10 < 1e-3 < lstm[-1] and attention[1:].max() < 2 * attention[1:].min()
    at_20 = [typical("RNN", scale)[20] for scale in SCALES[5:]]
    assert at_20[0] < 50 < 150 < at_20[1] < 1000 < at_20[3]


def test_what_the_text_says_of_the_fixed_context_and_of_operations():
    assert round(20 * np.log2(26)) == 94 and round(94 / 64, 1) == 1.5 and 2 ** (94 / 64) < 3
    sizes = dict.fromkeys(["source_vocabulary", "target_vocabulary"], 4 + 26)
    for row, count in zip((FIXED, ATTENTION), reversal.PARAMETERS, strict=True):
        given = {name: (DEFAULTS | ROWS[row])[name] for name in ("d_model", "context")}
        model = RecurrentEncoderDecoder(RecurrentEncoderDecoder.Config(**sizes, **given))
        assert model.parameter_counts()["total"] == count
    fixed = reversal.MEASURED[FIXED]
    assert fixed[5] > 0.99 > 0.95 > fixed[6] and abs(fixed[9] - 0.5) < 0.1 and fixed[15] < 0.01
    small, attention = map(reversal.trained, reversal.KINDS)
    assert small.right[2] > 0.9 > 0.2 > small.right[-1] and min(attention.right) > 0.9
    for n in (3, 50):
        assert LESSON.multiplications(LESSON.LSTM, n) == 8 * n * 64**2
        assert LESSON.multiplications(LESSON.ATTENTION, n) == 4 * n * 64**2 + 2 * n**2 * 64
        assert LESSON.steps_and_memory(LESSON.LSTM, n)[0] == n
    assert attention.weights("beach").argmax(axis=1)[:5].tolist() == [4, 3, 2, 1, 0]
