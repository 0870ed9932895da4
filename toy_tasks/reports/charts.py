"""Charts that compare several runs."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from numformer.plots import limit_y_axis, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart. With different strokes,
# lines that coincide stay visible.
COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"
STROKES = "-", "--", "-.", (0, (1, 1))

Curve = tuple[Sequence[float], Sequence[float]]
"""The x and the y of the points of a curve."""
Panels = dict[str, dict[str, list[Curve]]]
"""For the title of each panel, its curves by label; a label may have several curves."""


def draw_chart(path: Path | None, title: str, panels: Panels, x: str, y: str, **axis) -> "Figure":
    """Draw the mean of the curves of each label, and a band from the lowest to the highest.

    The curves of a label have the same x. `axis` is for matplotlib's Axes.set, such as `xscale`.
    """
    figure = new_figure(1 + 4 * len(panels), 4.4, layout="constrained")
    figure.suptitle(title, parse_math=False)
    for number, (name, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for colour, stroke, (label, label_curves) in zip(
            cycle(COLOURS), cycle(STROKES), curves.items()
        ):
            points = [*zip(*(values for _, values in label_curves), strict=True)]
            xs = label_curves[0][0]
            style = dict(color=colour, linestyle=stroke, label=label, linewidth=1.8)
            style["marker"] = "o" if len(xs) == 1 else None  # one point has no line
            axes.plot(xs, [sum(p) / len(p) for p in points], **style)
            band = [*map(min, points)], [*map(max, points)]
            axes.fill_between(xs, *band, color=colour, alpha=0.2, linewidth=0)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.set(xlabel=x, ylabel=y if number == 1 else "", **axis)
        limit_y_axis(axes)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure.save(path)
