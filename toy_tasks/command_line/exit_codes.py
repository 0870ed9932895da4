"""How a program ends: what goes wrong is one line on standard error and an exit code."""

import io
import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

from numformer.allocator import reuse_freed_memory
from numformer.errors import BrokenNumbers, InputError, complain
from numformer.parallel.mpi import world
from numformer.parallel.ranks import RankLost
from numformer.training.loop import Interrupted
from toy_tasks import end_at_once


def exit_code(main: Callable[[], int]) -> int:
    """Run a script's main; what goes wrong is one line on standard error and an exit code.

    Standard input, output and error are UTF-8, whatever the system's encoding is, unless
    PYTHONIOENCODING names another; what that lacks is printed as \\u and its number. Where one of
    them is closed (`>&-`), the program goes on without. What is warned of is a note, without the
    line of code.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    reuse_freed_memory()
    for stream, encoding, errors in (
        (sys.stdin, "utf-8-sig", "strict"),  # with or without a byte order mark
        (sys.stdout, "utf-8", "backslashreplace"),
        (sys.stderr, "utf-8", "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            asked_for = "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if asked_for else encoding, errors=errors)
    told = sys.stderr
    try:
        ranks = world()
        if signal.getsignal(signal.SIGINT) is end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if ranks.rank:  # rank 0 prints
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")
        with ranks.failing_together(), warnings.catch_warnings():
            warnings.showwarning = _note
            return main()
    except RankLost as problem:
        if not world().heard:  # or another rank tells it
            sys.stderr = told
            fix = "Look after its machine, then go on with --resume; a longer step needs --timeout."
            _complain(InputError("all ranks work", problem, fix), 2)
        return _leave(2)
    except InputError as problem:
        return _complain(problem, 2)
    except UnicodeDecodeError as problem:  # read_text has told of files
        fix = "Convert the text, with iconv for example."
        return _complain(InputError("standard input is UTF-8", problem, fix), 2)
    except MemoryError as problem:
        rule, fix = "the model and its batches fit into memory", "Choose smaller sizes."
        return _leave(_complain(InputError(rule, problem or "no memory", fix), 2))
    except ChildProcessError as problem:
        fix = "Perhaps memory ran out: make room and go on with --resume, or begin with --parts 1."
        return _complain(InputError("a step needs all its processes", problem, fix), 2)
    except OSError as problem:
        rule = "files can be read and written"
        fix = "Mend that; a run that had begun goes on with --resume."
        return _complain(InputError(rule, problem, fix), 2)
    except BrokenNumbers as problem:
        return _complain(problem, 3)
    except Interrupted as problem:
        print(problem, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return _leave(130)


def _leave(code: int) -> int:
    """The exit code; a rank of several ends here, and mpiexec ends those that hang.

    Something may still be on its way between ranks, and MPI's own end would wait for it.
    """
    ranks = world()
    if not ranks.others:
        return code
    if ranks.heard:  # the rank that told it comes first
        time.sleep(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print("note:", message, file=sys.stderr)


def _complain(problem: Exception, code: int) -> int:
    complain(problem)
    return code


def quoted(words: object) -> str:
    """One argument of a command, as a shell of this system takes it."""
    windows = sys.platform == "win32"
    return subprocess.list2cmdline([str(words)]) if windows else shlex.quote(str(words))
