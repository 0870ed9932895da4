"""Tables that map the arrays of published models to our parameters, in both directions.

A row names a part of the published model, the same part of ours, and its kind. The kind says which
arrays the part has and how each of them is laid out, for reading as well as for writing.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError


class Layout(NamedTuple):
    """Functions that convert an array from the published layout into ours, and back."""

    read: Callable[[np.ndarray, Any], np.ndarray]
    write: Callable[[np.ndarray, Any], np.ndarray]


def _halves_to_pairs(x, config):
    """x (..., H K), each head in two halves -> pairs (x_j, x_(j + K / 2)) side by side."""
    *others, width = x.shape
    halves = x.reshape(*others, -1, 2, config.key_size // 2)
    return halves.swapaxes(-1, -2).reshape(*others, width)


def _pairs_to_halves(x, config):
    *others, width = x.shape
    pairs = x.reshape(*others, -1, config.key_size // 2, 2)
    return pairs.swapaxes(-1, -2).reshape(*others, width)


def _scale(factor: Callable[[Any], float]) -> Layout:
    """Return the layout of parameters that are the published ones multiplied by a factor."""
    return Layout(lambda x, config: x * factor(config), lambda x, config: x / factor(config))


def _chain(first: Layout, second: Layout) -> Layout:
    return Layout(
        lambda x, config: second.read(first.read(x, config), config),
        lambda x, config: first.write(second.write(x, config), config),
    )


SAME = Layout(lambda x, config: x, lambda x, config: x)
TRANSPOSED = Layout(lambda x, config: x.T, lambda x, config: x.T)  # PyTorch's Linear stores W^T
PAIRS = Layout(_halves_to_pairs, _pairs_to_halves)
FLAT = Layout(lambda x, config: x.reshape(-1), lambda x, config: x[None])
TOKEN = Layout(lambda x, config: x.reshape(-1), lambda x, config: x[None, None])
ROWS = Layout(lambda x, config: x[0], lambda x, config: x[None])
PATCHES = Layout(  # (D, C, size, size), channels first -> (size^2 C, D)
    lambda x, config: x.transpose(2, 3, 1, 0).reshape(-1, len(x)),
    lambda x, config: x.reshape(config.patch, config.patch, config.channels, -1).transpose(
        3, 2, 0, 1
    ),
)
SCALED_BY_KEY = _scale(lambda config: config.key_size**0.5)
SCALED_BY_MODEL = _scale(lambda config: config.d_model**-0.5)

NORM = [("weight", "gamma", SAME), ("bias", "beta", SAME)]
PART_KINDS: dict[str, list[tuple[str, str, Layout]]] = {
    "table": [("weight", "weight", SAME)],
    "norm": NORM,
    "norm, both names": [*NORM, ("gamma", "gamma", SAME), ("beta", "beta", SAME)],
    "linear": [("weight", "weight", TRANSPOSED), ("bias", "bias", SAME)],
    "matrix": [("weight", "weight", SAME), ("bias", "bias", SAME)],
    "linear, in halves": [("weight", "weight", _chain(TRANSPOSED, PAIRS)), ("bias", "bias", PAIRS)],
    "linear, unscaled": [("weight", "weight", _chain(TRANSPOSED, SCALED_BY_KEY))],
    "norm, scaled": [("weight", "gamma", SCALED_BY_MODEL)],
    "patches": [("weight", "weight", PATCHES), ("bias", "bias", SAME)],
    "bias": [("weight", "table", SAME)],
    "array": [("", "", SAME)],
    "array (1, V)": [("", "", FLAT)],
    "array (1, 1, D)": [("", "", TOKEN)],
    "array (1, T, D)": [("", "", ROWS)],
}
"""The kinds of parts: the published names of their arrays, our names, and their layouts."""

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
    """The parts of a model, one per row (see tables.py): published name, our name, kind of part.

    `*` is the number of a layer, `a+b` are two parts side by side, `a|b` stands for two rows.
    Rows with the same part of ours are alternatives: the first of them that the files have is read,
    and the others must hold the same numbers. `optional` is a prefix that the files may leave out,
    in all names at once.
    """

    def __init__(self, text: str, optional: str = ""):
        self.optional = optional
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

    def entries(self, ours: Collection[str], without_prefix: bool = False) -> Iterator[Entry]:
        """Yield the entries of the parameters that `ours` names, alternatives included."""
        for foreign, own, kind in self.rows:
            if without_prefix:
                foreign = foreign.removeprefix(self.optional)
            for foreign_suffix, own_suffix, layout in PART_KINDS[kind]:
                for layer in _layers(own, own_suffix, ours):
                    names = _names(own, own_suffix, layer)
                    if names[0] in ours:
                        yield Entry(_names(foreign, foreign_suffix, layer), names, layout)

    def foreign_arrays(self, ours: dict[str, np.ndarray], config) -> dict[str, np.ndarray]:
        """Our arrays by name -> the arrays of the published model by name."""
        foreign: dict[str, np.ndarray] = {}
        written: set[str] = set()
        for entry in self.entries(ours):
            if entry.ours[0] not in written:
                arrays = entry.write([ours[name] for name in entry.ours], config)
                foreign |= zip(entry.foreign, arrays, strict=True)
                written |= {*entry.ours}
        return foreign

    def ignores(self, name: str) -> bool:
        """Whether a published array of this name is left unread."""
        patterns = (re.escape(pattern).replace(r"\*", r"\d+") for pattern in self.unread)
        names = name, self.optional + name
        return any(re.fullmatch(pattern, form) for pattern in patterns for form in names)


def _alternatives(prefix: str, part: str) -> list[str]:
    """`a.b|c` -> `a.b`, `a.c`, each after the prefix."""
    path, point, last = part.rpartition(".")
    return [prefix + path + point + name for name in last.split("|")]


def _names(part: str, suffix: str, layer: str) -> tuple[str, ...]:
    """`a.b+c` -> `a.b.suffix`, `a.c.suffix`."""
    path, point, last = part.replace("*", layer).rpartition(".")
    names = (path + point + name for name in last.split("+"))
    return tuple(f"{name}.{suffix}" if suffix else name for name in names)


def _layers(part: str, suffix: str, ours: Collection[str]) -> list[str]:
    """The numbers of the layers that have this part of ours; "" for a part outside of layers."""
    if "*" not in part:
        return [""]
    pattern = re.escape(_names(part, suffix, "*")[0]).replace(r"\*", r"(\d+)")
    return [match[1] for name in ours if (match := re.fullmatch(pattern, name))]
