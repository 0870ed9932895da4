"""Run folders: where runs begin, go on as if nothing had happened, and go on for longer."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import (
    Copying,
    around_every_write,
    assert_same_run,
    assert_same_weights,
    fail,
    files,
    interrupt,
    kill_at_write,
    last,
    metrics,
    recipe,
    run,
    tiny,
)

from numformer.training import loop, parts
from numformer.training.checkpoints import load_model, save_checkpoint
from numformer.training.files import PARTIAL
from numformer.training.loop import train
from numformer.training.parts import Parts
from numformer.training.run_folder import read_metrics
from tests.equal_runs import without_seconds

ROOT = Path(__file__).parents[2]
MEASURES = [1.0, 3.0, 2.0]

# New runs.


@pytest.mark.parametrize("folder", ["new", "new/below", "there"])
def test_a_run_makes_its_folder_and_needs_no_more_than_a_number_of_steps(
    tmp_path, folder, monkeypatch
):
    """Unless told otherwise, in as many parts as are usual here."""
    monkeypatch.setattr(loop, "usual_parts", lambda xp: 3)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/config.json").write_text("what a script writes first")
    best = train(tiny(), Copying(), str(tmp_path / folder), 2, recipe())
    assert best["step"] == last(tmp_path / folder)[1]["step"] == 2
    assert last(tmp_path / folder)[1]["parts"] == 3


def test_freed_memory_is_reused(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "reuse_freed_memory", lambda: calls.append(1))
    run(tmp_path, steps=1)
    assert calls


@pytest.mark.parametrize("name", ["metrics.jsonl", "last.safetensors", "best.safetensors"])
@pytest.mark.parametrize("unfinished", ["", PARTIAL])
def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_is(
    tmp_path, name, unfinished, complaint, monkeypatch
):
    """Before anything is computed."""
    monkeypatch.setattr(Parts, "start", fail)
    for content in ("days of work\n", '{"step": 5, "accuracy": 0.5}\n'):
        (tmp_path / f"{name}{unfinished}").write_text(content)
        text = complaint(run, tmp_path)
        assert f"which holds {name}{unfinished}. Choose another folder" in text
        assert "resume=True" in text
        assert files(tmp_path) == {f"{name}{unfinished}": content.encode()}


def test_a_run_whose_task_went_wrong_before_anything_was_saved_may_begin_again(tmp_path):
    task = Copying()
    task.evaluate = lambda model: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(tiny(), task, tmp_path, 2, recipe())
    assert [*files(tmp_path)] == ["metrics.jsonl"]
    train(tiny(), Copying(), tmp_path, 2, recipe())
    train(tiny(), Copying(), tmp_path / "straight", 2, recipe())
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == len(
        read_metrics(tmp_path / "straight" / "metrics.jsonl"))  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "said"), [("file", "File exists"), ("file/below", "Not a directory")]
)
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, folder, said, complaint):
    (tmp_path / "file").write_text("")
    text = complaint(run, tmp_path / folder)
    assert "a run writes to a folder" in text and f"{folder} ({said}). Choose another" in text


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, complaint, monkeypatch):
    def write_text(path, text):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", write_text)
    assert f"{tmp_path} (Permission denied). Choose another" in complaint(run, tmp_path)


@pytest.mark.parametrize("place", ["absent", "file"])
def test_a_run_that_is_resumed_has_a_folder(tmp_path, place, complaint):
    (tmp_path / "file").write_text("")
    text = complaint(run, tmp_path / place, resume=True)
    assert f"received {tmp_path / place}, where there is no folder" in text
    assert [*files(tmp_path)] == ["file"]


@pytest.mark.parametrize("resume", [False, True])
def test_one_process_at_a_time_trains_into_a_folder(tmp_path, resume, complaint):
    if resume:
        interrupt(tmp_path, 2)
    before = files(tmp_path)
    program = "import sys, pathlib, numformer.training.files as io\n"
    program += "with io.locked(pathlib.Path(sys.argv[1])): print(1, flush=True); input()"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env=environment, **pipes) as other:
        assert other.stdout.readline() == b"1\n"
        assert "another process is writing to" in complaint(run, tmp_path, resume=resume)
        other.kill()
    assert files(tmp_path) == before
    run(tmp_path, resume=resume)


# Resuming.


@pytest.fixture
def straight(tmp_path):
    """A run of 14 steps without interruption: logs at 3, 6, 9, 12, 14, evaluates at 5, 10, 14."""
    folder = tmp_path / "straight"
    model, best = run(folder, steps=14, task=Copying(MEASURES))
    return folder, model, best


@pytest.mark.parametrize("steps", [(1,), (6,), (7,), (10,), (13,), (4, 11)], ids=str)
def test_a_run_resumed_after_ctrl_c_is_the_straight_run(tmp_path, straight, steps):
    """Dropout, Adam, the schedule, data and the loss of a half-full line go on where they were."""
    expected, expected_model, expected_best = straight
    folder, measures = tmp_path / "resumed", iter(MEASURES)
    for step in steps:
        interrupt(folder, step, measures, steps=14, resume=step != steps[0])
    model, best = run(folder, steps=14, task=Copying(measures), resume=True)
    assert_same_run(folder, expected)
    assert_same_weights(model.state_dict(), expected_model.state_dict())
    assert best == expected_best and best["step"] == 10


def test_a_run_in_parts_is_resumed_bit_for_bit_and_leaves_no_process(tmp_path):
    run(tmp_path / "straight", steps=9, parts=2)
    interrupt(tmp_path / "resumed", 6, steps=9, parts=2)
    run(tmp_path / "resumed", steps=9, parts=2, resume=True)
    assert_same_run(tmp_path / "resumed", tmp_path / "straight")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("step", [5, 8])
def test_a_run_resumed_after_a_kill_repeats_what_was_not_saved(tmp_path, straight, step):
    """Metrics of steps after the checkpoint, and a line cut in two, are written anew.

    Before step 5 nothing was saved, so the run begins anew.
    """
    folder = tmp_path / "resumed"
    with pytest.raises(RuntimeError):
        run(folder, steps=14, task=Copying(MEASURES, at={step: fail}))
    assert metrics(folder) and (folder / "last.safetensors").exists() == (step == 8)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    run(folder, steps=14, task=Copying(MEASURES[step // 8 :]), resume=True)
    assert_same_run(folder, straight[0])


@around_every_write
def test_a_run_killed_around_a_write_resumes_as_the_straight_run(
    tmp_path, straight, monkeypatch, name, after, number
):
    folder = tmp_path / "resumed"
    kill_at_write(folder, monkeypatch, name, number, after, steps=14, task=Copying(MEASURES))
    done = last(folder)[1]["step"] // 5 if (folder / "last.safetensors").exists() else 0
    run(folder, steps=14, task=Copying(MEASURES[done:]), resume=True)
    assert_same_run(folder, straight[0])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("metrics.jsonl", lambda run: None, "which is damaged or missing"),
        ("metrics.jsonl", lambda run: run["metrics.jsonl"][:-1], "which is damaged or missing"),
        (
            "metrics.jsonl",
            lambda run: run["metrics.jsonl"].replace(b"3", b"4", 1),
            "which is damaged or missing",
        ),
        ("best.safetensors", lambda run: None, "no file"),
        ("best.safetensors", lambda run: run["best.safetensors"][:-1], "best.safetensors"),
        ("best.safetensors", lambda run: run["other"], "belongs to its last"),
        ("last.safetensors", lambda run: None, "none beside its best.safetensors"),
        ("last.safetensors", lambda run: run["last.safetensors"][:-1], "last.safetensors"),
        ("last.safetensors", lambda run: run["best.safetensors"], "holds a model but no run"),
    ],
)
def test_a_damaged_run_is_refused_and_left_as_it_is(tmp_path, name, change, words, complaint):
    folder, other = tmp_path / "run", tmp_path / "other"
    for each, measures in ((folder, [2.0, 1.0]), (other, [3.0, 1.0])):
        run(each, task=Copying(measures))
    content = change(files(folder) | {"other": (other / "best.safetensors").read_bytes()})
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    (folder / "last.safetensors.partial").write_bytes(b"half")
    before = files(folder)
    assert words in complaint(run, folder, resume=True)
    assert files(folder) == before


@pytest.mark.parametrize("seconds", [-0.1, "x", None, True, [], float("nan"), 10**400])
def test_seconds_that_no_training_took_are_refused(tmp_path, seconds, complaint):
    interrupt(tmp_path, 2)
    tensors, metadata = last(tmp_path)
    save_checkpoint(tmp_path / "last.safetensors", tensors, metadata | {"seconds": seconds})
    assert "that cannot be" in complaint(run, tmp_path, resume=True)


def test_metrics_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """A power cut may take what was not synced."""
    order, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        order.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(b.name), replace(a, b)))
    run(tmp_path, steps=3, log_every=1)
    assert (tmp_path / "metrics.jsonl").stat().st_ino in order[: order.index("last.safetensors")]


@pytest.mark.parametrize(("began", "here", "kept"), [(3, 1, 3), (None, 2, 2)])
def test_a_resumed_run_keeps_the_threads_of_blas(tmp_path, monkeypatch, began, here, kept):
    """They may decide the last bits. Files of format 1 do not tell them."""
    monkeypatch.setattr(parts, "blas_threads", lambda: began)
    interrupt(tmp_path, 4)
    assert last(tmp_path)[1]["threads"] == began
    monkeypatch.setattr(parts, "blas_threads", lambda: here)
    run(tmp_path, resume=True)
    assert last(tmp_path)[1]["threads"] == kept


def test_resuming_a_finished_run_changes_nothing(tmp_path, monkeypatch):
    """No step, no evaluation, no process; what a kill left half written is gone afterwards."""
    task = Copying([2.0, 1.0])
    run(tmp_path, task=task)
    before = files(tmp_path)
    (tmp_path / "best.safetensors.partial").write_bytes(b"half")
    monkeypatch.setattr(Parts, "start", fail)
    idle = Copying()
    model, best = run(tmp_path, task=idle, resume=True)
    assert best["step"] == 5 and not idle.weights_evaluated
    assert_same_weights(model.state_dict(), task.weights_evaluated[0])
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "change", [dict(d_ff=20), dict(p_drop=0.3), dict(seed=2), dict(parts=2), dict(beta1=0.5)],
    ids=str,
)  # fmt: skip
def test_resuming_with_another_config_or_seed_is_refused(tmp_path, change, complaint):
    run(tmp_path)
    before = files(tmp_path)
    assert "the settings, seed and parts" in complaint(run, tmp_path, resume=True, **change)
    assert files(tmp_path) == before


# Another end.

ALL_LINES = dict(log_every=1, evaluate_every=5)


def assert_same_run_but_for_line(found, expected, extra: list[tuple[int, str]]):
    """The run `expected` with further lines, told by their step and what they measure."""
    assert_same_weights(last(found)[0], last(expected)[0])
    assert files(found)["best.safetensors"] == files(expected)["best.safetensors"]
    found, expected = without_seconds(found), without_seconds(expected)
    assert found["last.safetensors"] == expected["last.safetensors"]
    lines = found["metrics.jsonl"]
    further = [line for line in lines if line not in expected["metrics.jsonl"]]
    assert [(line["step"], "measure" in line) for line in further] == extra
    assert [line for line in lines if line not in further] == expected["metrics.jsonl"]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("steps", "stopped", "extra"),
    [(8, None, [(8, True)]), (8, 6, []), (20, 6, []), (10, None, [])],
    ids=["finished", "never finished", "shortened", "with an evaluation at its old end"],
)
def test_a_run_with_another_end_is_the_run_that_had_it_from_the_beginning(
    tmp_path, parts, steps, stopped, extra
):
    """Weights, losses, rates and evaluations; the old end adds an evaluation, where there was one.

    The measure grows with the step, so the best is that of the new end.
    """
    grows = {8: 1.0, 10: 2.0, 14: 3.0}
    how = dict(parts=parts, **ALL_LINES)
    run(tmp_path / "straight", 14, task=Copying([0.0, 2.0, 3.0]), **how)
    folder = tmp_path / "extended"
    if stopped:
        interrupt(folder, stopped, [0.0], steps=steps, **how)
        run(folder, 14, task=Copying([2.0, 3.0]), resume=True, **how)
    else:
        run(folder, steps, task=Copying([0.0, grows[steps]]), **how)
        run(folder, 14, task=Copying([2.0, 3.0][steps // 10 :]), resume=True, **how)
    assert_same_run_but_for_line(folder, tmp_path / "straight", extra)


@pytest.mark.parametrize("best", [5, 8])
@pytest.mark.parametrize("killed", [9, 11])
def test_an_extended_run_that_is_killed_goes_on_and_keeps_its_best(tmp_path, best, killed):
    """Before it has saved anything beyond the old end, which then is still a finished run's."""
    straight, folder = tmp_path / "straight", tmp_path / "extended"
    measures = [float(best == 5), float(best == 8)]
    for each in (straight, folder):
        run(each, 8, task=Copying(measures))
    run(straight, 14, task=Copying([-1.0, -2.0]), resume=True)
    finished = files(folder)
    with pytest.raises(RuntimeError):
        run(folder, 14, task=Copying([-1.0], at={killed: fail}), resume=True)
    if killed == 9:
        _, measured = run(folder, 8, task=Copying(at={9: fail}), resume=True)
        assert measured["step"] == best and files(folder) == finished
    run(folder, 14, task=Copying([-1.0, -2.0][killed // 10 :]), resume=True)
    assert_same_run(folder, straight)
    assert load_model(folder / "best.safetensors")[1]["best"]["step"] == best


@around_every_write
def test_an_extended_run_killed_around_a_write_goes_on(tmp_path, monkeypatch, name, after, number):
    straight, folder = tmp_path / "straight", tmp_path / "extended"
    for each in (straight, folder):
        run(each, 4, task=Copying([0.0]))
    run(straight, 14, task=Copying(MEASURES), resume=True)
    how = dict(steps=14, task=Copying(MEASURES), resume=True)
    # A resumed run whose best is its last writes that best once more.
    kill_at_write(folder, monkeypatch, name, number + (name[0] == "b"), after, **how)
    done = last(folder)[1]["step"] // 5
    run(folder, 14, task=Copying(MEASURES[done:]), resume=True)
    assert_same_run(folder, straight)


@pytest.mark.parametrize(("step", "measured"), [(6, [2.0]), (5, [])], ids=["not", "already"])
def test_a_run_may_end_at_the_step_at_which_it_was_stopped(tmp_path, step, measured):
    """It is evaluated there, unless it has been."""
    interrupt(tmp_path / "ended", step, [1.0], steps=14)
    task = Copying(measured, at={step + 1: fail})
    _, best = run(tmp_path / "ended", step, task=task, resume=True)
    assert best["step"] == step and len(task.weights_evaluated) == len(measured)
    if measured:
        run(tmp_path / "straight", step, task=Copying([1.0, *measured]))
        assert_same_run(tmp_path / "ended", tmp_path / "straight")


@pytest.mark.parametrize("asked", [5, 9])
def test_a_rate_that_falls_to_the_end_keeps_the_end(tmp_path, asked, complaint):
    run(tmp_path, decay="linear")
    before = files(tmp_path)
    text = complaint(run, tmp_path, asked, decay="linear", resume=True)
    assert "'linear'" in text and "falls to 0 at its last" in text
    assert f"received steps {asked} instead of 7" in text
    assert files(tmp_path) == before


def test_a_run_cannot_end_before_the_steps_that_it_has_taken(tmp_path, complaint):
    interrupt(tmp_path, 6)
    before = files(tmp_path)
    text = complaint(run, tmp_path, 5, resume=True)
    assert "received steps 5 for a run that has taken 6" in text
    assert files(tmp_path) == before
