"""The size of the paper's room: its files, the files they import, and the depth of a step.

python -m tests.paper_room
"""

import ast
import inspect
import tempfile
from pathlib import Path

import numpy as np

from numformer import Config, PairBatch, Recipe, Transformer
from numformer.training.trainer import Trainer

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    """The path of every module of the library, by the module's name."""
    paths = ROOT.glob("numformer/**/*.py")
    names = {path: path.relative_to(ROOT).with_suffix("") for path in paths}
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in names.items()}


def lines() -> dict[str, int]:
    """The number of lines of each module of numformer.paper and of all modules they import."""
    paths = modules()
    room = [name for name in paths if name.startswith("numformer.paper")]
    for name in room:  # the list grows on the way
        for node in ast.walk(ast.parse(paths[name].read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            # `numformer` itself has the public names of all rooms, so it does not count.
            new = {n for n in names if n in paths and n != "numformer"} - {*room}
            room.extend(sorted(new))
    return {name: len(paths[name].read_text().splitlines()) for name in sorted(room)}


class Task:
    """A task whose batches have one pair."""

    metric, higher_is_better = "loss", False

    def batch(self, step):
        return PairBatch.of([([4, 5, 6], [6, 5, 4])])

    def description(self):
        return {}


def frames_to_query_product() -> int:
    """The calls from `Trainer.advance` down to the line that multiplies with W^Q."""
    model = Transformer(Config.base(11, d_model=8, d_ff=8, heads=2, layers=1))
    trainer = Trainer(model, Task(), Path(tempfile.gettempdir()), 1, Recipe())
    weight = model.encoder.layers[0].self_attention.sublayer.query.weight.data
    depths: list[int] = []

    class Watched(np.ndarray):
        """A weight that notes the depth of the stack when a product uses it."""

        def __array_ufunc__(self, ufunc, method, *inputs, **settings):
            plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
            if ufunc is np.matmul and np.shares_memory(plain[1], weight) and not depths:
                names = [frame.function for frame in inspect.stack()]
                depths.append(names.index("advance") - 1)
            return getattr(ufunc, method)(*plain, **settings)

    query = model.encoder.layers[0].self_attention.sublayer.query.weight
    query._data = weight.view(Watched)
    trainer.advance()
    return depths[0]


if __name__ == "__main__":
    counts = lines()
    for name, count in counts.items():
        print(f"{count:6,}  {name}")
    room = sum(count for name, count in counts.items() if name.startswith("numformer.paper"))
    print(f"{len(counts)} files, {sum(counts.values()):,} lines; the room itself {room:,}")
    print(f"{frames_to_query_product()} frames from a training step to the product with W^Q")
