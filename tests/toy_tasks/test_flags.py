"""Flags: those of other programs name ours, and the highest learning rate is given as it is."""

import json
from pathlib import Path

import pytest

from numformer.training.run_folder import read_metrics
from tests.toy_tasks.small import RUN, assert_refused, copying
from toy_tasks import pairs, translate, write


@pytest.mark.parametrize(
    ("page", "flag", "meant"),
    [
        (pairs.main, "--lr", "--rate"),
        (pairs.main, "--learning-rate=1e-3", "--rate"),
        (copying, "--dropout", "--p-drop"),
        (translate.main, "--batch", "--max-tokens"),
        (copying, "--epochs", "--steps"),
        (copying, "--hidden", "--d-model"),
        (pairs.main, "--vocab-size", "--subwords"),
        (translate.main, "--vocab-size", "--vocabulary"),
        (write.main, "--block-size", "--context"),
    ],
)
def test_a_flag_of_other_programs_names_the_one_that_is_meant(page, flag, meant, call):
    assert_refused(call(page, flag, "3"), f"{flag} 3; is {meant} meant?")


def test_the_highest_rate_is_that_of_rate(call):
    how = [*RUN.split(), "--warmup", "4", "--log-every", "1", "--rate", "0.002"]
    assert call(copying, *how)[0] < 2
    run = Path("runs/copy_task")
    rates = [line["rate"] for line in read_metrics(run / "metrics.jsonl") if "rate" in line]
    assert max(rates) == rates[3] == pytest.approx(0.002)
    assert json.loads((run / "config.json").read_text())["options"]["rate"] == 0.002
    assert call(copying, "--resume", "--rate", "0.002")[0] < 2
    assert_refused(call(copying, *how, "--factor", "3"), "by --rate or by --factor; received both")
    for wrong in ("0", "-1", "inf", "nan"):
        assert_refused(call(copying, "--rate", wrong), "--rate is a number above 0; received")


def test_help_says_what_is_made_of_words_without_a_flag(call):
    said = " ".join(" ".join(call(pairs.main, "--help")[1]).split())
    assert "alone: both (default: neither)" in said and "(default: )" not in said
