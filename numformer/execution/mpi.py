"""Ranks that MPI has started: mpiexec -n 4 python ..."""

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.execution.ranks import RankLost, Ranks

SIZES = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"
"""Variables that MPICH's and Open MPI's mpiexec set to the number of processes."""


class MPIRanks(Ranks):
    """The ranks of MPI's COMM_WORLD. mpi4py sends their NumPy arrays without a copy."""

    def __init__(self) -> None:
        self._comm = _library().COMM_WORLD.Dup()
        self.rank, self.size = self._comm.rank, self._comm.size

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        return functools.partial(_call, _call(self._comm.Isend, array, to, tag).Test)

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        return functools.partial(_call, _call(self._comm.Irecv, array, source, tag).Test)

    def is_waiting(self, source: int, tag: int) -> bool:
        return _call(self._comm.Iprobe, source, tag)


def _call(function: Callable, *arguments) -> Any:
    """Return the result of a function of MPI. Raises RankLost if another rank ends meanwhile."""
    try:
        return function(*arguments)
    except _library().Exception as problem:
        reason = str(problem).splitlines()[0]
        raise RankLost(f"another rank has ended, or cannot be reached ({reason})") from None


def _library() -> Any:
    try:
        from mpi4py import MPI
    except ImportError:
        raise InputError(
            "ranks send each other arrays through mpi4py",
            "an installation without it",
            "Install the extra: pip install 'numformer[mpi]'",
        ) from None
    return MPI


def started_by_mpi() -> bool:
    """Whether mpiexec or Slurm's srun has started this process together with others."""
    sizes = [*SIZES, *["SLURM_NTASKS"] * ("PMIX_RANK" in os.environ)]
    return any(int(os.environ.get(name, "1")) > 1 for name in sizes)


@functools.cache
def world() -> Ranks:
    """Return MPI's ranks, or this process alone. Raises InputError if mpi4py is missing."""
    return MPIRanks() if started_by_mpi() else Ranks()


KINDS = "forks", "mpi"
"""The values of `train`'s argument `parallel`."""


def ranks_for(parallel: str | None, timeout: float) -> Ranks:
    """Return the ranks for `parallel`; None means "mpi" if MPI started this process, else "forks".

    Raises InputError if `parallel` or `timeout` is not valid, or mpi4py is missing.
    """
    if parallel not in (None, *KINDS):
        rule = f"parts are computed in parallel by {' or '.join(KINDS)}"
        raise InputError(rule, repr(parallel), "Name one of them.")
    if not (type(timeout) in (int, float) and 0 < timeout < float("inf")):
        rule, fix = "a rank's timeout is a number of seconds above 0", "Change timeout (--timeout)."
        raise InputError(rule, repr(timeout), fix)
    if parallel == "forks":
        return Ranks()
    ranks = MPIRanks() if parallel == "mpi" and not started_by_mpi() else world()
    ranks.timeout = timeout
    return ranks
