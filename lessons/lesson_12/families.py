"""Four kinds of models on one small task: encoder only, decoder only, both, and recurrent."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.kit.models import measured
from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Heatmap
from numformer import Adam, LanguageModel, MaskedLanguageModel, PairBatch, Transformer, pack
from numformer.data.batching import pad_sources
from numformer.data.vocabulary import PADDING, SPECIAL, START
from numformer.generation import greedy
from numformer.layer import inference
from numformer.models import Model, RecurrentEncoderDecoder

LENGTH, DIGITS, TESTED = 8, 10, 256
STEPS, EVERY, BATCH, RATE, SEED = 400, 25, 64, 0.002, 1
FIRST = len(SPECIAL)  # the id of the digit 0
FORWARDS, BACKWARDS, HOLE = FIRST + DIGITS + np.arange(3)  # first two: signs of targets
VOCABULARY = FIRST + DIGITS + 3
WIDTH = LENGTH + 1  # of a target
TASKS = {"backwards": "backwards", "either way": "forwards or backwards, both are right"}
SIZES = dict(d_model=64, d_ff=256, heads=4, norm="pre", p_drop=0.0)
SMALL = SIZES | dict(d_model=4, d_ff=6, heads=2)  # for a gradient check


def draw(task: str, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sources (count, LENGTH) and targets (count, WIDTH), which begin with a sign for their way."""
    source = rng.integers(FIRST, FIRST + DIGITS, (count, LENGTH))
    forwards = (rng.random(count) < 0.5) & (task == "either way")
    ways = answers(source)
    return source, np.where(forwards[:, None], *ways)


def answers(source: np.ndarray) -> list[np.ndarray]:
    """The two answers to each source, forwards and backwards, with the sign of the way first."""
    begun = (np.full((len(source), 1), sign) for sign in (FORWARDS, BACKWARDS))
    return [
        np.append(sign, x, axis=1) for sign, x in zip(begun, (source, source[:, ::-1]), strict=True)
    ]


def right(task: str, source: np.ndarray, written: np.ndarray) -> float:
    """The share of sources whose written answer is right in every symbol."""
    forwards, backwards = ((written == answer).all(axis=1) for answer in answers(source))
    return float((backwards | (forwards & (task == "either way"))).mean())


# For each kind: a model's inputs for sources and targets, and what a trained model writes.


def holes(source, target=None) -> tuple:
    """The source, then a hole for each symbol of the target."""
    hidden = np.full((len(source), WIDTH), HOLE)
    targets = hidden if target is None else target
    asked = np.concatenate([np.full_like(source, PADDING), targets], axis=1)
    return np.concatenate([source, hidden], axis=1), asked


def filled(model, source) -> np.ndarray:
    """All holes at once, each with its most probable symbol."""
    ids, asked = holes(source)
    logits = model.forward(ids, np.flatnonzero(asked != PADDING))
    return logits.argmax(axis=-1).reshape(-1, WIDTH)


def one_text(source, target) -> tuple:
    """Source, start and target as one text; only the target is to be predicted."""
    begin = np.full((len(source), 1), START)
    text = np.concatenate([source, begin, target], axis=1)
    ids, following = text[:, :-1], text[:, 1:]
    return ids, following, np.broadcast_to(np.arange(ids.shape[1]) >= LENGTH, ids.shape)


def continued(model, source) -> np.ndarray:
    """What follows source and start, symbol by symbol."""
    begun = np.concatenate([source, np.full((len(source), 1), START)], axis=1)
    return cut(greedy(model, begun, WIDTH))


def pairs(source, target) -> tuple:
    return PairBatch.of(zip(source.tolist(), target.tolist(), strict=True)).inputs


def translated(model, source) -> np.ndarray:
    """What the decoder writes, symbol by symbol."""
    return cut(greedy(model, pad_sources(source.tolist()), WIDTH + 1))


def cut(written: list[list[int]]) -> np.ndarray:
    """Rows of ids as an array (N, WIDTH), filled up with padding."""
    return np.array([[*ids, *[PADDING] * WIDTH][:WIDTH] for ids in written])


@dataclass(frozen=True)
class Family:
    """A kind of model: how it is made from a seed, what its inputs are, and how it writes."""

    make: Callable[..., Model]
    inputs: Callable[..., tuple]
    write: Callable
    file: str


def decoder_alone(seed: int, small: bool = False) -> Model:
    sizes = SMALL | dict(layers=1) if small else SIZES | dict(layers=4)
    return LanguageModel(LanguageModel.Config(vocabulary=VOCABULARY, **sizes), seed)


def encoder_alone(seed: int, small: bool = False) -> Model:
    sizes = SMALL | dict(layers=1) if small else SIZES | dict(layers=4)
    return MaskedLanguageModel(MaskedLanguageModel.Config(vocabulary=VOCABULARY, **sizes), seed)


def both(seed: int, small: bool = False) -> Model:
    sizes = SMALL | dict(layers=1) if small else SIZES | dict(layers=2)
    return Transformer(Transformer.Config.base(VOCABULARY, **sizes), seed)


