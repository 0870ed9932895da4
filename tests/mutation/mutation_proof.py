"""Proof that the tests notice broken mathematics: the library is broken, one place at a time.

    python -m tests.mutation            every mutant; goes on where it was interrupted
    python -m tests.mutation --fast     one mutant of each kind for each file

A mutant is the library with one place broken in one way (mutants.py lists the ways). Each is
tested in a process of its own, forked after the tests were collected, by the tests that run the
broken function, until one fails. A mutant that no test notices is a hole in the tests, unless it
computes the same as the library: then equivalent_mutants.py says why.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from tqdm import tqdm

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LIBRARY = ROOT / "numformer"
sys.path.insert(0, str(Path(__file__).parent))  # where pytest puts it, too

from equivalent_mutants import EQUIVALENT  # noqa: E402
from mutants import Mutant, Source  # noqa: E402

# What is broken: every formula, layer, loss, optimizer, mask, batch and decoding step.
BROKEN = ["backend.py", "layer.py", "settings.py", "data/*.py", "layers/*.py", "models/*.py",
          "generation/*.py", "training/average.py", "training/loop.py", "training/optimizers.py",
          "training/parts.py", "training/recipe.py", "training/trainer.py"]  # fmt: skip
# Not broken: what deals with drivers, memory, processes and files and computes nothing.
MACHINE = ["find_backend", "memory", "reuse_freed_memory", "default_backend", "usual_parts",
           "blas_threads", "Parts.start", "Parts._everywhere", "Parts._share", "Parts.become",
           "Parts.end_processes", "Parts.close", "train",
           "Trainer.save", "Trainer._save_best", "Trainer.resume", "Trainer._load_best",
           "interrupts", "_Progress.__init__", "_Progress.log"]  # fmt: skip
# What must notice it: the quick tests of the same things.
SUITE = ["test_backend.py", "test_beginners.py", "test_layer.py", "test_properties.py",
         "test_settings.py", "test_trained.py", "data", "layers", "models",
         "training/test_average.py", "training/test_loop.py", "training/test_resume.py",
         "training/test_broken_numbers.py", "training/test_optimizers.py",
         "training/test_parts.py", "generation", "gpu",
         "gradient_check/test_contract.py", "gradient_check/test_gradients.py",
         "gradient_check/test_parity.py"]  # fmt: skip
STATE = ROOT / "runs" / "mutation"
PYTEST = ["-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:terminal", "-s", "-o",
          "addopts=", "-o", "tmp_path_retention_policy=none", "-W", "ignore", "--rootdir",
          str(ROOT), "-k", "not two_hundred_steps and not report_on_a_gpu"]  # fmt: skip
MOST_TESTS = 150  # that a mutant has to pass to count as unnoticed
MEMORY = 8 << 30  # bytes of address space for a mutant that asks for more and more
LEAST_SECONDS, SLOWER = 10, 30  # a test may compute this long, or this many times as usual
IMPORT_SECONDS = 600  # for the whole suite, where a mutant needs a fresh import


def suite() -> list[str]:
    paths = [
        path
        for name in SUITE
        for path in (
            (TESTS / name).glob("test_*.py") if (TESTS / name).is_dir() else [TESTS / name]
        )
    ]
    return [str(path) for path in sorted(paths)]


def sources() -> dict[str, Source]:
    paths = [path for pattern in BROKEN for path in sorted(LIBRARY.glob(pattern))]
    return {
        name: Source(name, path.read_text(), path)
        for path in paths
        if (name := str(path.relative_to(LIBRARY)))
    }


# Who runs a mutant: a forked process, which says which test failed.


Note = Callable[[str], None]  # tells what a process is doing, in case that it dies of it


def in_processes(
    jobs: Iterable, do: Callable[..., str], count: int | None = None
) -> Iterator[tuple[object, str]]:
    """(job, do(job, note)) for each, side by side in forked processes, as they end.

    What a process that dies gives is "died in " what it noted last: a mutant that takes Python with
    it, or all the time, did not stay unnoticed. An exception in `do` ends everything.
    """
    count = count or len(os.sched_getaffinity(0))
    waiting, running = list(reversed(list(jobs))), {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.pop()
                file = tempfile.TemporaryFile("w+")
                folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                if (pid := os.fork()) == 0:
                    # Where all have one, any pytest that ends clears away what others still use.
                    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder.name
                    _be_a_process(do, job, file)
                running[pid] = job, file, folder
            pid, _ = os.wait()
            if pid not in running:
                continue
            job, file, folder = running.pop(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it may have started
            with file, folder:
                file.seek(0)
                end, answer = json.loads(file.read())
            if end == "raised":
                sys.exit(f"error: in {job}:\n{answer}")
            yield job, f"died in {answer}" if end == "noted" else answer
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def _be_a_process(do: Callable[..., str], job, file: TextIO) -> None:
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def write(end: str, text: str) -> None:
        file.seek(0)
        file.truncate()
        json.dump([end, text], file)
        file.flush()

    try:
        write("noted", "its first moment")
        write("answered", do(job, functools.partial(write, "noted")))
    except BaseException:
        write("raised", traceback.format_exc())
    finally:
        os._exit(0)


# The tests, once collected.


class Collected:
    """The pytest plugin that, in place of running the tests, does `work(items)`."""

    def __init__(self, work: Callable[[list[pytest.Item]], None]):
        self.work = work

    def pytest_runtestloop(self, session):
        self.work(session.items)
        return True


class Failures(list):
    """The pytest plugin that notes the exceptions that tests fail with."""

    def pytest_exception_interact(self, call):
        self.append(call.excinfo.value)


def failure(item: pytest.Item, following: pytest.Item | None) -> BaseException | None:
    """The exception that a test fails with, if any; `following` may share its fixtures."""
    failures, plugins = Failures(), item.config.pluginmanager
    plugins.register(failures)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except BaseException as raised:  # pytest lets some through
        failures.append(raised)
    finally:
        plugins.unregister(failures)
    return failures[0] if failures else None


def code_name(code: types.CodeType) -> str:
    """Names the outermost function of the library that a code object stands in."""
    path = str(Path(code.co_filename).relative_to(LIBRARY))
    return f"{path} {code.co_qualname.split('.<locals>')[0]}"


def observe(items: list[pytest.Item], note: Note) -> str:
    """Run tests that must pass -> JSON: of each its seconds and the functions that it runs.

    A test that fails is tried once more, because this only looks which test runs what: whether the
    library is right the suite itself decides. Everything raised is among the answer's texts.
    """
    library, seen, observed, raised = str(LIBRARY) + os.sep, set(), {}, []

    def see(frame, event, argument):
        seen.add(frame.f_code)

    for item, following in zip(items, [*items[1:], None], strict=True):
        for _ in range(2):
            seen.clear()
            note(item.nodeid)
            started = time.perf_counter()
            sys.settrace(see)
            problem = failure(item, following)
            sys.settrace(None)
            if problem is None:
                names = sorted({code_name(c) for c in seen if c.co_filename.startswith(library)})
                observed[item.nodeid] = time.perf_counter() - started, names
                break
            text = "".join(traceback.format_exception(problem))
            raised.append(f"nothing is broken, but {item.nodeid} failed:\n{text}")
        else:
            break
    return json.dumps({"observed": observed, "raised": raised})


def observe_all(items: list[pytest.Item]) -> dict[str, tuple[float, list[str]]]:
    """As `observe`, in processes; it ends here if a test fails twice although nothing is broken."""
    known = STATE / "observed.json"
    if known.exists() and (content := json.loads(known.read_text()))["digest"] == digest():
        return content["observed"]
    pieces = 16
    count = -(-len(items) // pieces)
    jobs = [tuple(items[start : start + count]) for start in range(0, len(items), count)]
    observed = {}
    bar = tqdm(total=len(items), desc="which tests run what", unit="test", disable=None)
    for job, answer in in_processes(jobs, observe):
        bar.update(len(job))
        if answer.startswith("died"):
            sys.exit(f"error: nothing is broken, but a test {answer}")
        part = json.loads(answer)
        for text in part["raised"]:
            tqdm.write(text, file=sys.stderr)
        if len(part["observed"]) < len(job):
            sys.exit("error: a test fails although nothing is broken")
        observed |= part["observed"]
    bar.close()
    known.write_text(json.dumps({"digest": digest(), "observed": observed}))
    return observed


def by_test_file() -> dict[str, tuple[float, set[str]]]:
    """Of each file of tests how long it takes, where that was observed, and which files it runs."""
    known = STATE / "observed.json"
    observed = json.loads(known.read_text())["observed"] if known.exists() else {}
    found = {path: (0.0, set()) for path in suite()}
    for nodeid, (seconds, functions) in observed.items():
        path = str(ROOT / nodeid.partition("::")[0])
        if path in found:
            files = {name.partition(" ")[0] for name in functions}
            found[path] = found[path][0] + seconds, found[path][1] | files
    return found


def live_functions() -> dict[str, list[types.FunctionType]]:
    """The functions of each file. Looking for them in each forked process would copy its memory."""
    found: dict[str, list] = {}
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType):
            found.setdefault(function.__code__.co_filename, []).append(function)
    return found


def swap_code(source: Source, mutant: Mutant, functions: list[types.FunctionType]) -> None:
    """Give the live functions of the file the code that they have in the mutant."""
    codes = {}

    def collect(code):
        codes[code.co_qualname, code.co_firstlineno] = code
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                collect(constant)

    collect(source.code(mutant))
    for function in functions:
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno), old)
        if new != old and new.co_freevars == old.co_freevars:
            function.__code__ = new


def most_telling(items: list[pytest.Item], stem: str, observed: dict) -> list[pytest.Item]:
    """Up to MOST_TESTS of those that run a function of the file `stem`.

    First the file's own tests, then those of layers, then others: one of each test function,
    another of each, and so on. Those that run few functions come first: they look closest.
    """

    def functions(item):
        return len(observed[item.nodeid][1])

    met, rank = Counter(), {}
    for item in sorted(items, key=functions):
        rank[item] = met[item.path, item.originalname]
        met[item.path, item.originalname] += 1

    def foreign(item):
        return [f"test_{stem}", "test_layers", item.path.stem].index(item.path.stem)

    chosen = sorted(items, key=lambda item: (foreign(item), rank[item]))[:MOST_TESTS]
    return sorted(chosen, key=lambda item: (foreign(item), functions(item)))


def who_notices(items: list[pytest.Item], observed: dict, note: Note) -> str:
    """How and which test fails where something is broken, or ""."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        note(item.nodeid)
        limit = max(LEAST_SECONDS, SLOWER * observed[item.nodeid][0])
        signal.setitimer(signal.ITIMER_PROF, limit)  # of computing, whatever else the machine does
        signal.setitimer(signal.ITIMER_REAL, 10 * limit)  # of waiting
        problem = failure(item, following)
        if problem is not None:
            return f"{type(problem).__name__} in {item.nodeid}"
    return ""


