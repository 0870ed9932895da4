"""The training loop: what it computes, records, keeps, survives, and goes on from."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import re
import signal
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.backend import dropout_stream
from numformer.data.batching import PairBatch
from numformer.errors import BrokenNumbers
from numformer.generation import greedy
from numformer.layer import Layer, pack, training
from numformer.layers.activation import ReLU
from numformer.layers.cross_entropy import CrossEntropy
from numformer.models import Config, Transformer
from numformer.training import parts
from numformer.training.broken_numbers import first_broken
from numformer.training.checkpoints import load_checkpoint, load_model
from numformer.training.loop import Interrupted, Schedule, train
from numformer.training.optimizers import OPTIMIZERS, Adam, Optimizer, clip_global_norm
from numformer.training.parts import Parts
from numformer.training.recipe import Recipe, linear_rate, warmup_rate
from numformer.training.run_folder import read_metrics
from numformer.training.trainer import Trainer

SIZES = dict(d_model=8, d_ff=16, heads=2, layers=1, p_drop=0.2)
OF_RECIPE = {field.name for field in dataclasses.fields(Recipe)}


class Copying:
    """Copy 1 to 3 symbols. `measures`: what evaluations say in turn; `at`: calls before a step."""

    metric = "measure"

    def __init__(self, measures=(), higher_is_better=True, at=None):
        self.measures, self.higher_is_better, self.at = iter(measures), higher_is_better, at or {}
        self.weights_evaluated = []

    def batch(self, step: int) -> PairBatch:
        self.at.get(step, lambda: None)()
        rng = np.random.default_rng(step)
        words = [rng.integers(4, 9, rng.integers(1, 4)).tolist() for _ in range(6)]
        return PairBatch.of([(word, word) for word in words])

    def evaluate(self, model) -> dict:
        self.weights_evaluated.append(model.state_dict())
        dropout_stream.keep((3,), 0.5, np.zeros(3))  # training must not notice
        greedy(model, np.array([[4, 2], [5, 2]]), 3)
        model.forward(np.array([[4, 2], [5, 2]]), np.array([[1], [1]]))
        assert not training() and model.pending() == 0
        return {"other": 7.0, "measure": next(self.measures, 0.0)}

    def description(self) -> dict:
        return {"symbols": "abcde"}


def tiny(**changes) -> Transformer:
    return Transformer(Config.base(9, **(SIZES | changes)), seed=5)


def recipe(**changes) -> Recipe:
    return Recipe(**(dict(warmup=10) | changes))


def run(
    folder,
    steps=7,
    log_every=3,
    evaluate_every=5,
    *,
    task=None,
    seed=1,
    resume=False,
    parts=1,
    **changes,
):
    """Train a tiny model in `folder` -> the model and the best evaluation."""
    folder.mkdir(exist_ok=True)
    how = recipe(**{name: changes.pop(name) for name in OF_RECIPE & changes.keys()})
    model, schedule = tiny(**changes), Schedule(steps, log_every, evaluate_every)
    task = task or Copying()
    return model, train(model, task, folder, schedule, how, seed, resume=resume, parts=parts)


def metrics(folder) -> list[dict]:
    return read_metrics(folder / "metrics.jsonl")


def logged(folder, name: str) -> list[float]:
    return [line[name] for line in metrics(folder) if name in line]


def last(folder) -> tuple[dict, dict]:
    return load_checkpoint(folder / "last.safetensors")


def assert_same_weights(found: dict, expected: dict):
    assert found.keys() == expected.keys()
    for name in expected:
        assert_array_equal(found[name], expected[name], err_msg=name)


def assert_same_run(found, expected):
    """Weights, Adam's moments, the best, where the run stands, every line of the metrics."""
    assert_same_weights(last(found)[0], last(expected)[0])
    assert last(found)[1] == last(expected)[1]
    assert files(found) == files(expected)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def send_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def fail():
    raise RuntimeError("killed")


# What a step computes.


def test_the_loss_falls(tmp_path):
    run(tmp_path, steps=90, log_every=30, p_drop=0.0, label_smoothing=0.0, factor=0.1)
    losses = logged(tmp_path, "loss")
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]


