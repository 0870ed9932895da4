"""Scaling laws: how a loss falls with a model's parameters and with the symbols that it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

RESAMPLED = 500
"""How many times a bootstrap draws the runs anew."""
GRID, ROUNDS, STEEPEST = 25, 4, 2.5
"""Exponents that a fit tries for each of the two, how often it looks closer, the largest."""


@dataclass(frozen=True)
class Run:
    """A model of so many parameters, without embeddings, read so many symbols, to this loss."""

    parameters: float
    symbols: float
    loss: float

    @property
    def operations(self) -> float:
        """C = 6 N D, those of all products, forward and backward (Kaplan et al. 2020, 2.1)."""
        return 6 * self.parameters * self.symbols


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A N^-alpha + B D^-beta   (Hoffmann et al. 2022, equation 2).

    N is the number of parameters, D that of the symbols that are read, L the loss in nats.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, parameters, symbols):
        return self.E + self.A * parameters**-self.alpha + self.B * symbols**-self.beta

    @property
    def growth(self) -> float:
        """The a of N ~ C^a, the best size for a budget (Hoffmann et al. 2022, equation 4)."""
        return self.beta / (self.alpha + self.beta)


def fit(runs: Sequence[Run]) -> Law:
    """The law with the least squared error.

    For any two exponents the best E, A and B are those of a linear regression; so a grid of
    exponents is tried, and then a smaller one around the best of them.
    """
    parameters, symbols, losses = np.array([(r.parameters, r.symbols, r.loss) for r in runs]).T
    n, d = parameters.mean(), symbols.mean()
    centre, reach = np.log([0.3, 0.3]), np.log(15.0)
    for _ in range(ROUNDS):
        steps = np.exp(np.linspace(-reach, reach, GRID))
        alpha, beta = (np.minimum(np.exp(c) * steps, STEEPEST) for c in centre)
        alpha, beta = (exponent.ravel() for exponent in np.meshgrid(alpha, beta))
        powers = (parameters / n) ** -alpha[:, None], (symbols / d) ** -beta[:, None]
        terms = np.stack([np.ones_like(powers[0]), *powers], axis=-1)
        transposed = terms.transpose(0, 2, 1)
        moments = transposed @ terms + 1e-12 * np.eye(3)
        weights = np.linalg.solve(moments, (transposed @ losses)[..., None])
        errors = ((terms @ weights)[..., 0] - losses) ** 2
        # A loss has no part that is negative, or grows with what it is to fall with.
        errors = np.where(weights.min(axis=(1, 2)) < 0, np.inf, errors.sum(axis=-1))
        best = errors.argmin()
        centre, reach = np.log([alpha[best], beta[best]]), 3 * reach / GRID
    E, A, B = weights[best, :, 0]
    return Law(E, A * n ** alpha[best], alpha[best], B * d ** beta[best], beta[best])


def slope(by: str, runs: Sequence[Run]) -> float:
    """The p of the power loss ~ x^-p that lies nearest, with x what `by` names of a run."""
    return -np.polyfit(*np.log([(getattr(run, by), run.loss) for run in runs]).T, 1)[0]


@dataclass(frozen=True)
class Budget:
    """Of so many operations: sizes, the loss that each comes to, and the parabola through them."""

    operations: float
    parameters: np.ndarray
    losses: np.ndarray

    @property
    def parabola(self) -> np.ndarray:
        """Its coefficients, of the loss over the logarithm of the size."""
        return np.polyfit(np.log(self.parameters), self.losses, 2)

    @property
    def best(self) -> float | None:
        """The size at the bottom; None where that is not among the sizes that were tried."""
        a, b, _ = self.parabola
        place = np.exp(-b / (2 * a)) if a > 0 else 0
        return place if self.parameters.min() < place < self.parameters.max() else None


def budgets(runs: Sequence[Run], count: int = 15, least: int = 4) -> list[Budget]:
    """IsoFLOP curves (Hoffmann et al. 2022, approach 2): one budget, spent on several sizes.

    What a size comes to with D = C / 6 N symbols is read off the line between the two nearest
    amounts that it was trained with. Budgets are spread evenly over those that `least` sizes have.
    """
    of_size: dict[float, dict[float, list[float]]] = {}
    for run in runs:
        of_size.setdefault(run.parameters, {}).setdefault(run.symbols, []).append(run.loss)
    operations = [run.operations for run in runs]
    found = []
    for budget in np.geomspace(min(operations), max(operations), count):
        points = []
        for parameters, by_symbols in sorted(of_size.items()):
            symbols = budget / (6 * parameters)
            known = sorted(by_symbols)
            if known[0] * 0.999 <= symbols <= known[-1] * 1.001:
                means = [np.mean(by_symbols[amount]) for amount in known]
                points.append((parameters, np.interp(np.log(symbols), np.log(known), means)))
        if len(points) >= least:
            found.append(Budget(budget, *np.array(points).T))
    return found


def growth(found: Sequence[Budget]) -> float | None:
    """The a of N ~ C^a through the bottoms of the parabolas; None where there are no two."""
    bottoms = [(b.operations, b.best) for b in found if b.best]
    return np.polyfit(*np.log(bottoms).T, 1)[0] if len(bottoms) > 1 else None


def told(value: float, values: Sequence[float], form: str = ".3f") -> str:
    """A number and, in brackets, from where to where the middle 95 % of bootstrapped ones lie."""
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


@dataclass(frozen=True)
class Fitted:
    """What runs say: the law and the budgets' best sizes, and both of every bootstrap sample."""

    runs: tuple[Run, ...]
    law: Law
    budgets: list[Budget]
    laws: list[Law]
    growths: list[float]

    def number(self, name: str) -> str:
        """One of the law's numbers, and from where to where it may lie."""
        return told(getattr(self.law, name), [getattr(law, name) for law in self.laws])

    def loss(self, parameters: float, symbols: float) -> str:
        """What a run is to come to."""
        losses = [law.loss(parameters, symbols) for law in self.laws]
        return told(self.law.loss(parameters, symbols), losses)


@cache
def fitted(runs: tuple[Run, ...]) -> Fitted:
    """Fit the runs, and RESAMPLED times as many drawn from them: a bootstrap (Efron 1979)."""
    draws = np.random.default_rng(0).integers(len(runs), size=(RESAMPLED, len(runs)))
    samples = [[runs[i] for i in draw] for draw in draws]
    growths = [a for sample in samples if (a := growth(budgets(sample))) is not None]
    return Fitted(runs, fit(runs), budgets(runs), [fit(sample) for sample in samples], growths)
