"""Data sets: what the reader takes and refuses, and downloads that work, fail or are damaged."""

import contextlib
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from numformer.errors import InputError
from toy_tasks.data import datasets, download
from toy_tasks.data.datasets import pronunciations
from toy_tasks.data.download import fetch
from toy_tasks.data.text_files import MAX_BYTES, read_pairs

FORM = "Write each line as characters of the source, one TAB, and words of the target."
BODY = "aa\ta a\nabandon\ta b ɑ̃ d ɔ̃\n".encode()
SUM = hashlib.sha256(BODY).hexdigest()
SPLITS = "train", "dev", "test"


def test_what_the_reader_takes_and_refuses(tmp_path, complaint):
    path = tmp_path / "x.tsv"
    absent = " must be a file that can be read; received No such file or directory. Do this."
    assert complaint(read_pairs, path, "target", "Do this.") == f"{path}{absent}"
    for text, pairs in {
        "és\tʰe s ˧˧ aː\nés\tɛ s\nés\tɛ s": [("és", "ʰe s ˧˧ aː"), ("és", "ɛ s"), ("és", "ɛ s")],
        "\ufeffé\tp ç\r\nb\tc\r\n": [("é", "p ç"), ("b", "c")],
        "e\u0301\tp c\u0327\n": [("é", "p ç")],
        " é b \t p  ç \n\n\n": [("é b", "p ç")],
        "a\u2028b\tc\n": [("a\u2028b", "c")],
        "a\t1\xa000 \u3000 c\u2028d\n": [("a", "1\xa000 \u3000 c\u2028d")],
    }.items():
        path.write_bytes(text.encode())
        assert read_pairs(path, "target") == pairs
    for data, message in {
        b"a\tb\nab\n": ", line 2 must have exactly one TAB; received 'ab'.",
        b"a\tb\r\na\t\r\n": ", line 2 must have a source and a target; received 'a\\t'.",
        b"x" * 99: f", line 1 must have exactly one TAB; received {'x' * 80!r}. {FORM}",
        b"a\tb\n\xe9\tc\n": ", line 2 must be UTF-8; received the byte 0xe9. Save the file",
        b"x" * 257 + b"\ty\n": ", line 1 must have at most 256 symbols on each side; rec",
        b"\r\n": " must hold at least one pair; received an empty file.",
    }.items():
        path.write_bytes(data)
        assert complaint(read_pairs, path, "target").startswith(f"{path}{message}")
    os.truncate(path, MAX_BYTES + 1)
    message = f"at most {MAX_BYTES:,} bytes; received {MAX_BYTES + 1:,}"
    assert message in complaint(read_pairs, path)


def test_a_folder_holds_any_language_and_needs_no_sums(tmp_path, complaint):
    for split in SPLITS:
        assert f"my-own_1_{split}.tsv must be" in complaint(pronunciations, "my-own_1", tmp_path)
        (tmp_path / f"my-own_1_{split}.tsv").write_text(f"{split}\tx\n")
    pairs = {split: [(split, "x")] for split in SPLITS}
    assert pronunciations("my-own_1", tmp_path) == pairs
    for language in ("../fre", "fre\n", "é", ""):
        assert "by ASCII letters, digits, _" in complaint(pronunciations, language, tmp_path)


@pytest.fixture
def server(monkeypatch):
    """Serves `files`, a path's bytes or its promised length and pieces; notes the `requests`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            if self.path not in server.files:
                return self.send_error(404)
            answer = server.files[self.path]
            length, pieces = answer if isinstance(answer, tuple) else (len(answer), [answer])
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            with contextlib.suppress(OSError):  # a client may have had enough
                for piece in pieces:
                    self.wfile.write(piece)

        log_message = lambda *_: None  # noqa: E731

    # urllib would send even these requests to a proxy that the environment names.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url, server.files, server.requests = f"http://127.0.0.1:{server.server_port}", {}, []
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
        monkeypatch.setitem(
            datasets.PRONUNCIATION_SUMS["fre"], split, hashlib.sha256(body).hexdigest()
        )
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
    assert "/fre_dev.tsv serves the file; received <HTTPError 404: 'Not Found'>" in message
    assert f"fre_test.tsv yourself from {french.url}/ and pass their folder with" in message
    assert [path.name for path in tmp_path.iterdir()] == ["fre_train.tsv"]


FAILURES = {
    "7 bytes": (len(BODY), [BODY[:7]]),
    "must have at most 16777216 bytes; received more.": (None, 64 * [bytes(2**20)]),
    f"must have the SHA-256 sum {SUM}; received a file with another sum.": BODY + b"\n",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_download_is_a_complaint_and_leaves_nothing(server, tmp_path, failure, complaint):
    path, url = tmp_path / "x.tsv", f"{server.url}/x.tsv"
    path.write_bytes(b"damaged")
    server.files["/x.tsv"] = FAILURES[failure]
    message = complaint(fetch, url, path, SUM, "do without")
    assert message.startswith(f"{url} must ") and failure in message
    assert message.endswith("Check the network, or do without.")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"damaged"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_download_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch, error):
    def interrupted(*args):
        yield BODY[:7]
        raise error

    monkeypatch.setattr(download, "_download", interrupted)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        fetch("http://127.0.0.1/x.tsv", tmp_path / "x.tsv", SUM, "do without")
    assert not list(tmp_path.iterdir())
    assert isinstance(error, KeyboardInterrupt) or "No space left on device" in str(caught.value)