def test_steps_are_those_of_a_plain_loop(tmp_path):
    """Zeroed gradients, masks of (seed, step), smoothing, clipping and Adam, with no default."""
    config = dict(label_smoothing=0.3, clip_norm=0.4, beta1=0.7, beta2=0.8, adam_epsilon=1e-3)
    run(tmp_path, steps=4, evaluate_every=1, seed=9, **config)

    model, batches = tiny(), Copying()
    flat, loss = pack(model), CrossEntropy(0.3)
    optimizer = Adam(flat, 0.7, 0.8, 1e-3)
    for step in range(1, 5):
        batch = batches.batch(step)
        dropout_stream.reseed(9, step)
        model.zero_grad()
        logits = model.forward(batch.source, batch.target_in, skip_padding=True)
        loss.forward(logits, batch.target_out[batch.target_in != 0])
        model.backward(loss.backward())
        clip_global_norm(flat.grad, 0.4)
        optimizer.step(warmup_rate(step, 8, 10))
    tensors, _ = last(tmp_path)
    for name, vector in optimizer.state.items():
        assert_array_equal(tensors.pop(f"optimizer.{name}"), vector)
    assert_same_weights(tensors, model.state_dict())


def test_clipping_is_applied_and_the_norm_before_it_is_recorded(tmp_path):
    run(tmp_path, steps=1, clip_norm=0.01, beta1=0.5)
    norm = np.linalg.norm(last(tmp_path)[0]["optimizer.mean"]) / (1 - 0.5)
    assert norm == pytest.approx(0.01, rel=1e-4)
    assert logged(tmp_path, "gradient_norm")[0] > 0.1


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("inverse_sqrt", lambda step: warmup_rate(step, 8, 10, 3.0)),
        ("linear", lambda step: linear_rate(step, 25, 8, 10, 3.0)),
    ],
)
def test_the_schedule_advances_once_a_step(tmp_path, monkeypatch, decay, expected):
    """Both the rate that Adam is given and the one that is recorded."""
    given, step = [], Optimizer.step
    monkeypatch.setattr(
        Optimizer, "step", lambda self, rate: (given.append(rate), step(self, rate))
    )
    run(tmp_path, steps=25, log_every=1, decay=decay, factor=3.0)
    assert given == logged(tmp_path, "rate") == [expected(step) for step in range(1, 26)]


def test_the_seed_of_a_run_draws_its_dropout_and_nothing_else(tmp_path):
    def weights(seed, p_drop):
        run(tmp_path, seed=seed, p_drop=p_drop)
        return last(tmp_path)[0]["optimizer.mean"]

    assert_array_equal(weights(1, 0.0), weights(2, 0.0))
    assert (weights(1, 0.2) != weights(2, 0.2)).any()
    assert_array_equal(weights(2, 0.2), weights(2, 0.2))


def test_evaluation_does_not_disturb_training(tmp_path):
    run(tmp_path / "often", evaluate_every=1)
    run(tmp_path / "once", evaluate_every=100)
    assert_same_weights(last(tmp_path / "often")[0], last(tmp_path / "once")[0])
    assert logged(tmp_path / "often", "loss") == logged(tmp_path / "once", "loss")


# What is recorded.


def test_lines_of_the_metrics(tmp_path):
    run(tmp_path, steps=7, log_every=3, evaluate_every=5)
    lines = metrics(tmp_path)
    training, measured = {"step", "loss", "rate", "gradient_norm"}, {"step", "measure", "other"}
    assert [line["step"] for line in lines] == [3, 5, 6, 7, 7]
    assert [line.keys() for line in lines] == [training, measured, training, training, measured]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 5


def test_a_loss_is_the_mean_since_the_line_before(tmp_path):
    run(tmp_path, steps=7, log_every=1)
    each = logged(tmp_path, "loss")
    run(tmp_path, steps=7, log_every=3)
    means = [np.mean(each[:3]), np.mean(each[3:6]), each[6]]
    np.testing.assert_allclose(logged(tmp_path, "loss"), means, rtol=1e-12)


