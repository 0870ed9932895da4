"""Greedy and beam search against exhaustive search, and against decoding without a cache."""

import dataclasses
import itertools
import math
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.data.vocabulary import END, PADDING, START, UNKNOWN, Vocabulary
from numformer.errors import BrokenNumbers
from numformer.generation import (
    Ensemble,
    Hypothesis,
    Transduction,
    beam,
    beam_search,
    greedy,
    length_penalty,
    log_probabilities,
    n_best,
)
from numformer.generation.beam import by_length
from numformer.generation.greedy import most_probable
from numformer.layer import inference, mode, pack
from numformer.models import Config, Transformer

V, LENGTH = 7, 4
GOING_ON = [symbol for symbol in range(V) if symbol not in (PADDING, START, END, UNKNOWN)]
EVERYTHING = len(GOING_ON) ** LENGTH + 1  # a beam that drops nothing
SOURCE = np.array([[4, 5, 6, 3, 2], [6, 4, 2, 0, 0], [2, 0, 0, 0, 0], [5, 5, 5, 2, 0]])
SEEDS = range(6)
ALPHAS = [0.0, 0.6, 1.0]

every_search = pytest.mark.parametrize("search", [greedy, beam_search])


def peaked(seed: int = 0, **changes) -> Transformer:
    """A float64 model whose distributions are far from even and differ at every position."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5, tying="none", norm="pre")
    model = Transformer(Config.base(V, **(sizes | dict(positions="learned") | changes)), seed)
    flat = pack(model, np.float64)
    flat.data += 0.15 * np.random.default_rng(seed).standard_normal(flat.data.shape)
    if model.config.positions == "learned":
        model.target.positions.weight.data[...] *= 6
    return model


class Chain(Transformer):
    """The next symbol depends on the last one alone, by a table; counts the positions decoded."""

    def __init__(self, table: dict[int, dict[int, float]]):
        super().__init__(Config.base(V, d_model=4, d_ff=4, heads=1, layers=1))
        self.probabilities = np.full((V, V), 1e-9)
        for symbol, following in table.items():
            self.probabilities[symbol, list(following)] = list(following.values())
        self.rows_decoded = []

    def step(self, ids, state):
        super().step(ids, state)
        self.rows_decoded.append(len(ids))
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities[ids])


class Remembering:
    """Stands in for a model: the next symbol depends on the source and on every symbol before.

    Its state holds the symbols themselves, so a hypothesis with another's state writes nonsense.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def start(self, source, length):
        state = SimpleNamespace(source=source, symbols=np.zeros((len(source), 0), int))
        state.ids = np.full(len(source), START)

        def choose(rows):
            state.source, state.symbols, state.ids = (
                each[rows] for each in (state.source, state.symbols, state.ids)
            )

        state.choose = choose
        return state

    def logits(self, row, symbols):
        known = np.array([self.seed, *row.ravel(), *symbols])
        return 2 * np.random.default_rng(zlib.crc32(known.tobytes())).standard_normal(V)

    def step(self, ids, state):
        state.symbols = np.column_stack([state.symbols, ids])
        return np.array([*map(self.logits, state.source, state.symbols)])

    def forward(self, source, target):
        length = target.shape[1]
        return np.array(
            [
                [self.logits(row, symbols[: t + 1]) for t in range(length)]
                for row, symbols in zip(source, target, strict=True)
            ]
        )


class Together(Ensemble):
    """Two models; a whole forward is the mean of their distributions, made by hand."""

    def __init__(self, seed: int):
        super().__init__([peaked(seed), peaked(seed + 8)])

    def forward(self, source, target):
        logits = [model.forward(source, target) for model in self.models]
        p = [np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in logits]
        return np.log((p[0] + p[1]) / 2)


def full_forward(model, row, targets):
    """Log probabilities (N, T, V) after start and `targets` (N, T - 1), without a cache."""
    targets = np.array(targets).reshape(len(targets), -1).astype(int)
    target_in = np.insert(targets, 0, START, axis=1)
    with inference():
        logits = model.forward(np.repeat(row[None], len(targets), axis=0), target_in)
    return log_probabilities(logits.reshape(-1, V)).reshape(logits.shape)


