"""Download a file once, check its SHA-256 sum, and keep it in the user's cache folder."""

import hashlib
import tempfile
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from numformer.errors import InputError
from numformer.runs.files import cache_folder
from toy_tasks.data.text_files import MAX_BYTES

CACHE = cache_folder()
"""The folder of downloads. The folder of an installation may be read-only."""


def fetch(url: str, path: Path, sha256: str, alternative: str, timeout: float = 30.0) -> None:
    """Download `url` to `path`, unless the file there already has the SHA-256 sum `sha256`.

    `path` is replaced in one step once the download's SHA-256 sum is right, so a failure leaves no
    partial file. `alternative` completes the advice "Check the network, or ..." and says how else
    to get the data. `timeout` limits the silence of the server, in seconds.

    Raises InputError if the server cannot be reached, answers with an error, stays silent, breaks
    off, or sends more than `MAX_BYTES` bytes or a file with a different sum; and if the folder of
    `path` cannot be written.
    """
    if _has_sum(path, sha256):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            partial = Path(folder, path.name)
            with partial.open("wb") as file:
                for chunk in _download(url, path.name, alternative, timeout):
                    file.write(chunk)
            if not _has_sum(partial, sha256):
                raise InputError(
                    f"{url} must have the SHA-256 sum {sha256}",
                    "a file with another sum",
                    f"Check the network, or {alternative}.",
                )
            partial.replace(path)
    except OSError as error:
        raise InputError(
            f"{path.parent} must be a folder that can be written",
            error.strerror,
            f"Make it writable and free some disk space, or {alternative}.",
        ) from error


def _has_sum(path: Path, sha256: str) -> bool:
    """Whether `path` is a readable file with the SHA-256 sum `sha256`."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _download(url: str, name: str, alternative: str, timeout: float) -> Iterator[bytes]:
    """Yield the content of `url` in chunks, with a progress bar called `name` on a terminal."""
    fix = f"Check the network, or {alternative}."
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            total, received = response.length, 0
            with tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                while chunk := response.read(2**16):
                    received += len(chunk)
                    if received > MAX_BYTES:
                        raise InputError(f"{url} must have at most {MAX_BYTES} bytes", "more", fix)
                    bar.update(len(chunk))
                    yield chunk
            # http.client treats a connection that closes early as the end of the content.
            if total is not None and received < total:
                raise InputError(f"{url} must send {total} bytes", f"{received} bytes", fix)
    except (OSError, HTTPException) as error:
        raise InputError(f"{url} serves the file", repr(error), fix) from error
