"""Does the library work on this GPU? This compares CuPy with NumPy and writes a report.

    python -m tests.gpu [--only formulas layers ...] [--data DIR] [--out gpu_report.md]

The report is a Markdown file; a JSON file beside it has the same facts. Exit code 0: every check
passed; 1: a check failed; 2: no usable GPU. The checks take some minutes, and more the first time,
when CuPy compiles its kernels. The tasks are trained by their own scripts, which takes longer.
`python -m tests.benchmarks.train_step --backend cupy` says how fast a training step is.
"""

import argparse
import contextlib
import datetime
import functools
import importlib
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from numformer import arithmetic, randomness
from numformer.allocator import reuse_freed_memory
from numformer.backend import to_host
from numformer.data.batching import pad_sources
from numformer.devices import find_backend
from numformer.errors import InputError, complain
from numformer.generation import beam_search, greedy
from numformer.gradient_check.cases import CASES, MODELS
from numformer.gradient_check.gradients import copy_inputs
from numformer.half_precision import half_product
from numformer.layer import pack
from numformer.models import Config, Transformer
from numformer.optimization.optimizers import OPTIMIZERS, Adam
from numformer.optimization.recipe import Recipe
from numformer.randomness import dropout_stream
from numformer.runs.checkpoints import load_model
from numformer.runs.files import write_atomically
from numformer.training import trainer as training
from numformer.training.trainer import Trainer
from toy_tasks import reverse
from toy_tasks.command_line import exit_code
from toy_tasks.text_to_text.sequences import SequenceTask
from toy_tasks.text_to_text.sequences import main as sequences_main

# The largest difference allowed between arrays of CuPy and NumPy, divided by the largest number of
# NumPy's (or by 1, if that is larger). Sums run in another order, so the last bits differ.
BOUNDS = {np.float64: 1e-12, np.float32: 1e-5}
# Each task, and the folder with its data.
TASKS = {"reverse": "", "copy_task": "", "pronounce": "g2p", "shakespeare": "shakespeare"}
PARTS = ["formulas", "layers", "steps", "training", *TASKS]


