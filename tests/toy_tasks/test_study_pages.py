"""The pages that are studies: their data, how they measure, what they say in the end."""

import dataclasses
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.data import Subwords
from numformer.data.vocabulary import SPECIAL
from numformer.later import MIXERS
from numformer.randomness import seed_sequence
from numformer.trained import load
from tests.toy_tasks.small import few_held_out
from toy_tasks import ablation, bottleneck, induction, lengths, recall
from toy_tasks.data.splits import is_held_out
from toy_tasks.induction import InductionTask
from toy_tasks.lengths import LengthTask
from toy_tasks.recall import RecallTask

TINY = "--quick --d-model 8 --d-ff 8 --heads 1 --seeds 3 --steps 1 --batch-size 4"


@pytest.fixture
def studied(succeed, monkeypatch):
    """`studied(page, flags, rows, **attributes)`: a study of some rows -> lines, its folder."""
    monkeypatch.setattr("toy_tasks.command_line.training.loss_curve", lambda *how: None)

    def run(page, flags=TINY, rows=(), **attributes) -> tuple[list[str], Path]:
        few = {row: page.STUDY.rows[row] for row in rows or page.STUDY.rows}
        attributes["STUDY"] = dataclasses.replace(page.STUDY, rows=few)
        for name, value in attributes.items():
            monkeypatch.setattr(page, name, value)
        out, folder = succeed(page.main, flags), Path(f"runs/{page.STUDY.name}-quick")
        assert {"table.md", f"{page.STUDY.name}.png"} < {*os.listdir(folder)}
        return out, folder

    return run


def test_sequences_repeat_and_only_what_repeats_is_learned():
    task = InductionTask(400, 1)
    batch, drawn = task.batch(1), set()
    symbols = np.c_[batch.ids, batch.following[:, -1:]]
    assert_array_equal(symbols[:, 1:], batch.following)
    assert symbols.shape[1] == task.longest and symbols.min() == len(SPECIAL)
    for row, valid in zip(symbols.tolist(), batch.valid, strict=True):
        again = len({*row})  # all that came before are different
        length = again - row.index(row[again])
        assert row[again:] == row[again - length : -length]
        assert_array_equal(valid, np.arange(1, len(row)) > again)
        drawn.add((again - length, length))
    assert {before for before, _ in drawn} == {*range(induction.MAX_PREFIX + 1)}
    assert {length for _, length in drawn} == {*induction.LENGTHS}
    assert batch.weight == batch.valid.sum()