def score(model, row, ids, alpha, length=LENGTH):
    """Log probability / length penalty of a result, its end id included where it has one."""
    symbols = list(ids) if len(ids) == length else [*ids, END]
    log_p = full_forward(model, row, [symbols[:-1]])[0]
    total = sum(log_p[t, symbol] for t, symbol in enumerate(symbols))
    return total / ((5 + len(symbols)) / 6) ** alpha


def exhaustive(model, row, alpha, count=1):
    """The best of all sequences that end within LENGTH and of all of LENGTH without an end."""
    candidates = {}
    for length in range(LENGTH):
        prefixes = list(itertools.product(GOING_ON, repeat=length))
        log_p = full_forward(model, row, prefixes)
        for ids, table in zip(prefixes, log_p, strict=True):
            before = sum(table[t, symbol] for t, symbol in enumerate(ids))
            candidates[ids] = (before + table[-1, END]) / ((6 + length) / 6) ** alpha
            if length == LENGTH - 1:
                for last in GOING_ON:
                    total = before + table[-1, last]
                    candidates[*ids, last] = total / ((5 + LENGTH) / 6) ** alpha
    assert len(candidates) == sum(len(GOING_ON) ** n for n in range(LENGTH + 1))
    ranked = sorted(candidates, key=candidates.get, reverse=True)
    return [(candidates[ids], list(ids)) for ids in ranked[:count]]


@pytest.mark.parametrize("kind", [peaked, Remembering, Together])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_that_drops_nothing_finds_what_exhaustive_search_finds(kind, alpha):
    """Results of every length occur, or this would show little."""
    lengths = set()
    for seed in SEEDS:
        model = kind(seed)
        found = beam_search(model, SOURCE, LENGTH, EVERYTHING, alpha)
        assert found == [exhaustive(model, row, alpha)[0][1] for row in SOURCE]
        lengths |= set(map(len, found))
    assert lengths >= {0, 1, LENGTH}


@pytest.mark.parametrize("kind", [peaked, Remembering, Together])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_n_best_and_their_scores_are_those_of_exhaustive_search(kind, alpha):
    for seed in SEEDS[:3]:
        model = kind(seed)
        found = n_best(model, SOURCE, LENGTH, 5, EVERYTHING, alpha)
        for row, hypotheses in zip(SOURCE, found, strict=True):
            scores, ids = zip(*exhaustive(model, row, alpha, 5), strict=True)
            assert [each.ids for each in hypotheses] == list(ids)
            assert_allclose([each.score for each in hypotheses], scores, rtol=1e-9)
            assert {type(each.score) for each in hypotheses} == {float}


def test_what_is_impossible_is_not_among_the_n_best():
    """Of one symbol there are fewer results than the beam has places."""
    beam = len(GOING_ON) + 2
    for hypotheses in n_best(peaked(), SOURCE, 1, beam, beam):
        assert len(hypotheses) == beam - 1
        assert all(math.isfinite(each.score) for each in hypotheses)


@pytest.mark.parametrize("form", [{}, dict(norm="post"), dict(positions="sinusoidal")], ids=str)
def test_greedy_equals_a_full_forward_at_every_position(form):
    lengths = set()
    for seed in SEEDS:
        model, expected = peaked(seed, **form), []
        for row in SOURCE:
            ids = []
            while len(ids) < 9 and END not in ids:
                ids.append(int(full_forward(model, row, [ids])[0, -1].argmax()))
            expected.append([symbol for symbol in ids if symbol != END])
        assert greedy(model, SOURCE, 9) == expected
        lengths |= set(map(len, expected))
    assert len(lengths) > 1


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_each_row_alone_gives_what_it_gives_in_a_padded_batch(beam):
    for seed in SEEDS:
        model = peaked(seed)
        for search in (greedy, lambda *given: beam_search(*given, beam)):
            together = search(model, SOURCE, 9)
            rows = [row[None, row != PADDING] for row in SOURCE]
            assert [search(model, row, 9)[0] for row in rows] == together


def test_a_beam_finds_better_scores_than_greedy():
    """No theorem for a narrow beam, but so over these rows; a beam that loses its best fails."""
    better = 0
    for seed in SEEDS:
        model = peaked(seed)
        found = [greedy(model, SOURCE, 9), beam_search(model, SOURCE, 9, 4, 0.0)]
        for row, one, other in zip(SOURCE, *found, strict=True):
            gain = score(model, row, other, 0.0, 9) - score(model, row, one, 0.0, 9)
            assert gain > -1e-9
            better += gain > 1e-9
    assert better >= 4


