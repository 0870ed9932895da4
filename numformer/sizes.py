"""Parameters, memory and operations of a model, from its config alone: numformer count CONFIG."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numformer.layer import Parameter
from numformer.models import LanguageModel, MaskedLanguageModel, Model
from numformer.models.kinds import model_class
from numformer.published.configs import ForeignConfig
from numformer.published.files import CONFIG
from numformer.published.loading import Zeros, read_kind, require_valid
from numformer.runs.checkpoints import load_checkpoint, read_config
from numformer.trained import model_path

DESCRIPTION = """\
Count a model's parameters, the memory that it needs to train and to answer, and its operations for
each position of a text, from its config alone.

  numformer count config.json
  numformer count runs/reverse"""

UNMULTIPLIED = "input", "source", "target", "output", "positions"
"""Parts whose tables are looked up; the output may share one of these."""
ENCODERS = "encoder", "backwards"
"""Parts that read the source; a recurrent model also reads it backwards."""
SOURCE = (
    "cross_attention.sublayer.key.weight",
    "cross_attention.sublayer.value.weight",
    "decoder.keys.weight",
)
"""The matrices of a decoder that multiply each position of the source once."""
KEPT = "self_attention.sublayer.key.weight", "self_attention.sublayer.value.weight"
TRAINED, STORED = 16, 4
"""Bytes of a parameter: weight, gradient and Adam's two vectors in training, or the weight."""


class Sizes(NamedTuple):
    """What a model has and needs.

    `parts` are the numbers of parameters by role, and their total. A position of a source takes
    `read` FLOPs; another one `written` FLOPs, and `seen` more for each position that it sees. Its
    keys and values take `kept` bytes while a text is written.
    """

    parts: dict[str, int]
    read: int
    written: int
    seen: int
    kept: int


@contextmanager
def _without_numbers() -> Iterator[None]:
    """Within this context, a Parameter has its shape, but no memory for numbers."""
    build = Parameter.__init__

    def shape_only(self, data):
        self._data = self._grad = np.broadcast_to(np.float32(0), np.shape(data))

    Parameter.__init__ = shape_only  # type: ignore[method-assign]
    try:
        yield
    finally:
        Parameter.__init__ = build  # type: ignore[method-assign]


def sizes_of(kind: type[Model], config: Any) -> Sizes:
    """The Sizes of a model of this class and config, whose parameters are not stored.

    A product of x with a matrix takes two FLOPs for each entry. Of a mixture of experts, only the
    chosen ones compute.
    """
    with _without_numbers():
        model: Any = kind(config, Zeros(np.random.PCG64()))  # type: ignore[arg-type]
    read = written = seen = kept = 0
    for name, parameter in model.named_parameters().items():
        in_images, name = name.startswith("images."), re.sub(r"^(texts|images)\.", "", name)
        shape, (first, *_) = parameter.shape, name.split(".")
        if len(shape) != 2 or first in UNMULTIPLIED or name.endswith("attention.bias.table"):
            continue
        products = 2 * parameter.size
        if ".experts." in name:
            products = products * config.chosen_experts // config.experts
        if first in ENCODERS or in_images or name.endswith(SOURCE):
            read += products
            continue
        written += products
        if name.endswith("self_attention.sublayer.query.weight"):
            seen += 4 * shape[1]
        if name.endswith(KEPT):
            kept += STORED * shape[1]
    if output := getattr(getattr(model, "output", None), "weight", None):
        written += 2 * output.size
    return Sizes(model.parameter_counts(), read, written, seen, kept * hasattr(model, "step"))


def sizes_in(path: Path) -> tuple[str, Sizes]:
    """The kind and the Sizes of the model in a config.json, a published folder or a run.

    The config.json in a run's folder stands for the run.
    """
    if path.name == CONFIG and path.with_name("metrics.jsonl").is_file():
        path = path.parent
    file = path if path.suffix == ".json" and path.is_file() else model_path(path)
    file = file / CONFIG if file.is_dir() else file
    if file.suffix != ".json":
        _, metadata = load_checkpoint(file, np.float32, np.float64)
        kind = model_class(metadata.get("model"))
        return kind.__name__, sizes_of(kind, read_config(file, metadata, kind))
    published, values = read_kind(file)
    architecture, *_ = values.get("architectures") or [""]
    has_symbols = published.model in (MaskedLanguageModel, LanguageModel)
    is_bare = has_symbols and re.search("(?<!Head)Model$", str(architecture))
    foreign = ForeignConfig(values, ["embeddings"] if is_bare else ())
    config = require_valid(path, lambda: published.model.Config(**published.config(foreign)))
    return values["model_type"], sizes_of(published.model, config)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="numformer count",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path, metavar="CONFIG", help="a config.json, or a run")
    name, sizes = sizes_in(parser.parse_args(arguments).path)
    total = sizes.parts["total"]
    print(f"{name}: {total:,} parameters")
    for part, count in sizes.parts.items():
        if count and part != "total":
            print(f"  {part:<14}{count:>18,}  {count / total:6.1%}")
    print(f"memory to train, besides a batch: {_amount(TRAINED * total, 'B')}")
    kept = f", and {_amount(sizes.kept, 'B')} for each position" if sizes.kept else ""
    print(f"memory to answer: {_amount(STORED * total, 'B')}{kept}")
    if sizes.read:
        print(f"a position of the source: {_amount(sizes.read, 'FLOPs')}")
    seen = f", and {_amount(sizes.seen, 'FLOPs')} for each position that it sees"
    seen = seen if sizes.seen else ""  # only for self-attention
    print(f"a position of the text: {_amount(sizes.written, 'FLOPs')}{seen}")
    print("training takes three times as many FLOPs")
    return 0


def _amount(number: float, unit: str) -> str:
    """A number of a unit in three digits, such as 497 MB."""
    prefixes = ["", "k", "M", "G", "T"]
    while number >= 1000 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    return f"{number:,.3g} {prefixes[0]}{unit}"
