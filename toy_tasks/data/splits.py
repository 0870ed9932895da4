"""Which part of the data a source belongs to: a hash of the source decides.

So all targets of a source are in the same part, and adding a line to a file moves no other line.
"""

import zlib
from collections.abc import Iterable

from toy_tasks.data.text_files import Pair


def is_held_out(source: str) -> bool:
    """Whether a source that a program drew is for evaluation: one in eight is."""
    return zlib.crc32(source.encode()) % 8 == 0


def split_pairs(pairs: Iterable[Pair], train: str, development: str, test: str) -> dict:
    """The pairs by part: eight tenths `train`, one tenth `development`, one tenth `test`."""
    parts: dict[str, list[Pair]] = {train: [], development: [], test: []}
    by_hash = test, development, *[train] * 8
    for pair in pairs:
        parts[by_hash[zlib.crc32(pair[0].encode()) % 10]].append(pair)
    return parts
