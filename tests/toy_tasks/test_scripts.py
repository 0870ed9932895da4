"""The toy tasks as programs: run folders, exit codes, complaints, resume; and their data."""

import dataclasses
import functools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.backend import seed_sequence
from numformer.data import PairBatch, Vocabulary
from numformer.models import Config, Transformer
from numformer.training import Schedule, train
from numformer.training.checkpoints import load_checkpoint, load_model
from numformer.training.optimizers import OPTIMIZERS
from numformer.training.recipe import Recipe
from numformer.training.run_folder import read_metrics
from tests.equal_runs import without_seconds
from toy_tasks import addition, copy_task, pronounce, reverse, sort, walk
from toy_tasks.kit import datasets
from toy_tasks.kit.sequences import DEFAULTS, SequenceTask, held_out
from toy_tasks.kit.sequences import main as sequences_main
from toy_tasks.kit.transduction import edit_distance
from toy_tasks.pairs import PairsTask

ROOT = Path(__file__).parents[2]
RULES = [copy_task.RULE, reverse.RULE, sort.RULE, addition.RULE, walk.RULE]
SHORT = dataclasses.replace(copy_task.RULE, source=lambda rng: str(rng.integers(10**5)))
pytestmark = pytest.mark.usefixtures("empty_folder")
TINY = "--d-model 8 --d-ff 8 --heads 1 --layers 1 --batch-size 4 --no-plots".split()


def copying(arguments: list[str]) -> int:
    """The copy task on short sequences."""
    return sequences_main(SHORT, arguments)


