"""Rows of a table from their names to ours: what each part of a published model is called here.

A row names a part there, the same part here, and what it is: what it is says which arrays it has,
and how each of them is laid out there. So a row reads arrays and writes them, by the same words.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numformer.errors import InputError


class Way(NamedTuple):
    """How an array that lies there in one way lies here in another, and back."""

    here: Callable[[np.ndarray, Any], np.ndarray]
    there: Callable[[np.ndarray, Any], np.ndarray]


def _in_pairs(x, config):
    """x (..., H K): of each head first the halves, then pairs (x_j, x_(j + K / 2)) side by side."""
    *others, width = x.shape
    halves = x.reshape(*others, -1, 2, config.size_of_key // 2)
    return halves.swapaxes(-1, -2).reshape(*others, width)


def _in_halves(x, config):
    *others, width = x.shape
    pairs = x.reshape(*others, -1, config.size_of_key // 2, 2)
    return pairs.swapaxes(-1, -2).reshape(*others, width)


def _times(factor: Callable[[Any], float]) -> Way:
    """Multiplied here by a factor that the model there multiplies by while it computes."""
    return Way(lambda x, config: x * factor(config), lambda x, config: x / factor(config))


def _then(first: Way, second: Way) -> Way:
    return Way(
        lambda x, config: second.here(first.here(x, config), config),
        lambda x, config: first.there(second.there(x, config), config),
    )


ALIKE = Way(lambda x, config: x, lambda x, config: x)
TRANSPOSED = Way(lambda x, config: x.T, lambda x, config: x.T)  # PyTorch's Linear keeps W^T
PAIRS = Way(_in_pairs, _in_halves)
FLAT = Way(lambda x, config: x.reshape(-1), lambda x, config: x[None])
TOKEN = Way(lambda x, config: x.reshape(-1), lambda x, config: x[None, None])
ROWS = Way(lambda x, config: x[0], lambda x, config: x[None])
PATCHES = Way(  # (D, C, size, size), channels first -> (size size C, D)
    lambda x, config: x.transpose(2, 3, 1, 0).reshape(-1, len(x)),
    lambda x, config: x.reshape(config.patch, config.patch, config.channels, -1).transpose(
        3, 2, 0, 1
    ),
)
BY_ROOT_OF_KEY = _times(lambda config: config.size_of_key**0.5)
BY_ROOT_OF_MODEL = _times(lambda config: config.d_model**-0.5)

WAYS: dict[str, list[tuple[str, str, Way]]] = {
    "table": [("weight", "weight", ALIKE)],
    "norm": [("weight", "gamma", ALIKE), ("bias", "beta", ALIKE)],
    "old norm": [("gamma", "gamma", ALIKE), ("beta", "beta", ALIKE)],
    "linear": [("weight", "weight", TRANSPOSED), ("bias", "bias", ALIKE)],
    "matrix": [("weight", "weight", ALIKE), ("bias", "bias", ALIKE)],
    "linear, in halves": [("weight", "weight", _then(TRANSPOSED, PAIRS)), ("bias", "bias", PAIRS)],
    "linear, unscaled": [("weight", "weight", _then(TRANSPOSED, BY_ROOT_OF_KEY))],
    "norm, scaled": [("weight", "gamma", BY_ROOT_OF_MODEL)],
    "patches": [("weight", "weight", PATCHES), ("bias", "bias", ALIKE)],
    "bias": [("weight", "table", ALIKE)],
    "array": [("", "", ALIKE)],
    "array (1, V)": [("", "", FLAT)],
    "array (1, 1, D)": [("", "", TOKEN)],
    "array (1, T, D)": [("", "", ROWS)],
}
"""What a part may be: its arrays, as they are called there and here, and how they lie there."""

UNUSED = {
    "constant": "which is computed here",
    "unused": "of something that the model does not compute",
}
"""What a part may be that is not read."""


@dataclass(frozen=True)
class Entry:
    """Arrays there, which joined along their last axis are those here, joined likewise."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    way: Way

    def here(self, arrays: list[np.ndarray], shapes: list[tuple], config) -> list[np.ndarray]:
        """Their arrays -> ours, of these shapes. Raises InputError where they do not fit."""
        widths = [shape[-1] for shape in shapes]
        try:
            made = [self.way.here(array, config) for array in arrays]
            whole = made[0] if len(made) == 1 else np.concatenate(made, axis=-1)
            fits = whole.shape == (*shapes[0][:-1], sum(widths))
        except (ValueError, IndexError):  # of another number of axes, or not to be cut so
            fits = False
        if not fits:
            theirs = " and ".join(str(array.shape) for array in arrays)
            ours = " and ".join(map(str, shapes))
            raise InputError(
                "a published array has the shape that its config.json asks for",
                f"{' + '.join(self.theirs)} {theirs} for {' + '.join(self.ours)} {ours}",
                "Take the config.json that belongs to the weights.",
            )
        return np.split(whole, np.cumsum(widths)[:-1], axis=-1)

    def there(self, arrays: list[np.ndarray], config) -> list[np.ndarray]:
        """Our arrays -> theirs, which are of equal width."""
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
        parts = np.split(whole, len(self.theirs), axis=-1)
        return [self.way.there(part, config) for part in parts]


