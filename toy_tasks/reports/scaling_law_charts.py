"""Charts of scaling laws: loss against symbols, parameters, and parameters at a fixed budget."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps

from numformer.plots import limit_y_axis, new_figure
from toy_tasks.analysis.scaling_laws import Fit, Run
from toy_tasks.reports.charts import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def short_number(number: float) -> str:
    """Return the number as text: 1,200, or 1.2 M."""
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number:,.0f}"


def shade(number: int, count: int):
    """A colour from a scale whose order colour-blind readers can see, too."""
    return colormaps["viridis"](0.9 * number / max(count - 1, 1))


def draw_laws(path: Path | None, fits: dict[str, tuple[Fit, Sequence[Run]]]) -> "Figure":
    """Draw three charts for each unit (such as characters): its fit and the larger model's runs."""
    figure = new_figure(13.5, 4.3 * len(fits), layout="constrained")
    rows = figure.subplots(len(fits), 3, squeeze=False)
    for row, (unit, (fit, larger)) in zip(rows, fits.items(), strict=True):
        by_symbols, by_size, by_budget = row
        _curves(by_symbols, fit, larger, "symbols", "parameters")
        _curves(by_size, fit, larger, "parameters", "symbols")
        _parabolas(by_budget, fit)
        by_symbols.set(xlabel=f"{unit} read (D)", ylabel=f"loss of a {unit[:-1]}, nats")
        by_size.set(xlabel="parameters without embeddings (N)")
        by_budget.set(xlabel="parameters (N), for budgets C = 6 N D")
        for axes in row:
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
            limit_y_axis(axes)
    return figure.save(path)


def _curves(axes, fit: Fit, larger: Sequence[Run], x: str, by: str) -> None:
    """Draw the loss against x, with a colour for each value of `by`; the law's lines are dashed."""
    values = sorted({getattr(run, by) for run in fit.runs})
    ends = [getattr(run, x) for run in (*fit.runs, *larger)]
    xs = np.geomspace(min(ends), max(ends), 60)
    labelled = {0, len(values) // 2, len(values) - 1}
    for number, value in enumerate(values):
        colour = shade(number, len(values))
        runs = [run for run in fit.runs if getattr(run, by) == value]
        axes.plot([getattr(r, x) for r in runs], [r.loss for r in runs], "o", color=colour, ms=4)
        losses = fit.law.loss(**{by: value, x: xs})
        label = short_number(value) if number in labelled else None
        axes.plot(xs, losses, "--", color=colour, linewidth=1, label=label)
    for run in larger:
        axes.plot(getattr(run, x), run.loss, "*", color=COLOURS[1], ms=11, label="the larger model")
    axes.legend(title=f"{by} ({'N' if by == 'parameters' else 'D'})", fontsize=8)


def _parabolas(axes, fit: Fit) -> None:
    """Draw the loss of each budget against the size, and the line through the best sizes."""
    ends = 0, len(fit.budgets) - 1
    for number, budget in enumerate(fit.budgets):
        colour = shade(number, len(fit.budgets))
        axes.plot(budget.parameters, budget.losses, "o", color=colour, ms=4)
        xs = np.geomspace(budget.parameters.min(), budget.parameters.max(), 40)
        losses = np.polyval(budget.parabola, np.log(xs))
        label = f"C = {budget.operations:.0e}" if number in ends else None
        axes.plot(xs, losses, color=colour, linewidth=1, label=label)
    best = [budget for budget in fit.budgets if budget.best]
    losses = [np.polyval(budget.parabola, np.log(budget.best)) for budget in best]
    marks = dict(color=COLOURS[1], marker="D", markerfacecolor="none", label="best size")
    axes.plot([budget.best for budget in best], losses, **marks)
    axes.legend(title="operations (C)", fontsize=8, loc="lower left")