def program(name: str, *arguments, **options) -> subprocess.Popen:
    """Start `python -m toy_tasks.NAME` on one core, with the code of this folder."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"toy_tasks.{name}", *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    return subprocess.Popen(command, env=environment, **pipes, **options)


def files_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir()}


def lines_of(run: Path) -> str:
    return (run / "metrics.jsonl").read_text()


# Programs.


FILES = {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}
PICTURES = {"loss.png", "attention.png"}


@pytest.mark.parametrize("name", ["copy_task", "reverse", "sort", "addition", "walk", "pronounce"])
def test_quick_run_of_a_program(name, request):
    flags = ["--quick"]
    if name != "copy_task":  # one of them with the sizes that it has by default
        flags += "--d-model 16 --d-ff 16 --layers 1".split()
    if name == "pronounce":
        flags += ["--language", "toy", "--data", str(request.getfixturevalue("data"))]
    process = program(name, *flags)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    last = "word error rate" if name == "pronounce" else "exact match"
    assert re.fullmatch(rf"{last} \d+\.\d+", out.splitlines()[-1])
    run = Path("runs") / f"{'pronounce-toy' if name == 'pronounce' else name}-quick"
    assert {path.name for path in run.iterdir()} == FILES | PICTURES
    for picture in PICTURES:
        content = (run / picture).read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in content[-12:]
    settings = json.loads((run / "config.json").read_text())
    assert settings["options"]["quick"] and settings["options"]["steps"] == 20
    model, _ = load_model(run / "best.safetensors")
    assert settings["config"] == dataclasses.asdict(model.config)
    assert [line["step"] for line in read_metrics(run / "metrics.jsonl")] == [20, 20]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_stopped_by_ctrl_c_or_sigterm_has_saved(number):
    """As on a terminal, where the signal comes to all processes of the group."""
    process = program("copy_task", *TINY, "--log-every", 1, "--parts", 2, start_new_session=True)
    metrics = Path("runs/copy_task/metrics.jsonl")
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    metadata = load_checkpoint(metrics.parent / "last.safetensors")[1]
    assert metadata["parts"] == 2
    step = metadata["step"]
    again = "python -m toy_tasks.copy_task --resume --out runs/copy_task"
    assert err == f"stopped at step {step}, which is saved; go on with: {again}\n"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (MemoryError("no 9 TiB"), "fit into memory; received no 9 TiB"),
        (ChildProcessError("one was ended"), "all its processes; received one was ended"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "standard input is UTF-8; received"),
        (OSError(28, "No space left on device"), "written; received [Errno 28] No space"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_trouble_of_the_machine_is_one_line(problem, said, call):
    def fail(arguments):
        raise problem

    code, _, err = call(fail)
    assert code == 2 and len(err) == 1 and said in err[0]


def test_a_program_that_fails_prints_one_line():
    process = program("reverse", "--heads", 3)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: d_model is a multiple of heads; received d_model 64, heads 3.")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


# Run folders.


def test_the_next_run_goes_to_the_next_folder(call):
    for number in range(3):
        code, out, _ = call(copying, *TINY, "--quick", "--steps", "1")
        folder = f"runs/copy_task-quick{f'-{number + 1}' if number else ''}"
        assert code == 0 and out[0].startswith(f"{folder}: ")
        assert {path.name for path in Path(folder).iterdir()} == FILES  # TINY has --no-plots
    assert len(list(Path("runs").iterdir())) == 3


def test_an_explicit_folder_may_be_new_or_empty(call):
    Path("empty").mkdir()
    for folder in ("empty", "new/below"):
        assert call(copying, *TINY, "--quick", "--steps", "1", "--out", folder)[0] == 0
        assert {path.name for path in Path(folder).iterdir()} == FILES


def test_a_folder_in_which_another_run_begins_or_goes_on_is_refused(call):
    """A new run and a resumed one; the lock ends with the process that holds it."""
    flags = [*RUN, "--out", "mine"]
    call(copying, *flags)
    hold = "import pathlib, numformer.training.files as io\nwith io.locked(pathlib.Path('mine')):\n"
    command = [sys.executable, "-c", f"{hold}    print(1, flush=True); input()"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    before = files_of(Path("mine"))
    with subprocess.Popen(command, env=environment, **pipes) as holder:
        assert holder.stdout.readline() == b"1\n"
        for again in (flags, ["--resume", "--out", "mine"]):
            assert_refused(call(copying, *again), ["received mine, which another process"])
        holder.kill()
    assert files_of(Path("mine")) == before
    assert call(copying, "--resume", "--out", "mine")[0] == 1


def test_a_run_killed_before_its_config_was_written_may_begin_again(call):
    Path("mine").mkdir()
    Path("mine/config.json.partial").write_text('{"opt')
    assert_refused(call(copying, "--resume", "--out", "mine"), ["config.json", "start a new run"])
    assert os.listdir("mine") == ["config.json.partial"]
    assert call(copying, *TINY, "--quick", "--steps", "1", "--out", "mine")[0] == 0
    assert {path.name for path in Path("mine").iterdir()} == FILES


def test_an_occupied_folder_is_refused_and_left_alone(call):
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    code, _, err = call(copying, *TINY, "--out", "mine")
    assert code == 2 and "new or empty; received mine" in err[0] and "--resume" in err[0]
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


# Exit codes.


def test_a_run_that_misses_its_target_ends_with_1_and_one_that_reaches_it_with_0(call):
    code, out, _ = call(copying, *TINY, "--steps", "1")
    assert code == 1 and out[-1] == "exact match 0.0000"
    assert out[-2].endswith("target exact match 0.999: MISSED")
    rule = dataclasses.replace(SHORT, reached=0.0)
    code, out, _ = call(lambda given: sequences_main(rule, given), *TINY, "--steps", "1")
    assert code == 0 and out[-2].endswith("target exact match 0.0: reached")


def test_broken_numbers_end_with_3(call):
    with np.errstate(all="ignore"):
        code, _, err = call(copying, *TINY, "--steps", "9", "--factor", "1e30")
    assert code == 3
    assert len(err) == 1 and re.match(r"error: step \d: loss .*, gradient norm", err[0])


def test_a_full_disk_ends_with_2_and_loses_nothing(call):
    """While a checkpoint or a line of the metrics is written; with space the run goes on."""
    flags = [*TINY, *"--steps 24 --log-every 1 --evaluate-every 20".split()]
    call(lambda given: sequences_main(copy_task.RULE, given), *flags, "--out", "straight")
    for name, limit in (("last.safetensors", 8000), ("metrics.jsonl", 2000)):
        full = dict(preexec_fn=lambda n=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n)))
        process = program("copy_task", *flags, "--out", name, **full)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2 and err.count("\n") == 1
        assert err.startswith("error: files can be read and written; received ")
        assert f"{name}/{name}" in err and "--resume" in err
        assert not list(Path(name).glob("*.partial"))
        again = ["--resume", "--out", name]
        assert call(lambda given: sequences_main(copy_task.RULE, given), *again)[0] == 1
        found, expected = without_seconds(Path(name)), without_seconds(Path("straight"))
        assert found == expected


def test_the_seed_decides_the_initial_weights(call):
    """With next to no learning rate they are what is saved."""
    found = []
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        flags = [*TINY, *"--quick --steps 1 --factor 1e-30 --out".split(), folder]
        assert call(copying, *flags, "--seed", seed)[0] == 0
        found.append(
            load_checkpoint(Path(folder, "best.safetensors"))[0]["source.embedding.weight"]
        )
    assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


# Refusals: one line with rule, received and fix, and no trace.


def assert_refused(result, words: list[str]):
    """Exit code 2, and one line on standard error that holds `words`."""
    code, out, err = result
    assert (code, out) == (2, [])
    assert len(err) == 1
    assert re.fullmatch(r"error: .+; received .+\. .+\.?", err[0])
    for word in words:
        assert word in err[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--out file", ["new or empty", "received file"]),
        ("--out file/below", ["file/below", "--out"]),
        ("--backend cupy", ["NVIDIA GPU", "--backend numpy"]),
        ("--d-model 10 --heads 4", ["d_model 10, heads 4"]),
        ("--seed -1", ["at least 0", "received -1", "--seed"]),
        ("--steps 0", ["steps is an integer of at least 1", "received 0", "--steps"]),
        ("--steps -5 --quick", ["steps is an integer of at least 1", "received -5"]),
        ("--log-every 0", ["--log-every"]),
        ("--evaluate-every 0", ["--evaluate-every"]),
        ("--batch-size 0", ["at least 1", "received 0", "--batch-size"]),
        ("--layers 0", ["layers is an integer of at least 1"]),
        ("--p-drop 1", ["p_drop", "received 1.0"]),
        ("--factor nan", ["factor is a number above 0", "received nan"]),
        ("--resume", ["no run of copy_task"]),
        ("--resume --out absent", ["absent", "config.json"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_without_a_trace(flags, words, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # wherever the tests run: no CuPy
    Path("file").write_text("")
    assert_refused(call(copying, *flags.split()), words)
    assert os.listdir() == ["file"] and Path("file").read_text() == ""


def test_learned_positions_too_short_for_training_or_decoding_are_refused_at_the_start(data, call):
    """The longest number has five digits; a word's phonemes are decoded up to twice the longest."""
    pronouncing = functools.partial(call, pronounce.main, "--language", "toy", "--data", str(data))
    for run, enough in ((functools.partial(call, copying), 6), (pronouncing, 6)):
        flags = [*TINY, "--steps", "1", "--positions", "learned", "--max-length"]
        words = [f"max_length = {enough - 1}", f"received a task that needs {enough}", "--max-len"]
        assert_refused(run(*flags, str(enough - 1)), words)
        assert os.listdir() == ["words"]
        assert run(*flags, str(enough), "--out", "run")[0] < 2
        shutil.rmtree("run")


