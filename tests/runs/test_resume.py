"""Run folders: where runs begin, go on as if nothing had happened, and go on for longer."""

import os

import numpy as np
import pytest

from numformer import blas
from numformer.execution.in_turn import InTurn
from numformer.optimization.optimizers import OPTIMIZERS, vectors_of
from numformer.runs.checkpoints import load_checkpoint, load_model, save_checkpoint
from numformer.runs.files import PARTIAL
from numformer.training import loop
from numformer.training.loop import train
from tests.equal_runs import assert_same_run, assert_same_weights, files, last, without_seconds
from tests.training.tiny_runs import MEASURES, Copying, fail, interrupt, recipe, run, tiny


@pytest.mark.parametrize("folder", ["new/below", "there"])
def test_a_run_makes_its_folder_and_needs_no_more_than_steps(tmp_path, folder, monkeypatch):
    """Unless told otherwise, in as many parts as are usual here; freed memory is reused."""
    calls = []
    monkeypatch.setattr(loop, "default_parts", lambda xp: 3)
    monkeypatch.setattr(loop, "reuse_freed_memory", lambda: calls.append(1))
    (tmp_path / "there").mkdir()
    (tmp_path / "there/config.json").write_text("what a script writes first")
    assert train(tiny(), Copying(), str(tmp_path / folder), 2, recipe())["step"] == 2
    assert last(tmp_path / folder)[1]["parts"] == 3 and calls


@pytest.mark.parametrize("name", ["metrics.jsonl", "last.safetensors", "best.safetensors"])
@pytest.mark.parametrize("unfinished", ["", PARTIAL])
def test_a_folder_that_holds_a_run_is_refused(tmp_path, name, unfinished, complaint):
    for content in ("days of work\n", '{"step": 5, "accuracy": 0.5}\n'):
        (tmp_path / f"{name}{unfinished}").write_text(content)
        text = complaint(run, tmp_path)
        assert f"which holds {name}{unfinished}. Choose another folder" in text
        assert files(tmp_path) == {f"{name}{unfinished}": content.encode()}


def test_a_run_whose_task_went_wrong_before_anything_was_saved_may_begin_again(tmp_path):
    task = Copying()
    task.evaluate = lambda model: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "again", task=task)
    assert [*files(tmp_path / "again")] == ["metrics.jsonl"]
    for name in ("again", "straight"):
        run(tmp_path / name)
    assert_same_run(tmp_path / "again", tmp_path / "straight")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, complaint):
    (tmp_path / "file").write_text("")
    for name, reason in (("file", "File exists"), ("file/below", "Not a directory")):
        for resume in (False, True):
            text = complaint(run, tmp_path / name, resume=resume)
            assert f"{tmp_path / name} ({reason}). Choose another" in text
    assert [*files(tmp_path)] == ["file"]


def test_a_cell_of_a_notebook_can_be_run_again(tmp_path, capfd):
    """With `resume` it begins the run, then leaves it alone; without `verbose` it is silent."""
    results = [run(tmp_path / "run", resume=True, verbose=False)[1] for _ in range(2)]
    before = files(tmp_path / "run")
    assert results[0] == results[1] == run(tmp_path / "straight", verbose=False)[1]
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    assert files(tmp_path / "run") == before and capfd.readouterr() == ("", "")
    for begins, folder, resume in ((1, "mistyped", True), (0, "mistyped", True), (0, "b", False)):
        run(tmp_path / folder, seed=np.int64(3), resume=resume)
        words = f"no step is saved in {tmp_path / folder}: a new run begins\n"
        assert capfd.readouterr().out.startswith(words) == begins
    assert last(tmp_path / "b")[1]["seed"] == 3


