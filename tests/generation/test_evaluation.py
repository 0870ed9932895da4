"""Evaluating: log p of answers by the whole model, measures by hand, intervals, what is refused."""

import csv
import os
import pickle
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tqdm import tqdm

from numformer import progress
from numformer.data import PairBatch, Vocabulary
from numformer.generation import (
    Continuation,
    Ensemble,
    Infilling,
    Parsing,
    Transduction,
    Translation,
)
from numformer.generation.evaluation import Evaluation, evaluate
from numformer.generation.measures import Measure, edit_distance
from numformer.layer import inference, pack
from numformer.models import LanguageModel, MaskedLanguageModel, Transformer
from numformer.models.recurrent import RecurrentEncoderDecoder
from numformer.trained import Trained
from tests.toy_tasks.small import shaken

LETTERS, WORDS = Vocabulary("abcd_"), Vocabulary(["one", "two", "(S", ")S", "XX"], " ")
PAIRS = [("ab", "two one two"), ("dcba", "one"), ("a", "two two three")]


def log_softmax(logits) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def pair_model(kind=Transformer, seed=1, **changes):
    form = {} if kind is RecurrentEncoderDecoder else dict(d_ff=12, layers=2, heads=2, **changes)
    sizes = dict(source_vocabulary=len(LETTERS), target_vocabulary=len(WORDS))
    config = kind.Config(**sizes, d_model=8, p_drop=0.0, **form)
    flat = pack(model := kind(config, seed), np.float64)
    flat.data += 0.3 * np.random.default_rng(seed).standard_normal(flat.data.shape)
    return model


def pair_log_p(pipeline, model, source: str, target: str) -> float:
    """By the whole model at once, as in training."""
    ids = pipeline.source.encode(source), pipeline.target.encode(target.split())
    batch = PairBatch.of([ids])
    with inference():
        log_p = log_softmax(model.forward(batch.source, batch.target_in))[0]
    return log_p[np.arange(len(log_p)), batch.target_out[0]].sum()


@pytest.mark.parametrize("kind", [Transformer, RecurrentEncoderDecoder])
def test_targets_are_scored_as_training_predicts_them(kind):
    """Also in one batch with others, with symbols that training never saw, and with the end."""
    model, pipeline = pair_model(kind), Transduction(LETTERS, WORDS, 6)
    trained = Trained(model, pipeline, {})
    scores = [pair_log_p(pipeline, model, *pair) for pair in PAIRS]
    assert_allclose(trained.score(PAIRS), scores, rtol=1e-10)
    evaluation = trained.evaluate(iter(PAIRS), max_length=2)
    assert_allclose(evaluation["loss"], -sum(scores) / (4 + 2 + 4), rtol=1e-10)
    assert [p.answer for p in evaluation.predictions] == trained.write(
        [source for source, _ in PAIRS], max_length=2
    )
    assert [p.log_p for p in evaluation.predictions] == pytest.approx(scores)
    assert {type(p.log_p) for p in evaluation.predictions} == {float}
    symbols = [[*source] for source, _ in PAIRS], [target.split() for _, target in PAIRS]
    assert pipeline.score(model, *symbols)[1].tolist() == [4, 2, 4]


def test_an_ensemble_scores_by_the_mean_of_its_probabilities():
    models = [pair_model(), pair_model(seed=2)]
    both = Trained(Ensemble(models), Transduction(LETTERS, WORDS, 6), {})
    (score,) = both.score([("ab", "one")])
    pair = PairBatch.of([(LETTERS.encode("ab"), WORDS.encode(["one"]))])
    with inference():
        p = [np.exp(log_softmax(m.forward(pair.source, pair.target_in)))[0] for m in models]
    mean = np.log(sum(p) / 2)
    assert score == pytest.approx(mean[[0, 1], pair.target_out[0]].sum())


