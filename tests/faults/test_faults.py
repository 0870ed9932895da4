"""A small run of `python -m tests.faults`: a kill leaves no trace, and bad files are refused."""

import functools

import numpy as np

from tests.faults import __main__ as faults
from tests.toy_tasks.small import program
from toy_tasks.text_to_text import sequences


def test_a_killed_run_ends_like_one_that_was_not(tmp_path):
    flags, rng = [*faults.KILLED, "--steps", 64], np.random.default_rng(3)
    small = functools.partial(program, "tests.execution.copying")
    start = dict(begin=small, reference=small)
    survived, hits = faults.survive_kills(1, rng, tmp_path, flags, **start)
    assert survived == sum(hits.values()) == 1


def test_bad_files_of_every_kind_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "HELD_OUT_SOURCES", 99)
    refused, tried = faults.refuse_bad_files(3, np.random.default_rng(4), tmp_path)
    assert refused == tried == 3 * len(faults.KINDS)
