"""The average of the latest checkpoints: what it is, what it leaves alone, and that it goes on."""

import contextlib
import multiprocessing

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiny_runs import (
    MEASURES,
    Copying,
    HoldingOut,
    around_every_write,
    assert_goes_on_after_a_kill,
    assert_same_run,
    assert_same_weights,
    files,
    interrupt,
    last,
    logged,
    recipe,
    run,
    tiny,
)

from numformer.layer import inference
from numformer.training import average, load_model
from numformer.training.checkpoints import save_checkpoint
from numformer.training.trainer import Trainer


def states(count: int, dtype=np.float32) -> list[dict]:
    rng = np.random.default_rng(1)
    shapes = {"a": (3, 4), "b": (2,)}
    return [{n: rng.normal(size=s).astype(dtype) for n, s in shapes.items()} for _ in range(count)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_average_is_the_mean_of_each_parameter_in_its_own_dtype(dtype):
    """That of equal weights is these bit for bit: a sum in float32 would round."""
    given, before = states(3, dtype), states(3, dtype)
    found = average(given)
    assert found.keys() == given[0].keys()
    for name, array in found.items():
        assert array.dtype == dtype
        assert_allclose(array, np.mean([state[name] for state in given], axis=0), rtol=1e-6)
    for state, other in zip(given, before, strict=True):
        assert_same_weights(state, other)
    assert_same_weights(average(states(1) * 7), states(1)[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, b: [], "received none"),
        (lambda a, b: [a, b | {"c": a["a"]}], "received another c"),
        (lambda a, b: [a, {"a": b["a"]}], "received another b"),
        (lambda a, b: [a, b, b | {"a": b["a"][:1]}], "received another a"),
    ],
)
def test_the_weights_of_different_models_are_refused(change, said, complaint):
    text = complaint(average, change(*states(2)))
    assert "the same names and shapes" in text and said in text


# In training. A run of 14 steps evaluates at 5, 10 and 14; a mean at the end is kept, best or not.


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 2), (9, 1)])
def test_what_is_evaluated_saved_and_used_is_the_mean_at_the_latest_evaluations(
    tmp_path, count, parts
):
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
    assert ("recent" in tensors) == (count > 1)
    tensors.pop("recent", None)
    assert_same_weights(tensors, last(tmp_path / "plain")[0])
    assert logged(tmp_path / "run", "loss") == logged(tmp_path / "plain", "loss")
    with inference():
        losses = [float(model.objective(0.1).forward(*held.inputs)) for held in task.held_out]
    held_out = np.average(losses, weights=[3, 8])
    assert logged(tmp_path / "run", "held_out_loss")[kept] == held_out


def test_a_run_that_ends_before_its_last_step_keeps_the_best_mean(tmp_path):
    task = Copying([0.5, 0.9, 0.1, 0.2])
    _, best = run(tmp_path, steps=50, task=task, average=2, patience=2)
    assert best["step"] == 10 and logged(tmp_path, "measure") == [0.5, 0.9, 0.1, 0.2]


@pytest.mark.parametrize(("steps", "parts"), [((5,), 1), ((10,), 2), ((4, 13), 1)])
def test_a_run_that_averages_is_resumed_bit_for_bit(tmp_path, steps, parts):
    how = dict(steps=14, parts=parts, average=2)
    expected, _ = run(tmp_path / "straight", task=Copying(MEASURES), **how)
    folder, measures = tmp_path / "resumed", iter(MEASURES)
    for step in steps:
        interrupt(folder, step, measures, resume=step != steps[0], **how)
    model, _ = run(folder, task=Copying(measures), resume=True, **how)
    assert_same_run(folder, tmp_path / "straight")
    assert_same_weights(model.state_dict(), expected.state_dict())
    assert not multiprocessing.active_children()


@around_every_write
def test_a_run_that_averages_and_is_killed_around_a_write_goes_on(tmp_path, name, after, number):
    """Where best.safetensors is still to be written, from last.safetensors alone."""
    run(tmp_path / "straight", task=Copying(MEASURES), steps=14, average=2)
    assert_goes_on_after_a_kill(tmp_path, name, number, after, average=2)


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


@pytest.fixture(scope="module")
def averaging(tmp_path_factory):
    """A run that averages two, stopped at its step 12."""
    folder = tmp_path_factory.mktemp("averaging")
    interrupt(folder, 12, steps=14, average=2)
    return folder, files(folder)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda recent: None,
        lambda recent: recent[0],
        lambda recent: recent[:0],
        lambda recent: recent[:, 1:],
        lambda recent: recent[[0, 1, 1]],
        lambda recent: recent.sum(),
    ],
)
def test_weights_to_average_that_cannot_be_are_refused(averaging, wrong, complaint):
    folder, good = averaging
    (folder / "last.safetensors").write_bytes(good["last.safetensors"])
    tensors, metadata = last(folder)
    tensors["recent"] = wrong(tensors["recent"])
    tensors = {name: array for name, array in tensors.items() if array is not None}
    save_checkpoint(folder / "last.safetensors", tensors, metadata)
    before = files(folder)
    text = complaint(run, folder, resume=True, steps=14, average=2)
    assert "with weights to average that cannot be" in text and files(folder) == before


def test_a_run_does_not_begin_to_average_on_its_way(tmp_path, complaint):
    interrupt(tmp_path, 7)
    text = complaint(run, tmp_path, resume=True, average=2)
    assert "average 2 instead of 1" in text
