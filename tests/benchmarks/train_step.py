"""One training step: numformer against PyTorch eager.

    python -m tests.benchmarks.train_step [--sizes toy64 tiny ...] [--lengths full padded]
    python -m tests.benchmarks.train_step --sizes base --profile
    python -m tests.benchmarks.train_step --backend cupy --precisions float32 tf32 mixed

Each library runs in its own process, with the same threads, sizes and data. They take turns, so
that other load on the machine affects both, and medians are compared. PyTorch is used as its guides
recommend: fused attention with queries, keys and values from one product, fused Adam, no mask if
nothing is padded, and the allocator settings of numformer's scripts. Memory is that of a library's
processes after these steps, with shared memory counted once. tests/README.md explains the
differences. Needs torch (pip install torch).

With --profile it prints the processor time that each formula of numformer takes, in one process
with one thread.

With --backend cupy both use one GPU. tf32 lets products round to 10 bits; mixed is numformer's
--precision mixed (float16) against PyTorch's autocast to bfloat16. Memory is then the size of each
library's pool of GPU memory. --profile waits for every kernel, so that its time counts for the
formula that started it; before that, it prints which kernels a step starts, how many, and for how
much of a step the GPU is busy.
"""

import argparse
import contextlib
import cProfile
import functools
import importlib.util
import itertools
import multiprocessing
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from numformer import blas
from numformer.allocator import reuse_freed_memory
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.execution.forked import cores
from numformer.execution.ranks import Ranks
from numformer.models import Config, LanguageModel, RecurrentEncoderDecoder, Transformer
from numformer.optimization.recipe import Recipe
from numformer.training.trainer import Trainer
from tests.benchmarks.sizes import LENGTHS, P_DROP, SIZES, Size, batches
from tests.benchmarks.worker import Worker

ON_GPU = ["toy", "tiny", "paper_base", "paper_big"]
PRECISIONS = "float32", "tf32", "mixed"


class Way(NamedTuple):
    """Where steps are computed, and how."""

    backend: str = "numpy"
    precision: str = "float32"

    @property
    def on_gpu(self) -> bool:
        return self.backend == "cupy"


ON_HOST = Way()
ROUNDS = 9
SMOOTHING = 0.1


def numformer_model(size: Size):
    if size.model == "lstm":
        settings = dict(source_vocabulary=size.V, target_vocabulary=size.V, d_model=size.D)
        settings |= dict(cell="lstm", context="fixed", p_drop=P_DROP)
        return RecurrentEncoderDecoder(RecurrentEncoderDecoder.Config(**settings))
    sizes = dict(d_model=size.D, heads=size.heads, layers=size.layers, d_ff=size.F)
    settings = dict(**sizes, p_drop=P_DROP)
    if size.model == "gpt":
        settings |= dict(norm="pre", activation="gelu", positions="learned", max_length=size.T)
        return LanguageModel(LanguageModel.Config(vocabulary=size.V, **settings))
    return Transformer(Config.base(size.V, **settings))


def numformer_step(size: Size, lengths: str, way: Way = ON_HOST, parts: int | None = None):
    """The step of `numformer.training.train`, and a function that waits for its end."""
    if way.precision == "tf32":
        os.environ["CUPY_TF32"] = "1"  # before CuPy is loaded
    trainer = trainer_of(size, lengths, parts or (1 if way.on_gpu else cores()), way=way)
    trainer.executor.start()
    return trainer.advance, trainer.read


def trainer_of(
    size: Size, lengths: str, parts: int, ranks: Ranks | None = None, way: Way = ON_HOST
) -> Trainer:
    class Task:
        data, metric = batches(size, lengths), None

        def batch(self, step):
            return self.data[step % len(self.data)]

        def description(self):
            return {}

    reuse_freed_memory()
    folder = Path(tempfile.gettempdir())  # steps write nothing
    precision = "mixed" if way.precision == "mixed" else "float32"
    recipe = Recipe(label_smoothing=SMOOTHING, precision=precision)
    how = Task(), folder, 10**9, recipe, 0, find_backend(way.backend)
    return Trainer(numformer_model(size), *how, parts, ranks)


