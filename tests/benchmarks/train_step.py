"""One training step: numformer beside PyTorch eager, in one run.

    python -m tests.benchmarks.train_step [--sizes toy64 toy tiny base gpt lstm] [--threads N]

Each library computes in a process of its own, with the same threads, sizes and data (real
padding: sequences of half to full length). They take turns, so that what else the machine does
meets them alike, and medians are compared. numformer computes a batch in as many parts as there
are threads (numformer/training/parts.py). PyTorch is as its own guides advise: fused attention with
queries, keys and values from one product, fused Adam; once as it is installed and once with the
allocator setting that numformer's scripts make. The speedups over both are printed; the last line
is about PyTorch as it is installed. As PyTorch code usually does, it computes padding and leaves it
out of the loss; numformer does not compute it.

Needs torch (pip install torch). A share is the time that the step's matrix products would take at
the rate of one large product, divided by the time of the step, padding counted in. Peak memory is
read from /proc (Linux); pages that processes share count in each.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Size(NamedTuple):
    """Vocabulary, d_model, heads, layers, d_ff, a batch of B sequences up to length T, the model.

    The model is one of MODELS; one without attention has neither heads nor d_ff.
    """

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
    "gpt": Size(65, 128, 4, 4, 512, 12, 64, "gpt"),
    "lstm": Size(32, 128, 0, 1, 0, 64, 12, "lstm"),
}
LIBRARIES = ("numformer", "torch", "torch+allocator")
P_DROP = SMOOTHING = 0.1


def batches(size: Size, count: int = 8):
    """Batches of source, target_in, target_out (B, T), sequences of length T / 2 to T.

    For a gpt they are ids and the following ones (B, T), all sequences of length T.
    """
    from numformer.data.batching import PairBatch
    from toy_tasks.write import Windows

    rng = np.random.default_rng(0)
    if size.model == "gpt":
        ids = rng.integers(4, size.V, (count, size.B, size.T + 1))
        return [Windows(batch[:, :-1], batch[:, 1:]) for batch in ids]

    def sequence():
        return rng.integers(4, size.V, rng.integers(size.T // 2, size.T))

    full = rng.integers(4, size.V, size.T - 1)  # so that every batch is T long
    return [
        PairBatch.of([(full, full), *((sequence(), sequence()) for _ in range(size.B - 1))])
        for _ in range(count)
    ]


def numformer_step(size: Size, threads: int) -> Callable[[], None]:
    """What `numformer.training.train` does at every step."""
    from numformer.training.recipe import Recipe
    from numformer.training.trainer import Trainer

    class Task:
        data, metric = batches(size), None

        def batch(self, step):
            return self.data[step % len(self.data)]

        def description(self):
            return {}

    folder = Path(tempfile.gettempdir())  # steps write nothing
    recipe = Recipe(label_smoothing=SMOOTHING)
    model = MODELS[size.model][0](size)
    trainer = Trainer(model, Task(), folder, 10**9, recipe, 0, np, threads)
    trainer.parts.start()
    return trainer.advance


def torch_step(size: Size) -> Callable[[], None]:
    """The same step in PyTorch eager."""
    import torch
    from torch.nn import functional

    model = MODELS[size.model][1](size)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    data = [[torch.from_numpy(array) for array in vars(batch).values()] for batch in batches(size)]
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


def transformer(size: Size):
    """numformer's Transformer."""
    from numformer.models import Config, Transformer

    return Transformer(Config.base(size.V, **sizes(size)))


def sizes(size: Size) -> dict:
    """Those of a tower."""
    own = dict(d_model=size.D, heads=size.heads, layers=size.layers, d_ff=size.F)
    return own | dict(p_drop=P_DROP)


def torch_layer(size: Size):
    """The nn.Module of a layer: of the paper, with norms after its parts; or of a GPT.

    A GPT's (`first`) has the norms before and GELU.
    """
    from torch import nn
    from torch.nn import functional

    def split(x):
        return x.unflatten(-1, (size.heads, -1)).transpose(1, 2)

    class Attention(nn.Module):
        def __init__(self, crosses):
            super().__init__()
            self.crosses = crosses
            self.query = nn.Linear(size.D, size.D if crosses else 3 * size.D, bias=False)
            self.memory = nn.Linear(size.D, 2 * size.D, bias=False) if crosses else None
            self.output = nn.Linear(size.D, size.D, bias=False)

        def forward(self, x, memory=None, mask=None, causal=False):
            if self.crosses:
                query, (key, value) = self.query(x), self.memory(memory).chunk(2, -1)
            else:
                query, key, value = self.query(x).chunk(3, -1)
            heads = functional.scaled_dot_product_attention(
                split(query), split(key), split(value), mask, is_causal=causal
            )
            return self.output(heads.transpose(1, 2).flatten(-2))

    class Layer(nn.Module):
        def __init__(self, crosses=False, first=False):
            super().__init__()
            self.first = first
            self.attention = Attention(False)
            self.cross = Attention(True) if crosses else None
            self.inner, self.outer = nn.Linear(size.D, size.F), nn.Linear(size.F, size.D)
            self.norms = nn.ModuleList(nn.LayerNorm(size.D) for _ in range(3 if crosses else 2))
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, x, memory=None, mask=None):
            if self.first:
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

    return Layer


