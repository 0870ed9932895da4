"""The runs of a study, side by side: each in a folder and a process of its own, on one core.

So neither a run's time nor a bit of its results depends on how many others there are.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from numformer.counts import counted
from numformer.errors import BrokenNumbers, InputError
from numformer.execution.forked import cores
from numformer.layer import inference
from numformer.runs.run_folder import read_metrics
from numformer.training.loop import Interrupted, closed_pipe_interrupts, interrupts
from toy_tasks.command_line import run_folders
from toy_tasks.command_line.training import resume_command, train_task

if TYPE_CHECKING:
    from toy_tasks.command_line.study import Study


@dataclass(frozen=True)
class Run:
    """One training run of a study, with the options of its row."""

    options: argparse.Namespace

    @property
    def folder(self) -> Path:
        return self.options.out

    @property
    def work(self) -> int:
        """A number roughly proportional to the run's time: steps times layers times matrix size."""
        options = self.options
        return options.steps * getattr(options, "layers", 1) * options.d_model**2

    @property
    def ended(self) -> bool:
        return (self.folder / run_folders.RESULT).is_file()

    def result(self) -> dict:
        return run_folders.read_config(self.folder, run_folders.RESULT) | {"folder": self.folder}


@closed_pipe_interrupts()
def train_side_by_side(
    study: "Study", runs: Sequence[Run], options: argparse.Namespace, on_cores: bool
) -> None:
    """Train the runs that have not ended, side by side, and print a line as each ends.

    If a run fails, the others go on; the first error is raised when all have ended.
    """
    waiting, running, problems = [run for run in runs if not run.ended], {}, []
    count, began = len(waiting), time.monotonic()
    total_work, done_work = sum(run.work for run in waiting), 0
    total = counted(len(runs), "run")
    state = f"{count} of {total} to train" if count else f"finished, {total} trained"
    print(f"{options.out}: {state}")
    sys.stdout.flush()  # or a forked process would print it again
    jobs = options.jobs or (cores() if on_cores else 1)
    # A forked process cannot use the GPU context of its parent.
    fork = on_cores and sys.platform == "linux"
    context = multiprocessing.get_context("fork" if fork else "spawn")
    with interrupts() as interrupted, contextlib.ExitStack() as at_end:
        at_end.callback(_stop, running)
        while running or (waiting and not interrupted):
            while waiting and len(running) < jobs and not interrupted:
                process, outcome = _start(context, study, run := waiting.pop(0))
                running[process] = run, outcome
            ready = wait([process.sentinel for process in running], timeout=0.2)
            if interrupted:
                break
            for process in [process for process in running if process.sentinel in ready]:
                process.join()
                run, outcome = running.pop(process)
                try:
                    code, problem = outcome.recv()
                except EOFError:
                    code, problem = 2, "its process was ended"
                if code is None:
                    raise RuntimeError(f"{run.folder}\n{problem}")
                left, seconds = len(waiting) + len(running), time.monotonic() - began
                done_work += run.work
                minutes = seconds / done_work * (total_work - done_work) / 60
                line = "FAILED"
                if code == 0:
                    result, name = run.result(), study.figure
                    line = f"{name.replace('_', ' ')} {result[name]:.4f}, {result['seconds']:.0f} s"
                line += f"; {left} left, about {minutes:.0f} min" * bool(left)
                if code or not options.quiet:
                    print(f"{run.folder.name}: {line}", flush=True)
                problems += [(code, f"{run.folder.name}: {problem}")] * bool(code)
    command = resume_command(options, options.out)
    if interrupted:
        raise Interrupted(f"stopped, and every run is saved; go on with: {command}")
    for code, problem in problems[:1]:
        if code == 3:
            raise BrokenNumbers(problem)
        rule = "every run of a study ends without an error"
        raise InputError(rule, problem.rstrip("."), f"Correct that and go on with: {command}")


def _start(context, study: "Study", run: Run) -> tuple:
    """Start a process that computes the run -> the process, and the connection to its outcome."""
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(study, run, writer), daemon=True)
    with _block_sigterm():
        process.start()
    writer.close()
    return process, reader


def _stop(running: dict) -> None:
    """Terminate the processes, each of which saves its run first, and wait for them."""
    for process in running:
        process.terminate()
    for process in running:
        process.join()


@contextlib.contextmanager
def _block_sigterm():
    """Delay SIGTERM within the block, so that a process started there cannot miss it."""
    if sys.platform == "win32":
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _compute(study: "Study", run: Run, writer: Connection) -> None:
    """Train and measure a run in its own process; send the exit code and the error."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "win32":
        os.setpgrp()  # so Ctrl-C on a terminal reaches only the first process, which stops the rest
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: tuple[int | None, str] = 0, ""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, threadpool_limits(1, "blas"):
        sys.stdout = sys.stderr = nowhere
        try:
            _train_one(study, run)
        except (Interrupted, KeyboardInterrupt):
            return
        except BrokenNumbers as problem:
            outcome = 3, str(problem)
        except (InputError, MemoryError, OSError) as problem:
            outcome = 2, str(problem) or type(problem).__name__
        except Exception:
            outcome = None, traceback.format_exc()
    writer.send(outcome)


def _end_with_parent() -> None:
    """Wait until the parent process ends, then stop this one, which saves its run."""
    wait([multiprocessing.parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _train_one(study: "Study", run: Run) -> None:
    """Train or resume a run, and save the measures of its best model."""
    task, kind, config = study.make_task_and_config(run.options)
    model, folder = train_task(task, kind, config, run.options)
    with inference():
        measures = study.measure(model, task, folder)
    seconds = read_metrics(folder / "metrics.jsonl")[-1]["seconds"]
    result = measures | {"seed": run.options.seed, "seconds": seconds}
    run_folders.write_config(folder, result, run_folders.RESULT)
