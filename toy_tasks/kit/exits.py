"""How a program ends: what goes wrong is one line on standard error and an exit code."""

import io
import os
import signal
import sys
from collections.abc import Callable

from numformer.backend import reuse_freed_memory
from numformer.errors import BrokenNumbers, InputError, complain
from numformer.training.loop import Interrupted
from toy_tasks import end_at_once


def exit_code(main: Callable[[], int]) -> int:
    """Run a script's main; what goes wrong is one line on standard error and an exit code.

    What the encoding of standard output lacks is printed as \\u and its number; where it, standard
    error or standard input is closed (`>&-`), the program goes on without.
    """
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    reuse_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return main()
    except InputError as problem:
        return _complain(problem, 2)
    except UnicodeDecodeError as problem:  # read_text has told of files
        fix = "Convert the text, with iconv for example."
        return _complain(InputError("standard input is UTF-8", problem, fix), 2)
    except MemoryError as problem:
        rule, fix = "the model and its batches fit into memory", "Choose smaller sizes."
        return _complain(InputError(rule, problem or "no memory", fix), 2)
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
        return 130


def _complain(problem: Exception, code: int) -> int:
    complain(problem)
    return code