@pytest.mark.parametrize(
    ("context", "positions"), [(20, "sinusoidal"), (4, "sinusoidal"), (4, "alibi")]
)
def test_a_continuation_is_scored_in_windows(context, positions):
    """The first window is read as in training; of each later one, half is known."""
    model = shaken(LanguageModel, len(LETTERS), positions=positions)
    trained, text = Trained(model, Continuation(LETTERS, context), {}), "abcdabdcabbcd"
    whole = context == 20 or positions == "alibi"
    starts = {6: 0} if whole else {1: 0, 5: 3, 8: 6, 11: 9}
    expected, given = 0, min(starts)
    for known, first in starts.items():
        end = len(text) if whole else first + context + 1
        ids = np.array([LETTERS.encode(text[first:end])])
        with inference():
            log_p = log_softmax(model.forward(ids[:, :-1]))[0]
        places = np.arange(known - first, ids.shape[1])
        expected += log_p[places - 1, ids[0, places]].sum()
    pair = text[:given], text[given:]
    assert trained.score([pair, ("ab", "cd")])[0] == pytest.approx(expected)
    assert model.pending() == 0
    counts = trained.text.score(model, [pair[0], "a"], [pair[1], "bcd"])[1]
    assert counts.tolist() == [len(text) - given, 3]
    evaluation = trained.evaluate([pair])
    loss = -expected / (len(text) - given)
    assert evaluation["loss"] == pytest.approx(loss)
    assert evaluation["bits_per_character"] == pytest.approx(loss / np.log(2))
    assert evaluation.predictions == []


def test_holes_are_scored_while_all_are_empty():
    model = shaken(MaskedLanguageModel, len(LETTERS))
    trained = Trained(model, Infilling(LETTERS, "_", 8), {})
    with inference():
        log_p = log_softmax(model.forward(np.array([LETTERS.encode("a__d")])))[0]
    expected = log_p[1, LETTERS.encode("b")[0]] + log_p[2, LETTERS.encode("c")[0]]
    assert trained.score([("a__d", "abcd")]) == pytest.approx([expected])
    filled = trained("a__d")
    others = "".join(letter for letter in "abcd" if letter not in filled[1:3])
    half = filled[:2] + others[0] + "d"
    evaluation = trained.evaluate([("a__d", half), ("_", trained("_"))])
    assert evaluation["accuracy"] == pytest.approx(2 / 3)

    symbols, whole = [*"a__d"], tuple("abcd")
    log_p, counts = trained.text.score(model, [symbols], [whole])
    assert log_p == pytest.approx([expected]) and counts == [2]


@pytest.mark.parametrize(
    ("model", "pipeline", "examples", "steps"),
    [
        (pair_model, Transduction(LETTERS, WORDS, 6), PAIRS, 2),
        (LanguageModel, Continuation(LETTERS, 8), [("a", "bc"), ("b", "ca")], 1),
        (MaskedLanguageModel, Infilling(LETTERS, "_", 8), [("a_", "ab"), ("_", "c")], 2),
    ],
)
def test_a_bar_moves_with_each_answer_and_each_score(model, pipeline, examples, steps, monkeypatch):
    model = model() if model is pair_model else shaken(model, len(LETTERS))
    bars = []
    monkeypatch.setattr(
        progress, "tqdm", lambda **settings: bars.append(tqdm(**settings)) or bars[-1]
    )
    monkeypatch.setattr(progress, "shows_bars", lambda stream: True)
    Trained(model, pipeline, {}).evaluate(examples)
    assert [(bar.total, bar.n) for bar in bars] == [(steps * len(examples),) * 2]


