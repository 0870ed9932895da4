"""Lesson 4: its numbers and claims, computed again another way."""

import numpy as np
import pytest
from lesson_solutions import words_of

import lessons
from lessons.kit.lesson import pieces
from lessons.lesson_04 import reverse, simulations, two_heads
from numformer.data.vocabulary import END


@pytest.mark.parametrize("sentence", two_heads.sentences)
def test_two_heads_have_the_numbers_of_plain_formulas(sentence, rng):
    """Head by head, with a weight of its own for each, and gradients by the chain rule."""
    x, dy = two_heads.embedded(sentence), rng.standard_normal((5, 6))
    shown, c, dx, dwq = two_heads.compute(dy, sentence), [], np.zeros((5, 6)), []
    for head, name in enumerate(("one", "two")):
        w_q, w_k, w_v = (
            w[:, 3 * head : 3 * head + 3] for w in (two_heads.W_Q, two_heads.W_K, two_heads.W_V)
        )
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        a = np.exp(q @ k.T / np.sqrt(3))
        a /= a.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(shown[f"a{name}"], a, atol=1e-12)
        c.append(a @ v)
        do = dy @ two_heads.W_O[3 * head : 3 * head + 3].T
        jacobians = [np.diag(row) - np.outer(row, row) for row in a]
        de = np.array([j @ v @ g for j, g in zip(jacobians, do, strict=True)]) / np.sqrt(3)
        np.testing.assert_allclose(shown[f"dq{name}"], de @ k, atol=1e-12)
        dx += de @ k @ w_q.T + de.T @ q @ w_k.T + a.T @ do @ w_v.T
        dwq.append(x.T @ de @ k)
    np.testing.assert_allclose(shown["y"], np.hstack(c) @ two_heads.W_O, atol=1e-12)
    np.testing.assert_allclose(shown["dx"], dx, atol=1e-12)
    np.testing.assert_allclose(shown["dwq"], np.hstack(dwq), atol=1e-12)


def test_the_numbers_by_hand_are_these():
    arrays = two_heads.compute()
    assert arrays["qone"][4].tolist() == [-4, 8, -4] and arrays["qtwo"][4].tolist() == [4, 0, 0]
    place = np.arange(-2, 3)
    keys = two_heads.embedded(two_heads.words) @ two_heads.W_K
    scores = -4 * (place - (place[:, None] - 1)) ** 2
    np.testing.assert_allclose(arrays["qone"] @ keys[:, :3].T, scores)
    assert np.allclose(arrays["aone"][4, 2] / arrays["aone"][4, 3], 0.1, atol=0.001)
    assert two_heads.compute(sentence=two_heads.sentences[1])["y"][4, 2] < -0.5 < arrays["y"][4, 2]


def test_one_head_loses_half_and_two_heads_nothing():
    picture, _ = pieces(lessons.load(4).one_head_against_several)
    one, two, four, _ = (line.get_ydata() for line in picture.figure().axes[0].lines)
    assert 0.35 < np.mean(one[-20:]) < 0.5 and max(two[-1], four[-1]) < 0.01 < 0.9 < two[0]


def test_the_trained_model_is_as_the_text_says():
    model, task = reverse.trained()
    words = [word for word, _ in task.test[: reverse.TESTED]]
    written = zip(task.write(model, words), words, strict=True)
    right = [answer == word[::-1] for answer, word in written]
    assert reverse.exact_match() == np.mean(right) >= 0.9  # by writing letter after letter
    shares = {name: reverse.shares(name) for name in reverse.ATTENTIONS}
    assert shares["cross-attention, layer 2"]["the letter to write"].min() > 0.6
    batch, total = reverse.tested(), 0.0
    weights = reverse.weights_of("cross-attention, layer 2", batch)
    for row, word in enumerate(words):  # the share, letter by letter
        assert batch.source[row, len(word)] == END
        total += sum(weights[row, 3, t, len(word) - 1 - t] for t in range(len(word)))
    share = shares["cross-attention, layer 2"]["the letter to write"][3]
    assert abs(share - total / sum(map(len, words))) < 1e-5


def test_what_is_said_of_removed_heads_is_what_was_measured():
    model, alone = reverse.trained()[0], {}
    before = model.state_dict()
    for name in reverse.ATTENTIONS:
        value = reverse.layer(name).value.weight.data  # no value, nothing shown: another way
        kept, alone[name] = value.copy(), 0.0
        for head in range(4):
            value[:, np.arange(32) // 8 != head] = 0
            others = tuple({0, 1, 2, 3} - {head})
            assert reverse.exact_match() == reverse.left_without(name, others)
            alone[name] = max(alone[name], reverse.exact_match())
            value[...] = kept
    last, every = "cross-attention, layer 2", (0, 1, 2, 3)
    assert alone[last] == min(alone.values()) < 0.3
    left = reverse.left_without
    assert left("reading, layer 1", every) > 0.9 and left(last, every) < 0.1
    one_look = {name: reverse.left_with_one_look(name) for name in reverse.ATTENTIONS}
    assert one_look[last] > 0.9 and min(one_look.values()) < 0.98
    assert all((array == before[name]).all() for name, array in model.state_dict().items())
    text = words_of(4, "heads_removed")
    assert f"best of them alone, {100 * alone[last]:.0f} % of the words" in text
    shown = simulations.left(last, one=True, two=False, three=True, four=True)
    assert shown["exact"] == left(last, (0, 2, 3))
