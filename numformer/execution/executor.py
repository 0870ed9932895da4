"""The interface of executors, which compute a run's training steps, and the choice of one."""

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
    """Computes training steps. The results have the same bits for any number of processes.

    `threads` is the number of BLAS threads, on which the last bits of a product may depend. It is
    fixed while steps are computed, and a resumed run uses the number that the run began with.
    """

    threads: int
    interrupted: bool  # whether another process received Ctrl-C or SIGTERM

    def start(self) -> None:
        """Fix the number of BLAS threads, and start the other processes.

        Afterwards, change weights only in place: the other processes see no other changes.
        """

    def gradient(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Write a batch's gradient into the gradient vector, and return the scalar loss ().

        A list of batches has the gradient of one large batch, but needs less memory. With a
        `scale`, products are in half precision, and backward starts from the loss times `scale`.
        """

    def clip(self, max_norm: float | None) -> Any:
        """Scale the gradient down to norm `max_norm` if it is larger; return its former norm ()."""

    def update(self, rate: float) -> None:
        """Take one step of the optimizer."""

    def replay(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Compute `gradient` of a step again, in this process alone."""

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's complete vectors (N,), by name."""
        ...

    def close(self) -> None:
        """End the other processes, and restore the number of BLAS threads."""


def default_parts(xp) -> int:
    """Return 2 if each part can have its own process (arrays on the host, on Linux), else 1."""
    return 2 if on_host(xp.empty(0)) and sys.platform == "linux" else 1


def make_executor(
    objective: Objective, optimizer: Optimizer, seed: int, parts: int, ranks: Ranks
) -> Executor:
    """Return a run's executor: for several ranks, or else with forked processes if possible."""
    on_cpu = on_host(optimizer.parameters.data)
    if ranks.others:
        kind = RankExecutor if on_cpu else NCCLExecutor
        return kind(objective, optimizer, seed, parts, ranks)
    # Outside Linux, libraries may not survive a fork. A GPU's context never survives one.
    can_fork = sys.platform == "linux" and on_cpu and parts > 1 and cores() > 1
    return (Forked if can_fork else InTurn)(objective, optimizer, seed, parts)