@pytest.mark.parametrize(
    "flags",
    ["--steps many", "--norm middle", "--colour red", "--d-model", f"--warmup 1{400 * '0'}"],
    ids=lambda flags: flags[:20],
)
def test_flags_that_argparse_cannot_read_end_with_2(flags, call):
    code, _, err = call(copying, *flags.split())
    assert code == 2 and len(err) == 1 and err[0].startswith("error: ")
    assert flags.split()[0] in err[0] and "--help" in err[0] and not os.listdir()


def test_a_flag_that_looks_like_another_is_told_which(call):
    assert "is --warmup meant?" in call(copying, "--warm-up", "3")[2][0]
    assert "meant" not in call(copying, "--colour", "red")[2][0]


def test_cupy_that_finds_no_device_is_refused_and_auto_falls_back_and_says_so(call, monkeypatch):
    """`import cupy` succeeds without a GPU."""
    without_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "cupy", without_gpu)
    assert_refused(call(copying, "--backend", "cupy"), ["CuPy finds no CUDA device"])
    code, _, err = call(copying, *TINY, "--steps", "1", "--quick", "--backend", "auto")
    assert code == 0 and len(err) == 1 and "using numpy" in err[0]


def test_the_environment_sets_the_default_backend(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setenv("NUMFORMER_BACKEND", "cupy")
    assert_refused(call(copying), ["NVIDIA GPU"])
    monkeypatch.setenv("NUMFORMER_BACKEND", "abacus")
    assert_refused(call(copying), ["NUMFORMER_BACKEND", "'abacus'"])
    assert call(copying, *TINY, "--steps", "1", "--quick", "--backend", "numpy")[0] == 0


# Help.


@pytest.mark.parametrize(
    ("main", "target"),
    [
        (lambda given: sequences_main(copy_task.RULE, given), "0.999"),
        (lambda given: sequences_main(reverse.RULE, given), "0.999"),
        (lambda given: sequences_main(sort.RULE, given), "0.999"),
        (lambda given: sequences_main(addition.RULE, given), "0.99 "),
        (lambda given: sequences_main(walk.RULE, given), "0.99 "),
        (pronounce.main, "10.2"),
    ],
    ids=["copy_task", "reverse", "sort", "addition", "walk", "pronounce"],
)
def test_help_names_every_flag_and_the_target(main, target, call):
    code, out, err = call(main, "--help")
    text = " ".join(out)
    assert code == 0 and not err and target in text.split("options:")[0]
    for flag in "steps seed backend out resume log-every quick no-plots".split():
        assert f"--{flag}" in text
    fields = [*dataclasses.fields(Config), *dataclasses.fields(Recipe)]
    flags = [field.name for field in fields if field.default is not dataclasses.MISSING]
    assert {"d_model", "norm", "clip_norm"} <= set(flags)
    for name in flags:
        assert re.search(rf"--{name.replace('_', '-')}[ ,]", text)


# Resuming.


@pytest.mark.parametrize("vectors", [0, 1])
def test_a_run_with_another_optimizer_is_resumed(vectors, call, interrupted_at, monkeypatch):
    """Its last.safetensors is smaller than Adam's."""

    def plain(data, grad, *, step, rate):
        data -= rate * grad

    def momentum(data, grad, velocity, *, step, rate):
        velocity += grad
        data -= rate * velocity

    monkeypatch.setitem(OPTIMIZERS, "own", (plain, momentum)[vectors])
    flags = [*RUN, "--optimizer", "own", "--d-model", "32", "--out", "own"]
    with interrupted_at(5):
        assert call(copying, *flags)[0] == 130
    assert call(copying, "--resume", "--out", "own")[0] in (0, 1)


RUN = [*TINY, *"--steps 6 --evaluate-every 4 --log-every 2 --p-drop 0.1".split()]


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


def test_a_finished_run_is_resumed_by_testing_it_again(call):
    """The latest, unless --out names another."""
    for name in ("copy_task", "copy_task-2"):
        assert call(copying, *RUN)[1][0].startswith(f"runs/{name}: ")
    call(copying, *RUN, "--quick")  # which is none of them
    before = lines_of(Path("runs/copy_task-2"))
    for flags, name in ([], "copy_task-2"), (["--out", "runs/copy_task"], "copy_task"):
        code, out, _ = call(copying, "--resume", *flags)
        assert code == 1 and out[0] == f"runs/{name} is finished: all 6 steps were taken"
    assert lines_of(Path("runs/copy_task-2")) == before


@pytest.mark.parametrize(("old", "new"), [("a", "x"), ("ba\tB A", "ba\tA B")])
def test_a_refused_resume_changes_nothing(old, new, data, call):
    """As many words of other symbols are other data, and so are others of the same symbols."""
    call(pronounce.main, "--language", "toy", *RUN, "--data", str(data))
    before = {path: path.read_bytes() for path in Path("runs").rglob("*.*")}
    for path in data.iterdir():
        path.write_text(path.read_text().replace(old, new))
    code, _, err = call(pronounce.main, "--resume", "--language", "toy")
    assert_refused((code, [], err), ["data that it was started with"])
    assert {path: path.read_bytes() for path in Path("runs").rglob("*.*")} == before


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ("--d-model 16", "d_model"),
        ("--p-drop 0.2", "p_drop"),
        ("--seed 3", "seed"),
        ("--batch-size 5", "batch_size"),
        ("--attention-bias", "attention_bias"),
        ("--quick --out runs/copy_task", "quick"),
    ],
)
def test_a_resumed_run_keeps_its_settings(flags, key, call):
    call(copying, *RUN)
    before = {path: path.read_bytes() for path in Path("runs").rglob("*.*")}
    result = call(copying, "--resume", *flags.split())
    assert_refused(result, [f"here {key} = ", f"Leave out --{key.replace('_', '-')}"])
    assert {path: path.read_bytes() for path in Path("runs").rglob("*.*")} == before


