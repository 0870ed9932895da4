"""The training loop: what it computes, records, tells, keeps and survives."""

import concurrent.futures
import io
import json
import multiprocessing
import os
import signal
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tqdm import tqdm

from numformer.data import Vocabulary
from numformer.execution import executor
from numformer.execution.ranks import Ranks
from numformer.generation import Transduction
from numformer.later.divergence import Divergence
from numformer.layer import inference, pack
from numformer.models import Transformer
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.optimizers import Adam
from numformer.optimization.recipe import Recipe, linear_rate
from numformer.paper.cross_entropy import CrossEntropy
from numformer.randomness import dropout_stream
from numformer.runs.checkpoints import load_model, save_checkpoint
from numformer.training.loop import Interrupted, Schedule, _duration, train
from numformer.training.trainer import Trainer
from tests.equal_runs import assert_same_run, assert_same_weights, last, logged, metrics
from tests.training.tiny_runs import (
    Clock,
    Copying,
    HoldingOut,
    Own,
    fail,
    interrupt,
    run,
    send_ctrl_c,
    tiny,
)


def test_steps_and_what_is_recorded_of_them_are_those_of_a_plain_loop(tmp_path):
    """Zeroed gradients, masks of (seed, step), smoothing, clipping and Adam, with no default."""
    config = dict(label_smoothing=0.3, clip_norm=0.4, beta1=0.7, beta2=0.8, adam_epsilon=1e-3)
    config |= dict(decay="linear", warmup=3, factor=2.0)
    run(tmp_path, 5, 1, task=HoldingOut(), seed=9, **config)
    model, batches, recorded = tiny(), Copying(), []
    flat, loss = pack(model), CrossEntropy(0.3)
    optimizer = Adam(flat, 0.7, 0.8, 1e-3)
    for step in range(1, 6):
        batch = batches.batch(step)
        dropout_stream.reseed(9, step)
        model.zero_grad()
        logits = model.forward(batch.source, batch.target_in, skip_padding=True)
        mean = loss.forward(logits, batch.target_out[batch.target_in != 0])
        model.backward(loss.backward())
        norm = clip_global_norm(flat.grad, 0.4)
        assert norm > 0.4  # and it is that before the clipping
        rate = linear_rate(step, 5, 8, 3, 2.0)
        optimizer.step(rate)
        recorded.append((mean, norm, rate))
    tensors, _ = last(tmp_path)
    for name, vector in optimizer.state.items():
        assert_array_equal(tensors.pop(f"optimizer.{name}"), vector)
    assert_same_weights(tensors, model.state_dict())
    names = "loss", "gradient_norm", "rate"
    assert [*zip(*(logged(tmp_path, name) for name in names), strict=True)] == recorded


def test_with_r_drop_a_step_s_loss_is_that_of_two_predictions(tmp_path):
    run(tmp_path, steps=1, p_drop=0.3, label_smoothing=0.2, r_drop=0.5, seed=9)
    model, batch = tiny(p_drop=0.3), Copying().batch(1)
    dropout_stream.reseed(9, 1)
    first, second = (model.predictions(*batch.inputs)[0] for _ in range(2))
    targets = batch.target_out[batch.target_in != 0]
    losses = [CrossEntropy(0.2).forward(logits, targets) for logits in (first, second)]
    loss = (sum(losses) + 0.5 * Divergence().forward(first, second)) / 2
    assert logged(tmp_path, "loss") == [pytest.approx(loss, rel=1e-6)]


def test_evaluation_does_not_disturb_training(tmp_path):
    run(tmp_path / "often", 4, evaluate_every=1, task=HoldingOut())
    run(tmp_path / "once", 4, evaluate_every=100)
    assert_same_weights(last(tmp_path / "often")[0], last(tmp_path / "once")[0])
    assert logged(tmp_path / "often", "loss") == logged(tmp_path / "once", "loss")


