"""Tables that map the arrays of published models to our parameters, in both directions.

A row names a part of the published model, the same part of ours, and its kind. The kind says which
arrays the part has and how each of them is laid out, for reading as well as for writing.
"""

import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError


class Layout(NamedTuple):
    """Functions that convert an array from the published layout into ours, and back."""

    read: Callable[[np.ndarray, Any], np.ndarray]
    write: Callable[[np.ndarray, Any], np.ndarray]


def _patch(config) -> tuple[int, int, int]:
    """The size of a patch (size, size, C)."""
    config = getattr(config, "images", config)  # the tower of a DualEncoder
    return config.patch, config.patch, config.channels


def _turned(config) -> int:
    """The number of values in a head that rotary positions turn; they come first."""
    turning = config.rotary_frequencies
    return 2 * max(map(len, turning)) if turning else config.key_size


def _of_turned(change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Return a function of x (..., H K) that changes the values (..., H, W) that turn."""

    def layout(x, config):
        heads = x.reshape(-1, config.key_size)
        count = _turned(config)
        return np.concatenate([change(heads[..., :count]), heads[..., count:]], -1).reshape(x.shape)

    return layout


def _halves_to_pairs(x):
    """x (..., W), in two halves -> pairs (x_j, x_(j + W / 2)) side by side."""
    return x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)


def _pairs_to_halves(x):
    return x.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)


def _but_values(layout: Layout) -> Layout:
    """x (..., (H + 2 G) K): change its queries and keys, the first (H + G) K, not its values."""

    def change(function, x, config):
        width = x.shape[-1] - config.key_size * _groups(config)
        return np.concatenate([function(x[..., :width], config), x[..., width:]], axis=-1)

    return Layout(partial(change, layout.read), partial(change, layout.write))


def _groups(config) -> int:
    return config.key_value_heads or config.heads


def _group_by_group(x, config):
    """x (..., (H + 2 G) K), each group's queries, key and value -> all queries, keys, values."""
    groups = x.reshape(*x.shape[:-1], _groups(config), -1, config.key_size)
    parts = groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]
    return np.concatenate([part.reshape(*x.shape[:-1], -1) for part in parts], axis=-1)


def _into_groups(x, config):
    width, count = _groups(config) * config.key_size, _groups(config)
    parts = np.split(x, [x.shape[-1] - 2 * width, x.shape[-1] - width], axis=-1)
    parts = [part.reshape(*x.shape[:-1], count, -1, config.key_size) for part in parts]
    return np.concatenate(parts, axis=-2).reshape(x.shape)


def _times(factor: float) -> Layout:
    """Return the layout of parameters that are the published ones multiplied by a factor."""
    return Layout(lambda x, config: x * factor, lambda x, config: x / factor)


def _turned_times(factor: float) -> Layout:
    return Layout(_of_turned(lambda x: x * factor), _of_turned(lambda x: x / factor))


def _chain(first: Layout, second: Layout) -> Layout:
    return Layout(
        lambda x, config: second.read(first.read(x, config), config),
        lambda x, config: first.write(second.write(x, config), config),
    )


SAME = Layout(lambda x, config: x, lambda x, config: x)
TRANSPOSED = Layout(lambda x, config: x.T, lambda x, config: x.T)  # PyTorch's Linear stores W^T
PAIRS = Layout(_of_turned(_halves_to_pairs), _of_turned(_pairs_to_halves))
FLAT = Layout(lambda x, config: x.reshape(-1), lambda x, config: x[None])
TOKENS = Layout(  # (1, N, D) -> (N D)
    lambda x, config: np.concatenate(np.concatenate(x)),
    lambda x, config: x.reshape(1, -1, config.d_model),
)
ROWS = Layout(lambda x, config: x[0], lambda x, config: x[None])
AFTER_PADDING = Layout(  # the positions of symbols are counted from the padding id + 1 on
    lambda x, config: x[config.padding_id + 1 :],
    lambda x, config: np.pad(x, [(config.padding_id + 1, 0), (0, 0)]),
)
PATCHES = Layout(  # (D, C, size, size), channels first -> (size^2 C, D)
    lambda x, config: x.transpose(2, 3, 1, 0).reshape(-1, len(x)),
    lambda x, config: x.reshape(*_patch(config), x.shape[1]).transpose(3, 2, 0, 1),
)
FILTERS = Layout(  # (D, C, 3), of three positions -> (3 C, D)
    lambda x, config: x.transpose(2, 1, 0).reshape(-1, len(x)),
    lambda x, config: x.reshape(3, -1, x.shape[1]).transpose(2, 1, 0),
)
AFTER_TWO = Layout(  # OPT's first two positions are of padding
    lambda x, config: x[2:], lambda x, config: np.concatenate([np.zeros_like(x[:2]), x])
)