@every_search
@pytest.mark.parametrize("length", [1, 2, 5])
def test_nothing_is_written_beyond_max_length(search, length):
    model = Chain({START: {4: 1.0}, 4: {4: 1.0}})
    assert search(model, SOURCE, length) == [[4] * length] * len(SOURCE)


@every_search
def test_padding_start_and_end_ids_are_never_written(search):
    often = {PADDING: 0.4, START: 0.4, END: 0.02, 5: 0.1}
    assert search(Chain({START: often, 5: {START: 0.5, END: 0.4}}), SOURCE[:1], 6) == [[5]]
    for seed in SEEDS:
        for ids in search(peaked(seed), SOURCE, 9):
            assert not {PADDING, START, END, UNKNOWN} & set(ids)


def test_decoding_stops_when_every_row_has_ended():
    model = Chain({START: {5: 0.9, 4: 0.05}, 5: {END: 0.9}, 4: {END: 0.9}})
    assert greedy(model, SOURCE, 50) == [[5]] * 4
    assert model.rows_decoded == [4, 4]


def test_beam_search_leaves_out_rows_that_are_done():
    """Probability 0.9 has ended at once, so nothing else can win; or after two positions."""
    model = Chain({START: {END: 0.9, 4: 0.05}})
    assert beam_search(model, SOURCE, 50, 4, 0.0) == [[]] * 4
    assert model.rows_decoded == [4 * 4]
    model = Chain({START: {5: 0.9, 4: 0.05}, 5: {END: 0.9}, 4: {END: 0.9}})
    assert beam_search(model, SOURCE, 50, 2, 0.0) == [[5]] * 4
    assert model.rows_decoded == [8, 8]


def test_an_ended_hypothesis_leaves_its_place_to_the_next():
    """Beam 2, of which one ends at once: 4 and 5 go on, and 5 6 is the best that there is."""
    chain = {START: {4: 0.5, END: 0.26, 5: 0.24}, 4: dict.fromkeys(GOING_ON, 0.25)}
    model = Chain(chain | {5: {6: 1.0}, 6: {END: 1.0}})
    assert beam_search(model, SOURCE[:1], 6, 2, 1.0) == [[5, 6]]


def test_log_probabilities_are_a_log_softmax_of_symbols_alone():
    """Padding, start and unknown are none."""
    logits = np.array([[900.0, -3.0, 899.0, 901.0, 899.0], [0.0] * 5], np.float32)
    found = log_probabilities(logits)
    total, none = math.log(math.exp(-1) + 2 * math.exp(-2) + 1), -np.inf
    expected = [none, none, -2 - total, none, -2 - total]
    assert_allclose(found, [expected, [none, none, -np.log(5), none, -np.log(5)]])
    assert found.dtype == np.float64


def test_length_penalty_by_hand():
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(19, 0.5) == 2
    assert length_penalty(30, 0.0) == 1


@pytest.mark.parametrize(("alpha", "chosen"), [(0.0, []), (0.6, []), (1.0, [4]), (2.0, [4, 5, 6])])
def test_the_length_penalty_changes_the_choice(alpha, chosen):
    """Log probabilities -0.87, -0.99 and -1.57, divided by 1, (7/6)^alpha and (9/6)^alpha."""
    model = Chain(
        {START: {END: 0.42, 4: 0.58}, 4: {END: 0.64, 5: 0.36}, 5: {6: 1.0}, 6: {END: 1.0}}
    )
    totals = {(): math.log(0.42), (4,): math.log(0.58 * 0.64), (4, 5, 6): math.log(0.58 * 0.36)}
    scores = {ids: total / ((6 + len(ids)) / 6) ** alpha for ids, total in totals.items()}
    assert max(scores, key=scores.get) == tuple(chosen)
    assert beam_search(model, SOURCE[:2], 6, 40, alpha) == [chosen] * 2


def test_an_ended_hypothesis_does_not_stop_one_that_can_still_win():
    """The first that ends (probability 0.5) is not the best, nor are the many that end after."""
    model = Chain({START: {4: 0.45, END: 0.5}, 4: {4: 1.0}})
    assert beam_search(model, SOURCE[:1], 30, 4, 1.0) == [[4] * 30]


