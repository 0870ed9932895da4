"""Made-up sequences: what is drawn, what is asked for, and what training never sees."""

import dataclasses
import itertools
import pickle
import re
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from tests.toy_tasks.small import RULES, SHORT
from toy_tasks import addition, copy_task, images, reverse, sort, walk
from toy_tasks.induction import InductionTask
from toy_tasks.kit.sequences import Rule, SequenceTask, held_out
from toy_tasks.lengths import LengthTask
from toy_tasks.masked import MaskedTask
from toy_tasks.write import WritingTask

WORDS = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("abcd", repeat=n)]
HELD_OUT = [word for word in WORDS if held_out(word)]
TRAINED_ON = [word for word in WORDS if not held_out(word)]


def task(sources: list[str]) -> SequenceTask:
    """Copy one of these sources."""
    draw = lambda rng: sources[rng.integers(len(sources))]  # noqa: E731
    return SequenceTask(Rule("few", "", "abcd", draw, lambda source: source, 1.0, {}), 4, seed=1)


def test_one_source_in_eight_is_held_out_the_same_in_every_process():
    """Python's own hash of a string differs from process to process."""
    assert [zlib.crc32(word.encode()) % 8 == 0 for word in WORDS] == [*map(held_out, WORDS)]
    assert sum(map(held_out, map(str, range(8000)))) == 999


@pytest.mark.parametrize("count", [2, 3, 20])
def test_few_held_out_sources_are_for_development_and_for_the_test(count):
    few = task(HELD_OUT[:count] + TRAINED_ON[:5])
    assert len(few.development) == count // 2 and len(few.test) == count - count // 2
    examples = {*few.development, *few.test}
    assert examples == {(source, (source,)) for source in HELD_OUT[:count]}
    assert few.batch(1).source.shape[0] == 4


@pytest.mark.parametrize(
    ("sources", "number"),
    [(TRAINED_ON, 0), (TRAINED_ON + HELD_OUT[:1], 1), (HELD_OUT[:20], 20)],
    ids=["none held out", "one held out", "all held out"],
)
def test_a_rule_with_too_few_sources_is_refused(sources, number, complaint):
    assert f"{number} held out" in complaint(task, sources)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_training_never_sees_what_is_evaluated(rule):
    """Neither with its own seed nor with another; the sources of a batch are read back from ids."""
    task, other = (SequenceTask(rule, 64, seed) for seed in (1, 2))
    assert len(set(task.test)) == len(task.test) >= 1000
    assert len(set(task.development)) == len(task.development) >= 256
    assert not set(task.test) & set(task.development)
    trained = set()
    for step in range(1, 41):
        for row in task.batch(step).source.tolist():
            trained.add("".join(task.text.source.decode(row[: row.index(2)])))
    assert len(trained) > 2000
    for evaluated in (task, other):
        sources = {source for source, _ in [*evaluated.test, *evaluated.development]}
        assert not trained & sources


@pytest.mark.parametrize(
    ("rule", "target"), [(copy_task.RULE, lambda s: s), (reverse.RULE, lambda s: s[::-1])]
)
def test_batches_hold_sources_and_their_targets(rule, target):
    batch, lengths = SequenceTask(rule, 40, 1).batch(3), set()
    for source, out in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True):
        digits_of_source = source[: source.index(2)]
        assert out[: out.index(2)] == target(digits_of_source)
        lengths.add(len(digits_of_source))
    assert min(lengths) <= 3 and max(lengths) == 16


IMAGES = images.labelled(np.random.default_rng(0).random((20, 4, 4)), np.arange(20) % 2)
TEXT = "the cat sat on the mat. " * 20
BY_SEED = {
    "sequences": lambda seed: SequenceTask(SHORT, 4, seed),
    "write": lambda seed: WritingTask(TEXT, 8, 4, seed),
    "masked": lambda seed: MaskedTask(TEXT, "_", 8, 4, seed),
    "lengths": lambda seed: LengthTask("copy", 4, seed, 2),
    "induction": lambda seed: InductionTask(4, seed),
    "images": lambda seed: images.ImagesTask(IMAGES, 0, 4, seed, 0.7, 10),
}


@pytest.mark.parametrize("name", BY_SEED)
def test_a_batch_is_that_of_its_seed_and_its_step_and_of_no_others(name):
    """A sum of both would give the batches of a seed again, a step later, with the next."""
    tasks = {seed: BY_SEED[name](seed) for seed in (1, 2)}
    places = list(itertools.product((1, 2), (1, 2, 3)))
    batches = [pickle.dumps(tasks[seed].batch(step).inputs) for seed, step in places]
    assert len({*batches}) == len(places)
    assert [
        pickle.dumps(BY_SEED[name](seed).batch(step).inputs) for seed, step in places
    ] == batches


@pytest.mark.parametrize(
    ("rule", "source", "target"),
    [
        (sort.RULE, "3014159", "0113459"),
        (addition.RULE, "047+921", "8690"),
        (addition.RULE, "999+999", "8991"),
        (addition.RULE, "000+000", "0000"),
        (walk.RULE, "350124", "315420"),
        (walk.RULE, "524130", "505050"),
        (walk.RULE, "123433", "123434"),
    ],
)
def test_what_a_rule_asks_for(rule, source, target):
    assert rule.target(source) == target


@pytest.mark.parametrize(
    ("rule", "pattern", "lengths", "symbols"),
    [
        (sort.RULE, r"\d{1,12}", range(1, 13), "0123456789"),
        (addition.RULE, r"\d{3}\+\d{3}", [7], "0123456789"),
        (walk.RULE, r"[0-5]{6}", [6], "012345"),
    ],
)
def test_sources_of_a_rule(rule, pattern, lengths, symbols):
    """Every length, every digit in every place: a range that ends one early leaves one out."""
    rng = np.random.default_rng(0)
    sources = [rule.source(rng) for _ in range(2000)]
    assert all(re.fullmatch(pattern, source) for source in sources)
    assert {len(source) for source in sources} == {*lengths}
    for place in {0, 1, 2, 4, lengths[-1] - 1}:
        assert {source[place] for source in sources if len(source) > place} == {*symbols}


def test_exact_match_counts_whole_sequences(monkeypatch):
    """`greedy` is replaced by one that copies, but for sources of length 3, which it cuts."""

    def almost(model, source, max_length):
        assert max_length > max(np.count_nonzero(source, axis=1) - 1)  # the end id needs room
        rows = [row[: row.index(2)] for row in source.tolist()]
        return [row[:2] if len(row) == 3 else row for row in rows]

    monkeypatch.setattr("numformer.generation.transduction.greedy", almost)
    task = SequenceTask(
        dataclasses.replace(SHORT, source=lambda rng: f"{rng.integers(9999)}"), 4, 1
    )
    model = SimpleNamespace(config=SimpleNamespace(longest=None))
    task.development = [(source, (source,)) for source in ("12", "123", "1234", "5")]
    assert task.evaluate(model) == {"exact_match": 0.75}
    assert task.written(model, ["123", *["45"] * 300]) == ["12", *["45"] * 300]
