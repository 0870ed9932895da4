"""The executor of ranks that have one GPU each, and exchange arrays through NCCL."""

from typing import Any

from numformer.backend import array_module
from numformer.execution.in_turn import Piece
from numformer.execution.rank_executor import RankExecutor
from numformer.layer import Array


class NCCLExecutor(RankExecutor):
    """`RankExecutor` for arrays on GPUs, with CuPy's binding of NCCL.

    NCCL only sends arrays; they are added here, in the same order as in RankExecutor. Gradients are
    sent after backward.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        from cupyx.distributed import init_process_group

        self._group = init_process_group(self.ranks.size, self.ranks.rank, use_mpi=True)

    def _exchange_branches(
        self, step: int, parts: int, own: list[list[list[Piece]]], half: bool
    ) -> tuple[list, dict[tuple[int, int], Array]]:
        xp, grad = array_module(self.optimizer.parameters.grad), self.optimizer.parameters.grad
        losses: list = []
        gradients: list = []
        for branch in own:
            before = self._all_but_last(step, branch, half, losses)
            losses.append(self.compute(step, branch[-1], half))
            before.finish(grad)
            gradients.append(grad if branch is own[-1] else grad.copy())
        rank, sums, moves = self.ranks.rank, {}, []
        for source in range(self.ranks.size):
            for number, place in enumerate(self._branches(source, parts)):
                if source == rank:
                    gradient = gradients[number]
                    sums[place] = gradient[self._sum_stretches[rank]]
                    moves += [
                        (gradient[self._sum_stretches[to]], rank, to) for to in self.ranks.others
                    ]
                else:
                    sums[place] = xp.empty_like(grad[self._sum_stretches[rank]])
                    moves.append((sums[place], source, rank))
        self._move(moves)
        return losses, sums

    def _move(self, moves: list[tuple[Array, int, int]]) -> None:
        import cupy

        cupy.cuda.nccl.groupStart()  # without a group, two sending ranks would wait for each other
        for array, source, to in moves:
            if not array.size:
                continue
            if source == self.ranks.rank:
                self._group.send(array, to)
                self.bytes_sent += array.nbytes
            elif to == self.ranks.rank:
                self._group.recv(array, source)
        cupy.cuda.nccl.groupEnd()
