"""A training step in parts that ranks compute on GPUs, one each: what they exchange goes by NCCL.

The order of the sums is that of `RankParts`, since NCCL only carries the arrays. They are sent when
backward has ended.
"""

from typing import Any

from numformer.backend import array_module
from numformer.execution.rank_parts import RankParts
from numformer.layer import Array


class CardParts(RankParts):
    """`RankParts` for arrays on GPUs, by CuPy's binding of NCCL."""

    def __init__(self, *how: Any):
        super().__init__(*how)
        from cupyx.distributed import init_process_group

        self._group = init_process_group(self.ranks.size, self.ranks.rank, use_mpi=True)

    def _exchange_branches(
        self, used: int, own: list[list]
    ) -> tuple[list, dict[tuple[int, int], Array]]:
        xp, grad = array_module(self.optimizer.parameters.grad), self.optimizer.parameters.grad
        losses: list = []
        computed: list = []
        for jobs in own:
            before = self._before_last(jobs, losses)
            losses.append(self._compute(*jobs[-1]))
            before.finish(grad)
            computed.append(grad.copy() if jobs is not own[-1] else grad)
        rank, sums, moves = self.ranks.rank, {}, []
        mine = self._stretch_of(rank)
        for source in range(self.ranks.size):
            for branch, place in enumerate(self._branches(source, used)):
                if source == rank:
                    sums[place] = computed[branch][mine]
                    others = self.ranks.others
                    moves += [(computed[branch][self._stretch_of(to)], rank, to) for to in others]
                else:
                    sums[place] = xp.empty_like(grad[mine])
                    moves.append((sums[place], source, rank))
        self._move(moves)
        return losses, sums

    def _move(self, moves: list[tuple[Array, int, int]]) -> None:
        import cupy

        cupy.cuda.nccl.groupStart()  # all at once, or two that send would wait for each other
        for array, source, to in moves:
            if not array.size:
                continue
            if source == self.ranks.rank:
                self._group.send(array, to)
                self.sent += array.nbytes
            elif to == self.ranks.rank:
                self._group.recv(array, source)
        cupy.cuda.nccl.groupEnd()