def test_evaluations_are_printed_and_no_bar_is_drawn_outside_a_terminal(tmp_path, capsys):
    run(tmp_path, task=Copying([0.25, 0.5]))
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "step 5: other 7.0000, measure 0.2500",
        "step 7: other 7.0000, measure 0.5000",
    ]
    assert not err


def test_a_metrics_line_that_a_killed_run_left_unfinished_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert metrics(tmp_path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("name", ["steps", "log_every", "evaluate_every"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_schedule_counts_from_1(name, value, complaint):
    """The fix names the flag as it is written."""
    text = complaint(Schedule, **(dict(steps=5) | {name: value}))
    assert f"{name} is at least 1; received {value}" in text
    assert f"--{name.replace('_', '-')}." in text


# The best checkpoint.


@pytest.mark.parametrize(
    ("higher_is_better", "measures"), [(True, [1, 3, 3, 2]), (False, [4, 2, 2, 3])]
)
def test_the_best_is_the_latest_among_equals_and_what_training_leaves(
    tmp_path, higher_is_better, measures
):
    task = Copying(map(float, measures), higher_is_better)
    model, best = run(tmp_path, steps=4, evaluate_every=1, task=task)
    assert best == {"step": 3, "measure": float(measures[2]), "other": 7.0}
    saved, metadata = load_model(tmp_path / "best.safetensors")
    assert metadata["best"] == best and metadata["task"] == {"symbols": "abcde"}
    assert saved.config == model.config
    assert_same_weights(model.state_dict(), task.weights_evaluated[2])
    assert_same_weights(saved.state_dict(), task.weights_evaluated[2])
    assert_array_equal(
        last(tmp_path)[0]["decoder.layers.0.feed_forward.norm.gamma"],
        task.weights_evaluated[3]["decoder.layers.0.feed_forward.norm.gamma"],
    )


def test_the_best_of_before_an_interruption_still_counts(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, steps=4, evaluate_every=1, task=Copying([5.0, 1.0], at={2: send_ctrl_c}))
    _, best = run(tmp_path, steps=4, evaluate_every=1, task=Copying([2.0, 3.0]), resume=True)
    assert (best["step"], best["measure"]) == (1, 5.0)


# Broken numbers.


def inject(monkeypatch, model, where, value):
    """From the second step on the loss, or one gradient, is `value`."""
    forward, calls = CrossEntropy.forward, []

    def broken_loss(self, *inputs):
        calls.append(forward(self, *inputs))
        return np.float32(value) if where == "loss" and len(calls) > 1 else calls[-1]

    def broken_gradient(dlogits):
        Transformer.backward(model, dlogits)
        if where == "gradient" and len(calls) > 1:
            model.output.weight.grad[3, 1] = value

    monkeypatch.setattr(CrossEntropy, "forward", broken_loss)
    model.backward = broken_gradient


PLACES = {
    "loss": "loss (CrossEntropy), in the output of its forward",
    "gradient": "the model (Transformer), in the gradient of source.embedding.weight",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_broken_numbers_stop_training_before_they_touch_the_weights(
    tmp_path, monkeypatch, where, value, clip_norm
):
    model, before = tiny(), {}
    inject(monkeypatch, model, where, value)
    task = Copying(at={2: lambda: before.update(model.state_dict())})
    text = broken(model, tmp_path, task, clip_norm=clip_norm)
    assert re.match(r"step 2: loss .*, gradient norm .*; the first to break is ", text)
    assert f"is {PLACES[where]}. " in text
    assert_same_weights(model.state_dict(), before)
    assert model.pending() == 0


@pytest.mark.parametrize("index", [0, 1])
def test_broken_numbers_in_parts_are_named(tmp_path, monkeypatch, index):
    """The replay is in this process, whichever the numbers broke in."""
    model, now, compute = tiny(), [], Parts._compute

    def noted(self, step, index, *others):
        now[:] = [index]
        return compute(self, step, index, *others)

    def break_this_part(dx):
        if now == [index]:
            write(dx, np.nan)

    monkeypatch.setattr(Parts, "_compute", noted)
    spoil(model.encoder.layers[0].feed_forward.sublayer.outer, break_this_part)
    text = broken(model, tmp_path, parts=2)
    place = "encoder.layers.0.feed_forward.sublayer.outer (Linear), in what its backward returns"
    assert text.startswith("step 1: ") and place in text


def broken(model, folder, task=None, parts=1, **changes) -> str:
    """What is said when training stops, in one line."""
    task, schedule = task or Copying(), Schedule(5, evaluate_every=1)
    with pytest.raises(BrokenNumbers) as caught:
        train(model, task, folder, schedule, recipe(**changes), parts=parts)
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


def write(array, value):
    array[...] = value


FEED_FORWARD = "encoder.layers.0.feed_forward"
ATTENTION = "decoder.layers.0.self_attention.sublayer.attention"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "change", "place"),
    [
        (
            f"{FEED_FORWARD}.norm",
            lambda norm: write(norm.gamma.data[1:2], np.nan),
            f"the parameter {FEED_FORWARD}.norm.gamma, before the step",
        ),
        (
            f"{FEED_FORWARD}.sublayer",
            lambda part: [write(p.data, 1e25) for p in part.named_parameters().values()],
            f"{FEED_FORWARD}.sublayer.outer (Linear), in the output of its forward",
        ),
        (
            "encoder.layers.0.self_attention.norm",
            lambda norm: write(norm.gamma.data, 3e38),
            "encoder.layers.0.self_attention.norm (LayerNorm), in the output of its forward",
        ),
        (
            ATTENTION,
            lambda part: spoil(part, lambda returned: write(returned[1], np.nan)),
            f"{ATTENTION} (ScaledDotProductAttention), in what its backward returns",
        ),
        (
            f"{FEED_FORWARD}.norm",
            lambda norm: spoil(norm, lambda dx: write(norm.beta.grad, -np.inf)),
            f"{FEED_FORWARD}.norm (LayerNorm), in the gradient of {FEED_FORWARD}.norm.beta",
        ),
        (  # the square of 1e20 is no float32
            f"{FEED_FORWARD}.norm",
            lambda norm: spoil(norm, lambda dx: write(norm.beta.grad, -1e20)),
            f"the norm alone, by the size of the gradient of {FEED_FORWARD}.norm.beta",
        ),
    ],
    ids=["weight", "overflow", "gamma", "backward", "gradient", "norm"],
)
def test_the_first_that_broke_is_named(tmp_path, name, change, place):
    model = tiny()
    change(model.named_layers()[name])
    methods = {n: set(vars(layer)) for n, layer in model.named_layers().items()}
    assert f"the first to break is {place}. " in broken(model, tmp_path)
    for n, layer in model.named_layers().items():
        assert set(vars(layer)) - {"_saved"} == methods[n] - {"_saved"}  # nobody watches any more


def test_a_sum_that_broke_belongs_to_the_layer_around_it():
    """Two finite addends: the norm that gets their sum is given what is not finite already."""

    class Doubling(Layer):
        def __init__(self):
            self.inner = ReLU()

        def forward(self, x):
            return self.inner.forward(x + x)

    layer, x = Doubling(), np.full(3, 3e38, np.float32)
    with np.errstate(over="ignore"):
        place = first_broken(layer.named_layers(), {}, lambda: layer.forward(x))
    assert place == "the model (Doubling), in the output of its forward"
    assert first_broken(layer.named_layers(), {}, lambda: layer.forward(x / 4)) is None


def test_a_huge_rate_is_caught_in_the_next_step_and_what_was_saved_stands(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, task=Copying(at={1: send_ctrl_c}), factor=1e30)
    with pytest.raises(BrokenNumbers) as caught:
        run(tmp_path, factor=1e30, resume=True)
    text = str(caught.value)
    assert text.startswith("step 2: ") and "Linear" in text and "smaller --factor" in text
    assert last(tmp_path)[1]["step"] == 1


def test_weights_so_large_that_decoding_breaks_are_told_of(tmp_path):
    """Empty sentences would be scored as if the model had written them."""
    text = broken(tiny(), tmp_path, factor=1e30)
    assert text.startswith("step 1: the evaluation's logits are NaN")


def test_an_update_that_breaks_a_weight_is_never_saved(tmp_path, monkeypatch):
    model, original = tiny(), Optimizer.step

    def step(self, rate):
        original(self, rate)
        if self.steps == 2:
            model.decoder.layers[0].feed_forward.norm.beta.data[0] = np.inf

    monkeypatch.setattr(Optimizer, "step", step)
    text = broken(model, tmp_path)
    assert "step 2: its update made decoder.layers.0.feed_forward.norm.beta not finite" in text
    assert last(tmp_path)[1]["step"] == 1
    assert len(logged(tmp_path, "measure")) == 1  # it is not measured either


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_measure_that_is_no_number_stops_training(tmp_path, value):
    """As the best it would never be replaced."""
    text = broken(tiny(), tmp_path, Copying([1.0, value]))
    assert f"step 2: the evaluation's measure is {value}" in text
    assert last(tmp_path)[1]["best"]["step"] == 1


def test_broken_weights_are_never_saved_even_where_nothing_is_measured(tmp_path, monkeypatch):
    """Then `--resume` would refuse the run for ever."""
    step = Optimizer.step

    def broken_step(self, rate):
        step(self, rate)
        self.parameters.data[3] = np.nan

    monkeypatch.setattr(Optimizer, "step", broken_step)
    with pytest.raises(BrokenNumbers, match="its update made"):
        run(tmp_path, task=Copying(at={1: send_ctrl_c}))
    assert not (tmp_path / "last.safetensors").exists()


def test_measures_may_be_numpys_numbers_but_must_be_numbers(tmp_path, complaint):
    _, best = run(tmp_path, task=Copying([np.float32(0.5), np.int64(2)]))
    assert best["measure"] == 2 and {type(v) for v in best.values()} == {int, float}


@pytest.mark.parametrize(
    "found",
    [
        None, 0.5, [0.5], {}, {"other": 1.0}, {"measure": "high"}, {"measure": None},
        {"measure": 1.0, "step": 99}, {"measure": 1.0, 3: 1.0}, {"measure": 10**400},
    ],
    ids=lambda found: repr(found)[:20],
)  # fmt: skip
def test_what_is_no_number_by_the_name_of_the_metric_is_refused(tmp_path, found, complaint):
    task = Copying()
    task.evaluate = lambda model: found
    text = complaint(run, tmp_path, task=task)
    assert "gives a number for each measure by its name, 'measure' among them" in text
    assert repr(found)[:200] in text


class Own(Transformer):
    """A model that is in no file of numformer/models, with an objective of its own."""

    def objective(self, label_smoothing=0.0):
        @dataclasses.dataclass  # which makes it equal to its like, so it cannot be hashed
        class Halved(Layer):
            whole: Layer

            def forward(self, *inputs):
                return 0.5 * self.whole.forward(*inputs)

            def backward(self, dloss=1.0):
                return self.whole.backward(0.5 * dloss)

        return Halved(super().objective(label_smoothing))


def test_a_model_of_one_s_own_trains_resumes_and_is_loaded_by_its_class(tmp_path, complaint):
    def own(folder, task=None, **options):
        folder.mkdir(exist_ok=True)
        model = Own(Config.base(9, **SIZES), seed=5)
        schedule = Schedule(9, log_every=3, evaluate_every=5)
        return model, train(model, task or Copying(), folder, schedule, recipe(), **options)

    folders = [tmp_path / "a", tmp_path / "b"]
    model, _ = own(folders[0])
    with pytest.raises(Interrupted):
        own(folders[1], Copying(at={6: send_ctrl_c}))
    own(folders[1], resume=True)
    assert_same_run(*folders)
    best = folders[0] / "best.safetensors"
    assert_same_weights(load_model(best, Own)[0].state_dict(), model.state_dict())
    assert "received 'test_loop'" in complaint(load_model, best)
    assert "which holds 'test_loop'" in complaint(load_model, best, Transformer)


def test_broken_numbers_of_an_objective_of_one_s_own_are_named(tmp_path, monkeypatch):
    model = Own(Config.base(9, **SIZES), seed=5)
    forward = CrossEntropy.forward
    monkeypatch.setattr(
        CrossEntropy, "forward", lambda *inputs: forward(*inputs) * np.float32("nan")
    )
    assert "whole.loss (CrossEntropy), in the output of its forward" in broken(model, tmp_path)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_run_with_an_optimizer_of_one_s_own_is_resumed_too(tmp_path, monkeypatch, parts):
    """One that keeps no vector, and one that keeps its own."""

    def plain(data, grad, *, step, rate):
        data -= rate * grad

    def momentum(data, grad, velocity, *, step, rate):
        velocity *= 0.5
        velocity += grad
        data -= rate * velocity

    for rule in (plain, momentum):
        monkeypatch.setitem(OPTIMIZERS, rule.__name__, rule)
        how = dict(optimizer=rule.__name__, parts=parts, steps=6)
        folders = [tmp_path / f"{rule.__name__}{name}" for name in "ab"]
        run(folders[0], **how)
        with pytest.raises(Interrupted):
            run(folders[1], task=Copying(at={3: send_ctrl_c}), **how)
        run(folders[1], resume=True, **how)
        assert_same_run(*folders)


# Ctrl-C.


def test_training_outside_the_main_thread_needs_no_signals(tmp_path):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        _, best = pool.submit(run, tmp_path).result()
    assert best["step"] == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_step_save_and_say_so(tmp_path, number):
    with pytest.raises(Interrupted, match=r"stopped at step 2; continue with --resume"):
        run(tmp_path, task=Copying(at={2: lambda: os.kill(os.getpid(), number)}))
    assert last(tmp_path)[1]["step"] == 2
    assert not (tmp_path / "best.safetensors").exists()


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, task=Copying(at={2: lambda: (send_ctrl_c(), send_ctrl_c())}))
    assert not (tmp_path / "last.safetensors").exists()


@pytest.mark.parametrize("what", [lambda: None, send_ctrl_c, fail])
def test_ctrl_c_means_afterwards_what_it_meant_before(tmp_path, what):
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGINT, mine)
    try:
        run(tmp_path, task=Copying(at={2: what}))
    except (Interrupted, RuntimeError):
        pass
    finally:
        assert signal.signal(signal.SIGINT, before) is mine