def test_prefix_matching_is_the_best_head_s_weight_on_what_came_after(monkeypatch):
    """Of one head 0.7 in every row, of another 1 in half of the rows; a quarter guessed wrongly."""
    task = InductionTask(4, 1)

    def look(model, ids):
        weights = np.zeros((len(ids), 2, ids.shape[1], ids.shape[1]))
        for row, symbols in enumerate(ids.tolist()):
            for place, symbol in enumerate(symbols):
                if (earlier := symbols.index(symbol)) < place:
                    weights[row, :, place, earlier + 1] = 0.7, row % 2
        return {"first": weights * 0, "second": weights}

    def guess(ids):
        following, valid = next(h.inputs[1:] for h in task.held_out if h.ids is ids)
        logits = np.eye(len(task.text.vocabulary))[following]
        logits[: len(ids) // 4] = 0
        logits[~valid] = 0
        return logits

    monkeypatch.setattr(induction, "attention_weights", look)
    measured = task.evaluate(SimpleNamespace(forward=guess))
    assert measured == {"prefix_matching": pytest.approx(0.7), "copying": 0.75}


def test_the_worst_seed_decides_about_induction():
    for lowest, copying, single in (0.9, 0.99, 0.2), (0.89, 1, 0), (1, 0.98, 0), (1, 1, 0.21):
        names, worst, best = induction.FIGURES, (lowest, copying), (1, 1)
        two = [dict(zip(names, scores, strict=True)) for scores in (worst, best)]
        other = [{"prefix_matching": score} for score in (0, single)]
        _, figures, (_, reached) = induction.verdict({"two layers": two, "one layer": other})
        assert reached is (lowest == 0.9)
        assert figures["two layers"] == f"{lowest:.3f}, one layer {single:.3f}"


def test_induction_is_studied_and_drawn(studied):
    out, folder = studied(induction)
    assert re.fullmatch(r"two layers \S+, one layer \S+", out[-1])
    assert {"attention.png", "two-layers-3", "one-layer-3"} < {*os.listdir(folder)}


def test_what_a_task_asks_for():
    targets = {name: target for name, (_, target) in lengths.TASKS.items()}
    assert targets["copy"]("qwe") == "qwe" and targets["reverse"]("qwe") == "ewq"
    assert targets["addition"]("q 12 k 34") == "q 3 k 7 0"  # 31 + 42 = 73
    assert targets["addition"]("a 19 b 00") == "a 0 b 1 0"


@pytest.mark.parametrize("name", lengths.TASKS)
def test_batches_hold_short_sources_that_are_not_tested_and_their_answers(name):
    task = LengthTask(name, 400, 1, 5)
    drawn, vocabulary = set(), task.text.vocabulary
    for ids, following, valid in zip(*task.batch(1).inputs, strict=True):
        symbols = vocabulary.decode(np.r_[ids, following[-1]])
        symbols = symbols[: symbols.index("<end>")]
        equals = symbols.index("=")
        source, target = (vocabulary.join(s) for s in (symbols[:equals], symbols[equals + 1 :]))
        assert target == task.make_target(source) and not is_held_out(source)
        assert valid.nonzero()[0].tolist() == [*range(equals, len(symbols))]
        drawn.add(equals // (1 + (name == "addition")))
    assert drawn == {*range(1, lengths.MAX_TRAINED + 1)}
    assert all(map(is_held_out, [source for test in task.test.values() for source in test]))
    longest = max(sum(map(len, task.ids(source))) for source in task.test[lengths.LONGEST])
    assert task.longest == longest == task.text.context


def test_right_counts_whole_answers_that_end(monkeypatch):
    """Written is what is right about every other source, where it ends at all."""
    task = LengthTask("reverse", 4, 1, 6)

    def write(model, asked, room):
        assert asked.shape == (6, 13)
        sources = [task.text.vocabulary.decode(row[:-1]) for row in asked]
        answers = [task.text.vocabulary.encode(source[::-1]) for source in sources]
        answers = [answer[: 12 - place % 2] for place, answer in enumerate(answers)]
        return answers if ends else [(answer * 2)[:room] for answer in answers]

    monkeypatch.setattr(lengths, "greedy", write)
    for ends in (True, False):
        assert task.exact_match(None, 12) == 0.5 * ends


def test_what_the_study_of_lengths_says():
    def run(within, far):
        by_length = [within] * 10 + [0.4] * 4 + [far] + [0.3] * 5
        return {"within": within, "by length": by_length}

    results = {"copy none": [run(1, 0.85), run(1, 0.97)], "copy alibi": [run(0.99, 0.5)] * 2}
    _, figures, (_, reached) = lengths.verdict(results)
    assert figures["best at 1.5 times:"] == "0.9100 (copy none)" and reached
    assert not lengths.verdict({"copy none": [run(1, 0.8), run(1, 0.97)]})[2][1]
    assert not lengths.verdict(results | {"copy x": [run(0.98, 0)]})[2][1]
    head, row, _ = lengths.table(results)
    assert head[4] == "15" and row[4] == "0.910 (0.850 to 0.970)"


def test_lengths_are_studied_and_drawn(studied, call):
    rows = "copy none", "addition learned"
    out, folder = studied(lengths, f"{TINY} --layers 1", rows, EXAMPLES=4)
    assert re.fullmatch(r"best at 1.5 times: \d\.\d{4} \((copy|addition) \w+\)", out[-1])
    assert (folder / "addition-learned-3").is_dir()
    code, out, _ = call(lengths.main, f"--run {folder}/copy-none-3 --input .ab=")
    assert code == 0 and out[0].startswith(".ab=")


@pytest.mark.parametrize("step", range(1, 41))
def test_what_is_recalled_was_given_before(step):
    """Batches of training: values by their keys, and strings; noise stands where nothing else."""
    task = RecallTask(2048, 40, 1)
    ids, following, valid = task.batch(step).inputs
    symbols = np.c_[ids, following[:, -1:]]
    assert_array_equal(symbols[:, 1:], following)
    begun = [length for length, share in recall.STARTS.items() if step > 40 * share]
    assert ids.shape[1] in begun and len(ids) == 2048 // ids.shape[1]
    for row, counts in zip(symbols, valid, strict=True):
        asked = 1 + counts.nonzero()[0]  # places in the row
        if task.equals in row:
            first, second = (row == task.equals).nonzero()[0]
            assert_array_equal(asked, np.arange(second + 1, len(row)))
            assert_array_equal(row[first + 1 :][: len(asked)], row[second + 1 :])
            assert len({*row[asked]}) == len(asked)
            between = np.r_[row[:first], row[first + 1 + len(asked) : second]]
        else:
            pairs = np.isin(row[: asked[0] - 1], task.keys).nonzero()[0]
            given = dict(zip(row[pairs], row[pairs + 1], strict=True))
            assert len(given) == len(pairs) >= 2 and np.isin([*given.values()], task.values).all()
            assert [given[key] for key in row[asked - 1]] == row[asked].tolist()
            times = [np.count_nonzero(row[asked - 1] == key) for key in given]
            assert max(times) - min(times) <= 1  # no key comes again before all have come
            between = row[2 * len(pairs) : asked[0] - 1]
        assert np.isin(between, task.noise).all()


def test_right_counts_answers_at_the_end_of_long_sequences():
    """Nothing is right of a model that repeats a key, half of one that copies half a string."""
    task = RecallTask(64, 10, 1, tokens=512)

    def logits(ids):
        y = np.eye(len(task.text.vocabulary))[ids]
        half = task.copy(np.random.default_rng(seed_sequence(0, "held out", 256)), 2, 256, 16)
        if np.array_equal(ids, half.ids):
            y[:, -8:] = np.eye(len(y[0, 0]))[half.following[:, -8:]]
        return y

    model = SimpleNamespace(forward=logits)
    assert task.accuracy(model, "recall", 128) == 0 and task.accuracy(model, "copy", 256) == 0.5


def test_what_the_study_of_recall_says():
    def run(at_256):
        shares = [1, 1, at_256, 0.5, 0.5, 0.5]
        return dict.fromkeys(recall.FIGURES, shares) | dict.fromkeys(recall.COSTS, 7)

    results = {"attention": [run(1), run(0.99)], "window": [run(0.09)]}
    _, figures, (_, reached) = recall.verdict(results)
    assert figures["attention at 256:"] == "0.9950" and reached
    assert not recall.verdict(results | {"attention": [run(0.98)]})[2][1]
    assert not recall.verdict(results | {"window": [run(0.2)]})[2][1]
    head, row, _ = recall.table(results)
    assert (head[1], row[1], head[-2], row[-2]) == (
        "recall, 8 pairs: 256",
        "0.99",
        "training, s",
        "7",
    )


def test_recall_is_studied_and_drawn(studied, call):
    out, folder = studied(recall, f"{TINY} --layers 1", ["attention", "window"])
    assert re.fullmatch(r"window of 64 at 256: 0\.0\d{3}", out[-1])
    assert {*recall.THEORY} >= {*MIXERS} - {"relative"}  # which sees what attention sees
    code, out, _ = call(recall.main, f"--run {folder}/attention-3 --input", "k1 v5 n3 k1")
    assert code == 0 and out[0].startswith("k1 v5 n3 k1 ")


def test_a_row_differs_from_the_base_where_no_run_of_it_lies_among_the_base_s():
    figures = {"base": (3, 4), "C layers 1": (4.1, 9), "D smoothing 0": (1, 2.9)}
    figures["A heads 8"] = 2, 3.5
    results = {row: [dict(figure=f, parameters=1234) for f in figures[row]] for row in figures}
    seen = ablation.directions(results)
    assert seen["C layers 1"] == ("worse", "worse") and seen["A heads 8"] == ("same", "?")
    assert seen["D smoothing 0"] == ("worse", "better")  # the paper's BLEU, not its perplexity
    of_perplexity = results | {"base": [run | {"perplexity": 9} for run in results["base"]]}
    assert ablation.directions(of_perplexity)["D smoothing 0"] == ("better", "better")
    _, shares, target = ablation.verdict(results)
    assert [*shares.values()] == ["1 of 3 rows", "1 of 2"] and target is None
    _, base, *_, heads = ablation.table(results)
    assert base == ["base", "1,234", "3.50 (3.00 to 4.00)", "4.92", "25.8", "", ""]
    assert heads[-2:] == ["same", "?"]


@pytest.mark.parametrize("task", ablation.TASKS)
def test_the_ablation_is_studied_and_drawn(studied, monkeypatch, pixels, task):
    pairs = [(f"{word} .", f". {word[::-1]}") for word in ("ab", "bc", "cab", "dab")]
    data = dict.fromkeys(("train", "dev", "val", "test"), pairs)
    subwords = Subwords.train((side for pair in pairs for side in pair), 30)
    monkeypatch.setattr(ablation.translate, "read_corpus", lambda *asked: data)
    monkeypatch.setattr(ablation.translate, "subwords_for_run", lambda *what, **how: subwords)
    flags, rows = f"--task {task} --data any --language xyz {TINY}", ("base", "E learned positions")
    asked = dict(pronunciations=lambda language, _: {"xyz": data}[language])
    out, folder = studied(ablation, flags, rows, **asked)
    assert out[-2] == "too close to say: 1 of 1 rows"
    assert (folder / "base-3/subwords.model").exists() == (task == "translate")


@pytest.mark.parametrize(("length", "least"), [(1, 1), (2, 60), (3, 250), (20, 250)])
def test_every_length_is_tested_on_sequences_that_training_never_sees(length, least):
    sources = bottleneck.test_sources(length, 250)
    assert least <= len(sources) == len({*sources}) <= 250
    assert all(len(source) == length and is_held_out(source) for source in sources)


def test_the_bottleneck_is_studied_and_drawn(studied, succeed):
    """The models have about as many parameters, and the context 64 numbers."""
    with few_held_out():
        flags = "--quick --steps 1 --seeds 1 --batch-size 4"
        out, folder = studied(bottleneck, flags, TEST_SIZE=3, LONGEST=4)
    assert out[-1].startswith("at length 4: attention 0.") and ", fixed context 0." in out[-1]
    table = (folder / "table.md").read_text().splitlines()
    head = "letters bits attention fixed context Transformer"
    assert " ".join(table[0].replace("|", " ").split()).startswith(head)
    assert len(table) == 2 + 4 + 2 and table[5].startswith("| 4          | 19   |")
    models = [load(folder / f"{row}-1").model for row in ("attention", "fixed-context")]
    sizes = [model.parameter_counts()["total"] for model in models]
    assert max(sizes) < 1.05 * min(sizes) and models[1].config.d_model == 64
    succeed(bottleneck.main, f"--run {folder}/attention-1 --input abc --attention map.png")
    assert Path("map.png").is_file()


def test_the_target_is_about_every_length_and_every_seed_with_attention():
    def runs(*seeds):
        return [{"by length": [*shares], "at_length_20": shares[-1]} for shares in seeds]

    others = {"fixed context": runs([1, 0.25], [1, 0.75]), "Transformer": runs([0.5, 0.25])}
    for shares, reached in (([0.99, 1.0], True), ([0.98, 1.0], False)):
        results = {"attention": runs([1.0, 0.99], shares)} | others
        _, figures, (_, verdict) = bottleneck.verdict(results)
        means = "attention 0.9950, fixed context 0.5000, Transformer 0.2500"
        assert verdict is reached and figures == {"at length 20:": means}