def test_a_run_is_resumed_by_the_script_that_began_it(call):
    call(copying, *RUN)
    code, out, err = call(
        functools.partial(sequences_main, sort.RULE), "--resume", "--out", "runs/copy_task"
    )
    assert_refused((code, out, err), ["a run of copy_task", "python -m toy_tasks.copy_task"])


def test_train_from_python_trains_as_the_script_does(call):
    """The same bits with the same settings, its own default of parts included."""
    assert call(copying, *RUN, "--out", "script")[0] == 1
    sizes = dict(d_model=8, d_ff=8, heads=1, layers=1, p_drop=0.1)
    model = Transformer(
        Config.base(len(Vocabulary(SHORT.symbols)), **sizes), seed_sequence(1, "weights")
    )
    of_tasks = {key: DEFAULTS[key] for key in ("warmup", "factor", "decay", "clip_norm")}
    recipe = Recipe(**of_tasks, label_smoothing=0.0)
    train(model, SequenceTask(SHORT, 4, 1), "made/python", Schedule(6, 2, 4), recipe, seed=1)
    found, expected = without_seconds(Path("made/python")), without_seconds(Path("script"))
    del expected["config.json"]
    assert found == expected


def test_a_run_goes_on_for_more_steps_where_its_rate_does_not_know_the_end(call):
    """As one that was asked for them at once; then config.json says so, too."""
    flags = [*TINY, *"--evaluate-every 2 --log-every 2 --decay inverse_sqrt".split()]
    assert call(copying, *flags, "--steps", "8", "--out", "straight")[0] == 1
    assert call(copying, *flags, "--steps", "4")[0] == 1
    code, out, _ = call(copying, "--resume", "--steps", "8")
    assert code == 1 and out[0] == "going on with runs/copy_task, after step 4 of 8"
    assert without_seconds(Path("runs/copy_task")) == without_seconds(Path("straight"))
    assert call(copying, "--resume")[1][0].endswith("is finished: all 8 steps were taken")
    assert call(copying, *RUN, "--out", "linear")[0] == 1
    for run, steps, words in (
        ("runs/copy_task", "6", ["has taken 8"]),
        ("linear", "9", ["falls to 0", "steps 9 instead of 6"]),
    ):
        before = files_of(Path(run))
        code, _, err = call(copying, "--resume", "--out", run, "--steps", steps)
        assert_refused((code, [], err), words)
        assert files_of(Path(run)) == before


