"""Runs that go on: to the same bits as straight ones, with their settings, or refused unharmed."""

import functools
import json
import zlib
from pathlib import Path

import pytest

from numformer.backend import seed_sequence
from numformer.data import Vocabulary
from numformer.models import Config, Transformer
from numformer.training import Schedule, train
from numformer.training.optimizers import OPTIMIZERS
from numformer.training.recipe import Recipe
from tests.equal_runs import without_seconds
from tests.toy_tasks.small import RUN, SHORT, TINY, assert_refused, copying, files_of
from toy_tasks import pronounce, sort
from toy_tasks.kit import sequences
from toy_tasks.kit.sequences import DEFAULTS, SequenceTask

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize("vectors", [0, 1])
def test_a_run_with_another_optimizer_is_resumed(vectors, call, interrupted_at, monkeypatch):
    """Its last.safetensors is smaller than Adam's."""

    def plain(data, grad, *, step, rate):
        data -= rate * grad

    def momentum(data, grad, velocity, *, step, rate):
        velocity += grad
        data -= rate * velocity

    monkeypatch.setitem(OPTIMIZERS, "own", (plain, momentum)[vectors])
    with interrupted_at(5):
        flags = [*RUN, "--optimizer", "own", "--d-model", "32", "--out", "own"]
        assert call(copying, *flags)[0] == 130
    assert call(copying, "--resume", "--out", "own")[0] in (0, 1)


@pytest.mark.parametrize("step", [3, 5])
def test_a_resumed_run_is_the_straight_run(step, call, interrupted_at):
    assert call(copying, *RUN, "--out", "straight")[0] == 1
    with interrupted_at(step):
        code, _, err = call(copying, *RUN)
    assert code == 130 and err[0].startswith(f"stopped at step {step}, which is saved; go on")
    config = Path("runs/copy_task/config.json").read_text()
    code, out, err = call(copying, "--resume")
    assert (code, err) == (1, [])  # the target is missed as before
    assert out[0] == f"going on with runs/copy_task, after step {step} of 6"
    assert Path("runs/copy_task/config.json").read_text() == config
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))
    assert len(list(Path("runs").iterdir())) == 1


def test_train_from_python_trains_as_the_script_does(call):
    """The same bits with the same settings, its own default of parts included."""
    assert call(copying, *RUN, "--out", "script")[0] == 1
    sizes = dict(d_model=8, d_ff=8, heads=1, layers=1, p_drop=0.1)
    config = Config.base(len(Vocabulary(SHORT.symbols)), **sizes)
    of_tasks = {key: DEFAULTS[key] for key in ("warmup", "factor", "decay", "clip_norm")}
    recipe = Recipe(**of_tasks, label_smoothing=0.0)
    model = Transformer(config, seed_sequence(1, "weights"))
    train(model, SequenceTask(SHORT, 4, 1), "made/python", Schedule(6, 2, 4), recipe, seed=1)
    of_script = without_seconds(Path("script"))
    del of_script["config.json"]
    assert without_seconds(Path("made/python")) == of_script


def test_a_finished_run_is_resumed_by_testing_it_again(call):
    """The latest, unless --out names another."""
    for name in ("copy_task", "copy_task-2"):
        assert call(copying, *RUN)[1][0].startswith(f"runs/{name}: ")
    call(copying, *RUN, "--quick")  # which is none of them
    before = Path("runs/copy_task-2/metrics.jsonl").read_bytes()
    for flags, name in ([], "copy_task-2"), (["--out", "runs/copy_task"], "copy_task"):
        code, out, _ = call(copying, "--resume", *flags)
        assert code == 1 and out[0] == f"runs/{name} is finished: all 6 steps were taken"
    assert Path("runs/copy_task-2/metrics.jsonl").read_bytes() == before


