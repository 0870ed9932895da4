"""A small Transformer that trains in the page; `train` does the same in a program."""

import functools

import numpy as np

from lessons.kit import recorded
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures
from numformer import Adam, Transformer, pack
from numformer.backend import array_module
from numformer.data.vocabulary import SPECIAL, START
from numformer.layer import FlatParameters
from numformer.models import Objective
from numformer.optimization.optimizers import adam
from numformer.paper.softmax import softmax

SYMBOLS, LENGTH, PAIRS, STEPS, LAYERS = 4, 3, 8, 120, 2
STEP = range(1, STEPS + 1)
RATES = [0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04]
RATES += [0.045, 0.05, 0.055, 0.06]
WARMUPS = [1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40, 50, 60, 80, 100, 120]
SMOOTHINGS = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]
BETAS = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999]
RECIPE = {"fall": 0.5, "warmup": 30, "rate": 0.04, "beta2": 0.98, "smoothing": 0.1}


def pairs() -> tuple[np.ndarray, ...]:
    """Symbols, to be written backwards: source, ids that are read, ids to be said."""
    rng = np.random.default_rng(5)
    source = len(SPECIAL) + rng.integers(SYMBOLS, size=(PAIRS, LENGTH))
    target = source[:, ::-1].copy()
    read = np.concatenate([np.full((PAIRS, 1), START), target[:, :-1]], axis=1)
    return source, read, target


def objective() -> Objective:
    """The model as it begins, with the loss: two layers on each side, eight numbers wide."""
    config = Transformer.Config.base(
        len(SPECIAL) + SYMBOLS, d_model=8, d_ff=16, heads=2, layers=LAYERS, p_drop=0.0
    )
    return Transformer(config, seed=1).objective()


@functools.cache
def of_module(xp) -> Objective:
    """One objective for each library of arrays."""
    return objective()


class Number(recorded.ndarray):
    """A recorded number that is true even where the reader sets it to 0.

    At a label smoothing of 0 the library skips a line; a recording must have it for every number.
    """

    def __bool__(self):
        return True


def rate_at(step, fall, warmup, rate):
    """The learning rate of a step, at most `rate`; with a fall of 0.5 that of `warmup_rate`.

    `warmup_rate` itself cannot be recorded: Python's `min` in it has to compare numbers.
    """
    return rate * np.minimum(step / warmup, 1) * (np.maximum(step, warmup) / warmup) ** -fall


def step_of_training(step, weights, mean, square, beta2, smoothing, **schedule):
    """One step with the library's lines, on the vectors weights, mean and square, in place."""
    xp = array_module(weights)
    whole, grad = of_module(xp), xp.zeros_like(weights)
    FlatParameters(weights, grad, [*whole.named_parameters().values()])
    whole.loss.smoothing = Number(smoothing._memory) if xp is recorded else smoothing
    logits, targets = whole.model.predictions(*pairs())
    loss = whole.loss.forward(logits, targets)
    whole.model.backward(whole.loss.backward())
    rate = rate_at(step, **schedule)
    adam(weights, grad, mean, square, step=step, rate=rate, beta1=0.9, beta2=beta2, epsilon=1e-9)
    right = softmax(logits)[xp.arange(len(targets)), xp.asarray(targets)].mean()
    # The loss of a model whose prediction equals the target.
    symbols = logits.shape[-1]
    other = smoothing / symbols
    target = 1 - smoothing + other
    lowest = -target * np.log(target) - (symbols - 1) * other * np.log(np.maximum(other, 1e-300))
    return {"loss": loss, "rates": rate + 0, "right": right, "lowest": lowest}


def train(beta2, smoothing, **schedule) -> np.ndarray:
    """The same training, as a program does it -> the loss of each step (STEPS,)."""
    whole, losses = objective(), []
    whole.loss.smoothing = smoothing
    optimizer = Adam(pack(whole, np.float64), beta2=beta2)
    for step in STEP:
        whole.zero_grad()
        losses.append(float(whole.forward(*pairs())))
        whole.backward()
        optimizer.step(rate_at(step, **schedule))
    return np.array(losses)


@functools.cache
def usual() -> np.ndarray:
    """The losses that the page shows at the start (STEPS,)."""
    return train(**RECIPE)


def begin() -> dict[str, np.ndarray]:
    """The weights before the first step, and Adam's two means, which are 0."""
    weights = pack(objective(), np.float64).data
    return {"weights": weights, "mean": 0 * weights, "square": 0 * weights}


def slider(name: str, label: str, options: list, words: str = "{:g}") -> Slider:
    """A slider that begins at the value of the recipe."""
    choices = [Option(value, words.format(value, "s" * (value != 1))) for value in options]
    return Slider(name, label, choices, options.index(RECIPE[name]), live=True)


FALLS = [
    Option(0.5, "falls"),
    Option(0.0, "stays"),
]
training = Simulation(
    name="training",
    title="Train it yourself",
    say=f"A Transformer learns to write {LENGTH} symbols backwards, here in your browser: each "
    "change trains it anew. What will the loss do with a warm-up of 1 step? And what if the rate "
    "then stays at its highest?",
    caption="The loss falls while the learning rate rises, jumps when the rate is highest, and "
    "settles at its lowest value as the rate falls.",
    alt="Two charts against the step. The loss falls from 2.3 to about 0.5 in 80 steps and stays "
    "there. The learning rate rises in a straight line for 30 steps and falls slowly afterwards.",
    controls=[
        slider("warmup", "Warm-up", WARMUPS, "{:g} step{}"),
        slider("rate", "Highest rate", RATES),
        Choice("fall", "Then the rate", FALLS, live=True),
        slider("beta2", "β₂ of Adam", BETAS),
        slider("smoothing", "Label smoothing", SMOOTHINGS),
    ],
    compute=lambda **values: step_of_training(**values) | {"usual": usual()},
    repeats=STEPS,
    collected=["loss", "rates"],
    begin=begin(),
    views=[
        Chart(
            [
                Drawn("usual", "loss with the first settings", at=STEP, colour=2),
                Drawn("loss", "loss", at=STEP, colour=0),
            ],
            Axis("step", 0, STEPS),
            Axis("loss", 0, 3),
        ),
        Chart(
            [Drawn("rates", "the learning rate η of each step", at=STEP, colour=1)],
            Axis("step", 0, STEPS),
            Axis("η", 0, 0.06),
        ),
        Figures(
            {
                "right": "mean probability of the right symbol",
                "lowest": "lowest possible loss",
            }
        ),
    ],
    code="""\
from lessons.lesson_08.training import train

warmup = 0
rate = 0
fall = 0
beta2 = 0
smoothing = 0
loss = train(beta2, smoothing, warmup=warmup, rate=rate, fall=fall)
print(loss.round(3))""",
)
