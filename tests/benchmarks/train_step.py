"""One training step: numformer beside PyTorch eager, in one run.

    python -m tests.benchmarks.train_step [--sizes toy64 tiny ...] [--lengths full padded]
    python -m tests.benchmarks.train_step --sizes base --profile

Each library computes in a process of its own, with the same threads, sizes and data. They take
turns, so that what else the machine does meets them alike, and medians are compared. PyTorch is as
its own guides advise: fused attention with queries, keys and values from one product, fused Adam,
no mask where nothing is padded, and the allocator setting that numformer's scripts make. Memory is
that of a library's processes after these steps, what they share counted once. What the differences
come from stands in tests/README.md. Needs torch (pip install torch).

With --profile it says instead which formulas of numformer a step's processor time goes into, in one
process with one thread.
"""

import argparse
import cProfile
import importlib.util
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numformer import blas
from numformer.backend import reuse_freed_memory
from numformer.data.batching import PairBatch
from numformer.layers.positional import sinusoidal_table
from numformer.models import Config, LanguageModel, RecurrentEncoderDecoder, Transformer
from numformer.parallel import Ranks
from numformer.training.forks import cores
from numformer.training.recipe import Recipe
from numformer.training.trainer import Trainer
from tests.benchmarks.worker import Worker
from toy_tasks.write import Windows


class Size(NamedTuple):
    """Vocabulary, d_model, heads, layers, d_ff, a batch of B sequences of length T, model."""

    V: int
    D: int
    heads: int
    layers: int
    F: int
    B: int
    T: int
    model: str = "transformer"


SIZES = {
    "toy64": Size(16, 64, 4, 2, 128, 64, 12),
    "toy": Size(32, 128, 4, 2, 512, 64, 12),
    "tiny": Size(10000, 128, 4, 4, 256, 128, 16),
    "base": Size(10000, 512, 8, 6, 2048, 32, 32),
    "wide": Size(37000, 512, 8, 6, 2048, 16, 64),
    "long": Size(1000, 256, 4, 2, 1024, 2, 1024),
    "gpt": Size(65, 128, 4, 4, 512, 12, 64, "gpt"),
    "gptq": Size(65, 256, 4, 4, 1024, 16, 256, "gpt"),
    "gpt2": Size(50257, 768, 12, 12, 3072, 4, 256, "gpt"),
    "lstm": Size(32, 128, 0, 1, 0, 64, 12, "lstm"),
}
LENGTHS = {"full": "all sequences T long", "padded": "of lengths T / 2 to T"}
ROUNDS = 9
P_DROP = SMOOTHING = 0.1


def batches(size: Size, lengths: str, count: int = 8):
    """source, target_in, target_out (B, T); a gpt, which has no padding, has ids, following ids."""
    rng = np.random.default_rng(0)
    if size.model == "gpt":
        ids = rng.integers(4, size.V, (count, size.B, size.T + 1))
        return [Windows(batch[:, :-1], batch[:, 1:]) for batch in ids]

    def sequence(shortest):  # an end follows
        return rng.integers(4, size.V, rng.integers(shortest, size.T))

    shortest = size.T - 1 if lengths == "full" else size.T // 2
    return [
        PairBatch.of([(sequence(first), sequence(first)) for first in [size.T - 1, *others]])
        for others in count * [(size.B - 1) * [shortest]]
    ]


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


def numformer_step(size: Size, lengths: str, parts: int | None = None) -> Callable[[], None]:
    """What `numformer.training.train` does at every step."""
    trainer = trainer_of(size, lengths, parts or cores())
    trainer.parts.start()
    return trainer.advance


def trainer_of(size: Size, lengths: str, parts: int, ranks: Ranks | None = None) -> Trainer:
    class Task:
        data, metric = batches(size, lengths), None

        def batch(self, step):
            return self.data[step % len(self.data)]

        def description(self):
            return {}

    reuse_freed_memory()
    folder = Path(tempfile.gettempdir())  # steps write nothing
    recipe = Recipe(label_smoothing=SMOOTHING)
    how = Task(), folder, 10**9, recipe, 0, np
    return Trainer(numformer_model(size), *how, parts, ranks)


