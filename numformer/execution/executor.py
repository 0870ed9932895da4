"""Who computes the steps of a training run: what a trainer needs of it, and which one it gets."""

import sys
from typing import Any, Protocol

from numformer.backend import on_host
from numformer.data import Batch
from numformer.execution.forked import Forked, cores
from numformer.execution.in_turn import InTurn
from numformer.execution.nccl import NCCLExecutor
from numformer.execution.rank_executor import RankExecutor
from numformer.execution.ranks import Ranks
from numformer.models import Objective
from numformer.paper.adam import Optimizer


class Executor(Protocol):
    """Computes training steps. Whoever shares the work, the results have the same bits.

    `threads` is the number of threads of BLAS, which may decide the last bits of a product. It is
    fixed while steps are computed, and a resumed run sets the number that the run began with.
    """

    threads: int
    interrupted: bool  # whether another process received Ctrl-C or SIGTERM

    def start(self) -> None:
        """Fix the threads of BLAS and start the other processes.

        From then on these processes see changes of the weights only if they are made in place.
        """

    def gradient(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Compute the gradient of a batch, in the parameters' vector, and return the loss ().

        Several batches count as one large batch, which would need more memory. With a `scale`
        products are in half precision, and the loss is multiplied by it before backward.
        """

    def clip(self, max_norm: float | None) -> Any:
        """Scale the gradient down to `max_norm`, and return the norm () that it had."""

    def update(self, rate: float) -> None:
        """Take one step of the optimizer."""

    def replay(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Compute `gradient` again, in this process alone."""

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's vectors (N,), complete."""

    def close(self) -> None:
        """End the other processes, and give BLAS its threads back."""


def default_parts(xp) -> int:
    """Two parts where each can have a process: on Linux, with arrays on the host; otherwise one."""
    return 2 if on_host(xp.empty(0)) and sys.platform == "linux" else 1


def make_executor(
    objective: Objective, optimizer: Optimizer, seed: int, parts: int, ranks: Ranks
) -> Executor:
    """The executor of a run: ranks if there are several, else a process for each part if it can."""
    on_cpu = on_host(optimizer.parameters.data)
    if ranks.others:
        kind = RankExecutor if on_cpu else NCCLExecutor
        return kind(objective, optimizer, seed, parts, ranks)
    # On other systems libraries may not survive a fork. A GPU survives it on none.
    can_fork = sys.platform == "linux" and on_cpu and parts > 1 and cores() > 1
    return (Forked if can_fork else InTurn)(objective, optimizer, seed, parts)
