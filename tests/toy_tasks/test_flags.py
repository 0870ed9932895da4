"""Flags: those of other programs name ours, and the highest learning rate is given as it is."""

import json
from pathlib import Path

import pytest

from tests.equal_runs import logged
from tests.toy_tasks.small import RUN, copying
from toy_tasks import pairs, translate, write

MEANT = [
    (pairs.main, "--lr", "--rate"),
    (pairs.main, "--learning-rate=1e-3", "--rate"),
    (copying, "--dropout", "--p-drop"),
    (translate.main, "--batch", "--max-tokens"),
    (copying, "--epochs", "--steps"),
    (copying, "--hidden", "--d-model"),
    (pairs.main, "--vocab-size", "--subwords"),
    (translate.main, "--vocab-size", "--vocabulary"),
    (write.main, "--block-size", "--context"),
]


def test_a_flag_of_other_programs_names_the_one_that_is_meant(refuse):
    for main, flag, meant in MEANT:
        refuse(main, f"{flag} 3", f"{flag} 3; is {meant} meant?")


def test_the_highest_rate_is_that_of_rate(call, refuse):
    how = f"{RUN} --warmup 4 --log-every 1 --rate 0.002"
    call(copying, how)
    rates = logged(run := Path("runs/copy_task"), "rate")
    assert max(rates) == rates[3] == pytest.approx(0.002)
    assert json.loads((run / "config.json").read_text())["options"]["rate"] == 0.002
    assert call(copying, "--resume --rate 0.002")[0] < 2
    refuse(copying, f"{how} --factor 3", "by --rate or by --factor; received both")
    for wrong in ("0", "-1", "inf", "nan"):
        refuse(copying, f"--rate {wrong}", "--rate is a number above 0; received")


def test_help_says_what_is_made_of_words_without_a_flag(succeed):
    said = " ".join(" ".join(succeed(pairs.main, "--help")).split())
    assert "alone: both (default: neither)" in said and "(default: )" not in said
