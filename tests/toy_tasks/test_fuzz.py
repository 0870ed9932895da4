"""Whatever is on a command line or in a data file: a verdict, or one clear line and exit code 2.

Every call runs in a folder full of traps. One that hangs is ended by an alarm, and one that takes
half a GiB finds no more memory. Where training would begin a call ends: what was asked is valid.
"""

import contextlib
import functools
import io
import itertools
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import equal_runs
from tests.faults import __main__ as faults
from tests.toy_tasks import small
from toy_tasks import TASKS, lengths, parse, pronounce
from toy_tasks.command_line import exit_code, run_folders

COPYING = small.main_of("copy_task")
TINY = f"{small.TINY} --parts 1 --steps 2 --evaluate-every 2".split()
TOY = ["--language", "toy", "--data", "words"]
RUNS = {"copied": COPYING, "spoken": pronounce.main}


class Reached(Exception):
    """All checks are passed and the work would begin."""


def hang(number, frame):
    raise RecursionError("no end of this call")  # an error that nobody expects and hides


def data_of(main) -> list[str]:
    return TOY if main is pronounce.main else []


@functools.cache
def run_of(main) -> dict[str, bytes]:
    """The files that a run of copy_task or of pronounce leaves."""
    with world(runs={}), contextlib.redirect_stdout(io.StringIO()):
        main([*TINY, "--out", "made", *data_of(main)])
        return equal_runs.files(Path("made"))


@contextlib.contextmanager
def world(runs=RUNS):
    """Within the block the current folder is a new one that holds what paths may name."""
    words = b"ab\tA B\nba\tB A\nabc\tA B CH\n"
    contents = {f"words/toy_{split}.tsv": words for split in ("train", "dev", "test")}
    contents |= {"full/thesis.txt": b"years of work", "file": b""}
    for folder, main in runs.items():
        contents |= {f"{folder}/{name}": content for name, content in run_of(main).items()}
    with tempfile.TemporaryDirectory() as new, contextlib.chdir(new), small.few_held_out():
        for name in ("empty", "full", "words", *RUNS):
            Path(name).mkdir()
        for name, content in contents.items():
            Path(name).write_bytes(content)
        os.mkfifo("pipe")
        os.symlink("loop", "loop")
        os.symlink("nowhere", "dangling")
        yield


def state() -> dict[Path, object]:
    """All that is in the current folder, plain files with their content."""
    plain = lambda path: path.is_file() and not path.is_symlink()  # noqa: E731
    return {p: p.read_bytes() if plain(p) else p.lstat().st_mode for p in Path().rglob("*")}


def verdict(main, arguments, encoding: str = "utf-8") -> tuple[int | None, str]:
    """Call `main` -> exit code, None where the work would begin, and what standard error got."""
    out = io.TextIOWrapper(io.BytesIO(), encoding, "strict")
    err = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
    before, alarm = state(), signal.signal(signal.SIGALRM, hang)
    signal.alarm(60)
    try:
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with faults.little_memory(), streams[0], streams[1]:
            code = exit_code(lambda: main(list(arguments)))
            sys.stdout.flush()
    except Reached:
        code = None
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
    err.seek(0)
    message, after = err.read(), state()
    assert code in (None, 0, 1, 2)
    if code == 2:
        usage = message.endswith(" --help lists the flags)\n") and message.count("\n") == 1
        assert usage or re.fullmatch(r"error: .+; received .*\. .+\n", message), message
        assert after == before
    assert before.items() <= after.items()
    return code, message


PATHS = ["file", "empty", "full", "words", "copied", "spoken", "pipe", "loop", "dangling", "absent"]
PATHS += ["file/below", "empty/new", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "/"]
PATHS += ["", ".", "..", "~", "x" * 300, "é", "\udcff", "a\nb", "a\0b", "*", "{seed}", "{", "%s"]
NUMBERS = ["0", "-1", "1", "3", "16", "1000000", str(10**9), str(2**63), str(10**30), "9" * 5000]
NUMBERS += ["0.5", "1e3", "1e-400", "1e400", "-0.0", "nan", "inf", "-inf", "0x10", "1_0", "٣", "½"]
OTHERS = ["", " ", "-", "--", "$x^$", "toy", "fre", "xyz", "../toy", "(", "all", "learned", "pre"]
OTHERS += ["numpy", "linear", "\u202eab", "a" * 10**5, "\0", "None", "True", "linear/weight"]
VALUES = st.sampled_from([*PATHS, *NUMBERS, *OTHERS]) | st.text(max_size=9)


