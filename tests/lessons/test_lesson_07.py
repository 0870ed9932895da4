"""Lesson 7: its simulations by plain formulas, its numbers and its claims."""

import re

import numpy as np
import pytest

import lessons
from lessons.kit.lesson import Picture, pieces
from lessons.lesson_07 import forcing, toy
from lessons.lesson_07.mask import BECOMES, CHANGES, HIDING, compute, vectors
from lessons.lesson_07.toy import KNOWN, NEW, Leaky, floor, ids_of
from numformer import CrossAttention, Transformer, inference
from numformer.data.batching import pad_sources
from numformer.data.vocabulary import END, START

LESSON = lessons.load(7)


def text_of(name: str) -> str:
    shown = pieces(getattr(LESSON, name))
    return "\n\n".join(piece.markdown() for piece in shown if not isinstance(piece, Picture))


def column(name: str, number: int) -> list[float]:
    """Of the first table that a function shows."""
    rows = re.search(r"---.*\n((?:\|.*\n?)*)", text_of(name))[1].splitlines()
    return [float(row.split(" | ")[number].strip("| %").replace("−", "-")) for row in rows]


@pytest.mark.parametrize("change", range(5))
@pytest.mark.parametrize("how", range(3))
def test_the_mask_does_what_plain_formulas_say(how, change):
    def attention(query, key, value):
        weights = np.zeros((5, 5))
        for t in range(5):
            all_there = range(t + 1) if how == 0 else range(5)
            scores = {s: np.exp(query[t] @ key[s] / np.sqrt(3)) for s in all_there}
            for s in range(5 if how == 1 else t + 1):
                weights[t, s] = scores[s] / sum(scores.values())
        return weights @ value, weights

    query, key, value = vectors()
    shown = compute(HIDING[how].value, CHANGES[change].value, BECOMES[change].value)
    new = np.concatenate([key, value], axis=1)
    new[change] = BECOMES[change].value
    after, weights = attention(query, new[:, :3], new[:, 3:])
    np.testing.assert_allclose(shown["output"], attention(query, key, value)[0], atol=1e-12)
    np.testing.assert_allclose(shown["after"], after, atol=1e-12)
    np.testing.assert_allclose(shown["weights"], weights, atol=1e-12)
    answering = range(change if how == 0 else 0, 5) if change else ()
    assert np.flatnonzero(shown["difference"].any(axis=1)).tolist() == [*answering]


@pytest.mark.parametrize("sentence", forcing.SENTENCES)
def test_what_a_decoder_reads_and_says_is_what_it_does_step_by_step(sentence):
    french, english = sentence
    model, right = toy.trained(Transformer, toy.SEEDS[0]).model, [*ids_of(english), END]
    with inference():
        state = model.start(pad_sources([ids_of(french)]), 6)
        logits = np.array([model.step(np.array([i]), state)[0] for i in [START, *right[:-1]]])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for t in range(6):
        shown = forcing.compute(sentence, Transformer, False, t)
        np.testing.assert_allclose(shown["honest"], probabilities[range(6), right], atol=1e-5)
        assert shown["said"] == logits[t].argmax() and shown["wanted"] == right[t]
        assert np.isclose(shown["loss"], -np.log(shown["honest"][t]))
        np.testing.assert_allclose(shown["seen"].sum(axis=1), 1, atol=1e-5)
        assert not shown["seen"][np.triu_indices(6, 1)].any()
        assert min(*shown["leaky"], *shown["zeroed"]) > 0.9
        own = forcing.compute(sentence, Transformer, True, t)["inputs"].tolist()
        assert own == [START, *ids_of(toy.writes(model, [french])[0])][: t + 1] + [0] * (5 - t)
    assert forcing.compute(sentence, Leaky, False, 0)["seen"][0, 1:].sum() > 0.5


def test_the_example_of_cross_attention_is_what_the_library_computes():
    layer = CrossAttention(3, 1, np.random.default_rng(0), d_k=2, d_v=1)
    for name in ("query", "key", "value"):
        getattr(layer, name).weight.data[...] = getattr(LESSON, f"{name}_weight")
    layer.output.weight.data[...] = [[1, 0, 0]]
    y = layer.forward(LESSON.x[None], LESSON.memory[None])
    np.testing.assert_allclose(y[0, :, :1], LESSON.output, atol=1e-6)
    wanted = layer.backward(np.pad(LESSON.doutput, ((0, 0), (0, 2)))[None])
    _, dx, _, _, total, _ = pieces(LESSON.across_backward)
    for gradient, shown in zip(wanted, (dx, total), strict=True):
        np.testing.assert_allclose(gradient[0], shown.numbers, atol=1e-5)


def test_what_is_said_of_leaks_is_so():
    honest, leaky = (p.numbers for p in pieces(LESSON.backward_nothing_leaks)[:2])
    assert (honest != 0).tolist() == np.tri(6, dtype=bool).tolist() and leaky.all()
    text = " ".join(text_of("forward_nothing_leaks").split())
    assert "With the mask 1, 2, 3, 4, 5 positions" in text and "without it 0, 0, 0, 0, 0." in text
    power, leak = re.findall(r"10\^\{-(\d+)\}|differ by (\d+\.\d)", text_of("one_at_a_time"))
    assert int(power[0]) > 4 and float(leak[1]) > 1
    assert len({*re.findall(r"0\.\d{4}", text_of("what_leaks"))}) == 5


def test_what_is_said_of_the_models_is_what_was_measured():
    unsure = sum(text.startswith("son") for text in KNOWN) * np.log(3)
    assert round(floor(KNOWN + NEW), 3) == 0.095  # "1.10 / 2 / 5.8"
    assert np.isclose(floor(KNOWN), unsure / sum(len(text.split()) + 2 for text in KNOWN))
    losses, held_out, right = (column("three_ways_to_hide", number) for number in (1, 2, 3))
    assert right == [100, 100, 0, 0, 0, 0]
    assert max(losses[2:]) < floor(KNOWN) / 20 and min(held_out[:2]) > floor(NEW)
    (loss,) = re.findall(r"a loss of (\d\.\d+)", text_of("common_claims"))
    assert float(loss) in losses[4:] and "weights 0, 0, 0;" in " ".join(
        text_of("common_claims").split()
    )
