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
    """Seconds that a ring of machines sums a gradient; `bandwidth` in bytes a second."""
    return 2 * (machines - 1) / machines * NUMBER * parameters / bandwidth


def speed(parameters: float, machines: int, bandwidth: float, hidden: bool = False) -> float:
    """How many times as fast as one machine they make a step of TOKENS.

    Nothing is sent while a machine computes, or all that fits behind backward if `hidden`.
    """
    compute = computing(parameters, TOKENS / machines)
    send = sending(parameters, machines, bandwidth)
    if hidden:
        send = max(send - 2 / 3 * compute, 0)
    return computing(parameters, TOKENS) / (compute + send)


def fed(bandwidth: float) -> float:
    """The machines that a wire feeds: with one more, sending takes as long as computing."""
    return 6 * TOKENS * bandwidth / (2 * NUMBER * RATE)


BATCHES = 2, 8, 32, 128, 512
DIGITS, LENGTH, GOAL, RATES = 10, 6, 0.3, (0.003, 0.006)


def steps_to_learn() -> list[int]:
    """The stored steps for each of BATCHES until a small model reverses digits."""
    return measured(14)["steps"]


def train(size: int) -> int:
    """The steps that a small model takes with batches of this size, at the better rate."""
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
