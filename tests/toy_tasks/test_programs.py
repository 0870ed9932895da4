"""The tasks as programs: what they leave and say, run folders, exit codes, complaints."""

import dataclasses
import functools
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numformer.models import Config
from numformer.training.checkpoints import load_checkpoint, load_model
from numformer.training.recipe import Recipe
from numformer.training.run_folder import read_metrics
from tests.equal_runs import without_seconds
from tests.toy_tasks.small import (
    PAGES,
    RUN,
    SHORT,
    TINY,
    assert_refused,
    copying,
    files_of,
    main_of,
    program,
)
from toy_tasks import TASKS, __main__, pronounce
from toy_tasks.kit import exit_code, sequences

pytestmark = pytest.mark.usefixtures("empty_folder")
FILES = {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def test_a_quick_run_of_a_program():
    process = program("reverse", "--quick", *TINY[:-1])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert re.fullmatch(r"exact match \d\.\d{4}", out.splitlines()[-1])
    run, pictures = Path("runs/reverse-quick"), {"loss.png", "attention.png"}
    assert names_in(run) == FILES | pictures
    for picture in pictures:
        assert (run / picture).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    settings = json.loads((run / "config.json").read_text())
    assert settings["options"]["quick"] and settings["options"]["steps"] == 20
    model, _ = load_model(run / "best.safetensors")
    assert settings["config"] == dataclasses.asdict(model.config)
    assert [line["step"] for line in read_metrics(run / "metrics.jsonl")] == [20, 20]


def test_a_program_stopped_by_ctrl_c_has_saved():
    """As on a terminal, where the signal comes to all processes of the group."""
    process = program("copy_task", *TINY, "--log-every", 1, "--parts", 2, start_new_session=True)
    metrics = Path("runs/copy_task/metrics.jsonl")
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    metadata = load_checkpoint(metrics.parent / "last.safetensors")[1]
    assert (process.returncode, metadata["parts"]) == (130, 2)
    again = "python -m toy_tasks.copy_task --resume --out runs/copy_task"
    said = f"stopped at step {metadata['step']}, which is saved; go on with: {again}\n"
    assert err == said


def test_a_program_whose_standard_streams_are_closed_goes_on_without_them(monkeypatch):
    """As with `>&-`."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert exit_code(lambda: copying([*RUN, "--out", "run"])) == 1
    assert exit_code(lambda: copying(["--run", "run"])) == 0


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (MemoryError("no 9 TiB"), "fit into memory; received no 9 TiB"),
        (ChildProcessError("one was ended"), "all its processes; received one was ended"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "standard input is UTF-8; received"),
        (OSError(28, "No space left on device"), "written; received [Errno 28] No space"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_trouble_of_the_machine_is_one_line(problem, said, call):
    def fail(arguments):
        raise problem

    assert_refused(call(fail), said)


def test_a_full_disk_ends_with_2_and_loses_nothing(call):
    flags = [*TINY, *"--steps 24 --log-every 1 --evaluate-every 20".split()]
    call(copying, *flags, "--out", "straight")
    for name, most in (("last.safetensors", 8000), ("metrics.jsonl", 2000)):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            code, _, err = call(copying, *flags, "--out", name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert_refused((code, [], err), "files can be read and written", f"{name}/{name}", "--res")
        assert call(copying, "--resume", "--out", name)[0] == 1
        assert without_seconds(Path(name)) == without_seconds(Path("straight"))


def test_the_exit_code_says_whether_the_target_was_reached_or_the_numbers_broke(call):
    code, out, _ = call(copying, *TINY, "--steps", "1")
    assert code == 1 and out[-1] == "exact match 0.0000"
    assert out[-2].endswith("target exact match 0.999: MISSED")
    easy = functools.partial(sequences.main, dataclasses.replace(SHORT, reached=0.0))
    code, out, _ = call(easy, *TINY, "--steps", "1")
    assert code == 0 and out[-2].endswith("target exact match 0.0: reached")
    with np.errstate(all="ignore"):
        code, _, err = call(copying, *TINY, "--steps", "9", "--factor", "1e30")
    assert code == 3
    assert len(err) == 1 and re.match(r"error: step \d: loss .*, gradient norm", err[0])


def test_a_run_goes_to_the_next_folder_or_to_one_that_is_new_or_empty(call):
    Path("empty").mkdir()
    quick = [*TINY, "--quick", "--steps", "1"]
    for flags, folder in (
        ([], "runs/copy_task-quick"),
        ([], "runs/copy_task-quick-2"),
        (["--out", "empty"], "empty"),
        (["--out", "new/below"], "new/below"),
    ):
        code, out, _ = call(copying, *quick, *flags)
        assert code == 0 and out[0].startswith(f"{folder}: ")
        assert names_in(folder) == FILES  # TINY has --no-plots
    assert len(list(Path("runs").iterdir())) == 2


def test_a_folder_in_which_another_run_begins_or_goes_on_is_refused(call, monkeypatch):
    def flock(descriptor, operation):
        raise BlockingIOError

    flags = [*RUN, "--out", "mine"]
    call(copying, *flags)
    before = files_of("mine")
    with monkeypatch.context() as patches:
        patches.setattr("fcntl.flock", flock)
        for again in (flags, ["--resume", "--out", "mine"]):
            assert_refused(call(copying, *again), "received mine, which another process")
    assert files_of("mine") == before
    assert call(copying, "--resume", "--out", "mine")[0] == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--out file", ["new or empty", "received file"]),
        ("--out full", ["new or empty; received full", "--resume"]),
        ("--backend cupy", ["NVIDIA GPU", "--backend numpy"]),
        ("--d-model 10 --heads 4", ["multiple of heads; received d_model 10, heads 4"]),
        ("--seed -1", ["at least 0", "received -1", "--seed"]),
        ("--steps 0", ["steps is an integer of at least 1", "received 0", "--steps"]),
        ("--weight-decay 0.1", ["is for --optimizer adamw; received --optimizer adam"]),
        ("--resume", ["no run of copy_task"]),
        ("--run absent --input 1", ["received absent, which is not there"]),
        ("--run full --attention a.png", ["one text", "0 with --input"]),
        ("--top-k 3", ["for a trained model", "no --run"]),
        ("--warm-up 3", ["is --warmup meant?"]),
    ],
)
def test_what_cannot_be_is_refused_without_a_trace(flags, words, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # wherever the tests run: no CuPy
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("years of work")
    assert_refused(call(copying, *flags.split()), *words)
    assert names_in(".") == {"file", "full"} and names_in("full") == {"thesis.txt"}
    assert Path("file").read_text() == ""


def test_learned_positions_too_short_for_training_or_decoding_are_refused_at_the_start(data, call):
    pronouncing = functools.partial(call, pronounce.main, "--language", "toy", "--data", str(data))
    for run, enough in ((functools.partial(call, copying), 4), (pronouncing, 6)):
        flags = [*TINY, "--steps", "1", "--positions", "learned", "--max-length"]
        words = f"max_length = {enough - 1}", f"received a task that needs {enough}", "--max-len"
        assert_refused(run(*flags, str(enough - 1)), *words)
        assert os.listdir() == ["words"]
        assert run(*flags, str(enough), "--out", "run")[0] < 2
        shutil.rmtree("run")


def test_the_backend_is_that_of_the_flag_or_of_the_environment(call, monkeypatch):
    quick = [*TINY, "--steps", "1", "--quick"]
    without_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "cupy", without_gpu)
    assert_refused(call(copying, "--backend", "cupy"), "CuPy finds no CUDA device")
    code, _, err = call(copying, *quick, "--backend", "auto")
    assert code == 0 and len(err) == 1 and "using numpy" in err[0]
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setenv("NUMFORMER_BACKEND", "cupy")
    assert_refused(call(copying), "NVIDIA GPU")
    assert call(copying, *quick, "--backend", "numpy")[0] == 0


@pytest.mark.parametrize("name", TASKS)
def test_a_task_s_help_names_its_target_and_every_flag(name, call):
    code, out, err = call(main_of(name), "--help")
    text = " ".join(out)
    assert code == 0 and not err
    rule = getattr(PAGES[name], "RULE", None)
    assert not rule or f"exact match {rule.reached} " in text.split("options:")[0]
    fields = dataclasses.fields(Recipe) + dataclasses.fields(Config) * bool(rule)
    flags = [field.name for field in fields if field.default is not dataclasses.MISSING]
    for flag in [*flags, *"steps backend out resume log_every quick no_plots".split()]:
        assert re.search(rf"--{flag.replace('_', '-')}[ ,]", text), flag


def test_the_list_of_tasks_names_every_page(call):
    pages = {
        path.stem
        for path in Path(__main__.__file__).parent.glob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert pages - {"__main__", "compare"} == {*TASKS}
    readme = (Path(__main__.__file__).parent / "README.md").read_text()
    assert all(f"| `{name}` | " in readme for name in TASKS)
    code, out, _ = call(__main__.main)
    assert code == 0 and all(any(line.startswith(f"  {n} ") for line in out) for n in TASKS)
    assert max(map(len, out)) <= 100 and __main__.main(["reverse"]) == 2