def torch_transformer(size: Size):
    """The Transformer as an nn.Module: source, target -> logits."""
    import torch
    from torch import nn
    from torch.nn import functional

    from numformer.layers.positional import sinusoidal_table

    Layer = torch_layer(size)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(size.V, size.D)
            nn.init.normal_(self.embedding.weight, 0, size.D**-0.5)
            self.encoder = nn.ModuleList(Layer(False) for _ in range(size.layers))
            self.decoder = nn.ModuleList(Layer(True) for _ in range(size.layers))
            self.register_buffer("table", torch.from_numpy(sinusoidal_table(64, size.D)).float())
            self.dropout = nn.Dropout(P_DROP)

        def embed(self, ids):
            x = self.embedding(ids) * size.D**0.5 + self.table[: ids.shape[1]]
            return self.dropout(x)

        def forward(self, source, target):
            mask = (source != 0)[:, None, None, :]
            memory, x = self.embed(source), self.embed(target)
            for layer in self.encoder:
                memory = layer(memory, mask=mask)
            for layer in self.decoder:
                x = layer(x, memory, mask)
            return functional.linear(x, self.embedding.weight)

    return Model()


def gpt(size: Size):
    """numformer's language model with a GPT's choices."""
    from numformer.models import LanguageModel

    choices = dict(norm="pre", activation="gelu", positions="learned", max_length=size.T)
    return LanguageModel(LanguageModel.Config(vocabulary=size.V, **sizes(size), **choices))


def torch_gpt(size: Size):
    """The same as an nn.Module: ids -> logits."""
    from torch import nn
    from torch.nn import functional

    Layer = torch_layer(size)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(size.V, size.D)
            self.positions = nn.Embedding(size.T, size.D)
            for embedding in (self.embedding, self.positions):
                nn.init.normal_(embedding.weight, 0, size.D**-0.5)
            self.layers = nn.ModuleList(Layer(first=True) for _ in range(size.layers))
            self.norm, self.dropout = nn.LayerNorm(size.D), nn.Dropout(P_DROP)

        def forward(self, ids):
            x = self.dropout(self.embedding(ids) * size.D**0.5 + self.positions.weight)
            for layer in self.layers:
                x = layer(x)
            return functional.linear(self.norm(x), self.embedding.weight)

    return Model()


def lstm(size: Size):
    """numformer's encoder-decoder of LSTMs, one state between them."""
    from numformer.models import RecurrentEncoderDecoder as Model

    sizes = dict(source_vocabulary=size.V, target_vocabulary=size.V, d_model=size.D)
    return Model(Model.Config(**sizes, cell="lstm", context="fixed", p_drop=P_DROP))


