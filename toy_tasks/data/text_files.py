"""Read texts, and pairs of texts, from files."""

import codecs
import unicodedata
from pathlib import Path

from numformer.data.vocabulary import split_words
from numformer.errors import InputError

Pair = tuple[str, str]
"""A source and its target; or a word and its phonemes, with spaces between them."""

MAX_BYTES = 16 * 2**20
"""The size of the largest file that is read or downloaded."""

MAX_SYMBOLS = 256
"""The most symbols in a source or a target; the cost of attention grows with their square."""


def read_text(path: Path, fix: str) -> str:
    """Read a UTF-8 file -> its text in Unicode form NFC, with LF at the end of each line.

    A byte order mark is dropped. In NFC an accented letter is one character, however it was typed.

    Raises InputError if the file is missing, unreadable, not a regular file, or larger than
    `MAX_BYTES` (`fix` is the advice for the first three); and, with the number of the line, if
    it is not UTF-8.
    """
    try:
        # Reading a pipe might block, and reading a device might never end.
        if path.exists() and not path.is_file():
            raise OSError(None, "a folder" if path.is_dir() else "not a regular file")
        if (size := path.stat().st_size) > MAX_BYTES:
            rule = f"{path} has at most {MAX_BYTES:,} bytes"
            raise InputError(rule, f"{size:,}", "Keep only some of its lines.")
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
    path: Path, words: str = "", fix: str = "Name a file of pairs.", longest: int = MAX_SYMBOLS
) -> list[Pair]:
    """Read a file with `source<TAB>target` on each line -> the pairs, in the file's order.

    `words` says which sides are split into words ("source", "target" or "both"), not characters.
    Spaces around a side are dropped, and several spaces between words become one.

    Raises InputError, with the number of the line, for a line without exactly one TAB, and for a
    side that is empty or longer than `longest` symbols; for an empty file; and as `read_text` does.
    """
    text = read_text(path, fix).rstrip("\n")
    has_words = [words in (side, "both") for side in ("source", "target")]
    source, target = ("words" if has else "characters" for has in has_words)
    form = f"Write each line as {source} of the source, one TAB, and {target} of the target."
    if not text:
        raise InputError(f"{path} must hold at least one pair", "an empty file", form)
    pairs = []
    # str.splitlines would also split at characters such as U+2028 inside a line.
    for number, line in enumerate(text.split("\n"), start=1):
        excerpt = repr(line[:80])
        if line.count("\t") != 1:
            raise InputError(f"{path}, line {number} must have exactly one TAB", excerpt, form)
        sides = zip(line.split("\t"), has_words, strict=True)
        pair = tuple(" ".join(split_words(side)) if has else side.strip() for side, has in sides)
        if not all(pair):
            raise InputError(
                f"{path}, line {number} must have a source and a target", excerpt, form
            )
        sides = zip(pair, has_words, strict=True)
        lengths = [side.count(" ") + 1 if has else len(side) for side, has in sides]
        if max(lengths) > longest:
            raise InputError(
                f"{path}, line {number} must have at most {longest} symbols on each side",
                "{} and {}".format(*lengths),
                form,
            )
        pairs.append(pair)
    return pairs