def test_a_run_goes_on_for_more_steps_where_its_rate_does_not_know_the_end(call, interrupted_at):
    """As one that was asked for them at once; then config.json says so, too."""
    flags = [*TINY, *"--evaluate-every 2 --log-every 2 --decay inverse_sqrt".split()]
    assert call(copying, *flags, "--steps", "8", "--out", "straight")[0] == 1
    assert call(copying, *flags, "--steps", "4")[0] == 1
    with interrupted_at(6):
        assert call(copying, "--resume", "--steps", "8")[0] == 130
    code, out, _ = call(copying, "--resume")  # which knows of 8 by now
    assert code == 1 and out[0] == "going on with runs/copy_task, after step 6 of 8"
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))
    assert call(copying, "--resume")[1][0].endswith("is finished: all 8 steps were taken")
    assert call(copying, *RUN, "--out", "linear")[0] == 1
    for run, steps, words in (
        ("runs/copy_task", "6", ["has taken 8"]),
        ("linear", "9", ["falls to 0", "steps 9 instead of 6"]),
    ):
        before = files_of(run)
        code, _, err = call(copying, "--resume", "--out", run, "--steps", steps)
        assert_refused((code, [], err), *words)
        assert files_of(run) == before


def test_the_run_that_is_resumed_is_the_latest(call):
    """By number, not by name; a folder of another name is none of its runs."""
    for name in ("copy_task", "copy_task-9", "copy_task-10", "copy_task-old", "copy_task-11"):
        Path("runs", name).mkdir(parents=True)
        if name != "copy_task-11":
            Path("runs", name, "config.json").write_text("{}")
    assert_refused(call(copying, "--resume"), "runs/copy_task-10 ")


@pytest.mark.parametrize(("old", "new"), [("a", "x"), ("ba\tB A", "ba\tA B")])
def test_a_run_on_other_data_is_refused(old, new, data, call):
    """As many words of other symbols are other data, and so are others of the same symbols."""
    call(pronounce.main, "--language", "toy", *RUN, "--data", str(data))
    before = files_of("runs")
    for path in data.iterdir():
        path.write_text(path.read_text().replace(old, new))
    code, _, err = call(pronounce.main, "--resume", "--language", "toy")
    assert_refused((code, [], err), "data that it was started with")
    assert files_of("runs") == before


def test_a_resumed_run_keeps_its_settings_and_its_script(call):
    call(copying, *RUN)
    before = files_of("runs")
    for flags, key in (
        ("--d-model 16", "d_model"),
        ("--p-drop 0.2", "p_drop"),
        ("--seed 3", "seed"),
        ("--batch-size 5", "batch_size"),
        ("--attention-bias", "attention_bias"),
        ("--quick --out runs/copy_task", "quick"),
    ):
        words = f"here {key} = ", f"Leave out --{key.replace('_', '-')}"
        assert_refused(call(copying, "--resume", *flags.split()), *words)
    sorting = functools.partial(sequences.main, sort.RULE)
    refused = call(sorting, "--resume", "--out", "runs/copy_task")
    assert_refused(refused, "a run of copy_task", "python -m toy_tasks.copy_task")
    assert files_of("runs") == before


def test_a_config_json_that_no_run_wrote_is_refused(call):
    """Edited, which its checksum shows; and with a checksum that is right."""
    call(copying, *RUN, "--out", "mine")
    path = Path("mine/config.json")
    written = path.read_text()
    for key, value, said in (
        ("steps", "many", "argument --steps: an integer below"),
        ("seed", -1, "a seed is at least 0"),
        ("batch_size", [], "no run has batch_size []"),
        ("d_model", None, "no run has d_model None"),
        ("p_drop", "high", "argument --p-drop: invalid float value"),
        ("p_drop", float("nan"), "p_drop"),
        ("norm", "middle", "norm is one of post, pre"),
        ("quick", "yes", "no run has quick 'yes'"),
    ):
        settings = json.loads(written)
        settings["options"][key] = value
        path.write_text(json.dumps(settings))
        assert_refused(call(copying, "--resume", "--out", "mine"), "config.json was changed")
        del settings["crc32"]
        settings["crc32"] = zlib.crc32(json.dumps(settings).encode())
        path.write_text(json.dumps(settings))
        before = files_of("mine")
        code, _, err = call(copying, "--resume", "--out", "mine")
        assert_refused((code, [], err), said)
        assert files_of("mine") == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", '{"options": []}', '{"crc32": 0}', "[" * 10**5]
)
def test_a_damaged_config_json_is_refused(content, call):
    Path("mine").mkdir()
    Path("mine/config.json").write_text(content)
    assert_refused(call(copying, "--resume", "--out", "mine"), "config.json", "received mine")