class Report:
    """The results of the checks so far. Each is printed at once, all are written to a file."""

    def __init__(self):
        self.figures: dict[str, str] = {}  # facts that no check tests
        self.rows: list[tuple[str, str]] = []  # the name and the result of a check
        self.passed = 0

    @contextlib.contextmanager
    def checking(self, name: str) -> Iterator[Callable[[float, float], None]]:
        """In the block, `at_most(figure, bound)` gives the verdict; an exception means failed."""
        verdict = []
        try:
            yield lambda *figures: verdict.append(figures)
            ((figure, bound),) = verdict
            passed, result = bool(figure <= bound), f"{figure:.3g}, at most {bound:.3g}"
        except Exception as problem:  # the other checks still run
            passed, result = False, f"{type(problem).__name__}: {problem}".replace("\n", " ")
        self.passed += passed
        self.rows.append((name, result if passed else f"**failed**: {result}"))
        print(*self.rows[-1], sep=": ", flush=True)

    def last_line(self) -> str:
        return f"{self.passed} of {len(self.rows)} checks passed"

    def text(self) -> str:
        """The report in Markdown."""
        lines = ["# numformer on a GPU", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {result} |" for name, result in [*self.figures.items(), *self.rows]]
        return "\n".join([*lines, "", self.last_line(), ""])

    def write(self, path: Path) -> None:
        """Write the report to `path`, and the same facts as JSON beside it."""
        write_atomically(path, self.text().encode())
        facts = {"machine": self.figures, "checks": dict(self.rows), "passed": self.passed}
        write_atomically(path.with_suffix(".json"), json.dumps(facts, indent=2).encode())


def difference(result, expected) -> float:
    """The largest difference between two arrays, or two sequences of arrays, scaled as BOUNDS."""
    if isinstance(expected, list | tuple):
        return max((difference(*pair) for pair in zip(result, expected, strict=True)), default=0.0)
    result, expected = to_host(result), to_host(expected)
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        return float("nan")
    result, expected = result.astype(float), expected.astype(float)
    size = max(np.abs(expected).max(initial=0), 1)
    return float(np.abs(result - expected).max(initial=0) / size)


def machine_of(xp) -> dict[str, str]:
    runtime = xp.cuda.runtime
    facts = {
        "date": datetime.date.today().isoformat(),
        "GPU": runtime.getDeviceProperties(0)["name"].decode(),
        "memory of the GPU": f"{xp.cuda.Device().mem_info[1] / 2**30:.1f} GiB",
        "CUDA, of the driver": runtime.driverGetVersion(),
        "CUDA, of CuPy": runtime.runtimeGetVersion(),
        "CuPy, NumPy": f"{xp.__version__}, {np.__version__}",
        "Python": f"{platform.python_version()}, {platform.machine()}, {platform.system()}",
        # Either of these can make products less precise than float32.
        **{n: os.environ.get(n, "not set") for n in ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE")},
    }
    return {name: str(fact) for name, fact in facts.items()}


def differentiate(name: str, dtype, xp, steps: int = 0) -> list:
    """The output of a case, and the gradients of its inputs and of every parameter.

    With `steps`, these follow that number of Adam's steps, and the weights are returned, too.
    """
    layer, inputs = CASES[name]()
    optimizer = Adam(pack(layer, dtype, xp))
    flat = optimizer.parameters
    flat.data += xp.asarray(0.1 * np.random.default_rng(1).standard_normal(len(flat.data)), dtype)
    for step in range(steps + 1):
        dropout_stream.reseed(0, step)
        layer.zero_grad()
        output = xp.asarray(layer.forward(*copy_inputs(inputs, dtype, xp)))
        upstream = xp.asarray(np.random.default_rng(2).standard_normal(output.shape), dtype=dtype)
        gradients = layer.backward(upstream)
        if step < steps:
            optimizer.step(1e-3)
    if not isinstance(gradients, tuple):
        gradients = () if gradients is None else (gradients,)
    return [output, *gradients, flat.grad, *([flat.data] if steps else [])]


def check_layers(report: Report, xp, names: list[str]) -> None:
    for name in names:
        for dtype, bound in BOUNDS.items():
            with report.checking(f"{name}, {dtype.__name__}") as at_most:
                expected = differentiate(name, dtype, np)
                # Through several layers the differences grow.
                at_most(difference(differentiate(name, dtype, xp), expected), 10 * bound)


def check_steps(report: Report, xp, names: list[str]) -> None:
    for name in names:
        with report.checking(f"{name} after ten steps of Adam, float64") as at_most:
            on_both = (differentiate(name, np.float64, module, 10) for module in (xp, np))
            at_most(difference(*on_both), 1e-7)


def scatter_sums(xp, rows: int, dtype):
    """Sums (rows, 5) that scatter_add makes of 420 values."""
    rng = np.random.default_rng(3)
    target = xp.zeros((rows, 5), dtype=dtype)
    ids = xp.asarray(np.r_[rng.integers(0, rows, 400), [rows - 1] * 20])
    arithmetic.scatter_add(target, ids, xp.asarray(rng.standard_normal((420, 5)), dtype=dtype))
    return target


def check_formulas(report: Report, xp) -> None:
    """Check bits that the cases do not compare, and sums of many values for one row."""
    for rows, (dtype, bound) in itertools.product((30, 3000), BOUNDS.items()):
        with report.checking(f"scatter_add, {rows} rows, {dtype.__name__}") as at_most:
            sums = (scatter_sums(module, rows, dtype) for module in (xp, np))
            at_most(difference(*sums), bound)
    with report.checking("splitmix64, wrong bits") as at_most:
        counters = (module.arange(7, 70_008, dtype=module.uint64) for module in (xp, np))
        bits = [to_host(randomness.splitmix64(12345, array)) for array in counters]
        at_most(int((bits[0] != bits[1]).sum()), 0)
    with report.checking("products in half precision") as at_most:
        rng, products = np.random.default_rng(4), []
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 300), (300, 50)))
        for module in (xp, np):
            products.append(half_product(*map(module.asarray, (a, b))))
        at_most(difference(*products), 2**-10)  # sums in another order, rounded to 11 bits
    for p in (0.1, 0.5, 0.999999):
        with report.checking(f"dropout masks, p = {p}, wrong entries") as at_most:
            masks = []
            for module in (xp, np):
                dropout_stream.reseed(1, 2)
                pair = [dropout_stream.mask(s, p, module.zeros(1)) for s in ((7, 9), (31, 3))]
                masks.append([to_host(mask) for mask in pair])
            at_most(sum(int((a != b).sum()) for a, b in zip(*masks, strict=True)), 0)


@functools.cache
def reverse_task(batch_size: int) -> SequenceTask:
    return SequenceTask(reverse.RULE, batch_size, 1)


def sequence_trainer(folder: Path, xp, batch_size: int, config: dict, **settings) -> Trainer:
    task = reverse_task(batch_size)
    model = Transformer(Config.base(len(task.text.source), **config), 1)
    recipe = Recipe(warmup=20, clip_norm=1.0, **settings)
    return Trainer(model, task, folder, 100, recipe, 1, xp)


def state(trainer: Trainer) -> list:
    return [trainer.parameters.data, *trainer.optimizer.state.values()]


def advance(trainer: Trainer, steps: int) -> list[float]:
    for _ in range(steps):
        trainer.advance()
    trainer.read()
    return trainer.losses


