"""A small run of `python -m tests.faults`: a kill leaves no trace, and bad files are refused."""

import numpy as np

from tests.faults import __main__ as faults


def test_a_killed_run_ends_like_one_that_was_not(tmp_path):
    flags = [*faults.KILLED, "--steps", 32]
    survived, hits = faults.survive_kills(1, np.random.default_rng(3), tmp_path, flags)
    assert survived == sum(hits.values()) == 1


def test_bad_files_of_every_kind_are_refused(tmp_path):
    refused, tried = faults.refuse_bad_files(4, np.random.default_rng(4), tmp_path)
    assert refused == tried == 4 * len(faults.KINDS)
