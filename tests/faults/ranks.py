"""Ranks to be struck: started by mpiexec, as many as chance wants."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.toy_tasks.small import ENVIRONMENT

KILLED = """--parts 4 --steps 96 --d-model 128 --d-ff 1024 --heads 2 --layers 1 --batch-size 16
--p-drop 0.1 --warmup 60 --factor 1 --evaluate-every 8 --log-every 3
--no-plots --timeout 5""".split()
SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP
SECONDS = 30  # in which all ranks have ended


def mpiexec(count: int, *arguments, page: str = "toy_tasks.reverse") -> subprocess.Popen:
    """Start `mpiexec -n COUNT python -m PAGE`, each rank with one thread."""
    program = [sys.executable, "-m", page, *map(str, arguments)]
    command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(count), *program]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    return subprocess.Popen(command, env=ENVIRONMENT, **pipes)


def start(rng: np.random.Generator, *arguments) -> subprocess.Popen:
    return mpiexec(int(rng.integers(2, 5)), *arguments)


def ranks_of(process: subprocess.Popen) -> dict[int, int]:
    """The processes of the ranks that an mpiexec has started, by rank."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
        except OSError:  # it has ended
            continue
    found = {}
    for number in parents:
        above = parents.get(parents[number])  # hydra's proxy stands between
        if process.pid in (parents[number], above):
            environment = _environment(number)
            if "PMI_RANK" in environment:
                found[int(environment["PMI_RANK"])] = number
    return found


def _environment(number: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{number}/environ").read_bytes().decode()
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)


def _has_begun(number: int) -> bool:
    """Whether a rank has loaded NumPy; before that, toy_tasks began to handle signals.

    A SIGINT while Python itself starts ends the rank, and MPI lets the others wait for it for ever.
    """
    try:
        return "numpy" in Path(f"/proc/{number}/maps").read_text()
    except OSError:
        return False


def strike(rng: np.random.Generator, process: subprocess.Popen, training: bool) -> bool:
    """Send one rank a signal -> whether it was still at work; all have ended afterwards.

    Only in training are ranks missed that hang: before and after it MPI waits for all. Raises
    RuntimeError where one has not ended.
    """
    ranks, signals = ranks_of(process), SIGNALS if training else SIGNALS[:-1]
    number = signals[rng.integers(len(signals))]
    rank = int(rng.integers(len(ranks))) if ranks else 0
    if rank in ranks:
        if number == signal.SIGINT and not _has_begun(ranks[rank]):
            number = signal.SIGTERM
        os.kill(ranks[rank], number)
    began = time.monotonic()
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError(f"{number.name} to rank {rank} of {len(ranks)} left others") from None
    while left := [pid for pid in ranks.values() if _environment(pid)]:
        if time.monotonic() - began > SECONDS:
            raise RuntimeError(f"{number.name} to rank {rank} of {len(ranks)} left {left}")
        time.sleep(0.05)
    if "Traceback" in errors:
        raise RuntimeError(f"{number.name} to rank {rank} of {len(ranks)}: {errors}")
    return process.returncode not in (0, 1)
