"""A simulation of lesson 6: LayerNorm of one row, there and back."""

import numpy as np

from lessons.lesson_06.block import features
from lessons.simulation import Entries, Option, Simulation, Slider
from lessons.views import Axis, Chart, Drawn, Figures, Matrices, Of
from numformer.layers.layer_norm import layer_norm, layer_norm_backward

cat = np.array([4.0, -2, 0, 2, 1])  # the row of *cat* where the first norm gets it
UPSTREAM = [
    Option(np.array([[2.0, -1, 0, 3, 1]]), "as given"),
    Option(np.array([[1.0, 1, 1, 1, 1]]), "all the same", "The loss is the sum of the result. It "
           "is always 0: the whole gradient lies along 1, and nothing is left."),
    Option(np.array([[3.0, -3, -1, 1, 0]]), "like x̂", "Set *sound* to 2: this is $2\\hat x$, and "
           "nothing is left. Then move *sound*."),
    Option(np.array([[0.0, 0, 0, 1, 0]]), "only sound", "One entry of the result counts. Which "
           "entries of $x$ get a gradient?"),
]  # fmt: skip


def compute(sound: float, scale: float, shift: float, dy: np.ndarray) -> dict[str, np.ndarray]:
    """The library's forward and backward with gamma 1, beta 0 and no epsilon, and their parts."""
    row = cat.copy()
    row[features.index("sound")] = sound
    x = scale * row[None] + shift
    gamma = np.ones(5)
    _, hat, rstd = layer_norm(x, gamma, np.zeros(5), 0.0)
    dx, _, _ = layer_norm_backward(dy, hat, rstd, gamma)
    along_1 = np.full_like(x, dy.mean())
    along_hat = hat * (dy * hat).mean()
    places = np.arange(1, 6)
    return {
        "forward": np.concatenate([x, x - x.mean(), hat]),
        "backward": np.concatenate([dy, along_1, along_hat, dy - along_1 - along_hat, dx]),
        "hat": hat[0],
        "dx": dx[0],
        "x_points": np.stack([places, x[0]], axis=-1),
        "hat_points": np.stack([places, hat[0]], axis=-1),
        "mean": x.mean(),
        "deviation": 1 / rstd[0, 0],
        "total": dx.sum(),
        "product": (dx * hat).sum(),
    }


row = Simulation(
    name="row",
    title="One row through LayerNorm",
    say="First the way there: scale the row and shift it. Which numbers move, and which do not? "
    r"Then the way back: which upstream gradient makes $\mathrm{d}x$ exactly 0? There are two "
    "kinds; find both, or let the presets tell.",
    caption="The row of *cat* with its gradient. Above its entries before and after, below what "
    "backward takes away.",
    alt="Points of the five entries of a row, before LayerNorm between minus 2 and 4 and after it "
    "between minus 1.5 and 1.5. Then the row, the row less its mean and the row normalised, and "
    "the gradient with the two parts that are taken from it.",
    size=(7.6, 6.0),
    controls=[
        Slider("sound", "Entry sound", [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0], start=5),
        Slider("scale", "Times", [0.5, 1.0, 2.0], start=1),
        Slider("shift", "Plus", [-2.0, -1.0, 0.0, 1.0, 2.0], start=2),
        Entries("dy", "Upstream gradient", r"\mathrm{d}\hat x", ["cat"], features, UPSTREAM),
    ],
    compute=compute,
    views=[
        Chart(
            [Drawn("x_points", "x", "dots"),
             Drawn("hat_points", "x̂, after the norm", "dots", names=features)],
            Axis("entry of the row of cat", 0.5, 6.0), Axis("value of the entry", -8, 12),
        ),
        Matrices([
            Of("forward", "x", ["x", "x − mean", "x̂"], features, 4.0, "forward"),
            Of("backward", r"\mathrm{d}x",
               ["dx̂", "along 1", "along x̂", "what is left", "dx = left / deviation"],
               features, 4.0, "backward: the second and third line are taken away"),
        ]),
        Figures({"mean": "mean of x", "deviation": "standard deviation of x", "total": "sum of dx",
                 "product": "dx · x̂"}),
    ],
    code="""\
import numpy as np
from numformer.layers.layer_norm import layer_norm, layer_norm_backward

sound = 2.0
scale = 1.0
shift = 0.0
dy = 0
x = scale * np.array([[4, -2, 0, sound, 1]]) + shift
gamma, beta = np.ones(5), np.zeros(5)
y, x_hat, rstd = layer_norm(x, gamma, beta, 0.0)
dx = layer_norm_backward(dy, x_hat, rstd, gamma)[0][0]
hat = x_hat[0]
print(hat.round(3), dx.round(3))""",
)  # fmt: skip
