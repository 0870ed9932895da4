"""Pronunciation: words in, phonemes out; how they are measured; older runs; data that is wrong."""

import re
import shutil
from pathlib import Path

import pytest

from numformer.runs.migrations import from_2
from numformer.trained import load
from tests.toy_tasks.small import TINY
from toy_tasks import pronounce
from toy_tasks.command_line import run_folders
from toy_tasks.data import datasets
from toy_tasks.pairs import PairsTask

LEARN = f"{TINY} --language toy --data words --steps 3 --evaluate-every 2 --out run"


def test_a_saved_run_pronounces_words(data, call, succeed, refuse):
    out = succeed(pronounce.main, f"{LEARN} --beam 2")  # this language has no target
    assert load("run").text.beam == 2
    assert re.fullmatch(r"word error rate \d+\.\d\d", out[-1])
    code, out, err = call(pronounce.main, "--run run --word abc", " cafe\u0301 ")
    assert code == 0 and len(out) == 2
    assert re.fullmatch(r"((A|B|CH|<unknown>)( |$))*", out[0])
    assert err == ["note: training never saw 'f' 'é' (in ' cafe\u0301 ')"]
    refuse(pronounce.main, "--run run --word ' '", "at least one symbol")


@pytest.mark.parametrize(
    ("average", "kept"), [(1, "2: word_error_rate 10"), (5, "3: word_error_rate 20")]
)
def test_test_words_are_read_once_and_last(data, succeed, monkeypatch, average, kept):
    measured, rates = [], iter([30.0, 10.0, 20.0, 5.0])

    def written(task, model, sources, beam=None):
        measured.append((len(sources := [*sources]), beam or task.text.beam))
        return ["A"] * len(sources)

    def measure(task, written, examples):
        return dict(word_error_rate=next(rates), phoneme_error_rate=1.0)

    monkeypatch.setattr(pronounce.PronunciationTask, "write", written)
    monkeypatch.setattr(pronounce.PronunciationTask, "measure", measure)
    (data / "toy_test.tsv").write_text("ab\tA B\n", encoding="utf-8")
    out = succeed(pronounce.main, f"{LEARN} --evaluate-every 1 --average {average}")
    assert measured == [(6, 1)] * 3 + [(1, 5)]
    assert f"kept at step {kept}.0000" in out
    assert out[-2:] == ["phoneme error rate 1.00", "word error rate 5.00"]


def test_a_run_of_format_2_keeps_its_beam():
    task = {"characters": ["a"], "phonemes": ["A"], "max_length": 9, "data": 1}
    _, metadata = from_2({}, {"task": task})
    assert metadata["task"] == {"name": "pronounce", "data": 1}
    assert (metadata["text"]["beam"], metadata["text"]["max_length"]) == (pronounce.BEAM, 9)


def test_a_run_from_before_there_was_a_setting_goes_on_without_it(data, succeed):
    assert pronounce.DEFAULTS["average"] > 1
    succeed(pronounce.main, f"{LEARN} --average 1")
    settings = run_folders.read_config(Path("run"))
    del settings["options"]["average"], settings["options"]["activation"]
    run_folders.write_config(Path("run"), settings)
    out = succeed(pronounce.main, "--resume --out run --data words")
    assert out[0].startswith("run is finished")


def test_what_cannot_be_is_refused_without_a_trace(data, refuse):
    """Wrong test words too, which are read before training and not after it."""
    for split in ("train", "dev", "test"):
        Path(data, f"same_{split}.tsv").write_text("ab\tA B\n")
    shutil.copytree(data, "latin")
    Path("latin/toy_test.tsv").write_bytes(b"ab\tA B\n\xff\tB\n")
    for flags, words in {
        "--language xyz": ["dut, fre, vie_hanoi", "'xyz'", "--data"],
        "--language xyz --data words": ["xyz_train.tsv", "No such file"],
        "--language toy --data words --tying all": ["tying all", '"target"'],
        "--language same --data words --tying all": ["tying all", "2 and 2 symbols, not all"],
        "--language toy --data latin": ["toy_test.tsv", "line 2", "UTF-8"],
    }.items():
        refuse(pronounce.main, flags, *words)


def test_error_rates_by_hand(data):
    """Three words with 0, 1 and 3 edits, of 7 phonemes; of several targets the nearest counts."""
    pairs = datasets.pronunciations("toy", data)
    examples = [("x", ("a b",)), ("y", ("c d",)), ("z", ("bb bb bb",))]
    written = ["a b", "c", "a"]
    assert pronounce.PronunciationTask(pairs, 2, 1).measure(written, examples) == {
        "word_error_rate": pytest.approx(200 / 3),
        "phoneme_error_rate": pytest.approx(400 / 7),
    }
    lines = [("ca", "CH A"), ("ca", "A CH")]  # each is an example
    task = pronounce.PronunciationTask(pairs | {"test": lines}, 2, 1)
    assert task.test == [("ca", ("CH A",)), ("ca", ("A CH",))]
    several = [("x", ("a b",)), ("y", ("c d", "c")), ("z", ("b", "a b b"))]
    assert PairsTask(pairs, 2, 1, "target").measure(written, several) == {
        "exact_match": pytest.approx(2 / 3),
        "symbol_error_rate": pytest.approx(100 / 4),
    }
