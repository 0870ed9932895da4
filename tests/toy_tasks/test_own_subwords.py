"""Subwords of one's own pairs and texts: learned, kept with the run, plain text in and out."""

from pathlib import Path

import pytest

import numformer
from numformer.data import Subwords
from tests.toy_tasks.small import TINY
from toy_tasks import pairs, write
from toy_tasks.write import WritingTask, split

LINES = [f"the  dog {number}\tder Hund {number}" for number in range(60)]
TEXT = "the cat sat on the mat.\n\n  a dog ran.\n" * 60
RUN = f"--data own.txt {TINY} --steps 2 --out run"


@pytest.mark.parametrize(
    ("page", "data", "rest"), [(pairs, "\n".join(LINES), ""), (write, TEXT, "--context 8")]
)
def test_a_run_of_subwords_keeps_them_and_takes_plain_text(page, data, rest, succeed, refuse):
    Path("own.txt").write_text(data)
    said = "\n".join(succeed(page.main, f"{RUN} {rest} --subwords 5000"))
    kept, text = Subwords(Path("run/subwords.model").read_bytes()), numformer.load("run").text
    assert f"--subwords 5,000: the texts have {len(kept)} subwords" in said
    assert text.read.model == kept.model
    asked = "the  dog"
    assert text.symbols(asked) == kept.split(asked) and len(kept.split(asked)) < 5
    out = "\n".join(succeed(page.main, "--run run --input", asked))
    assert out.startswith(asked) == (page is write) and "\u2581" not in out
    assert "is finished" in "".join(succeed(page.main, "--resume --out run"))
    Path("run/subwords.model").write_bytes(Subwords.learned(["ab" * 9], 9, exact=True).model)
    refuse(page.main, "--resume --out run", "data that it was started with", tells=True)
    too_few = f"{RUN} {rest} --out new --subwords 0"
    refuse(page.main, too_few, "--subwords 0: subwords are at least ", tells=True)


def test_pairs_share_their_subwords_and_say_which_side_is_too_long(complaint, succeed, refuse):
    data = {name: [("the dog", "der Hund")] * 3 for name in ("train", "dev", "test")}
    words = Subwords.learned(["the dog der Hund"], 60, exact=True)
    task = pairs.PairsTask(data, 2, 1, known=2 * (words,))
    assert task.text.source is task.text.target is words
    task.written = lambda model, sources, **how: [words.join(words.split("der Hund"))]
    assert task.evaluate(None)["exact_match"] == 1.0
    data["test"] = [("the dog", "☃d" * 128)]
    assert pairs.PairsTask(data, 2, 1, known=2 * (words,)).longest == 257
    data["test"] = [("the dog", "☃d" * 128 + "☃")]
    said = complaint(pairs.PairsTask, data, 2, 1, known=2 * (words,))
    assert "at most 256 subwords; received 257 in '☃d☃d" in said
    Path("own.txt").write_text("\n".join([*LINES, "the dog " * 40 + "\tder Hund"]))
    both = "--data own.txt --words --subwords 40"
    refuse(pairs.main, both, "made of words or of subwords; received both")
    succeed(pairs.main, f"{RUN} --subwords 400")


def test_a_text_of_subwords_is_learned_in_its_first_nine_tenths_and_judged_by_character(
    succeed,
):
    text = TEXT + "☃" * 20
    training, unseen = split(text)
    assert (len(training), len(unseen)) == (2070, 230) and training + unseen == text
    Path("own.txt").write_text(text)
    out = succeed(write.main, f"{RUN} --context 8 --subwords 40")
    words = numformer.load("run").text.vocabulary
    assert "☃" not in words.symbols and len(words) == 40
    task = WritingTask(text, 8, 4, 1, known=words)
    assert words.join(words.decode(task.training)) == training
    figures = dict(line.rsplit(" ", 1) for line in out[-2:])
    ratio = len(words.split(unseen)) / len(unseen)
    ours = float(figures["loss of a subword"]) * ratio
    assert float(figures["held-out loss"]) == pytest.approx(ours, abs=1e-4) and ratio < 0.7
    told = WritingTask(text, 8, 4, 1).description(), task.description()
    assert told[1].pop("subwords") and told[0] == told[1]


def test_a_text_of_subwords_has_windows_on_both_sides(complaint):
    words = Subwords.learned([TEXT], 60, exact=True)
    count = len(words.split(TEXT))
    said = complaint(WritingTask, TEXT, count // 20, 4, 1, known=words)
    assert f"subwords of a window; received {count} subwords" in said
    assert "20 times the 6 characters" in complaint(WritingTask, "ab" * 59, 5, 4, 1)
    assert len(WritingTask("ab" * 60, 5, 4, 1).unseen) == 12
    short = "a b c d e " * 90 + "w" * 100  # whose last tenth has few subwords
    words = Subwords.learned([short], 99, exact=True)
    unseen = len(words.split(split(short)[1]))
    assert WritingTask(short, unseen - 1, 4, 1, known=words).unseen_windows()
    assert "20 times" in complaint(WritingTask, short, unseen, 4, 1, known=words)
