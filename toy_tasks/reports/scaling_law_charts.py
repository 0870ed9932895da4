"""Pictures of scaling laws: the loss by symbols, by parameters, and by parameters for a budget."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps

from numformer.plots import limit_y_axis, new_figure
from toy_tasks.analysis.scaling_laws import Fitted, Run
from toy_tasks.reports.charts import COLOURS


def size(number: float) -> str:
    """1,200 or 1.2 M."""
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number:,.0f}"


def shade(number: int, count: int):
    """A colour between blue and green that colour-blind readers can order, too."""
    return colormaps["viridis"](0.9 * number / max(count - 1, 1))


def draw(path: Path, of_unit: dict[str, tuple[Fitted, Sequence[Run]]]) -> None:
    """A row of three pictures for each unit, of what was fitted and of what was predicted."""
    figure = new_figure(13.5, 4.3 * len(of_unit), layout="constrained")
    rows = figure.subplots(len(of_unit), 3, squeeze=False)
    for row, (unit, (fitted, larger)) in zip(rows, of_unit.items(), strict=True):
        by_symbols, by_size, by_budget = row
        _curves(by_symbols, fitted, larger, "symbols", "parameters")
        _curves(by_size, fitted, larger, "parameters", "symbols")
        _parabolas(by_budget, fitted)
        by_symbols.set(xlabel=f"{unit} read (D)", ylabel=f"loss of a {unit[:-1]}, nats")
        by_size.set(xlabel="parameters without embeddings (N)")
        by_budget.set(xlabel="parameters (N), for budgets C = 6 N D")
        for axes in row:
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
            limit_y_axis(axes)
    figure.savefig(path, dpi=110)


def _curves(axes, fitted: Fitted, larger: Sequence[Run], x: str, by: str) -> None:
    """The loss against x, a colour for each value of the other; the law's lines are dashed."""
    values = sorted({getattr(run, by) for run in fitted.runs})
    ends = [getattr(run, x) for run in (*fitted.runs, *larger)]
    places = np.geomspace(min(ends), max(ends), 60)
    named = {0, len(values) // 2, len(values) - 1}
    for number, value in enumerate(values):
        color = shade(number, len(values))
        some = [run for run in fitted.runs if getattr(run, by) == value]
        axes.plot([getattr(r, x) for r in some], [r.loss for r in some], "o", color=color, ms=4)
        losses = fitted.law.loss(**{by: value, x: places})
        label = size(value) if number in named else None
        axes.plot(places, losses, "--", color=color, linewidth=1, label=label)
    for run in larger:
        axes.plot(getattr(run, x), run.loss, "*", color=COLOURS[1], ms=11, label="the larger model")
    axes.legend(title=f"{by} ({'N' if by == 'parameters' else 'D'})", fontsize=8)


def _parabolas(axes, fitted: Fitted) -> None:
    """The loss of each budget against the size, and the line through the best sizes."""
    ends = 0, len(fitted.budgets) - 1
    for number, budget in enumerate(fitted.budgets):
        color = shade(number, len(fitted.budgets))
        axes.plot(budget.parameters, budget.losses, "o", color=color, ms=4)
        places = np.geomspace(budget.parameters.min(), budget.parameters.max(), 40)
        losses = np.polyval(budget.parabola, np.log(places))
        label = f"C = {budget.operations:.0e}" if number in ends else None
        axes.plot(places, losses, color=color, linewidth=1, label=label)
    best = [budget for budget in fitted.budgets if budget.best]
    bottoms = [np.polyval(budget.parabola, np.log(budget.best)) for budget in best]
    marks = dict(color=COLOURS[1], marker="D", markerfacecolor="none", label="best size")
    axes.plot([budget.best for budget in best], bottoms, **marks)
    axes.legend(title="operations (C)", fontsize=8, loc="lower left")
