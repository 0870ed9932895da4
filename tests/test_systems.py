"""Windows and macOS, as far as they can be simulated: locks, encodings, files, processes."""

import ast
import contextlib
import ctypes
import importlib.util
import io
import multiprocessing
import os
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lessons
from numformer import __main__, __version__
from numformer.errors import InputError
from numformer.execution.executor import default_parts
from numformer.execution.forked import cores
from numformer.runs import files
from tests.test_rooms import FILES, ROOT
from tests.toy_tasks.small import PAGES, assert_refused
from toy_tasks.command_line import answers, exit_code
from toy_tasks.command_line.training import quote
from toy_tasks.data import download

STUDIES = {name: page.STUDY for name, page in PAGES.items() if hasattr(page, "STUDY")}


def test_on_windows_a_folder_is_held_by_a_mutex_of_its_name(tmp_path, monkeypatch, complaint):
    there, codes = [], []

    def create(attributes, owner, name):
        codes.append(183 if name in there else 0)
        there.append(name)
        return len(there)

    kernel = SimpleNamespace(CreateMutexW=create, CloseHandle=lambda h: there.pop(h.value - 1))
    libraries = {("kernel32", True): kernel}
    load = lambda name, use_last_error: libraries[name, use_last_error]  # noqa: E731
    monkeypatch.setattr(ctypes, "WinDLL", load, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: codes[-1], raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    with files.folder_lock(tmp_path), files.folder_lock(tmp_path / ".." / tmp_path.name):
        with files.folder_lock(tmp_path.parent):
            assert len({*there}) == len(there) == 2
        monkeypatch.setattr(files, "_locked_folders", set())  # as in another process
        assert "one run at a time" in complaint(files.folder_lock(tmp_path).__enter__)
    assert not there and create.restype is ctypes.c_void_p


@pytest.mark.skipif(sys.platform == "win32", reason="there is a mutex")
def test_where_the_system_has_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    with files.folder_lock(tmp_path):
        monkeypatch.setattr(files, "_locked_folders", set())
        with files.folder_lock(tmp_path):
            pass


def test_on_windows_a_file_that_is_being_read_is_replaced_after_a_while(tmp_path, monkeypatch):
    pauses, replace = [], os.replace
    monkeypatch.setattr(files.time, "sleep", pauses.append)

    def written(system: str, refusals: int) -> int:
        """How often a file is tried to be replaced that refuses so often."""
        asked = []

        def refuse(*paths):
            asked.append(paths)
            if len(asked) <= refusals:
                raise PermissionError
            replace(*paths)

        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(os, "replace", refuse)
        with contextlib.suppress(PermissionError):
            files.write_atomically(tmp_path / "file", system.encode())
        return len(asked)

    assert (written("win32", 2), written("win32", 9), written("linux", 9)) == (3, 4, 1)
    assert len(pauses) == 5 and [p.read_bytes() for p in tmp_path.iterdir()] == [b"win32"]


def test_standard_streams_are_utf_8_unless_asked_otherwise(monkeypatch):
    def answered(given: bytes) -> bytes:
        streams = {name: io.TextIOWrapper(io.BytesIO(), "cp1252") for name in ("stdout", "stderr")}
        streams["stdin"] = io.TextIOWrapper(io.BytesIO(given), "cp1252")
        with monkeypatch.context() as patches:
            for name, stream in streams.items():
                patches.setattr(sys, name, stream)
            assert exit_code(lambda: print(sys.stdin.read(), "→")) is None
            sys.stdout.flush()
        return streams["stdout"].buffer.getvalue().rstrip()

    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    assert answered("é ɔ̃".encode()) == answered("\ufeffé ɔ̃".encode()) == "é ɔ̃ →".encode()
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    assert answered(b"\xe9") == b"\xe9 \\u2192"


def test_a_user_without_a_home_has_downloads_among_temporary_files(monkeypatch):
    """As in a container that runs as a number: no HOME, no entry in the list of users."""
    before = files.cache_folder()
    for name in ("HOME", "XDG_CACHE_HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    pwd = pytest.importorskip("pwd", reason="Windows has no list of users in this form")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    folder = files.cache_folder()
    assert folder.is_absolute() and folder != before and folder.name == "numformer"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_that_nobody_reads_any_more_ends_a_program_quietly(stream, monkeypatch, capsys):
    """In the middle, at the end, and where the error would be printed: `2>&1 | head -1`."""

    def refuse():
        raise InputError("a rule", "a value", "A fix.")

    def print_texts(count: int) -> int:
        print("text" * count, file=getattr(sys, stream))
        return 0

    for main in (lambda: print_texts(9999), lambda: print_texts(1), refuse):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w", encoding="utf-8") as pipe, monkeypatch.context() as patches:
            patches.setattr(sys, stream, pipe)
            assert exit_code(main) == (2 if main is refuse else 0)
            pipe.flush()  # as Python does when it ends
    assert ("error: a rule" in capsys.readouterr().err) == (stream == "stdout")


def test_a_text_file_has_the_same_bytes_on_every_system():
    """Code that opens one names its encoding; code that writes one names its line ends."""
    files = ((path, path.read_text(encoding="utf-8")) for path in FILES)
    for path, text in ((path, text) for path, text in files if re.search(r"open\(|_text\(", text)):
        for node in ast.walk(ast.parse(text)):
            function = getattr(node, "func", None)  # None unless the node is a call
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in ("open", "read_text", "write_text"):
                if ast.unparse(function) in ("os.open", "Image.open", "read_text"):
                    continue
                call = ast.unparse(node)
                assert re.search(r"'[rwax]b\+?'|encoding=", call), f"{path}: {call}"
                written = re.search("'[wax]'|write_text", call) and "devnull" not in call
                assert not written or "newline=" in call, f"{path}: {call}"


def test_where_nothing_is_forked_a_study_is_sent_to_its_processes(call, empty_folder, monkeypatch):
    for name, study in STUDIES.items():
        assert pickle.loads(pickle.dumps(study)).name == name
    monkeypatch.setattr(sys, "platform", "win32" if sys.platform == "win32" else "darwin")
    started, context = [], multiprocessing.get_context
    choose = lambda kind: started.append(kind) or context(kind)  # noqa: E731
    monkeypatch.setattr(multiprocessing, "get_context", choose)
    flags = "--quick --steps 1 --seeds 1 --no-plots".split()
    assert call(PAGES["induction"].main, *flags)[::2] == (0, [])
    assert started == ["spawn"]


def test_what_else_differs_by_the_system(monkeypatch, capsys, tmp_path):
    for system, command in (("darwin", "'my run'"), ("win32", '"my run"')):
        monkeypatch.setattr(sys, "platform", system)
        assert default_parts(np) == 1 and quote(Path("my run")) == command
    monkeypatch.setattr(sys, "stdin", terminal := io.StringIO())
    terminal.isatty = lambda: True
    assert not [*answers._batches(terminal)]
    assert "Ctrl-Z and Enter ends" in capsys.readouterr().err
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == os.cpu_count()


def test_lessons_build_where_they_are_installed_behind_a_link(tmp_path):
    (tmp_path / "linked").symlink_to(Path(lessons.__file__).parent)
    linked = str(tmp_path / "linked" / "__init__.py")
    spec = importlib.util.spec_from_file_location("linked", linked)
    sys.modules["linked"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sys.modules.pop("linked").FOLDER == lessons.FOLDER


def test_numformer_lists_tasks_lessons_checks_and_the_machine(call):
    code, out, _ = call(__main__.main)
    text = "\n".join(out)
    wanted = [f"python -m toy_tasks.{name} " for name in PAGES] + ["NumPy ", "BLAS", "cupy", " 3."]
    wanted += [f"python -m lessons {e.number} " for e in lessons.COURSE if e.path]
    wanted += ["numformer.gradient_check ", "tests.mutation ", __version__, str(download.CACHE)]
    assert code == 0 and [words for words in wanted if words not in text] == []
    assert call(__main__.main, "--version") == (0, [f"numformer {__version__}"], [])
    assert_refused(call(__main__.main, "reverse"), "python -m toy_tasks.NAME")
    assert not download.CACHE.is_relative_to(ROOT)  # an installation may be read-only
