"""Arguments of a command, quoted for the shell."""

import shlex
import subprocess
import sys


def quoted(words: object) -> str:
    """One argument of a command, quoted for the shell of this system."""
    windows = sys.platform == "win32"
    return subprocess.list2cmdline([str(words)]) if windows else shlex.quote(str(words))