def test_the_run_that_is_resumed_is_the_latest(call):
    """By number, not by name; a folder of another name is none of its runs."""
    for name in ("copy_task", "copy_task-9", "copy_task-10", "copy_task-old", "copy_task-11"):
        Path("runs", name).mkdir(parents=True)
        if name != "copy_task-11":
            Path("runs", name, "config.json").write_text("{}")
    assert_refused(call(copying, "--resume"), ["runs/copy_task-10 "])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("steps", "many", ["argument --steps: an integer below", "not 'many'"]),
        ("steps", True, ["no run has steps True"]),
        ("seed", -1, ["a seed is at least 0"]),
        ("batch_size", [], ["no run has batch_size []"]),
        ("d_model", None, ["no run has d_model None"]),
        ("d_model", {"a": 1}, ["no run has d_model {'a': 1}"]),
        ("p_drop", "high", ["argument --p-drop: invalid float value"]),
        ("p_drop", float("nan"), ["p_drop"]),
        ("norm", "middle", ["norm is one of post, pre"]),
        ("quick", "yes", ["no run has quick 'yes'"]),
        ("attention_bias", 1, ["no run has attention_bias 1"]),
        ("clip_norm", -1.0, ["clip_norm is a number above 0"]),
    ],
)
def test_a_config_json_that_no_run_wrote_is_refused(key, value, words, call):
    """Edited, which its checksum shows; and with a checksum that is right."""
    call(copying, *RUN, "--out", "mine")
    path = Path("mine/config.json")
    settings = json.loads(path.read_text())
    settings["options"][key] = value
    path.write_text(json.dumps(settings))
    assert_refused(call(copying, "--resume", "--out", "mine"), ["config.json was changed"])
    del settings["crc32"]
    settings["crc32"] = zlib.crc32(json.dumps(settings).encode())
    path.write_text(json.dumps(settings))
    before = files_of(Path("mine"))
    code, _, err = call(copying, "--resume", "--out", "mine")
    assert_refused((code, [], err), words)
    assert files_of(Path("mine")) == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", '{"options": []}', '{"crc32": 0}', "[" * 10**5]
)
def test_a_damaged_config_json_is_refused(content, call):
    Path("mine").mkdir()
    Path("mine/config.json").write_text(content)
    assert_refused(call(copying, "--resume", "--out", "mine"), ["config.json", "received mine"])


