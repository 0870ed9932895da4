"""Evaluating the model of --run on the file of --data: every task's measures and predictions."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numformer import progress
from numformer.data import Vocabulary
from numformer.generation import Continuation, Infilling, Parsing, Transduction, Translation
from numformer.models import LanguageModel, MaskedLanguageModel, Transformer
from numformer.models.vision import VisionTransformer
from numformer.runs import save_model
from numformer.trained import load
from tests.toy_tasks.small import main_of, shaken, tree_of
from toy_tasks.parse import Sentence

LETTERS, WORDS = Vocabulary("abcd_"), Vocabulary(["one", "two"], " ")
SYMBOLS = Vocabulary(["(S", ")S", "(NP", ")NP", "XX"], " ")
TEXTS = {
    "pairs": Transduction(LETTERS, WORDS, 6),
    "pronounce": Transduction(LETTERS, WORDS, 6),
    "translate": Translation(WORDS, WORDS, 6),
    "parse": Parsing(WORDS, SYMBOLS, 9),
    "write": Continuation(LETTERS, 8),
    "shakespeare": Continuation(LETTERS, 8),
    "masked": Infilling(LETTERS, "_", 8),
}
PAIRS = "ab\tone two\nab\ttwo\n_d\tone one\n"
DATA = {"pairs": PAIRS, "pronounce": PAIRS, "translate": "one two\ttwo\ntwo\tone one one one\n"}
DATA |= {"parse": "(S (NP (D one) (N one)) (V two))\n(S (N two) (. one))"}
DATA |= {"write": 9 * "abcd", "shakespeare": 9 * "dcba", "masked": 9 * "abdc"}
MEASURES = {
    "pairs": "symbol error rate, exact match, loss",
    "pronounce": "phoneme error rate, word error rate, loss",
    "translate": "BLEU, loss",
    "parse": "f1, precision, recall, exact, well formed, loss",
    "write": "loss, bits per character",
    "shakespeare": "loss, bits per character",
    "masked": "accuracy, loss",
    "images": "accuracy, loss",
}
COUNTS = {"write": 5, "shakespeare": 5}
ROWS = {"pairs": 2, "pronounce": 3, "translate": 2, "parse": 2, "masked": 5, "images": 3}
IMAGES = np.random.default_rng(2).random((3, 4, 6))


def model_of(text, **form):
    if isinstance(text, Transduction):
        sizes = dict(source_vocabulary=len(text.source), target_vocabulary=len(text.target))
        sizes |= dict(d_model=8, d_ff=8, heads=2, layers=1, tying="target")
        sizes |= form
        return Transformer(Transformer.Config(**sizes))
    kind = LanguageModel if isinstance(text, Continuation) else MaskedLanguageModel
    return shaken(kind, len(LETTERS))


@pytest.fixture(params=MEASURES)
def task(request) -> str:
    """A task; its run in the folder `run`, and its test set in the file `data`."""
    name = request.param
    Path("run").mkdir()
    if name == "images":
        sizes = dict(height=4, width=6, channels=1, classes=2, patch=2)
        model = VisionTransformer(VisionTransformer.Config(**sizes, d_model=8, d_ff=8, heads=2))
        description = {"name": name, "classes": ["cat", "dog"], "highest": 1.0}
        save_model(Path("run/best.safetensors"), model, task=description)
        with open("data", "wb") as file:
            np.savez(file, images=IMAGES, labels=np.array(["dog", "cat", "dog"]))
    else:
        text = TEXTS[name].description()
        save_model(
            Path("run/best.safetensors"), model_of(TEXTS[name]), text=text, task={"name": name}
        )
        Path("data").write_text(DATA[name])
    return name


def test_a_run_is_evaluated_on_a_file(task, succeed, refuse):
    flags = "--run run --data data"
    predicted = " --predictions new/out.tsv" * (task in ROWS)
    first, *lines = succeed(main_of(task), flags + predicted)
    assert not predicted or lines.pop() == "predictions: new/out.tsv"
    count = COUNTS.get(task) or ROWS[task]
    title = f"measures of {count} examples in data, each with its 95 % bootstrap interval:"
    assert first == title
    number = r"-?\d+\.\d{4}"
    names, figures = [], {}
    for line in lines:
        name, *values = re.fullmatch(
            rf"(.*) ({number}) \(({number}) to ({number})\)", line
        ).groups()
        value, low, high = map(float, values)
        assert low <= value <= high
        names.append(name)
        figures[name] = value
    assert ", ".join(names) == MEASURES[task]
    if task not in ROWS:
        refuse(main_of(task), f"{flags} --predictions x.tsv", "unrecognized arguments")
        return
    with open("new/out.tsv", newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file, dialect="excel-tab")]
    assert len(rows) == ROWS[task]
    same = [row["answer"] == row["target"] for row in rows]
    if task == "images":
        assert figures["accuracy"] == pytest.approx(np.mean(same), abs=1e-4)
        assert figures["loss"] == pytest.approx(
            -np.mean([float(r["log_p"]) for r in rows]), abs=1e-4
        )
    else:
        pairs = [(row["source"], row["target"]) for row in rows]
        trained = load("run")
        assert [float(row["log_p"]) for row in rows] == pytest.approx(trained.score(pairs))
        answers = trained.write([source for source, _ in pairs])
        assert [row["answer"] for row in rows] == answers
    if task == "pronounce":
        assert figures["word error rate"] == pytest.approx(100 - 100 * np.mean(same), abs=1e-3)


def test_flags_that_do_not_go_together_are_refused(task, refuse):
    flags = "--run run --data data"
    for others, words in {
        f"{flags} --input a": "--run evaluates on --data, without --input; received both",
        f"{flags} --attention a.png": "without --attention",
        f"{flags} --layers 3": "received --layers",
        "--run run --data absent": "absent",
        "--run run --input a --predictions out.tsv": "received no --data",
    }.items():
        if task in ROWS or "predictions" not in others:
            refuse(main_of(task), others, words)
    if task == "images":
        refuse(main_of("pairs"), flags, "python -m toy_tasks.images --run run.")
        with open("data", "wb") as file:
            np.savez(file, images=IMAGES, labels=np.array(["dog", "cat", "cow"]))
        refuse(main_of(task), flags, "labels are among ['cat', 'dog']; received 'cow'")
    if task == "pairs":
        refuse(main_of(task), "--run run --data data data", "received 2 files")
        refuse(main_of("write"), flags, "write takes its own runs and models of that kind")
    if task == "write":
        Path("data").write_text("a")
        refuse(main_of(task), flags, "at least two symbols")
        refuse(main_of(task), f"{flags} --greedy", "no effect; received one for temperature")
    if task == "masked":
        Path("data").write_text("ab_d")
        refuse(main_of(task), flags, "has no holes; received the character '_'")
    if task == "parse":
        Path("data").write_text("")
        refuse(main_of(task), flags, "at least one tree; received none in data")


def test_predictions_overwrite_nothing(task, refuse, succeed):
    if task not in ROWS:
        return
    Path("folder").mkdir()
    Path("link.tsv").symlink_to("data")
    flags = "--run run --data data --predictions"
    for path, words in {
        "data": "names a new file",
        "link.tsv": "names a new file",
        "-": "written to a file in a folder; received -.",
        "folder": "written to a file in a folder",
        "data/out.tsv": "written to a file in a folder",
        "/dev/null": "written to a file in a folder; received /dev/null",
        "''": "written to a file in a folder",
    }.items():
        refuse(main_of(task), f"{flags} {path}", words)
    Path("link.tsv").unlink()
    Path("link.tsv").symlink_to("folder/out.tsv")
    succeed(main_of(task), f"{flags} link.tsv")
    assert Path("link.tsv").is_symlink() and Path("folder/out.tsv").read_text().startswith("source")


def test_a_run_of_another_task_and_symbols_that_training_never_saw_are_reported(call):
    Path("run").mkdir()
    saved = dict(text=TEXTS["pairs"].description(), task={"name": "reverse"})
    save_model(Path("run/best.safetensors"), model_of(TEXTS["pairs"]), **saved)
    Path("data").write_text("aq\tone\nab\tone three\nab\tone\n")
    code, _, err = call(main_of("pairs"), "--run run --data data")
    other, note = err
    assert code == 0 and other == "note: run is a run of reverse"
    assert note.startswith("note: 2 examples of 2 with symbols that training never")
    assert "'q'" in note and "'three'" in note


def test_of_a_long_text_some_windows_are_measured(call, monkeypatch):
    monkeypatch.setattr("toy_tasks.write.MAX_WINDOWS", 3)
    Path("run").mkdir()
    text = TEXTS["write"].description()
    save_model(Path("run/best.safetensors"), model_of(TEXTS["write"]), text=text)
    Path("data").write_text(9 * "abcd")
    code, out, err = call(main_of("write"), "--run run --data data")
    assert code == 0 and out[0].startswith("measures of 3 examples")
    assert err == ["note: data is long: one of every 2 windows of the text is measured"]


def test_the_right_answer_of_a_sentence_has_its_words():
    """The words of a model's answers stand where the symbols of a tree have XX."""
    sentence = Sentence.from_tree(tree_of("(S (NP (D one) (N one)) (V two))"))
    assert sentence.answer() == ["(S", "(NP", "one", "one", ")NP", "two", ")S"]


def test_an_evaluation_shows_how_far_it_is(task, succeed, monkeypatch):
    """Each example is counted as it is answered, and again as its right answer is scored."""
    bars = []

    class Bar(progress.tqdm):
        def __init__(self, **settings):
            super().__init__(**settings | {"disable": False, "delay": 1e9})
            bars.append(self)

    monkeypatch.setattr(progress, "tqdm", Bar)
    succeed(main_of(task), "--run run --data data")
    (bar,) = bars
    count = COUNTS.get(task) or ROWS[task]
    assert bar.n == bar.total == count * (1 if task in COUNTS or task == "images" else 2)


@pytest.mark.parametrize(("side", "pair"), {"source": "abcd\tone", "target": "a\tone one"}.items())
def test_a_text_longer_than_the_learned_positions_is_refused(side, pair, refuse):
    Path("run").mkdir()
    text = replace(TEXTS["pairs"], max_length=2)
    model = model_of(text, positions="learned", max_length=3 if side == "source" else 2)
    save_model(Path("run/best.safetensors"), model, text=text.description())
    Path("data").write_text(pair)
    refuse(main_of("pairs"), "--run run --data data", f"Leave out longer {side}s")