def distance_by_definition(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    first = distance_by_definition(a[1:], b[1:]) + (a[0] != b[0])
    return min(first, 1 + distance_by_definition(a[1:], b), 1 + distance_by_definition(a, b[1:]))


def test_measures_by_hand():
    rng = np.random.default_rng(5)
    for _ in range(40):
        a, b = ("".join(rng.choice([*"abc"], rng.integers(6))) for _ in range(2))
        assert edit_distance(a, b) == distance_by_definition(a, b)
    pipeline = Transduction(WORDS, WORDS, 6)
    answers = [["one"], ["two", "two"], ["one", "two"]]
    right = [["one"], ["two"], ["one", "one", "one", "one", "two"]]
    found = {n: m.value for n, m in pipeline.measures([], answers, right).items()}
    assert found == {"symbol_error_rate": pytest.approx(400 / 7), "exact_match": 1 / 3}
    own = {"length": Measure.ratio([3], [4])}
    trained = Trained(pair_model(), Transduction(LETTERS, WORDS, 2), {})
    assert {*trained.evaluate(PAIRS, measures=lambda *_: own).measures} == {"length", "loss"}


def test_of_several_targets_the_nearest_is_compared_and_scored():
    model, pipeline = pair_model(), Transduction(LETTERS, WORDS, 3)
    trained = Trained(model, replace(pipeline), {})
    answer = trained("ab", max_length=3)
    far = "XX XX XX XX XX XX"
    right = [far, f" {answer}\n"]  # white space around a target does not count
    (prediction,) = trained.evaluate([("ab", right)], max_length=3).predictions
    assert prediction.target == f" {answer}\n" and answer == prediction.answer
    assert prediction.log_p == pytest.approx(pair_log_p(pipeline, model, "ab", answer))


def test_the_interval_is_that_of_resampled_examples():
    """For a share it is the normal interval, and wider with fewer examples."""
    rng, widths = np.random.default_rng(4), []
    for count in (200, 2500):
        right = rng.random(count) < 0.7
        low, high = (measure := Measure.ratio(right, np.ones(count))).interval(samples=1000)
        deviation = np.sqrt(measure.value * (1 - measure.value) / count)
        assert [low, high] == pytest.approx(
            [measure.value - 1.96 * deviation, measure.value + 1.96 * deviation],
            abs=0.25 * deviation,
        )
        narrow = measure.interval(0.5, samples=1000)
        assert np.ptp(narrow) == pytest.approx(2 * 0.674 * deviation, rel=0.2)
        widths.append(high - low)
    assert widths[0] > 3 * widths[1]
    ratio = Measure.ratio([1, 0], [3, 1], 100)  # of sums, not the mean of ratios
    assert ratio.value == 25 and ratio.interval() == (0, pytest.approx(100 / 3))
    assert repr(ratio) == "25.0000 (0.0000 to 33.3333)"  # not the counts of every example
    assert len({*ratio.interval(samples=1)}) == 1
    assert Measure.ratio([3], [0]).value == 3 and Measure.ratio([0], [0]).value == 0


def test_an_interval_has_1000_samples_of_seed_1_and_holds_95_percent_of_them():
    counts = np.random.default_rng(3).random((9, 2))
    measure = Measure(counts, lambda sums: sums[0] / sums[1])
    sums = np.random.default_rng(1).multinomial(9, np.full(9, 1 / 9), size=1000) @ counts
    expected = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    low, high = measure.interval()
    assert [low, high] == pytest.approx(expected, rel=1e-12)
    assert {type(number) for number in (low, high, measure.value)} == {float}
    with pytest.raises(FrozenInstanceError):
        measure.counts = counts


def test_predictions_are_saved_as_a_table(tmp_path, complaint, monkeypatch):
    trained = Trained(pair_model(), Transduction(LETTERS, WORDS, 2), {})
    evaluation = trained.evaluate(PAIRS)
    evaluation.save(tmp_path / "a" / "new" / "out.tsv")
    assert b"\r" not in (tmp_path / "a" / "new" / "out.tsv").read_bytes()
    assert pickle.loads(pickle.dumps(evaluation))["loss"] == evaluation["loss"]
    with open(tmp_path / "a" / "new" / "out.tsv", newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file, dialect="excel-tab")]
    assert [(row["source"], row["target"]) for row in rows] == PAIRS
    assert [float(row["log_p"]) for row in rows] == [p.log_p for p in evaluation.predictions]
    assert "exact match 0.0000 (0.0000 to 0.0000)" in repr(evaluation)

    trained.evaluate(PAIRS[:1]).save(tmp_path / "a" / "new" / "out.tsv")  # replaces the file
    assert len((tmp_path / "a" / "new" / "out.tsv").read_text().splitlines()) == 2
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert "can be written to a file" in complaint(evaluation.save, tmp_path / "b" / "out.tsv")


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("aq", "one"), ("a", "two")], "1 example of 2 .* such as 'q';"),
        ([("a", "one"), ("a", "six")], "1 example of 2 .* such as 'six';"),
        ([("efghijklmnopq", "one")], "such as ('.' ){9}'.';"),
        ([("qa", "six one"), ("q", "six")], "2 examples of 2 .* such as '(q' 'six|six' 'q)';"),
    ],
)
def test_symbols_that_training_never_saw_are_named(pairs, words):
    trained = Trained(pair_model(), Transduction(LETTERS, WORDS, 2), {})
    for measure in trained.evaluate, trained.score:
        with pytest.warns(UserWarning, match=words) as warned:
            measure(pairs)
        assert [warning.filename for warning in warned] == [__file__]