# Resuming.


@pytest.fixture
def straight(tmp_path):
    """A run of 14 steps without interruption: logs at 3, 6, 9, 12, 14, evaluates at 5, 10, 14."""
    folder = tmp_path / "straight"
    model, best = run(folder, steps=14, task=Copying([1.0, 3.0, 2.0]))
    return folder, model, best


@pytest.mark.parametrize("step", [1, 6, 7, 10, 13])
def test_a_run_resumed_after_ctrl_c_is_the_straight_run(tmp_path, straight, step):
    """Dropout, Adam, the schedule, data and the loss of a half-full line go on where they were."""
    expected, expected_model, expected_best = straight
    folder = tmp_path / "resumed"
    measures = iter([1.0, 3.0, 2.0])
    with pytest.raises(Interrupted):
        run(folder, steps=14, task=Copying(measures, at={step: send_ctrl_c}))
    model, best = run(folder, steps=14, task=Copying(measures), resume=True)
    assert_same_run(folder, expected)
    assert_same_weights(model.state_dict(), expected_model.state_dict())
    assert best == expected_best and best["step"] == 10


def test_a_run_resumed_after_a_kill_repeats_what_was_not_saved(tmp_path, straight):
    """Metrics of steps after the checkpoint, and a line cut in two, are written anew."""
    folder = tmp_path / "resumed"
    with pytest.raises(RuntimeError):
        run(folder, steps=14, task=Copying([1.0], at={8: fail}))
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    run(folder, steps=14, task=Copying([3.0, 2.0]), resume=True)
    assert_same_run(folder, straight[0])