def torch_step(size: Size, lengths: str, way: Way):
    import torch
    from torch.nn import functional

    from tests.benchmarks.torch_model import torch_model

    reuse_freed_memory()
    torch.set_num_threads(cores())
    device = torch.device("cuda" if way.on_gpu else "cpu")
    torch.set_float32_matmul_precision("high" if way.precision == "tf32" else "highest")
    model = torch_model(size, lengths == "padded").to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    data = batches(size, lengths)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=way.precision == "mixed")
    number = 0

    def step():
        nonlocal number
        batch = data[number % len(data)]
        *inputs, target_out = (torch.from_numpy(array).to(device) for array in batch.inputs)
        number += 1
        with autocast:
            logits = model(*inputs)
            loss = functional.cross_entropy(
                logits.flatten(0, 1),
                target_out.flatten(),
                ignore_index=0,
                label_smoothing=SMOOTHING,
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, torch.cuda.synchronize if way.on_gpu else lambda: None


STEPS = {"numformer": numformer_step, "PyTorch": torch_step}


def seconds(step: Callable[[], None], wait: Callable[[], None], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return time.perf_counter() - start


def memory() -> float:
    """MiB of this process and its children: their proportional set sizes."""
    own = Path("/proc/self")
    children = (own / "task" / str(os.getpid()) / "children").read_text().split()
    paths = [own / "smaps_rollup", *(Path("/proc", pid, "smaps_rollup") for pid in children)]
    lines = [line.split() for path in paths for line in path.read_text().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] == "Pss:") / 1024


def memory_of_gpu(library: str) -> float:
    """MiB of GPU memory in the library's pool."""
    if library == "numformer":
        return find_backend("cupy").get_default_memory_pool().total_bytes() / 2**20
    import torch

    return torch.cuda.max_memory_reserved() / 2**20


def work(library: str, name: str, lengths: str, *way: str) -> None:
    """Answer each number of steps on standard input with their seconds, and 0 with the memory."""
    how = Way(*way)
    steps = STEPS[library](SIZES[name], lengths, how)
    seconds(*steps, 3)
    used_memory = functools.partial(memory_of_gpu, library) if how.on_gpu else memory
    for line in sys.stdin:
        print(seconds(*steps, int(line)) if int(line) else used_memory(), flush=True)


def measure(name: str, lengths: str, way: Way) -> None:
    """Print the row of one size."""
    with contextlib.ExitStack() as stack:
        workers = {
            library: Worker("train_step", library, name, lengths, *way, threads=cores())
            for library in STEPS
        }
        for worker in workers.values():
            stack.callback(worker.end)
        for worker in workers.values():
            worker.ask(1)  # until all are ready
        steps = max(1, round(0.5 / workers["numformer"].ask(1)))
        times = {library: [] for library in STEPS}
        for _ in range(ROUNDS):
            for library, worker in workers.items():
                time.sleep(0.05)  # let the threads of the other library go to sleep
                times[library].append(worker.ask(steps) / steps)
        memories = [worker.ask(0) for worker in workers.values()]
    medians = [1000 * statistics.median(times[library]) for library in STEPS]
    size = SIZES[name]
    kind = f"{name}, {lengths}" + (f", {way.precision}" if way.on_gpu else "")
    what = f"{size.D}, {size.layers}, {size.V:,}, {size.B} x {size.T} ({kind})"
    row = [what, *(f"{median:.1f}" for median in medians), f"{medians[1] / medians[0]:.2f}"]
    row += [*(f"{memory:,.0f}" for memory in memories), f"{memories[0] / memories[1]:.2f}"]
    print("|", " | ".join(row), "|", flush=True)


def profile(name: str, lengths: str, way: Way, rows: int = 24) -> None:
    """Print the time of each formula in a step, including the calls that leave the library."""
    if way.on_gpu:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # before CuPy is loaded
    profiler = cProfile.Profile(time.perf_counter if way.on_gpu else time.process_time)
    with blas.training_threads(1):
        both = numformer_step(SIZES[name], lengths, way, parts=1)
        seconds(*both, 2)
        steps = max(1, round(4 / seconds(*both, 1)))
        profiler.runcall(seconds, *both, steps)
    own: dict[str, float] = {}
    for function, (_, _, spent, _, callers) in pstats.Stats(profiler).stats.items():
        shares = {caller: times[2] for caller, times in callers.items()}
        if "numformer" in function[0]:
            shares = {function: spent}
        for (file, _, called), share in shares.items():
            row = f"{called} ({Path(file).name})"
            own[row] = own.get(row, 0) + share
    total = sum(own.values())
    print(f"{name}, {lengths}: {1000 * total / steps:.1f} ms a step\n| ms | share | formula |")
    print("|---|---|---|")
    for row, spent in sorted(own.items(), key=lambda item: -item[1])[:rows]:
        print(f"| {1000 * spent / steps:.2f} | {spent / total:.1%} | {row} |")


def kernels(name: str, lengths: str, way: Way, steps: int = 5, rows: int = 24) -> None:
    """Print the kernels that the GPU runs in a step, from CUDA's records, which PyTorch reads."""
    import torch
    from torch.profiler import ProfilerActivity

    torch.cuda.init()
    both = numformer_step(SIZES[name], lengths, way)
    seconds(*both, 3)
    wall = seconds(*both, steps) / steps
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        seconds(*both, steps)
    times: dict[str, list[float]] = {}
    for event in recorded.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e6)
    started, busy = (sum(f(spent) for spent in times.values()) / steps for f in (len, sum))
    print(
        f"{name}, {lengths}, {way.precision}: {1000 * wall:.1f} ms a step, {started:,.0f} kernels"
    )
    print(f"and copies, {busy / wall:.0%} busy\n| ms | times | kernel |\n|---|---|---|")
    for kernel, spent in sorted(times.items(), key=lambda item: -sum(item[1]))[:rows]:
        print(f"| {1000 * sum(spent) / steps:.2f} | {len(spent) / steps:.0f} | {kernel[:70]} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_step")
    text = "default: all but the largest, or on a GPU " + " ".join(ON_GPU)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help=text)
    text = "; ".join(f"{name}: {meaning}" for name, meaning in LENGTHS.items())
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS), help=text)
    parser.add_argument("--backend", choices=["numpy", "cupy"], default="numpy")
    text = "of products on a GPU; default: float32"
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help=text)
    parser.add_argument("--profile", action="store_true", help="print the time of each formula")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(*options.worker)
    on_gpu = options.backend == "cupy"
    if options.precisions and not on_gpu:
        parser.error("--precisions needs --backend cupy: NumPy's products are float32")
    if on_gpu:
        try:
            find_backend("cupy")
        except InputError as problem:
            parser.error(str(problem))
    if (on_gpu or not options.profile) and not importlib.util.find_spec("torch"):
        parser.error("numformer is compared with PyTorch: pip install torch")
    if not options.profile:
        columns = "d_model, layers, vocabulary, batch x length", *STEPS, "speedup"
        columns += *(f"{library}, MiB" for library in STEPS), "memory"
        print("milliseconds a step\n|", " | ".join(columns), "|")
        print("|---" * len(columns) + "|", flush=True)
    default = ON_GPU if on_gpu else [name for name in SIZES if not name.startswith("paper")]
    ways = [Way(options.backend, precision) for precision in options.precisions or ["float32"]]
    failed = False
    for name, lengths, way in itertools.product(options.sizes or default, options.lengths, ways):
        padded = SIZES[name].model == "transformer" or "full" not in options.lengths
        if lengths != "full" and not padded:
            continue
        if options.profile and on_gpu:
            # Whether CUDA waits is decided once in a process.
            for what in kernels, profile:
                context = multiprocessing.get_context("spawn")
                process = context.Process(target=what, args=(name, lengths, way))
                process.start()
                process.join()
        elif options.profile:
            profile(name, lengths, way)
        else:
            try:
                measure(name, lengths, way)
            except SystemExit as problem:  # the other sizes still run
                print(f"{name}, {lengths}, {way.precision}: {problem}", file=sys.stderr)
                failed = True
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
