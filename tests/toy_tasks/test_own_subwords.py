"""Subwords of one's own pairs and texts: learned, kept with the run, plain text in and out."""

from pathlib import Path

import pytest

import numformer
from numformer.data import Subwords
from tests.toy_tasks.small import TINY, assert_refused
from toy_tasks import pairs, write
from toy_tasks.write import WritingTask, split

LINES = [f"the  dog {number}\tder Hund {number}" for number in range(60)]
TEXT = "the cat sat on the mat.\n\n  a dog ran.\n" * 60
RUN = [*TINY.split(), "--steps", "2", "--out", "run"]


@pytest.mark.parametrize(
    ("page", "data", "rest"), [(pairs, "\n".join(LINES), []), (write, TEXT, ["--context", "8"])]
)
def test_a_run_of_subwords_keeps_them_goes_on_and_takes_plain_text(page, data, rest, call):
    Path("own.txt").write_text(data)
    how = ["--data", "own.txt", *RUN, *rest, "--subwords"]
    code, out, err = call(page.main, *how, "5000")
    assert code == 0 and not err and "--subwords 5,000: the texts have " in "\n".join(out)
    kept, text = Subwords(Path("run/subwords.model").read_bytes()), numformer.load("run").text
    assert text.read.model == kept.model and f"have {len(kept)} subwords" in "\n".join(out)
    code, out, _ = call(page.main, "--resume", "--out", "run")
    assert code == 0 and "is finished" in "".join(out)
    Path("run/subwords.model").write_bytes(Subwords.learned(["ab" * 9], 9, exact=True).model)
    assert "data that it was started with" in call(page.main, "--resume", "--out", "run")[2][0]
    asked = "the  dog"
    assert text.symbols(asked) == kept.split(asked) and len(kept.split(asked)) < 5
    code, out, err = call(page.main, "--run", "run", "--input", asked)
    assert (code, err) == (0, []) and ("\n".join(out).startswith(asked)) == (page is write)
    assert "\u2581" not in "".join(out)
    code, _, err = call(page.main, "--data", "own.txt", *TINY.split(), *rest, "--subwords", "0")
    assert_refused((code, [], err), "--subwords 0: subwords are at least ")


def test_pairs_share_their_subwords_and_say_which_side_is_too_long(complaint, call):
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
    Path("own.tsv").write_text("\n".join([*LINES, "the dog " * 40 + "\tder Hund"]))
    both = ["--data", "own.tsv", "--words", "--subwords", "40"]
    assert_refused(call(pairs.main, *both), "made of words or of subwords; received both")
    assert call(pairs.main, "--data", "own.tsv", "--subwords", "400", *RUN)[0] == 0


def test_a_text_of_subwords_is_learned_in_its_first_nine_tenths_and_judged_by_the_character(call):
    text = TEXT + "☃" * 20
    training, unseen = split(text)
    assert (len(training), len(unseen)) == (2070, 230) and training + unseen == text
    Path("own.txt").write_text(text)
    code, out, _ = call(write.main, "--data", "own.txt", *RUN, "--context", "8", "--subwords", "40")
    words = numformer.load("run").text.vocabulary
    assert code == 0 and "☃" not in words.symbols and len(words) == 40
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
