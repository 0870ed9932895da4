"""Learn on short sequences and be tested on longer ones, with five kinds of positions."""

import sys
from pathlib import Path

import numpy as np

from numformer.data import END, Vocabulary, pad
from numformer.generation import Continuation, greedy
from numformer.models.language_model import LanguageModel
from numformer.randomness import seed_sequence
from toy_tasks.command_line import exit_code, settings_from, study
from toy_tasks.reports import charts
from toy_tasks.text_to_text.sequences import held_out
from toy_tasks.write import Answers

LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
TRAINED, LONGEST = 10, 20
TESTED = 10, 12, 15, 20
EXAMPLES = 128  # of each length in the test
DESCRIPTION = """\
Learn to copy, to reverse and to add up to length 10, and be tested up to 20: a decoder alone, with
sinusoidal, learned and rotary positions, ALiBi and none.

  abc=abc    abc=cba    q 12 k 34 = q 3 k 7 0   (31 + 42: the last place first, letters name places)
  python -m toy_tasks.lengths --run runs/lengths/copy-alibi-1 --input abcdefghijklm=
"""
DEFAULTS = dict(
    steps=1600,
    batch_size=64,
    evaluate_every=400,
    d_model=64,
    d_ff=128,
    heads=4,
    layers=3,
    norm="pre",
    p_drop=0.0,
    label_smoothing=0.0,
    warmup=100,
    factor=0.4,
    decay="linear",
    clip_norm=1.0,
)


def letters(rng: np.random.Generator, length: int) -> str:
    """Different letters in any order."""
    return "".join(rng.permutation([*LETTERS])[:length])


def numbers(rng: np.random.Generator, length: int) -> str:
    """The digits of two numbers by places, the last first, each after a letter that names it.

    31 + 42 is for example "q 12 k 34".
    """
    digits = rng.integers(10, size=(length, 2))
    places = zip(letters(rng, length), digits, strict=True)
    return " ".join(f"{name} {a}{b}" for name, (a, b) in places)


def add(source: str) -> str:
    """The sum, written alike, and what is carried in the end: "q 12 k 34" gives "q 3 k 7 0"."""
    names, digits = source.split()[::2], source.split()[1::2]
    first, second = ("".join(pair[number] for pair in digits[::-1]) for number in (0, 1))
    *places, carried = str(int(first) + int(second)).zfill(len(names) + 1)[::-1]
    return " ".join([*map(" ".join, zip(names, places, strict=True)), carried])


TASKS = {
    "copy": (letters, lambda source: source),
    "reverse": (letters, lambda source: source[::-1]),
    "addition": (numbers, add),
}


class LengthTask:
    """Batches of "source=target" of one of TASKS, for `numformer.training.train`."""

    metric, higher_is_better = "exact_match", True

    def __init__(self, name: str, batch_size: int, seed: int, count: int = EXAMPLES):
        self.name, self.batch_size, self.seed = name, batch_size, seed
        self.draw, self.target = TASKS[name]
        vocabulary = Vocabulary([*LETTERS, "="])
        if name == "addition":
            pairs = [a + b for a in DIGITS for b in DIGITS]
            vocabulary = Vocabulary([*LETTERS, *DIGITS, *pairs, "="], separator=" ")
        (self.equals,) = vocabulary.encode("=")
        rng = np.random.default_rng(seed_sequence(seed, "held out"))
        self.test = {n: self.sources(rng, n, count, True) for n in range(1, LONGEST + 1)}
        self.text = Continuation(vocabulary, 1)
        self.longest = max(sum(map(len, self.ids(self.test[n][0]))) for n in self.test)
        self.text = Continuation(vocabulary, self.longest)

    def sources(self, rng, length: int, count: int, wanted: bool) -> list[str]:
        """Sources of this length; those that a hash of them holds out, or the others."""
        sources = []
        while len(sources) < count:
            source = self.draw(rng, length)
            if held_out(source) is wanted:
                sources.append(source)
        return sources

    def ids(self, source: str) -> tuple[list[int], list[int]]:
        """Those of the source with its "=", and of the target with its end."""
        texts, vocabulary = (source, self.target(source)), self.text.vocabulary
        given, target = (vocabulary.encode(vocabulary.split(text)) for text in texts)
        return [*given, self.equals], [*target, END]

    def batch(self, step: int) -> Answers:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        lengths = rng.integers(1, TRAINED + 1, self.batch_size)
        pairs = [self.ids(*self.sources(rng, length, 1, False)) for length in lengths]
        ids = pad([given + target for given, target in pairs])
        valid = np.zeros(ids.shape, bool)
        for row, (given, target) in enumerate(pairs):
            valid[row, len(given) : len(given) + len(target)] = True
        return Answers(ids[:, :-1], ids[:, 1:], valid[:, 1:])

    def right(self, model: LanguageModel, length: int, count: int | None = None) -> float:
        """The share of the test's sources of this length whose whole target is written."""
        given, targets = zip(*map(self.ids, self.test[length][:count]), strict=True)
        written = greedy(model, np.array(given), len(targets[0]))
        answers = zip(written, targets, strict=True)
        return sum([*ids, END] == target for ids, target in answers) / len(targets)

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        lengths = 2, 5, 8, TRAINED
        return {self.metric: float(np.mean([self.right(model, n, 64) for n in lengths]))}

    def description(self) -> dict:
        return {"name": "lengths", "task": self.name}