def torch_lstm(size: Size):
    """The same as an nn.Module, with the fused nn.LSTM: source, target -> logits."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = nn.ModuleList(nn.Embedding(size.V, size.D) for _ in range(2))
            for embedding in self.embeddings:
                nn.init.normal_(embedding.weight, 0, size.D**-0.5)
            self.encoder = nn.LSTM(size.D, size.D, batch_first=True)
            self.decoder = nn.LSTM(2 * size.D, size.D, batch_first=True)
            self.bridge, self.readout = nn.Linear(size.D, size.D), nn.Linear(size.D, size.D)
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, source, target):
            x, y = (
                self.dropout(embedding(ids) * size.D**0.5)
                for embedding, ids in zip(self.embeddings, (source, target), strict=True)
            )
            h, _ = self.encoder(x)
            last = h[torch.arange(len(h)), (source != 0).sum(dim=1) - 1]
            start = self.bridge(last).tanh()[None]
            context = last[:, None].expand(-1, y.shape[1], -1)
            y, _ = self.decoder(torch.cat([y, context], dim=-1), (start, torch.zeros_like(start)))
            y = self.dropout(self.readout(y).tanh())
            return functional.linear(y, self.embeddings[1].weight)

    return Model()


# Of each model how it is made in numformer and in PyTorch.
MODELS = {
    "transformer": (transformer, torch_transformer),
    "gpt": (gpt, torch_gpt),
    "lstm": (lstm, torch_lstm),
}


def product_flops(size: Size) -> float:
    """Floating-point operations of all matrix products of a step, forward and backward."""
    if size.model == "lstm":
        weights = (4 * (2 + 3) + 1) * size.D**2
    else:
        attentions, networks = (1, 1) if size.model == "gpt" else (3, 2)
        attention = 4 * size.D**2 + 2 * size.T * size.D  # projections; scores and their blend
        weights = size.layers * (attentions * attention + networks * 2 * size.D * size.F)
    weights += size.V * size.D
    return 3 * 2 * size.B * size.T * weights  # backward makes two products for each


def seconds(function: Callable[[], object], times: int = 1) -> float:
    """How long `times` calls of `function` take."""
    start = time.perf_counter()
    for _ in range(times):
        function()
    return time.perf_counter() - start


def work(library: str, name: str, threads: int) -> None:
    """A process that answers on standard output: first its product's rate (operations a second),
    then for each number of steps read from standard input the seconds and the peak memory."""
    from numformer.backend import reuse_freed_memory

    if library != "torch":
        reuse_freed_memory()
    n = 2048
    matrix = np.ones((n, n), np.float32)
    if library != "numformer":
        import torch

        torch.set_num_threads(threads)
        matrix = torch.from_numpy(matrix)
    product = min(seconds(lambda: matrix @ matrix) for _ in range(5))
    size = SIZES[name]
    step = numformer_step(size, threads) if library == "numformer" else torch_step(size)
    seconds(step, 3)
    print(json.dumps(2 * n**3 / product), flush=True)
    for line in sys.stdin:
        taken = seconds(step, int(line))
        print(json.dumps([taken, peak_memory()]), flush=True)


def peak_memory() -> int:
    """The most memory, in bytes, that this process and its children have held at a time each."""
    processes = ["self", *(child.pid for child in multiprocessing.active_children())]
    status = [Path(f"/proc/{process}/status").read_text() for process in processes]
    return sum(1024 * int(text.partition("VmHWM:")[2].split()[0]) for text in status)


class Worker:
    """One library at one size, in a process of its own."""

    def __init__(self, library: str, name: str, threads: int):
        limits = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        command = [sys.executable, "-m", "tests.benchmarks.train_step", "--threads", str(threads)]
        command += ["--worker", library, name]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, **pipes, env=os.environ | limits)
        self.rate = self._answer()
        self.times: list[float] = []
        self.peak = 0

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker ended early; what it said stands above")
        return json.loads(line)

    def run(self, steps: int) -> None:
        """Take `steps` steps and note the time of one."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        taken, self.peak = self._answer()
        self.times.append(taken / steps)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, threads: int, rounds: int) -> float:
    """Measure one size, print its lines, return the speedup over PyTorch as it is installed."""
    workers = {library: Worker(library, name, threads) for library in LIBRARIES}
    for worker in workers.values():
        worker.run(1)
    steps = max(1, round(0.5 / workers["numformer"].times.pop()))
    for worker in workers.values():
        worker.times.clear()
    for _ in range(rounds):
        for worker in workers.values():
            time.sleep(0.05)  # the threads of the one before go to sleep first
            worker.run(steps)
    medians = {library: statistics.median(worker.times) for library, worker in workers.items()}
    for library, worker in workers.items():
        worker.close()
        share = product_flops(SIZES[name]) / worker.rate / medians[library]
        print(
            f"{name:6} {library:16} {1000 * medians[library]:8.1f} ms a step "
            f"(from {1000 * min(worker.times):.1f} to {1000 * max(worker.times):.1f}), "
            f"product {worker.rate / 1e9:4.0f} GFLOP/s, share {share:4.0%}, "
            f"peak memory {worker.peak / 2**20:5.0f} MiB",
            flush=True,
        )
    speedup, tuned = (medians[library] / medians["numformer"] for library in LIBRARIES[1:])
    print(f"{name:6} speedup {speedup:.2f}, with torch+allocator {tuned:.2f}", flush=True)
    return speedup


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.train_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, default=cores, help=f"of each (default: {cores})")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default: 9)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not 1 <= options.threads <= cores or options.rounds < 1:
        parser.error(f"--threads is from 1 to the {cores} cores, and --rounds is at least 1")
    if options.worker:
        if options.worker[0] not in LIBRARIES or options.worker[1] not in SIZES:
            parser.error("--worker is for this program's own use")
        return work(*options.worker, options.threads)
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch is what numformer is compared with: pip install torch")
    speedups = {name: measure(name, options.threads, options.rounds) for name in options.sizes}
    worst = min(speedups, key=speedups.get)
    print(f"worst speedup {speedups[worst]:.2f} at {worst}")


if __name__ == "__main__":
    main()