NUMBER = Layout(lambda x, config: x.reshape(1), lambda x, config: x.reshape(()))

NORM = [("weight", "gamma", SAME), ("bias", "beta", SAME)]
PART_KINDS: dict[str, list[tuple[str, str, Layout]]] = {
    "table": [("weight", "weight", SAME)],
    "table, after padding": [("weight", "weight", AFTER_PADDING)],
    "norm": NORM,
    "norm, both names": [*NORM, ("gamma", "gamma", SAME), ("beta", "beta", SAME)],
    "linear": [("weight", "weight", TRANSPOSED), ("bias", "bias", SAME)],
    "matrix": [("weight", "weight", SAME), ("bias", "bias", SAME)],
    "filters": [("weight", "weight", FILTERS), ("bias", "bias", SAME)],
    "patches": [("weight", "weight", PATCHES), ("bias", "bias", SAME)],
    "bias": [("weight", "table", SAME)],
    "array": [("", "", SAME)],
    "number": [("", "", NUMBER)],
    "array (1, V)": [("", "", FLAT)],
    "tokens": [("", "token", TOKENS)],
    "array (1, T, D)": [("", "", ROWS)],
}
"""The kinds of parts: the published names of their arrays, our names, and their layouts."""

CHANGES: dict[str, Layout] = {
    "in halves": PAIRS,
    "joined": _but_values(PAIRS),  # queries, keys and values
    "fused": _chain(Layout(_group_by_group, _into_groups), _but_values(PAIRS)),
    "plus one": Layout(lambda x, config: x + 1, lambda x, config: x - 1),
    "shifted": AFTER_TWO,
}
"""What may follow the kind of a part, after a comma; so may the FACTORS, as in "times 0.5"."""
FACTORS = {
    "turned times": _turned_times,
    "times": _times,
    "queries and keys times": lambda factor: _but_values(_turned_times(factor)),
}


def part_arrays(kind: str) -> list[tuple[str, str, Layout]]:
    """The arrays of a part of this kind: their published names, our names, and their layouts."""
    if kind in PART_KINDS:
        return PART_KINDS[kind]
    kind, _, change = kind.rpartition(", ")
    name, _, factor = change.rpartition(" ")
    layout = FACTORS[name](float(factor)) if name in FACTORS else CHANGES[change]
    return [(theirs, ours, _chain(first, layout)) for theirs, ours, first in part_arrays(kind)]


UNREAD_KINDS = "constant", "unused"
"""Parts that are not read: computed by our model, or belonging to something that it lacks."""


class Entry(NamedTuple):
    """Arrays of a published model, and the parameters of ours that hold the same numbers.

    Several arrays, or several parameters, are joined along their last axis.
    """

    foreign: tuple[str, ...]
    ours: tuple[str, ...]
    layout: Layout

    def read(self, arrays: list[np.ndarray], shapes: list[tuple], config) -> list[np.ndarray]:
        """Published arrays -> ours, of these shapes. Raises InputError if they do not fit."""
        widths = [shape[-1] for shape in shapes]
        try:
            joined = _join([self.layout.read(array, config) for array in arrays])
            if joined.shape != (*shapes[0][:-1], sum(widths)):
                raise ValueError
        except (ValueError, IndexError):  # a wrong number of axes, or an indivisible width
            foreign = " and ".join(str(array.shape) for array in arrays)
            ours = " and ".join(map(str, shapes))
            raise InputError(
                "a published array has the shape that its config.json implies",
                f"{' + '.join(self.foreign)} {foreign} for {' + '.join(self.ours)} {ours}",
                "Take the config.json that belongs to the weights.",
            ) from None
        return np.split(joined, np.cumsum(widths)[:-1], axis=-1)

    def write(self, arrays: list[np.ndarray], config) -> list[np.ndarray]:
        """Our arrays -> the published arrays, which have equal widths."""
        parts = np.split(_join(arrays), len(self.foreign), axis=-1)
        return [self.layout.write(part, config) for part in parts]


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)