def make(options):
    """What a run trains, and on what."""
    count = 20 if options.quick else EXAMPLES
    task = LengthTask(options.task, options.batch_size, options.seed, count)
    vocabulary = len(task.text.vocabulary)
    return task, LanguageModel, settings_from(options, LanguageModel.Config, vocabulary=vocabulary)


def measure(model: LanguageModel, task: LengthTask, folder: Path) -> dict:
    """The exact match at every length, and its mean within what was trained."""
    by_length = [task.right(model, length) for length in task.test]
    return {"within": float(np.mean(by_length[:TRAINED])), "by length": by_length}


def table(results: study.Results) -> list[list[str]]:
    """A row for each task with each kind of positions."""
    rows = [["task and positions", f"1 to {TRAINED}", *map(str, TESTED)]]
    for row, runs in results.items():
        numbers = [[run["by length"][length - 1] for run in runs] for length in TESTED]
        within = [run["within"] for run in runs]
        rows.append([row, *map(charts.spread, (within, *numbers))])
    return rows


def draw(results: study.Results, folder: Path) -> None:
    """The exact match against the length, a panel for each task."""
    panels = {
        name: {
            row.removeprefix(f"{name} "): [(range(1, LONGEST + 1), r["by length"]) for r in runs]
            for row, runs in results.items()
            if row.startswith(name)
        }
        for name in TASKS
    }
    title = f"Trained up to length {TRAINED}, tested up to {LONGEST}"
    charts.chart(folder / "lengths.png", title, panels, "length", "exact match")


def verdict(results: study.Results):
    """The best of all ways at one and a half times the trained length, a mean of its seeds."""
    far = {
        row: np.mean([run["by length"][TRAINED * 3 // 2 - 1] for run in runs])
        for row, runs in results.items()
    }
    best = max(far, key=far.get)
    within = min(np.mean([run["within"] for run in runs]) for runs in results.values())
    reached = within >= 0.99 and far[best] >= 0.9
    figures = {
        f"least within length {TRAINED}:": f"{within:.4f}",
        "best at 1.5 times:": f"{far[best]:.4f} ({best})",
    }
    what = f"{EXAMPLES} sources of each length"
    return what, figures, ("0.99 within, one way 0.9 beyond", reached)


POSITIONS = "sinusoidal", "learned", "rotary", "alibi", "none"
# Without positions the order has to be found in the mask alone, which takes longer.
LONGER = {
    "addition": {"steps": 1800},
    "reverse sinusoidal": {"steps": 2000},
    "copy none": {"steps": 2400},
    "reverse none": {"steps": 2400},
    "addition none": {"steps": 2800},
}
STUDY = study.Study(
    name="lengths",
    description=DESCRIPTION,
    model=LanguageModel,
    defaults=DEFAULTS,
    rows={
        (row := f"{task} {how}"): {"task": task, "positions": how}
        | LONGER.get(row, LONGER.get(task, {}))
        | ({"max_length": 128} if how == "learned" else {})
        for task in TASKS
        for how in POSITIONS
    },
    make=make,
    measure=measure,
    figure="within",
    table=table,
    draw=draw,
    verdict=verdict,
    example="abcdefghijklm=",
)


def main(arguments: list[str] | None = None) -> int:
    """Train and compare; returns the exit code."""
    return study.main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
