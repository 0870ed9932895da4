"""`python -m tests.execution.copying`: a small task in small blocks; `--backend cupy` on stand-ins.

They stand in for CuPy and for NCCL. With --stops the last rank is told to stop on the way.
"""

import dataclasses
import itertools
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))
import cupy_stand_in

from numformer import backend
from numformer.execution.mpi import world
from numformer.models import Objective
from numformer.optimization import clipping
from toy_tasks import copy_task
from toy_tasks.command_line import exit_code
from toy_tasks.text_to_text import sequences

NCCL_TAG = 8
RULE = dataclasses.replace(copy_task.RULE, draw_source=lambda rng: str(rng.integers(400)))
SMALL_LIMITS = (clipping, "BLOCK", 1 << 10), (sequences, "HELD_OUT_SOURCES", 8)


class Group:
    """What cupyx.distributed gives, over MPI: all is sent between groupStart and groupEnd."""

    def __init__(self, size: int, rank: int, use_mpi: bool):
        assert (size, rank, use_mpi) == (world().size, world().rank, True)
        self.ranks, self.pending, self.open = world(), {other: [] for other in range(size)}, False
        cupy_stand_in.cuda.nccl = SimpleNamespace(groupStart=self.start, groupEnd=self.end)

    def start(self) -> None:
        self.open = True

    def send(self, array, peer: int) -> None:
        assert self.open, "two ranks that send wait for each other outside of a group"
        self.pending[peer].append(self.ranks.send(array._memory, peer, NCCL_TAG))

    def recv(self, array, peer: int) -> None:
        assert self.open
        self.pending[peer].append(self.ranks.receive(array._memory, peer, NCCL_TAG))

    def end(self) -> None:
        self.ranks.wait(self.pending)
        self.pending, self.open = {other: [] for other in self.pending}, False


def main() -> int:
    arguments = sys.argv[1:]
    for module, name, value in SMALL_LIMITS:
        setattr(module, name, value)
    if "cupy" in arguments:
        distributed = ModuleType("cupyx.distributed")
        distributed.init_process_group = Group
        sys.modules |= {"cupy": cupy_stand_in, "cupyx.distributed": distributed}
        sys.modules["cupyx"] = ModuleType("cupyx")
        backend._kernels[cupy_stand_in.ndarray] = {}  # formulas compute
    if "--stops" in arguments:
        arguments.remove("--stops")
        if world().rank == world().size - 1:
            forward, calls = Objective.forward, itertools.count()

            def forward_and_stop(objective, *inputs):
                if next(calls) == 4:
                    signal.raise_signal(signal.SIGTERM)
                return forward(objective, *inputs)

            Objective.forward = forward_and_stop
    return sequences.main(RULE, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