def recurrent(seed: int, small: bool = False) -> Model:
    symbols = dict(source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, p_drop=0.0)
    config = RecurrentEncoderDecoder.Config(d_model=4 if small else 80, **symbols)
    return RecurrentEncoderDecoder(config, seed)


FAMILIES = {
    "encoder only": Family(encoder_alone, holes, filled, "masked.py"),
    "decoder only": Family(decoder_alone, one_text, continued, "language_model.py"),
    "encoder-decoder": Family(both, pairs, translated, "encoder_decoder.py"),
    "recurrent": Family(recurrent, pairs, translated, "recurrent.py"),
}


def train(name: str, task: str, seed: int = SEED, stop: int = STEPS) -> dict:
    """A run up to step `stop`: every EVERY steps its loss and the share of right answers."""
    family, losses, shares, seconds = FAMILIES[name], [], [], 0.0
    of_data, held_out = (np.random.default_rng([seed, n]) for n in range(2))
    model = family.make(seed)
    objective, tested = model.objective(), draw(task, TESTED, held_out)[0]
    with threadpool_limits(1, "blas"):
        adam = Adam(pack(model))
        for step in range(1, stop + 1):
            batch = family.inputs(*draw(task, BATCH, of_data))
            begun = time.process_time()
            objective.zero_grad()
            loss = float(objective.forward(*batch))
            objective.backward()
            adam.step(RATE * min(1, step / 50, 1.25 * (1 - (step - 1) / STEPS)))
            seconds += time.process_time() - begun
            if step % EVERY == 0:
                with inference():
                    shares.append(round(right(task, tested, family.write(model, tested)), 4))
                losses.append(round(loss, 4))
    size = sum(parameter.size for parameter in model.named_parameters().values())
    return dict(parameters=size, losses=losses, right=shares, seconds=round(seconds, 1))


# The figure

PLACES = [*"12345678", *"abcdefghi"]  # of the source and of the target
AT = range(EVERY, STEPS + 1, EVERY)


def seen(name: str) -> np.ndarray:
    """Who looks at whom in one layer, (17, 17): positions of the source, then of the target."""
    count, place = len(PLACES), np.arange(len(PLACES))
    rows, columns = place[:, None], place[None]
    if name == "encoder only":
        return np.ones((count, count))
    if name == "decoder only":
        return 1.0 * (columns <= rows)
    reads = (rows < LENGTH) & (columns < LENGTH)
    if name == "recurrent":  # in both directions, one step at a time
        within = (reads & (abs(rows - columns) <= 1)) | ((rows - columns <= 1) & (columns <= rows))
    else:
        within = reads | (columns <= rows)
    return 1.0 * (within | ((rows >= LENGTH) & (columns < LENGTH)))


def compute(kind="encoder-decoder", task="backwards", step=0) -> dict:
    """Who looks at whom, and each kind's share of right answers in the course of training."""
    runs = measured(12)["families"][task]
    curves = {f"right_{n}": np.array(runs[name]["right"]) for n, name in enumerate(FAMILIES)}
    run = runs[kind]
    current = {"right": run["right"][step], "loss": run["losses"][step]}
    return curves | {"sees": seen(kind)} | current


def figure() -> Simulation:
    return Simulation(
        name="families",
        title="Four kinds of models, one task",
        say="Each model reads eight digits, then writes a sign for its direction, then the digits "
        "in this direction. **First** the models learn to write backwards: which of the four needs "
        "the most steps? **Then** they may go *either way*, forwards or backwards. One of the four "
        "will never learn that. Decide which, and why, before you look. The map shows who looks at "
        "whom: 1 to 8 are the source, a to i the target.",
        caption="Left: who looks at whom in an encoder-decoder. Right: the share of right answers "
        "of four kinds of models in the course of their training.",
        alt="A map of who looks at whom: the rows of the source see the source, those of the "
        "target the source and what stands before them; and four rising lines, one for each kind.",
        controls=[
            Choice("kind", "Kind", [*FAMILIES], start=2),
            Choice("task", "Write it", [Option(name, said) for name, said in TASKS.items()]),
            Slider("step", "Step", [Option(n, f"{at}") for n, at in enumerate(AT)], plays=True),
        ],
        compute=compute,
        views=[
            Heatmap(
                "sees", "the position", "looks at", row_names=PLACES, column_names=PLACES, height=3
            ),
            Chart(
                [Drawn(f"right_{n}", name, at=[*AT]) for n, name in enumerate(FAMILIES)],
                Axis("step", 0, STEPS),
                Axis("written without a mistake", -0.02, 1.02),
                marker="step",
                at=[*AT],
            ),
            Figures({"right": "written without a mistake", "loss": "loss"}),
        ],
        code="""\
from lessons.lesson_12.families import compute

kind = 0
task = 0
step = 0
made = compute(kind, task, step)
sees, loss = made["sees"], made["loss"]
print(sees.astype(int), loss, sep="\\n")""",
        size=(7.6, 6.4),
    )
