"""One's own pairs: how they are read, split and told; the script, and what it refuses."""

import datetime
import io
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import numformer
from tests.toy_tasks.small import program
from toy_tasks import compare
from toy_tasks.command_line import run_folders
from toy_tasks.data.dates import dates, in_words, ordinal
from toy_tasks.data.splits import split_pairs
from toy_tasks.pairs import SPLITS, PairsTask, main
from toy_tasks.text_to_text.transduction import print_examples

TINY = "--d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --steps 3 --parts 1"
LINES = [f"{word} {number}\t{number}-{word}" for word in ("ab", "ba", "c") for number in range(30)]


def write(**files: list[str]) -> None:
    for name, lines in files.items():
        Path(f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")


def test_a_hash_of_the_source_splits_and_keeps_all_its_targets_together():
    many = [(f"{number}", target) for number in range(5000) for target in "ab"]
    parts = split_pairs(many, *SPLITS)
    assert sorted(pair for part in parts.values() for pair in part) == sorted(many)
    sources = {name: {source for source, _ in part} for name, part in parts.items()}
    assert [round(len(s) / 5000, 1) for s in sources.values()] == [0.8, 0.1, 0.1]
    assert sum(map(len, sources.values())) == 5000
    few = {name: [pair for pair in part if pair in many[:60]] for name, part in parts.items()}
    assert split_pairs(many[:60], *SPLITS) == few


@pytest.mark.parametrize("words", ["", "source", "target", "both"])
def test_sides_are_made_of_characters_or_of_words(words):
    data = {name: [("a b a", "x  yx")] for name in ("train", "dev", "test")}
    task = PairsTask(data, 2, 1, words)
    source, target = task.text.source.symbols, task.text.target.symbols
    assert source == (["a", "b"] if words in ("source", "both") else [" ", "a", "b"])
    assert target == (["x", "yx"] if words in ("target", "both") else [" ", "x", "y"])
    assert task.text.longest == (3 if words in ("source", "both") else 5)
    assert task.text.max_length == 2 * (2 if words in ("target", "both") else 5)
    batch = task.batch(1)
    assert task.text.source.decode(batch.source[0][:-1]) == task.text.source.split("a b a")


def test_what_is_held_out_and_measured_are_the_development_pairs():
    """Its several targets are told apart; a symbol more or less counts from the nearest of them."""
    dev = [("b", "y"), ("b", "xx"), ("b", "y")]
    data = {"train": [("a", "xy")], "dev": dev, "test": [("a", "x")]}
    task = PairsTask(data, 1, 1)
    (batch,) = task.held_out
    assert task.text.target.decode(batch.target_out[0][:-1]) == ["y"]
    assert task.development == [("b", ("y", "xx"))] and task.unseen.startswith("of the test set, 1")
    task.write = lambda model, sources, **how: ["xxy" for _ in sources]
    assert task.evaluate(None) == {"exact_match": 0.0, "symbol_error_rate": 50.0}
    task.write = lambda model, sources, **how: ["xx" for _ in sources]
    assert task.evaluate(None) == {"exact_match": 1.0, "symbol_error_rate": 0.0}


def test_the_wrong_answers_with_the_most_edits_are_printed(capsys):
    test = [("a", ("x",)), ("b", ("xxx",)), ("c", ("xxxxxy",)), ("d", ("y",))]
    data = {"train": [("abcd", "xy")], "dev": [("a", "x")], "test": [("a", "x")]}
    (task := PairsTask(data, 1, 1)).test = test
    print_examples(task, ["", "", "yyyyyy", "y"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if "WRONG," in line] == ["c", "b", "a"]


def test_pairs_of_one_s_own_are_learned_and_the_run_answers(call, succeed, refuse):
    several = [*LINES, LINES[0], "c 5\tfive", "c 7\tseven"]
    write(own=several)
    out = succeed(main, f"--data own.tsv {TINY} --dev-size 3 --test-size 5")  # there is no target
    text = "\n".join(out)
    for note in (
        "93 pairs, for example 'ab 0' -> '0-ab'",
        "1 repeated pair left out",
        "2 sources with several targets",
        "'c 5' -> '5-c' or 'five'",
        "only the first 3 pairs of dev are used",
        "5 sources that training never saw",
        "toy_tasks.pairs --run runs/pairs-own --input '",
    ):
        assert note in text
    counts = re.search(r"train (\d+), dev (\d+), test (\d+)", text)
    assert sum(map(int, counts.groups())) == 92
    assert "target" not in out[-2] and re.fullmatch(r"exact match \d\.\d{4}", out[-1])
    assert Path("runs/pairs-own/attention.png").exists()
    result = run_folders.read_config(Path("runs/pairs-own"), "result.json")
    assert [f"symbol error rate {result['symbol_error_rate']:.2f}", out[-1]] == out[-2:]
    line = "test", "symbol_error_rate", f"{result['symbol_error_rate']:.5g}"
    assert line in [(*line.split(),) for line in succeed(compare.main, "runs/pairs-own")]
    code, out, err = call(main, "--run runs/pairs-own --input abq --attention a.png")
    assert (code, len(out), err) == (0, 1, ["note: training never saw 'q' (in 'abq')"])
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    succeed(main, "--resume --out runs/pairs-own")
    refuse(main, "--run runs/pairs-own --input a --heads 3", "received --heads. Leave")
    write(own=several[:-1])
    refuse(main, "--resume --data own.tsv", "the data that it was started with", tells=True)


def test_standard_input_is_answered_line_by_line(succeed, monkeypatch):
    write(own=LINES)
    succeed(main, f"--data own.tsv {TINY} --no-plots")
    asked = [f"ab {number % 100}" for number in range(1010)]
    asked[3] = ""
    monkeypatch.setattr("sys.stdin", io.StringIO("\r\n".join(asked) + "\n", newline=""))
    out = succeed(main, "--run runs/pairs-own")
    assert (len(out), out[3]) == (1010, "")
    assert out[1000:1004] == succeed(main, "--run runs/pairs-own --input", *asked[1000:1004])
    # A reader that has gone, as in `| head -1`, is no error.
    with program("pairs", "--run", "runs/pairs-own", stdin=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write("ab 1\n" * 3)
        process.stdin.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 0)


def test_three_files_are_taken_as_they_are_and_what_they_share_is_reported(succeed):
    write(a=LINES[:40], b=LINES[38:60], c=LINES[60:])
    flags = "--no-plots --words source --beam 2 --penalty length --length-penalty 0.5"
    epochs = TINY.replace("--steps 3", "--epochs 1")  # of 40 pairs, 4 in a batch
    out = succeed(main, f"--data a.tsv b.tsv c.tsv {epochs} {flags}")
    assert "train 40, dev 22, test 30" in out
    (place,) = (i for i, line in enumerate(out) if line.endswith("parameters, 10 steps (1 epoch)"))
    assert out[place + 1] == "note: --warmup 200 is longer than the run: its rates stay low"
    text = numformer.load("runs/pairs-a").text
    assert text.source.symbols[0] == "0"  # a word
    assert (text.beam, text.length_penalty, text.penalty) == (2, 0.5, "length")
    shared = next(line for line in out if "test file, for example" in line)
    assert (
        shared.startswith("training also has 2 sources of the development or test file")
        and "'ba 8'" in shared
    )


def test_what_cannot_be_is_refused_in_one_line_without_a_trace(refuse):
    write(own=LINES, bad=["a\tb", "b\tc", "c"], few=["a\tb"])
    for flags in ("", "--demo dates --data own.tsv"):
        refuse(main, flags, "--data with one file or three, or a --demo")
    refuse(main, "--data bad.tsv", "bad.tsv, line 3 must have exactly one TAB; received 'c'")
    refuse(main, "--data few.tsv", "received none for dev", tells=True)
    refuse(main, "--data own.tsv --dev-size 0", "are at least 1; received 0 and 2000")


def test_dates_are_those_that_the_words_say():
    assert dates(300) == dates(300) and len(dates(300)) == 300
    months = "jan feb mar apr may jun jul aug sep oct nov dec".split()
    for words, date in dates(2000):
        year, month, day = date.split("-")
        plain = words.lower()
        assert year in plain and months[int(month) - 1] in plain
        numbers = re.findall(r"\d+", plain)
        assert sorted(map(int, numbers)) == sorted([int(year), int(day)]) and 1900 <= int(year)

    numbers = 1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 31
    assert " ".join(map(ordinal, numbers)) == "st nd rd th th th th st nd rd st"
    day = datetime.date(2026, 11, 21)
    ways = {in_words(day, np.random.default_rng(seed)) for seed in range(400)}
    assert {"21 nov 2026", "SATURDAY, NOVEMBER 21, 2026", "The 21St Of Nov 2026"} <= ways
