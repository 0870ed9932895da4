"""The simulation of a recurrent cell that goes forward through three words, and back."""

import numpy as np

from lessons.kit.simulation import Entries, Option, Simulation, Slider
from lessons.kit.views import Block, Diagram, Matrices, Of
from numformer.recurrence.cells import rnn, rnn_backward

# The example of the lesson: what each word gives to the two units, and the recurrent weight.
words = ["not", "very", "good"]
units = ["u", "v"]
share = np.array([[-1, 0], [0.5, 0], [1, 0.5]])
weight = np.array([[0.5, 1], [-1, 0.5]])
at_the_end = np.array([[0, 0], [0, 0], [1.0, -1]])
everywhere = np.array([[0, 1], [1, 0], [1.0, -1]])

LEDGERS = {
    "forward": ["state before", "times W", "the word's a", "sum", "its tanh"],
    "backward": ["from the loss", "from the next", "sum", "times slope", "times Wᵀ"],
}
BLOCKS = [Block(f"after {word}", f"state after {word}", 1, t) for t, word in enumerate(words)]
BLOCKS += [Block(word, word, 0, t) for t, word in enumerate(words)]
EDGES = [(word, f"after {word}") for word in words]
EDGES += [("after not", "after very"), ("after very", "after good")]


def read(scale: float, doutput: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of LEDGERS for each word, forward and backward (3, 5, 2), and dweights (4, 2, 2).

    dweights is the weight's gradient so far: 0 at first, then its sum after each backward step.
    """
    w, states, forward = scale * weight, [np.zeros((1, 2))], []
    for a in share[:, None]:
        product = states[-1] @ w
        states.append(rnn(a, states[-1], w))
        forward.append(np.concatenate([states[-2], product, a, product + a, states[-1]]))
    backward, dweights, dstate = [], [np.zeros((2, 2))], np.zeros((1, 2))
    for t in (2, 1, 0):
        dnew = doutput[t : t + 1] + dstate
        da, before, dweight = rnn_backward(dnew, states[t], w, states[t + 1])
        backward.insert(0, np.concatenate([doutput[t : t + 1], dstate, dnew, da, before]))
        dweights.append(dweights[-1] + dweight)
        dstate = before
    return np.stack(forward), np.stack(backward), np.stack(dweights)


def at(place, arrays: np.ndarray) -> np.ndarray:
    """arrays[place], for a place that the reader sets."""
    here = 1.0 * (np.arange(len(arrays)) == place)
    return (here[:, None, None] * arrays).sum(axis=0)


def compute(moment, scale, loss) -> dict[str, np.ndarray]:
    """What is known at a moment: 0 to 2 read the words, 3 to 5 go back through them."""
    forward, backward, dweights = read(scale, loss)
    word, way = 2.5 - np.abs(2.5 - moment), np.sign(2.5 - moment)
    known = np.arange(3) * way <= word * way
    pairs = (forward[:, 4], backward[:, 2]), (forward[:, 2], backward[:, 3])
    rows = [np.where(way > 0, there, back) for there, back in pairs]
    lengths = [np.sqrt((row**2).sum(axis=-1)) * known for row in rows]
    return {
        "at": word,
        "way": way,
        "weight": scale * weight,
        "forward": at(word, forward),
        "backward": at(word, backward) * (way < 0),
        "dweight": at(np.maximum(0, moment - 2), dweights),
        "lengths": np.concatenate(lengths),
    }


MOMENTS = [f"read {word}" for word in words] + [f"back through {w}" for w in words[::-1]]
MOMENTS = [Option(n, name) for n, name in enumerate(MOMENTS)]
SCALES = [n / 10 for n in range(31)]

through_time = Simulation(
    name="through-time",
    title="Three words, there and back",
    say="Press **Play**, or move the slider: three steps forward, then three back. The number in a "
    "block is the length of its vector or, on the way back, of the gradient that arrived there.",
    caption="The first word has been read. The way back visits the same blocks in reverse order.",
    alt="A diagram of three states, one below the other, each with its word beside it. Tables show "
    "the numbers of a step: the state before, its product with W, the word's a, the sum, its tanh.",
    size=(7.6, 5.6),
    controls=[
        Slider("moment", "Moment", MOMENTS, plays=True, live=True),
        Slider("scale", "W times", SCALES, SCALES.index(1), live=True),
        Entries(
            "loss",
            "The loss looks at",
            [
                Option(at_the_end, "the end", "The gradient of *not* has come two steps back."),
                Option(
                    everywhere,
                    "every word",
                    "A state now adds up two gradients: one from the loss, and one that comes back "
                    "from the next step.",
                ),
            ],
            symbol=r"\mathrm{d}y",
            rows=words,
            columns=units,
        ),
    ],
    compute=compute,
    views=[
        Diagram(BLOCKS, EDGES, "at", "way", "lengths"),
        Matrices(
            [
                Of("forward", r"\text{forward}", LEDGERS["forward"], units, 1.5),
                Of("backward", r"\text{backward}", LEDGERS["backward"], units, 1.5),
                Of("weight", "W", units, units, 1.5),
                Of("dweight", r"\mathrm{d}W", units, units, 1.5),
            ],
            after=["backward"],
        ),
    ],
    code="""\
from lessons.lesson_01.through_time import compute, np

moment = 0
scale = 1
loss = 0  # the gradient that each state gets from the loss
found = compute(moment, scale, loss)
forward, backward, dweight = found["forward"], found["backward"], found["dweight"]
print(forward.round(2), backward.round(2), dweight.round(2), sep="\\n\\n")""",
)