def command_lines(main) -> st.SearchStrategy[list[str]]:
    """Up to four flags with values of every wrong kind, or with none; or a valid line spoilt."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["--help"])
    flags = sorted({*re.findall(r"--[a-z][a-z0-9-]*", out.getvalue())})
    flag = st.sampled_from([*flags, "--unknown", "-x", "word"])
    given = st.lists(st.one_of(st.tuples(flag, VALUES), st.tuples(flag)), max_size=4)
    begun = [["--run", "spoken", "--word", "ab"]] if main is pronounce.main else []
    start = st.sampled_from([[], data_of(main), ["--resume", "--out", "copied"], *begun])
    return st.tuples(start, given).map(lambda drawn: [*drawn[0], *itertools.chain(*drawn[1])])


@contextlib.contextmanager
def until_it_begins():
    """Within the block whatever would train, download or look for a GPU raises Reached."""
    with contextlib.ExitStack() as stack:
        for name in (
            "command_line.training.train",
            "command_line.study.train_side_by_side",
            "data.datasets.fetch",
        ):
            stack.enter_context(mock.patch(f"toy_tasks.{name}", side_effect=Reached))
        stack.enter_context(mock.patch.dict(sys.modules, cupy=None))
        stack.enter_context(mock.patch.object(lengths, "EXAMPLES", 2))
        few = dict.fromkeys(parse.EVALUATION_SENTENCES, 1)
        sizes = dict(TRAIN_SENTENCES=400, EVALUATION_SENTENCES=few)
        stack.enter_context(mock.patch.multiple(parse, **sizes))
        yield


@pytest.mark.parametrize("name", TASKS)
def test_any_command_line_of_a_task(name):
    main = small.main_of(name)

    @given(command_lines(main), st.sampled_from(["utf-8", "ascii"]))
    @settings(max_examples=30 if name == "copy_task" else 4)
    def check(arguments, encoding):
        with world(), until_it_begins():
            verdict(main, arguments, encoding)

    check()


GIANTS = "--d-ff 1000000000", "--layers 1000000000", "--batch-size 1000000000"
GIANTS += "--d-model 1000000 --heads 1", "--d-model 922337203685477580 --heads 1"
GIANTS += ("--max-length 9999999999 --positions learned",)


def test_giants_are_refused_before_they_are_built():
    for main, flags in itertools.product((COPYING, pronounce.main), GIANTS):
        with world():
            code, message = verdict(main, [*data_of(main), *flags.split()])
        assert code == 2 and "sizes that need at least" in message, flags
    with world():
        code, message = verdict(COPYING, ["--parts", "100000", "--batch-size", "100000"])
    assert code == 2 and "at most 128, here 128; received 100000" in message


OPTIONS = sorted(json.loads(run_of(pronounce.main)["config.json"])["options"])
NAMES = st.sampled_from([*OPTIONS, "out", "resume", "help", "more"])
ANYTHING = st.sampled_from([value for value in faults.JUNK if value != 10**400]) | VALUES


@settings(max_examples=30)
@given(st.sampled_from([*RUNS]), st.dictionaries(NAMES, ANYTHING, min_size=1, max_size=3))
@example("spoken", {"data": "a\0b"})
def test_a_config_json_that_says_anything(folder, changes):
    with world(), until_it_begins():
        written = run_folders.read_config(Path(folder))
        written["options"] |= changes
        run_folders.write_config(Path(folder), written)
        verdict(RUNS[folder], ["--resume", "--out", folder])


@pytest.mark.parametrize("kind", ["folder", "pipe", "/dev/zero", "a loop"])
def test_something_in_a_file_s_place_is_refused(kind):
    def put(path: Path) -> None:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(kind.replace("a loop", path.name))

    for name in ("config.json", "last.safetensors", "metrics.jsonl"):
        with world():
            put(Path("copied", name))
            assert verdict(COPYING, ["--resume", "--out", "copied"])[0] == 2
    with world(runs={}):
        put(path := Path("words/toy_dev.tsv"))
        code, message = verdict(pronounce.main, TOY)
    assert code == 2 and f"error: {path} must be a file that can be read; received " in message
