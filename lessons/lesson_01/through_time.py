"""The simulation of a recurrent cell that goes over three words, there and back."""

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Block, Diagram, Matrices, Of
from numformer.layers.cells import rnn, rnn_backward

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
    """The ledgers (3, 5, 2) of all words, forward and backward, and the weight's gradient so far.

    The latter (4, 2, 2) begins with 0, and goes on with what it is after each backward step.
    """
    w, state = scale * weight, np.zeros((1, 2))
    forward, backward, dweights = [], [], [np.zeros((2, 2))]
    states = [state]
    for a in share[:, None]:
        state = rnn(a, state, w)
        forward.append([states[-1], states[-1] @ w, a, states[-1] @ w + a, state])
        states.append(state)
    dstate = np.zeros((1, 2))
    for t in (2, 1, 0):
        dnew = doutput[t : t + 1] + dstate
        da, before, dweight = rnn_backward(dnew, states[t], w, states[t + 1])
        backward.insert(0, [doutput[t : t + 1], dstate, dnew, da, before])
        dweights.append(dweights[-1] + dweight)
        dstate = before
    ledgers = (np.array(each)[:, :, 0] for each in (forward, backward))
    return *ledgers, np.array(dweights)


def compute(moment, scale, loss) -> dict[str, np.ndarray]:
    """What is known at a moment: 0 to 2 read the words, 3 to 5 go back through them."""
    forward, backward, dweights = read(scale, loss)
    word, way = (moment, 1) if moment < 3 else (5 - moment, -1)
    ledger, rows = (forward, (4, 2)) if way > 0 else (backward, (2, 3))
    known = np.arange(3) * way <= word * way
    lengths = [np.linalg.norm(ledger[:, row], axis=-1) * known for row in rows]
    return {
        "at": np.array(word),
        "way": np.array(way),
        "weight": scale * weight,
        "forward": forward[word],
        "backward": backward[word] * (way < 0),
        "dweight": dweights[max(0, moment - 2)],
        "lengths": np.ravel(lengths),
    }


through_time = Simulation(
    name="through-time",
    title="Three words, there and back",
    say="Press **Play**, or move the slider: three steps forward, then three back. The number in a "
    "block is the length of what it holds or, on the way back, of the gradient that arrived there.",
    caption="The first word has been read. On the way back the same blocks are met in reverse.",
    alt="A diagram of three states below each other, each with its word beside it, and tables of "
    "the numbers of a step: the state before, its product with W, the word's share, sum and tanh.",
    size=(7.6, 5.6),
    controls=[
        Slider(
            "moment",
            "Moment",
            [
                Option(n, name)
                for n, name in enumerate(
                    [f"read {word}" for word in words] + [f"back through {w}" for w in words[::-1]]
                )
            ],
            plays=True,
        ),
        Slider(
            "scale",
            "W times",
            [
                Option(
                    0.5, "", "Less comes back than went in: the gradient of *not* is the shortest."
                ),
                Option(1.0, "", "As in the text."),
                Option(
                    2.0,
                    "",
                    "A longer W, but also smaller slopes: large sums lie where tanh is flat.",
                ),
            ],
            1,
        ),
        Choice(
            "loss",
            "The loss looks at",
            [
                Option(
                    at_the_end,
                    "the end",
                    "All that *not* hears comes through two steps.",
                    "np.array([[0, 0], [0, 0], [1, -1]], float)",
                ),
                Option(
                    everywhere,
                    "every word",
                    "A state has two gradients to add now: its own, and "
                    "what comes back from the next step.",
                    "np.array([[0, 1], [1, 0], [1, -1]], float)",
                ),
            ],
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
loss = 0
found = compute(moment, scale, loss)
forward, backward, dweight = found["forward"], found["backward"], found["dweight"]
print(forward.round(2), backward.round(2), dweight.round(2), sep="\\n\\n")""",
)