class Table:
    """The parts of a model, one per row: published name, our name, kind of part.

    A line that ends with a colon gives the prefixes of the indented rows below it. `*` is the
    number of a layer, a second `*` that of an expert in it; `a+b` are two parts side by side, `a|b`
    stands for two rows. Rows with the same part of ours are alternatives: the first of them that
    the files have is read, and the others must hold the same numbers. `optional` is a prefix that
    the files may omit from all names at once; a `bare` model is written without it.
    """

    def __init__(self, text: str, optional: str = "", bare: bool = False):
        self.optional, self.bare = optional, bare
        self.rows: list[tuple[str, str, str]] = []
        self.unread: list[str] = []
        prefixes: list[str] = []
        for line in filter(str.strip, text.splitlines()):
            parts = re.split(r"  +", line.strip())
            if parts[-1].endswith(":"):
                prefixes = [f"{part.removesuffix(':')}." for part in (*parts, "")[:2]]
                prefixes[1] = prefixes[1].removeprefix(".")
                continue
            before = prefixes if line.startswith("        ") else ["", ""]
            if parts[1] in UNREAD_KINDS:
                self.unread.append(before[0] + parts[0])
                continue
            foreign, ours = (_alternatives(*pair) for pair in zip(before, parts, strict=False))
            self.rows += ((*names, parts[2]) for names in zip(foreign, ours, strict=True))

    def entries(self, ours: Collection[str], without_prefix: bool) -> Iterator[Entry]:
        """Yield the entries of the parameters that `ours` names, alternatives included."""
        for foreign, own, kind in self.rows:
            if without_prefix:
                foreign = foreign.removeprefix(self.optional)
            for foreign_suffix, own_suffix, layout in part_arrays(kind):
                for layer in _layers(own, own_suffix, ours):
                    names = _names(own, own_suffix, layer)
                    if names[0] in ours:
                        yield Entry(_names(foreign, foreign_suffix, layer), names, layout)

    def written(self, ours: Collection[str]) -> Iterator[Entry]:
        """Yield the entries that are written for the parameters that `ours` names, each once."""
        done: set[str] = set()
        for entry in self.entries(ours, self.bare):
            if entry.ours[0] not in done:
                yield entry
                done |= {*entry.ours}

    def foreign_arrays(self, ours: dict[str, np.ndarray], config) -> dict[str, np.ndarray]:
        """Our arrays by name -> the arrays of the published model by name."""
        foreign: dict[str, np.ndarray] = {}
        for entry in self.written(ours):
            arrays = entry.write([ours[name] for name in entry.ours], config)
            foreign |= zip(entry.foreign, arrays, strict=True)
        return foreign

    def ignores(self, name: str) -> bool:
        """Whether a published array of this name is left unread."""
        patterns = (re.escape(pattern).replace(r"\*", r"\d+") for pattern in self.unread)
        names = name, self.optional + name
        return any(re.fullmatch(pattern, form) for pattern in patterns for form in names)


def decoder_table(text: str, prefix: str) -> Callable[[Any], Table]:
    """Return the function that makes the Table of a language model for its Config."""
    return lambda config: Table(text, optional=prefix, bare=not config.head)


def _alternatives(prefix: str, part: str) -> list[str]:
    """`a.b|c` -> `a.b`, `a.c`, each after the prefix."""
    path, point, last = part.rpartition(".")
    return [prefix + path + point + name for name in last.split("|")]


def _names(part: str, suffix: str, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """`a.b+c` -> `a.b.suffix`, `a.c.suffix`."""
    for number in numbers:
        part = part.replace("*", number, 1)
    path, point, last = part.rpartition(".")
    names = (path + point + name for name in last.split("+"))
    return tuple(f"{name}.{suffix}" if suffix else name for name in names)


def _layers(part: str, suffix: str, ours: Collection[str]) -> list[tuple[str, ...]]:
    """The numbers of the layers and experts that have this part; () for others."""
    pattern = re.compile(re.escape(_names(part, suffix, ())[0]).replace(r"\*", r"(\d+)"))
    return [match.groups() for match in map(pattern.fullmatch, ours) if match]
