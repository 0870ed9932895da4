"""Scaling laws: how the loss of a model falls with its parameters and with its training text."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np

from numformer.errors import InputError

SAMPLES = 200
"""The number of bootstrap samples of the runs."""
GRID, ROUNDS, LARGEST = 11, 6, np.log(2.5)
"""A fit tries GRID values of each exponent on ROUNDS ever finer grids, up to exp(LARGEST)."""
FORMS = {"added": False, "joined": True}
"""The forms of a law, and whether size and text are joined in one power."""


@dataclass(frozen=True)
class Run:
    """A run: the numbers of parameters (without embeddings) and of symbols read, and the loss."""

    parameters: float
    symbols: float
    loss: float

    @property
    def operations(self) -> float:
        """C = 6 N D, in all matrix products, forward and backward (Kaplan et al. 2020, 2.1)."""
        return 6 * self.parameters * self.symbols


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + (A N^-alpha + B D^-beta)^gamma.

    N is the number of parameters, D the number of symbols read, L the loss in nats. With gamma = 1
    this is equation 2 of Hoffmann et al. 2022: size and text lower the loss independently. With
    E = 0 and beta = 1 it is equation 1.5 of Kaplan et al. 2020: the scarcer of the two decides.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float
    gamma: float = 1.0

    def loss(self, parameters, symbols):
        terms = self.A * parameters**-self.alpha + self.B * symbols**-self.beta
        return self.E + terms**self.gamma

    @property
    def growth(self) -> float:
        """The a of N ~ C^a, the best size for budget C (Hoffmann et al. 2022, equation 4)."""
        return self.beta / (self.alpha + self.beta)

    @property
    def by_size(self) -> float:
        """The exponent p of L - E ~ N^-p with unlimited text."""
        return self.alpha * self.gamma

    @property
    def by_text(self) -> float:
        """The exponent q of L - E ~ D^-q with an unlimited model."""
        return self.beta * self.gamma


def fit(runs: Sequence[Run], joined: bool) -> Law:
    """The law with the least squared error, with E = 0 if it is `joined`, otherwise with gamma = 1.

    The function tries a grid of exponents, then finer grids around the best ones. For each choice
    of exponents, a linear regression of L^(1 / gamma) finds the best E, A and B; its weights turn
    errors of L^(1 / gamma) into errors of L. With gamma = 1 the weights are exact. For a joined law
    they are exact only for small errors, so the law's squared error exceeds the minimum: by 0.2 to
    0.5 % for the runs of scaling.md. Raises InputError if every law has a negative term.
    """
    parameters, symbols, losses = np.array([(r.parameters, r.symbols, r.loss) for r in runs]).T
    n, d = float(parameters.mean()), float(symbols.mean())
    centre, reach = np.log([0.3, 0.3, 0.3 if joined else 1.0]), np.log(12.0)
    for _ in range(ROUNDS):
        steps = np.linspace(-reach, reach, GRID)
        grid = np.meshgrid(*(centre[:2, None] + steps), centre[2] + (steps if joined else [0.0]))
        exponents = np.minimum(np.stack([x.ravel() for x in grid], axis=-1), LARGEST)
        alpha, beta, gamma = np.exp(exponents).T[:, :, None]
        powers = [(parameters / n) ** -alpha, (symbols / d) ** -beta]
        terms = np.stack(powers if joined else [np.ones_like(powers[0]), *powers], axis=-1)
        targets = losses ** (1 / gamma)
        weights = gamma * losses / targets  # dL / d L^(1 / gamma)
        weighted = terms * weights[..., None]
        moments = weighted.transpose(0, 2, 1) @ weighted + 1e-12 * np.eye(terms.shape[-1])
        solution = np.linalg.solve(
            moments, weighted.transpose(0, 2, 1) @ (weights * targets)[..., None]
        )
        # A negative factor would mean a negative loss, or one that grows with size or text.
        possible = solution.min(axis=(1, 2)) >= 0
        if not possible.any():
            raise InputError(
                "losses fall as the model grows, and as the text grows",
                f"{len(runs)} runs for which every law has a negative term",
                "Give a longer text, or train for more steps.",
            )
        sums = np.where(possible[:, None], (terms @ solution)[..., 0], np.inf)
        best = (((sums**gamma - losses) ** 2).sum(axis=-1)).argmin()
        centre, reach = exponents[best], 2.5 * reach / GRID
    alpha, beta, gamma = np.exp(centre).tolist()
    *floor, a, b = solution[best, :, 0].tolist()
    return Law(*(floor or [0.0]), a * n**alpha, alpha, b * d**beta, beta, gamma)


@dataclass(frozen=True)
class Budget:
    """The sizes of models with the same number of operations, and the loss of each."""

    operations: float
    parameters: np.ndarray
    losses: np.ndarray

    @property
    def parabola(self) -> np.ndarray:
        """The coefficients of a parabola: the loss as a function of the logarithm of the size."""
        return np.polyfit(np.log(self.parameters), self.losses, 2)

    @property
    def best(self) -> float | None:
        """The size at the minimum of the parabola; None if it is outside the range of sizes."""
        a, b, _ = self.parabola
        size = np.exp(-b / (2 * a)) if a > 0 else 0
        return size if self.parameters.min() < size < self.parameters.max() else None


def budgets(runs: Sequence[Run], count: int = 15, least: int = 4) -> list[Budget]:
    """IsoFLOP curves (Hoffmann et al. 2022, approach 2): the loss of several sizes for each budget.

    The loss of a size with D = C / (6 N) symbols is interpolated between the two nearest amounts of
    text that it was trained with. Budgets that fewer than `least` sizes cover are left out.
    """
    losses: dict[float, dict[float, list[float]]] = {}
    for run in runs:
        losses.setdefault(run.parameters, {}).setdefault(run.symbols, []).append(run.loss)
    operations = [run.operations for run in runs]
    budgets = []
    for budget in np.geomspace(min(operations), max(operations), count):
        points = []
        for parameters, by_symbols in sorted(losses.items()):
            symbols = budget / (6 * parameters)
            known = sorted(by_symbols)
            if known[0] * 0.999 <= symbols <= known[-1] * 1.001:
                means = [np.mean(by_symbols[amount]) for amount in known]
                points.append((parameters, np.interp(np.log(symbols), np.log(known), means)))
        if len(points) >= least:
            budgets.append(Budget(budget, *np.array(points).T))
    return budgets


def growth(budgets: Sequence[Budget]) -> float | None:
    """The a of N ~ C^a, fitted to the budgets' best sizes; None if there are fewer than two."""
    best = [(budget.operations, budget.best) for budget in budgets if budget.best]
    return np.polyfit(*np.log(best).T, 1)[0] if len(best) > 1 else None


