"""What test files share: random numbers, array modules, complaints, scripts and their data."""

import os
import shlex
import sys

import cublas_on_host
import cupy_stand_in
import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from numformer import backend
from numformer.errors import InputError
from numformer.kernels import kernels_of
from numformer.layer import saving, training
from numformer.randomness import dropout_stream
from toy_tasks.command_line import exit_code

# Not tested where processes are not forked, which keep what a test replaced; on Windows also not
# what asks for the signals, limits, locks, words of errors and slashes of POSIX.
collect_ignore_glob = []
if sys.platform != "linux":
    collect_ignore_glob += ["mutation", "faults", "toy_tasks/test_fuzz.py", "toy_tasks/test_stud*"]
if sys.platform == "win32":
    collect_ignore_glob += ["lessons", "toy_tasks", "training/test_b*", "runs", "test_readme.py"]


def pytest_configure(config):
    """Give each of several processes one core, because more threads than cores slow each other.

    The tests' files need not survive a power cut, so no test waits for the disk.
    """
    os.fsync = lambda file: None
    if hasattr(config, "workerinput"):
        threadpool_limits(1, "blas")


def pytest_sessionstart(session):
    """A product of finite numbers may warn of an invalid value, even where warnings are errors.

    OpenBLAS computes on parts of vector registers that hold no operand, and their numbers raise
    the processor's flag: https://github.com/numpy/numpy/issues/24067.
    """
    session.add_marker(pytest.mark.filterwarnings("ignore:invalid value encountered in matmul"))


settings.register_profile("numformer", deadline=None, derandomize=True, database=None)
settings.load_profile("numformer")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins with the same dropout masks and must leave the modes as they were."""
    dropout_stream.reseed(0, 0)
    yield
    assert training() and saving()


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in for CuPy, which `import cupy` finds; formulas compute, no kernels."""
    monkeypatch.setitem(sys.modules, "cupy", cupy_stand_in)
    monkeypatch.setitem(backend._kernels, cupy_stand_in.ndarray, {})
    return cupy_stand_in


@pytest.fixture
def with_kernels(stand_in, monkeypatch):
    """The stand-in with the kernels of numformer/kernels/, compiled for the host, and cuBLAS."""
    for name, module in cublas_on_host.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    found = kernels_of(stand_in.zeros(1))
    if not found:
        pytest.skip("kernels are compiled by g++ for x86-64, which is not here")
    monkeypatch.setitem(backend._kernels, stand_in.ndarray, found)
    return stand_in


@pytest.fixture(params=["numpy", "cupy"])
def xp(request):
    """Each module that arrays can be of."""
    return np if request.param == "numpy" else request.getfixturevalue("stand_in")


@pytest.fixture
def complaint():
    """`complaint(function, *args)` calls it, expects InputError, and gives the message."""

    def call(function, *args, **kwargs) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **kwargs)
        return str(caught.value)

    return call


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Scripts write below the folder that they are started in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """`call(main, flags, *texts)` runs a script here -> exit code, lines printed, lines of errors.

    The flags are cut at spaces as a shell does, the texts are not.
    """

    def run(main, flags="", *texts) -> tuple[int, list[str], list[str]]:
        capsys.readouterr()
        try:
            code = exit_code(lambda: main([*shlex.split(flags), *texts]))
        except SystemExit as ended:  # argparse, for --help and flags that it cannot read
            code = ended.code
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return run


@pytest.fixture
def checked(call, tmp_path):
    """`checked(source, lesson)` checks a file with exercises -> exit code, words, errors."""
    from lessons.__main__ import main

    def check(source: str | bytes, lesson: int = 3) -> tuple[int, str, list[str]]:
        file = tmp_path / "mine.py"
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
        code, out, err = call(main, "check", str(lesson), str(file))
        return code, " ".join(" ".join(out).split()), err

    return check


@pytest.fixture
def data(tmp_path):
    """A folder with six words of the language "toy"; gone after the test."""
    words = ["ab\tA B", "ba\tB A", "abc\tA B CH", "cab\tCH A B", "haba\tA B A", "bch\tB CH"]
    folder = tmp_path / "words"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"toy_{split}.tsv").write_text("\n".join(words), encoding="utf-8")
    return folder
