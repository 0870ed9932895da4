"""How the time and memory of each mixer grow with length, batch and width, against theory.

    python -m tests.benchmarks.scaling [--mixers window linear] [--quick] [--out runs/scaling.png]

A causal layer computes forward and backward, in float32 and one thread. The layers take turns, and
the table has medians of processor time. `whole` is attention by the plain formula, `tiles` in
tiles, `attention` one or the other by the length, `grouped` with one head of keys. Heads have 64
features, but there are at least two; the stride is the square root of the length.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numformer import blas
from numformer.allocator import reuse_freed_memory
from numformer.later import MIXERS
from numformer.layer import pack
from numformer.models import TowerConfig
from numformer.paper import Places, Reach
from numformer.plots import new_figure
from toy_tasks.command_line.parser import picture_path
from toy_tasks.reports.charts import COLOURS, STROKES
from toy_tasks.reports.tables import markdown_table

MOST = 3 << 10  # MiB: sizes that would need more, judging by smaller ones, are left out
LEAST = 0.02  # seconds of a measurement: faster steps are repeated
TILED = {"attention_function": "tiled"}
SETTINGS: dict[str, dict] = {"whole": {}, "tiles": TILED, "attention": TILED}
SETTINGS |= {"grouped": TILED | {"key_value_heads": 1}, "global_window": {"global_tokens": 4}}
# The exponents of time and memory in the limit. In d, it is 1 for elementwise operations and for
# scores, whose number grows with the heads, and 2 for projections.
IN_T = {"whole": (2, 2), "tiles": (2, 1), "grouped": (2, 1)} | dict.fromkeys(MIXERS, (1, 1))
IN_T |= {"attention": (2, 1), "strided": (1.5, 1.5), "relative": (2, 1)}
IN_OTHERS = {"B": 1, "d": "1 to 2"}
KINDS = {"time": "milliseconds", "memory": "MiB"}


class Size(NamedTuple):
    """A batch of B sequences of length T and width d."""

    T: int = 1024
    B: int = 1
    d: int = 256


SIZES = {
    "T": {64 << n: Size(T=64 << n) for n in range(7)},
    "B": {B: Size(T=512, B=B) for B in (1, 2, 4, 8, 16)},
    "d": {d: Size(d=d) for d in (64, 128, 256, 512)},
}
Curves = dict[tuple[str, str], dict[int, float]]
"""Measurements by (the letter that grows, the name of a layer), then by the letter's value."""


def step_of(name: str, size: Size) -> Callable[[], None]:
    """A function that computes forward and backward of a batch, with new masks each time."""
    settings = SETTINGS.get(name, {}) | dict(mixers=name if name in MIXERS else "attention")
    if name == "strided":
        settings |= dict(stride=round(size.T**0.5))
    config = TowerConfig(d_model=size.d, heads=max(2, size.d // 64), **settings)
    rng = np.random.default_rng(0)
    layer: Any = config.self_attention(rng, causal=True)
    if name == "tiles":
        layer.attention.least = 0
    pack(layer)
    x, dy = (rng.standard_normal((size.B, size.T, size.d), np.float32) for _ in range(2))

    def step():
        layer.forward(x, Reach(Places.without_padding(size.B, size.T), causal=True))
        layer.backward(dy)

    return step


def most_memory(step: Callable[[], None]) -> int:
    """The peak memory of a step in bytes, including all that is saved for backward."""
    tracemalloc.start()
    step()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def seconds(step: Callable[[], None], times: int = 1) -> float:
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def memory(names: list[str], values: int) -> Curves:
    """The MiB of a step, for the first values of each letter."""
    curves: Curves = {key: {} for key in product(SIZES, names)}
    for (letter, name), curve in curves.items():
        for value, size in [*SIZES[letter].items()][:values]:
            known = [*curve.values()][-2:]
            if known[1:] and known[1] / known[0] * known[1] > MOST:
                print(f"left out: {name} at {size}, which would need more than 3 GiB")
                break
            curve[value] = most_memory(step_of(name, size)) / (1 << 20)
    return curves


def times(peaks: Curves, rounds: int) -> Curves:
    """The milliseconds of a step at the points of other curves, medians of several rounds."""
    points = ((*key, value) for key, curve in peaks.items() for value in curve)
    steps = {(row, name, v): step_of(name, SIZES[row][v]) for row, name, v in points}
    counts = {point: int(LEAST / seconds(step)) + 1 for point, step in steps.items()}
    results = [{p: seconds(step, counts[p]) for p, step in steps.items()} for _ in range(rounds)]
    return {
        key: {v: 1000 * statistics.median(result[*key, v] for result in results) for v in curve}
        for key, curve in peaks.items()
    }


def exponent(numbers: dict[int, float]) -> float:
    """The slope of the line through the upper half of the points, on logarithmic axes."""
    points = np.log([*numbers.items()])[-(len(numbers) // 2 + 1) :]
    return np.polyfit(*points.T, 1)[0]


def table(names: list[str], curves: dict[str, Curves]) -> str:
    """Time and memory at some lengths, and the exponents; those of theory are in brackets."""
    shown = [*curves["time"]["T", names[0]]][2::2]
    head = [f"{unit} at T {', '.join(f'{T:,}' for T in shown)}" for unit in KINDS.values()]
    lines = [["mixer", *head, *(f"{kind} in {letter}" for letter, kind in product(SIZES, KINDS))]]
    for name in names:
        lengths = [curves[kind]["T", name] for kind in KINDS]
        line = [", ".join(f"{curve[T]:,.0f}" for T in shown if T in curve) for curve in lengths]
        for letter, (index, kind) in product(SIZES, enumerate(KINDS)):
            theory = IN_OTHERS.get(letter, IN_T[name][index])
            line.append(f"{exponent(curves[kind][letter, name]):.2f} ({theory})")
        lines.append([name, *line])
    return markdown_table(lines)


def draw(path: Path, names: list[str], curves: dict[str, Curves]) -> None:
    figure = new_figure(12, 7.6, layout="constrained")
    figure.suptitle("forward and backward of a layer")
    panels = figure.subplots(len(KINDS), len(SIZES), sharey="row", sharex="col")
    for axes, (kind, letter) in zip(panels.flat, product(KINDS, SIZES), strict=True):
        for name, color, stroke in zip(names, cycle(COLOURS), cycle(STROKES)):
            points = curves[kind][letter, name]
            look = dict(color=color, linestyle=stroke, marker="o", markersize=3, label=name)
            axes.plot([*points], [*points.values()], **look)
        axes.set(xscale="log", yscale="log", xlabel=letter, ylabel=KINDS[kind])
        axes.set_xticks([*points], map(str, points), fontsize=8)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.label_outer()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scaling")
    parser.add_argument("--mixers", nargs="+", choices=IN_T, default=list(IN_T))
    parser.add_argument("--quick", action="store_true", help="small sizes, once: proves nothing")
    parser.add_argument("--out", type=picture_path, default=Path("runs/scaling.png"))
    options = parser.parse_args(arguments)
    values, rounds = (3, 1) if options.quick else (9, 5)
    reuse_freed_memory()
    with blas.training_threads(1):
        peaks = memory(options.mixers, values)
        curves = {"time": times(peaks, rounds), "memory": peaks}
    draw(options.out, options.mixers, curves)
    print(table(options.mixers, curves), options.out, sep="\n")


if __name__ == "__main__":
    main()
