"""Greedy, beam search and sampling, compared with searches of one sentence without a cache."""

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import numformer as nf
from numformer.errors import BrokenNumbers
from numformer.generation import beam as grouped_beam
from numformer.generation.beam import largest_in_groups
from numformer.paper import beam
from numformer.paper.beam import most_probable
from numformer.paper.memory import ArrayState, Memory, SourceState
from numformer.randomness import seed_sequence

V = 7
GOING_ON = [4, 5, 6]
SOURCE = np.array([[4, 5, 6, 3, 2], [6, 4, 2, 0, 0], [2, 0, 0, 0, 0], [5, 5, 5, 2, 0]])

LETTERS = nf.Vocabulary("abc")  # V symbols

every_search = pytest.mark.parametrize("search", [nf.greedy, nf.beam_search, nf.sample])


def peaked(seed: int = 0, **changes) -> nf.Transformer:
    """A float64 model with uneven distributions that differ at every position."""
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5, tying="none", norm="pre")
    model = nf.Transformer(nf.Config.base(V, **(sizes | dict(positions="learned") | changes)), seed)
    flat = nf.pack(model, np.float64)
    flat.data += 0.15 * np.random.default_rng(seed).standard_normal(flat.data.shape)
    if model.config.positions == "learned":
        model.target.positions.weight.data[...] *= 6
    return model


class Chain(nf.Transformer):
    """A model whose next symbol depends only on the last one; it records the rows decoded."""

    def __init__(self, table: dict[int, dict[int, float]], **changes):
        super().__init__(nf.Config.base(V, d_model=4, d_ff=4, heads=1, layers=1, **changes))
        self.probabilities = np.full((V, V), 1e-9)
        for symbol, following in table.items():
            self.probabilities[symbol, list(following)] = list(following.values())
        self.rows_decoded = []

    def step(self, ids, state):
        super().step(ids, state)
        self.rows_decoded.append(len(ids))
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities[ids])


@dataclass
class CoarseState:
    """The state of Coarse: the source and the symbols written so far."""

    source: np.ndarray
    symbols: np.ndarray

    @property
    def ids(self):
        return np.full(len(self.source), nf.START)

    def choose(self, rows):
        self.source, self.symbols = self.source[rows], self.symbols[rows]


