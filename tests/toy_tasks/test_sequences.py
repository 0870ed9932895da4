"""What is held out of a task of sequences, however few there are."""

import itertools
import zlib

import pytest

from toy_tasks.kit.sequences import Rule, SequenceTask, held_out

WORDS = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("abcd", repeat=n)]
HELD_OUT = [word for word in WORDS if held_out(word)]
TRAINED_ON = [word for word in WORDS if not held_out(word)]


def task(sources: list[str]) -> SequenceTask:
    """Copy one of these sources."""
    draw = lambda rng: sources[rng.integers(len(sources))]  # noqa: E731
    return SequenceTask(Rule("few", "", "abcd", draw, lambda source: source, 1.0, {}), 4, seed=1)


def test_one_source_in_eight_is_held_out():
    assert [zlib.crc32(word.encode()) % 8 == 0 for word in WORDS] == [*map(held_out, WORDS)]
    assert len(HELD_OUT) >= 20


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