def torch_model(size: Size):
    """The same model as an nn.Module: source, target -> logits; a gpt's takes ids alone."""
    import torch
    from torch import nn
    from torch.nn import functional

    def embedding(count):
        made = nn.Embedding(count, size.D)
        nn.init.normal_(made.weight, 0, size.D**-0.5)
        return made

    def split(x):
        return x.unflatten(-1, (size.heads, -1)).transpose(1, 2)

    class Attention(nn.Module):
        def __init__(self, crosses=False):
            super().__init__()
            self.query = nn.Linear(size.D, size.D if crosses else 3 * size.D, bias=False)
            self.memory = nn.Linear(size.D, 2 * size.D, bias=False) if crosses else None
            self.output = nn.Linear(size.D, size.D, bias=False)

        def forward(self, x, memory=None, mask=None, causal=False):
            if memory is None:
                query, key, value = self.query(x).chunk(3, -1)
            else:
                query, (key, value) = self.query(x), self.memory(memory).chunk(2, -1)
            heads = functional.scaled_dot_product_attention(
                split(query), split(key), split(value), mask, is_causal=causal
            )
            return self.output(heads.transpose(1, 2).flatten(-2))

    class Layer(nn.Module):
        def __init__(self, crosses=False):
            super().__init__()
            self.attention = Attention()
            self.cross = Attention(crosses=True) if crosses else None
            self.inner, self.outer = nn.Linear(size.D, size.F), nn.Linear(size.F, size.D)
            self.norms = nn.ModuleList(nn.LayerNorm(size.D) for _ in range(3 if crosses else 2))
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, x, memory=None, mask=None):
            if size.model == "gpt":
                x = x + self.dropout(self.attention(self.norms[0](x), causal=True))
                fed = self.outer(functional.gelu(self.inner(self.norms[1](x))))
                return x + self.dropout(fed)
            decodes = self.cross is not None
            own = self.attention(x, None, None if decodes else mask, causal=decodes)
            x = self.norms[0](x + self.dropout(own))
            if decodes:
                x = self.norms[1](x + self.dropout(self.cross(x, memory, mask)))
            fed = self.outer(functional.relu(self.inner(x)))
            return self.norms[-1](x + self.dropout(fed))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.dropout = embedding(size.V), nn.Dropout(P_DROP)
            self.encoder = nn.ModuleList(Layer() for _ in range(size.layers))
            self.decoder = nn.ModuleList(Layer(crosses=True) for _ in range(size.layers))
            table = torch.from_numpy(sinusoidal_table(size.T, size.D)).float()
            self.register_buffer("table", table)

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * size.D**0.5 + self.table[: ids.shape[1]])

        def forward(self, source, target):
            valid = source != 0
            mask = None if valid.all() else valid[:, None, None, :]
            memory, x = self.embed(source), self.embed(target)
            for layer in self.encoder:
                memory = layer(memory, mask=mask)
            for layer in self.decoder:
                x = layer(x, memory, mask)
            return functional.linear(x, self.embedding.weight)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = embedding(size.V), embedding(size.T)
            self.layers = nn.ModuleList(Layer() for _ in range(size.layers))
            self.norm, self.dropout = nn.LayerNorm(size.D), nn.Dropout(P_DROP)

        def forward(self, ids):
            x = self.dropout(self.embedding(ids) * size.D**0.5 + self.positions.weight)
            for layer in self.layers:
                x = layer(x)
            return functional.linear(self.norm(x), self.embedding.weight)

    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = embedding(size.V), embedding(size.V)
            self.encoder = nn.LSTM(size.D, size.D, batch_first=True)
            self.decoder = nn.LSTM(2 * size.D, size.D, batch_first=True)
            self.bridge, self.readout = nn.Linear(size.D, size.D), nn.Linear(size.D, size.D)
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, source, target):
            h, _ = self.encoder(self.dropout(self.source(source) * size.D**0.5))
            last = h[torch.arange(len(h)), (source != 0).sum(dim=1) - 1]
            start = self.bridge(last).tanh()[None]
            y = self.dropout(self.target(target) * size.D**0.5)
            context = last[:, None].expand(-1, y.shape[1], -1)
            y, _ = self.decoder(torch.cat([y, context], dim=-1), (start, torch.zeros_like(start)))
            y = self.dropout(self.readout(y).tanh())
            return functional.linear(y, self.target.weight)

    return {"transformer": Transformer, "gpt": GPT, "lstm": LSTM}[size.model]()


def torch_step(size: Size, lengths: str) -> Callable[[], None]:
    import torch
    from torch.nn import functional

    reuse_freed_memory()
    torch.set_num_threads(cores())
    model = torch_model(size)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    data = [[torch.from_numpy(array) for array in batch.inputs] for batch in batches(size, lengths)]
    taken = 0

    def step():
        nonlocal taken
        *inputs, target_out = data[taken % len(data)]
        taken += 1
        logits = model(*inputs)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), target_out.flatten(), ignore_index=0, label_smoothing=SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


