"""Atomic writing of files, and locks so that one process at a time writes to a folder."""

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from numformer.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows, for example
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
_locked_folders: set[Path] = set()  # the folders that this process has locked


def cache_folder() -> Path:
    """Return the folder for downloads; for a user without a home folder, a temporary one."""
    try:
        return platformdirs.user_cache_path("numformer", appauthor=False)
    except RuntimeError:  # no HOME, and no entry in the system's list of users
        return Path(tempfile.gettempdir(), "numformer")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Within the block, no other process can lock `folder`. Raises InputError if one already has.

    The lock leaves no file behind, and ends with its process, even with a killed one. The same
    process may lock the folder again within the block.
    """
    place = folder.resolve()
    if place in _locked_folders:
        yield
        return
    with _mutex(place) if sys.platform == "win32" else _flock(place) as acquired:
        if not acquired:
            raise InputError(
                "one run at a time writes to a folder",
                f"{folder}, which another process is writing to",
                "Wait for that run or stop it, or choose another folder with --out.",
            )
        _locked_folders.add(place)
        try:
            yield
        finally:
            _locked_folders.discard(place)


@contextlib.contextmanager
def _flock(folder: Path) -> Iterator[bool]:
    """Lock the folder itself; yield False if another process has locked it, otherwise True."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            if fcntl:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            acquired = True
        except OSError as problem:  # if it is no BlockingIOError, the file system has no locks
            acquired = not isinstance(problem, BlockingIOError)
        yield acquired
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _mutex(folder: Path) -> Iterator[bool]:
    """Windows cannot lock a folder: make a mutex named after it; yield whether the mutex is new."""
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
    """Write a file so that `path` always holds a complete file, the old one or the new one.

    Writes a temporary file beside `path`, syncs it to disk, and renames it. Raises OSError.
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with naming(path), open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, path)
    except BaseException:  # also on Ctrl-C
        temporary.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # sync the folder, so that the rename survives a power cut, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _replace(temporary: Path, path: Path) -> None:
    """Rename; on Windows, pause and retry while another program is reading the old file."""
    for pause in (0.01, 0.1, 1) if sys.platform == "win32" else ():
        try:
            return os.replace(temporary, path)
        except PermissionError:
            time.sleep(pause)
    os.replace(temporary, path)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within the block, add `path` to any OSError that names no file, as when a disk is full."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
