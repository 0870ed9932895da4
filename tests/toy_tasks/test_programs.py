"""The tasks as programs: their files and output, run folders, exit codes, errors."""

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
from unittest import mock

import numpy as np
import pytest

from numformer.later import MIXERS
from numformer.models import Config
from numformer.models.fields import saved_values
from numformer.optimization.recipe import Recipe
from numformer.runs.checkpoints import load_checkpoint, load_model
from tests import equal_runs
from tests.toy_tasks import small
from tests.toy_tasks.small import PAGES, RUN, TINY, assert_refused, copying, program
from toy_tasks import TASKS, __main__, pronounce, reverse
from toy_tasks.command_line import exit_code, training
from toy_tasks.text_to_text import sequences

FILES = {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}
FILES |= {"result.json"}


def test_a_quick_run_of_a_task(succeed, pixels):
    with small.few_held_out():
        out = succeed(small.main_of("reverse"), f"--quick {TINY.removesuffix(' --no-plots')}")
    assert re.fullmatch(r"exact match \d\.\d{4}", out[-1])
    run, pictures = Path("runs/reverse-quick"), {"loss.png", "attention.png"}
    assert {*os.listdir(run)} == FILES | pictures
    for picture in pictures:
        assert (run / picture).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    settings = json.loads((run / "config.json").read_text())
    assert settings["options"]["quick"] and settings["options"]["steps"] == 20
    assert settings["config"] == saved_values(load_model(run / "best.safetensors")[0].config)
    assert sequences.read_options(reverse.RULE, ["--quick", "--steps", "500"]).steps == 500
    assert [line["step"] for line in equal_runs.metrics(run)] == [20, 20]


def test_a_program_stopped_by_ctrl_c_has_saved():
    """As on a terminal, where the signal comes to all processes of the group."""
    flags = f"{TINY} --log-every 1 --parts 2".split()
    process = program("copy_task", *flags, start_new_session=True)
    run, deadline = Path("runs/copy_task"), time.monotonic() + 60
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    metadata = load_checkpoint(run / "last.safetensors")[1]
    assert (process.returncode, metadata["parts"]) == (130, 2)
    command = f"python -m toy_tasks.copy_task --resume --out {run}"
    assert err == f"stopped at step {metadata['step']}, which is saved; go on with: {command}\n"