class Coarse(Remembering):
    """Counts the rows decoded at each position, and has so few different numbers that sums tie."""

    def __init__(self, seed):
        super().__init__(seed)
        self.rows_decoded = []

    def logits(self, row, symbols):
        probabilities = 0.5 ** np.random.default_rng(
            [self.seed, *row.ravel(), *symbols]
        ).permutation([1, 2, 3, 4, 5, 6, 6])  # of the V symbols; they sum to 1
        return np.log2(probabilities)

    def step(self, ids, state):
        self.rows_decoded.append(len(ids))
        return super().step(ids, state)


def log2_probabilities(logits):
    """Exact numbers, as `log_probabilities` is without rounding: ties are ties."""
    logits = np.array(logits)
    logits[:, [PADDING, START, UNKNOWN]] = -np.inf
    return logits


def search_of_one_sentence(model, row, max_length, beam, alpha):
    """Beam search as one would write it for one sentence -> its result, the positions decoded.

    Of equal hypotheses the one met first goes before; the better parent is met first, and of one
    parent the smaller symbol.
    """

    def divisor(length):
        return ((5 + length) / 6) ** alpha

    impossible = (-math.inf, [])
    best, ended, hypotheses = impossible, 0, [(0.0, [])] + [impossible] * (beam - 1)
    for position in range(1, max_length + 1):
        candidates = []
        for total, ids in hypotheses:
            log_p = log2_probabilities([model.logits(row, [START, *ids])])[0]
            candidates += [(total + log_p[symbol], [*ids, symbol]) for symbol in range(V)]
        candidates.sort(key=lambda candidate: -candidate[0])
        for total, ids in candidates[:beam]:
            if ids[-1] == END and total > -math.inf:
                ended += 1
                if total / divisor(position) > best[0]:
                    best = total / divisor(position), ids
        hypotheses = [each for each in candidates if each[1][-1] != END][:beam]
        leading = hypotheses[0][0]
        if not leading / divisor(max_length) > best[0]:
            break
        if not leading / divisor(position) > best[0] and ended >= beam:
            break
    else:
        for total, ids in hypotheses:
            if total / divisor(max_length) > best[0]:
                best = total / divisor(max_length), ids
    return [symbol for symbol in best[1] if symbol != END], position


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 3, 12])
def test_a_batch_is_searched_as_each_sentence_by_itself(width, alpha, monkeypatch):
    """The same result, and no sentence decoded longer, also where hypotheses tie."""

    def all_symbols(logits, count):
        return np.broadcast_to(np.arange(logits.shape[1]), logits.shape), log2_probabilities(logits)

    monkeypatch.setattr(beam, "most_probable", all_symbols)
    for seed in range(10):
        for max_length in (1, 3, 6):
            model = Coarse(seed)
            found = beam_search(model, SOURCE, max_length, width, alpha)
            alone = [
                search_of_one_sentence(model, np.array(row), max_length, width, alpha)
                for row in SOURCE
            ]
            assert found == [ids for ids, _ in alone]
            positions = range(max(stop for _, stop in alone))
            open_at = [sum(stop > position for _, stop in alone) for position in positions]
            assert model.rows_decoded == [width * count for count in open_at]


def test_a_hypothesis_is_not_changed_once_it_is_ranked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Hypothesis(-1.0, [4]).score = 0.0


@every_search
def test_results_are_lists_of_python_integers(search):
    for seed in SEEDS:
        assert all(type(symbol) is int for ids in search(peaked(seed), SOURCE, 4) for symbol in ids)


@every_search
def test_a_device_writes_what_the_host_writes(search, stand_in):
    on_host, on_device = peaked(1), peaked(1)
    pack(on_device, np.float64, stand_in)
    assert search(on_device, SOURCE, 5) == search(on_host, SOURCE, 5)


@every_search
def test_the_model_is_left_as_it_was(search):
    model = peaked()
    before = model.state_dict()
    with mode(training=True, saving=True):
        found = search(model, SOURCE, 5)
        assert model.pending() == 0
    assert found == search(model, SOURCE, 5)
    for name, parameter in model.named_parameters().items():
        assert (parameter.data == before[name]).all() and not parameter.grad.any()


@every_search
def test_modes_return_when_decoding_fails(search, complaint):
    """conftest holds every test to the modes it began with."""
    complaint(search, peaked(), SOURCE + 1, 9)