class Coarse:
    """A stand-in for a model: the next symbol depends on the source and all earlier symbols.

    Its log probabilities, to the base 2, are so few integers that sums tie.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def start(self, source, length):
        return CoarseState(source, np.zeros((len(source), 0), int))

    def logits(self, row, symbols):
        rng = np.random.default_rng([self.seed, *row, *symbols])
        return -rng.permutation([1.0, 2, 3, 4, 5, 6, 6])  # of the V symbols; 2^x sum to 1

    def step(self, ids, state):
        state.symbols = np.column_stack([state.symbols, ids])
        return np.array([*map(self.logits, state.source, state.symbols)])


class TwoModels(nf.Ensemble):
    """Two models, with a forward that averages their distributions explicitly."""

    def __init__(self, seed: int):
        super().__init__([peaked(seed), peaked(seed + 8)])

    def forward(self, source, target):
        logits = [model.forward(source, target) for model in self.models]
        p = [np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in logits]
        return np.log((p[0] + p[1]) / 2)


def full_forward(model, row, ids) -> np.ndarray:
    """Log probabilities (V,) of the symbol after start and `ids`, without a cache."""
    with nf.inference():
        return nf.log_probabilities(model.forward(row[None], np.array([[nf.START, *ids]]))[:, -1])[
            0
        ]


def without_special(logits):
    return np.where(np.isin(np.arange(V), (nf.PADDING, nf.START, nf.UNKNOWN)), -np.inf, logits)


def exact(model, row, ids) -> np.ndarray:
    """As full_forward, without rounding, so that ties are exact."""
    return without_special(model.logits(row, [nf.START, *ids]))


def all_symbols(logits, count, special=None, largest=None):
    """As most_probable, without rounding."""
    return np.broadcast_to(np.arange(V), logits.shape), without_special(logits)


def with_memory(log_p_after):
    """The same function, which computes its value for a row and ids once."""
    memory = {}

    def call(row, ids):
        key = *row, -1, *ids
        return memory[key] if key in memory else memory.setdefault(key, log_p_after(row, ids))

    return call


def search_of_one_sentence(log_p_after, max_length, count, width, alpha):
    """A plain beam search for one sentence: scores and ids, and the number of positions decoded.

    Of equal hypotheses the one met first goes before; the better parent is met first, and of one
    parent the smaller symbol.
    """

    def ranked(ways, most):
        return sorted(ways, key=lambda way: -way[0])[:most]

    def scored(ways, length):
        return [(total / ((5 + length) / 6) ** alpha, ids) for total, ids in ways]

    best, ended, hypotheses = [], 0, [(0.0, [])]
    for position in range(1, max_length + 1):
        ways = [
            (total + log_p, [*ids, symbol])
            for total, ids in hypotheses
            for symbol, log_p in enumerate(log_p_after(ids))
            if log_p > -np.inf
        ]
        ends = [(total, ids[:-1]) for total, ids in ranked(ways, width) if ids[-1] == nf.END]
        ended += len(ends)
        best = ranked(best + scored(ends, position), count)
        hypotheses = ranked([way for way in ways if way[1][-1] != nf.END], width)
        worst = best[-1][0] if len(best) == count else -np.inf
        ((can_reach, _),) = scored(hypotheses[:1], max_length)
        ((ahead, _),) = scored(hypotheses[:1], position)
        if not can_reach > worst or (not ahead > worst and ended >= width):
            return best, position
    return ranked(best + scored(hypotheses, max_length), count), max_length


def counted(step, decoded: list, ids, state):
    decoded.append(len(ids))
    return step(ids, state)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 3), (5, 90)])
@pytest.mark.parametrize("kind", [Coarse, peaked, TwoModels])
def test_a_batch_gives_the_results_of_each_sentence_alone(kind, count, width, alpha, monkeypatch):
    """The same hypotheses, scores and lengths, even if hypotheses tie.

    The widest beam drops nothing of up to three symbols: so it is an exhaustive search.
    """
    log_p_after, seeds = full_forward, [1]
    if kind is Coarse:
        monkeypatch.setattr(beam, "most_probable", all_symbols)
        log_p_after, seeds = exact, range(6 if width < 9 else 2)
    functions = {seed: with_memory(partial(log_p_after, kind(seed))) for seed in seeds}
    for seed, max_length in itertools.product(seeds, (1, 3) if width > 9 else (1, 3, 6)):
        model, decoded, settings = kind(seed), [], (max_length, count, width, alpha)
        model.step = partial(counted, model.step, decoded)
        best, stops = nf.n_best(model, SOURCE, *settings), []
        for row, hypotheses in zip(SOURCE, best, strict=True):
            expected, stop = search_of_one_sentence(partial(functions[seed], row), *settings)
            stops.append(stop)
            assert [h.ids for h in hypotheses] == [ids for _, ids in expected]
            assert_allclose([h.score for h in hypotheses], [s for s, _ in expected], rtol=1e-9)
            assert {type(h.score) for h in hypotheses} == {float}
            assert {type(symbol) for h in hypotheses for symbol in h.ids} <= {int}
        open_rows = [sum(stop > place for stop in stops) for place in range(max(stops))]
        assert decoded == [width * rows for rows in open_rows]
        first = [hypotheses[0].ids for hypotheses in best]
        for search in (nf.beam_search, beam.beam_search) if count == 1 else ():
            assert search(model, SOURCE, max_length, width, alpha) == first
        assert width > 1 or kind is Coarse or nf.greedy(model, SOURCE, max_length) == first


def test_impossible_symbols_are_not_among_the_n_best():
    """With one possible symbol there are fewer results than the beam is wide."""
    for hypotheses in nf.n_best(peaked(), SOURCE, 1, 5, 5):
        assert len(hypotheses) == len(GOING_ON) + 1
        assert all(math.isfinite(hypothesis.score) for hypothesis in hypotheses)
    _, ended = beam.Beam(1, 12).extend(*all_symbols(np.zeros((12, V)), V))
    assert ended == [(0, 0, [])]


def test_the_beam_stays_full_after_a_hypothesis_has_ended():
    after = {nf.START: {nf.END: 0.32, 4: 0.3, 5: 0.29}, 4: {nf.END: 0.4, 4: 0.3, 6: 0.3}}
    model = Chain(after | {5: {nf.END: 0.99}, 6: {nf.END: 1}})
    assert nf.beam_search(model, SOURCE[:1], 3, 2, 2.0) == [[5]]
    ends = {nf.END: 0.15, 6: 0.14, nf.UNKNOWN: 0.13}
    after = {nf.START: ends | {4: 0.4, 5: 0.12}, 4: {4: 1, 5: 1, 6: 1, nf.END: 1}, 5: {6: 1}}
    model = Chain(after, other_ends=(3, 6), unwritten=(0, 1))
    assert nf.beam_search(model, SOURCE[:1], 2, 2, 2.0) == [[5]]


@every_search
def test_at_most_max_length_symbols_are_written_and_no_special_ones(search):
    endless = Chain({nf.START: {4: 1.0}, 4: {4: 1.0}})
    for length in (1, 2, 5):
        assert search(endless, SOURCE, length) == [[4] * length] * len(SOURCE)
    often = {nf.PADDING: 0.4, nf.START: 0.4, nf.END: 1e-9, 5: 0.1}
    model = Chain({nf.START: often, 5: {nf.START: 0.5, nf.END: 0.4}})
    found = search(model, SOURCE, 50)
    assert found == [[5]] * 4 and type(found[0][0]) is int
    assert search is nf.beam_search or model.rows_decoded == [4, 4]


def test_log_probabilities_are_a_log_softmax_of_symbols_alone():
    """Padding, start and unknown are excluded."""
    logits = np.array([[900.0, -3.0, 899.0, 901.0, 899.0], [0.0] * 5], np.float32)
    found = nf.log_probabilities(logits)
    total, none = math.log(math.exp(-1) + 2 * math.exp(-2) + 1), -np.inf
    expected = [none, none, -2 - total, none, -2 - total]
    assert_allclose(found, [expected, [none, none, -np.log(5), none, -np.log(5)]])
    assert found.dtype == np.float64


def test_length_penalties_by_hand():
    for length, alpha, divisor in ((1, 0.6, 1), (7, 1.0, 2), (19, 0.5, 2), (7, 2.0, 4), (30, 0, 1)):
        assert nf.length_penalty(length, alpha) == divisor
    assert nf.by_length(3, 2.0) == 9


@every_search
def test_a_device_writes_what_the_host_writes_and_the_model_is_left_as_it_was(search, stand_in):
    """conftest checks that the modes are restored."""
    on_host, on_device = peaked(1), peaked(1)
    nf.pack(on_device, np.float64, stand_in)
    before = on_host.state_dict()
    with nf.mode(training=True, saving=True):
        found = search(on_host, SOURCE, 5)
        assert on_host.pending() == 0
    assert found == search(on_host, SOURCE, 5) == search(on_device, SOURCE, 5)
    for name, parameter in on_host.named_parameters().items():
        assert (parameter.data == before[name]).all() and not parameter.grad.any()


@every_search
def test_a_model_that_cannot_write_is_refused(search, complaint):
    complaint(search, peaked(), SOURCE + 1, 9)
    for has in "start", "step":
        message = complaint(search, SimpleNamespace(**{has: None}), SOURCE, 9)
        assert "has the methods start and step; received a SimpleNamespace" in message
    model = peaked()
    model.output.weight.data[3, 2] = np.nan
    with pytest.raises(BrokenNumbers, match="logits are NaN"):
        search(model, SOURCE, 3)


def test_an_ensemble_needs_models_that_write_and_has_their_smallest_limit(complaint):
    assert "an ensemble has at least one model" in complaint(nf.Ensemble, [])
    assert "start and step" in complaint(nf.Ensemble, [peaked(), SimpleNamespace(start=None)])
    assert (
        nf.Ensemble([peaked(max_length=9), TwoModels(0), peaked(max_length=7)]).config.longest == 7
    )
    config = nf.Ensemble([peaked(positions="none")]).config
    sizes = dict(source_vocabulary=V, target_vocabulary=V)
    assert vars(config) == dict(longest=None, special=nf.SpecialIds(), **sizes)
    config = SimpleNamespace(source_vocabulary=V, target_vocabulary=V + 1)
    other = SimpleNamespace(start=None, step=None, config=config)
    assert f"'target_vocabulary': {V + 1}" in complaint(nf.Ensemble, [peaked(), peaked(), other])
    message = complaint(nf.Ensemble, [peaked(), peaked(), peaked(end_id=4)])
    assert "have the same special ids; received SpecialIds(padding=0" in message
    assert nf.Ensemble([peaked(end_id=4)] * 2).config.special.end == 4


def test_a_symbol_that_only_one_model_excludes_stays_possible():
    models = [Chain({nf.START: {symbol: 1.0}}) for symbol in (4, 5, 4)]
    for model in models:
        model.probabilities[nf.START, 6] = 0
    ensemble = nf.Ensemble(models)
    with nf.inference(), np.errstate(divide="raise"):
        state = ensemble.start(SOURCE, 3)
        log_p = ensemble.step(state.ids, state)
    assert_allclose(np.exp(log_p[:, GOING_ON]), [[2 / 3, 1 / 3, 0]] * 4, atol=1e-6)


def write(model, source, **how):
    return nf.Transduction(LETTERS, LETTERS, max_length=6).write(model, [[*"ab"]] * 4, **how)


POSITIVE = [1, np.int64(2)], [0, 1.5, "1", True]
CHECKED = [
    (nf.n_best, "max_length", *POSITIVE),
    (nf.n_best, "count", *POSITIVE),
    (nf.n_best, "beam", *POSITIVE),
    (nf.n_best, "alpha", [0, np.float32(9)], [-0.1, 9.1, math.nan, "1", True]),
    (nf.n_best, "penalty", ["length"], ["none"]),
    (write, "max_length", *POSITIVE),
    (write, "beam", *POSITIVE),
    (nf.greedy, "max_length", *POSITIVE),
    (nf.sample, "max_length", *POSITIVE),
    (
        nf.sample,
        "temperature",
        [0, 3],
        [-0.1, math.nan, math.inf, 10**400, 1.1e300, "1", None, True],
    ),
    (nf.sample, "top_k", [None, 1, 10**30], [0, 1.5, True, "1"]),
    (nf.sample, "top_p", [None, 1e-300, 1], [0, -0.1, 1.1, math.nan, "1", True]),
    (nf.sample, "seed", [0, 10**30], [None, -1, 1.5, True, "1"]),
]


@pytest.mark.parametrize(("search", "name", "fine", "refused"), CHECKED)
def test_invalid_settings_are_refused(search, name, fine, refused, complaint):
    usual = dict(max_length=2) | (dict(count=1) if search is nf.n_best else {})
    for value in fine:
        assert len(search(peaked(), SOURCE, **usual | {name: value})) == 4
    for value in refused:
        message = complaint(search, peaked(), SOURCE, **usual | {name: value})
        assert name in message and f"; received {value!r}. " in message and ".; " not in message


def test_most_probable_returns_count_symbols_with_their_log_probabilities(rng):
    apart = rng.normal(size=(5, V)) + np.array([[0], [900], [-900], [5], [0]])
    logits = apart.astype(np.float32)
    symbols, log_p = most_probable(logits, 3)
    expected = nf.log_probabilities(logits)
    assert symbols.tolist() == np.sort(np.argsort(expected, axis=-1)[:, -3:], axis=-1).tolist()
    assert_allclose(log_p, np.take_along_axis(expected, symbols, axis=-1), rtol=1e-3, atol=1e-3)
    assert log_p.dtype == np.float64
    assert most_probable(logits, 99)[0].tolist() == [[*range(V)]] * 5


def test_the_n_best_texts_have_the_scores_of_their_penalty(complaint):
    model, source = peaked(1), np.array([[4, 5, nf.END]])
    for alpha, penalty in ((0.0, "paper"), (2.0, "length")):
        text = nf.Transduction(LETTERS, LETTERS, 6, None, 3, alpha, penalty)
        (best,) = text.n_best(model, [[*"ab"]], 2)
        (expected,) = nf.n_best(model, source, 6, 2, 3, alpha, penalty)
        assert best == [(rival.score, LETTERS.decode(rival.ids)) for rival in expected]
        _, again = text.n_best(model, [["a"], [*"ab"]], 2)
        assert [written for _, written in again] == [written for _, written in best]
    assert "count is an integer of at least 1; r" in complaint(text.n_best, model, [["a"]], "1")
    assert "beam is an integer" in complaint(beam.search, model, SOURCE, 3, 0, float)
    assert "count 5, beam 4" in complaint(nf.n_best, model, SOURCE, 3, 5)


@pytest.mark.parametrize("width", [2, 3])
def test_the_first_of_several_texts_is_never_worse_than_a_single_one(width):
    """It may be better, since the search for several goes on for longer."""
    better = 0
    for seed in range(6):
        several, single = (
            nf.n_best(Coarse(seed), SOURCE, 12, count, width, 1.0, "length") for count in (width, 1)
        )
        for (first, *_), (only,) in zip(several, single, strict=True):
            assert first.score >= only.score
            better += first.score > only.score
    assert better


def log_p(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log([probabilities])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dict(temperature=0.5), [25, 4, 4, 1]),
        (dict(temperature=2), np.sqrt([5, 2, 2, 1])),
        (dict(temperature=0), [1, 0, 0, 0]),
        (dict(temperature=1e-310), [1, 0, 0, 0]),
        (dict(temperature=1e300), [1, 1, 1, 1]),
        (dict(top_k=2), [5, 2, 0, 0]),  # among equals the smaller id
        (dict(top_k=9), [5, 2, 2, 1]),
        (dict(top_p=0.49), [1, 0, 0, 0]),
        (dict(top_p=0.51), [5, 2, 0, 0]),
        (dict(top_p=0.71), [5, 2, 2, 0]),
        (dict(top_p=0.91), [5, 2, 2, 1]),
        (dict(top_p=1), [5, 2, 2, 1]),
        (dict(top_k=3, top_p=0.6), [5, 2, 0, 0]),
        (dict(temperature=0.5, top_p=0.74), [25, 4, 0, 0]),
    ],
    ids=str,
)
def test_the_probabilities_of_sampling(settings, expected):
    """The last two symbols are impossible; the second row has the symbols in another order."""
    given = np.concatenate([log_p(0.5, 0.2, 0.2, 0.1, 0, 0), log_p(0.1, 0.5, 0.2, 0.2, 0, 0)])
    before, expected = given.copy(), np.array(expected) / sum(expected)
    first, second = nf.Sampling(**settings).probabilities(given)
    assert_allclose(first, [*expected, 0, 0], atol=1e-12)
    assert_allclose(second, [*expected[[3, 0, 1, 2]], 0, 0], atol=1e-12)
    assert (given == before).all()


@pytest.mark.filterwarnings("error")
def test_extreme_settings_keep_the_right_symbols():
    """A low temperature in rows of unequal certainty; ties go to the smaller id."""
    both = np.concatenate([log_p(0.9, 0.1, 1e-9), log_p(0.3, 0.4, 0.3)])
    for temperature in (1e-3, 1e-320):
        p = nf.Sampling(temperature).probabilities(both)
        assert_allclose(p, [[1, 0, 0], [0, 1, 0]], atol=1e-12)
    p = nf.Sampling(top_p=0.8).probabilities(both)
    assert (p > 0).sum(axis=-1).tolist() == [1, 3]  # fewer in the more certain row
    p = nf.Sampling(top_p=0.75).probabilities(log_p(0.25, 0.5, 0.125, 0.125))
    assert_allclose(p, [[1 / 3, 2 / 3, 0, 0]])  # that reach p exactly
    assert nf.Sampling(top_p=1.0).probabilities(log_p(1.0, 1e-20))[0, 1] > 0  # 1 without it
    equals = np.random.default_rng(1).integers(0, 2, (1, 200)).astype(float)
    likely = np.flatnonzero(equals[0])
    for count in range(1, len(likely)):  # of equals the first
        p = nf.Sampling(top_k=count).probabilities(equals)
        assert (np.flatnonzero(p) == likely[:count]).all()


def test_a_number_at_a_boundary_selects_the_next_possible_symbol():
    """Also if the sum of the probabilities is rounded below 1, it is never an impossible one."""
    nearly = [(1 - 2**-53, p, 5) for p in np.linspace(0.02, 0.9, 45)]
    for number, share, symbol in [(0.0, 0.5, 4), (0.5, 0.5, 5), *nearly]:
        stream, model = SimpleNamespace(random=lambda n=number: n), Chain({})
        model.probabilities[nf.START, [4, 5]] = share, 1 - share
        assert nf.Sampling(top_k=2).write(model, SOURCE[:1], 1, [stream]) == [[symbol]]


def test_sampling_draws_from_the_logits_of_a_full_forward():
    """Each row has its own random numbers, one for each symbol."""
    model, lengths = peaked(2), set()
    for seed in range(3):
        found = nf.sample(model, SOURCE, 9, temperature=1.5, **dict(seed=seed) if seed else {})
        for number, row in enumerate(SOURCE):
            stream, ids = np.random.default_rng(seed_sequence(seed, "sampling", number)), []
            while len(ids) < 9 and nf.END not in ids:
                p = np.exp(full_forward(model, row, ids) / 1.5)
                ids.append(int(np.searchsorted(np.cumsum(p / p.sum()), stream.random())))
            assert found[number] == [symbol for symbol in ids if symbol != nf.END]
        lengths |= {*map(len, found)}
    assert len(lengths) > 3


@pytest.mark.parametrize("settings", [dict(temperature=1.5), dict(top_k=3), dict(top_p=0.9)])
def test_a_transduction_samples_with_any_setting_of_sampling(settings, complaint):
    """Random numbers follow the place of a text, though long texts are read first."""
    text, model = nf.Transduction(LETTERS, LETTERS, max_length=6, beam=3), peaked(1)
    asked, write = [[*"a"], [*"abc"], [*"a"], [*"cabba"]], partial(text.write, model)
    drawn = write(asked, seed=3, **settings)
    assert drawn == write(asked, seed=3, **settings) != write(asked, seed=4, **settings)
    assert write(asked, **settings) == write(asked, seed=1, **settings)
    sources = np.array([[4, 2, 0, 0], [4, 5, 6, 2], [4, 2, 0, 0]])
    ids = nf.sample(model, sources, 6, seed=3, **settings)
    assert drawn[:3] == [LETTERS.decode(row) for row in ids]
    assert write(asked, seed=3) == write(asked)
    assert "received beam 2 and a temperature" in complaint(write, asked, beam=2, **settings)


def test_a_continuation_keeps_its_random_stream_when_its_context_is_full():
    sizes = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.5)
    model = nf.LanguageModel(nf.LanguageModel.Config(vocabulary=V, **sizes))
    flat, text = nf.pack(model, np.float64), nf.Continuation(LETTERS, context=6)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    write = partial(text.write, model, [["a"], ["b"]], temperature=1.5)
    _, drawn = write(length=20, top_k=3, seed=37)
    stream, expected = np.random.default_rng(seed_sequence(37, "sampling", 1)), ["b"]
    while len(expected) < 21:
        known = expected if len(expected) < 6 else expected[-3:]
        asked, room = np.array([LETTERS.encode(known)]), min(6 - len(known), 21 - len(expected))
        (ids,) = nf.Sampling(1.5, top_k=3).write(model, asked, room, [stream])
        expected += LETTERS.decode(ids)
        if len(ids) < room:
            break
    assert drawn == expected and len(expected) > 7
    assert write() == write(seed=1)
    assert text.write(model, [["a"]], length=5, seed=1) == text.write(model, [["a"]], length=5)


def test_settings_replace_the_fields_of_a_pipeline(complaint):
    model, asked = peaked(1), [[*"ab"], ["c"], [*"cabba"]]
    usual = nf.Transduction(LETTERS, LETTERS, 6, None, 3, 2.0, "length")
    changes = [dict(beam=2), dict(length_penalty=0.0), dict(penalty="paper"), dict(max_length=2)]
    for how in (*changes, dict(beam=4, max_length=1)):
        other = replace(usual, **how)
        written, best = usual.write(model, asked, **how), usual.n_best(model, asked, 2, **how)
        assert written == other.write(model, asked) != usual.write(model, asked), how
        assert best == other.n_best(model, asked, 2) != usual.n_best(model, asked, 2), how
    wider, most = replace(usual, beam=5), replace(usual, max_length=4096)
    assert usual.n_best(model, asked, 5) == wider.n_best(model, asked, 5)
    assert len(most.n_best(model, asked[:1], 1, max_length=3)[0][0][1]) <= 3
    assert "received beam 1. Choose" in complaint(
        usual.write, model, asked, beam=1, penalty="paper"
    )
    assert "beam 1" in complaint(usual.write, model, asked, beam=1, length_penalty=0.0)
    assert len(usual.write(model, asked, beam=1, max_length=4096)) == 3
    for name, value in dict(length_penalty=0.0, penalty="paper").items():
        words = f"received {name} {value} and a temperature"
        assert words in complaint(usual.write, model, asked, temperature=1.0, **{name: value})
    for value in (0, 4097):
        message = complaint(usual.n_best, model, asked, 2, max_length=value)
        assert f"1 to 4096; received {value}" in message


@pytest.mark.parametrize(
    ("choices", "widths"),
    [
        (([0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [4, 5], [1, 1]), [2, 2, 2, 2]),
        (([0, 0, 1, 1, 2, 2], [3, 2]), [2, 2]),
        (([2, 0], [1], [0, 0, 0]), [1, 1, 3]),
        (([0, 0, 1], [2, 0, 1, 1], [3, 3, 0, 1]), [1, 1, 1]),
        (([0, 0, 0, 1], [3, 0, 1]), [1, 1]),
        (([0, 0, 1, 1, 2, 2], [0, 0, 3], [0, 2], []), [2, 1, 1, 0]),
    ],
    ids=str,
)
def test_hypotheses_share_the_keys_and_values_of_their_source(choices, widths, rng):
    """For any choice of rows each row keeps its own source; without a change nothing is copied."""
    read, past, layers = rng.random((3, 4)), Memory(9), (nf.Softmax(), nf.Softmax())
    with nf.inference():
        shared = past.state(layers[0], lambda past: SourceState(read=read))
        kept = past.state(layers[1], lambda past: ArrayState(read=read))
        past.choose(np.arange(3))
        assert shared["read"] is read
        for rows, width in zip(choices, widths, strict=True):
            past.choose(np.array(rows, int))
            assert past.width == width
            np.testing.assert_array_equal(np.repeat(shared["read"], width, 0), kept["read"])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("search", [nf.greedy, nf.sample])
@pytest.mark.parametrize("symbols, value", [(3, np.nan), (3, np.inf), (slice(V), -np.inf)])
@pytest.mark.parametrize("row", [0, 1])
def test_one_row_of_broken_numbers_is_refused(row, symbols, value, search):
    """NaN and infinities are refused. One symbol may be impossible, but not all."""
    logits = np.zeros((2, V))
    logits[row, 4] = -np.inf
    state = SimpleNamespace(ids=np.zeros(2, int), choose=lambda rows: None)
    model = SimpleNamespace(start=lambda inputs, length: state, step=lambda ids, state: logits)
    assert len(search(model, state.ids, 1)) == 2
    logits[row, symbols] = value
    with pytest.raises(BrokenNumbers):
        search(model, state.ids, 1)


def test_ties_go_to_the_smaller_id():
    logits = np.zeros((2, V))
    logits[1, [5, 6]] = 1
    state = SimpleNamespace(ids=np.zeros(2, int), choose=lambda rows: None)
    model = SimpleNamespace(start=lambda inputs, length: state, step=lambda ids, state: logits)
    assert nf.greedy(model, state.ids, 1) == [[], [5]]
    assert not logits[0].any()  # which are the model's


def test_rows_that_have_ended_are_left_out():
    """As soon as they are half of the rows: these have 8, 9, 1 and 4 symbols and the end."""
    model, sizes = peaked(28), []
    step = model.step
    model.step = lambda ids, state: sizes.append(len(ids)) or step(ids, state)
    together = nf.greedy(model, SOURCE, 9)
    assert together == [ids for row in SOURCE for ids in nf.greedy(peaked(28), row[None], 9)]
    assert sizes == 5 * [4] + 4 * [2]


@pytest.mark.parametrize("size", [165, 30_005])
def test_the_largest_numbers_are_found_in_groups(size, rng):
    """With many groups, and with barely more groups than numbers."""
    logits = rng.permutation(5 * size).reshape(5, size) / 10_000
    logits[0, -1] = 16
    symbols, _ = most_probable(logits, 4, largest=largest_in_groups)
    logits[:, [nf.PADDING, nf.START, 3]] = -np.inf
    assert (symbols == np.sort(np.argsort(logits)[:, -4:])).all()


@pytest.mark.parametrize(("piece", "sizes"), [(2 * 325, [2, 2, 1]), (1, [1] * 5), (9999, [5])])
def test_rows_are_searched_piece_by_piece(piece, sizes, monkeypatch, rng):
    logits, found = rng.standard_normal((5, 325)), []

    def largest(piece, *arguments):
        found.append(len(piece))
        return largest_in_groups(piece, *arguments)

    monkeypatch.setattr(grouped_beam, "PIECE", piece)
    monkeypatch.setattr(grouped_beam, "largest_in_groups", largest)
    for ours, papers in zip(
        grouped_beam.most_probable(logits, 4), most_probable(logits, 4), strict=True
    ):
        assert_allclose(ours, papers, rtol=1e-12)
    assert found == sizes
