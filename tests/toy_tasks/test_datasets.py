"""Data sets: what the reader takes and refuses, and downloads that work, fail or are damaged."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from numformer.errors import InputError
from toy_tasks.kit import datasets
from toy_tasks.kit.datasets import fetch, pronunciations, read_pairs

FORM = "Write each line as characters of the source, one TAB, and words of the target."
BODY = "aa\ta a\nabandon\ta b ɑ̃ d ɔ̃\n".encode()
SUM = hashlib.sha256(BODY).hexdigest()
UTF_8 = ", line 2 must be UTF-8; received the byte 0xe9. Save the file as UTF-8."
SPLITS = "train", "dev", "test"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("és\tʰe s ˧˧ aː\nés\tɛ s\nés\tɛ s", [("és", "ʰe s ˧˧ aː"), ("és", "ɛ s"), ("és", "ɛ s")]),
        ("\ufeffé\tp ç\r\nb\tc\r\n", [("é", "p ç"), ("b", "c")]),
        ("e\u0301\tp c\u0327\n", [("é", "p ç")]),
        (" é b \t p  ç \n\n\n", [("é b", "p ç")]),
        ("a\u2028b\tc\n", [("a\u2028b", "c")]),
    ],
    ids=ascii,
)
def test_what_the_reader_takes(tmp_path, text, pairs):
    path = tmp_path / "x.tsv"
    path.write_bytes(text.encode())
    assert read_pairs(path, "target") == pairs


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a\tb\nab\n", ", line 2 must have exactly one TAB; received 'ab'."),
        (b"a\tb\r\na\t\r\n", ", line 2 must have a source and a target; received 'a\\t'."),
        (b"x" * 99, f", line 1 must have exactly one TAB; received {'x' * 80!r}. {FORM}"),
        (b"a\tb\n\xe9\tc\n", UTF_8),
        (b"x" * 257 + b"\ty\n", ", line 1 must have at most 256 symbols on each side; rec"),
        (b"\r\n", " must hold at least one pair; received an empty file."),
        (None, " must be a file that can be read; received No such file or directory. Do this."),
    ],
)
def test_what_the_reader_refuses(tmp_path, data, said, complaint):
    path = tmp_path / "x.tsv"
    if data is not None:
        path.write_bytes(data)
    assert complaint(read_pairs, path, "target", "Do this.").startswith(f"{path}{said}")


def test_a_folder_holds_any_language_and_needs_no_sums(tmp_path, complaint):
    for split in SPLITS:
        assert f"my-own_1_{split}.tsv must be" in complaint(pronunciations, "my-own_1", tmp_path)
        (tmp_path / f"my-own_1_{split}.tsv").write_text(f"{split}\tx\n")
    pairs = {split: [(split, "x")] for split in SPLITS}
    assert pronunciations("my-own_1", tmp_path) == pairs
    for language in ("../fre", "fre\n", "é", ""):
        assert "by ASCII letters, digits, _" in complaint(pronunciations, language, tmp_path)


class Server(ThreadingHTTPServer):
    """Serves `files`: a path's bytes, or a function that answers through the handler."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files, self.requests = {}, []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        answer = self.server.files.get(self.path)
        if answer is None:
            self.send_error(404)
        elif callable(answer):
            answer(self)
        else:
            self.head("Content-Length", str(len(answer)))
            self.wfile.write(answer)

    def head(self, *header: str):
        self.send_response(200)
        if header:
            self.send_header(*header)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    # urllib would send even these requests to a proxy that the environment names.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        # A short poll, because shutdown waits for the next one.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def french(server, monkeypatch):
    for split in SPLITS:
        server.files[f"/fre_{split}.tsv"] = body = f"{split}\tx y\n".encode()
        monkeypatch.setitem(datasets.SHA256["fre"], split, hashlib.sha256(body).hexdigest())
    return server