def test_lines_of_the_metrics_and_what_checkpoints_hold(tmp_path):
    model, _ = run(tmp_path / "means", steps=7, log_every=3, evaluate_every=5)
    run(tmp_path / "all", steps=7, log_every=1)
    lines, losses = metrics(tmp_path / "means"), logged(tmp_path / "all", "loss")
    training = "step loss rate gradient_norm seconds".split()
    measured = "step other measure seconds".split()
    assert [line["step"] for line in lines] == [3, 5, 6, 7, 7]
    assert [[*line] for line in lines] == [training, measured, training, training, measured]
    means = [np.mean(losses[:3]), np.mean(losses[3:6]), losses[6]]
    np.testing.assert_allclose(logged(tmp_path / "means", "loss"), means, rtol=1e-12)
    tensors, metadata = last(tmp_path / "means")
    assert tensors.keys() - model.state_dict().keys() == {"optimizer.mean", "optimizer.square"}
    assert metadata["step"] == 7 and metadata["seed"] == 1 and metadata["losses"] == []


def test_the_held_out_loss_is_the_objective_s_mean_over_all_held_out_predictions(tmp_path):
    """With its label smoothing, without dropout; and not the mean of the batches' means."""
    task = HoldingOut([np.float32(1.0)])
    _, best = run(tmp_path, steps=1, task=task, label_smoothing=0.3)
    model, loss, summed = tiny(), CrossEntropy(0.3), 0
    model.load_state_dict(task.weights_evaluated[0])
    with inference():
        for batch in task.held_out:
            logits = model.forward(batch.source, batch.target_in)
            real = batch.target_out != 0
            summed += np.count_nonzero(real) * loss.forward(logits[real], batch.target_out[real])
    held_out_loss = {"held_out_loss": pytest.approx(summed / 11, rel=1e-6)}
    assert best == {"step": 1, "other": 7.0, "measure": 1.0, **held_out_loss}
    assert {type(value) for value in best.values()} == {int, float}
    assert load_model(tmp_path / "best.safetensors")[1]["best"] == best


@pytest.mark.parametrize("measured", [None, 0.25])
def test_the_held_out_loss_may_be_the_metric_and_come_from_the_evaluation(tmp_path, measured):
    task = HoldingOut(higher_is_better=False)
    task.metric = "held_out_loss"
    if measured:
        task.held_out = None  # whatever it is, nobody looks at it
    task.evaluate = lambda model: {"held_out_loss": measured} if measured else {}
    _, best = run(tmp_path, task=task)
    losses = logged(tmp_path, "held_out_loss")
    assert best["held_out_loss"] == min(losses) and len(losses) == 2
    assert measured is None or losses == [measured] * 2


@pytest.mark.parametrize("held_out", [[([4], [5])], [[4, 5]], np.array([4, 5]), iter([])], ids=type)
def test_what_is_held_out_must_be_batches(tmp_path, held_out, complaint):
    task = HoldingOut()
    task.held_out = held_out
    assert "held_out is a list of batches" in complaint(run, tmp_path, task=task)


NO_MEASURES = [None, 0.5, {}, {"other": 1.0}, {"measure": "high"}, {"measure": 10**400}]
NO_MEASURES += [{"measure": 1.0, name: 1.0} for name in ("step", "seconds", 3)]


@pytest.mark.parametrize("result", NO_MEASURES, ids=lambda result: repr(result)[:20])
def test_what_is_no_number_by_the_name_of_the_metric_is_refused(tmp_path, result, complaint):
    task = Copying()
    task.evaluate = lambda model: result
    text = complaint(run, tmp_path, task=task)
    assert "returns a dict of numbers with the key 'measure'" in text


def test_a_task_is_an_object_with_all_that_training_asks_of_it(tmp_path, complaint):
    assert "the class Copying. Write Copying(...)" in complaint(run, tmp_path, task=Copying)
    assert "received object without metric" in complaint(run, tmp_path, task=object())


