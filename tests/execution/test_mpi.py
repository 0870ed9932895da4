"""Ranks of MPI train as one process does, fail together, and are missed where they hang."""

import functools
import os
import re
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from numformer import blas
from numformer.execution import mpi
from numformer.execution.ranks import RankLost
from tests.equal_runs import assert_same_run, last
from tests.execution import copying
from tests.faults import ranks
from toy_tasks import lengths
from toy_tasks.text_to_text import sequences

pytest.importorskip("mpi4py", reason="ranks need mpi4py: pip install 'numformer[mpi]'")
FLAGS = """--parts 5 --steps 9 --d-model 16 --d-ff 32 --heads 2 --layers 1 --batch-size 16
--p-drop 0.1 --warmup 60 --factor 1 --evaluate-every 4 --log-every 3 --no-plots
--timeout 5""".split()


PAGE = "tests.execution.copying"


def start(count: int, *flags):
    return ranks.mpiexec(count, *FLAGS, *flags, page=PAGE)


def ended(process, *code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode in code, (out, err)
    return out, err


@pytest.fixture
def train_alone(call, monkeypatch, tmp_path):
    """A function that trains with flags in this process and returns the folder of the run."""

    def train(*flags):
        for module, name, value in copying.SMALL_LIMITS:
            monkeypatch.setattr(module, name, value)
        with blas.training_threads(1):
            arguments = [*FLAGS, *flags, "--out", str(tmp_path / "alone")]
            assert call(functools.partial(sequences.main, copying.RULE), "", *arguments)[0] == 1
        return tmp_path / "alone"

    return train


def test_ranks_train_to_the_bits_of_one_process(tmp_path, train_alone):
    """Two parts on two ranks; a third rank has no part."""
    out, err = ended(start(3, "--parts", 2, "--out", tmp_path / "run"), 1)
    assert out.count("kept at step") == 1 and not err
    assert len(last(tmp_path / "run")[0]["optimizer.mean"]) > 2 << 10  # ranks update three blocks
    assert_same_run(tmp_path / "run", train_alone("--parts", "2"))


def test_a_signal_to_one_rank_stops_all_and_fewer_ranks_resume(tmp_path, train_alone, stand_in):
    """Three ranks on GPUs in half precision, then two; some compute two branches of the sum."""
    flags = "--backend", "cupy", "--precision", "mixed"
    _, err = ended(start(3, *flags, "--out", tmp_path / "run", "--stops"), 130)
    (line,) = err.splitlines()
    assert re.match(r"stopped at step \d+, which is saved; go on with: ", line)
    ended(start(2, *flags, "--out", tmp_path / "run", "--resume"), 1)
    assert_same_run(tmp_path / "run", train_alone(*flags))


def test_a_rank_that_hangs_is_missed(tmp_path):
    folder = tmp_path / "run"
    process = start(2, "--timeout", 1, "--steps", 40_000, "--out", folder)
    while not (folder / "last.safetensors").exists():
        time.sleep(0.01)
    os.kill(ranks.ranks_of(process)[1], signal.SIGSTOP)
    _, err = ended(process, 2, 9)  # 9 where mpiexec tells how the rank that hangs was ended
    assert "rank 1 has not answered for 1 seconds" in err and err.count("error:") == 1


class Gone(Exception):
    """The error that MPI raises if another process ends while a message is on its way."""


def gone(*_):
    raise Gone("Other MPI error, error stack:\n(68) process_vm_readv failed")


def test_an_error_of_mpi_is_a_rank_that_is_lost(monkeypatch):
    monkeypatch.setattr(mpi, "_library", lambda: SimpleNamespace(Exception=Gone))
    member, number = mpi.MPIRanks.__new__(mpi.MPIRanks), np.zeros(1)
    sent = SimpleNamespace(Isend=lambda *_: request, Irecv=lambda *_: request, Iprobe=gone)
    request = SimpleNamespace(Test=gone)
    lost = SimpleNamespace(Isend=gone, Irecv=gone, Iprobe=gone)
    words = "another rank has ended, or cannot be reached .Other MPI error, error stack:.$"
    for member._comm in (sent, lost):
        for call in (
            lambda: member.send(number, 1)(),
            lambda: member.receive(number, 1)(),
            lambda: member.is_waiting(1, 0),
        ):
            with pytest.raises(RankLost, match=words):
                call()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--seed 5", "rank 1 with seed 5, rank 0 with 1"),
        ("--start /nowhere", "/nowhere, which is not there (on rank 1)"),
    ],
)
def test_ranks_fail_together_in_one_line_and_leave_no_trace(flags, complaint, tmp_path):
    folder = tmp_path / "run"
    second = [":", "-n", "1", sys.executable, "-m", PAGE, *FLAGS, "--out", folder]
    process = start(1, "--out", folder, *second, *flags.split())
    out, err = ended(process, 2)
    assert complaint in err and len(err.splitlines()) == 1 and not out and not folder.exists()


def test_a_study_refuses_ranks(monkeypatch, complaint):
    monkeypatch.setenv("PMI_SIZE", "2")
    assert "Leave out mpiexec" in complaint(lengths.main, ["--quick"])
