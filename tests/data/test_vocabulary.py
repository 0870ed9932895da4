"""Symbols and ids: the four special ids, encoding, decoding."""

from numformer.data.vocabulary import END, PADDING, SPECIAL, START, UNKNOWN, Vocabulary


def test_ids_0_to_3_are_special_in_every_vocabulary():
    assert (PADDING, START, END, UNKNOWN) == (0, 1, 2, 3)
    assert Vocabulary("ab").decode(range(4)) == list(SPECIAL)
    assert len(set(SPECIAL)) == 4


def test_symbols_follow_in_their_order_and_are_counted_with_the_special_ids():
    vocabulary = Vocabulary("cab")
    assert vocabulary.symbols == ["c", "a", "b"]
    assert vocabulary.encode("abc") == [5, 6, 4]
    assert len(vocabulary) == 7


def test_decoding_reverses_encoding():
    vocabulary = Vocabulary(["ɑ̃", "b", "ʁ"])
    sequence = ["ʁ", "ɑ̃", "ɑ̃", "b"]
    assert vocabulary.decode(vocabulary.encode(sequence)) == sequence
    assert vocabulary.encode([]) == vocabulary.decode([]) == []


def test_a_symbol_that_is_not_there_is_unknown():
    """The written name of a special id is no way to that id."""
    vocabulary = Vocabulary("ab")
    assert vocabulary.encode("axb") == [4, UNKNOWN, 5]
    assert vocabulary.encode(SPECIAL) == [UNKNOWN] * 4


def test_the_vocabulary_of_sequences_is_sorted_and_holds_each_symbol_once():
    """Sorted, so that the same data gives the same ids in another process."""
    assert Vocabulary.of([["b", "a"], [], ["c", "b"]]).symbols == ["a", "b", "c"]
    assert Vocabulary.of(["noon", "no"]).symbols == ["n", "o"]


def test_a_vocabulary_is_rebuilt_from_its_symbols():
    vocabulary = Vocabulary.of(["transformer"])
    again = Vocabulary(vocabulary.symbols)
    assert again.encode("former") == vocabulary.encode("former")
