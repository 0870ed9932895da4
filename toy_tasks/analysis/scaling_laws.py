"""Scaling laws: how a loss falls with a model's parameters and with the symbols that it reads."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np

from numformer.errors import InputError

RESAMPLED = 200
"""How many times a bootstrap draws the runs anew."""
GRID, ROUNDS, LARGEST = 11, 6, np.log(2.5)
"""Values that a fit tries of each exponent, how often it looks closer, their largest logarithm."""
FORMS = {"added": False, "joined": True}
"""The two forms of a law that are fitted, and whether size and text are joined in one power."""


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
    """L(N, D) = E + (A N^-alpha + B D^-beta)^gamma.

    N is the number of parameters, D that of the symbols that are read, L the loss in nats. With
    gamma = 1 it is equation 2 of Hoffmann et al. 2022, where size and text each take their own part
    off the loss. With E = 0, and beta = 1, it is equation 1.5 of Kaplan et al. 2020, where what is
    scarcer decides.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float
    gamma: float = 1.0

    def loss(self, parameters, symbols):
        scarce = self.A * parameters**-self.alpha + self.B * symbols**-self.beta
        return self.E + scarce**self.gamma

    @property
    def growth(self) -> float:
        """The a of N ~ C^a, the best size for a budget (Hoffmann et al. 2022, equation 4)."""
        return self.beta / (self.alpha + self.beta)

    @property
    def by_size(self) -> float:
        """How the loss falls with size where there is text without end, but for E."""
        return self.alpha * self.gamma

    @property
    def by_text(self) -> float:
        """How the loss falls with text where the model is large without end, but for E."""
        return self.beta * self.gamma


def fit(runs: Sequence[Run], joined: bool) -> Law:
    """The law with the least squared error: `joined` without E, otherwise with gamma = 1.

    For any exponents the best E, A and B are those of a linear regression, of L^(1 / gamma) with
    the weights that make its errors those of L. So a grid of exponents is tried, and then smaller
    ones around the best of them. With gamma = 1 the weights are exact; of a joined law they are so
    for small errors only, so its squared error is nearly the least: for the runs of scaling.md it
    is 0.2 to 0.5 % above that. Raises InputError where every law that is tried has a negative part.
    """
    parameters, symbols, losses = np.array([(r.parameters, r.symbols, r.loss) for r in runs]).T
    n, d = float(parameters.mean()), float(symbols.mean())
    centre, reach = np.log([0.3, 0.3, 0.3 if joined else 1.0]), np.log(12.0)
    for _ in range(ROUNDS):
        steps = np.linspace(-reach, reach, GRID)
        grid = np.meshgrid(*(centre[:2, None] + steps), centre[2] + steps * joined)
        tried = np.unique(np.minimum(np.stack([x.ravel() for x in grid], -1), LARGEST), axis=0)
        alpha, beta, gamma = np.exp(tried).T[:, :, None]
        powers = [(parameters / n) ** -alpha, (symbols / d) ** -beta]
        terms = np.stack(powers if joined else [np.ones_like(powers[0]), *powers], axis=-1)
        wanted = losses ** (1 / gamma)
        weights = gamma * losses / wanted  # dL / d L^(1 / gamma)
        weighed = terms * weights[..., None]
        moments = weighed.transpose(0, 2, 1) @ weighed + 1e-12 * np.eye(terms.shape[-1])
        found = np.linalg.solve(moments, weighed.transpose(0, 2, 1) @ (weights * wanted)[..., None])
        # A loss has no part that is negative, or grows with what it is to fall with.
        possible = found.min(axis=(1, 2)) >= 0
        if not possible.any():
            raise InputError(
                "losses must fall with size and with text for a law to fit them",
                f"{len(runs)} runs for which every law that was tried has a negative part",
                "Give a longer text, or train for more steps.",
            )
        scarce = np.where(possible[:, None], (terms @ found)[..., 0], np.inf)
        best = (((scarce**gamma - losses) ** 2).sum(axis=-1)).argmin()
        centre, reach = tried[best], 2.5 * reach / GRID
    alpha, beta, gamma = np.exp(centre).tolist()
    *floor, a, b = found[best, :, 0].tolist()
    return Law(*(floor or [0.0]), a * n**alpha, alpha, b * d**beta, beta, gamma)


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
    """A number and, in brackets, from where to where the middle 95 % of bootstrapped ones lie.

    It says how many those are where not every sample has one.
    """
    low, high = np.percentile(values if len(values) else np.nan, [2.5, 97.5])
    some = f", {len(values)} of {RESAMPLED} samples" * (len(values) < RESAMPLED)
    return f"{value:{form}} ({low:{form}} to {high:{form}}{some})"


@dataclass(frozen=True)
class Form:
    """A law of one form: of the runs, and of every bootstrap sample of them that it fits.

    `missed` is how far from the loss of the largest model the law of all the smaller ones lies.
    """

    law: Law
    laws: list[Law]
    missed: float

    def number(self, name: str) -> str:
        """One of the law's numbers, and from where to where it may lie."""
        return told(getattr(self.law, name), [getattr(law, name) for law in self.laws])

    def loss(self, parameters: float, symbols: float) -> str:
        """What the law says, and from where to where that may lie; a seed moves a run further."""
        losses = [law.loss(parameters, symbols) for law in self.laws]
        return told(self.law.loss(parameters, symbols), losses)


@dataclass(frozen=True)
class Fitted:
    """What runs say: a law of each form that fits them, and the best sizes for budgets."""

    runs: tuple[Run, ...]
    forms: dict[str, Form]
    budgets: list[Budget]
    growths: list[float]

    @property
    def chosen(self) -> str:
        """The form that comes nearest to the largest model when it knows only smaller ones."""
        return min(self.forms, key=lambda name: abs(self.forms[name].missed))

    @property
    def law(self) -> Law:
        return self.forms[self.chosen].law


@cache
def fitted(runs: tuple[Run, ...]) -> Fitted:
    """Fit the runs, and RESAMPLED times as many drawn from them: a bootstrap (Efron 1979).

    Raises InputError where no form of a law fits.
    """
    draws = np.random.default_rng(0).integers(len(runs), size=(RESAMPLED, len(runs)))
    samples = [[runs[i] for i in draw] for draw in draws]
    growths = [a for sample in samples if (a := growth(budgets(sample))) is not None]
    size, symbols = max((run.parameters, run.symbols) for run in runs)
    largest = [r.loss for r in runs if (r.parameters, r.symbols) == (size, symbols)]
    smaller = [run for run in runs if run.parameters < size]
    forms, problem = {}, None
    for name, joined in FORMS.items():
        try:
            law, of_smaller = fit(runs, joined), fit(smaller, joined)
        except InputError as error:
            problem = error
            continue
        of_samples = []
        for sample in samples:
            with suppress(InputError):
                of_samples.append(fit(sample, joined))
        missed = float(of_smaller.loss(size, symbols) - np.mean(largest))
        forms[name] = Form(law, of_samples, missed)
    if problem and not forms:
        raise problem
    return Fitted(runs, forms, budgets(runs), growths)