def test_a_process_trains_one_model_at_a_time(tmp_path, complaint):
    """The second would reseed the dropout of the first."""
    pool, texts = concurrent.futures.ThreadPoolExecutor(), []
    second = lambda: texts.append(pool.submit(complaint, run, tmp_path / "b").result())  # noqa: E731
    run(tmp_path / "a", task=Copying(at={2: second}))
    assert "one model at a time; received a second run" in texts[0]
    assert not (tmp_path / "b").exists()
    complaint(run, tmp_path / "a")
    pool.submit(run, tmp_path / "b").result()  # a thread that receives no signals


def test_a_run_whose_output_nobody_reads_any_more_stops_and_goes_on(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe, monkeypatch.context() as patches:
        patches.setattr(sys, "stdout", pipe)
        with pytest.raises(Interrupted, match="nothing reads its output"):
            run(tmp_path / "a", 9)
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())
    run(tmp_path / "a", 9, resume=True)
    run(tmp_path / "b", 9)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_run_whose_output_is_closed_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    run(tmp_path)


NOT_JSON = {
    "received np.int64(3) (int64) as the task's description()['n']": {"n": np.int64(3)},
    "received nan (float) as the task's description()['a'][1]['b']": {"a": [0, {"b": np.nan}]},
    "received (1, 2) (tuple) as a key of the task's description()": {(1, 2): 3},
}


def test_a_description_is_compared_as_json_gives_it_back(tmp_path, monkeypatch, complaint):
    task = Copying(at={1: fail})
    for text, described in NOT_JSON.items():
        task.description = lambda described=described: described
        assert f"{text}. Write" in complaint(run, tmp_path / "run", task=task)
    task.description = lambda: "copy"
    assert "returns a dict; received 'copy'" in complaint(run, tmp_path / "run", task=task)
    assert not (tmp_path / "run").exists()
    described = {"sizes": (1, (2, 3)), 4: None, "x": np.float64(0.1)}
    monkeypatch.setattr(Copying, "description", lambda task: described)
    interrupt(tmp_path, 2)
    run(tmp_path, resume=True)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    fake_clock = Clock()
    for module in ("loop", "trainer"):
        monkeypatch.setattr(f"numformer.training.{module}.time", fake_clock)
    return fake_clock


def slow(clock: Clock, seconds: dict[int, float]) -> Copying:
    return Copying(at={step: lambda s=s: clock.passes(s) for step, s in seconds.items()})


def test_every_line_tells_the_seconds_of_training_so_far(tmp_path, clock):
    """In the resumed run too: neither those that were not saved count, nor those in between."""
    task = slow(clock, {1: 2.0, 5: 0.128, 6: 3})
    task.at[7] = lambda: (clock.passes(5), send_ctrl_c())
    with pytest.raises(Interrupted):
        run(tmp_path, 9, task=task)
    assert last(tmp_path)[1]["seconds"] == 10.13
    clock.now = 9000
    _, best = run(tmp_path, 9, task=slow(clock, {9: 0.5}), resume=True)
    assert logged(tmp_path, "seconds") == [2.0, 2.13, 5.13, 10.63, 10.63]
    assert "seconds" not in best


@pytest.mark.parametrize(
    ("resumed", "lines"),
    [
        (False, {3: "10 s, about 20 s", 5: "22 s, about 18 s", 8: "34 s, about 4 s"}),
        # The first two steps took 100 s. What is left is told by the steps of this process.
        (True, {5: "114 s, about 19 s", 8: "2 min, about 4 s"}),
    ],
)
def test_without_a_terminal_a_line_tells_how_far_it_is(tmp_path, clock, capsys, resumed, lines):
    """At a line of the metrics, 10 seconds after the one before; at the end there is no need."""
    if resumed:
        task = slow(clock, {1: 100})
        task.at[2] = send_ctrl_c
        with pytest.raises(Interrupted):
            run(tmp_path, 9, 2, task=task)
    capsys.readouterr()
    took = dict.fromkeys(range(1, 10), 4) | {3: 2, 5: 8, 9: 20}
    run(tmp_path, 9, 1, task=slow(clock, took), resume=resumed)
    losses = {line["step"]: line["loss"] for line in metrics(tmp_path) if "loss" in line}
    assert capsys.readouterr().err.splitlines() == [
        f"step {step} of 9: loss {losses[step]:.4f}, {words} left" for step, words in lines.items()
    ]