@every_search
def test_a_model_that_does_not_write_is_refused(search, complaint):
    for has in "start", "step":
        said = complaint(search, SimpleNamespace(**{has: None}), SOURCE, 9)
        assert "has the methods start and step; received a SimpleNamespace" in said


def test_an_ensemble_has_models_that_write_and_the_room_of_the_smallest(complaint):
    assert "an ensemble has models" in complaint(Ensemble, [])
    assert "start and step" in complaint(Ensemble, [peaked(), SimpleNamespace(start=None)])
    assert Ensemble([peaked(max_length=9), Together(0), peaked(max_length=7)]).config.longest == 7
    assert Ensemble([peaked(positions="none")]).config.longest is None


def test_what_one_model_rules_out_and_another_does_not_is_improbable_and_not_impossible():
    models = [Chain({START: {symbol: 1.0}}) for symbol in (4, 5, 4)]
    for model in models:
        model.probabilities[START, 6] = 0
    for some, expected in (models, [2 / 3, 1 / 3, 0]), (models[:1], [1, 0, 0]):
        ensemble = Ensemble(some)
        with inference(), np.errstate(divide="raise"):
            state = ensemble.start(SOURCE, 3)
            log_p = ensemble.step(state.ids, state)
        assert_allclose(np.exp(log_p[:, [4, 5, 6]]), [expected] * 4, atol=1e-6)
        assert (log_p[:, 6] == -np.inf).all()


@pytest.mark.parametrize("value", [0, -1])
def test_bad_settings_are_refused(value, complaint):
    for search in (greedy, beam_search):
        text = complaint(search, peaked(), SOURCE, value)
        assert "max_length is an integer of at least 1" in text and str(value) in text
    assert "alpha is a number from 0 to 9" in complaint(
        beam_search, peaked(), SOURCE, 3, alpha=-0.1
    )
    text = complaint(beam_search, peaked(), SOURCE, 3, beam=value)
    assert "beam is an integer of at least 1" in text and str(value) in text
    assert "count is an integer of at least 1" in complaint(n_best, peaked(), SOURCE, 3, value)
    assert "count 5, beam 4" in complaint(n_best, peaked(), SOURCE, 3, 5)
    text = complaint(n_best, peaked(), SOURCE, 3, 1, penalty="none")
    assert "one of paper, length; received 'none'" in text


def test_the_penalties_are_what_they_are_called():
    assert by_length(3, 2.0) == 9 and length_penalty(7, 2.0) == 4


@every_search
def test_logits_that_are_no_numbers_are_told_of(search):
    """Or every sentence would be empty, without a word."""
    model = peaked()
    model.output.weight.data[3, 2] = np.nan
    with pytest.raises(BrokenNumbers, match="logits are NaN"):
        search(model, SOURCE, 3)


def test_the_most_probable_are_as_many_as_asked_for_with_their_log_probabilities(rng):
    logits = rng.normal(size=(5, V))
    symbols, log_p = most_probable(logits, 3)
    expected = log_probabilities(logits)
    assert symbols.tolist() == np.sort(np.argsort(expected, axis=-1)[:, -3:], axis=-1).tolist()
    assert_allclose(log_p, np.take_along_axis(expected, symbols, axis=-1), rtol=1e-12)
    assert most_probable(logits, 99)[0].tolist() == [[*range(V)]] * 5
    apart = (logits + np.array([[0], [900], [-900], [5], [0]])).astype(np.float32)
    found = most_probable(apart, V)[1]
    assert found.dtype == np.float64
    assert_allclose(found, log_probabilities(apart), rtol=1e-3, atol=1e-3)


def test_the_n_best_texts_have_the_scores_of_their_penalty():
    letters = Vocabulary("abc")
    model, source = peaked(1), np.array([[4, 5, END]])
    for how in (dict(alpha=0.0, penalty="paper"), dict(alpha=2.0, penalty="length")):
        others = dict(length_penalty=how["alpha"], penalty=how["penalty"])
        text = Transduction(letters, letters, 6, beam=3, **others)
        ((first, second),) = text.n_best(model, [[*"ab"]], 2)
        (expected,) = n_best(model, source, 6, 2, 3, **how)
        assert [first[0], second[0]] == [each.score for each in expected]
        assert first[1] == letters.decode(expected[0].ids)
        both = text.n_best(model, [["a"], [*"ab"]], 2)
        assert [written for _, written in both[1]] == [first[1], second[1]]
