"""Attention weights as the forward pass had them, and pictures that are pictures."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from numpy.testing import assert_array_equal

from numformer.backend import to_host
from numformer.data.batching import PairBatch
from numformer.layer import inference, mode, pack
from numformer.models import Config, Transformer
from numformer.paper.attention import ScaledDotProductAttention
from numformer.plots import (
    AttentionMaps,
    attention_maps,
    cross_attention_weights,
    fonts_for,
    loss_curve,
)
from toy_tasks.reports.charts import draw_chart

BATCH = PairBatch.of([([4, 5, 6], [7, 8]), ([4], [7, 8, 9, 10]), ([5, 5], [])])
IDS = BATCH.source, BATCH.target_in
LAYERS, HEADS = 3, 2


@pytest.fixture
def drawn(tmp_path):
    """`drawn(draw, *arguments)` returns the Figure that `draw` has saved as a picture."""
    path = tmp_path / "new" / "drawn.png"

    def figure_of(draw, *arguments) -> Figure:
        figure = draw(path, *arguments)
        assert imread(path).std() > 0
        return figure

    return figure_of


def test_a_notebook_shows_the_saved_picture(tmp_path):
    path = tmp_path / "drawn.png"
    figure = draw_chart(path, "title", {"part": {"curve": [([1, 2], [3, 4])]}}, "x", "y")
    assert figure._repr_png_() == path.read_bytes()


def test_weights_are_those_of_cross_attention_in_the_order_of_the_layers(monkeypatch, xp):
    """Without dropout, of this batch though another still waits for its backward."""
    config = Config.base(11, d_model=8, d_ff=12, heads=HEADS, layers=LAYERS, p_drop=0.5)
    model, expected, save = Transformer(config, seed=1), [], ScaledDotProductAttention.save
    pack(model, xp=xp)
    of_layers = [layer.cross_attention.sublayer.attention for layer in model.decoder.layers]

    def watched(self, **values):
        if self in of_layers:
            expected.append(to_host(values["weights"]).copy())
        save(self, **values)

    with inference(), monkeypatch.context() as patches:
        patches.setattr(ScaledDotProductAttention, "save", watched)
        model.forward(*IDS)
    found = cross_attention_weights(model, *IDS)
    assert found.shape == (LAYERS, 3, HEADS, 5, 4) and model.pending() == 0
    assert_array_equal(found, expected)
    with mode(training=False):
        model.forward(*(ids[::-1] for ids in IDS))
    assert_array_equal(cross_attention_weights(model, *IDS), found)
    checkpointed = Transformer(replace(config, checkpointing=True), seed=1)
    pack(checkpointed, xp=xp)
    with inference():  # which saves nothing, but for pictures
        assert_array_equal(cross_attention_weights(checkpointed, *IDS), found)
    assert checkpointed.pending() == 0 and "forward" not in vars(checkpointed.decoder.layers[0])


def maps(weights, keys, queries, kind="decoder cross_attention") -> AttentionMaps:
    return AttentionMaps(kind, weights, queries, keys)


def texts_of(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_only_the_first_of_many_heads_and_layers_are_drawn_and_no_maps_draw_nothing(tmp_path):
    attention_maps(tmp_path / "none.png", [], "none")
    assert not [*tmp_path.iterdir()]
    for layers, heads, places in ((20, 1, 16), (1, 300, 16)):
        weights = np.ones((layers, heads, 1, 1))
        assert len(attention_maps(None, [maps(weights, ["a"], ["a"])], "").axes) == places + 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["run-\udcff", "run \U000fffff", "run Ⓐ"])
def test_a_title_and_a_legend_may_have_any_characters(name, drawn):
    """Such as bytes that are not UTF-8 in the name of a folder."""
    written = name.replace("-\udcff", "- U+DCFF").replace("\U000fffff", "U+FFFFF")
    assert drawn(loss_curve, TRAINING, "right", name).get_suptitle() == written
    panels = {name: {name: [((1, 2), (3, 4))]}}
    figure = drawn(draw_chart, name, panels, name, name)
    assert figure.axes[0].get_xlabel() == figure.axes[0].get_title() == written
    assert figure.legends[0].get_texts()[0].get_text() == written


@pytest.mark.filterwarnings("error")
def test_what_no_font_draws_is_shown_by_code_points_told_once(drawn):
    """U+24B6 is in a font that comes with matplotlib, U+FFFFF is in none but the last resort's."""
    fonts, lacking = fonts_for({*"aⒶ\U000fffff"})
    assert fonts_for({"a"}) == (fonts[:1], set())
    assert len(fonts) == 2 and lacking == {"\U000fffff"}
    labels = ["Ⓐ", "a\U000fffff\U000ffffe", "$\\$"]
    with pytest.warns(
        UserWarning, match=r"no font on this machine draws '\\U000ffffe' '"
    ) as records:
        symbols = maps(np.ones((1, 2, 3, 3)), labels, labels)
        axes = drawn(attention_maps, [symbols], "\U000fffff is  $x^$").axes[0]
    assert len(records) == 1 and records[0].filename == __file__
    assert texts_of(axes.xaxis) == ["Ⓐ", "a U+FFFFF U+FFFFE", "$\\$"]
    assert axes.get_yticklabels()[0].get_fontfamily() == fonts
    assert axes.figure.texts[0].get_text() == "U+FFFFF is $x^$"


