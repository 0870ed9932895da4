"""Files that are never half written, and folders that one process at a time writes to."""

import contextlib
import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from numformer.errors import InputError

try:
    import fcntl
except ImportError:  # on systems without such locks
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
_held: set[Path] = set()  # the folders that this process has locked


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the block no other process may hold `folder`. Raises InputError if one does.

    The lock leaves no file, and it ends with the process that holds it however that dies. Within
    such a block another one of the same process changes nothing.
    """
    place = folder.resolve()
    if place in _held:
        yield
        return
    with _locked_by_mutex(place) if sys.platform == "win32" else _locked_itself(place) as free:
        if not free:
            raise InputError(
                "one run at a time writes to a folder",
                f"{folder}, which another process is writing to",
                "Wait for that run or stop it, or choose another folder with --out.",
            )
        _held.add(place)
        try:
            yield
        finally:
            _held.discard(place)


@contextlib.contextmanager
def _locked_itself(folder: Path) -> Iterator[bool]:
    """Lock the folder as a file, and say whether no other process had."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            if fcntl:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError as problem:  # another one for a file system without locks
            free = not isinstance(problem, BlockingIOError)
        yield free
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked_by_mutex(folder: Path) -> Iterator[bool]:
    """On Windows, where a folder cannot be locked: hold a mutex that has its name."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateMutexW.restype = ctypes.c_void_p
    name = hashlib.sha256(os.path.normcase(folder).encode()).hexdigest()
    handle = kernel.CreateMutexW(None, False, f"numformer-{name}")
    already_exists = 183
    try:
        yield ctypes.get_last_error() != already_exists  # type: ignore[attr-defined]
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that at every moment is either the old one or the new one, whole.

    To a temporary file beside it, synced to disk, then renamed. Raises OSError.
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with named(path), open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # the rename itself is safe once the folder is on disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _replace(temporary: Path, path: Path) -> None:
    """Rename; on Windows after a while, where another program is reading what was there."""
    for pause in (0.01, 0.1, 1) if sys.platform == "win32" else ():
        try:
            return os.replace(temporary, path)
        except PermissionError:
            time.sleep(pause)
    os.replace(temporary, path)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Within the block an OSError without a file's name gets that of `path` (a full disk's)."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
