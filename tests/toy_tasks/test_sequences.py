"""Made-up sequences: what is drawn, what is asked for, and what training never sees."""

import itertools
import pickle
import re
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from tests.toy_tasks.small import PAGES, SHORT
from toy_tasks import images
from toy_tasks.data.images import with_labels
from toy_tasks.data.splits import is_held_out
from toy_tasks.induction import InductionTask
from toy_tasks.lengths import LengthTask
from toy_tasks.masked import MaskedTask
from toy_tasks.recall import RecallTask
from toy_tasks.text_to_text import sequences
from toy_tasks.text_to_text.sequences import Rule, SequenceTask
from toy_tasks.write import WritingTask

WORDS = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("abcd", repeat=n)]
HELD_OUT = [word for word in WORDS if is_held_out(word)]
TRAINED_ON = [word for word in WORDS if not is_held_out(word)]


@pytest.fixture(autouse=True)
def fewer_sources(monkeypatch):
    monkeypatch.setattr(sequences, "HELD_OUT_SOURCES", 2000)


def task(sources: list[str]) -> SequenceTask:
    draw = lambda rng: sources[rng.integers(len(sources))]  # noqa: E731
    return SequenceTask(Rule("few", "", "abcd", draw, lambda source: source, 1.0, {}), 4, seed=1)


def test_one_source_in_eight_is_held_out_the_same_in_every_process():
    assert [zlib.crc32(word.encode()) % 8 == 0 for word in WORDS] == [*map(is_held_out, WORDS)]
    assert sum(map(is_held_out, map(str, range(8000)))) == 999


def test_held_out_sources_are_for_development_and_for_the_test(complaint, monkeypatch):
    few = task(HELD_OUT[:3] + TRAINED_ON[:5])
    assert len(few.development) == 1 and len(few.test) == 2
    examples = {*few.development, *few.test}
    assert examples == {(source, (source,)) for source in HELD_OUT[:3]}
    for sources, number in ((TRAINED_ON, 0), (TRAINED_ON + HELD_OUT[:1], 1), (HELD_OUT[:20], 20)):
        assert f"{number} held out" in complaint(task, sources)
    for name, most in ("DEVELOPMENT", 3), ("TEST", 5):
        monkeypatch.setattr(sequences, name, most)
    many = task(WORDS)
    assert len(many.development) == 3 and len(many.test) == 5


# What sources look like, how long they are, of what, and what is asked for about some of them.
DRAWN = {
    "copy_task": (r"\d{1,16}", range(1, 17), "0123456789", {"301": "301"}),
    "reverse": (r"\d{1,16}", range(1, 17), "0123456789", {"301": "103"}),
    "sort": (r"\d{1,12}", range(1, 13), "0123456789", {"3014159": "0113459"}),
    "addition": (r"\d{3}\+\d{3}", [7], "0123456789", {"047+921": "8690", "999+999": "8991"}),
    "walk": (r"[0-5]{6}", [6], "012345", {"350124": "315420", "524130": "505050"}),
}


@pytest.mark.parametrize("name", [name for name in PAGES if hasattr(PAGES[name], "RULE")])
def test_a_rule_and_that_training_never_sees_what_is_evaluated(name):
    """Every length, every digit in every place: a range that ends one early leaves one out."""
    (pattern, lengths, symbols, answers), rule = DRAWN[name], PAGES[name].RULE
    rng = np.random.default_rng(0)
    sources = [rule.draw_source(rng) for _ in range(2000)]
    assert all(re.fullmatch(pattern, source) for source in sources)
    assert {len(source) for source in sources} == {*lengths}
    for place in {0, 1, 2, 4, lengths[-1] - 1}:
        assert {source[place] for source in sources if len(source) > place} == {*symbols}
    assert {source: rule.make_target(source) for source in answers} == answers

    task = SequenceTask(rule, 64, 1)
    held, vocabulary = [*task.test, *task.development], task.text.source
    assert len(task.test) >= 1000 and len(task.development) >= 256
    assert len({*held}) == len(held)
    trained = set()
    for batch in map(task.batch, range(1, 7)):
        for sides in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True):
            source, target = ("".join(vocabulary.decode(ids[: ids.index(2)])) for ids in sides)
            assert target == rule.make_target(source)
            trained.add(source)
    assert len(trained) > 300
    assert not trained & {source for source, _ in held}


IMAGES = with_labels(np.random.default_rng(0).random((20, 4, 4)), np.arange(20) % 2)
TEXT = "the cat sat on the mat. " * 20
BY_SEED = {
    "sequences": lambda seed: SequenceTask(SHORT, 4, seed),
    "write": lambda seed: WritingTask(TEXT, 8, 4, seed),
    "masked": lambda seed: MaskedTask(TEXT, "_", 8, 4, seed),
    "lengths": lambda seed: LengthTask("copy", 4, seed, 2),
    "induction": lambda seed: InductionTask(4, seed),
    "recall": lambda seed: RecallTask(32, 10, seed),
    "images": lambda seed: images.ImagesTask(IMAGES, 0, 4, seed, 0.7, 10),
}


@pytest.mark.parametrize("name", BY_SEED)
def test_a_batch_is_that_of_its_seed_and_its_step_and_of_no_others(name):
    """A sum of both would give the batches of a seed again, a step later, with the next."""

    def batches() -> list[bytes]:
        tasks = BY_SEED[name](1), BY_SEED[name](2)
        return [pickle.dumps(task.batch(step).inputs) for task in tasks for step in (1, 2, 3)]

    assert len({*batches()}) == 6 and batches() == batches()


def test_exact_match_counts_whole_sequences(monkeypatch):
    def almost(model, source, max_length):
        assert max_length > max(np.count_nonzero(source, axis=1) - 1)  # the end id needs room
        rows = [row[: row.index(2)] for row in source.tolist()]
        return [row[:2] if len(row) == 3 else row for row in rows]

    monkeypatch.setattr("numformer.generation.transduction.greedy", almost)
    task = SequenceTask(SHORT, 4, 1)
    model = SimpleNamespace(config=SimpleNamespace(longest=None))
    task.development = [(source, (source,)) for source in ("12", "123", "45", "5")]
    assert task.evaluate(model) == {"exact_match": 0.75}
    assert task.write(model, ["123", *["45"] * 300]) == ["12", *["45"] * 300]
