"""Mixed precision: products in half, and a loss scaled as far as its gradients allow."""

import numpy as np
import pytest
from cupy_stand_in import synchronisations
from numpy.testing import assert_allclose, assert_array_equal

from numformer.backend import array_module, to_host
from numformer.errors import BrokenNumbers
from numformer.half_precision import half_products
from numformer.layer import pack
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.loss_scale import LossScale
from numformer.optimization.optimizers import Adam
from numformer.paper import CrossEntropy
from numformer.randomness import dropout_stream
from numformer.runs.checkpoints import save_checkpoint
from numformer.training.trainer import Trainer
from tests.equal_runs import assert_same_run, last, logged
from tests.training.tiny_runs import Copying, Own, interrupt, recipe, run, tiny

HIGH = 2.0**30  # with this scale the gradients of a tiny model overflow


@pytest.fixture(params=["numpy", "stand_in", "with_kernels"])
def xp(request):
    """NumPy, the stand-in for CuPy, and the stand-in with kernels in place of formulas."""
    return np if request.param == "numpy" else request.getfixturevalue(request.param)


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """`begin(scale, parts)`: a Trainer in mixed precision that begins with a scale."""
    trainers = []

    def build(
        scale=LossScale.FIRST,
        parts=1,
        model=None,
        interval=LossScale.GROWTH_INTERVAL,
        xp=np,
        **changes,
    ):
        monkeypatch.setattr(LossScale, "FIRST", scale)
        monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", interval)
        settings = recipe(precision="mixed", **changes), 3, xp, parts
        trainers.append(Trainer(model or tiny(), Copying(), tmp_path, 99, *settings))
        return trainers[-1]

    yield build
    for trainer in trainers:
        trainer.executor.close()


def vectors(trainer: Trainer) -> list:
    parameters = [trainer.parameters.data, *trainer.optimizer.state.values()]
    return [to_host(vector).copy() for vector in parameters]


@pytest.mark.parametrize("scale", [LossScale.FIRST, HIGH])
def test_steps_are_those_of_a_plain_loop_that_scales_and_skips(begin, scale):
    """The gradient is divided by the scale before it is clipped; Adam counts every step."""
    trainer, model, batches, lines = begin(scale, clip_norm=0.4), tiny(), Copying(), []
    flat, loss, first = pack(model), CrossEntropy(0.1), scale
    optimizer = Adam(flat)
    with np.errstate(invalid="ignore"):
        for step in range(1, 25):
            batch = batches.batch(step)
            dropout_stream.reseed(3, step)
            model.zero_grad()
            with half_products():
                logits = model.forward(batch.source, batch.target_in, skip_padding=True)
                mean = loss.forward(logits, batch.target_out[batch.target_in != 0])
                model.backward(loss.backward(scale))
            flat.grad /= np.float32(scale)
            norm = clip_global_norm(flat.grad, 0.4)
            lines.append({"step": step, "loss": mean, "rate": trainer.rate(step)})
            lines[-1] |= {"gradient_norm": norm, "loss_scale": scale}
            if np.isfinite(norm):
                optimizer.step(trainer.rate(step))
            else:
                optimizer.steps, scale = step, scale / 2
                lines[-1]["gradient_norm"] = 0
            trainer.advance()
            assert trainer.latest() == lines[-1]
    assert_array_equal(trainer.parameters.data, flat.data)
    assert (scale < first) == (first == HIGH) and norm > 0.2


def test_a_step_that_overflows_changes_nothing_but_the_scale(begin, xp):
    """Also not Adam's means; and no other step waits for a GPU."""
    trainer, scale, skipped, finite = begin(HIGH / 64, xp=xp), HIGH / 64, 0, 0
    before = vectors(trainer)
    for step in range(1, 15):
        with synchronisations() as waits, np.errstate(invalid="ignore", over="ignore"):
            trainer.advance()
        assert not waits and trainer.step == step
        norm, after = trainer.latest()["gradient_norm"], vectors(trainer)
        same = [(a == b).all() for a, b in zip(before, after, strict=True)]
        assert same == [norm == 0] * 3
        scale, skipped, before = scale / (2 if all(same) else 1), skipped + all(same), after
        finite = 0 if all(same) else finite + 1
        assert trainer.loss_scale.state().tolist() == [scale, finite]
    assert 3 < skipped < 10 and all(np.isfinite(after).all() for after in vectors(trainer))