def test_a_rate_in_the_recipe_is_the_highest_rate(tmp_path):
    run(tmp_path, 9, 1, rate=0.01, warmup=3)
    rates = logged(tmp_path, "rate")
    assert max(rates) == rates[2] == pytest.approx(0.01)


@pytest.mark.parametrize(("module", "terminal"), [("io", True), ("ipykernel.iostream", False)])
def test_a_bar_shows_progress_on_a_terminal_and_in_a_notebook(
    tmp_path, clock, monkeypatch, module, terminal
):
    """Which makes room for the line of an evaluation."""
    room, members = [], {"__module__": module, "isatty": lambda self: terminal}
    monkeypatch.setattr(sys, "stderr", type("Stream", (io.StringIO,), members)())
    monkeypatch.setattr(tqdm, "external_write_mode", lambda: nullcontext(room.append(1)))
    run(tmp_path, task=slow(clock, {1: 50}))
    assert len(room) == 2
    err = sys.stderr.getvalue()
    assert "7/7" in err and f"loss={logged(tmp_path, 'loss')[-1]:.4f}" in err
    assert "step 3 of 7" not in err


def test_evaluations_are_printed_and_an_unfinished_line_is_left_out(tmp_path, capsys, clock):
    run(tmp_path, task=Copying([0.25, 0.5]))
    printed = "step 5: other 7.0000, measure 0.2500\nstep 7: other 7.0000, measure 0.5000\n"
    assert capsys.readouterr() == (printed, "")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert metrics(tmp_path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("name", ["steps", "log_every", "evaluate_every", "patience", "minutes"])
def test_a_schedule_counts_whole_steps_from_1_and_minutes(name, complaint):
    fine = [1, 7, *[None] * (name in ("patience", "minutes")), *[2.5] * (name == "minutes")]
    rule = "a number above 0" if name == "minutes" else "an integer of at least 1"
    for value in (1, 7, 0, -1, 2.5, True, None, "1", float("inf")):
        arguments = dict(steps=5) | {name: value}
        if value in fine and value is not True:
            assert getattr(Schedule(**arguments), name) == value
        else:
            change = f"Change {name} (--{name.replace('_', '-')})."
            expected = f"{name} is {rule}; received {value!r}. {change}"
            assert complaint(Schedule, **arguments) == expected


def test_a_run_ends_where_evaluations_bring_nothing_better(tmp_path, capsys):
    """It stays ended, and with more patience goes on as if it had never stopped."""
    measures = [1.0, 3.0, 2.0, 3.5, 2.0, 1.0, 9.0, 2.0]
    settings = dict(steps=8, evaluate_every=1, log_every=1)
    for resume in (False, True):
        run(tmp_path / "a", task=Copying(measures), patience=2, resume=resume, **settings)
        assert last(tmp_path / "a")[1]["step"] == 6
        text = "ends here: 2 evaluations no better than the one at step 4"
        assert text in capsys.readouterr().out
    run(tmp_path / "a", task=Copying(measures[6:]), patience=3, resume=True, **settings)
    run(tmp_path / "b", task=Copying(measures), **settings)
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("measures", "patience", "ends_at", "best"),
    [
        ([0.0] * 9, 1, 2, 2),
        ([0.0] * 9, 3, 4, 4),
        ([1.0, 1.0, 0.998], 2, 3, 2),
        ([3.0, 1.0, 2.0, 3.0, 2.0], 3, 4, 4),
        ([1.0, 1.0, 2.0, 2.0, 1.0], 2, 5, 4),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_evaluation_equal_to_the_best_is_no_progress(
    tmp_path, capsys, measures, patience, ends_at, best, sign
):
    """Though the latest of equals is kept. A run that goes on counts those before, too."""
    settings = dict(steps=9, evaluate_every=1, patience=patience)
    measures = [sign * value for value in measures]
    interrupt(tmp_path / "b", 2, measures[:2], **settings)
    for name, values in {"a": measures, "b": measures[2:]}.items():
        task = Copying(values, higher_is_better=sign == 1)
        _, found = run(tmp_path / name, task=task, resume=name == "b", **settings)
        assert (last(tmp_path / name)[1]["step"], found["step"]) == (ends_at, best)
    first = measures.index(measures[best - 1]) + 1
    evaluations = "1 evaluation" if ends_at - first == 1 else f"{ends_at - first} evaluations"
    assert f"here: {evaluations} no better than the one at step {first}" in capsys.readouterr().out


def test_of_equal_evaluations_one_with_a_lower_held_out_loss_is_progress(tmp_path, capsys):
    task, losses = Copying([0.0] * 9), iter([3.0, 2.0, 2.5, 2.0])
    evaluate = task.evaluate
    task.evaluate = lambda model: evaluate(model) | {"held_out_loss": next(losses)}
    _, found = run(tmp_path, task=task, steps=9, evaluate_every=1, patience=2)
    assert found["step"] == 4  # the latest of equal ones is kept
    assert "here: 2 evaluations no better than the one at step 2" in capsys.readouterr().out


def test_patience_counts_evaluations_however_far_apart(tmp_path):
    settings = dict(patience=3, log_every=1)
    interrupt(tmp_path, 3, [2.0, 1.0], steps=30, evaluate_every=1, **settings)
    task = Copying([1.0, 1.0])
    run(tmp_path, 30, task=task, evaluate_every=5, resume=True, **settings)
    assert last(tmp_path)[1]["step"] == 5


def test_a_text_that_is_not_its_model_s_is_refused_before_a_step(tmp_path, complaint):
    task, letters = Copying(), Vocabulary("ab")
    task.text = Transduction(letters, letters, 5)
    assert "vocabularies that its model was built for" in complaint(run, tmp_path, task=task)


def test_a_run_ends_when_its_minutes_are_over(tmp_path, clock, capsys):
    """What was trained is evaluated and saved; with more minutes the same steps follow."""
    took = dict.fromkeys(range(1, 10), 20)
    for resume in (False, True):
        run(tmp_path / "a", minutes=1, task=slow(clock, took), resume=resume)
        assert "ends here: after 1 minute of training" in capsys.readouterr().out
        assert [line["step"] for line in metrics(tmp_path / "a")] == [3, 3]
    run(tmp_path / "a", minutes=60, resume=True, task=slow(clock, took))
    run(tmp_path / "b", task=slow(clock, took))
    assert_same_weights(*(last(tmp_path / name)[0] for name in "ab"))


def test_a_run_without_an_evaluation_is_evaluated_whatever_time_it_took(tmp_path, clock):
    slowly = Copying(at={1: lambda: clock.passes(99), 2: send_ctrl_c})
    with pytest.raises(Interrupted):
        run(tmp_path, task=slowly)
    _, best = run(tmp_path, minutes=1, resume=True)
    assert best["step"] == 3


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min")])
def test_long_times_are_given_in_minutes(seconds, text):
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("higher_is_better", "measures"), [(True, [1.0, 3.0, 3.0, 2.0]), (False, [4.0, 2.0, 2.0, 3.0])]
)
def test_the_best_is_the_latest_of_equals_and_is_kept(tmp_path, higher_is_better, measures):
    task = Copying(measures, higher_is_better)
    model, best = run(tmp_path, steps=4, evaluate_every=1, task=task)
    assert best == {"step": 3, "measure": measures[2], "other": 7.0}
    saved, metadata = load_model(tmp_path / "best.safetensors")
    assert metadata["best"] == best and metadata["task"] == {"symbols": "abcde"}
    assert saved.config == model.config
    for found in (model, saved):
        assert_same_weights(found.state_dict(), task.weights_evaluated[2])
    trained = {n: array for n, array in last(tmp_path)[0].items() if n in model.state_dict()}
    assert_same_weights(trained, task.weights_evaluated[3])


def test_a_model_of_one_s_own_trains_resumes_and_is_loaded_by_its_class(tmp_path, complaint):
    def own(folder, task=None, **options):
        model = tiny(Own)
        train(model, task or Copying(), folder, Schedule(9, 3, 5), Recipe(warmup=10), **options)
        return model

    folders = [tmp_path / "a", tmp_path / "b"]
    model = own(folders[0])
    with pytest.raises(Interrupted):
        own(folders[1], Copying(at={6: send_ctrl_c}))
    tensors, metadata = last(folders[1])
    earlier = {"model": "tiny_runs"}  # its module, as earlier versions wrote
    save_checkpoint(folders[1] / "last.safetensors", tensors, metadata | earlier)
    own(folders[1], resume=True)
    assert_same_run(*folders)
    best = folders[0] / "best.safetensors"
    assert_same_weights(load_model(best, Own)[0].state_dict(), model.state_dict())
    assert "received 'Own'. Load a model of your own with its class" in complaint(load_model, best)
    text = complaint(load_model, best, Transformer)
    assert "must hold the model 'encoder_decoder'; received" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_step_save_and_say_so(tmp_path, number):
    with pytest.raises(Interrupted, match=r"stopped at step 2, which is saved"):
        run(tmp_path, task=Copying(at={2: lambda: signal.raise_signal(number)}))
    assert last(tmp_path)[1]["step"] == 2
    assert not (tmp_path / "best.safetensors").exists()


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, task=Copying(at={2: lambda: (send_ctrl_c(), send_ctrl_c())}))
    assert not (tmp_path / "last.safetensors").exists()