def test_one_process_at_a_time_trains_into_a_folder(tmp_path, complaint, monkeypatch):
    """On a file system without locks nothing is locked."""
    raised = BlockingIOError()

    def flock(descriptor, operation):
        raise raised

    monkeypatch.setattr("fcntl.flock", flock)
    for resume in (False, True):
        before = files(tmp_path)
        assert "another process is writing to" in complaint(run, tmp_path, resume=resume)
        assert files(tmp_path) == before
        raised = OSError(95, "Operation not supported")
        run(tmp_path, resume=resume)
        raised = BlockingIOError()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 14 steps without interruption: logs at 3, 6, 9, 12, 14, evaluates at 5, 10, 14."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    model, best = run(folder, steps=14, task=Copying(MEASURES))
    return folder, model, best


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory):
    """The folder of a run like `straight`, but with averaged weights."""
    run(folder := tmp_path_factory.mktemp("runs"), steps=14, task=Copying(MEASURES), average=2)
    return folder


@pytest.fixture(scope="module")
def logged_run(tmp_path_factory):
    """The folder of a run that logs each of its 14 steps; its measure grows."""
    run(folder := tmp_path_factory.mktemp("runs"), 14, task=Copying([0.0, 2.0, 3.0]), log_every=1)
    return folder


@pytest.mark.parametrize("steps", [(1,), (7,), (10,), (4, 11)], ids=str)
def test_a_run_resumed_after_ctrl_c_is_the_straight_run(tmp_path, straight, steps):
    """Dropout, Adam, the schedule, data and the loss of a half-full line go on where they were."""
    expected, expected_model, expected_best = straight
    measures = iter(MEASURES)
    for step in steps:
        interrupt(tmp_path, step, measures, steps=14, resume=step != steps[0])
    model, best = run(tmp_path, steps=14, task=Copying(measures), resume=True)
    assert_same_run(tmp_path, expected)
    assert_same_weights(model.state_dict(), expected_model.state_dict())
    assert best == expected_best and best["step"] == 10


