"""How a program ends: an error becomes one line on standard error and an exit code."""

import contextlib
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable

from numformer.allocator import reuse_freed_memory
from numformer.errors import BrokenNumbers, InputError, complain
from numformer.execution.mpi import world
from numformer.execution.ranks import RankLost
from numformer.training.loop import Interrupted


def exit_code(main: Callable[[], int]) -> int:
    """Run a program's main and return its exit code; an error becomes one line on standard error.

    Standard input, output and error are UTF-8, whatever the system's encoding, unless
    PYTHONIOENCODING names another; a character that the encoding lacks is printed as an escape such
    as \\u4e2d. A closed stream (`>&-`) does not stop the program. A warning is printed as a note,
    without the line of code that caused it. If the reader of the output has ended (`| head`), the
    program ends without a message.
    """
    try:
        return _exit_code(main)
    except BrokenPipeError:
        return 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:  # Python flushes again at exit, then to devnull
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code(main: Callable[[], int]) -> int:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    reuse_freed_memory()
    for stream, encoding, errors in (
        (sys.stdin, "utf-8-sig", "strict"),  # accepts a byte order mark
        (sys.stdout, "utf-8", "backslashreplace"),
        (sys.stderr, "utf-8", "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            asked_for = "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if asked_for else encoding, errors=errors)
    stderr = sys.stderr
    try:
        ranks = world()
        if getattr(signal.getsignal(signal.SIGINT), "until_main", False):
            # That handler ends the program at once, which is right only during the imports.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if ranks.rank:  # rank 0 prints
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")
        own_stdout = contextlib.redirect_stdout(sys.stdout)  # restores it after main
        with ranks.failing_together(), warnings.catch_warnings(), own_stdout:
            warnings.showwarning = _note
            return main()
    except RankLost as problem:
        if not world().failed_elsewhere:  # otherwise another rank reports it
            sys.stderr = stderr
            fix = "Check its machine and continue with --resume; for longer steps set --timeout."
            _complain(InputError("all ranks keep working", problem, fix), 2)
        return _leave(2)
    except InputError as problem:
        return _complain(problem, 2)
    except UnicodeDecodeError as problem:  # of standard input; read_text reports those of files
        fix = "Convert the text, with iconv for example."
        return _complain(InputError("standard input is UTF-8", problem, fix), 2)
    except MemoryError as problem:
        rule, fix = "the model and its batches fit into memory", "Choose smaller sizes."
        return _leave(_complain(InputError(rule, problem or "no memory", fix), 2))
    except ChildProcessError as problem:
        fix = "Memory may have run out: free some and continue with --resume, or use --parts 1."
        return _complain(InputError("a step needs all its processes", problem, fix), 2)
    except BrokenPipeError:
        raise
    except OSError as problem:
        rule = "files can be read and written"
        fix = "Correct this and repeat the command, with --resume if it had begun a run."
        return _complain(InputError(rule, problem, fix), 2)
    except BrokenNumbers as problem:
        return _complain(problem, 3)
    except Interrupted as problem:
        print(problem, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return _leave(130)


def _leave(code: int) -> int:
    """Return the exit code, or end the process if it is one of several ranks.

    MPI's own shutdown would wait for unfinished messages between ranks. mpiexec ends other ranks
    that hang.
    """
    ranks = world()
    if not ranks.others:
        return code
    if ranks.failed_elsewhere:  # let the rank that reports the error end first
        time.sleep(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print("note:", message, file=sys.stderr)


def _complain(problem: Exception, code: int) -> int:
    complain(problem)
    return code
