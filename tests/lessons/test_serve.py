"""`python -m lessons serve`: exercises solved on their pages, attacks on the route that checks."""

import http.client
import inspect
import json
import re
import threading
import time
from pathlib import Path

import pytest
from lesson_solutions import EXERCISES, HEADER, LESSONS, RIGHT, WRONG, attention, softmax

import lessons
from lessons.__main__ import main
from lessons.kit import sandbox
from lessons.kit.exercise import called_names
from lessons.kit.server import LONGEST, CourseServer
from lessons.kit.workbook import CHECKED, Workbook

RIGHT_TEXT = RIGHT["softmax_backward"][0].removeprefix(HEADER)
NEGATED = {
    name: re.sub(r"return (\w+.*)\n\Z", r"return -\1\n", inspect.getsource(exercise.solution))
    for name, exercise in EXERCISES.items()
    if not exercise.to_find and not {*called_names(exercise.solution)} & {*EXERCISES}
}


@pytest.fixture
def serve(tmp_path):
    """Serves a folder of pages and a new folder of exercises."""
    started = []

    def start(pages=tmp_path) -> CourseServer:
        server = CourseServer(pages, tmp_path / "exercises", 0)
        started.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def send(server, body, method="POST", path="/exercises", **headers):
    """A request of a page of the course, but for `headers` -> status and reply."""
    own = {"Host": server.origin[7:], "Origin": server.origin}
    own |= {"Authorization": f"Bearer {server.token}", "Content-Length": str(len(body))}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in (own | headers).items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    reply = response.read()
    connection.close()
    return response.status, reply


def checked_on_page(server, name, code) -> dict:
    """What a page gets that sends a new text of an exercise to be checked."""
    before = server.workbook.contents()[name]["code"]
    body = json.dumps({"name": name, "before": before, "code": code, "check": True}).encode()
    status, reply = send(server, body)
    assert status == 200, reply
    return json.loads(reply)


