"""Attention weights as the forward pass had them, and pictures that are pictures."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from numformer.data.batching import PairBatch
from numformer.layer import inference, mode
from numformer.layers.attention import ScaledDotProductAttention
from numformer.models import Config, Transformer
from numformer.plots import (
    AttentionMaps,
    attention_maps,
    cross_attention_weights,
    fonts_for,
    loss_curve,
)

BATCH = PairBatch.of([([4, 5, 6], [7, 8]), ([4], [7, 8, 9, 10]), ([5, 5], [])])
IDS = BATCH.source, BATCH.target_in
LAYERS, HEADS = 3, 2


@pytest.fixture
def model():
    config = Config.base(11, d_model=8, d_ff=12, heads=HEADS, layers=LAYERS, p_drop=0.5)
    return Transformer(config, seed=1)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """`drawn(draw, *arguments)` is the Figure that a function draws and saves."""
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **b: (figures.append(self), savefig(self, *a, **b))
    )

    def figure_of(draw, *arguments) -> Figure:
        draw(tmp_path / "drawn.png", *arguments)
        return figures.pop()

    return figure_of


def size_of_png(path) -> tuple[int, int]:
    """Width and height, from the header of what must be a whole PNG file."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and content[-8:-4] == b"IEND"
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


def test_weights_are_those_of_cross_attention_in_the_order_of_the_layers(model, monkeypatch):
    """Self-attention of the decoder has the same shape where T = S."""
    expected, save = [], ScaledDotProductAttention.save
    of_layers = [layer.cross_attention.sublayer.attention for layer in model.decoder.layers]

    def watched(self, **values):
        if self in of_layers:
            expected.append(values["weights"].copy())
        save(self, **values)

    with inference():
        monkeypatch.setattr(ScaledDotProductAttention, "save", watched)
        model.forward(BATCH.source, BATCH.target_in)
    found = cross_attention_weights(model, *IDS)
    assert len(expected) == 2 * LAYERS and found.shape == (LAYERS, 3, HEADS, 5, 4)
    assert_array_equal(found, expected[:LAYERS])


def test_weights_are_those_of_this_batch_without_dropout_and_nothing_is_left_saved(model):
    first = cross_attention_weights(model, *IDS)
    assert model.pending() == 0
    with inference():
        assert_array_equal(cross_attention_weights(model, *IDS), first)
    with mode(training=False):  # another batch still waits for its backward
        model.forward(BATCH.source[::-1], BATCH.target_in[::-1])
    assert_array_equal(cross_attention_weights(model, *IDS), first)


def maps(weights, looks_at, reads, kind="decoder cross_attention") -> AttentionMaps:
    return AttentionMaps(kind, weights, reads, looks_at)


def test_attention_maps_grow_with_layers_heads_and_kinds(tmp_path):
    path, sizes = tmp_path / "attention.png", []
    for layers, heads, kinds in ((1, 1, 1), (2, 3, 1), (1, 3, 2)):
        weights = np.full((layers, heads, 1, 1), 1.0)
        attention_maps(path, kinds * [maps(weights, ["a"], ["ɑ̃"])], "a b")
        sizes.append(size_of_png(path))
    (width, height), (wider, taller), (as_wide, tallest) = sizes
    assert as_wide == wider > width > 200  # and kinds are further apart than layers
    assert tallest > taller > height > 200
    attention_maps(path, [maps(np.ones((1, 300, 1, 1)), ["a"], ["a"])], "many")
    width, height = size_of_png(path)
    assert 10 * height < width < 2**13  # matplotlib refuses more than 2^16 pixels


def test_long_labels_stay_in_the_picture(drawn):
    words = ["▁orangefarbenen" * 2, "▁ein"]
    figure = drawn(attention_maps, [maps(np.eye(2)[None, None], words, words)], "a title")
    axes = figure.axes[0]
    for label in (axes.yaxis.label, *axes.get_yticklabels(), *axes.get_xticklabels()):
        extent = label.get_window_extent()
        assert min(extent.x0, extent.y0) >= 0 and extent.x1 <= figure.bbox.x1


