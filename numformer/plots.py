"""Figures of a run: its loss curve, and maps of attention weights.

Each function that draws returns the figure, which a notebook shows. It also saves the figure as
`path`, a .png, .pdf or .svg, unless `path` is None.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numformer.backend import to_host
from numformer.errors import InputError
from numformer.interception import intercept
from numformer.later.attention.tiles import attention_weights as saved_weights
from numformer.later.checkpointed import Checkpointed
from numformer.layer import Layer, mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ".png", ".pdf", ".svg"
"""The suffixes of files that a figure can be saved as."""


def attention_weights(model: Layer, *inputs: Any) -> dict[str, np.ndarray]:
    """Return each attention layer's weights (B, H, T, S), by name, as a model reads `inputs`.

    Dropout is off.
    """
    with mode(training=False, saving=True), _without_checkpoints(model):
        model.forward(*inputs)
    weights = {name: saved_weights(layer) for name, layer in model.named_layers().items()}
    model.clear_saved()
    return {name: to_host(array) for name, array in weights.items() if array is not None}


def _without_checkpoints(model: Layer) -> AbstractContextManager:
    """Within the block, a checkpointed layer saves what its inner layer saves."""
    checkpoints = {layer: layer for layer in model.layers_within() if type(layer) is Checkpointed}
    return intercept(checkpoints, "forward", lambda layer, _, *inputs: layer.layer.forward(*inputs))


def kind_of(name: str) -> str:
    """Return the kind of the attention layer with this name, such as "encoder self_attention".

    If the model has a single stack, the kind is "self_attention".
    """
    tower, _, place = name.partition(".layers.")
    part = place.split(".")[1] if place else ""
    kind = f"{tower} {part}" if place else tower.replace(".", " ")
    return kind.removeprefix("tower ")


def by_kind(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stack the weights of all layers of a kind: (B, H, T, S) by name -> (layers, B, H, T, S)."""
    layers: dict[str, list] = {}
    for name, array in weights.items():
        layers.setdefault(kind_of(name), []).append(array)
    return {kind: np.stack(arrays) for kind, arrays in layers.items()}


def cross_attention_weights(model: Layer, *inputs: np.ndarray) -> np.ndarray:
    """The weights of the decoder's attention to the source, (layers, B, H, T, S)."""
    return by_kind(attention_weights(model, *inputs))["decoder cross_attention"]


@dataclass(frozen=True)
class AttentionMaps:
    """The weights (layers, H, T, S) of all layers and heads of one kind of attention.

    `query_labels` and `key_labels` name the T queries and the S keys. `titles`, one list for each
    layer, replace the default titles of the maps, such as "layer 1, head 2".
    """

    kind: str
    weights: np.ndarray
    query_labels: Sequence[str]
    key_labels: Sequence[str]
    titles: Sequence[Sequence[str]] = ()