# Data of the sequence tasks.


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_training_never_sees_what_is_evaluated(rule, seed):
    """Neither with its own seed nor with another; the sources of a batch are read back from ids."""
    task = SequenceTask(rule, 64, seed)
    assert len(set(task.test)) == len(task.test) >= 1000
    assert len(set(task.development)) == len(task.development) >= 256
    assert not set(task.test) & set(task.development)
    trained = set()
    for step in range(1, 81):
        for row in task.batch(step).source.tolist():
            trained.add("".join(task.text.source.decode(row[: row.index(2)])))
    assert len(trained) > 4000
    for other in (task, SequenceTask(rule, 64, seed + 1)):
        assert not trained & {source for source, _ in [*other.test, *other.development]}


def test_held_out_is_one_source_in_eight_and_the_same_in_every_process():
    """Python's own hash of a string differs from process to process."""
    assert sum(map(held_out, map(str, range(8000)))) == 999
    assert [n for n in range(40) if held_out(str(n))] == [4, 14, 23, 28, 37]


@pytest.mark.parametrize(
    ("rule", "target"), [(copy_task.RULE, lambda s: s), (reverse.RULE, lambda s: s[::-1])]
)
def test_batches_hold_sources_and_their_targets(rule, target):
    task = SequenceTask(rule, 40, 1)
    batch = task.batch(3)
    lengths = set()
    for source, out in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True):
        digits_of_source = source[: source.index(2)]
        assert out[: out.index(2)] == target(digits_of_source)
        lengths.add(len(digits_of_source))
    assert min(lengths) <= 3 and max(lengths) == 16
    again = SequenceTask(rule, 40, 1).batch(3)
    assert_array_equal(again.source, batch.source)
    assert (task.batch(4).target_out[:, :2] != batch.target_out[:, :2]).any()


@pytest.mark.parametrize(
    ("rule", "source", "target"),
    [
        (sort.RULE, "3014159", "0113459"),
        (sort.RULE, "7", "7"),
        (addition.RULE, "047+921", "8690"),
        (addition.RULE, "123+989", "2111"),
        (addition.RULE, "999+999", "8991"),
        (addition.RULE, "000+000", "0000"),
        (walk.RULE, "350124", "315420"),
        (walk.RULE, "012345", "000000"),
        (walk.RULE, "524130", "505050"),
        (walk.RULE, "123433", "123434"),
    ],
)
def test_what_a_rule_asks_for(rule, source, target):
    assert rule.target(source) == target


@pytest.mark.parametrize(
    ("rule", "pattern", "lengths", "symbols"),
    [
        (sort.RULE, r"\d{1,12}", range(1, 13), "0123456789"),
        (addition.RULE, r"\d{3}\+\d{3}", [7], "0123456789"),
        (walk.RULE, r"[0-5]{6}", [6], "012345"),
    ],
)
def test_sources_of_a_rule(rule, pattern, lengths, symbols):
    """Every length, every digit in every place: a range that ends one early leaves one out."""
    rng = np.random.default_rng(0)
    sources = [rule.source(rng) for _ in range(2000)]
    assert all(re.fullmatch(pattern, source) for source in sources)
    assert {len(source) for source in sources} == {*lengths}
    for place in {0, 1, 2, 4, lengths[-1] - 1}:
        found = {source[place] for source in sources if len(source) > place}
        assert found == set(symbols)


def test_exact_match_counts_whole_sequences(monkeypatch):
    """`greedy` is replaced by one that copies, but for sources of length 3, which it cuts."""

    def almost(model, source, max_length):
        assert max_length > max(np.count_nonzero(source, axis=1) - 1)  # the end id needs room
        rows = [row[: row.index(2)] for row in source.tolist()]
        return [row[:2] if len(row) == 3 else row for row in rows]

    monkeypatch.setattr("numformer.generation.texts.greedy", almost)
    task = SequenceTask(SHORT, 4, 1)
    model = SimpleNamespace(config=SimpleNamespace(longest=None))
    task.development = [(source, (source,)) for source in ("12", "123", "1234", "5")]
    assert task.evaluate(model) == {"exact_match": 0.75}
    assert task.written(model, ["123", *["45"] * 300]) == ["12", *["45"] * 300]