def texts_of(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.filterwarnings("error")
def test_what_no_font_draws_is_shown_by_code_points_told_once(drawn):
    """U+24B6 is in a font that comes with matplotlib, U+FFFFF is in none but the last resort's."""
    asked, fonts = {*"aⒶ\U000fffff"}, fonts_for({*"aⒶ"})
    assert fonts_for({"a"})[0] == fonts[0][:1] and not fonts[1]
    assert len(fonts[0]) == 2 and fonts_for(asked) == (fonts[0], {"\U000fffff"})
    labels = ["Ⓐ", "a\U000fffff\U000ffffe", "$\\$", "\n"]
    symbols = maps(np.ones((1, 2, 4, 4)), labels, labels)
    with pytest.warns(
        UserWarning, match=r"no font of this machine draws '\\U000ffffe' '\\U000f"
    ) as told:
        axes = drawn(attention_maps, [symbols], "\U000fffff is  $x^$").axes[0]
    assert len(told) == 1 and told[0].filename == __file__
    assert texts_of(axes.xaxis) == ["Ⓐ", "a U+FFFFF U+FFFFE", "$\\$", "\n"]
    assert axes.get_yticklabels()[0].get_fontfamily() == fonts[0]
    assert axes.figure.texts[0].get_text() == "U+FFFFF is $x^$"


def test_where_there_are_no_maps_none_are_drawn(tmp_path):
    attention_maps(tmp_path / "maps.png", [], "none")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("target", ["wxyz", "wxy"], ids=["T > S", "T = S"])
def test_attention_maps_are_labelled_and_shaded_on_one_scale(target, drawn):
    """Each row looks at the columns; 0 is white and 1 is dark."""
    shape = LAYERS, HEADS, len(target)
    weights = 0.9 * np.random.default_rng(0).dirichlet(np.ones(3), shape)
    self_attention = maps(np.eye(2)[None, None], ["c", " "], ["e", "f"], "decoder self_attention")
    figure = drawn(attention_maps, [maps(weights, [*"abc"], [*target]), self_attention], "a title")
    assert [text.get_text() for text in figure.texts] == ["a title"]
    *found, alone, scale = figure.axes
    assert scale.get_ylabel() == "attention weight" and scale.get_ylim() == (0, 1)
    assert (texts_of(alone.xaxis), texts_of(alone.yaxis)) == (["c", "␣"], ["e", "f"])
    assert alone.get_xlabel() == "looks at"
    assert alone.get_ylabel() == "decoder self-attention"
    for axes, (layer, head) in zip(found, np.ndindex(LAYERS, HEADS), strict=True):
        assert axes.get_title() == f"layer {layer + 1}, head {head + 1}"
        (image,) = axes.images
        assert_array_equal(image.get_array(), weights[layer, head])
        assert image.get_clim() == (0, 1) and image.origin == "upper"
        assert image.cmap(0.0)[:3] > image.cmap(1.0)[:3]
        assert_array_equal(axes.xaxis.get_ticklocs(), range(3 if layer == LAYERS - 1 else 0))
        assert_array_equal(axes.yaxis.get_ticklocs(), range(len(target) if head == 0 else 0))
        assert axes.get_ylabel() == "decoder cross-attention" * (head == 0)
        x, y, *_ = axes.get_position().bounds
        right, below = found[-1].get_position().bounds[:2]
        assert (x == right) == (head == HEADS - 1) and (y == below) == (layer == LAYERS - 1)


def test_words_stand_upright_below_maps_and_hide_neither_each_other_nor_a_map(drawn):
    weights, long, short = np.full((1, 1, 9, 9), 1 / 9), ["▁umbrellas"] * 9, [*"abcdefghi"]
    kinds = [maps(weights, short, long), maps(weights, long, short), maps(weights, long, long)]
    figure = drawn(attention_maps, kinds, "")
    boxes = []
    for axes in figure.axes[:3]:
        words = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not any(a.overlaps(b) for a, b in pairwise(words))
        boxes.append((axes.get_window_extent(), min(word.y0 for word in words)))
    for (_, lowest), (below, _) in pairwise(boxes):
        assert lowest > below.y1
    assert boxes[-1][1] > 0


TRAINING = [dict(step=s, loss=1 / s, rate=s / 9, gradient_norm=1.0, seconds=0.1) for s in (2, 4, 6)]
MEASURED = [dict(step=s, loss=9.0, right=s / 5, held_out_loss=2 / s) for s in (4, 6)]


def points(axes) -> dict[str, list]:
    """The points of each line of a plot, by its label."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_loss_curve_shows_losses_on_the_left_the_measure_on_the_right_and_the_rate_below(drawn):
    """A measure that has the name of a training line's entry stays what it is."""
    figure = drawn(loss_curve, TRAINING + MEASURED, "right", "a $title")
    left, below, right = figure.axes
    of_training = [[s, 1 / s] for s in (2, 4, 6)]
    of_held_out = [[s, 2 / s] for s in (4, 6)]
    assert points(left) == {"training loss": of_training, "held-out loss": of_held_out}
    assert points(right) == {"right": [[4, 0.8], [6, 1.2]]}
    assert [line.get_xydata().tolist() for line in below.lines] == [[[s, s / 9] for s in (2, 4, 6)]]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
    assert figure.get_suptitle() == "a $title" and below.get_xlabel() == "step"
    names = [left.get_ylabel(), right.get_ylabel(), below.get_ylabel()]
    assert names == ["loss", "right", "learning\nrate"]
    assert right.yaxis.get_label_position() == "right" and below.get_ylim()[0] == 0
    assert left.get_shared_x_axes().joined(left, below)
    legend = left.get_legend()
    labels = ["training loss", "held-out loss", "right"]
    assert [text.get_text() for text in legend.get_texts()] == labels
    colors = [handle.get_color() for handle in legend.legend_handles]
    assert colors == [line.get_color() for axes in (left, right) for line in axes.lines]
    assert len(set(colors)) == 3 and right.yaxis.label.get_color() == colors[2]


LEFT_OUT = {
    "the measure is the loss": (TRAINING + MEASURED, "held_out_loss", [2, 0]),
    "earlier versions": ([*TRAINING, dict(step=4, right=0.5)], "right", [1, 1]),
    "one line": (TRAINING[:1], "right", [1, 0]),
    "none": ([], "right", [0, 0]),
}


@pytest.mark.parametrize(("metrics", "measure", "lines"), LEFT_OUT.values(), ids=[*LEFT_OUT])
@pytest.mark.filterwarnings("error")
def test_loss_curve_leaves_out_what_there_is_not(metrics, measure, lines, drawn):
    left, _, *right = drawn(loss_curve, metrics, measure, "").axes
    losses = ["training loss", "held-out loss"]
    assert [*points(left)] == losses[: lines[0]]
    assert [*map(points, right)] == lines[1] * [{"right": [[4, 0.5]]}]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((2.4, 0.0004), ["0.001", "0.01", "0.1", "1"]), ((2.312, 2.301), ["2.304", "2.308"])],
    ids=["four decades", "a narrow band"],
)
def test_loss_curve_has_numbers_to_read_whatever_the_losses(losses, expected, drawn):
    """A logarithmic scale has none of its own between two powers of ten."""
    lines = [TRAINING[0] | dict(step=s, loss=loss) for s, loss in enumerate(losses)]
    labels = texts_of(drawn(loss_curve, lines, "", "").axes[0].yaxis)
    assert {*expected} <= {*labels} and len(labels) < 15


def test_a_loss_curve_is_a_picture(tmp_path):
    loss_curve(tmp_path / "loss.png", TRAINING[:1] + MEASURED[:1], "right", "one step")
    width, height = size_of_png(tmp_path / "loss.png")
    assert width > height > 200
