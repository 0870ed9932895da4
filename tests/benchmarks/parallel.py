"""MPI ranks against forked parts, and an estimate for many machines in a network.

    python -m tests.benchmarks.parallel [--sizes toy tiny base] [--ranks 2] [--paper]

Both compute the same steps with as many parts, one thread each, and take turns; medians are
compared. The table also has the bytes that ranks send in a step, and the milliseconds for which
rank 0 waits for others: normally, and if nothing is sent before backward has ended.

Then follows an estimate for the paper's batch on 1 to 256 ranks at 1, 10 and 100 Gbit/s. It uses
the rate measured before, or with --paper 60 GFlop/s, without measuring. Operations and bytes both
grow with the parameters, so base and big models gain alike.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

from numformer.execution.executor import Executor
from numformer.execution.mpi import world
from numformer.execution.rank_executor import RankExecutor
from tests.benchmarks.sizes import SIZES
from tests.benchmarks.train_step import numformer_model, trainer_of
from tests.benchmarks.worker import Worker
from toy_tasks.reports.tables import markdown_table

ROUNDS = 9
WAYS = "forks", "ranks", "late"
"""Forked parts; ranks; ranks that send nothing before backward has ended."""

MODELS = {"base": 65e6, "big": 213e6}  # parameters (Table 3)
TOKENS = 25_000  # of a batch, in source and target each (section 5.1)
REAL_SHARE = 0.75  # tokens over positions in the batches that are measured
P100 = 9.5e12  # operations a second, the paper's estimate for one of its GPUs (section 6.1)
BANDWIDTHS = 1, 10, 100  # Gbit/s
BACKWARD = 2 / 3  # share of backward in the operations of a step


def work(name: str, way: str) -> None:
    """Answer each line "steps what" on standard input, after this number of steps.

    The answer is their seconds (what 0), the seconds of waiting (1) or the bytes sent (2).
    """
    ranks = world() if way != "forks" else None
    trainer = trainer_of(SIZES[name], "padded", 2 if ranks is None else ranks.size, ranks)
    executor = trainer.executor
    if isinstance(executor, RankExecutor):
        executor.overlap = way == "ranks"
        if executor.ranks.rank:
            executor.ranks.timeout = 1e6
            executor.serve([])
            return
    executor.start()
    for line in sys.stdin:
        steps, what = map(int, line.split())
        start = time.perf_counter()
        before = _waiting_and_sent(executor)
        for _ in range(steps):
            trainer.advance()
        seconds = time.perf_counter() - start
        after = _waiting_and_sent(executor)
        print((seconds, *(b - a for a, b in zip(before, after, strict=True)))[what], flush=True)
    if isinstance(executor, RankExecutor):
        executor.end_run({})


def _waiting_and_sent(executor: Executor) -> tuple[float, int]:
    """For how many seconds this rank has waited for others, and how many bytes it has sent."""
    if not isinstance(executor, RankExecutor):
        return 0.0, 0
    return executor.seconds_waiting, executor.bytes_sent


def comparison(name: str, ranks: int) -> list[str]:
    """A row of the table: milliseconds of a step, their ratio, bytes, milliseconds of waiting."""
    counts = {"forks": 1, "ranks": ranks, "late": ranks}
    workers = {way: Worker("parallel", name, way, threads=1, ranks=counts[way]) for way in WAYS}
    ask: dict[str, Callable[[int, int], float]] = {way: w.ask for way, w in workers.items()}
    steps = max(2, int(1 / max(ask["forks"](2, 0) / 2, ask["ranks"](2, 0) / 2)))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    waits: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            times[way].append(ask[way](steps, 0) / steps)
            waits[way].append(ask[way](steps, 1) / steps)
    sent = ask["ranks"](2, 2) / 2
    for worker in workers.values():
        worker.end()
    forks, mpi = (statistics.median(times[way]) for way in ("forks", "ranks"))
    figures = f"{1000 * forks:.1f}", f"{1000 * mpi:.1f}", f"{forks / mpi:.2f}", f"{sent / 1e6:.1f}"
    return [name, *figures, *(f"{1000 * statistics.median(waits[way]):.1f}" for way in WAYS[1:])]


def seconds(parameters: float, ranks: int, gbit: float, rate: float) -> tuple[float, float]:
    """The seconds of a step: computing, and communication that backward does not hide.

    A token takes 6 operations a parameter, forward and backward (Kaplan et al. 2020). Half of the
    parameters meet the source, the others the target. Each rank sends 2 (R - 1) / R of the vector:
    gradients and weights. The gradients can be sent while backward runs.
    """
    computing = 6 * parameters * TOKENS / (rate * ranks)
    one_way = 4 * parameters * (ranks - 1) / ranks / (gbit * 1e9 / 8)
    return computing, one_way + max(0.0, one_way - BACKWARD * computing)


def estimate(rate: float) -> str:
    """A table: the speedup of R ranks, and the R from which half of the time is waiting."""
    counts = [2**n for n in range(9)]
    alone = ", ".join(f"{name} {seconds(p, 1, 1, rate)[0]:.0f} s" for name, p in MODELS.items())
    kinds = {f"a core, {rate / 1e9:.0f} GFlop/s": rate, "64 such cores": 64 * rate, "P100": P100}
    rows = [["a rank is", "Gbit/s", *map(str, counts), "ranks from which waiting is over half"]]
    for (kind, kind_rate), gbit in itertools.product(kinds.items(), BANDWIDTHS):
        both = {ranks: seconds(MODELS["base"], ranks, gbit, kind_rate) for ranks in counts}
        gains = [f"{sum(both[1]) / sum(both[ranks]):.1f}" for ranks in counts]
        late = (str(ranks) for ranks, (computing, waiting) in both.items() if waiting > computing)
        rows.append([kind, str(gbit), *gains, next(late, "more")])
    table = markdown_table(rows)
    return f"estimated speedup over one rank (a step of one core takes {alone}):\n{table}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.parallel")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["toy", "tiny", "base"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--paper", action="store_true", help="the estimate only")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(*options.worker)
    rate = 60e9
    if not options.paper:
        head = ["size", "forks ms", "ranks ms", "ratio", "MB a step", "waits ms", "late: waits ms"]
        rows = [comparison(name, options.ranks) for name in options.sizes]
        print(markdown_table([head, *rows]))
        size, measured = SIZES[options.sizes[-1]], float(rows[-1][2]) / 1000
        parameters = numformer_model(size).parameter_counts()["total"] - size.V * size.D
        rate = 6 * parameters * REAL_SHARE * size.B * size.T / measured / options.ranks
    print(estimate(rate))


if __name__ == "__main__":
    main()