ATTACK = {"name": "softmax_backward", "before": "", "code": "harm()", "check": True}
REFUSED = [
    (403, {"Origin": "https://elsewhere.example"}),  # a page of another site
    (403, {"Origin": "http://127.0.0.1:1"}),  # another server of this machine
    (403, {"Origin": "null"}),
    (403, {"Origin": None}),
    (403, {"Host": "elsewhere.example"}),  # whose name its owner lets lead to 127.0.0.1
    (403, {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"}),
    (403, {"Host": "elsewhere.example", "method": "GET", "path": "/index.html"}),
    (403, {"Host": None}),
    (403, {"Authorization": None}),
    (403, {"Authorization": "Bearer "}),
    (403, {"Authorization": "Bearer ÿ"}),
    (413, {"Content-Length": str(LONGEST + 1)}),
    (413, {"Content-Length": "9" * 5000}),
    (411, {"Content-Length": None}),
    (411, {"Content-Length": None, "Transfer-Encoding": "chunked"}),
    (411, {"Content-Length": "-1"}),
    (404, {"path": "/index.html"}),
    (404, {"path": "/exercises", "method": "GET"}),
    (501, {"method": "OPTIONS"}),  # the question before a request to another site
    (501, {"method": "PUT"}),
    (400, {"body": b"{"}),
    (400, {"body": b"[" * LONGEST}),
    (400, {"body": b"[]"}),
    (400, {"body": json.dumps(ATTACK | {"name": "../x"}).encode()}),
    (400, {"body": json.dumps(ATTACK | {"code": 1}).encode()}),
    (400, {"body": json.dumps(ATTACK | {"file": "x"}).encode()}),
    (409, {}),  # a page that has not read the file
]


@pytest.mark.parametrize(("status", "changes"), REFUSED, ids=range(len(REFUSED)))
def test_an_attack_is_refused_and_nothing_is_stored_or_run(status, changes, serve, monkeypatch):
    monkeypatch.setattr(sandbox, "check", lambda *_: pytest.fail("code ran"))
    server, changes = serve(), {"body": json.dumps(ATTACK).encode()} | changes
    assert server.server_address[0] == "127.0.0.1"
    assert send(server, **changes)[0] == status
    assert not server.workbook.folder.exists()


def test_no_other_site_shows_a_page_in_a_frame_or_reads_one(serve, tmp_path):
    server = serve()
    (tmp_path / "index.html").write_text("the course")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request("GET", "/index.html", headers={"Origin": "https://elsewhere.example"})
    response = connection.getresponse()
    assert response.read() == b"the course" and server.token not in str(response.headers)
    assert response.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert not [name for name in response.headers if name.startswith("Access-Control")]


LEFT = """
import ctypes, pathlib, time
child = ctypes.CDLL(None).fork()  # past Python
if not child:
    time.sleep(100)
pathlib.Path(r"PLACE").write_text(str(child))
"""
CATCHES_ALL = "while True:\n    try:\n        while True: pass\n    except:\n        pass"


@pytest.mark.parametrize(
    ("source", "words", "line"),
    [
        (softmax(CATCHES_ALL), "stopped after 4 seconds", None),
        (softmax("import os\nwhile True: os.fork()"), "starts no other process", 25),
        (softmax("import subprocess\nsubprocess.run('sh')"), "starts no other process", 25),
        (softmax("x = []\nwhile True: x.append(np.zeros(10**8))"), "MemoryError", 25),
        (softmax("open('large', 'wb').write(bytes(10**8))"), "File too large", 24),
        (softmax("import ctypes\nctypes.string_at(0)"), "Python ended while it ran", None),
        (softmax("return input()"), "EOFError", 24),
        (f"{RIGHT_TEXT}\nfor _ in range(20000): print(100 * 'a')", "Right: dscores", None),
        (
            f"{RIGHT_TEXT}\nimport threading, time\n"
            "threading.Thread(target=time.sleep, args=[99]).start()",
            "Right: dscores",
            None,
        ),
        (RIGHT_TEXT + LEFT, "Right: dscores", None),
    ],
)
def test_code_that_runs_wild_ends(source, words, line, tmp_path, monkeypatch):
    workbook, place = Workbook(tmp_path), tmp_path / "child"
    source = source.replace("PLACE", str(place)).replace("large", str(tmp_path / "large"))
    text = workbook.save("softmax_backward", EXERCISES["softmax_backward"].code, source)
    sandbox.prepare()
    monkeypatch.setattr(sandbox, "TIME", 4)
    reply = sandbox.check(workbook.file(3), text, 3, "softmax_backward")
    assert words in reply["words"] and len(reply["printed"]) in (0, sandbox.PRINTED)
    assert (line is None) or [*reply["marks"]] == [str(line)], reply["marks"]
    if place.exists():
        status = Path("/proc") / place.read_text() / "stat"
        for _ in range(100):
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            pytest.fail("what the code has started goes on")


def test_wrong_answers_hear_on_the_page_what_is_wrong(serve, monkeypatch):
    """Two of each exercise, checked by what a process calls that other tests start."""

    def check(*arguments):
        return sandbox.verdict(*arguments) | {"printed": ""}

    monkeypatch.setattr(sandbox, "check", check)
    server = serve()
    wrong = [(name, *next(iter(WRONG[name].items()))) for name in WRONG]
    wrong += [(name, source, "") for name, source in NEGATED.items()]
    for name, source, words in wrong:
        reply = checked_on_page(server, name, source)
        message = " ".join(reply["words"].split())
        assert not reply["right"] and words in message, message
        if not words:
            assert re.search(r"a sign is wrong|-1 times|is wrong", message), message
            assert [right for right, _ in reply["marks"].values()].count(False) == 1, reply
    assert not any(exercise["right"] for exercise in server.workbook.contents().values())


def test_an_exercise_waits_for_no_other_and_calls_those_that_are_there(serve):
    server = serve()
    broken = checked_on_page(server, "softmax_backward", "def softmax_backward(:")
    assert "invalid syntax" in broken["words"] and broken["marks"] == {"19": [False, ""]}
    assert checked_on_page(server, "attention_backward", attention())["right"]
    checked_on_page(server, "softmax_backward", softmax("return weights * dweights"))
    calls = attention(dZ="softmax_backward(dA, A)")
    assert checked_on_page(server, "attention_backward", calls)["words"].startswith(
        "It calls softmax_backward: mend that first."
    )
    assert checked_on_page(server, "attention_backward", "x = 1")["words"] == (
        "It defines no function attention_backward."
    )


def test_a_file_keeps_what_others_wrote_there(tmp_path, complaint):
    workbook, start = Workbook(tmp_path), EXERCISES["softmax_backward"].code
    (tmp_path / CHECKED).write_text("no JSON")
    (tmp_path / "lesson_03.py").write_text("mine = 1\n\n# %% softmax_backward\n# the task\n# a\n")
    assert workbook.contents()["softmax_backward"]["code"] == ""
    for code in ("# mine\nx = 1\n\n\n# more", "", "    y = 2"):
        before = workbook.contents()["softmax_backward"]["code"]
        workbook.save("softmax_backward", before, f"\n{code}\n  \n")
        found = workbook.contents()
        assert found["softmax_backward"]["code"] == code
        assert found["attention_backward"]["code"] == EXERCISES["attention_backward"].code.strip()
    text = (tmp_path / "lesson_03.py").read_text()
    assert text.startswith(
        "mine = 1\n\n# %% softmax_backward\n# the task\n# a\n\n\n    y = 2\n\n\n#"
    )
    assert "Copy what you need" in complaint(workbook.save, "softmax_backward", start, "x")
    assert (tmp_path / "lesson_03.py").read_text() == text
    (tmp_path / "lesson_03.py").write_bytes(b"\xff")
    assert "is a text in UTF-8" in complaint(workbook.contents)
    (tmp_path / "lesson_03.py").unlink()
    workbook.folder = tmp_path / CHECKED
    assert "--exercises is a folder" in complaint(workbook.save, "softmax_backward", start, "x")


@pytest.fixture
def served(chromium, site, serve):
    """The site as `serve` shows it: a server, and a function that opens a page of it."""
    server, problems, contexts = serve(site[0]), [], []

    def opened(name, width=1280):
        if not contexts:
            contexts.append(chromium.new_context())
        page = contexts[0].new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{server.origin}/{name}")
        return page

    yield server, opened
    for context in contexts:
        context.close()
    assert problems == []


def solve(page, name, code):
    """Write a text into the editor of an exercise and press Check -> its section."""
    section = page.locator(f"#exercise-{name}")
    section.locator("textarea:not([readonly])").fill(code)
    section.get_by_role("button", name="Check").click()
    section.locator(":scope:not([data-verdict=''])").wait_for(timeout=60_000)
    return section


@pytest.mark.timeout(900)
def test_every_exercise_is_solved_on_its_page_and_for_the_shell(served, call):
    server, opened = served
    page = opened(server.address.removeprefix(f"{server.origin}/"))
    total = page.locator("[data-solved='']")
    total.get_by_text(f"0 of {len(EXERCISES)} exercises solved").wait_for()
    assert "token" not in page.url
    for number in LESSONS:
        page.goto(f"{server.origin}/{lessons.COURSE[number - 1].page}")
        exercises = lessons.load(number).EXERCISES
        for exercise in exercises:
            section = solve(page, exercise.name, exercise.solved)
            assert section.get_attribute("data-verdict") == "right", section.inner_text()
            assert exercise.done.replace("`", "") in section.locator(".says").inner_text()
        solved = f"{len(exercises)} of {len(exercises)} solved"
        assert solved in page.locator("header").inner_text()
    page.goto(f"{server.origin}/index.html")
    total.get_by_text(f"{len(EXERCISES)} of {len(EXERCISES)} exercises solved").wait_for()
    assert solved in page.locator(".course li").last.inner_text()
    files = sorted(map(str, server.workbook.folder.glob("*.py")))
    code, out, _ = call(main, "progress", *files)
    assert (code, out[-1]) == (0, f"{len(EXERCISES)} of {len(EXERCISES)} exercises solved")
    code, out, _ = call(main, "check 3", files[2])
    assert (code, out[-1]) == (0, "4 of 4 right")


def test_the_editor_indents_undoes_marks_and_saves(served):
    server, opened = served
    opened(server.address.removeprefix(f"{server.origin}/")).close()
    page = opened(lessons.COURSE[2].page)
    section = page.locator("#exercise-softmax_backward")
    area, lines = section.locator("textarea:not([readonly])"), section.locator(".code > div")
    start = area.input_value()
    area.press("Control+A")
    for text in "def f(x):", "if x:", "y":
        page.keyboard.type(text)
        area.press("Enter")
    area.press("Backspace")
    page.keyboard.type("z")
    area.press("Tab")
    page.keyboard.type("'a'")
    typed = "def f(x):\n    if x:\n        y\n    z   'a'"
    assert area.input_value() == typed
    assert lines.locator(".k, .nf, .s1").all_inner_texts() == ["def", "f", "if", "'a'"]
    area.press("Control+A")
    area.press("Tab")
    assert area.input_value() == "".join(f"    {line}" for line in typed.splitlines(True))
    area.press("Shift+Tab")
    assert area.input_value() == typed
    for _ in range(40):
        area.press("Control+Z")
    assert area.input_value() == start
    area.press("Escape")
    area.press("Tab")
    assert section.get_by_role("button", name="Check").evaluate("b => b === document.activeElement")
    # The marked line has the file's number, and what the checker says begins beside it.
    lead = "def softmax_backward(dweights, weights):\n" + "    x = 1\n" * 20
    solve(page, "softmax_backward", f"{lead}    return weigths")
    marked = section.locator("[data-mark=wrong]")
    number = int(marked.get_attribute("data-line"))
    says = section.locator(".says")
    assert f"line {number}: return weigths" in says.inner_text()
    file = server.workbook.file(3)
    assert file.read_text().splitlines()[number - 1] == "    return weigths"
    marked, says = marked.bounding_box(), says.bounding_box()
    assert says["x"] > marked["x"] + marked["width"]
    assert (
        says["y"] - 5 < marked["y"] + marked["height"] and says["y"] + says["height"] > marked["y"]
    )
    # The text is saved without a check, and not over what another program wrote.
    area.fill("x = 1")
    page.wait_for_timeout(2000)
    assert "\nx = 1\n" in file.read_text()
    file.write_text(file.read_text().replace("\nx = 1\n", "\nx = 2\n"))
    area.fill("x = 3")
    section.get_by_text("has changed in").wait_for()
    assert "\nx = 2\n" in file.read_text() and area.input_value() == "x = 3"
    page = opened(lessons.COURSE[2].page)
    section = page.locator("#exercise-softmax_backward")
    assert section.locator("textarea:not([readonly])").input_value() == "x = 2"


def test_without_a_token_a_page_checks_nothing_and_keeps_the_text(served, open_page):
    _, opened = served
    for page in (opened(lessons.COURSE[2].page), open_page(lessons.COURSE[2].page, 390)):
        section = page.locator("#exercise-softmax_backward")
        assert not section.get_by_role("button", name="Check").is_visible()
        assert "python -m lessons serve" in section.locator(".how").inner_text()
        section.locator("textarea").fill("mine = 1")
        page.reload()
        assert section.locator("textarea").input_value() == "mine = 1"