def test_a_program_whose_standard_streams_are_closed_goes_on_without_them(monkeypatch):
    """As with `>&-`."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert exit_code(lambda: copying(f"{RUN} --out run".split())) == 1
    assert exit_code(lambda: copying(["--run", "run"])) == 0


def test_a_batch_of_one_sentence_has_one_part(call, monkeypatch):
    monkeypatch.setattr(training, "default_parts", lambda xp: 2)
    call(copying, f"{TINY} --batch-size 1 --steps 1 --out run")
    assert equal_runs.last(Path("run"))[1]["parts"] == 1


def test_an_error_of_the_machine_is_one_line(refuse):
    for problem, message in {
        MemoryError("no 9 TiB"): "fit into memory; received no 9 TiB",
        ChildProcessError("one was ended"): "all its processes; received one was ended",
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"): "standard input is UTF-8; received",
        OSError(28, "No space"): "written; received [Errno 28] No space. Correct this and repeat",
    }.items():
        refuse(mock.Mock(side_effect=problem), "", message)


def test_a_full_disk_ends_with_2_and_loses_nothing(call):
    flags = f"{TINY} --parts 1 --steps 38 --log-every 1 --evaluate-every 35 --out"
    call(copying, f"{flags} straight")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, most in (("last.safetensors", 8000), ("metrics.jsonl", 3500)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            code, _, err = call(copying, f"{flags} {name}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert_refused((code, [], err), "files can be read and written", f"{name}/{name}", "--res")
        assert call(copying, f"--resume --out {name}")[0] == 1
        runs = map(equal_runs.without_seconds, map(Path, (name, "straight")))
        assert next(runs) == next(runs)


def test_the_exit_code_says_whether_the_target_was_reached_or_the_numbers_broke(call):
    code, out, _ = call(copying, f"{TINY} --steps 1")
    assert code == 1 and out[-1] == "exact match 0.0000"
    assert out[-2].endswith("target exact match 0.999: MISSED")
    easy = functools.partial(sequences.main, dataclasses.replace(small.SHORT, required=0.0))
    code, out, _ = call(easy, f"{TINY} --steps 1")
    assert code == 0 and out[-2].endswith("target exact match 0.0: reached")
    with np.errstate(all="ignore"):
        code, _, err = call(copying, f"{TINY} --steps 9 --factor 1e30")
    assert code == 3
    assert len(err) == 1 and re.match(r"error: step \d: loss .*, gradient norm", err[0])


def test_a_run_goes_to_the_next_folder_or_to_one_that_is_new_or_empty(succeed):
    Path("empty").mkdir()
    for flags, folder in (
        ("", "runs/copy_task-quick"),
        ("", "runs/copy_task-quick-2"),
        ("--out empty", "empty"),
        ("--out new/below", "new/below"),
    ):
        out = succeed(copying, f"{TINY} --quick --steps 1 {flags}")
        assert out[0].startswith(f"{folder}: ")
        assert {*os.listdir(folder)} == FILES  # TINY has --no-plots
    assert len(list(Path("runs").iterdir())) == 2


def test_a_folder_in_which_another_run_begins_or_goes_on_is_refused(call, refuse, monkeypatch):
    call(copying, f"{RUN} --out mine")
    Path("empty").mkdir()
    with monkeypatch.context() as patches:
        patches.setattr("fcntl.flock", mock.Mock(side_effect=BlockingIOError))
        for flags in (f"{RUN} --out empty", "--resume --out mine"):
            folder = flags.split()[-1]
            refuse(copying, flags, f"received {folder}, which another process")
    assert call(copying, "--resume --out mine")[0] == 1


def test_impossible_flags_are_refused_without_a_trace(refuse, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # wherever the tests run: no CuPy
    Path("full").mkdir()
    for name in ("file", "full/thesis.txt"):
        Path(name).write_text("years of work")
    for flags, words in {
        "--out file": ["names a folder; received file, which is not one"],
        "--out full": ["new or empty; received full. Choose another folder"],
        "--backend cupy": ["NVIDIA GPU", "--backend numpy"],
        "--d-model 10 --heads 4": ["multiple of heads; received d_model 10, heads 4"],
        "--seed -1": ["at least 0", "received -1", "--seed"],
        "--steps 0": ["steps is an integer of at least 1", "received 0", "--steps"],
        "--weight-decay 0.1": ["is for --optimizer adamw", "received --optimizer adam"],
        "--resume": ["no run of copy_task"],
        "--run absent --input 1": ["received absent, which is not there"],
        "--run full --attention a.png": ["one text", "0 with --input"],
        "--top-k 3": ["for a trained model", "no --run"],
        "--warm-up 3": ["is --warmup meant?"],
        "--epochs 3 --steps 3": ["unrecognized arguments: --epochs 3; is --steps meant?"],
    }.items():
        refuse(copying, flags, *words)
    refuse(PAGES["images"].main, "--epochs 3", "--epochs 3; is --steps meant?")
    refuse(PAGES["pairs"].main, "--epochs 0", "--epochs is at least 1; received 0")
    for flag in ("--steps 3", "--resume", "--quick"):
        without = f"without {flag.split()[0]}; received both"
        refuse(PAGES["pairs"].main, f"--epochs 3 {flag}", without)
    Path("both.toml").write_text("steps = 5\nepochs = 2")
    refuse(PAGES["pairs"].main, "--config both.toml", "without --steps; received both")


@pytest.mark.parametrize("name", TASKS)
def test_impossible_flags_are_refused_before_data_are_read(name, refuse, monkeypatch):
    """The data are missing, or the task cannot draw them."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(sequences.SequenceTask, "__init__", None)
    Path("full/thesis").mkdir(parents=True)
    flags = {
        "--log-every 0": "log_every is an integer of at least 1; received 0",
        "--clip-norm 0": "clip_norm is a number above 0, or None; received 0",
        "--log-to wandb": "needs wandb; received no such package",
        "--backend cupy": "needs CuPy and an NVIDIA GPU",
        "--out full": "a folder that is new or empty; received full",
    }
    if name not in ("images", "parse"):
        flags["--p-drop 2"] = "p_drop is a number of at least 0 and below 1; received 2.0"
    if name in ("write", "shakespeare"):
        flags["--temperature -1"] = "temperature is a number from 0 to 1e+300; received -1.0"
    if not hasattr(PAGES[name], "STUDY"):
        flags["--timeout 0"] = "a number of seconds above 0; received 0.0"
    data = "--data absent" * (name in ("pairs", "write"))
    for flag, words in flags.items():
        refuse(small.main_of(name), f"{data} {flag}", words)


