"""Proof that the tests notice broken mathematics: break the library, one place at a time.

    python -m tests.mutation            every mutant; continues after an interruption
    python -m tests.mutation --fast     one mutant of each kind for each file

A mutant is the library with one place broken in one way (mutants.py lists the ways). Each mutant is
tested in a process of its own, forked after the tests were collected, by the tests that run the
broken function, until one fails. A mutant that no test notices is a gap in the tests, unless it
computes the same as the library: equivalent_mutants.py proves those.
"""

import argparse
import builtins
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

import pytest
from tqdm import tqdm

from tests.mutation.equivalent_mutants import equivalent
from tests.mutation.mutants import Mutant, Source

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LIBRARY = ROOT / "numformer"

# Mutated: every formula, layer, loss, optimizer, mask, batch, decoding step and published layout.
MUTATED = """backend.py arithmetic.py randomness.py layer.py settings.py symbols.py
            half_precision.py paper/*.py
            data/*.py later/*.py later/*/*.py recurrence/*.py models/*.py generation/*.py
            optimization/*.py training/average.py training/broken_numbers.py training/loop.py
            training/measures.py training/trainer.py execution/in_turn.py execution/forked.py
            execution/gradient_ready.py execution/rank_executor.py execution/pairwise.py
            execution/ranks.py published/*.py""".split()
# Not mutated: code for drivers, memory, processes and files, which computes nothing.
NOT_MUTATED = """default_parts train
             InTurn.start InTurn.close Forked.start Forked.close Forked._call Forked._fork
             Forked._serve Forked._end_processes _require_alive shared cores
             Trainer.save Trainer._save_best Trainer.resume Trainer._load_best interrupts
             _Progress.__init__ _Progress.log""".split()
# The tests that must notice mutants: the quick tests of the same code.
SUITE = """test_arithmetic test_backend test_beginners test_blas test_former_names test_layer
           test_properties test_settings test_trained
           data/test_* layers/test_* models/test_* generation/test_* gpu/test_*
           training/test_* optimization/test_loss_scale runs/test_resume
           optimization/test_optimizers execution/test_executors execution/test_ranks
           gradient_check/test_contract gradient_check/test_gradients
           execution/test_gradient_ready execution/test_pairwise lessons/test_parallel_layers
           execution/test_rank_executor lessons/test_schedules gradient_check/test_parity
           published/test_*""".split()
STATE = ROOT / "runs" / "mutation"
PYTEST = """-p no:cacheprovider -p no:timeout -p no:terminal -s -o addopts=
            -o tmp_path_retention_policy=none -W ignore --rootdir""".split()
PYTEST += [str(ROOT), "-k", "not two_hundred_steps and not report_on_a_gpu"]
MOST_TESTS = 400  # that a mutant must pass to count as unnoticed
MEMORY = 8 << 30  # bytes of address space, for mutants that allocate without end
LEAST_SECONDS, SLOWER = 10, 30  # a test may compute this long, or so many times its usual time
PIECES = 48  # of the suite, while observing which test runs which function
SEEN_FUNCTIONS = "functions_seen"  # the name of a builtin set, while observing
IMPORT_SECONDS = 600  # for the whole suite, if a mutant needs a fresh import


Key = tuple[str, int, int]  # of a function: its name, its line, and its number on this line
Note = Callable[[str], None]  # notes what a process does, in case that kills the process


def suite() -> list[str]:
    return sorted(str(path) for name in SUITE for path in TESTS.glob(f"{name}.py"))


@functools.cache
def sources() -> dict[str, Source]:
    paths = [path for pattern in MUTATED for path in sorted(LIBRARY.glob(pattern))]
    names = [str(path.relative_to(LIBRARY)) for path in paths]
    return {n: Source(n, p.read_text(), p) for n, p in zip(names, paths, strict=True)}


