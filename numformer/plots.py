"""Pictures of a run: its loss curve and where attention looks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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


def loss_curve(path: Path, metrics: Sequence[dict], measure: str) -> None:
    """Draw the training loss and the held-out `measure` of a metrics.jsonl against the step."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    losses = [(line["step"], line["loss"]) for line in metrics if "gradient_norm" in line]
    axes.plot(*zip(*losses, strict=True), color="tab:blue", marker="." if len(losses) < 3 else None)
    axes.set(xlabel="step", yscale="log")
    axes.set_ylabel("training loss", color="tab:blue")
    measured = [(line["step"], line[measure]) for line in metrics if measure in line]
    right = axes.twinx()
    right.plot(*zip(*measured, strict=True), color="tab:orange", marker=".")
    right.set_ylabel(f"{measure} (held-out data)", color="tab:orange")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
