"""Sampling: symbols as often as they are probable, cut where they should be, reproducible."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_generation import END, PADDING, SOURCE, START, UNKNOWN, Chain, V, peaked

from numformer.backend import seed_sequence
from numformer.data import Vocabulary
from numformer.generation import Continuation, Sampling, Transduction, sample
from numformer.layer import inference, mode, pack
from numformer.models.language_model import LanguageModel


def log_p(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log([probabilities])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [5, 2, 2, 1]),
        (dict(temperature=0.5), [25, 4, 4, 1]),
        (dict(temperature=2), np.sqrt([5, 2, 2, 1])),
        (dict(temperature=0), [1, 0, 0, 0]),
        (dict(temperature=1e-310), [1, 0, 0, 0]),
        (dict(temperature=1e300), [1, 1, 1, 1]),
        (dict(top_k=1), [1, 0, 0, 0]),
        (dict(top_k=2), [5, 2, 0, 0]),  # among equals the smaller id
        (dict(top_k=9), [5, 2, 2, 1]),
        (dict(top_p=1e-9), [1, 0, 0, 0]),
        (dict(top_p=0.49), [1, 0, 0, 0]),
        (dict(top_p=0.51), [5, 2, 0, 0]),
        (dict(top_p=0.71), [5, 2, 2, 0]),
        (dict(top_p=0.91), [5, 2, 2, 1]),
        (dict(top_p=1), [5, 2, 2, 1]),
        (dict(top_k=3, top_p=0.6), [5, 2, 0, 0]),
        (dict(top_k=1, top_p=0.6), [1, 0, 0, 0]),
        (dict(temperature=0.5, top_p=0.74), [25, 4, 0, 0]),
    ],
    ids=str,
)
def test_the_probabilities_to_draw_by(settings, expected):
    """The last two places are impossible, the symbols stand in another order in the second row."""
    given = np.concatenate([log_p(0.5, 0.2, 0.2, 0.1, 0, 0), log_p(0.1, 0.5, 0.2, 0.2, 0, 0)])
    before, expected = given.copy(), np.array(expected) / sum(expected)
    first, second = Sampling(**settings).probabilities(given)
    assert_allclose(first, [*expected, 0, 0], atol=1e-12)
    assert_allclose(second, [*expected[[3, 0, 1, 2]], 0, 0], atol=1e-12)
    assert (given == before).all()


@pytest.mark.filterwarnings("error")
def test_what_is_drawn_by_has_the_right_symbols_where_numbers_end():
    """A low temperature leaves numbers in a row less sure than another; equals by their ids."""
    both = np.concatenate([log_p(0.9, 0.1, 1e-9), log_p(0.3, 0.4, 0.3)])
    for temperature in (1e-3, 1e-320):
        p = Sampling(temperature).probabilities(both)
        assert_allclose(p, [[1, 0, 0], [0, 1, 0]], atol=1e-12)
    p = Sampling(top_p=0.75).probabilities(log_p(0.25, 0.5, 0.125, 0.125))
    assert_allclose(p, [[1 / 3, 2 / 3, 0, 0]])  # that reach p exactly
    assert Sampling(top_p=1.0).probabilities(log_p(1.0, 1e-20))[0, 1] > 0  # 1 without it
    equals = np.random.default_rng(1).integers(0, 2, (1, 200)).astype(float)
    likely = np.flatnonzero(equals[0])
    for count in range(1, len(likely)):  # a sort that is not stable would take others
        p = Sampling(top_k=count).probabilities(equals)
        assert (np.flatnonzero(p) == likely[:count]).all()


def test_a_number_that_meets_an_end_means_the_next_symbol_never_an_impossible_one():
    """Shares whose sum is rounded to a little below 1 leave nothing after the last symbol."""
    cases = [
        (0.0, 0.5, 4),
        (0.5, 0.5, 5),
        *((1 - 2**-53, p, 5) for p in np.linspace(0.02, 0.9, 45)),
    ]
    for number, share, symbol in cases:
        stream, model = SimpleNamespace(random=lambda n=number: n), Chain({})
        model.probabilities[START, [4, 5]] = share, 1 - share
        assert Sampling(top_k=2).write(model, SOURCE[:1], 1, [stream]) == [[symbol]]


def test_the_seed_decides_and_each_row_has_random_numbers_of_its_own():
    model, same = peaked(), np.repeat(SOURCE[:1], 20, axis=0)
    drawn = sample(model, same, 9)
    assert drawn == sample(model, same, 9, seed=0) != sample(model, same, 9, seed=1)
    assert len({*map(tuple, drawn)}) > 5
    other = np.concatenate([same[:2], SOURCE[1:]])
    assert sample(model, other, 9)[:2] == drawn[:2]


def drawn_without_cache(model, row, first: list[int], length: int, number: int) -> list[int]:
    """What a row draws from whole forwards: its stream's numbers, each on the line of p."""
    stream = np.random.default_rng(seed_sequence(7, "sampling", number))
    written = []
    for _ in range(length):
        with inference():
            logits = model.forward(*row, np.array([[*first, *written]]))[0, -1]
        p = np.exp(logits / 1.5)
        p[[PADDING, START, UNKNOWN]] = 0
        symbol = int(np.searchsorted(np.cumsum(p / p.sum()), stream.random()))
        if symbol == END:
            break
        written.append(symbol)
    return written


