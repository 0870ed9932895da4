"""Two timelines of lesson 14: sending that hides behind backward, and a pipeline's bubble."""

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures
from lessons.lesson_14.pipeline import all_forward_all_backward, one_forward_one_backward
from lessons.lesson_14.wires import GIGABIT, NUMBER, PARAMETERS, TOKENS, computing

MACHINES, LATENCY = 16, 50e-6  # seconds until the first byte of a message arrives
GRADIENT = NUMBER * PARAMETERS["base"]
MATH, WIRE = 0, 1  # rows of the timeline
SECONDS = np.linspace(0, 1.6, 41)


def step_of(layers, bucket, bandwidth) -> dict[str, np.ndarray]:
    """When one of MACHINES computes and sends in a step: pieces (row, begin, end), in seconds.

    A bucket leaves as soon as backward has all of its gradients and the wire is free.
    """
    whole = computing(PARAMETERS["base"], TOKENS)
    ends = np.linspace(0, whole / 3, layers + 1), np.linspace(whole / 3, whole, layers + 1)
    forward, backward = (np.stack([0 * at[1:] + MATH, at[:-1], at[1:]], axis=1) for at in ends)
    edges, sent, free = np.append(np.arange(0, GRADIENT, bucket), GRADIENT), [], 0.0
    for size, end in zip(np.diff(edges), edges[1:], strict=True):
        begin = max(free, ends[1][int(np.ceil(end / GRADIENT * layers - 1e-9))])
        free = begin + 2 * (MACHINES - 1) * (LATENCY + size / MACHINES / bandwidth)
        sent.append((WIRE, begin, free))
    hidden, waiting = np.array(sent), np.array(sent)
    hidden[:, 1:], waiting[:, 1:] = hidden[:, 1:].clip(max=whole), waiting[:, 1:].clip(min=whole)
    wire, after = sum(end - begin for _, begin, end in sent), free - whole
    work = dict(forward=forward, backward=backward, hidden=hidden, waiting=waiting)
    times = dict(wire=wire, after=after, whole=free, as_many=MACHINES * whole / free)
    return work | times


def clock(times) -> Slider:
    """The slider of the time up to which a timeline is filled."""
    options = [Option(time, f"{time:.3f}") for time in times]
    return Slider("time", "Time", options, len(times) - 1, shows_only=True, plays=True)


WIRES = [
    Option(GIGABIT, "1 Gbit/s", "An office cable, still busy beyond the right edge.", "1e9 / 8"),
    Option(10 * GIGABIT, "10 Gbit/s", "A good cable.", "10e9 / 8"),
    Option(100 * GIGABIT, "100 Gbit/s", "Wires that are built for this.", "100e9 / 8"),
]
BUCKETS = [
    Option(GRADIENT, "all", "The whole gradient: 260 MB.", "260e6"),
    Option(100e6, "100 MB", code="100e6"),
    Option(25e6, "25 MB", "The usual size in PyTorch.", "25e6"),
    Option(5e6, "5 MB", code="5e6"),
    Option(1e6, "1 MB", "260 buckets of 30 messages each.", "1e6"),
]
overlap = Simulation(
    name="overlap",
    title="What hides behind backward?",
    say=f"A training step on one of {MACHINES} machines. Each has {TOKENS:,} tokens of its own, so "
    f"the batch has {MACHINES * TOKENS:,}. Above is what the machine computes: forward, then "
    "backward. Below is what it sends on its wire. At first the whole gradient leaves at once, "
    "when backward is done. **Guess:** with buckets of 25 MB, what share of the sending will hide "
    "behind backward? Then choose them. And what if buckets are as small as can be?",
    caption="Each layer's gradient could leave while backward is at work on earlier layers.",
    alt="A timeline with two rows. Above, bars of forward, and bars of backward, twice as long. "
    "Below, on the wire, one bar that begins only where backward ends.",
    size=(6.4, 3.4),
    controls=[
        Choice("bandwidth", "Wire", WIRES, 1),
        Choice("bucket", "Bucket", BUCKETS),
        Choice("layers", "Layers", [2, 4, 12], 2),
        clock(SECONDS),
    ],
    compute=step_of,
    views=[
        Chart(
            [
                Drawn("forward", "forward", "work"),
                Drawn("backward", "backward", "work"),
                Drawn("hidden", "sent during backward", "work", colour=3),
                Drawn("waiting", "sent while machines wait", "work"),
            ],
            Axis("seconds", 0, SECONDS[-1]),
            Axis("", 2, 0, names=["work", "wire"]),
            marker="time",
            at=SECONDS.tolist(),
        ),
        Figures(
            {
                "wire": "seconds of sending",
                "after": "of these, spent waiting",
                "whole": "seconds of the step",
                "as_many": "times as fast as 1 machine",
            }
        ),
    ],
    code="""\
from lessons.lesson_14.timelines import step_of

layers = 12
bucket = 260e6
bandwidth = 10e9 / 8
found = step_of(layers, bucket, bandwidth)
wire, after, whole = (found[name] for name in ("wire", "after", "whole"))
print(wire, after, whole)""",
)


