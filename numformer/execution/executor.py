"""The executor, which computes a run's training steps: its interface, and which kind to use."""

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
    """Computes training steps. However processes share the parts, the results have the same bits.

    `threads` is the number of threads of BLAS, which may change the last bits of a product. It is
    fixed while steps are computed, and a resumed run sets the number that the run began with.
    """

    threads: int
    interrupted: bool  # whether another process received Ctrl-C or SIGTERM

    def start(self) -> None:
        """Fix the number of BLAS threads, and start the other processes.

        From then on, change weights in place: the other processes see no other changes.
        """

    def gradient(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Write a batch's gradient into the gradient vector, and return the scalar loss ().

        A list of batches is treated as one large batch, with less memory. With a `scale`, products
        are in half precision, and backward starts from the loss times `scale`.
        """

    def clip(self, max_norm: float | None) -> Any:
        """Scale the gradient down to `max_norm`, and return its former norm, a scalar ()."""

    def update(self, rate: float) -> None:
        """Take one step of the optimizer."""

    def replay(self, step: int, batch: Batch | list[Batch], scale: Any = None) -> Any:
        """Do what `gradient` does, again and in this process alone."""

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's complete vectors (N,), by name."""
        ...

    def close(self) -> None:
        """End the other processes, and give BLAS its threads back."""


def default_parts(xp) -> int:
    """Return 2 if each part can have a process (on Linux, with arrays on the host), otherwise 1."""
    return 2 if on_host(xp.empty(0)) and sys.platform == "linux" else 1


def make_executor(
    objective: Objective, optimizer: Optimizer, seed: int, parts: int, ranks: Ranks
) -> Executor:
    """Return a run's executor: ranks if there are several, else forked processes if possible."""
    on_cpu = on_host(optimizer.parameters.data)
    if ranks.others:
        kind = RankExecutor if on_cpu else NCCLExecutor
        return kind(objective, optimizer, seed, parts, ranks)
    # Outside Linux, libraries may not survive a fork. A GPU's context survives a fork nowhere.
    can_fork = sys.platform == "linux" and on_cpu and parts > 1 and cores() > 1
    return (Forked if can_fork else InTurn)(objective, optimizer, seed, parts)
