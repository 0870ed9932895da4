"""Some of the ranks among themselves, as in a communicator of MPI; a grid has rows of them."""

from collections.abc import Callable, Sequence

import numpy as np

from numformer.errors import InputError
from numformer.parallel.ranks import Ranks


class Group(Ranks):
    """The `members` of `ranks`, this one among them, numbered from 0 in that order.

    Two groups with two members in common must not send at the same time.
    """

    def __init__(self, ranks: Ranks, members: Sequence[int]):
        self.ranks, self.members = ranks, list(members)
        self.rank, self.size = self.members.index(ranks.rank), len(self.members)

    def send(self, array: np.ndarray, to: int, tag: int = 0) -> Callable[[], bool]:
        return self.ranks.send(array, self.members[to], tag)

    def receive(self, array: np.ndarray, source: int, tag: int = 0) -> Callable[[], bool]:
        return self.ranks.receive(array, self.members[source], tag)

    def wait(self, pending: dict[int, list[Callable[[], bool]]]) -> None:
        """Names a rank that is lost as all ranks do."""
        self.ranks.wait({self.members[rank]: asked for rank, asked in pending.items()})


def grid(ranks: Ranks, columns: int) -> tuple[Group, Group]:
    """Ranks in rows of `columns` -> those of this rank's row, and those of its column.

    What speaks most stands in a row, of neighbours: the rows may be tensor parallel, the columns a
    pipeline (Narayanan et al. 2021, Megatron-LM on clusters, section 3).
    """
    if columns < 1 or ranks.size % columns:
        raise InputError(
            "a grid of ranks has whole rows",
            f"{ranks.size} ranks in {columns} columns",
            "Use a number of columns that divides the ranks.",
        )
    row, column = divmod(ranks.rank, columns)
    in_row = range(row * columns, (row + 1) * columns)
    in_column = range(column, ranks.size, columns)
    return Group(ranks, in_row), Group(ranks, in_column)