def times(orders, forward: float, backward: float) -> dict[tuple[int, str, int], tuple]:
    """When each (stage, what, micro-batch) begins and ends, if each begins as soon as it can.

    `orders` has, for each stage, its pairs ("forward" or "backward", micro-batch) in order.
    """
    took, done, last = {"forward": forward, "backward": backward}, {}, len(orders) - 1
    free, left = [0.0] * len(orders), [list(order) for order in orders]
    while any(left):
        for stage, order in enumerate(left):
            what, m = order[0] if order else ("", 0)
            before = stage - 1 if what == "forward" else stage + 1
            needed = {(before, what, m)} if 0 <= before <= last else set()
            needed |= {(stage, "forward", m)} if what == "backward" else set()
            if what and needed <= done.keys():
                begin = max([free[stage], *(done[work][1] for work in needed)])
                free[stage] = begin + took[what]
                done[stage, what, m] = begin, free[stage]
                order.pop(0)
    return done


SCHEDULES = {"all": all_forward_all_backward, "one": one_forward_one_backward}


def compute(stages=4, micro_batches=4, schedule="all") -> dict[str, np.ndarray]:
    """The pipeline's timeline; 1 is the time of one machine that has all layers."""
    orders = SCHEDULES[schedule](stages, micro_batches)
    unit = 1 / (3 * stages * micro_batches)
    done = times(orders, unit, 2 * unit)
    held = [np.cumsum([1 if what == "forward" else -1 for what, _ in order]) for order in orders]
    pieces = {"forward": [], "backward": [], "first": []}
    for (stage, what, m), (begin, end) in done.items():
        pieces["first" if m == 0 else what].append((stage, begin, end))
    whole = max(end for _, end in done.values())
    made = {name: np.array(rows or [(0, 0, 0)]) for name, rows in pieces.items()}
    bubble = 100 * (1 - 1 / (stages * whole))
    most = np.array([of_stage.max() for of_stage in held])
    return made | dict(whole=whole, as_many=1 / whole, bubble=bubble, held=most)


PARTS_OF_ONE = np.linspace(0, 1, 41)
ORDERS = [
    Option("all", "all forward first", "GPipe (Huang et al. 2019)."),
    Option("one", "one forward, one backward", "1F1B (Narayanan et al. 2021)."),
]
pipeline = Simulation(
    name="pipeline",
    title="A pipeline and its bubble",
    say="Each row is a machine that has a part of the layers. **Press Play** with one micro-batch: "
    "how many machines work at a time? Then guess: with 4 stages and 4 micro-batches, what share "
    "of the time do machines wait? In which of the two orders do they wait less, and in which "
    "do they *hold* less?",
    caption="The axis is time; 1 is the time that one machine would need for everything.",
    alt="A timeline with a row for each of four stages. Forward runs down the stages as a "
    "staircase, backward runs up again; most of the picture is empty.",
    size=(6.4, 3.6),
    controls=[
        Choice("stages", "Stages", [2, 4, 8], 1),
        Choice("micro_batches", "Micro-batches", [1, 2, 4, 8, 16], 0),
        Choice("schedule", "Order", ORDERS),
        clock(PARTS_OF_ONE),
    ],
    compute=compute,
    views=[
        Chart(
            [
                Drawn("first", "the first micro-batch", "work", colour=2),
                Drawn("forward", "forward", "work"),
                Drawn("backward", "backward", "work"),
            ],
            Axis("time", 0, 1),
            Axis("stage", 8, 0, names=[str(stage + 1) for stage in range(8)]),
            marker="time",
            at=PARTS_OF_ONE.tolist(),
        ),
        Figures(
            {
                "as_many": "times as fast as one machine",
                "bubble": "% of the time that machines wait",
                "held": "micro-batches held at most, by stage",
            }
        ),
    ],
    code="""\
from lessons.lesson_14.timelines import compute

stages = 4
micro_batches = 1
schedule = "all"
found = compute(stages, micro_batches, schedule)
as_many, bubble, held = (found[name] for name in ("as_many", "bubble", "held"))
print(as_many, bubble, held)""",
)