@pytest.mark.parametrize("name", ["last.safetensors", "best.safetensors"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", [1, 2])
def test_a_run_killed_around_a_write_resumes_as_the_straight_run(
    tmp_path, straight, monkeypatch, name, after, write
):
    """Before and after each checkpoint reaches its place; its temporary file is left behind."""
    folder, replace, seen = tmp_path / "resumed", os.replace, []

    def killed(source, target):
        seen.extend([target] if target.name == name else [])
        if len(seen) < write or target.name != name or after:
            replace(source, target)
        if len(seen) == write and target.name == name:
            (folder / f"{name}.partial").write_bytes(b"half")
            raise RuntimeError("killed")

    measures = [1.0, 3.0, 2.0]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(os, "replace", killed)
        run(folder, steps=14, task=Copying(measures))
    (folder / f"{name}.partial").write_bytes(b"half")
    done = last(folder)[1]["step"] // 5 if (folder / "last.safetensors").exists() else 0
    run(folder, steps=14, task=Copying(measures[done:]), resume=True)
    assert_same_run(folder, straight[0])


def test_a_run_killed_before_it_saved_anything_starts_again(tmp_path, straight):
    folder = tmp_path / "resumed"
    with pytest.raises(RuntimeError):
        run(folder, steps=14, task=Copying(at={5: fail}))
    assert metrics(folder) and not (folder / "last.safetensors").exists()
    run(folder, steps=14, task=Copying([1.0, 3.0, 2.0]), resume=True)
    assert_same_run(folder, straight[0])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("metrics.jsonl", lambda old: None, "which is damaged or missing"),
        ("metrics.jsonl", lambda old: old[:-1], "which is damaged or missing"),
        ("metrics.jsonl", lambda old: old.replace(b"3", b"4", 1), "which is damaged or missing"),
        ("best.safetensors", lambda old: None, "no file"),
        ("best.safetensors", lambda old: old[:-1], "best.safetensors"),
        ("last.safetensors", lambda old: None, "none beside its best.safetensors"),
        ("last.safetensors", lambda old: old[:-1], "last.safetensors"),
    ],
)
def test_a_damaged_run_is_refused_and_left_as_it_is(tmp_path, name, change, words, complaint):
    run(tmp_path, task=Copying([2.0, 1.0]))
    content = change((tmp_path / name).read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "last.safetensors.partial").write_bytes(b"half")
    before = files(tmp_path)
    assert words in complaint(run, tmp_path, resume=True)
    assert files(tmp_path) == before