FRENCH = {split: [(split, "x y")] for split in SPLITS}
REQUESTS = ["/fre_train.tsv", "/fre_dev.tsv", "/fre_test.tsv"]


def test_shakespeare_is_downloaded_once(server, tmp_path, monkeypatch):
    text = b"To be, or not to be:\n"
    server.files["/input.txt"] = text
    source = f"{server.url}/input.txt", hashlib.sha256(text).hexdigest()
    monkeypatch.setattr(datasets, "SHAKESPEARE", source)
    for _ in range(2):
        assert datasets.shakespeare(cache=tmp_path).encode() == text
    assert server.requests == ["/input.txt"]


def test_what_is_missing_or_damaged_is_downloaded_and_nothing_else(french, tmp_path, capsys):
    cache = tmp_path / "new" / "data"
    how = dict(cache=cache, address=french.url)
    for _ in range(2):
        assert pronunciations("fre", **how) == FRENCH
        assert french.requests == REQUESTS
    assert sorted(f"/{path.name}" for path in cache.iterdir()) == sorted(REQUESTS)
    assert capsys.readouterr() == ("", "")
    for damage in (b"", b"dev\tx", b"dev\tx z\n"):
        french.requests.clear()
        (cache / "fre_dev.tsv").write_bytes(damage)
        assert pronunciations("fre", **how) == FRENCH
        assert french.requests == ["/fre_dev.tsv"]
    french.requests.clear()
    for name in REQUESTS:
        (tmp_path / name[1:]).write_bytes(BODY)
    pairs = pronunciations("fre", tmp_path, **how)
    assert [len(part) for part in pairs.values()] == [2, 2, 2] and french.requests == []


def test_what_cannot_be_downloaded_says_where_it_is(french, tmp_path, complaint):
    how = dict(cache=tmp_path, address=french.url)
    assert "one of dut, fre, vie_hanoi; received 'bul'" in complaint(pronunciations, "bul", **how)
    assert french.requests == []
    del french.files["/fre_dev.tsv"]
    message = complaint(pronunciations, "fre", **how)
    assert "/fre_dev.tsv must send the file; received <HTTPError 404: 'Not Found'>" in message
    assert f"fre_test.tsv yourself from {french.url}/ and pass their folder with" in message
    assert [path.name for path in tmp_path.iterdir()] == ["fre_train.tsv"]


def breaks_off(handler):
    handler.head("Content-Length", str(len(BODY)))
    handler.wfile.write(BODY[:7])


def endless(handler):
    handler.head()
    try:  # it does end, so that a client without a bound fails this test instead of the machine
        for _ in range(64):
            handler.wfile.write(bytes(2**20))
    except OSError:
        pass


FAILURES = {
    "breaks off": (breaks_off, "7 bytes"),
    "endless": (endless, "must have at most 16777216 bytes; received more."),
    "longer": (BODY + b"\n", f"must have the SHA-256 sum {SUM}; received a file with another sum."),
}


@pytest.mark.parametrize(("answer", "said"), FAILURES.values(), ids=FAILURES)
def test_a_failed_download_is_a_complaint_and_leaves_nothing(
    server, tmp_path, answer, said, complaint
):
    path, url = tmp_path / "x.tsv", f"{server.url}/x.tsv"
    path.write_bytes(b"damaged")
    server.files["/x.tsv"] = answer
    message = complaint(fetch, url, path, SUM, "do without")
    assert message.startswith(f"{url} must ") and said in message
    assert message.endswith("Check the network, or do without.")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"damaged"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_download_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch, error):
    def download(*args):
        yield BODY[:7]
        raise error

    monkeypatch.setattr(datasets, "_download", download)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        fetch("http://127.0.0.1/x.tsv", tmp_path / "x.tsv", SUM, "do without")
    assert not list(tmp_path.iterdir())
    assert isinstance(error, KeyboardInterrupt) or "No space left on device" in str(caught.value)
