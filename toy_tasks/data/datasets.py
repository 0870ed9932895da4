"""Read the data of the toy tasks, fetching it once from its public address where it is missing.

The pronunciation data is the medium-resource part of SIGMORPHON 2021 task 1 (Ashby et al. 2021,
github.com/sigmorphon/2021-task1): 8,000 words a language to train on, 1,000 to develop on and
1,000 to test on, taken from Wiktionary by WikiPron. Licence: CC BY-SA 3.0. None of it is part of
this project; it is downloaded when first used and kept in the user's cache folder.
"""

import codecs
import hashlib
import re
import tempfile
import unicodedata
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import platformdirs
from tqdm import tqdm

from numformer.errors import InputError

Pair = tuple[str, str]
"""A source and its target; a word and its phonemes with spaces between them."""

CACHE = platformdirs.user_cache_path("numformer", appauthor=False)
"""Where downloads are kept: of an installation nothing may be writable."""

ADDRESS = (
    "https://raw.githubusercontent.com/sigmorphon/2021-task1/"
    "821bcdece5a47820872215969f275004b0abe80c/data/medium"
)

SHA256 = {
    "dut": {
        "train": "08d327412cbf809a4cf894e015975d91588a38e8e05fb86450f42a4a38e534b8",
        "dev": "77a896e9510b6ebc610a9bc6a1bf32a06bc85489e9056caf77d996bb107318aa",
        "test": "eb31a13e8f797f1bda23194689805c8ea0cd6960e86f739d1e818f1815c287ae",
    },
    "fre": {
        "train": "e9de4f5125d2478e50506c5ed278f69d5fb17d8d213f99f845305c24e28a55c2",
        "dev": "3b42f14f318367dd94faa6d59e8fafabd845a3998800b6ce71a7c67e999490da",
        "test": "6202c2b7b8d5fbd76a4d40373f9564a9946671dab617438b534bd47c64071c92",
    },
    "vie_hanoi": {
        "train": "8f2a60af78668db3c2c4d201938a822d7fc7808ffd64b12504723f3ff64fea4c",
        "dev": "5d56e7d14dc4d90758d2d4ba0c74f3531b4e05b5344346786e2a1b1b447093ca",
        "test": "ed555cb71d164b1be52e72b5bd398fe5a787e1a598418498b67dcb1ab6fb439e",
    },
}
"""The sum of each file that can be downloaded, by language and split."""

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
"""Address and sum of a million characters of Shakespeare's plays."""

MAX_BYTES = 16 * 2**20
"""The largest file: no server and no folder can fill the memory or the disk."""

LONGEST = 256
"""The most symbols of a source, and of a target: attention compares each with each."""


def pronunciations(
    language: str, folder: Path | None = None, *, cache: Path = CACHE, address: str = ADDRESS
) -> dict[str, list[Pair]]:
    """Read one language's words and phonemes -> the pairs of "train", "dev" and "test".

    With `folder`, its files LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv are read as they are.
    Without, the three files of a language in `SHA256` are read from `cache`, and those that are
    missing or damaged there are downloaded from `address` first.

    Raises InputError for a language that is no plain name or, without `folder`, has no known sums,
    and whatever `fetch` and `read_pairs` complain about.
    """
    # The language becomes part of a path and of an address, so it may hold no separator.
    if not re.fullmatch("[A-Za-z0-9_-]+", language):
        raise InputError(
            "a language must be named by ASCII letters, digits, _ and - alone",
            repr(language),
            f"Pass one such as {', '.join(SHA256)}, or LANG for files named LANG_train.tsv.",
        )
    names = {split: f"{language}_{split}.tsv" for split in ("train", "dev", "test")}
    files = f"{names['train']}, {names['dev']} and {names['test']}"
    if folder is None:
        if language not in SHA256:
            raise InputError(
                f"a language to download must be one of {', '.join(SHA256)}",
                repr(language),
                f"Pass one of these, or the folder that holds {files} with `--data DIR`.",
            )
        otherwise = (
            f"download {files} yourself from {address}/ and pass their folder with `--data DIR`"
        )
        for split, name in names.items():
            fetch(f"{address}/{name}", cache / name, SHA256[language][split], otherwise)
        folder = cache
    fix = f"Check the language and the folder: it must hold {files}."
    return {split: read_pairs(folder / name, "target", fix) for split, name in names.items()}


def shakespeare(path: Path | None = None, cache: Path = CACHE) -> str:
    """A million characters of Shakespeare's plays, as Karpathy 2015 put them together.

    They are read from `path`, the file or its folder, and without one from `cache`, downloaded
    first where they are missing. Raises InputError as `fetch` and `read_text` do.
    """
    (address, sha256), name = SHAKESPEARE, "shakespeare.txt"
    if path is None:
        fetch(address, cache / name, sha256, f"download {address} and pass it with `--data FILE`")
        path = cache / name
    elif path.is_dir():
        path = path / "input.txt"
    return read_text(path, f"Name the file of {address}, or leave out --data to download it.")