def who_notices_at_import(source: Source, mutant: Mutant, paths: list[str], note: Note) -> str:
    """Which file's tests fail where `mutant` is there when the library is imported, or ""."""
    file, get_code = str(source.file), importlib.machinery.SourceFileLoader.get_code

    def broken(loader, name):
        return source.code(mutant) if loader.path == file else get_code(loader, name)

    importlib.machinery.SourceFileLoader.get_code = broken
    signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
    for path in paths:
        note(Path(path).name)
        code = pytest.main([path, "-x", *PYTEST])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return f"import in {Path(path).name}"
    return ""


# The whole proof.


def digest() -> str:
    """Changes with the library, the tests and what they run on."""
    kinds = ("numformer/**/*.py", "tests/**/*.py", "tests/**/*.json", "toy_tasks/*.py", "setup.cfg")
    files = sorted(path for kind in kinds for path in ROOT.glob(kind))
    versions = [sys.version, *map(importlib.metadata.version, ("numpy", "pytest", "hypothesis"))]
    content = [path.read_bytes() for path in files] + [version.encode() for version in versions]
    return hashlib.sha256(b"".join(content)).hexdigest()


class Verdicts:
    """Which test noticed each mutant ("" for none), kept in a file so that nothing is lost."""

    def __init__(self, digest: str, keep: Callable[[str], bool]):
        self.path = STATE / "verdicts.jsonl"
        self.of: dict[str, str] = {}
        STATE.mkdir(parents=True, exist_ok=True)
        if self.read() != digest:
            self.of = {name: verdict for name, verdict in self.of.items() if keep(verdict)}
            # Verdicts on other files are no proof for these: the next run begins anew.
            digest = "of earlier files" if self.of else digest
        with open(self.path, "w") as file:
            file.write(json.dumps(digest) + "\n")
            file.writelines(json.dumps(pair) + "\n" for pair in self.of.items())

    def read(self) -> str:
        """Take over what the file holds; the digest that it is for."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines[1:]:
            with contextlib.suppress(ValueError):  # a line that was cut off
                name, verdict = json.loads(line)
                self.of[name] = verdict
        return json.loads(lines[0]) if lines else ""

    def add(self, mutant: Mutant, verdict: str) -> None:
        self.of[mutant.name] = verdict
        with open(self.path, "a") as file:
            file.write(json.dumps([mutant.name, verdict]) + "\n")


def of_each_kind(mutants: list[Mutant]) -> list[Mutant]:
    """The first mutant of each kind in each file that is not known to be equivalent."""
    first = {}
    for mutant in mutants:
        if mutant.name not in EQUIVALENT and mutant.in_function:
            first.setdefault((mutant.path, mutant.kind), mutant)
    return list(first.values())


def run(mutants: list[Mutant], files: dict[str, Source], verdicts: Verdicts) -> None:
    """Test every mutant that has no verdict yet."""
    left = [mutant for mutant in mutants if mutant.name not in verdicts.of]
    bar = tqdm(total=len(left), desc="mutants", unit="mutant", disable=None)

    def take(job, verdict):
        verdicts.add(job, verdict)
        bar.update()
        if not verdict and job.name not in EQUIVALENT:
            tqdm.write(f"unnoticed: {describe(job)}", file=sys.stdout)
            sys.stdout.flush()

    def with_collected(items):
        observed = observe_all(items)
        functions = live_functions()
        gc.freeze()  # in each forked process a collection would copy all memory, too
        tests_of = {}  # of each function
        for item in items:
            for name in observed[item.nodeid][1]:
                tests_of.setdefault(name, []).append(item)

        def job(mutant, note):
            tests = tests_of[f"{mutant.path} {mutant.place}"]
            tests = most_telling(tests, Path(mutant.path).stem, observed)
            tests.sort(key=lambda item: -noticed[mutant.path, item.nodeid])
            source = files[mutant.path]
            swap_code(source, mutant, functions[str(source.file)])
            return who_notices(tests, observed, note)

        noticed = Counter()  # what has noticed a mutant of a file may notice the next
        run_by_tests = [m for m in left if f"{m.path} {m.place}" in tests_of and m.in_function]
        for mutant, verdict in in_processes(run_by_tests, job):
            noticed[mutant.path, verdict.partition(" in ")[2]] += 1
            take(mutant, verdict)

    if any(mutant.in_function for mutant in left):
        if (pid := os.fork()) == 0:  # here pytest may import the library
            code = 1
            try:
                code = pytest.main([*suite(), *PYTEST], plugins=[Collected(with_collected)])
            except SystemExit as problem:
                print(problem, file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)
        verdicts.read()
        bar.update(len(verdicts.of.keys() & {mutant.name for mutant in left}))

    def job_at_import(mutant, note):
        broken = Path(mutant.path)

        def hope(path):
            """What a second of this file's tests is worth; reading a file takes about one, too."""
            name, room = Path(path).name, Path(path).parent.name
            before, (seconds, runs) = noticed[mutant.path, name], files_observed[path]
            worth = (1 + before + 3 * (room == broken.parent.name)) / (1 + seconds)
            return name == f"test_{broken.stem}.py", mutant.path in runs, worth

        paths = sorted(suite(), key=hope, reverse=True)
        return who_notices_at_import(files[mutant.path], mutant, paths, note)

    # What no test runs afterwards takes effect when the library is imported.
    left = [mutant for mutant in left if mutant.name not in verdicts.of]
    noticed = Counter()  # what has noticed a mutant of a file may notice the next
    files_observed = by_test_file()
    for library in ("numpy", "hypothesis", "safetensors.numpy", "matplotlib.backends.backend_agg"):
        importlib.import_module(library)  # once for all processes
    for mutant, verdict in in_processes(left, job_at_import):
        noticed[mutant.path, verdict.partition(" in ")[2]] += 1
        take(mutant, verdict)
    bar.close()