def test_attention_maps_are_labelled_and_shaded_on_one_scale(drawn):
    """Each row looks at the columns; 0 is white and 1 is dark."""
    weights = 0.9 * np.random.default_rng(0).dirichlet(np.ones(3), (LAYERS, HEADS, 4))
    self_attention = maps(np.eye(2)[None, None], ["c", " "], ["e", "f"], "decoder self_attention")
    figure = drawn(attention_maps, [maps(weights, [*"abc"], [*"wxyz"]), self_attention], "a title")
    *found, alone, scale = figure.axes
    assert scale.get_ylabel() == "attention weight" and scale.get_ylim() == (0, 1)
    assert (texts_of(alone.xaxis), texts_of(alone.yaxis)) == (["c", "␣"], ["e", "f"])
    assert (alone.get_xlabel(), alone.get_ylabel()) == ("looks at", "decoder self-attention")
    for axes, (layer, head) in zip(found, np.ndindex(LAYERS, HEADS), strict=True):
        (image,) = axes.images
        assert axes.get_title() == f"layer {layer + 1}, head {head + 1}"
        assert_array_equal(image.get_array(), weights[layer, head])
        assert image.get_clim() == (0, 1) and image.cmap(0.0)[:3] > image.cmap(1.0)[:3]
        assert texts_of(axes.xaxis) == [*"abc"] * (layer == LAYERS - 1)
        assert texts_of(axes.yaxis) == [*"wxyz"] * (head == 0)
        x, y, *_ = axes.get_position().bounds
        right, below = found[-1].get_position().bounds[:2]
        assert (x == right) == (head == HEADS - 1) and (y == below) == (layer == LAYERS - 1)


def test_long_words_stay_in_the_picture_and_hide_neither_each_other_nor_a_map(drawn):
    weights, long, short = np.full((1, 1, 9, 9), 1 / 9), ["▁orangefarbenen"] * 9, [*"abcdefghi"]
    kinds = [maps(weights, long, short), maps(weights, long, long)]
    upper, lower = drawn(attention_maps, kinds, "").axes[:2]
    for axes, edge in ((upper, lower.get_window_extent().y1), (lower, 0)):
        words = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not any(a.overlaps(b) for a, b in pairwise(words))
        assert min(word.y0 for word in words) > edge
        assert min(label.get_window_extent().x0 for label in axes.get_yticklabels()) >= 0


TRAINING = [dict(step=s, loss=1 / s, rate=s / 9, gradient_norm=1.0, seconds=0.1) for s in (2, 4, 6)]
MEASURED = [dict(step=s, loss=9.0, right=s / 5, held_out_loss=2 / s) for s in (4, 6)]


def points(axes) -> dict[str, list]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_loss_curve_shows_losses_on_the_left_the_measure_on_the_right_and_the_rate_below(drawn):
    figure = drawn(loss_curve, TRAINING + MEASURED, "right", "a $title")
    left, below, right = figure.axes
    of_training, of_held_out = [[2, 1 / 2], [4, 1 / 4], [6, 1 / 6]], [[4, 2 / 4], [6, 2 / 6]]
    assert points(left) == {"training loss": of_training, "held-out loss": of_held_out}
    assert points(right) == {"right": [[4, 0.8], [6, 1.2]]}
    assert [*points(below).values()] == [[[s, s / 9] for s in (2, 4, 6)]]
    names = [(axes.get_ylabel(), axes.get_yscale()) for axes in figure.axes]
    assert names == [("loss", "log"), ("learning\nrate", "linear"), ("right", "linear")]
    assert figure.get_suptitle() == "a $title"
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["training loss", "held-out loss", "right"]


LEFT_OUT = [
    (TRAINING + MEASURED, "held_out_loss", [2, 0]),
    ([*TRAINING, dict(step=4, right=0.5)], "right", [1, 1]),  # of earlier versions
    ([], "right", [0, 0]),
]


@pytest.mark.parametrize(("metrics", "measure", "lines"), LEFT_OUT)
@pytest.mark.filterwarnings("error")
def test_loss_curve_leaves_out_missing_measures(metrics, measure, lines):
    left, _, *right = loss_curve(None, metrics, measure, "").axes
    assert [*points(left)] == ["training loss", "held-out loss"][: lines[0]]
    assert [*map(points, right)] == lines[1] * [{"right": [[4, 0.5]]}]


BOUNDS = [
    ([0.0, 0.0], lambda low, high: (low, high) == (0, 1)),
    ([4.0], lambda low, high: low == 0 and high == pytest.approx(4.4)),
    ([0.0, 0.5], lambda low, high: low == 0 and 0.5 < high < 0.6),
    ([0.9, 1.0], lambda low, high: 0.89 < low < 0.9 < 1 < high < 1.01),
    ([-0.5, 0.5], lambda low, high: -0.6 < low < -0.5),
    ([-1.0], lambda low, high: low < -1 < high < 0),
]


@pytest.mark.parametrize(("values", "fits"), BOUNDS)
def test_axes_begin_below_0_only_for_negative_values_and_at_0_for_a_single_value(values, fits):
    """A run with --quick measures a single number, usually 0."""
    measured = [dict(step=s, right=value) for s, value in enumerate(values, 20)]
    left, _, right = loss_curve(None, measured, "right", "").axes
    assert fits(*right.get_ylim()) and left.get_xlim()[0] == 0
    axes = draw_chart(None, "", {"": {"": [(range(len(values)), values)]}}, "", "").axes[0]
    assert fits(*axes.get_ylim())