class Table:
    """A model's parts, as tables.py has them: there, here, and what each is.

    `*` is the number of a layer, `a+b` are two parts side by side. Rows of one part here are
    alternatives: the first that a file has is read, others must hold the same numbers. Names may
    lack what is `optional` at their beginning.
    """

    def __init__(self, text: str, optional: str = ""):
        self.optional = optional
        self.rows: list[tuple[str, str, str]] = []
        self.unused: list[str] = []
        within = ["", ""]
        for line in filter(str.strip, text.splitlines()):
            parts = re.split(r"  +", line.strip())
            if parts[-1].endswith(":"):
                within = [f"{part.removesuffix(':')}." for part in (*parts, "")[:2]]
                within[1] = within[1].removeprefix(".")
                continue
            if not line.startswith("        "):
                within = ["", ""]
            if parts[-1] in UNUSED:
                self.unused.append(within[0] + parts[0])
            else:
                self.rows.append((within[0] + parts[0], within[1] + parts[1], parts[2]))

    def entries(self, ours: Iterable[str], cut: bool = False) -> Iterator[Entry]:
        """How the arrays of these names are called and laid out there, alternatives included.

        `cut` leaves out of their names what is optional.
        """
        ours = dict.fromkeys(ours)
        for there, here, what in self.rows:
            if cut:
                there = there.removeprefix(self.optional)
            for their_suffix, our_suffix, way in WAYS[what]:
                for layer in _layers(here, our_suffix, ours):
                    names = _names(here, our_suffix, layer)
                    if names[0] in ours:
                        yield Entry(_names(there, their_suffix, layer), names, way)

    def leaves_out(self, name: str) -> bool:
        """Whether an array there is one that is not read."""
        known = (re.escape(pattern).replace(r"\*", r"\d+") for pattern in self.unused)
        names = name, self.optional + name
        return any(re.fullmatch(pattern, form) for pattern in known for form in names)


def _names(part: str, suffix: str, layer: str) -> tuple[str, ...]:
    """`a.b+c` -> `a.b.suffix`, `a.c.suffix`."""
    path, point, last = part.replace("*", layer).rpartition(".")
    names = (path + point + name for name in last.split("+"))
    return tuple(f"{name}.{suffix}" if suffix else name for name in names)


def _layers(part: str, suffix: str, ours: Iterable[str]) -> list[str]:
    """The numbers of the layers that have this part here; none where it is of no layer."""
    if "*" not in part:
        return [""]
    pattern = re.escape(_names(part, suffix, "*")[0]).replace(r"\*", r"(\d+)")
    return [match[1] for name in ours if (match := re.fullmatch(pattern, name))]