def run_in_processes(jobs: Iterable, do: Callable[..., str]) -> Iterator[tuple[object, str]]:
    """(job, do(job, note)) for each job, as they end; jobs run side by side in forked processes.

    The result of a process that dies is "died in " and its last note: a mutant that crashes Python
    or runs out of time was noticed. An exception in `do` ends the program.
    """
    waiting, running = list(reversed(list(jobs))), {}
    try:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                job, file = waiting.pop(), tempfile.TemporaryFile("w+")
                folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                if (pid := os.fork()) == 0:
                    # In a shared folder, a pytest that ends deletes files that others still use.
                    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder.name
                    _run_job(do, job, file)
                running[pid] = job, file, folder
            pid, _ = os.wait()
            if pid not in running:
                continue
            job, file, folder = running.pop(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # and the processes that it may have started
            with file, folder:
                file.seek(0)
                end, answer = json.loads(file.read())
            if end == "raised":
                sys.exit(f"error: {answer}")
            yield job, f"died in {answer}" if end == "noted" else answer
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def _run_job(do: Callable[..., str], job, file) -> None:
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


class Quick:
    """A pytest plugin that skips what only makes failures easier to read."""

    def pytest_sessionstart(self):
        from hypothesis import Phase, settings

        phases = Phase.explicit, Phase.generate  # no shrinking
        settings.register_profile("mutation", settings.get_profile("numformer"), phases=phases)
        settings.load_profile("mutation")
        pytest.Function.repr_failure = lambda item, raised: ""


class CollectedItems(Quick):
    """A pytest plugin that calls `work(items)` instead of running the tests."""

    def __init__(self, work: Callable[[list[pytest.Item]], None]):
        self.work = work

    def pytest_runtestloop(self, session):
        self.work(session.items)
        return True


class Failures(list):
    """A pytest plugin that collects the exceptions with which tests fail."""

    __hash__ = object.__hash__  # pluggy keeps plugins in sets

    def pytest_exception_interact(self, call):
        self.append(call.excinfo.value)


def failure(item: pytest.Item, following: pytest.Item | None) -> BaseException | None:
    """The exception with which a test fails, or None; `following` may share its fixtures."""
    failures, plugins = Failures(), item.config.pluginmanager
    plugins.register(failures)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except BaseException as raised:  # pytest lets some through
        failures.append(raised)
    finally:
        plugins.unregister(failures)
    return failures[0] if failures else None


def observe(items: list[pytest.Item], note: Note) -> str:
    """Run tests that must pass -> JSON: each test's seconds and the functions that it runs.

    A test that fails runs once more, since flaky tests are not the concern here.
    """
    observed, seen = {}, vars(builtins).setdefault(SEEN_FUNCTIONS, set())
    for item, following in zip(items, [*items[1:], None], strict=True):
        note(item.nodeid)
        for attempt in range(2):
            seen.clear()
            started = time.perf_counter()
            problem = failure(item, following)
            observed[item.nodeid] = time.perf_counter() - started, sorted(seen)
            if problem is None:
                break
            if attempt:
                raise RuntimeError(f"{item.nodeid} fails although nothing is broken") from problem
    return json.dumps(observed)


def observe_all(items: list[pytest.Item], functions: dict) -> dict[str, tuple[float, list[str]]]:
    """As `observe`, in several processes, with the live functions instrumented."""
    known = STATE / "observed.json"
    if known.exists() and (content := json.loads(known.read_text()))["digest"] == digest():
        return content["observed"]
    count, observed = -(-len(items) // PIECES), {}
    jobs = [tuple(items[start : start + count]) for start in range(0, len(items), count)]
    for source in sources().values():
        swap_code(source.instrumented_code(SEEN_FUNCTIONS), functions[str(source.file)])
    bar = tqdm(total=len(items), desc="which tests run what", unit="test", disable=None)
    for job, answer in run_in_processes(jobs, observe):
        bar.update(len(job))
        if answer.startswith("died"):
            sys.exit(f"error: nothing is broken, but a test {answer}")
        observed |= json.loads(answer)
    bar.close()
    for source in sources().values():
        swap_code(source.code(), functions[str(source.file)])
    known.write_text(json.dumps({"digest": digest(), "observed": observed}))
    return observed


def test_file_coverage() -> dict[str, tuple[float, set[str]]]:
    """By test file: its seconds, as far as observed, and the library files that it runs."""
    known = STATE / "observed.json"
    observed = json.loads(known.read_text())["observed"] if known.exists() else {}
    files = {path: (0.0, set()) for path in suite()}
    for nodeid, (seconds, functions) in observed.items():
        path = str(ROOT / nodeid.partition("::")[0])
        if path in files:
            paths = {name.partition(" ")[0] for name in functions}
            files[path] = files[path][0] + seconds, files[path][1] | paths
    return files


def live_functions() -> dict[str, list[tuple[types.FunctionType, Key]]]:
    """The functions of each file; a search in each forked process would copy its memory."""
    functions: dict[str, list] = {str(source.file): [] for source in sources().values()}
    codes = {str(source.file): codes_by_key(source.code()) for source in sources().values()}
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType) and function.__code__.co_filename in functions:
            code, file = function.__code__, function.__code__.co_filename
            key = next((key for key, other in codes[file].items() if other == code), None)
            functions[file].append((function, key or (code.co_qualname, code.co_firstlineno, 0)))
    return functions


def codes_by_key(module: types.CodeType) -> dict[Key, types.CodeType]:
    codes: dict[Key, types.CodeType] = {}
    met: Counter[tuple[str, int]] = Counter()

    def collect(code: types.CodeType) -> None:
        place = code.co_qualname, code.co_firstlineno
        codes[*place, met[place]] = code
        met[place] += 1
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                collect(constant)

    collect(module)
    return codes


def swap_code(changed: types.CodeType, functions: list[tuple[types.FunctionType, Key]]) -> None:
    """Give the live functions of a file their code from the changed file."""
    codes = codes_by_key(changed)
    for function, key in functions:
        old = function.__code__
        new = codes.get(key, old)
        if not new.co_freevars:  # a function of a class without its super()
            new = new.replace(co_freevars=old.co_freevars)
        if new != old and new.co_freevars == old.co_freevars:
            function.__code__ = new


def closest_tests(items: list[pytest.Item], path: Path, observed: dict) -> list[pytest.Item]:
    """Up to MOST_TESTS of the tests that run a function of the file `path`, in the order to run.

    First come tests that run a function which no test before them runs, and one test of each test
    function (four, if the files are of the same room; sixteen of the file's own tests), then as
    many again, and so on, with layers, devices and tests that run few functions first. Chosen tests
    run in this order: those of the file, those of layers, then the quick ones.
    """
    met, runs, order = Counter(), Counter(), {}
    for item in sorted(items, key=lambda item: len(observed[item.nodeid][1])):
        name = item.path.stem
        foreign = [f"test_{path.stem}", "test_layers", "test_stand_in", name].index(name)
        at_once = 16 if foreign == 0 else 4 if item.path.parent.name == path.parent.name else 1
        fewest = min(runs[function] for function in observed[item.nodeid][1])
        earlier = min(fewest, met[item.path, item.originalname] // at_once)
        order[item] = earlier, foreign, len(order)
        runs.update(observed[item.nodeid][1])
        met[item.path, item.originalname] += 1
    chosen = sorted(items, key=order.get)[:MOST_TESTS]

    def cost(item):
        seconds, functions = observed[item.nodeid]
        return order[item][1] > 1, (seconds + 0.02) * len(functions)

    return sorted(chosen, key=cost)


class Experience:
    """Counts which tests notice mutants of a function or a file: they may notice the next."""

    def __init__(self):
        self.noticed = Counter()

    def add(self, mutant: Mutant, noticer: str) -> None:
        for where in (mutant.function, mutant.path):
            self.noticed[where, noticer] += 1

    def worth(self, mutant: Mutant, noticer: str, seconds: float, overhead: float) -> float:
        """How promising a second of `noticer` is, which takes `overhead` seconds to start."""
        hope = 10 * self.noticed[mutant.function, noticer] + self.noticed[mutant.path, noticer]
        return hope / (seconds + overhead)


def first_failure(items: list[pytest.Item], observed: dict, note: Note) -> str:
    """The first failure, as "Exception in test", or "" if all tests pass."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        note(item.nodeid)
        limit = max(LEAST_SECONDS, SLOWER * observed[item.nodeid][0])
        signal.setitimer(signal.ITIMER_PROF, limit)  # processor time
        signal.setitimer(signal.ITIMER_REAL, 10 * limit)  # wall-clock time
        problem = failure(item, following)
        if problem is not None:
            return f"{type(problem).__name__} in {item.nodeid}"
    return ""


def import_changed(codes: dict[str, types.CodeType]) -> None:
    """Let this process import the code of `codes`, by file, instead of what the files hold."""
    get_code = importlib.machinery.SourceFileLoader.get_code

    def changed(loader, name):
        return codes.get(loader.path) or get_code(loader, name)

    importlib.machinery.SourceFileLoader.get_code = changed


def functions_at_import() -> set[str]:
    """The functions that run while the library and the tests are imported."""

    def collect(_, note: Note) -> str:
        instrumented = [source.instrumented_code(SEEN_FUNCTIONS) for source in sources().values()]
        files = (str(source.file) for source in sources().values())
        import_changed(dict(zip(files, instrumented, strict=True)))
        seen = vars(builtins).setdefault(SEEN_FUNCTIONS, set())
        pytest.main(["--collect-only", *suite(), *PYTEST])
        return json.dumps(sorted(seen))

    ((_, answer),) = run_in_processes([None], collect)
    return {*json.loads(answer)}


def first_failure_at_import(source: Source, mutant: Mutant, paths: list[str], note: Note) -> str:
    """The first test file that fails with `mutant` in the imported library, or ""."""
    import_changed({str(source.file): source.code(mutant)})
    signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
    for path in paths:
        note(Path(path).name)
        code = pytest.main([path, "-x", *PYTEST], plugins=[Quick()])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return f"import in {Path(path).name}"
    return ""


def digest() -> str:
    """A hash of the library, the tests and the versions of what they run on."""
    kinds = ("numformer/**/*.py", "tests/**/*.py", "tests/**/*.json", "toy_tasks/*.py", "setup.cfg")
    files = sorted(path for kind in kinds for path in ROOT.glob(kind))
    versions = [sys.version, *map(importlib.metadata.version, ("numpy", "pytest", "hypothesis"))]
    content = [path.read_bytes() for path in files] + [version.encode() for version in versions]
    return hashlib.sha256(b"".join(content)).hexdigest()


class Verdicts:
    """Which test noticed each mutant ("" for none), kept in a file."""

    def __init__(self, digest: str):
        self.path = STATE / "verdicts.jsonl"
        self.by_mutant: dict[str, str] = {}
        STATE.mkdir(parents=True, exist_ok=True)
        if self.read() != digest:
            self.by_mutant.clear()  # verdicts for other versions of the files prove nothing
        with open(self.path, "w") as file:
            file.write(json.dumps(digest) + "\n")
            file.writelines(json.dumps(pair) + "\n" for pair in self.by_mutant.items())

    def read(self) -> str:
        """Read the file's verdicts; returns the digest of the files that they belong to."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines[1:]:
            with contextlib.suppress(ValueError):  # a line that was cut off
                name, verdict = json.loads(line)
                self.by_mutant[name] = verdict
        return json.loads(lines[0]) if lines else ""

    def add(self, mutant: Mutant, verdict: str) -> None:
        self.by_mutant[mutant.name] = verdict
        with open(self.path, "a") as file:
            file.write(json.dumps([mutant.name, verdict]) + "\n")


def one_of_each_kind(mutants: list[Mutant], equal: dict[str, str]) -> list[Mutant]:
    """The first mutant of each kind in each file, without those known to be equivalent."""
    first = {}
    for mutant in mutants:
        if mutant.name not in equal and mutant.in_function:
            first.setdefault((mutant.path, mutant.kind), mutant)
    return list(first.values())


def run(mutants: list[Mutant], equal: dict[str, str], verdicts: Verdicts) -> None:
    """Test every mutant that has no verdict yet."""
    left = [mutant for mutant in mutants if mutant.name not in verdicts.by_mutant]
    bar = tqdm(total=len(left), desc="mutants", unit="mutant", disable=None)
    experience = Experience()

    def take(mutant, verdict):
        verdicts.add(mutant, verdict)
        experience.add(mutant, verdict.partition(" in ")[2])
        bar.update()
        if not verdict and mutant.name not in equal:
            tqdm.write(f"unnoticed: {describe(mutant)}", file=sys.stdout)
            sys.stdout.flush()

    def with_collected(items):
        functions = live_functions()
        gc.freeze()  # in each forked process a collection would copy all memory, too
        observed = observe_all(items, functions)
        tests_of = {mutant.function: [] for mutant in left if mutant.in_function}
        for item in items:
            for function in observed[item.nodeid][1]:
                tests_of.get(function, []).append(item)
        for function, tests in tests_of.items():
            tests_of[function] = closest_tests(tests, Path(function.split()[0]), observed)

        def job(mutant, note):
            def worth(item):
                return experience.worth(mutant, item.nodeid, observed[item.nodeid][0], 0.02)

            swap_code(sources()[mutant.path].code(mutant), functions[str(LIBRARY / mutant.path)])
            tests = sorted(tests_of[mutant.function], key=worth, reverse=True)
            return first_failure(tests, observed, note)

        run_by_tests = [m for m in left if m.in_function and tests_of[m.function]]
        for mutant, verdict in run_in_processes(run_by_tests, job):
            if verdict or mutant.name in equal:
                take(mutant, verdict)

    if any(mutant.in_function for mutant in left):
        if (pid := os.fork()) == 0:  # only this process imports the library
            code = 1
            try:
                code = pytest.main([*suite(), *PYTEST], plugins=[CollectedItems(with_collected)])
            except SystemExit as problem:
                print(problem, file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)
        verdicts.read()
        bar.update(len(verdicts.by_mutant.keys() & {mutant.name for mutant in left}))

    def job_at_import(mutant, note):
        broken = Path(mutant.path)

        def hope(path):
            """The order of test files; reading one takes about a second, too."""
            name, (seconds, runs) = Path(path).name, files[path]
            near = 1 + 3 * (Path(path).parent.name == broken.parent.name)
            worth = experience.worth(mutant, name, seconds, 1) + near / (1 + seconds)
            return name == f"test_{broken.stem}.py", mutant.path in runs, worth

        paths = sorted(files, key=hope, reverse=True)
        return first_failure_at_import(sources()[mutant.path], mutant, paths, note)

    # Mutants that no test runs or notices may take effect when the library is imported.
    left = [mutant for mutant in left if mutant.name not in verdicts.by_mutant]
    early = functions_at_import() if any(mutant.in_function for mutant in left) else set()
    for mutant in left:
        if mutant.in_function and mutant.function not in early:
            take(mutant, "")
    left = [mutant for mutant in left if mutant.name not in verdicts.by_mutant]
    files = test_file_coverage()
    for library in ("numpy", "hypothesis", "safetensors.numpy", "matplotlib.backends.backend_agg"):
        importlib.import_module(library)  # once for all processes
    for mutant, verdict in run_in_processes(left, job_at_import):
        take(mutant, verdict)
    bar.close()


def describe(mutant: Mutant) -> str:
    return f"numformer/{mutant.path}:{mutant.line} {mutant.name.split(' ', 1)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command -> its exit code: 0, or 1 if a mutant was not noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description="Break the library in every way and see that the tests notice. Results are "
        f"kept in {STATE.relative_to(ROOT)}, so an interrupted run continues.",
    )
    words = "one mutant of each kind in each file"
    parser.add_argument("--fast", action="store_true", help=words)
    words = "only mutants with TEXT in their names, for example 'softmax_backward: missing term'"
    parser.add_argument("--only", metavar="TEXT", default="", help=words)
    options = parser.parse_args(arguments)
    mutants = [m for source in sources().values() for m in source.mutants]
    mutants = [mutant for mutant in mutants if mutant.place not in NOT_MUTATED]
    equal, unfit = equivalent(mutants)
    if unfit:
        print(
            "error: entries of tests/mutation/equivalent_mutants.py fit no mutant, or several:",
            *unfit,
        )
        return 1
    chosen = one_of_each_kind(mutants, equal) if options.fast else mutants
    chosen = [mutant for mutant in chosen if options.only in mutant.name]
    if not chosen:
        example = "paper/softmax.py softmax_backward: missing term"
        print(f"error: no mutant's name holds {options.only!r}; a name begins like {example!r}")
        return 2
    # Before NumPy is imported: BLAS threads of several processes would wait for each other.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    sys.modules["torch"] = None  # stored values of PyTorch are quicker
    verdicts = Verdicts(digest())
    try:
        run(chosen, equal, verdicts)
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130

    noticed = [mutant for mutant in chosen if verdicts.by_mutant[mutant.name]]
    refuted = [mutant for mutant in noticed if mutant.name in equal]
    for mutant in refuted:
        print(f"not equivalent, as {verdicts.by_mutant[mutant.name]} shows: {describe(mutant)}")
    count = sum(mutant.name in equal for mutant in chosen) - len(refuted)
    print(f"killed {len(noticed)} of {len(chosen)}, {count} equivalent")
    return 0 if len(noticed) + count == len(chosen) and not refuted else 1


if __name__ == "__main__":
    sys.exit(main())