def read_text(path: Path, fix: str) -> str:
    """The text of a UTF-8 file, with or without a byte order mark, its lines ending in LF.

    It is brought to NFC, so that an accented letter is one character however it was typed.

    Raises InputError, with `fix` for what to do, for a file that is missing, unreadable, no plain
    file or larger than `MAX_BYTES`; and for one that is not UTF-8, with the line's number.
    """
    try:
        # A pipe would keep its reader waiting, a device might never end.
        if path.exists() and not path.is_file():
            raise OSError(None, "a folder" if path.is_dir() else "no plain file")
        if (size := path.stat().st_size) > MAX_BYTES:
            rule = f"{path} has at most {MAX_BYTES:,} bytes"
            raise InputError(rule, f"{size:,}", "Make a file of a part of its lines.")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} must be a file that can be read", error.strerror, fix) from error
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {number} must be UTF-8",
            f"the byte 0x{data[error.start]:02x}",
            "Save the file as UTF-8.",
        ) from error
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n"))


def read_pairs(
    path: Path, words: str = "", fix: str = "Name a file of pairs.", longest: int = LONGEST
) -> list[Pair]:
    """Read a file of `source<TAB>target` -> one pair a line, in the file's order.

    `words` tells what is made of words, the others being made of characters: "source", "target" or
    "both". Spaces around a side are dropped, between words they become one.

    Raises InputError, with the line's number, for a line that does not have exactly one TAB, or of
    which a side is empty or longer than `longest` symbols; for an empty file; and, with `fix`,
    whatever `read_text` complains about.
    """
    text = read_text(path, fix).rstrip("\n")  # empty lines at the end say nothing
    sides = [words in (side, "both") for side in ("source", "target")]
    names = ["words" if side else "characters" for side in sides]
    form = f"Write each line as {names[0]} of the source, one TAB, and {names[1]} of the target."
    if not text:
        raise InputError(f"{path} must hold at least one pair", "an empty file", form)
    pairs = []
    # Not splitlines, which would also cut at characters such as U+2028 inside a line.
    for number, line in enumerate(text.split("\n"), start=1):
        # In the wrong kind of file a line can be very long.
        shown = repr(line[:80])
        if line.count("\t") != 1:
            raise InputError(f"{path}, line {number} must have exactly one TAB", shown, form)
        pair = tuple(
            " ".join(side.split()) if of_words else side.strip()
            for side, of_words in zip(line.split("\t"), sides, strict=True)
        )
        if not all(pair):
            raise InputError(f"{path}, line {number} must have a source and a target", shown, form)
        lengths = [
            side.count(" ") + 1 if of_words else len(side)
            for side, of_words in zip(pair, sides, strict=True)
        ]
        if max(lengths) > longest:
            raise InputError(
                f"{path}, line {number} must have at most {longest} symbols on each side",
                "{} and {}".format(*lengths),
                form,
            )
        pairs.append(pair)
    return pairs


def fetch(url: str, path: Path, sha256: str, otherwise: str, timeout: float = 30.0) -> None:
    """Make `path` a file whose SHA-256 sum is `sha256`, downloading it from `url` if it is not.

    A file that has the sum is left alone and nothing is requested. `path` is replaced in one step
    once the whole download has the sum, so no failure leaves a part of a file behind.
    `otherwise` completes "Check the network, or ...": the user's other way to this data.
    `timeout` is the number of seconds for which the server may stay silent.

    Raises InputError for a server that cannot be reached, answers with an error, stays silent,
    breaks off, or sends more than `MAX_BYTES` or another sum; and for a folder of `path` that
    cannot be written.
    """
    if _has_sum(path, sha256):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder, path.name)
            with part.open("wb") as file:
                for piece in _download(url, path.name, otherwise, timeout):
                    file.write(piece)
            if not _has_sum(part, sha256):
                raise InputError(
                    f"{url} must have the SHA-256 sum {sha256}",
                    "a file with another sum",
                    f"Check the network, or {otherwise}.",
                )
            part.replace(path)
    except OSError as error:
        raise InputError(
            f"{path.parent} must be a folder that can be written",
            error.strerror,
            f"Make it writable and give it room, or {otherwise}.",
        ) from error


def _has_sum(path: Path, sha256: str) -> bool:
    """Tell whether `path` is there, can be read and has the SHA-256 sum `sha256`."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _download(url: str, name: str, otherwise: str, timeout: float) -> Iterator[bytes]:
    """Yield the body of `url` in pieces, with a progress bar called `name` on a terminal.

    Raises InputError for all that can go wrong on the way, see `fetch`.
    """
    fix = f"Check the network, or {otherwise}."
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            total = response.length
            received = 0
            with tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                while piece := response.read(2**16):
                    received += len(piece)
                    if received > MAX_BYTES:
                        raise InputError(f"{url} must have at most {MAX_BYTES} bytes", "more", fix)
                    bar.update(len(piece))
                    yield piece
            # http.client takes a connection that is closed early for the end of the body.
            if total is not None and received < total:
                raise InputError(f"{url} must send {total} bytes", f"{received} bytes", fix)
    except (OSError, HTTPException) as error:
        raise InputError(f"{url} must send the file", repr(error), fix) from error