@pytest.mark.parametrize("what", [send_ctrl_c, fail])
def test_ctrl_c_means_afterwards_what_it_meant_before(tmp_path, what):
    mine = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGINT, mine)
    try:
        with pytest.raises((Interrupted, RuntimeError)):
            run(tmp_path, task=Copying(at={2: what}))
    finally:
        assert signal.signal(signal.SIGINT, before) is mine


def test_what_an_interrupted_step_saved_is_forgotten(tmp_path):
    model = tiny()
    model.forward(np.array([[4, 2]]), np.array([[1, 4]]))
    assert model.pending()
    ranks = Ranks()
    trainer = Trainer(model, Copying(), tmp_path, 1, Recipe(), ranks=ranks)
    assert not model.pending() and trainer.ranks is ranks


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux do parts have processes")
def test_the_steps_of_a_run_in_parts_clip_and_have_processes(tmp_path, monkeypatch):
    found, alive = [], []
    for cores in (1, 2):
        monkeypatch.setattr(executor, "cores", lambda cores=cores: cores)
        task = Copying(at={2: lambda: alive.append(len(multiprocessing.active_children()))})
        changes = dict(clip_norm=0.01, adam_epsilon=1.0)  # so that Adam feels the gradient's size
        run(tmp_path / str(cores), task=task, steps=4, parts=2, **changes)
        found.append(last(tmp_path / str(cores))[0])
    assert alive == [0, 1]
    assert_same_weights(*found)


def test_steps_and_evaluations_call_functions(tmp_path):
    """As metrics.jsonl has them; at an evaluation the run is saved."""
    steps, evaluations = [], []

    def note(measures):
        evaluations.append(measures)
        assert (tmp_path / "last.safetensors").exists()

    schedule = Schedule(4, log_every=1, evaluate_every=2)
    train(tiny(), Copying(), tmp_path, schedule, on_step=steps.append, on_evaluation=note)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines = [{name: line[name] for name in line if name != "seconds"} for line in lines]
    assert steps == [line for line in lines if "loss" in line] and len(steps) == 4
    assert evaluations == [line for line in lines if "measure" in line] and len(evaluations) == 2
