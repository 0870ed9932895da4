"""NaN and infinities: training ends before they touch a weight, and names where they began."""

import os

import numpy as np
import pytest

from numformer.errors import BrokenNumbers
from numformer.execution.in_turn import InTurn
from numformer.layer import training
from numformer.optimization.optimizers import Optimizer
from numformer.paper import ReLU
from numformer.paper.cross_entropy import CrossEntropy
from numformer.training.broken_numbers import first_broken
from numformer.training.loop import Schedule, train
from tests.equal_runs import assert_same_weights, last, logged
from tests.training.tiny_runs import Copying, HoldingOut, Own, recipe, run, send_ctrl_c, tiny


def broken(model, folder, task=None, parts=1, **changes) -> str:
    settings = Schedule(5, evaluate_every=1), recipe(**changes)
    with pytest.raises(BrokenNumbers) as caught:
        train(model, task or Copying(), folder, *settings, parts=parts)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def spoil(layer, change):
    """`change` gets what the layer's backward returns, and may write into it."""
    backward = layer.backward

    def spoiled(dy):
        returned = backward(dy)
        change(returned)
        return returned

    layer.backward = spoiled


LOSS = "loss (CrossEntropy), in the output of its forward"
GRADIENT = "the model (Transformer), in the gradient of source.embedding.weight"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("place", "value", "clip"), [(LOSS, np.nan, None), (LOSS, np.inf, 1.0), (GRADIENT, np.nan, 1.0)]
)
def test_broken_numbers_never_touch_the_weights(tmp_path, monkeypatch, place, value, clip):
    model, before, calls, forward = tiny(), {}, [], CrossEntropy.forward

    def broken_loss(self, *inputs):
        calls.append(forward(self, *inputs))
        return np.float32(value) if place == LOSS and len(calls) > 1 else calls[-1]

    def break_gradient(dx):
        if place == GRADIENT and len(calls) > 1:
            model.output.weight.grad[3, 1] = value

    monkeypatch.setattr(CrossEntropy, "forward", broken_loss)
    spoil(model, break_gradient)
    task = Copying(at={2: lambda: before.update(model.state_dict())})
    text = broken(model, tmp_path, task, clip_norm=clip)
    assert text.endswith("with a lower rate (--rate or --factor) or a --clip-norm.")
    assert text.startswith("step 2: loss ") and f"infinity first appears in {place}. " in text
    assert_same_weights(model.state_dict(), before)
    assert model.pending() == 0


