"""Data sets: what the reader takes and refuses, and downloads that work, fail or are damaged."""

import hashlib
import io
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from numformer.errors import InputError
from toy_tasks.kit import datasets
from toy_tasks.kit.datasets import fetch, pronunciations, read_pairs

FORM = "Write each line as characters of the source, one TAB, and words of the target."
BODY = "aa\ta a\nabandon\ta b ɑ̃ d ɔ̃\n".encode()
SUM = hashlib.sha256(BODY).hexdigest()
OTHERWISE = "do without"


def complaint(function, *args, **kwargs) -> str:
    """Call `function`, which must raise InputError -> its message."""
    with pytest.raises(InputError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# The reader.


def written(folder: Path, data: bytes) -> Path:
    path = folder / "xx_train.tsv"
    path.write_bytes(data)
    return path


def test_reader_keeps_order_and_duplicates(tmp_path):
    text = "tu la\tt u ˧˧ l aː\nés\tʰe s\nés\tɛ s\n"
    assert read_pairs(written(tmp_path, text.encode()), "target") == [
        ("tu la", "t u ˧˧ l aː"),
        ("és", "ʰe s"),
        ("és", "ɛ s"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        "é\tp ç\nb\tc".encode(),
        "é\tp ç\r\nb\tc\r\n".encode(),
        "\ufeffé\tp ç\nb\tc\n".encode(),
        "e\u0301\tp c\u0327\nb\tc\n".encode(),
        " é \t p  ç \nb\tc\n".encode(),
        "é\tp ç\nb\tc\n\n\n".encode(),
    ],
    ids=["no last newline", "CRLF", "BOM", "NFD", "spare spaces", "empty lines at the end"],
)
def test_reader_tolerates(tmp_path, data):
    assert read_pairs(written(tmp_path, data), "target") == [("é", "p ç"), ("b", "c")]


def test_reader_ends_lines_at_newlines_only(tmp_path):
    data = "a\u2028b\tc\n".encode()
    assert read_pairs(written(tmp_path, data), "target") == [("a\u2028b", "c")]


@pytest.mark.parametrize(
    ("data", "rule", "received"),
    [
        (b"a\tb\nab\n", "line 2 must have exactly one TAB", "'ab'"),
        (b"a\tb\tc\n", "line 1 must have exactly one TAB", r"'a\tb\tc'"),
        (b"a\tb\n\nc\td\n", "line 2 must have exactly one TAB", "''"),
        (b"a\tb\n\tb\n", "line 2 must have a source and a target", r"'\tb'"),
        (b" \tb\n", "line 1 must have a source and a target", r"' \tb'"),
        (b"a\tb\r\na\t\r\n", "line 2 must have a source and a target", r"'a\t'"),
        (b"a\t \n", "line 1 must have a source and a target", r"'a\t '"),
        (b"x" * 1000, "line 1 must have exactly one TAB", repr("x" * 80)),
    ],
)
def test_reader_refuses_a_line(tmp_path, data, rule, received):
    path = written(tmp_path, data)
    assert (
        complaint(read_pairs, path, "target", "Do this.")
        == f"{path}, {rule}; received {received}. {FORM}"
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_reader_refuses_what_is_not_utf8(tmp_path, mark):
    path = written(tmp_path, mark + b"a\tb\n\xe9\tc\n")
    assert complaint(read_pairs, path, "target", "Do this.") == (
        f"{path}, line 2 must be UTF-8; received the byte 0xe9. Save the file as UTF-8."
    )


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n", b"\xef\xbb\xbf"])
def test_reader_refuses_an_empty_file(tmp_path, data):
    path = written(tmp_path, data)
    assert complaint(read_pairs, path, "target", "Do this.") == (
        f"{path} must hold at least one pair; received an empty file. {FORM}"
    )


def test_reader_refuses_a_missing_file(tmp_path):
    path = tmp_path / "xx_dev.tsv"
    assert complaint(read_pairs, path, "target", "Do this.") == (
        f"{path} must be a file that can be read; received No such file or directory. Do this."
    )


# A folder of the user's.


def test_folder_holds_any_language_and_needs_no_sums(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"my-own_1_{split}.tsv").write_text(f"{split}\tx\n")
    assert pronunciations("my-own_1", tmp_path) == {
        split: [(split, "x")] for split in ("train", "dev", "test")
    }


def test_folder_with_a_file_missing_is_refused(tmp_path):
    written(tmp_path, BODY)
    assert f"{tmp_path / 'xx_dev.tsv'} must be a file" in complaint(pronunciations, "xx", tmp_path)


def test_missing_folder_is_refused(tmp_path):
    message = complaint(pronunciations, "xx", tmp_path / "no")
    assert message.startswith(f"{tmp_path / 'no' / 'xx_train.tsv'} must be a file that can be read")
    assert "Check the language and the folder" in message


@pytest.mark.parametrize("language", ["../fre", "a/b", "a\\b", "", ".", "fre\n", "é", "a b", "%2e"])
@pytest.mark.parametrize("with_folder", [True, False])
def test_language_that_is_no_plain_name_is_refused(tmp_path, language, with_folder):
    assert complaint(pronunciations, language, tmp_path if with_folder else None) == (
        f"a language must be named by ASCII letters, digits, _ and - alone; received {language!r}. "
        "Pass one such as dut, fre, vie_hanoi, or LANG for files named LANG_train.tsv."
    )


# Downloads, from a server on this machine.


class Server(ThreadingHTTPServer):
    """Serves `files`: a path's bytes, or a function that answers through the handler."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {}
        self.requests = []
        self.closing = threading.Event()


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
        server.closing.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def french(server, monkeypatch):
    """Serve three small files in the place of French -> the server."""
    for split in ("train", "dev", "test"):
        body = f"{split}\tx y\n".encode()
        server.files[f"/fre_{split}.tsv"] = body
        monkeypatch.setitem(datasets.SHA256["fre"], split, hashlib.sha256(body).hexdigest())
    return server


FRENCH = {split: [(split, "x y")] for split in ("train", "dev", "test")}
REQUESTS = ["/fre_train.tsv", "/fre_dev.tsv", "/fre_test.tsv"]


def test_shakespeare_is_downloaded_once_and_checked(server, tmp_path, monkeypatch, complaint):
    text = b"To be, or not to be:\n"
    server.files["/input.txt"] = text
    source = f"{server.url}/input.txt", hashlib.sha256(text).hexdigest()
    monkeypatch.setattr(datasets, "SHAKESPEARE", source)
    for _ in range(2):
        assert datasets.shakespeare(cache=tmp_path).encode() == text
    assert server.requests == ["/input.txt"]
    server.files["/input.txt"] = b"another text"
    (tmp_path / "shakespeare.txt").write_text("damaged")
    assert "pass it with `--data FILE`" in complaint(datasets.shakespeare, cache=tmp_path)


def test_first_use_downloads_and_later_use_requests_nothing(french, tmp_path, capsys):
    cache = tmp_path / "new" / "data"
    assert pronunciations("fre", cache=cache, address=french.url) == FRENCH
    assert french.requests == REQUESTS
    assert pronunciations("fre", cache=cache, address=french.url) == FRENCH
    assert french.requests == REQUESTS
    assert sorted(f"/{path.name}" for path in cache.iterdir()) == sorted(REQUESTS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("damage", [b"", b"dev\tx", b"dev\tx z\n"])
def test_damaged_cached_file_is_fetched_anew_and_alone(french, tmp_path, damage):
    pronunciations("fre", cache=tmp_path, address=french.url)
    (tmp_path / "fre_dev.tsv").write_bytes(damage)
    assert pronunciations("fre", cache=tmp_path, address=french.url) == FRENCH
    assert french.requests == [*REQUESTS, "/fre_dev.tsv"]


def test_users_folder_requests_nothing(french, tmp_path):
    for name in REQUESTS:
        (tmp_path / name[1:]).write_bytes(BODY)
    pairs = pronunciations("fre", tmp_path, cache=tmp_path / "cache", address=french.url)
    assert [len(part) for part in pairs.values()] == [2, 2, 2]
    assert french.requests == []


def test_language_without_sums_is_refused_before_any_request(server, tmp_path):
    message = complaint(pronunciations, "bul", cache=tmp_path, address=server.url)
    assert message == (
        "a language to download must be one of dut, fre, vie_hanoi; received 'bul'. Pass one of "
        "these, or the folder that holds bul_train.tsv, bul_dev.tsv and bul_test.tsv with "
        "`--data DIR`."
    )
    assert server.requests == []


def test_failed_download_names_the_files_the_address_and_the_flag(french, tmp_path):
    del french.files["/fre_dev.tsv"]
    assert complaint(pronunciations, "fre", cache=tmp_path, address=french.url) == (
        f"{french.url}/fre_dev.tsv must send the file; received <HTTPError 404: 'Not Found'>. "
        "Check the network, or download fre_train.tsv, fre_dev.tsv and fre_test.tsv yourself from "
        f"{french.url}/ and pass their folder with `--data DIR`."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["fre_train.tsv"]


def test_every_language_has_three_sums_of_its_own():
    sums = [value for splits in datasets.SHA256.values() for value in splits.values()]
    assert all(list(splits) == ["train", "dev", "test"] for splits in datasets.SHA256.values())
    assert len(sums) == len(set(sums)) == 9
    assert all(len(bytes.fromhex(value)) == 32 and value.islower() for value in sums)


def silent(handler):
    handler.server.closing.wait(5)


def stalls(handler):
    handler.head("Content-Length", str(len(BODY)))
    handler.wfile.write(BODY[:7])
    handler.wfile.flush()
    handler.server.closing.wait(5)


def breaks_off(handler):
    handler.head("Content-Length", str(len(BODY)))
    handler.wfile.write(BODY[:7])


def breaks_off_in_a_chunk(handler):
    handler.head("Transfer-Encoding", "chunked")
    handler.wfile.write(b"20\r\n" + BODY[:7])


def endless(handler):
    handler.head()
    # It does end, so that a client without a bound fails this test instead of the machine.
    try:
        for _ in range(64):
            handler.wfile.write(bytes(2**20))
    except OSError:
        pass


SLOW = (silent, stalls)
FAILURES = {
    "missing": (None, "must send the file; received <HTTPError 404: 'Not Found'>."),
    "silent": (silent, "must send the file; received TimeoutError('timed out')."),
    "stalls": (stalls, "must send the file; received TimeoutError('timed out')."),
    "breaks off": (breaks_off, "7 bytes"),
    "breaks off in a chunk": (breaks_off_in_a_chunk, "must send the file; received IncompleteRead"),
    "endless": (endless, "must have at most 16777216 bytes; received more."),
    "longer": (BODY + b"\n", f"must have the SHA-256 sum {SUM}; received a file with another sum."),
    "empty": (b"", f"must have the SHA-256 sum {SUM}; received a file with another sum."),
}


@pytest.mark.parametrize("kept", [None, b"damaged"], ids=["no file", "damaged file"])
@pytest.mark.parametrize(("answer", "expected"), FAILURES.values(), ids=FAILURES)
def test_failed_download_is_a_complaint_and_leaves_nothing(
    server, tmp_path, answer, expected, kept
):
    path = tmp_path / "x.tsv"
    if kept:
        path.write_bytes(kept)
    server.files["/x.tsv"] = answer
    url = f"{server.url}/x.tsv"
    message = complaint(fetch, url, path, SUM, OTHERWISE, timeout=0.2 if answer in SLOW else 5)
    assert message.startswith(f"{url} must ")
    assert expected in message
    assert message.endswith("Check the network, or do without.")
    assert list(tmp_path.iterdir()) == ([path] if kept else [])
    assert not kept or path.read_bytes() == kept
    assert server.requests == ["/x.tsv"]


def test_no_server_is_a_complaint(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    # A port that is taken but not listened to refuses every connection.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x.tsv"
        message = complaint(fetch, url, tmp_path / "x.tsv", SUM, OTHERWISE)
    assert message.startswith(f"{url} must send the file; received ")
    assert "refused" in message
    assert message.endswith("Check the network, or do without.")
    assert list(tmp_path.iterdir()) == []


def test_file_of_the_largest_size_is_taken(server, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "MAX_BYTES", len(BODY))
    server.files["/x.tsv"] = BODY
    fetch(f"{server.url}/x.tsv", tmp_path / "x.tsv", SUM, OTHERWISE)
    assert (tmp_path / "x.tsv").read_bytes() == BODY


def test_body_without_a_length_is_taken(server, tmp_path):
    def answer(handler):
        handler.head()
        handler.wfile.write(BODY)

    server.files["/x.tsv"] = answer
    fetch(f"{server.url}/x.tsv", tmp_path / "x.tsv", SUM, OTHERWISE)
    assert (tmp_path / "x.tsv").read_bytes() == BODY


def test_cache_that_cannot_be_written_is_a_complaint(server, tmp_path):
    server.files["/x.tsv"] = BODY
    (tmp_path / "file").write_bytes(b"")
    # A file in the folder's place stops root too, whom permissions do not.
    path = tmp_path / "file" / "x.tsv"
    message = complaint(fetch, f"{server.url}/x.tsv", path, SUM, OTHERWISE)
    assert message == (
        f"{path.parent} must be a folder that can be written; received File exists. "
        "Make it writable and give it room, or do without."
    )
    assert server.requests == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_download_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch, error):
    def download(*args):
        # What a kill would leave behind at this point is what .gitignore names.
        assert [path.suffix for path in tmp_path.iterdir()] == [".tsv"]
        yield BODY[:7]
        raise error

    monkeypatch.setattr(datasets, "_download", download)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        fetch("http://127.0.0.1/x.tsv", tmp_path / "x.tsv", SUM, OTHERWISE)
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"{tmp_path} must be a folder that can be written; received No space left on device. "
            "Make it writable and give it room, or do without."
        )


def test_cached_file_is_readable_by_whom_the_umask_allows(server, tmp_path):
    server.files["/x.tsv"] = BODY
    fetch(f"{server.url}/x.tsv", tmp_path / "x.tsv", SUM, OTHERWISE)
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "x.tsv").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_progress_bar_on_a_terminal(server, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    server.files["/x.tsv"] = BODY
    fetch(f"{server.url}/x.tsv", tmp_path / "x.tsv", SUM, OTHERWISE)
    assert "x.tsv: 100%" in terminal.getvalue()