def test_the_best_of_another_run_is_refused(tmp_path, complaint):
    for name, measures in (("a", [2.0, 1.0]), ("b", [3.0, 1.0])):
        run(tmp_path / name, task=Copying(measures))
    (tmp_path / "b/best.safetensors").replace(tmp_path / "a/best.safetensors")
    assert "belongs to its last" in complaint(run, tmp_path / "a", resume=True)


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


def test_a_run_in_parts_is_resumed_bit_for_bit_and_leaves_no_process(tmp_path):
    folders, measures = [tmp_path / "one", tmp_path / "two"], iter([1.0, 3.0, 2.0])
    run(folders[0], steps=14, task=Copying([1.0, 3.0, 2.0]), parts=2)
    with pytest.raises(Interrupted):
        run(folders[1], steps=14, task=Copying(measures, at={8: send_ctrl_c}), parts=2)
    run(folders[1], steps=14, task=Copying(measures), parts=2, resume=True)
    assert_same_run(folders[1], folders[0])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("began", "here", "kept"), [(3, 1, 3), (None, 2, 2)])
def test_a_resumed_run_keeps_the_threads_of_blas(tmp_path, monkeypatch, began, here, kept):
    """They may decide the last bits. Files of format 1 do not tell them."""
    monkeypatch.setattr(parts, "blas_threads", lambda: began)
    with pytest.raises(Interrupted):
        run(tmp_path, task=Copying(at={4: send_ctrl_c}))
    assert last(tmp_path)[1]["threads"] == began
    monkeypatch.setattr(parts, "blas_threads", lambda: here)
    run(tmp_path, resume=True)
    assert last(tmp_path)[1]["threads"] == kept