def describe(mutant: Mutant) -> str:
    return f"numformer/{mutant.path}:{mutant.line} {mutant.name.split(' ', 1)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 where a mutant was not noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description="Break the library in every way and see that the tests notice. What was found "
        f"is kept in {STATE.relative_to(ROOT)}, so an interrupted run goes on. First it takes a "
        "minute or two to find out which test runs which function.",
    )
    parser.add_argument("--fast", action="store_true", help="one mutant of each kind in each file")
    parser.add_argument("--only", metavar="TEXT", default="", help="only mutants with TEXT in "
                        "their names, for example 'softmax_backward: missing term'")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="although files changed, "
                        "test only what went unnoticed last time")  # fmt: skip
    options = parser.parse_args(arguments)
    files = sources()
    every = [m for source in files.values() for m in source.mutants if m.place not in MACHINE]
    if gone := sorted(EQUIVALENT.keys() - {mutant.name for mutant in every}):
        print(f"error: tests/mutation/equivalent_mutants.py lists what is no mutant: {gone[0]}")
        return 1
    chosen = of_each_kind(every) if options.fast else every
    chosen = [mutant for mutant in chosen if options.only in mutant.name]
    if not chosen:
        example = "layers/softmax.py softmax_backward: missing term"
        print(f"error: no mutant's name holds {options.only!r}; a name begins like {example!r}")
        return 2
    # Before NumPy is imported: BLAS threads of several processes would wait for each other.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    sys.modules["torch"] = None  # what PyTorch computed is stored: that is quicker
    verdicts = Verdicts(digest(), keep=lambda verdict: options.again and bool(verdict))
    try:
        run(chosen, files, verdicts)
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130

    noticed = [mutant for mutant in chosen if verdicts.of[mutant.name]]
    equal = [m for m in chosen if m.name in EQUIVALENT and m not in set(noticed)]
    for mutant in noticed:
        if mutant.name in EQUIVALENT:
            print(f"not equivalent, as {verdicts.of[mutant.name]} shows: {describe(mutant)}")
    ways = Counter(verdicts.of[mutant.name].partition(" in ")[0] for mutant in noticed)
    told = {
        "killed, by kind": Counter(mutant.kind for mutant in noticed),
        "killed, by what noticed it": {
            "failed assertion": ways.pop("AssertionError", 0) + ways.pop("Failed", 0),
            "failure where it is imported": ways.pop("import", 0),
            "process that hung or died": ways.pop("died", 0),
            "another exception": ways.total(),
        },
    }
    for title, counts in told.items():
        print(f"{title}: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    print(f"killed {len(noticed)} of {len(chosen)}, {len(equal)} equivalent")
    wrong = any(mutant.name in EQUIVALENT for mutant in noticed)
    return 0 if len(noticed) + len(equal) == len(chosen) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
