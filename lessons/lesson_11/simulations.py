"""Simulations of lesson 11 that show measurements: heads taken out, and two trainings replayed."""

import re
from pathlib import Path

import numpy as np

import toy_tasks
from lessons.kit import models
from lessons.kit.simulation import Option, Simulation, Slider, Thumbnails
from lessons.kit.views import Axis, Chart, Drawn, Figures, Heatmap
from lessons.lesson_11 import forming
from lessons.lesson_11.explorer import TITLES
from lessons.lesson_11.small import HEADS, KINDS, LAYERS

ROWS = [f"{TITLES[kind].lower()} {layer + 1}" for kind in KINDS for layer in range(LAYERS)]


def found(name: str) -> dict:
    return models.measured(11)[name]


def translator() -> dict[int, tuple[float, float]]:
    """From toy_tasks/heads.md the BLEU by heads left: chosen by importance, and at random."""
    text = (Path(toy_tasks.__file__).parent / "heads.md").read_text(encoding="utf-8")
    number = r" *([\d.]+) *"
    rows = re.findall(rf"^\|{number}\|{number}\|{number}\|{number}[|(]", text, re.MULTILINE)
    return {int(left): (float(chosen), float(drawn)) for left, chosen, _, drawn in rows}


def taken(removed: int) -> dict[str, np.ndarray]:
    """The heads and the BLEU that are left after `removed` heads were taken out."""
    stored = found("pruned")
    there = np.array(stored["importance"])
    for place, head in stored["order"][:removed]:
        there[place, head] = 0
    drawn = np.array(stored["at random"])  # (draws, steps, 2)
    return {
        "heads": there / np.array(stored["importance"]).max(),
        "by_importance": np.array(stored["by importance"])[:, 1],
        "at_random": np.stack([drawn[0, :, 0], drawn[..., 1].mean(axis=0)], axis=-1),
        "encoder": np.array(stored["encoder"]),
        "bleu": np.array(stored["by importance"][removed][1]),
    }


def pruning() -> Simulation:
    every = [float(n) for n in range(len(ROWS) * HEADS + 1)]
    best = max(score for _, score in found("pruned")["by importance"])
    return Simulation(
        "pruned",
        title="Take heads out",
        say="The translator has 36 heads. Take them out one by one, those whose gates have the "
        "smallest gradients first; the translator is not trained again. **Guess first:** how many "
        "can go before it writes nonsense? And which of the three kinds lasts longest?",
        caption="BLEU against the number of heads that were taken out.",
        alt="Lines of BLEU against the number of heads taken out. By importance the line stays "
        "high for a long time and then falls to nothing; in random order it falls at once.",
        controls=[
            Slider(
                "removed",
                "Heads taken out",
                [Option(n, f"{n} of {len(every) - 1}") for n in range(len(every))],
                plays=True,
            )
        ],
        compute=taken,
        views=[
            Heatmap(
                "heads",
                "attention",
                "head",
                row_names=ROWS,
                column_names=[f"{n + 1}" for n in range(HEADS)],
            ),
            Chart(
                [
                    Drawn("by_importance", "smallest gradient first", at=every),
                    Drawn("at_random", "in random order", "dots"),
                    Drawn("encoder", "encoder heads only, smallest first", "dots"),
                ],
                Axis("heads taken out", 0, every[-1]),
                Axis("BLEU", 0, float(5 * np.ceil(best / 5))),
                marker="removed",
                at=every,
            ),
            Figures({"bleu": "BLEU on 200 sentences of the test set"}),
        ],
        code="""\
from lessons.lesson_11.simulations import taken

removed = 0
bleu = taken(removed)["bleu"]
print(bleu)""",
    )


def formed(step: int, head: int) -> dict[str, np.ndarray]:
    """What one head of the reverse model's cross-attention looks at after `step` steps."""
    stored = found("reversal")
    at, (layer, number) = stored["steps"].index(step), divmod(head, HEADS)
    share = np.array(stored["share"])[:, layer, number]
    return {
        "weights": forming.unpacked(stored["weights"])[at, layer, number],
        "share": share,
        "exact": np.array(stored["exact"]),
        "here": share[at],
        "right": np.array(stored["exact"][at]),
    }


