"""Tables and pictures of several runs."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from numformer.plots import AttentionMaps, attention_maps, limit_y_axis, new_figure

# Okabe and Ito's colours, told apart by colour-blind readers too; strokes show lines that coincide.
COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"
STROKES = "-", "--", "-.", (0, (1, 1))


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """The mean of some seeds' numbers and, in brackets, the lowest and the highest of several."""
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:{form}}" + f" ({low:{form}} to {high:{form}})" * (len(values) > 1)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the head first, as a table that is Markdown and can be read as it is."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    head, *others = (" | ".join(map(str.ljust, row, widths)) for row in rows)
    line = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {row} |" for row in (head, line, *others))


Curve = tuple[Sequence[float], Sequence[float]]
"""The x and the y of its points."""
Panels = dict[str, dict[str, list[Curve]]]


def chart(path: Path, title: str, panels: Panels, x: str, y: str, **axis) -> None:
    """Draw a panel for each title in `panels`, in it for each label the mean of its curves.

    A band goes from the lowest to the highest of them; the curves of a label share their x. `axis`
    is for matplotlib's Axes.set, such as `xscale`.
    """
    figure = new_figure(1 + 4 * len(panels), 4.4, layout="constrained")
    figure.suptitle(title, parse_math=False)
    for number, (name, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for color, stroke, (label, several) in zip(cycle(COLOURS), cycle(STROKES), curves.items()):
            points = [*zip(*(values for _, values in several), strict=True)]
            places = several[0][0]
            look = dict(color=color, linestyle=stroke, label=label, linewidth=1.8)
            look["marker"] = "o" if len(places) == 1 else None  # one point has no line
            axes.plot(places, [sum(p) / len(p) for p in points], **look)
            band = [*map(min, points)], [*map(max, points)]
            axes.fill_between(places, *band, color=color, alpha=0.2, linewidth=0)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.set(xlabel=x, ylabel=y if number == 1 else "", **axis)
        limit_y_axis(axes)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=110)


def draw_attention(path: Path, kinds: Sequence[AttentionMaps], title: str) -> None:
    """Draw where a model looks; of one that keeps no attention maps nothing is drawn."""
    if kinds:
        attention_maps(path, kinds, title)
