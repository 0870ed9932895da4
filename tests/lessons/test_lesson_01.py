"""Lesson 1: its numbers and claims, computed again another way."""

import itertools

import numpy as np
import pytest

import lessons
from lessons.lesson_01 import distance, reversal, through_time, timeline
from lessons.lesson_01.distance import SCALES, typical
from numformer.models import RecurrentEncoderDecoder
from numformer.paper import MultiHeadAttention
from numformer.recurrence import LSTMCell, Recurrent
from toy_tasks.bottleneck import ATTENTION, DEFAULTS, FIXED, ROWS

LESSON = lessons.load(1)

# Of three words further and further back, in percent: once compared with small steps of each word.
REACHES = {
    ("RNN", 1.5): [82.81, 3.548, 0.009009],
    ("LSTM", 2): [68.88, 27.8, 23.46],
    ("attention", 1): [7.557, 12.52, 9.987],
}


@pytest.mark.parametrize(("kind", "setting"), REACHES)
def test_gradients_against_distance_are_those_of_small_steps(kind, setting):
    wanted, shown = REACHES[kind, setting], distance.compute(1.5, 2)
    np.testing.assert_allclose(shown[kind.lower()][[1, 20, 60]], wanted, rtol=1e-3)


def test_wrong_letters_are_marked():
    figures, *_ = reversal.collapse.views
    for word in reversal.WORDS:
        shown = figures.shown(reversal.compute(word, 8), {})
        for kind, wrong in shown["wrong"].items():
            written, backwards = shown[kind].split(), word[::-1]
            assert wrong == [
                n for n, letter in enumerate(written) if letter != backwards[n : n + 1]
            ]
    assert shown["wrong"]["attention"] == [] != shown["wrong"]["fixed"]


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
    for scale, loss in itertools.product(scales.options[::5], losses.options):
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
    lengths = through_time.compute(5, 1.0, through_time.at_the_end)["lengths"][:3]
    assert lengths.round(2).tolist() == [1.02, 1.03, 1.41]
    assert f"{0.9**100:.5f} {1.1**100:,.0f}" == "0.00003 13,781"
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
    rng = np.random.default_rng(0)
    for layer, count in (
        (Recurrent(LSTMCell(64, rng), 64, rng), 8),
        (MultiHeadAttention(64, 4, rng), 4),
    ):
        sizes = [p.data.size for p in layer.named_parameters().values() if p.data.ndim == 2]
        assert sum(sizes) == count * 64**2  # each word meets every weight
    assert attention.weights("beach").argmax(axis=1)[:5].tolist() == [4, 3, 2, 1, 0]