def test_a_saved_scale_goes_on_where_arrays_are(begin, xp):
    saved, goes_on = (begin(HIGH, xp=xp) for _ in range(2))
    saved.files.begin()
    with np.errstate(invalid="ignore", over="ignore"):
        for _ in range(3):
            saved.advance()
        saved.save()
        goes_on.resume()
        assert array_module(goes_on.loss_scale.scale) is xp
        for trainer in (saved, goes_on):
            trainer.advance()
            assert trainer.latest()["loss_scale"] == HIGH / 8
    for found, expected in zip(vectors(goes_on), vectors(saved), strict=True):
        assert_array_equal(found, expected)


def test_the_scale_grows_after_good_steps_in_turn(xp):
    scale, history = LossScale(xp), []
    fine, infinite = xp.asarray(np.float32([1, np.inf]))
    scale.finite_steps = fine * 1998
    for norm in (fine, fine, fine, infinite, infinite, fine):
        with synchronisations() as waits:
            skipped = scale.skips(fine, norm)
        assert not waits
        history.append((bool(skipped), *scale.state().tolist()))
    first = 2.0**16
    expected = [(False, first, 1999), (False, 2 * first, 0), (False, 2 * first, 1)]
    expected += [(True, first, 0), (True, first / 2, 0), (False, first / 2, 1)]
    assert history == expected
    for begun, ended in (([2, 7], [1, 0]), ([LossScale.MAX, 1999], [LossScale.MAX, 0])):
        assert LossScale.is_valid(np.float32(begun)) and LossScale.is_valid(np.float32(ended))
        scale.load(xp.asarray(np.float32(begun)))
        scale.skips(fine, infinite if begun[0] == 2 else fine)
        assert type(scale.state()) is np.ndarray and scale.state().tolist() == ended
    assert scale.scale.dtype == scale.finite_steps.dtype == np.float32
    assert array_module(LossScale(xp).scale) is xp


@pytest.mark.parametrize(("scale", "loss"), [(1.0, 1.0), (2.0**16, np.nan), (2.0**16, np.inf)])
def test_nothing_is_skipped_where_the_scale_is_not_the_reason(scale, loss, xp):
    numbers = LossScale(xp)
    numbers.load(xp.asarray(np.float32([scale, 3])))
    loss, norm = xp.asarray(np.float32([loss, np.nan]))
    assert not numbers.skips(loss, norm)
    assert numbers.state()[0] == scale


def test_small_gradients_survive_by_the_scale_alone(begin):
    """Of a loss times 1e-8, the gradient is that of float32; without a scale most of it is lost."""

    class Small(Own):
        factor = 1e-8

    scaled, alone = begin(model=tiny(Small)), begin(1.0, model=tiny(Small))
    exact = Trainer(tiny(Small), Copying(), scaled.files.folder, 99, recipe(), 3)
    found = []
    for trainer in (exact, scaled, alone):
        scale = trainer.loss_scale.scale if trainer.loss_scale else None
        trainer.executor.gradient(1, Copying().batch(1), scale)
        found.append(trainer.parameters.grad * 1e8)
    exact, scaled, alone = found
    size = np.linalg.norm(exact)
    assert np.linalg.norm(scaled - exact) < 0.01 * size < 0.5 * size < np.linalg.norm(alone - exact)