NORM = "encoder.layers.0.feed_forward.norm"
NETWORK = "encoder.layers.0.feed_forward.sublayer"
ATTENTION = "decoder.layers.0.self_attention.sublayer.attention"
BREAKS = {
    f"the parameter {NORM}.gamma, before the step": lambda norm: norm.gamma.data.fill(np.nan),
    f"{NORM} (LayerNorm), in the output of its forward": lambda norm: norm.gamma.data.fill(3e38),
    f"{NORM} (LayerNorm), in the gradient of {NORM}.beta": (
        lambda norm: spoil(norm, lambda dx: norm.beta.grad.fill(-np.inf))
    ),
    f"the norm alone, because of the size of the gradient of {NORM}.beta": (  # 1e20^2 is no float32
        lambda norm: spoil(norm, lambda dx: norm.beta.grad.fill(-1e20))
    ),
    f"{NETWORK}.outer (Linear), in the output of its forward": (
        lambda part: [p.data.fill(1e25) for p in part.named_parameters().values()]
    ),
    f"{ATTENTION} (ScaledDotProductAttention), in what its backward returns": (
        lambda part: spoil(part, lambda returned: returned[1].fill(np.nan))
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("place", BREAKS)
def test_the_first_that_broke_is_named(tmp_path, place):
    model = tiny()
    layers = model.named_layers()
    BREAKS[place](layers[next(name for name in (NORM, NETWORK, ATTENTION) if name in place)])
    watched = {name: set(vars(layer)) for name, layer in layers.items()}
    text = broken(model, tmp_path)
    assert f"NaN or infinity first appears in {place}. " in text
    fix = "No rate has been used yet: start again with a new model, or with other data."
    assert text.endswith(fix)
    for name, layer in layers.items():
        assert set(vars(layer)) - {"_saved"} == watched[name] - {"_saved"}


@pytest.mark.parametrize("index", [0, 1])
def test_broken_numbers_in_parts_are_named(tmp_path, monkeypatch, index):
    """The replay is in this process, whichever the numbers broke in."""
    model, now, compute = tiny(), [], InTurn.compute

    def compute_and_note(self, step, pieces, half):
        now[:] = [piece.number for piece in pieces]
        return compute(self, step, pieces, half)

    monkeypatch.setattr(InTurn, "compute", compute_and_note)
    outer = model.named_layers()[f"{NETWORK}.outer"]
    spoil(outer, lambda dx: dx.fill(np.nan) if now == [index] else None)
    text = broken(model, tmp_path, parts=2)
    assert text.startswith("step 1: ") and f"{NETWORK}.outer (Linear), in what its back" in text


def test_a_sum_that_broke_belongs_to_the_layer_around_it():
    """Two finite addends: the layer that gets their sum is given what is not finite already."""

    class Doubling(ReLU):
        def forward(self, x):
            return self.inner.forward(x + x)

    layer, x = Doubling(), np.full(3, 3e38, np.float32)
    layer.inner = ReLU()
    with np.errstate(over="ignore"):
        place = first_broken(layer.named_layers(), {}, lambda: layer.forward(x))
    assert place == "the model (Doubling), in the output of its forward"
    assert first_broken(layer.named_layers(), {}, lambda: layer.forward(x / 4)) is None


def test_numbers_that_were_broken_before_a_layer_got_them_are_named_by_the_first_layer():
    """Whatever holds the arrays that a layer returns."""
    layer = ReLU()
    layer.inner = ReLU()
    layer.inner.forward, layer.forward = lambda x: [x, x], lambda x: layer.inner.forward(x)
    place = first_broken(layer.named_layers(), {}, lambda: layer.forward(np.full(2, np.inf)))
    assert place == "inner (ReLU), in the output of its forward"


@pytest.mark.parametrize("evaluate_every", [1, 5])
def test_an_update_that_breaks_a_weight_is_never_saved(tmp_path, monkeypatch, evaluate_every):
    """Nor measured; and not saved either where Ctrl-C asks for it, or no `--resume` could go on."""
    step = Optimizer.step

    def broken_step(self, rate):
        step(self, rate)
        if self.steps == 2:
            self.parameters.data[3] = np.inf

    monkeypatch.setattr(Optimizer, "step", broken_step)
    with pytest.raises(BrokenNumbers, match=r"its update made source\.embedding"):
        run(tmp_path, 7, 3, evaluate_every, task=Copying(at={2: send_ctrl_c}))
    saved = [name for name in os.listdir(tmp_path) if name != "metrics.jsonl"]
    assert len(logged(tmp_path, "measure")) == len(saved) // 2 == (evaluate_every == 1)


def test_a_measure_or_a_held_out_loss_that_is_no_number_stops_training(tmp_path, monkeypatch):
    """As the best it would never be replaced. A loss within an objective of one's own is named."""
    text = broken(tiny(), tmp_path / "a", Copying([1.0, -np.inf]))
    assert "step 2: the evaluation's measure is -inf" in text
    assert last(tmp_path / "a")[1]["best"]["step"] == 1
    forward, breaks = CrossEntropy.forward, [False]

    def broken_loss(*inputs):
        return forward(*inputs) * np.float32(np.nan if training() in breaks else 1)

    monkeypatch.setattr(CrossEntropy, "forward", broken_loss)
    text = broken(tiny(), tmp_path / "b", HoldingOut())
    assert "step 1: the evaluation's held_out_loss is nan" in text
    breaks.append(True)
    text = broken(tiny(Own), tmp_path / "c")
    assert f"whole.{LOSS}" in text
