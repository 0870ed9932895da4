"""Ranks of MPI train as one process does, fail together, and are missed where they hang."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.equal_runs import assert_same_run, last
from tests.faults import ranks
from tests.toy_tasks.small import program

pytest.importorskip("mpi4py", reason="ranks need mpi4py: pip install 'numformer[mpi]'")
ON_STAND_IN = "tests.parallel.on_stand_in"
FLAGS = [*ranks.KILLED, "--steps", "16"]


def ended(process, *code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode in code, (out, err)
    return out, err


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """A run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    ended(program("reverse", *FLAGS, "--out", folder), 1)
    return folder


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_ranks_train_to_the_bits_of_one_process(count, alone, tmp_path):
    """Four parts: a rank each, two each, unevenly, and one rank that has none."""
    folder = tmp_path / "run"
    out, err = ended(ranks.mpiexec(count, *FLAGS, "--out", folder), 1)
    assert out.count("kept at step") == 1 and not err
    assert len(last(folder)[0]["optimizer.mean"]) > 2 << 18  # three blocks for ranks to update
    assert_same_run(folder, alone)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_with_a_card_each_train_to_the_bits_of_one_card(count, tmp_path):
    """On the stand-in for CuPy and NCCL, in half precision."""
    flags = [*FLAGS, "--steps", 8, "--precision", "mixed"]
    for ranks_at_work in (1, count):
        folder = tmp_path / str(ranks_at_work)
        ended(ranks.mpiexec(ranks_at_work, *flags, "--out", folder, page=ON_STAND_IN), 1)
    assert_same_run(tmp_path / str(count), tmp_path / "1")


def test_a_rank_that_is_told_to_stop_stops_all_and_others_go_on(alone, tmp_path):
    folder = tmp_path / "run"
    process = ranks.mpiexec(3, *FLAGS, "--out", folder)
    while not (folder / "last.safetensors").exists():
        time.sleep(0.01)
    os.kill(ranks.ranks_of(process)[2], signal.SIGTERM)
    _, err = ended(process, 130)
    (line,) = err.splitlines()
    assert re.match(r"stopped at step \d+, which is saved; go on with: ", line)
    ended(ranks.mpiexec(2, *FLAGS, "--resume", "--out", folder), 1)
    assert_same_run(folder, alone)


def test_a_rank_that_hangs_is_missed(tmp_path):
    folder = tmp_path / "run"
    process = ranks.mpiexec(3, *FLAGS, "--timeout", 1, "--steps", 400, "--out", folder)
    while not (folder / "last.safetensors").exists():
        time.sleep(0.01)
    os.kill(ranks.ranks_of(process)[1], signal.SIGSTOP)
    _, err = ended(process, 2, 9)  # 9 where mpiexec tells how the rank that hangs was ended
    assert "rank 1 has not answered for 1 seconds" in err and err.count("error:") == 1


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        ("", "--seed 5", "rank 1 with seed 5, rank 0 with 1"),
        ("", "--start /nowhere", "/nowhere, which is not there (on rank 1)"),
        ("--warmup 0", "--warmup 0", "warmup"),
        ("--nonsense", "--nonsense", "--nonsense"),
    ],
)
def test_ranks_fail_together_in_one_line_and_leave_no_trace(first, second, complaint, tmp_path):
    folder = tmp_path / "run"
    own = [*FLAGS, "--out", folder]
    again = [":", "-n", "1", sys.executable, "-m", "toy_tasks.reverse"]
    process = ranks.mpiexec(1, *own, *first.split(), *again, *own, *second.split())
    out, err = ended(process, 2)
    assert complaint in err and len(err.splitlines()) == 1 and not out and not folder.exists()


def test_a_study_is_no_work_for_ranks(tmp_path):
    _, err = ended(ranks.mpiexec(2, "--quick", page="toy_tasks.lengths"), 2)
    assert "Leave out mpiexec" in err