def check_training(report: Report, xp, folder: Path) -> None:
    """Ten steps on both; five and five across a checkpoint; three steps of each optimizer.

    All run in float64, except mixed precision, whose numbers have 11 bits.
    """
    config = dict(d_model=32, d_ff=64, heads=4, layers=1)
    with report.checking("losses of ten training steps, mixed precision") as at_most:
        trainers = (
            sequence_trainer(folder, module, 16, config, precision="mixed") for module in (xp, np)
        )
        at_most(difference(*(np.array(advance(trainer, 10)) for trainer in trainers)), 2**-9)
    with mock.patch.object(training, "pack", lambda m, dtype, xp: pack(m, np.float64, xp)):
        with report.checking("losses of ten training steps, float64") as at_most:
            host, device = (sequence_trainer(folder, module, 16, config) for module in (np, xp))
            losses = [np.array(advance(trainer, 10)) for trainer in (device, host)]
            at_most(difference(*losses), 1e-9)
        with report.checking("weights and Adam's state after ten steps, float64") as at_most:
            at_most(difference(state(device), state(host)), 1e-7)
        for name in OPTIMIZERS:
            with report.checking(f"weights after three steps of {name}, float64") as at_most:
                trainers = (
                    sequence_trainer(folder, module, 16, config, optimizer=name)
                    for module in (xp, np)
                )
                at_most(difference(*(advance(t, 3) and state(t) for t in trainers)), 1e-7)
        for name, modules in ("from NumPy to CuPy", (np, xp)), ("from CuPy to NumPy", (xp, np)):
            with report.checking(f"a run resumed {name}, after ten steps, float64") as at_most:
                first, resumed = (
                    sequence_trainer(folder / name, module, 16, config) for module in modules
                )
                first.files.find()
                first.files.begin()
                advance(first, 5)
                first.save()
                resumed.resume()
                advance(resumed, 5)
                at_most(difference(state(resumed), state(host)), 1e-7)


def check_task(report: Report, folder: Path, name: str, arguments: list[str]) -> Path:
    """Train a task to its target with its own script; returns the folder of the run."""
    module, start = importlib.import_module(f"toy_tasks.{name}"), time.perf_counter()
    main = getattr(module, "main", None) or functools.partial(sequences_main, module.RULE)
    with report.checking(f"{name} trained to its target, exit code") as at_most:
        arguments = ["--backend", "cupy", "--out", str(folder / name), *arguments]
        at_most(exit_code(lambda: main(arguments)), 0)
    report.figures[name] = f"{time.perf_counter() - start:.0f} s"
    return folder / name


def check_decoding(report: Report, xp, run: Path, sequences: int) -> None:
    """Decode with the trained model of `reverse` on the GPU and on the host."""
    task = reverse_task(64)
    sources = pad_sources([task.text.source.encode(source) for source, _ in task.test[:sequences]])
    for name, decode in {"greedy": greedy, "beam search": beam_search}.items():
        with report.checking(f"{name}, sequences that differ from NumPy's") as at_most:
            results = []
            for module in (xp, np):
                model, _ = load_model(run / "best.safetensors")
                pack(model, xp=module)
                results.append(decode(model, sources, sources.shape[1] + 1))
            at_most(sum(a != b for a, b in zip(*results, strict=True)), 0)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_report.md"), help="the report")
    parts_help = f"any of {', '.join(PARTS)}; without it, all"
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=parts_help
    )
    data_help = "folder with g2p and shakespeare, the tasks' data; without it they are downloaded"
    parser.add_argument("--data", type=Path, metavar="DIR", help=data_help)
    parser.add_argument("--quick", action="store_true", help="a few small checks, as a trial")
    options = parser.parse_args(arguments)
    if "\0" in str(options.out) or options.out.is_dir() or not options.out.parent.is_dir():
        parser.error(f"--out is a file in an existing folder; received {options.out}")
    if options.out.suffix == ".json":
        parser.error(
            f"--out is the report in Markdown, not the JSON beside it; received {options.out}"
        )
    reuse_freed_memory()
    try:
        xp = find_backend("cupy")
    except InputError as problem:
        complain(problem)
        return 2
    report, layers, models = Report(), list(CASES), [case.name for case in MODELS]
    flags, sequences = [], 200
    if options.quick:
        layers, models, sequences = layers[::20], models[::40], 20
        flags = "--quick --steps 3 --d-model 8 --layers 1 --no-plots".split()
    report.figures |= machine_of(xp)  # before the checks: a GPU that fails may stop answering
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            checks = {
                "formulas": lambda: check_formulas(report, xp),
                "layers": lambda: check_layers(report, xp, layers),
                "steps": lambda: check_steps(report, xp, models),
                "training": lambda: check_training(report, xp, folder),
            }
            for part in options.only:
                if part in checks:
                    checks[part]()
                    continue
                data = ["--data", str(options.data / TASKS[part])] if options.data else []
                run = check_task(report, folder, part, [*flags, *(data if TASKS[part] else [])])
                if part == "reverse":
                    check_decoding(report, xp, run, sequences)
    finally:  # even after Ctrl-C there is something to report
        report.write(options.out)
    print(report.last_line())
    return 0 if report.passed == len(report.rows) else 1


if __name__ == "__main__":
    sys.exit(exit_code(main))
