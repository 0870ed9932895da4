"""Attention weights as the forward pass had them, and pictures that are pictures."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from numformer.data.batching import PairBatch
from numformer.layer import inference, mode
from numformer.layers.attention import ScaledDotProductAttention
from numformer.models import Config, Transformer
from numformer.plots import AttentionMaps, attention_maps, cross_attention_weights, loss_curve

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


def test_weights_are_distributions_over_the_real_source(model):
    weights = cross_attention_weights(model, *IDS)
    assert weights.shape == (LAYERS, 3, HEADS, 5, 4)
    assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    padding = BATCH.source == 0
    assert not weights.swapaxes(0, 1)[padding.nonzero()[0], ..., padding.nonzero()[1]].any()
    assert (weights.swapaxes(0, 1)[0] > 0).all()


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
    assert len(expected) == 2 * LAYERS
    assert_array_equal(found, expected[:LAYERS])


def test_reading_weights_leaves_nothing_saved_and_ignores_dropout(model):
    first = cross_attention_weights(model, *IDS)
    assert model.pending() == 0
    with inference():
        assert_array_equal(cross_attention_weights(model, *IDS), first)
    assert model.pending() == 0


def test_weights_are_those_of_this_batch_where_another_still_waits_for_its_backward(model):
    expected = cross_attention_weights(model, *IDS)
    with mode(training=False):
        model.forward(BATCH.source[::-1], BATCH.target_in[::-1])
    assert_array_equal(cross_attention_weights(model, *IDS), expected)


def maps(weights, looks_at, reads, kind="decoder cross_attention") -> AttentionMaps:
    return AttentionMaps(kind, weights, reads, looks_at)


def test_attention_maps_grow_with_layers_heads_and_kinds(tmp_path):
    path, sizes = tmp_path / "attention.png", []
    for layers, heads, kinds in ((1, 1, 1), (1, 3, 1), (2, 3, 1), (1, 3, 2)):
        weights = np.full((layers, heads, 4, 3), 1 / 3)
        each = maps(weights, ["a", "b", "end"], ["ɑ̃", "b", "ʁ", "end"])
        attention_maps(path, kinds * [each], "a b")
        sizes.append(size_of_png(path))
    (width, height), (wider, same), *two_rows = sizes
    assert wider > width > 200 and same == height > 200
    (same_width, taller), (as_wide, tallest) = two_rows  # kinds are further apart than layers
    assert same_width == as_wide == wider and tallest > taller > height


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
    texts = [[label.get_text() for label in axis.get_ticklabels()] for axis in
             (alone.xaxis, alone.yaxis)]  # fmt: skip
    assert texts == [["c", "␣"], ["e", "f"]] and alone.get_xlabel() == "looks at"
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


def test_more_maps_than_a_picture_can_hold_are_left_out(tmp_path):
    """Matplotlib refuses more than 2^16 pixels."""
    attention_maps(tmp_path / "maps.png", [maps(np.ones((1, 300, 1, 1)), ["a"], ["a"])], "many")
    width, height = size_of_png(tmp_path / "maps.png")
    assert 10 * height < width < 2**13


def test_symbols_are_drawn_as_they_are_and_not_read_as_formulas(tmp_path):
    symbols = maps(np.ones((1, 1, 1, 1)), ["$^$"], ["$\\$"])
    attention_maps(tmp_path / "maps.png", [symbols], "$x^$")
    assert size_of_png(tmp_path / "maps.png")


def test_loss_curve_draws_a_run(tmp_path):
    training = [dict(step=s, loss=1 / s, rate=0.1, gradient_norm=1.0) for s in (2, 4, 5)]
    measured = [dict(step=s, exact_match=s / 5) for s in (4, 5)]
    loss_curve(tmp_path / "loss.png", training + measured, "exact_match")
    width, height = size_of_png(tmp_path / "loss.png")
    assert width > height > 200


def test_pictures_of_one_step(tmp_path):
    lines = [dict(step=1, loss=2.0, rate=0.1, gradient_norm=1.0), dict(step=1, error=3.0)]
    loss_curve(tmp_path / "loss.png", lines, "error")
    nothing = maps(np.ones((1, 1, 1, 1)), ["end"], ["end"])
    attention_maps(tmp_path / "attention.png", [nothing], "nothing")
    assert {path.name for path in tmp_path.iterdir()} == {"loss.png", "attention.png"}


def test_loss_curve_shows_losses_on_the_left_and_the_measure_on_the_right(drawn):
    """Each with its name in its colour; the loss on a logarithmic scale, the measure not."""
    lines = [dict(step=3, loss=2.0, rate=0.1, gradient_norm=1.0), dict(step=4, rate_of=0.5, loss=9)]
    left, right = drawn(loss_curve, lines, "rate_of").axes
    sides = [
        (left, "left", [3, 2.0], "training loss", "tab:blue", "log"),
        (right, "right", [4, 0.5], "rate_of (held-out data)", "tab:orange", "linear"),
    ]
    for axes, side, point, name, color, scale in sides:
        (line,) = axes.lines
        assert line.get_xydata().tolist() == [point] and line.get_color() == color
        assert (axes.get_ylabel(), axes.yaxis.label.get_color()) == (name, color)
        assert axes.yaxis.get_label_position() == side and axes.get_yscale() == scale
    assert left.get_xlabel() == "step" and left.get_xscale() == "linear"
