"""The average of the latest checkpoints: what it is, what it leaves alone, and that it goes on."""

import contextlib
import multiprocessing

import numpy as np
import pytest
from numpy.testing import assert_allclose

from numformer.layer import inference
from numformer.runs import load_model
from numformer.runs.checkpoints import save_checkpoint
from numformer.training import average
from numformer.training.trainer import Trainer
from tests.equal_runs import assert_same_run, assert_same_weights, files, last, logged
from tests.training.tiny_runs import MEASURES, Copying, HoldingOut, interrupt, recipe, run, tiny


def states(count: int, dtype=np.float32) -> list[dict]:
    rng = np.random.default_rng(1)
    shapes = {"a": (3, 4), "b": (2,)}
    return [{n: rng.normal(size=s).astype(dtype) for n, s in shapes.items()} for _ in range(count)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_average_is_the_mean_of_each_parameter_in_its_own_dtype(dtype):
    """That of equal weights is these bit for bit: a sum in float32 would round."""
    snapshots = states(3, dtype)
    found = average(snapshots)
    for name, array in found.items():
        assert array.dtype == dtype
        assert_allclose(array, np.mean([state[name] for state in snapshots], axis=0), rtol=1e-6)
    for state, before in zip(snapshots, states(3, dtype), strict=True):
        assert_same_weights(state, before)
    assert_same_weights(average(states(1) * 7), states(1)[0])


def test_the_weights_of_different_models_are_refused(complaint):
    a, b = states(2)
    for snapshots, text in [
        ([], "received none"),
        ([a, b | {"c": a["a"]}], "received another c"),
        ([a, {"a": b["a"]}], "received another b"),
        ([a, b, b | {"a": b["a"][:1]}], "received another a"),
    ]:
        assert text in complaint(average, snapshots)


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 2), (9, 1)])
def test_what_is_evaluated_saved_and_used_is_the_mean(tmp_path, count, parts):
    """The steps and their weights are those of a run that averages nothing, bit for bit."""
    plain, task = Copying(MEASURES), HoldingOut(MEASURES)
    run(tmp_path / "plain", steps=14, task=plain, parts=parts)
    model, best = run(tmp_path / "run", steps=14, task=task, parts=parts, average=count)
    raw = plain.weights_evaluated
    means = [average(raw[max(0, n - count) : n]) for n in (1, 2, 3)]
    for found, expected in zip(task.weights_evaluated, means, strict=True):
        assert_same_weights(found, expected)
    kept = 1 if count == 1 else 2
    assert best["step"] == [5, 10, 14][kept]
    assert_same_weights(model.state_dict(), means[kept])
    assert_same_weights(load_model(tmp_path / "run/best.safetensors")[0].state_dict(), means[kept])
    tensors, _ = last(tmp_path / "run")
    assert (tensors.pop("recent", None) is not None) == (count > 1)
    assert_same_weights(tensors, last(tmp_path / "plain")[0])
    with inference():
        losses = [float(model.objective(0.1).forward(*held.inputs)) for held in task.held_out]
    held_out = np.average(losses, weights=[3, 8])
    assert logged(tmp_path / "run", "held_out_loss")[kept] == held_out


def test_a_run_that_ends_before_its_last_step_keeps_the_best_mean(tmp_path):
    task = Copying([0.5, 0.9, 0.1, 0.2])
    assert run(tmp_path, steps=50, task=task, average=2, patience=2)[1]["step"] == 10
    assert last(tmp_path)[1]["step"] == 20


@pytest.mark.parametrize(("steps", "parts"), [((10,), 2), ((4, 13), 1)])
def test_a_run_that_averages_is_resumed_bit_for_bit(tmp_path, steps, parts):
    settings = dict(steps=14, parts=parts, average=2)
    run(tmp_path / "straight", task=Copying(MEASURES), **settings)
    folder, measures = tmp_path / "resumed", iter(MEASURES)
    for step in steps:
        interrupt(folder, step, measures, resume=step != steps[0], **settings)
    run(folder, task=Copying(measures), resume=True, **settings)
    assert_same_run(folder, tmp_path / "straight")
    assert not multiprocessing.active_children()


def test_an_evaluation_that_fails_leaves_the_weights_that_were_trained(tmp_path):
    task, model = Copying(MEASURES), tiny()
    trainer = Trainer(model, task, tmp_path, 4, recipe(average=2))
    for step in (1, 2):
        trainer.advance()
        raw = model.state_dict()
        task.evaluate = Copying.evaluate.__get__(task) if step == 1 else lambda model: 1 / 0
        with pytest.raises(ZeroDivisionError) if step == 2 else contextlib.nullcontext():
            trainer.evaluate()
        assert_same_weights(model.state_dict(), raw)


def test_weights_to_average_that_cannot_be_are_refused(tmp_path, complaint):
    interrupt(tmp_path, 12, steps=14, average=2)
    tensors, metadata = last(tmp_path)
    recent = tensors.pop("recent")
    wrong = recent[0], recent[:0], recent[:, 1:], recent[[0, 1, 1]], recent.sum()
    for changed in [{}, *({"recent": array} for array in wrong)]:
        save_checkpoint(tmp_path / "last.safetensors", tensors | changed, metadata)
        before = files(tmp_path)
        text = complaint(run, tmp_path, resume=True, steps=14, average=2)
        assert "with an impossible entry, weights to average" in text and files(tmp_path) == before