@pytest.mark.parametrize("step", [5, 8])
def test_a_run_resumed_after_a_kill_repeats_what_was_not_saved(tmp_path, straight, step):
    """Metrics of steps after the checkpoint, and a line cut in two, are written anew."""
    with pytest.raises(RuntimeError):
        run(tmp_path, steps=14, task=Copying(MEASURES, at={step: fail}))
    assert (tmp_path / "last.safetensors").exists() == (step == 8)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    run(tmp_path, steps=14, task=Copying(MEASURES[step // 8 :]), resume=True)
    assert_same_run(tmp_path, straight[0])


@pytest.mark.parametrize("name", ["last.safetensors", "best.safetensors"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("number", "average"), [(2, 1), (1, 2)])
def test_a_run_that_is_killed_around_a_write_can_be_resumed(
    tmp_path, name, after, number, average, straight, averaged_run
):
    """Where best.safetensors is still to be written, from last.safetensors alone."""
    how, replace, seen = dict(steps=14, average=average), os.replace, []
    folder = tmp_path / "killed"

    def killed(source, target):
        seen.extend([target] if target.name == name else [])
        hit = len(seen) == number and target.name == name
        if after or not hit:
            replace(source, target)
        if hit:
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(os, "replace", killed)
        run(folder, task=Copying(MEASURES), **how)
    (folder / f"{name}{PARTIAL}").write_bytes(b"half")
    done = last(folder)[1]["step"] // 5 if (folder / "last.safetensors").exists() else 0
    run(folder, task=Copying(MEASURES[done:]), resume=True, **how)
    assert_same_run(folder, straight[0] if average == 1 else averaged_run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    found = []
    for measures in ([2.0, 1.0], [3.0, 1.0]):
        folder = tmp_path_factory.mktemp("finished")
        run(folder, task=Copying(measures))
        found.append(files(folder))
    return found


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("metrics.jsonl", lambda good, other: None, "which is damaged or missing"),
        ("metrics.jsonl", lambda good, other: good[:-1], "which is damaged or missing"),
        ("metrics.jsonl", lambda good, other: good.replace(b"3", b"4", 1), "which is damaged or"),
        ("best.safetensors", lambda good, other: None, "no file"),
        ("best.safetensors", lambda good, other: good[:-1], "best.safetensors"),
        ("best.safetensors", lambda good, other: other, "belongs to its last"),
        ("last.safetensors", lambda good, other: None, "which has only a best.safetensors"),
        ("last.safetensors", lambda good, other: good[:-1], "last.safetensors"),
    ],
)
def test_a_damaged_run_is_refused_as_it_is(tmp_path, finished, name, change, words, complaint):
    good, other = finished
    run_files = good | {name: change(good[name], other[name]), f"best.safetensors{PARTIAL}": b"x"}
    for file, content in run_files.items():
        if content is not None:
            (tmp_path / file).write_bytes(content)
    before = files(tmp_path)
    assert words in complaint(run, tmp_path, resume=True)
    assert files(tmp_path) == before


@pytest.mark.parametrize("change", [{"p_drop": 0.5}, {"positions": "rotary"}])
def test_a_best_model_of_another_config_is_refused(tmp_path, change, complaint):
    run(tmp_path, task=Copying([2.0, 1.0]))
    path = tmp_path / "best.safetensors"
    tensors, metadata = load_checkpoint(path)
    save_checkpoint(path, tensors, metadata | {"config": metadata["config"] | change})
    assert f"{path}, which does not" in complaint(run, tmp_path, resume=True)


def test_the_state_of_a_run_is_no_model(tmp_path, complaint):
    run(tmp_path)
    words = f"the state of a run, for resuming it. Name {tmp_path / 'best.safetensors'}"
    assert words in complaint(load_model, tmp_path / "last.safetensors")


CANNOT_BE = {
    "a step": [{"step": 0}, {"step": 8}, {"step": True}, {"step": "2"}, {"steps": 1.0}],
    "losses": [{"losses": [1.0] * 3}, {"losses": ["x"]}, {"losses": {}}, {"losses": [np.inf]}],
    "a best evaluation": [
        *({"best": best} for best in (None, {"measure": 1.0}, {"step": 1})),
        *({"best": {"step": step, "measure": 1.0}} for step in (0, 3, "1", 1.0)),
        {"best": {"step": 1, "measure": "x"}},
        {"step": 7},  # a run that has ended was evaluated
    ],
    "seconds": [{"seconds": value} for value in (-0.1, "x", None, True, np.nan, 10**400)],
    "threads": [{"threads": value} for value in (0, 1025, "1", 1.0)],
}


@pytest.mark.parametrize("what", [*CANNOT_BE, "optimizer.mean", "optimizer.square"])
def test_a_state_that_no_run_can_have_is_refused_by_name(tmp_path, what, complaint):
    interrupt(tmp_path, 2)
    tensors, metadata = last(tmp_path)
    changed = [(tensors, metadata | change) for change in CANNOT_BE.get(what, [])]
    if (vector := tensors.get(what)) is not None:
        others = {name: array for name, array in tensors.items() if name != what}
        wrong = [vector[1:], vector[None], *([-vector - 1] if what.endswith("square") else [])]
        changed = [(others | {what: array}, metadata) for array in wrong] + [(others, metadata)]
    for checkpoint in changed:
        save_checkpoint(tmp_path / "last.safetensors", *checkpoint)
        assert f"with an impossible entry, {what}" in complaint(run, tmp_path, resume=True)


@pytest.mark.parametrize(("began", "here", "kept"), [(3, 1, 3), (None, 2, 2)])
def test_a_resumed_run_keeps_the_threads_of_blas(tmp_path, monkeypatch, began, here, kept):
    """They may decide the last bits. Files of format 1 do not tell them."""
    monkeypatch.setattr(blas, "threads", lambda: began)
    interrupt(tmp_path, 4)
    monkeypatch.setattr(blas, "threads", lambda: here)
    run(tmp_path, resume=True)
    assert last(tmp_path)[1]["threads"] == kept


def test_resuming_a_finished_run_changes_nothing(tmp_path, monkeypatch):
    """No step, no evaluation, no process; what a kill left half written is gone afterwards."""
    task = Copying([2.0, 1.0])
    run(tmp_path, task=task)
    before = files(tmp_path)
    (tmp_path / "best.safetensors.partial").write_bytes(b"half")
    monkeypatch.setattr(InTurn, "start", fail)
    idle = Copying()
    model, best = run(tmp_path, task=idle, resume=True)
    assert best["step"] == 5 and not idle.weights_evaluated
    assert_same_weights(model.state_dict(), task.weights_evaluated[0])
    assert files(tmp_path) == before


def test_resuming_with_another_config_or_seed_is_refused(tmp_path, complaint):
    run(tmp_path)
    before = files(tmp_path)
    others = dict(d_ff=20, p_drop=0.3, seed=2, parts=2, beta1=0.5, average=2, rate=0.25)
    for name, value in others.items():
        text = complaint(run, tmp_path, resume=True, **{name: value})
        received = "factor 2.236 (rate 0.25)" if name == "rate" else f"{name} {value}"
        assert "the settings, seed and parts" in text and f"received {received} inst" in text
        assert f"Set {'rate or factor' if name == 'rate' else name} as it was" in text
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("steps", "stopped", "extra"), [(8, None, [(8, True)]), (8, 6, []), (20, 6, []), (10, None, [])]
)
def test_a_run_resumed_to_another_end_equals_a_run_with_that_end(
    tmp_path, steps, stopped, extra, logged_run
):
    """Weights, losses, rates and evaluations; the old end adds an evaluation, where there was one.

    The measure grows with the step, so the best is that of the new end.
    """
    grows = {8: 1.0, 10: 2.0, 14: 3.0}
    how, folder = dict(log_every=1), tmp_path / "run"
    if stopped:
        interrupt(folder, stopped, [0.0], steps=steps, **how)
    else:
        run(folder, steps, task=Copying([0.0, grows[steps]]), **how)
    run(folder, 14, task=Copying([3.0] if steps == 10 else [2.0, 3.0]), resume=True, **how)
    found, expected = without_seconds(folder), without_seconds(logged_run)
    lines, others = found.pop("metrics.jsonl"), expected.pop("metrics.jsonl")
    assert found == expected
    assert [(line["step"], "measure" in line) for line in lines if line not in others] == extra
    assert [line for line in lines if line in others] == others


@pytest.mark.parametrize(("step", "measured"), [(6, [2.0]), (5, [])], ids=["not", "already"])
def test_a_run_may_end_at_the_step_at_which_it_was_stopped(tmp_path, step, measured):
    interrupt(tmp_path / "ended", step, [1.0], steps=14)
    task = Copying(measured, at={step + 1: fail})
    _, best = run(tmp_path / "ended", step, task=task, resume=True)
    assert best["step"] == step and len(task.weights_evaluated) == len(measured)
    if measured:
        run(tmp_path / "straight", step, task=Copying([1.0, *measured]))
        assert_same_run(tmp_path / "ended", tmp_path / "straight")


def test_a_run_keeps_the_end_that_its_rates_know_and_its_steps(tmp_path, complaint):
    run(tmp_path / "linear", decay="linear")
    interrupt(tmp_path / "stopped", 6)
    before = files(tmp_path / "linear"), files(tmp_path / "stopped")
    for asked in (5, 9):
        text = complaint(run, tmp_path / "linear", asked, decay="linear", resume=True)
        assert "'linear'" in text and f"received steps {asked} instead of 7" in text
    text = complaint(run, tmp_path / "stopped", 5, resume=True)
    assert "received steps 5 for a run that has taken 6" in text
    assert (files(tmp_path / "linear"), files(tmp_path / "stopped")) == before


@pytest.mark.parametrize(
    ("optimizer", "parts"), [*((name, 1) for name in OPTIMIZERS), ("adam", 2), ("muon", 2)]
)
def test_a_run_goes_on_with_the_state_of_any_optimizer(tmp_path, optimizer, parts):
    """Bit for bit, also in mixed precision."""
    how = dict(optimizer=optimizer, parts=parts, precision="mixed" if parts == 2 else "float32")
    run(tmp_path / "straight", **how)
    interrupt(tmp_path / "run", 4, **how)
    state = {name.removeprefix("optimizer.") for name in last(tmp_path / "run")[0]}
    assert {*vectors_of(OPTIMIZERS[optimizer])} <= state
    run(tmp_path / "run", **how, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "straight")
