"""What the real models share: the packages that hold their weights, and how results differ."""

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

STORED = Path(__file__).with_name("reference.json")
BOUND = 2e-6
"""The largest difference allowed, where the largest number is 1."""


class RealModel:
    """A model whose weights a package on the registry holds, opened in an empty folder.

    Results are texts and lists of numbers, in the same order here (`ours`) and in the program that
    the weights were published for (`theirs`), whose results are stored.
    """

    packages: ClassVar[tuple[tuple[str, str], ...]]  # the name of each, and its module
    kind: ClassVar[str]
    compared: ClassVar[str]
    model: Any

    def __init__(self, packages: Sequence[Path], folder: Path):
        """Open the weights in the folders of the packages; `folder` is for other files."""
        raise NotImplementedError

    def ours(self) -> list:
        raise NotImplementedError

    def theirs(self) -> list:
        raise NotImplementedError

    @classmethod
    def missing(cls) -> list[str]:
        """What has to be installed to open the weights; no module is imported to find out."""
        return [name for name, module in cls.packages if not folder_of(module)]


def folder_of(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


class Measured(NamedTuple):
    parameters: int
    difference: float
    seconds: float  # of processor time: to open the weights and to compute ours
    their_seconds: float | None


def measure(kind: type[RealModel], folder: Path, store: bool = False) -> Measured:
    """Compare our results with those stored; `store` computes and stores theirs first."""
    begun = time.process_time()
    real = kind([path for _, module in kind.packages if (path := folder_of(module))], folder)
    ours, seconds = real.ours(), time.process_time() - begun
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    name, begun = kind.packages[0][0], time.process_time()
    if store:
        stored[name] = real.theirs()
        lines = [f"{json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored)]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")
    parameters = sum(p.data.size for p in real.model.named_parameters().values())
    their_seconds = time.process_time() - begun if store else None
    return Measured(parameters, difference(ours, stored[name]), seconds, their_seconds)


def difference(ours: list, theirs: list) -> float:
    """The largest difference of numbers, divided by the largest of their list; of texts, 1."""
    differences = [0.0]
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, str):
            differences.append(float(one != other))
        else:
            gaps = np.abs(np.subtract(one, other))
            differences.append(float(gaps.max() / max(1, np.abs(other).max())))
    return max(differences)


def some(array: Any, count: int = 60) -> list[float]:
    """Numbers from all over an array, as they are stored."""
    numbers = np.asarray(array, float).ravel()
    return numbers[np.linspace(0, numbers.size - 1, count).astype(int)].round(7).tolist()