def test_a_run_may_be_resumed_twice(tmp_path, straight):
    folder, measures = tmp_path / "resumed", iter([1.0, 3.0, 2.0])
    for step, resume in ((4, False), (11, True)):
        with pytest.raises(Interrupted):
            run(folder, steps=14, task=Copying(measures, at={step: send_ctrl_c}), resume=resume)
    run(folder, steps=14, task=Copying(measures), resume=True)
    assert_same_run(folder, straight[0])


def test_resuming_a_finished_run_trains_no_further(tmp_path):
    """What a kill left half written is gone afterwards."""
    run(tmp_path, task=Copying([2.0, 1.0]))
    (tmp_path / "best.safetensors.partial").write_bytes(b"half")
    before = (tmp_path / "metrics.jsonl").read_text()
    _, best = run(tmp_path, task=Copying(at={8: fail}), resume=True)
    assert best["step"] == 5
    assert not (tmp_path / "best.safetensors.partial").exists()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_new_run_does_not_continue_old_metrics(tmp_path):
    run(tmp_path)
    run(tmp_path)
    assert len(metrics(tmp_path)) == 5


@pytest.mark.parametrize(
    "change",
    [dict(d_ff=20), dict(p_drop=0.3), dict(seed=2), dict(steps=9), dict(parts=2), dict(beta1=0.5)],
    ids=str,
)
def test_resuming_with_another_config_or_seed_is_refused(tmp_path, change, complaint):
    run(tmp_path)
    before = files(tmp_path)
    assert "settings, seed, steps and parts" in complaint(run, tmp_path, resume=True, **change)
    assert files(tmp_path) == before


