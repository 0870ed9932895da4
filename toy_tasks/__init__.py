"""Small tasks that train a model: `python -m toy_tasks` lists them."""

import os
import signal
import sys

TASKS = {
    "copy_task": ("25 s", "copy up to 16 digits", "that attention can find a position"),
    "reverse": ("25 s", "reverse up to 16 digits", "where attention looks; begin here"),
    "sort": ("35 s", "sort up to 12 digits", "that a symbol may depend on all input"),
    "addition": ("35 s", "add two numbers of three digits", "that a carry can be learned"),
    "walk": ("45 s", "walk where digits point", "that post-norm needs the warm-up"),
    "pairs": ("from 1 min", "turn texts into others", "how a Transformer does on your data"),
    "pronounce": ("7 min", "pronounce a language", "a real task, beside published results"),
    "translate": ("from 8 min", "translate", "a translator beside a published one"),
    "parse": ("16 min", "parse sentences", "the paper's other task, with a ceiling"),
    "ablation": ("100 min", "pronounce, with 19 models", "what each choice of the paper does"),
    "bottleneck": ("4 min", "reverse up to 20 letters", "what attention is for"),
    "induction": ("35 s", "continue a repeated sequence", "how two layers find what comes next"),
    "lengths": ("28 min", "handle lengths beyond training", "which kinds of positions allow it"),
    "recall": ("27 min", "repeat symbols from far back", "what each mixer can and cannot do"),
    "write": ("2 min", "continue any text", "a language model: a decoder alone"),
    "shakespeare": ("from 2 min", "write like Shakespeare", "what later inventions improve"),
    "scaling": ("60 min", "write, in 11 sizes", "how loss falls with size and data"),
    "masked": ("5 min", "fill holes in any text", "an encoder alone: it sees both sides"),
    "images": ("2 min", "classify small images", "a vision Transformer, cross-validated"),
}
"""How long each task takes on two cores, what its model learns, and what it shows."""


def commands() -> dict[str, str]:
    """The command of each task, with what its model learns and its time, and those for runs."""
    return {
        f"python -m toy_tasks.{name}": f"{learns} ({time})"
        for name, (time, learns, _) in TASKS.items()
    } | {
        "python -m toy_tasks.compare RUN RUN": "compare runs, with a table and curves",
        "python -m toy_tasks.listen --run FOLDER --input FILE.wav": "write down speech",
        "python -m toy_tasks.heads --run RUN": "find out what the attention heads of a run do",
    }


def exit_on_interrupt(number: int, frame) -> None:
    """End the program at once on Ctrl-C during its imports, when nothing has begun yet."""
    if "PMI_RANK" in os.environ:  # mpiexec stops the other ranks only if a signal kills one
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)


exit_on_interrupt.until_main = True  # type: ignore[attr-defined]


# sys.argv is ["-m"] only while Python looks for the module of `python -m toy_tasks.NAME`.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, exit_on_interrupt)
