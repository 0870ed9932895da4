"""Adam for one number, and the gradient of a loss with label smoothing."""

import numpy as np

from lessons.kit import recorded
from lessons.kit.simulation import Entries, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Matrices, Of
from lessons.lesson_08.training import BETAS, Number
from numformer.backend import array_module
from numformer.optimization.optimizers import adam
from numformer.paper.cross_entropy import cross_entropy, cross_entropy_backward

WORDS = ["cat", "dog", "house", "sky"]
LOGITS = np.log([[5.0, 3, 1, 1]])  # probabilities 0.5, 0.3, 0.1, 0.1
LARGE = [1, 1, 1, 10, 1, 1, 1, 1, 1, 1]  # ten gradients


def loss_and_gradient(logits, smoothing) -> dict:
    """Loss, prediction, target and gradient of logits (1, 4); the first word is right."""
    xp = array_module(logits)
    if xp is recorded:
        smoothing = Number(smoothing._memory)
    targets, share = xp.asarray(np.array([0])), xp.ones(1)
    loss, exponentials, total = cross_entropy(logits, targets, share, smoothing)
    p = exponentials / total
    dlogits = cross_entropy_backward(share, exponentials, total, targets, smoothing)
    target = xp.asarray(np.eye(4)[:1]) * (1 - smoothing) + smoothing / 4
    return {"loss": loss, "p": p, "target": target, "dlogits": dlogits}


TYPED = [
    Option(LOGITS.round(2), "not yet sure", "The example of the text, rounded."),
    Option(np.array([[6.0, 0, 0, 0]]), "sure, and right", "What if you smooth now?"),
    Option(np.array([[0.0, 6, 0, 0]]), "sure, and wrong", "The longest gradient of the three."),
]
SMOOTHINGS = [n / 25 for n in range(13)]  # with four words, p* then has two decimals
smoothed = Simulation(
    name="smoothed",
    title="What the loss wants",
    say="The next word is *cat*. Type other logits, or smooth the answer more. Make the model sure "
    "and right: at what smoothing does the gradient of *cat* change its sign? And can you find "
    "logits that make the whole gradient 0?",
    caption="The prediction, the target, and the gradient, which is their difference.",
    alt="Three rows of four numbers: the prediction 0.5, 0.3, 0.1, 0.1, the target, 0.85 and "
    "three times 0.05, and their differences, negative for cat alone.",
    controls=[
        Entries("logits", "Begin with", TYPED, symbol="z", rows=["logits"], columns=WORDS),
        Slider("smoothing", "Label smoothing", SMOOTHINGS, start=SMOOTHINGS.index(0.2), live=True),
    ],
    compute=loss_and_gradient,
    views=[
        Matrices(
            [
                Of("p", "p", ["prediction"], WORDS, 1),
                Of("target", "p^*", ["target"], WORDS, 1),
                Of("dlogits", r"\mathrm{d}z", ["gradient"], WORDS, 1),
            ]
        ),
        Figures({"loss": "loss"}),
    ],
    code="""\
import numpy as np

from numformer import CrossEntropy

logits = 0
smoothing = 0
cross_entropy = CrossEntropy(smoothing)
loss = cross_entropy.forward(logits, np.array([0]))
dlogits = cross_entropy.backward()
print(loss, dlogits.round(3))""",
    size=(7.6, 3.2),
)


COLUMNS = ["g", "m", "√n", "m̂", "√n̂", "change"]
STEPS = [str(step) for step in range(1, 11)]


def ten_steps(gradients, beta2) -> dict:
    """Adam for one number, with the learning rate 1: ten gradients (2, 5), a row for each."""
    xp, gradients = array_module(gradients), gradients.reshape(10, 1)
    weight, mean, square = (xp.zeros(1) for _ in range(3))
    rows = []
    for step, gradient in enumerate(gradients, 1):
        before = weight.copy()
        settings = dict(rate=1.0, beta1=0.9, beta2=beta2, epsilon=1e-9)
        adam(weight, gradient, mean, square, step=step, **settings)
        corrected = mean / (1 - 0.9**step), np.sqrt(square / (1 - beta2**step))
        row = gradient, mean, np.sqrt(square), *corrected, before - weight
        rows.append(np.concatenate([column + 0 for column in row]))
    table = np.stack(rows)
    return {"steps": table, "change": table[:, 5] + 0, "gradient": table[:, 0] + 0}


def ten(numbers) -> np.ndarray:
    return np.array(numbers, float).reshape(2, 5)


AT = range(1, 11)
BEGUN = [
    Option(ten(LARGE), "one is large", "For how many steps do you still feel it?"),
    Option(ten([0.01] * 10), "all small", "The size of a gradient does not matter."),
    Option(ten([1, -1] * 5), "back and forth", "If the sign changes, the number hardly moves."),
    Option(ten([1] + [0] * 9), "only one", "One gradient moves the number for many steps."),
]
adam_of_one = Simulation(
    name="adam",
    title="Ten steps of Adam",
    say="One number, ten gradients, the learning rate 1. The fourth gradient is ten times as large "
    "as the others. Guess: is its step ten times as long? Then look at the steps after it. What "
    "will a smaller β₂ do to them? Type gradients of your own.",
    caption="Ten gradients, the two means, the corrected means, and what is subtracted.",
    alt="A line of ten changes. The first three are 1, the fourth is smaller than 1 although its "
    "gradient is ten times as large, and the later ones are smaller still.",
    controls=[
        Entries(
            "gradients",
            "Begin with",
            BEGUN,
            symbol="g",
            rows=["1–5", "6–10"],
            columns=STEPS[:5],
        ),
        Slider("beta2", "β₂", BETAS, start=BETAS.index(0.98), live=True),
    ],
    compute=ten_steps,
    views=[
        Matrices([Of("steps", r"\mathrm{Adam}", STEPS, COLUMNS, 10)], height=2.5),
        Chart(
            [Drawn("change", "what is subtracted from the number", at=AT)],
            Axis("step", 1, 10),
            Axis("change, for the learning rate 1", -1.5, 1.5),
        ),
    ],
    code="""\
import numpy as np

from lessons.lesson_08.by_hand import ten_steps

gradients = 0
beta2 = 0
steps = ten_steps(gradients, beta2)["steps"]
print(steps.round(3))""",
    size=(7.6, 6.4),
)