def attention_maps(
    path: Path | str | None, kinds: Sequence[AttentionMaps], title: str
) -> "Figure | None":
    """Draw a map for each layer (row) and head (column) of each kind; the module explains `path`.

    At most 16 layers and 16 heads of a kind are drawn. If `kinds` is empty, nothing is drawn.
    Characters that no installed font has are replaced by their code points, such as U+4E2D, with a
    warning.
    """
    if not kinds:
        return None
    labels = {symbol for kind in kinds for symbol in (*kind.query_labels, *kind.key_labels)}
    families, missing = fonts_for({*"".join(labels), *title} - {"\n"})
    if missing:
        examples = " ".join(map(repr, sorted(missing)[:9])) + " ..." * (len(missing) > 9)
        warnings.warn(
            f"no font on this machine draws {examples}: code points replace them. Install a font "
            "with these characters, such as Noto Sans CJK for Chinese or Noto Emoji.",
            stacklevel=2,
        )

    def tick_labels(symbols: Sequence[str]) -> list[str]:
        return [with_code_points(symbol.replace(" ", "␣"), missing) for symbol in symbols]

    kinds = [
        replace(
            kind,
            query_labels=tick_labels(kind.query_labels),
            key_labels=tick_labels(kind.key_labels),
        )
        for kind in kinds
    ]
    rows = [(kind, layer) for kind in kinds for layer in range(len(kind.weights[:16]))]
    is_last = [layer == len(kind.weights[:16]) - 1 for kind, layer in rows]  # last row of its kind
    heads = max(kind.weights[:, :16].shape[1] for kind in kinds)
    # In inches. The axes are placed here, because matplotlib's layout takes seconds for many maps.
    side, gap, right, top = 2.0, 0.15, 0.9, 0.65
    left = 0.5 + max(0.6, 0.07 * max(_longest_label(kind.query_labels) for kind in kinds))
    label_heights = [0.07 * _longest_label(kind.key_labels) for kind, _ in rows]
    bottom = 0.5 + label_heights[-1]
    edges = [bottom]  # the lower edge of each row, computed upwards
    for labelled, label_height in zip(is_last[-2::-1], label_heights[-2::-1], strict=True):
        edges.insert(0, edges[0] + side + (0.65 + label_height if labelled else 0.3))
    width = left + heads * (side + gap) + right
    height = edges[0] + side + top
    figure = new_figure(width, height)
    # With parse_math a $ would begin a formula.
    text_style: dict[str, Any] = dict(parse_math=False, family=families)
    title = with_code_points(title, missing)
    figure.text(0.15 / width, 1 - 0.12 / height, title, va="top", fontsize=11, **text_style)

    def rectangle(edge: float, column: int, w: float = side) -> tuple[float, float, float, float]:
        x = left + column * (side + gap)
        return x / width, edge / height, w / width, side / height

    def label(set_ticks: Callable, symbols: Sequence[str], **style) -> None:
        set_ticks(range(len(symbols)), symbols, **style, **text_style)

    for (kind, layer), edge, labelled, label_height in zip(
        rows, edges, is_last, label_heights, strict=True
    ):
        for head, weights in enumerate(kind.weights[layer, :16]):
            axes = figure.add_axes(rectangle(edge, head), xticks=[], yticks=[])
            image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            number = f"layer {layer + 1}, head {head + 1}"
            axes.set_title(kind.titles[layer][head] if kind.titles else number, fontsize=8, pad=3)
            axes.tick_params(length=2, labelsize=7)
            if labelled:
                label(axes.set_xticks, kind.key_labels, rotation=90 if label_height else 0)
            if head == 0:
                label(axes.set_yticks, kind.query_labels)
                axes.set_ylabel(kind.kind.replace("_", "-"), fontsize=8)
            if edge == bottom:
                axes.set_xlabel("looks at", fontsize=8)
    scale = figure.add_axes(rectangle((edges[0] + bottom) / 2, heads, 0.15))
    figure.colorbar(image, cax=scale, label="attention weight")
    return figure.save(path)


def fonts_for(characters: set[str]) -> tuple[list[str], set[str]]:
    """Return the font families that draw the characters, and the characters that no font has.

    The default font comes first, then, repeatedly, the font that has the most of the characters
    still missing.
    """
    from matplotlib import font_manager

    def characters_in(path: str) -> set[str]:
        font = font_manager.get_font(path)
        scalable = font.scalable  # matplotlib cannot draw bitmap fonts, such as some emoji fonts
        return {c for c in characters if scalable and font.get_char_index(ord(c))}

    default = font_manager.FontProperties()
    families, fonts = [*default.get_family()], {}
    missing = characters - characters_in(font_manager.findfont(default))
    for font in font_manager.fontManager.ttflist if missing else ():
        # The font of last resort draws a box for every character.
        last_resort = "lastresort" in font.name.replace(" ", "").lower()
        if (font.style, font.weight) == ("normal", 400) and not last_resort:
            fonts[font.name] = characters_in(font.fname)
    while best := max(fonts, key=lambda name: (len(fonts[name] & missing), name), default=None):
        if not fonts[best] & missing:
            break
        families.append(best)
        missing = missing - fonts[best]
    return families, missing


def with_code_points(text: str, missing: set[str]) -> str:
    """The text with a code point, such as U+4E2D, in place of each character in `missing`."""
    if not missing & {*text}:
        return text
    parts = (f" U+{ord(c):04X} " if c in missing else c for c in text)
    return " ".join("".join(parts).split())