def test_learned_positions_too_short_for_training_or_decoding_are_refused_at_the_start(data, call):
    flags = f"{TINY} --steps 1 --positions learned --out run --max-length"
    for main, more, enough in (
        (copying, "", 4),
        (pronounce.main, "--language toy --data words", 6),
    ):
        words = f"max_length = {enough - 1}", f"received a task that needs {enough}", "--max-len"
        assert_refused(call(main, f"{flags} {enough - 1} {more}"), *words)
        assert os.listdir() == ["words"]
        assert call(main, f"{flags} {enough} {more}")[0] < 2
        shutil.rmtree("run")


def test_the_backend_is_that_of_the_flag_or_of_the_environment(call, refuse, succeed, monkeypatch):
    quick = f"{TINY} --steps 1 --quick --backend"
    without_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "cupy", without_gpu)
    refuse(copying, "--backend cupy", "CuPy finds no CUDA device")
    code, _, err = call(copying, f"{quick} auto")
    assert code == 0 and len(err) == 1 and "using numpy" in err[0]
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setenv("NUMFORMER_BACKEND", "cupy")
    refuse(copying, "", "NVIDIA GPU")
    succeed(copying, f"{quick} numpy")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_s_help_names_its_target_and_every_flag(name, succeed):
    text = " ".join(succeed(small.main_of(name), "--help"))
    rule = getattr(PAGES[name], "RULE", None)
    assert not rule or f"exact match {rule.required} " in text.split("options:")[0]
    fields = dataclasses.fields(Recipe) + dataclasses.fields(Config) * bool(rule)
    without = {field.name for field in fields if not field.metadata.get("flag", True)}
    flags = {field.name for field in fields if field.default is not dataclasses.MISSING} - without
    assert not [name for name in without if f"--{name.replace('_', '-')}" in text]
    # Settings of what no tower that reads both ways can have.
    blind = [mixer for mixer in MIXERS.values() if not mixer.looks_ahead]
    flags -= {field.name for mixer in blind for field in dataclasses.fields(mixer.Settings)}
    for flag in [*flags, *"steps backend out resume log_every quick no_plots".split()]:
        assert re.search(rf"--{flag.replace('_', '-')}[ ,]", text), flag


def test_the_list_of_tasks_names_every_page(succeed):
    folder = Path(__main__.__file__).parent
    scripts = [p.stem for p in folder.glob("*.py") if '__name__ == "__main__"' in p.read_text()]
    assert {*scripts} - {"__main__", "compare", "heads", "from_paper", "listen"} == {*TASKS}
    readme, out = (folder / "README.md").read_text(), succeed(__main__.main)
    for name in TASKS:
        assert f"| `{name}` | " in readme and any(line.startswith(f"  {name} ") for line in out)
    assert max(map(len, out)) <= 100 and __main__.main(["reverse"]) == 2
