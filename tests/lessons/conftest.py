"""The pages of the course, built once for all tests, in a real browser."""

import fcntl
import hashlib
import os
import pickle
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lesson_solutions import LESSONS

import lessons
from lessons.lesson_01 import reversal
from lessons.lesson_04 import reverse
from lessons.lesson_07 import toy
from lessons.lesson_10 import cache
from lessons.lesson_12 import landscape
from lessons.lesson_13 import cost

LONG = [reversal.trained, reverse.trained, toy.trained, cache.speed, landscape.costs, cost.measured]
SHORT = (cost.LENGTHS, np.array([256, 1024])), (landscape.LENGTHS, (32, 128))
"""The lengths at which lessons measure costs, and two lengths that save time in tests."""


def pytest_collection_modifyitems(items):
    """Whichever test comes first waits until all pages are built."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(1200))


def shared(request, tmp_path_factory, name: str) -> Path:
    """A folder that all processes of the tests share, and the next run."""
    kept = getattr(request.config, "cache", None)  # none with `-p no:cacheprovider`
    return kept.mkdir(name) if kept else tmp_path_factory.mktemp(name)


@pytest.fixture(scope="session", autouse=True)
def measured_once(request, tmp_path_factory):
    """Each long experiment runs once, in whichever process of the tests asks for it first.

    What it found stays until the next run of the tests, which measures anew where the code differs.
    """
    folder = shared(request, tmp_path_factory, "measured")
    rooms = "numformer", "toy_tasks", "lessons"
    code = sorted(path for room in rooms for path in lessons.FOLDER.parent.glob(f"{room}/**/*.py"))
    content = np.__version__.encode() + b"".join(path.read_bytes() for path in code)
    digest = hashlib.sha256(content).digest()

    def once(function):
        known = {}

        def remembered(*arguments, **options):
            asked = function.__module__, arguments
            name = re.sub(r"\W+", "_", str(asked))
            if name not in known:
                with (folder / name).open("a+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.seek(0)
                    content = file.read()
                    if not content.endswith(digest):
                        content = pickle.dumps(function(*arguments, **options)) + digest
                        file.truncate(0)
                        file.write(content)
                    known[name] = pickle.loads(content)
            return known[name]

        return remembered

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(cost, "TIMES", 1)
        for value, other in [*SHORT, *((function, once(function)) for function in LONG)]:
            for module in [m for name, m in sys.modules.items() if name.startswith("lessons.")]:
                for name in [name for name, found in vars(module).items() if found is value]:
                    patches.setattr(module, name, other)
        yield


@pytest.fixture(scope="session")
def builder():
    """The module lessons.kit.build, where the packages are that it needs."""
    for package in ("markdown_it", "mdit_py_plugins", "math_core", "pygments"):
        pytest.importorskip(package, reason="pages need the docs extra: pip install -e '.[docs]'")
    from lessons.kit import build

    return build


@pytest.fixture(scope="session")
def site(request, tmp_path_factory, builder):
    """The folder of the pages, and the last line that building them prints.

    What lessons became stays until the next run of the tests, which makes only what has changed.
    Of two processes that run tests one makes the lessons from the last one on.
    """
    common = shared(request, tmp_path_factory, "pages")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    for number in LESSONS[:: -1 if worker == "gw1" else 1]:
        with (common / f"lock_{number}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            builder.made(lessons.COURSE[number - 1], common)
    folder = common / worker
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(common / ".made", folder / ".made")
    return folder, builder.build(folder)


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, as a driver that opens windows of any size."""
    reason = "needs the browser extra, pip install -e '.[browser]', and Chromium on the path"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    pytest.importorskip("axe_playwright_python", reason=reason)
    names = "chromium", "chromium-browser", "google-chrome"
    path = next(filter(None, map(shutil.which, names)), None)
    if not path:
        pytest.skip(reason)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, site):
    """Opens a page of the site from its folder; at the end nothing may have gone wrong in it."""
    contexts, problems = [], []

    def opened(name, width=1280, **options):
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: messages.append((message.type, message.text)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site[0] / name).as_uri())
        return page

    requests, messages = [], []
    yield opened
    for context in contexts:
        context.close()
    problems += [words for kind, words in messages if kind in ("error", "warning")]
    assert problems == []
    inside = ("data:", "blob:", site[0].as_uri())
    assert [url for url in requests if not url.startswith(inside)] == []


@pytest.fixture
def page():
    """What a page offers to pieces."""
    return SimpleNamespace(
        script=[].append,
        markdown=lambda text: f"<p>{text}</p>\n",
        inline=str,
        code=lambda text: f"<pre>{text}</pre>",
        math=lambda latex, display=False: f"<math>{latex}</math>",
    )