def replayed() -> Simulation:
    steps = forming.SHOWN["reverse"]
    read, wrote = [*forming.WORD, "⊣"], [*forming.WORD[::-1], "⊣"]
    return Simulation(
        "formed",
        title="Replay the training",
        say="A model with three layers of four heads learns to write words backwards. Play its "
        "training, and watch one head of cross-attention. **Guess first:** which "
        "comes first, the anti-diagonal or words without a mistake? Do all layers find the letter "
        "to be written?",
        caption="The weights of one head after training, and how they formed.",
        alt="A heatmap of attention weights, letters to be written by letters read, and a chart of "
        "two rising lines against the training step: the weight on the letter to be written, and "
        "the share of words without a mistake.",
        controls=[
            Slider(
                "step",
                "Training step",
                [Option(step, f"step {step}") for step in steps],
                start=len(steps) - 1,
                plays=True,
            ),
            Thumbnails(
                "head",
                "Layer and head",
                [Option(n, f"{n // HEADS + 1}.{n % HEADS + 1}") for n in range(LAYERS * HEADS)],
                start=2 * HEADS,
                of="weights",
            ),
        ],
        compute=formed,
        views=[
            Heatmap("weights", "writes", "looks at", row_names=wrote, column_names=read),
            Chart(
                [
                    Drawn("share", "weight on the letter to be written", at=steps),
                    Drawn("exact", "words without a mistake", at=steps),
                ],
                Axis("training step", 0, steps[-1]),
                Axis("share", 0, 1),
                marker="step",
                at=steps,
            ),
            Figures(
                {
                    "here": "Weight on the letter to be written, 300 unseen words",
                    "right": "Words without a mistake",
                }
            ),
        ],
        code="""\
from lessons.lesson_11.simulations import formed

step = 0
head = 0
weights = formed(step, head)["weights"]
print(weights.round(2))""",
    )


def repeated(step: int, head: int) -> dict[str, np.ndarray]:
    """What one head of the two-layer model looks at after `step` steps."""
    stored, (layer, number) = found("repetition"), divmod(head, 2)
    two, at = stored["2"], stored["2"]["steps"].index(step)
    matching, before = (np.array(two[name])[:, layer, number] for name in ("matching", "before"))
    return {
        "weights": forming.unpacked(two["weights"])[at, layer, number],
        "matching": matching,
        "before": before,
        "copying": np.array(two["copying"]),
        "single": np.array(stored["1"]["copying"]),
        "here": matching[at],
        "previous": before[at],
        "right": np.array(two["copying"][at]),
    }


def inducing() -> Simulation:
    steps = forming.SHOWN["induction"]
    return Simulation(
        "repeated",
        title="Two heads find each other",
        say="A model with two layers reads a random sequence of letters that is repeated, and "
        "predicts the next letter. Each row is a letter that looks, each column a letter that it "
        "may see. **Guess first:** in *qn-train-train*, where must the second *r* look to know "
        "what follows? Play the training with head 2.1, then with head 1.1.",
        caption="The weights of one head after training, and how they formed.",
        alt="A heatmap of attention weights over a sequence that repeats five letters, with a dark "
        "diagonal four places to the left of the main one, and lines that rise together between "
        "step 160 and step 240.",
        controls=[
            Slider(
                "step",
                "Training step",
                [Option(step, f"step {step}") for step in steps],
                start=len(steps) - 1,
                plays=True,
            ),
            Thumbnails(
                "head",
                "Layer and head",
                [Option(n, f"{n // 2 + 1}.{n % 2 + 1}") for n in range(4)],
                start=2,
                of="weights",
            ),
        ],
        compute=repeated,
        views=[
            Heatmap(
                "weights",
                "looks",
                "at",
                row_names=[*forming.REPEATED],
                column_names=[*forming.REPEATED],
            ),
            Chart(
                [
                    Drawn("matching", "weight on what followed last time", at=steps),
                    Drawn("before", "weight on the letter before", at=steps),
                    Drawn("copying", "right letters, two layers", at=steps),
                    Drawn("single", "right letters, one layer", at=steps),
                ],
                Axis("training step", 0, steps[-1]),
                Axis("share", 0, 1),
                marker="step",
                at=steps,
            ),
            Figures(
                {
                    "here": "Weight on what followed last time",
                    "previous": "On the letter before",
                    "right": "Right letters",
                }
            ),
        ],
        code="""\
from lessons.lesson_11.simulations import repeated

step = 0
head = 0
weights = repeated(step, head)["weights"]
print(weights.round(2))""",
    )