def test_the_symbols_of_a_right_answer():
    """White space around it does not count, a sentence is tokenized, a tree split as joined."""
    assert Transduction(LETTERS, LETTERS, 6).answer_symbols(" ab\n") == ["a", "b"]
    assert Translation(WORDS, WORDS, 6).answer_symbols("one, two") == ["one", ",", "two"]
    pipeline = Parsing(LETTERS, WORDS, 6)
    symbols = ["(S", "(NP", "the", "dog", ")NP", "slept", ")S"]
    assert pipeline.answer_symbols(pipeline.join(symbols)) == symbols
    assert pipeline.answer_symbols("(S a))") == ["(S", "a", ")S", ")"]


def test_what_cannot_be_evaluated_is_refused(complaint):
    pairs = Trained(pair_model(), Transduction(LETTERS, WORDS, 2), {})
    text = Trained(shaken(LanguageModel, len(LETTERS)), Continuation(LETTERS, 8), {})
    holes = Trained(shaken(MaskedLanguageModel, len(LETTERS)), Infilling(LETTERS, "_", 8), {})
    short = pair_model(positions="learned", max_length=3)
    short = Trained(short, Transduction(LETTERS, WORDS, 2), {})
    assert len(short.score([("ab", "one two")])) == 1
    for call, words in {
        partial(
            short.score, [("a", "one"), ("abc", "one")]
        ): "for 2 symbols of a source; received 3",
        partial(short.score, [("a", "one one two")]): "for 2 symbols of a target; received 3",
        partial(pairs.evaluate, []): "at least one example; received none",
        partial(evaluate, pairs.text, pairs.model, [], []): "at least one example; received none",
        partial(
            pairs.evaluate, [("a", "one"), ("a", [])]
        ): "symbol; received example 2 without any",
        partial(pairs.evaluate, [("a", ["one", " "])]): "received example 1 without any",
        partial(pairs.score, [("a", [])]): "received example 1 without any",
        partial(pairs.evaluate, [("a", "one"), ("", "one")]): "received 0 symbols in example 2",
        partial(pairs.evaluate, [("a",)]): "a pair of texts, or a text and a list of right",
        partial(pairs.evaluate, None): "examples are pairs of texts; received 'None'",
        partial(pairs.evaluate, "abc"): "examples are pairs of texts; received 'abc'",
        partial(pairs.evaluate, [("abc", None)]): "received ('abc', None)",
        partial(pairs.evaluate, [(1, "one")]): "received (1, 'one')",
        partial(pairs.score, ("abc", "one")): "received 'abc'",
        partial(text.score, [("a", ["b", "c"])]): "one continuation; received example 1 with 2",
        **{partial(Measure.ratio([1], [1]).interval, n): "between 0 and 1" for n in (0, 1, 95)},
        partial(Measure.ratio([1], [1]).interval, samples=0): "samples at least 1",
        partial(pairs.evaluate(PAIRS).__getitem__, "bleu"): "Name one of symbol_error_rate, ex",
        partial(pairs.evaluate, PAIRS, length=2): "has the settings",
        partial(text.evaluate, [("a", "b")], length=2): "writes no answers; received length",
        partial(
            text.evaluate, [("a", "b")], measures=print
        ): "writes no answers; received measures",
        partial(holes.score, [("a_", "ba")]): "received 'ba' for 'a_'",
        partial(holes.score, [("a_", "abc")]): "received 'abc' for 'a_'",
        partial(holes.evaluate, [("ab", "ab")]): "a symbol for each hole '_'",
        partial(Evaluation({}, []).save, "out.tsv"): "predictions are answers to sources; received",
        partial(pairs.evaluate(PAIRS).save, "."): "written to a file in a folder; received",
        partial(pairs.evaluate(PAIRS).save, f"{__file__}/a.tsv"): "written to a file in a folder",
        partial(pairs.evaluate(PAIRS).save, "-"): "written to a file in a folder; received -",
        partial(pairs.evaluate(PAIRS).save, Path("-")): "a file in a folder; received -",
        partial(
            replace(text, model=Ensemble([text.model])).score, [("a", "b")]
        ): "by a single language model; received 1 models",
    }.items():
        assert words in complaint(call)
