"""Files that are never half written, and folders that one process at a time writes to."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from numformer.errors import InputError

try:
    import fcntl
except ImportError:  # where there are no such locks, nothing is locked
    fcntl = None

PARTIAL = ".partial"
_held: set[Path] = set()  # the folders that this process has locked


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the block no other process may hold `folder`. Raises InputError if one does.

    The lock is on the folder itself, so it leaves no file, and it ends with the process that
    holds it however that dies. Within such a block another one of the same process changes nothing.
    """
    place = folder.resolve()
    if fcntl is None or place in _held:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "one run at a time writes to a folder",
                f"{folder}, which another process is writing to",
                "Wait for that run or stop it, or choose another folder with --out.",
            ) from None
        except OSError:
            pass  # a file system without locks
        _held.add(place)
        yield
    finally:
        _held.discard(place)
        os.close(descriptor)


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
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is safe once the folder is on disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Within the block an OSError without a file's name gets that of `path` (a full disk's)."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