def language_model(vocabulary: int) -> LanguageModel:
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5)
    model = LanguageModel(LanguageModel.Config(vocabulary=vocabulary, **sizes))
    flat = pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


def test_symbols_are_drawn_from_the_logits_of_a_whole_forward():
    how = dict(temperature=1.5, seed=7)
    model = peaked(2)
    for number, ids in enumerate(sample(model, SOURCE, 9, **how)):
        assert ids == drawn_without_cache(model, [SOURCE[None, number]], [START], 9, number)
    model, beginnings = language_model(V), [[4, 5], [6, 4], [6, 4]]
    drawn = sample(model, np.array(beginnings), 12, **how)
    for number, ids in enumerate(drawn):
        assert ids == drawn_without_cache(model, [], beginnings[number], 12, number)
    assert max(map(len, drawn)) > 3


def test_the_model_is_left_as_it_was_and_a_device_draws_what_the_host_draws(stand_in):
    model, on_device = peaked(1), peaked(1)
    pack(on_device, np.float64, stand_in)
    with mode(training=True, saving=True):
        assert sample(model, SOURCE, 5) == sample(on_device, SOURCE, 5)
        assert model.pending() == 0


CHECKED = [
    ("temperature", [0, 0.5, 3], [-0.1, math.nan, math.inf, 10**400, 1.1e300, "1", None, True]),
    ("top_k", [None, 1, 10**30], [0, 1.5, True, "1"]),
    ("top_p", [None, 1e-300, 0.5, 1], [0, -0.1, 1.1, math.nan, "1", True]),
    ("seed", [0, 10**30], [None, -1, 1.5, True, "1"]),
    ("max_length", [1], [0]),
]


@pytest.mark.parametrize(("name", "fine", "refused"), CHECKED)
def test_settings_that_say_nothing_are_refused(name, fine, refused, complaint):
    for value in fine:
        sample(peaked(), SOURCE, **{"max_length": 2, name: value})
    for value in refused:
        text = complaint(sample, peaked(), SOURCE, **{"max_length": 2, name: value})
        assert text.startswith(f"{name} is a") and f"received {value!r}. " in text


# Texts.

LETTERS = Vocabulary("abc")  # ids 4, 5, 6


@pytest.mark.parametrize("settings", [dict(temperature=1.5), dict(top_k=3), dict(top_p=0.9)])
def test_a_transduction_is_sampled_where_a_setting_of_sampling_is_given(settings):
    """By the place of each text, though long ones are read first; without, a beam as ever."""
    text, model = Transduction(LETTERS, LETTERS, max_length=6, beam=3), peaked(1)
    asked = [[*"a"], [*"abc"], [*"a"], [*"cabba"]]
    drawn = text.write(model, asked, seed=3, **settings)
    assert drawn == text.write(model, asked, seed=3, **settings)
    assert drawn != text.write(model, asked, seed=4, **settings)
    usual = text.write(model, asked, **settings)
    assert usual == text.write(model, asked, seed=0, **settings)
    sources = np.array([[4, 2, 0, 0], [4, 5, 6, 2], [4, 2, 0, 0]])
    ids = sample(model, sources, 6, seed=3, **settings)
    assert drawn[:3] == [LETTERS.decode(row) for row in ids]
    assert text.write(model, asked, seed=3) == text.write(model, asked)


def test_a_beam_is_not_sampled_and_has_a_size(complaint):
    text = Transduction(LETTERS, LETTERS, max_length=6)
    for how, words in (
        (dict(beam=2, temperature=1.0), "received beam 2 and a temperature"),
        (dict(beam=0), "beam is an integer of at least 1; received 0"),
        (dict(max_length=0), "max_length is an integer of at least 1; received 0"),
    ):
        assert words in complaint(text.write, peaked(), [[*"ab"]], **how)


def test_a_continuation_goes_on_with_its_random_numbers_when_its_context_is_full():
    model, text = language_model(len(LETTERS)), Continuation(LETTERS, context=6)
    drawn = text.write(model, [["a"], ["b"]], length=20, top_k=3, temperature=1.5, seed=37)
    stream, expected = np.random.default_rng(seed_sequence(37, "sampling", 1)), ["b"]
    how = Sampling(1.5, top_k=3)
    while len(expected) < 21:
        known = expected if len(expected) < 6 else expected[-3:]
        room = min(6 - len(known), 21 - len(expected))
        (ids,) = how.write(model, np.array([LETTERS.encode(known)]), room, [stream])
        expected += LETTERS.decode(ids)
        if len(ids) < room:
            break
    assert drawn[1] == expected and len(expected) > 7
    assert drawn != text.write(model, [["a"], ["b"]], length=20, top_k=3, temperature=1.5, seed=8)
    assert text.write(model, [["a"]], length=5, seed=1) == text.write(model, [["a"]], length=5)
    usual = text.write(model, [["a"], ["b"]], temperature=1.5)
    assert usual == text.write(model, [["a"], ["b"]], temperature=1.5, seed=0)
