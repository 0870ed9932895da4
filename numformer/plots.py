"""Pictures of a run: its loss curve and where attention looks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from numformer.backend import to_host
from numformer.layer import Layer, mode


def attention_weights(model: Layer, *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Where each attention looks as a model reads `inputs`: its weights (B, H, T, S), by name.

    They are read from the records that the attentions save; dropout is off.
    """
    with mode(training=False, saving=True):
        model.forward(*inputs)
    weights = {
        name: to_host(layer.saved[-1]["weights"])
        for name, layer in model.named_layers().items()
        if layer.saved and "weights" in layer.saved[-1]
    }
    model.clear_saved()
    return weights


def cross_attention_weights(model: Layer, *inputs: np.ndarray) -> np.ndarray:
    """The decoder's attention to the source, (layers, B, H, T, S)."""
    of_all = attention_weights(model, *inputs)
    return np.stack([weights for name, weights in of_all.items() if ".cross_attention." in name])


def attention_maps(
    path: Path,
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    title: str,
) -> None:
    """Draw weights (layers, H, T, S) as one map for each layer (row) and head (column).

    `source` labels the S columns of a map, `target` its T rows: the symbols being written. Of more
    than 16 layers or heads the first 16 are drawn, because a picture has an end.
    """
    weights = weights[:16, :16]
    layers, heads = weights.shape[:2]
    as_it_is = dict(parse_math=False)  # in matplotlib's own reading $ begins a formula
    figure = Figure(figsize=(2.6 * heads + 1.2, 2.9 * layers + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, **as_it_is)
    grid = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(weights[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        axes.set_xticks(range(len(source)), source, fontsize=7, **as_it_is)
        axes.set_yticks(range(len(target)), target, fontsize=7, **as_it_is)
    for axes in grid[-1]:
        axes.set_xlabel("looks at", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("writes", fontsize=8)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8)
    figure.savefig(path, dpi=110)


def loss_curve(path: Path, metrics: Sequence[dict], measure: str, title: str) -> None:
    """Draw a metrics.jsonl against the step: losses, `measure` and, below them, the learning rate.

    Training loss and held-out loss share the left scale, which is logarithmic; the measure has the
    right one, unless it is the held-out loss itself. What no line tells is left out.
    """
    training = [line for line in metrics if "gradient_norm" in line]
    evaluations = [line for line in metrics if "gradient_norm" not in line]
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, parse_math=False)
    left, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])

    def draw(axes, lines: list[dict], name: str, color: str, label: str | None = None) -> list:
        """Those lines that have `name`; few points are marked, because one alone has no line."""
        points = [(line["step"], line[name]) for line in lines if name in line]
        marker = "o" if len(points) < 15 else None
        style = dict(color=color, label=label, marker=marker, markersize=4, linewidth=1.6)
        return axes.plot(*zip(*points, strict=True), **style) if points else []

    drawn = draw(left, training, "loss", "tab:blue", "training loss")
    drawn += draw(left, evaluations, "held_out_loss", "tab:orange", "held-out loss")
    left.set(yscale="log", ylabel="loss")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    if measure != "held_out_loss" and any(measure in line for line in evaluations):
        right, name = left.twinx(), measure.replace("_", " ")
        drawn += draw(right, evaluations, measure, "tab:green", name)
        right.set_ylabel(f"{name} (held-out data)", color="tab:green")
        right.tick_params(axis="y", colors="tab:green")
        right.spines["top"].set_visible(False)
    left.legend(handles=drawn, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    draw(below, training, "rate", "tab:gray")
    below.set(xlabel="step", ylabel="learning\nrate")
    below.set_ylim(bottom=0)
    below.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    below.yaxis.set_major_formatter("{x:g}")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    for axes in (left, below):
        axes.grid(alpha=0.25)
        axes.spines["top"].set_visible(False)
    figure.align_ylabels([left, below])
    figure.savefig(path, dpi=110)
