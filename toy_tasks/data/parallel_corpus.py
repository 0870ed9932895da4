"""Parallel corpora: sentences and their translations, line by line in two files or in one."""

from collections.abc import Sequence
from pathlib import Path

from numformer.counts import counted
from numformer.data.moses import tokenize
from numformer.data.vocabulary import split_words
from numformer.errors import InputError
from toy_tasks.data.splits import split_pairs
from toy_tasks.data.text_files import MAX_BYTES, Pair, read_pairs, read_text

SPLITS = "train", "val", "test"
TOKENIZED = ".tok."
"""Part of the name of a file that is tokenized and in lower case already."""


def tokenizer_languages(languages: Sequence[str], cased: bool) -> tuple[str, str]:
    """The languages whose rules tokenize source and target; "" if sentences stay as written."""
    source, target = languages
    return ("", "") if cased else (source, target)


def read_corpus(
    path: Path, languages: tuple[str, str], cased: bool = False
) -> dict[str, list[Pair]]:
    """Read a corpus -> the pairs of "train", "val" and "test", with spaces between tokens.

    With `cased`, sentences stay as written. `path` is one file of pairs, split by a hash
    of the source; or a folder with two files for each split. Pairs with an empty side are left out
    of "train" and "val". Prints how many they are, and how many sources of "val" and "test" are
    also trained on. Raises InputError for a split without pairs, and as `find_files`,
    `read_parallel` and `read_pairs` do.
    """
    rules = tokenizer_languages(languages, cased)
    corpus, parts = {}, split_file(path, rules) if path.is_file() else {}
    for split in SPLITS:
        pairs = parts[split] if parts else read_parallel(*find_files(path, split, languages), rules)
        complete = pairs if split == "test" else [pair for pair in pairs if all(pair)]
        if len(complete) < len(pairs):
            lines = counted(len(pairs) - len(complete), "line")
            print(f"{split}: {lines} left out, because a side is empty")
        if not complete:
            fix = "Give more pairs of sentences."
            raise InputError(f"{split} holds pairs of sentences", "none", fix)
        corpus[split] = complete
    trained = {source for source, _ in corpus["train"]}
    for split in SPLITS:
        shared = sum(source in trained for source, _ in corpus[split])
        if split != "train" and shared:
            print(f"{split}: {shared:,} of {len(corpus[split]):,} sources are trained on, too")
    return corpus


def split_file(file: Path, rules: tuple[str, str]) -> dict[str, list[Pair]]:
    """Read a file with `source<TAB>target` on each line -> its pairs by split."""
    pairs = read_pairs(file, "", "Name a file of pairs: --data FILE.tsv", MAX_BYTES)
    tokens = [(tokenize(a, rules[0]), tokenize(b, rules[1])) for a, b in pairs]
    return split_pairs(tokens, *SPLITS)


def find_files(folder: Path, split: str, languages: tuple[str, str]) -> list[Path]:
    """The two files of a split: their names differ only in their ending, the language.

    If there are several such pairs of files, the first in alphabetical order is taken.
    """
    endings = [f".{language}" for language in languages]
    names = [
        {path.name.removesuffix(ending) for path in folder.glob(f"{split}*{ending}")}
        for ending in endings
    ]
    patterns = " and ".join(f"{split}*{ending}" for ending in endings)
    if not (shared := set.intersection(*names)):
        raise InputError(
            f"--data names a folder with {patterns}, whose names differ only in their ending",
            f"{folder}, which has none" if folder.is_dir() else f"{folder}, which is no folder",
            "Name another folder or other --languages, or leave out --data to download Multi30k.",
        )
    return [folder / f"{min(shared)}{ending}" for ending in endings]


def read_parallel(source: Path, target: Path, rules: tuple[str, str]) -> list[Pair]:
    """Read two files with a sentence on each line, as `read_sentences` does -> pairs of sentences.

    Raises InputError if one file has more lines: then a line is missing in the other, and all
    lines after that one are paired with the wrong sentence.
    """
    sides = [*map(read_sentences, (source, target), rules)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{source} and {target} have the same number of lines",
            f"{len(sides[0]):,} and {len(sides[1]):,} lines",
            "Find the line that is missing, or leave an empty line where there is no translation.",
        )
    return list(zip(*sides, strict=True))


def read_sentences(path: Path, language: str) -> list[str]:
    """The lines of a file, each tokenized by the language's rules unless the file already is."""
    text = read_text(path, "Name a file with a sentence on each line.")
    lines = text.removesuffix("\n").split("\n")
    if TOKENIZED in path.name:
        return [" ".join(split_words(line)) for line in lines]
    return [tokenize(line, language) if line.strip() else "" for line in lines]