# Pronounce.


SMALL_RUN = [*TINY, *"--language toy --steps 3 --evaluate-every 2 --out run".split()]


def learn(call, data, *flags):
    return call(pronounce.main, *SMALL_RUN, "--data", str(data), *flags)


def test_a_saved_run_pronounces_words(data, call):
    """Words are brought to NFC and trimmed; what training never saw is told."""
    code, out, err = learn(call, data)
    assert (code, err) == (0, [])  # this language has no target
    assert re.fullmatch(r"word error rate \d+\.\d\d", out[-1])
    code, out, err = call(pronounce.main, "--run", "run", "--word", "abc", " cafe\u0301 ")
    assert code == 0 and len(out) == 2
    assert re.fullmatch(r"((A|B|CH|<unknown>)( |$))*", out[0])
    assert err == ["note: training never saw 'f' 'é' (in ' cafe\u0301 ')"]
    asked = ["--run", "run", "--word", *["abc"] * 30]
    assert len({*call(pronounce.main, *asked, "--temperature", "5")[1]}) > 5
    assert {*call(pronounce.main, *asked)[1]} == {out[0]}


@pytest.mark.parametrize(
    ("average", "kept"), [(1, "2: word_error_rate 10"), (5, "3: word_error_rate 20")]
)
def test_test_words_are_read_once_and_last(data, call, monkeypatch, average, kept):
    """The best is chosen by development words, greedily, and a lower error rate is better."""
    measured, rates = [], iter([30.0, 10.0, 20.0, 5.0])

    def written(task, model, sources, beam=None):
        measured.append((len(sources := [*sources]), beam or task.text.beam))
        return ["A"] * len(sources)

    def measure(task, written, examples):
        return dict(word_error_rate=next(rates), phoneme_error_rate=1.0)

    monkeypatch.setattr(pronounce.PronunciationTask, "written", written)
    monkeypatch.setattr(pronounce.PronunciationTask, "measure", measure)
    (data / "toy_test.tsv").write_text("ab\tA B\n", encoding="utf-8")
    _, out, _ = learn(call, data, "--evaluate-every", "1", "--average", str(average))
    assert measured == [(6, 1)] * 3 + [(1, 5)]
    assert f"kept at step {kept}.0000" in out
    assert out[-2:] == ["phoneme error rate 1.00", "word error rate 5.00"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--language", "xyz"], ["dut, fre, vie_hanoi", "'xyz'", "--data"]),
        (["--language", "xyz", "--data", "words"], ["xyz_train.tsv", "No such file"]),
        (["--language", "../toy", "--data", "words"], ["ASCII letters"]),
        (["--language", "toy", "--data", "absent"], ["absent/toy_train.tsv"]),
        (["--word", "ab"], ["for a trained model", "no --run"]),
        (["--run", "absent", "--word", "ab"], ["received absent, which is not there"]),
        (["--run", "words", "--word", "ab"], ["no file words/best.safetensors"]),
        (["--run", "words", "--attention", "a.png"], ["one text", "0 with --input"]),
        (["--language", "toy", "--data", "words", "--tying", "all"], ["tying all", '"target"']),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_pronounce_refuses_without_a_trace(flags, words, data, call):
    assert_refused(call(pronounce.main, *flags), words)
    assert os.listdir() == ["words"]


def test_tying_all_needs_the_same_symbols_not_as_many(data, call):
    for path in data.iterdir():
        path.write_text("ab\tA B\n", encoding="utf-8")
    flags = ["--tying", "all", "--steps", "1", "--out", "run"]
    assert_refused(learn(call, data, *flags), ["tying all", "2 and 2 symbols, not all"])
    assert os.listdir() == ["words"]
    for path in data.iterdir():
        path.write_text("ab\tb a\n", encoding="utf-8")
    assert learn(call, data, *flags)[0] == 0


def test_a_run_from_before_there_was_a_setting_goes_on_without_it(data, call):
    """Not with what the task sets today."""
    assert pronounce.DEFAULTS["average"] > 1
    learn(call, data, "--average", "1")
    path = Path("run/config.json")
    settings = json.loads(path.read_text())
    del settings["crc32"], settings["options"]["average"], settings["options"]["activation"]
    path.write_text(json.dumps(settings | {"crc32": zlib.crc32(json.dumps(settings).encode())}))
    code, out, _ = call(pronounce.main, "--resume", "--out", "run", "--data", str(data))
    assert code == 0 and out[0].startswith("run is finished")


def test_the_latest_run_that_is_resumed_is_of_the_language(data, call):
    for path in data.iterdir():
        shutil.copy(path, path.with_name(path.name.replace("toy", "two")))
    flags = [*TINY, "--steps", "1", "--data", str(data), "--language"]
    for language in ("two", "toy", "two"):
        assert call(pronounce.main, *flags, language)[0] == 0
    assert sorted(os.listdir("runs")) == ["pronounce-toy", "pronounce-two", "pronounce-two-2"]
    for language, folder in (("toy", "pronounce-toy"), ("two", "pronounce-two-2")):
        code, out, _ = call(pronounce.main, "--resume", "--language", language)
        assert code == 0 and out[0].startswith(f"runs/{folder} is finished")
    result = call(pronounce.main, "--resume", "--language", "(")
    assert_refused(result, ["no run of pronounce-( under runs/"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"ab\tA B\nba B A\n", ["line 2", "exactly one TAB"]),
        (b"ab\tA B\n\xff\tB\n", ["line 2", "UTF-8"]),
    ],
    ids=["empty", "misaligned", "not UTF-8"],
)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_bad_data_is_refused_without_a_trace(content, words, split, data, call):
    """In the test words too, which are read before training and not after it."""
    (data / f"toy_{split}.tsv").write_bytes(content)
    assert_refused(learn(call, data), [f"toy_{split}.tsv", *words])
    assert os.listdir() == ["words"]