def test_resuming_without_the_last_checkpoint_is_refused(tmp_path, complaint):
    run(tmp_path)
    (tmp_path / "last.safetensors").unlink()
    assert "last.safetensors" in complaint(run, tmp_path, resume=True)


def test_resuming_from_a_file_that_holds_only_a_model_is_refused(tmp_path, complaint):
    """best.safetensors put in the place of last.safetensors."""
    run(tmp_path)
    (tmp_path / "best.safetensors").replace(tmp_path / "last.safetensors")
    assert "last.safetensors" in complaint(run, tmp_path, resume=True)


def test_checkpoints_hold_what_they_say(tmp_path):
    """JSON and arrays that any safetensors reader opens; the metrics too are plain JSON."""
    model, _ = run(tmp_path)
    tensors, metadata = last(tmp_path)
    assert tensors.keys() - model.state_dict().keys() == {"optimizer.mean", "optimizer.square"}
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
    assert metadata["step"] == 7 and metadata["seed"] == 1 and metadata["losses"] == []
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["step"] == 3


def test_what_an_interrupted_step_saved_is_forgotten(tmp_path):
    model = tiny()
    model.forward(np.array([[4, 2]]), np.array([[1, 4]]))
    assert model.pending()
    Trainer(model, Copying(), tmp_path, 1, Recipe())
    assert not model.pending()


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux do parts have processes")
def test_the_steps_of_a_run_in_parts_clip_and_have_processes(tmp_path, monkeypatch):
    found, alive = [], []
    for cores in (1, 2):
        monkeypatch.setattr(parts, "cores", lambda cores=cores: cores)
        task = Copying(at={2: lambda: alive.append(len(multiprocessing.active_children()))})
        changes = dict(clip_norm=0.01, adam_epsilon=1.0)  # so that Adam feels the gradient's size
        run(tmp_path / str(cores), task=task, steps=4, parts=2, **changes)
        found.append(last(tmp_path / str(cores))[0])
    assert alive == [0, 1]
    assert_same_weights(*found)


def test_a_logged_loss_is_the_mean_of_all_steps_since_the_last(tmp_path, monkeypatch):
    losses, advance = [], Trainer.advance

    def noted(trainer):
        advance(trainer)
        losses.append(trainer.losses[-1])

    monkeypatch.setattr(Trainer, "advance", noted)
    run(tmp_path, steps=8, log_every=8)
    assert len(set(losses)) == 8
    assert logged(tmp_path, "loss") == [pytest.approx(np.mean(losses))]


def test_a_schedule_is_not_changed_once_it_is_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Schedule(3).steps = 0
