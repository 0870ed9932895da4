"""Fixtures for tests of tasks: an empty folder, quick pictures, scripts that succeed or refuse."""

from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.toy_tasks.small import assert_refused, files_of
from toy_tasks.command_line import training


@pytest.fixture(autouse=True)
def in_an_empty_folder(empty_folder):
    pass


@pytest.fixture(autouse=True)
def in_one_process(monkeypatch):
    """Unless a test sets --parts: a fork takes longer than the training of these models."""
    monkeypatch.setattr(training, "default_parts", lambda xp: 1)


@pytest.fixture
def pixels():
    """A test that requests this fixture draws whole pictures."""


@pytest.fixture(autouse=True)
def quick_pictures(request, monkeypatch):
    """In other tests a picture is the first bytes of a PNG and its titles: pixels take long."""

    def save(figure, file, **how):
        content = b"\x89PNG\r\n\x1a\n" + repr([a.get_title() for a in figure.axes]).encode()
        file.write(content) if isinstance(file, BytesIO) else Path(file).write_bytes(content)

    if "pixels" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", save)
        monkeypatch.setattr(Figure, "findobj", lambda figure, kind: [])  # no fonts to choose


@pytest.fixture
def succeed(call):
    """`succeed(main, flags, *texts)`: exit code 0 and no line of errors -> the lines printed."""

    def run(main, flags="", *texts) -> list[str]:
        code, out, err = call(main, flags, *texts)
        assert (code, err) == (0, [])
        return out

    return run


@pytest.fixture
def refuse(call):
    """`refuse(main, flags, *words)`: exit code 2, one line of errors with `words`, and no trace.

    Nothing else is printed, unless it `tells` of its data before.
    """

    def run(main, flags, *words, tells=False):
        before = files_of(".")
        code, out, err = call(main, flags)
        assert_refused((code, [] if tells else out, err), *words)
        assert files_of(".") == before

    return run