def test_an_empty_word_is_refused(data, call):
    learn(call, data)
    assert_refused(call(pronounce.main, "--run", "run", "--word", " "), ["at least one symbol"])


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("ab", "ba", 2),
        ("abc", "abd", 1),
        ("abcd", "bcd", 1),
        ("flaw", "lawn", 2),
        ("kitten", "sitting", 3),
        ("intention", "execution", 5),
        (["t", "ɑ̃"], ["t", "ɑ", "n"], 2),
    ],
)
def test_edit_distance_by_hand(a, b, edits):
    assert edit_distance(a, b) == edit_distance(b, a) == edits


def test_error_rates_by_hand(data):
    """Three words with 0, 1 and 3 edits; 7 phonemes would be right; several may be right."""
    pairs = datasets.pronunciations("toy", data)
    examples = [("x", ("a b",)), ("y", ("c d",)), ("z", ("bb bb bb",))]
    written = ["a b", "c", "a"]
    assert pronounce.PronunciationTask(pairs, 2, 1).measure(written, examples) == {
        "word_error_rate": pytest.approx(200 / 3),
        "phoneme_error_rate": pytest.approx(400 / 7),
    }
    several = [("x", ("a b",)), ("y", ("c d", "c")), ("z", ("b", "a b b"))]
    assert PairsTask(pairs, 2, 1, "target").measure(written, several) == {
        "exact_match": pytest.approx(2 / 3),
        "symbol_error_rate": pytest.approx(100 / 5),
    }


def test_a_pronunciation_batch_holds_words_and_their_phonemes():
    pairs = [("ab", "A B"), ("ca", "CH A")]
    task = pronounce.PronunciationTask({"train": pairs, "dev": pairs[:1], "test": pairs[:1]}, 2, 1)
    batch = task.batch(1)
    found = {
        (*task.text.source.decode(source[:2]), *task.text.target.decode(target[:2]))
        for source, target in zip(batch.source, batch.target_out, strict=True)
    }
    assert isinstance(batch, PairBatch)
    assert found == {("a", "b", "A", "B"), ("c", "a", "CH", "A")}


def test_what_nobody_reads_any_more_is_no_error():
    """As with `| head`: the reader has gone before the last line."""
    read, write = os.pipe()
    os.close(read)
    said = "from toy_tasks.kit import while_read\nwith while_read():\n    print('a line')"
    with open(write, "w") as gone:
        found = subprocess.run([sys.executable, "-c", said], stdout=gone, stderr=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (0, b"")
