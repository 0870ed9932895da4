"""Processes that each run one library, so that libraries can take turns on the same threads."""

import os
import subprocess
import sys
from pathlib import Path


class Worker:
    """`python -m tests.benchmarks.NAME --worker WHAT ...`, which answers lines of numbers."""

    def __init__(self, benchmark: str, *what: str, threads: int, ranks: int = 1):
        limits = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        command = [sys.executable, "-m", f"tests.benchmarks.{benchmark}"]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        command += ["--worker", *what]
        if ranks > 1:
            mpiexec = str(Path(sys.executable).with_name("mpiexec"))
            command = [mpiexec, "-n", str(ranks), *command]
        self.process = subprocess.Popen(command, **pipes, env=os.environ | limits)

    def ask(self, *numbers: int) -> float:
        """Send a line of numbers and return the answer."""
        self.process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker ended early; its output is above")
        return float(line)

    def end(self) -> None:
        """Close its standard input, which ends it."""
        self.process.communicate()