def with_interval(value: float, values: Sequence[float], form: str = ".3f") -> str:
    """A number, and in brackets the middle 95 % of its values in bootstrap samples.

    If some samples have no value, the text adds how many have one.
    """
    low, high = np.percentile(values if len(values) else np.nan, [2.5, 97.5])
    note = f", {len(values)} of {SAMPLES} samples" * (len(values) < SAMPLES)
    return f"{value:{form}} ({low:{form}} to {high:{form}}{note})"


@dataclass(frozen=True)
class Form:
    """A law of one form, fitted to the runs, and to every bootstrap sample of them.

    `error` is the largest model's loss as a law of all smaller models predicts it, minus its true
    loss.
    """

    law: Law
    laws: list[Law]
    error: float

    def number(self, name: str) -> str:
        """A coefficient or property of the law by name, as text with its interval."""
        return with_interval(getattr(self.law, name), [getattr(law, name) for law in self.laws])

    def loss(self, parameters: float, symbols: float) -> str:
        """The predicted loss, with the law's interval; single runs vary more, by their seed."""
        losses = [law.loss(parameters, symbols) for law in self.laws]
        return with_interval(self.law.loss(parameters, symbols), losses)


@dataclass(frozen=True)
class Fit:
    """The results of a fit: a law of each form that fits, and the budgets."""

    runs: tuple[Run, ...]
    forms: dict[str, Form]
    budgets: list[Budget]
    growths: list[float]

    @property
    def chosen(self) -> str:
        """The form that best predicts the largest model's loss from the smaller models."""
        return min(self.forms, key=lambda name: abs(self.forms[name].error))

    @property
    def law(self) -> Law:
        return self.forms[self.chosen].law


@cache
def fit_all(runs: tuple[Run, ...]) -> Fit:
    """Fit laws to the runs and to SAMPLES bootstrap samples of them (Efron 1979).

    Raises InputError if no form of a law fits.
    """
    draws = np.random.default_rng(0).integers(len(runs), size=(SAMPLES, len(runs)))
    samples = [[runs[i] for i in draw] for draw in draws]
    growths = [a for sample in samples if (a := growth(budgets(sample))) is not None]
    size, symbols = max((run.parameters, run.symbols) for run in runs)
    largest = [r.loss for r in runs if (r.parameters, r.symbols) == (size, symbols)]
    smaller = [run for run in runs if run.parameters < size]
    forms, problem = {}, None
    for name, joined in FORMS.items():
        try:
            law, smaller_law = fit(runs, joined), fit(smaller, joined)
        except InputError as caught:
            problem = caught
            continue
        sample_laws = []
        for sample in samples:
            with suppress(InputError):
                sample_laws.append(fit(sample, joined))
        error = float(smaller_law.loss(size, symbols) - np.mean(largest))
        forms[name] = Form(law, sample_laws, error)
    if problem and not forms:
        raise problem
    return Fit(runs, forms, budgets(runs), growths)
