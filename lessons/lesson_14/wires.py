"""What sharing a step of training costs: seconds of arithmetic against seconds on the wire."""

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.facts import fact
from lessons.kit.models import measured
from numformer import Adam, PairBatch, Transformer, pack

PARAMETERS = fact("parameters")
TOKENS, RATE = fact("tokens of a batch"), fact("operations a second")
GIGABIT = 1e9 / 8  # bytes a second
NUMBER = 4  # bytes


def computing(parameters: float, tokens: float) -> float:
    """Seconds that a machine computes, forward and backward."""
    return 6 * parameters * tokens / RATE


def sending(parameters: float, machines: int, bandwidth: float) -> float:
    """Seconds that a ring of machines takes to sum a gradient; `bandwidth` is in bytes a second."""
    return 2 * (machines - 1) / machines * NUMBER * parameters / bandwidth


def speed(parameters: float, machines: int, bandwidth: float, hidden: bool = False) -> float:
    """The speed of `machines` in a step of TOKENS, in multiples of the speed of one machine.

    While a machine computes, nothing is sent; if `hidden`, as much as fits is sent during backward.
    """
    compute = computing(parameters, TOKENS / machines)
    send = sending(parameters, machines, bandwidth)
    if hidden:
        send = max(send - 2 / 3 * compute, 0)
    return computing(parameters, TOKENS) / (compute + send)


def fed(bandwidth: float) -> float:
    """K, the limit of the speed: with K + 1 machines, sending takes as long as computing."""
    return 6 * TOKENS * bandwidth / (2 * NUMBER * RATE)


BATCHES = 2, 8, 32, 128, 512
DIGITS, LENGTH, GOAL, RATES = 10, 6, 0.3, (0.003, 0.006)


def steps_to_learn() -> list[int]:
    """The stored numbers of steps until a small model reverses digits, for each of BATCHES."""
    return measured(14)["steps"]


def train(size: int) -> int:
    """The steps that a small model takes to learn from batches of this size, at the better rate."""
    with threadpool_limits(1, "blas"):
        return min(_steps(size, rate) for rate in RATES)


def _steps(size: int, rate: float) -> int:
    """Steps until the loss, averaged over ten of them, falls below GOAL."""
    rng, losses = np.random.default_rng(14), []
    sizes = dict(d_model=32, d_ff=64, heads=2, layers=1, p_drop=0.0)
    model = Transformer(Transformer.Config.base(vocabulary=DIGITS + 4, **sizes), seed=14)
    objective = model.objective()
    optimizer = Adam(pack(objective))
    while len(losses) < 10 or np.mean(losses[-10:]) > GOAL:
        sources = rng.integers(4, DIGITS + 4, (size, LENGTH)).tolist()
        objective.zero_grad()
        inputs = PairBatch.of([(source, source[::-1]) for source in sources]).inputs
        losses.append(float(objective.forward(*inputs)))
        objective.backward()
        optimizer.step(rate)
    return len(losses)