def _longest_label(symbols: Sequence[str]) -> int:
    """Return the length of the longest symbol; 0 if all are short enough to fit side by side."""
    longest = max(map(len, symbols), default=0)
    return longest if longest > 2 else 0


def new_figure(width: float, height: float, **settings):
    """Return an empty figure of width x height inches; import Matplotlib, which loads slowly.

    The figure's texts may have any characters: savefig finds fonts for them, and draws code points
    for those without a font, such as bytes in a folder's name that are not UTF-8. A notebook shows
    the figure; `save(path)` saves it, unless the path is None, and returns it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class FigureOfAnyText(Figure):
        def savefig(self, *args, **kwargs):
            texts = [text for text in self.findobj(Text) if not text.get_text().isascii()]
            families, missing = fonts_for({*"".join(text.get_text() for text in texts)} - {"\n"})
            for text in texts:
                text.set(text=with_code_points(text.get_text(), missing), family=families)
            super().savefig(*args, **kwargs)

        def save(self, path: str | Path | None):
            if path is not None:
                if Path(path).suffix.lower() not in PICTURES:
                    rule = f"a picture's name ends in {', '.join(PICTURES)}"
                    raise InputError(rule, repr(str(path)), "Change the ending.")
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self.savefig(path, dpi=110)
            return self

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, dpi=110)
            return picture.getvalue()

    figure = FigureOfAnyText(figsize=(width, height), **settings)
    FigureCanvasAgg(figure)
    return figure


def limit_y_axis(axes) -> None:
    """Let the y axis go below 0 only for negative values; start at 0 if all values are equal."""
    low, high = axes.dataLim.intervaly
    if low == high >= 0:
        axes.set_ylim(0, max(1, 1.1 * high))
    elif low >= 0:
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))


def loss_curve(
    path: Path | str | None, metrics: Sequence[dict], measure: str, title: str
) -> "Figure":
    """Plot the entries of a metrics.jsonl by step: losses, `measure` and, below, the learning rate.

    Training loss and held-out loss share the left scale, which is logarithmic. The right scale is
    for the measure, unless that is the held-out loss. Values that no entry has are left out.
    """
    training = [line for line in metrics if "gradient_norm" in line]
    evaluations = [line for line in metrics if "gradient_norm" not in line]
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    figure = new_figure(7.5, 5.2, layout="constrained")
    figure.suptitle(title, fontsize=13, parse_math=False)
    left, lower = figure.subplots(2, sharex=True, height_ratios=[4, 1])

    def draw(axes, lines: list[dict], name: str, color: str, label: str | None = None) -> list:
        """Plot `name` in the entries that have it; mark the points if there are only a few."""
        points = [(line["step"], line[name]) for line in lines if name in line]
        marker = "o" if len(points) < 15 else None
        style = dict(color=color, label=label, marker=marker, markersize=4, linewidth=1.6)
        return axes.plot(*zip(*points, strict=True), **style) if points else []

    curves = draw(left, training, "loss", "tab:blue", "training loss")
    curves += draw(left, evaluations, "held_out_loss", "tab:orange", "held-out loss")
    left.set(yscale="log", ylabel="loss")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    if measure != "held_out_loss" and any(measure in line for line in evaluations):
        right, name = left.twinx(), measure.replace("_", " ")
        curves += draw(right, evaluations, measure, "tab:green", name)
        limit_y_axis(right)
        right.set_ylabel(name, color="tab:green")
        right.tick_params(axis="y", colors="tab:green")
        right.spines["top"].set_visible(False)
    left.legend(handles=curves, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    draw(lower, training, "rate", "tab:gray")
    lower.set(xlabel="step", ylabel="learning\nrate")
    lower.set_ylim(bottom=0)
    lower.set_xlim(left=0)
    lower.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    lower.yaxis.set_major_formatter("{x:g}")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    for axes in (left, lower):
        axes.grid(alpha=0.25)
        axes.spines["top"].set_visible(False)
    figure.align_ylabels([left, lower])
    return figure.save(path)