def test_it_learns_as_well_as_float32(tmp_path):
    settings = dict(steps=100, log_every=20, evaluate_every=100, factor=0.2, d_model=16)
    for precision in ("float32", "mixed"):
        run(tmp_path / precision, **settings, precision=precision)
    exact, mixed = (logged(tmp_path / precision, "loss") for precision in ("float32", "mixed"))
    assert exact != mixed and mixed[-1] < 0.7 * mixed[0]
    assert_allclose(mixed, exact, rtol=0.01)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_resumed_run_goes_on_with_its_scale_bit_for_bit(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(LossScale, "FIRST", HIGH / 64)
    monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", 3)
    settings = dict(steps=16, precision="mixed", parts=parts, log_every=1)
    run(tmp_path / "straight", **settings)
    for step in (4, 11):
        interrupt(tmp_path / "run", step, resume=step > 4, **settings)
    monkeypatch.setattr(LossScale, "FIRST", 2.0**16)
    run(tmp_path / "run", **settings, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    scales = logged(tmp_path / "run", "loss_scale")
    assert scales[0] == HIGH / 64 > min(scales) and np.diff(scales).max() > 0


def test_all_parts_skip_a_step_in_which_one_overflows(begin):
    """Side by side and in turn the same steps, of which the gradient of the sum decides."""
    side_by_side, in_turn = (begin(HIGH / 64, parts=2, interval=4) for _ in range(2))
    side_by_side.executor.start()
    with np.errstate(invalid="ignore"):
        for _ in range(16):
            side_by_side.advance()
            in_turn.advance()
            assert side_by_side.latest() == in_turn.latest()
    for found, expected in zip(vectors(side_by_side), vectors(in_turn), strict=True):
        assert_array_equal(found, expected)


def test_evaluations_are_made_in_float32(begin):
    trainer = begin()
    trainer.task.held_out = [batch := Copying().batch(5)]
    trainer.task.evaluate = lambda model: {"measure": model.forward(*batch.inputs[:2]).sum()}
    exact = Trainer(tiny(), trainer.task, trainer.files.folder, 99, recipe())
    assert trainer.evaluate() == (measured := exact.evaluate())
    with half_products():
        assert exact.evaluate() != measured


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_numbers_that_break_for_other_reasons_end_the_run(begin, monkeypatch, scale, xp):
    """On a GPU when they are read; no step before that moves anything."""
    trainer = begin(scale, xp=xp)
    trainer.advance()
    before, broken = vectors(trainer), "backward" if scale == 1 else "forward"
    right = getattr(CrossEntropy, broken)
    words = "^step 2: loss .* a --clip-norm, or with --precision float32.$"
    with pytest.raises(BrokenNumbers, match=words), np.errstate(invalid="ignore"):
        with monkeypatch.context() as patch:
            patch.setattr(CrossEntropy, broken, lambda *given: np.inf * right(*given))
            trainer.advance()
        trainer.advance()
        trainer.read()
    for found, expected in zip(vectors(trainer), before, strict=True):
        assert_array_equal(found, expected)


def test_a_weight_that_is_infinite_only_in_half_precision_is_found_in_the_replay(begin):
    trainer, name = begin(), "decoder.layers.0.feed_forward.sublayer.outer"
    trainer.model.named_parameters()[f"{name}.weight"].data[...] = 1e5
    place = rf"{name} \(Linear\), in the output of its forward"
    with np.errstate(all="ignore"), pytest.raises(BrokenNumbers, match=place):
        trainer.advance()


def test_a_state_that_no_run_can_have_is_refused(tmp_path, complaint):
    interrupt(tmp_path, 2, precision="mixed")
    tensors, metadata = last(tmp_path)
    assert tensors["loss_scale"].tolist() == [2.0**16, 2]
    wrong = [
        [0.5, 2],
        [3, 2],
        [2.0**33, 2],
        [2, 0.5],
        [2, -1],
        [2, LossScale.GROWTH_INTERVAL],
        [2],
        None,
    ]
    for state in wrong:
        others = {name: array for name, array in tensors.items() if name != "loss_scale"}
        if state:
            others["loss_scale"] = np.array(state, np.float32)
        save_checkpoint(tmp_path / "last.safetensors", others, metadata)
        text = complaint(run, tmp_path, resume=True, precision="mixed")
        assert "with an impossible entry, a loss scale" in text
    save_checkpoint(tmp_path / "last.safetensors", tensors, metadata)
    assert "received precision 'float32' instead" in complaint(run, tmp_path, resume=True)
    model, _ = run(tmp_path, resume=True, precision="mixed")
    assert {array.dtype for array in model.state_dict().values()} == {np.dtype(np.float32)}
