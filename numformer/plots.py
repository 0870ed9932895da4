"""Pictures of a run: its loss curve and where attention looks."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from numformer.backend import to_host
from numformer.later.attention.tiles import attention_weights as latest_weights
from numformer.layer import Layer, mode

PICTURES = ".png", ".pdf", ".svg"
"""What the names of pictures end in."""


def attention_weights(model: Layer, *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Where each attention looks as a model reads `inputs`: its weights (B, H, T, S), by name.

    Dropout is off.
    """
    with mode(training=False, saving=True):
        model.forward(*inputs)
    weights = {}
    for name, layer in model.named_layers().items():
        looked = latest_weights(layer)
        if looked is not None:
            weights[name] = to_host(looked)
    model.clear_saved()
    return weights


def kind_of(name: str) -> str:
    """The kind of an attention by its name in the model: "encoder self_attention", ...

    Where there is only one stack it is "self_attention".
    """
    tower, _, place = name.partition(".layers.")
    part = place.split(".")[1] if place else ""
    kind = f"{tower} {part}" if place else tower.replace(".", " ")
    return kind.removeprefix("tower ")


def by_kind(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `attention_weights` gave, the layers of a kind in one array (layers, B, H, T, S)."""
    of_kind: dict[str, list] = {}
    for name, of_layer in weights.items():
        of_kind.setdefault(kind_of(name), []).append(of_layer)
    return {kind: np.stack(of_layers) for kind, of_layers in of_kind.items()}


def cross_attention_weights(model: Layer, *inputs: np.ndarray) -> np.ndarray:
    """The decoder's attention to the source, (layers, B, H, T, S)."""
    return by_kind(attention_weights(model, *inputs))["decoder cross_attention"]


@dataclass(frozen=True)
class AttentionMaps:
    """Where all layers and heads of one kind of attention look: weights (layers, H, T, S).

    `reads` labels the T positions that look, `looks_at` the S symbols that they look at. `titles`
    are those of the maps, a list for each layer, unless its number and the head's are enough.
    """

    kind: str
    weights: np.ndarray
    reads: Sequence[str]
    looks_at: Sequence[str]
    titles: Sequence[Sequence[str]] = ()


def attention_maps(path: Path | str, kinds: Sequence[AttentionMaps], title: str) -> None:
    """Draw each kind of attention as one map for each layer (row) and head (column).

    Of more than 16 layers or heads the first 16 are drawn, because a picture has an end; where no
    kind is given, nothing. Characters that no font here has are shown by their code points, U+4E2D,
    with a warning.
    """
    if not kinds:
        return
    labels = {symbol for kind in kinds for symbol in (*kind.reads, *kind.looks_at)}
    families, lacking = fonts_for({*"".join(labels), *title} - {"\n"})
    if lacking:
        some = " ".join(map(repr, sorted(lacking)[:9])) + " ..." * (len(lacking) > 9)
        warnings.warn(
            f"no font of this machine draws {some}: code points stand instead. Install one that "
            "does, such as Noto Sans CJK for Chinese or Noto Emoji.",
            stacklevel=2,
        )

    def shown(symbols: Sequence[str]) -> list[str]:
        return [legible(symbol.replace(" ", "␣"), lacking) for symbol in symbols]

    kinds = [
        replace(kind, reads=shown(kind.reads), looks_at=shown(kind.looks_at)) for kind in kinds
    ]
    rows = [(kind, layer) for kind in kinds for layer in range(len(kind.weights[:16]))]
    last = [layer == len(kind.weights[:16]) - 1 for kind, layer in rows]  # of its kind
    heads = max(kind.weights[:, :16].shape[1] for kind in kinds)
    # Inches. Places by hand: matplotlib's own layout takes seconds for so many maps.
    side, between, right, top = 2.0, 0.15, 0.9, 0.65
    left = 0.5 + max(0.6, 0.07 * max(_longest_word(kind.reads) for kind in kinds))
    upright = [0.07 * _longest_word(kind.looks_at) for kind, _ in rows]
    bottom = 0.5 + upright[-1]
    below = [bottom]  # the lower edge of each row, from the last one up
    for labelled, word in zip(last[-2::-1], upright[-2::-1], strict=True):
        below.insert(0, below[0] + side + (0.65 + word if labelled else 0.3))
    width = left + heads * (side + between) + right
    height = below[0] + side + top
    figure = new_figure(width, height)
    # In matplotlib's own reading $ begins a formula.
    as_it_is: dict[str, Any] = dict(parse_math=False, family=families)
    figure.text(
        0.15 / width, 1 - 0.12 / height, legible(title, lacking), va="top", fontsize=11, **as_it_is
    )

    def place(edge: float, column: int, wide: float = side) -> tuple[float, float, float, float]:
        x = left + column * (side + between)
        return x / width, edge / height, wide / width, side / height

    def label(ticks: Callable, symbols: Sequence[str], **how) -> None:
        ticks(range(len(symbols)), symbols, **how, **as_it_is)

    for (kind, layer), edge, labelled, word in zip(rows, below, last, upright, strict=True):
        for head, weights in enumerate(kind.weights[layer, :16]):
            axes = figure.add_axes(place(edge, head), xticks=[], yticks=[])
            image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            number = f"layer {layer + 1}, head {head + 1}"
            axes.set_title(kind.titles[layer][head] if kind.titles else number, fontsize=8, pad=3)
            axes.tick_params(length=2, labelsize=7)
            if labelled:
                label(axes.set_xticks, kind.looks_at, rotation=90 if word else 0)
            if head == 0:
                label(axes.set_yticks, kind.reads)
                axes.set_ylabel(kind.kind.replace("_", "-"), fontsize=8)
            if edge == bottom:
                axes.set_xlabel("looks at", fontsize=8)
    scale = figure.add_axes(place((below[0] + bottom) / 2, heads, 0.15))
    figure.colorbar(image, cax=scale, label="attention weight")
    figure.savefig(path, dpi=110)


def fonts_for(characters: set[str]) -> tuple[list[str], set[str]]:
    """Families of fonts of this machine that draw the characters; and those that none draws.

    The usual font comes first. Where it lacks some, the others are looked at, and the one that has
    most of them is next.
    """
    from matplotlib import font_manager

    def drawn_by(path: str) -> set[str]:
        font = font_manager.get_font(path)
        scalable = font.scalable  # pictures of one size, as emoji may be, cannot be drawn
        return {c for c in characters if scalable and font.get_char_index(ord(c))}

    usual = font_manager.FontProperties()
    families, drawn = [*usual.get_family()], {}
    lacking = characters - drawn_by(font_manager.findfont(usual))
    for font in font_manager.fontManager.ttflist if lacking else ():
        # The font of the last resort has a box for every character.
        last_resort = "lastresort" in font.name.replace(" ", "").lower()
        if (font.style, font.weight) == ("normal", 400) and not last_resort:
            drawn[font.name] = drawn_by(font.fname)
    while more := max(drawn, key=lambda name: (len(drawn[name] & lacking), name), default=None):
        if not drawn[more] & lacking:
            break
        families.append(more)
        lacking = lacking - drawn[more]
    return families, lacking


def legible(text: str, lacking: set[str]) -> str:
    """The text with code points, U+4E2D, in place of characters that no font has."""
    if not lacking & {*text}:
        return text
    parts = (f" U+{ord(c):04X} " if c in lacking else c for c in text)
    return " ".join("".join(parts).split())


def _longest_word(symbols: Sequence[str]) -> int:
    """Characters of the longest symbol; 0 where they are so short that they fit side by side."""
    longest = max(map(len, symbols), default=0)
    return longest if longest > 2 else 0


def new_figure(width: float, height: float, **settings):
    """An empty figure of this many inches. Matplotlib is loaded when something is drawn at last."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **settings)
    FigureCanvasAgg(figure)
    return figure


def bound(axes) -> None:
    """Let the y axis reach below 0 for negative values alone, and from 0 where all are the same."""
    low, high = axes.dataLim.intervaly
    if low == high >= 0:
        axes.set_ylim(0, max(1, 1.1 * high))
    elif low >= 0:
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))


def loss_curve(path: Path, metrics: Sequence[dict], measure: str, title: str) -> None:
    """Draw a metrics.jsonl against the step: losses, `measure` and, below them, the learning rate.

    Training loss and held-out loss share the left scale, which is logarithmic; the measure has the
    right one, unless it is the held-out loss itself. What no line tells is left out.
    """
    training = [line for line in metrics if "gradient_norm" in line]
    evaluations = [line for line in metrics if "gradient_norm" not in line]
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    figure = new_figure(7.5, 5.2, layout="constrained")
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
        bound(right)
        right.set_ylabel(name, color="tab:green")
        right.tick_params(axis="y", colors="tab:green")
        right.spines["top"].set_visible(False)
    left.legend(handles=drawn, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    draw(below, training, "rate", "tab:gray")
    below.set(xlabel="step", ylabel="learning\nrate")
    below.set_ylim(bottom=0)
    below.set_xlim(left=0)
    below.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    below.yaxis.set_major_formatter("{x:g}")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    for axes in (left, below):
        axes.grid(alpha=0.25)
        axes.spines["top"].set_visible(False)
    figure.align_ylabels([left, below])
    figure.savefig(path, dpi=110)
