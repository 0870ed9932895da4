"""Symbols and ids: special ids, encoding, decoding; test_beginners has invalid input."""

from numformer.data.vocabulary import END, PADDING, SPECIAL, START, UNKNOWN, Vocabulary


def test_symbols_follow_the_special_ids_in_their_order():
    """The name of a special id does not encode to that id."""
    vocabulary = Vocabulary("cab")
    assert vocabulary.symbols == ["c", "a", "b"] and len(vocabulary) == 7
    assert vocabulary.encode(["a", "x", "b", *SPECIAL]) == [5, UNKNOWN, 6, *[UNKNOWN] * 4]
    assert (PADDING, START, END, UNKNOWN) == (0, 1, 2, 3) and len({*SPECIAL}) == 4
    assert vocabulary.decode(range(7)) == [*SPECIAL, "c", "a", "b"]


def test_a_symbol_may_be_several_characters_and_a_text_is_split_in_one_form():
    sounds, words = Vocabulary(["ɑ̃", "b", "ʁ"]), Vocabulary(["one", "two"], " ")
    assert sounds.encode(["ʁ", "ɑ̃"]) == [6, 4]
    assert sounds.split("e\N{COMBINING ACUTE ACCENT}a") == ["é", "a"]
    assert words.split(" 1\xa000 \u2028\t\x85\r\n") == ["1\xa000", "\u2028", "\x85"]
    assert words.split("  one  two ") == ["one", "two"] and words.join(["one", "two"]) == "one two"


def test_the_vocabulary_of_texts_is_sorted_and_holds_each_symbol_once():
    assert Vocabulary.of([["b", "a"], [], ["c", "b"]]).symbols == ["a", "b", "c"]
    assert Vocabulary.of(["noon", "no", ["cc"]]).symbols == ["cc", "n", "o"]
    assert Vocabulary.of(["b a", "a c"], " ").symbols == ["a", "b", "c"]