STEPS = {"numformer": numformer_step, "PyTorch": torch_step}


def seconds(step: Callable[[], None], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    return time.perf_counter() - start


def memory() -> float:
    """MiB of this process and those that it started: their proportional set sizes."""
    here = Path("/proc/self")
    started = (here / "task" / str(os.getpid()) / "children").read_text().split()
    rolled = [here / "smaps_rollup", *(Path("/proc", pid, "smaps_rollup") for pid in started)]
    lines = [line.split() for path in rolled for line in path.read_text().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] == "Pss:") / 1024


def work(library: str, name: str, lengths: str) -> None:
    """A process that answers on standard input: a number of steps with the seconds they took,

    0 with the memory that the steps have needed, which stays with the process.
    """
    step = STEPS[library](SIZES[name], lengths)
    seconds(step, 3)
    for line in sys.stdin:
        print(seconds(step, int(line)) if int(line) else memory(), flush=True)


def measure(name: str, lengths: str) -> None:
    """Print the row of one size."""
    workers = {
        library: Worker("train_step", library, name, lengths, threads=cores()) for library in STEPS
    }
    for worker in workers.values():
        worker.ask(1)  # all are ready
    steps = max(1, round(0.5 / workers["numformer"].ask(1)))
    times = {library: [] for library in STEPS}
    for _ in range(ROUNDS):
        for library, worker in workers.items():
            time.sleep(0.05)  # the threads of the one before go to sleep first
            times[library].append(worker.ask(steps) / steps)
    ours, theirs = (worker.ask(0) for worker in workers.values())
    for worker in workers.values():
        worker.end()
    medians = [1000 * statistics.median(times[library]) for library in STEPS]
    size = SIZES[name]
    what = f"{size.D}, {size.layers}, {size.V:,}, {size.B} x {size.T} ({name}, {lengths})"
    row = [what, *(f"{median:.1f}" for median in medians), f"{medians[1] / medians[0]:.2f}"]
    row += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
    print("|", " | ".join(row), "|", flush=True)


def profile(name: str, lengths: str, rows: int = 24) -> None:
    """Print where the time of a step goes: each formula with what it calls outside the library."""
    profiler = cProfile.Profile(time.process_time)
    with blas.fixed(1):
        step = numformer_step(SIZES[name], lengths, parts=1)
        seconds(step, 2)
        steps = max(1, round(4 / seconds(step, 1)))
        profiler.runcall(seconds, step, steps)
    own: dict[str, float] = {}
    for function, (_, _, spent, _, callers) in pstats.Stats(profiler).stats.items():
        shares = {caller: times[2] for caller, times in callers.items()}
        if "numformer" in function[0]:
            shares = {function: spent}
        for (file, _, called), share in shares.items():
            row = f"{called} ({Path(file).name})"
            own[row] = own.get(row, 0) + share
    whole = sum(own.values())
    print(f"{name}, {lengths}: {1000 * whole / steps:.1f} ms a step\n| ms | share | formula |")
    print("|---|---|---|")
    for row, spent in sorted(own.items(), key=lambda item: -item[1])[:rows]:
        print(f"| {1000 * spent / steps:.2f} | {spent / whole:.1%} | {row} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_step")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    told = "; ".join(f"{name}: {meaning}" for name, meaning in LENGTHS.items())
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS), help=told)
    parser.add_argument("--profile", action="store_true", help="where numformer's time goes")
    words = [*STEPS, *SIZES, *LENGTHS]
    parser.add_argument("--worker", nargs=3, choices=words, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(*options.worker)
    if not options.profile:
        if not importlib.util.find_spec("torch"):
            parser.error("PyTorch is what numformer is compared with: pip install torch")
        columns = "d_model, layers, vocabulary, batch x length", *STEPS, "speedup"
        columns += *(f"{library}, MiB" for library in STEPS), "memory"
        print("milliseconds a step\n|", " | ".join(columns), "|")
        print("|---" * len(columns) + "|", flush=True)
    for name in options.sizes:
        padded = SIZES[name].model == "transformer" or "full" not in options.lengths
        for lengths in options.lengths:
            if lengths == "full" or padded:
                profile(name, lengths) if options.profile else measure(name, lengths)


if __name__ == "__main__":
    main()
